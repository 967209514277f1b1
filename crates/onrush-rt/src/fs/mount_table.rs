//! The table of mounts: what is mounted beneath a directory, and where a directory lies in its file
//! system, whatever mount has led to it. A bind mount shows a part of a file system at another
//! path, and what is above the part cannot be reached by `..`.
//!
//! proc_pid_mountinfo(5) and proc_pid_fdinfo(5) describe the files of `/proc`.

use rustix::fd::{AsRawFd, BorrowedFd};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A line of the table.
#[derive(Debug)]
struct Mount {
    id: u64,
    /// The number of the device.
    device: Vec<u8>,
    /// What of the file system is mounted, from its top.
    root: PathBuf,
    /// Where it is mounted.
    point: PathBuf,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Mount> {
        let mut fields = line.split(|&byte| byte == b' ');
        Some(Mount {
            id: str::from_utf8(fields.next()?).ok()?.parse().ok()?,
            device: fields.nth(1)?.to_vec(),
            root: unescaped(fields.next()?),
            point: unescaped(fields.next()?),
        })
    }
}

/// A path of the table, in which white space and backslashes are octal numbers.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits = (after.get(..3)).and_then(|digits| str::from_utf8(digits).ok());
        let number = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        let (byte, left) = match number.filter(|_| first == b'\\') {
            Some(number) => (number, &after[3..]),
            None => (first, after),
        };
        path.push(byte);
        rest = left;
    }
    OsString::from_vec(path).into()
}

fn parse(table: &[u8]) -> impl Iterator<Item = Mount> {
    let lines = table.split(|&byte| byte == b'\n');
    lines.filter_map(Mount::parse)
}

fn read() -> Option<Vec<u8>> {
    fs::read("/proc/self/mountinfo").ok()
}

fn path_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()
}

/// The paths beneath an open directory at which something is mounted, relative to it. The directory
/// itself is an empty one. `None`: it is not known.
pub(super) fn mounted_beneath(dir: BorrowedFd<'_>) -> Option<Vec<Vec<u8>>> {
    let path = path_of(dir)?;
    let beneath = |mount: Mount| {
        let below = mount.point.strip_prefix(&path).ok()?;
        Some(below.as_os_str().as_bytes().to_vec())
    };
    Some(parse(&read()?).filter_map(beneath).collect())
}

/// A directory in a file system.
#[derive(Debug)]
pub(super) struct PlaceInFileSystem {
    /// The mount that has led there.
    pub(super) mount: u64,
    device: Vec<u8>,
    /// From the top of the file system.
    path: PathBuf,
}

impl PlaceInFileSystem {
    /// That of an open directory. `None`: it is not known, because there is no `/proc`, or the
    /// directory is not beneath a mount that this process sees.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Option<PlaceInFileSystem> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
        let mount = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        find(&read()?, mount.trim().parse().ok()?, &path_of(fd)?)
    }

    /// Whether this is `other`, or beneath it.
    pub(super) fn is_within(&self, other: &PlaceInFileSystem) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

/// The place of `path`, to which the mount `id` has led.
fn find(table: &[u8], id: u64, path: &Path) -> Option<PlaceInFileSystem> {
    let mount = parse(table).find(|mount| mount.id == id)?;
    let below = path.strip_prefix(&mount.point).ok()?;
    Some(PlaceInFileSystem {
        mount: id,
        path: mount.root.join(below),
        device: mount.device,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
        30 21 8:1 /srv/a\\040b /mnt/point rw shared:1 - ext4 /dev/sda1 rw\n\
        31 21 0:50 / /mnt/other rw - tmpfs none rw\n";

    fn place(mount: u64, path: &str) -> Option<PlaceInFileSystem> {
        find(MOUNTS, mount, Path::new(path))
    }

    #[test]
    fn a_bind_mount_is_within_what_it_shows() {
        let shown = place(30, "/mnt/point/x").unwrap();
        assert_eq!(shown.path, Path::new("/srv/a b/x"));
        for above in ["/", "/srv", "/srv/a b", "/srv/a b/x"] {
            assert!(shown.is_within(&place(21, above).unwrap()), "{above}");
        }
        for other in ["/srv/a", "/srv/a b/x/y", "/mnt"] {
            assert!(!shown.is_within(&place(21, other).unwrap()), "{other}");
        }
        assert!(!shown.is_within(&place(31, "/mnt/other").unwrap()));
        assert!(place(30, "/mnt/pointer").is_none());
        assert!(place(32, "/mnt").is_none());
    }

    #[test]
    fn paths_of_the_kernel_are_unescaped() {
        for (text, path) in [
            (&b"/a"[..], "/a"),
            (b"/a\\040b\\134\\012", "/a b\\\n"),
            (b"a\\040b\\134\\011", "a b\\\t"),
            (b"/\\0", "/\\0"),
            (b"a\\04", "a\\04"),
            (b"/\\777", "/\\777"),
        ] {
            assert_eq!(unescaped(text), Path::new(path));
        }
    }
}
