//! An application whose code panics, or calls back into the engine, in every call from the engine
//! to user code.
#![allow(unreachable_pub)]

use crate::common::{content, get, read_some, text};
use onrush::{Body, BodySender, Bytes, Request, Response, WorkerHandle, offload};
use std::cell::RefCell;
use std::future::{Future, pending};
use std::io::{self, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// The behaviour of hostile code when it is called.
#[derive(Clone, Copy)]
pub enum Evil {
    Nothing,
    Panic,
    /// Panics with a payload that panics when it is dropped, and so on.
    Nested,
    /// Calls back into the engine.
    CallBack,
}

/// The number of calls of hostile code. The tests check that each attack really ran.
pub static FIRED: AtomicUsize = AtomicUsize::new(0);

/// Runs one test at a time, because all count in [`FIRED`].
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Values that hostile code of a `Send` type uses on the worker's thread.
    static STASH: RefCell<Vec<Stashed>> = const { RefCell::new(Vec::new()) };
}

pub struct Stashed {
    request: Option<Request>,
    body: onrush::RequestBody,
    sender: BodySender,
    response: Body,
}

impl Evil {
    fn act(self) {
        match self {
            Evil::Nothing => return,
            Evil::Panic => {
                FIRED.fetch_add(1, Ordering::SeqCst);
                panic!("on purpose");
            }
            Evil::Nested => {
                FIRED.fetch_add(1, Ordering::SeqCst);
                std::panic::panic_any(Bomb(Evil::Panic));
            }
            Evil::CallBack => FIRED.fetch_add(1, Ordering::SeqCst),
        };
        let Some(worker) = WorkerHandle::current() else {
            return; // A thread of a pool.
        };
        let mut cx = Context::from_waker(Waker::noop());
        worker.spawn(async {}).detach();
        drop(worker.spawn(pending::<()>()));
        let mut sleep = worker.sleep(Duration::from_millis(1));
        assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
        drop(sleep);
        drop(worker.blocking(|| ()));
        drop(worker.offload(|| ()));
        let stashed = STASH.with(|stash| stash.borrow_mut().pop());
        if let Some(mut stashed) = stashed {
            drop(stashed.request.take());
            let mut next = Box::pin(stashed.body.next());
            let _ = next.as_mut().poll(&mut cx);
            drop(next);
            let mut sent = Box::pin(stashed.sender.send("more"));
            let _ = sent.as_mut().poll(&mut cx);
            drop(sent);
            drop((stashed.response, stashed.sender));
        }
    }
}

/// Runs hostile code when it is dropped.
pub struct Bomb(pub Evil);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.act();
    }
}

impl AsRef<[u8]> for Bomb {
    fn as_ref(&self) -> &[u8] {
        &PAYLOAD
    }
}

pub static PAYLOAD: [u8; 100_000] = [b'x'; 100_000];

pub struct EvilWaker {
    on_wake: Evil,
    _on_drop: Bomb,
}

impl Wake for EvilWaker {
    fn wake(self: Arc<Self>) {
        self.on_wake.act();
    }
}

/// Polls once, with a hostile waker.
pub fn poll_with<F: Future + Unpin>(future: &mut F, evil: (Evil, Evil)) -> Poll<F::Output> {
    let waker = Waker::from(Arc::new(EvilWaker {
        on_wake: evil.0,
        _on_drop: Bomb(evil.1),
    }));
    Pin::new(future).poll(&mut Context::from_waker(&waker))
}

/// Keeps a value until a hostile waker that waits for it has been called, or dropped with hostile
/// code; at most five seconds.
pub fn keep_until_fired(worker: &WorkerHandle, kept: impl Sized + 'static) {
    let fired = FIRED.load(Ordering::SeqCst);
    let own = worker.clone();
    let hold = async move {
        let end = Instant::now() + Duration::from_secs(5);
        while FIRED.load(Ordering::SeqCst) == fired && Instant::now() < end {
            own.sleep(Duration::from_millis(1)).await;
        }
        drop(kept);
    };
    worker.spawn(hold).detach();
}

pub struct EvilStream {
    pieces: usize,
    on_poll: Evil,
    _on_drop: Bomb,
}

impl futures_core::Stream for EvilStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.pieces += 1;
        match self.pieces {
            1 => Poll::Ready(Some(Ok(Bytes::from_static(b"first")))),
            2 => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            _ => {
                self.on_poll.act();
                Poll::Ready(None)
            }
        }
    }
}

#[derive(Debug)]
pub struct EvilError;

impl std::fmt::Display for EvilError {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        FIRED.fetch_add(1, Ordering::SeqCst);
        panic!("on purpose: displayed");
    }
}

impl std::error::Error for EvilError {}

impl Drop for EvilError {
    fn drop(&mut self) {
        FIRED.fetch_add(1, Ordering::SeqCst);
        panic!("on purpose: an error that is dropped");
    }
}

pub fn evil_of(name: &str) -> (Evil, Evil) {
    match name {
        "wake-panics" => (Evil::Panic, Evil::Nothing),
        "wake-nested" => (Evil::Nested, Evil::Nothing),
        "drop-panics" => (Evil::Nothing, Evil::Panic),
        "wake-calls-back" => (Evil::CallBack, Evil::Nothing),
        "drop-calls-back" => (Evil::Nothing, Evil::CallBack),
        other => panic!("no such evil: {other}"),
    }
}

pub const WAKERS: [&str; 5] = [
    "wake-panics",
    "wake-nested",
    "drop-panics",
    "wake-calls-back",
    "drop-calls-back",
];

/// Futures of the server that a handler may poll with its own waker.
pub const POLLED: [&str; 8] = [
    "sleep",
    "blocking",
    "offload",
    "task",
    "yield",
    "channel",
    "body",
    "body-fill",
];

pub async fn polls(mut request: Request, what: &str, evil: (Evil, Evil)) -> Response {
    let worker = request.worker().clone();
    match what {
        "sleep" => {
            let mut sleep = worker.sleep(Duration::from_millis(2));
            assert!(poll_with(&mut sleep, evil).is_pending());
            keep_until_fired(&worker, sleep);
        }
        "blocking" => {
            let mut job = worker.blocking(|| std::thread::sleep(Duration::from_millis(5)));
            assert!(poll_with(&mut job, evil).is_pending());
            keep_until_fired(&worker, job);
        }
        "offload" => {
            let mut job = worker.offload(|| std::thread::sleep(Duration::from_millis(5)));
            assert!(poll_with(&mut job, evil).is_pending());
            keep_until_fired(&worker, job);
        }
        "task" => {
            let mut task = worker.spawn(worker.sleep(Duration::from_millis(2)));
            assert!(poll_with(&mut task, evil).is_pending());
            keep_until_fired(&worker, task);
        }
        "yield" => {
            let on = worker.clone();
            let mut other = Box::pin(async move { on.yield_now().await });
            let polled = std::panic::AssertUnwindSafe(|| poll_with(&mut other, evil));
            let _ = std::panic::catch_unwind(polled); // Wakes at once, and so panics.
        }
        "channel" => {
            let (mut sender, response) = Body::channel(10);
            let filled = sender.send(&PAYLOAD[..]).await;
            assert!(filled.is_ok());
            let mut full = Box::pin(async move { sender.send("more").await.is_ok() });
            assert!(poll_with(&mut full, evil).is_pending());
            keep_until_fired(&worker, full);
            return Response::with_body(response);
        }
        "body" | "body-fill" => {
            let fill = what == "body-fill";
            let mut next = Box::pin(async move {
                match fill {
                    true => {
                        let mut into = Vec::with_capacity(64 * 1024);
                        request.body().fill_whole(&mut into).await.is_ok()
                    }
                    false => request.body().next().await.is_some(),
                }
            });
            assert!(poll_with(&mut next, evil).is_pending());
            // Twice, so that the first waker is replaced and dropped.
            assert!(poll_with(&mut next, evil).is_pending());
            worker.sleep(Duration::from_millis(40)).await;
        }
        other => panic!("nothing to poll: {other}"),
    }
    Response::text("done")
}

/// Attacks without a hostile waker.
pub const OTHERS: [&str; 22] = [
    "bytes-small",
    "bytes-large",
    "bytes-of-a-head",
    "parts",
    "stream-of-bombs",
    "stream-polled",
    "stream-dropped",
    "stream-both",
    "stream-error",
    "future-dropped",
    "task-output",
    "task-output-joined",
    "task-dropped",
    "task-cancelled",
    "task-panics",
    "task-payload",
    "poll-panics",
    "job-result",
    "job-closure",
    "calls-back",
    "sender-unwound",
    "kept-response",
];

pub async fn others(request: Request, what: &str) -> Response {
    let worker = request.worker().clone();
    let bomb = || Bomb(Evil::Panic);
    let stream = |on_poll, on_drop| {
        let stream = EvilStream {
            pieces: 0,
            on_poll,
            _on_drop: Bomb(on_drop),
        };
        Response::with_body(Body::stream(stream, None))
    };
    match what {
        "bytes-small" => {
            return Response::with_body(Bytes::from_owner(bomb()).slice(..10));
        }
        "bytes-large" | "bytes-of-a-head" => {
            return Response::with_body(Bytes::from_owner(Bomb(Evil::Nested)));
        }
        "parts" => {
            let part = || onrush::Part::Bytes(Bytes::from_owner(bomb()));
            return Response::with_body(Body::parts([part(), part()]));
        }
        "stream-of-bombs" => {
            let (mut sender, reply) = Body::channel(1 << 20);
            sender.send(Bytes::from_owner(bomb())).await.unwrap();
            sender
                .send(Bytes::from_owner(bomb()).slice(..1))
                .await
                .unwrap();
            sender.finish();
            return Response::with_body(reply);
        }
        "stream-polled" => return stream(Evil::Nested, Evil::Nothing),
        "stream-dropped" => return stream(Evil::Nothing, Evil::Nested),
        "stream-both" => return stream(Evil::Panic, Evil::Panic),
        "stream-error" => {
            let (sender, reply) = Body::channel(1 << 20);
            sender.abort(io::Error::other(EvilError));
            return Response::with_body(reply);
        }
        "future-dropped" => {
            let _bomb = bomb();
            worker.sleep(Duration::from_millis(1)).await;
            return Response::text("done");
        }
        "task-output" => worker.spawn(async { Bomb(Evil::Nested) }).detach(),
        "task-output-joined" => {
            let task = worker.spawn(async { Bomb(Evil::Panic) });
            worker.yield_now().await;
            worker.sleep(Duration::from_millis(1)).await;
            assert!(task.is_finished());
            drop(task);
        }
        "task-dropped" => {
            let bomb = bomb();
            let nap = worker.sleep(Duration::from_millis(1));
            let task = async move {
                nap.await;
                drop(bomb);
            };
            worker.spawn(task).await;
        }
        "task-cancelled" => {
            let bomb = Bomb(Evil::Nested);
            let task = worker.spawn(async move {
                let _bomb = bomb;
                pending::<()>().await;
            });
            worker.yield_now().await;
            drop(task);
            worker.sleep(Duration::from_millis(1)).await;
        }
        "task-panics" => {
            let task = worker.spawn(async { Evil::Panic.act() });
            task.await; // This panics, too.
        }
        "task-payload" => {
            let nap = worker.sleep(Duration::from_millis(1));
            let task = async move {
                nap.await;
                Evil::Nested.act();
            };
            worker.spawn(task).detach();
            worker.sleep(Duration::from_millis(3)).await;
        }
        "poll-panics" => {
            worker.sleep(Duration::from_millis(1)).await;
            Evil::Nested.act();
        }
        "job-result" => drop(worker.blocking(|| Bomb(Evil::Nested)).await),
        "job-closure" => {
            let bomb = bomb();
            let result = offload(move || drop(bomb)).await;
            assert_eq!(result, Err(offload::OffloadError::Panicked));
        }
        "calls-back" => {
            let _bomb = Bomb(Evil::CallBack);
            worker.sleep(Duration::from_millis(1)).await;
            return Response::with_body(Bytes::from_owner(Bomb(Evil::CallBack)).slice(..4));
        }
        "sender-unwound" => {
            let (mut sender, reply) = Body::channel(10);
            let nap = worker.sleep(Duration::from_millis(2));
            let task = async move {
                sender.send("first").await.unwrap();
                nap.await;
                Evil::Panic.act();
                drop(sender);
            };
            worker.spawn(task).detach();
            return Response::with_body(reply);
        }
        "kept-response" => {
            // A response that is never sent.
            let response = Response::with_body(Bytes::from_owner(bomb()));
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(response)));
        }
        other => panic!("no such attack: {other}"),
    }
    Response::text("done")
}

/// Stores values for [`Evil::CallBack`].
pub async fn stash(mut request: Request) -> Response {
    let body = std::mem::take(request.body());
    let (sender, response) = Body::channel(1);
    let stashed = Stashed {
        request: Some(request),
        body,
        sender,
        response,
    };
    STASH.with(|stash| stash.borrow_mut().push(stashed));
    Response::text("done")
}

pub async fn app(request: Request) -> Response {
    let path = request.path().to_owned();
    let mut parts = path.split('/').skip(1);
    let (kind, what, how) = (parts.next(), parts.next(), parts.next());
    match (kind, what.unwrap_or(""), how) {
        (Some("poll"), what, Some(how)) => polls(request, what, evil_of(how)).await,
        (Some("other"), what, _) => others(request, what).await,
        (Some("stash"), ..) => stash(request).await,
        (Some("quiet"), ..) => {
            // A handler counts as a task after its first wait. When it is the only task left, the
            // attack is over.
            loop {
                request.worker().sleep(Duration::from_millis(1)).await;
                if request.worker().live_tasks() <= 1 {
                    break;
                }
            }
            Response::text("quiet")
        }
        _ => Response::text("hello"),
    }
}

/// One request on a persistent connection.
pub fn ask(stream: &mut TcpStream, path: &str) -> String {
    stream.write_all(get(path).as_bytes()).unwrap();
    let (mut response, mut piece) = (Vec::new(), [0; 4096]);
    while !text(&response).contains("\r\n\r\n") || content(&response).is_empty() {
        let n = read_some(stream, &mut piece).expect("a response");
        assert!(n > 0, "{path}: {}", text(&response));
        response.extend_from_slice(&piece[..n]);
    }
    text(&response)
}
