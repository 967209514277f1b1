//! Exclusive use of what a key names: one task has it, and the others wait until that one has
//! finished with it.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What is in use. Clones share it.
pub struct Exclusive<K>(Arc<Mutex<HashMap<K, Use>>>);

#[derive(Default)]
struct Use {
    /// The task that has it, if it asks whether others wait ([`Held::is_wanted`]).
    user: Option<Waker>,
    waiting: Vec<Waker>,
}

/// The use of what a key names. It ends when this is dropped, on any thread; all tasks that wait
/// are woken then.
pub struct Held<K: Clone + Eq + Hash> {
    used: Exclusive<K>,
    key: K,
}

impl<K> Clone for Exclusive<K> {
    fn clone(&self) -> Exclusive<K> {
        Exclusive(self.0.clone())
    }
}

impl<K> Default for Exclusive<K> {
    fn default() -> Exclusive<K> {
        Exclusive(Arc::default())
    }
}

impl<K> fmt::Debug for Exclusive<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exclusive").finish_non_exhaustive()
    }
}

impl<K: Clone + Eq + Hash> fmt::Debug for Held<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").finish_non_exhaustive()
    }
}

impl<K: Clone + Eq + Hash> Exclusive<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Use>> {
        // Every change under the lock is complete, so the state of a poisoned lock is valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is in use.
    pub fn any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Waits until no other task uses what `key` names. Those that wait are not in an order.
    pub async fn acquire(&self, key: K) -> Held<K> {
        poll_fn(|cx| self.poll_acquire(&key, cx)).await
    }

    /// As [`Exclusive::acquire`], but returns `None` when another task has finished: perhaps its
    /// result serves this one.
    pub async fn acquire_or_wait(&self, key: K) -> Option<Held<K>> {
        let mut has_waited = false;
        let acquired = poll_fn(|cx| {
            let polled = self.poll_acquire(&key, cx);
            has_waited |= polled.is_pending();
            polled
        });
        let held = acquired.await;
        (!has_waited).then_some(held)
    }

    fn poll_acquire(&self, key: &K, cx: &Context<'_>) -> Poll<Held<K>> {
        let mut used = self.lock();
        let Some(present) = used.get_mut(key) else {
            used.insert(key.clone(), Use::default());
            return Poll::Ready(Held {
                used: self.clone(),
                key: key.clone(),
            });
        };
        let is_known = |waker: &Waker| waker.will_wake(cx.waker());
        if !present.waiting.iter().any(is_known) {
            present.waiting.push(cx.waker().clone());
        }
        let user = present.user.take();
        drop(used);
        user.into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

impl<K: Clone + Eq + Hash> Held<K> {
    /// Whether another task has waited. If not, the task of `cx` is woken when one does.
    pub fn is_wanted(&self, cx: &Context<'_>) -> bool {
        let mut used = self.used.lock();
        let Some(present) = used.get_mut(&self.key) else {
            return true;
        };
        let is_wanted = !present.waiting.is_empty();
        if !is_wanted {
            present.user = Some(cx.waker().clone());
        }
        is_wanted
    }
}

impl<K: Clone + Eq + Hash> Drop for Held<K> {
    fn drop(&mut self) {
        let ended = self.used.lock().remove(&self.key);
        let waiting = ended.into_iter().flat_map(|ended| ended.waiting);
        waiting.for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::for_tests::block_on;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn one_task_at_a_time_has_what_a_key_names() {
        let used = Exclusive::default();
        let first = block_on(used.acquire("one"));
        drop(block_on(used.acquire("other")));
        {
            let mut left = pin!(used.acquire("one"));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(left.as_mut().poll(&mut cx).is_pending());
            assert!(left.as_mut().poll(&mut cx).is_pending());
        }
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    drop(block_on(used.acquire("one")));
                    let _ = sender.send("next");
                });
            }
            assert!(receiver.try_recv().is_err());
            drop(first);
            for _ in 0..3 {
                assert_eq!(receiver.recv(), Ok("next"));
            }
        });
        assert!(!used.any());
    }

    #[test]
    fn a_user_learns_that_it_is_waited_for() {
        let used = Exclusive::default();
        let woken = Arc::new(Count::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let held = block_on(used.acquire(7));
        assert!(!held.is_wanted(&cx));
        let mut second = pin!(used.acquire(7));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "the user is woken");
        assert!(held.is_wanted(&cx));
        drop(held);
        assert_eq!(woken.0.load(Ordering::SeqCst), 2, "the other one is woken");
        assert!(second.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn a_task_that_has_waited_gets_the_result_of_the_other() {
        let used = Exclusive::default();
        let first = block_on(used.acquire_or_wait(1)).expect("it is free");
        let mut second = pin!(used.acquire_or_wait(1));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut cx).is_pending());
        drop(first);
        let Poll::Ready(None) = second.as_mut().poll(&mut cx) else {
            panic!("the other one has finished");
        };
        assert!(block_on(used.acquire_or_wait(1)).is_some());
    }
}
