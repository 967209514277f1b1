//! An upload that counts while it is in use.

use super::kept::Room;
use crate::error::Result;
use crate::folder::Folder;
use crate::key::Key;
use crate::object::LocalFuture;
use crate::store::{Committed, PartialUpload, Upload};
use crate::usage::{Usages, counted_bytes};
use std::sync::Arc;

/// An upload that counts.
pub(super) struct CountedUpload {
    pub(super) upload: Box<dyn Upload>,
    /// Dropped after the upload.
    pub(super) room: Room,
    pub(super) usages: Arc<Usages>,
    pub(super) key: Key,
}

impl Upload for CountedUpload {
    fn write(&mut self, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            self.room.grow(buf.len() as u64)?;
            self.upload.write(buf).await
        })
    }

    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()> {
        self.upload.set_metadata(metadata)
    }

    fn written_bytes(&self) -> u64 {
        self.upload.written_bytes()
    }

    fn keep(&mut self) -> LocalFuture<'_, Result<PartialUpload>> {
        Box::pin(async move {
            let kept = self.upload.keep().await?;
            self.room.keep(Folder::kept_name(&kept)?);
            Ok(kept)
        })
    }

    fn append_partial<'a>(&'a mut self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move {
            self.room.grow(kept.bytes)?;
            self.upload.append_partial(kept).await
        })
    }

    fn commit(self: Box<Self>) -> LocalFuture<'static, Result<Committed>> {
        let CountedUpload {
            upload,
            mut room,
            usages,
            key,
        } = *self;
        Box::pin(async move {
            let committed = upload.commit().await?;
            let added = counted_bytes(committed.meta.size);
            usages.change(&key, added, committed.replaced_bytes);
            room.end();
            drop(room); // Afterwards, so that the sum is never too small.
            Ok(committed)
        })
    }
}
