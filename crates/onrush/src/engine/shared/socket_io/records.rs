//! The records of TLS connections at their sockets: bodies are received and decrypted, output is
//! encrypted and sent or queued.

use super::{Sent, SocketIo, connection_gone};
use crate::engine::connection::Conn;
use crate::engine::connection::tls_connection::{
    CONTROL_RECORD_COST, RECORD_BYTES_MAX, RECORD_COST, extend,
};
use crate::engine::connection::transport::{BodyTarget, Output, Transport};
use crate::tls::session::{Received, Session};
use onrush_rt::buf::Block;
use onrush_rt::coop;
use std::cell::Cell;
use std::io;

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

/// The buffers for the records of one worker.
#[derive(Default)]
pub(in crate::engine) struct RecordBuffers {
    /// Records that are made in the present call. Empty while a call uses the buffer.
    made: Cell<Vec<u8>>,
    /// Records of bodies that are received directly.
    received: Cell<Vec<u8>>,
}

impl RecordBuffers {
    /// An empty buffer for records.
    pub(in crate::engine) fn take(&self) -> Vec<u8> {
        let mut records = self.made.take();
        records.clear();
        records
    }

    /// Takes the buffer back.
    pub(in crate::engine) fn keep(&self, records: Vec<u8>) {
        if records.capacity() <= RECORDS_KEPT_BYTES {
            self.made.set(records);
        }
    }
}

impl SocketIo {
    /// Receives records while the driver is paused, and decrypts them in the worker's buffer. Up to
    /// `bytes_max` bytes of plaintext go to `target`, the rest to the queued input. Returns as
    /// [`SocketIo::receive_body`].
    pub(in crate::engine) fn receive_encrypted(
        &self,
        conn: &mut Conn,
        mut target: BodyTarget<'_>,
        bytes_max: usize,
    ) -> (io::Result<usize>, bool) {
        let mut buffer = self.buffers.received.take();
        buffer.resize(RECEIVE_BUFFER_BYTES, 0);
        let mut out = self.buffers.take();
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
            false => self.send_records(conn, &out),
        };
        self.buffers.keep(out);
        self.buffers.received.set(buffer);
        match (result, sent) {
            (Ok(_), Err(error)) | (Err(error), _) => (Err(error), false),
            (Ok((bytes, emptied)), Ok(_)) => (Ok(bytes), emptied),
        }
    }

    /// One receive of [`SocketIo::receive_encrypted`]. `None`: it must be repeated.
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
    pub(in crate::engine) fn send_records(
        &self,
        conn: &mut Conn,
        records: &[u8],
    ) -> io::Result<Sent> {
        self.send_or_queue_records(conn, records, Content::Control)
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
                active.wire.queue_output(records);
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
    pub(in crate::engine) fn send_encrypted(
        &self,
        conn: &mut Conn,
        output: Output<'_>,
    ) -> io::Result<usize> {
        self.with_records(|records| {
            let now_ms = self.context.now_ms();
            let Transport::Tls(tls) = &mut conn.transport else {
                return Err(connection_gone());
            };
            let session = tls.session.as_mut().ok_or_else(connection_gone)?;
            let taken = encrypt(session, output, ENCRYPT_BYTES_MAX, now_ms, records)?;
            self.send_or_queue_records(conn, records, Content::Response(taken))?;
            Ok(taken)
        })
    }

    /// Encrypts all of `out`, and sends it behind queued records. After the last bytes of the
    /// connection, `close_notify` follows.
    #[inline(never)]
    pub(in crate::engine) fn encrypt_or_queue(
        &self,
        conn: &mut Conn,
        out: &[u8],
        is_last: bool,
    ) -> io::Result<Sent> {
        self.with_records(|records| {
            let now_ms = self.context.now_ms();
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
            self.send_or_queue_records(conn, records, content)
        })
    }

    /// Sends `close_notify` if nothing is queued. A client that does not receive it treats the
    /// connection as truncated (RFC 8446 §6.1).
    pub(in crate::engine) fn send_close_notify(&self, conn: &mut Conn) {
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
    fn with_records<T>(&self, send: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut records = self.buffers.take();
        let result = send(&mut records);
        self.buffers.keep(records);
        result
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
