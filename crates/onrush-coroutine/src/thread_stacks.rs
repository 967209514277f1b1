//! The stacks of each thread: their options, their pool, and their counters.
//!
//! Does not depend on what runs on the stacks.

use super::stack::{StackCounters, StackOptions, StackPool};
use super::{overflow, scope};
use std::cell::RefCell;
use std::sync::Arc;

/// The stacks of a thread and their options. The pool is created with the first coroutine.
#[derive(Default)]
pub(super) struct Stacks {
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
    /// The pool, created at the first call.
    #[inline]
    pub(super) fn pool(&mut self) -> &StackPool {
        self.pool.get_or_insert_with(|| {
            overflow::prepare();
            StackPool::new(&self.options, self.counters.clone())
        })
    }
}

/// Runs `act` with this thread's stacks or, when the thread is ending, with new ones.
#[inline]
pub(super) fn with_stacks<R>(act: fn(&mut Stacks) -> R) -> R {
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
