//! The name of an object: bytes in segments. A key is checked once, when it is created.
//!
//! The bytes have already been percent-decoded.

use crate::error::{Result, StoreError};
use std::fmt;
use std::sync::Arc;

/// The first segment that is reserved for the store, in upper and lower case, because some file
/// systems ignore case.
pub(crate) const RESERVED: &[u8] = b".onrush";

/// The beginning of the names that are reserved in every folder: those of staging folders on other
/// file systems, in upper and lower case.
pub(crate) const STAGING: &[u8] = b".onrush-staging";

/// The beginning of the keys of [`Key::state`], within the reserved folder.
const STATE: &[u8] = b".onrush/state/";

/// The beginning of the keys of copies that are not complete, within the reserved folder of a disk:
/// then the name of a process, and a number.
const STAGED: &[u8] = b".onrush/staging/";

/// The same on another file system beneath the folder, after the path of one of its folders.
const STAGED_NEAR: &[u8] = b"/.onrush-staging/staging/";

/// The name of an object or a folder: segments separated by `/`. No segment is empty, `.` or `..`,
/// or contains a NUL. A segment has at most 255 bytes and a key at most 4095. Bytes that are not
/// UTF-8 are kept. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// The maximum length of a key in bytes (`PATH_MAX` minus its NUL).
    pub const BYTES_MAX: usize = 4095;
    /// The maximum number of segments that fit into a key.
    pub const SEGMENTS_MAX: usize = Key::BYTES_MAX.div_ceil(2);
    /// The maximum length of a segment in bytes (`NAME_MAX`).
    pub const SEGMENT_BYTES_MAX: usize = 255;

    /// Checks `bytes`, which are percent-decoded and have no leading or trailing slash. Fails with
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

    /// The key of an object in which a server stores its own state, such as users or uploads to
    /// continue. `name` is checked as by [`Key::parse`]. Requests cannot access it
    /// ([`Key::reserved`]), but each [`Store`](crate::Store) treats it like any other object: it
    /// has conditions, metadata and listings, and another replica finds it.
    ///
    /// ```
    /// # use onrush_store::Key;
    /// assert!(Key::state(b"users/ann")?.reserved());
    /// # Ok::<(), onrush_store::StoreError>(())
    /// ```
    pub fn state(name: &[u8]) -> Result<Key> {
        Key::parse(&[STATE, name].concat())
    }

    /// The key of the entry `name` of `folder` (`None`: the root folder). It is checked as by
    /// [`Key::parse`]: an entry of a listing may be too deep, or its path too long.
    ///
    /// ```
    /// # use onrush_store::Key;
    /// let folder = Key::parse(b"a/b")?;
    /// assert_eq!(Key::of_entry(Some(&folder), b"c")?, Key::parse(b"a/b/c")?);
    /// assert_eq!(Key::of_entry(None, b"c")?, Key::parse(b"c")?);
    /// # Ok::<(), onrush_store::StoreError>(())
    /// ```
    pub fn of_entry(folder: Option<&Key>, name: &[u8]) -> Result<Key> {
        match folder {
            Some(folder) => Key::parse(&[folder.as_bytes(), b"/", name].concat()),
            None => Key::parse(name),
        }
    }

    /// The bytes of the whole key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The segments; there is at least one.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/')
    }

    /// The last segment.
    pub fn name(&self) -> &[u8] {
        self.split().1
    }

    /// The key of the folder that contains this one, or `None` for the root folder.
    pub fn parent(&self) -> Option<Key> {
        self.split().0.map(|parent| Key(parent.into()))
    }

    /// Whether any segment begins with a dot.
    pub fn hidden(&self) -> bool {
        self.segments().any(|segment| segment[0] == b'.')
    }

    /// Whether the key lies in a folder that is reserved for the store, which requests cannot
    /// access: `.onrush` at the top, or one anywhere whose name begins with `.onrush-staging`.
    pub fn reserved(&self) -> bool {
        let mut segments = self.segments();
        segments.next().is_some_and(|top| is_reserved(top, true))
            || segments.any(|name| is_reserved(name, false))
    }

    /// Whether the key lies in the folder `folder`, at any depth.
    pub(crate) fn is_beneath(&self, folder: &Key) -> bool {
        let rest = self.as_bytes().strip_prefix(folder.as_bytes());
        rest.is_some_and(|rest| rest.first() == Some(&b'/'))
    }

    /// The key of a copy that is not complete, or of something beneath it. `path` leads to the
    /// folder that has the reserved one: empty for the root folder. `process` is the name of the
    /// folder with the staged files of this process.
    pub(crate) fn staged(path: &[u8], process: &[u8], name: &[u8]) -> Result<Key> {
        let above = match path {
            [] => STAGED,
            _ => STAGED_NEAR,
        };
        Key::parse(&[path, above, process, b"/", name].concat())
    }

    /// Whether the key is made by [`Key::staged`].
    pub(crate) fn is_staged(&self) -> bool {
        let is_near = |at: &[u8]| at == STAGED_NEAR;
        self.0.starts_with(STAGED) || self.0.windows(STAGED_NEAR.len()).any(is_near)
    }

    /// Whether a store on a disk keeps its own files there: reserved, but neither made by
    /// [`Key::state`] nor the key of a copy that is not complete.
    pub(crate) fn is_internal(&self) -> bool {
        self.reserved() && !self.0.starts_with(STATE) && !self.is_staged()
    }

    /// The parent's bytes and the last segment.
    pub(crate) fn split(&self) -> (Option<&[u8]>, &[u8]) {
        match self.0.iter().rposition(|&b| b == b'/') {
            Some(at) => (Some(&self.0[..at]), &self.0[at + 1..]),
            None => (None, &self.0),
        }
    }
}

/// Whether the entry `name` of a folder is reserved for the store, at the top or beneath it.
pub(crate) fn is_reserved(name: &[u8], is_top: bool) -> bool {
    // Most names are decided by the first byte.
    let is_staging = |name: &[u8]| {
        let start = name.get(..STAGING.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(STAGING))
    };
    name[0] == b'.' && (is_staging(name) || (is_top && name.eq_ignore_ascii_case(RESERVED)))
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(\"{}\")", self.0.escape_ascii())
    }
}
