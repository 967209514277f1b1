//! `peer-may-minihttp PORT`: may_minihttp with one worker of the may scheduler.

#![forbid(unsafe_code)]

use may_minihttp::{HttpServer, HttpService, Request, Response};
use peers::{ECHO_BYTES_MAX, HELLO};
use std::io::{self, Read};

#[derive(Clone)]
struct Routes;

impl HttpService for Routes {
    fn call(&mut self, request: Request, response: &mut Response) -> io::Result<()> {
        match (request.method(), request.path()) {
            ("GET", "/") => {
                response
                    .header("Content-Type: text/plain; charset=utf-8")
                    .body(HELLO);
            }
            ("GET", "/json") => {
                response
                    .header("Content-Type: application/json")
                    .body_vec(peers::json());
            }
            ("POST", "/echo") => echo(request, response)?,
            _ => {
                response.status_code(404, "Not Found");
            }
        }
        Ok(())
    }
}

/// Response fields must be constants, so the echo does not have the `Content-Type` of the request.
fn echo(request: Request, response: &mut Response) -> io::Result<()> {
    let mut body = Vec::new();
    let mut rest = request.body().take(ECHO_BYTES_MAX as u64 + 1);
    if rest.read_to_end(&mut body)? > ECHO_BYTES_MAX {
        response.status_code(413, "Content Too Large");
    } else {
        response
            .header("Content-Type: application/octet-stream")
            .body_vec(body);
    }
    Ok(())
}

fn main() -> io::Result<()> {
    may::config().set_workers(1);
    let server = HttpServer(Routes).start(peers::address())?;
    server
        .join()
        .map_err(|_| io::Error::other("the server's coroutine panicked"))
}
