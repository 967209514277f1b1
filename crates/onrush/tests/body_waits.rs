//! Waits for a request body: a handler that cancels one does not time out, and a reader that moves
//! into the response is woken.

use crate::common::{ask, calm, get, statuses, text};
use onrush::{Body, Bytes, Limits, Request, Response};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

fn limits() -> Limits {
    Limits::default()
        .body_timeout(Duration::from_secs(2))
        .total_timeout(Duration::ZERO)
}

/// A cancelled wait of one handler does not count for the next one.
#[test]
fn cancelled_body_wait_leaves_no_time_limit() {
    let handler = async |mut request: Request| {
        if request.path() == "/give-up" {
            let mut piece = pin!(request.body().next());
            let polled = poll_fn(|cx| Poll::Ready(piece.as_mut().poll(cx).is_pending())).await;
            return Response::text(if polled { "gave up" } else { "was there" });
        }
        request.worker().sleep(Duration::from_secs(10)).await;
        Response::text("slept")
    };
    let mut sim = calm(&handler, limits());
    let client = sim.connect();
    let head = "POST /give-up HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\n";
    assert!(ask(&mut sim, &client, head).ends_with("gave up"));
    sim.advance(Duration::from_secs(1));
    sim.send(&client, ["late", &get("/sleep")].concat().as_bytes());
    sim.advance(Duration::from_millis(10_100));
    let response = client.receive().unwrap();
    assert_eq!(statuses(&response), [200], "{}", text(&response));
    assert!(response.ends_with(b"slept"));
}

/// A handler that has cancelled its wait for the body may take time for something else.
#[test]
fn cancelled_body_wait_does_not_time_out() {
    let handler = async |mut request: Request| {
        let patience: u64 = request.query().and_then(|ms| ms.parse().ok()).unwrap();
        let worker = request.worker().clone();
        let patience = Duration::from_millis(patience);
        let piece = worker.timeout(patience, request.body().next()).await;
        worker.sleep(Duration::from_secs(10)).await;
        Response::text(if piece.is_none() {
            "gave up"
        } else {
            "was there"
        })
    };
    for patience_ms in [0, 100, 1_999] {
        let mut sim = calm(&handler, limits());
        let client = sim.connect();
        let head = format!("POST /?{patience_ms} HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\n");
        sim.send(&client, head.as_bytes());
        sim.advance(Duration::from_secs(13));
        let response = client.receive().unwrap();
        assert_eq!(statuses(&response), [200], "{}", text(&response));
        assert!(response.ends_with(b"gave up"));
        assert_eq!(sim.counters().timed_out.get(), 0);
    }
}

struct Polled<F>(F);

impl<F> futures_core::Stream for Polled<F>
where
    F: FnMut(&mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> + Unpin,
{
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        (self.0)(cx)
    }
}

/// A reader of the body may have its own waker and continue in the response.
#[test]
fn reader_that_moves_into_the_response_is_woken() {
    #[derive(Default)]
    struct Inner {
        is_due: AtomicBool,
        outer: Mutex<Option<Waker>>,
    }
    impl Wake for Inner {
        fn wake(self: Arc<Self>) {
            self.is_due.store(true, Ordering::Release);
            if let Some(outer) = self.outer.lock().unwrap().take() {
                outer.wake();
            }
        }
    }
    let handler = async |request: Request| {
        let mut body = request.into_body();
        let mut piece = Box::pin(async move { body.next().await });
        let inner = Arc::new(Inner::default());
        let waker = Waker::from(inner.clone());
        let polled = piece.as_mut().poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        let mut is_over = false;
        let stream = Polled(move |cx: &mut Context<'_>| {
            if is_over {
                return Poll::Ready(None);
            }
            inner.outer.lock().unwrap().replace(cx.waker().clone());
            // As combinators of many futures do, it polls only futures that were woken.
            if !inner.is_due.swap(false, Ordering::AcqRel) {
                return Poll::Pending;
            }
            match piece.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(piece) => {
                    is_over = true;
                    let bytes = Bytes::copy_from_slice(&piece.unwrap().unwrap());
                    Poll::Ready(Some(Ok(bytes)))
                }
                Poll::Pending => Poll::Pending,
            }
        });
        Response::with_body(Body::stream(stream, None))
    };
    let mut sim = calm(&handler, limits());
    let client = sim.connect();
    let head = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\n";
    sim.send(&client, head.as_bytes());
    sim.advance(Duration::from_millis(100));
    sim.send(&client, b"body");
    sim.advance(Duration::from_millis(100));
    let response = text(&client.receive().unwrap());
    assert!(response.contains("4\r\nbody\r\n0\r\n"), "{response}");
}

/// The time limit of a body starts with the handler's first poll of it, and needs no second poll.
#[test]
fn handler_is_polled_only_when_it_can_continue() {
    thread_local!(static POLLS: Cell<u32> = const { Cell::new(0) });
    let handler = async |mut request: Request| {
        let mut whole = pin!(async move { request.body().read_all(100).await });
        let read = poll_fn(|cx| {
            POLLS.set(POLLS.get() + 1);
            whole.as_mut().poll(cx)
        });
        match read.await {
            Ok(_) => Response::text("read"),
            Err(_) => Response::text("no error of its own"),
        }
    };
    let mut sim = calm(&handler, limits());
    let client = sim.connect();
    let head = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4\r\n\r\n";
    for (piece, polls) in [(head, 1), ("bo", 2), ("dy", 3)] {
        sim.send(&client, piece.as_bytes());
        sim.advance(Duration::from_millis(100));
        assert_eq!(POLLS.get(), polls);
    }
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
    sim.send(&client, head.as_bytes());
    sim.advance(Duration::from_millis(1_990));
    assert_eq!((POLLS.get(), client.at_end()), (4, false));
    sim.advance(Duration::from_millis(20));
    assert_eq!(POLLS.get(), 5);
    assert_eq!(statuses(&client.receive().unwrap()), [408]);
}
