//! A bounded pool of threads for file operations that may block. Unlike the pool for CPU-bound
//! work, it never refuses a job.
//!
//! One job is one allocation, which the queue and the [`BlockingJob`] future share. Threads start
//! as jobs queue up, sleep while there are none, and end after ten idle seconds. A burst of short
//! jobs costs one wake-up, not one each.
//!
//! This module does not depend on files, drivers or the executor, only on closures and wakers.

use crate::coop;
use crate::job::{JobCell, JobOutcome, JobResult, RunJob};
use crate::thread_pool::{self, Owner};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::{self, Thread};

/// Polls a future to completion on this thread, which sleeps meanwhile. Not for a worker: its tasks
/// and connections would wait as well.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// A thread pool for jobs that may block. Clones share one pool; after the last clone is dropped,
/// queued jobs still run and then the threads end.
#[derive(Clone)]
pub struct BlockingPool {
    /// `None`: jobs run on the caller, at the first poll of their future.
    threads: Option<Arc<Owner<BlockingQueue>>>,
}

impl BlockingPool {
    /// A pool that grows to `threads_max` threads (at least one) as jobs queue up. It does not
    /// refuse jobs beyond `queue_max`, because file operations are not shed: they wait in the same
    /// order, and [`BlockingStats::past_max_total`] counts them.
    ///
    /// ```
    /// let pool = onrush_rt::blocking::BlockingPool::threads(4, 256);
    /// let job = pool.run(|| std::fs::read("/etc/hostname"));
    /// drop(job); // does not wait
    /// ```
    pub fn threads(threads_max: usize, queue_max: usize) -> BlockingPool {
        let jobs = BlockingQueue {
            waiting: VecDeque::new(),
            queue_max,
            queued_total: 0,
            past_max_total: 0,
        };
        let prepare = crate::sys::restore_affinity();
        let owner = Owner::new(jobs, threads_max.max(1), "onrush-blocking", prepare);
        BlockingPool {
            threads: Some(Arc::new(owner)),
        }
    }

    /// A pool without threads: a job runs at the first poll of its future, in the polling thread.
    /// For the simulator, where the seed must determine the order of everything.
    pub fn inline() -> BlockingPool {
        BlockingPool { threads: None }
    }

    /// Queues `job` at once and returns a future of its result. If no thread can be started
    /// (`EAGAIN` from `clone(2)`), the job runs here and now: late is better than never.
    ///
    /// # Examples
    /// ```
    /// # use onrush_rt::driver::{Config, Preference, choose};
    /// # use onrush_rt::worker::{Pools, Worker};
    /// # let config = Config::default();
    /// # let choice = choose(Preference::Auto, &config)?;
    /// # let mut worker = Worker::new(&choice, &config, Pools::default(), 0)?;
    /// let job = worker.context().blocking().run(|| std::fs::metadata("/"));
    /// let metadata = worker.block_on(job)?.expect("the job has not panicked")?;
    /// assert!(metadata.is_dir());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn run<T, F>(&self, job: F) -> BlockingJob<T>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let cell = Arc::new(JobCell::new(move |_: &_| job(), JobPanicked));
        if let Some(owner) = &self.threads {
            let queued = cell.clone();
            owner.thread_pool().submit(|jobs| jobs.add(queued));
        }
        BlockingJob {
            cell,
            inline: self.threads.is_none(),
            detached: false,
        }
    }

    /// Whether jobs run in the polling thread (see [`BlockingPool::inline`]).
    pub fn is_inline(&self) -> bool {
        self.threads.is_none()
    }

    /// The maximum number of threads; 0 for an inline pool.
    pub fn threads_max(&self) -> usize {
        let threads = self.threads.as_ref();
        threads.map_or(0, |owner| owner.thread_pool().lock().threads_max)
    }

    /// A snapshot of the counters; all zero for an inline pool.
    pub fn stats(&self) -> BlockingStats {
        let Some(owner) = &self.threads else {
            return BlockingStats::default();
        };
        let state = owner.thread_pool().lock();
        BlockingStats {
            threads: state.threads,
            idle: state.idle,
            queued: state.queue.waiting.len(),
            queued_total: state.queue.queued_total,
            past_max_total: state.queue.past_max_total,
        }
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.threads {
            Some(_) => f.debug_tuple("BlockingPool").field(&self.stats()).finish(),
            None => f.write_str("BlockingPool(inline)"),
        }
    }
}

/// Counters of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockingStats {
    /// Threads that live.
    pub threads: usize,
    /// Threads that wait for work.
    pub idle: usize,
    /// Jobs that wait for a thread. A job whose future was dropped counts until its turn.
    pub queued: usize,
    /// All jobs given to the pool so far.
    pub queued_total: u64,
    /// Jobs that were queued behind `queue_max` or more others.
    pub past_max_total: u64,
}

/// The job panicked; the panic hook has reported the panic on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobPanicked;

impl fmt::Display for JobPanicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a job of the blocking pool panicked")
    }
}

impl std::error::Error for JobPanicked {}

/// The future result of a job. Dropping it never waits: a running job continues to its end, a job
/// that has not started is dropped at once.
#[must_use = "a job not started is cancelled when its future is dropped"]
pub struct BlockingJob<T> {
    /// Shared with the queue until the job has run.
    cell: Arc<dyn JobResult<T, JobPanicked>>,
    /// The job runs at the first poll, not on a thread.
    inline: bool,
    /// Dropping the future does not cancel the job.
    detached: bool,
}

impl<T> BlockingJob<T> {
    /// Lets the job run to its end; its result is dropped. A job of an inline pool runs now.
    pub fn detach(mut self) {
        if self.inline {
            self.cell.run();
        }
        self.detached = true;
    }
}

impl<T> Future for BlockingJob<T> {
    type Output = Result<T, JobPanicked>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(coop::poll_proceed(cx));
        if self.inline {
            self.cell.run();
        }
        let result = ready!(self.cell.poll(cx.waker()));
        coop::spend(0);
        Poll::Ready(result)
    }
}

impl<T> Drop for BlockingJob<T> {
    fn drop(&mut self) {
        if !self.detached {
            self.cell.cancel();
        }
    }
}

impl<T> fmt::Debug for BlockingJob<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BlockingJob")
    }
}

/// The queue, first in, first out.
struct BlockingQueue {
    waiting: VecDeque<Arc<dyn RunJob<JobPanicked>>>,
    queue_max: usize,
    queued_total: u64,
    past_max_total: u64,
}

impl BlockingQueue {
    fn add(&mut self, job: Arc<dyn RunJob<JobPanicked>>) {
        self.queued_total += 1;
        if self.waiting.len() >= self.queue_max {
            self.past_max_total += 1;
        }
        self.waiting.push_back(job);
    }
}

impl thread_pool::JobQueue for BlockingQueue {
    type Job = Arc<dyn RunJob<JobPanicked>>;
    type Outcome = JobOutcome;

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn take(&mut self) -> Option<Self::Job> {
        self.waiting.pop_front()
    }

    fn run(job: Self::Job) -> JobOutcome {
        job.run()
    }

    fn run_without_thread(job: Self::Job) -> JobOutcome {
        job.run()
    }

    fn job_done(&mut self, _: Option<JobOutcome>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread_pool::IDLE;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn runs_job_and_returns_output() {
        for pool in [BlockingPool::threads(2, 8), BlockingPool::inline()] {
            assert_eq!(block_on(pool.run(|| 6 * 7)), Ok(42));
        }
    }

    #[test]
    fn many_jobs_on_few_threads() {
        let pool = BlockingPool::threads(3, 4);
        let jobs: Vec<_> = (0..500).map(|i| pool.run(move || i * 2)).collect();
        for (i, job) in jobs.into_iter().enumerate() {
            assert_eq!(block_on(job), Ok(i * 2));
        }
        let stats = pool.stats();
        assert!(stats.threads <= 3 && stats.queued_total == 500, "{stats:?}");
    }

    #[test]
    fn panic_is_returned_and_pool_survives() {
        let pool = BlockingPool::threads(1, 8);
        assert_eq!(
            block_on(pool.run(|| panic!("on purpose"))),
            Err::<(), _>(JobPanicked)
        );
        assert_eq!(block_on(pool.run(|| 1)), Ok(1));
    }

    #[test]
    fn dropped_before_its_turn_never_runs() {
        let ran = Arc::new(AtomicUsize::new(0));
        let pool = BlockingPool::threads(1, 1);
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
        drop(BlockingPool::inline().run(|| panic!("never polled, never run")));
        let count = ran.clone();
        pool.run(move || count.fetch_add(1, Ordering::SeqCst))
            .detach();
        assert_eq!(block_on(pool.run(|| ())), Ok(()));
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }

    /// While a thread is being started no other thread is woken. If the start fails, a thread that
    /// became idle meanwhile must be woken.
    #[test]
    fn a_thread_that_cannot_start_leaves_no_job_behind() {
        let pool = BlockingPool::threads(2, 8);
        let (release, held) = mpsc::channel::<()>();
        let (begins, begun) = mpsc::channel();
        let busy = pool.run(move || begins.send(()).is_ok() && held.recv().is_ok());
        // While the first thread is starting, it would be the one that starts the second.
        begun.recv().unwrap();
        let thread_pool = pool.threads.as_ref().unwrap().thread_pool().clone();
        let (starts, starting) = mpsc::channel();
        let (fail, failing) = mpsc::channel();
        *thread_pool.spawn_failure.lock().unwrap() = Some(Box::new(move || {
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
        // Without a wake-up it would sleep for the whole lifetime of an idle thread.
        assert!(runs.recv_timeout(IDLE / 2).is_ok());
        assert_eq!(starter.join().unwrap(), Ok(1));
    }

    #[test]
    fn what_is_queued_survives_the_pool() {
        let pool = BlockingPool::threads(1, 1);
        let job = pool.run(|| "done");
        drop(pool);
        assert_eq!(block_on(job), Ok("done"));
    }
}
