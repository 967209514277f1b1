//! The received records of TLS connections: they are decrypted and passed on as input.

pub(in crate::engine) mod handshake;

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::{AfterFlush, Expects, Phase};
use crate::engine::connection::tls_connection::{Next, NoMemory, Processed, extend};
use crate::engine::lifecycle::Engine;
use crate::engine::shared::socket_io::{Sent, connection_gone};
use crate::metrics::{CloseReason, HandshakeOutcome};
use crate::tls::session::SessionError;
use onrush_rt::buf::{Block, Buf};
use onrush_rt::{diagnose, user};
use std::rc::Rc;

impl Engine {
    /// Handles received `data` of a TLS connection.
    #[inline(never)]
    pub(in crate::engine) fn on_records(self: &Rc<Self>, id: ConnId, data: Buf) {
        let Some(mut conn) = self.conns.open(id) else {
            return;
        };
        let is_handshaking = conn.state.is_handshaking();
        let is_lingering = conn.state.phase() == Phase::Lingering;
        let bytes = data.len();
        match conn.tls() {
            Some(tls) if !is_lingering && !tls.ignores_input => {
                if tls.receive(data, self.context.pool()).is_err() {
                    drop(conn);
                    return self.abort(id, CloseReason::Exhausted);
                }
            }
            _ => return,
        }
        let reader = conn.note_record_bytes(bytes);
        drop(conn);
        if let Some(reader) = reader {
            user::wake(reader);
        }
        if is_handshaking && !self.tls.handshakes.may_continue(self.context.iteration()) {
            return self.queue_handshake(id);
        }
        self.process_records(id);
    }

    /// Processes the received bytes of a TLS connection.
    pub(in crate::engine) fn process_records(self: &Rc<Self>, id: ConnId) {
        let mut out = self.conns.io.buffers.take();
        let mut plaintext = self.tls.plaintext_ranges.take();
        plaintext.clear();
        let conn = self.conns.open(id);
        let handshaking = (conn.as_ref()).is_some_and(|conn| conn.state.is_handshaking());
        let processed = match (conn, handshaking) {
            (Some(mut conn), false) => conn.process_established(&mut out, &mut plaintext),
            (conn, _) => {
                drop(conn);
                self.process_handshake(id, &mut out, &mut plaintext)
            }
        };
        let continues = |processed: &Option<Processed>| {
            let result = processed.as_ref().and_then(|it| it.result.as_ref());
            matches!(result, Some(Ok(Next::Continue)))
        };
        // A request has arrived with the end of the handshake, so a response follows.
        let has_request = handshaking && !plaintext.is_empty() && continues(&processed);
        let sent = match self.conns.open(id) {
            Some(mut conn) if has_request => conn.keep_tickets(&out),
            Some(mut conn) => conn.send_records(&out),
            None if out.is_empty() => Ok(()),
            None => Err(connection_gone()),
        };
        self.conns.io.buffers.keep(out);
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
                self.conns.set_delivering(id, left > 0);
                self.on_plaintext(id, early.into_buf());
            }
            if let Some(block) = block.map(Block::into_buf) {
                let are_many = left > 1 || !early_data.is_empty();
                if left > 1 {
                    self.conns.set_delivering(id, true);
                }
                for range in plaintext.drain(..) {
                    left -= 1;
                    if are_many && left == 0 {
                        self.conns.set_delivering(id, false);
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

    /// Lists a connection that waits for the rest of a record, so that it can be evicted like one
    /// with a partial head. The head time limit applies from now on.
    pub(in crate::engine) fn list_partial_record(self: &Rc<Self>, id: ConnId) {
        {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            match conn.state.phase() {
                Phase::Ready => {}
                Phase::Busy => {
                    conn.list_awaited_record();
                    drop(conn);
                    return self.reclaim_memory();
                }
                Phase::Streams => {
                    drop(conn);
                    return self.watch_input(id);
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
                    conn.set_idle_deadline();
                }
                if input == 0 {
                    conn.unlist();
                }
                return;
            }
            if conn.state.expects() == Expects::Request {
                conn.state.expect_head();
                conn.set_timeout(self.limits().head_timeout_ms);
            }
            conn.active();
            conn.list_head();
        }
        self.reclaim_memory();
    }

    /// Ends a connection whose session has failed, after the alert was sent.
    pub(in crate::engine) fn fail_tls(self: &Rc<Self>, id: ConnId) {
        let (task, reader, has_unsent) = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            conn.unlist();
            if conn.state.is_handshaking() {
                self.counters.handshakes.count(HandshakeOutcome::Failed);
                conn.state.expect_request();
            }
            let failure = conn.tls().and_then(|tls| {
                tls.ignores_input = true;
                tls.place = None;
                tls.failure.take()
            });
            if let Some(error) = failure {
                self.log_refused_certificate(&conn, &error);
                diagnose!(DEBUG, connection = id.token(),
                    error = tracing::field::display(error); "TLS failed");
            }
            let reader = conn.take_reader();
            let active = conn.active.as_mut();
            let has_unsent = (active.as_ref()).is_some_and(|active| active.has_unsent());
            let task = active.and_then(|active| active.exchange.task.take());
            (task, reader, has_unsent)
        };
        drop(task);
        self.drop_slots(id, CloseReason::Broken);
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
        diagnose!(INFO, peer = self.conns.peers.client(conn).map(tracing::field::display),
            error = tracing::field::display(error.clone()),
            suppressed = (suppressed > 0).then_some(suppressed);
            "a client certificate was refused");
    }
}
