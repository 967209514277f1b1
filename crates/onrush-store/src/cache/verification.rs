//! Verifications of files. A large file that many requests need after a restart is read once: the
//! others wait for the result, and hold no thread of the pool meanwhile, because one file would
//! stop all others otherwise.

use super::Name;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The files that are being verified, and the callers that wait.
#[derive(Default)]
pub(super) struct Verifications(Arc<Shared>);

#[derive(Default)]
struct Shared(Mutex<HashMap<Name, Vec<Waker>>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, Vec<Waker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Verifications {
    /// Begins the verification of a file, after another one of it has ended.
    pub(super) async fn begin(&self, name: &Name) -> Verification {
        poll_fn(|cx| {
            let mut names = self.0.lock();
            if let Some(waiting) = names.get_mut(name) {
                if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            names.insert(*name, Vec::new());
            Poll::Ready(())
        })
        .await;
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
        let waiting = self.shared.lock().remove(&self.name);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::for_tests::block_on;
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::Context;

    #[test]
    fn a_file_has_one_verification_at_a_time() {
        let verifications = Verifications::default();
        let (one, other) = (Name::of(&[b"one"]), Name::of(&[b"other"]));
        let first = block_on(verifications.begin(&one));
        drop(block_on(verifications.begin(&other)));
        {
            let mut left = pin!(verifications.begin(&one));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(left.as_mut().poll(&mut cx).is_pending());
            assert!(left.as_mut().poll(&mut cx).is_pending());
        }
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    drop(block_on(verifications.begin(&one)));
                    let _ = sender.send("next");
                });
            }
            assert!(receiver.try_recv().is_err());
            drop(first);
            for _ in 0..3 {
                assert_eq!(receiver.recv(), Ok("next"));
            }
        });
        assert!(verifications.0.lock().is_empty());
    }
}
