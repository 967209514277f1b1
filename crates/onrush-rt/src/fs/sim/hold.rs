//! Holds calls: they block their threads before they do anything, until a test lets them pass.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The calls of one kind.
#[derive(Debug, Default)]
pub(super) struct Hold {
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    /// The number of calls that may still pass; `None` if all of them may.
    passes: Option<usize>,
    /// The number of waiting calls.
    waiting: usize,
    /// How often `passes` was set. A call that waited since before is not one of the next ones.
    settings: u64,
}

impl Hold {
    /// Holds the calls after the next `passes` ones; `None`: holds none.
    pub(super) fn set(&self, passes: Option<usize>) {
        let mut held = self.lock();
        held.passes = passes;
        held.settings += 1;
        drop(held);
        self.changed.notify_all();
    }

    /// Waits until at least `calls` calls are held, for at most `timeout`. Returns their number.
    pub(super) fn wait(&self, calls: usize, timeout: Duration) -> usize {
        let too_few = |held: &mut Held| held.waiting < calls;
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), timeout, too_few);
        waited.unwrap_or_else(PoisonError::into_inner).0.waiting
    }

    /// A call is made. Blocks while it is held.
    pub(super) fn pass(&self) {
        let mut held = self.lock();
        let settings = held.settings;
        if held.passes == Some(0) {
            held.waiting += 1;
            self.changed.notify_all();
            let waited = self.changed.wait_while(held, |held| held.passes == Some(0));
            held = waited.unwrap_or_else(PoisonError::into_inner);
            held.waiting -= 1;
        }
        if held.settings == settings
            && let Some(passes) = &mut held.passes
        {
            *passes -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::Hold;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn a_call_that_waited_is_not_one_of_the_next() {
        const LONG: Duration = Duration::from_secs(60);
        let hold = Hold::default();
        hold.set(Some(0));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| hold.pass());
            assert_eq!(hold.wait(1, LONG), 1);
            hold.set(Some(1));
            waiting.join().expect("it passes");
            hold.pass();
            scope.spawn(|| hold.pass());
            assert_eq!(hold.wait(1, LONG), 1);
            hold.set(None);
        });
    }
}
