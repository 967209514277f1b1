//! One verification of a file at a time: a large file that many requests need after a restart is
//! read once. The others wait for the result on their threads of the pool, which would read the
//! same file otherwise.

use super::Name;
use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The files that are being verified.
#[derive(Default)]
pub(super) struct Verifications(Arc<Shared>);

#[derive(Default)]
struct Shared {
    names: Mutex<HashSet<Name>>,
    ended: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Verifications {
    /// Begins the verification of a file, after another one of it has ended. Blocks.
    pub(super) fn begin(&self, name: &Name) -> Verification {
        let mut names = self.0.lock();
        while !names.insert(*name) {
            names = (self.0.ended.wait(names)).unwrap_or_else(PoisonError::into_inner);
        }
        Verification {
            shared: self.0.clone(),
            name: *name,
        }
    }
}

/// A verification, which ends when this is dropped.
pub(super) struct Verification {
    shared: Arc<Shared>,
    name: Name,
}

impl Drop for Verification {
    fn drop(&mut self) {
        self.shared.lock().remove(&self.name);
        self.shared.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_file_has_one_verification_at_a_time() {
        let verifications = Verifications::default();
        let (one, other) = (Name::of(&[b"one"]), Name::of(&[b"other"]));
        let first = verifications.begin(&one);
        drop(verifications.begin(&other));
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(verifications.begin(&one));
                let _ = sender.send("second");
            });
            assert!(receiver.try_recv().is_err());
            drop(first);
            assert_eq!(receiver.recv(), Ok("second"));
        });
        assert!(verifications.0.lock().is_empty());
    }
}
