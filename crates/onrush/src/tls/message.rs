//! The parts of a handshake message after the handshake.

use rustls::HandshakeType;

/// A handshake message that is being received. Only its header and the first byte of its body are
/// kept, because that is a whole KeyUpdate and every other message is refused.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) bytes: [u8; 5],
    /// Bytes received, with the 4 bytes of the header.
    pub(super) received: usize,
}

impl Message {
    pub(super) const HEADER_BYTES: usize = 4;

    pub(super) fn is_partial(&self) -> bool {
        self.received > 0
    }

    pub(super) fn kind(&self) -> HandshakeType {
        HandshakeType::from(self.bytes[0])
    }

    pub(super) fn body_bytes(&self) -> usize {
        let [_, high, middle, low, _] = self.bytes;
        u32::from_be_bytes([0, high, middle, low]) as usize
    }

    /// Takes bytes up to the end of the header or of the body from the front of `fragment`.
    pub(super) fn take(&mut self, fragment: &mut &[u8]) {
        let end = match self.received {
            0..Self::HEADER_BYTES => Self::HEADER_BYTES,
            _ => Self::HEADER_BYTES + self.body_bytes(),
        };
        let (taken, rest) = fragment.split_at(fragment.len().min(end - self.received));
        if let Some(room) = self.bytes.get_mut(self.received..) {
            for (byte, &new) in room.iter_mut().zip(taken) {
                *byte = new;
            }
        }
        self.received += taken.len();
        *fragment = rest;
    }
}
