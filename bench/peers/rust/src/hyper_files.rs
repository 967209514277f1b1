//! A folder served with hyper: `GET /NAME` and `PUT /NAME`, and `GET /stream` with a body that
//! never ends. The files are in memory (tmpfs), so the server reads and writes them directly,
//! without a thread pool, which is its cheapest way.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Method, Request, Response, StatusCode};
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Bytes of one piece of a body.
const PIECE_BYTES: usize = 64 * 1024;

/// The body of a response.
#[derive(Debug)]
pub enum Content {
    /// No body.
    Empty,
    /// A file, and the number of bytes that are not sent yet.
    File(File, u64),
    /// A piece that is sent repeatedly.
    Endless(Bytes),
}

impl Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(match &mut *self {
            Content::Empty | Content::File(_, 0) => None,
            Content::Endless(piece) => Some(Ok(Frame::data(piece.clone()))),
            Content::File(file, left) => {
                let length = usize::try_from(*left).map_or(PIECE_BYTES, |n| n.min(PIECE_BYTES));
                let mut piece = vec![0; length];
                let read = file.read_exact(&mut piece);
                *left -= length as u64;
                Some(read.map(|()| Frame::data(piece.into())))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Content::Empty | Content::File(_, 0))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Content::Empty => SizeHint::with_exact(0),
            Content::File(_, left) => SizeHint::with_exact(*left),
            Content::Endless(_) => SizeHint::default(),
        }
    }
}

/// Handles one request.
pub async fn route(
    folder: Arc<PathBuf>,
    request: Request<Incoming>,
) -> Result<Response<Content>, Infallible> {
    let name = request.uri().path().trim_start_matches('/').to_owned();
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Ok(response(StatusCode::NOT_FOUND, Content::Empty));
    }
    Ok(match (request.method(), &*name) {
        (&Method::GET, "stream") => {
            let piece = Bytes::from_static(&[b'x'; PIECE_BYTES]);
            response(StatusCode::OK, Content::Endless(piece))
        }
        (&Method::GET, _) => match open(&folder.join(name)) {
            Ok((file, length)) => response(StatusCode::OK, Content::File(file, length)),
            Err(_) => response(StatusCode::NOT_FOUND, Content::Empty),
        },
        (&Method::PUT, _) => match store(&folder, &name, request.into_body()).await {
            Ok(()) => response(StatusCode::CREATED, Content::Empty),
            Err(_) => response(StatusCode::INTERNAL_SERVER_ERROR, Content::Empty),
        },
        _ => response(StatusCode::METHOD_NOT_ALLOWED, Content::Empty),
    })
}

fn response(status: StatusCode, content: Content) -> Response<Content> {
    let mut response = Response::new(content);
    *response.status_mut() = status;
    response
}

fn open(path: &std::path::Path) -> io::Result<(File, u64)> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// Stores a body in a temporary file, and renames the file when it is complete.
async fn store(folder: &std::path::Path, name: &str, mut body: Incoming) -> io::Result<()> {
    let temporary = folder.join(format!(".put-{name}"));
    let mut file = File::create(&temporary)?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(io::Error::other)?;
        if let Some(piece) = frame.data_ref() {
            file.write_all(piece)?;
        }
    }
    fs::rename(temporary, folder.join(name))
}
