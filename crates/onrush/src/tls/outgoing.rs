//! The sending half of an established connection: records, their sizes, and the life of the key.

use super::next_keys::NextKeys;
use super::record::{OVERHEAD_MAX, PLAINTEXT_MAX, Sealer};
use rustls::{AlertDescription, ContentType, HandshakeType};
use std::io;

/// The last records of a key, which no application data may use: they are for the key update, or
/// for the last alerts of the connection.
const RESERVED_RECORDS: u64 = 4;

/// A connection of TLS 1.2 closes after its next response when fewer records than this are left of
/// its key. They are enough for a response of 16 GiB.
const WORN_RECORDS: u64 = 1 << 20;

/// The content of a record that fits, with its overhead, a TCP segment on any common path.
const SMALL_RECORD_BYTES: usize = 1370;
/// The bytes that are sent in small records after the handshake and after a pause. About as much
/// as an initial congestion window: a client can decrypt each segment when it arrives.
const SMALL_RECORDS_TOTAL: usize = 16 * 1024;
/// A pause after which the congestion window may be small again.
const PAUSE_MS: u64 = 1000;

/// How the bytes that are sent are divided into records.
#[derive(Debug)]
struct RecordSizes {
    /// The most bytes of content; the configuration may set less than [`PLAINTEXT_MAX`].
    max: usize,
    /// Bytes that are still sent in small records.
    small_left: usize,
    last_send_ms: u64,
}

impl RecordSizes {
    fn new(max: usize) -> RecordSizes {
        RecordSizes {
            max: max.clamp(1, PLAINTEXT_MAX),
            small_left: SMALL_RECORDS_TOTAL,
            last_send_ms: 0,
        }
    }

    /// Called once for each send.
    #[inline]
    fn start(&mut self, now_ms: u64) {
        if now_ms.saturating_sub(self.last_send_ms) >= PAUSE_MS {
            self.small_left = SMALL_RECORDS_TOTAL;
        }
        self.last_send_ms = now_ms;
    }

    /// The most content of the next record.
    #[inline]
    fn next(&self) -> usize {
        match self.small_left {
            0 => self.max,
            _ => self.max.min(SMALL_RECORD_BYTES),
        }
    }

    #[inline]
    fn sent(&mut self, bytes: usize) {
        self.small_left = self.small_left.saturating_sub(bytes);
    }
}

/// What is sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    key: Sealer,
    /// The number of records that one key may protect.
    key_limit: u64,
    sizes: RecordSizes,
    /// `close_notify` or a fatal alert was sent, or the key is unusable; nothing may follow.
    has_ended: bool,
}

impl Outgoing {
    /// `key_limit` is the number of records that one key may protect, `record_max` the most content
    /// of a record.
    pub(super) fn new(key: Sealer, key_limit: u64, record_max: usize) -> Outgoing {
        Outgoing {
            key,
            key_limit,
            sizes: RecordSizes::new(record_max),
            has_ended: false,
        }
    }

    /// Whether at most [`WORN_RECORDS`] are left of a key that cannot be replaced.
    #[inline]
    pub(super) fn is_worn(&self, keys: &NextKeys) -> bool {
        !keys.is_tls13() && self.key.sequence() >= self.key_limit.saturating_sub(WORN_RECORDS)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Sends nothing more.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Sends an alert, its level and description, after which nothing follows. Has no effect after
    /// another end.
    #[cold]
    pub(super) fn end_with(&mut self, alert: [u8; 2], out: &mut Vec<u8>) {
        if !self.has_ended {
            // Without a usable key the connection ends without an alert.
            let _ = self.message(ContentType::Alert, &alert, out);
            self.has_ended = true;
        }
    }

    /// Sends a warning, unless the connection has ended.
    pub(super) fn warn(&mut self, alert: AlertDescription, out: &mut Vec<u8>) {
        if !self.has_ended {
            let _ = self.message(ContentType::Alert, &[1, alert.into()], out);
        }
    }

    /// Sends a record of the protocol itself.
    fn message(&mut self, content: ContentType, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let start = self.key.begin(out);
        out.extend_from_slice(bytes);
        self.seal(content, start, out)
    }

    #[inline]
    fn seal(&mut self, content: ContentType, start: usize, out: &mut Vec<u8>) -> io::Result<()> {
        self.key.seal(content, start, out).map_err(|_| {
            self.has_ended = true;
            io::Error::other("TLS encryption failed")
        })
    }

    /// Sends a key update and replaces the key (RFC 8446 §4.6.3). `request` asks the peer to
    /// replace its key as well.
    ///
    /// # Errors
    /// If there is no next key. Nothing more can be sent.
    pub(super) fn update_key(
        &mut self,
        keys: &mut NextKeys,
        request: bool,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let Some(key) = keys.sealer() else {
            self.has_ended = true;
            return Err(io::Error::other("the next TLS key could not be derived"));
        };
        let message = [HandshakeType::KeyUpdate.into(), 0, 0, 1, u8::from(request)];
        self.message(ContentType::Handshake, &message, out)?;
        self.key = key;
        Ok(())
    }

    /// Before each record of data: replaces the key, or ends a connection that cannot, before the
    /// key is used up (RFC 8446 §5.5).
    #[inline]
    fn before_data(&mut self, keys: &mut NextKeys, out: &mut Vec<u8>) -> io::Result<()> {
        if self.has_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if self.key.sequence() >= self.key_limit.saturating_sub(RESERVED_RECORDS) {
            return self.retire_key(keys, out);
        }
        Ok(())
    }

    #[cold]
    fn retire_key(&mut self, keys: &mut NextKeys, out: &mut Vec<u8>) -> io::Result<()> {
        if keys.is_tls13() {
            return self.update_key(keys, true, out);
        }
        // Without `close_notify`: the client must not take what it has received for complete.
        self.has_ended = true;
        Err(io::Error::other(
            "the TLS key has protected as many records as is safe",
        ))
    }

    /// See [`Session::send_both`](super::session::Session::send_both).
    #[inline]
    pub(super) fn send_both(
        &mut self,
        keys: &mut NextKeys,
        mut first: &[u8],
        mut second: &[u8],
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        self.sizes.start(now_ms);
        let mut left = first.len() + second.len();
        let records = left / self.sizes.max + left.min(self.sizes.small_left) / SMALL_RECORD_BYTES;
        out.reserve(left + (records + 2) * OVERHEAD_MAX);
        while left > 0 {
            self.before_data(keys, out)?;
            let bytes = left.min(self.sizes.next());
            let start = self.key.begin(out);
            let (of_first, rest) = first.split_at(bytes.min(first.len()));
            first = rest;
            out.extend_from_slice(of_first);
            let (of_second, rest) = second.split_at(bytes - of_first.len());
            second = rest;
            out.extend_from_slice(of_second);
            self.finish_data(start, bytes, out)?;
            left -= bytes;
        }
        Ok(())
    }

    /// See [`Session::send_with`](super::session::Session::send_with).
    #[inline]
    pub(super) fn send_with(
        &mut self,
        keys: &mut NextKeys,
        max: usize,
        now_ms: u64,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>, usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if max == 0 {
            return Ok(0);
        }
        self.sizes.start(now_ms);
        self.before_data(keys, out)?;
        let room = max.min(self.sizes.next());
        out.reserve(room + OVERHEAD_MAX);
        let start = self.key.begin(out);
        let content_start = self.key.content_start(start);
        let filled = fill(out, room);
        let Some(bytes) = out.len().checked_sub(content_start) else {
            // Records may be lost, and the peer cannot decrypt what follows them.
            self.has_ended = true;
            return Err(io::Error::other("the send buffer was cut"));
        };
        let none = match filled {
            Ok(reported) if reported != bytes || bytes > room => Err(io::Error::other(
                "a record has other bytes than reported, or too many",
            )),
            Ok(0) => Ok(0),
            Ok(bytes) => return self.finish_data(start, bytes, out).map(|()| bytes),
            Err(error) => Err(error),
        };
        out.truncate(start);
        none
    }

    #[inline]
    fn finish_data(&mut self, start: usize, bytes: usize, out: &mut Vec<u8>) -> io::Result<()> {
        self.seal(ContentType::ApplicationData, start, out)?;
        self.sizes.sent(bytes);
        Ok(())
    }

    /// Sets the number of records that one key may protect.
    #[cfg(test)]
    pub(super) fn set_key_limit(&mut self, records: u64) {
        self.key_limit = records;
    }
}
