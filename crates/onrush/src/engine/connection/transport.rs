//! How the bytes of a connection get to the kernel: as they are, or as TLS records.
//!
//! `shared::socket_io` does the sending. On a plain connection a send is one call of the driver: a
//! file part stays a file part and is sent by `sendfile(2)`. On a TLS connection the bytes are
//! encrypted first, and the records that the kernel does not accept are queued in
//! [`Wire::out`](crate::engine::connection::Wire::out). That queue holds what goes to the socket,
//! so it is sent and counted alike on both. Kernel TLS would be a third variant, with the driver's
//! sends of the first.

use crate::engine::connection::tls_connection::{MovedTls, Tls};
use onrush_rt::fs::File;

/// What is between a connection and its socket.
#[derive(Debug)]
pub(crate) enum Transport {
    Plain,
    Tls(Box<Tls>),
}

/// Bytes that are sent by one call.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) enum Output<'a> {
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
    pub(in crate::engine) fn is_tls(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }

    /// The version of TLS, after the handshake.
    pub(in crate::engine) fn tls_version(&self) -> Option<&'static str> {
        match self {
            Transport::Plain => None,
            Transport::Tls(tls) => tls.version(),
        }
    }

    /// The subject of the client's certificate.
    pub(in crate::engine) fn client_subject(&self) -> Option<String> {
        match self {
            Transport::Plain => None,
            Transport::Tls(tls) => tls.client_subject(),
        }
    }

    /// Whether decrypted bytes have not been passed on yet.
    #[inline]
    pub(in crate::engine) fn is_delivering(&self) -> bool {
        match self {
            Transport::Plain => false,
            Transport::Tls(tls) => tls.is_delivering(),
        }
    }

    /// Whether a handshake has received bytes that wait for their turn.
    pub(in crate::engine) fn is_handshake_waiting(&self) -> bool {
        match self {
            Transport::Plain => false,
            Transport::Tls(tls) => tls.is_waiting(),
        }
    }

    /// The memory of received bytes that are not processed, because a record is incomplete.
    pub(in crate::engine) fn received_bytes(&self) -> usize {
        match self {
            Transport::Plain => 0,
            Transport::Tls(tls) => tls.received_bytes(),
        }
    }

    /// Frees the memory of [`Transport::received_bytes`]. The connection cannot receive afterwards.
    pub(in crate::engine) fn drop_received(&mut self) {
        if let Transport::Tls(tls) = self {
            tls.drop_received();
        }
    }

    /// Forgets the records that the kernel has not accepted yet, for the access log.
    pub(in crate::engine) fn forget_unsent(&mut self) {
        if let Transport::Tls(tls) = self {
            tls.forget_unsent();
        }
    }

    /// Takes the TLS state of a connection that moves to another worker.
    pub(in crate::engine) fn take_moved(&mut self) -> Option<MovedTls> {
        match std::mem::replace(self, Transport::Plain) {
            Transport::Plain => None,
            Transport::Tls(tls) => (*tls).into_moved(),
        }
    }

    /// The number of received bytes that are not processed.
    #[inline]
    pub(in crate::engine) fn received_len(&self) -> usize {
        match self {
            Transport::Plain => 0,
            Transport::Tls(tls) => tls.received_len(),
        }
    }
}

/// Where body bytes go that bypass the driver's buffers.
pub(in crate::engine) enum BodyTarget<'a> {
    /// The spare capacity of the reader's memory.
    Append(&'a mut Vec<u8>),
    /// Nowhere. The memory gives the most bytes of one call.
    Discard(&'a mut [u8]),
}

impl BodyTarget<'_> {
    /// The most bytes that the target takes.
    pub(in crate::engine) fn room(&self) -> usize {
        match self {
            BodyTarget::Append(into) => into.capacity() - into.len(),
            BodyTarget::Discard(memory) => memory.len(),
        }
    }
}
