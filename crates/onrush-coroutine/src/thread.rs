//! The counterpart of `std::thread`: starting coroutines, sleeping and yielding.
//!
//! A coroutine stays on the worker that it was started on.

use super::frame::Frame;
use super::suspend::{Unwinding, is_unwinding, try_wait};
use super::switch::Coroutine;
use onrush_rt::coop;
use onrush_rt::executor::{FallibleTask, Task};
use onrush_rt::worker::WorkerContext;
use std::any::{Any, type_name};
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

pub use std::thread::Result;

/// The worker that the caller runs on.
///
/// # Panics
/// When it runs on none.
#[track_caller]
pub(super) fn context() -> WorkerContext {
    WorkerContext::current().expect("a coroutine needs a worker, and this thread polls none")
}

/// Starts a coroutine on this worker, as `std::thread::spawn` starts a thread. It first runs when
/// the current one waits. What it shares with others need not be `Send`.
///
/// The [`Contract`](super::Contract) of the calling coroutine covers the new one, too. Elsewhere
/// [`Coroutine::new`](super::Coroutine::new) creates a coroutine.
///
/// # Examples
/// ```
/// use onrush_coroutine::{self as coroutine, Config, Contract, thread};
/// use std::time::Duration;
///
/// let program = || {
///     let other = thread::spawn(|| {
///         thread::sleep(Duration::from_millis(1)); // The worker continues meanwhile.
///         6 * 7
///     });
///     assert_eq!(other.join().unwrap(), 42);
///     Ok(())
/// };
/// // SAFETY: the program uses no thread-local, and no scope.
/// let contract = unsafe { Contract::accept() };
/// coroutine::run(contract, Config::default(), program)?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Outside a coroutine, when this thread polls no worker, outside a [`scope`](super::scope()), and
/// when there is no memory for a stack.
#[track_caller]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + 'static,
    T: 'static,
{
    Builder::new().spawn(f).expect("a coroutine can be started")
}

/// The counterpart of `std::thread::Builder`.
#[derive(Debug, Default)]
#[must_use = "it starts nothing by itself"]
pub struct Builder {
    name: Option<String>,
}

impl Builder {
    /// A builder for a coroutine named by the type of its function.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Sets the name that the message of a stack overflow contains.
    pub fn name(mut self, name: String) -> Builder {
        self.name = Some(name);
        self
    }

    /// Has no effect: the stacks of a worker have one size, so that they can be reused. See
    /// [`Config::stack_bytes`](super::Config::stack_bytes).
    pub fn stack_size(self, _: usize) -> Builder {
        self
    }

    /// Starts the coroutine, like [`spawn`]; fails like
    /// [`Coroutine::try_named`](super::Coroutine::try_named).
    ///
    /// # Panics
    /// Outside a coroutine, and when this thread polls no worker.
    #[track_caller]
    pub fn spawn<F, T>(self, f: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + 'static,
        T: 'static,
    {
        let name: Cow<'static, str> = match self.name {
            Some(name) => name.into(),
            None => type_name::<F>().into(),
        };
        let Some(contract) = Frame::contract() else {
            outside();
        };
        let context = context();
        let wanted = Rc::new(Cell::new(true));
        let still_wanted = wanted.clone();
        let body = move || {
            let result = catch_unwind(AssertUnwindSafe(f));
            if still_wanted.get() {
                return Some(result);
            }
            // Drop the result here, where its destructor may wait: the executor has no stack for
            // that. The panic hook has reported its panic, whose payload may panic itself when it
            // is dropped.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(result)));
            dropped.unwrap_or_else(std::mem::forget);
            None
        };
        let task: Task<Option<Result<T>>> =
            context.spawn(Coroutine::try_named(contract, name, body)?);
        Ok(JoinHandle {
            task: Some(task.fallible()),
            wanted,
        })
    }
}

#[cold]
#[track_caller]
fn outside() -> ! {
    panic!(
        "only a coroutine can start another one with `thread::spawn`: elsewhere, \
         `Coroutine::new` creates one, with a `Contract`"
    );
}

/// A handle to a started coroutine. Dropping it lets the coroutine run on; the coroutine then drops
/// its result itself, before it ends.
pub struct JoinHandle<T> {
    /// `None` only while it is joined or dropped.
    task: Option<FallibleTask<Option<Result<T>>>>,
    /// Whether the result is still wanted.
    wanted: Rc<Cell<bool>>,
}

impl<T> JoinHandle<T> {
    /// Waits for the end of the coroutine and returns its result; an error if it panicked, or ended
    /// with the worker.
    ///
    /// # Panics
    /// Outside a coroutine.
    #[track_caller]
    pub fn join(mut self) -> Result<T> {
        let task = self.task.as_mut().expect("there until joined");
        match try_wait(task) {
            Ok(Some(Some(result))) => {
                self.task = None;
                result
            }
            Ok(Some(None) | None) => Err(Box::new("the coroutine was ended")),
            Err(unwinding) => {
                let payload: Box<dyn Any + Send> = Box::new(io::Error::from(unwinding).to_string());
                Err(payload)
            }
        }
    }

    /// Whether the coroutine has ended.
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(FallibleTask::is_finished)
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.wanted.set(false);
            task.detach();
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle")
            .field("is_finished", &self.is_finished())
            .finish()
    }
}

/// Sleeps for at least `duration`, and up to a millisecond longer. In a destructor, while the stack
/// is unwound, it does not wait.
///
/// # Panics
/// Outside a coroutine.
#[track_caller]
pub fn sleep(duration: Duration) {
    let (Ok(()) | Err(Unwinding)) = match is_unwinding() {
        false => try_wait(context().sleep(duration)),
        true => try_wait(std::future::pending()), // Fails at once, and spends budget.
    };
}

/// Lets other tasks and connections of this worker run.
///
/// # Panics
/// Outside a coroutine.
#[track_caller]
pub fn yield_now() {
    let (Ok(()) | Err(Unwinding)) = try_wait(coop::yield_now());
}
