//! Path lookup that never leaves a directory: by `openat2(2)`, or segment by segment if that is
//! missing (before Linux 5.6) or forbidden (old seccomp profiles).
//!
//! This module only returns descriptors; callers use them.

use super::Beneath;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// Follow links only while they stay beneath, and no magic links of `/proc`.
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// How many times a lookup is repeated that a concurrent rename disturbed (`EAGAIN`).
const RETRIES: usize = 16;

/// How paths are resolved beneath one root and in all directories opened from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    openat2: bool,
    /// The kernel knows `RESOLVE_CACHED` (Linux 5.12).
    cached: bool,
}

impl Lookup {
    /// Detects on `root` what the kernel supports and allows.
    pub(super) fn probe(root: BorrowedFd<'_>, beneath: Beneath) -> Lookup {
        let try_with = |resolve| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat2(root, c".", flags, Mode::empty(), resolve)
        };
        let openat2 = beneath == Beneath::Auto && try_with(RESOLVE).is_ok();
        let cached = match try_with(RESOLVE | ResolveFlags::CACHED) {
            Ok(_) | Err(Errno::AGAIN) => openat2,
            Err(_) => false,
        };
        Lookup { openat2, cached }
    }

    /// Whether symbolic links are followed; the fallback refuses them all.
    pub(super) fn follows_links(self) -> bool {
        self.openat2
    }

    /// Opens `path` beneath `dir`; `flags` decides whether as a file or a directory.
    pub(super) fn open(
        self,
        dir: BorrowedFd<'_>,
        path: &[u8],
        flags: OFlags,
        mode: Mode,
    ) -> Result<OwnedFd, Errno> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if !self.openat2 {
            return walk(dir, path, flags, mode);
        }
        let mut result = Err(Errno::AGAIN);
        for _ in 0..RETRIES {
            result = openat2(dir, path, flags | OFlags::CLOEXEC, mode, RESOLVE);
            if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
                break;
            }
        }
        result
    }

    /// Opens `path` without waiting for a disk, or fails with `EAGAIN`. `EXDEV` also if it leads to
    /// another mount: to open a file there may wait for another program or machine.
    pub(super) fn open_cached(
        self,
        dir: BorrowedFd<'_>,
        path: &[u8],
        flags: OFlags,
    ) -> Result<OwnedFd, Errno> {
        if !self.cached {
            return Err(Errno::AGAIN);
        }
        let resolve = RESOLVE | ResolveFlags::CACHED | ResolveFlags::NO_XDEV;
        openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }
}

/// Opens segment by segment. Each step refuses symbolic links, and `..` is refused entirely, so
/// that a directory that is moved meanwhile cannot lead out either.
fn walk(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    if path[0] == b'/' {
        return Err(Errno::XDEV);
    }
    let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at: Option<OwnedFd> = None;
    let mut segments = path
        .split(|&b| b == b'/')
        .filter(|s| !s.is_empty() && *s != b".")
        .peekable();
    while let Some(segment) = segments.next() {
        if segment == b".." {
            return Err(Errno::XDEV);
        }
        let here = at.as_ref().map_or(dir, AsFd::as_fd);
        if segments.peek().is_none() {
            return openat(
                here,
                segment,
                flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                mode,
            );
        }
        at = Some(openat(here, segment, through, Mode::empty())?);
    }
    openat(dir, c".", flags | OFlags::CLOEXEC, mode)
}
