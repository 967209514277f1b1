//! A file or folder with a staged name (`staging`), which is removed when it is dropped.

use super::dirs::MODE;
use super::locks::Locks;
use super::staging::{Staging, StagingFolder};
use super::trees::{self, ENTRIES_PER_JOB, Removal};
use super::{FolderInner, RELEASE_ON_POOL_BYTES_MIN, mounts};
use crate::checksum::Checksum;
use crate::error::{Result, StoreError};
use crate::key::{Key, STAGING as NEAR};
use crate::meta::{Kind, Meta};
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{Dir, File, OpenHow};
use std::io;
use std::mem;
use std::sync::Arc;

const DISPLACED: &[u8] = b"displaced";

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
    pub(super) inner: Arc<FolderInner>,
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
    pub(super) fn create(
        inner: &Arc<FolderInner>,
        key: &Key,
        what_for: FileUse,
    ) -> Result<StagedFile> {
        StagedFile::create_in(inner, mounts::staging_for(inner, key)?, what_for)
    }

    /// As [`StagedFile::create`], in a staging folder.
    pub(super) fn create_in(
        inner: &Arc<FolderInner>,
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
        inner: &Arc<FolderInner>,
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
        inner: &Arc<FolderInner>,
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
    pub(super) fn for_copy(inner: &Arc<FolderInner>, to: &Key) -> Result<(Key, StagedName)> {
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
    pub(super) fn hold(
        inner: &FolderInner,
        dir: &Dir,
        name: &[u8],
        meta: Option<&Meta>,
    ) -> DeferredFree {
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

/// Removes what has a staged name, in steps. Returns what it has counted, in bytes. What cannot be
/// removed is left for the next start.
pub(super) async fn remove(inner: &Arc<FolderInner>, mut staged: StagedName) -> u64 {
    let mut removal = Removal::default();
    loop {
        let job = move || {
            let done = removal.step(&staged.folder.dir, &staged.name, ENTRIES_PER_JOB);
            if !matches!(done, Ok(false)) {
                mem::take(&mut staged.name); // Not once more by the drop.
            }
            (staged, removal, done)
        };
        let Ok((tree, state, done)) = inner.pool.run(job).await else {
            return 0;
        };
        if !matches!(done, Ok(false)) {
            return state.bytes;
        }
        (staged, removal) = (tree, state);
    }
}
