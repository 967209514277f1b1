//! The files of uploads before their commit, in `.onrush/staging`, or in `.onrush-staging/staging`
//! on another file system (`mounts`). Each process has a folder of its own there and holds an
//! `flock` on it. The sweep at start-up therefore removes the files of dead processes, but never
//! those that a live process is writing. If it finds that no other process is alive, it remembers
//! which kept files there are, for `kept::discard_unknown`.
//!
//! A commit gives the staged name to the old object, until it removes it. If the commit fails and
//! cannot take that back, the old object moves to `.onrush/displaced`, which no process sweeps. If
//! even that fails, it keeps the staged name, and no process removes it before the next start, or,
//! in the folder of kept files, before its age. From then on, only the new object is left, which is
//! whole and has been what readers see since the failure.
//!
//! Folders are here as well: copies that are not complete, and what a relocation has replaced
//! (`displaced`). They are removed in the same way.

use super::dirs::{MODE, ensure_dir, is_removed, names};
use super::trees;
use crate::key::RESERVED;
use onrush_rt::fs::{Dir, File, FileKind, OpenHow};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

const STAGING: &[u8] = b"staging";
/// The folder of files of uploads that continue later (`kept`).
pub(super) const UPLOADS: &[u8] = b"uploads";

/// The number of attempts to create the folder of this process, each under another name.
const ATTEMPTS: usize = 16;

/// The folder in which the reserved one of a file system is.
pub(super) struct Top {
    dir: Arc<Dir>,
    reserved: &'static [u8],
    /// Beneath the root folder; empty for that itself.
    path: Vec<u8>,
    file_system: (u64, u64),
}

impl Top {
    /// The folder `dir`, which is at `path`.
    pub(super) fn new(dir: Arc<Dir>, reserved: &'static [u8], path: &[u8]) -> io::Result<Top> {
        Ok(Top {
            file_system: dir.self_metadata()?.file_system(),
            dir,
            reserved,
            path: path.to_vec(),
        })
    }

    pub(super) fn root(root: &Arc<Dir>) -> io::Result<Top> {
        Top::new(root.clone(), RESERVED, b"")
    }

    /// Opens the reserved folder, and creates it if it is missing.
    fn reserved(&self) -> io::Result<Dir> {
        ensure_dir(&self.dir, self.reserved)
    }

    fn open_staging(&self) -> io::Result<Dir> {
        ensure_dir(&self.reserved()?, STAGING)
    }
}

pub(super) struct Staging {
    top: Top,
    /// The folder of this process. It is replaced when another program has removed it.
    own: RwLock<Arc<StagingFolder>>,
    /// Whether files here can have extended attributes.
    keeps_metadata: bool,
    /// Whether they can have access control lists.
    keeps_lists: bool,
    /// Numbers the uploads.
    next: AtomicU64,
    /// The names of kept files that dead processes have left: those that were there when this was
    /// opened, if no other process used the folder then.
    leftovers: Mutex<Vec<Vec<u8>>>,
}

/// A folder with staged files: that of this process, or the one of `kept`.
pub(super) struct StagingFolder {
    /// The folder of this process is locked while this handle is open.
    pub(super) dir: Dir,
    /// For the folder of this process, which a drop removes: `.onrush/staging`, and its name there.
    pub(super) own: Option<(Dir, Vec<u8>)>,
}

impl Staging {
    /// Creates the folders, sweeps, and locks the folder of this process. Blocks, so call it at
    /// start-up.
    pub(super) fn open(top: Top) -> io::Result<Staging> {
        let staging = top.open_staging()?;
        // Before the sweep: a process that has made one of them since has a folder until it ends.
        let kept = match open_in(&top, UPLOADS) {
            Ok(uploads) => names(&uploads, Some(FileKind::File)),
            Err(_) => Vec::new(),
        };
        let is_alone = sweep(&staging);
        let own = StagingFolder::create(&top.dir, staging)?;
        Ok(Staging {
            leftovers: Mutex::new(if is_alone { kept } else { Vec::new() }),
            top,
            keeps_metadata: own.dir.keeps_attributes(),
            keeps_lists: own.dir.keeps_access_lists(),
            own: RwLock::new(Arc::new(own)),
            next: AtomicU64::new(0),
        })
    }

    /// A new file with the name `name` of a number, which no other one of this process has.
    pub(super) fn create_named(
        &self,
        name: impl FnOnce(u64) -> Vec<u8>,
        mode: u32,
    ) -> io::Result<(Arc<StagingFolder>, Vec<u8>, File)> {
        let name = name(self.next.fetch_add(1, Ordering::Relaxed));
        let (folder, file) = self.create(&name, mode)?;
        Ok((folder, name, file))
    }

    /// The folder that has the reserved one, beneath the root folder. Empty for that itself.
    pub(super) fn path(&self) -> &[u8] {
        &self.top.path
    }

    /// See [`Metadata::file_system`](onrush_rt::fs::Metadata::file_system).
    pub(super) fn file_system(&self) -> (u64, u64) {
        self.top.file_system
    }

    /// A folder of the file system.
    pub(super) fn dir(&self) -> &Dir {
        &self.top.dir
    }

    /// Opens the folder `name` next to that of staged files, and the reserved folder above both.
    /// Creates what is missing.
    pub(super) fn ensure_folder(&self, name: &[u8]) -> io::Result<(Dir, Dir)> {
        let reserved = self.top.reserved()?;
        Ok((ensure_dir(&reserved, name)?, reserved))
    }

    /// Opens the folder `name` next to that of staged files, which may be missing.
    pub(super) fn open_folder(&self, name: &[u8]) -> io::Result<Dir> {
        open_in(&self.top, name)
    }

    /// The kept files that dead processes have left, once.
    pub(super) fn take_leftovers(&self) -> Vec<Vec<u8>> {
        let mut left = (self.leftovers.lock()).unwrap_or_else(PoisonError::into_inner);
        mem::take(&mut left)
    }

    /// A name that no staged file of any process has.
    pub(super) fn unique_name(&self) -> Vec<u8> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let own = self.own();
        let process = own.own.as_ref().map_or(&b""[..], |(_, name)| name);
        [process, b"-", number.to_string().as_bytes()].concat()
    }

    /// Whether the process that has made a name by [`Staging::unique_name`] is alive, or may be.
    pub(super) fn is_of_live_process(&self, name: &[u8]) -> bool {
        let Some(end) = name.iter().rposition(|&byte| byte == b'-') else {
            return false;
        };
        let folder = [STAGING, b"/", &name[..end]].concat();
        match self
            .open_folder(&folder)
            .and_then(|dir| dir.lock_exclusive())
        {
            Err(error) => !is_removed(&error),
            Ok(()) => false,
        }
    }

    /// Whether staged files, and thus objects, can have metadata (extended attributes).
    pub(super) fn keeps_metadata(&self) -> bool {
        self.keeps_metadata
    }

    /// Whether files can have access control lists.
    pub(super) fn keeps_lists(&self) -> bool {
        self.keeps_lists
    }

    fn own(&self) -> Arc<StagingFolder> {
        self.own
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Creates a file. If the folder was removed while the server runs, this creates it again, once
    /// per call.
    fn create(&self, name: &[u8], mode: u32) -> io::Result<(Arc<StagingFolder>, File)> {
        let own = self.own();
        match own.dir.open(name, OpenHow::create_new(mode)) {
            Err(error) if is_removed(&error) => {}
            opened => return opened.map(|file| (own, file)),
        }
        let own = self.replace(&own)?;
        let file = own.dir.open(name, OpenHow::create_new(mode))?;
        Ok((own, file))
    }

    /// Creates the folder of this process again, unless another thread has replaced `removed`
    /// meanwhile.
    fn replace(&self, removed: &Arc<StagingFolder>) -> io::Result<Arc<StagingFolder>> {
        let mut own = self.own.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&own, removed) {
            let staging = self.top.open_staging()?;
            *own = Arc::new(StagingFolder::create(&self.top.dir, staging)?);
        }
        Ok(own.clone())
    }
}

impl StagingFolder {
    /// Creates and locks a folder in `staging`.
    ///
    /// The name contains random bits. Process ids and clocks repeat, in containers and after a
    /// clock was set back, and the drop of this must not remove the folder of another process.
    fn create(root: &Dir, staging: Dir) -> io::Result<StagingFolder> {
        for _ in 0..ATTEMPTS {
            // Each `RandomState` has other keys, which come from the system's random numbers.
            let random = RandomState::new().hash_one(());
            let name = format!("{}-{:x}-{random:016x}", process::id(), root.now_ns());
            let name = name.into_bytes();
            if let Some(dir) = create_locked(&staging, &name)? {
                return Ok(StagingFolder {
                    dir,
                    own: Some((staging, name)),
                });
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
}

impl StagingFolder {
    /// A folder that stays, for kept files or any other.
    pub(super) fn lasting(dir: Dir) -> StagingFolder {
        StagingFolder { dir, own: None }
    }
}

impl Drop for StagingFolder {
    fn drop(&mut self) {
        // Every staged file keeps the folder alive, so there is none now. If this fails, the next
        // start removes the folder.
        if let Some((staging, name)) = &self.own {
            let _ = staging.remove_dir(name);
        }
    }
}

/// Creates and locks a folder. `None` if the name exists or another process swept it meanwhile.
fn create_locked(staging: &Dir, name: &[u8]) -> io::Result<Option<Dir>> {
    match staging.create_dir(name, MODE) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        other => other?,
    }
    let locked = staging
        .open_dir(name)
        .and_then(|dir| dir.lock_exclusive().map(|()| dir));
    let own = match locked {
        Ok(own) => own,
        Err(error) if is_removed(&error) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(error) => return Err(error),
    };
    // A sweep may have locked, removed and unlocked it before this process locked it.
    match staging.entry_metadata(name) {
        Ok(found) if found.inode == own.self_metadata()?.inode => {
            // A file that is moved from here has the rights of its new folder (`rights`). Not every
            // file system has such rights.
            let _ = own.set_private(MODE);
            Ok(Some(own))
        }
        Ok(_) => Ok(None),
        Err(error) if is_removed(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the folders of dead processes. What cannot be removed is left for the next start.
/// Returns whether no other process is alive.
fn sweep(staging: &Dir) -> bool {
    let mut is_alone = true;
    for name in names(staging, Some(FileKind::Directory)) {
        let dir = match staging.open_dir(&name) {
            Ok(dir) => dir,
            Err(error) => {
                is_alone &= is_removed(&error);
                continue;
            }
        };
        if dir.lock_exclusive().is_err() {
            is_alone = false;
            continue;
        }
        for name in names(&dir, None) {
            let _ = trees::remove_all(&dir, &name);
        }
        // Still locked, so that no process can take it meanwhile.
        let _ = staging.remove_dir(&name);
    }
    is_alone
}

fn open_in(top: &Top, name: &[u8]) -> io::Result<Dir> {
    top.dir.open_dir(&[top.reserved, b"/", name].concat())
}
