//! The name of an object: bytes in segments, checked once so that no later step has to.
//!
//! This module must not know percent-encoding: a key is made of bytes that were decoded already.

use crate::error::{Result, StoreError};
use std::fmt;
use std::sync::Arc;

/// The top segment that is always the store's own, in whatever case, since some file systems
/// do not tell cases apart.
pub(crate) const OWN: &[u8] = b".onrush";

/// Names an object or a folder: segments separated by `/`, none empty, `.` or `..`, none with a
/// NUL, each at most 255 bytes, 4095 together. Bytes that are not UTF-8 are kept. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// Bytes of a whole key at most (`PATH_MAX` less its NUL).
    pub const BYTES_MAX: usize = 4095;
    /// Segments of a key at most: no more fit its bytes.
    pub const SEGMENTS_MAX: usize = Key::BYTES_MAX.div_ceil(2);
    /// Bytes of one segment at most (`NAME_MAX`).
    pub const SEGMENT_BYTES_MAX: usize = 255;

    /// Checks `bytes`, already percent-decoded and without a leading or trailing slash; fails with
    /// [`StoreError::InvalidKey`].
    ///
    /// ```
    /// # use onrush_store::Key;
    /// assert!(Key::parse(b"a/b.txt").is_ok());
    /// assert!(Key::parse(b"a/../b").is_err());
    /// ```
    pub fn parse(bytes: &[u8]) -> Result<Key> {
        if bytes.len() > Key::BYTES_MAX || bytes.contains(&0) {
            return Err(StoreError::InvalidKey);
        }
        let bad = |segment: &[u8]| {
            matches!(segment, b"" | b"." | b"..") || segment.len() > Key::SEGMENT_BYTES_MAX
        };
        if bytes.split(|&b| b == b'/').any(bad) {
            return Err(StoreError::InvalidKey);
        }
        Ok(Key(bytes.into()))
    }

    /// The whole key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The segments, at least one.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/')
    }

    /// The last segment.
    pub fn name(&self) -> &[u8] {
        self.split().1
    }

    /// The folder this is in, or `None` at the top.
    pub fn parent(&self) -> Option<Key> {
        self.split().0.map(|parent| Key(parent.into()))
    }

    /// Whether any segment begins with a dot.
    pub fn hidden(&self) -> bool {
        self.segments().any(|segment| segment[0] == b'.')
    }

    /// Whether it lies in the store's own folder, which no request reaches.
    pub fn reserved(&self) -> bool {
        self.segments()
            .next()
            .is_some_and(|top| top.eq_ignore_ascii_case(OWN))
    }

    /// The parent's bytes and the last segment.
    pub(crate) fn split(&self) -> (Option<&[u8]>, &[u8]) {
        match self.0.iter().rposition(|&b| b == b'/') {
            Some(at) => (Some(&self.0[..at]), &self.0[at + 1..]),
            None => (None, &self.0),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(\"{}\")", self.0.escape_ascii())
    }
}
