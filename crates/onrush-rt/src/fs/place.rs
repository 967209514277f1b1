//! Where a directory lies in its file system, whatever mount has led to it: a bind mount shows a
//! part of a file system at another path, and what is above the part cannot be reached by `..`.
//!
//! proc_pid_mountinfo(5) and proc_pid_fdinfo(5) have the answer.

use rustix::fd::{AsRawFd, BorrowedFd};
use std::fs;
use std::os::unix::ffi::OsStringExt;

/// A directory in a file system.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlaceInFileSystem {
    /// The mount that has led there.
    pub(super) mount: u64,
    /// The number of the device, as in the table of mounts.
    device: Vec<u8>,
    /// From the top of the file system; without a slash at its end.
    path: Vec<u8>,
}

impl PlaceInFileSystem {
    /// That of an open directory. `None`: it is not known, because there is no `/proc`, or the
    /// directory is not beneath a mount that this process sees.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Option<PlaceInFileSystem> {
        let number = fd.as_raw_fd();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        let mount = mount.trim().parse().ok()?;
        let path = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        let mounts = fs::read("/proc/self/mountinfo").ok()?;
        find(&mounts, mount, &path.into_os_string().into_vec())
    }

    /// Whether this is `other`, or beneath it.
    pub(super) fn is_within(&self, other: &PlaceInFileSystem) -> bool {
        let rest = self.path.strip_prefix(&other.path[..]);
        self.device == other.device
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
    }
}

/// The place of `path`, to which the mount with this number has led.
fn find(mounts: &[u8], mount: u64, path: &[u8]) -> Option<PlaceInFileSystem> {
    let number = mount.to_string();
    let mut lines = mounts.split(|&byte| byte == b'\n');
    lines.find_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        fields.next().filter(|id| *id == number.as_bytes())?;
        let (device, root, point) = (fields.nth(1)?, fields.next()?, fields.next()?);
        let (root, point) = (unescape(root), unescape(point));
        let below = path.strip_prefix(without_slash(&point))?;
        let is_below = below.is_empty() || below.starts_with(b"/");
        is_below.then(|| PlaceInFileSystem {
            mount,
            device: device.to_vec(),
            path: without_slash(&[without_slash(&root), below].concat()).to_vec(),
        })
    })
}

fn without_slash(path: &[u8]) -> &[u8] {
    path.strip_suffix(b"/").unwrap_or(path)
}

/// A path of the table of mounts, in which `\040` is a space.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() {
            &after[3..]
        } else {
            after
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        30 21 8:1 /srv/a\\040b /mnt/point rw shared:1 - ext4 /dev/sda1 rw\n\
        31 21 0:50 / /mnt/other rw - tmpfs none rw\n";

    fn place(mount: u64, path: &str) -> Option<PlaceInFileSystem> {
        find(MOUNTS, mount, path.as_bytes())
    }

    #[test]
    fn a_bind_mount_is_within_what_it_shows() {
        let shown = place(30, "/mnt/point/x").unwrap();
        assert_eq!(shown.path, b"/srv/a b/x");
        for above in ["/", "/srv", "/srv/a b", "/srv/a b/x"] {
            assert!(shown.is_within(&place(21, above).unwrap()), "{above}");
        }
        for other in ["/srv/a", "/srv/a b/x/y", "/mnt"] {
            assert!(!shown.is_within(&place(21, other).unwrap()), "{other}");
        }
        assert!(!shown.is_within(&place(31, "/mnt/other").unwrap()));
        assert_eq!(place(30, "/mnt/pointer"), None);
        assert_eq!(place(32, "/mnt"), None);
    }

    #[test]
    fn escaped_bytes_are_decoded() {
        assert_eq!(unescape(b"a\\040b\\134\\011"), b"a b\\\t");
        assert_eq!(unescape(b"a\\04"), b"a\\04");
    }
}
