//! Moves connections between workers: new ones to the worker that they are assigned to, and
//! established ones between two requests.
//!
//! To move an established connection, the engine first pauses it: the driver stops receiving, and
//! input that it has already received is kept. Then the socket, that input, the protocol state and
//! the deadline are transferred, and the other worker resumes the connection.

use crate::connections::ConnId;
use crate::engine::connection::state::{Phase, Target};
use crate::engine::connection::tls_connection::MovedTls;
use crate::engine::connection::transport::Transport;
use crate::engine::lifecycle::{Engine, count};
use crate::engine::shared::listeners::Incoming;
use crate::engine::shared::transfer::{EstablishedConn, Transfer};
use crate::metrics::CloseReason;
use crate::panic_guard;
use crate::worker_set::Assignment;
use onrush_rt::diagnose;
use std::rc::Rc;

impl Engine {
    /// Assigns a new connection to this worker or to another one.
    pub(in crate::engine) fn place_connection(self: &Rc<Self>, incoming: Incoming) {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        let Assignment::Peer(to) = worker_set.place_connection(own, self.context.now_ms()) else {
            return self.open_connection(incoming);
        };
        if let Err(Transfer::Accepted(incoming)) =
            worker_set.transfer(own, to, Transfer::Accepted(incoming))
        {
            self.open_connection(incoming);
        }
    }

    /// Serves the connections in this worker's inbox.
    pub(in crate::engine) fn receive_transfers(self: &Rc<Self>) {
        self.accept_transfers(self.settings.worker_set.take_inbox(self.context.index()));
    }

    /// Serves connections that other workers have transferred.
    pub(crate) fn accept_transfers(self: &Rc<Self>, transfers: Vec<Transfer>) {
        for transfer in transfers {
            // Panics are caught for each connection: one must not lose the others.
            let served = panic_guard::catch(|| match transfer {
                Transfer::Accepted(incoming) => self.open_connection(incoming),
                Transfer::Established(live) => {
                    count(&self.counters.taken_over);
                    self.resume_connection(*live);
                }
                Transfer::Adopted(mut live) => {
                    count(&self.counters.taken_over);
                    let now_ms = self.context.now_ms();
                    let idle_ms = u64::from(self.limits().idle_timeout_ms);
                    if idle_ms > 0 {
                        live.deadline_ms = live.deadline_ms.min(now_ms + idle_ms);
                    }
                    self.resume_connection(*live);
                }
                Transfer::OverLimit(incoming, asked) => {
                    self.settings.worker_set.release(self.context.index());
                    self.admit(incoming, asked);
                }
            });
            if served.is_none() {
                self.recover_from_panic(None);
            }
        }
    }

    /// Moves a connection to the worker `to`, at once or after the response to its present request.
    pub(crate) fn migrate_to(self: &Rc<Self>, id: ConnId, to: usize) {
        let Some(mut conn) = self.conns.open(id) else {
            return;
        };
        let stays = matches!(
            conn.state.phase(),
            Phase::Leaving | Phase::Lingering | Phase::Streams
        );
        if stays
            || conn.state.is_in_proxy_header()
            || conn.state.is_refused()
            || conn.state.has_ended()
            || conn.state.is_handshaking()
        {
            return;
        }
        conn.state.plan_move(Target::Worker(to));
        if conn.state.is_ready() {
            drop(conn);
            self.begin_migration(id);
        }
    }

    /// [`Engine::migrate_to`] for all connections.
    pub(crate) fn migrate_all_to(self: &Rc<Self>, to: usize) {
        for id in self.conns.ids() {
            self.migrate_to(id, to);
        }
    }

    /// Starts to move a connection that is between two requests.
    pub(in crate::engine) fn begin_migration(self: &Rc<Self>, id: ConnId) {
        {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            if conn.transport.is_delivering() {
                // The rest of what was decrypted could not move with it.
                conn.state.cancel_move();
                return;
            }
            conn.state.begin_move(id);
            if !self.context.driver().pause(conn.stream) {
                return; // `ReceiveStopped` follows, possibly after more input.
            }
        }
        self.finish_migration(id);
    }

    /// Transfers a connection that has stopped receiving.
    pub(in crate::engine) fn finish_migration(self: &Rc<Self>, id: ConnId) {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        let has_unsent = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let has_unsent = (conn.active.as_ref()).is_some_and(|active| active.has_unsent());
            if has_unsent {
                conn.state.cancel_move();
            }
            has_unsent
        };
        if has_unsent {
            return self.resume_reading(id); // Such as a response to a key update.
        }
        let unsent_limit = self.conns.unsent_limits().get(id);
        let Some(mut conn) = self.conns.remove(id) else {
            return;
        };
        match conn.state.leaving() {
            Some(Target::Successor) => diagnose!(DEBUG, worker = own, connection = id.token();
                "connection is passed on to another process"),
            Some(Target::Worker(index)) => {
                diagnose!(DEBUG, worker = own, connection = id.token(), to = index;
                    "connection migrates to another worker");
            }
            None => {}
        }
        if let Some(timer) = conn.timer {
            self.context.unschedule(timer);
        }
        let detached = self.context.driver().detach(conn.stream);
        let Some((socket, to)) = detached.zip(conn.state.leaving()) else {
            return self.record_close(CloseReason::Exhausted);
        };
        let mut input = Vec::new();
        for piece in conn.active.iter().flat_map(|active| &active.wire.input) {
            input.extend_from_slice(piece);
        }
        let live = Box::new(EstablishedConn {
            socket,
            tls: conn.transport.take_moved(),
            client: self.conns.peers.forget(conn.stream),
            machine: conn.machine,
            input,
            deadline_ms: conn.deadline_ms,
            expects: conn.state.expects(),
            unsent_limit,
            from: own,
            returned: false,
            stays: false,
        });
        let to = match to {
            Target::Worker(to) => to,
            Target::Successor => return self.give_to_outbox(live),
        };
        if self.conns.shutdown.has_begun() || worker_set.is_draining() {
            return self.resume_connection(*live);
        }
        if let Err(live) = self.send_transfer(to, live) {
            self.resume_connection(*live); // That worker has stopped.
        }
    }

    /// Transfers a connection to the worker `to`, or returns it when that worker has stopped.
    fn send_transfer(
        &self,
        to: usize,
        live: Box<EstablishedConn>,
    ) -> Result<(), Box<EstablishedConn>> {
        let (worker_set, own) = (&self.settings.worker_set, self.context.index());
        worker_set.reserve(to);
        worker_set.release(own);
        match worker_set.transfer(own, to, Transfer::Established(live)) {
            Err(Transfer::Established(live)) => Err(live),
            _ => {
                count(&self.counters.handed_over);
                Ok(())
            }
        }
    }

    /// Resumes a connection that was transferred.
    pub(super) fn resume_connection(self: &Rc<Self>, mut live: EstablishedConn) {
        let block = match live.input.len() {
            0 => None,
            bytes => self.context.pool().take_exact(bytes),
        };
        let mut lacks_memory = block.is_none() && !live.input.is_empty();
        let mut transport = Transport::Plain;
        let records = live.tls.as_ref().map_or(0, MovedTls::received);
        // The rest has to go back with its session, so that is tried last.
        if !lacks_memory && let Some(moved) = live.tls.take() {
            match moved.resume(self.context.pool(), &self.tls.memory) {
                Ok(tls) => transport = Transport::Tls(Box::new(tls)),
                Err(moved) => (live.tls, lacks_memory) = (Some(*moved), true),
            }
        }
        if lacks_memory && !live.returned && live.from != self.context.index() {
            live.returned = true;
            match self.send_transfer(live.from, Box::new(live)) {
                Ok(()) => return,
                Err(back) => live = *back,
            }
        }
        let Some(id) = self.attach(live.socket) else {
            return;
        };
        diagnose!(DEBUG, worker = self.context.index(), connection = id.token(), from = live.from,
            input_bytes = live.input.len(); "connection migrated from another worker");
        if lacks_memory {
            // Its input is lost. The reset shows the client that its requests were not processed.
            return self.abort(id, CloseReason::Exhausted);
        }
        let input = block.map(|mut block| {
            block.extend(&live.input);
            block.into_buf()
        });
        {
            self.conns.unsent_limits().set(id, live.unsent_limit);
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            self.conns.peers.name(conn.stream, live.client);
            conn.transport = transport;
            conn.machine = live.machine;
            conn.state.end_move(live.expects);
            let mut deadline_ms = live.deadline_ms;
            if self.is_passing() && !live.stays && !conn.transport.is_tls() {
                conn.state.plan_move(Target::Successor);
            }
            if self.conns.shutdown.ends(&conn) {
                self.conns
                    .shutdown
                    .limit_requests(id, (live.input.len() + records) as u64);
                if input.is_none() && records == 0 {
                    deadline_ms = conn.drain_deadline_ms(deadline_ms);
                    conn.state.restart_head(); // A new head gets the full time limit.
                }
            }
            conn.set_deadline(deadline_ms);
            self.context.driver().receive(conn.stream);
        }
        if !self.admits_client(id) {
            return self.abort(id, CloseReason::NotAdmitted);
        }
        if records > 0 {
            self.list_partial_record(id);
        }
        let Some(input) = input else {
            return self.pass_on_if_idle(id);
        };
        if panic_guard::catch(|| self.on_plaintext(id, input)).is_none() {
            self.recover_from_panic(Some(id)); // A part of its input is lost.
        }
    }

    /// Cancels a migration because the client has half-closed (EOF). The connection stays, sends
    /// the responses to requests that had arrived, and closes.
    pub(in crate::engine) fn cancel_migration(self: &Rc<Self>, id: ConnId) {
        {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            conn.state.cancel_move();
            conn.state.end();
        }
        self.resume_reading(id);
        let is_ready = (self.conns.open(id)).is_some_and(|conn| conn.state.is_ready());
        if is_ready {
            self.close(id, CloseReason::Client);
        }
    }
}
