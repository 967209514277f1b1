//! Where uploads wait for their commit: `.onrush/staging`, on the same file system as the objects.
//! Each process has a folder of its own in there and holds it by `flock`, so that a sweep at
//! start-up takes away what dead processes left, and never what a live one is writing.
//!
//! This module must not know keys or conditions.

use super::{Inner, RELEASE_ON_POOL_BYTES_MIN};
use crate::error::{Result, StoreError};
use crate::key::OWN;
use crate::meta::{Kind, Meta};
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{Dir, File, FileKind, OpenHow};
use std::io;
use std::mem;
use std::ops::ControlFlow;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const STAGING: &[u8] = b"staging";

/// Nobody but the owner of the store has business in there.
const MODE: u32 = 0o700;

/// How often to try to get a folder of our own, each time under another name.
const ATTEMPTS: i64 = 16;

pub(super) struct Staging {
    /// `.onrush/staging`.
    all: Dir,
    /// This process's folder in it, locked while this is open.
    own: Dir,
    own_name: Vec<u8>,
    /// Whether files here can have metadata.
    keeps_metadata: bool,
    /// Numbers the uploads.
    next: AtomicU64,
}

impl Staging {
    /// Makes the folders, sweeps, and takes a place. Blocks: for start-up.
    pub(super) fn open(root: &Dir) -> io::Result<Staging> {
        let all = ensure_dir(&ensure_dir(root, OWN)?, STAGING)?;
        sweep(&all);
        for attempt in 0..ATTEMPTS {
            let name = format!(
                "{}-{:x}",
                process::id(),
                root.now_ns().wrapping_add(attempt)
            );
            if let Some(own) = take(&all, name.as_bytes())? {
                let own_name = name.into_bytes();
                return Ok(Staging {
                    all,
                    keeps_metadata: own.keeps_attributes(),
                    own,
                    own_name,
                    next: AtomicU64::new(0),
                });
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Whether staged files, and so objects, can have metadata: extended attributes.
    pub(super) fn keeps_metadata(&self) -> bool {
        self.keeps_metadata
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Every upload keeps the store alive, so by now there is none; a failure is the next
        // start's to clear up.
        let _ = self.all.remove_dir(&self.own_name);
    }
}

/// A file that is to become an object. Dropped, it is removed, on the pool.
pub(super) struct Temp {
    // Closed before its name is removed, so that the removal, on the pool, frees its content.
    pub(super) file: File,
    staged: Staged,
}

/// A name in the staging folder, removed on the pool when this is dropped.
struct Staged {
    inner: Arc<Inner>,
    /// Empty once there is nothing left to remove.
    name: Vec<u8>,
}

impl Temp {
    /// Creates the file, to be open for `what_for`; fails with [`StoreError::Busy`] when the budget
    /// of descriptors has no room for it.
    pub(super) fn create(inner: &Arc<Inner>, what_for: FileUse) -> Result<Temp> {
        let staging = inner.staging()?;
        let permit = inner.options.descriptors.open_file(what_for);
        let permit = permit.ok_or(StoreError::Busy)?;
        let number = staging.next.fetch_add(1, Ordering::Relaxed);
        let name = number.to_string().into_bytes();
        let file = staging
            .own
            .open(&name, OpenHow::create_new(inner.options.file_mode))
            .map_err(StoreError::of_any)?;
        Ok(Temp {
            file: file.with_permit(permit),
            staged: Staged {
                inner: inner.clone(),
                name,
            },
        })
    }

    /// Whether the commit will sync it.
    pub(super) fn will_be_synced(&self) -> bool {
        self.staged.inner.durable()
    }

    /// Gives the file its final name; from then on it is no longer ours to remove. `AlreadyExists`
    /// if the name was `to_be_free` and is not.
    pub(super) fn rename(&mut self, to_dir: &Dir, to: &[u8], to_be_free: bool) -> io::Result<()> {
        let Staged { inner, name } = &mut self.staged;
        if let Some(staging) = &inner.staging {
            staging.own.rename(name, to_dir, to, to_be_free)?;
            name.clear();
        }
        Ok(())
    }

    /// Gives the file its final name and keeps what had it under the staged one: calling this again
    /// takes that back.
    pub(super) fn exchange(&self, to_dir: &Dir, to: &[u8]) -> io::Result<()> {
        let Staged { inner, name } = &self.staged;
        match &inner.staging {
            Some(staging) => staging.own.exchange(name, to_dir, to),
            None => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
        }
    }

    /// Removes what an exchange left under the staged name. Fails when it is no file.
    pub(super) fn remove_exchanged(&mut self) -> io::Result<()> {
        let Staged { inner, name } = &mut self.staged;
        if let Some(staging) = &inner.staging {
            match staging.own.unlink(name) {
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Err(error),
                // Committed is committed: what is left of the old one is swept at the next start.
                _ => name.clear(),
            }
        }
        Ok(())
    }

    /// Removes the file here and now, so that it is gone before the failure is answered. On a
    /// worker the pool removes it: see [`Release`].
    pub(super) fn remove(mut self) {
        let Staged { inner, name } = &mut self.staged;
        if !inner.changes.is_inline() {
            unlink(inner, &mem::take(name));
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let name = mem::take(&mut self.name);
        if !name.is_empty() {
            let inner = self.inner.clone();
            // This may be a worker, where an unlink must not block.
            let job = move || unlink(&inner, &name);
            self.inner.pool.run(job).detach();
        }
    }
}

/// Holds the content of a large object while its name is removed, so that the pool frees it
/// ([`File::release_on`]). Otherwise a worker that makes changes itself would do that, and serve no
/// one meanwhile.
pub(super) struct Release(#[expect(dead_code, reason = "held")] Option<File>);

impl Release {
    /// Call this before the name is removed. `meta`: what is known of the object.
    pub(super) fn of(inner: &Inner, dir: &Dir, name: &[u8], meta: Option<&Meta>) -> Release {
        let is_large =
            |meta: &Meta| meta.kind == Kind::File && meta.size >= RELEASE_ON_POOL_BYTES_MIN;
        if !inner.changes.is_inline() || !meta.is_some_and(is_large) {
            return Release(None);
        }
        // Without a descriptor or the permission to read, the content is freed at once.
        let permit = inner.options.descriptors.open_file(FileUse::Brief);
        let file = permit.zip(dir.open(name, OpenHow::READ).ok());
        Release(file.map(|(permit, file)| file.with_permit(permit).release_on(&inner.releaser)))
    }
}

/// What cannot be removed now is swept at the next start.
fn unlink(inner: &Inner, name: &[u8]) {
    if let (Some(staging), false) = (&inner.staging, name.is_empty()) {
        let _ = staging.own.unlink(name);
    }
}

fn ensure_dir(parent: &Dir, name: &[u8]) -> io::Result<Dir> {
    match parent.create_dir(name, MODE) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => parent.open_dir(name),
    }
}

/// Makes and locks a folder. `None` if a sweep elsewhere came between.
fn take(all: &Dir, name: &[u8]) -> io::Result<Option<Dir>> {
    match all.create_dir(name, MODE) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        other => other?,
    }
    let locked = all
        .open_dir(name)
        .and_then(|dir| dir.lock_exclusive().map(|()| dir));
    let own = match locked {
        Ok(own) => own,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::WouldBlock => return Ok(None),
            _ => return Err(error),
        },
    };
    // The sweep may have locked, removed and unlocked it before our lock.
    match all.entry_metadata(name) {
        Ok(found) if found.inode == own.self_metadata()?.inode => Ok(Some(own)),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the folders of processes that are gone. What resists is left for the next start.
fn sweep(all: &Dir) {
    for name in names(all, Some(FileKind::Directory)) {
        let Ok(dir) = all.open_dir(&name) else {
            continue;
        };
        if dir.lock_exclusive().is_err() {
            continue; // its process lives
        }
        for file in names(&dir, None) {
            let _ = dir.unlink(&file);
        }
        // Still locked, so that nobody can take it in between.
        let _ = all.remove_dir(&name);
    }
}

fn names(dir: &Dir, wanted: Option<FileKind>) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let _ = dir.read_dir(&mut |name, kind| {
        if wanted.is_none() || kind.is_none() || wanted == kind {
            names.push(name.to_vec());
        }
        ControlFlow::Continue(())
    });
    names
}
