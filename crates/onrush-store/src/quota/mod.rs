//! Limits on what a folder has on a disk, by prefix: [`QuotaStore`], a store in front of a
//! [`Folder`].
//!
//! Counted are the sizes of the objects, and for each object, folder and unfinished upload at least
//! [`COUNTED_BYTES_MIN`](crate::COUNTED_BYTES_MIN). They are counted once by reading the folder,
//! and then by each change through this store: a commit says what it has replaced, while it holds
//! the lock of the key, and [`Folder`] counts the folders that it makes and removes. So the count
//! is exact as long as no other program changes the folder. [`QuotaStore::count`] corrects it
//! afterwards. Until the first count is complete, what needs room fails
//! ([`StoreError::NotCounted`]); everything else works.
//!
//! Uploads count with the bytes that have arrived, from the first one until they are complete or
//! discarded, also while they are interrupted and in the next process (`kept`). An announced size
//! is checked and not reserved, so that a client that only announces bytes cannot exhaust a quota.
//! An upload needs room beside the object that it replaces, and so does a copy, or a folder that
//! comes from a place with another quota, beside the folder. The bytes of a part that was
//! interrupted, which are on the disk, count until the upload or the process ends.
//!
//! A process that takes the place of another one takes the count over ([`QuotaStore::hand_over`]),
//! with a half of what is left: both may add objects until the earlier one has ended.
//!
//! Submodules: `kept` (uploads that outlive their requests) · `upload` (in use).

mod kept;
mod upload;

use crate::changes::FolderChanges;
use crate::error::{Result, StoreError};
use crate::folder::{Counted, Folder, Replaces};
use crate::key::Key;
use crate::meta::{Kind, Meta};
use crate::object::{LocalFuture, Object};
use crate::shown::ShownNames;
use crate::store::{
    Committed, Condition, Cursor, DetailedEntry, Features, ListHow, Overlap, Page, PartialUpload,
    Relocation, ResumableUploads, Space, StagedCopy, Store, Upload, Wanted,
};
use crate::usage::{HandedOver, Quota, Reservation, Usage, Usages, counted_bytes};
pub use kept::RecordedUpload;
use kept::{KeptUploads, Room};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use upload::CountedUpload;

/// The number of attempts to rename an object that is replaced meanwhile.
const ATTEMPTS: usize = 4;

/// A folder whose objects have limits by prefix. Clones share them.
#[derive(Clone)]
pub struct QuotaStore {
    folder: Folder,
    usages: Arc<Usages>,
    kept: Arc<KeptUploads>,
    /// Held during a count: what is added is counted for one at a time.
    counting: Arc<Mutex<()>>,
}

impl QuotaStore {
    /// Counts the objects of `folder`, which blocks: call it at start-up. Changes must not be made
    /// through `folder` itself any more.
    pub fn new(folder: Folder, quotas: Vec<Quota>) -> Result<QuotaStore> {
        let store = QuotaStore::uncounted(folder, &[]);
        store.set_quotas(&quotas)?;
        Ok(store)
    }

    /// As [`QuotaStore::new`], but does not count. The quotas hold at once, and until
    /// [`QuotaStore::count`] has succeeded, what needs room fails with [`StoreError::NotCounted`].
    pub fn uncounted(folder: Folder, quotas: &[Quota]) -> QuotaStore {
        let usages = folder.usages().clone();
        usages.begin(quotas);
        QuotaStore {
            usages,
            kept: Arc::new(KeptUploads::new(folder.swap_count())),
            counting: Arc::default(),
            folder,
        }
    }

    /// Counts the unfinished uploads of earlier processes, as far as their bytes are still there.
    /// Call it before the first count, and again when the folder has become another one
    /// ([`Folder::on_swap`]): then also [`QuotaStore::count`]. Blocks.
    pub fn find_partial(&self, uploads: &[RecordedUpload]) -> Result<()> {
        self.kept.forget_swapped();
        for upload in uploads {
            let found = self.folder.kept_file(&upload.kept)?;
            if let Some((name, size)) = found {
                let bytes = upload.arrived_bytes.unwrap_or(size);
                self.kept.find(&self.usages, name, &upload.key, bytes);
            }
        }
        Ok(())
    }

    /// Replaces the quotas while the store is in use. Objects are counted for folders that had no
    /// quota before, which blocks. After a failure, the earlier quotas remain. An upload that is in
    /// progress counts for a new quota when it is complete.
    pub fn set_quotas(&self, quotas: &[Quota]) -> Result<()> {
        self.set_quotas_with(quotas, &mut |_| {})
    }

    /// As [`QuotaStore::set_quotas`]. Calls `progress` with the numbers so far, now and then.
    pub fn set_quotas_with(&self, quotas: &[Quota], progress: Progress<'_>) -> Result<()> {
        let _counting = self.lock_count();
        self.usages.replace(quotas, |new| {
            self.kept.renew(&self.usages);
            self.count_these(new, &mut *progress)
        })
    }

    fn count_these(&self, usages: &[Arc<Usage>], progress: Progress<'_>) -> Result<()> {
        let folders: Vec<_> = usages.iter().map(|usage| usage.prefix()).collect();
        let counted = self.folder.count_all(&folders, progress);
        for (at, usage) in usages.iter().enumerate() {
            usage.end_count(counted.as_ref().ok().map(|counted| counted[at]));
        }
        counted.map(drop)
    }

    fn lock_count(&self) -> MutexGuard<'_, ()> {
        self.counting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the objects again, while the store is in use. This blocks. After a failure, the
    /// earlier count remains.
    pub fn count(&self) -> Result<()> {
        self.count_with(&mut |_| {})
    }

    /// As [`QuotaStore::count`]. Calls `progress` with the numbers so far, now and then.
    pub fn count_with(&self, progress: Progress<'_>) -> Result<()> {
        let _counting = self.lock_count();
        let usages = self.usages.list();
        usages.iter().for_each(|usage| usage.begin_count());
        self.count_these(&usages, progress)
    }

    /// Each quota with the bytes that count at this moment, also those of unfinished uploads.
    /// Without those that are not counted yet.
    pub fn used(&self) -> Vec<(Quota, u64)> {
        let used = self.usages.used().into_iter();
        used.filter_map(|(quota, bytes)| Some((quota, bytes?)))
            .collect()
    }

    /// Whether all quotas are counted.
    pub fn is_counted(&self) -> bool {
        self.usages.used().iter().all(|(_, bytes)| bytes.is_some())
    }

    /// What a process has to know that takes the place of this one, for each quota that is counted.
    /// From now on, each of both may use the half of what is left: beyond that, changes fail with
    /// [`StoreError::NotCounted`]. If the other process fails, count again, and then call
    /// [`QuotaStore::end_sharing`].
    pub fn hand_over(&self) -> Vec<HandedOver> {
        self.usages.hand_over()
    }

    /// Takes the place of another process, which has handed this over. When it has ended, count,
    /// and then call [`QuotaStore::end_sharing`].
    pub fn take_over(&self, known: &[HandedOver]) {
        self.usages.take_over(known);
    }

    /// Uses all that is left of each quota again.
    pub fn end_sharing(&self) {
        self.usages.end_sharing();
    }

    fn upload(&self, upload: Box<dyn Upload>, room: Room, key: &Key) -> Box<dyn Upload> {
        Box::new(CountedUpload {
            upload,
            room,
            usages: self.usages.clone(),
            key: key.clone(),
        })
    }

    /// Renames an object to a name with other quotas. Only the version whose size has been counted
    /// is renamed.
    async fn rename_object(&self, how: &Relocation, replaces: Replaces) -> Result<Committed> {
        for _ in 0..ATTEMPTS {
            let found = self.folder.meta(&how.from).await?;
            how.from_condition.check(Some(&found))?;
            let mut reservation = Reservation::new(&self.usages, &how.to);
            reservation.grow(found.size)?;
            let counted = Relocation {
                from_condition: Condition::unchanged(Some(&found)),
                ..how.clone()
            };
            match (self.folder)
                .relocate(counted, Kind::File, replaces.clone())
                .await
            {
                Err(StoreError::PreconditionFailed) => {
                    // It may have been the condition of the new name.
                    if self.folder.meta(&how.from).await?.version == found.version {
                        return Err(StoreError::PreconditionFailed);
                    }
                }
                renamed => {
                    let renamed = renamed?;
                    let bytes = counted_bytes(found.size);
                    self.usages.change(&how.to, bytes, renamed.replaced_bytes);
                    self.usages.change(&how.from, 0, bytes);
                    return Ok(renamed);
                }
            }
        }
        Err(StoreError::Conflict)
    }

    /// Renames a folder to a name with other quotas. A change in it meanwhile may or may not have
    /// been counted, so the sums may be too large, and never too small, until the next count.
    async fn rename_folder(&self, how: &Relocation, replaces: Replaces) -> Result<Committed> {
        let before = self.bytes_beneath(&how.from).await?;
        let mut reservation = Reservation::new(&self.usages, &how.to);
        reservation.grow(before)?;
        let renamed = self.folder.relocate(how.clone(), Kind::Directory, replaces);
        let renamed = renamed.await?;
        let after = self.bytes_beneath(&how.to).await.unwrap_or(before);
        (self.usages).change(&how.to, before.max(after), renamed.replaced_bytes);
        self.usages.change(&how.from, 0, before.min(after));
        Ok(renamed)
    }

    async fn relocate(&self, how: Relocation, kind: Kind, replaces: Replaces) -> Result<Committed> {
        let is_folder = kind == Kind::Directory;
        if (is_folder && self.is_divided(&how.from))
            || ((is_folder || replaces != Replaces::Alike) && self.is_divided(&how.to))
        {
            // What a quota counts would change its place, or get another limit.
            return Err(StoreError::Unsupported);
        }
        if self.usages.are_alike(&how.from, &how.to) {
            let committed = self.folder.relocate(how.clone(), kind, replaces).await?;
            self.usages.change(&how.to, 0, committed.replaced_bytes);
            return Ok(committed);
        }
        match kind {
            Kind::File => self.rename_object(&how, replaces).await,
            Kind::Directory => self.rename_folder(&how, replaces).await,
        }
    }

    /// Whether a quota counts only a part of what lies beneath a folder.
    fn is_divided(&self, folder: &Key) -> bool {
        self.usages.is_divided(folder)
    }

    /// What a folder counts, with everything in it.
    async fn bytes_beneath(&self, key: &Key) -> Result<u64> {
        let (folder, key) = (self.folder.clone(), key.clone());
        let job = move || folder.count_bytes(Some(&key));
        let beneath = self.folder.pool().run(job).await??;
        Ok(beneath.saturating_add(counted_bytes(0)))
    }
}

/// Gets the numbers of a count so far.
pub type Progress<'p> = &'p mut dyn FnMut(Counted);

impl fmt::Debug for QuotaStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaStore")
            .field("folder", &self.folder)
            .field("usages", &self.usages)
            .finish()
    }
}

impl Store for QuotaStore {
    fn open<'a>(&'a self, key: &'a Key, wanted: Wanted) -> LocalFuture<'a, Result<Object>> {
        self.folder.open(key, wanted)
    }

    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>> {
        self.folder.meta(key)
    }

    fn existing_object<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>> {
        self.folder.existing_object(key)
    }

    fn stage<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            self.usages.check(key, size_bytes.unwrap_or(0))?;
            let room = Room::new(&self.usages, &self.kept, key)?;
            let upload = self.folder.stage(key, condition, size_bytes).await?;
            Ok(self.upload(upload, room, key))
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        kind: Kind,
        condition: Condition,
    ) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async move {
            let (deleted, freed) = self.folder.delete_counted(key, kind, condition).await?;
            self.usages.change(key, 0, freed);
            Ok(deleted)
        })
    }

    fn create_folder<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<bool>> {
        self.folder.create_folder(key)
    }

    fn copy(&self, how: Relocation) -> LocalFuture<'_, Result<Committed>> {
        Box::pin(async move {
            let to = how.to.clone();
            let mut reservation = Reservation::new(&self.usages, &to);
            reservation.grow(self.folder.meta(&how.from).await?.size)?;
            let committed = self.folder.copy(how).await?;
            let added = counted_bytes(committed.meta.size);
            let replaced = committed.replaced_bytes;
            self.usages.change(&to, added, replaced);
            Ok(committed)
        })
    }

    fn rename(&self, how: Relocation, kind: Kind) -> LocalFuture<'_, Result<Committed>> {
        Box::pin(self.relocate(how, kind, Replaces::Alike))
    }

    fn replace(
        &self,
        how: Relocation,
        kind: Kind,
        shown: ShownNames,
    ) -> LocalFuture<'_, Result<Committed>> {
        Box::pin(self.relocate(how, kind, Replaces::All { shown }))
    }

    fn stage_copy<'a>(&'a self, from: &'a Key, to: &'a Key) -> LocalFuture<'a, Result<StagedCopy>> {
        Box::pin(async move {
            let mut reservation = Reservation::new(&self.usages, to);
            if self.is_divided(to) {
                return Err(StoreError::Unsupported);
            }
            if reservation.counts() {
                let found = self.folder.meta(from).await?;
                reservation.grow(match found.kind {
                    Kind::File => found.size,
                    Kind::Directory => self.bytes_beneath(from).await?,
                })?;
            }
            let staged = self.folder.stage_copy(from, to).await?;
            Ok(staged.with_room(Box::new(reservation)))
        })
    }

    fn take_rights<'a>(&'a self, copy: &'a StagedCopy, to: &'a Key) -> LocalFuture<'a, Result<()>> {
        self.folder.take_rights(copy, to)
    }

    fn overlap<'a>(&'a self, from: &'a Key, to: &'a Key) -> LocalFuture<'a, Result<Overlap>> {
        self.folder.overlap(from, to)
    }

    fn folds_names<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<bool>> {
        self.folder.folds_names(key)
    }

    fn root_meta(&self) -> LocalFuture<'_, Result<Option<Meta>>> {
        self.folder.root_meta()
    }

    fn space<'a>(&'a self, folder: Option<&'a Key>) -> LocalFuture<'a, Result<Option<Space>>> {
        Box::pin(async move {
            let found = self.folder.space(folder).await?;
            Ok(found.and_then(|found| self.usages.space(folder, found)))
        })
    }

    fn properties<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Vec<u8>>> {
        self.folder.properties(key)
    }

    fn replace_properties<'a>(
        &'a self,
        key: &'a Key,
        old: &'a [u8],
        new: &'a [u8],
    ) -> LocalFuture<'a, Result<()>> {
        self.folder.replace_properties(key, old, new)
    }

    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>> {
        self.folder.list(folder, how)
    }

    fn check_folder<'a>(&'a self, folder: Option<&'a Key>) -> LocalFuture<'a, Result<()>> {
        self.folder.check_folder(folder)
    }

    fn next_entries<'a>(
        &'a self,
        cursor: &'a mut Cursor,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DetailedEntry>>> {
        self.folder.next_entries(cursor, limit)
    }

    fn watch<'a>(
        &'a self,
        folder: Option<&'a Key>,
    ) -> LocalFuture<'a, Result<Box<dyn FolderChanges>>> {
        self.folder.watch(folder)
    }

    fn try_get(&self, key: &Key) -> Option<Result<Object>> {
        self.folder.try_get(key)
    }

    fn generation(&self, key: &Key) -> Option<u64> {
        self.folder.generation(key)
    }

    fn swaps(&self) -> u64 {
        self.folder.swaps()
    }

    fn uploads(&self) -> Option<&dyn ResumableUploads> {
        Some(self)
    }

    fn features(&self) -> Features {
        self.folder.features().passed_on()
    }
}

impl ResumableUploads for QuotaStore {
    fn resume<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let name = Folder::kept_name(kept)?;
            let mut room = Room::resume(&self.usages, &self.kept, key, name, kept)?;
            match self.folder.resume(key, condition, kept).await {
                Ok(upload) => {
                    room.set(kept.bytes); // What followed them was dropped.
                    Ok(self.upload(upload, room, key))
                }
                Err(error) => {
                    if error == StoreError::NotFound {
                        room.end();
                    }
                    Err(error)
                }
            }
        })
    }

    fn write_partial<'a>(
        &'a self,
        kept: &'a PartialUpload,
        position: u64,
        buf: Vec<u8>,
    ) -> LocalFuture<'a, Result<Vec<u8>>> {
        Box::pin(async move {
            let end = position.saturating_add(buf.len() as u64);
            self.kept.write(&Folder::kept_name(kept)?, position..end)?;
            self.folder.write_partial(kept, position, buf).await
        })
    }

    fn sync_partial<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        self.folder.sync_partial(kept)
    }

    fn published<'a>(
        &'a self,
        key: &'a Key,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Option<u64>>> {
        self.folder.published(key, kept)
    }

    fn is_kept<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<bool>> {
        self.folder.is_kept(kept)
    }

    fn discard<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move {
            self.folder.discard(kept).await?;
            if let Ok(name) = Folder::kept_name(kept) {
                self.kept.remove(&name);
            }
            Ok(())
        })
    }

    fn discard_older(&self, age: Duration) -> LocalFuture<'_, Result<usize>> {
        Box::pin(async move {
            let discarded = self.folder.discard_older_named(age).await?;
            discarded.iter().for_each(|name| self.kept.remove(name));
            Ok(discarded.len())
        })
    }
}
