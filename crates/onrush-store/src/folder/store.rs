//! [`Folder`] as a [`Store`].

use super::again;
use super::change;
use super::kept;
use super::key_locks;
use super::list;
use super::locks::Locks;
use super::moves;
use super::name_case;
use super::overlap;
use super::parents::{self, CreatedFolders};
use super::properties;
use super::relocate::{self, Replaces};
use super::rights;
use super::staged::StagedName;
use super::upload;
use super::watches;
use super::{Folder, FolderInner, check_regular};
use crate::changes::FolderChanges;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::local::unless_would_block;
use crate::meta::{Kind, METADATA_BYTES_MAX, Meta, PROPERTIES_BYTES_MAX};
use crate::object::{LocalFuture, Object};
use crate::shown::ShownNames;
use crate::store::{
    Committed, Condition, Cursor, DetailedEntry, Features, ListHow, Overlap, PartialUpload,
};
use crate::store::{Page, Relocation, ResumableUploads, Space, StagedCopy, Store, Upload, Wanted};
use onrush_rt::descriptors::FileUse;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Store for Folder {
    fn open<'a>(&'a self, key: &'a Key, _: Wanted) -> LocalFuture<'a, Result<Object>> {
        Box::pin(async move {
            if let Some(result) = self.try_get(key) {
                return result;
            }
            let wanted = key.clone();
            let job = move |inner: &Arc<FolderInner>| {
                inner.object_of(inner.open_object(&wanted, FileUse::Brief)?)
            };
            self.look_up(key, job).await
        })
    }

    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async move {
            if key.is_internal() {
                return Err(StoreError::NotFound);
            }
            let wanted = key.clone();
            self.look_up(key, move |inner| inner.meta(&wanted)).await
        })
    }

    fn existing_object<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>> {
        Box::pin(async move {
            if key.is_internal() {
                return Err(StoreError::Forbidden);
            }
            let key = key.clone();
            let job = move |inner: &Arc<FolderInner>| inner.existing_object(&key);
            self.run(&self.inner.change_pool, job).await
        })
    }

    fn stage<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let inner = &self.inner;
            let upload = upload::StagedUpload::begin(inner, key, condition, size_bytes).await?;
            Ok(Box::new(upload) as Box<dyn Upload>)
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        kind: Kind,
        condition: Condition,
    ) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async move {
            let deleted = self.delete_counted(key, kind, condition).await;
            deleted.map(|(meta, _)| meta)
        })
    }

    fn create_folder<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<bool>> {
        Box::pin(async move {
            if key.is_internal() || !self.writable() {
                return Err(StoreError::Forbidden);
            }
            let sync_failures = self.inner.parents.sync_failures();
            let none = CreatedFolders::new(&self.inner);
            let created =
                parents::prepare(&self.inner, key.as_bytes(), none, sync_failures).await?;
            Ok(created.keep() > 0)
        })
    }

    fn copy(&self, how: Relocation) -> LocalFuture<'_, Result<Committed>> {
        Box::pin(relocate::copy(&self.inner, how))
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
            // What is to be copied may be what a move has replaced.
            moves::complete(&self.inner, &[from, to]).await?;
            let to = to.clone();
            let job = move |inner: &Arc<FolderInner>| StagedName::for_copy(inner, &to);
            let (key, name) = self.run(&self.inner.change_pool, job).await?;
            Ok(StagedCopy::new(key, Box::new(name)))
        })
    }

    fn take_rights<'a>(&'a self, copy: &'a StagedCopy, to: &'a Key) -> LocalFuture<'a, Result<()>> {
        let (copy, to) = (copy.key().clone(), to.clone());
        let job = move |inner: &Arc<FolderInner>| rights::of_copy(inner, &copy, &to);
        Box::pin(self.run(&self.inner.change_pool, job))
    }

    fn overlap<'a>(&'a self, from: &'a Key, to: &'a Key) -> LocalFuture<'a, Result<Overlap>> {
        let (from, to) = (from.clone(), to.clone());
        let job = move |inner: &Arc<FolderInner>| overlap::find(inner, &from, &to);
        Box::pin(self.run(&self.inner.pool, job))
    }

    fn folds_names<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<bool>> {
        let key = key.clone();
        let job = move |inner: &Arc<FolderInner>| name_case::folds_at(inner, &key);
        Box::pin(self.run(&self.inner.pool, job))
    }

    fn root_meta(&self) -> LocalFuture<'_, Result<Option<Meta>>> {
        Box::pin(self.run(&self.inner.pool, |inner| inner.root_meta().map(Some)))
    }

    fn space<'a>(&'a self, folder: Option<&'a Key>) -> LocalFuture<'a, Result<Option<Space>>> {
        Box::pin(async move {
            if folder.is_some_and(Key::is_internal) {
                return Err(StoreError::NotFound);
            }
            let folder = folder.cloned();
            let job = move |inner: &Arc<FolderInner>| inner.space(folder.as_ref()).map(Some);
            self.run(&self.inner.pool, job).await
        })
    }

    fn properties<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Vec<u8>>> {
        Box::pin(async move {
            if key.is_internal() {
                return Err(StoreError::NotFound);
            }
            let key = key.clone();
            let job = move |inner: &Arc<FolderInner>| properties::read(inner, &key);
            self.run(&self.inner.pool, job).await
        })
    }

    fn replace_properties<'a>(
        &'a self,
        key: &'a Key,
        old: &'a [u8],
        new: &'a [u8],
    ) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move {
            if key.is_internal() || !self.writable() {
                return Err(StoreError::Forbidden);
            }
            if new.len() > PROPERTIES_BYTES_MAX {
                return Err(StoreError::TooLarge);
            }
            let locks = Locks::one(key_locks::acquire(&self.inner, key).await);
            let (key, old, new) = (key.clone(), old.to_vec(), new.to_vec());
            change::run(&self.inner, locks, move |inner, _locks| {
                properties::replace(inner, &key, &old, &new)
            })
            .await
        })
    }

    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>> {
        Box::pin(async move {
            if folder.is_some_and(Key::is_internal) {
                return Err(StoreError::NotFound);
            }
            list::page(&self.inner, folder, how).await
        })
    }

    fn check_folder<'a>(&'a self, folder: Option<&'a Key>) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move {
            if folder.is_some_and(Key::is_internal) {
                return Err(StoreError::NotFound);
            }
            let folder = folder.cloned();
            let job = move |inner: &Arc<FolderInner>| list::check(inner, folder.as_ref());
            self.run(&self.inner.pool, job).await
        })
    }

    fn next_entries<'a>(
        &'a self,
        cursor: &'a mut Cursor,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DetailedEntry>>> {
        Box::pin(async move {
            if cursor.folder().is_some_and(Key::is_internal) {
                return Err(StoreError::NotFound);
            }
            list::next(&self.inner, cursor, limit).await
        })
    }

    fn watch<'a>(
        &'a self,
        folder: Option<&'a Key>,
    ) -> LocalFuture<'a, Result<Box<dyn FolderChanges>>> {
        Box::pin(watches::watch(&self.inner, folder))
    }

    /// `openat2(2)` with `RESOLVE_CACHED`, `statx(2)`: for the hot path of a worker.
    fn try_get(&self, key: &Key) -> Option<Result<Object>> {
        if key.is_internal() {
            return Some(Err(StoreError::NotFound));
        }
        if !self.inner.remotes.is_root_local() {
            return None;
        }
        let Some(permit) = self.inner.options.descriptors.open_file(FileUse::Brief) else {
            return Some(Err(StoreError::Busy));
        };
        if let Err(error) = again::look_if_due(&self.inner) {
            return Some(Err(error));
        }
        let opened = match self.inner.root.open_cached(key.as_bytes()) {
            // Or to a place outside, which only the other lookup distinguishes.
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => return None,
            opened => unless_would_block(opened)?,
        };
        let checked = opened.and_then(|file| check_regular(file.with_permit(permit)));
        Some(checked.map(|opened| self.inner.object(opened)))
    }

    fn generation(&self, key: &Key) -> Option<u64> {
        let is_usable = !self.inner.again.is_refused();
        is_usable.then(|| self.inner.key_locks.generation(key))?
    }

    fn swaps(&self) -> u64 {
        self.swap_count().load(Ordering::Acquire)
    }

    fn uploads(&self) -> Option<&dyn ResumableUploads> {
        Some(self)
    }

    fn features(&self) -> Features {
        Features {
            metadata_bytes_max: match self.keeps_metadata() {
                true => METADATA_BYTES_MAX,
                false => 0,
            },
            inline_writes: self.writes_inline(),
            empty_folders: true,
            watch: self.inner.root.as_fd().is_some(),
            local_metadata: true,
            // A folder that is not to be changed may have some.
            properties_bytes_max: match self.keeps_metadata() || !self.writable() {
                true => PROPERTIES_BYTES_MAX,
                false => 0,
            },
            resumable_uploads: self.writable(),
            uploads_in_any_order: self.writable(),
            joins_uploads: self.writable(),
            renames_objects: self.writable(),
            renames_folders: self.writable(),
            ..Features::default()
        }
    }
}

impl ResumableUploads for Folder {
    fn resume<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let inner = &self.inner;
            let upload = upload::StagedUpload::resume(inner, key, condition, kept).await?;
            Ok(Box::new(upload) as Box<dyn Upload>)
        })
    }

    fn write_partial<'a>(
        &'a self,
        kept: &'a PartialUpload,
        position: u64,
        buf: Vec<u8>,
    ) -> LocalFuture<'a, Result<Vec<u8>>> {
        Box::pin(kept::write(&self.inner, kept, position, buf))
    }

    fn sync_partial<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        Box::pin(kept::sync(&self.inner, kept))
    }

    fn published<'a>(
        &'a self,
        key: &'a Key,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Option<u64>>> {
        let (key, kept) = (key.clone(), kept.clone());
        let job = move |inner: &Arc<FolderInner>| kept::published(inner, &key, &kept);
        Box::pin(self.run(&self.inner.pool, job))
    }

    fn is_kept<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<bool>> {
        let kept = kept.clone();
        let job = move |inner: &Arc<FolderInner>| kept::find(inner, &kept);
        Box::pin(async move { Ok(self.run(&self.inner.pool, job).await?.is_some()) })
    }

    fn discard<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        let kept = kept.clone();
        let job = move |inner: &Arc<FolderInner>| kept::discard_unused(inner, &kept);
        Box::pin(self.run(&self.inner.change_pool, job))
    }

    fn discard_older(&self, age: Duration) -> LocalFuture<'_, Result<usize>> {
        Box::pin(async move { Ok(self.discard_older_named(age).await?.len()) })
    }
}
