//! Buffers for uploads, each held only from the moment there is something to put into it until that
//! is written.
//!
//! Most are shared by all uploads. What is written soon after it was received is still in the
//! processor's caches, so there are few and the one used last is used next. They are large because
//! the kernel's cost of a write falls with its size: page caches are made of larger folios, and the
//! pool is gone to less often. (40 MB to disk from 32 clients, against two buffers of 256 KiB for
//! each upload: 0.75 to 0.85 of the CPU; into memory 0.9. One of 2 MiB costs more again: folios of
//! that size come from memory that was not in use.)
//!
//! This module must not know where bytes come from or go to.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

/// The size of a shared buffer.
const SHARED_BYTES: usize = 512 * 1024;
/// Buffers that one upload fills in a row while others wait for one. Going on with what is there is
/// cheaper than taking turns; for ever it would starve them.
const IN_A_ROW_MAX: u32 = 16;
/// Buffers kept for the next upload while there is none.
const KEPT_MAX: usize = 1;

/// Buffers of one size, for one upload or for all.
#[derive(Debug)]
pub(super) struct Buffers {
    /// Bytes of each.
    each: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Empty ones that nobody holds, the last used last. Some have no memory (yet).
    free: Vec<Vec<u8>>,
    users: usize,
    /// Who found none, in order. When one is free, the first of them has been woken.
    waiting: VecDeque<(u64, Waker)>,
    tickets: u64,
}

/// The right to use the buffers, and a place in the line for the next that gets free.
#[derive(Debug)]
pub(super) struct User {
    buffers: Arc<Buffers>,
    ticket: u64,
    /// Buffers taken without waiting since it last did.
    in_a_row: Cell<u32>,
}

/// A buffer, given back when dropped. Its content is `bytes`; whoever takes them out puts the
/// memory in again, or it is made anew.
#[derive(Debug)]
pub(super) struct Held {
    buffers: Arc<Buffers>,
    pub(super) bytes: Vec<u8>,
}

impl Buffers {
    /// For all uploads: `per_core` for each of this process's cores, with at most `bytes_max` in
    /// all, but always one.
    pub(super) fn for_all_cores(per_core: usize, bytes_max: usize) -> Arc<Buffers> {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let count = (cores * per_core).min(bytes_max / SHARED_BYTES);
        Buffers::new(count.max(1), SHARED_BYTES)
    }

    /// `count` buffers of `each` bytes. Their memory is taken when they are used first.
    pub(super) fn new(count: usize, each: usize) -> Arc<Buffers> {
        Arc::new(Buffers {
            each,
            state: Mutex::new(State {
                free: vec![Vec::new(); count],
                users: 0,
                waiting: VecDeque::new(),
                tickets: 0,
            }),
        })
    }

    pub(super) fn user(self: &Arc<Buffers>) -> User {
        let mut state = self.lock();
        state.users += 1;
        state.tickets += 1;
        User {
            buffers: self.clone(),
            ticket: state.tickets,
            // Who comes anew stands at the end of the line.
            in_a_row: Cell::new(IN_A_ROW_MAX),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only whole changes are made under it, so a poisoned one is still right.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn leave(&mut self, ticket: u64) {
        self.waiting.retain(|&(waiting, _)| waiting != ticket);
    }

    /// Who is to be woken because a buffer is free.
    fn next(&self) -> Option<Waker> {
        let (_, waker) = self.waiting.front().filter(|_| !self.free.is_empty())?;
        Some(waker.clone())
    }
}

impl User {
    /// An empty buffer with all its room; without one, `waker` is woken when one is free.
    pub(super) fn poll_take(&self, waker: &Waker) -> Poll<Held> {
        let mut state = self.buffers.lock();
        let first = state.waiting.front();
        let too_many = self.in_a_row.get() >= IN_A_ROW_MAX;
        let others_first = too_many && first.is_some_and(|&(ticket, _)| ticket != self.ticket);
        let taken = match others_first {
            true => None,
            false => state.free.pop(),
        };
        if taken.is_some() {
            self.in_a_row
                .set(if too_many { 1 } else { self.in_a_row.get() + 1 });
            state.leave(self.ticket);
        } else {
            let ours = |(ticket, _): &&mut (u64, Waker)| *ticket == self.ticket;
            match state.waiting.iter_mut().find(ours) {
                Some((_, waiting)) => waiting.clone_from(waker),
                None => state.waiting.push_back((self.ticket, waker.clone())),
            }
        }
        let next = state.next();
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
        let Some(mut bytes) = taken else {
            return Poll::Pending;
        };
        bytes.reserve_exact(self.buffers.each);
        Poll::Ready(Held {
            buffers: self.buffers.clone(),
            bytes,
        })
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut state = self.buffers.lock();
        state.users -= 1;
        state.leave(self.ticket);
        let next = state.next();
        let mut unused = Vec::new();
        if state.users == 0 {
            let with_memory = state.free.iter_mut().rev().filter(|b| b.capacity() > 0);
            unused.extend(with_memory.skip(KEPT_MAX).map(mem::take));
        }
        drop(state);
        drop(unused); // freeing them is a call each: not under the lock
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.bytes.clear();
        let mut state = self.buffers.lock();
        state.free.push(mem::take(&mut self.bytes));
        let next = state.next();
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Woken>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn waker() -> (Arc<Woken>, Waker) {
        let woken = Arc::new(Woken::default());
        (woken.clone(), woken.into())
    }

    fn times(woken: &Woken) -> usize {
        woken.0.load(Ordering::Relaxed)
    }

    fn take(user: &User, waker: &Waker) -> Option<Held> {
        match user.poll_take(waker) {
            Poll::Ready(held) => Some(held),
            Poll::Pending => None,
        }
    }

    #[test]
    fn the_first_who_waits_is_woken_and_no_wake_up_is_lost() {
        let buffers = Buffers::new(1, 10);
        let [a, b, c] = [(); 3].map(|()| buffers.user());
        let [(_, wa), (woken_b, wb), (woken_c, wc)] = [(); 3].map(|()| waker());
        let held = take(&a, &wa).unwrap();
        assert!(take(&b, &wb).is_none() && take(&c, &wc).is_none());
        drop(held);
        assert_eq!((times(&woken_b), times(&woken_c)), (1, 0));
        // The woken one goes away without having looked: the next is told.
        drop(b);
        assert_eq!(times(&woken_c), 1);
        // Somebody else was quicker: who waits keeps its place, and is told again.
        let held = take(&a, &wa).unwrap();
        assert!(take(&c, &wc).is_none());
        drop(held);
        assert_eq!(times(&woken_c), 2);
        assert!(take(&c, &wc).is_some());
        assert!(buffers.lock().waiting.is_empty());
    }

    #[test]
    fn who_fills_many_in_a_row_lets_others_go_first() {
        let buffers = Buffers::new(1, 10);
        let (busy, other) = (buffers.user(), buffers.user());
        let [(_, wa), (_, wb)] = [(); 2].map(|()| waker());
        let held = take(&busy, &wa).unwrap();
        assert!(take(&other, &wb).is_none());
        drop(held);
        let row = (0..).take_while(|_| take(&busy, &wa).is_some()).count();
        assert_eq!(row as u32, IN_A_ROW_MAX - 1);
        assert!(take(&other, &wb).is_some(), "its turn has come");
        assert!(take(&busy, &wa).is_some(), "and then the first may go on");
    }

    #[test]
    fn the_buffer_used_last_is_used_next() {
        let buffers = Buffers::new(3, 10);
        let user = buffers.user();
        let (_, waker) = waker();
        let first = take(&user, &waker).unwrap();
        let second = take(&user, &waker).unwrap();
        let (first_at, second_at) = (first.bytes.as_ptr(), second.bytes.as_ptr());
        drop(second);
        drop(first);
        let again = take(&user, &waker).unwrap();
        assert_eq!(again.bytes.as_ptr(), first_at);
        assert_eq!(take(&user, &waker).unwrap().bytes.as_ptr(), second_at);
    }

    #[test]
    fn memory_taken_out_is_made_anew_and_most_is_freed_when_nobody_uploads() {
        let buffers = Buffers::new(3, 10);
        let user = buffers.user();
        let (_, waker) = waker();
        let mut held: Vec<Held> = (0..3).map(|_| take(&user, &waker).unwrap()).collect();
        assert!(take(&user, &waker).is_none());
        assert_eq!(mem::take(&mut held[0].bytes).capacity(), 10);
        drop(held);
        let held: Vec<Held> = (0..3).map(|_| take(&user, &waker).unwrap()).collect();
        assert!(held.iter().all(|held| held.bytes.capacity() == 10));
        drop(held);
        drop(user);
        let state = buffers.lock();
        assert_eq!(state.free.len(), 3);
        let kept = state.free.iter().filter(|b| b.capacity() > 0).count();
        assert_eq!(kept, KEPT_MAX);
    }
}
