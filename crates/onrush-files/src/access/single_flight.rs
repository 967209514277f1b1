//! One verification at a time for equal credentials: a client with many connections costs one
//! password hash. The others wait for its result.

use super::remembered::Tag;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The verifications in progress, of all workers.
#[derive(Clone, Default)]
pub(crate) struct Flights(Arc<Mutex<HashMap<Tag, Vec<Waker>>>>);

/// Ends a verification when it is dropped, also if its client has disconnected, and wakes those
/// that wait for it.
pub(crate) struct Leader {
    flights: Flights,
    tag: Tag,
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, HashMap<Tag, Vec<Waker>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a verification of these credentials. If another one is in progress, waits for its end
    /// and returns `None`: its result is known then, or it must be repeated.
    pub(crate) async fn lead_or_wait(&self, tag: Tag) -> Option<Leader> {
        let mut is_first_poll = true;
        poll_fn(move |cx| {
            let mut flights = self.lock();
            match flights.get_mut(&tag) {
                None if is_first_poll => {
                    flights.insert(tag, Vec::new());
                    let flights = self.clone();
                    Poll::Ready(Some(Leader { flights, tag }))
                }
                None => Poll::Ready(None),
                Some(waiting) => {
                    is_first_poll = false;
                    if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                        waiting.push(cx.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        let waiting = self.flights.lock().remove(&self.tag);
        // A waker is woken without the lock: it may belong to any executor.
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}
