//! The protocol between a worker that goes to sleep and the threads that wake it: no wake is lost,
//! and only a wake of a sleeping worker costs a system call. The same protocol covers a worker that
//! ends: tasks that others put into its queue are removed by the worker or by them.
//!
//! Independent of what the worker waits for and how it is woken. `cargo xtask loom` runs the tests
//! here through every interleaving of two threads.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

#[derive(Debug)]
pub(crate) struct Parker {
    /// The owner is in the kernel, or about to be.
    sleeping: AtomicBool,
    /// [`Parker::notify`] was called since the owner last checked.
    notified: AtomicBool,
    /// The owner ends: it takes nothing more from its queue.
    closed: AtomicBool,
}

impl Parker {
    pub(crate) fn new() -> Parker {
        Parker {
            sleeping: AtomicBool::new(false),
            notified: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Whether the caller must wake the owner. Call this after adding to the owner's queue.
    #[inline]
    pub(crate) fn needs_wake(&self) -> bool {
        // Pairs with the fence in `prepare`: either this sees the flag, or the owner sees the new
        // entry.
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel)
    }

    /// Sets the notification. Returns whether the caller must wake the owner.
    pub(crate) fn notify(&self) -> bool {
        self.notified.store(true, Ordering::Release);
        self.needs_wake()
    }

    /// Announces sleep. `false` when the owner must not sleep: `is_empty` returned `false`, or a
    /// notification is set.
    pub(crate) fn prepare(&self, is_empty: impl FnOnce() -> bool) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if is_empty() && !self.notified.load(Ordering::Acquire) {
            return true;
        }
        self.awake();
        false
    }

    /// Closes it. The owner calls this before it empties its queue for the last time.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // Pairs with the fence in `needs_wake`. If another thread queued an entry before that
        // fence, either the owner sees the entry after this fence, or `is_closed` after that fence
        // returns true in the other thread.
        fence(Ordering::SeqCst);
    }

    /// Whether the owner has closed it. Exact after [`Parker::needs_wake`]; see `close`.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed)
    }

    pub(crate) fn take_notified(&self) -> bool {
        self.notified.load(Ordering::Relaxed) && self.notified.swap(false, Ordering::AcqRel)
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// A model of a worker's mailbox: the queue is a counter, and the wait in the kernel is loom's
    /// condition variable, so loom detects a wait that never ends.
    struct Worker {
        parker: Parker,
        queued: AtomicUsize,
        woken: Mutex<usize>,
        wake: Condvar,
    }

    impl Worker {
        fn new() -> Arc<Worker> {
            Arc::new(Worker {
                parker: Parker::new(),
                queued: AtomicUsize::new(0),
                woken: Mutex::new(0),
                wake: Condvar::new(),
            })
        }

        fn wake(&self) {
            *self.woken.lock().unwrap() += 1;
            self.wake.notify_one();
        }

        fn push(&self) {
            self.queued.fetch_add(1, Ordering::Release);
            if self.parker.needs_wake() {
                self.wake();
            }
        }

        fn notify(&self) {
            if self.parker.notify() {
                self.wake();
            }
        }

        /// One iteration: the number of entries taken from the queue, and whether a notification
        /// was set.
        fn poll(&self) -> (usize, bool) {
            if self
                .parker
                .prepare(|| self.queued.load(Ordering::Acquire) == 0)
            {
                let mut woken = self.woken.lock().unwrap();
                while *woken == 0 {
                    woken = self.wake.wait(woken).unwrap();
                }
                *woken -= 1;
            }
            self.parker.awake();
            let noted = self.parker.take_notified();
            (self.queued.swap(0, Ordering::AcqRel), noted)
        }
    }

    /// In every interleaving, the worker gets everything and does not sleep for ever.
    fn delivers(senders: [fn(&Worker); 2], pushes: usize, notes: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2); // Without a bound it takes minutes.
        model.check(move || {
            let worker = Worker::new();
            let threads = senders.map(|send| {
                let worker = worker.clone();
                thread::spawn(move || send(&worker))
            });
            let (mut queued, mut noted) = (0, 0);
            while queued < pushes || noted < notes {
                let (more, note) = worker.poll();
                queued += more;
                noted += usize::from(note);
            }
            threads
                .into_iter()
                .for_each(|thread| thread.join().unwrap());
            assert_eq!(queued, pushes);
        });
    }

    /// In every interleaving, a closed queue ends up empty: each entry was removed once, by the
    /// owner or by a thread that pushed.
    #[test]
    fn nothing_stays_in_a_closed_queue() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let worker = Worker::new();
            let push = |worker: &Worker| {
                if worker.parker.is_closed() {
                    return 1;
                }
                worker.push();
                match worker.parker.is_closed() {
                    true => worker.queued.swap(0, Ordering::AcqRel),
                    false => 0,
                }
            };
            let threads = [(); 2].map(|()| {
                let worker = worker.clone();
                thread::spawn(move || push(&worker))
            });
            worker.parker.close();
            // Like the real queue, this checks with a plain load whether there is an entry.
            let dropped = match worker.queued.load(Ordering::Relaxed) {
                0 => 0,
                _ => worker.queued.swap(0, Ordering::AcqRel),
            };
            let leaked = threads.map(|thread| thread.join().unwrap());
            assert_eq!(worker.queued.load(Ordering::Acquire), 0);
            assert_eq!(dropped + leaked.iter().sum::<usize>(), 2);
        });
    }

    #[test]
    fn what_is_pushed_arrives() {
        delivers([Worker::push, Worker::push], 2, 0);
    }

    #[test]
    fn notification_is_delivered() {
        delivers([Worker::notify, |_| ()], 0, 1);
    }

    #[test]
    fn both_arrive() {
        delivers([Worker::push, Worker::notify], 1, 1);
    }
}
