//! The received records of TLS connections: they are decrypted and passed on as input.

pub(in crate::engine) mod handshake;

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::{AfterFlush, Expects, Phase};
use crate::engine::connection::tls_connection::{MovedTls, Next, NoMemory, Processed, extend};
use crate::engine::connection::transport::Transport;
use crate::engine::lifecycle::Engine;
use crate::engine::shared::deadlines::Wait;
use crate::engine::shared::socket_io::{Sent, connection_gone};
use crate::metrics::{CloseReason, HandshakeOutcome};
use crate::tls::TlsInfo;
use crate::tls::session::{Session, SessionError};
use onrush_rt::buf::{Block, Buf};
use onrush_rt::{diagnose, user};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

impl Engine {
    /// Handles received `data` of a TLS connection.
    #[inline(never)]
    pub(in crate::engine) fn on_records(self: &Rc<Self>, id: ConnId, data: Buf) {
        let reader;
        let is_handshaking = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            let is_handshaking = conn.state.is_handshaking();
            let Transport::Tls(tls) = &mut conn.transport else {
                return;
            };
            if conn.state.phase() == Phase::Lingering || tls.ignores_input {
                return;
            }
            let bytes = data.len();
            if tls.receive(data, self.context.pool()).is_err() {
                drop(conns);
                return self.abort(id, CloseReason::Exhausted);
            }
            reader = self.note_record_bytes(id, conn, bytes);
            is_handshaking
        };
        if let Some(reader) = reader {
            user::wake(reader);
        }
        if is_handshaking && !self.tls.handshakes.may_continue(self.context.iteration()) {
            return self.queue_handshake(id);
        }
        self.process_records(id);
    }

    /// Counts received bytes of records for the minimum rate of a body. They may be a part of a
    /// record, which the body does not show, so the wait of its reader begins again. Returns the
    /// reader if the client is too slow.
    fn note_record_bytes(&self, id: ConnId, conn: &mut Conn, bytes: usize) -> Option<Waker> {
        let active = conn.active.as_mut()?;
        active.exchange.body_rate.record_bytes(bytes);
        if conn.state.is_ready() && conn.state.expects() == Expects::RestOfBody {
            active.exchange.body_rate.end_wait(self.context.now_ms());
            self.set_idle_deadline(id, conn);
            return None;
        }
        active.exchange.body_deadline_ms?;
        self.deadlines().set_wait_timeout(id, conn, Wait::Body, 0);
        if !self.deadlines().begin_measured_wait(conn, Wait::Body) {
            let _for_the_reader = self.bodies().body_timeout_error(conn);
            return self.deadlines().take_reader(id, conn);
        }
        self.deadlines()
            .set_wait_timeout(id, conn, Wait::Body, self.limits().body_timeout_ms);
        None
    }

    /// Processes the received bytes of a TLS connection.
    pub(in crate::engine) fn process_records(self: &Rc<Self>, id: ConnId) {
        let mut out = self.io.buffers.take();
        let mut plaintext = self.tls.plaintext_ranges.take();
        plaintext.clear();
        let is_handshaking = |conn: &mut Conn| conn.state.is_handshaking();
        let handshaking = self.conns.borrow_mut().get(id).is_some_and(is_handshaking);
        let processed = match handshaking {
            true => self.process_handshake(id, &mut out, &mut plaintext),
            false => self.process_established(id, &mut out, &mut plaintext),
        };
        let continues = |processed: &Option<Processed>| {
            let result = processed.as_ref().and_then(|it| it.result.as_ref());
            matches!(result, Some(Ok(Next::Continue)))
        };
        // A request has arrived with the end of the handshake, so a response follows.
        let has_request = handshaking && !plaintext.is_empty() && continues(&processed);
        let sent = match has_request && self.has_only_tickets(id) {
            true => self.keep_tickets(id, &out),
            false => self.send_records(id, &out),
        };
        self.io.buffers.keep(out);
        let Some(Processed {
            block,
            early_data,
            result,
        }) = processed
        else {
            return self.tls.plaintext_ranges.set(plaintext);
        };
        let pool = self.context.pool();
        if let Some(Ok(Next::Continue | Next::Closed)) = result {
            let mut early = None;
            if extend(&mut early, &early_data, pool).is_err() {
                self.tls.plaintext_ranges.set(plaintext);
                return self.abort(id, CloseReason::Exhausted);
            }
            let mut left = plaintext.len();
            if let Some(early) = early {
                self.set_delivering(id, left > 0);
                self.on_plaintext(id, early.into_buf());
            }
            if let Some(block) = block.map(Block::into_buf) {
                let are_many = left > 1 || !early_data.is_empty();
                if left > 1 {
                    self.set_delivering(id, true);
                }
                for range in plaintext.drain(..) {
                    left -= 1;
                    if are_many && left == 0 {
                        self.set_delivering(id, false);
                    }
                    self.on_plaintext(id, block.slice(range));
                }
            }
        }
        self.tls.plaintext_ranges.set(plaintext);
        match result {
            None => self.recover_from_panic(Some(id)),
            Some(Err(NoMemory)) => self.abort(id, CloseReason::Exhausted),
            // Requests in front of the violation get no response, so they are not handled either.
            Some(Ok(Next::Failed)) => self.fail_tls(id),
            _ if sent.is_err() => self.close(id, CloseReason::Broken),
            Some(Ok(Next::PlainHttp)) => self.reject_plain_http(id),
            Some(Ok(Next::Continue)) => self.list_partial_record(id),
            Some(Ok(Next::Closed)) => {
                self.list_partial_record(id);
                self.on_end(id, Ok(()));
            }
        }
    }

    /// See [`Tls::is_delivering`](crate::engine::connection::tls_connection::Tls::is_delivering).
    fn set_delivering(&self, id: ConnId, is_delivering: bool) {
        if let Some(conn) = self.conns.borrow_mut().get(id)
            && let Transport::Tls(tls) = &mut conn.transport
        {
            tls.is_delivering = is_delivering;
        }
    }

    /// Processes the received bytes of an established connection. `None` when there are none.
    fn process_established(
        &self,
        id: ConnId,
        out: &mut Vec<u8>,
        plaintext: &mut Vec<Range<usize>>,
    ) -> Option<Processed> {
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id)?;
        let Transport::Tls(tls) = &mut conn.transport else {
            return None;
        };
        let mut block = Some(tls.received.take()?);
        // No user code is called, so the state may be borrowed.
        let result = tls.process(&mut block, out, plaintext, self.context.pool());
        if tls.session.as_ref().is_some_and(Session::is_worn) {
            conn.machine.close_after_next();
        }
        Some(Processed {
            block,
            early_data: Vec::new(),
            result: Some(result),
        })
    }

    /// Lists a connection that waits for the rest of a record, so that it can be evicted like one
    /// with a partial head. The head time limit applies from now on.
    pub(in crate::engine) fn list_partial_record(self: &Rc<Self>, id: ConnId) {
        {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            match conn.state.phase() {
                Phase::Ready => {}
                Phase::Busy => {
                    conns.list_awaited_record(id);
                    drop(conns);
                    return self.reclaim_memory();
                }
                Phase::ProxyHeader | Phase::Flushing(_) | Phase::Lingering | Phase::Leaving => {
                    return;
                }
            }
            if conn.transport.received_bytes() == 0 {
                let input = conn.input_bytes();
                if input == 0 && conn.state.expects() == Expects::Head && conn.response_count > 0 {
                    // The record had no data, such as a key update. The connection is idle.
                    conn.state.expect_request();
                    self.set_idle_deadline(id, conn);
                }
                if input == 0 && conn.is_listed() {
                    conns.unlist(id);
                }
                return;
            }
            if conn.state.expects() == Expects::Request {
                conn.state.expect_head();
                self.deadlines()
                    .set_timeout(id, conn, self.limits().head_timeout_ms);
            }
            conn.active();
            conns.list_head(id);
        }
        self.reclaim_memory();
    }

    /// Whether the session of a connection has failed.
    pub(in crate::engine) fn has_failed(&self, id: ConnId) -> bool {
        match self.conns.borrow_mut().get(id).map(|conn| &conn.transport) {
            Some(Transport::Tls(tls)) => tls.failure.is_some(),
            _ => false,
        }
    }

    /// Ends a connection whose session has failed, after the alert was sent.
    pub(in crate::engine) fn fail_tls(self: &Rc<Self>, id: ConnId) {
        let (task, reader, has_unsent) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            if conn.state.is_handshaking() {
                self.counters.handshakes.count(HandshakeOutcome::Failed);
                conn.state.expect_request();
            }
            let mut failure = None;
            if let Transport::Tls(tls) = &mut conn.transport {
                tls.ignores_input = true;
                tls.place = None;
                failure = tls.failure.take();
            }
            if let Some(error) = failure {
                self.log_refused_certificate(conn, &error);
                diagnose!(DEBUG, connection = id.token(),
                    error = tracing::field::display(error); "TLS failed");
            }
            let reader = self.deadlines().take_reader(id, conn);
            let active = conn.active.as_mut();
            let has_unsent = (active.as_ref()).is_some_and(|active| active.has_unsent());
            let task = active.and_then(|active| active.exchange.task.take());
            (task, reader, has_unsent)
        };
        self.conns.borrow_mut().unlist(id);
        drop(task);
        if let Some(reader) = reader {
            user::wake(reader);
        }
        // A reset because of unread bytes could overtake the alert.
        match has_unsent {
            true => drop(self.after_send(id, Ok(Sent::Queued), AfterFlush::Linger)),
            false => self.linger(id),
        }
    }

    /// Logs that the certificate of a client was refused: only the server knows the reason.
    fn log_refused_certificate(&self, conn: &Conn, error: &SessionError) {
        if !error.is_about_client_certificate() {
            return;
        }
        let mut window = self.tls.handshakes.refusals.get();
        let admitted = window.admit(self.context.clock_ns());
        self.tls.handshakes.refusals.set(window);
        let Some(suppressed) = admitted else { return };
        diagnose!(INFO, peer = self.peers.client(conn).map(tracing::field::display),
            error = tracing::field::display(error.clone()),
            suppressed = (suppressed > 0).then_some(suppressed);
            "a client certificate was refused");
    }

    /// Sends records that are no part of a response.
    fn send_records(&self, id: ConnId, records: &[u8]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id).ok_or_else(connection_gone)?;
        self.io.send_records(conn, records).map(drop)
    }

    /// Whether the last records of a handshake are tickets. In TLS 1.2 they end the handshake.
    fn has_only_tickets(&self, id: ConnId) -> bool {
        match self.conns.borrow_mut().get(id).map(|conn| &conn.transport) {
            Some(Transport::Tls(tls)) => tls.version() == Some("TLSv1.3"),
            _ => false,
        }
    }

    /// Keeps the tickets of a handshake until the next records are sent: one call and one segment
    /// for both save each side a packet, and the client a wake-up.
    fn keep_tickets(&self, id: ConnId, records: &[u8]) -> io::Result<()> {
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id).ok_or_else(connection_gone)?;
        if let Transport::Tls(tls) = &mut conn.transport {
            tls.tickets = records.to_vec();
        }
        Ok(())
    }

    /// The TLS session of a connection, for handlers.
    pub(in crate::engine) fn tls_info(&self, id: ConnId) -> Option<Arc<TlsInfo>> {
        match &self.conns.borrow_mut().get(id)?.transport {
            Transport::Plain => None,
            Transport::Tls(tls) => tls.info.clone(),
        }
    }

    /// Takes the TLS state of a connection that moves to another worker.
    pub(in crate::engine) fn move_tls(conn: &mut Conn) -> Option<MovedTls> {
        let Transport::Tls(tls) = std::mem::replace(&mut conn.transport, Transport::Plain) else {
            return None;
        };
        Some(MovedTls {
            session: tls.session?,
            received: tls
                .received
                .map_or_else(Vec::new, |block| block.filled().to_vec()),
            tickets: tls.tickets,
            info: tls.info,
            client_generation: tls.client_generation,
        })
    }
}
