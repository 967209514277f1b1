//! `onrush-mixed PORT FOLDER`: serves the files of a folder like the binary `onrush`. `PUT` is
//! permitted, and nothing is synced. `GET /stream` receives a body that never ends and whose next
//! piece is always ready. `ONRUSH_WORKERS` and `ONRUSH_DRIVER` apply (`Server::from_env`).
//!
//! It is a program of its own, so that it does not change the code that the other profiles measure.

#![forbid(unsafe_code)]

use futures_core::Stream;
use onrush::{Body, Bytes, Limits, Request, Response, Router, Server};
use onrush_files::{Allow, Durability, Files, FilesOptions};
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll};

/// Length of one piece of the endless body.
const PIECE_BYTES: usize = 64 * 1024;

/// A body without an end. Every poll returns a piece.
struct Endless(Bytes);

impl Stream for Endless {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(Some(Ok(self.0.clone())))
    }
}

async fn stream(_: Request) -> Response {
    let piece = Bytes::from_static(&[b'x'; PIECE_BYTES]);
    Response::with_body(Body::stream(Endless(piece), None)).content_type("application/octet-stream")
}

fn serve(port: &str, folder: &Path) -> io::Result<()> {
    let options = FilesOptions {
        allow: Allow {
            put: true,
            delete: true,
            ..Allow::default()
        },
        durability: Durability::None,
        ..FilesOptions::default()
    };
    let files = Files::open(folder, options)?;
    let limits = Limits::default().body_bytes_max(u64::MAX);
    Server::bind(format!("127.0.0.1:{port}"))
        .from_env()?
        .limits(limits)
        .blocking_pool(files.pool().clone())
        .serve(Router::new().get("/stream", stream).fallback(files))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [port, folder] = &arguments[..] else {
        eprintln!("usage: onrush-mixed PORT FOLDER");
        return ExitCode::from(2);
    };
    match serve(port, Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("onrush-mixed: {error}");
            ExitCode::FAILURE
        }
    }
}
