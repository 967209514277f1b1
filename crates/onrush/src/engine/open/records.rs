//! The TLS session of a connection: what it has received, and what it says.

use crate::connections::ConnId;
use crate::engine::connection::state::Expects;
use crate::engine::connection::tls_connection::{Processed, Tls};
use crate::engine::connection::transport::Transport;
use crate::engine::open::deadlines::Wait;
use crate::engine::open::{OpenConn, OpenConns};
use crate::engine::shared::socket_io::Sent;
use crate::metrics::HandshakeOutcome;
use crate::tls::TlsInfo;
use crate::tls::session::Session;
use onrush_rt::diagnose;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

impl OpenConns {
    /// Whether the session of a connection has failed.
    pub(in crate::engine) fn has_failed(&self, id: ConnId) -> bool {
        let conn = self.open(id);
        conn.is_some_and(|mut conn| conn.tls().is_some_and(|tls| tls.failure.is_some()))
    }

    /// See [`Tls::is_delivering`].
    pub(in crate::engine) fn set_delivering(&self, id: ConnId, is_delivering: bool) {
        if let Some(mut conn) = self.open(id)
            && let Some(tls) = conn.tls()
        {
            tls.is_delivering = is_delivering;
        }
    }
}

impl OpenConn<'_> {
    /// The TLS state; `None` of a plain connection.
    pub(in crate::engine) fn tls(&mut self) -> Option<&mut Box<Tls>> {
        match &mut self.transport {
            Transport::Tls(tls) => Some(tls),
            Transport::Plain => None,
        }
    }

    /// The session, for handlers.
    pub(in crate::engine) fn tls_info(&self) -> Option<Arc<TlsInfo>> {
        match &self.transport {
            Transport::Plain => None,
            Transport::Tls(tls) => tls.info.clone(),
        }
    }

    /// Makes a new connection begin with a handshake.
    pub(in crate::engine) fn start_tls(&mut self) {
        self.transport = Transport::Tls(Box::default());
        self.state.expect_handshake();
        self.set_timeout(self.all.limits.get().handshake_timeout_ms);
    }

    /// Records a complete handshake.
    pub(in crate::engine) fn record_handshake(&mut self) {
        let (counters, id) = (&self.all.counters, self.id);
        if let Transport::Tls(tls) = &mut self.transport
            && let Some(info) = &tls.info
        {
            if let Some(place) = tls.place.take() {
                counters.tls.record(info, place.elapsed());
            }
            counters.handshakes.count(HandshakeOutcome::of(info));
            diagnose!(DEBUG, connection = id.token(), version = info.version(),
                resumed = info.is_resumed(); "TLS handshake complete");
        }
    }

    /// Counts received bytes of records for the minimum rate of a body. They may be a part of a
    /// record, which the body does not show, so the wait of its reader begins again. Returns the
    /// reader if the client is too slow.
    pub(in crate::engine) fn note_record_bytes(&mut self, bytes: usize) -> Option<Waker> {
        let now_ms = self.all.context.now_ms();
        let is_rest = self.state.is_ready() && self.state.expects() == Expects::RestOfBody;
        let exchange = &mut self.active.as_mut()?.exchange;
        exchange.body_rate.record_bytes(bytes);
        if is_rest {
            exchange.body_rate.end_wait(now_ms);
            self.set_idle_deadline();
            return None;
        }
        exchange.body_deadline_ms?;
        self.set_wait_timeout(Wait::Body, 0);
        if !self.begin_measured_wait(Wait::Body) {
            let _for_the_reader = self.body_timeout_error();
            return self.take_reader();
        }
        self.set_wait_timeout(Wait::Body, self.all.limits.get().body_timeout_ms);
        None
    }

    /// Processes the received bytes of an established connection. `None` when there are none.
    pub(in crate::engine) fn process_established(
        &mut self,
        out: &mut Vec<u8>,
        plaintext: &mut Vec<Range<usize>>,
    ) -> Option<Processed> {
        let pool = self.all.context.pool();
        let tls = self.tls()?;
        let mut block = Some(tls.received.take()?);
        // No user code is called, so the state may be borrowed.
        let result = tls.process(&mut block, out, plaintext, pool);
        if tls.session.as_ref().is_some_and(Session::is_worn) {
            self.machine.close_after_next();
            self.end_drain(); // With HTTP/2.
        }
        Some(Processed {
            block,
            early_data: Vec::new(),
            result: Some(result),
        })
    }

    /// Sends records that are no part of a response.
    pub(in crate::engine) fn send_records(&mut self, records: &[u8]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let sent = self.all.io.send_records(self, records);
        sent.map(|_: Sent| ())
    }

    /// Keeps the tickets of a handshake until the next records are sent: one call and one segment
    /// for both save each side a packet, and the client a wake-up. In TLS 1.2 the last records end
    /// the handshake: they are sent.
    pub(in crate::engine) fn keep_tickets(&mut self, records: &[u8]) -> io::Result<()> {
        match self.tls() {
            Some(tls) if tls.version() == Some("TLSv1.3") => {
                tls.tickets = records.to_vec();
                Ok(())
            }
            _ => self.send_records(records),
        }
    }
}
