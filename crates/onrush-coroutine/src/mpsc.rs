//! Channels between the coroutines of one worker, named as in `std::sync::mpsc`.

use super::suspend::{spend_operation, try_wait};
use super::thread::context;
use onrush_rt::wakers::wake;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};

struct Channel<T> {
    queue: VecDeque<T>,
    bound: usize,
    senders: usize,
    receiver_gone: bool,
    /// Waiters for a value; each is woken once and checks again.
    receivers: VecDeque<Waker>,
    /// Waiters for room; each is woken once and checks again.
    waiting: VecDeque<Waker>,
}

type Shared<T> = Rc<RefCell<Channel<T>>>;

fn shared<T>(bound: usize) -> Shared<T> {
    Rc::new(RefCell::new(Channel {
        queue: VecDeque::new(),
        bound,
        senders: 1,
        receiver_gone: false,
        receivers: VecDeque::new(),
        waiting: VecDeque::new(),
    }))
}

/// A channel that holds `bound` values, at least one; further sends wait. (There is no rendezvous:
/// a bound of 0 is one of 1.)
///
/// # Examples
/// ```
/// use onrush_coroutine::{self as coroutine, Config, Contract, mpsc, thread};
///
/// let program = || {
///     let (sender, receiver) = mpsc::sync_channel(1);
///     thread::spawn(move || (0..3).try_for_each(|number| sender.send(number)));
///     let received: Vec<i32> = receiver.iter().collect(); // Until the sender is dropped.
///     assert_eq!(received, [0, 1, 2]);
///     Ok(())
/// };
/// // SAFETY: the program uses no thread-local, and no scope.
/// let contract = unsafe { Contract::accept() };
/// coroutine::run(contract, Config::default(), program)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn sync_channel<T>(bound: usize) -> (SyncSender<T>, Receiver<T>) {
    let channel = shared(bound.max(1));
    let sender = Sender(channel.clone());
    (SyncSender(sender), Receiver(channel))
}

/// A channel without a bound, as in `std`: prefer [`sync_channel`], since only memory limits this.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let channel = shared(usize::MAX);
    (Sender(channel.clone()), Receiver(channel))
}

/// The sending end of [`channel`].
pub struct Sender<T>(Shared<T>);

/// The sending end of [`sync_channel`].
pub struct SyncSender<T>(Sender<T>);

/// The receiving end. After it is dropped, every send fails.
pub struct Receiver<T>(Shared<T>);

impl<T> Sender<T> {
    /// Sends without waiting; returns the value if the receiver is gone.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        spend_operation();
        self.try_send(value).map_err(|error| match error {
            TrySendError::Full(value) | TrySendError::Disconnected(value) => SendError(value),
        })
    }

    fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        let mut channel = self.0.borrow_mut();
        if channel.receiver_gone {
            return Err(TrySendError::Disconnected(value));
        }
        if channel.queue.len() >= channel.bound {
            return Err(TrySendError::Full(value));
        }
        channel.queue.push_back(value);
        let receivers = std::mem::take(&mut channel.receivers);
        drop(channel);
        receivers.into_iter().for_each(wake);
        Ok(())
    }
}

impl<T> SyncSender<T> {
    /// Sends, waiting for room; returns the value if the receiver is gone (or if there is no room,
    /// in a destructor while the stack is unwound).
    ///
    /// # Panics
    /// When it would have to wait outside a coroutine.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        spend_operation();
        let mut full = match self.try_send(value) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Disconnected(value)) => return Err(SendError(value)),
            Err(TrySendError::Full(value)) => Some(value),
        };
        let sent = try_wait(poll_fn(|cx| {
            let Some(value) = full.take() else {
                return Poll::Ready(Ok(()));
            };
            match self.try_send(value) {
                Ok(()) => Poll::Ready(Ok(())),
                Err(TrySendError::Disconnected(value)) => Poll::Ready(Err(SendError(value))),
                Err(TrySendError::Full(value)) => {
                    full = Some(value);
                    self.0.0.borrow_mut().waiting.push_back(cx.waker().clone());
                    Poll::Pending
                }
            }
        }));
        match (sent, full) {
            (Ok(result), _) => result,
            (Err(_), Some(value)) => Err(SendError(value)),
            (Err(_), None) => Ok(()),
        }
    }

    /// Sends if there is room.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        self.0.try_send(value)
    }
}

impl<T> Receiver<T> {
    /// Waits for the next value; an error when all senders are gone and all values were received.
    ///
    /// # Panics
    /// When it would have to wait outside a coroutine.
    #[track_caller]
    pub fn recv(&self) -> Result<T, RecvError> {
        spend_operation();
        match self.try_recv() {
            Ok(value) => return Ok(value),
            Err(TryRecvError::Disconnected) => return Err(RecvError),
            Err(TryRecvError::Empty) => {}
        }
        try_wait(poll_fn(|cx| self.poll(cx.waker()))).unwrap_or(Err(RecvError))
    }

    /// Waits for the next value for at most `timeout`.
    ///
    /// # Panics
    /// Outside a coroutine.
    #[track_caller]
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let next = poll_fn(|cx| self.poll(cx.waker()));
        match try_wait(context().timeout(timeout, next)) {
            Ok(Some(Ok(value))) => Ok(value),
            Ok(Some(Err(RecvError))) => Err(RecvTimeoutError::Disconnected),
            Ok(None) | Err(_) => Err(RecvTimeoutError::Timeout),
        }
    }

    /// The next value, without waiting.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut channel = self.0.borrow_mut();
        let Some(value) = channel.queue.pop_front() else {
            return Err(match channel.senders {
                0 => TryRecvError::Disconnected,
                _ => TryRecvError::Empty,
            });
        };
        // All of them, because a single one may have given up; the rest wait again.
        let waiting = std::mem::take(&mut channel.waiting);
        drop(channel);
        waiting.into_iter().for_each(wake);
        Ok(value)
    }

    fn poll(&self, waker: &Waker) -> Poll<Result<T, RecvError>> {
        match self.try_recv() {
            Ok(value) => Poll::Ready(Ok(value)),
            Err(TryRecvError::Disconnected) => Poll::Ready(Err(RecvError)),
            Err(TryRecvError::Empty) => {
                self.0.borrow_mut().receivers.push_back(waker.clone());
                Poll::Pending
            }
        }
    }

    /// Iterates over the values until all senders are gone.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter(self)
    }

    /// Iterates over the values that are in the channel, without waiting.
    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }
}

/// Iterator of [`Receiver::iter`].
#[derive(Debug)]
pub struct Iter<'r, T>(&'r Receiver<T>);

impl<T> Iterator for Iter<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

/// Iterates over the values until all senders are gone.
#[derive(Debug)]
pub struct IntoIter<T>(Receiver<T>);

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self)
    }
}

impl<'r, T> IntoIterator for &'r Receiver<T> {
    type Item = T;
    type IntoIter = Iter<'r, T>;

    fn into_iter(self) -> Iter<'r, T> {
        self.iter()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.borrow_mut().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> SyncSender<T> {
        SyncSender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut channel = self.0.borrow_mut();
        channel.senders -= 1;
        let receivers = match channel.senders {
            0 => std::mem::take(&mut channel.receivers),
            _ => VecDeque::new(),
        };
        drop(channel);
        receivers.into_iter().for_each(wake);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut channel = self.0.borrow_mut();
        channel.receiver_gone = true;
        let left = std::mem::take(&mut channel.queue);
        let waiting = std::mem::take(&mut channel.waiting);
        drop(channel);
        waiting.into_iter().for_each(wake);
        drop(left); // Outside the borrow: destructors may send.
    }
}

macro_rules! shown {
    ($($end:ident),*) => {$(
        impl<T> fmt::Debug for $end<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($end)).finish_non_exhaustive()
            }
        }
    )*};
}

shown!(Sender, SyncSender, Receiver);
