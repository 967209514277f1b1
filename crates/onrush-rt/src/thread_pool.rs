//! Threads that take work from one queue: started as work comes, asleep while there is none, and
//! gone after ten seconds of that. Nothing spins: who waits sleeps on a condition variable
//! (`futex(2)`).
//!
//! They are called one after the other: while one is on its way, no other is called, and it calls
//! the next itself if it finds more than one job. So a burst of short jobs costs one wake-up, not
//! one each, and a long job still holds up nobody.
//!
//! Must not know what the work is, in which order it is done, or how much of it may wait.

use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long a thread without work stays before it ends.
pub(crate) const IDLE: Duration = Duration::from_secs(10);

/// What a crew works on. Its methods on `self` are called under the crew's lock.
pub(crate) trait JobQueue: Send + 'static {
    type Job;
    type Outcome;
    /// Whether nothing waits to be taken.
    fn is_empty(&self) -> bool;
    /// The next job, to be run by the caller.
    fn take(&mut self) -> Option<Self::Job>;
    /// Runs a job. Not under the lock.
    fn run(job: Self::Job) -> Self::Outcome;
    /// No thread can be had for this job. Not under the lock.
    fn run_without_thread(job: Self::Job) -> Self::Outcome;
    /// A job that was taken has ended; `None`: with a panic, of a waker perhaps.
    fn job_done(&mut self, outcome: Option<Self::Outcome>);
}

/// The threads and their queue.
pub(crate) struct ThreadPool<Q: JobQueue> {
    state: Mutex<State<Q>>,
    /// Signalled when there is work and no thread is on its way to it.
    work: Condvar,
    /// Of its threads.
    name: &'static str,
    /// What each thread does first.
    prepare: Box<dyn Fn() + Send + Sync>,
    /// Called once instead of starting a thread, which then is refused.
    #[cfg(test)]
    pub(crate) spawn_failure: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

pub(crate) struct State<Q> {
    pub(crate) queue: Q,
    pub(crate) threads: usize,
    /// Threads asleep in `work`; one that is `waking` is still counted until it wakes.
    pub(crate) idle: usize,
    /// A thread was signalled or started, and has not looked at the queue yet.
    waking: bool,
    pub(crate) threads_max: usize,
    closing: bool,
}

/// Ends the threads, when all work is done, as it goes.
pub(crate) struct Owner<Q: JobQueue>(Arc<ThreadPool<Q>>);

impl<Q: JobQueue> Owner<Q> {
    /// With no threads at all, work is done by [`ThreadPool::run_one`] only.
    pub(crate) fn new(
        queue: Q,
        threads_max: usize,
        name: &'static str,
        prepare: impl Fn() + Send + Sync + 'static,
    ) -> Owner<Q> {
        Owner(Arc::new(ThreadPool {
            state: Mutex::new(State {
                queue,
                threads: 0,
                idle: 0,
                waking: false,
                threads_max,
                closing: false,
            }),
            work: Condvar::new(),
            name,
            prepare: Box::new(prepare),
            #[cfg(test)]
            spawn_failure: Mutex::default(),
        }))
    }

    pub(crate) fn thread_pool(&self) -> &Arc<ThreadPool<Q>> {
        &self.0
    }
}

impl<Q: JobQueue> Drop for Owner<Q> {
    fn drop(&mut self) {
        self.0.lock().closing = true;
        self.0.work.notify_all();
    }
}

impl<Q: JobQueue> ThreadPool<Q> {
    /// Nobody's code but the queue's runs under this lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State<Q>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts something into the queue and gets a thread to look at it.
    pub(crate) fn submit<R>(self: &Arc<Self>, put: impl FnOnce(&mut Q) -> R) -> R {
        let mut state = self.lock();
        let result = put(&mut state.queue);
        self.wake_thread(state);
        result
    }

    /// Does the next job on the calling thread; `false` when there is none.
    pub(crate) fn run_one(&self) -> bool {
        self.run_next(Q::run)
    }

    /// Does a job that never was in the queue on the calling thread.
    pub(crate) fn run_unqueued(&self, job: Q::Job) {
        let outcome = guarded(Q::run, job);
        self.lock().queue.job_done(outcome);
    }

    fn run_next(&self, what: fn(Q::Job) -> Q::Outcome) -> bool {
        let job = self.lock().queue.take();
        let Some(job) = job else { return false };
        let outcome = guarded(what, job);
        self.lock().queue.job_done(outcome);
        true
    }

    /// Gets one more thread to look at the queue, unless one is on its way already.
    fn wake_thread(self: &Arc<Self>, mut state: MutexGuard<'_, State<Q>>) {
        if state.waking || state.queue.is_empty() {
            return;
        }
        let wake = state.idle > 0;
        let start = !wake && state.threads < state.threads_max;
        state.waking = wake || start;
        state.threads += usize::from(start);
        drop(state);
        if wake {
            self.work.notify_one();
        }
        if start {
            self.start();
        }
    }

    /// Starts one thread, already counted.
    fn start(self: &Arc<Self>) {
        if self.spawn().is_err() {
            let mut state = self.lock();
            state.threads -= 1;
            state.waking = false;
            if state.threads == 0 {
                drop(state);
                while self.run_next(Q::run_without_thread) {}
            } else if state.idle > 0 && !state.queue.is_empty() {
                // Whoever came to rest meanwhile was not called, for this thread was on its way.
                state.waking = true;
                drop(state);
                self.work.notify_one();
            }
        }
    }

    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        #[cfg(test)]
        if let Some(refuse) = self.spawn_failure.lock().unwrap().take() {
            refuse();
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let thread_pool = self.clone();
        let thread = thread::Builder::new().name(self.name.into());
        let begin = move || {
            (thread_pool.prepare)();
            thread_pool.work_loop();
        };
        thread.spawn(begin).map(drop)
    }

    fn work_loop(self: &Arc<Self>) {
        let mut state = self.lock();
        state.waking = false;
        loop {
            if let Some(job) = state.queue.take() {
                // This job may take long, so the rest must not wait for its end.
                self.wake_thread(state);
                let outcome = guarded(Q::run, job);
                state = self.lock();
                state.queue.job_done(outcome);
                continue;
            }
            if state.closing {
                break;
            }
            state.idle += 1;
            let waited = self.work.wait_timeout(state, IDLE);
            let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            // Whoever wakes has come, called or not: it looks at the queue next.
            state.waking = false;
            if timeout.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}

/// A thread must outlive whatever it runs: no job could be done without it.
fn guarded<J, O>(what: fn(J) -> O, job: J) -> Option<O> {
    catch_unwind(AssertUnwindSafe(|| what(job)))
        .map_err(mem::forget) // A payload that panics when dropped would end the thread after all.
        .ok()
}

#[cfg(test)]
pub(crate) mod testing {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};
    use std::thread;

    struct Unpark(thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    pub(crate) fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(out) => return out,
                Poll::Pending => thread::park(),
            }
        }
    }
}
