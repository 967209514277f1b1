//! An object that is a local file. Only stores on this machine have such objects.
//!
//! [`Object::local`](crate::Object::local) gives access to it, so that a server can use
//! `sendfile(2)` and read the page cache without waiting. No method of the trait `Store` requires
//! it.

use crate::attributes::read_metadata;
use crate::error::{Result, StoreError};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::File;
use std::fmt;
use std::io;
use std::sync::Arc;

/// An open file with the pool that reads what is not in the page cache.
#[derive(Clone)]
pub struct LocalFile {
    file: Arc<File>,
    pool: BlockingPool,
    /// The metadata of a copy, which is not in the attributes of the file.
    copied: Option<Arc<[u8]>>,
}

impl LocalFile {
    /// A file whose content is the content of an object. `pool` runs reads that may wait.
    pub fn new(file: Arc<File>, pool: BlockingPool) -> LocalFile {
        LocalFile {
            file,
            pool,
            copied: None,
        }
    }

    /// The file, unless others have it.
    pub(crate) fn file_mut(&mut self) -> Option<&mut File> {
        Arc::get_mut(&mut self.file)
    }

    /// A file that is a copy of an object of another store, with the metadata of the object. Its
    /// own properties are not those of the object, and it may be longer. It never changes.
    pub fn copy(file: Arc<File>, pool: BlockingPool, metadata: Arc<[u8]>) -> LocalFile {
        LocalFile {
            file,
            pool,
            copied: Some(metadata),
        }
    }

    /// Whether the file is a copy: it never changes, and its own properties say nothing about the
    /// object.
    pub fn is_copy(&self) -> bool {
        self.copied.is_some()
    }

    /// The file, for `sendfile(2)`. A file of the simulator has no descriptor, but can be read.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// The metadata of the object, read on the calling thread. Empty if there is none. It may wait
    /// for a disk. Right after the content was read from the page cache, the kernel most likely has
    /// the metadata in memory, too, and does not wait.
    pub fn metadata_blocking(&self) -> Result<Vec<u8>> {
        match &self.copied {
            Some(metadata) => Ok(metadata.to_vec()),
            None => read_metadata(&self.file),
        }
    }

    /// The metadata of the object, read on the pool. Empty if there is none.
    pub async fn metadata(&self) -> Result<Vec<u8>> {
        if let Some(metadata) = &self.copied {
            return Ok(metadata.to_vec());
        }
        let file = self.file.clone();
        self.pool.run(move || read_metadata(&file)).await?
    }

    /// Reads bytes from the page cache into `buf`, without waiting. Returns the number of bytes,
    /// which may be less than requested and is 0 at the end, or `None` if the read would wait.
    pub fn try_read(&self, offset: u64, buf: &mut [u8]) -> Option<Result<usize>> {
        unless_would_block(self.file.try_read_at(buf, offset))
    }

    /// See [`Object::read`](crate::Object::read).
    pub(crate) async fn read(
        &self,
        offset: u64,
        len_max: usize,
        mut buf: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let tried = self.file.try_read_to_vec(&mut buf, len_max, offset);
        if let Some(result) = unless_would_block(tried) {
            return result.map(|_| buf);
        }
        let file = self.file.clone();
        self.pool
            .run(move || match file.read_to_vec(&mut buf, len_max, offset) {
                Ok(_) => Ok(buf),
                Err(error) => Err(StoreError::from_lookup(error)),
            })
            .await?
    }
}

impl fmt::Debug for LocalFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalFile").finish_non_exhaustive()
    }
}

/// `None` if the operation would block.
pub(crate) fn unless_would_block<T>(result: io::Result<T>) -> Option<Result<T>> {
    match result {
        Ok(value) => Some(Ok(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => Some(Err(StoreError::from_lookup(error))),
    }
}
