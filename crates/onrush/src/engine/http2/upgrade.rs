//! Streams of other protocols: extended CONNECT (RFC 8441), as HTTP/1 has upgrades.
//!
//! The handler asks by [`Request::upgrade`](crate::Request::upgrade), and its response is a 101 as
//! in HTTP/1. The machine sends it as a 200. From then on the stream has neither the time limits of
//! bodies nor that of requests, and DATA in both directions is what the protocol reads and writes.
//!
//! - Before the response, what the client sends waits in the slot, within its window.
//! - A client that ends its side is the end of the reader, and the server may go on sending. A
//!   server that ends its side may go on reading while it keeps the reader.
//! - A reset by the client cancels the response and fails the reader, as the end of the connection
//!   does. A sender that is dropped before its end resets the stream.
//! - The slot ends with the later of the response and the last reader.

use crate::connections::RequestId;
use crate::engine::lifecycle::Engine;
use onrush_rt::user;

impl Engine {
    /// Permits the response of a stream to be 101, and counts a reader of what follows.
    pub(in crate::engine) fn begin_stream_upgrade(&self, request: RequestId) -> bool {
        let Some(mut stream) = self.conns.stream(request) else {
            return false;
        };
        let may = stream.http2().machine.begin_upgrade(request.number);
        if may {
            let slot = stream.slot();
            slot.tunnel_readers += 1;
            // No limit on bodies holds, and a client that waits for a 100 gets its response.
            (slot.allowed, slot.expects) = (u64::MAX, false);
        }
        may
    }

    /// The response has begun another protocol: what the client has sent already can be read.
    pub(super) fn begin_tunnel(&self, request: RequestId) {
        let reader = {
            let Some(mut stream) = self.conns.stream(request) else {
                return;
            };
            let slot = stream.slot();
            slot.is_upgraded = true;
            slot.exchange.total_deadline_ms = None;
            let reader = slot.exchange.reader.take();
            if slot.tunnel_readers == 0 {
                stream.discard(0);
            }
            reader
        };
        if let Some(reader) = reader {
            user::wake(reader);
        }
    }

    /// Whether the response of a stream has begun another protocol.
    pub(super) fn is_upgraded(&self, request: RequestId) -> bool {
        let stream = self.conns.stream(request);
        stream.is_some_and(|mut stream| stream.slot().is_upgraded)
    }

    /// Somebody who has read a body, or another protocol, has dropped it.
    pub(in crate::engine) fn drop_stream_reader(&self, request: RequestId) {
        let slot = {
            let Some(mut stream) = self.conns.stream(request) else {
                return;
            };
            let slot = stream.slot();
            let is_upgraded = slot.is_upgraded;
            if slot.tunnel_readers > 0 {
                slot.tunnel_readers -= 1;
                // Another may be made, until the response decides.
                if slot.tunnel_readers > 0 || !is_upgraded {
                    return;
                }
            }
            stream.discard(0);
            let is_sent = !stream.http2().machine.is_open(request.number);
            if is_upgraded && is_sent {
                stream.conn.note_due();
                self.end_or_discard(&mut stream)
            } else {
                None
            }
        };
        drop(slot);
    }
}
