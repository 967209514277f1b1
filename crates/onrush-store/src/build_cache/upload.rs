//! An upload: collects few bytes in memory, and writes more of them to a new file of the cache. The
//! pool writes and computes the checksum.

use super::BuildCache;
use super::entries::Entries;
use crate::cache::{NewFile, NotStored};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, METADATA_BYTES_MAX, Meta, Version};
use crate::object::LocalFuture;
use crate::record::{Checksum, Record};
use crate::store::{Committed, Condition, Upload};
use std::io;
use std::mem;

/// The maximum size in bytes of an upload that stays in memory until its commit.
const MEMORY_BYTES_MAX: usize = 16 * 1024;
/// The space that an upload of unknown size has at first.
const FIRST_BYTES: u64 = 1 << 20;

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

    /// The file with the bytes so far. A new one has space for `bytes` bytes of content.
    async fn file(&mut self, bytes: u64) -> Result<Filling> {
        match mem::replace(&mut self.body, Body::Unavailable) {
            Body::File(filling) => Ok(*filling),
            Body::Unavailable => Err(StoreError::Io(io::ErrorKind::BrokenPipe.into())),
            Body::Memory(held) => {
                let cache = self.store.entries.cache();
                let space_bytes = bytes.saturating_add(self.record_bytes_max());
                let new = match cache.create_when_possible(space_bytes).await {
                    Ok(new) => new,
                    Err(NotStored::Full) if !cache.fits(space_bytes) => {
                        return Err(StoreError::TooLarge);
                    }
                    Err(reason) => return Err(error_of(reason)),
                };
                let filling = Filling {
                    new,
                    checksum: Checksum::new(),
                    space_bytes,
                };
                match held.is_empty() {
                    true => Ok(filling),
                    false => {
                        let entries = self.store.entries.clone();
                        let write = move || filling.write(&entries, &held, 0, 0);
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
                let (end, record_bytes) = (at + added as u64, self.record_bytes_max());
                let wanted = self.size_bytes.unwrap_or(FIRST_BYTES).max(end);
                let fits = (self.store.entries.cache()).fits(wanted.saturating_add(record_bytes));
                let filling = self.file(if fits { wanted } else { end }).await?;
                let entries = self.store.entries.clone();
                let write = move || {
                    let filling = filling.write(&entries, &buf, at, record_bytes)?;
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
    /// Writes `bytes` at `offset`, the end of those before. Then there is space for
    /// `reserve_bytes` more. Blocks.
    fn write(
        mut self,
        entries: &Entries,
        bytes: &[u8],
        offset: u64,
        reserve_bytes: u64,
    ) -> Result<Filling> {
        let needed = offset + bytes.len() as u64 + reserve_bytes;
        if needed > self.space_bytes {
            if !entries.cache().fits(needed) {
                return Err(StoreError::TooLarge);
            }
            // Twice as much, so that a long upload grows a few times only.
            let more = needed.saturating_mul(2);
            self.space_bytes = match self.new.grow(more) {
                Ok(()) => more,
                Err(_) => {
                    self.new.grow(needed).map_err(error_of)?;
                    needed
                }
            };
        }
        self.checksum.add(bytes);
        let written = self.new.file().write_all_at(bytes, offset);
        written.map_err(|error| entries.failed(error))?;
        Ok(self)
    }
}

/// The error of an upload that has no room.
fn error_of(reason: NotStored) -> StoreError {
    match reason {
        // Downloads, or uploads of unknown size, have all the space at the moment.
        NotStored::Full => StoreError::Full(io::ErrorKind::StorageFull.into()),
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
