//! Bodies of requests that move to other threads, and bodies of responses that fail or are dropped.

use crate::client::{ask, connect, exchange};
use crate::same::{Both, request, serve};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use futures_util::StreamExt;
use http_body_util::BodyExt;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;

fn on_onrush(both: &Both, check: impl Fn(SocketAddr)) {
    for (_, address) in &both.onrush {
        check(*address);
    }
}

const _: fn() = || {
    fn is_send<T: Send + 'static>() {}
    is_send::<onrush_tower::Body>();
};

/// A body that is read here, then on another thread, and then here again.
#[test]
fn a_body_changes_threads_while_it_is_read() {
    let _dog = testing::watchdog("a_body_changes_threads_while_it_is_read");
    async fn count(mut body: Body) -> String {
        let mut total = 0;
        let mut pieces = 0;
        loop {
            let frame = match pieces % 3 {
                1 => {
                    let reading = async move {
                        let frame = body.frame().await;
                        (body, frame)
                    };
                    let (back, frame) = tokio::spawn(reading).await.expect("no panic");
                    body = back;
                    frame
                }
                _ => body.frame().await,
            };
            pieces += 1;
            match frame {
                Some(Ok(frame)) => total += frame.into_data().map_or(0, |data| data.len()),
                Some(Err(error)) => return format!("{error}"),
                None => return format!("{total}"),
            }
        }
    }
    let both = serve(|| Router::new().route("/", post(count)));
    on_onrush(&both, |address| {
        for bytes in [0, 1, 10, 100_000, 3_000_000] {
            let reply = ask(address, &request("POST /", "", &vec![b'b'; bytes]));
            assert_eq!(reply.text(), bytes.to_string());
        }
    });
}

/// A handler drops the body, or lets another thread drop it. The next request is read.
#[test]
fn unread_bodies_do_not_disturb_the_connection() {
    let _dog = testing::watchdog("unread_bodies_do_not_disturb_the_connection");
    async fn ignore(body: Body) -> &'static str {
        drop(body);
        "ignored"
    }
    async fn elsewhere(body: Body) -> &'static str {
        tokio::task::spawn_blocking(move || drop(body))
            .await
            .expect("no panic");
        "dropped elsewhere"
    }
    async fn partly(body: Body) -> &'static str {
        let mut stream = body.into_data_stream();
        let task = tokio::spawn(async move { stream.next().await.is_some() });
        assert!(task.await.expect("no panic"));
        "one piece"
    }
    let app = || {
        let router = Router::new()
            .route("/ignore", post(ignore))
            .route("/partly", post(partly));
        router.route("/elsewhere", post(elsewhere))
    };
    let both = serve(app);
    on_onrush(&both, |address| {
        let paths = ["/ignore", "/elsewhere", "/partly"];
        let mut sent = Vec::new();
        for path in paths {
            let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 30000\r\n\r\n");
            sent.extend(head.as_bytes());
            sent.extend(vec![b'u'; 30_000]);
        }
        sent.extend(request("POST /ignore", "", b"last"));
        let replies = crate::client::replies(&exchange(address, &sent), &[]);
        let texts: Vec<String> = replies.iter().map(|reply| reply.text()).collect();
        assert_eq!(
            texts,
            ["ignored", "dropped elsewhere", "one piece", "ignored"]
        );
    });
}

/// A task that reads a body on another thread gets an error when the client disconnects.
#[test]
fn a_task_elsewhere_learns_that_the_client_has_gone() {
    let _dog = testing::watchdog("a_task_elsewhere_learns_that_the_client_has_gone");
    let (failed, noticed) = std::sync::mpsc::channel();
    let app = move || {
        let failed = failed.clone();
        let read = move |body: Body| {
            let failed = failed.clone();
            async move {
                let task = tokio::spawn(async move {
                    let result = body.collect().await;
                    let _ = failed.send(result.is_err());
                });
                let _ = task.await;
            }
        };
        Router::new().route("/", post(read))
    };
    let both = serve(app);
    on_onrush(&both, |address| {
        let mut stream = connect(address);
        stream
            .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc")
            .expect("sent");
        drop(stream);
        assert_eq!(noticed.recv(), Ok(true));
    });
}

/// The content of a response breaks off: the client does not take it for whole.
#[test]
fn failing_content_ends_the_connection() {
    let _dog = testing::watchdog("failing_content_ends_the_connection");
    async fn fails() -> Body {
        let pieces = ["one", "two"].map(|piece| Ok(Bytes::from(piece)));
        let last = [Err(std::io::Error::other("no more"))];
        Body::from_stream(futures_util::stream::iter(pieces.into_iter().chain(last)))
    }
    let both = serve(|| Router::new().route("/", get(fails)));
    on_onrush(&both, |address| {
        let received = exchange(address, &request("GET /", "", b""));
        let text = String::from_utf8_lossy(&received);
        assert!(text.contains("200 OK") && text.contains("two"), "{text}");
        assert!(!text.contains("\r\n0\r\n"), "{text}");
    });
}

/// A client that disconnects drops the handler, and the stream that it has returned.
#[test]
fn handlers_and_streams_are_dropped_with_their_client() {
    let _dog = testing::watchdog("handlers_and_streams_are_dropped_with_their_client");
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let alive = Arc::new(AtomicUsize::new(0));
    let begun = Arc::new(Notify::new());
    let (in_app, in_begun) = (alive.clone(), begun.clone());
    let app = move || {
        let (alive, begun) = (in_app.clone(), in_begun.clone());
        let count = move || {
            alive.fetch_add(1, Ordering::SeqCst);
            begun.notify_one();
            Counted(alive.clone())
        };
        let handler = count.clone();
        Router::new()
            .route(
                "/handler",
                get(move || async move {
                    let _counted = handler();
                    std::future::pending::<()>().await;
                }),
            )
            .route(
                "/stream",
                get(move || async move {
                    let counted = count();
                    let first =
                        futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from("first"))]);
                    let rest = futures_util::stream::pending();
                    Body::from_stream(first.chain(rest).map(move |piece| {
                        let _ = &counted;
                        piece
                    }))
                }),
            )
    };
    let both = serve(app);
    let waiting = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    on_onrush(&both, |address| {
        for path in ["/handler", "/stream"] {
            let mut stream = connect(address);
            stream
                .write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())
                .expect("sent");
            waiting.block_on(begun.notified());
            assert_eq!(alive.load(Ordering::SeqCst), 1);
            drop(stream);
            while alive.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        }
    });
}
