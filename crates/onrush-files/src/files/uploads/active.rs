//! Which uploads, or parts of them, are in use by a request now. A request that needs one asks the
//! one that has it to end, and waits for that.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What is in use, on all workers. `K` identifies an upload or a part.
pub(super) struct Active<K>(Arc<Mutex<HashMap<K, Use>>>);

impl<K> Default for Active<K> {
    fn default() -> Active<K> {
        Active(Arc::default())
    }
}

#[derive(Default)]
struct Use {
    /// Another request waits.
    should_end: bool,
    /// The task that has the upload, if it waits for bytes.
    user: Option<Waker>,
    waiting: Vec<Waker>,
}

/// The use of an upload or a part, which ends when this is dropped.
pub(super) struct Guard<K: Copy + Eq + Hash> {
    active: Active<K>,
    id: K,
}

impl<K: Copy + Eq + Hash> Active<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is in use.
    pub(super) fn any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Waits until no other request has the upload or part, and asks the one that does to end.
    pub(super) async fn acquire(&self, id: K) -> Guard<K> {
        poll_fn(|cx| {
            let mut uses = self.lock();
            let Some(present) = uses.get_mut(&id) else {
                uses.insert(id, Use::default());
                return Poll::Ready(());
            };
            present.should_end = true;
            if !present
                .waiting
                .iter()
                .any(|waker| waker.will_wake(cx.waker()))
            {
                present.waiting.push(cx.waker().clone());
            }
            let user = present.user.take();
            drop(uses);
            user.into_iter().for_each(Waker::wake); // Without the lock: it is foreign code.
            Poll::Pending
        })
        .await;
        Guard {
            active: Active(self.0.clone()),
            id,
        }
    }
}

impl<K: Copy + Eq + Hash> Guard<K> {
    /// Whether another request waits for the upload. If not, the task is woken when one does.
    pub(super) fn should_end(&self, cx: &Context<'_>) -> bool {
        let mut uses = self.active.lock();
        let Some(present) = uses.get_mut(&self.id) else {
            return true;
        };
        if !present.should_end {
            present.user = Some(cx.waker().clone());
        }
        present.should_end
    }
}

impl<K: Copy + Eq + Hash> Drop for Guard<K> {
    fn drop(&mut self) {
        let ended = self.active.lock().remove(&self.id);
        let waiting = ended.into_iter().flat_map(|ended| ended.waiting);
        waiting.for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_later_request_ends_the_earlier_one() {
        let (active, id) = (Active::default(), 7);
        let woken = Arc::new(Count::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        let mut first = pin!(active.acquire(id));
        let Poll::Ready(guard) = first.as_mut().poll(&mut cx) else {
            panic!("it is not in use");
        };
        assert!(!guard.should_end(&cx));
        let mut second = pin!(active.acquire(id));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert_eq!(woken.0.load(Ordering::SeqCst), 1, "the user is woken");
        assert!(guard.should_end(&cx));
        drop(guard);
        assert_eq!(woken.0.load(Ordering::SeqCst), 2, "the other one is woken");
        assert!(second.as_mut().poll(&mut cx).is_ready());
        assert!(!active.any());
    }
}
