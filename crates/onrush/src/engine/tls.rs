//! TLS connections: received records, handshakes, and the records that are sent.
//!
//! [`Session`] is the protocol; this module gives it the bytes of the socket. Received bytes are
//! decrypted in the block in which they arrived, and the plaintext is a view of that block. So the
//! parser and the handlers see the same kind of [`Buf`] as on a plain connection. A record that is
//! incomplete waits in a block of its own, which counts in the receive memory.
//!
//! A handshake takes about as much CPU time as a hundred small requests. So a worker continues few
//! handshakes per event-loop iteration. The others wait in a queue, and a task continues them, a few
//! per poll, after the events of established connections. At most [`HANDSHAKES_MAX`] handshakes are
//! in progress on a worker. A further one ends the oldest.

use super::Engine;
use super::connection::{Conn, Expects, Phase};
use super::request_body::BodyTarget;
use super::send::{Sent, connection_gone};
use super::transport::{Output, Transport};
use crate::host::ConnId;
use crate::log::Outcome;
use crate::metrics::{CloseReason, Handshake, TimeLimit};
use crate::panic_guard;
use crate::tls::session::{Received, Session, SessionError};
use crate::tls::{TlsConfig, TlsInfo};
use onrush_proto::reject::Reject;
use onrush_rt::buf::{Block, Buf, BufferPool, Reservation};
use onrush_rt::{coop, diagnose, user};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// The most handshakes in progress on one worker.
const HANDSHAKES_MAX: usize = 1024;
/// The most handshakes that a worker continues in one event-loop iteration: about 0.5 ms.
const HANDSHAKES_PER_ITERATION: u32 = 4;
/// What continuing a handshake costs of the cooperative budget, in bytes.
const HANDSHAKE_COST: usize = 64 * 1024;
/// What a handshake in progress and an established session count in the receive memory, in bytes.
/// A test compares the latter with the allocations of a session.
const HANDSHAKE_STATE_BYTES: usize = 16 * 1024;
const SESSION_BYTES: usize = 3 * 1024;
/// The most bytes of a response that are encrypted at once.
const ENCRYPT_BYTES_MAX: usize = 64 * 1024;
/// The most bytes that a client may send before its handshake is complete.
const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;
/// The largest record: header, content and protection (RFC 8446 §5.2, RFC 5246 §6.2.3).
const RECORD_BYTES_MAX: usize = 5 + 16 * 1024 + 2048;
/// The size of the buffer in which records of bodies are received and decrypted. An incomplete
/// record at its start leaves room for the rest of it.
const RECEIVE_BUFFER_BYTES: usize = 64 * 1024 + RECORD_BYTES_MAX;
/// The buffer for records is freed after a call that made it larger than this.
const RECORDS_KEPT_BYTES: usize = 256 * 1024;

/// Which connections of a server begin with a handshake, and how.
#[derive(Clone, Debug)]
pub(crate) struct TlsSettings {
    pub(crate) config: TlsConfig,
    /// For each listener, in the order of [`Engine::listen`], whether its connections use TLS.
    pub(crate) listeners: Vec<bool>,
}

/// The TLS state of one connection.
#[derive(Debug, Default)]
pub(crate) struct Tls {
    /// Created when the first bytes arrive.
    session: Option<Session>,
    /// Received and not processed: a record that is incomplete, or a handshake that waits for its
    /// turn.
    received: Option<Block>,
    /// Early data (RFC 8446 §2.3). It is processed when the handshake is complete: by then the
    /// client has proven that it is no repetition of an earlier connection (RFC 8470 §3).
    early_data: Vec<u8>,
    /// It is in [`Handshakes::waiting`].
    is_waiting: bool,
    /// The client has sent `close_notify`. What follows is ignored.
    close_received: bool,
    info: Option<Arc<TlsInfo>>,
    /// The memory of the session, in the budget of receive memory.
    reservation: Option<Reservation>,
    /// Bytes of queued records, and the bytes of responses in them.
    unsent_bytes: usize,
    unsent_response_bytes: usize,
}

/// What the TLS connections of one worker share.
#[derive(Default)]
pub(super) struct TlsState {
    handshakes: Handshakes,
    /// Records that are made in the present call. Empty while a call uses the buffer.
    records: Cell<Vec<u8>>,
    /// Records of bodies that are received directly.
    receive_buffer: Cell<Vec<u8>>,
    /// Where plaintext is in a block of records that is being processed.
    plaintext_ranges: Cell<Vec<Range<usize>>>,
}

impl TlsState {
    pub(super) fn new() -> TlsState {
        TlsState::default()
    }
}

/// The handshakes of one worker.
#[derive(Debug, Default)]
struct Handshakes {
    in_progress: Cell<usize>,
    /// Those in progress, oldest first. May contain some that have ended.
    oldest_first: RefCell<VecDeque<ConnId>>,
    /// Those that have received bytes and wait for their turn.
    waiting: RefCell<VecDeque<ConnId>>,
    /// A task continues those in `waiting`.
    has_task: Cell<bool>,
    /// The last iteration in which a handshake was continued, and their number.
    continued: Cell<(u64, u32)>,
}

impl Handshakes {
    /// Whether one more handshake may be continued in this iteration.
    fn may_continue(&self, iteration: u64) -> bool {
        let (last, count) = self.continued.get();
        let count = if last == iteration { count } else { 0 };
        let may = count < HANDSHAKES_PER_ITERATION && self.waiting.borrow().is_empty();
        if may {
            self.continued.set((iteration, count + 1));
        }
        may
    }
}

/// What follows the records that were received.
enum Next {
    Continue,
    /// The client has sent `close_notify`.
    Closed,
    PlainHttp,
    Failed(SessionError),
}

/// The state of an established session while its connection moves to another worker.
#[derive(Debug)]
pub(super) struct MovedTls {
    session: Session,
    received: Vec<u8>,
    info: Option<Arc<TlsInfo>>,
}

impl MovedTls {
    /// The state on the target worker; `None` when there is no memory for it.
    pub(super) fn resume(self, pool: &BufferPool) -> Option<Tls> {
        let mut tls = Tls {
            session: Some(self.session),
            info: self.info,
            reservation: Some(pool.reserve(SESSION_BYTES)?),
            ..Tls::default()
        };
        tls.receive(&self.received, pool).ok()?;
        Some(tls)
    }
}

/// The receive memory of the worker is exhausted.
struct NoMemory;

impl From<NoMemory> for io::Error {
    fn from(NoMemory: NoMemory) -> io::Error {
        io::ErrorKind::OutOfMemory.into()
    }
}

impl Tls {
    /// Appends received bytes, in place if nothing precedes them.
    fn receive_buf(&mut self, data: Buf, pool: &BufferPool) -> Result<(), NoMemory> {
        if self.received.is_none() {
            match data.try_into_block() {
                Ok(block) => {
                    self.received = Some(block);
                    return Ok(());
                }
                Err(data) => return self.receive(&data, pool),
            }
        }
        self.receive(&data, pool)
    }

    /// Appends received bytes.
    fn receive(&mut self, data: &[u8], pool: &BufferPool) -> Result<(), NoMemory> {
        extend(&mut self.received, data, pool)
    }

    /// Processes the bytes of `block`. Appends what has to be sent to `out`, and the places of
    /// plaintext to `plaintext`. Keeps the bytes of an incomplete record.
    fn process(
        &mut self,
        block: &mut Block,
        out: &mut Vec<u8>,
        plaintext: &mut Vec<Range<usize>>,
        pool: &BufferPool,
    ) -> Result<Next, NoMemory> {
        let Some(session) = &mut self.session else {
            return Ok(Next::Continue);
        };
        let mut at = 0;
        let mut record_bytes = 0;
        while at < block.len() {
            match session.receive(&mut block.filled_mut()[at..], out) {
                Received::NeedMore {
                    record_bytes: bytes,
                } => {
                    record_bytes = bytes;
                    break;
                }
                Received::Handled { consumed } | Received::Handshaken { consumed } => {
                    at += consumed
                }
                Received::Data {
                    consumed,
                    plaintext: range,
                } => {
                    if !range.is_empty() {
                        plaintext.push(at + range.start..at + range.end);
                    }
                    at += consumed;
                }
                Received::EarlyData {
                    consumed,
                    plaintext,
                } => {
                    self.early_data.extend_from_slice(&plaintext);
                    at += consumed;
                }
                Received::Closed => {
                    self.close_received = true;
                    return Ok(Next::Closed);
                }
                Received::PlainHttp => return Ok(Next::PlainHttp),
                Received::Failed(error) => return Ok(Next::Failed(error)),
            }
        }
        let rest = &block.filled()[at..];
        if !rest.is_empty() {
            // A client that announces a long record must send it before it takes that memory.
            let room = record_bytes.min(2 * rest.len()).max(rest.len());
            let mut kept = pool.take_exact(room).ok_or(NoMemory)?;
            kept.extend(rest);
            self.received = Some(kept);
        }
        Ok(Next::Continue)
    }

    /// The bytes received and not processed.
    pub(super) fn received_bytes(&self) -> usize {
        self.received.as_ref().map_or(0, Block::capacity)
    }

    /// Whether the client has sent anything.
    pub(super) fn has_begun(&self) -> bool {
        self.session.is_some() || self.received.is_some()
    }

    /// Frees the bytes received and not processed.
    pub(super) fn drop_received(&mut self) {
        self.received = None;
    }

    /// Counts records for `response_bytes` bytes of responses that are about to be sent.
    fn note_encrypted(&mut self, record_bytes: usize, response_bytes: usize) {
        self.unsent_bytes += record_bytes;
        self.unsent_response_bytes += response_bytes;
    }

    pub(super) fn unsent_response_bytes(&self) -> usize {
        self.unsent_response_bytes
    }

    /// See [`Conn::accepted_response_bytes`]. Within queued records the number is proportional.
    pub(super) fn accepted_response_bytes(&mut self, bytes: usize) -> usize {
        let unsent = self.unsent_bytes;
        self.unsent_bytes = unsent.saturating_sub(bytes);
        let accepted = match self.unsent_bytes {
            0 => self.unsent_response_bytes,
            left => {
                let left_of_responses =
                    (self.unsent_response_bytes as u128 * left as u128).div_ceil(unsent as u128);
                self.unsent_response_bytes - left_of_responses as usize
            }
        };
        self.unsent_response_bytes -= accepted;
        accepted
    }
}

impl Engine {
    /// Whether connections of the listener with this index begin with a handshake.
    pub(super) fn uses_tls(&self, listener: usize) -> bool {
        let settings = self.settings.tls.as_ref();
        settings.is_some_and(|tls| tls.listeners.get(listener).copied().unwrap_or(true))
    }

    /// Makes a new connection begin with a handshake.
    pub(super) fn start_tls(&self, id: ConnId, conn: &mut Conn) {
        conn.transport = Transport::Tls(Box::default());
        conn.expects = Expects::Handshake;
        self.set_timeout(id, conn, self.limits().handshake_timeout_ms);
    }

    /// Handles received `data` of a TLS connection.
    #[inline(never)]
    pub(super) fn on_records(self: &Rc<Self>, id: ConnId, data: Buf) {
        let handshaking = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            let handshaking = conn.is_handshaking();
            let Transport::Tls(tls) = &mut conn.transport else {
                return;
            };
            if conn.phase == Phase::Lingering || tls.close_received {
                return;
            }
            let held = tls.received.as_ref().map_or(0, Block::len);
            let too_much = handshaking && held + data.len() > HANDSHAKE_BYTES_MAX;
            if too_much || tls.receive_buf(data, self.context.pool()).is_err() {
                drop(conns);
                return self.abort(id, CloseReason::Exhausted);
            }
            handshaking
        };
        if handshaking && !self.tls.handshakes.may_continue(self.context.iteration()) {
            return self.queue_handshake(id);
        }
        self.process_records(id);
    }

    /// Leaves a handshake to a task.
    fn queue_handshake(self: &Rc<Self>, id: ConnId) {
        {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            let Transport::Tls(tls) = &mut conn.transport else {
                return;
            };
            if std::mem::replace(&mut tls.is_waiting, true) {
                return;
            }
        }
        self.tls.handshakes.waiting.borrow_mut().push_back(id);
        if self.tls.handshakes.has_task.replace(true) {
            return;
        }
        let engine = self.clone();
        let work = async move {
            loop {
                coop::yield_now().await;
                for _ in 0..HANDSHAKES_PER_ITERATION {
                    let Some(id) = engine.tls.handshakes.waiting.borrow_mut().pop_front() else {
                        engine.tls.handshakes.has_task.set(false);
                        return;
                    };
                    // A panic must not end this task, which all waiting handshakes need.
                    if panic_guard::catch(|| engine.process_records(id)).is_none() {
                        engine.recover_from_panic(Some(id));
                    }
                }
            }
        };
        self.context.spawn(work).detach();
    }

    /// Counts a handshake that begins. Ends the oldest one if too many are in progress.
    fn note_handshake_begins(&self, id: ConnId) {
        let handshakes = &self.tls.handshakes;
        handshakes.in_progress.set(handshakes.in_progress.get() + 1);
        handshakes.oldest_first.borrow_mut().push_back(id);
        while handshakes.in_progress.get() > HANDSHAKES_MAX {
            let Some(oldest) = handshakes.oldest_first.borrow_mut().pop_front() else {
                break;
            };
            let handshaking =
                (self.conns.borrow_mut().get(oldest)).is_some_and(|conn| conn.is_handshaking());
            if handshaking {
                self.counters.evicted.add(1);
                self.abort(oldest, CloseReason::Exhausted);
            }
        }
        // Handshakes that have ended are removed in bulk.
        let mut order = handshakes.oldest_first.borrow_mut();
        if order.len() > 4 * HANDSHAKES_MAX {
            let mut conns = self.conns.borrow_mut();
            order.retain(|&id| conns.get(id).is_some_and(|conn| conn.is_handshaking()));
        }
    }

    /// Called when a handshake has ended, or its connection closes.
    fn note_handshake_ends(&self) {
        let in_progress = &self.tls.handshakes.in_progress;
        in_progress.set(in_progress.get().saturating_sub(1));
    }

    /// Called when a connection closes.
    pub(super) fn close_tls(&self, conn: &mut Conn, reason: CloseReason) {
        let handshaking = conn.is_handshaking();
        let Transport::Tls(tls) = &conn.transport else {
            return;
        };
        if handshaking && tls.session.is_some() {
            self.note_handshake_ends();
            let outcome = match reason {
                CloseReason::Idle | CloseReason::TimedOut | CloseReason::Drained => {
                    Handshake::TimedOut
                }
                _ => Handshake::Failed,
            };
            self.counters.handshakes.count(outcome);
        } else if reason != CloseReason::Broken {
            self.send_close_notify(conn);
        }
    }

    /// Processes the received bytes of a TLS connection.
    fn process_records(self: &Rc<Self>, id: ConnId) {
        // The certificate resolver of a handshake is user code, so the state is not borrowed.
        let (mut tls, handshaking) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            let handshaking = conn.is_handshaking();
            let Transport::Tls(tls) = &mut conn.transport else {
                return;
            };
            tls.is_waiting = false;
            (std::mem::take(tls), handshaking)
        };
        let Some(mut block) = tls.received.take() else {
            return self.put_tls_back(id, tls);
        };
        if handshaking {
            coop::spend(HANDSHAKE_COST);
            if tls.session.is_none() && !self.create_session(id, &mut tls) {
                return self.close(id, CloseReason::Exhausted);
            }
        }
        let mut out = self.tls.records.take();
        let mut plaintext = self.tls.plaintext_ranges.take();
        out.clear();
        plaintext.clear();
        let pool = self.context.pool();
        let processed =
            panic_guard::catch(|| tls.process(&mut block, &mut out, &mut plaintext, pool));
        let handshaken =
            handshaking && (tls.session.as_ref()).is_some_and(|session| !session.is_handshaking());
        let mut early_data = Vec::new();
        if handshaken {
            early_data = std::mem::take(&mut tls.early_data);
            tls.reservation = None; // Frees the larger one first.
            tls.reservation = pool.reserve(SESSION_BYTES);
            let parts = tls.session.as_mut().and_then(Session::take_parts);
            tls.info = parts.map(|parts| Arc::new(TlsInfo::new(parts)));
        }
        self.put_tls_back(id, tls);
        if handshaken {
            self.finish_handshake(id);
        }
        let sent = self.send_records(id, &out);
        if out.capacity() <= RECORDS_KEPT_BYTES {
            self.tls.records.set(out);
        }
        let next = match processed {
            None => {
                self.tls.plaintext_ranges.set(plaintext);
                return self.recover_from_panic(Some(id));
            }
            Some(Err(NoMemory)) => {
                self.tls.plaintext_ranges.set(plaintext);
                return self.abort(id, CloseReason::Exhausted);
            }
            Some(Ok(next)) => next,
        };
        if !early_data.is_empty() {
            let mut block = None;
            if extend(&mut block, &early_data, pool).is_err() {
                return self.abort(id, CloseReason::Exhausted);
            }
            if let Some(block) = block {
                self.on_plaintext(id, block.into_buf());
            }
        }
        let block = block.into_buf();
        for range in plaintext.drain(..) {
            self.on_plaintext(id, block.slice(range));
        }
        self.tls.plaintext_ranges.set(plaintext);
        drop(block);
        self.list_partial_record(id);
        match next {
            _ if sent.is_err() => self.close(id, CloseReason::Broken),
            Next::Continue => {}
            Next::Closed => self.on_end(id, Ok(())),
            Next::PlainHttp => self.reject_plain_http(id),
            Next::Failed(error) => self.fail_tls(id, &error),
        }
    }

    /// Lists a connection that waits for the rest of a record, so that it can be evicted like one
    /// with a partial head. The head time limit applies from now on.
    fn list_partial_record(self: &Rc<Self>, id: ConnId) {
        {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id).filter(|conn| conn.phase == Phase::Ready) else {
                return;
            };
            if conn.transport.received_bytes() == 0 {
                let input = conn
                    .active
                    .as_ref()
                    .map_or(0, |active| active.wire.input_bytes);
                if input == 0 && conn.is_listed() {
                    conns.unlist(id);
                }
                return;
            }
            if conn.expects == Expects::Request {
                conn.expects = Expects::Head;
                self.set_timeout(id, conn, self.limits().head_timeout_ms);
            }
            conn.active();
            conns.list_head(id);
        }
        self.reclaim_memory();
    }

    fn put_tls_back(&self, id: ConnId, state: Box<Tls>) {
        if let Some(conn) = self.conns.borrow_mut().get(id)
            && let Transport::Tls(tls) = &mut conn.transport
        {
            *tls = state;
        }
    }

    /// Creates the session of a connection; `false` if there is no memory for it, or if rustls
    /// refuses the configuration.
    fn create_session(&self, id: ConnId, tls: &mut Tls) -> bool {
        let Some(settings) = &self.settings.tls else {
            return false;
        };
        tls.reservation = self.context.pool().reserve(HANDSHAKE_STATE_BYTES);
        if tls.reservation.is_none() {
            return false;
        }
        match Session::new(settings.config.current()) {
            Ok(session) => {
                tls.session = Some(session);
                self.note_handshake_begins(id);
                true
            }
            Err(error) => {
                panic_guard::log(|| tracing::error!(%error, "a TLS session could not be created"));
                false
            }
        }
    }

    /// Records a complete handshake. The connection waits for its first request.
    fn finish_handshake(&self, id: ConnId) {
        self.note_handshake_ends();
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else { return };
        if let Transport::Tls(tls) = &conn.transport
            && let Some(info) = &tls.info
        {
            self.counters.handshakes.count(Handshake::of(info));
            diagnose!(DEBUG, connection = id.token(), version = info.version(),
                resumed = info.is_resumed(); "TLS handshake complete");
        }
        self.expect_first_head(id, conn);
    }

    /// Sends records that are no part of a response.
    fn send_records(&self, id: ConnId, records: &[u8]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(id).ok_or_else(connection_gone)?;
        self.send_or_queue_records(conn, records, 0, false)?;
        Ok(())
    }

    fn send_or_queue_records(
        &self,
        conn: &mut Conn,
        records: &[u8],
        response_bytes: usize,
        is_last: bool,
    ) -> io::Result<Sent> {
        if let Transport::Tls(tls) = &mut conn.transport {
            tls.note_encrypted(records.len(), response_bytes);
        }
        if let Some(active) = conn.active.as_mut()
            && !active.wire.unsent().is_empty()
        {
            active.wire.out.extend_from_slice(records);
            return Ok(Sent::Queued);
        }
        if records.is_empty() {
            return Ok(Sent::All);
        }
        let sent = match is_last {
            true => self.context.driver().send_more(conn.stream, records),
            false => self.context.driver().send(conn.stream, records),
        };
        match sent {
            Ok(sent) if sent == records.len() && self.log.is_none() => Ok(Sent::All),
            sent => self.queue_rest(conn, records, sent),
        }
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
            false => self.send_or_queue_records(conn, &out, 0, false),
        };
        self.tls.records.set(out);
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
        let received = &mut buffer[..begin + received];
        let session = tls.session.as_mut().ok_or_else(connection_gone)?;
        let (mut at, mut taken) = (0, 0);
        let mut surplus: Option<Block> = None;
        while at < received.len() {
            match session.receive(&mut received[at..], out) {
                Received::NeedMore { .. } => break,
                Received::Handled { consumed } | Received::Handshaken { consumed } => {
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
                    extend(&mut surplus, rest, pool)?;
                    at += consumed;
                }
                Received::Closed => {
                    tls.close_received = true;
                    at = received.len();
                }
                Received::EarlyData { .. } | Received::PlainHttp | Received::Failed(_) => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
        tls.received = None;
        extend(&mut tls.received, &received[at..], pool)?;
        conn.ended |= tls.close_received;
        if let Some(surplus) = surplus {
            conn.active().wire.push_input(surplus.into_buf());
        }
        match taken {
            0 if conn.ended => Ok(Some((0, false))),
            0 if emptied => Err(io::ErrorKind::WouldBlock.into()),
            0 => Ok(None),
            taken => Ok(Some((taken, emptied))),
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
            engine.send_or_queue_records(conn, records, taken, false)?;
            Ok(taken)
        })
    }

    /// Encrypts all of `output`, and sends it behind queued records. `BytesAndMore` are the last
    /// bytes of the connection; `close_notify` follows them.
    #[inline(never)]
    pub(super) fn encrypt_or_queue(&self, conn: &mut Conn, output: Output<'_>) -> io::Result<Sent> {
        self.with_records(|engine, records| {
            let now_ms = engine.context.now_ms();
            let Transport::Tls(tls) = &mut conn.transport else {
                return Err(connection_gone());
            };
            let session = tls.session.as_mut().ok_or_else(connection_gone)?;
            let is_last = matches!(output, Output::BytesAndMore(_));
            let taken = encrypt(session, output, usize::MAX, now_ms, records)?;
            if is_last {
                session.close_notify(records);
            }
            engine.send_or_queue_records(conn, records, taken, is_last)
        })
    }

    /// Sends `close_notify` if nothing is queued. A client that does not receive it treats the
    /// connection as truncated (RFC 8446 §6.1).
    pub(super) fn send_close_notify(&self, conn: &mut Conn) {
        let has_unsent =
            (conn.active.as_ref()).is_some_and(|active| !active.wire.unsent().is_empty());
        if has_unsent || conn.is_handshaking() {
            return;
        }
        let Transport::Tls(tls) = &mut conn.transport else {
            return;
        };
        let Some(session) = &mut tls.session else {
            return;
        };
        let mut records = Vec::new();
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

    /// Responds to a plain request on a TLS port.
    fn reject_plain_http(self: &Rc<Self>, id: ConnId) {
        if let Some(conn) = self.conns.borrow_mut().get(id) {
            self.note_handshake_ends();
            self.counters.handshakes.count(Handshake::PlainHttp);
            conn.transport = Transport::Plain;
            conn.expects = Expects::Request;
        }
        let reject = Reject::new(400, "this port requires TLS, use https");
        self.reject_request(id, reject, Outcome::Rejected);
    }

    /// Ends a connection whose client broke a rule of TLS, after the alert was sent.
    fn fail_tls(self: &Rc<Self>, id: ConnId, error: &SessionError) {
        let (task, reader) = {
            let mut conns = self.conns.borrow_mut();
            let Some(conn) = conns.get(id) else { return };
            diagnose!(DEBUG, connection = id.token(), error = tracing::field::display(error.clone()); "TLS failed");
            if conn.is_handshaking() {
                self.note_handshake_ends();
                self.counters.handshakes.count(Handshake::Failed);
                conn.expects = Expects::Request;
            }
            let reader = self.take_reader(id, conn);
            let task = conn
                .active
                .as_mut()
                .and_then(|active| active.exchange.task.take());
            (task, reader)
        };
        drop(task);
        if let Some(reader) = reader {
            user::wake(reader);
        }
        self.linger(id); // A reset because of unread bytes could overtake the alert.
    }

    /// The TLS session of a connection, for handlers.
    pub(super) fn tls_info(&self, id: ConnId) -> Option<Arc<TlsInfo>> {
        match &self.conns.borrow_mut().get(id)?.transport {
            Transport::Plain => None,
            Transport::Tls(tls) => tls.info.clone(),
        }
    }

    /// Called when the time limit of a handshake has expired.
    pub(super) fn on_handshake_timeout(&self, id: ConnId) {
        self.counters.timed_out.count(TimeLimit::Handshake);
        self.close(id, CloseReason::TimedOut);
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
            info: tls.info,
        })
    }
}

/// Appends `bytes` to a block that may not exist yet.
fn extend(block: &mut Option<Block>, bytes: &[u8], pool: &BufferPool) -> Result<(), NoMemory> {
    if bytes.is_empty() {
        return Ok(());
    }
    let kept = block.as_ref().map_or(0, Block::len);
    let has_room = |block: &&mut Block| block.capacity() - kept >= bytes.len();
    if let Some(block) = block.as_mut().filter(has_room) {
        block.extend(bytes);
        return Ok(());
    }
    let mut larger = pool.take_exact(kept + bytes.len()).ok_or(NoMemory)?;
    if let Some(block) = block {
        larger.extend(block.filled());
    }
    larger.extend(bytes);
    *block = Some(larger);
    Ok(())
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
                let fill = |room: &mut [u8]| file.read_at(room, offset);
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
