//! The records of TLS connections: received ones are decrypted and passed on as input, output is
//! encrypted and sent or queued.

use super::Engine;
use super::connection::Conn;
use super::deadline::Wait;
use super::handshake::HandshakeQueue;
use super::send::{Sent, connection_gone};
use super::state::{AfterFlush, Expects, Phase};
use super::tls_connection::{
    CONTROL_RECORD_COST, MovedTls, Next, NoMemory, Processed, RECORD_BYTES_MAX, RECORD_COST,
    SessionMemory, extend,
};
use super::transport::{BodyTarget, Output, Transport};
use crate::host::ConnId;
use crate::metrics::{CloseReason, HandshakeOutcome};
use crate::tls::TlsInfo;
use crate::tls::session::{Received, Session, SessionError};
use onrush_rt::buf::{Block, Buf};
use onrush_rt::{coop, diagnose, user};
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;

/// The most bytes of a response that are encrypted at once. Three large records fit into one 64 KiB
/// segment of the kernel. Four do not, and each call then costs about half as much again.
const ENCRYPT_BYTES_MAX: usize = 48 * 1024;
/// The size of the buffer in which records of bodies are received and decrypted. An incomplete
/// record at its start leaves room for the rest of it.
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024 + RECORD_BYTES_MAX;
/// The buffer for records is freed after a call that made it larger than this.
const RECORDS_KEPT_BYTES: usize = 256 * 1024;

/// What records contain, and so how they are sent.
#[derive(Clone, Copy)]
enum Content {
    /// Messages of a handshake, responses to key updates, and alerts.
    Control,
    /// This number of bytes of responses.
    Response(usize),
    /// The same, and `close_notify`. They leave in one segment with the FIN.
    LastResponse(usize),
}

impl Content {
    fn response_bytes(self) -> usize {
        match self {
            Content::Control => 0,
            Content::Response(bytes) | Content::LastResponse(bytes) => bytes,
        }
    }
}

/// What the TLS connections of one worker share.
#[derive(Default)]
pub(super) struct WorkerTls {
    pub(super) handshakes: HandshakeQueue,
    pub(super) memory: SessionMemory,
    /// The requirements for client certificates by which the connections were last looked at.
    pub(super) client_generation: Cell<u64>,
    /// Records that are made in the present call. Empty while a call uses the buffer.
    pub(super) records: Cell<Vec<u8>>,
    /// Records of bodies that are received directly.
    receive_buffer: Cell<Vec<u8>>,
    /// Where plaintext is in a block of records that is being processed.
    plaintext_ranges: Cell<Vec<Range<usize>>>,
}

impl WorkerTls {
    pub(super) fn new() -> WorkerTls {
        WorkerTls::default()
    }
}

impl Engine {
    /// Handles received `data` of a TLS connection.
    #[inline(never)]
    pub(super) fn on_records(self: &Rc<Self>, id: ConnId, data: Buf) {
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
        self.deadlines.set_wait_timeout(id, conn, Wait::Body, 0);
        if !self.deadlines.begin_measured_wait(conn, Wait::Body) {
            let _for_the_reader = self.body_timeout_error(conn);
            return self.deadlines.take_reader(id, conn);
        }
        self.deadlines
            .set_wait_timeout(id, conn, Wait::Body, self.limits().body_timeout_ms);
        None
    }

    /// Processes the received bytes of a TLS connection.
    pub(super) fn process_records(self: &Rc<Self>, id: ConnId) {
        let mut out = self.tls.records.take();
        let mut plaintext = self.tls.plaintext_ranges.take();
        out.clear();
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
        if out.capacity() <= RECORDS_KEPT_BYTES {
            self.tls.records.set(out);
        }
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

    /// See [`Tls::is_delivering`](super::tls_connection::Tls::is_delivering).
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
    pub(super) fn list_partial_record(self: &Rc<Self>, id: ConnId) {
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
                self.deadlines
                    .set_timeout(id, conn, self.limits().head_timeout_ms);
            }
            conn.active();
            conns.list_head(id);
        }
        self.reclaim_memory();
    }

    /// Whether the session of a connection has failed.
    pub(super) fn has_failed(&self, id: ConnId) -> bool {
        match self.conns.borrow_mut().get(id).map(|conn| &conn.transport) {
            Some(Transport::Tls(tls)) => tls.failure.is_some(),
            _ => false,
        }
    }

    /// Ends a connection whose session has failed, after the alert was sent.
    pub(super) fn fail_tls(self: &Rc<Self>, id: ConnId) {
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
            let reader = self.deadlines.take_reader(id, conn);
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

    /// Receives records while the driver is paused, and decrypts them in the worker's buffer. Up to
    /// `bytes_max` bytes of plaintext go to `target`, the rest to the queued input. Returns as
    /// [`Engine::receive_body`].
    pub(super) fn receive_encrypted(
        &self,
        conn: &mut Conn,
        mut target: BodyTarget<'_>,
        bytes_max: usize,
    ) -> (io::Result<usize>, bool) {
        let mut buffer = self.tls.receive_buffer.take();
        buffer.resize(RECEIVE_BUFFER_BYTES, 0);
        let mut out = self.tls.records.take();
        out.clear();
        let result = loop {
            let pass = self.receive_pass(conn, &mut target, bytes_max, &mut buffer, &mut out);
            // Without a result, only a part of a record has arrived so far.
            if let Some(result) = pass.transpose() {
                break result;
            }
        };
        // Such as the response to a KeyUpdate, or an alert.
        let sent = match out.is_empty() {
            true => Ok(Sent::All),
            false => self.send_or_queue_records(conn, &out, Content::Control),
        };
        if out.capacity() <= RECORDS_KEPT_BYTES {
            self.tls.records.set(out);
        }
        self.tls.receive_buffer.set(buffer);
        match (result, sent) {
            (Ok(_), Err(error)) | (Err(error), _) => (Err(error), false),
            (Ok((bytes, emptied)), Ok(_)) => (Ok(bytes), emptied),
        }
    }

    /// One receive of [`Engine::receive_encrypted`]. `None`: it must be repeated.
    fn receive_pass(
        &self,
        conn: &mut Conn,
        target: &mut BodyTarget<'_>,
        bytes_max: usize,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
    ) -> io::Result<Option<(usize, bool)>> {
        let Transport::Tls(tls) = &mut conn.transport else {
            return Err(connection_gone());
        };
        let pool = self.context.pool();
        let room = target.room().min(bytes_max);
        let begin = match &tls.received {
            Some(kept) => {
                let kept = kept.filled();
                buffer[..kept.len()].copy_from_slice(kept);
                kept.len()
            }
            None => 0,
        };
        // More than is needed now would be queued as input.
        let end = (begin + room.max(RECORD_BYTES_MAX)).min(buffer.len());
        let received = (self.context.driver()).recv(conn.stream, &mut buffer[begin..end])?;
        if received == 0 {
            return Ok(Some((0, false)));
        }
        let emptied = received < end - begin;
        if let Some(active) = conn.active.as_mut() {
            active.exchange.body_rate.record_bytes(received);
        }
        let received = &mut buffer[..begin + received];
        let session = tls.session.as_mut().ok_or_else(connection_gone)?;
        let (mut at, mut taken) = (0, 0);
        let mut surplus: Option<Block> = None;
        while at < received.len() {
            match session.receive(&mut received[at..], out) {
                Received::NeedMore { .. } => break,
                Received::Handled { consumed } | Received::Handshaken { consumed } => {
                    coop::spend(CONTROL_RECORD_COST);
                    at += consumed;
                }
                Received::Data {
                    consumed,
                    plaintext,
                } => {
                    let plaintext = &received[at..][plaintext];
                    let (body, rest) = plaintext.split_at(plaintext.len().min(room - taken));
                    if let BodyTarget::Append(into) = target {
                        into.extend_from_slice(body);
                    }
                    taken += body.len();
                    coop::spend(RECORD_COST);
                    extend(&mut surplus, rest, pool)?;
                    at += consumed;
                }
                Received::Closed => {
                    tls.ignores_input = true;
                    at = received.len();
                }
                Received::Failed(error) => {
                    tls.failure = Some(error);
                    return Err(io::ErrorKind::InvalidData.into());
                }
                // Only in a handshake.
                Received::EarlyData { .. } | Received::PlainHttp => return Err(connection_gone()),
            }
        }
        tls.received = None;
        extend(&mut tls.received, &received[at..], pool)?;
        if tls.ignores_input {
            conn.state.end();
        }
        if let Some(surplus) = surplus {
            conn.active().wire.push_input(surplus.into_buf());
        }
        match taken {
            0 if conn.state.has_ended() => Ok(Some((0, false))),
            0 if emptied => Err(io::ErrorKind::WouldBlock.into()),
            0 => Ok(None),
            taken => Ok(Some((taken, emptied))),
        }
    }

    /// Sends records that are no part of a response.
    fn send_records(&self, id: ConnId, records: &[u8]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id).ok_or_else(connection_gone)?;
        self.send_or_queue_records(conn, records, Content::Control)?;
        Ok(())
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

    fn send_or_queue_records(
        &self,
        conn: &mut Conn,
        records: &[u8],
        content: Content,
    ) -> io::Result<Sent> {
        if let Transport::Tls(tls) = &mut conn.transport {
            if !tls.tickets.is_empty() && !records.is_empty() {
                let mut all = std::mem::take(&mut tls.tickets);
                all.extend_from_slice(records);
                return self.send_or_queue_records(conn, &all, content);
            }
            if self.log.is_on() {
                tls.note_encrypted(records.len(), content.response_bytes());
            }
            if let Some(active) = conn.active.as_mut().filter(|active| active.has_unsent()) {
                let is_control = matches!(content, Content::Control);
                if is_control && !tls.note_queued_control(records.len()) {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
                active.wire.out.extend_from_slice(records);
                return Ok(Sent::Queued);
            }
            tls.reset_queued_control();
        }
        if records.is_empty() {
            return Ok(Sent::All);
        }
        let sent = match content {
            Content::LastResponse(_) => self.context.driver().send_more(conn.stream, records),
            Content::Control | Content::Response(_) => {
                self.context.driver().send(conn.stream, records)
            }
        };
        match sent {
            Ok(sent) if sent == records.len() && !self.log.is_on() => Ok(Sent::All),
            sent => self.queue_rest(conn, records, sent),
        }
    }

    /// Encrypts `output` and sends it; returns the number of bytes taken. Queues the records that
    /// the kernel does not accept.
    #[inline(never)]
    pub(super) fn send_encrypted(&self, conn: &mut Conn, output: Output<'_>) -> io::Result<usize> {
        self.with_records(|engine, records| {
            let now_ms = engine.context.now_ms();
            let Transport::Tls(tls) = &mut conn.transport else {
                return Err(connection_gone());
            };
            let session = tls.session.as_mut().ok_or_else(connection_gone)?;
            let taken = encrypt(session, output, ENCRYPT_BYTES_MAX, now_ms, records)?;
            engine.send_or_queue_records(conn, records, Content::Response(taken))?;
            Ok(taken)
        })
    }

    /// Encrypts all of `out`, and sends it behind queued records. After the last bytes of the
    /// connection, `close_notify` follows.
    #[inline(never)]
    pub(super) fn encrypt_or_queue(
        &self,
        conn: &mut Conn,
        out: &[u8],
        is_last: bool,
    ) -> io::Result<Sent> {
        self.with_records(|engine, records| {
            let now_ms = engine.context.now_ms();
            let Transport::Tls(tls) = &mut conn.transport else {
                return Err(connection_gone());
            };
            let session = tls.session.as_mut().ok_or_else(connection_gone)?;
            session.send(out, now_ms, records)?;
            let content = match is_last {
                true => Content::LastResponse(out.len()),
                false => Content::Response(out.len()),
            };
            if is_last {
                session.close_notify(records);
            }
            engine.send_or_queue_records(conn, records, content)
        })
    }

    /// Sends `close_notify` if nothing is queued. A client that does not receive it treats the
    /// connection as truncated (RFC 8446 §6.1).
    pub(super) fn send_close_notify(&self, conn: &mut Conn) {
        let has_unsent = (conn.active.as_ref()).is_some_and(|active| active.has_unsent());
        if has_unsent || conn.state.is_handshaking() {
            return;
        }
        let Transport::Tls(tls) = &mut conn.transport else {
            return;
        };
        let Some(session) = &mut tls.session else {
            return;
        };
        let mut records = std::mem::take(&mut tls.tickets);
        session.close_notify(&mut records);
        if !records.is_empty() {
            // If there is no room, the client has not read its responses either.
            let _ = self.context.driver().send(conn.stream, &records);
        }
    }

    /// Calls `send` with the worker's buffer for records.
    fn with_records<T>(&self, send: impl FnOnce(&Engine, &mut Vec<u8>) -> T) -> T {
        let mut records = self.tls.records.take();
        records.clear();
        let result = send(self, &mut records);
        if records.capacity() <= RECORDS_KEPT_BYTES {
            self.tls.records.set(records);
        }
        result
    }

    /// The TLS session of a connection, for handlers.
    pub(super) fn tls_info(&self, id: ConnId) -> Option<Arc<TlsInfo>> {
        match &self.conns.borrow_mut().get(id)?.transport {
            Transport::Plain => None,
            Transport::Tls(tls) => tls.info.clone(),
        }
    }

    /// Takes the TLS state of a connection that moves to another worker.
    pub(super) fn move_tls(conn: &mut Conn) -> Option<MovedTls> {
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

/// Encrypts up to `bytes_max` bytes of `output`; returns their number.
fn encrypt(
    session: &mut Session,
    output: Output<'_>,
    bytes_max: usize,
    now_ms: u64,
    records: &mut Vec<u8>,
) -> io::Result<usize> {
    match output {
        Output::Bytes(bytes) | Output::BytesAndMore(bytes) => {
            let bytes = &bytes[..bytes.len().min(bytes_max)];
            session.send(bytes, now_ms, records)?;
            Ok(bytes.len())
        }
        Output::Both(first, second) => {
            let second = &second[..second.len().min(bytes_max.saturating_sub(first.len()))];
            session.send_both(first, second, now_ms, records)?;
            Ok(first.len() + second.len())
        }
        Output::File(file, mut offset, bytes) => {
            let bytes = bytes.min(bytes_max);
            let mut taken = 0;
            while taken < bytes {
                let fill = |records: &mut Vec<u8>, room| file.read_to_vec(records, room, offset);
                let read = session.send_with(bytes - taken, now_ms, records, fill)?;
                if read == 0 {
                    break; // The end of the file.
                }
                (taken, offset) = (taken + read, offset + read as u64);
            }
            Ok(taken)
        }
    }
}
