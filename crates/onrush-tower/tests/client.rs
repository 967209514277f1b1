//! A client that sends raw bytes, and responses in a form in which two servers can be compared.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A response without what may differ: `Date`, `Server`, persistence, and the framing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) fields: BTreeMap<String, Vec<String>>,
    pub(crate) content: Vec<u8>,
    pub(crate) trailers: String,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.content).into_owned()
    }
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("a server");
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).expect("a time limit");
    stream
}

/// Sends `request` and reads to the end of the connection.
pub(crate) fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    stream.write_all(request).expect("sent");
    let (mut received, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match testing::read_some(&mut stream, &mut piece) {
            Ok(0) => return received,
            Ok(n) => received.extend_from_slice(&piece[..n]),
            // A server that refuses a body may reset the connection behind its response.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return received,
            Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&received)),
        }
    }
}

/// All responses of one connection to requests, of which `heads` are HEAD.
pub(crate) fn replies(mut received: &[u8], heads: &[bool]) -> Vec<Reply> {
    let mut replies = Vec::new();
    while !received.is_empty() {
        let is_head = heads.get(replies.len()).copied().unwrap_or(false);
        let (reply, rest) = parse(received, is_head);
        if reply.status >= 200 {
            replies.push(reply);
        }
        received = rest;
    }
    replies
}

/// The response to a request.
pub(crate) fn ask(address: SocketAddr, request: &[u8]) -> Reply {
    let received = exchange(address, request);
    let replies = replies(&received, &[request.starts_with(b"HEAD ")]);
    let shown = String::from_utf8_lossy(request);
    replies
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("no response to {shown}"))
}

/// The response to a GET of `path`.
pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    ask(address, request.as_bytes())
}

fn parse(received: &[u8], is_head: bool) -> (Reply, &[u8]) {
    let end = received.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(received))) + 4;
    let head = String::from_utf8_lossy(&received[..end]);
    let mut lines = head.lines();
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status: u16 = status.expect("a status");
    let mut fields: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let values = fields.entry(name.to_ascii_lowercase()).or_default();
        values.push(value.trim().to_owned());
    }
    let is_chunked = fields.remove("transfer-encoding").is_some();
    let length = fields
        .get("content-length")
        .map(|values| values[0].parse().expect("a number"));
    for name in ["date", "server", "connection", "keep-alive"] {
        fields.remove(name);
    }
    let mut rest = &received[end..];
    let (mut content, mut trailers) = (Vec::new(), String::new());
    if is_head || status < 200 || status == 204 || status == 304 {
    } else if is_chunked {
        (content, trailers, rest) = dechunk(rest);
        fields.remove("content-length");
    } else {
        let length = length.unwrap_or(rest.len()).min(rest.len());
        content = rest[..length].to_vec();
        rest = &rest[length..];
    }
    let reply = Reply {
        status,
        fields,
        content,
        trailers,
    };
    (reply, rest)
}

/// The content, the trailers, and what follows them.
fn dechunk(mut rest: &[u8]) -> (Vec<u8>, String, &[u8]) {
    let mut content = Vec::new();
    let line = |rest: &[u8]| {
        let end = rest
            .windows(2)
            .position(|two| two == b"\r\n")
            .expect("a line");
        String::from_utf8_lossy(&rest[..end]).into_owned()
    };
    loop {
        let size = line(rest);
        rest = &rest[size.len() + 2..];
        let size = usize::from_str_radix(&size, 16).expect("a chunk size");
        if size == 0 {
            break;
        }
        content.extend_from_slice(&rest[..size]);
        rest = &rest[size + 2..];
    }
    let mut trailers = String::new();
    loop {
        let trailer = line(rest);
        rest = &rest[trailer.len() + 2..];
        if trailer.is_empty() {
            return (content, trailers, rest);
        }
        trailers.push_str(&trailer.to_ascii_lowercase());
        trailers.push('\n');
    }
}

/// Reads until `received` ends with `end`.
pub(crate) fn receive_until(stream: &mut impl Read, received: &mut Vec<u8>, end: &[u8]) {
    let mut piece = vec![0; 1 << 16];
    while !received.ends_with(end) {
        let n = testing::read_some(stream, &mut piece).expect("readable");
        assert!(n > 0, "the end after {}", String::from_utf8_lossy(received));
        received.extend_from_slice(&piece[..n]);
    }
}
