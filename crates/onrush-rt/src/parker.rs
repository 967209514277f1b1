//! The agreement of a worker that goes to sleep with those that wake it: no wake is lost, and only
//! one that sleeps costs its waker a system call. The same for a worker that ends: what others put
//! into its queue is removed by it or by them.
//!
//! Must not know what is waited for, nor how a worker is woken. `cargo xtask loom` runs its tests
//! through every order in which two threads may take its steps.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

#[derive(Debug)]
pub(crate) struct Parker {
    /// The owner is in the kernel, or about to be.
    sleeping: AtomicBool,
    /// Somebody called [`Parker::notify`] since the owner last looked.
    notified: AtomicBool,
    /// The owner ends: what is put where it looks is never taken.
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

    /// After something was put where the owner looks: whether it must be woken by the caller.
    #[inline]
    pub(crate) fn needs_wake(&self) -> bool {
        // Pairs with the fence in `prepare`: either this sees the flag, or the owner sees what was
        // put there.
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel)
    }

    /// Leaves the owner a note; whether it must be woken by the caller.
    pub(crate) fn notify(&self) -> bool {
        self.notified.store(true, Ordering::Release);
        self.needs_wake()
    }

    /// Announces sleep; `false` when something has come, which `is_empty` denies, or a note: the
    /// owner must not sleep then.
    pub(crate) fn prepare(&self, is_empty: impl FnOnce() -> bool) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if is_empty() && !self.notified.load(Ordering::Acquire) {
            return true;
        }
        self.awake();
        false
    }

    /// Ends it. By the owner, before it empties its queue for the last time.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // Pairs with the fence in `needs_wake`: what was put into the queue before that fence is
        // seen by the owner after this one, unless `is_closed` after that fence tells the other
        // thread.
        fence(Ordering::SeqCst);
    }

    /// Whether the owner has closed it. Exact after [`Parker::needs_wake`], as `close` describes.
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

    /// A worker's mailbox: the queue is a counter, and the kernel's wait one of loom, which finds
    /// it out if nobody ends that.
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

        /// One turn: what was taken from the queue, and whether there was a note.
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

    /// However the steps fall, the worker gets all of it, and does not sleep for ever.
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

    /// However the steps fall, a queue that is closed ends up empty: each push was removed once, by
    /// the owner or by a thread that pushed.
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
            // As the queue does, it looks with a plain load whether there is anything.
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
    fn a_note_arrives() {
        delivers([Worker::notify, |_| ()], 0, 1);
    }

    #[test]
    fn both_arrive() {
        delivers([Worker::push, Worker::notify], 1, 1);
    }
}
