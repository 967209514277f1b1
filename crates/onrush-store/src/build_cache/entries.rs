//! The objects in the files of a cache: find, publish and delete. Changes of a key exclude each
//! other, so that a condition is that of the change.

use crate::cache::{Cache, Name, NewFile, Verifying};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::Meta;
use crate::record::Record;
use crate::stamps::Stamps;
use crate::store::{Committed, Condition};
use onrush_rt::fs::{File, Releaser};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The locks of keys. Threads of the pool hold them for one operation of the disk or two.
const LOCKS: usize = 256;
/// The pool frees the content of objects of at least this size.
const RELEASE_ON_POOL_BYTES_MIN: u64 = 4 << 20;

pub(super) struct Entries {
    cache: Cache,
    /// Frees large objects that were removed while a client has read them.
    releaser: Arc<Releaser>,
    locks: [Mutex<()>; LOCKS],
    stamps: Stamps,
}

/// An object.
pub(super) struct CacheFile {
    pub(super) name: Name,
    pub(super) file: File,
    pub(super) record: Record,
}

/// A power cut has torn the file.
struct Torn;

impl Entries {
    pub(super) fn new(cache: Cache) -> Entries {
        Entries {
            releaser: Releaser::new(cache.pool(), cache.is_in_memory()),
            cache,
            locks: [const { Mutex::new(()) }; LOCKS],
            stamps: Stamps::default(),
        }
    }

    /// The file of an object for as long as a client reads it.
    pub(super) fn lend(&self, entry: CacheFile) -> (File, Record) {
        let CacheFile { file, record, .. } = entry;
        match record.meta.size >= RELEASE_ON_POOL_BYTES_MIN {
            true => (file.release_on(&self.releaser), record),
            false => (file, record),
        }
    }

    pub(super) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Finds an object without waiting for a disk. `None` if that is impossible.
    pub(super) fn try_find(&self, key: &Key) -> Option<Result<CacheFile>> {
        let name = name_of(key);
        if self.cache.lacks(&name) {
            return Some(Err(StoreError::NotFound));
        }
        let file = self.cache.try_open(&name)?;
        let record = Record::try_read(&file).filter(|record| record.key == *key)?;
        Some(Ok(CacheFile { name, file, record }))
    }

    /// The turn of a caller to find an object.
    pub(super) async fn turn(&self, key: &Key) -> Verifying {
        self.cache.turn(&name_of(key)).await
    }

    /// Finds an object, and removes it if its file is torn. Blocks.
    pub(super) fn find(&self, key: &Key, turn: Verifying) -> Option<CacheFile> {
        let name = name_of(key);
        self.look_up(key, &name, turn).unwrap_or_else(|Torn| {
            let _lock = self.lock(&name);
            self.current(key, &name) // It may have been replaced.
        })
    }

    /// As [`Entries::find`]. The caller has the lock of the key, and so it does not wait for a
    /// turn, whose owner may need a thread of the pool.
    fn current(&self, key: &Key, name: &Name) -> Option<CacheFile> {
        self.look_up(key, name, Verifying::default())
            .unwrap_or_else(|Torn| {
                let _ = self.cache.remove(name); // If it stays, it is still torn.
                None
            })
    }

    fn look_up(&self, key: &Key, name: &Name, turn: Verifying) -> Result<Option<CacheFile>, Torn> {
        if self.cache.lacks(name) {
            return Ok(None);
        }
        let Some(opened) = self.cache.open_file(name, turn) else {
            return Ok(None);
        };
        let record = Record::read(&opened.file, !opened.is_trusted);
        match record.ok().flatten() {
            Some(record) if record.key == *key => {
                self.cache.trust(name);
                Ok(Some(CacheFile {
                    name: *name,
                    file: opened.file,
                    record,
                }))
            }
            _ => Err(Torn),
        }
    }

    /// Makes a complete file the object of `record`, if the condition holds. Blocks.
    pub(super) fn publish(
        &self,
        record: &Record,
        new: NewFile,
        condition: &Condition,
    ) -> Result<Committed> {
        let (key, name) = (&record.key, name_of(&record.key));
        let _lock = self.lock(&name);
        let created = match condition.is_none() && self.cache.is_complete() {
            true => !self.cache.contains(&name), // The old object need not be read.
            false => {
                let current = self.current(key, &name).map(|entry| entry.record.meta);
                condition.check(current.as_ref())?;
                current.is_none()
            }
        };
        new.publish(&name, None)
            .map_err(StoreError::from_open_file)?;
        Ok(Committed {
            created,
            replaced_bytes: 0,
            meta: record.meta,
        })
    }

    /// Deletes an object, if the condition holds. Blocks.
    pub(super) fn delete(&self, key: &Key, condition: &Condition) -> Result<Meta> {
        let name = name_of(key);
        let _lock = self.lock(&name);
        let current = self.current(key, &name).map(|entry| entry.record.meta);
        condition.check(current.as_ref())?;
        let meta = current.ok_or(StoreError::NotFound)?;
        let removed = self.cache.remove(&name);
        removed.map_err(StoreError::from_open_file)?;
        Ok(meta)
    }

    /// The disk has failed while a file was filled.
    pub(super) fn failed(&self, error: io::Error) -> StoreError {
        self.cache.failed(&error);
        StoreError::from_open_file(error)
    }

    /// A modification time that was not used before.
    pub(super) fn next_stamp_ns(&self) -> i64 {
        let now_ns = self.cache.now_ms().saturating_mul(1_000_000);
        self.stamps.next_ns(now_ns)
    }

    fn lock(&self, name: &Name) -> MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        let lock = &self.locks[(hash % LOCKS as u64) as usize];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name_of(key: &Key) -> Name {
    Name::of(&[key.as_bytes()])
}
