//! What the peer may send (RFC 9113 §5.2): the windows of streams and of their connection.
//!
//! | window | target | given back |
//! | --- | --- | --- |
//! | of a stream | 65,535 bytes, and four times as much each time that half of it, or 1 MiB, was processed, up to 16 MiB | when it was processed |
//! | of the connection | 256 KiB, and what the windows of its streams have grown by | when it was processed, or before, as long as memory suffices: so a stream that is not read does not hold up the others |

use crate::http2::connection::{CONNECTION_WINDOW_BYTES, Connection, WINDOW_BYTES};
use crate::http2::frame::put_window_update;
use crate::http2::streams::{Side, Stream};

/// What the window of a stream grows to at most, in bytes: a client whose round trip takes 50 ms
/// can send 200 MB/s.
const WINDOW_BYTES_MAX: i64 = 16 << 20;

impl Stream {
    /// What the window has grown by.
    fn grown_bytes(&self) -> i64 {
        self.window.target() - i64::from(WINDOW_BYTES)
    }

    /// What it would grow by.
    fn growth(&self) -> i64 {
        match self.window.target() <= WINDOW_BYTES_MAX / 4 {
            true => self.window.target() * 3,
            false => 0,
        }
    }
}

impl Connection {
    /// Bytes of the body of a stream were received for the application.
    pub(super) fn note_held(&mut self, id: u32, bytes: usize) {
        if let Some(stream) = self.streams.get(id) {
            stream.held_of_connection += bytes;
        }
    }

    /// Gives bytes of the window of the connection back: of padding, and of what is discarded.
    pub(super) fn give_back(&mut self, bytes: usize, out: &mut Vec<u8>) {
        self.window.give_back(bytes);
        self.announce(out);
    }

    /// The same for the window of a stream.
    pub(super) fn give_back_of(&mut self, id: u32, bytes: usize, grows: bool, out: &mut Vec<u8>) {
        let Some(stream) = self.streams.get(id) else {
            return;
        };
        stream.window.give_back(bytes);
        if stream.remote == Side::Ended {
            return; // It needs no more room.
        }
        let growth = stream.growth();
        if grows && growth > 0 && stream.window.is_due() {
            stream.window.grow(growth);
            self.window.grow(growth);
        }
        if let Some(bytes) = stream.window.announce() {
            put_window_update(id, bytes, out);
        }
    }

    /// Removes a stream. Nothing of its body is going to be processed.
    pub(super) fn remove_stream(&mut self, id: u32) -> Option<Stream> {
        let stream = self.streams.remove(id)?;
        self.window.give_back(stream.held_of_connection);
        self.window.grow(-stream.grown_bytes());
        Some(stream)
    }

    /// Announces what is free of the window of the connection, if that is worth a frame.
    pub(super) fn announce(&mut self, out: &mut Vec<u8>) {
        if let Some(bytes) = self.window.announce() {
            put_window_update(0, bytes, out);
        }
    }

    /// Bytes of [`Event::Data`](crate::http2::connection::Event::Data) wait for the application.
    /// Lets the client send as many more on other streams at once, and not only when they are
    /// processed.
    pub fn release_held(&mut self, stream: u32, bytes: usize, out: &mut Vec<u8>) {
        if let Some(stream) = self.streams.get(stream) {
            let released = stream.held_of_connection.min(bytes);
            stream.held_of_connection -= released;
            self.window.give_back(released);
        }
        self.announce(out);
    }

    /// Records that bytes of [`Event::Data`](crate::http2::connection::Event::Data) are processed,
    /// so the client may send as many more. `may_grow`: memory suffices for a window that is larger
    /// by [`Connection::growth`], so that a client far away is not held up by it.
    pub fn consume(&mut self, stream: u32, bytes: usize, may_grow: bool, out: &mut Vec<u8>) {
        self.give_back_of(stream, bytes, may_grow, out);
        self.release_held(stream, bytes, out);
    }

    /// What the window of a stream would grow by, in bytes; 0 if it grows no more.
    pub fn growth(&mut self, stream: u32) -> usize {
        self.streams.get(stream).map_or(0, |stream| stream.growth()) as usize
    }

    /// What the windows of all streams have grown by, in bytes: clients may send that much although
    /// nobody reads it.
    pub fn grown_bytes(&self) -> usize {
        (self.window.target() - i64::from(CONNECTION_WINDOW_BYTES)) as usize
    }
}
