//! Handlers of Onrush: the same ones as `async fn` and as plain functions.

use crate::backend::{self, BYTES_MAX, HELLO, REQUEST, SLEEP, SLEPT};
use onrush::{
    Metrics, Response, Router, Server,
    coroutine::{self, TcpStream, handler},
};
use onrush_rt::{net::Stream, worker::WorkerContext};
use std::{
    cell::RefCell,
    io::{self, ErrorKind, Write},
    net::SocketAddr,
};

thread_local! {
    /// Idle connections to the backend.
    static IDLE_ASYNC: RefCell<Vec<Stream>> = const { RefCell::new(Vec::new()) };
    static IDLE_BLOCKING: RefCell<Vec<TcpStream>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn serve_async(address: SocketAddr, backend: SocketAddr) -> io::Result<()> {
    let call = move |request: onrush::Request| async move {
        let _held = request; // Until there is a response, like the plain function.
        match call_async(backend).await {
            Ok(content) => Response::text(content),
            Err(_) => Response::new(502),
        }
    };
    let sleep = async |request: onrush::Request| {
        request.worker().sleep(SLEEP).await;
        Response::text(SLEPT)
    };
    let router = Router::new()
        .get("/", async |_: onrush::Request| Response::text(HELLO))
        .get("/call", call)
        .get("/sleep", sleep);
    serve(address, router)
}

async fn call_async(backend: SocketAddr) -> io::Result<Vec<u8>> {
    let idle = IDLE_ASYNC.with_borrow_mut(Vec::pop);
    let mut stream = match idle {
        Some(stream) => stream,
        None => {
            let worker = WorkerContext::current().expect("a handler runs on a worker");
            Stream::connect(&worker, backend).await?
        }
    };
    stream.write_all(REQUEST).await?;
    let mut received = [0; BYTES_MAX];
    let mut have = 0;
    let content = loop {
        match stream.read(&mut received[have..]).await? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => have += more,
        }
        if let Some(content) = backend::content(&received[..have])? {
            break content.to_vec();
        }
    };
    IDLE_ASYNC.with_borrow_mut(|idle| idle.push(stream));
    Ok(content)
}

pub(super) fn serve_coroutines(address: SocketAddr, backend: SocketAddr) -> io::Result<()> {
    type Request = coroutine::RequestReader;
    type Response = coroutine::ResponseWriter;
    let hello = |_: &mut Request, response: &mut Response| {
        response.set_content_type("text/plain; charset=utf-8");
        response.write_all(HELLO.as_bytes())
    };
    let call =
        move |_: &mut Request, response: &mut Response| match backend::call(&IDLE_BLOCKING, || {
            TcpStream::connect(backend)
        }) {
            Ok(content) => {
                response.set_content_type("text/plain; charset=utf-8");
                response.write_all(&content)
            }
            Err(_) => {
                response.set_status(502);
                Ok(())
            }
        };
    let sleep = |_: &mut Request, response: &mut Response| {
        coroutine::sleep(SLEEP);
        response.write_all(SLEPT.as_bytes())
    };
    let contract = crate::contract();
    let router = Router::new()
        .get("/", handler(contract, hello))
        .get("/call", handler(contract, call))
        .get("/sleep", handler(contract, sleep));
    serve(address, router)
}

fn serve(address: SocketAddr, router: Router) -> io::Result<()> {
    let server = Server::bind(address.to_string()).from_env()?;
    if std::env::var_os("APP_METRICS").is_none_or(|set| set != "on") {
        return server.serve(router);
    }
    let metrics = Metrics::new();
    let router = router.get("/metrics", metrics.clone());
    server.metrics(&metrics).serve(router)
}
