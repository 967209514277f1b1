//! Coroutines: a plain function as a future, on its own stack, and the function to wait in it.
//!
//! Polling a [`Coroutine`] continues the function. [`wait`] within it polls another future with the
//! context of the current poll, and suspends the coroutine while that future is pending. Does not
//! depend on what the coroutine waits for.
#![allow(unsafe_code)]

use super::overflow::{self, Bounds, Label};
use super::scope::{self, Scope};
use super::stack::{RESERVED_BYTES, Stack, StackCounters, StackOptions, StackPool};
use crate::coop;
use crate::user::call;
use corosensei::{CoroutineResult, Yielder};
use std::any::{Any, type_name};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::ptr::{NonNull, null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread::panicking;

type Payload = Box<dyn Any + Send>;

/// The value that resumes a coroutine: the context of the current poll.
type Resume = NonNull<Context<'static>>;

type Switch<T> = corosensei::Coroutine<Resume, (), Result<T, Payload>, Stack>;

/// Closures larger than this are boxed before they are put on the stack, in bytes.
const INLINE_BYTES_MAX: usize = 512;
/// How often a stack that is being unwound may catch that and continue.
const REFUSALS_MAX: u32 = 1_000;

/// The payload that unwinds a dropped coroutine. No hook sees it.
struct Unwound;

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
    /// A coroutine that will run `f`. If its stack overflows, the message names the type of `f`.
    ///
    /// # Panics
    /// Outside a [`scope`](scope::scope()), and when no stack can be mapped; see
    /// [`Coroutine::try_named`].
    #[inline]
    pub fn new<F: FnOnce() -> T + 'static>(f: F) -> Coroutine<T> {
        Coroutine::named(type_name::<F>(), f)
    }

    /// [`Coroutine::new`] with a name.
    ///
    /// # Panics
    /// As [`Coroutine::new`].
    #[inline]
    pub fn named<F>(name: impl Into<Cow<'static, str>>, f: F) -> Coroutine<T>
    where
        F: FnOnce() -> T + 'static,
    {
        match Coroutine::try_named(name, f) {
            Ok(coroutine) => coroutine,
            Err(error) => panic!("no coroutine for {}: {error}", type_name::<F>()),
        }
    }

    /// [`Coroutine::named`], with errors: when no stack can be mapped (`mmap(2)`: `ENOMEM`), and
    /// `Unsupported` outside a [`scope`](scope::scope()) and in a program that aborts on panics.
    #[inline]
    pub fn try_named<F>(name: impl Into<Cow<'static, str>>, f: F) -> io::Result<Coroutine<T>>
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
        let bounds = Bounds {
            lowest: stack.base() - stack.bytes(),
            top: stack.base(),
        };
        Frame::begin(bounds, &name);
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
        frame.yielder.set(yielder);
        frame.context.set(context.as_ptr());
        frame.panicking.set(panicking());
        frame.may_wait.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| body.run()));
        if frame.unwinding.get() {
            // The result is not wanted, and a panic of its destructor would be one of
            // `Coroutine`'s.
            call(|| drop(result));
            frame.may_wait.set(false);
            return Err(Box::new(()));
        }
        frame.may_wait.set(false);
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
        unsafe { Frame::of(self.stack) }.unwinding.set(true);
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

/// Data at the beginning of a coroutine's stack, above everything that runs on it.
///
/// Only code that runs on the stack uses it, and finds it by the stack's address. No pointer to it
/// is kept elsewhere, because foreign coroutines could make such a pointer outlive it, even in a
/// guard, by dropping guards out of order.
#[repr(C)]
struct Frame {
    /// For the overflow handler.
    label: Label,
    /// Just below, on the same stack. Null before the coroutine has begun.
    yielder: Cell<*const Yielder<Resume, ()>>,
    /// The context of the current poll; null when there is none, while the stack is unwound.
    context: Cell<*mut Context<'static>>,
    /// Whether the coroutine's own code runs: from its beginning to its end, except while it polls
    /// a future that it waits for. Such a future must not suspend it.
    may_wait: Cell<bool>,
    /// The coroutine is being dropped.
    unwinding: Cell<bool>,
    /// The thread was already panicking when the coroutine was resumed.
    panicking: Cell<bool>,
}

const _: () = assert!(size_of::<Frame>() <= RESERVED_BYTES && align_of::<Frame>() <= 16);

/// While this lives, the coroutine may not wait.
struct NoSuspend<'f>(&'f Frame);

impl NoSuspend<'_> {
    #[inline]
    fn new(frame: &Frame) -> NoSuspend<'_> {
        frame.may_wait.set(false);
        NoSuspend(frame)
    }
}

impl Drop for NoSuspend<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.may_wait.set(true);
    }
}

/// The state of a coroutine that is about to wait.
enum WaitState {
    /// It may be suspended.
    Running,
    /// A destructor waits while the stack is unwound. A suspension would abandon the unwinding.
    InDestructors,
    /// The coroutine caught its unwinding and continues.
    Refusing,
}

impl Frame {
    /// Writes a frame at the beginning of a stack that was just taken. `name` must live as long as
    /// the coroutine may run.
    #[inline]
    fn begin(stack: Bounds, name: &str) {
        let frame = Frame {
            label: Label {
                name: name.as_ptr(),
                name_bytes: name.len(),
            },
            yielder: Cell::new(null()),
            context: Cell::new(null_mut()),
            may_wait: Cell::new(false),
            unwinding: Cell::new(false),
            panicking: Cell::new(false),
        };
        // SAFETY: the highest bytes of a mapped stack, which are reserved for this; only the caller
        // has the stack.
        unsafe { with_exposed_provenance_mut::<Frame>(stack.label()).write(frame) };
    }

    /// The frame at the beginning of a stack.
    ///
    /// # Safety
    /// The caller runs on that stack, and uses the frame only there.
    #[inline]
    unsafe fn of<'f>(stack: Bounds) -> &'f Frame {
        // SAFETY: the stack is in use, so it is mapped, and has a frame since it was taken.
        unsafe { &*with_exposed_provenance::<Frame>(stack.label()) }
    }

    /// The frame of the coroutine whose own code calls this.
    #[inline]
    fn current<'f>() -> Option<&'f Frame> {
        let stack = overflow::running();
        // The caller may run on another stack, for example that of a foreign coroutine.
        if !stack.contains(scope::address()) {
            return None;
        }
        // SAFETY: the caller runs on that stack, as just checked, and only the caller uses the
        // frame, on that stack.
        let frame = unsafe { Frame::of(stack) };
        frame.may_wait.get().then_some(frame)
    }

    #[inline]
    fn wait_state(&self) -> WaitState {
        let unwinding = self.unwinding.get();
        if !panicking() {
            return if unwinding {
                WaitState::Refusing
            } else {
                WaitState::Running
            };
        }
        match unwinding || !self.panicking.get() {
            true => WaitState::InDestructors,
            false => WaitState::Running,
        }
    }

    /// Polls with the context of the current poll.
    #[inline]
    fn poll<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        let _busy = NoSuspend::new(self);
        // SAFETY: the context lives until `Coroutine::poll` returns, and that has not returned,
        // since the coroutine runs. It is unique: nobody else has this pointer, and this is not
        // re-entered, because the coroutine may not wait until the future's poll has returned.
        let context = unsafe { &mut *self.context.get() };
        future.poll(context)
    }

    /// Suspends the coroutine until it is polled again. Unwinds when the coroutine is dropped.
    #[inline]
    fn suspend(&self) {
        self.context.set(null_mut());
        // SAFETY: the yielder is at the beginning of the stack that this runs on, and was set
        // before any code of the coroutine ran.
        let context = unsafe { &*self.yielder.get() }.suspend(());
        self.panicking.set(panicking());
        if self.unwinding.get() {
            resume_unwind(Box::new(Unwound)); // This is not a poll: there is no context.
        }
        self.context.set(context.as_ptr());
    }
}

/// A destructor tried to wait while its coroutine's stack is unwound, which is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwinding;

impl std::fmt::Display for Unwinding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the coroutine is being unwound")
    }
}

impl std::error::Error for Unwinding {}

impl From<Unwinding> for io::Error {
    fn from(unwinding: Unwinding) -> io::Error {
        io::Error::other(unwinding)
    }
}

/// Waits for `future` in blocking style: polls it with the context of the current poll of this
/// coroutine, and suspends the coroutine while it is pending. `future` is dropped in place when the
/// coroutine is dropped.
///
/// While the stack is unwound, by a panic or because the coroutine was dropped, destructors may
/// call this. They cannot be suspended: `future` is polled once and must be ready then.
///
/// ```
/// use onrush_rt::coroutine::{self, Coroutine};
/// # use std::{pin::pin, task::{Context, Poll, Waker}, future::Future};
/// coroutine::scope(|| {
///     let coroutine = Coroutine::new(|| coroutine::wait(async { 6 * 7 }));
///     # let mut cx = Context::from_waker(Waker::noop());
///     assert_eq!(pin!(coroutine).poll(&mut cx), Poll::Ready(42));
/// });
/// ```
///
/// # Panics
/// Outside a coroutine, and in a future that a coroutine waits for: that must be `async`, and
/// await. Also in a destructor during unwinding if `future` is not ready: that ends the process.
#[track_caller]
pub fn wait<F: Future>(future: F) -> F::Output {
    match try_wait(future) {
        Ok(output) => output,
        Err(Unwinding) => panic!("a destructor waits while its coroutine's stack is unwound"),
    }
}

/// [`wait`], with an error if a destructor calls it during unwinding and `future` is not ready. For
/// callers that can return an error.
///
/// # Panics
/// Outside a coroutine, and in a future that a coroutine waits for.
#[track_caller]
pub fn try_wait<F: Future>(future: F) -> Result<F::Output, Unwinding> {
    let Some(frame) = Frame::current() else {
        outside()
    };
    let mut future = pin!(future);
    loop {
        match frame.wait_state() {
            WaitState::Running if coop::is_exhausted() => {
                // The future may be ready each time without spending budget.
                let _ = frame.poll(pin!(poll_fn(coop::poll_proceed)));
            }
            WaitState::Running => {
                coop::spend(0);
                if let Poll::Ready(output) = frame.poll(future.as_mut()) {
                    return Ok(output);
                }
            }
            WaitState::InDestructors => {
                let _busy = NoSuspend::new(frame);
                let _unbounded = coop::unbounded(); // A ready future must not be refused.
                let cx = &mut Context::from_waker(Waker::noop());
                return match future.as_mut().poll(cx) {
                    Poll::Ready(output) => Ok(output),
                    Poll::Pending => Err(Unwinding),
                };
            }
            WaitState::Refusing => {} // Unwinds once more.
        }
        frame.suspend();
    }
}

#[cold]
#[track_caller]
fn outside() -> ! {
    if overflow::is_watching() {
        panic!("a future that a coroutine waits for must not wait as if it blocked: await instead");
    }
    panic!("only a coroutine can wait as if it blocked: this is not one");
}

/// Spends an operation that needs no wait, on a channel or a lock. A coroutine that has used up its
/// budget lets others run first. Does nothing outside a coroutine, and in destructors.
#[inline]
#[track_caller]
pub(super) fn spend_operation() {
    if coop::is_exhausted() && is_inside() && !is_unwinding() {
        let (Ok(()) | Err(Unwinding)) = try_wait(poll_fn(coop::poll_proceed));
    }
    coop::spend(0);
}

/// Whether the caller is a coroutine, and so may [`wait`].
pub fn is_inside() -> bool {
    Frame::current().is_some()
}

/// Whether the caller is a destructor that runs while its coroutine's stack is unwound.
pub fn is_unwinding() -> bool {
    Frame::current().is_some_and(|frame| matches!(frame.wait_state(), WaitState::InDestructors))
}

/// The stacks of a thread and their options. The pool is created with the first coroutine.
#[derive(Default)]
struct Stacks {
    options: StackOptions,
    counters: Arc<StackCounters>,
    pool: Option<StackPool>,
}

/// The stacks of a thread, while its thread-locals live.
#[derive(Default)]
struct ThreadStacks(RefCell<Stacks>);

thread_local! {
    static STACKS: ThreadStacks = ThreadStacks::default();
}

/// Thread-locals are destroyed while a scope is active if code within it calls `exit(3)`. No
/// coroutine runs after that.
impl Drop for ThreadStacks {
    fn drop(&mut self) {
        scope::end();
    }
}

impl Stacks {
    #[inline]
    fn pool(&mut self) -> &StackPool {
        self.pool.get_or_insert_with(|| {
            overflow::prepare();
            StackPool::new(&self.options, self.counters.clone())
        })
    }
}

/// Runs `act` with this thread's stacks or, when the thread is ending, with new ones.
#[inline]
fn with_stacks<R>(act: fn(&mut Stacks) -> R) -> R {
    let done = STACKS.try_with(|stacks| act(&mut stacks.0.borrow_mut()));
    done.unwrap_or_else(|_| act(&mut Stacks::default()))
}

/// Sets the options of this thread's coroutines; existing coroutines keep their stacks. Each thread
/// that polls a worker calls this.
pub fn configure(options: &StackOptions) {
    let before = STACKS.try_with(|stacks| {
        let mut stacks = stacks.0.borrow_mut();
        stacks.options = options.clone();
        stacks.pool.take()
    });
    drop(before);
}

/// Counters of this thread's stacks. Every thread may read them.
pub fn counters() -> Arc<StackCounters> {
    with_stacks(|stacks| stacks.counters.clone())
}

/// The memory of all stacks of this thread, including unused ones, in bytes: one `mincore(2)` for
/// each. Stacks from before the last [`configure`] are not counted.
pub fn touched_bytes() -> usize {
    with_stacks(|stacks| stacks.pool().touched_bytes())
}
