//! Changes of the requirements for client certificates, of which the workers learn: they end the
//! connections of clients that are not admitted any more.

use onrush_rt::worker::Notifier;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of changes, and the workers that are woken after one.
#[derive(Default)]
pub(super) struct ClientChanges {
    generation: AtomicU64,
    workers: Mutex<Workers>,
}

#[derive(Default)]
struct Workers {
    next: u64,
    notifiers: BTreeMap<u64, Notifier>,
}

impl ClientChanges {
    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Counts a change that has been made, and wakes the workers.
    pub(super) fn count(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        self.workers().notifiers.values().for_each(Notifier::notify);
    }

    pub(super) fn watch(this: &Arc<ClientChanges>, worker: Notifier) -> ClientWatch {
        let mut workers = this.workers();
        let number = workers.next;
        workers.next += 1;
        workers.notifiers.insert(number, worker);
        drop(workers);
        ClientWatch {
            changes: this.clone(),
            number,
        }
    }
}

/// A worker is woken after each change until this is dropped.
pub(crate) struct ClientWatch {
    changes: Arc<ClientChanges>,
    number: u64,
}

impl Drop for ClientWatch {
    fn drop(&mut self) {
        self.changes.workers().notifiers.remove(&self.number);
    }
}
