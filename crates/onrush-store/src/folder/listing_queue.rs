//! Limits how many listings run at the same time, lets clients take turns, and shares pages between
//! equal requests.
//!
//! A listing of a large folder occupies a thread of the pool for as long as a thousand small
//! changes do, and the pool works in order of arrival. Therefore the pool runs only one listing for
//! every two cores at a time, and its queue stays short for changes. Other listings wait here, as
//! tasks.
//!
//! A permit is for a part of the work: a job ends after a few thousand names or a hundred files if
//! others wait ([`Permit::is_wanted`]), and its request waits again. There are two lanes, which get
//! permits in turn: requests that begin, most of which need one part, and those that go on. In each
//! lane clients take turns: a client that waits with many requests gets the permits that one with a
//! single request gets.
//!
//! A file system that does not respond may keep a permit for any time. So while a part takes more
//! than [`STALLED`], there is one permit more, up to [`EXTRA_MAX`] and to half of the threads that
//! the first permits leave. A client with such a part gets none of these. They are granted when
//! listings arrive, and each second in which any request needs the disk: no timer is needed.
//!
//! A page that is being made has memory also while it waits, so no more than [`STARTED_MAX`] pages
//! wait to go on. Of these a client may have half of what the others leave; its further requests
//! do not begin. What a [`Cursor`](crate::Cursor) has in memory is limited by its owner.
//!
//! When a request gets its first permit, another request may have made the same page meanwhile. The
//! request takes that page only if its listing began after the request had arrived, so a page
//! always includes what existed when it was requested. At most [`SHARED_MAX`] pages are kept for
//! this, and none when no request waits.

use super::FolderInner;
use crate::key::Key;
use crate::store::{ListHow, Page};
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum number of pages kept for other requests.
const SHARED_MAX: usize = 4;

/// The maximum number of pages that have begun and wait to go on.
const STARTED_MAX: usize = 32;

/// A part that has not ended for so long waits for a disk, or for a file system that hangs.
const STALLED: Duration = Duration::from_secs(1);

/// The maximum number of permits beyond those of the beginning.
const EXTRA_MAX: usize = 6;

/// The number of clients whose turns are remembered before those that lie back are forgotten.
const CLIENTS_MAX: usize = 64;

/// The folder and the part of it to list.
#[derive(PartialEq, Eq)]
pub(super) struct Query {
    /// `None`: the root folder.
    pub(super) folder: Option<Key>,
    pub(super) how: ListHow,
}

pub(super) struct ListingQueue(Mutex<QueueState>);

struct QueueState {
    /// Permits that are free.
    free: usize,
    /// Those beyond the first ones, in use.
    extra: usize,
    extra_max: usize,
    /// The parts in progress, by the time of [`Permit::began`].
    running: HashMap<u64, Running>,
    /// Requests that own a permit and have not been polled since.
    granted: Vec<Arrival>,
    /// Requests that begin, and those that go on.
    lanes: [Vec<(Arrival, Waker)>; 2],
    /// The lane that gets the next permit if requests wait in both.
    next_lane: usize,
    /// Numbers the arrivals and the starts of listings, to compare their order.
    clock: u64,
    /// The turn of the permit that was granted last.
    turn: u64,
    /// The next turn of each client, unless it lies back.
    next_turn: HashMap<u64, u64>,
    /// Pages that wait to go on, by client.
    started: HashMap<u64, usize>,
    shared: VecDeque<SharedPage>,
}

struct Running {
    /// `None`: that of the server.
    client: Option<u64>,
    since: Instant,
}

struct Arrival {
    at: u64,
    client: u64,
    /// Those with the earliest turn are granted first.
    turn: u64,
    /// The page that is wanted, if another request could make it.
    query: Option<Arc<Query>>,
}

const BEGINS: usize = 0;
const GOES_ON: usize = 1;

/// A page for requests that wait for the same one.
struct SharedPage {
    query: Arc<Query>,
    began: u64,
    page: Arc<Page>,
}

impl QueueState {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn take_granted(&mut self, at: u64) -> bool {
        let found = self.granted.iter().position(|arrival| arrival.at == at);
        found.map(|index| self.granted.swap_remove(index)).is_some()
    }

    /// The turn of a request that arrives.
    fn take_turn(&mut self, client: u64) -> u64 {
        let now = self.turn;
        if self.next_turn.len() >= CLIENTS_MAX {
            self.next_turn.retain(|_, next| *next > now);
        }
        let next = self.next_turn.entry(client).or_insert(now);
        let turn = (*next).max(now);
        *next = turn + 1;
        turn
    }

    /// Whether a client may begin another page that may have to wait.
    fn may_begin(&self, client: u64) -> bool {
        let own = self.started.get(&client).copied().unwrap_or(0);
        let others = self.started.values().sum::<usize>() - own;
        own == 0 || own < STARTED_MAX.saturating_sub(others) / 2
    }

    /// The clients of parts that are stalled.
    fn stalled(&self) -> Vec<Option<u64>> {
        let running = self.running.values();
        let stalled = running.filter(|running| running.since.elapsed() >= STALLED);
        stalled.map(|running| running.client).collect()
    }

    /// The first of a lane, if it may have a permit. Clients in `except` may not.
    fn first(&self, lane: usize, except: &[Option<u64>]) -> Option<usize> {
        let waits = self.lanes[lane].iter().map(|(arrival, _)| arrival);
        let may = |arrival: &&Arrival| {
            (lane == GOES_ON || self.may_begin(arrival.client))
                && !except.contains(&Some(arrival.client))
        };
        let indexed = waits.enumerate().filter(|(_, arrival)| may(arrival));
        let first = indexed.min_by_key(|(_, arrival)| (arrival.turn, arrival.at));
        first.map(|(index, _)| index)
    }

    fn is_wanted(&self) -> bool {
        self.first(BEGINS, &[]).is_some() || !self.lanes[GOES_ON].is_empty()
    }

    /// Grants the free permits to requests that wait.
    fn grant(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut stalled = Vec::new();
        loop {
            if self.free == 0 {
                stalled = self.stalled();
                if self.extra >= stalled.len().min(self.extra_max) {
                    break;
                }
            }
            let lanes = [self.next_lane, 1 - self.next_lane];
            let found = lanes
                .into_iter()
                .find_map(|lane| self.first(lane, &stalled).map(|index| (lane, index)));
            let Some((lane, index)) = found else { break };
            let (arrival, waker) = self.lanes[lane].swap_remove(index);
            match self.free {
                0 => self.extra += 1,
                _ => self.free -= 1,
            }
            self.next_lane = 1 - lane;
            self.turn = self.turn.max(arrival.turn);
            self.granted.push(arrival);
            wakers.push(waker);
        }
        if self.lanes.iter().all(Vec::is_empty) {
            self.next_turn.clear();
        }
        wakers
    }
}

impl ListingQueue {
    /// `threads`: those of the pool.
    pub(super) fn new(threads: usize) -> ListingQueue {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        ListingQueue::with_permits((cores / 2).min(threads / 2).max(1), threads)
    }

    fn with_permits(free: usize, threads: usize) -> ListingQueue {
        ListingQueue(Mutex::new(QueueState {
            free,
            extra: 0,
            extra_max: EXTRA_MAX.min(threads.saturating_sub(free) / 2),
            running: HashMap::new(),
            granted: Vec::new(),
            lanes: [Vec::new(), Vec::new()],
            next_lane: BEGINS,
            clock: 0,
            turn: 0,
            next_turn: HashMap::new(),
            started: HashMap::new(),
            shared: VecDeque::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Every change under the lock is complete, so the state of a poisoned lock is valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants what is free: parts may have stalled since the last arrival.
    pub(super) fn grant(&self) {
        self.release(0, None);
    }

    /// Gives `permits` back, and grants what is free. `began`: of the part that has ended.
    fn release(&self, permits: usize, began: Option<u64>) {
        let mut state = self.lock();
        if let Some(began) = began {
            state.running.remove(&began);
        }
        let extra = state.extra.min(permits);
        state.extra -= extra;
        state.free += permits - extra;
        let wakers = state.grant();
        let is_idle = state.granted.is_empty() && state.lanes.iter().all(Vec::is_empty);
        let unwanted = match is_idle {
            true => std::mem::take(&mut state.shared),
            false => VecDeque::new(),
        };
        drop(state);
        drop(unwanted); // frees many small allocations, so not under the lock
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Waits for a permit to make the page `query`, or for the page itself.
pub(super) fn wait(inner: &Arc<FolderInner>, query: &Arc<Query>, client: u64) -> Wait {
    Wait {
        inner: inner.clone(),
        client,
        query: Some(query.clone()),
        lane: BEGINS,
        arrived: None,
    }
}

/// Waits for a permit to go on, or to begin what no other request could share.
pub(super) fn wait_for_part(inner: &Arc<FolderInner>, client: u64, begins: bool) -> Wait {
    Wait {
        inner: inner.clone(),
        client,
        query: None,
        lane: if begins { BEGINS } else { GOES_ON },
        arrived: None,
    }
}

/// A permit that no request waits for.
pub(super) fn try_permit(inner: &Arc<FolderInner>) -> Option<Permit> {
    let mut state = inner.listing_queue.lock();
    state.free = state.free.checked_sub(1)?;
    Some(Permit::new(inner, &mut state, None))
}

pub(super) struct Wait {
    inner: Arc<FolderInner>,
    client: u64,
    query: Option<Arc<Query>>,
    lane: usize,
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

impl Admission {
    /// The permit of a request that no other one shares.
    pub(super) fn into_permit(self) -> Permit {
        match self {
            Admission::Run(permit) | Admission::Shared(_, permit) => permit,
        }
    }
}

impl Future for Wait {
    type Output = Admission;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Admission> {
        let inner = self.inner.clone();
        let mut state = inner.listing_queue.lock();
        let Some(at) = self.arrived else {
            if state.free > 0 {
                state.free -= 1;
                let permit = Permit::new(&inner, &mut state, Some(self.client));
                return Poll::Ready(Admission::Run(permit));
            }
            let at = state.tick();
            let turn = state.take_turn(self.client);
            let arrival = Arrival {
                at,
                client: self.client,
                turn,
                query: self.query.clone(),
            };
            state.lanes[self.lane].push((arrival, cx.waker().clone()));
            self.arrived = Some(at);
            let wakers = state.grant(); // Also this one, which is polled again then.
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
            return Poll::Pending;
        };
        if !state.take_granted(at) {
            let mut waits = state.lanes[self.lane].iter_mut();
            if let Some((_, waker)) = waits.find(|waits| waits.0.at == at) {
                waker.clone_from(cx.waker());
            }
            return Poll::Pending;
        }
        self.arrived = None;
        let same = |shared: &&SharedPage| {
            shared.began > at && (self.query.as_ref()).is_some_and(|query| *query == shared.query)
        };
        let shared = state.shared.iter().find(same);
        let shared = shared.map(|shared| shared.page.clone());
        let permit = Permit::new(&inner, &mut state, Some(self.client));
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
            self.inner.listing_queue.release(1, None);
        } else {
            state.lanes[self.lane].retain(|waits| waits.0.at != at);
        }
    }
}

/// The permit to do a part of a listing. Dropping it, on any thread, grants it to the next request.
pub(super) struct Permit {
    inner: Arc<FolderInner>,
    began: u64,
}

impl Permit {
    fn new(inner: &Arc<FolderInner>, state: &mut QueueState, client: Option<u64>) -> Permit {
        let began = state.tick();
        let since = Instant::now();
        state.running.insert(began, Running { client, since });
        Permit {
            inner: inner.clone(),
            began,
        }
    }

    /// Whether a request waits that could have this permit.
    pub(super) fn is_wanted(&self) -> bool {
        self.inner.listing_queue.lock().is_wanted()
    }

    /// When the listing has begun, if this is its first permit.
    pub(super) fn began(&self) -> u64 {
        self.began
    }

    /// Leaves a copy of the page for requests that wait for the same one. `began`: the first permit
    /// of the listing.
    pub(super) fn share(&self, query: &Arc<Query>, began: u64, page: &Page) {
        let wanted = |arrival: &Arrival| {
            arrival.at < began && arrival.query.as_ref().is_some_and(|other| other == query)
        };
        let listing_queue = &self.inner.listing_queue;
        let state = listing_queue.lock();
        let mut waiting = state.lanes[BEGINS].iter().map(|waits| &waits.0);
        if !waiting.any(wanted) && !state.granted.iter().any(wanted) {
            return;
        }
        drop(state); // copying a page takes a while
        let shared = SharedPage {
            query: query.clone(),
            began,
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
        self.inner.listing_queue.release(1, Some(self.began));
    }
}

/// A page that has begun and waits to go on, until this is dropped.
pub(super) struct StartedPage {
    inner: Arc<FolderInner>,
    client: u64,
}

impl StartedPage {
    pub(super) fn new(inner: &Arc<FolderInner>, client: u64) -> StartedPage {
        *(inner.listing_queue.lock().started)
            .entry(client)
            .or_insert(0) += 1;
        StartedPage {
            inner: inner.clone(),
            client,
        }
    }
}

impl Drop for StartedPage {
    fn drop(&mut self) {
        let mut state = self.inner.listing_queue.lock();
        if let Some(count) = state.started.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                state.started.remove(&self.client);
            }
        }
        drop(state);
        self.inner.listing_queue.grant(); // Its client may begin another one.
    }
}

#[cfg(test)]
mod tests;
