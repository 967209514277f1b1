//! Coroutines: a plain function as a future, on a stack of its own, and what it waits by.
//!
//! Polling a [`Coroutine`] goes on with the function; [`wait`] within it polls another future with
//! the context of the present poll, and gives the thread back while that is pending. Must not know
//! what is waited for.
#![allow(unsafe_code)]

use super::overflow::{self, Bounds, Label};
use super::scope::{self, Scope};
use super::stack::{RESERVED_BYTES, Stack, StackCounters, StackOptions, StackPool};
use crate::coop;
use crate::job::guarded;
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

/// What a coroutine is resumed with: the context of the poll that does it.
type Resume = NonNull<Context<'static>>;

type Switch<T> = corosensei::Coroutine<Resume, (), Result<T, Payload>, Stack>;

/// Closures larger than this are put in a box before they are put on the stack, in bytes.
const INLINE_BYTES_MAX: usize = 512;
/// How often a stack that is being unwound may go on all the same, by catching that.
const REFUSALS_MAX: u32 = 1_000;

/// What a coroutine that is dropped is unwound with. No hook sees it.
struct Unwound;

/// A plain function on a stack of its own, as a future: see the [module](super).
///
/// It takes its stack at once and gives it back when it has ended. Never moves between threads.
/// Dropping it unwinds the stack, so that everything on it is dropped.
///
/// It belongs to the [`scope`](scope::scope()) that is active when it is made. When that has ended,
/// polling it panics; dropping it leaks the stack with everything on it, if it has begun to run.
pub struct Coroutine<T: 'static> {
    /// `None` when it has ended.
    switch: Option<Switch<T>>,
    scope: Scope,
    stack: Bounds,
    /// Referred to from the stack.
    name: Cow<'static, str>,
}

impl<T: 'static> Coroutine<T> {
    /// A coroutine that will run `f`, named by the type of `f` if its stack overflows.
    ///
    /// # Panics
    /// Outside a [`scope`](scope::scope()), and when no stack can be mapped; see
    /// [`Coroutine::try_named`].
    #[inline]
    pub fn new<F: FnOnce() -> T + 'static>(f: F) -> Coroutine<T> {
        Coroutine::named(type_name::<F>(), f)
    }

    /// [`Coroutine::new`] with a name of one's own.
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

    /// [`Coroutine::named`]; fails when no stack can be mapped (`mmap(2)`: `ENOMEM`), and with
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
        let name = name.into(); // The caller's code, which may use the stacks.
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

    /// Whether the function has returned or panicked, and the stack is given back.
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
            // Nobody takes it, and a panic of its destructor would be one of `Coroutine`'s.
            guarded(|| drop(result));
            frame.may_wait.set(false);
            return Err(Box::new(()));
        }
        frame.may_wait.set(false);
        result
    };
    corosensei::Coroutine::with_stack(stack, entry)
}

/// What is to be run, whose destructor may panic when it was not.
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
            guarded(|| drop(f));
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
                this.switch = None; // Its stack is free for the next.
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
        // It has no stack pointer while it runs: it was kept in a thread-local and has called
        // `exit(3)`, which destroys those. `resume` panics otherwise, so its switch would be gone.
        let is_running = switch.done();
        let is_orphan = || !self.scope.is_active() || scope::is_exiting();
        if is_running || (switch.started() && is_orphan()) {
            // Thread-locals that the stack refers to may be gone. Nothing on it is touched any
            // more: neither is it unwound, nor is it used again or unmapped.
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
    /// Resumes a coroutine to be unwound, again and again while it catches that and waits once
    /// more. One that does not end is leaked, as it stands: it is suspended, and nobody resumes it.
    fn unwind_started(&mut self, mut switch: Switch<T>) {
        // SAFETY: the frame lies at the beginning of this coroutine's stack, which is suspended.
        unsafe { Frame::of(self.stack) }.unwinding.set(true);
        for _ in 0..REFUSALS_MAX {
            let nothing = Resume::dangling();
            match overflow::watched(self.stack, || switch.resume(nothing)) {
                CoroutineResult::Yield(()) => {}
                CoroutineResult::Return(result) => {
                    guarded(|| drop(result));
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

/// What is kept at the beginning of a coroutine's stack, above all that runs on it.
///
/// Whoever runs on the stack can reach it, and only they do. So no pointer to it is kept elsewhere,
/// which foreign coroutines could make outlive it: not even guards that they drop out of order.
#[repr(C)]
struct Frame {
    /// For the handler of overflows.
    label: Label,
    /// On the same stack, just below. Null before the coroutine has begun.
    yielder: Cell<*const Yielder<Resume, ()>>,
    /// The context of the present poll; null when there is none, while the stack is unwound.
    context: Cell<*mut Context<'static>>,
    /// The coroutine's own code runs: between its beginning and its end, and not while it polls a
    /// future that it waits for. That must not suspend it.
    may_wait: Cell<bool>,
    /// The coroutine is being dropped.
    unwinding: Cell<bool>,
    /// The thread was panicking already when the coroutine was resumed.
    panicking: Cell<bool>,
}

const _: () = assert!(size_of::<Frame>() <= RESERVED_BYTES && align_of::<Frame>() <= 16);

/// While it lives a coroutine may not wait.
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

/// In which state a coroutine comes to wait.
enum WaitState {
    /// It may be suspended.
    Running,
    /// A destructor waits while the stack is unwound, which a suspension would break off.
    InDestructors,
    /// It was to be unwound, caught that, and goes on all the same.
    Refusing,
}

impl Frame {
    /// Puts a frame at the beginning of a stack that was just taken. `name` lives for as long as
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
        // SAFETY: the highest bytes of a mapped stack, which are reserved for this, as the caller
        // alone has the stack.
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

    /// The coroutine whose own code calls this.
    #[inline]
    fn current<'f>() -> Option<&'f Frame> {
        let stack = overflow::running();
        // It may be another stack that the caller runs on: that of a foreign coroutine, say.
        if !stack.contains(scope::address()) {
            return None;
        }
        // SAFETY: the caller runs on that stack, as was just seen; and it is the caller of this who
        // uses the frame, there.
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

    /// Polls with the context of the present poll.
    #[inline]
    fn poll<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        let _busy = NoSuspend::new(self);
        // SAFETY: the context lives until `Coroutine::poll` returns, and that has not returned,
        // since the coroutine runs. It is unique: nobody else has this pointer, and this is not
        // re-entered, because the coroutine may not wait until the future's poll has returned.
        let context = unsafe { &mut *self.context.get() };
        future.poll(context)
    }

    /// Gives the thread back, until the coroutine is polled again. Unwinds when it is dropped.
    #[inline]
    fn suspend(&self) {
        self.context.set(null_mut());
        // SAFETY: the yielder lies at the beginning of the stack that this runs on, set before any
        // code of the coroutine ran.
        let context = unsafe { &*self.yielder.get() }.suspend(());
        self.panicking.set(panicking());
        if self.unwinding.get() {
            resume_unwind(Box::new(Unwound)); // There is no context: it is not a poll.
        }
        self.context.set(context.as_ptr());
    }
}

/// A destructor was to wait while its coroutine's stack is unwound: there is no waiting then.
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

/// Waits for `future` as if it blocked: polls it with the context of the present poll of this
/// coroutine, which is suspended while it is pending. `future` is dropped where it stands when the
/// coroutine is dropped.
///
/// While the stack is being unwound, by a panic or because the coroutine was dropped, destructors
/// run that may wait. They cannot be suspended: `future` is polled once, and must be ready then.
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
/// await. In a destructor, during unwinding, when `future` is not ready: that ends the process.
#[track_caller]
pub fn wait<F: Future>(future: F) -> F::Output {
    match try_wait(future) {
        Ok(output) => output,
        Err(Unwinding) => panic!("a destructor waits while its coroutine's stack is unwound"),
    }
}

/// [`wait`], with an error where `future` cannot be waited for, because a destructor calls this
/// while the stack is unwound. For those that have an error to give.
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
                // The future may be ready each time, and count nothing.
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
                let _unbounded = coop::unbounded(); // What is ready must not be refused.
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

/// Counts an operation that needs no wait: on a channel, on a lock. A coroutine that has used up
/// its budget lets others run first. Does nothing outside a coroutine, and in destructors.
#[inline]
#[track_caller]
pub(super) fn spend_operation() {
    if coop::is_exhausted() && is_inside() && !is_unwinding() {
        let (Ok(()) | Err(Unwinding)) = try_wait(poll_fn(coop::poll_proceed));
    }
    coop::spend(0);
}

/// Whether the caller is a coroutine, which may [`wait`].
pub fn is_inside() -> bool {
    Frame::current().is_some()
}

/// Whether the caller is a destructor that runs while its coroutine's stack is unwound.
pub fn is_unwinding() -> bool {
    Frame::current().is_some_and(|frame| matches!(frame.wait_state(), WaitState::InDestructors))
}

/// What a thread has stacks by. The pool is made with its first coroutine.
#[derive(Default)]
struct Stacks {
    options: StackOptions,
    counters: Arc<StackCounters>,
    pool: Option<StackPool>,
}

/// The stacks of a thread, for as long as its thread-locals live.
#[derive(Default)]
struct ThreadStacks(RefCell<Stacks>);

thread_local! {
    static STACKS: ThreadStacks = ThreadStacks::default();
}

/// Thread-locals are destroyed while a scope is active when somebody calls `exit(3)` in one. No
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

/// Runs `act` with this thread's stacks, or, when the thread is ending, with some of its own.
#[inline]
fn with_stacks<R>(act: fn(&mut Stacks) -> R) -> R {
    let done = STACKS.try_with(|stacks| act(&mut stacks.0.borrow_mut()));
    done.unwrap_or_else(|_| act(&mut Stacks::default()))
}

/// Has this thread's coroutines made as `options` say from now on; those that live keep their
/// stacks. To be called by each thread that turns a worker.
pub fn configure(options: &StackOptions) {
    let before = STACKS.try_with(|stacks| {
        let mut stacks = stacks.0.borrow_mut();
        stacks.options = options.clone();
        stacks.pool.take()
    });
    drop(before);
}

/// What this thread's stacks are doing, readable from every thread.
pub fn counters() -> Arc<StackCounters> {
    with_stacks(|stacks| stacks.counters.clone())
}

/// The memory that all stacks of this thread have at present, those not in use included, in bytes:
/// `mincore(2)` for each. Stacks from before the last [`configure`] are not counted.
pub fn touched_bytes() -> usize {
    with_stacks(|stacks| stacks.pool().touched_bytes())
}
