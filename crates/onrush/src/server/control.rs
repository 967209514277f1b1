//! The state of a server: running, draining or ending. Workers read it; this module wakes them when
//! it changes.

use onrush_rt::worker::Notifier;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) const RUNNING: u8 = 0;
pub(super) const DRAINING: u8 = 1;
pub(super) const ENDING: u8 = 2;

#[derive(Debug, Default)]
pub(super) struct Control {
    state: AtomicU8,
    workers: Mutex<Vec<Notifier>>,
}

impl Control {
    /// Registers a worker, which is woken when the state changes.
    pub(super) fn join(&self, worker: Notifier) {
        self.workers().push(worker);
    }

    /// Sets the state, unless the present state is a later one, and wakes the workers.
    pub(super) fn set(&self, state: u8) {
        self.state.fetch_max(state, Ordering::AcqRel);
        for worker in self.workers().iter() {
            worker.notify();
        }
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Notifier>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }
}
