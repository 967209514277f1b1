//! Syncing a whole file system at once, where that is reliable and cheap.

use super::{Dir, DirInner, kernel};
use rustix::fs::{fstatfs, syncfs};
use rustix::io::retry_on_intr;
use std::io;

/// File systems (linux/magic.h) for which one `syncfs(2)` costs about as much as one `fsync(2)`,
/// and reports what could not be written. Others may report nothing (overlayfs), may write only to
/// another program (FUSE), or do more than that (btrfs commits its whole tree).
const EXT4_MAGIC: u64 = 0xef53;
const XFS_MAGIC: u64 = 0x5846_5342;

/// Before this version of Linux, `syncfs(2)` did not report errors.
const REPORTS_ERRORS_SINCE: (u32, u32) = (5, 8);

impl Dir {
    /// Whether [`Dir::sync_file_system`] reports every error, and costs about as much as a sync of
    /// one file when little is unsynced.
    pub fn can_sync_file_system(&self) -> bool {
        match &self.0 {
            DirInner::Kernel(dir) => is_reliable(dir) && kernel_version() >= REPORTS_ERRORS_SINCE,
            DirInner::Sim(dir) => dir.can_sync_file_system(),
        }
    }

    /// Makes everything on this file system durable: content, properties and entries
    /// (`syncfs(2)`). An error concerns any file, also one of another program, and is reported once
    /// for each open root.
    pub fn sync_file_system(&self) -> io::Result<()> {
        match &self.0 {
            DirInner::Kernel(dir) => Ok(retry_on_intr(|| syncfs(dir.as_fd()))?),
            DirInner::Sim(dir) => dir.sync_file_system(),
        }
    }

    /// The bytes of all files of this machine that are not on their disks yet
    /// (`/proc/meminfo`). `None` if unknown.
    pub fn unsynced_bytes(&self) -> Option<u64> {
        match &self.0 {
            DirInner::Kernel(_) => unsynced_of(&std::fs::read_to_string("/proc/meminfo").ok()?),
            DirInner::Sim(_) => Some(0),
        }
    }
}

/// The sum of `Dirty` and `Writeback`.
fn unsynced_of(meminfo: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        line?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    Some((kib("Dirty:")? + kib("Writeback:")?) * 1024)
}

fn is_reliable(dir: &kernel::Dir) -> bool {
    let found = retry_on_intr(|| fstatfs(dir.as_fd()));
    found.is_ok_and(|found| [EXT4_MAGIC, XFS_MAGIC].contains(&(found.f_type as u64)))
}

/// Major and minor version; 0 if unknown.
fn kernel_version() -> (u32, u32) {
    let names = rustix::system::uname();
    let release = names.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok());
    (next().unwrap_or(0), next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsynced_bytes_are_those_that_wait_or_are_being_written() {
        let text = "Cached:  9 kB\nDirty:   12 kB\nWriteback:  3 kB\nWritebackTmp: 7 kB\n";
        assert_eq!(unsynced_of(text), Some(15 * 1024));
        assert_eq!(unsynced_of("Dirty: 12 kB\n"), None);
    }

    #[test]
    fn the_version_of_this_kernel_is_known() {
        assert!(kernel_version() >= (3, 0));
    }
}
