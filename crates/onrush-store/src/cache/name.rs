//! The names of files in the cache.

use sha2::{Digest, Sha256};
use std::fmt;

/// The name of a file: a hash, so that every name has the same length and files are distributed
/// evenly over the folders.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name([u8; 16]);

/// The length of a path: a folder of two digits, a slash, and the name in hexadecimal.
const PATH_BYTES: usize = 35;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

impl Name {
    /// The name that identifies `parts` (the first 128 bits of SHA-256). The parts and their
    /// lengths determine it.
    pub fn of(parts: &[&[u8]]) -> Name {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut name = [0; 16];
        name.copy_from_slice(&hash.finalize()[..16]);
        Name(name)
    }

    /// The path of the file.
    pub(super) fn path(&self) -> [u8; PATH_BYTES] {
        let mut path = [b'/'; PATH_BYTES];
        for (at, byte) in self.0.iter().enumerate() {
            path[3 + 2 * at..5 + 2 * at].copy_from_slice(&Name::folder(*byte));
        }
        (path[0], path[1]) = (path[3], path[4]);
        path
    }

    pub(super) fn from_bytes(bytes: [u8; 16]) -> Name {
        Name(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The folder of the names that begin with this byte.
    pub(super) fn folder(byte: u8) -> [u8; 2] {
        [
            DIGITS[usize::from(byte >> 4)],
            DIGITS[usize::from(byte & 15)],
        ]
    }

    /// The folder, and the name of the file in it, of a path.
    pub(super) fn split(path: &[u8; PATH_BYTES]) -> (&[u8], &[u8]) {
        (&path[..2], &path[3..])
    }

    /// The name of a file that was found in a folder; `None` if it is none.
    pub(super) fn parse(file: &[u8]) -> Option<Name> {
        if file.len() != 32 {
            return None;
        }
        let digit = |byte: &u8| DIGITS.iter().position(|digit| digit == byte);
        let mut name = [0; 16];
        for (byte, pair) in name.iter_mut().zip(file.chunks(2)) {
            *byte = (digit(&pair[0])? << 4 | digit(&pair[1])?) as u8;
        }
        Some(Name(name))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.path()[3..]).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_the_name() {
        let name = Name::of(&[b"a", b"bc"]);
        assert_ne!(name, Name::of(&[b"ab", b"c"]));
        let path = name.path();
        let (folder, file) = Name::split(&path);
        assert_eq!((folder, Name::parse(file)), (&file[..2], Some(name)));
        assert_eq!(Name::parse(b"x"), None);
        assert_eq!(Name::parse(&[b'g'; 32]), None);
    }
}
