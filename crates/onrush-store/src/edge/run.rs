//! Transfers blocks of one version from the other store into the cache.
//!
//! A [`Run`] transfers consecutive blocks by one request; each block is a [`Fill`]: a file that
//! readers may read while it is written. A reader that needs a block that is being transferred
//! joins its run, which ends with a block when it has no readers.

use super::EdgeInner;
use super::heads::Head;
use super::readers::{Member, Run};
use crate::cache::{Name, NewFile};
use crate::checksum::Checksum;
use crate::error::{Result, StoreError};
use crate::object::{ByteStream, Object};
use crate::store::Wanted;
use crate::sync::watch::Watch;
use bytes::{Buf, Bytes};
use onrush_rt::fs::File;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// The bytes that are written at a time. The first ones of a block are fewer, so that readers do
/// not wait long.
const STEP_BYTES: u64 = 256 * 1024;
const FIRST_STEP_BYTES: u64 = 64 * 1024;
/// A block that is being transferred.
#[derive(Debug)]
pub(super) struct Fill {
    pub(super) run: Arc<Run>,
    pub(super) state: Watch<FillState>,
}

#[derive(Debug, Default)]
pub(super) struct FillState {
    /// Set before the first byte is written.
    pub(super) file: Option<Arc<File>>,
    /// The bytes that may be read from the file.
    pub(super) written: u64,
    pub(super) end: Option<FillEnd>,
}

/// How the transfer of a block has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FillEnd {
    /// All bytes are in the file.
    Whole,
    /// The cache does not take the block. The bytes are to be read from the other store.
    NotStored,
    Failed(StoreError),
}

/// A reader of a block that is being transferred.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) fill: Arc<Fill>,
    pub(super) member: Arc<Member>,
    /// Another reader has begun the transfer.
    pub(super) is_joined: bool,
}

impl Fill {
    /// Waits until the transfer of the block has ended.
    pub(super) async fn ended(&self) {
        self.state.until(|state| state.end.map(drop)).await;
    }

    /// Whether all bytes of block `number`, which is the own one, may be read from the file.
    pub(super) fn is_whole(&self, head: &Head, number: u64) -> bool {
        let len = head.block_len(number);
        self.state
            .with(|state| state.file.is_some() && state.written == len)
    }

    fn new(run: Arc<Run>, block: Name) -> Arc<Fill> {
        run.transfers(block);
        Arc::new(Fill {
            run,
            state: Watch::new(FillState::default()),
        })
    }

    /// Adds a reader of block `number`.
    pub(super) fn join(self: &Arc<Fill>, number: u64, is_joined: bool) -> Reading {
        let member = self.run.join();
        member.reads(number);
        Reading {
            fill: self.clone(),
            member: Arc::new(member),
            is_joined,
        }
    }
}

/// How a reader gets a block: by a transfer, from the cache, or after another transfer.
pub(super) enum Joined {
    Filling(Reading),
    Stored,
    /// The block before it is being completed. Then it is known whether the same run goes on.
    Follows(Arc<Fill>),
}

impl EdgeInner {
    /// Joins the transfer of a block, or begins it. `end`: where the reader ends, in bytes.
    pub(super) fn block(self: &Arc<Self>, head: &Arc<Head>, number: u64, end: u64) -> Joined {
        let id = head.block(number); // This takes a moment, for which no one is to wait.
        let before = number.checked_sub(1).map(|before| head.block(before));
        let mut fills = self.fills();
        if let Some(fill) = fills.get(&id) {
            return Joined::Filling(fill.join(number, true));
        }
        if self.is_stored_as(head, &id) {
            return Joined::Stored;
        }
        if let Some(before) = before.and_then(|before| fills.get(&before))
            && (before.state).with(|state| state.written == head.block_bytes)
        {
            return Joined::Follows(before.clone());
        }
        let fill = Fill::new(Run::new(None), id);
        let reading = fill.join(number, false);
        fills.insert(id, fill.clone());
        drop(fills);
        let guard = FillGuard {
            inner: self.clone(),
            id,
            fill,
        };
        let (head, generation) = (head.clone(), self.heads.generation(&head.key));
        let end = (end.checked_next_multiple_of(head.block_bytes))
            .map_or(head.meta.size, |end| end.min(head.meta.size));
        let own = guard.fill.run.clone();
        self.fetch(own, move || {
            Box::pin(async move {
                let range = number * head.block_bytes..end;
                match open_version(&guard.inner, &head, range.clone()).await {
                    Ok(object) => {
                        let blocks = number..end.div_ceil(head.block_bytes).max(number + 1);
                        let stream = object.stream(range);
                        run(head, Some(generation), guard, blocks, stream).await;
                    }
                    Err(error) => drop(guard.end(FillEnd::Failed(error), None, |_, _| false)),
                }
            })
        });
        Joined::Filling(reading)
    }

    /// Registers the transfer of a block, unless there is one or the block is in the cache.
    pub(super) fn begin(
        self: &Arc<Self>,
        head: &Head,
        number: u64,
        run: &Arc<Run>,
    ) -> Option<FillGuard> {
        let id = head.block(number);
        let mut fills = self.fills();
        if fills.contains_key(&id) || self.is_stored_as(head, &id) {
            return None;
        }
        let fill = Fill::new(run.clone(), id);
        fills.insert(id, fill.clone());
        Some(FillGuard {
            inner: self.clone(),
            id,
            fill,
        })
    }

    /// Whether all bytes of a block are in a file: stored, or transferred and not yet named.
    pub(super) fn is_whole(&self, head: &Head, number: u64) -> bool {
        let id = head.block(number);
        if self.is_stored_as(head, &id) {
            return true; // Without the lock, which others need.
        }
        let fill = self.fills().get(&id).cloned();
        // In this order: a transfer ends after its file has its name.
        fill.is_some_and(|fill| fill.is_whole(head, number)) || self.is_stored_as(head, &id)
    }

    /// Whether a block is in the cache, as far as is known without the disk.
    pub(super) fn is_stored(&self, head: &Head, number: u64) -> bool {
        self.is_stored_as(head, &head.block(number))
    }

    /// As [`EdgeInner::is_stored`]. `block` identifies the block.
    fn is_stored_as(&self, head: &Head, block: &Name) -> bool {
        match head.is_small() {
            true => head.is_stored.load(Relaxed) && self.cache.contains(&head.file),
            false => self.cache.contains(block),
        }
    }
}

/// Opens an object if it still has this version. Otherwise fails with [`StoreError::Changed`], and
/// the next request asks for the current version: what is left of this one is not complete.
pub(super) async fn open_version(
    inner: &EdgeInner,
    head: &Head,
    range: Range<u64>,
) -> Result<Object> {
    let opened = match inner.store.open(&head.key, Wanted::Range(range)).await {
        Ok(object) if head.has_content(object.meta()) => Ok(object),
        Ok(_) | Err(StoreError::NotFound | StoreError::IsDirectory) => Err(StoreError::Changed),
        Err(error) => Err(error),
    };
    if matches!(opened, Err(StoreError::Changed)) {
        inner.heads.forget_version(head);
    }
    opened
}

/// Completes a fill also if its task ends early.
pub(super) struct FillGuard {
    inner: Arc<EdgeInner>,
    id: Name,
    pub(super) fill: Arc<Fill>,
}

impl FillGuard {
    /// Ends the transfer of the block. If there is a block that `follows` in the same run, is not
    /// being transferred and `is_missing`, it is registered first, so that readers go on with it.
    fn end(
        &self,
        end: FillEnd,
        follows: Option<Name>,
        is_missing: impl FnOnce(&EdgeInner, &Name) -> bool,
    ) -> Option<FillGuard> {
        let mut fills = self.inner.fills();
        let mut next = None;
        if let Some(id) = follows
            && !fills.contains_key(&id)
            && is_missing(&self.inner, &id)
        {
            let fill = Fill::new(self.fill.run.clone(), id);
            fills.insert(id, fill.clone());
            next = Some(FillGuard {
                inner: self.inner.clone(),
                id,
                fill,
            });
        }
        self.remove_from(&mut fills);
        drop(fills);
        self.fill.state.update(|state| {
            state.end.get_or_insert(end);
        });
        next
    }

    /// Ends a transfer that has no readers. `false` if it has some again.
    fn abandon(&self) -> bool {
        let mut fills = self.inner.fills();
        // Readers join while they hold the lock.
        let is_unread = self.fill.run.is_unread();
        if is_unread {
            self.remove_from(&mut fills);
        }
        is_unread
    }

    fn remove_from(&self, fills: &mut HashMap<Name, Arc<Fill>>) {
        if (fills.get(&self.id)).is_some_and(|own| Arc::ptr_eq(own, &self.fill)) {
            fills.remove(&self.id);
        }
    }
}

impl Drop for FillGuard {
    fn drop(&mut self) {
        let failed = FillEnd::Failed(StoreError::Io(io::ErrorKind::Other.into()));
        self.end(failed, None, |_, _| false);
    }
}

/// Transfers `blocks`, the first of which is `fill`, as long as there are readers.
pub(super) async fn run(
    head: Arc<Head>,
    generation: Option<u64>,
    mut fill: FillGuard,
    blocks: Range<u64>,
    stream: ByteStream,
) {
    let mut source = Source {
        stream,
        left: Bytes::new(),
    };
    let mut number = blocks.start;
    loop {
        let end = fill_block(&head, generation, number, &mut source, &fill).await;
        number += 1;
        let more = end == FillEnd::Whole && number < blocks.end;
        let next = fill.end(end, more.then(|| head.block(number)), |inner, block| {
            !inner.is_stored_as(&head, block)
        });
        let Some(next) = next else {
            return; // Or its readers go on with the transfer of another run.
        };
        fill = next;
        while !fill.fill.run.is_wanted(number).await {
            if fill.abandon() {
                return;
            }
        }
    }
}

/// Transfers one block.
async fn fill_block(
    head: &Arc<Head>,
    generation: Option<u64>,
    number: u64,
    source: &mut Source,
    guard: &FillGuard,
) -> FillEnd {
    let (inner, state) = (&guard.inner, &guard.fill.state);
    let len = head.block_len(number);
    let record = head.record(len);
    let Ok(new) = inner.cache.create(record.file_bytes_max()).await else {
        return FillEnd::NotStored;
    };
    state.update(|state| state.file = Some(new.file().clone()));
    let mut checksum = Checksum::EMPTY;
    let mut written = 0;
    while written < len {
        let step = match written {
            0 => FIRST_STEP_BYTES,
            _ => STEP_BYTES,
        };
        let bytes = match source.take(step.min(len - written)).await {
            Ok(bytes) => bytes,
            Err(error) => {
                if error == StoreError::Changed {
                    inner.heads.forget_version(head);
                }
                return FillEnd::Failed(error);
            }
        };
        let (file, at, cache) = (new.file().clone(), written, inner.cache.clone());
        written += bytes.len() as u64;
        inner
            .metrics
            .fetched_bytes
            .fetch_add(bytes.len() as u64, Relaxed);
        let write = move || {
            checksum.add(&bytes);
            match file.write_all_at(&bytes, at) {
                Ok(()) => Some(checksum),
                Err(error) => {
                    cache.failed(&error);
                    None
                }
            }
        };
        checksum = match inner.cache.pool().run(write).await {
            Ok(Some(checksum)) => checksum,
            _ => return FillEnd::NotStored,
        };
        state.update(|state| state.written = written);
    }
    let (own, owned) = (inner.clone(), head.clone());
    let publish = move || publish(&own, &owned, new, (number, len), checksum, generation);
    let _ = inner.cache.pool().run(publish).await; // Readers have the bytes in any case.
    FillEnd::Whole
}

/// Completes a file and gives it its name. Blocks.
fn publish(
    inner: &EdgeInner,
    head: &Arc<Head>,
    new: NewFile,
    (number, len): (u64, u64),
    checksum: Checksum,
    generation: Option<u64>,
) {
    let trailer = head.record(len).trailer(checksum);
    if let Err(error) = new.file().write_all_at(&trailer, len) {
        return inner.cache.failed(&error);
    }
    if head.is_small() {
        publish_record(inner, head, new, generation);
    } else {
        // The cache has reported a failure.
        let _ = new.publish(&head.block(number), Some(&head.file));
    }
}

/// Gives the file with the record of a key its name, if the version is still the current one.
pub(super) fn publish_record(
    inner: &EdgeInner,
    head: &Arc<Head>,
    new: NewFile,
    generation: Option<u64>,
) {
    inner.heads.change_file(&head.key, || {
        if inner.heads.is_current(head, generation) && new.publish(&head.file, None).is_ok() {
            inner.heads.set_ended(&head.key, &head.file, false);
            head.is_stored.store(true, Release);
        }
    });
}

/// Bytes that arrive in pieces of any size.
struct Source {
    stream: ByteStream,
    left: Bytes,
}

impl Source {
    /// The next `len` bytes.
    async fn take(&mut self, len: u64) -> Result<Vec<u8>> {
        let len = len as usize;
        let mut bytes = Vec::with_capacity(len);
        loop {
            let more = self.left.len().min(len - bytes.len());
            bytes.extend_from_slice(&self.left[..more]);
            self.left.advance(more);
            if bytes.len() == len {
                return Ok(bytes);
            }
            match poll_fn(|cx| self.stream.as_mut().poll_next(cx)).await {
                Some(piece) => self.left = piece?,
                None => return Err(StoreError::Io(io::ErrorKind::UnexpectedEof.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::for_tests::edge_with_blocks;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// To count the blocks that are stored takes no lock that the transfers need.
    #[test]
    fn stored_blocks_are_found_while_transfers_begin() {
        let (edge, _store, key) = edge_with_blocks();
        let head = edge.inner.heads.get(&key).expect("a version");
        let (sender, receiver) = channel();
        let transfers = edge.inner.fills();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(edge.inner.is_whole(&head, 0)));
            let found = receiver.recv_timeout(Duration::from_secs(30));
            drop(transfers);
            assert_eq!(found, Ok(true));
        });
    }
}
