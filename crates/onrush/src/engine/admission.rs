//! Decides which new connections are served: those below the connection limit, and those above it
//! for which an idle connection can be closed.
//!
//! At the limit, the engine closes the connection of this worker that has been idle for the longest
//! time, as nginx closes its reusable connections when it runs out of `worker_connections`. If this
//! worker has no idle connection, the other workers try the same, one after the other. So clients
//! that connect and stay silent cannot lock others out. A client with a large part of the
//! connections displaces only its own. When no connection is idle, one of the client that has the
//! most makes room (`crowding`), and otherwise the new one receives a 503.

use crate::engine::connection::Conn;
use crate::engine::connection::state::AfterFlush;
use crate::engine::lifecycle::{Engine, count};
use crate::engine::open::OpenConn;
use crate::engine::shared::crowding::MakesRoom;
use crate::engine::shared::exchange_log::Received;
use crate::engine::shared::idle_order::pass_pause_ms;
use crate::engine::shared::listeners::Incoming;
use crate::engine::shared::transfer::Transfer;
use crate::log::Outcome;
use crate::metrics::CloseReason;
use crate::panic_guard;
use onrush_rt::diagnose;
use onrush_rt::net::Peer;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// The shortest time between two warnings that accepting is paused. Accepting is retried many times
/// a second.
const ACCEPT_WARNING_S: u64 = 10;
/// The response to a connection over the limit, whatever it requests.
const OVER_LIMIT_RESPONSE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\
    Content-Length: 0\r\nConnection: close\r\n\r\n";

/// The most idle connections that are closed for one new connection. One may not be enough, because
/// short reads of files compete for the released descriptors.
const CLOSED_PER_ACCEPT_MAX: usize = 4;
/// The most idle connections that are closed when the process has no descriptor left (`EMFILE`,
/// accept(2)) and accepting pauses.
const CLOSED_PER_PAUSE: usize = 16;
impl Engine {
    pub(super) fn accept(self: &Rc<Self>, incoming: Incoming) {
        count(&self.counters.accepted);
        if self.settings.proxy_protocol {
            let peer = incoming.socket.peer();
            let is_trusted = self.running.borrow().trusted_proxies.trusts(peer);
            if !is_trusted {
                return self.refuse_untrusted(peer);
            }
        }
        self.admit(incoming, 0);
    }

    /// Serves a new connection if there is a place for it. Otherwise passes it to the next worker,
    /// or rejects it if all workers have found no place. `asked` is the number of workers that have
    /// already found none.
    pub(super) fn admit(self: &Rc<Self>, incoming: Incoming, asked: usize) {
        if self.reserve_place() || self.reserve_place_of_idle(incoming.socket.peer()) {
            return self.place_connection(incoming);
        }
        match self.forward_over_limit(incoming, asked + 1) {
            Ok(()) => {}
            Err(incoming) if self.reserve_place_of_crowding(incoming.socket.peer()) => {
                self.place_connection(incoming);
            }
            Err(incoming) => self.reject_over_limit(incoming),
        }
    }

    /// Passes a connection to the next worker that may have an idle connection to close, or returns
    /// it if there is no such worker. `asked` counts the workers that had none, this one included.
    #[cold]
    fn forward_over_limit(&self, incoming: Incoming, asked: usize) -> Result<(), Incoming> {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        let next = worker_set.next_with_idle(own, self.context.now_ms());
        let Some(to) = next.filter(|_| asked < worker_set.workers()) else {
            return Err(incoming);
        };
        worker_set.reserve(to);
        match worker_set.transfer(own, to, Transfer::OverLimit(incoming, asked)) {
            Err(Transfer::OverLimit(incoming, _)) => {
                worker_set.release(own);
                Err(incoming)
            }
            _ => Ok(()),
        }
    }

    fn reserve_place(&self) -> bool {
        self.settings.reserve(self.running.borrow().connections_max)
    }

    /// [`Engine::reserve_place`] after idle connections have been closed.
    #[cold]
    fn reserve_place_of_idle(&self, peer: Peer) -> bool {
        let makes_room = {
            let (mut conns, running) = (self.conns.all(), self.running.borrow());
            let shared = &running.trusted_proxies;
            self.crowd.idle_for(&mut conns, shared, peer)
        };
        let close = || self.close_gone() || self.close_idle_of(makes_room);
        let has_place = (0..CLOSED_PER_ACCEPT_MAX).any(|_| close() && self.reserve_place());
        if has_place {
            self.crowd.add(peer);
        }
        has_place
    }

    /// Closes a connection whose client has gone; `false` if there is none.
    fn close_gone(&self) -> bool {
        let gone = self.crowd.next_gone(&mut self.conns.all());
        if let Some(id) = gone {
            self.abort(id, CloseReason::Broken);
        }
        gone.is_some()
    }

    /// Closes an idle connection of those that make room; `false` if there is none.
    fn close_idle_of(&self, makes_room: MakesRoom) -> bool {
        let client = match makes_room {
            MakesRoom::Anybody => return self.close_idle(|_| true),
            MakesRoom::Nobody => return false,
            MakesRoom::Only(client) => client,
        };
        if !self.crowd.may_search() {
            return false;
        }
        let is_closed = self.close_idle(|conn| self.crowd.is_of(conn, client));
        if !is_closed {
            self.crowd.end_search();
        }
        is_closed
    }

    /// [`Engine::reserve_place`] after connections of the client with the most have been closed.
    #[cold]
    fn reserve_place_of_crowding(&self, peer: Peer) -> bool {
        (0..CLOSED_PER_ACCEPT_MAX).any(|_| self.close_crowding(peer) && self.reserve_place())
    }

    /// Closes a connection of the client that has the most; `false` if there is none to close.
    fn close_crowding(&self, peer: Peer) -> bool {
        let found = {
            let (mut conns, running) = (self.conns.all(), self.running.borrow());
            self.crowd.next(&mut conns, &running.trusted_proxies, peer)
        };
        let Some(id) = found else { return false };
        diagnose!(DEBUG, connection = id.token();
            "a connection of the client with the most is closed for a new one");
        self.abort(id, CloseReason::Displaced);
        true
    }

    /// Closes the TLS connection that has been idle for the longest time; `false` if none is idle.
    #[cfg(feature = "tls")]
    pub(super) fn close_idle_session(&self) -> bool {
        let (order, now_ms) = (&self.idle_order, self.context.now_ms());
        if now_ms < order.next_session_pass_ms.get() {
            return false;
        }
        let is_closed = self.close_idle(|conn| conn.transport.is_tls());
        if !is_closed {
            let pause_ms = pass_pause_ms(self.conns.all().len());
            order.next_session_pass_ms.set(now_ms + pause_ms);
        }
        is_closed
    }

    /// Closes the connection of this worker that has been idle for the longest time, among those
    /// that `may_close` accepts; `false` if there is none. If no connection at all is idle,
    /// publishes when this worker looks again, so that the other workers pass no connections to it
    /// before.
    ///
    /// One call makes at most one pass. A connection whose request waits in the kernel is found
    /// idle by each pass and is never closed, so further passes would find it again.
    fn close_idle(&self, may_close: impl Fn(&Conn) -> bool) -> bool {
        let mut may_pass = true;
        let mut kept = Vec::new(); // Idle ones that are not to be closed.
        let is_closed = loop {
            let oldest = self.idle_order.longest_first.borrow_mut().pop_front();
            let Some((id, idleness)) = oldest else {
                let now_ms = self.context.now_ms();
                let mut conns = self.conns.all();
                if may_pass && self.idle_order.find(&mut conns, &self.limits(), now_ms) {
                    may_pass = false;
                    kept.clear(); // They were found again.
                    continue;
                }
                if !kept.is_empty() {
                    break false;
                }
                if !may_pass {
                    // The last pass examined all connections, and none of them could be closed.
                    let next_ms = now_ms + pass_pause_ms(conns.len());
                    self.idle_order.next_pass_ms.set(next_ms);
                }
                let next_ms = (now_ms + 1).max(self.idle_order.next_pass_ms.get());
                let worker_set = &self.settings.worker_set;
                worker_set.set_no_idle_until(self.context.index(), next_ms);
                return false;
            };
            let is_idle = {
                let idle = |conn: &OpenConn<'_>| conn.idleness(&self.limits()) == Some(idleness);
                let Some(conn) = self.conns.open(id).filter(idle) else {
                    continue;
                };
                if !may_close(&conn) {
                    kept.push((id, idleness));
                    continue;
                }
                // The kernel may hold a request that the driver has not fetched.
                !self.context.driver().has_unread(conn.stream)
            };
            if is_idle {
                self.close(id, CloseReason::Displaced);
                diagnose!(DEBUG, connection = id.token();
                    "the connection that was idle longest is closed for a new one");
                break true;
            }
        };
        let mut order = self.idle_order.longest_first.borrow_mut();
        for entry in kept.into_iter().rev() {
            order.push_front(entry);
        }
        is_closed
    }

    /// Sends a 503 to a connection over the limit, and keeps the connection open until the client
    /// has read it. There are at most `Settings::over_limit_max` of them; the oldest makes room.
    #[cold]
    fn reject_over_limit(self: &Rc<Self>, incoming: Incoming) {
        count(&self.counters.placed);
        count(&self.counters.refused);
        diagnose!(DEBUG, worker = self.context.index(); "too many connections, one is rejected");
        if incoming.tls {
            // A response would need a handshake, which costs more than the connection is worth.
            self.counters.done.count(CloseReason::Refused);
            return;
        }
        let oldest = {
            let over_limit = self.over_limit.borrow();
            let is_full = over_limit.len() >= self.settings.over_limit_max;
            over_limit.front().copied().filter(|_| is_full)
        };
        if let Some(oldest) = oldest {
            self.close(oldest, CloseReason::Refused);
        }
        let id = self.conns.all().reserve();
        let attached = self.context.driver().attach(incoming.socket, id.token());
        let Ok(stream) = attached else {
            self.conns.all().release(id);
            self.counters.done.count(CloseReason::Refused);
            return;
        };
        let mut conn = Conn::new(stream);
        conn.state.refuse();
        if self.conns.io.log.is_on() {
            // Nothing was received, so the request is not known.
            let received = Received {
                bytes: &[],
                limits: &self.limits(),
            };
            let outcome = Outcome::Rejected;
            self.conns
                .io
                .log
                .reject(&mut conn, 503, outcome, received, 0, OVER_LIMIT_RESPONSE);
        }
        self.conns.insert(id, conn);
        self.over_limit.borrow_mut().push_back(id);
        self.send_then(id, OVER_LIMIT_RESPONSE, AfterFlush::Linger);
    }

    /// Logs that accepting is paused, once per [`ACCEPT_WARNING_S`] for all workers, and closes
    /// idle connections.
    pub(super) fn accept_paused(&self, error: &io::Error) {
        let (now_s, warned) = (self.context.unix_seconds(), &self.settings.accept_warned_s);
        let last_s = warned.load(Ordering::Relaxed);
        let is_due = last_s.abs_diff(now_s) >= ACCEPT_WARNING_S;
        let swap = |to| warned.compare_exchange(last_s, to, Ordering::Relaxed, Ordering::Relaxed);
        if is_due && swap(now_s).is_ok() {
            panic_guard::log(|| tracing::warn!(%error, "accepting pauses"));
        }
        let _ = (0..CLOSED_PER_PAUSE).all(|_| self.close_idle(|_| true));
    }
}
