//! Safe handler code that keeps or leaked_values_harm_no_other_request its values, or never ends:
//! the single worker still serves other requests.
#![forbid(unsafe_code)]

use crate::common::attack::{attack, closing_post};
use crate::common::{drivers, get, read_some, serve, statuses, text, watchdog};
use onrush::{Body, Request, Response, Server};
use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Tasks and handlers that wake themselves forever.
#[test]
fn tasks_that_always_wake_themselves() {
    let _dog = watchdog("tasks_that_always_wake_themselves");
    async fn busy(request: Request) -> Response {
        let spin = || {
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                Poll::<()>::Pending
            })
        };
        match request.path() {
            "/spawn" => request.worker().spawn(spin()).detach(),
            "/wait" => spin().await,
            "/yield" => loop {
                request.worker().yield_now().await;
            },
            _ => {}
        }
        Response::text("hello")
    }
    for driver in drivers() {
        let server = serve(driver, busy);
        let mut waiting = Vec::new();
        for path in ["/wait", "/yield"] {
            let mut stream = server.connect();
            stream.write_all(get(path).as_bytes()).unwrap();
            waiting.push(stream);
        }
        for _ in 0..3 {
            assert!(server.get("/spawn").ends_with(b"hello"));
        }
        for _ in 0..20 {
            assert!(server.get("/").ends_with(b"hello"), "{driver:?}");
        }
    }
}

/// Only the leaked values are lost.
#[test]
fn leaked_values_harm_no_other_request() {
    let _dog = watchdog("leaked_values_harm_no_other_request");
    async fn leak(mut request: Request) -> Response {
        let worker = request.worker().clone();
        match request.path() {
            "/request" => std::mem::forget(request),
            "/body" => std::mem::forget(std::mem::take(request.body())),
            "/reading" => {
                let mut next = Box::pin(async move { request.body().next().await.is_some() });
                let mut cx = Context::from_waker(Waker::noop());
                let _ = next.as_mut().poll(&mut cx); // Mostly pending.
                std::mem::forget(next);
            }
            "/sleep" => {
                let mut sleep = worker.sleep(Duration::from_millis(1));
                poll_fn(|cx| Poll::Ready(Pin::new(&mut sleep).poll(cx).is_pending())).await;
                std::mem::forget(sleep);
                worker.sleep(Duration::from_millis(5)).await;
            }
            "/task" => std::mem::forget(worker.spawn(pending::<()>())),
            "/job" => std::mem::forget(worker.blocking(|| ())),
            "/response" => std::mem::forget(Response::text("lost")),
            "/sender" => {
                let (sender, response) = Body::channel(1);
                std::mem::forget(sender);
                std::mem::forget(response);
            }
            _ => {}
        }
        Response::text("hello")
    }
    for driver in drivers() {
        let server = serve(driver, leak);
        for path in [
            "/request",
            "/body",
            "/reading",
            "/sleep",
            "/task",
            "/job",
            "/response",
            "/sender",
        ] {
            for _ in 0..20 {
                let response = attack(&server, &closing_post(path, 3), b"abc");
                assert_eq!(statuses(&response), [200], "{driver:?} {path}");
            }
            assert!(server.get("/").ends_with(b"hello"), "{driver:?} {path}");
        }
    }
}

/// A body polled after the end of its request, its connection or its worker.
#[test]
fn bodies_that_outlive_their_request() {
    let _dog = watchdog("bodies_that_outlive_their_request");
    thread_local! {
        static KEPT: RefCell<Vec<onrush::RequestBody>> = const { RefCell::new(Vec::new()) };
    }
    async fn keep(request: Request) -> Response {
        if request.has_body() {
            let body = request.into_body();
            KEPT.with(|kept| kept.borrow_mut().push(body));
            return Response::text("kept");
        }
        let kept = KEPT.with(RefCell::take);
        let mut ends = 0;
        for mut body in kept {
            ends += usize::from(body.next().await.is_none_or(|piece| piece.is_err()));
            ends += usize::from(body.discard().await.is_err());
        }
        Response::text(format!("{ends}"))
    }
    for driver in drivers() {
        let server = serve(driver, keep);
        let mut stream = server.connect();
        for _ in 0..3 {
            let head = closing_post("/", 5).replace("Connection: close\r\n", "");
            stream.write_all((head + "hello").as_bytes()).unwrap();
            let mut piece = [0; 4096];
            let n = read_some(&mut stream, &mut piece).unwrap();
            assert!(text(&piece[..n]).ends_with("kept"));
        }
        attack(&server, &closing_post("/", 5), b"hel");
        let response = server.get("/");
        assert!(response.ends_with(b"8"), "{driver:?} {}", text(&response));
        assert_eq!(statuses(&server.get("/")), [200]);
    }
}

/// A handler may start and drop a server, but not wait for it.
#[test]
fn servers_in_handlers() {
    let _dog = watchdog("servers_in_handlers");
    async fn nested(request: Request) -> Response {
        let other = || Server::bind("127.0.0.1:0").workers(1).pinned(false);
        let hello = async |_: Request| Response::text("hello");
        let error = match request.path() {
            "/serve" => other().serve(hello).expect_err("it would block"),
            "/wait" => {
                let running = other().start(hello).expect("the server starts");
                running.handle().shutdown_now();
                running.wait().expect_err("it would block")
            }
            "/drop" => {
                let running = other().start(hello).expect("the server starts");
                running.handle().shutdown();
                drop(running);
                return Response::text("hello");
            }
            _ => return Response::text("hello"),
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        Response::text("hello")
    }
    for driver in drivers() {
        let server = serve(driver, nested);
        for path in ["/serve", "/wait", "/drop", "/"] {
            assert!(server.get(path).ends_with(b"hello"), "{driver:?} {path}");
        }
    }
}
