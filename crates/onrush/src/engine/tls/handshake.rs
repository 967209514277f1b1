//! TLS handshakes of one worker.
//!
//! A handshake takes about as much CPU time as a hundred small requests. So a worker continues
//! few handshakes per event-loop iteration. The others wait in a queue, and a task continues them,
//! a few per poll, after the events of established connections. At most [`HANDSHAKES_MAX`]
//! handshakes are in progress on a worker. A further one ends the oldest.

use crate::connections::ConnId;
use crate::engine::connection::tls_connection::{
    HANDSHAKE_STATE_BYTES, HandshakePlace, Next, NoMemory, Processed, SessionReservation, Tls,
};
use crate::engine::connection::transport::Transport;
use crate::engine::connection::{Conn, Responding};
use crate::engine::lifecycle::Engine;
use crate::engine::shared::handshakes::HANDSHAKES_PER_ITERATION;
use crate::log::Outcome;
use crate::metrics::{CloseReason, HandshakeOutcome, TimeLimit};
use crate::panic_guard;
use crate::tls::session::Session;
use crate::tls::{ACME_TLS, TlsInfo};
use onrush_proto::reject::Reject;
use onrush_rt::coop;
use onrush_rt::worker::Notifier;
use std::ops::Range;
use std::rc::Rc;

/// The most handshakes in progress on one worker.
const HANDSHAKES_MAX: usize = 1024;
/// The server stops receiving for a handshake that waits and has received this much. The client may
/// have sent its request and a body behind the last message of the handshake.
const WAITING_BYTES_MAX: usize = 32 * 1024;
/// What continuing a handshake costs of the cooperative budget, in bytes.
const HANDSHAKE_COST: usize = 64 * 1024;
/// The part of the receive memory above which a new session ends an idle one, in eighths.
const SESSIONS_MARK: usize = 4;
/// The part of the receive memory that sessions may hold, in eighths: requests in progress do not
/// end for a new session, which is refused instead. It is less than the thresholds of `pressure`,
/// so sessions alone never make receive memory short.
const SESSIONS_MAX: usize = 5;

/// The part of the receive memory that incomplete messages of handshakes may hold, in eighths.
const MESSAGES_MAX: usize = 1;

impl Engine {
    /// Whether connections of the listener with this index begin with a handshake.
    pub(in crate::engine) fn uses_tls(&self, listener: usize) -> bool {
        let settings = self.settings.tls.as_ref();
        settings.is_some_and(|tls| tls.listeners.get(listener).copied().unwrap_or(true))
    }

    /// Leaves a handshake to a task.
    pub(super) fn queue_handshake(self: &Rc<Self>, id: ConnId) {
        {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let Some(tls) = conn.tls() else { return };
            let is_long = tls.received_len() >= WAITING_BYTES_MAX;
            let is_queued = std::mem::replace(&mut tls.is_waiting, true);
            if !is_queued {
                tls.shrink_received(self.context.pool());
            }
            if is_long && !conn.state.is_paused() && !conn.state.has_ended() {
                conn.pause_receiving();
            }
            if is_queued {
                return;
            }
        }
        self.list_partial_record(id);
        self.tls.handshakes.waiting.borrow_mut().push_back(id);
        if self.tls.handshakes.has_task.replace(true) {
            return;
        }
        let engine = self.clone();
        let work = async move {
            loop {
                coop::yield_now().await;
                for _ in 0..HANDSHAKES_PER_ITERATION {
                    let Some(id) = engine.next_waiting_handshake() else {
                        engine.tls.handshakes.has_task.set(false);
                        return;
                    };
                    // A panic must not end this task, which all waiting handshakes need.
                    let process = || {
                        engine.process_records(id);
                        engine.close_if_ended(id);
                    };
                    if panic_guard::catch(process).is_none() {
                        panic_guard::catch(|| engine.recover_from_panic(Some(id)));
                    }
                }
            }
        };
        self.context.spawn(work).detach();
    }

    /// Closes a connection whose client has half-closed while its handshake waited, unless it has
    /// sent a request that is in progress.
    fn close_if_ended(self: &Rc<Self>, id: ConnId) {
        let conn = self.conns.open(id);
        if conn.is_some_and(|conn| conn.state.has_ended() && conn.state.is_ready()) {
            self.close(id, CloseReason::Client);
        }
    }

    /// Takes the next handshake out of the queue. Skips those that have been continued already, and
    /// those whose connection has closed: they must not delay others.
    fn next_waiting_handshake(&self) -> Option<ConnId> {
        let mut waiting = self.tls.handshakes.waiting.borrow_mut();
        let is_waiting = |id| {
            let conn = self.conns.open(id);
            conn.is_some_and(|conn| conn.transport.is_handshake_waiting())
        };
        loop {
            let id = waiting.pop_front()?;
            if is_waiting(id) {
                return Some(id);
            }
        }
    }

    /// Counts a handshake that begins. Ends the oldest one if too many are in progress.
    fn begin_handshake(&self, id: ConnId) -> HandshakePlace {
        let handshakes = &self.tls.handshakes;
        let place = HandshakePlace::new(&handshakes.in_progress);
        handshakes.oldest_first.borrow_mut().push_back(id);
        while handshakes.in_progress.count() > HANDSHAKES_MAX && self.evict_oldest_handshake() {}
        // Handshakes that have ended are removed in bulk.
        let mut order = handshakes.oldest_first.borrow_mut();
        if order.len() > 4 * HANDSHAKES_MAX {
            order.retain(|&id| self.conns.is_handshaking(id));
        }
        drop(order);
        place
    }

    /// Ends the oldest handshake; `false` when there is none.
    fn evict_oldest_handshake(&self) -> bool {
        loop {
            let oldest = self.tls.handshakes.oldest_first.borrow_mut().pop_front();
            let Some(oldest) = oldest else { return false };
            if self.conns.is_handshaking(oldest) {
                self.counters.evicted.add(1);
                self.abort(oldest, CloseReason::Exhausted);
                return true;
            }
        }
    }

    /// Ends the oldest handshakes until incomplete messages hold at most [`MESSAGES_MAX`] of the
    /// receive memory. The present one may be among them.
    fn bound_messages(&self) {
        let most = self.context.pool().budget().max_bytes() / 8 * MESSAGES_MAX;
        let in_progress = &self.tls.handshakes.in_progress;
        while in_progress.held_bytes() > most && self.evict_oldest_handshake() {}
    }

    /// Ends connections until sessions hold at most [`SESSIONS_MARK`] of the receive memory, with
    /// one more. Otherwise clients that hold connections could keep the server from receiving.
    /// If most of that memory is for handshakes, the oldest of them ends, otherwise the connection
    /// that was idle for the longest time. Returns `false` when neither exists and sessions with
    /// requests in progress hold [`SESSIONS_MAX`].
    fn make_room_for_session(&self) -> bool {
        let eighth = self.context.pool().budget().max_bytes() / 8;
        loop {
            let bytes = self.tls.memory.bytes() + HANDSHAKE_STATE_BYTES;
            if bytes <= eighth * SESSIONS_MARK {
                return true;
            }
            let handshakes_first = self.tls.handshakes.in_progress.bytes() > bytes / 2;
            let has_ended = (handshakes_first && self.evict_oldest_handshake())
                || self.close_idle_session()
                || self.evict_oldest_handshake();
            if !has_ended {
                return bytes <= eighth * SESSIONS_MAX;
            }
        }
    }

    /// Reserves the memory of a new session. This may close connections, also the one that needs
    /// the memory.
    fn reserve_session(self: &Rc<Self>) -> Option<SessionReservation> {
        if !self.make_room_for_session() {
            return None;
        }
        let pool = self.context.pool();
        let reserve = || self.tls.memory.reserve(pool, HANDSHAKE_STATE_BYTES);
        reserve().or_else(|| {
            self.reclaim_memory();
            reserve()
        })
    }

    /// Creates the session of a connection. `None` if there is no memory for it, or if rustls
    /// refuses the configuration.
    fn create_session(self: &Rc<Self>, id: ConnId) -> Option<Tls> {
        let settings = self.settings.tls.as_ref()?;
        let reservation = self.reserve_session()?;
        // Before the configuration is read, so that no later change is missed.
        let client_generation = settings.config.client_generation();
        match Session::accept(&settings.config) {
            Ok(session) => Some(Tls {
                client_generation,
                session: Some(session),
                reservation: Some(reservation),
                place: Some(self.begin_handshake(id)),
                ..Tls::default()
            }),
            Err(error) => {
                panic_guard::log(|| tracing::error!(%error, "a TLS session could not be created"));
                None
            }
        }
    }

    /// Processes the received bytes of a connection in its handshake. `None` when there are none,
    /// or when the connection was closed.
    pub(super) fn process_handshake(
        self: &Rc<Self>,
        id: ConnId,
        out: &mut Vec<u8>,
        plaintext: &mut Vec<Range<usize>>,
    ) -> Option<Processed> {
        let is_new = {
            let mut conn = self.conns.open(id)?;
            if conn.state.is_paused() {
                conn.resume_receiving();
            }
            let tls = conn.tls()?;
            tls.is_waiting = false;
            tls.received.as_ref()?;
            tls.session.is_none()
        };
        coop::spend(HANDSHAKE_COST);
        if is_new {
            let created = self.create_session(id);
            // The connection may have been closed for the memory.
            let mut conn = self.conns.open(id)?;
            let tls = conn.tls()?;
            match created {
                Some(created) => {
                    let received = tls.received.take();
                    **tls = Tls {
                        received,
                        ..created
                    };
                }
                None => {
                    drop(conn);
                    self.counters.handshakes.count(HandshakeOutcome::Refused);
                    self.close(id, CloseReason::Exhausted);
                    return None;
                }
            }
        }
        // The certificate resolver is user code, so the state is not borrowed.
        let mut tls = std::mem::take(self.conns.open(id)?.tls()?);
        let mut block = tls.received.take();
        let pool = self.context.pool();
        let mut result = panic_guard::catch(|| tls.process(&mut block, out, plaintext, pool));
        // Present once, when the handshake is complete, also if a later record has failed.
        let parts = tls.session.as_mut().and_then(Session::take_parts);
        let handshaken = parts.is_some();
        let mut early_data = Vec::new();
        let has_memory = match parts {
            Some(parts) => {
                early_data = std::mem::take(&mut tls.early_data);
                tls.establish(TlsInfo::new(parts))
            }
            None => tls.count_held(),
        };
        if !has_memory && let Some(Ok(Next::Continue)) = result {
            result = Some(Err(NoMemory));
        }
        let is_validation =
            handshaken && (tls.info.as_ref()).is_some_and(|info| info.alpn() == Some(ACME_TLS));
        let is_admitted = !handshaken || self.admits(&mut tls);
        let speaks_http2 = (tls.info.as_ref()).is_some_and(|info| info.alpn() == Some(b"h2"));
        if let Some(mut conn) = self.conns.open(id) {
            if let Some(own) = conn.tls() {
                *own = tls;
            }
            if handshaken {
                conn.record_handshake();
                self.expect_first_head(&mut conn);
            }
        }
        if handshaken && speaks_http2 {
            self.begin_streams(id);
        }
        if !handshaken {
            self.bound_messages();
        }
        // RFC 8737 §3: the handshake is all that the ACME server wants.
        if is_validation || !is_admitted {
            plaintext.clear();
            early_data.clear();
            result = result.map(|_| Ok(Next::Closed));
        }
        Some(Processed {
            block,
            early_data,
            result,
        })
    }

    /// Whether the client of an established session meets the requirements of this moment.
    fn admits(&self, tls: &mut Tls) -> bool {
        let Some((settings, info)) = self.settings.tls.as_ref().zip(tls.info.as_ref()) else {
            return true;
        };
        let generation = settings.config.client_generation();
        if std::mem::replace(&mut tls.client_generation, generation) == generation {
            return true;
        }
        settings.config.admits(info.peer_certificates())
    }

    /// Whether a connection that has moved here is one of a client that is still admitted.
    pub(in crate::engine) fn admits_client(&self, id: ConnId) -> bool {
        let conn = self.conns.open(id);
        conn.is_none_or(|mut conn| conn.tls().is_none_or(|tls| self.admits(tls)))
    }

    /// Wakes this worker when the requirements for client certificates change.
    pub(crate) fn watch_clients(&self, worker: Notifier) -> impl Sized + use<> {
        let settings = self.settings.tls.as_ref();
        settings.map(|tls| tls.config.watch_clients(worker))
    }

    /// Ends the connections of clients that are not admitted any more, if the requirements have
    /// changed. A task looks at a few per poll, because each signature takes a tenth of a
    /// millisecond.
    pub(in crate::engine) fn end_clients(self: &Rc<Self>) {
        let Some(settings) = &self.settings.tls else {
            return;
        };
        let generation = settings.config.client_generation();
        if self.tls.client_generation.replace(generation) == generation {
            return;
        }
        let engine = self.clone();
        let ids = self.conns.ids();
        let work = async move {
            for few in ids.chunks(HANDSHAKES_PER_ITERATION as usize) {
                for id in few {
                    if !engine.admits_client(*id) {
                        panic_guard::catch(|| engine.abort(*id, CloseReason::NotAdmitted));
                    }
                }
                coop::yield_now().await;
            }
        };
        self.context.spawn(work).detach();
    }

    /// Responds to a plain request on a TLS port.
    pub(super) fn reject_plain_http(self: &Rc<Self>, id: ConnId) {
        if let Some(mut conn) = self.conns.open(id) {
            self.counters.handshakes.count(HandshakeOutcome::PlainHttp);
            conn.transport = Transport::Plain;
            conn.state.expect_request();
        }
        let reject = Reject::new(400, "this port requires TLS, use https");
        self.reject_request(id, reject, Outcome::Rejected);
    }

    /// Called when the time limit of a handshake has expired.
    pub(in crate::engine) fn on_handshake_timeout(&self, id: ConnId) {
        if self.conns.shutdown.has_begun() {
            return self.close(id, CloseReason::Drained);
        }
        self.counters.timed_out.count(TimeLimit::Handshake);
        self.close(id, CloseReason::TimedOut);
    }

    /// Called when a connection closes.
    pub(in crate::engine) fn close_tls(&self, conn: &mut Conn, reason: CloseReason) {
        let handshaking = conn.state.is_handshaking();
        // A client that receives `close_notify` treats what it has received as complete.
        let has_begun = (conn.active.as_ref())
            .is_none_or(|active| active.exchange.responding != Responding::NotYet);
        let is_cut = match reason {
            CloseReason::Complete => false,
            CloseReason::Client => conn.state.phase().has_request() && has_begun,
            _ => conn.state.phase().has_request(),
        };
        let Transport::Tls(tls) = &conn.transport else {
            return;
        };
        if handshaking && tls.session.is_some() {
            let outcome = match reason {
                CloseReason::Idle
                | CloseReason::TimedOut
                | CloseReason::Drained
                | CloseReason::Stopped => HandshakeOutcome::TimedOut,
                CloseReason::Exhausted => HandshakeOutcome::Refused,
                _ => HandshakeOutcome::Failed,
            };
            self.counters.handshakes.count(outcome);
        } else if reason != CloseReason::Broken && !is_cut {
            self.conns.io.send_close_notify(conn);
        }
    }
}
