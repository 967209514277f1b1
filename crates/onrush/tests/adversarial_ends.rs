//! User code that the engine calls besides handlers: destructors at the end of the server, and the
//! subscriber of the log.
#![forbid(unsafe_code)]

use crate::common::attack::closing;
use crate::common::{drivers, serve, watchdog};
use crate::evil::{Bomb, Evil, FIRED, alone, ask, others};
use onrush::{Request, Response, Server, WorkerHandle, per_worker};
use std::future::pending;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Destructors that spawn tasks at the end of the server: without end, or with a panic.
#[test]
fn destructors_at_the_end() {
    let _alone = alone();
    let _dog = watchdog("destructors_at_the_end");
    struct Hydra(WorkerHandle);
    impl Drop for Hydra {
        fn drop(&mut self) {
            let next = Hydra(self.0.clone());
            self.0
                .spawn(async move {
                    let _next = next;
                    pending::<()>().await;
                })
                .detach();
        }
    }
    for driver in drivers() {
        // Handlers are dropped then, too.
        let application = per_worker(|_| {
            let bomb = Bomb(Evil::Nested);
            move |request: Request| {
                let _armed = &bomb;
                async move {
                    let worker = request.worker().clone();
                    if request.path() == "/hydra" {
                        let hydra = Hydra(worker.clone());
                        let bomb = Bomb(Evil::Panic);
                        let hold = async move {
                            let _held = (hydra, bomb);
                            pending::<()>().await;
                        };
                        worker.spawn(hold).detach();
                    }
                    Response::text("hello")
                }
            }
        });
        let fired = FIRED.load(Ordering::SeqCst);
        let server = serve(driver, application);
        assert!(server.get("/hydra").ends_with(b"hello"));
        server.running().handle().shutdown();
        server.wait().expect("no worker failed");
        assert!(FIRED.load(Ordering::SeqCst) >= fired + 2, "{driver:?}");
    }
}

/// A log subscriber is user code, too.
#[test]
fn subscriber_that_panics() {
    let _alone = alone();
    let _dog = watchdog("subscriber_that_panics");
    struct Hostile;
    impl tracing::Subscriber for Hostile {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            metadata.target().starts_with("onrush")
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            // Only while the server runs, because its start may fail.
            if event.metadata().target() != "onrush::server" {
                FIRED.fetch_add(1, Ordering::SeqCst);
                panic!("on purpose: an event");
            }
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    for driver in drivers() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let serves = move || {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            let server = Server::bind("").inherit(vec![listener.into()]);
            let server = server.driver(driver).workers(1).pinned(false);
            let server = server.access_log(onrush::AccessLog::On);
            let ends = move |request: Request| async move {
                match request.path() {
                    "/panic" => panic!("on purpose"),
                    _ => others_or_hello(request).await,
                }
            };
            testing::log::with_subscriber(Hostile, || {
                let _ = server.serve(ends); // It runs until the process ends.
            });
        };
        // The calling thread is the worker, so the worker has the subscriber. The thread runs until
        // the process ends.
        std::thread::spawn(serves);
        let address = receiver.recv().unwrap();
        let connect = || {
            let stream = TcpStream::connect(address).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(60)))
                .unwrap();
            stream
        };
        let fired = FIRED.load(Ordering::SeqCst);
        let mut before = connect();
        for path in [
            "/",
            "/panic",
            "/other/bytes-small",
            "/other/stream-error",
            "/bad",
        ] {
            let mut stream = connect();
            let request = match path {
                "/bad" => "GET / HTTP/1.1\r\nbad header\r\n\r\n".to_owned(),
                path => closing(path),
            };
            stream.write_all(request.as_bytes()).unwrap();
            let mut response = Vec::new();
            let _ = stream.read_to_end(&mut response);
            match path {
                // The reset may drop the head. The end of the content is never sent.
                "/other/stream-error" => assert!(!response.ends_with(b"0\r\n\r\n")),
                _ => assert!(!response.is_empty(), "{driver:?} {path}"),
            }
            assert!(
                ask(&mut before, "/").ends_with("hello"),
                "{driver:?} {path}"
            );
        }
        assert!(FIRED.load(Ordering::SeqCst) > fired + 5);
    }
}

async fn others_or_hello(request: Request) -> Response {
    match request.path().strip_prefix("/other/") {
        Some(what) => {
            let what = what.to_owned();
            others(request, &what).await
        }
        None => Response::text("hello"),
    }
}
