//! The common part of the fuzz targets: an input is a few bytes of choices, then the content.

use onrush_proto::limits::Limits;

/// Bytes of an input that are choices and not content.
pub const CHOICES: usize = 4;

/// What the first bytes of an input choose.
#[derive(Clone, Copy, Debug)]
pub struct Choices([u8; CHOICES]);

impl Choices {
    /// Takes the choices off the input; `None` when it is too short for them.
    pub fn take(input: &[u8]) -> Option<(Choices, &[u8])> {
        let (choices, content) = input.split_first_chunk()?;
        Some((Choices(*choices), content))
    }

    /// The usual limits, or such as short inputs can pass.
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

    /// Ascending offsets below `len`, with gaps of one byte to many, as the choices say.
    pub fn splits(&self, len: usize) -> Vec<usize> {
        let mut state = u32::from_le_bytes(self.0) | 1;
        let gap_max = [1, 3, 16, 200][usize::from(self.0[0] >> 1 & 3)];
        let mut splits = Vec::new();
        let mut at = 0;
        loop {
            // Marsaglia's xorshift: enough to make gaps differ.
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
