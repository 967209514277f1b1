//! An upload: collects few bytes in memory, and writes more of them to a new file of the cache. The
//! pool writes and computes the checksum.

use super::BuildCache;
use super::entries::Entries;
use crate::cache::{Cache, NewFile, NotStored, Promise};
use crate::checksum::Checksum;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, METADATA_BYTES_MAX, Meta, Version};
use crate::object::LocalFuture;
use crate::record::Record;
use crate::store::{Committed, Condition, Upload};
use std::io;
use std::mem;

/// The maximum size in bytes of an upload that stays in memory until its commit.
const MEMORY_BYTES_MAX: usize = 16 * 1024;
/// The space that an upload has at first, unless it is shorter. It takes more while its bytes
/// arrive: slow clients must not empty the cache by the sizes that they announce.
const FIRST_BYTES: u64 = 256 * 1024;
/// An upload of more than this part of the limit is large: several of them may need all the space,
/// so they begin one after another.
const LARGE_DIVISOR: u64 = 16;

pub(super) struct CacheUpload {
    store: BuildCache,
    key: Key,
    condition: Condition,
    size_bytes: Option<u64>,
    metadata: Vec<u8>,
    body: Body,
    written_bytes: u64,
}

enum Body {
    Memory(Vec<u8>),
    File(Box<Filling>),
    /// A write has failed, or a write in progress owns the file.
    Unavailable,
}

/// A file that is being filled.
struct Filling {
    new: NewFile,
    checksum: Checksum,
    /// The bytes for which the file has space.
    space_bytes: u64,
    _promise: Option<Promise>,
}

impl CacheUpload {
    pub(super) fn begin(
        store: BuildCache,
        key: &Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> Result<CacheUpload> {
        let bytes = size_bytes
            .unwrap_or(0)
            .saturating_add(Record::bytes_max(key, &[]));
        if !store.entries.cache().fits(bytes) {
            return Err(StoreError::TooLarge);
        }
        Ok(CacheUpload {
            store,
            key: key.clone(),
            condition,
            size_bytes,
            metadata: Vec::new(),
            body: Body::Memory(Vec::new()),
            written_bytes: 0,
        })
    }

    /// The number of bytes of content for which there is to be space when the first `end` arrive.
    fn wanted_bytes(&self, end: u64) -> u64 {
        let cache = self.cache();
        // Twice as much, so that a long upload grows a few times only.
        let grown = end.saturating_mul(2).max(FIRST_BYTES);
        let wanted = grown.min(self.size_bytes.unwrap_or(u64::MAX)).max(end);
        match cache.fits(wanted.saturating_add(self.record_bytes_max())) {
            true => wanted,
            false => end,
        }
    }

    fn is_large(&self) -> bool {
        let large_bytes = self.cache().limit_bytes() / LARGE_DIVISOR;
        self.size_bytes.is_some_and(|size| size > large_bytes)
    }

    fn cache(&self) -> &Cache {
        self.store.entries.cache()
    }

    /// The file with the bytes so far, and space for `end` bytes of content.
    async fn file(&mut self, end: u64) -> Result<Filling> {
        let needed = end.saturating_add(self.record_bytes_max());
        if !self.cache().fits(needed) {
            return Err(StoreError::TooLarge);
        }
        let mut filling = self.opened(end).await?;
        if needed > filling.space_bytes {
            let wanted_bytes = self
                .wanted_bytes(end)
                .saturating_add(self.record_bytes_max());
            filling.space_bytes = match filling.new.grow(wanted_bytes).await {
                Ok(()) => wanted_bytes,
                Err(_) => {
                    let grown = filling.new.grow_when_possible(needed).await;
                    grown.map_err(error_of)?;
                    needed
                }
            };
        }
        Ok(filling)
    }

    async fn opened(&mut self, end: u64) -> Result<Filling> {
        match mem::replace(&mut self.body, Body::Unavailable) {
            Body::File(filling) => Ok(*filling),
            Body::Unavailable => Err(StoreError::Io(io::ErrorKind::BrokenPipe.into())),
            Body::Memory(held) => {
                let (cache, record_bytes) = (self.cache(), self.record_bytes_max());
                let promise = match self.size_bytes {
                    Some(size) if self.is_large() => {
                        cache.promise(size.saturating_add(record_bytes)).await
                    }
                    _ => None,
                };
                let space_bytes = self.wanted_bytes(end).saturating_add(record_bytes);
                let created = cache.create_when_possible(space_bytes).await;
                let new = created.map_err(error_of)?;
                let filling = Filling {
                    new,
                    checksum: Checksum::EMPTY,
                    space_bytes,
                    _promise: promise,
                };
                match held.is_empty() {
                    true => Ok(filling),
                    false => {
                        let entries = self.store.entries.clone();
                        let write = move || filling.write(&entries, &held, 0);
                        self.store.entries.cache().pool().run(write).await?
                    }
                }
            }
        }
    }

    fn record_bytes_max(&self) -> u64 {
        Record::bytes_max(&self.key, &self.metadata)
    }

    async fn append(&mut self, mut buf: Vec<u8>) -> Result<Vec<u8>> {
        let (added, at) = (buf.len(), self.written_bytes);
        match &mut self.body {
            Body::Memory(held) if held.is_empty() && buf.capacity() <= MEMORY_BYTES_MAX => {
                *held = mem::take(&mut buf);
            }
            Body::Memory(held) if held.len() + added <= MEMORY_BYTES_MAX => {
                held.extend_from_slice(&buf);
                buf.clear();
            }
            _ => {
                let filling = self.file(at + added as u64).await?;
                let entries = self.store.entries.clone();
                let write = move || {
                    let filling = filling.write(&entries, &buf, at)?;
                    buf.clear();
                    Ok::<_, StoreError>((filling, buf))
                };
                let written = self.store.entries.cache().pool().run(write).await?;
                let (filling, returned) = written?;
                self.body = Body::File(Box::new(filling));
                buf = returned;
            }
        }
        self.written_bytes += added as u64;
        Ok(buf)
    }

    async fn complete(mut self) -> Result<Committed> {
        let size = self.written_bytes;
        self.size_bytes = Some(size);
        let filling = self.file(size).await?;
        let CacheUpload {
            store,
            key,
            condition,
            metadata,
            ..
        } = self;
        let entries = store.entries.clone();
        let publish = move || {
            let Filling { new, checksum, .. } = filling;
            let failed = |error| entries.failed(error);
            let inode = new.file().metadata().map_err(failed)?.inode;
            let modified_ns = entries.next_stamp_ns();
            let record = Record {
                key,
                meta: Meta {
                    kind: Kind::File,
                    size,
                    modified_ns,
                    changed_ns: None,
                    version: Version::from_numbers([inode, size, modified_ns as u64]),
                },
                metadata,
                content_bytes: size,
            };
            let trailer = record.trailer(checksum);
            let end = size + trailer.len() as u64;
            new.file().write_all_at(&trailer, size).map_err(failed)?;
            new.file().set_len(end).map_err(failed)?; // Returns space that is not needed.
            entries.publish(&record, new, &condition)
        };
        let committed = store.entries.cache().pool().run(publish).await??;
        store.stored(size);
        Ok(committed)
    }
}

impl Filling {
    /// Writes `bytes` at `offset`, the end of those before. Blocks.
    fn write(mut self, entries: &Entries, bytes: &[u8], offset: u64) -> Result<Filling> {
        self.checksum.add(bytes);
        let written = self.new.file().write_all_at(bytes, offset);
        written.map_err(|error| entries.failed(error))?;
        Ok(self)
    }
}

/// The error of an upload that has no room.
fn error_of(reason: NotStored) -> StoreError {
    match reason {
        // Downloads and other uploads have had all the space for a while.
        NotStored::Full => StoreError::Throttled { retry_after: None },
        NotStored::Busy => StoreError::Busy,
        NotStored::Scanning | NotStored::Failed => StoreError::Unavailable,
    }
}

impl Upload for CacheUpload {
    fn write(&mut self, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(self.append(buf))
    }

    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()> {
        if metadata.len() > METADATA_BYTES_MAX {
            return Err(StoreError::TooLarge);
        }
        self.metadata = metadata;
        Ok(())
    }

    fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    fn commit(self: Box<Self>) -> LocalFuture<'static, Result<Committed>> {
        Box::pin(self.complete())
    }
}
