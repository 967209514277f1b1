//! The files of uploads before their commit, in `.onrush/staging`, or in `.onrush-staging/staging`
//! on another file system (`mounts`). Each process has a folder of its own there and holds an
//! `flock` on it. The sweep at start-up therefore removes the files of dead processes, but never
//! those that a live process is writing. If it finds that no other process is alive, it remembers
//! which kept files there are, for [`kept::discard_unknown`].
//!
//! A commit gives the staged name to the old object, until it removes it. If the commit fails and
//! cannot take that back, the old object moves to `.onrush/displaced`, which no process sweeps. If
//! even that fails, it keeps the staged name, and no process removes it before the next start, or,
//! in the folder of kept files, before its age. From then on, only the new object is left, which is
//! whole and has been what readers see since the failure.
//!
//! Folders are here as well: copies that are not complete, and what a relocation has replaced
//! (`displaced`). They are removed in the same way.

use super::change::Locks;
use super::{Inner, RELEASE_ON_POOL_BYTES_MIN};
use super::{kept, mounts, trees};
use crate::checksum::Checksum;
use crate::error::{Result, StoreError};
use crate::key::{Key, RESERVED, STAGING as NEAR};
use crate::meta::{Kind, Meta};
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{Dir, File, FileKind, OpenHow};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::mem;
use std::ops::ControlFlow;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

const STAGING: &[u8] = b"staging";
const DISPLACED: &[u8] = b"displaced";

/// Only the owner of the store may access the folder.
const MODE: u32 = 0o700;

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
    own: Option<(Dir, Vec<u8>)>,
}

impl Staging {
    /// Creates the folders, sweeps, and locks the folder of this process. Blocks, so call it at
    /// start-up.
    pub(super) fn open(top: Top) -> io::Result<Staging> {
        let staging = top.open_staging()?;
        // Before the sweep: a process that has made one of them since has a folder until it ends.
        let kept = match open_in(&top, kept::UPLOADS) {
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

/// See [`StagedFile::tail_at`].
pub(super) const NO_TAIL: u64 = u64::MAX;

/// A staged file that may become an object. Dropping it removes the file on the pool, unless it is
/// kept.
pub(super) struct StagedFile {
    // Closed before the name is removed, so that the removal on the pool frees the content.
    pub(super) file: File,
    pub(super) name: StagedName,
    /// Of the bytes written so far. `None` if the object gets no checksum.
    pub(super) checksum: Option<Checksum>,
    /// Bytes from here on are not those of the upload ([`StagedFile::drop_tail`]). [`NO_TAIL`]: it
    /// has no others.
    pub(super) tail_at: u64,
}

/// A name in a staging folder. Dropping it removes the name on the pool, unless it is kept.
pub(super) struct StagedName {
    pub(super) inner: Arc<Inner>,
    /// That of the file system.
    pub(super) staging: Arc<Staging>,
    pub(super) folder: Arc<StagingFolder>,
    /// Empty if there is nothing to remove.
    pub(super) name: Vec<u8>,
    pub(super) is_kept: bool,
    /// The lock of a name in the folder of kept files, which is released after the removal.
    pub(super) lease: Option<Box<Locks>>,
}

impl StagedFile {
    /// Creates the file of the object `key`. `what_for` is the purpose for which it stays open.
    /// Fails with [`StoreError::Busy`] if the descriptor budget is exhausted.
    pub(super) fn create(inner: &Arc<Inner>, key: &Key, what_for: FileUse) -> Result<StagedFile> {
        StagedFile::create_in(inner, mounts::staging_for(inner, key)?, what_for)
    }

    /// As [`StagedFile::create`], in a staging folder.
    pub(super) fn create_in(
        inner: &Arc<Inner>,
        staging: Arc<Staging>,
        what_for: FileUse,
    ) -> Result<StagedFile> {
        let permit = inner.options.descriptors.open_file(what_for);
        let permit = permit.ok_or(StoreError::Busy)?;
        let name = |number: u64| number.to_string().into_bytes();
        let created = staging.create_named(name, inner.options.file_mode);
        let (folder, name, file) = created.map_err(StoreError::from_open_file)?;
        Ok(StagedFile {
            file: file.with_permit(permit),
            name: StagedName::new(inner, &staging, folder, name),
            checksum: inner.has_checksums().then_some(Checksum::EMPTY),
            tail_at: NO_TAIL,
        })
    }

    /// Creates a file for the object `key` to which `refused`, a staged file of it, cannot be
    /// renamed: in the staging folder of the file system, or if that is where `refused` is, next to
    /// the object.
    pub(super) fn create_nearer(
        inner: &Arc<Inner>,
        key: &Key,
        refused: &StagedFile,
    ) -> Result<StagedFile> {
        let staging = mounts::staging_for(inner, key)?;
        if !Arc::ptr_eq(&staging, &refused.name.staging) {
            return StagedFile::create_in(inner, staging, FileUse::Upload);
        }
        let permit = inner.options.descriptors.open_file(FileUse::Upload);
        let permit = permit.ok_or(StoreError::Busy)?;
        let (dir, _) = mounts::deepest(inner, key)?;
        let name = [NEAR, b"-", &staging.unique_name()].concat();
        let file = dir.open(&name, OpenHow::create_new(inner.options.file_mode));
        Ok(StagedFile {
            file: file.map_err(StoreError::from_change)?.with_permit(permit),
            name: StagedName::new(inner, &staging, Arc::new(StagingFolder::lasting(dir)), name),
            checksum: inner.has_checksums().then_some(Checksum::EMPTY),
            tail_at: NO_TAIL,
        })
    }

    /// Drops what follows the bytes of the upload. To be called before any other change.
    pub(super) fn drop_tail(&mut self) -> Result<()> {
        if self.tail_at != NO_TAIL {
            (self.file.set_len(self.tail_at)).map_err(StoreError::from_open_file)?;
            self.tail_at = NO_TAIL;
        }
        Ok(())
    }

    /// Whether the commit will sync it.
    pub(super) fn will_be_synced(&self) -> bool {
        self.name.inner.durable()
    }

    /// Whether the file still has its staged name. Another program may have removed it.
    pub(super) fn is_staged(&self) -> bool {
        let StagedName { folder, name, .. } = &self.name;
        folder.dir.entry_metadata(name).is_ok()
    }

    /// Gives the file its final name, and returns the staged one. After that, dropping this does
    /// not remove it. Fails with `AlreadyExists` if `no_replace` is set and the name exists.
    pub(super) fn rename(
        &mut self,
        to_dir: &Dir,
        to: &[u8],
        no_replace: bool,
    ) -> io::Result<Vec<u8>> {
        let StagedName { folder, name, .. } = &mut self.name;
        folder.dir.rename(name, to_dir, to, no_replace)?;
        Ok(mem::take(name))
    }

    /// Undoes [`StagedFile::rename`], which has returned `name`.
    pub(super) fn move_back(
        &mut self,
        from_dir: &Dir,
        from: &[u8],
        name: Vec<u8>,
    ) -> io::Result<()> {
        from_dir.rename(from, &self.name.folder.dir, &name, true)?;
        self.name.name = name;
        Ok(())
    }

    /// Exchanges the staged name and the final name, so the old object gets the staged name. A
    /// second call undoes this.
    pub(super) fn exchange(&self, to_dir: &Dir, to: &[u8]) -> io::Result<()> {
        let StagedName { folder, name, .. } = &self.name;
        folder.dir.exchange(name, to_dir, to)
    }

    /// Removes what an exchange left at the staged name. Fails if that is a directory.
    pub(super) fn remove_exchanged(&mut self) -> io::Result<()> {
        let StagedName { folder, name, .. } = &mut self.name;
        match folder.dir.unlink(name) {
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Err(error),
            // The commit is valid even if this fails: the next start sweeps the old object, or its
            // age removes it from the folder of kept files.
            _ => name.clear(),
        }
        Ok(())
    }

    /// Saves the old object, to which an exchange has given the staged name. After that, dropping
    /// this does not remove it, also if this fails.
    pub(super) fn move_aside(&mut self) -> io::Result<()> {
        self.name.move_aside()
    }

    /// Removes the file on this thread, so that it is gone before a failure is reported. If this is
    /// a worker, the pool removes it instead; see [`DeferredFree`].
    ///
    /// A kept file stays after every failure: its bytes were acknowledged to a client, and only the
    /// caller knows whether they are still of use
    /// ([`ResumableUploads::discard`](crate::ResumableUploads::discard)).
    pub(super) fn remove_unless_kept(mut self) {
        if !self.name.is_kept && !self.name.inner.change_pool.is_inline() {
            unlink(&self.name.folder, &mem::take(&mut self.name.name));
        }
    }
}

impl StagedName {
    /// `staging` is that of the file system of `folder`.
    pub(super) fn new(
        inner: &Arc<Inner>,
        staging: &Arc<Staging>,
        folder: Arc<StagingFolder>,
        name: Vec<u8>,
    ) -> StagedName {
        StagedName {
            inner: inner.clone(),
            staging: staging.clone(),
            folder,
            name,
            is_kept: false,
            lease: None,
        }
    }

    /// A free name for a copy that will be at `to`, or for what it replaces, and the key of it.
    pub(super) fn for_copy(inner: &Arc<Inner>, to: &Key) -> Result<(Key, StagedName)> {
        let staging = mounts::staging_for(inner, to)?;
        let name = |number: u64| number.to_string().into_bytes();
        // The file shows that the folder is there.
        let created = staging.create_named(name, MODE);
        let (folder, name, _file) = created.map_err(StoreError::from_open_file)?;
        let staged = StagedName::new(inner, &staging, folder, name);
        let StagedName { folder, name, .. } = &staged;
        (folder.dir.unlink(name)).map_err(StoreError::from_open_file)?;
        let process = folder.own.as_ref().map_or(&b""[..], |(_, name)| name);
        Ok((Key::staged(staging.path(), process, name)?, staged))
    }

    /// Moves what has the name to the folder `displaced` next to that of staged files. After that,
    /// dropping this does not remove it, also if this fails.
    pub(super) fn move_aside(&mut self) -> io::Result<()> {
        let name = mem::take(&mut self.name);
        let (displaced, _) = self.staging.ensure_folder(DISPLACED)?;
        let unique = self.staging.unique_name();
        (self.folder.dir).rename(&name, &displaced, &unique, false)?;
        match self.inner.durable() {
            true => self.inner.parents.sync(&displaced),
            false => Ok(()),
        }
    }

    /// Removes the file on this thread, or on the pool if this is a worker.
    pub(super) fn remove_file(mut self) {
        if !self.inner.change_pool.is_inline() {
            unlink(&self.folder, &mem::take(&mut self.name));
        }
    }

    /// Removes a kept file on the pool.
    pub(super) fn remove_kept(mut self) {
        self.is_kept = false;
    }
}

impl Drop for StagedName {
    fn drop(&mut self) {
        let name = mem::take(&mut self.name);
        if !name.is_empty() && !self.is_kept {
            let (folder, lease) = (self.folder.clone(), self.lease.take());
            // This may run on a worker, where an unlink must not block.
            let job = move || {
                unlink(&folder, &name);
                drop(lease);
            };
            self.inner.pool.run(job).detach();
        }
    }
}

/// Holds the content of a large object while its name is removed or replaced, so that the pool
/// frees it ([`File::release_on`]). Otherwise the worker would free it, which blocks the worker.
pub(super) struct DeferredFree(#[expect(dead_code, reason = "held")] Option<File>);

impl DeferredFree {
    pub(super) const NONE: DeferredFree = DeferredFree(None);

    /// Must be called before the name is removed. `meta` are the object's properties, if it exists.
    pub(super) fn hold(inner: &Inner, dir: &Dir, name: &[u8], meta: Option<&Meta>) -> DeferredFree {
        let is_large =
            |meta: &Meta| meta.kind == Kind::File && meta.size >= RELEASE_ON_POOL_BYTES_MIN;
        if !inner.change_pool.is_inline() || !meta.is_some_and(is_large) {
            return DeferredFree(None);
        }
        // Without a descriptor or the permission to read, the content is freed at once.
        let permit = inner.options.descriptors.open_file(FileUse::Brief);
        let file = permit.zip(dir.open(name, OpenHow::READ).ok());
        DeferredFree(
            file.map(|(permit, file)| file.with_permit(permit).release_on(&inner.releaser)),
        )
    }
}

/// Removes a staged file or folder. If this fails, the next start sweeps it.
fn unlink(folder: &StagingFolder, name: &[u8]) {
    if !name.is_empty()
        && let Err(error) = folder.dir.unlink(name)
        && error.kind() == io::ErrorKind::IsADirectory
    {
        let _ = trees::remove_all(&folder.dir, name);
    }
}

/// Whether the folder of an open handle was removed. After a removal by another NFS client, the
/// server reports ESTALE instead of ENOENT (errno(3)).
fn is_removed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::StaleNetworkFileHandle
    )
}

pub(super) fn ensure_dir(parent: &Dir, name: &[u8]) -> io::Result<Dir> {
    match parent.create_dir(name, MODE) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => parent.open_dir(name),
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

pub(super) fn names(dir: &Dir, wanted: Option<FileKind>) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let _ = dir.read_dir(&mut |name, kind| {
        if wanted.is_none() || kind.is_none() || wanted == kind {
            names.push(name.to_vec());
        }
        ControlFlow::Continue(())
    });
    names
}
