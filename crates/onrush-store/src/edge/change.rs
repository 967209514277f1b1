//! Changes in the other store. They end the use of the copy on this server before they complete.

use super::EdgeInner;
use super::heads::Head;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::object::LocalFuture;
use crate::store::{Committed, PartialUpload, Upload};
use onrush_rt::blocking::BlockingJob;
use std::sync::Arc;

impl EdgeInner {
    /// Ends the use of the copy of a key. Nothing that was fetched before is used afterwards.
    pub(super) async fn invalidate(self: &Arc<Self>, key: &Key) {
        let removed = self.forget(key);
        let _ = removed.await; // A job that panics has been reported.
    }

    fn forget(self: &Arc<Self>, key: &Key) -> BlockingJob<()> {
        self.heads.forget(key);
        self.openings().remove(key);
        let (inner, key) = (self.clone(), key.clone());
        self.cache.pool().run(move || {
            let name = Head::file_of(&key);
            inner.heads.change_file(&key, || {
                let removed = inner.cache.remove(&name);
                // What stays is not read any more.
                let has_ended = removed.is_err() && !inner.cache.lacks(&name);
                inner.heads.set_ended(&key, &name, has_ended);
                // A request may have read the file since the first time.
                inner.heads.forget(&key);
            });
        })
    }
}

/// What a change with some result means for the copy.
enum Effect {
    /// The object is as it was.
    None,
    /// The change was not made, but the object may be another one, or the service is not reached.
    /// The copy is confirmed before it is used again, and is served during an outage.
    Expires,
    /// The change was made, or it may have been.
    Ends,
}

impl Effect {
    fn of<T>(result: &Result<T>) -> Effect {
        match result {
            Err(
                StoreError::Unsupported
                | StoreError::Forbidden
                | StoreError::InvalidKey
                | StoreError::TooLarge
                | StoreError::NoMetadata,
            ) => Effect::None,
            Err(
                StoreError::PreconditionFailed
                | StoreError::Conflict
                | StoreError::PermissionDenied(_)
                | StoreError::Full(_)
                | StoreError::ReadOnly
                | StoreError::Busy
                | StoreError::InUse
                | StoreError::Throttled { .. }
                | StoreError::Unavailable,
            ) => Effect::Expires,
            _ => Effect::Ends,
        }
    }
}

/// A change of a key in the other store. Dropping it ends the use of the copy: the change may have
/// been made.
pub(super) struct Change {
    inner: Arc<EdgeInner>,
    key: Key,
    is_open: bool,
}

impl Change {
    pub(super) fn new(inner: &Arc<EdgeInner>, key: &Key) -> Change {
        Change {
            inner: inner.clone(),
            key: key.clone(),
            is_open: true,
        }
    }

    pub(super) async fn complete<T>(mut self, result: Result<T>) -> Result<T> {
        match Effect::of(&result) {
            Effect::None => {}
            Effect::Expires => {
                self.inner.heads.expire(&self.key);
                self.inner.openings().remove(&self.key);
            }
            Effect::Ends => self.inner.invalidate(&self.key).await,
        }
        self.is_open = false;
        result
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if self.is_open {
            self.inner.forget(&self.key).detach();
        }
    }
}

/// An upload to the other store.
pub(super) struct EdgeUpload {
    upload: Box<dyn Upload>,
    inner: Arc<EdgeInner>,
    key: Key,
}

impl EdgeUpload {
    pub(super) fn new(upload: Box<dyn Upload>, inner: &Arc<EdgeInner>, key: &Key) -> EdgeUpload {
        EdgeUpload {
            upload,
            inner: inner.clone(),
            key: key.clone(),
        }
    }
}

impl Upload for EdgeUpload {
    fn write(&mut self, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>> {
        self.upload.write(buf)
    }

    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()> {
        self.upload.set_metadata(metadata)
    }

    fn written_bytes(&self) -> u64 {
        self.upload.written_bytes()
    }

    fn keep(&mut self) -> LocalFuture<'_, Result<PartialUpload>> {
        self.upload.keep()
    }

    fn take_over(&mut self) -> Option<PartialUpload> {
        self.upload.take_over()
    }

    fn append_partial<'a>(&'a mut self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        self.upload.append_partial(kept)
    }

    fn commit(self: Box<Self>) -> LocalFuture<'static, Result<Committed>> {
        Box::pin(async move {
            let change = Change::new(&self.inner, &self.key);
            let result = self.upload.commit().await;
            change.complete(result).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::for_tests::{block_on, edge_with_blocks};
    use crate::store::{Store, Wanted};

    /// A request that finds the old file of a key while a change waits to remove it.
    #[test]
    fn what_was_read_before_the_file_is_removed_is_forgotten() {
        let (edge, store, key) = edge_with_blocks();
        let inner = edge.inner.clone();
        let open = || block_on(edge.open(&key, Wanted::All)).map(drop);
        store.fail_with(Some(StoreError::Unavailable));
        let removed = inner.heads.change_file(&key, || {
            let removed = inner.forget(&key);
            assert_eq!(open(), Ok(()), "the change is not complete");
            removed
        });
        block_on(removed).expect("no panic");
        assert_eq!(open(), Err(StoreError::Unavailable));
    }
}
