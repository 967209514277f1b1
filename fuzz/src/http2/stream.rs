//! What both sides have sent on one stream.

use onrush_proto::http2::connection::WINDOW_BYTES;
use onrush_proto::http2::tunnel::Tunnel;

/// One stream.
pub(super) struct Stream {
    /// The server has reported its request.
    pub(super) is_known: bool,
    /// It is reset, by one of the sides.
    pub(super) is_gone: bool,
    pub(super) was_reset: bool,
    /// The client has sent more after its own reset.
    pub(super) is_late: bool,
    /// The request was HEAD.
    pub(super) is_head: bool,
    /// It has declared the length of its body.
    pub(super) has_length: bool,
    pub(super) tunnel: Tunnel,
    pub(super) has_head: bool,
    pub(super) local_ended: bool,
    pub(super) remote_ended: bool,
    /// What follows of the content of the response, if it has a length.
    pub(super) left: Option<u64>,
    /// What the client has granted in addition to the initial window, less what was sent.
    pub(super) send_window: i64,
    pub(super) announced: i64,
    pub(super) received: i64,
    /// Received bytes that the caller has not consumed.
    pub(super) unconsumed: usize,
    /// Those of them that take up nothing of the window of the connection.
    pub(super) released: usize,
}

impl Stream {
    pub(super) fn new() -> Stream {
        Stream {
            is_known: false,
            is_gone: false,
            was_reset: false,
            is_late: false,
            is_head: false,
            has_length: false,
            tunnel: Tunnel::No,
            has_head: false,
            local_ended: false,
            remote_ended: false,
            left: None,
            send_window: 0,
            announced: i64::from(WINDOW_BYTES),
            received: 0,
            unconsumed: 0,
            released: 0,
        }
    }

    /// The server may send on it.
    pub(super) fn may_send(&self) -> bool {
        self.is_known && !self.is_gone && !self.local_ended
    }

    /// Received bytes that take up the window of the connection.
    pub(super) fn unreleased(&self) -> usize {
        self.unconsumed - self.released
    }

    /// It is not closed.
    pub(super) fn is_open(&self) -> bool {
        self.may_send() || self.may_receive()
    }

    /// The client may send on it.
    pub(super) fn may_receive(&self) -> bool {
        self.is_known && !self.is_gone && !self.remote_ended
    }
}
