//! The header blocks of a client, read without the rules of requests.

use crate::http2::frames::{self, FrameHead};
use onrush_proto::http2::hpack::Decoder;

/// What a block says of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub(super) stream: u32,
    /// The frame ends the stream.
    pub(super) ends: bool,
    /// The only method is HEAD.
    pub(super) is_head: bool,
    /// It has `:protocol`, whatever its value and its method.
    pub(super) has_protocol: bool,
}

/// Reads the blocks of a client.
pub(super) struct Blocks {
    decoder: Decoder,
    block: Vec<u8>,
    asked: Asked,
    is_complete: bool,
}

impl Blocks {
    pub(super) fn new() -> Blocks {
        Blocks {
            decoder: Decoder::new(),
            block: Vec::new(),
            asked: Asked::default(),
            is_complete: true,
        }
    }

    /// No block has begun and not ended.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Takes a HEADERS or CONTINUATION frame that the machine has accepted. Returns what the block
    /// says when it is complete.
    pub(super) fn take(&mut self, head: FrameHead, payload: &[u8]) -> Option<Asked> {
        if head.kind == frames::HEADERS {
            let padding = match payload.first() {
                Some(&padding) if head.has(frames::PADDED) => usize::from(padding),
                _ => 0,
            };
            let front = usize::from(head.has(frames::PADDED))
                + if head.has(frames::WITH_PRIORITY) {
                    5
                } else {
                    0
                };
            self.block = payload[front..payload.len() - padding].to_vec();
            self.asked = Asked {
                stream: head.stream,
                ends: head.has(frames::END_STREAM),
                ..Asked::default()
            };
        } else {
            self.block.extend_from_slice(payload);
        }
        self.is_complete = head.has(frames::END_HEADERS);
        if !self.is_complete {
            return None;
        }
        let (asked, mut methods) = (&mut self.asked, 0);
        let result = self.decoder.decode(&self.block, |name, value| match name {
            b":method" => {
                methods += 1;
                asked.is_head = methods == 1 && value == b"HEAD";
            }
            b":protocol" => asked.has_protocol = true,
            _ => {}
        });
        assert_eq!(result, Ok(()), "a block that the machine has decoded");
        Some(self.asked)
    }
}
