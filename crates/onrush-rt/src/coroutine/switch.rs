//! Coroutines: a plain function as a future, on a stack of its own, and what it waits by.
//!
//! Polling a [`Coroutine`] goes on with the function; [`wait`] within it polls another future with
//! the context of the present poll, and gives the thread back while that is pending. Must not know
//! what is waited for.
#![allow(unsafe_code)]

use super::overflow::{self, Running};
use super::stack::{Counters, Options, Pool, Stack};
use corosensei::{CoroutineResult, Yielder};
use std::any::{Any, type_name};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::ptr::{NonNull, null, null_mut};
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
const REFUSALS_MAX: u32 = 100_000;

/// A plain function on a stack of its own, as a future: see the [module](super).
///
/// It takes its stack at once and gives it back when it has ended. Never moves between threads.
/// Dropping it unwinds the stack, so that everything on it is dropped.
pub struct Coroutine<T: 'static> {
    /// `None` when it has ended.
    switch: Option<Switch<T>>,
    watch: Watch,
}

/// Where the guard page is, without keeping the stack.
struct Watch {
    name: Cow<'static, str>,
    base: usize,
    stack_bytes: usize,
}

impl<T: 'static> Coroutine<T> {
    /// A coroutine that will run `f`, named by the type of `f` if its stack overflows.
    ///
    /// # Panics
    /// When no stack can be mapped; see [`Coroutine::try_named`].
    #[inline]
    pub fn new<F: FnOnce() -> T + 'static>(f: F) -> Coroutine<T> {
        Coroutine::named(type_name::<F>(), f)
    }

    /// [`Coroutine::new`] with a name of one's own.
    ///
    /// # Panics
    /// When no stack can be mapped.
    #[inline]
    pub fn named<F>(name: impl Into<Cow<'static, str>>, f: F) -> Coroutine<T>
    where
        F: FnOnce() -> T + 'static,
    {
        match Coroutine::try_named(name, f) {
            Ok(coroutine) => coroutine,
            Err(error) => panic!("no stack for {}: {error}", type_name::<F>()),
        }
    }

    /// [`Coroutine::named`]; fails when no stack can be mapped (`mmap(2)`: `ENOMEM`),
    /// and in a program that aborts on panics.
    #[inline]
    pub fn try_named<F>(name: impl Into<Cow<'static, str>>, f: F) -> io::Result<Coroutine<T>>
    where
        F: FnOnce() -> T + 'static,
    {
        if cfg!(panic = "abort") {
            let why = "coroutines need panic = \"unwind\": they are unwound when they are dropped";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let stack = with_stacks(|stacks| stacks.pool().take())?;
        let watch = Watch {
            name: name.into(),
            base: stack.base(),
            stack_bytes: stack.bytes(),
        };
        let is_small = size_of::<F>() <= INLINE_BYTES_MAX && align_of::<F>() <= 16;
        let switch = match is_small {
            true => switch(stack, f),
            false => switch(stack, Box::new(f)),
        };
        Ok(Coroutine {
            switch: Some(switch),
            watch,
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
        let frame = Frame {
            yielder,
            context: Cell::new(context.as_ptr()),
            unwinding: Cell::new(false),
            panicking: Cell::new(panicking()),
            refusals: Cell::new(0),
        };
        CURRENT.set(&raw const frame);
        let result = catch_unwind(AssertUnwindSafe(|| body.run()));
        if frame.unwinding.get() {
            // Nobody takes it, and a panic of its destructor would be one of `Coroutine`'s.
            shielded(|| drop(result));
            CURRENT.set(null());
            return Err(Box::new(()));
        }
        CURRENT.set(null());
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
            shielded(|| drop(f));
        }
    }
}

/// Runs what may panic where a panic would end the process; the panic hook has told of it.
fn shielded(act: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(act)) {
        std::mem::forget(payload); // Its destructor might panic, too.
    }
}

impl<T: 'static> Future for Coroutine<T> {
    type Output = T;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Coroutine { switch, watch } = self.get_mut();
        let running = switch
            .as_mut()
            .expect("a Coroutine is not polled when it is over");
        let context = NonNull::from(cx).cast();
        match watch.within(|| running.resume(context)) {
            CoroutineResult::Yield(()) => Poll::Pending,
            CoroutineResult::Return(result) => {
                *switch = None; // Its stack is free for the next.
                Poll::Ready(result.unwrap_or_else(|payload| resume_unwind(payload)))
            }
        }
    }
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
    fn unwind(&self, switch: Switch<T>) {
        if switch.started() && STACKS.try_with(|_| ()).is_err() {
            // The thread is ending, and thread-locals that the stack refers to may be gone before
            // it. So nothing on it is touched any more.
            return std::mem::forget(switch);
        }
        self.watch.within(|| drop(switch));
    }
}

impl<T: 'static> std::fmt::Debug for Coroutine<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Coroutine({})", self.watch.name)
    }
}

impl Watch {
    /// Runs `act`, which switches to the coroutine's stack: from its beginning nobody is current,
    /// and at its end whoever was before.
    #[inline]
    fn within<R>(&self, act: impl FnOnce() -> R) -> R {
        let lowest = self.base - self.stack_bytes;
        let running = Running {
            name: &self.name,
            stack_bytes: self.stack_bytes,
            guard: lowest - super::memory::page_bytes()..lowest,
        };
        let _away = Away::new();
        overflow::watched(&running, act)
    }
}

thread_local! {
    /// The frame of the coroutine whose own code runs now. Null outside of coroutines, and while
    /// one polls a future that it waits for: that must not suspend it.
    static CURRENT: Cell<*const Frame> = const { Cell::new(null()) };
}

/// While it lives no coroutine is current.
struct Away(*const Frame);

impl Away {
    #[inline]
    fn new() -> Away {
        Away(CURRENT.replace(null()))
    }
}

impl Drop for Away {
    #[inline]
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

/// At the beginning of a coroutine's stack.
struct Frame {
    /// On the same stack, below.
    yielder: *const Yielder<Resume, ()>,
    /// The context of the present poll; null when there is none, while the stack is unwound.
    context: Cell<*mut Context<'static>>,
    /// The coroutine is being dropped.
    unwinding: Cell<bool>,
    /// The thread was panicking already when the coroutine was resumed.
    panicking: Cell<bool>,
    refusals: Cell<u32>,
}

/// In which state a coroutine comes to wait.
enum Mood {
    /// It may be suspended.
    Running,
    /// A destructor waits while the stack is unwound, which a suspension would break off.
    InDestructors,
    /// It was to be unwound, caught that, and goes on all the same.
    Refusing,
}

impl Frame {
    /// The coroutine whose own code calls this.
    #[inline]
    fn current<'f>() -> Option<&'f Frame> {
        // SAFETY: it is not null only while code runs above that frame, on the same stack: whoever
        // switches away sets it to another. The lifetime is not used beyond the caller, who is
        // that code.
        unsafe { CURRENT.get().as_ref() }
    }

    #[inline]
    fn mood(&self) -> Mood {
        let unwinding = self.unwinding.get();
        if !panicking() {
            return if unwinding {
                Mood::Refusing
            } else {
                Mood::Running
            };
        }
        match unwinding || !self.panicking.get() {
            true => Mood::InDestructors,
            false => Mood::Running,
        }
    }

    /// Polls with the context of the present poll.
    #[inline]
    fn poll<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        let _away = Away::new();
        // SAFETY: the context lives until `Coroutine::poll` returns. That is after this stack is
        // switched away from, which this frame alone can do, and it is not current now. It is
        // unique: nobody else has this pointer, and this is not re-entered, for the same reason.
        let context = unsafe { &mut *self.context.get() };
        future.poll(context)
    }

    /// Gives the thread back, until the coroutine is polled again. Unwinds when it is dropped.
    #[inline]
    fn suspend(&self) {
        /// Makes the frame current again, whether by another poll or by unwinding.
        struct Back<'f>(&'f Frame);
        impl Drop for Back<'_> {
            #[inline]
            fn drop(&mut self) {
                CURRENT.set(self.0);
                if self.0.context.get().is_null() {
                    self.0.unwinding.set(true);
                }
            }
        }
        let back = Back(self);
        self.context.set(null_mut());
        // SAFETY: the yielder lies at the beginning of the stack that this runs on.
        let context = unsafe { &*self.yielder }.suspend(());
        self.context.set(context.as_ptr());
        self.panicking.set(panicking());
        drop(back);
    }

    /// Counts what must not go on for ever.
    #[cold]
    fn refused(&self) {
        self.refusals.set(self.refusals.get() + 1);
        if self.refusals.get() > REFUSALS_MAX {
            eprintln!("a coroutine was dropped and does not end: it catches every unwinding");
            std::process::abort();
        }
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
/// let coroutine = Coroutine::new(|| coroutine::wait(async { 6 * 7 }));
/// # let mut cx = Context::from_waker(Waker::noop());
/// assert_eq!(pin!(coroutine).poll(&mut cx), Poll::Ready(42));
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
        match frame.mood() {
            Mood::Running => {
                if let Poll::Ready(output) = frame.poll(future.as_mut()) {
                    return Ok(output);
                }
            }
            Mood::InDestructors => {
                // One that catches panics of its own may go on doing so.
                if frame.unwinding.get() {
                    frame.refused();
                }
                let _away = Away::new();
                let cx = &mut Context::from_waker(Waker::noop());
                return match future.as_mut().poll(cx) {
                    Poll::Ready(output) => Ok(output),
                    Poll::Pending => Err(Unwinding),
                };
            }
            Mood::Refusing => frame.refused(), // Unwinds once more.
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

/// Whether the caller is a coroutine, which may [`wait`].
pub fn is_inside() -> bool {
    Frame::current().is_some()
}

/// Whether the caller is a destructor that runs while its coroutine's stack is unwound.
pub fn is_unwinding() -> bool {
    Frame::current().is_some_and(|frame| matches!(frame.mood(), Mood::InDestructors))
}

/// What a thread has stacks by. The pool is made with its first coroutine.
#[derive(Default)]
struct Stacks {
    options: Options,
    counters: Arc<Counters>,
    pool: Option<Pool>,
}

thread_local! {
    static STACKS: RefCell<Stacks> = RefCell::default();
}

impl Stacks {
    #[inline]
    fn pool(&mut self) -> &Pool {
        self.pool.get_or_insert_with(|| {
            overflow::prepare();
            Pool::new(&self.options, self.counters.clone())
        })
    }
}

/// Runs `act` with this thread's stacks, or, when the thread is ending, with some of its own.
#[inline]
fn with_stacks<R>(act: fn(&mut Stacks) -> R) -> R {
    let done = STACKS.try_with(|stacks| act(&mut stacks.borrow_mut()));
    done.unwrap_or_else(|_| act(&mut Stacks::default()))
}

/// Has this thread's coroutines made as `options` say from now on; those that live keep their
/// stacks. To be called by each thread that turns a worker.
pub fn configure(options: &Options) {
    let before = STACKS.try_with(|stacks| {
        let mut stacks = stacks.borrow_mut();
        stacks.options = options.clone();
        stacks.pool.take()
    });
    drop(before);
}

/// What this thread's stacks are doing, readable from every thread.
pub fn counters() -> Arc<Counters> {
    with_stacks(|stacks| stacks.counters.clone())
}

/// The memory that all stacks of this thread have at present, those not in use included, in bytes:
/// `mincore(2)` for each. Stacks from before the last [`configure`] are not counted.
pub fn touched_bytes() -> usize {
    with_stacks(|stacks| stacks.pool().touched_bytes())
}
