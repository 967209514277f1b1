//! The thread that polls fetches. A fetch belongs to no client: it continues when the client that
//! began it disconnects, and the clients of all workers wait for the same one.
//!
//! The futures of a [`Store`](crate::Store) stay on the thread that polls them, so they are made
//! here. The thread only polls; what blocks runs on the pool. A panic ends what has panicked, and
//! not the thread.

use crate::object::LocalFuture;
use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Makes a future on the thread.
type Make = Box<dyn FnOnce() -> LocalFuture<'static, ()> + Send>;

enum Message {
    Start(Make),
    Poll(u64),
    Stop,
}

/// The thread. Dropping it drops all futures and waits for the thread.
#[derive(Debug)]
pub(super) struct Runner {
    sender: Sender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Runner {
    /// Starts the thread. It calls `tick` about every `period`.
    pub(super) fn start(
        period: Duration,
        tick: impl FnMut() + Send + 'static,
    ) -> io::Result<Runner> {
        let (sender, receiver) = channel();
        let own = sender.clone();
        let thread = thread::Builder::new().name("onrush-edge".to_owned());
        let thread = thread.spawn(move || run(&own, &receiver, period, tick))?;
        Ok(Runner {
            sender,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Polls a future to its end.
    pub(super) fn spawn(&self, make: impl FnOnce() -> LocalFuture<'static, ()> + Send + 'static) {
        let _ = self.sender.send(Message::Start(Box::new(make))); // It fails after the end.
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.sender.send(Message::Stop);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // A future may own the last reference to this.
        if let Some(thread) = thread.filter(|it| it.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

struct TaskWaker {
    number: u64,
    sender: Sender<Message>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let _ = self.sender.send(Message::Poll(self.number));
    }
}

fn run(
    sender: &Sender<Message>,
    receiver: &Receiver<Message>,
    period: Duration,
    mut tick: impl FnMut(),
) {
    let mut tasks: HashMap<u64, (LocalFuture<'static, ()>, Waker)> = HashMap::new();
    let mut next = 0;
    let mut due = Instant::now() + period;
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let _ = catch_unwind(AssertUnwindSafe(&mut tick)); // It is called again.
            due = Instant::now() + period;
            continue;
        }
        let number = match receiver.recv_timeout(left) {
            Ok(Message::Start(make)) => {
                let Ok(future) = catch_unwind(AssertUnwindSafe(make)) else {
                    continue;
                };
                next += 1;
                let waker = Waker::from(Arc::new(TaskWaker {
                    number: next,
                    sender: sender.clone(),
                }));
                tasks.insert(next, (future, waker));
                next
            }
            Ok(Message::Poll(number)) => number,
            Err(RecvTimeoutError::Timeout) => continue,
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return,
        };
        let Some((future, waker)) = tasks.get_mut(&number) else {
            continue; // It has ended.
        };
        let mut cx = Context::from_waker(waker);
        // The panic hook has reported a panic.
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        if polled.is_err() || polled.is_ok_and(|polled| polled.is_ready()) {
            let ended = tasks.remove(&number);
            let _ = catch_unwind(AssertUnwindSafe(|| drop(ended)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::watch::Watch;

    #[test]
    fn futures_run_to_their_end_or_are_dropped() {
        let (sender, receiver) = channel();
        let runner = Runner::start(Duration::from_secs(60), || {}).expect("a thread");
        let gate = Arc::new(Watch::new(false));
        for number in 0..3 {
            let (sender, gate) = (sender.clone(), gate.clone());
            runner.spawn(move || {
                Box::pin(async move {
                    gate.until(|open| open.then_some(())).await;
                    assert!(number != 1, "one of them panics");
                    sender.send(number).expect("received");
                })
            });
        }
        gate.update(|open| *open = true);
        // One that begins after the gate is open may be faster than one that waits for it.
        let mut ended = [(); 2].map(|()| receiver.recv().expect("a number"));
        ended.sort();
        assert_eq!(ended, [0, 2]);
        struct Dropped(Sender<i32>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.send(9);
            }
        }
        let dropped = Dropped(sender);
        runner.spawn(move || {
            Box::pin(async move {
                let _dropped = dropped;
                std::future::pending::<()>().await;
            })
        });
        drop(runner);
        assert_eq!(receiver.recv().expect("a number"), 9);
    }

    #[test]
    fn the_thread_outlives_panics() {
        let (sender, receiver) = channel();
        let ticks = sender.clone();
        let mut number = 0;
        let tick = move || {
            number += 1;
            assert!(number != 1, "the first tick panics");
            let _ = ticks.send("tick");
        };
        let runner = Runner::start(Duration::from_millis(1), tick).expect("a thread");
        runner.spawn(|| panic!("no future is made"));
        let limit = Duration::from_secs(30);
        assert_eq!(receiver.recv_timeout(limit), Ok("tick"));
        runner.spawn(move || Box::pin(async move { sender.send("task").expect("received") }));
        let mut events = std::iter::from_fn(|| receiver.recv_timeout(limit).ok());
        assert!(events.any(|event| event == "task"));
    }
}
