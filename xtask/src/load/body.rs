//! Bodies that tell what they are: the key, the writer, the number of its write, the length and a
//! checksum. A body that is torn, mixed, or of another key is found.

use std::fmt;

/// The write that a body is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The client.
    pub writer: u32,
    /// The number of its write.
    pub sequence: u32,
}

impl Id {
    /// One number for both.
    pub(super) fn number(self) -> u64 {
        u64::from(self.writer) << 32 | u64::from(self.sequence)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "write {} of writer {}", self.sequence, self.writer)
    }
}

/// The body of a write to `key`. It has `length` bytes after its first line.
pub fn body(key: &str, id: Id, length: usize) -> Vec<u8> {
    let noise = noise(id.number(), length);
    let (writer, sequence, sum) = (id.writer, id.sequence, checksum(&noise));
    let mut body = format!("{key} {writer} {sequence} {length} {sum}\n").into_bytes();
    body.extend_from_slice(&noise);
    body
}

/// The write that a body is of. Fails with what is wrong with it.
pub fn identify(key: &str, body: &[u8]) -> Result<Id, String> {
    let end = body.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let (first, noise) = body.split_at(end);
    let first = String::from_utf8_lossy(first);
    let parts: Vec<&str> = first.split(' ').collect();
    let [found, writer, sequence, length, sum] = parts[..] else {
        return Err(format!("{key}: {} bytes are no body", body.len()));
    };
    let noise = noise.get(1..).unwrap_or_default();
    let is_whole =
        found == key && length.parse() == Ok(noise.len()) && sum.parse() == Ok(checksum(noise));
    match (writer.parse(), sequence.parse()) {
        (Ok(writer), Ok(sequence)) if is_whole => Ok(Id { writer, sequence }),
        _ => Err(format!(
            "{key}: torn: {} bytes after '{first}'",
            noise.len()
        )),
    }
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let mut bytes: Vec<u8> = words.take(length.div_ceil(8)).flatten().collect();
    bytes.truncate(length);
    bytes
}

/// FNV-1a of words of eight bytes.
fn checksum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ word).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_found() {
        let id = |sequence| Id {
            writer: 3,
            sequence,
        };
        for length in [0, 1, 1000] {
            let whole = body("k", id(7), length);
            assert_eq!(identify("k", &whole), Ok(id(7)));
            assert!(identify("other", &whole).is_err());
            assert!(identify("k", &whole[..whole.len() - 1]).is_err());
            assert!(identify("k", &[&whole[..], b"x"].concat()).is_err());
        }
        let (one, two) = (body("k", id(1), 1000), body("k", id(2), 1000));
        let mixed = [&one[..500], &two[500..]].concat();
        assert!(identify("k", &mixed).is_err());
        assert!(identify("k", b"").is_err());
    }
}
