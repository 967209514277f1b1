//! Frames of HTTP/2 (RFC 9113 §4.1), read and written without the machine.

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const PRIORITY_UPDATE: u8 = 16;

pub(super) const END_STREAM: u8 = 1;
pub(super) const ACK: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PADDED: u8 = 8;
pub(super) const WITH_PRIORITY: u8 = 32;

pub(super) const TABLE_SIZE: u16 = 1;
pub(super) const INITIAL_WINDOW: u16 = 4;
pub(super) const CONNECT_PROTOCOL: u16 = 8;

pub(super) const HEAD_BYTES: usize = 9;
pub(super) const PAYLOAD_BYTES_MAX: usize = 16_384;
pub(super) const WINDOW_MAX: i64 = (1 << 31) - 1;

/// The head of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameHead {
    pub(super) payload_bytes: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Without the reserved bit.
    pub(super) stream: u32,
    pub(super) is_reserved_set: bool,
}

impl FrameHead {
    /// Reads the head at the start of `bytes`, if it is there.
    pub(super) fn read(bytes: &[u8]) -> Option<FrameHead> {
        let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<HEAD_BYTES>()?;
        let stream = u32::from_be_bytes(stream);
        Some(FrameHead {
            payload_bytes: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: stream & (u32::MAX >> 1),
            is_reserved_set: stream >> 31 == 1,
        })
    }

    pub(super) fn frame_bytes(self) -> usize {
        HEAD_BYTES + self.payload_bytes
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends a frame.
pub(super) fn put(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The number at the start of a payload.
///
/// # Panics
/// If it has less than four bytes.
pub(super) fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(*payload.first_chunk().expect("four bytes"))
}

/// The settings in a payload: names and values.
pub(super) fn settings(payload: &[u8]) -> impl Iterator<Item = (u16, u32)> {
    let (settings, _) = payload.as_chunks::<6>();
    settings
        .iter()
        .map(|[a, b, value @ ..]| (u16::from_be_bytes([*a, *b]), u32::from_be_bytes(*value)))
}
