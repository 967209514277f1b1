//! The open streams of a connection, their states and their windows.
//!
//! A server that does not push has four of the states of RFC 9113 §5.1. `idle` and `closed` streams
//! take no memory: the number of the last stream tells them apart.
//!
//! | state | the peer may send | this side may send |
//! | --- | --- | --- |
//! | idle: above the last stream | HEADERS, PRIORITY | nothing |
//! | [`Side::Open`], [`Side::Open`] (open) | all | all |
//! | [`Side::Ended`], [`Side::Open`] (half-closed, remote) | PRIORITY, WINDOW_UPDATE, RST_STREAM | all |
//! | [`Side::Open`], [`Side::Ended`] (half-closed, local) | all | RST_STREAM, WINDOW_UPDATE |
//! | closed | what was on its way: nothing that changes the stream | nothing |
//!
//! Both `Ended`, or a RST_STREAM of either side, is closed.

use crate::http2::priority::Priority;
use crate::http2::window::Window;

/// One direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Open,
    /// END_STREAM was sent.
    Ended,
}

/// Whether a stream is one of another protocol (RFC 8441): an extended CONNECT asks for it, and a
/// 2xx response to that begins it. A handler asks and answers as in HTTP/1, where these steps are
/// those of [`crate::connection`]: the caller permits a response 101, which is sent as a 200.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tunnel {
    /// The request is an ordinary one.
    #[default]
    No,
    /// The client asks for it.
    Asked,
    /// The response may be 101.
    Permitted,
    /// That was sent. What follows in both directions is of the other protocol.
    Begun,
}

/// A stream that is open or half-closed.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u32,
    /// What the peer sends.
    pub(super) remote: Side,
    /// What this side sends.
    pub(super) local: Side,
    /// The request was HEAD: the response has no content.
    pub(super) head_only: bool,
    pub(super) tunnel: Tunnel,
    /// The head of the response was sent.
    pub(super) has_responded: bool,
    /// What the peer may send.
    pub(super) window: Window,
    /// Bytes of the body that the window of the connection holds, too.
    pub(super) held_of_connection: usize,
    /// What this side may send, in bytes; negative after the peer has lowered its setting.
    pub(super) send_window: i64,
    /// What follows by `content-length`, in bytes; `None` without one.
    pub(super) declared_bytes: Option<u64>,
    pub(super) priority: Priority,
}

/// The streams of a connection that are not closed, in no order. There are few, so looking through
/// their numbers costs less than a hash.
#[derive(Debug, Default)]
pub(super) struct Streams {
    ids: Vec<u32>,
    streams: Vec<Stream>,
}

impl Streams {
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The memory that is allocated, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.ids.capacity() * size_of::<u32>() + self.streams.capacity() * size_of::<Stream>()
    }

    #[inline]
    fn place(&self, id: u32) -> Option<usize> {
        self.ids.iter().position(|&known| known == id)
    }

    #[inline]
    pub(super) fn get(&mut self, id: u32) -> Option<&mut Stream> {
        let place = self.place(id)?;
        Some(&mut self.streams[place])
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Stream> {
        self.streams.iter_mut()
    }

    pub(super) fn add(&mut self, stream: Stream) {
        self.ids.push(stream.id);
        self.streams.push(stream);
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<Stream> {
        let place = self.place(id)?;
        self.ids.swap_remove(place);
        let removed = self.streams.swap_remove(place);
        if self.ids.is_empty() {
            // An idle connection keeps little.
            self.ids.shrink_to(1);
            self.streams.shrink_to(1);
        }
        Some(removed)
    }
}
