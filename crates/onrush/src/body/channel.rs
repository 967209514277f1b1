//! The stream that a task fills: `Body::channel`.

use crate::panic_guard;
use bytes::Bytes;
use futures_core::Stream;
use onrush_rt::coop;
use onrush_rt::user;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

/// A sender that waits while `bytes_max` or more bytes wait, and what it sends to.
pub(super) fn channel(bytes_max: usize) -> (BodySender, Receiver) {
    let shared = Rc::new(RefCell::new(Channel {
        bytes_max,
        ..Channel::default()
    }));
    (BodySender(shared.clone()), Receiver(shared))
}

#[derive(Debug, Default)]
struct Channel {
    queue: VecDeque<io::Result<Bytes>>,
    queued_bytes: usize,
    bytes_max: usize,
    sender_gone: bool,
    receiver_gone: bool,
    sender: Option<Waker>,
    receiver: Option<Waker>,
}

/// The sending half of [`Body::channel`](crate::Body::channel).
///
/// Dropping it ends the body. If a panic drops it, the body ends with an error, as by
/// [`BodySender::abort`].
#[derive(Debug)]
pub struct BodySender(Rc<RefCell<Channel>>);

impl BodySender {
    /// Waits for room and queues `bytes`. An empty piece is not sent.
    ///
    /// Fails with `BrokenPipe` if the body was dropped: the client has disconnected, or the
    /// response had no content (`HEAD`).
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Limits, Request, Response, sim::Simulation};
    /// use std::io::ErrorKind;
    ///
    /// async fn handler(_: Request) -> Response {
    ///     let (mut sender, body) = Body::channel(16);
    ///     assert!(sender.send("more than 16 bytes fit if none wait").await.is_ok());
    ///     drop(body);
    ///     let error = sender.send("without a receiver").await.unwrap_err();
    ///     assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    ///     Response::new(204)
    /// }
    /// # let mut sim = Simulation::new(1, &handler, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 204 No Content\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn send(&mut self, bytes: impl Into<Bytes>) -> io::Result<()> {
        let mut bytes = Some(bytes.into());
        poll_fn(|cx| {
            ready!(coop::poll_operation(cx)); // Errors count: some callers continue after one.
            let _replaced; // Dropping a waker runs user code, so it waits for the borrow to end.
            let mut channel = self.0.borrow_mut();
            if channel.receiver_gone {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            if channel.queued_bytes > 0 && channel.queued_bytes >= channel.bytes_max {
                _replaced = channel.sender.replace(cx.waker().clone());
                return Poll::Pending;
            }
            if let Some(bytes) = bytes.take().filter(|bytes| !bytes.is_empty()) {
                channel.queued_bytes += bytes.len();
                channel.queue.push_back(Ok(bytes));
            }
            let waker = channel.receiver.take();
            drop(channel);
            if let Some(waker) = waker {
                user::wake(waker);
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Waits until the body is dropped: the client has disconnected, or the response has ended in
    /// another way. For a task that has nothing to send at the moment. That a client has closed its
    /// side is not enough, because it may still read: something has to be sent to it in vain.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Limits, Request, Response, sim::Simulation};
    /// use std::time::Duration;
    ///
    /// async fn every_minute(request: Request) -> Response {
    ///     let (mut sender, body) = Body::channel(1024);
    ///     let worker = request.worker().clone();
    ///     let task = request.worker().spawn(async move {
    ///         let minute = Duration::from_secs(60);
    ///         while worker.timeout(minute, sender.closed()).await.is_none() {
    ///             let _ = sender.send("a minute has passed\n").await;
    ///         }
    ///     });
    ///     task.detach();
    ///     Response::text(body)
    /// }
    ///
    /// let mut sim = Simulation::new(1, &every_minute, Limits::default());
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.0\r\n\r\n");
    /// sim.advance(Duration::from_secs(61));
    /// assert!(client.receive()?.ends_with(b"\r\n\r\na minute has passed\n"));
    /// drop(client);
    /// sim.advance(Duration::from_secs(121));
    /// assert_eq!(sim.worker().live_tasks(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn closed(&mut self) {
        poll_fn(|cx| {
            ready!(coop::poll_operation(cx));
            let waker = user::clone_waker(cx.waker());
            let _replaced; // Dropping a waker runs user code, so it waits for the borrow to end.
            let mut channel = self.0.borrow_mut();
            if channel.receiver_gone {
                return Poll::Ready(());
            }
            _replaced = channel.sender.replace(waker);
            Poll::Pending
        })
        .await;
    }

    /// Ends the body with `error`. The connection is reset, so the client sees that the response is
    /// incomplete.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Limits, Request, Response, sim::Simulation};
    ///
    /// async fn fails(request: Request) -> Response {
    ///     let (sender, body) = Body::channel(1024);
    ///     let task = request.worker().spawn(async move {
    ///         sender.abort(std::io::Error::other("the data source has failed"));
    ///     });
    ///     task.detach();
    ///     Response::text(body)
    /// }
    ///
    /// let mut sim = Simulation::new(1, &fails, Limits::default());
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// let _ = client.receive(); // At most the head.
    /// assert!(client.at_end());
    /// ```
    pub fn abort(self, error: io::Error) {
        self.0.borrow_mut().queue.push_back(Err(error));
    }
}

impl Drop for BodySender {
    fn drop(&mut self) {
        let mut channel = self.0.borrow_mut();
        channel.sender_gone = true;
        if std::thread::panicking() {
            let error = io::Error::other("the sender of a body panicked");
            channel.queue.push_back(Err(error));
        }
        let waker = channel.receiver.take();
        drop(channel);
        panic_guard::wake(waker);
    }
}

pub(super) struct Receiver(Rc<RefCell<Channel>>);

impl Stream for Receiver {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut channel = self.0.borrow_mut();
        match channel.queue.pop_front() {
            Some(item) => {
                if let Ok(bytes) = &item {
                    channel.queued_bytes -= bytes.len();
                }
                let waker = channel.sender.take();
                drop(channel);
                if let Some(waker) = waker {
                    user::wake(waker);
                }
                Poll::Ready(Some(item))
            }
            None if channel.sender_gone => Poll::Ready(None),
            None => {
                let before = channel.receiver.replace(cx.waker().clone());
                drop(channel);
                drop(before); // Outside the borrow: its destructor runs user code.
                Poll::Pending
            }
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut channel = self.0.borrow_mut();
        channel.receiver_gone = true;
        let waker = channel.sender.take();
        drop(channel);
        panic_guard::wake(waker);
    }
}
