//! How the bytes of a connection get to the kernel: as they are, or as TLS records.
//!
//! All sends of the engine pass through here. On a plain connection a send is one call of the
//! driver: a file part stays a file part and is sent by `sendfile(2)`. On a TLS connection the
//! bytes are encrypted first, and the records that the kernel does not accept are queued in
//! [`Wire::out`](super::connection::Wire::out). That queue holds what goes to the socket, so it is
//! sent and counted alike on both. Kernel TLS would be a third variant, with the driver's sends of
//! the first.

use super::Engine;
use super::connection::{Conn, Expects};
use super::request_body::BodyTarget;
use super::tls::Tls;
use onrush_rt::fs::File;
use std::io::{self, IoSlice};

/// What is between a connection and its socket.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain,
    Tls(Box<Tls>),
}

/// Bytes that are sent by one call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Output<'a> {
    Bytes(&'a [u8]),
    /// More follows at once: a file, or the end of the connection (`MSG_MORE`, send(2)).
    BytesAndMore(&'a [u8]),
    /// A rendered head and content behind it.
    Both(&'a [u8], &'a [u8]),
    /// A part of a file: the offset and the number of bytes.
    File(&'a File, u64, usize),
}

impl Transport {
    #[inline]
    pub(super) fn is_tls(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }

    /// The memory of received bytes that are not processed, because a record is incomplete.
    pub(super) fn received_bytes(&self) -> usize {
        match self {
            Transport::Plain => 0,
            Transport::Tls(tls) => tls.received_bytes(),
        }
    }

    /// Frees the memory of [`Transport::received_bytes`]. The connection cannot receive afterwards.
    pub(super) fn drop_received(&mut self) {
        if let Transport::Tls(tls) = self {
            tls.drop_received();
        }
    }

    /// Whether the connection is encrypted and its client has begun the handshake.
    pub(super) fn has_begun_handshake(&self) -> bool {
        match self {
            Transport::Plain => false,
            Transport::Tls(tls) => tls.has_begun(),
        }
    }
}

impl Conn {
    /// The bytes of responses that the kernel has not accepted, without what TLS adds to them.
    pub(super) fn unsent_response_bytes(&self) -> usize {
        match &self.transport {
            Transport::Plain => {
                (self.active.as_ref()).map_or(0, |active| active.wire.unsent().len())
            }
            Transport::Tls(tls) => tls.unsent_response_bytes(),
        }
    }

    /// Given that the kernel has accepted `bytes` bytes, returns how many of them are bytes of
    /// responses.
    pub(super) fn accepted_response_bytes(&mut self, bytes: usize) -> usize {
        match &mut self.transport {
            Transport::Plain => bytes,
            Transport::Tls(tls) => tls.accepted_response_bytes(bytes),
        }
    }

    /// Whether the connection is in its TLS handshake.
    pub(super) fn is_handshaking(&self) -> bool {
        self.expects == Expects::Handshake
    }
}

impl Engine {
    /// Receives up to `bytes_max` bytes of a body without waiting, while the driver is paused.
    /// Returns the number of bytes, 0 at the end of the stream, and whether the socket is empty
    /// now.
    pub(super) fn receive_body(
        &self,
        conn: &mut Conn,
        target: BodyTarget<'_>,
        bytes_max: usize,
    ) -> (io::Result<usize>, bool) {
        if conn.transport.is_tls() {
            return self.receive_encrypted(conn, target, bytes_max);
        }
        let room = target.room().min(bytes_max);
        let (mut driver, stream) = (self.context.driver(), conn.stream);
        let result = match target {
            BodyTarget::Append(into) => driver.recv_append(stream, into, bytes_max),
            BodyTarget::Discard(memory) => driver.discard(stream, &mut memory[..room]),
        };
        let emptied = result.as_ref().is_ok_and(|&bytes| bytes < room);
        (result, emptied)
    }

    /// Sends without waiting; returns the number of bytes taken. `WouldBlock`: none, because the
    /// socket buffer is full. Nothing else may be queued in the connection.
    ///
    /// With TLS, the records of the bytes taken may be queued. The engine requests a `Writable`
    /// event for them.
    #[inline]
    pub(super) fn send_output(&self, conn: &mut Conn, output: Output<'_>) -> io::Result<usize> {
        if conn.transport.is_tls() {
            return self.send_encrypted(conn, output);
        }
        let (mut driver, stream) = (self.context.driver(), conn.stream);
        match output {
            Output::Bytes(bytes) => driver.send(stream, bytes),
            Output::BytesAndMore(bytes) => driver.send_more(stream, bytes),
            Output::Both(first, second) => {
                driver.send_vectored(stream, &[IoSlice::new(first), IoSlice::new(second)])
            }
            Output::File(file, offset, bytes) => driver.send_file(stream, file, offset, bytes),
        }
    }
}
