//! Coroutines: a plain function as a future, on its own stack.
//!
//! Polling a [`Coroutine`] continues the function. [`wait`](super::wait) within it polls another
//! future with the context of the current poll, and suspends the coroutine while that future is
//! pending. Does not depend on what the coroutine waits for.
#![allow(unsafe_code)]

use super::contract::Contract;
use super::frame::{Frame, Resume};
use super::overflow::{self, Bounds};
use super::scope::{self, Scope};
use super::stack::Stack;
use super::thread_stacks::with_stacks;
use corosensei::{CoroutineResult, Yielder};
use onrush_rt::user::call;
use std::any::{Any, type_name};
use std::borrow::Cow;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

type Payload = Box<dyn Any + Send>;

type Switch<T> = corosensei::Coroutine<Resume, (), Result<T, Payload>, Stack>;

/// Closures larger than this are boxed before they are put on the stack, in bytes.
const INLINE_BYTES_MAX: usize = 512;
/// How often a stack that is being unwound may catch that and continue.
const REFUSALS_MAX: u32 = 1_000;

/// A plain function on its own stack, as a future: see the [module](super).
///
/// It takes its stack when it is created and returns it when it has ended. It never moves between
/// threads. Dropping it unwinds the stack, so that everything on it is dropped.
///
/// It belongs to the [`scope`](scope::scope()) that is active when it is created. After that scope
/// has ended, polling the coroutine panics. Dropping it then leaks the stack with everything on it,
/// if the function has begun to run.
pub struct Coroutine<T: 'static> {
    /// `None` when it has ended.
    switch: Option<Switch<T>>,
    scope: Scope,
    stack: Bounds,
    /// The stack refers to it.
    name: Cow<'static, str>,
}

impl<T: 'static> Coroutine<T> {
    /// A coroutine that will run `f`, which fulfils `contract`. If its stack overflows, the message
    /// names the type of `f`.
    ///
    /// # Panics
    /// Outside a [`scope`](scope::scope()), and when no stack can be mapped; see
    /// [`Coroutine::try_named`].
    #[inline]
    pub fn new<F: FnOnce() -> T + 'static>(contract: Contract, f: F) -> Coroutine<T> {
        Coroutine::named(contract, type_name::<F>(), f)
    }

    /// [`Coroutine::new`] with a name.
    ///
    /// # Panics
    /// As [`Coroutine::new`].
    #[inline]
    pub fn named<F>(contract: Contract, name: impl Into<Cow<'static, str>>, f: F) -> Coroutine<T>
    where
        F: FnOnce() -> T + 'static,
    {
        match Coroutine::try_named(contract, name, f) {
            Ok(coroutine) => coroutine,
            Err(error) => panic!("no coroutine for {}: {error}", type_name::<F>()),
        }
    }

    /// [`Coroutine::named`], with errors: when no stack can be mapped (`mmap(2)`: `ENOMEM`), and
    /// `Unsupported` outside a [`scope`](scope::scope()) and in a program that aborts on panics.
    #[inline]
    pub fn try_named<F>(
        _contract: Contract,
        name: impl Into<Cow<'static, str>>,
        f: F,
    ) -> io::Result<Coroutine<T>>
    where
        F: FnOnce() -> T + 'static,
    {
        if cfg!(panic = "abort") {
            let why = "coroutines need panic = \"unwind\": they are unwound when they are dropped";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let Some(scope) = Scope::active() else {
            let why = "no coroutine scope is active here (`coroutine::scope`)";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        };
        let name = name.into(); // User code, which may use the stacks.
        let stack = with_stacks(|stacks| stacks.pool().take())?;
        let bounds = Frame::begin(&stack, &name);
        let is_small = size_of::<F>() <= INLINE_BYTES_MAX && align_of::<F>() <= 16;
        let switch = match is_small {
            true => switch(stack, f),
            false => switch(stack, Box::new(f)),
        };
        Ok(Coroutine {
            switch: Some(switch),
            scope,
            stack: bounds,
            name,
        })
    }

    /// Whether the function has returned or panicked; the stack has been returned then.
    pub fn is_over(&self) -> bool {
        self.switch.is_none()
    }
}

fn switch<T: 'static, F: FnOnce() -> T + 'static>(stack: Stack, f: F) -> Switch<T> {
    let mut body = Body(Some(f));
    let entry = move |yielder: &Yielder<Resume, ()>, context: Resume| -> Result<T, Payload> {
        // SAFETY: this runs on a stack whose frame was written when the stack was taken.
        let frame = unsafe { Frame::of(overflow::running()) };
        frame.enter(yielder, context);
        let result = catch_unwind(AssertUnwindSafe(|| body.run()));
        if frame.is_unwinding() {
            // The result is not wanted, and a panic of its destructor would be one of
            // `Coroutine`'s.
            call(|| drop(result));
            frame.leave();
            return Err(Box::new(()));
        }
        frame.leave();
        result
    };
    corosensei::Coroutine::with_stack(stack, entry)
}

/// The function to run. Its destructor may panic if it was not run.
struct Body<F>(Option<F>);

impl<F> Body<F> {
    #[inline]
    fn run<T>(&mut self) -> T
    where
        F: FnOnce() -> T,
    {
        let f = self.0.take().expect("run once");
        f()
    }
}

impl<F> Drop for Body<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            call(|| drop(f));
        }
    }
}

impl<T: 'static> Future for Coroutine<T> {
    type Output = T;

    /// # Panics
    /// When it was ready before, and when the scope in which it was made has ended.
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        if !this.scope.is_active() {
            out_of_scope();
        }
        let running = this
            .switch
            .as_mut()
            .expect("a Coroutine is not polled when it is over");
        let context = NonNull::from(cx).cast();
        match overflow::watched(this.stack, || running.resume(context)) {
            CoroutineResult::Yield(()) => Poll::Pending,
            CoroutineResult::Return(result) => {
                this.switch = None; // Its stack is free for reuse.
                Poll::Ready(result.unwrap_or_else(|payload| resume_unwind(payload)))
            }
        }
    }
}

#[cold]
fn out_of_scope() -> ! {
    panic!("a coroutine is polled after the scope in which it was made has ended");
}

impl<T: 'static> Drop for Coroutine<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(switch) = self.switch.take() {
            self.unwind(switch);
        }
    }
}

impl<T: 'static> Coroutine<T> {
    #[cold]
    fn unwind(&mut self, switch: Switch<T>) {
        // A running coroutine has no stack pointer. It can be dropped if it is in a thread-local
        // and calls `exit(3)`, which destroys those. Otherwise `resume` would have panicked.
        let is_running = switch.done();
        let is_orphan = || !self.scope.is_active() || scope::is_exiting();
        if is_running || (switch.started() && is_orphan()) {
            // Thread-locals that the stack refers to may be gone. The stack is not touched any
            // more: it is neither unwound nor reused nor unmapped.
            std::mem::forget(std::mem::take(&mut self.name));
            return std::mem::forget(switch);
        }
        if !switch.started() {
            return overflow::watched(self.stack, || drop(switch));
        }
        self.unwind_started(switch);
    }
}

impl<T: 'static> Coroutine<T> {
    /// Resumes a coroutine to unwind it, repeatedly if it catches that and waits again. If it never
    /// ends, it stays suspended and is leaked.
    fn unwind_started(&mut self, mut switch: Switch<T>) {
        // SAFETY: the frame is at the beginning of this coroutine's stack, which is suspended.
        unsafe { Frame::of(self.stack) }.unwind();
        for _ in 0..REFUSALS_MAX {
            let nothing = Resume::dangling();
            match overflow::watched(self.stack, || switch.resume(nothing)) {
                CoroutineResult::Yield(()) => {}
                CoroutineResult::Return(result) => {
                    call(|| drop(result));
                    return;
                }
            }
        }
        eprintln!("a coroutine was dropped and catches every unwinding: its stack is leaked");
        std::mem::forget(std::mem::take(&mut self.name));
        std::mem::forget(switch);
    }
}

impl<T: 'static> std::fmt::Debug for Coroutine<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Coroutine({})", self.name)
    }
}
