//! Objects on file systems that are not local ([`Dir::is_local`]): FUSE, NFS, CIFS and the like. To
//! open, read or close a file there, or to look at its time, may wait for a program or a machine
//! that does not respond. So everything is done on the pool, and nothing by a worker: such an
//! object is no local file, as in a store on another machine.
//!
//! [`Dir::is_local`]: onrush_rt::fs::Dir::is_local

use super::{Folder, FolderInner, Opened, key_locks};
use crate::attributes::read_metadata;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::object::{ByteStream, LocalFuture, Object, ReadAt, pieces};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{File, Metadata};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::thread;
use std::time::Duration;

/// Readers of larger objects keep the file open while a client receives it.
const READ_AT_ONCE_BYTES_MAX: u64 = 64 * 1024;

/// How often, and after which time, a name is looked up again while it is being changed.
const ATTEMPTS: usize = 8;
const PAUSE: Duration = Duration::from_millis(2);

/// Which file systems of the folder are not local.
#[derive(Default)]
pub(super) struct Remotes {
    /// That of the root folder.
    root: AtomicBool,
    /// Others, by [`Metadata::file_system`]. What becomes of an entry whose file system is gone
    /// costs time only.
    others: RwLock<HashSet<(u64, u64)>>,
}

impl Remotes {
    /// Notes whether the file system of the root folder is local.
    pub(super) fn set_root(&self, is_local: bool) {
        self.root.store(!is_local, Relaxed);
    }

    /// Whether a worker may open objects of the root folder.
    pub(super) fn is_root_local(&self) -> bool {
        !self.root.load(Relaxed)
    }

    /// Whether objects may be there.
    fn are_some(&self) -> bool {
        !self.is_root_local() || !self.others().is_empty()
    }

    fn others(&self) -> RwLockReadGuard<'_, HashSet<(u64, u64)>> {
        self.others.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an open file, which `found` describes, is on one of them. Blocks.
    fn have(&self, file: &File, found: &Metadata) -> bool {
        let file_system = found.file_system();
        // To ask takes as long as to open a file where it is not local.
        let is_known = self.others().contains(&file_system);
        if is_known || file.is_local() {
            return is_known;
        }
        let mut known = self.others.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(file_system);
        true
    }
}

impl Folder {
    /// Looks up `key` on the pool. Programs with libfuse rename a file aside that is open while
    /// another one replaces it, so for a moment there is none. So while a change of the key is in
    /// progress, this looks again a few times. It does not wait for the end of the change, because
    /// that may wait for a process that hangs.
    pub(super) async fn look_up<T, F>(&self, key: &Key, look: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&Arc<FolderInner>) -> Result<T> + Send + 'static,
    {
        let key = key.clone();
        let job = move |inner: &Arc<FolderInner>| {
            let mut found = look(inner);
            for _ in 0..ATTEMPTS {
                if !matches!(found, Err(StoreError::NotFound)) || !inner.remotes.are_some() {
                    break;
                }
                let lock = key_locks::try_acquire(inner, &key);
                if lock.is_none() {
                    thread::sleep(PAUSE);
                }
                found = look(inner);
                if lock.is_some() {
                    break; // No change of it is in progress.
                }
            }
            found
        };
        self.run(&self.inner.pool, job).await
    }
}

impl FolderInner {
    /// The object of an opened file. Blocks.
    pub(super) fn object_of(&self, opened: Opened) -> Result<Object> {
        if !self.remotes.have(&opened.file, &opened.found) {
            return Ok(self.object(opened));
        }
        let Opened { meta, file, .. } = opened;
        let stays_open = meta.size > READ_AT_ONCE_BYTES_MAX;
        if stays_open && !file.may_stay_open(FileUse::Download) {
            return Err(StoreError::Busy);
        }
        let metadata = read_metadata(&file)?;
        let reader = Arc::new(PooledReader(Arc::new(PooledFile {
            file: Some(file),
            pool: self.pool.clone(),
        })));
        Ok(Object::from_reader(meta, metadata, reader))
    }
}

/// A file that only the pool reads and closes.
struct PooledFile {
    /// `None` only while it is dropped.
    file: Option<File>,
    pool: BlockingPool,
}

impl PooledFile {
    async fn read(
        self: Arc<PooledFile>,
        offset: u64,
        len_max: usize,
        mut buf: Vec<u8>,
    ) -> Result<Vec<u8>> {
        let pool = self.pool.clone();
        let job = move || {
            if let Some(file) = &self.file {
                let read = file.read_to_vec(&mut buf, len_max, offset);
                read.map_err(StoreError::from_lookup)?;
            }
            Ok(buf)
        };
        pool.run(job).await?
    }
}

impl Drop for PooledFile {
    fn drop(&mut self) {
        let file = self.file.take();
        self.pool.run(move || drop(file)).detach();
    }
}

struct PooledReader(Arc<PooledFile>);

impl ReadAt for PooledReader {
    fn read(&self, offset: u64, len_max: usize, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(self.0.clone().read(offset, len_max, buf))
    }

    fn stream(&self, range: Range<u64>) -> ByteStream {
        let file = self.0.clone();
        pieces(range, move |offset, len| {
            Box::pin(file.clone().read(offset, len, Vec::with_capacity(len)))
        })
    }

    fn file_mut(&mut self) -> Option<&mut File> {
        Arc::get_mut(&mut self.0)?.file.as_mut()
    }
}
