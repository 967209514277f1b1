//! A folder whose operations a test counts, delays, or has fail.

use onrush_store::*;
use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

/// An operation that has hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    ExistingObject,
    Delete,
    CreateFolder,
    ReplaceProperties,
    SyncPartial,
    /// A listing of the server's own objects.
    ListOwn,
}

/// What a test does at operations of a [`Hooked`] store. By default nothing.
pub trait Hooks: Debug + Send + Sync + 'static {
    /// Runs before an operation. An error is the result of the operation, which is not made.
    fn before(&self, _call: Call) -> LocalFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Runs after an operation was made, and before it ends.
    fn after(&self, _call: Call) -> LocalFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Gets each upload that begins.
    fn staged(&self, upload: Box<dyn Upload>) -> Box<dyn Upload> {
        upload
    }
}

#[derive(Debug)]
pub struct Hooked<H> {
    pub folder: Folder,
    pub hooks: H,
}

impl<H: Hooks> Hooked<H> {
    fn run<'a, T: 'a>(
        &'a self,
        call: Call,
        operation: impl Future<Output = Result<T>> + 'a,
    ) -> LocalFuture<'a, Result<T>> {
        Box::pin(async move {
            self.hooks.before(call).await?;
            let made = operation.await;
            self.hooks.after(call).await;
            made
        })
    }
}

/// What the tests need; the rest is that of a store without it.
impl<H: Hooks> Store for Hooked<H> {
    fn open<'a>(&'a self, key: &'a Key, wanted: Wanted) -> LocalFuture<'a, Result<Object>> {
        self.folder.open(key, wanted)
    }

    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>> {
        self.folder.meta(key)
    }

    fn existing_object<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>> {
        self.run(Call::ExistingObject, self.folder.existing_object(key))
    }

    fn stage<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let upload = self.folder.stage(key, condition, size_bytes).await?;
            Ok(self.hooks.staged(upload))
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        kind: Kind,
        condition: Condition,
    ) -> LocalFuture<'a, Result<Meta>> {
        self.run(Call::Delete, self.folder.delete(key, kind, condition))
    }

    fn create_folder<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<bool>> {
        self.run(Call::CreateFolder, self.folder.create_folder(key))
    }

    fn replace_properties<'a>(
        &'a self,
        key: &'a Key,
        old: &'a [u8],
        new: &'a [u8],
    ) -> LocalFuture<'a, Result<()>> {
        let replaced = self.folder.replace_properties(key, old, new);
        self.run(Call::ReplaceProperties, replaced)
    }

    fn replace(
        &self,
        how: Relocation,
        kind: Kind,
        shown: ShownNames,
    ) -> LocalFuture<'_, Result<Committed>> {
        self.folder.replace(how, kind, shown)
    }

    fn stage_copy<'a>(&'a self, from: &'a Key, to: &'a Key) -> LocalFuture<'a, Result<StagedCopy>> {
        self.folder.stage_copy(from, to)
    }

    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>> {
        let listed = self.folder.list(folder, how);
        match folder.is_some_and(Key::reserved) {
            true => self.run(Call::ListOwn, listed),
            false => listed,
        }
    }

    fn uploads(&self) -> Option<&dyn ResumableUploads> {
        Some(self)
    }

    fn features(&self) -> Features {
        self.folder.features()
    }
}

impl<H: Hooks> ResumableUploads for Hooked<H> {
    fn resume<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        self.folder.resume(key, condition, kept)
    }

    fn write_partial<'a>(
        &'a self,
        kept: &'a PartialUpload,
        position: u64,
        buf: Vec<u8>,
    ) -> LocalFuture<'a, Result<Vec<u8>>> {
        self.folder.write_partial(kept, position, buf)
    }

    fn sync_partial<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        self.run(Call::SyncPartial, self.folder.sync_partial(kept))
    }

    fn discard<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        self.folder.discard(kept)
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

    fn discard_older(&self, age: Duration) -> LocalFuture<'_, Result<usize>> {
        self.folder.discard_older(age)
    }
}
