//! Files that are being filled, and the room for them.

use super::space::{Charge, disk_bytes_max};
use super::{Cache, Name, NotStored};
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The attempts to make room, if others take it at the same time, and to store a file on a disk
/// that fails.
const ATTEMPTS: usize = 8;

/// A file that is being filled. Dropping it removes it.
pub struct NewFile {
    cache: Cache,
    number: u64,
    file: Arc<File>,
    charge: Arc<Charge>,
    is_published: bool,
}

impl Cache {
    /// Creates a file of `bytes` bytes after it has made room for it. Fails rather than exceeding
    /// the limit.
    pub async fn create(&self, bytes: u64) -> Result<NewFile, NotStored> {
        if let Some(refusal) = self.refusal() {
            return Err(refusal);
        }
        let cache = self.clone();
        let created = self.pool().run(move || cache.create_blocking(bytes));
        created.await.unwrap_or(Err(NotStored::Failed))
    }

    fn create_blocking(&self, bytes: u64) -> Result<NewFile, NotStored> {
        let inner = &self.inner;
        let charge = self.reserve(disk_bytes_max(bytes)).ok_or(NotStored::Full)?;
        let permit = inner.descriptors.open_file(FileUse::Download);
        let permit = permit.ok_or(NotStored::Failed)?;
        let number = inner.next_number.fetch_add(1, Relaxed);
        let file = self.attempt(charge.bytes(), || inner.folder.create_new(number))?;
        let file = file.with_permit(permit).with_guard(charge.clone());
        let new = NewFile {
            cache: self.clone(),
            number,
            file: Arc::new(file),
            charge,
            is_published: false,
        };
        // A full disk is noticed now, and not in the middle.
        self.attempt(new.charge.bytes(), || new.file.allocate(bytes))?;
        Ok(new)
    }

    /// Runs an operation of the disk for a file of `bytes` bytes, again as long as the reason for
    /// its failure can be removed.
    fn attempt<T>(
        &self,
        bytes: u64,
        operation: impl Fn() -> io::Result<T>,
    ) -> Result<T, NotStored> {
        let mut result = operation();
        for _ in 0..ATTEMPTS {
            match &result {
                Err(error) if self.recover(error, bytes) => result = operation(),
                _ => break,
            }
        }
        result.map_err(|error| {
            self.pause(&error);
            NotStored::Failed
        })
    }

    /// Takes space, for which it removes other files if necessary.
    fn reserve(&self, bytes: u64) -> Option<Arc<Charge>> {
        let inner = &self.inner;
        if bytes > inner.space.limit_bytes() {
            return None;
        }
        for _ in 0..ATTEMPTS {
            if let Some(charge) = inner.space.take(bytes) {
                return Some(charge);
            }
            self.evict(inner.space.excess_bytes(bytes));
        }
        inner.space.take(bytes)
    }

    /// Removes the files that were not used for the longest time, until they have `bytes` bytes.
    /// Returns the bytes that are free now.
    pub(super) fn evict(&self, bytes: u64) -> u64 {
        let victims = self.index().evict(bytes);
        self.inner
            .evictions
            .fetch_add(victims.len() as u64, Relaxed);
        let mut freed = 0;
        for (name, charge) in victims {
            match self.inner.folder.unlink(&name) {
                Ok(()) => freed += charge.bytes(),
                Err(error) => {
                    self.pause(&error);
                    // The file still has its space.
                    let now_ms = self.now_ms();
                    self.index().insert(name, charge, false, now_ms);
                }
            }
        }
        freed
    }
}

impl NewFile {
    /// The file, for writing and reading.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Gives the file its name. It replaces a file of the same name. `whole`: the file without
    /// which it is useless, as in [`Cache::stamp_part`]. Blocks.
    pub fn publish(mut self, name: &Name, whole: Option<&Name>) -> io::Result<()> {
        let (cache, inner) = (&self.cache, &self.cache.inner);
        let now_ms = cache.now_ms();
        let part_ms = whole.and_then(|whole| cache.index().part_ms(whole));
        let used_ms = part_ms.unwrap_or(now_ms);
        // Now it is known what the file occupies.
        let published = self.file.metadata().and_then(|found| {
            self.charge.set(found.allocated_bytes);
            self.file.set_modified(used_ms * 1_000_000)?;
            inner.folder.publish(self.number, name)
        });
        if let Err(error) = published {
            cache.failed(&error);
            return Err(error);
        }
        let charge = self.charge.clone();
        let mut index = cache.index();
        index.insert(*name, charge, true, used_ms);
        if let Some(whole) = whole {
            index.stamp_part(name, whole, now_ms);
        }
        drop(index);
        cache.worked();
        self.is_published = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        let (cache, number, charge) = (self.cache.clone(), self.number, self.charge.clone());
        let unlink = move || {
            let _ = cache.inner.folder.unlink_new(number); // Otherwise the next start removes it.
            drop(charge);
        };
        self.cache.pool().run(unlink).detach();
    }
}
