//! What stands for `std::thread`: starting coroutines, sleeping, letting others run.
//!
//! All of them run on the worker they were started on. Must not know sockets and files.

use super::switch::{Coroutine, Unwinding, is_unwinding, try_wait};
use crate::executor::{FallibleTask, Task};
use crate::worker::WorkerContext;
use std::any::{Any, type_name};
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

pub use std::thread::Result;

/// The worker that the caller runs on.
///
/// # Panics
/// When it runs on none.
#[track_caller]
pub(super) fn context() -> WorkerContext {
    WorkerContext::current().expect("coroutines live on workers, and this thread is turning none")
}

/// Starts a coroutine on this worker, as `std::thread::spawn` starts a thread: it first runs when
/// the present one waits. What it shares with others need not be `Send`.
///
/// # Panics
/// When no worker is being turned by this thread, outside a [`scope`](super::scope()), and when
/// there is no memory for a stack.
#[track_caller]
pub fn spawn<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + 'static,
    T: 'static,
{
    Builder::new().spawn(f).expect("a coroutine can be started")
}

/// What `std::thread::Builder` is, as far as coroutines have it.
#[derive(Debug, Default)]
#[must_use = "it starts nothing by itself"]
pub struct Builder {
    name: Option<String>,
}

impl Builder {
    /// For a coroutine named by the type of its function.
    pub fn new() -> Builder {
        Builder::default()
    }

    /// The name that is told when the stack overflows.
    pub fn name(mut self, name: String) -> Builder {
        self.name = Some(name);
        self
    }

    /// Has no effect: the stacks of a worker have one size, so that they can be used again. See
    /// [`Config::stack_bytes`](super::Config::stack_bytes).
    pub fn stack_size(self, _: usize) -> Builder {
        self
    }

    /// Starts the coroutine, see [`spawn`]; fails as
    /// [`Coroutine::try_named`](super::Coroutine::try_named) does.
    ///
    /// # Panics
    /// When no worker is being turned by this thread.
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
        let context = context();
        let wanted = Rc::new(Cell::new(true));
        let still_wanted = wanted.clone();
        let body = move || {
            let result = catch_unwind(AssertUnwindSafe(f));
            if still_wanted.get() {
                return Some(result);
            }
            // Here, where its destructor may wait: the executor has no stack for that. What it
            // panics with was reported by the hook, and may panic itself when it is dropped.
            let dropped = catch_unwind(AssertUnwindSafe(|| drop(result)));
            dropped.unwrap_or_else(std::mem::forget);
            None
        };
        let task: Task<Option<Result<T>>> = context.spawn(Coroutine::try_named(name, body)?);
        Ok(JoinHandle {
            task: Some(task.fallible()),
            wanted,
        })
    }
}

/// A coroutine that was started. Dropping this leaves it running; it drops its result itself then,
/// before it ends.
pub struct JoinHandle<T> {
    /// `None` only while it is joined or dropped.
    task: Option<FallibleTask<Option<Result<T>>>>,
    /// Somebody may ask for the result.
    wanted: Rc<Cell<bool>>,
}

impl<T> JoinHandle<T> {
    /// Waits for its end and gives its result; an error when it panicked, or was ended together
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

    /// Whether it has ended.
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

/// Waits, never shorter than `duration` and up to a millisecond longer. In a destructor, while the
/// stack is unwound, not at all.
///
/// # Panics
/// Outside a coroutine.
#[track_caller]
pub fn sleep(duration: Duration) {
    let (Ok(()) | Err(Unwinding)) = match is_unwinding() {
        false => try_wait(context().sleep(duration)),
        true => try_wait(std::future::pending()), // Tells at once, and is counted.
    };
}

/// Lets the other tasks and connections of this worker have a turn.
///
/// # Panics
/// Outside a coroutine.
#[track_caller]
pub fn yield_now() {
    let mut yielded = false;
    let others = poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    });
    let (Ok(()) | Err(Unwinding)) = try_wait(others);
}
