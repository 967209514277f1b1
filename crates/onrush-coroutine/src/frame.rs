//! The state of a running coroutine, at the beginning of its stack.
//!
//! Does not depend on what the coroutine runs or waits for.
#![allow(unsafe_code)]

use super::contract::Contract;
use super::overflow::{self, Bounds, Label};
use super::scope;
use super::stack::{RESERVED_BYTES, Stack};
use corosensei::Yielder;
use std::cell::Cell;
use std::future::Future;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::ptr::{NonNull, null, null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::task::{Context, Poll};
use std::thread::panicking;

/// The value that resumes a coroutine: the context of the current poll.
pub(super) type Resume = NonNull<Context<'static>>;

/// The payload that unwinds a dropped coroutine. No hook sees it.
struct Unwound;

/// The memory that a coroutine which is about to wait uses first when it continues: its stack, from
/// the caller's frame upwards. That may have left the cache by then. The future that the coroutine
/// waits for may prefetch it when it wakes the coroutine.
#[inline(always)]
pub(super) fn resume_memory() -> Option<NonZeroUsize> {
    NonZeroUsize::new(scope::address())
}

/// Data at the beginning of a coroutine's stack, above everything that runs on it.
///
/// Only code that runs on the stack uses it, and finds it by the stack's address. No pointer to it
/// is kept elsewhere, because foreign coroutines could make such a pointer outlive it, even in a
/// guard, by dropping guards out of order.
#[repr(C)]
pub(super) struct Frame {
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
pub(super) struct NoSuspend<'f>(&'f Frame);

impl NoSuspend<'_> {
    #[inline]
    pub(super) fn new(frame: &Frame) -> NoSuspend<'_> {
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
pub(super) enum WaitState {
    /// It may be suspended.
    Running,
    /// A destructor waits while the stack is unwound. A suspension would abandon the unwinding.
    InDestructors,
    /// The coroutine caught its unwinding and continues.
    Refusing,
}

impl Frame {
    /// Writes a frame at the beginning of a stack that nothing runs on yet. Returns the stack's
    /// addresses. `name` must live as long as the coroutine may run.
    #[inline]
    pub(super) fn begin(stack: &Stack, name: &str) -> Bounds {
        let bounds = Bounds {
            lowest: stack.base() - stack.bytes(),
            top: stack.base(),
        };
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
        // SAFETY: the highest bytes of a mapped stack, which are reserved for this. Nothing runs on
        // the stack: the caller has it, and a coroutine takes it for good.
        unsafe { with_exposed_provenance_mut::<Frame>(bounds.label()).write(frame) };
        bounds
    }

    /// The frame at the beginning of a stack.
    ///
    /// # Safety
    /// The caller runs on that stack, and uses the frame only there.
    #[inline]
    pub(super) unsafe fn of<'f>(stack: Bounds) -> &'f Frame {
        // SAFETY: the stack is in use, so it is mapped, and has a frame since it was taken.
        unsafe { &*with_exposed_provenance::<Frame>(stack.label()) }
    }

    /// The frame of the coroutine whose own code calls this.
    #[inline]
    pub(super) fn current<'f>() -> Option<&'f Frame> {
        Frame::here().filter(|frame| frame.may_wait.get())
    }

    /// The contract of the coroutine whose stack this is called on, for those that it starts.
    pub(super) fn contract() -> Option<Contract> {
        // SAFETY: the creator of the coroutine has accepted the contract for what runs on its
        // stack, and for the coroutines that are started from there.
        Frame::here().map(|_| unsafe { Contract::accept() })
    }

    /// The frame of the stack that the caller runs on, if a coroutine runs on it.
    #[inline]
    fn here<'f>() -> Option<&'f Frame> {
        let stack = overflow::running();
        // The caller may run on another stack, for example that of a foreign coroutine.
        if !stack.contains(scope::address()) {
            return None;
        }
        // SAFETY: the caller runs on that stack, as just checked, and only the caller uses the
        // frame, on that stack.
        Some(unsafe { Frame::of(stack) })
    }

    /// The coroutine's function begins to run. The function at the beginning of the stack calls
    /// this, with what `corosensei` has given it.
    #[inline]
    pub(super) fn enter(&self, yielder: &Yielder<Resume, ()>, context: Resume) {
        self.yielder.set(yielder);
        self.context.set(context.as_ptr());
        self.panicking.set(panicking());
        self.may_wait.set(true);
    }

    /// The coroutine's function has ended: it must not wait any more.
    #[inline]
    pub(super) fn leave(&self) {
        self.may_wait.set(false);
    }

    /// Makes the coroutine unwind when it is resumed.
    pub(super) fn unwind(&self) {
        self.unwinding.set(true);
    }

    /// Whether the coroutine is being dropped.
    #[inline]
    pub(super) fn is_unwinding(&self) -> bool {
        self.unwinding.get()
    }

    #[inline]
    pub(super) fn wait_state(&self) -> WaitState {
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
    pub(super) fn poll<F: Future>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        let _busy = NoSuspend::new(self);
        // SAFETY: the context lives until `Coroutine::poll` returns, and that has not returned,
        // since the coroutine runs. It is unique: no other code has this pointer, and this is not
        // re-entered, because the coroutine may not wait until the future's poll has returned.
        let context = unsafe { &mut *self.context.get() };
        future.poll(context)
    }

    /// Suspends the coroutine until it is polled again. Unwinds when the coroutine is dropped.
    #[inline]
    pub(super) fn suspend(&self) {
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
