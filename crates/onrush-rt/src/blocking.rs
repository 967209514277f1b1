//! A bounded pool of threads for file work that may block (not the CPU pool: that one sheds,
//! this one never does).
//!
//! One job is one allocation: the closure, later its result and the waiting task's waker live in
//! the same cell, which the queue and the [`Job`] future share. Nothing spins: an idle thread
//! sleeps on a condition variable (`futex(2)`), and ends itself after ten seconds without work.
//!
//! Threads are woken one after the other: while one is on its way, no other is called, and it calls
//! the next itself if it finds more than one job. So a burst of short jobs costs one wake-up, not
//! one each, and a job that blocks still holds up nobody.
//!
//! This module must not know files, drivers or the executor; it knows closures and wakers.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

/// How long a thread without work stays before it ends.
const IDLE: Duration = Duration::from_secs(10);

/// Where jobs that may block are run. Clones share one pool; when the last clone goes, what is
/// queued is still run and then the threads end.
#[derive(Clone)]
pub struct Pool {
    /// `None`: jobs run on the caller, at the first poll of their future.
    threads: Option<Arc<Handle>>,
}

impl Pool {
    /// A pool that grows to `threads_max` threads (at least one) as jobs queue up. More than
    /// `queue_max` waiting jobs are not refused, since file work is not shed: they wait in the
    /// same order, and [`Stats::past_max_total`] counts them.
    ///
    /// ```
    /// let pool = onrush_rt::blocking::Pool::threads(4, 256);
    /// let job = pool.run(|| std::fs::read("/etc/hostname"));
    /// drop(job); // waits for nothing
    /// ```
    pub fn threads(threads_max: usize, queue_max: usize) -> Pool {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                threads_max: threads_max.max(1),
                queue_max,
                ..State::NEW
            }),
            work: Condvar::new(),
            #[cfg(test)]
            refusal: Mutex::default(),
        });
        Pool {
            threads: Some(Arc::new(Handle { shared })),
        }
    }

    /// A pool without threads: a job runs on whoever polls it, at the first poll. For the
    /// simulator, where the order of everything must follow from the seed.
    pub fn inline() -> Pool {
        Pool { threads: None }
    }

    /// Hands `job` to the pool at once and gives a future of its result. If no thread can be
    /// started at all (`EAGAIN` from `clone(2)`), the job runs here and now: late beats never.
    pub fn run<T, F>(&self, job: F) -> Job<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let cell = Arc::new(Cell {
            state: Mutex::new(CellState::Queued(job, None)),
        });
        match &self.threads {
            Some(handle) => {
                handle.shared.submit(cell.clone());
                Job {
                    cell,
                    inline: false,
                    detached: false,
                }
            }
            None => Job {
                cell,
                inline: true,
                detached: false,
            },
        }
    }

    /// Whether jobs run on the caller (see [`Pool::inline`]).
    pub fn is_inline(&self) -> bool {
        self.threads.is_none()
    }

    /// Counters of this moment; all zero for an inline pool.
    pub fn stats(&self) -> Stats {
        let Some(handle) = &self.threads else {
            return Stats::default();
        };
        let state = handle.shared.lock();
        Stats {
            threads: state.threads,
            idle: state.idle,
            queued: state.queue.len(),
            queued_total: state.queued_total,
            past_max_total: state.past_max_total,
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.threads {
            Some(_) => f.debug_tuple("Pool").field(&self.stats()).finish(),
            None => f.write_str("Pool(inline)"),
        }
    }
}

/// What a pool is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Threads alive.
    pub threads: usize,
    /// Threads waiting for work.
    pub idle: usize,
    /// Jobs waiting for a thread (those dropped while waiting included, until their turn).
    pub queued: usize,
    /// Jobs ever given to the pool.
    pub queued_total: u64,
    /// Jobs that found `queue_max` others waiting.
    pub past_max_total: u64,
}

/// The job panicked; the panic was reported on standard error by the panic hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPanicked;

impl fmt::Display for JobPanicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a job of the blocking pool panicked")
    }
}

impl std::error::Error for JobPanicked {}

/// The future result of a job. Dropping it never waits: a job that runs goes on to its end, one
/// that has not started is dropped where it stands.
#[must_use = "a job not started is cancelled when its future is dropped"]
pub struct Job<T> {
    /// Shared with the queue until the job has run.
    cell: Arc<dyn Slot<T>>,
    /// Run at the first poll rather than by a thread.
    inline: bool,
    /// Dropping the future must not cancel the job.
    detached: bool,
}

impl<T> Job<T> {
    /// Lets the job run to its end with nobody waiting for it. One of an inline pool runs now.
    pub fn detach(mut self) {
        if self.inline {
            self.cell.run();
        }
        self.detached = true;
    }
}

impl<T> Future for Job<T> {
    type Output = Result<T, JobPanicked>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.inline {
            self.cell.run();
        }
        self.cell.poll(cx.waker())
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        if !self.detached {
            self.cell.cancel();
        }
    }
}

impl<T> fmt::Debug for Job<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job")
    }
}

/// What the queue sees of a cell.
trait Run: Send + Sync {
    /// Runs the job, if it still is to be run, and wakes whoever waits.
    fn run(&self);
}

/// What a [`Job`] sees of a cell.
trait Slot<T>: Run {
    /// Takes the result, or leaves `waker` to be woken when there is one.
    fn poll(&self, waker: &Waker) -> Poll<Result<T, JobPanicked>>;
    /// Nobody wants the result any more.
    fn cancel(&self);
}

/// A closure that becomes a result.
struct Cell<T, F> {
    state: Mutex<CellState<T, F>>,
}

enum CellState<T, F> {
    Queued(F, Option<Waker>),
    Running(Option<Waker>),
    Done(Result<T, JobPanicked>),
    /// The result was taken, or nobody wants it.
    Over,
}

impl<T, F> Cell<T, F> {
    /// No user code runs under this lock but a waker's clone, so a poisoned one is still whole.
    fn lock(&self) -> MutexGuard<'_, CellState<T, F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send, F: FnOnce() -> T + Send> Run for Cell<T, F> {
    fn run(&self) {
        let mut state = self.lock();
        let job = match mem::replace(&mut *state, CellState::Over) {
            CellState::Queued(job, waker) => {
                *state = CellState::Running(waker);
                job
            }
            other => {
                *state = other;
                return;
            }
        };
        drop(state);
        // The closure is consumed and its result thrown away, so nothing half-changed is seen.
        let result = catch_unwind(AssertUnwindSafe(job)).map_err(|_| JobPanicked);
        let mut state = self.lock();
        let before = mem::replace(&mut *state, CellState::Over);
        let (waker, unwanted) = match before {
            CellState::Running(waker) => {
                *state = CellState::Done(result);
                (waker, None)
            }
            _ => (None, Some(result)),
        };
        drop(state);
        drop(unwanted); // its destructor may do anything, so not under the lock
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T: Send, F: FnOnce() -> T + Send> Slot<T> for Cell<T, F> {
    fn poll(&self, waker: &Waker) -> Poll<Result<T, JobPanicked>> {
        let mut state = self.lock();
        match &mut *state {
            CellState::Queued(_, slot) | CellState::Running(slot) => {
                match slot {
                    Some(old) => old.clone_from(waker),
                    None => *slot = Some(waker.clone()),
                }
                Poll::Pending
            }
            CellState::Done(_) => match mem::replace(&mut *state, CellState::Over) {
                CellState::Done(result) => Poll::Ready(result),
                _ => Poll::Pending,
            },
            CellState::Over => panic!("a Job was polled after it was ready"),
        }
    }

    fn cancel(&self) {
        let before = mem::replace(&mut *self.lock(), CellState::Over);
        drop(before); // outside the lock: a closure's or a result's destructor may do anything
    }
}

/// Ends the threads when the last [`Pool`] goes.
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_all();
    }
}

struct Shared {
    state: Mutex<State>,
    /// Signalled when there is work and no thread is on its way to it.
    work: Condvar,
    /// Called once instead of starting a thread, which then is refused.
    #[cfg(test)]
    refusal: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct State {
    queue: VecDeque<Arc<dyn Run>>,
    threads: usize,
    /// Threads asleep in `work`; one that is `coming` is still counted until it wakes.
    idle: usize,
    /// A thread was signalled or started, and has not looked at the queue yet.
    coming: bool,
    threads_max: usize,
    queue_max: usize,
    queued_total: u64,
    past_max_total: u64,
    closing: bool,
}

impl State {
    const NEW: State = State {
        queue: VecDeque::new(),
        threads: 0,
        idle: 0,
        coming: false,
        threads_max: 1,
        queue_max: 0,
        queued_total: 0,
        past_max_total: 0,
        closing: false,
    };
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(self: &Arc<Self>, job: Arc<dyn Run>) {
        let mut state = self.lock();
        state.queued_total += 1;
        if state.queue.len() >= state.queue_max {
            state.past_max_total += 1;
        }
        state.queue.push_back(job);
        self.call(state);
    }

    /// Gets one more thread to look at the queue, unless one is on its way already.
    fn call(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.coming || state.queue.is_empty() {
            return;
        }
        let wake = state.idle > 0;
        let start = !wake && state.threads < state.threads_max;
        state.coming = wake || start;
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
            state.coming = false;
            if state.threads == 0 {
                let stranded = mem::take(&mut state.queue);
                drop(state);
                stranded.iter().for_each(|job| job.run());
            } else if state.idle > 0 && !state.queue.is_empty() {
                // Whoever came to rest meanwhile was not called, for this thread was on its way.
                state.coming = true;
                drop(state);
                self.work.notify_one();
            }
        }
    }

    fn spawn(self: &Arc<Self>) -> io::Result<()> {
        #[cfg(test)]
        if let Some(refuse) = self.refusal.lock().unwrap().take() {
            refuse();
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let shared = self.clone();
        let thread = thread::Builder::new().name("onrush-blocking".into());
        thread.spawn(move || shared.work_loop()).map(drop)
    }

    fn work_loop(self: &Arc<Self>) {
        let mut state = self.lock();
        state.coming = false;
        loop {
            if let Some(job) = state.queue.pop_front() {
                // This job may block, so the rest must not wait for its end.
                self.call(state);
                job.run();
                drop(job);
                state = self.lock();
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
            state.coming = false;
            if timeout.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    struct Unpark(thread::Thread);

    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(out) => return out,
                Poll::Pending => thread::park(),
            }
        }
    }

    #[test]
    fn runs_and_gives_back() {
        for pool in [Pool::threads(2, 8), Pool::inline()] {
            assert_eq!(block_on(pool.run(|| 6 * 7)), Ok(42));
        }
    }

    #[test]
    fn many_jobs_on_few_threads() {
        let pool = Pool::threads(3, 4);
        let jobs: Vec<_> = (0..500).map(|i| pool.run(move || i * 2)).collect();
        for (i, job) in jobs.into_iter().enumerate() {
            assert_eq!(block_on(job), Ok(i * 2));
        }
        let stats = pool.stats();
        assert!(stats.threads <= 3 && stats.queued_total == 500, "{stats:?}");
    }

    #[test]
    fn a_panic_is_told_and_the_pool_goes_on() {
        let pool = Pool::threads(1, 8);
        assert_eq!(
            block_on(pool.run(|| panic!("on purpose"))),
            Err::<(), _>(JobPanicked)
        );
        assert_eq!(block_on(pool.run(|| 1)), Ok(1));
    }

    #[test]
    fn dropped_before_its_turn_never_runs() {
        let ran = Arc::new(AtomicUsize::new(0));
        let pool = Pool::threads(1, 1);
        let (release, gate) = mpsc::channel::<()>();
        let first = pool.run(move || gate.recv().is_ok());
        let count = ran.clone();
        drop(pool.run(move || count.fetch_add(1, Ordering::SeqCst)));
        let count = ran.clone();
        let last = pool.run(move || count.load(Ordering::SeqCst));
        assert!(pool.stats().past_max_total >= 1);
        release.send(()).unwrap();
        assert_eq!(block_on(first), Ok(true));
        assert_eq!(block_on(last), Ok(0));
        drop(Pool::inline().run(|| panic!("never polled, never run")));
        let count = ran.clone();
        pool.run(move || count.fetch_add(1, Ordering::SeqCst))
            .detach();
        assert_eq!(block_on(pool.run(|| ())), Ok(()));
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }

    /// While a thread is being started nobody else is called; should that fail, whoever has come
    /// to rest meanwhile must be.
    #[test]
    fn a_thread_that_cannot_start_leaves_no_job_behind() {
        let pool = Pool::threads(2, 8);
        let (release, held) = mpsc::channel::<()>();
        let busy = pool.run(move || held.recv().is_ok());
        let shared = pool.threads.as_ref().unwrap().shared.clone();
        let (starts, starting) = mpsc::channel();
        let (fail, failing) = mpsc::channel();
        *shared.refusal.lock().unwrap() = Some(Box::new(move || {
            starts.send(()).unwrap();
            failing.recv().unwrap();
        }));
        let starter = thread::spawn({
            let pool = pool.clone();
            move || block_on(pool.run(|| 1))
        });
        starting.recv().unwrap();
        release.send(()).unwrap();
        assert_eq!(block_on(busy), Ok(true));
        while pool.stats().idle == 0 {
            thread::yield_now();
        }
        let (ran, runs) = mpsc::channel();
        pool.run(move || ran.send(())).detach();
        fail.send(()).unwrap();
        // Without a call it would sleep for as long as an idle thread lives.
        assert!(runs.recv_timeout(IDLE / 2).is_ok());
        assert_eq!(starter.join().unwrap(), Ok(1));
    }

    #[test]
    fn what_is_queued_survives_the_pool() {
        let pool = Pool::threads(1, 1);
        let job = pool.run(|| "done");
        drop(pool);
        assert_eq!(block_on(job), Ok("done"));
    }
}
