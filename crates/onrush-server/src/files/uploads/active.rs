//! Which uploads are in use by a request now. A request that needs an upload asks the one that has
//! it to end, and waits for that.

use super::UploadId;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The uploads in use, of all workers.
#[derive(Clone, Default)]
pub(super) struct Active(Arc<Mutex<HashMap<UploadId, Use>>>);

#[derive(Default)]
struct Use {
    /// Another request waits.
    should_end: bool,
    /// The task that has the upload, if it waits for bytes.
    user: Option<Waker>,
    waiting: Vec<Waker>,
}

/// The use of an upload, which ends when this is dropped.
pub(super) struct Guard {
    active: Active,
    id: UploadId,
}

impl Active {
    fn lock(&self) -> MutexGuard<'_, HashMap<UploadId, Use>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any upload is in use.
    pub(super) fn any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Waits until no other request uses the upload, and asks the one that does to end.
    pub(super) async fn acquire(&self, id: UploadId) -> Guard {
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
            active: self.clone(),
            id,
        }
    }
}

impl Guard {
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

impl Drop for Guard {
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
        let (active, id) = (
            Active::default(),
            UploadId::random().expect("random numbers"),
        );
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
