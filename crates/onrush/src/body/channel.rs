//! The stream that a task fills: `Body::channel`.

use crate::panic_guard;
use bytes::Bytes;
use futures_core::Stream;
use onrush_rt::coop;
use onrush_rt::user;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

/// What each queued piece counts at least, in bytes: its place in the queue and its allocation. A
/// sender of small pieces must not queue without bound.
const PIECE_BYTES_MIN: usize = 64;

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
    /// The body is complete when the sender is dropped.
    ends_by_drop: bool,
    sender_gone: bool,
    receiver_gone: bool,
    sender: Option<Waker>,
    receiver: Option<Waker>,
}

impl Channel {
    fn is_full(&self) -> bool {
        !self.queue.is_empty() && self.queued_bytes >= self.bytes_max
    }

    /// Whether a sender waits until the receiver has taken something.
    fn makes_wait(&self) -> bool {
        self.is_full() && !self.receiver_gone
    }

    fn push(&mut self, bytes: Bytes) -> Option<Waker> {
        if !bytes.is_empty() {
            self.queued_bytes += counted(&bytes);
            self.queue.push_back(Ok(bytes));
        }
        self.receiver.take()
    }
}

fn counted(bytes: &Bytes) -> usize {
    bytes.len().max(PIECE_BYTES_MIN)
}

/// The sending half of [`Body::channel`](crate::Body::channel).
///
/// [`BodySender::finish`] ends the body. If the sender is dropped without it, as by `?`, by a panic
/// or because its task is cancelled, the body ends with an error, as by [`BodySender::abort`]: what
/// is incomplete must not look complete to a client.
#[derive(Debug)]
#[must_use = "a body whose sender is dropped is incomplete"]
pub struct BodySender(Rc<RefCell<Channel>>);

impl BodySender {
    /// From now on, a drop ends the body as [`BodySender::finish`] does.
    pub(crate) fn end_by_drop(&mut self) {
        self.0.borrow_mut().ends_by_drop = true;
    }

    /// Ends the body: the response is complete when what was sent before has left.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Limits, Request, Response, sim::Simulation};
    ///
    /// async fn two(request: Request) -> Response {
    ///     let (mut sender, body) = Body::channel(1024);
    ///     let task = request.worker().spawn(async move {
    ///         let both = async {
    ///             sender.send("one, ").await?;
    ///             sender.send("two").await
    ///         };
    ///         match both.await {
    ///             Ok(()) => sender.finish(),
    ///             Err(error) => sender.abort(error),
    ///         }
    ///     });
    ///     task.detach();
    ///     Response::text(body)
    /// }
    /// # let mut sim = Simulation::new(1, &two, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.0\r\n\r\n");
    /// # assert!(client.receive()?.ends_with(b"\r\n\r\none, two"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn finish(mut self) {
        self.end_by_drop();
    }

    /// Queues `bytes` if there is room, for a sender that cannot wait: one of many receivers must
    /// not hold up the others.
    ///
    /// Fails with `WouldBlock` if there is no room, and as [`BodySender::send`].
    ///
    /// # Examples
    /// ```
    /// use onrush::Body;
    /// use std::io::ErrorKind;
    ///
    /// let (mut sender, body) = Body::channel(100);
    /// assert!(sender.try_send(vec![0; 100]).is_ok());
    /// assert_eq!(sender.try_send("x").unwrap_err().kind(), ErrorKind::WouldBlock);
    /// drop(body);
    /// assert_eq!(sender.try_send("x").unwrap_err().kind(), ErrorKind::BrokenPipe);
    /// ```
    pub fn try_send(&mut self, bytes: impl Into<Bytes>) -> io::Result<()> {
        let bytes = bytes.into();
        let mut channel = self.0.borrow_mut();
        if channel.receiver_gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if channel.is_full() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let waker = channel.push(bytes);
        drop(channel);
        if let Some(waker) = waker {
            user::wake(waker);
        }
        Ok(())
    }

    /// Waits for room and queues `bytes`. An empty piece is not sent. If the wait is cancelled,
    /// nothing is queued.
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
            // Cloning a waker runs user code, so nothing is borrowed.
            let waker = (self.0.borrow().makes_wait()).then(|| user::clone_waker(cx.waker()));
            let _replaced; // Dropping one does, too.
            let mut channel = self.0.borrow_mut();
            if channel.makes_wait() {
                _replaced = std::mem::replace(&mut channel.sender, waker);
                return Poll::Pending;
            }
            drop(channel);
            Poll::Ready(self.try_send(bytes.take().unwrap_or_default()))
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

    /// Waits for `future` and returns its output, or until the body is dropped. Then `future` is
    /// dropped, too: what the client has left is not worth waiting for.
    ///
    /// Fails with `BrokenPipe` if the body is dropped, as [`BodySender::closed`] waits for it.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Limits, Request, Response, sim::Simulation};
    /// use std::time::Duration;
    ///
    /// async fn slow(request: Request) -> Response {
    ///     let (mut sender, body) = Body::channel(1024);
    ///     let worker = request.worker().clone();
    ///     let task = request.worker().spawn(async move {
    ///         sender.send("wait ").await?;
    ///         let source = async { worker.sleep(Duration::from_secs(3600)).await };
    ///         sender.until_closed(source).await?;
    ///         sender.send("an hour").await
    ///     });
    ///     task.detach();
    ///     Response::text(body)
    /// }
    ///
    /// let mut sim = Simulation::new(1, &slow, Limits::default());
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.0\r\n\r\n");
    /// assert!(client.receive()?.ends_with(b"wait "));
    /// client.reset();
    /// sim.run();
    /// assert_eq!(sim.worker().live_tasks(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn until_closed<F: Future>(&mut self, future: F) -> io::Result<F::Output> {
        let mut closed = pin!(self.closed());
        let mut future = pin!(future);
        poll_fn(|cx| match closed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Poll::Pending => future.as_mut().poll(cx).map(Ok),
        })
        .await
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
        if !channel.ends_by_drop && !channel.receiver_gone {
            let error = io::Error::other("the sender of a body was dropped before its end");
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
        let waits = {
            let channel = self.0.borrow();
            channel.queue.is_empty() && !channel.sender_gone
        };
        // Cloning a waker runs user code, so nothing is borrowed.
        let waker = waits.then(|| user::clone_waker(cx.waker()));
        let _replaced; // Dropping one does, too.
        let mut channel = self.0.borrow_mut();
        let Some(item) = channel.queue.pop_front() else {
            if channel.sender_gone {
                return Poll::Ready(None);
            }
            _replaced = std::mem::replace(&mut channel.receiver, waker);
            return Poll::Pending;
        };
        if let Ok(bytes) = &item {
            channel.queued_bytes -= counted(bytes);
        }
        let waker = channel.sender.take();
        drop(channel);
        if let Some(waker) = waker {
            user::wake(waker);
        }
        Poll::Ready(Some(item))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut channel = self.0.borrow_mut();
        channel.receiver_gone = true;
        let waker = channel.sender.take();
        let queue = std::mem::take(&mut channel.queue);
        drop(channel);
        panic_guard::discard(queue); // Outside the borrow: `Bytes` may run user code.
        panic_guard::wake(waker);
    }
}
