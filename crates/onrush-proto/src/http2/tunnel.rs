//! Streams of other protocols: extended CONNECT (RFC 8441), as HTTP/1 has them after a 101.
//!
//! ```text
//! Asked -- begin_upgrade --> Permitted -- send_head of a 101, sent as a 200 --> Begun
//!   |                            |
//!   +----------------------------+-- send_head of anything else: a response as to any request
//! ```
//!
//! Without [`Connection::allow_extended_connect`], `:protocol` is an unknown pseudo-header field,
//! and so a stream error. A CONNECT without it gets a 501 in any case.
//!
//! The head has [`Framing::None`](crate::head::Framing::None), though what the client sends follows
//! at once if it does not wait: [`Connection::client_has_ended`] tells.
//!
//! After the 200, [`Event::Data`](crate::http2::connection::Event::Data) and the DATA frames of
//! this side carry the other protocol, under flow control as all content. END_STREAM ends one
//! direction; RST_STREAM both. Trailers are a stream error (RFC 9113 §8.5).

use crate::head::{Head, Version};
use crate::http2::connection::Connection;
use crate::http2::sending::ResponseHead;
pub use crate::http2::streams::Tunnel;
use crate::http2::streams::{Side, Stream};
use crate::response::ContentLength;

impl Connection {
    /// Lets clients ask for other protocols. Call it before [`Connection::begin`], which says so in
    /// its settings. Browsers then open WebSockets on this connection, and on no other one.
    pub fn allow_extended_connect(&mut self) {
        self.extended_connect = true;
    }

    /// Whether a stream is one of another protocol; [`Tunnel::No`] also if it is gone.
    pub fn tunnel(&mut self, stream: u32) -> Tunnel {
        let stream = self.streams.get(stream);
        stream.map(|stream| stream.tunnel).unwrap_or_default()
    }

    /// Whether the client has ended its side of a stream, or the stream is gone.
    pub fn client_has_ended(&mut self, stream: u32) -> bool {
        let stream = self.streams.get(stream);
        stream.is_none_or(|stream| stream.remote == Side::Ended)
    }

    /// Permits the response to be 101. Returns whether it does: the request is an extended CONNECT
    /// that declares no length, and the response has not begun. With any other response, the
    /// stream ends as that of any request.
    pub fn begin_upgrade(&mut self, stream: u32) -> bool {
        let Some(stream) = self.streams.get(stream) else {
            return false;
        };
        if stream.has_responded {
            return false;
        }
        if stream.tunnel == Tunnel::Asked && stream.declared_bytes.is_none() {
            stream.tunnel = Tunnel::Permitted;
        }
        stream.tunnel == Tunnel::Permitted
    }

    /// Whether a request, whose head is in [`Connection::head_bytes`], is an extended CONNECT.
    pub(super) fn asks_for_protocol(&self, request: &Head) -> bool {
        debug_assert_eq!(
            request.version(),
            Version::Http2,
            "a head of this connection"
        );
        self.extended_connect && request.method(&self.fields.bytes) == "CONNECT"
    }
}

/// If the response is a 101 that is permitted, begins the other protocol, and returns the head
/// that the client gets.
pub(super) fn begin_tunnel<'h>(
    stream: &mut Stream,
    head: &ResponseHead<'h>,
) -> Option<ResponseHead<'h>> {
    if head.status != 101 || stream.tunnel != Tunnel::Permitted {
        return None;
    }
    stream.tunnel = Tunnel::Begun;
    Some(ResponseHead {
        status: 200,
        length: ContentLength::Unknown,
        ..*head
    })
}
