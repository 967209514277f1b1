//! The TLS state of one connection: its session, and the bytes between the session and the socket.
//!
//! Received bytes are decrypted in the block in which they arrived, and the plaintext is a view of
//! that block. A record that is incomplete waits in a block of its own, which counts in the receive
//! memory.

use crate::tls::TlsInfo;
use crate::tls::session::{Received, Session, SessionError};
use onrush_rt::buf::{Block, Buf, BufferPool, Reservation};
use onrush_rt::coop;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a record costs of the cooperative budget besides its bytes. A client may send tiny ones.
pub(in crate::engine) const RECORD_COST: usize = 256;
/// What a record without data costs, in bytes. Most are key updates, which derive keys.
pub(in crate::engine) const CONTROL_RECORD_COST: usize = 8 * 1024;
/// What a handshake in progress, without its incomplete message, and an established session,
/// without the certificates of the client, count in the receive memory, in bytes. A test compares
/// the latter with the allocations of a session.
pub(in crate::engine) const HANDSHAKE_STATE_BYTES: usize = 16 * 1024;
const SESSION_BYTES: usize = 3 * 1024;
/// The content of a record up to this size is moved behind the content of the record before it.
/// Many small records are then one input: without this, each would be parsed, queued and responded
/// to on its own.
const JOINED_BYTES_MAX: usize = 2 * 1024;
/// The most bytes of records that are no part of a response and wait until the client reads:
/// responses to key updates. A client may request them without end, and read nothing.
const QUEUED_CONTROL_BYTES_MAX: usize = 2 * 1024;

/// The largest record: header, content and protection (RFC 8446 §5.2, RFC 5246 §6.2.3).
pub(in crate::engine) const RECORD_BYTES_MAX: usize = 5 + 16 * 1024 + 2048;

/// The receive memory that the sessions of a worker hold, in bytes.
#[derive(Clone, Debug, Default)]
pub(in crate::engine) struct SessionMemory(Rc<Cell<usize>>);

/// The memory of one session, until this is dropped.
#[derive(Debug)]
pub(in crate::engine) struct SessionReservation {
    reservation: Reservation,
    bytes: usize,
    memory: SessionMemory,
}

/// The handshakes in progress on a worker.
#[derive(Debug, Default)]
pub(in crate::engine) struct InProgress {
    count: Cell<usize>,
    /// The memory of their incomplete messages.
    held_bytes: Cell<usize>,
}

impl InProgress {
    pub(in crate::engine) fn count(&self) -> usize {
        self.count.get()
    }

    /// The memory of their incomplete messages.
    pub(in crate::engine) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    /// Their memory, as far as it counts in the receive memory.
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.count.get() * HANDSHAKE_STATE_BYTES + self.held_bytes.get()
    }
}

/// A place among the handshakes in progress, until this is dropped.
#[derive(Debug)]
pub(in crate::engine) struct HandshakePlace {
    in_progress: Rc<InProgress>,
    held_bytes: usize,
    begun: Instant,
}

impl HandshakePlace {
    /// Counts one more handshake in `in_progress`.
    pub(in crate::engine) fn new(in_progress: &Rc<InProgress>) -> HandshakePlace {
        in_progress.count.set(in_progress.count.get() + 1);
        HandshakePlace {
            in_progress: in_progress.clone(),
            held_bytes: 0,
            begun: Instant::now(),
        }
    }

    /// Sets the memory of the incomplete message.
    fn set_held(&mut self, bytes: usize) {
        let all = &self.in_progress.held_bytes;
        all.set(all.get() - self.held_bytes + bytes);
        self.held_bytes = bytes;
    }

    /// The time since the first bytes of the client were processed.
    pub(in crate::engine) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl Drop for HandshakePlace {
    fn drop(&mut self) {
        self.set_held(0);
        self.in_progress.count.set(self.in_progress.count.get() - 1);
    }
}

impl SessionMemory {
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.0.get()
    }

    /// `None` when the receive memory is used up.
    pub(in crate::engine) fn reserve(
        &self,
        pool: &BufferPool,
        bytes: usize,
    ) -> Option<SessionReservation> {
        let reservation = pool.reserve(bytes)?;
        self.0.set(self.0.get() + bytes);
        Some(SessionReservation {
            reservation,
            bytes,
            memory: self.clone(),
        })
    }
}

impl SessionReservation {
    /// Changes the number of bytes. Returns `false`, without a change, when the receive memory is
    /// used up. Fewer bytes are always possible.
    pub(in crate::engine) fn resize(&mut self, bytes: usize) -> bool {
        let is_resized = self.reservation.resize(bytes);
        if is_resized {
            self.memory.0.set(self.memory.0.get() - self.bytes + bytes);
            self.bytes = bytes;
        }
        is_resized
    }
}

impl Drop for SessionReservation {
    fn drop(&mut self) {
        self.memory.0.set(self.memory.0.get() - self.bytes);
    }
}

/// The TLS state of one connection.
#[derive(Debug, Default)]
pub(crate) struct Tls {
    /// Created when the first bytes arrive.
    pub(in crate::engine) session: Option<Session>,
    /// Received and not processed: a record that is incomplete, or a handshake that waits for its
    /// turn.
    pub(in crate::engine) received: Option<Block>,
    /// Early data (RFC 8446 §2.3). It is processed when the handshake is complete: by then the
    /// client has proven that it is no repetition of an earlier connection (RFC 8470 §3).
    pub(in crate::engine) early_data: Vec<u8>,
    /// The tickets of the handshake, until other records are sent behind them.
    pub(in crate::engine) tickets: Vec<u8>,
    /// It is in `HandshakeQueue::waiting`.
    pub(in crate::engine) is_waiting: bool,
    /// Decrypted bytes have not been passed on yet. What is in the socket follows them, so it must
    /// not be received directly, and the connection must not move to another worker.
    pub(in crate::engine) is_delivering: bool,
    /// `close_notify` was received, or the session is over. Input is ignored.
    pub(in crate::engine) ignores_input: bool,
    /// Why the session has failed. Its alert was sent, and nothing else can be sent.
    pub(in crate::engine) failure: Option<SessionError>,
    pub(in crate::engine) info: Option<Arc<TlsInfo>>,
    /// The requirements for client certificates that the client has met
    /// (`TlsConfig::client_generation`).
    pub(in crate::engine) client_generation: u64,
    /// The memory of the session, in the budget of receive memory.
    pub(in crate::engine) reservation: Option<SessionReservation>,
    /// While the handshake is in progress.
    pub(in crate::engine) place: Option<HandshakePlace>,
    /// See [`QUEUED_CONTROL_BYTES_MAX`].
    pub(in crate::engine) queued_control_bytes: usize,
    /// Bytes of queued records, and the bytes of responses in them.
    pub(in crate::engine) unsent_bytes: usize,
    pub(in crate::engine) unsent_response_bytes: usize,
}

/// What follows the records that were received.
pub(in crate::engine) enum Next {
    Continue,
    /// The client has sent `close_notify`.
    Closed,
    PlainHttp,
    /// [`Tls::failure`] has the reason.
    Failed,
}

/// What [`Tls::process`] has left.
pub(in crate::engine) struct Processed {
    /// The plaintext is in here. `None` if the connection has kept the block.
    pub(in crate::engine) block: Option<Block>,
    pub(in crate::engine) early_data: Vec<u8>,
    /// `None` after a panic.
    pub(in crate::engine) result: Option<Result<Next, NoMemory>>,
}

/// The state of an established session while its connection moves to another worker.
#[derive(Debug)]
pub(in crate::engine) struct MovedTls {
    pub(in crate::engine) session: Session,
    pub(in crate::engine) received: Vec<u8>,
    pub(in crate::engine) tickets: Vec<u8>,
    pub(in crate::engine) info: Option<Arc<TlsInfo>>,
    pub(in crate::engine) client_generation: u64,
}

/// The receive memory of the worker is exhausted.
pub(in crate::engine) struct NoMemory;

impl From<NoMemory> for io::Error {
    fn from(NoMemory: NoMemory) -> io::Error {
        io::ErrorKind::OutOfMemory.into()
    }
}

impl MovedTls {
    /// The bytes that were received and not processed.
    pub(in crate::engine) fn received(&self) -> usize {
        self.received.len()
    }

    /// The state on the target worker. Returns itself when there is no memory for it.
    pub(in crate::engine) fn resume(
        self,
        pool: &BufferPool,
        memory: &SessionMemory,
    ) -> Result<Tls, Box<MovedTls>> {
        let mut received = None;
        let bytes = session_bytes(self.info.as_deref());
        let Some(reservation) = memory.reserve(pool, bytes) else {
            return Err(Box::new(self));
        };
        if extend(&mut received, &self.received, pool).is_err() {
            return Err(Box::new(self));
        }
        Ok(Tls {
            session: Some(self.session),
            info: self.info,
            client_generation: self.client_generation,
            received,
            tickets: self.tickets,
            reservation: Some(reservation),
            ..Tls::default()
        })
    }
}

impl Tls {
    /// The state for another worker; `None` before there is a session.
    pub(in crate::engine) fn into_moved(self) -> Option<MovedTls> {
        let received = self.received;
        Some(MovedTls {
            session: self.session?,
            received: received.map_or_else(Vec::new, |block| block.filled().to_vec()),
            tickets: self.tickets,
            info: self.info,
            client_generation: self.client_generation,
        })
    }

    /// The version, after the handshake.
    pub(in crate::engine) fn version(&self) -> Option<&'static str> {
        self.info.as_ref().map(|info| info.version())
    }

    /// Whether the handshake has received bytes that wait for their turn.
    pub(in crate::engine) fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// The subject of the client's certificate.
    pub(in crate::engine) fn client_subject(&self) -> Option<String> {
        let client = self.info.as_ref()?.client()?;
        Some(client.subject().to_owned())
    }

    /// Appends received bytes, in place if nothing precedes them.
    pub(in crate::engine) fn receive(
        &mut self,
        mut data: Buf,
        pool: &BufferPool,
    ) -> Result<(), NoMemory> {
        if self.received.is_none() {
            match data.try_into_block() {
                Ok(block) => {
                    self.received = Some(block);
                    return Ok(());
                }
                Err(shared) => data = shared,
            }
        }
        extend(&mut self.received, &data, pool)
    }

    /// Processes the bytes of `filled`. Appends what has to be sent to `out`, and the places of
    /// plaintext to `plaintext`. Keeps the bytes of an incomplete record; takes the block if it has
    /// nothing else.
    pub(in crate::engine) fn process(
        &mut self,
        filled: &mut Option<Block>,
        out: &mut Vec<u8>,
        plaintext: &mut Vec<Range<usize>>,
        pool: &BufferPool,
    ) -> Result<Next, NoMemory> {
        let (Some(session), Some(block)) = (&mut self.session, filled.as_mut()) else {
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
                    coop::spend(CONTROL_RECORD_COST);
                    at += consumed;
                }
                Received::Data {
                    consumed,
                    plaintext: range,
                } => {
                    coop::spend(RECORD_COST);
                    let range = at + range.start..at + range.end;
                    at += consumed;
                    match plaintext.last_mut() {
                        Some(last) if range.len() <= JOINED_BYTES_MAX => {
                            let to = last.end;
                            last.end += range.len();
                            block.filled_mut().copy_within(range, to);
                        }
                        _ => plaintext.push(range),
                    }
                }
                Received::EarlyData {
                    consumed,
                    plaintext,
                } => {
                    self.early_data.extend_from_slice(&plaintext);
                    at += consumed;
                }
                Received::Closed => {
                    self.ignores_input = true;
                    return Ok(Next::Closed);
                }
                Received::PlainHttp => return Ok(Next::PlainHttp),
                Received::Failed(error) => {
                    self.failure = Some(error);
                    return Ok(Next::Failed);
                }
            }
        }
        let rest = &block.filled()[at..];
        if at == 0 && block.capacity() < pool.block_bytes() {
            self.received = filled.take();
        } else if !rest.is_empty() {
            // A client that announces a long record must send it before it takes that memory.
            let room = record_bytes.min(2 * rest.len()).max(rest.len());
            let mut kept = pool.take_exact(room).ok_or(NoMemory)?;
            kept.extend(rest);
            self.received = Some(kept);
        }
        Ok(Next::Continue)
    }

    pub(in crate::engine) fn is_delivering(&self) -> bool {
        self.is_delivering
    }

    /// The memory of bytes received and not processed.
    pub(in crate::engine) fn received_bytes(&self) -> usize {
        self.received.as_ref().map_or(0, Block::capacity)
    }

    /// The number of bytes received and not processed.
    pub(in crate::engine) fn received_len(&self) -> usize {
        self.received.as_ref().map_or(0, Block::len)
    }

    /// Moves the bytes of a handshake that waits to a block of their size.
    pub(in crate::engine) fn shrink_received(&mut self, pool: &BufferPool) {
        let Some(block) = &self.received else { return };
        if block.len() * 4 < block.capacity()
            && let Some(mut exact) = pool.take_exact(block.len())
        {
            exact.extend(block.filled());
            self.received = Some(exact);
        }
    }

    /// Counts records that are queued and no part of a response. Returns `false` if there are too
    /// many.
    pub(in crate::engine) fn note_queued_control(&mut self, bytes: usize) -> bool {
        self.queued_control_bytes += bytes;
        self.queued_control_bytes <= QUEUED_CONTROL_BYTES_MAX
    }

    /// Called when nothing is queued.
    pub(in crate::engine) fn reset_queued_control(&mut self) {
        self.queued_control_bytes = 0;
    }

    /// Frees the bytes received and not processed. What follows is ignored, because it begins in
    /// the middle of a record.
    pub(in crate::engine) fn drop_received(&mut self) {
        self.received = None;
        self.ignores_input = true;
    }

    /// Updates the reservation of a handshake. Returns `false` when the receive memory is used up.
    pub(in crate::engine) fn count_held(&mut self) -> bool {
        let held = self.session.as_ref().map_or(0, Session::held_bytes);
        let bytes = HANDSHAKE_STATE_BYTES + held;
        let is_resized =
            (self.reservation.as_mut()).is_some_and(|reservation| reservation.resize(bytes));
        if let Some(place) = self.place.as_mut().filter(|_| is_resized) {
            place.set_held(held);
        }
        is_resized
    }

    /// Keeps what an established session needs, after its handshake. Returns `false` when the
    /// receive memory is used up, which many certificates of a client can cause.
    pub(in crate::engine) fn establish(&mut self, info: TlsInfo) -> bool {
        let bytes = session_bytes(Some(&info));
        self.info = Some(Arc::new(info));
        (self.reservation.as_mut()).is_some_and(|reservation| reservation.resize(bytes))
    }

    /// Counts records for `response_bytes` bytes of responses that are about to be sent.
    pub(in crate::engine) fn note_encrypted(&mut self, record_bytes: usize, response_bytes: usize) {
        self.unsent_bytes += record_bytes;
        self.unsent_response_bytes += response_bytes;
    }

    /// See [`crate::engine::connection::transport::Transport::forget_unsent`].
    pub(in crate::engine) fn forget_unsent(&mut self) {
        (self.unsent_bytes, self.unsent_response_bytes) = (0, 0);
    }

    pub(in crate::engine) fn unsent_response_bytes(&self) -> usize {
        self.unsent_response_bytes
    }

    /// See `Conn::accepted_response_bytes`. Within queued records the number is proportional.
    pub(in crate::engine) fn accepted_response_bytes(&mut self, bytes: usize) -> usize {
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

/// The memory of an established session. The certificates of the client are kept twice: for
/// handlers, and by rustls.
fn session_bytes(info: Option<&TlsInfo>) -> usize {
    let certificates = info.map_or(0, |info| {
        info.peer_certificates().iter().map(|der| der.len()).sum()
    });
    SESSION_BYTES + 2 * certificates
}

/// Appends `bytes` to a block that may not exist yet. The room doubles, so that bytes that arrive
/// one by one are not copied each time.
pub(in crate::engine) fn extend(
    block: &mut Option<Block>,
    bytes: &[u8],
    pool: &BufferPool,
) -> Result<(), NoMemory> {
    if bytes.is_empty() {
        return Ok(());
    }
    let kept = block.as_ref().map_or(0, Block::len);
    let has_room = |block: &&mut Block| block.capacity() - kept >= bytes.len();
    if let Some(block) = block.as_mut().filter(has_room) {
        block.extend(bytes);
        return Ok(());
    }
    let room = (kept + bytes.len()).max((2 * kept).min(RECORD_BYTES_MAX));
    let mut larger = pool.take_exact(room).ok_or(NoMemory)?;
    if let Some(block) = block {
        larger.extend(block.filled());
    }
    larger.extend(bytes);
    *block = Some(larger);
    Ok(())
}
