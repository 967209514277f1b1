//! Tasks: futures that live on one worker and need not be `Send`.
//!
//! Must not know what wakes them.

use crate::mailbox::Mailbox;
use slab::Slab;
use std::cell::RefCell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A spawned task. Dropping it cancels the task; [`Task::detach`] lets it run on. Awaiting it gives
/// the future's output.
pub type Task<T> = async_task::Task<T>;

#[derive(Debug)]
pub(crate) struct Executor {
    mailbox: Arc<Mailbox>,
    /// One waker per live task, so that all can be dropped, on this thread, with the worker.
    live: Rc<RefCell<Slab<Option<Waker>>>>,
}

impl Executor {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Executor {
        Executor {
            mailbox,
            live: Rc::default(),
        }
    }

    pub(crate) fn spawn<F>(&self, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let mut live = self.live.borrow_mut();
        let entry = live.vacant_entry();
        let future = Tracked {
            key: entry.key(),
            live: self.live.clone(),
            future,
        };
        let mailbox = self.mailbox.clone();
        let schedule = move |runnable| mailbox.push(runnable);
        let (runnable, task) = async_task::spawn_local(future, schedule);
        entry.insert(Some(runnable.waker()));
        drop(live);
        runnable.schedule();
        task
    }

    /// Runs what is scheduled now, not what that schedules in turn: the driver gets its turn in
    /// between. `false` when there was nothing to run.
    pub(crate) fn run(&self) -> bool {
        let due = self.mailbox.len();
        for _ in 0..due {
            let Some(runnable) = self.mailbox.pop() else {
                break;
            };
            // A panic belongs to its task alone; the payload was printed by the panic hook.
            // It may itself panic when it is dropped.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| runnable.run())) {
                std::mem::forget(payload);
            }
        }
        due > 0
    }

    pub(crate) fn live_tasks(&self) -> usize {
        self.live.borrow().len()
    }
}

impl Executor {
    /// Drops all tasks. Their futures hold the worker, so this must be called to end it.
    pub(crate) fn shut_down(&self) {
        // Waking a task puts it into the queue, and a task dropped in the queue drops its future.
        let wakers: Vec<Waker> = self
            .live
            .borrow_mut()
            .iter_mut()
            .filter_map(|(_, waker)| waker.take())
            .collect();
        wakers.into_iter().for_each(Waker::wake);
        while let Some(runnable) = self.mailbox.pop() {
            drop(runnable);
        }
        self.mailbox.close();
        while let Some(runnable) = self.mailbox.pop() {
            drop(runnable);
        }
    }
}

pin_project! {
    /// A future that takes itself off the list of live tasks when it is dropped.
    struct Tracked<F> {
        key: usize,
        live: Rc<RefCell<Slab<Option<Waker>>>>,
        #[pin]
        future: F,
    }

    impl<F> PinnedDrop for Tracked<F> {
        fn drop(this: Pin<&mut Self>) {
            let waker = this.live.borrow_mut().try_remove(this.key);
            drop(waker); // Outside the borrow: the last waker may drop a whole task.
        }
    }
}

use pin_project_lite::pin_project;

impl<F: Future> Future for Tracked<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}
