//! Threads that take jobs from one queue. They start as jobs arrive, sleep while there are none,
//! and end after ten idle seconds. Nothing spins: a thread waits on a condition variable
//! (`futex(2)`).
//!
//! Threads are woken one after the other: while one is being woken, no other is, and it wakes the
//! next itself if it finds more than one job. So a burst of short jobs costs one wake-up, not one
//! each, and a long job does not delay others.
//!
//! The queue decides what the jobs are, their order, and how many may wait.

use crate::user::call;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A thread without work ends after this time.
pub(crate) const IDLE: Duration = Duration::from_secs(10);

/// The queue of a pool. Its methods on `self` are called under the pool's lock.
pub(crate) trait JobQueue: Send + 'static {
    type Job;
    type Outcome;
    /// Whether nothing waits to be taken.
    fn is_empty(&self) -> bool;
    /// The next job; the caller runs it.
    fn take(&mut self) -> Option<Self::Job>;
    /// Runs a job. Not called under the lock.
    fn run(job: Self::Job) -> Self::Outcome;
    /// Handles a job when no thread can be started. Not called under the lock.
    fn run_without_thread(job: Self::Job) -> Self::Outcome;
    /// A job that was taken has ended; `None`: with a panic, possibly of a waker.
    fn job_done(&mut self, outcome: Option<Self::Outcome>);
}

/// The threads and their queue.
pub(crate) struct ThreadPool<Q: JobQueue> {
    state: Mutex<PoolState<Q>>,
    /// Signalled when there is work and no thread is being woken.
    work: Condvar,
    /// The name of the threads.
    name: &'static str,
    /// Each thread calls this first.
    prepare: Box<dyn Fn() + Send + Sync>,
    /// Called once instead of starting a thread; the start then fails.
    #[cfg(test)]
    pub(crate) spawn_failure: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

pub(crate) struct PoolState<Q> {
    pub(crate) queue: Q,
    pub(crate) threads: usize,
    /// Threads asleep in `work`; a thread that is being woken counts until it runs.
    pub(crate) idle: usize,
    /// A thread was signalled or started, and has not checked the queue yet.
    waking: bool,
    pub(crate) threads_max: usize,
    closing: bool,
}

/// When dropped, ends the threads after all work is done.
pub(crate) struct Owner<Q: JobQueue>(Arc<ThreadPool<Q>>);

impl<Q: JobQueue> Owner<Q> {
    /// With `threads_max` 0, only [`ThreadPool::run_one`] runs jobs.
    pub(crate) fn new(
        queue: Q,
        threads_max: usize,
        name: &'static str,
        prepare: impl Fn() + Send + Sync + 'static,
    ) -> Owner<Q> {
        Owner(Arc::new(ThreadPool {
            state: Mutex::new(PoolState {
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
    /// Only the queue's code runs under this lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, PoolState<Q>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the queue and wakes or starts a thread for it.
    pub(crate) fn submit<R>(self: &Arc<Self>, put: impl FnOnce(&mut Q) -> R) -> R {
        let mut state = self.lock();
        let result = put(&mut state.queue);
        self.wake_thread(state);
        result
    }

    /// Runs the next job on the calling thread; `false` when there is none.
    pub(crate) fn run_one(&self) -> bool {
        self.run_next(Q::run)
    }

    /// Runs a job that was never in the queue, on the calling thread.
    pub(crate) fn run_unqueued(&self, job: Q::Job) {
        let outcome = call(|| Q::run(job));
        self.lock().queue.job_done(outcome);
    }

    fn run_next(&self, what: fn(Q::Job) -> Q::Outcome) -> bool {
        let job = self.lock().queue.take();
        let Some(job) = job else { return false };
        let outcome = call(|| what(job));
        self.lock().queue.job_done(outcome);
        true
    }

    /// Wakes or starts one more thread for the queue, unless one is being woken already.
    fn wake_thread(self: &Arc<Self>, mut state: MutexGuard<'_, PoolState<Q>>) {
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

    /// Starts one thread, which is counted already.
    fn start(self: &Arc<Self>) {
        if self.spawn().is_err() {
            let mut state = self.lock();
            state.threads -= 1;
            state.waking = false;
            if state.threads == 0 {
                drop(state);
                while self.run_next(Q::run_without_thread) {}
            } else if state.idle > 0 && !state.queue.is_empty() {
                // A thread that became idle meanwhile was not woken, because this one was starting.
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
                // This job may take long, so another thread is woken for the rest.
                self.wake_thread(state);
                let outcome = call(|| Q::run(job));
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
            // This thread is awake, by a signal or not: it checks the queue next.
            state.waking = false;
            if timeout.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}
