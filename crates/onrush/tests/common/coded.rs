//! Compressed responses: content, handlers that send it as each kind of body, and replies that are
//! decoded.

use super::{calm, dechunk, text};
use onrush::compression::compress;
use onrush::{Body, Bytes, File, Limits, Part, Request, Response, Router, sim::Simulation};
use onrush_rt::driver::sim::Client;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use testing::TempDir;

/// Text that becomes smaller.
pub fn lines(bytes: usize) -> Vec<u8> {
    let lines = (0u64..).flat_map(|number| {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        format!("line {number} has the value {mixed}\n").into_bytes()
    });
    lines.take(bytes).collect()
}

/// A response without its framing.
pub struct Reply {
    pub head: String,
    pub content: Vec<u8>,
}

impl Reply {
    pub fn new(response: &[u8]) -> Reply {
        let end = response.windows(4).position(|it| it == b"\r\n\r\n");
        let (head, content) = response.split_at(end.expect("a whole head") + 4);
        let head = text(head);
        let content = match head.contains("\r\nTransfer-Encoding: chunked\r\n") {
            true if !content.is_empty() => dechunk(content),
            _ => content.to_vec(),
        };
        Reply { head, content }
    }

    pub fn all(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let named = lines.filter(|(it, _)| it.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value).collect()
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    pub fn coding(&self) -> Option<&str> {
        self.field("Content-Encoding")
    }

    /// The content without its coding.
    pub fn decoded(&self) -> Vec<u8> {
        let mut content = Vec::new();
        match self.coding() {
            None => content.extend_from_slice(&self.content),
            Some("gzip") => {
                let read =
                    flate2::read::GzDecoder::new(&self.content[..]).read_to_end(&mut content);
                read.expect("valid gzip");
            }
            Some("zstd") => content = zstd::decode_all(&self.content[..]).expect("valid zstd"),
            Some(other) => panic!("{other}"),
        }
        content
    }

    /// What can be decoded of content whose end has not arrived.
    pub fn decoded_start(coding: &str, content: &[u8]) -> Vec<u8> {
        let mut decoder: Box<dyn Read> = match coding {
            "gzip" => Box::new(flate2::read::GzDecoder::new(content)),
            _ => Box::new(zstd::stream::read::Decoder::new(content).expect("a decoder")),
        };
        let (mut start, mut byte) = (Vec::new(), [0]);
        while let Ok(1) = decoder.read(&mut byte) {
            start.push(byte[0]);
        }
        start
    }
}

pub fn request(method: &str, path: &str, accept: &str) -> String {
    let fields = "Host: t\r\nConnection: close";
    format!("{method} {path} HTTP/1.1\r\n{fields}\r\nAccept-Encoding: {accept}\r\n\r\n")
}

/// The reply of `router` on a quiet simulated network.
pub fn ask(router: &Router, method: &str, path: &str, accept: &str) -> Reply {
    let mut sim = calm(router, Limits::default());
    let client = sim.connect();
    sim.send(&client, request(method, path, accept).as_bytes());
    Reply::new(&receive_all(&mut sim, &client))
}

/// Everything until the server closes the connection, or until nothing happens for a minute.
pub fn receive_all(sim: &mut Simulation, client: &Client) -> Vec<u8> {
    let mut response = Vec::new();
    for _ in 0..60_000 {
        sim.advance(Duration::from_millis(1));
        response.extend(client.receive().unwrap_or_default());
        if client.at_end() {
            break;
        }
    }
    response
}

/// A router with one compressed route, whose response `make` makes.
pub fn router(make: impl Fn() -> Response + Clone + Send + Sync + 'static) -> Router {
    let handler = move |_: Request| {
        let response = make();
        async { response }
    };
    Router::new().get("/", handler).layer(compress)
}

/// A stream of these items. `waits`: it has nothing ready before each of them.
pub struct Items {
    pub left: VecDeque<io::Result<Bytes>>,
    pub waits: bool,
    has_waited: bool,
}

impl Items {
    pub fn new(content: &[u8], piece_bytes: usize, waits: bool) -> Items {
        let pieces = content.chunks(piece_bytes).map(Bytes::copy_from_slice);
        Items {
            left: pieces.map(Ok).collect(),
            waits,
            has_waited: false,
        }
    }
}

impl futures_core::Stream for Items {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.waits && !std::mem::replace(&mut self.has_waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_waited = false;
        Poll::Ready(self.left.pop_front())
    }
}

/// The kinds of bodies, which are paths of [`bodies`].
pub const KINDS: [&str; 7] = ["bytes", "file", "parts", "sized", "stream", "small", "slow"];

/// `content` as each kind of body.
pub fn bodies(content: &[u8], folder: &TempDir) -> Router {
    let path = folder.path().join(content.len().to_string());
    std::fs::write(&path, content).unwrap();
    let file = Arc::new(File::from(std::fs::File::open(path).unwrap()));
    let content = Bytes::copy_from_slice(content);
    let handler = move |request: Request| {
        let length = content.len() as u64;
        let middle = length / 2;
        let part = Part::File {
            file: file.clone(),
            offset: 0,
            length: middle,
        };
        let stream = |piece_bytes, waits| Items::new(&content, piece_bytes, waits);
        let body = match request.param("kind") {
            Some("bytes") => Body::from(content.clone()),
            Some("file") => Body::file(file.clone(), 0, length),
            Some("parts") => Body::parts([part, Part::Bytes(content.slice(middle as usize..))]),
            Some("sized") => Body::stream(stream(7_001, false), Some(length)),
            Some("stream") => Body::stream(stream(200_000, false), None),
            Some("small") => Body::stream(stream(997, false), None),
            _ => Body::stream(stream(30_011, true), None),
        };
        async { Response::text(body) }
    };
    Router::new().get("/{kind}", handler).layer(compress)
}
