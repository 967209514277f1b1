//! The readers of what is fetched.
//!
//! A [`Run`] is one fetch: the question for a version, and the transfer of its blocks. It is at
//! most [`AHEAD`] blocks ahead of its readers. Without readers it goes on to the end of its block,
//! so that a client that gives up early finds the object at its next attempt. Clients that come and
//! go must not cause any number of requests, though: of the fetches without readers,
//! [`UNREAD_MAX`] go on, and the others are cancelled.

use super::EdgeInner;
use crate::cache::Name;
use crate::key::Key;
use crate::object::LocalFuture;
use crate::sync::watch::Watch;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

/// The blocks that a run transfers before a reader needs them.
const AHEAD: u64 = 2;
/// The fetches without readers that go on. With the default size of blocks, they transfer at most
/// 512 MiB.
const UNREAD_MAX: usize = 128;

/// A transfer of consecutive blocks.
#[derive(Debug)]
pub(super) struct Run(Watch<RunState>);

#[derive(Debug)]
struct RunState {
    readers: usize,
    /// Blocks before this one are needed.
    wanted: u64,
    /// Where it is registered: the key whose version it asks for, and the block that it transfers.
    key: Option<Key>,
    block: Option<Name>,
}

/// A reader of a run. Dropping it leaves the run.
#[derive(Debug)]
pub(super) struct Member(Arc<Run>);

impl Member {
    /// The reader begins to read block `number`, and needs those that follow soon.
    pub(super) fn reads(&self, number: u64) {
        let wanted = number.saturating_add(1 + AHEAD);
        if self.0.0.with(|state| state.wanted < wanted) {
            (self.0.0).update(|state| state.wanted = state.wanted.max(wanted));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.0.update(|state| state.readers -= 1);
    }
}

impl Run {
    /// `key`: that whose version it asks for, if it does.
    pub(super) fn new(key: Option<&Key>) -> Arc<Run> {
        Arc::new(Run(Watch::new(RunState {
            readers: 0,
            wanted: 0,
            key: key.cloned(),
            block: None,
        })))
    }

    /// It transfers this block from now on. The caller holds the lock of the blocks.
    pub(super) fn transfers(&self, block: Name) {
        self.0.update(|state| state.block = Some(block));
    }

    /// Adds a reader.
    pub(super) fn join(self: &Arc<Run>) -> Member {
        self.0.update(|state| state.readers += 1);
        Member(self.clone())
    }

    pub(super) fn is_unread(&self) -> bool {
        self.0.with(|state| state.readers == 0)
    }

    /// Waits until block `number` is needed. `false` if it has no reader any more.
    pub(super) async fn is_wanted(&self, number: u64) -> bool {
        let look = |state: &RunState| match state.readers {
            0 => Some(false),
            _ => (number < state.wanted).then_some(true),
        };
        self.0.until(look).await
    }
}

impl EdgeInner {
    /// Begins what `make` returns: a fetch whose readers are those of `run`.
    pub(super) fn fetch(
        self: &Arc<Self>,
        run: Arc<Run>,
        make: impl FnOnce() -> LocalFuture<'static, ()> + Send + 'static,
    ) {
        let inner = self.clone();
        self.spawn(move || {
            let mut fetch = make();
            // Held while there are no readers. All fetches run on one thread.
            let mut unread: Option<Arc<()>> = None;
            Box::pin(poll_fn(move |cx| {
                if fetch.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                loop {
                    let had = unread.is_none();
                    let look = |state: &RunState| ((state.readers > 0) != had).then_some(());
                    if run.0.poll(cx, look).is_pending() {
                        return Poll::Pending;
                    }
                    if !had {
                        unread = None;
                    } else if Arc::strong_count(&inner.unread) <= UNREAD_MAX {
                        unread = Some(inner.unread.clone());
                    } else if inner.remove(&run) {
                        return Poll::Ready(());
                    }
                }
            }))
        });
    }

    /// Removes a fetch, so that no reader joins it. `false` if it has readers.
    fn remove(&self, run: &Arc<Run>) -> bool {
        // Readers join while they hold one of the locks.
        let (mut openings, mut fills) = (self.openings(), self.fills());
        let look = |state: &RunState| (state.readers == 0, state.key.clone(), state.block);
        let (is_unread, key, block) = run.0.with(look);
        if !is_unread {
            return false;
        }
        // Another run may have taken the place of this one.
        if let Some(key) = key
            && (openings.get(&key)).is_some_and(|opening| Arc::ptr_eq(&opening.run, run))
        {
            openings.remove(&key);
        }
        if let Some(block) = block
            && (fills.get(&block)).is_some_and(|fill| Arc::ptr_eq(&fill.run, run))
        {
            fills.remove(&block);
        }
        true
    }
}
