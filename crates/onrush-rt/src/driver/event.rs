//! The events that drivers yield.
//!
//! Does not depend on drivers.

use super::{ListenerId, Socket, StreamId};
use crate::buf::Buf;
use std::io;

/// An event of a stream or a listener. `token` is the value that the owner attached the stream
/// with.
#[derive(Debug)]
pub enum Event {
    /// A connection was accepted; it is not attached yet.
    Accepted {
        /// The listener that accepted it.
        listener: ListenerId,
        /// The connection, non-blocking.
        socket: Socket,
    },
    /// Accepting failed (`EMFILE`, `ENFILE`, `ENOBUFS`, `ENOMEM`). The driver pauses the listener
    /// and tries again by itself, after a stream is closed or after a short time.
    AcceptPaused {
        /// The paused listener.
        listener: ListenerId,
        /// The cause.
        error: io::Error,
    },
    /// Bytes arrived; never empty.
    Data {
        /// The stream.
        stream: StreamId,
        /// Its owner's token.
        token: u64,
        /// The bytes.
        data: Buf,
    },
    /// Nothing more will arrive: an orderly end (`Ok`; the other direction still works) or a
    /// failure (`ECONNRESET`, `ETIMEDOUT`, …).
    End {
        /// The stream.
        stream: StreamId,
        /// Its owner's token.
        token: u64,
        /// How it ended.
        result: io::Result<()>,
    },
    /// The stream has left *buffers* after [`Driver::pause`](super::Driver::pause): no `Data`
    /// follows.
    Quiet {
        /// The stream.
        stream: StreamId,
        /// Its owner's token.
        token: u64,
    },
    /// [`Driver::recv`](super::Driver::recv) may be tried again. Yielded once after
    /// [`Driver::want_read`](super::Driver::want_read).
    Readable {
        /// The stream.
        stream: StreamId,
        /// Its owner's token.
        token: u64,
    },
    /// Sending may be tried again. Yielded once after
    /// [`Driver::want_write`](super::Driver::want_write).
    Writable {
        /// The stream.
        stream: StreamId,
        /// Its owner's token.
        token: u64,
    },
}

impl Event {
    /// The token of the event's stream; `None` for an event of a listener.
    #[inline]
    pub fn token(&self) -> Option<u64> {
        match self {
            Event::Data { token, .. }
            | Event::End { token, .. }
            | Event::Quiet { token, .. }
            | Event::Readable { token, .. }
            | Event::Writable { token, .. } => Some(*token),
            Event::Accepted { .. } | Event::AcceptPaused { .. } => None,
        }
    }
}
