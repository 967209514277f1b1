//! Limits how many listings run at the same time, and shares pages between equal requests.
//!
//! A listing of a large folder occupies a thread of the pool for as long as a thousand small
//! changes do, and the pool works in order of arrival. Therefore the pool runs only one listing for
//! every two cores at a time, and its queue stays short for changes. Other listings wait here, as
//! tasks, in order of arrival.
//!
//! When a request gets its permit, another request may have made the same page meanwhile. The
//! request takes that page only if its listing began after the request had arrived, so a page
//! always includes what existed when it was requested. At most [`SHARED_MAX`] pages are kept for
//! this, and none when no request waits.

use super::Inner;
use crate::key::Key;
use crate::store::{ListHow, Page};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

/// The maximum number of pages kept for other requests.
const SHARED_MAX: usize = 4;

/// The folder and the part of it to list.
#[derive(PartialEq, Eq)]
pub(super) struct Query {
    /// `None`: the root folder.
    pub(super) folder: Option<Key>,
    pub(super) how: ListHow,
}

pub(super) struct ListingQueue(Mutex<State>);

struct State {
    /// Permits that are free.
    free: usize,
    /// Requests that own a permit and have not been polled since.
    granted: Vec<Arrival>,
    waiting: VecDeque<(Arrival, Waker)>,
    /// Numbers the arrivals and the starts of listings, to compare their order.
    clock: u64,
    shared: VecDeque<SharedPage>,
}

struct Arrival {
    at: u64,
    query: Arc<Query>,
}

/// A page for requests that wait for the same one.
struct SharedPage {
    query: Arc<Query>,
    began: u64,
    page: Arc<Page>,
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn take_granted(&mut self, at: u64) -> bool {
        let found = self.granted.iter().position(|arrival| arrival.at == at);
        found.map(|index| self.granted.swap_remove(index)).is_some()
    }
}

impl ListingQueue {
    pub(super) fn new() -> ListingQueue {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        ListingQueue::with_permits((cores / 2).max(1))
    }

    fn with_permits(free: usize) -> ListingQueue {
        ListingQueue(Mutex::new(State {
            free,
            granted: Vec::new(),
            waiting: VecDeque::new(),
            clock: 0,
            shared: VecDeque::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete, so the state of a poisoned lock is valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants a permit to the next waiting request, if any.
    fn release(&self) {
        let mut state = self.lock();
        let mut unwanted = VecDeque::new();
        let next = match state.waiting.pop_front() {
            Some((arrival, waker)) => {
                state.granted.push(arrival);
                Some(waker)
            }
            None => {
                state.free += 1;
                if state.granted.is_empty() {
                    unwanted = std::mem::take(&mut state.shared);
                }
                None
            }
        };
        drop(state);
        drop(unwanted); // frees many small allocations, so not under the lock
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

/// Waits for a permit to make the page `query`, or for the page itself.
pub(super) fn wait(inner: &Arc<Inner>, query: &Arc<Query>) -> Wait {
    Wait {
        inner: inner.clone(),
        query: query.clone(),
        arrived: None,
    }
}

pub(super) struct Wait {
    inner: Arc<Inner>,
    query: Arc<Query>,
    /// The number of the arrival, while waiting.
    arrived: Option<u64>,
}

/// The result of waiting in the queue.
pub(super) enum Admission {
    /// The caller reads the directory now.
    Run(Permit),
    /// Another request has made the page. The caller keeps the permit while it copies the page, so
    /// that few copies are made at the same time.
    Shared(Arc<Page>, Permit),
}

impl Wait {
    fn permit(&self, began: u64) -> Permit {
        Permit {
            inner: self.inner.clone(),
            query: self.query.clone(),
            began,
        }
    }
}

impl Future for Wait {
    type Output = Admission;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Admission> {
        let inner = self.inner.clone();
        let mut state = inner.listing_queue.lock();
        let Some(at) = self.arrived else {
            let at = state.tick();
            if state.free > 0 {
                state.free -= 1;
                return Poll::Ready(Admission::Run(self.permit(at)));
            }
            let arrival = Arrival {
                at,
                query: self.query.clone(),
            };
            state.waiting.push_back((arrival, cx.waker().clone()));
            self.arrived = Some(at);
            return Poll::Pending;
        };
        if !state.take_granted(at) {
            let waits = state.waiting.iter_mut().find(|waits| waits.0.at == at);
            if let Some((_, waker)) = waits {
                waker.clone_from(cx.waker());
            }
            return Poll::Pending;
        }
        self.arrived = None;
        let same = |shared: &&SharedPage| shared.began > at && shared.query == self.query;
        let shared = state.shared.iter().find(same);
        let shared = shared.map(|shared| shared.page.clone());
        let permit = self.permit(state.tick());
        Poll::Ready(match shared {
            Some(page) => Admission::Shared(page, permit),
            None => Admission::Run(permit),
        })
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let Some(at) = self.arrived else { return };
        let mut state = self.inner.listing_queue.lock();
        if state.take_granted(at) {
            drop(state);
            self.inner.listing_queue.release();
        } else {
            state.waiting.retain(|waits| waits.0.at != at);
        }
    }
}

/// The permit to make one page. Dropping it, on any thread, grants it to the next request.
pub(super) struct Permit {
    inner: Arc<Inner>,
    query: Arc<Query>,
    began: u64,
}

impl Permit {
    /// Leaves a copy of the page for requests that wait for the same one.
    pub(super) fn share(&self, page: &Page) {
        let wanted = |arrival: &Arrival| arrival.at < self.began && arrival.query == self.query;
        let listing_queue = &self.inner.listing_queue;
        let state = listing_queue.lock();
        let mut waiting = state.waiting.iter().map(|waits| &waits.0);
        if !waiting.any(wanted) && !state.granted.iter().any(wanted) {
            return;
        }
        drop(state); // copying a page takes a while
        let shared = SharedPage {
            query: self.query.clone(),
            began: self.began,
            page: Arc::new(page.clone()),
        };
        let mut state = listing_queue.lock();
        state.shared.push_back(shared);
        let oldest = match state.shared.len() > SHARED_MAX {
            true => state.shared.pop_front(),
            false => None,
        };
        drop(state);
        drop(oldest);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.inner.listing_queue.release();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Folder, FolderOptions};
    use super::*;
    use onrush_rt::blocking::BlockingPool;
    use onrush_rt::fs::sim::SimFs;

    fn folder(at_once: usize) -> Folder {
        let root = SimFs::new(1).root().unwrap();
        let options = FolderOptions::default();
        let mut folder = Folder::on(root, BlockingPool::inline(), options).unwrap();
        Arc::get_mut(&mut folder.inner).unwrap().listing_queue =
            ListingQueue::with_permits(at_once);
        folder
    }

    fn query(limit: usize) -> Arc<Query> {
        let how = ListHow {
            limit,
            ..ListHow::default()
        };
        Arc::new(Query { folder: None, how })
    }

    /// A page that contains its origin.
    fn page(from: &str) -> Page {
        Page {
            entries: Vec::new(),
            next: Some(from.into()),
        }
    }

    fn poll(wait: &mut Wait) -> Option<Admission> {
        match Pin::new(wait).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    fn granted(wait: &mut Wait) -> Option<Permit> {
        match poll(wait)? {
            Admission::Run(permit) => Some(permit),
            Admission::Shared(..) => panic!("unexpected shared page"),
        }
    }

    #[test]
    fn permits_are_granted_in_order_and_skip_dropped_waits() {
        let folder = folder(2);
        let mut waits: Vec<_> = (1..8).map(|n| wait(&folder.inner, &query(n))).collect();
        let mut held: Vec<_> = waits.iter_mut().filter_map(granted).collect();
        assert_eq!(held.len(), 2);
        waits.drain(..2);
        drop(waits.remove(0)); // while waiting
        drop(held.pop());
        assert!(
            granted(&mut waits[1]).is_none(),
            "the permit belongs to another wait"
        );
        drop(waits.remove(0)); // after it was granted
        held.extend(granted(&mut waits[0]));
        assert_eq!(held.len(), 2);
        assert!(granted(&mut waits[1]).is_none());
        held.clear();
        held.extend(granted(&mut waits[1]));
        held.extend(granted(&mut waits[2]));
        assert_eq!(held.len(), 2);
        held.clear();
        assert_eq!(folder.inner.listing_queue.lock().free, 2);
    }

    #[test]
    fn only_pages_begun_after_the_request_are_shared() {
        let folder = folder(1);
        let request = |limit| {
            let mut wait = wait(&folder.inner, &query(limit));
            (poll(&mut wait), wait)
        };
        let (Some(Admission::Run(first)), _) = request(1) else {
            panic!("expected a permit")
        };
        let (None, mut early) = request(1) else {
            panic!("expected to wait")
        };
        let (None, mut other) = request(2) else {
            panic!("expected to wait")
        };
        let (None, mut same) = request(1) else {
            panic!("expected to wait")
        };
        first.share(&page("first"));
        drop(first);
        // It arrived after the first listing began, so perhaps after a change that the first
        // missed.
        let second = granted(&mut early).expect("a permit");
        let (None, mut late) = request(1) else {
            panic!("expected to wait")
        };
        second.share(&page("second"));
        drop(second);
        let third = granted(&mut other).expect("a permit: no page of this part exists");
        third.share(&page("third"));
        drop(third);
        match poll(&mut same) {
            Some(Admission::Shared(shared, _permit)) => {
                assert_eq!(shared.next, page("second").next);
                assert!(granted(&mut late).is_none(), "the copy keeps the permit");
            }
            _ => panic!("expected the shared second page"),
        }
        let fourth = granted(&mut late).expect("a permit: the second page began too early");
        fourth.share(&page("fourth"));
        drop(fourth);
        let state = folder.inner.listing_queue.lock();
        assert_eq!((state.free, state.shared.len()), (1, 0), "no page is kept");
    }

    #[test]
    fn shared_pages_are_bounded() {
        let folder = folder(1);
        let mut waits: Vec<_> = (0..40)
            .map(|n| wait(&folder.inner, &query(n % 20)))
            .collect();
        let mut permit = granted(&mut waits[0]);
        for wait in &mut waits[1..] {
            assert!(poll(wait).is_none());
        }
        for wait in &mut waits[1..] {
            permit.take().inspect(|permit| permit.share(&page("")));
            let state = folder.inner.listing_queue.lock();
            assert!(state.shared.len() <= SHARED_MAX);
            drop(state);
            if let Some(Admission::Run(next)) = poll(wait) {
                permit = Some(next);
            }
        }
    }
}
