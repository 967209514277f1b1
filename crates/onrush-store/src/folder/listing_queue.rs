//! Whose turn it is to read a directory.
//!
//! A listing of a large folder keeps a thread of the pool busy for as long as a thousand small
//! changes do, and the pool serves whoever came first: so only so many listings at a time are
//! given to it, one for every two cores, and changes find its queue short. The others wait here,
//! as tasks, in order.
//!
//! When a turn comes, the same listing may have been made meanwhile for somebody else. It is taken
//! only if its reading began after this request had come: so nobody is shown less than what was
//! there when they asked. Few pages are kept for that, and none once nobody waits.
//!
//! This module must not know how a folder is listed.

use super::Inner;
use crate::key::Key;
use crate::store::{ListHow, Page};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

/// Pages kept for others, at most.
const SHARED_MAX: usize = 4;

/// Which folder, and which part of it.
#[derive(PartialEq, Eq)]
pub(super) struct Query {
    /// `None`: the top.
    pub(super) folder: Option<Key>,
    pub(super) how: ListHow,
}

pub(super) struct ListingQueue(Mutex<State>);

struct State {
    /// Turns that may be taken at once.
    free: usize,
    /// Turns handed to those who have not been polled since.
    granted: Vec<Arrival>,
    waiting: VecDeque<(Arrival, Waker)>,
    /// Numbers arrivals and beginnings, so that it is known which came first.
    clock: u64,
    shared: VecDeque<Made>,
}

struct Arrival {
    at: u64,
    query: Arc<Query>,
}

/// A listing that was made, for those who wait for the same.
struct Made {
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
        ListingQueue::at_once((cores / 2).max(1))
    }

    fn at_once(free: usize) -> ListingQueue {
        ListingQueue(Mutex::new(State {
            free,
            granted: Vec::new(),
            waiting: VecDeque::new(),
            clock: 0,
            shared: VecDeque::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only whole changes are made under it, so a poisoned one is still right.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a turn to the next who waits, if any.
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
        drop(unwanted); // many small allocations: not under the lock
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

/// Waits for a turn to make the listing `query`, or for the listing itself.
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
    /// While waiting.
    arrived: Option<u64>,
}

/// What waiting has led to.
pub(super) enum ListingTurn {
    /// It is to be made now.
    Proceed(Permit),
    /// Somebody has made it.
    Made(Arc<Page>),
}

impl Wait {
    fn begin(&self, began: u64) -> Poll<ListingTurn> {
        Poll::Ready(ListingTurn::Proceed(Permit {
            inner: self.inner.clone(),
            query: self.query.clone(),
            began,
        }))
    }
}

impl Future for Wait {
    type Output = ListingTurn;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ListingTurn> {
        let inner = self.inner.clone();
        let mut state = inner.listing_queue.lock();
        let Some(at) = self.arrived else {
            let at = state.tick();
            if state.free > 0 {
                state.free -= 1;
                return self.begin(at);
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
        let same = |made: &&Made| made.began > at && made.query == self.query;
        if let Some(made) = state.shared.iter().find(same) {
            let page = made.page.clone();
            drop(state);
            inner.listing_queue.release();
            return Poll::Ready(ListingTurn::Made(page));
        }
        let began = state.tick();
        self.begin(began)
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

/// The right to read one directory now; the next one's when dropped, on whatever thread.
pub(super) struct Permit {
    inner: Arc<Inner>,
    query: Arc<Query>,
    began: u64,
}

impl Permit {
    /// Leaves a copy of what was made for those who wait for the same.
    pub(super) fn share(&self, page: &Page) {
        let wanted = |arrival: &Arrival| arrival.at < self.began && arrival.query == self.query;
        let listing_queue = &self.inner.listing_queue;
        let state = listing_queue.lock();
        let mut waiting = state.waiting.iter().map(|waits| &waits.0);
        if !waiting.any(wanted) && !state.granted.iter().any(wanted) {
            return;
        }
        drop(state); // a page takes a while to copy
        let made = Made {
            query: self.query.clone(),
            began: self.began,
            page: Arc::new(page.clone()),
        };
        let mut state = listing_queue.lock();
        state.shared.push_back(made);
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
        Arc::get_mut(&mut folder.inner).unwrap().listing_queue = ListingQueue::at_once(at_once);
        folder
    }

    fn query(limit: usize) -> Arc<Query> {
        let how = ListHow {
            limit,
            ..ListHow::default()
        };
        Arc::new(Query { folder: None, how })
    }

    /// As a page that tells where it comes from.
    fn page(from: &str) -> Page {
        Page {
            entries: Vec::new(),
            next: Some(from.into()),
        }
    }

    fn poll(wait: &mut Wait) -> Option<ListingTurn> {
        match Pin::new(wait).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    fn begins(wait: &mut Wait) -> Option<Permit> {
        match poll(wait)? {
            ListingTurn::Proceed(permit) => Some(permit),
            ListingTurn::Made(_) => panic!("nobody has made this"),
        }
    }

    #[test]
    fn so_many_at_once_and_the_others_in_order_past_those_who_left() {
        let folder = folder(2);
        let mut waits: Vec<_> = (1..8).map(|n| wait(&folder.inner, &query(n))).collect();
        let mut held: Vec<_> = waits.iter_mut().filter_map(begins).collect();
        assert_eq!(held.len(), 2);
        waits.drain(..2);
        drop(waits.remove(0)); // while waiting
        drop(held.pop());
        assert!(begins(&mut waits[1]).is_none(), "it is another's turn");
        drop(waits.remove(0)); // after it was granted
        held.extend(begins(&mut waits[0]));
        assert_eq!(held.len(), 2);
        assert!(begins(&mut waits[1]).is_none());
        held.clear();
        held.extend(begins(&mut waits[1]));
        held.extend(begins(&mut waits[2]));
        assert_eq!(held.len(), 2);
        held.clear();
        assert_eq!(folder.inner.listing_queue.lock().free, 2);
    }

    #[test]
    fn only_what_began_after_the_asking_is_shared() {
        let folder = folder(1);
        let ask = |limit| {
            let mut wait = wait(&folder.inner, &query(limit));
            (poll(&mut wait), wait)
        };
        let (Some(ListingTurn::Proceed(first)), _) = ask(1) else {
            panic!("it is free")
        };
        let (None, mut early) = ask(1) else {
            panic!("it is taken")
        };
        let (None, mut other) = ask(2) else {
            panic!("it is taken")
        };
        let (None, mut same) = ask(1) else {
            panic!("it is taken")
        };
        first.share(&page("first"));
        drop(first);
        // Came after the first had begun, so perhaps after a change that the first did not see.
        let second = begins(&mut early).expect("its turn");
        let (None, mut late) = ask(1) else {
            panic!("it is taken")
        };
        second.share(&page("second"));
        drop(second);
        let third = begins(&mut other).expect("another part");
        third.share(&page("third"));
        drop(third);
        match poll(&mut same) {
            Some(ListingTurn::Made(made)) => assert_eq!(made.next, page("second").next),
            _ => panic!("the second was made for it, too"),
        }
        let fourth = begins(&mut late).expect("the second had begun before");
        fourth.share(&page("fourth"));
        drop(fourth);
        let state = folder.inner.listing_queue.lock();
        assert_eq!((state.free, state.shared.len()), (1, 0), "nothing is kept");
    }

    #[test]
    fn few_pages_are_kept() {
        let folder = folder(1);
        let mut waits: Vec<_> = (0..40)
            .map(|n| wait(&folder.inner, &query(n % 20)))
            .collect();
        let mut permit = begins(&mut waits[0]);
        for wait in &mut waits[1..] {
            assert!(poll(wait).is_none());
        }
        for wait in &mut waits[1..] {
            permit.take().inspect(|permit| permit.share(&page("")));
            let state = folder.inner.listing_queue.lock();
            assert!(state.shared.len() <= SHARED_MAX);
            drop(state);
            if let Some(ListingTurn::Proceed(next)) = poll(wait) {
                permit = Some(next);
            }
        }
    }
}
