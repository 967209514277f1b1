//! Which new connections are served: those below the cap, and those above it for which an idle
//! connection can be closed.
//!
//! When there is no place for a new connection, the connection of this worker that has been idle
//! for the longest time is closed, as nginx closes its reusable connections when it runs out of
//! `worker_connections`. If this worker has no idle connection, the other workers try the same, one
//! after the other. A new connection gets 503 only when no connection is idle. So clients that
//! connect and stay silent cannot lock others out.
//!
//! The order of idleness costs requests nothing: it is found when it is needed, by one pass over
//! the connections, and holds until its last entry has been used. Whoever becomes idle after the
//! pass has been idle for a shorter time than each entry of it.
//!
//! Must not know how a connection is served.

use super::connection::{Conn, Phase, Then};
use super::migration::Transfer;
use super::{Engine, Settings, count};
use crate::host::ConnId;
use crate::metrics::CloseReason;
use crate::panic_guard;
use onrush_proto::limits::Limits;
use onrush_rt::diagnose;
use onrush_rt::driver::Socket;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Trouble with accepting is told once in this time: it is tried again many times a second.
const ACCEPT_WARNING_S: u64 = 10;
/// Answer to a connection over the cap, whatever it asks.
const CROWDED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";

/// Idle connections that are closed for one new connection, at most: short reads of files may hold
/// the descriptors that the first ones give back.
const CLOSED_PER_ACCEPT_MAX: usize = 4;
/// Idle connections that are closed when the process has no descriptor left (`EMFILE`, accept(2)).
const CLOSED_PER_PAUSE: usize = 16;
/// A pass over so many connections that found too few idle ones is not repeated for a millisecond.
const PASS_PER_MS: usize = 2048;

/// The idle connections of one worker, in order of idleness.
#[derive(Debug, Default)]
pub(super) struct IdleOrder {
    /// From the last pass, the longest idle first.
    longest_first: RefCell<VecDeque<(ConnId, Idleness)>>,
    /// When the next pass may take place, in ms of the worker's clock.
    next_pass_ms: Cell<u64>,
}

/// How long a connection has been idle, the longest first: when that began, in ms of the worker's
/// clock, and the responses that it had got by then. Without a limit on idle time the former is
/// unknown, and connections that never asked for anything come first.
type Idleness = (u64, u32);

impl Conn {
    /// `None` when the connection is not idle. It is between two requests or before the first one,
    /// with nothing received and nothing unsent. The deadline tells since when.
    fn idleness(&self, limits: &Limits) -> Option<Idleness> {
        let is_idle = self.phase == Phase::Ready
            && !(self.over_limit || self.ended || self.draining_body)
            && self.leaving.is_none()
            && self.active.as_ref().is_none_or(|active| active.is_idle());
        let limit_ms = match self.in_head {
            true => limits.head_timeout_ms, // The first head: of another one, input would be kept.
            false => limits.idle_timeout_ms,
        };
        let began_ms = self.deadline_ms.saturating_sub(u64::from(limit_ms));
        is_idle.then_some((began_ms, self.response_count))
    }
}

impl Engine {
    pub(super) fn accept(self: &Rc<Self>, socket: Socket) {
        count(&self.counters.accepted);
        self.admit(socket, 0);
    }

    /// Serves a new connection for which `asked` other workers have found no place, has the next
    /// worker do this, or rejects it.
    pub(super) fn admit(self: &Rc<Self>, socket: Socket, asked: usize) {
        if self.reserve_place() || self.reserve_place_of_idle() {
            return self.place_connection(socket);
        }
        match self.pass_over_limit(socket, asked + 1) {
            Ok(()) => {}
            Err(socket) => self.reject_over_limit(socket),
        }
    }

    /// Passes a connection to the next worker that may have an idle connection to close. `asked`
    /// counts the workers that had none, this one included.
    #[cold]
    fn pass_over_limit(&self, socket: Socket, asked: usize) -> Result<(), Socket> {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        let next = worker_set.next_with_idle(own, self.context.now_ms());
        let Some(to) = next.filter(|_| asked < worker_set.workers()) else {
            return Err(socket);
        };
        worker_set.reserve(to);
        match worker_set.transfer(own, to, Transfer::OverLimit(socket, asked)) {
            Err(Transfer::OverLimit(socket, _)) => {
                worker_set.release(own);
                Err(socket)
            }
            _ => Ok(()),
        }
    }

    /// Whether there is room for one more connection under the cap; it is counted then.
    fn reserve_place(&self) -> bool {
        let Settings {
            connections,
            descriptors,
            ..
        } = &self.settings;
        let below_cap = connections.fetch_add(1, Ordering::Relaxed) < self.settings.connections_max;
        let free = below_cap && descriptors.open_connection();
        if !free {
            connections.fetch_sub(1, Ordering::Relaxed);
        }
        free
    }

    /// [`Engine::reserve_place`] after idle connections have been closed.
    #[cold]
    fn reserve_place_of_idle(&self) -> bool {
        (0..CLOSED_PER_ACCEPT_MAX).any(|_| self.close_idle() && self.reserve_place())
    }

    /// Closes the connection of this worker that has been idle for the longest time; `false` when
    /// none is idle, which the other workers are informed of.
    ///
    /// At most one pass takes place per call. A connection whose request waits in the kernel is
    /// found idle by each pass and is never closed, so further passes would find it again.
    fn close_idle(&self) -> bool {
        let mut may_pass = true;
        loop {
            let oldest = self.idle_order.longest_first.borrow_mut().pop_front();
            let Some((id, idleness)) = oldest else {
                if may_pass && self.find_idle() {
                    may_pass = false;
                    continue;
                }
                if !may_pass {
                    self.delay_next_pass(self.conns.borrow().open());
                }
                let next_ms = (self.context.now_ms() + 1).max(self.idle_order.next_pass_ms.get());
                let worker_set = &self.settings.worker_set;
                worker_set.set_no_idle_until(self.context.index(), next_ms);
                return false;
            };
            let is_idle = {
                let mut conns = self.conns.borrow_mut();
                let conn = conns.get(id);
                conn.is_some_and(|conn| {
                    // A request may have come that the driver has not fetched.
                    conn.idleness(self.limits()) == Some(idleness)
                        && !self.context.driver().has_unread(conn.stream)
                })
            };
            if is_idle {
                self.close(id, CloseReason::Displaced);
                diagnose!(DEBUG, connection = id.token();
                    "too many connections, the one that was idle longest is closed");
                return true;
            }
        }
    }

    /// Puts the idle connections in order; whether there are any. Where most connections are at
    /// work, this is not done for each new one.
    fn find_idle(&self) -> bool {
        let (order, now_ms) = (&self.idle_order, self.context.now_ms());
        if now_ms < order.next_pass_ms.get() {
            return false;
        }
        let mut conns = self.conns.borrow_mut();
        let ids = conns.ids();
        let idleness = |&id| Some((id, conns.get(id)?.idleness(self.limits())?));
        let mut idle: Vec<(ConnId, Idleness)> = ids.iter().filter_map(idleness).collect();
        idle.sort_unstable_by_key(|&(_, idleness)| idleness);
        if idle.len() < ids.len() / 16 {
            order
                .next_pass_ms
                .set(now_ms + (ids.len() / PASS_PER_MS) as u64);
        }
        let any = !idle.is_empty();
        *order.longest_first.borrow_mut() = idle.into();
        any
    }

    /// Permits the next pass in a later iteration of the event loop: the last one looked at
    /// `connections` and none of them could be closed.
    fn delay_next_pass(&self, connections: usize) {
        let pause_ms = 1 + (connections / PASS_PER_MS) as u64;
        let next_ms = self.context.now_ms() + pause_ms;
        self.idle_order.next_pass_ms.set(next_ms);
    }

    /// Tells a connection over the cap to come again, and lets it read that.
    fn reject_over_limit(self: &Rc<Self>, socket: Socket) {
        count(&self.counters.placed);
        count(&self.counters.refused);
        diagnose!(DEBUG, worker = self.context.index(); "too many connections, one is rejected");
        let id = self.conns.borrow_mut().reserve();
        let attached = self.context.driver().attach(socket, id.token());
        let is_full = self.over_limit.get() >= self.settings.over_limit_max;
        let Some(&stream) = attached.as_ref().ok().filter(|_| !is_full) else {
            self.conns.borrow_mut().release(id);
            self.counters.done.count(CloseReason::Refused);
            if let Ok(stream) = attached {
                let mut driver = self.context.driver();
                let _ = driver.send(stream, CROWDED); // It is going away in any case.
                driver.close(stream);
            }
            return;
        };
        self.over_limit.set(self.over_limit.get() + 1);
        let mut conn = Conn::new(stream);
        conn.over_limit = true;
        self.conns.borrow_mut().insert(id, conn);
        self.flush(id, CROWDED, Then::Linger);
    }

    /// Tells that accepting pauses, once for all workers in [`ACCEPT_WARNING_S`], and makes room.
    pub(super) fn accept_paused(&self, error: &io::Error) {
        let (now_s, warned) = (self.context.unix_seconds(), &self.settings.accept_warned_s);
        let last_s = warned.load(Ordering::Relaxed);
        let is_due = last_s.abs_diff(now_s) >= ACCEPT_WARNING_S;
        let swap = |to| warned.compare_exchange(last_s, to, Ordering::Relaxed, Ordering::Relaxed);
        if is_due && swap(now_s).is_ok() {
            panic_guard::log(|| tracing::warn!(%error, "accepting pauses"));
        }
        let _ = (0..CLOSED_PER_PAUSE).all(|_| self.close_idle());
    }
}
