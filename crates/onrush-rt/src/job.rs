//! A job of a thread pool: a closure that becomes a result, in one allocation shared by the pool
//! and the future of the result.
//!
//! User code cannot harm the thread that runs it: panics are caught here, including those of
//! destructors. Does not depend on pools, their queues or threads.

use crate::user::discard;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Tells a running job whether its result is still wanted.
#[derive(Debug, Default)]
pub struct CancellationToken(AtomicBool);

impl CancellationToken {
    /// Whether the future of this job's result was dropped. Once `true`, it stays `true`. It costs
    /// one load, so a job may call it often.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A queue's view of a cell; `E` is the error of a job without a result.
pub(crate) trait RunJob<E>: Send + Sync {
    /// Runs the job, if it has not started, and wakes the waiting task.
    fn run(&self) -> JobOutcome;
    /// Drops the job, if it has not started, and wakes the waiting task.
    fn refuse(&self, error: E);
}

/// How [`RunJob::run`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobOutcome {
    /// The job had been taken, refused or cancelled.
    NotRun,
    Completed,
    Panicked,
}

/// The waiting future's view of a cell.
pub(crate) trait JobResult<T, E>: RunJob<E> {
    /// Takes the result, or registers `waker` to be woken when there is one.
    fn poll(&self, waker: &Waker) -> Poll<Result<T, E>>;
    /// Withdraws interest in the result: cancels the token, and drops the job or its result.
    /// Returns whether there was no result yet.
    fn cancel(&self) -> bool;
}

/// A closure and later its result.
pub(crate) struct JobCell<T, E, F> {
    state: Mutex<JobState<T, E, F>>,
    token: CancellationToken,
    /// The error that reports a panic.
    panicked: E,
}

enum JobState<T, E, F> {
    Queued(F, Option<Waker>),
    Running(Option<Waker>),
    Done(Result<T, E>),
    /// The result was taken, or is not wanted.
    Taken,
}

impl<T, E, F> JobCell<T, E, F> {
    pub(crate) fn new(job: F, panicked: E) -> JobCell<T, E, F> {
        JobCell {
            state: Mutex::new(JobState::Queued(job, None)),
            token: CancellationToken::default(),
            panicked,
        }
    }

    /// The only user code under this lock is a waker's clone, so a poisoned lock's state is intact.
    fn lock(&self) -> MutexGuard<'_, JobState<T, E, F>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job that has not started; the state becomes `next` of its waker.
    fn begin(&self, next: impl FnOnce(Option<Waker>) -> JobState<T, E, F>) -> Option<F> {
        let mut state = self.lock();
        match mem::replace(&mut *state, JobState::Taken) {
            JobState::Queued(job, waker) => {
                *state = next(waker);
                Some(job)
            }
            other => {
                *state = other;
                None
            }
        }
    }

    fn finish(&self, result: Result<T, E>) {
        let mut state = self.lock();
        let (waker, unwanted) = match mem::replace(&mut *state, JobState::Taken) {
            JobState::Running(waker) => {
                *state = JobState::Done(result);
                (waker, None)
            }
            _ => (None, Some(result)),
        };
        drop(state);
        discard(unwanted); // Not under the lock: its destructor may do anything.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T, E, F> RunJob<E> for JobCell<T, E, F>
where
    T: Send,
    E: Copy + Send + Sync,
    F: FnOnce(&CancellationToken) -> T + Send,
{
    fn run(&self) -> JobOutcome {
        let Some(job) = self.begin(JobState::Running) else {
            return JobOutcome::NotRun;
        };
        // The closure is consumed and its result dropped, so no half-changed state is visible.
        let result = catch_unwind(AssertUnwindSafe(|| job(&self.token)));
        let (result, ran) = match result {
            Ok(result) => (Ok(result), JobOutcome::Completed),
            Err(payload) => {
                discard(payload);
                (Err(self.panicked), JobOutcome::Panicked)
            }
        };
        self.finish(result);
        ran
    }

    fn refuse(&self, error: E) {
        if let Some(job) = self.begin(JobState::Running) {
            discard(job);
            self.finish(Err(error));
        }
    }
}

impl<T, E, F> JobResult<T, E> for JobCell<T, E, F>
where
    T: Send,
    E: Copy + Send + Sync,
    F: FnOnce(&CancellationToken) -> T + Send,
{
    fn poll(&self, waker: &Waker) -> Poll<Result<T, E>> {
        let mut state = self.lock();
        match &mut *state {
            JobState::Queued(_, slot) | JobState::Running(slot) => {
                let before = match slot {
                    Some(old) if old.will_wake(waker) => None,
                    _ => slot.replace(waker.clone()),
                };
                drop(state);
                drop(before); // Not under the lock: dropping the last waker drops its task.
                Poll::Pending
            }
            JobState::Done(_) => match mem::replace(&mut *state, JobState::Taken) {
                JobState::Done(result) => Poll::Ready(result),
                _ => Poll::Pending,
            },
            JobState::Taken => panic!("a Job was polled after it was ready"),
        }
    }

    fn cancel(&self) -> bool {
        self.token.0.store(true, Ordering::Relaxed);
        let before = mem::replace(&mut *self.lock(), JobState::Taken);
        // Outside the lock: the destructor of a closure or of a result may do anything.
        let is_unfinished = matches!(before, JobState::Queued(..) | JobState::Running(_));
        discard(before); // A panic often drops a future: a second one would abort.
        is_unfinished
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// Panics when dropped, with a payload that does the same `0` times more.
    struct Bomb(usize);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::panic::panic_any(Bomb(self.0 - 1));
            }
        }
    }

    struct Count(AtomicUsize);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn cell<T: Send>(
        job: impl FnOnce(&CancellationToken) -> T + Send,
    ) -> impl JobResult<T, &'static str> {
        JobCell::new(job, "panicked")
    }

    #[test]
    fn panic_payload_is_reported() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let job = cell(|_| std::panic::panic_any(Bomb(3)));
        assert!(job.poll(&waker).is_pending());
        assert_eq!(job.run(), JobOutcome::Panicked);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(matches!(
            job.poll(&waker),
            Poll::Ready(Err::<(), _>("panicked"))
        ));
    }

    #[test]
    fn refused_job_reports_and_never_runs() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let bomb = Bomb(1);
        let job = cell(move |_| drop(bomb));
        assert!(job.poll(&waker).is_pending());
        job.refuse("late");
        job.refuse("later");
        assert_eq!(
            (job.run(), count.0.load(Ordering::SeqCst)),
            (JobOutcome::NotRun, 1)
        );
        assert!(matches!(job.poll(&waker), Poll::Ready(Err("late"))));
        assert!(!job.cancel());
    }

    /// A job that can cancel itself while it runs.
    fn own_end<T: Send + 'static>(result: impl FnOnce() -> T + Send + 'static) -> Arc<Own<T>> {
        let own = Arc::<Own<T>>::default();
        let to_cancel = own.clone();
        let at_work = cell(move |token: &CancellationToken| {
            assert!(!token.is_cancelled());
            assert!(to_cancel.get().unwrap().cancel());
            assert!(token.is_cancelled());
            result()
        });
        assert!(own.set(Box::new(at_work)).is_ok());
        own
    }

    type Own<T> = std::sync::OnceLock<Box<dyn JobResult<T, &'static str>>>;

    #[test]
    fn cancelled_at_work_sees_its_token() {
        let job = own_end(|| true);
        assert_eq!(job.get().unwrap().run(), JobOutcome::Completed);
        assert!(!job.get().unwrap().cancel(), "it is over");
    }

    #[test]
    fn unwanted_output_may_panic_when_dropped() {
        let job = own_end(|| Bomb(2));
        assert_eq!(job.get().unwrap().run(), JobOutcome::Completed);
    }
}
