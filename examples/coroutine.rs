//! Handlers that read and write as if they blocked: `coroutine [PORT]`, then
//! `curl http://127.0.0.1:PORT/`, `curl -T FILE http://127.0.0.1:PORT/upper`, and
//! `curl http://127.0.0.1:PORT/front/NAME`, which requests `/back/NAME` from the same server.
//!
//! Each request needs only a few pages of memory. While a client does not read its response, the
//! handler waits in `write` and the worker serves other requests.

use onrush::coroutine::{Contract, RequestReader, ResponseWriter, TcpStream, handler, sleep};
use onrush::{Router, Server};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::time::Duration;

fn hello(_: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    response.set_content_type("text/plain");
    response.write_all(b"Hello, World!")
}

/// Sends the body back in capitals while it is still arriving. The body may have any length.
fn upper(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    let mut piece = [0; 4096];
    loop {
        let read = request.read(&mut piece)?;
        if read == 0 {
            return Ok(());
        }
        piece[..read].make_ascii_uppercase();
        response.write_all(&piece[..read])?;
        response.flush()?;
    }
}

/// Responds after a delay, as a back-end server does.
fn back(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    sleep(Duration::from_millis(5));
    let name = request.param_decoded("name").unwrap_or_default();
    writeln!(response, "{name} is here.")
}

/// Sends a request to another server and forwards its response.
fn front(request: &mut RequestReader, response: &mut ResponseWriter, port: &str) -> io::Result<()> {
    let mut behind = TcpStream::connect(format!("127.0.0.1:{port}"))?;
    let name = request.param("name").unwrap_or_default();
    write!(
        behind,
        "GET /back/{name} HTTP/1.1\r\nHost: behind\r\nConnection: close\r\n\r\n"
    )?;
    let mut behind = BufReader::new(behind);
    let mut line = String::new();
    behind.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200 ") {
        response.set_status(502);
        return Ok(());
    }
    while line != "\r\n" {
        line.clear();
        if behind.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    io::copy(&mut behind, response)?;
    Ok(())
}

fn main() -> io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    let address = format!("127.0.0.1:{port}");
    let limits = onrush::Limits::default().body_bytes_max(u64::MAX);
    let front = move |request: &mut RequestReader, response: &mut ResponseWriter| {
        front(request, response, &port)
    };
    // SAFETY: the handlers use no thread-local, and pass no closure that waits to a scope or a
    // library.
    #[allow(unsafe_code)]
    let contract = unsafe { Contract::accept() };
    let router = Router::new()
        .get("/", handler(contract, hello))
        .put("/upper", handler(contract, upper))
        .get("/back/{name}", handler(contract, back))
        .get("/front/{name}", handler(contract, front));
    Server::bind(address)
        .from_env()?
        .limits(limits)
        .coroutine_stack_bytes(64 << 10)
        .serve(router)
}
