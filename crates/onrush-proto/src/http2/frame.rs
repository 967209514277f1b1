//! Frames (RFC 9113 §4, §6): their heads, flags and codes, and how this side writes them.

/// The bytes in front of each payload.
pub const FRAME_HEAD_BYTES: usize = 9;

/// The longest payload that either side sends: the initial `SETTINGS_MAX_FRAME_SIZE`, which this
/// side does not raise. A longer frame would only delay the other streams.
pub const PAYLOAD_BYTES_MAX: usize = 16_384;

/// What a client sends first (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest window of flow control (RFC 9113 §6.9.1), in bytes.
pub(super) const WINDOW_MAX: i64 = (1 << 31) - 1;

pub(super) mod kind {
    pub(in crate::http2) const DATA: u8 = 0;
    pub(in crate::http2) const HEADERS: u8 = 1;
    pub(in crate::http2) const PRIORITY: u8 = 2;
    pub(in crate::http2) const RST_STREAM: u8 = 3;
    pub(in crate::http2) const SETTINGS: u8 = 4;
    pub(in crate::http2) const PUSH_PROMISE: u8 = 5;
    pub(in crate::http2) const PING: u8 = 6;
    pub(in crate::http2) const GOAWAY: u8 = 7;
    pub(in crate::http2) const WINDOW_UPDATE: u8 = 8;
    pub(in crate::http2) const CONTINUATION: u8 = 9;
    /// RFC 9218 §7.1.
    pub(in crate::http2) const PRIORITY_UPDATE: u8 = 16;
}

pub(super) mod flag {
    pub(in crate::http2) const END_STREAM: u8 = 1;
    pub(in crate::http2) const ACK: u8 = 1;
    pub(in crate::http2) const END_HEADERS: u8 = 4;
    pub(in crate::http2) const PADDED: u8 = 8;
    pub(in crate::http2) const PRIORITY: u8 = 32;
}

/// The settings that this side sends or obeys (RFC 9113 §6.5.2).
pub(super) mod setting {
    pub(in crate::http2) const HEADER_TABLE_SIZE: u16 = 1;
    pub(in crate::http2) const ENABLE_PUSH: u16 = 2;
    pub(in crate::http2) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(in crate::http2) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(in crate::http2) const MAX_FRAME_SIZE: u16 = 5;
    pub(in crate::http2) const MAX_HEADER_LIST_SIZE: u16 = 6;
    /// RFC 8441 §3.
    pub(in crate::http2) const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    /// RFC 9218 §2.1.
    pub(in crate::http2) const NO_RFC7540_PRIORITIES: u16 = 9;
}

/// Why a stream or a connection ends (RFC 9113 §7). A peer may send codes that no document names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// The end is no error.
    pub const NO_ERROR: ErrorCode = ErrorCode(0);
    /// A rule of the protocol was broken, and no other code says which.
    pub const PROTOCOL_ERROR: ErrorCode = ErrorCode(1);
    /// This side has failed.
    pub const INTERNAL_ERROR: ErrorCode = ErrorCode(2);
    /// The peer has sent more than a window allows.
    pub const FLOW_CONTROL_ERROR: ErrorCode = ErrorCode(3);
    /// Settings were not acknowledged in time.
    pub const SETTINGS_TIMEOUT: ErrorCode = ErrorCode(4);
    /// A frame for a stream whose peer has ended it.
    pub const STREAM_CLOSED: ErrorCode = ErrorCode(5);
    /// A frame has a wrong size.
    pub const FRAME_SIZE_ERROR: ErrorCode = ErrorCode(6);
    /// The request was not begun, so it may be sent again.
    pub const REFUSED_STREAM: ErrorCode = ErrorCode(7);
    /// The stream is not needed any more.
    pub const CANCEL: ErrorCode = ErrorCode(8);
    /// A header block cannot be decoded.
    pub const COMPRESSION_ERROR: ErrorCode = ErrorCode(9);
    /// The peer causes too much work.
    pub const ENHANCE_YOUR_CALM: ErrorCode = ErrorCode(11);
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) payload_bytes: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHead {
    #[inline]
    pub(super) fn parse(bytes: &[u8; FRAME_HEAD_BYTES]) -> FrameHead {
        let [a, b, c, kind, flags, stream @ ..] = *bytes;
        FrameHead {
            payload_bytes: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & 0x7fff_ffff,
        }
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    #[inline]
    pub(super) fn bytes(self) -> [u8; FRAME_HEAD_BYTES] {
        let [_, a, b, c] = (self.payload_bytes as u32).to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }
}

/// Appends a frame.
pub(super) fn put(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    let payload_bytes = payload.len();
    let head = FrameHead {
        payload_bytes,
        kind,
        flags,
        stream,
    };
    out.extend_from_slice(&head.bytes());
    out.extend_from_slice(payload);
}

/// Appends a `RST_STREAM`.
pub(super) fn put_reset(stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
    put(kind::RST_STREAM, 0, stream, &code.0.to_be_bytes(), out);
}

/// Appends a `WINDOW_UPDATE`; stream 0 is the connection.
pub(super) fn put_window_update(stream: u32, bytes: u32, out: &mut Vec<u8>) {
    put(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes(), out);
}

/// Appends a `GOAWAY`. `last` is the last stream that was or may be processed. `reason`: debug data
/// (RFC 9113 §6.8), which has nothing of the input.
pub(super) fn put_goaway(last: u32, code: ErrorCode, reason: &'static str, out: &mut Vec<u8>) {
    let payload = [
        &last.to_be_bytes(),
        &code.0.to_be_bytes(),
        reason.as_bytes(),
    ]
    .concat();
    put(kind::GOAWAY, 0, 0, &payload, out);
}

/// Appends a `SETTINGS` with these values.
pub(super) fn put_settings(settings: &[(u16, u32)], out: &mut Vec<u8>) {
    let mut payload = Vec::with_capacity(6 * settings.len());
    for (name, value) in settings {
        payload.extend_from_slice(&name.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    put(kind::SETTINGS, 0, 0, &payload, out);
}
