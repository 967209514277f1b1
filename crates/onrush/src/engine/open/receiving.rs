//! Input of a connection: when the driver receives, and what waits to be processed.
//!
//! The parser needs a head in one piece, so a head that arrives in several is joined. Few bytes are
//! copied to a small block; otherwise each slow client and each pending handler would hold a whole
//! block of the worker's pool.

use crate::connections::ConnId;
use crate::engine::connection::state::Expects;
use crate::engine::open::{OpenConn, OpenConns};
use crate::engine::shared::receive_memory::NoMemory;
use onrush_proto::reject::Reject;
use onrush_rt::buf::Buf;
use onrush_rt::diagnose;
use std::net::SocketAddr;
use std::task::Waker;

impl OpenConns {
    /// Whether input of a connection is queued.
    pub(in crate::engine) fn has_queued_input(&self, id: ConnId) -> bool {
        self.open(id).is_some_and(|conn| conn.input_bytes() > 0)
    }

    /// Queues a partial head until more of it arrives.
    #[inline(never)]
    pub(in crate::engine) fn wait_for_rest_of_head(&self, id: ConnId, data: Buf) {
        if let Some(mut conn) = self.open(id) {
            conn.queue_partial_head(data);
            conn.list_head();
        }
    }

    /// Discards body bytes that a finished request left unread. Returns what is behind them. Fails
    /// if they break a rule.
    pub(in crate::engine) fn discard_rest_of_body(
        &self,
        id: ConnId,
        mut data: Buf,
    ) -> Result<Buf, Reject> {
        let Some(mut conn) = self.open(id) else {
            return Ok(data);
        };
        let piece = conn.machine.receive_body(&data, &self.limits.get())?;
        if piece.end {
            conn.state.expect_request();
        }
        data.advance(piece.consumed);
        let active = conn.active();
        active.exchange.log_entries.receive(piece.consumed);
        active.exchange.body_rate.end_wait(self.context.now_ms());
        conn.count_body_bytes(piece.consumed);
        Ok(data)
    }
}

impl OpenConn<'_> {
    /// The connection begins with a header of the PROXY protocol.
    pub(in crate::engine) fn expect_proxy_header(&mut self) {
        let id = self.id;
        self.state.expect_proxy_header(id);
    }

    /// The header has named the client.
    pub(in crate::engine) fn name_client(&mut self, client: Option<SocketAddr>) {
        let id = self.id;
        self.all.peers.name(self.stream, client);
        diagnose!(DEBUG, connection = id.token(), client = client.map(tracing::field::display);
            "PROXY protocol header received");
        self.state.become_ready(id);
    }

    /// Resumes receiving into the driver's buffers.
    pub(in crate::engine) fn resume_receiving(&mut self) {
        self.state.resume_receiving();
        diagnose!(DEBUG, connection = self.id.token(); "receiving resumed");
        let (all, stream) = (self.all, self.stream);
        if let Some(active) = &mut self.active {
            active.wire.emptied = false;
            (active.exchange.final_poll, active.exchange.slow_sender) = (false, false);
            if std::mem::take(&mut active.wire.low_water) > 1 {
                all.context.driver().set_low_water(stream, 1);
            }
        }
        all.context.driver().receive(stream);
    }

    /// Pauses receiving if the connection has just become busy and memory is short.
    pub(in crate::engine) fn pause_if_short(&mut self) {
        if self.all.memory.is_short() {
            self.pause_ahead();
        }
    }

    /// Pauses receiving while a request is in progress whose handler does not wait for input.
    pub(in crate::engine) fn pause_ahead(&mut self) {
        let at_work = self.state.phase().has_request();
        let awaited = (self.active.as_ref()).is_some_and(|active| active.exchange.reader.is_some());
        if at_work && !awaited && !self.state.is_paused() && !self.state.has_ended() {
            self.pause_receiving();
        }
    }

    /// Pauses receiving for a connection that has enough input. The driver still reports its end: a
    /// handler must not continue for a client that has reset the connection.
    pub(in crate::engine) fn pause_receiving(&mut self) {
        let bytes = self.active().wire.input_bytes;
        diagnose!(DEBUG, connection = self.id.token(), input_bytes = bytes; "receiving paused");
        let stream = self.stream;
        let mut driver = self.all.context.driver();
        self.conn.state.pause_receiving(driver.pause(stream));
        driver.watch_end(stream);
    }

    /// Queues input of a connection that is not idle. Pauses receiving when the client is far ahead
    /// of the handler. Returns the waker of the handler if it waits for input.
    pub(in crate::engine) fn queue_input(&mut self, data: Buf) -> Option<Waker> {
        let waker = self.take_reader();
        let all = self.all;
        let wire = &mut self.active().wire;
        wire.gather_input(data, all.context.pool().block_bytes());
        if wire.input_bytes >= all.memory.ahead_bytes_max() && !self.state.is_paused() {
            self.pause_receiving();
        }
        waker
    }

    /// Puts a partial head at the front of the queue until more of it arrives. Starts the time
    /// limit of the head, and copies few bytes to a small block.
    pub(in crate::engine) fn queue_partial_head(&mut self, data: Buf) {
        if self.state.expects() != Expects::Head {
            self.state.expect_head();
            self.set_timeout(self.all.limits.get().head_timeout_ms);
        }
        let data = self.all.memory.copy_if_small(data);
        self.active().wire.unpop_input(data);
    }

    /// Takes the first queued buffer, joined to the second one: a head begins in the first.
    pub(in crate::engine) fn join_head(&mut self) -> Result<Option<Buf>, NoMemory> {
        let memory = &self.all.memory;
        memory.join_head(&mut self.active().wire)
    }

    /// Discards what was received and not processed.
    pub(in crate::engine) fn drop_input(&mut self) {
        self.transport.drop_received();
        if let Some(active) = self.active.as_mut() {
            active.wire.input_bytes = 0;
            active.wire.input.clear();
        }
    }
}
