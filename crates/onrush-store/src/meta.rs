//! The properties of an object that are known without reading its content.
//!
//! Other stores may derive versions in their own way; `Folder` derives them from file metadata
//! here.

use onrush_rt::fs::{FileKind, Metadata};
use std::fmt;
use std::hash::{Hash, Hasher};

/// The maximum size of an object's metadata in bytes. Few file systems have room for more than
/// 4 KiB of extended attributes.
pub const METADATA_BYTES_MAX: usize = 2048;

/// The maximum size of the properties of an object or a folder in bytes. Together with metadata of
/// the maximum size they fit into the attributes of a file.
pub const PROPERTIES_BYTES_MAX: usize = 1536;

pub(crate) const NS_PER_S: i64 = 1_000_000_000;

/// The kind of thing that a key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An object with bytes.
    File,
    /// A folder.
    Directory,
}

/// The properties of an object or a folder. They are equal if the object and its content are the
/// same: `changed_ns` does not count, because the rename that publishes an object changes it.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// Object or folder.
    pub kind: Kind,
    /// Size of the content in bytes; 0 for a folder.
    pub size: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Time of the last change of any kind (ctime), which no program can set, in nanoseconds since
    /// 1970. `None`: the store does not know it. There is nothing better: Linux has a counter of
    /// changes (`STATX_CHANGE_COOKIE`), but statx(2) does not show it to programs.
    pub changed_ns: Option<i64>,
    /// Changes whenever the bytes may have changed.
    pub version: Version,
}

/// A strong validator: visible ASCII without quotes or backslash, valid as an entity tag.
#[derive(Clone, Copy)]
pub struct Version {
    /// Only the first `len` bytes are used.
    text: [u8; Version::BYTES_MAX],
    len: u8,
}

impl Version {
    /// The maximum length of the text in bytes.
    pub const BYTES_MAX: usize = 55;

    /// Parses the text of a version, from another store or a request. `None` if it is empty, is
    /// longer than [`Version::BYTES_MAX`], contains `"` or `\`, or is not all visible ASCII.
    pub fn parse(bytes: &[u8]) -> Option<Version> {
        let good = |&b: &u8| b.is_ascii_graphic() && b != b'"' && b != b'\\';
        if bytes.is_empty() || bytes.len() > Version::BYTES_MAX || !bytes.iter().all(good) {
            return None;
        }
        let mut text = [0; Version::BYTES_MAX];
        text[..bytes.len()].copy_from_slice(bytes);
        Some(Version {
            text,
            len: bytes.len() as u8,
        })
    }

    /// The text, without quotes.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The text as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.len)]
    }

    /// Inode, size (0 for a folder) and modification time, in hexadecimal, separated by dashes.
    /// Tools that give all files one time, such as those of reproducible builds, use whole seconds,
    /// and inodes are used again. Then the time of the last change of any kind (ctime), which no
    /// program can set, stands for the modification time, with a `c` before it.
    fn from_file(file: &Metadata) -> Version {
        let is_file = file.kind == FileKind::File;
        // What a folder occupies says nothing, and NTFS-3G knows it some time after a change.
        let size = if is_file { file.size } else { 0 };
        if !is_often_set(is_file, file.modified_ns) {
            return Version::from_numbers([file.inode, size, file.modified_ns as u64]);
        }
        let mut version = Version::from_numbers([file.inode, size, 0]);
        version.len -= 1; // The digit of the last number.
        version.push(b'c');
        version.push_hex(file.changed_ns as u64);
        version
    }

    /// The numbers in hexadecimal, separated by dashes.
    pub(crate) fn from_numbers(numbers: [u64; 3]) -> Version {
        let mut version = Version {
            text: [0; Version::BYTES_MAX],
            len: 0,
        };
        version.push_hex(numbers[0]);
        version.push(b'-');
        version.push_hex(numbers[1]);
        version.push(b'-');
        version.push_hex(numbers[2]);
        version
    }

    fn push(&mut self, byte: u8) {
        self.text[usize::from(self.len)] = byte;
        self.len += 1;
    }

    fn push_hex(&mut self, number: u64) {
        let digits = (67 - (number | 1).leading_zeros()) / 4;
        for digit in (0..digits).rev() {
            self.push(b"0123456789abcdef"[(number >> (4 * digit)) as usize & 15]);
        }
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Version) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Version {}

impl Hash for Version {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({self})")
    }
}

/// Whether several contents of a file may have its modification time. A store sets no such time,
/// unless the file system knows only seconds. A folder has the time of its entries.
fn is_often_set(is_file: bool, modified_ns: i64) -> bool {
    is_file && modified_ns % NS_PER_S == 0
}

impl PartialEq for Meta {
    fn eq(&self, other: &Meta) -> bool {
        let of = |meta: &Meta| (meta.kind, meta.size, meta.modified_ns, meta.version);
        of(self) == of(other)
    }
}

impl Eq for Meta {}

impl Meta {
    /// Whether the version changes with the name and the properties of the file as well.
    pub(crate) fn has_fragile_version(&self) -> bool {
        is_often_set(self.kind == Kind::File, self.modified_ns)
    }

    /// The properties from a file's metadata; `None` if it is neither a regular file nor a
    /// directory.
    pub fn from_file(file: &Metadata) -> Option<Meta> {
        let (kind, size) = match file.kind {
            FileKind::File => (Kind::File, file.size),
            FileKind::Directory => (Kind::Directory, 0),
            FileKind::Symlink | FileKind::Special => return None,
        };
        Some(Meta {
            kind,
            size,
            modified_ns: file.modified_ns,
            changed_ns: Some(file.changed_ns),
            version: Version::from_file(file),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_consists_of_inode_size_and_time() {
        let mut file = Metadata {
            kind: FileKind::File,
            size: 0,
            allocated_bytes: 0,
            inode: 0x10,
            device: 0,
            modified_ns: i64::MAX,
            changed_ns: 0,
            mode: 0,
            user: 0,
            group: 0,
            mount: 0,
            nlink: 1,
        };
        assert_eq!(Version::from_file(&file).as_str(), "10-0-7fffffffffffffff");
        file = Metadata {
            size: u64::MAX,
            inode: u64::MAX,
            modified_ns: -1,
            ..file
        };
        let widest = Version::from_file(&file);
        assert_eq!(widest.as_str(), ["ffffffffffffffff"; 3].join("-"));
        assert_eq!(Version::parse(widest.as_bytes()), Some(widest));
        for seconds in [0, 1, -1] {
            file = Metadata {
                modified_ns: seconds * NS_PER_S,
                changed_ns: -1,
                ..file
            };
            let widest = Version::from_file(&file);
            let expected = ["ffffffffffffffff", "ffffffffffffffff", "cffffffffffffffff"];
            assert_eq!(widest.as_str(), expected.join("-"));
            assert_eq!(Version::parse(widest.as_bytes()), Some(widest));
        }
        file = Metadata {
            kind: FileKind::Directory,
            modified_ns: NS_PER_S,
            ..file
        };
        let folder = Version::from_file(&file);
        assert_eq!(folder.as_str(), "ffffffffffffffff-0-3b9aca00");
    }

    #[test]
    fn version_accepts_only_visible_ascii() {
        for bad in [&b""[..], b"a\"b", b"a b", b"\\", b"\xff", &[b'x'; 56]] {
            assert_eq!(Version::parse(bad), None);
        }
        assert!(Version::parse(&[b'x'; 55]).is_some());
    }
}
