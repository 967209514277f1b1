//! What the fuzz targets check, as functions of an input, and what they share. An input starts with
//! a few bytes of choices; the content follows.
//!
//! The targets themselves, in `targets/`, are a workspace of their own, because libFuzzer is C++
//! and instruments every crate. The tests here check all seeds, cut and changed, without it.
//!
//! Modules, lowest first: `chunked` · `head` · `hpack` · `http2` · `path` · `pipelined` ·
//! `properties` · `range`.

pub mod chunked;
pub mod head;
pub mod hpack;
pub mod http2;
pub mod path;
pub mod pipelined;
pub mod properties;
pub mod range;

#[cfg(test)]
mod tests;

use onrush_proto::limits::Limits;

/// The number of input bytes that are choices.
pub const CHOICES: usize = 4;

/// The choices at the start of an input.
#[derive(Clone, Copy, Debug)]
pub struct Choices([u8; CHOICES]);

impl Choices {
    /// Splits the choices from the content. `None` if the input is too short.
    pub fn take(input: &[u8]) -> Option<(Choices, &[u8])> {
        let (choices, content) = input.split_first_chunk()?;
        Some((Choices(*choices), content))
    }

    /// The default limits, or small ones that short inputs can exceed.
    pub fn limits(&self) -> Limits {
        let usual = Limits::default();
        if self.0[0] & 1 == 0 {
            return usual;
        }
        Limits {
            head_bytes_max: 256,
            field_count_max: 6,
            target_bytes_max: 64,
            body_bytes_max: 48,
            chunk_extension_bytes_max: 16,
            trailer_bytes_max: 48,
            ..usual
        }
    }

    /// Whether a bit is set, of 32. The target gives it a meaning; [`Choices::limits`] uses bit 0.
    pub fn has(&self, bit: u32) -> bool {
        u32::from_le_bytes(self.0) >> bit & 1 == 1
    }

    /// Ascending offsets below `len`. The choices determine the gaps, of one byte or more.
    pub fn splits(&self, len: usize) -> Vec<usize> {
        let mut state = u32::from_le_bytes(self.0) | 1;
        let gap_max = [1, 3, 16, 200][usize::from(self.0[0] >> 1 & 3)];
        let mut splits = Vec::new();
        let mut at = 0;
        loop {
            // Marsaglia's xorshift makes the gaps differ.
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            at += 1 + state as usize % gap_max;
            if at >= len {
                return splits;
            }
            splits.push(at);
        }
    }
}
