//! Finds what a request gets: the version to serve, and its bytes in the cache, in a transfer, or
//! in the other store.

use super::heads::Head;
use super::opening::{Current, Opened, Opening};
use super::reader::{BlockSource, EdgeReader};
use super::run::{FillEnd, Reading};
use super::{ATTEMPTS, EdgeInner};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::local::LocalFile;
use crate::object::{CacheUse, Cached, Object};
use crate::record::Record;
use crate::store::Wanted;
use onrush_rt::fs::File;
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// An object up to this size is served when it is complete, a larger one while it arrives.
const WHOLE_BYTES_MAX: u64 = 256 * 1024;
/// If the other store does not respond, it is asked about a key once in this time.
const STALE_PAUSE_MS: i64 = 1_000;

/// The most blocks that are looked up before a response begins; about 1 ms.
const COUNTED_MAX: u64 = 4096;

impl EdgeInner {
    /// The version of a key to serve, and how it was found. `None`: the cache is not to be used.
    pub(super) async fn head(
        self: &Arc<Self>,
        key: &Key,
        wanted: &Wanted,
    ) -> Result<Option<(Current, CacheUse)>> {
        if key.reserved() {
            return Ok(None); // State of the server is always current.
        }
        let mut asked = None;
        loop {
            let known = match self.heads.get(key) {
                Some(head) => Some(head),
                None => self.load_head(key).await?,
            };
            let now_ms = self.now_ms();
            let may_be_stale = match &known {
                None if !self.cache.accepts() || *wanted == Wanted::Properties => return Ok(None),
                None => false,
                Some(head) if head.fresh_ms(now_ms) > 0 => {
                    return Ok(Some((Current::known(head.clone()), head.how_fresh())));
                }
                Some(head) => head.age_ms(now_ms) <= self.stale_ms.load(Relaxed),
            };
            let asked = *asked.get_or_insert_with(Instant::now);
            let Some(waiting) = self.opening(key, wanted, known.as_ref(), asked) else {
                continue; // Another request has opened it meanwhile.
            };
            let result = wait(&waiting.opening, may_be_stale).await;
            let is_out = (result.as_ref()).is_err_and(|error| is_outage(*error));
            if !waiting.is_recent && !is_out {
                continue; // The object may have been replaced before this request.
            }
            let is_collapsed = waiting.is_collapsed;
            return match (result, known) {
                (Ok(None), _) => Ok(None),
                (Ok(Some(version)), _) if version.is_known => {
                    Ok(Some((version, CacheUse::Revalidated)))
                }
                (Ok(Some(version)), _) => {
                    let is_stored = true;
                    let how = CacheUse::Miss {
                        is_stored,
                        is_collapsed,
                    };
                    Ok(Some((version, how)))
                }
                (Err(error), Some(known)) if may_be_stale && is_outage(error) => {
                    if !known.keep_stale(self.now_ms(), STALE_PAUSE_MS) {
                        self.heads.advance(key); // Responses say from now on that it is stale.
                    }
                    Ok(Some((Current::known(known), CacheUse::Stale)))
                }
                (Err(error), _) => Err(error),
            };
        }
    }

    /// Reads the properties of an object that is on the disk, as after a restart. It is to be
    /// confirmed before it is served.
    async fn load_head(self: &Arc<Self>, key: &Key) -> Result<Option<Arc<Head>>> {
        let name = Head::file_of(key);
        if self.cache.is_complete() && !self.cache.contains(&name) {
            return Ok(None);
        }
        let (inner, key) = (self.clone(), key.clone());
        let turn = self.cache.turn(&name).await;
        let generation = self.heads.generation(&key);
        let load = move || {
            if inner.heads.has_ended(&key, &name) {
                return None;
            }
            let opened = inner.cache.open_file(&name, turn)?;
            let record = Record::read(&opened.file, !opened.is_trusted)
                .ok()
                .flatten();
            let Some(record) = record.filter(|record| record.key == key) else {
                let removed = inner.heads.change_file(&key, || inner.cache.remove(&name));
                drop(removed); // It is torn, also if it stays.
                return None;
            };
            inner.cache.trust(&name);
            // The time of this file is that of the last confirmation.
            let confirmed = opened.file.metadata().ok()?.modified_ns / 1_000_000;
            let age_ms = inner.cache.now_ms().saturating_sub(confirmed).max(0);
            let confirmed_ms = inner.now_ms().saturating_sub(age_ms);
            let (size, content_bytes) = (record.meta.size, record.content_bytes);
            let (meta, metadata) = (record.meta, record.metadata);
            let block_bytes = inner.block_bytes;
            let head = Head::new(
                record.key,
                meta,
                metadata,
                block_bytes,
                confirmed_ms,
                confirmed,
            );
            // The size of blocks may have changed.
            if content_bytes != if head.is_small() { size } else { 0 } {
                return None;
            }
            head.is_stored.store(true, Release);
            Some(head)
        };
        let head = self.cache.pool().run(load).await?;
        Ok(head.map(|head| self.heads.add(Arc::new(head), generation)))
    }

    /// The object of a version, for the range that is wanted first.
    pub(super) async fn object(
        self: &Arc<Self>,
        version: Current,
        mut how: CacheUse,
        wanted: &Wanted,
    ) -> Result<Object> {
        let head = &version.head;
        let size = head.meta.size;
        let range = match wanted {
            Wanted::All => 0..size,
            Wanted::Properties => 0..0,
            Wanted::Range(range) => range.start.min(size)..range.end.min(size),
        };
        let is_empty = size == 0 && *wanted != Wanted::Properties;
        let mut first = None;
        if head.is_small() && (!range.is_empty() || is_empty) {
            match self.small(head, &mut how).await? {
                Ok(file) => return Ok(self.local(head, file, how)),
                Err(opened) => first = opened,
            }
        } else if !range.is_empty() {
            let number = range.start / head.block_bytes;
            if !self.is_stored(head, number) {
                let opened = self.open_block(head, number, range.end).await?;
                how = self.missed(head, number, how, &opened);
                match opened {
                    BlockSource::Filling(reading) => {
                        // A version that has changed is noticed before the first byte is sent.
                        let begun = reading.fill.state.until(|state| match state.end {
                            Some(FillEnd::Failed(error)) => Some(Err(error)),
                            Some(_) => Some(Ok(())),
                            None => (state.written > 0).then_some(Ok(())),
                        });
                        begun.await?;
                        first = Some((number, reading));
                    }
                    BlockSource::File(_) | BlockSource::Store(_) => {}
                }
            }
            let is_miss = matches!(how, CacheUse::Miss { .. });
            if !is_miss && !self.has_blocks(head, number + 1..range.end.div_ceil(head.block_bytes))
            {
                how = CacheUse::Partial;
            }
        }
        self.metrics.count(how);
        let metadata = head.metadata.to_vec();
        let reader = EdgeReader {
            inner: self.clone(),
            head: head.clone(),
            first: Mutex::new(first),
            member: version.member.clone(),
        };
        let object = Object::from_reader(head.meta, metadata, Arc::new(reader));
        Ok(object.with_cached(self.cached(head, how)))
    }

    /// The file of a small object, or its transfer if that takes long.
    async fn small(
        self: &Arc<Self>,
        head: &Arc<Head>,
        how: &mut CacheUse,
    ) -> Result<std::result::Result<Arc<File>, Option<(u64, Reading)>>> {
        for _ in 0..ATTEMPTS {
            let opened = self.open_block(head, 0, head.meta.size).await?;
            *how = self.missed(head, 0, *how, &opened);
            let reading = match opened {
                BlockSource::File(file) => return Ok(Ok(file)),
                BlockSource::Filling(reading) => reading,
                BlockSource::Store(_) => return Ok(Err(None)),
            };
            let waits_for_all = head.meta.size <= WHOLE_BYTES_MAX;
            let begun = reading.fill.state.until(|state| match state.end {
                Some(FillEnd::Failed(error)) => Some(Err(error)),
                Some(end) => Some(Ok(Some(end))),
                None => (!waits_for_all && state.written > 0).then_some(Ok(None)),
            });
            let end = begun.await?;
            if end == Some(FillEnd::NotStored) {
                *how = not_stored(*how);
            }
            if end != Some(FillEnd::Whole) || !self.is_stored(head, 0) {
                return Ok(Err(Some((0, reading))));
            }
        }
        Ok(Err(None))
    }

    /// Whether all bytes of these blocks are in files. `false` for more than [`COUNTED_MAX`]: it
    /// takes time to compute their names.
    fn has_blocks(&self, head: &Head, mut blocks: Range<u64>) -> bool {
        blocks.end.saturating_sub(blocks.start) <= COUNTED_MAX
            && blocks.all(|number| self.is_whole(head, number))
    }

    /// How an object was found whose block `number`, the first one, was opened.
    fn missed(&self, head: &Head, number: u64, how: CacheUse, opened: &BlockSource) -> CacheUse {
        match (how, opened) {
            (how, BlockSource::Store(_)) => not_stored(how),
            (CacheUse::Miss { .. }, _) | (_, BlockSource::File(_)) => how,
            // Nothing is to be fetched: the file of another reader gets its name at this moment.
            (how, BlockSource::Filling(reading))
                if reading.is_joined && reading.fill.is_whole(head, number) =>
            {
                how
            }
            (_, BlockSource::Filling(reading)) if head.is_small() => CacheUse::Miss {
                is_stored: true,
                is_collapsed: reading.is_joined,
            },
            _ => CacheUse::Partial,
        }
    }

    fn cached(&self, head: &Head, how: CacheUse) -> Cached {
        Cached {
            how,
            fresh_ms: head.fresh_ms(self.now_ms()),
        }
    }

    pub(super) fn local(&self, head: &Head, file: Arc<File>, how: CacheUse) -> Object {
        self.metrics.count(how);
        let metadata = head.metadata.clone();
        let file = LocalFile::copy(file, self.cache.pool().clone(), metadata);
        Object::from_local(head.meta, file).with_cached(self.cached(head, how))
    }
}

/// Waits for the current version; not for a store that takes long if the caller `may_be_stale`.
async fn wait(opening: &Opening, may_be_stale: bool) -> Result<Option<Current>> {
    let look = |state: &Opened| match state {
        Opened::Done(result) => Some(result.clone()),
        Opened::IsSlow if may_be_stale => Some(Err(StoreError::Timeout)),
        Opened::Waits | Opened::IsSlow => None,
    };
    opening.until(look).await
}

/// How an object was found that the cache does not take.
fn not_stored(how: CacheUse) -> CacheUse {
    CacheUse::Miss {
        is_stored: false,
        is_collapsed: matches!(
            how,
            CacheUse::Miss {
                is_collapsed: true,
                ..
            }
        ),
    }
}

/// Whether the other store does not respond, so that a copy may be served for longer.
fn is_outage(error: StoreError) -> bool {
    matches!(
        error,
        StoreError::Unavailable
            | StoreError::Interrupted
            | StoreError::Timeout
            | StoreError::BadResponse
            | StoreError::Throttled { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::super::run::Joined;
    use super::{BlockSource, CacheUse};
    use crate::for_tests::{edge_with_blocks, wait_until};

    /// A fast transfer may be complete before the reader that began it looks again.
    #[test]
    fn only_the_transfer_of_another_reader_counts_as_found() {
        let (edge, _store, key) = edge_with_blocks();
        let head = edge.inner.heads.get(&key).expect("a version");
        // The transfer of the first block may go on with the second one, which is removed then.
        let mut own = None;
        wait_until(|| {
            match edge.inner.block(&head, 1, head.meta.size) {
                Joined::Filling(reading) if !reading.is_joined => own = Some(reading),
                Joined::Stored => drop(edge.inner.cache.remove(&head.block(1))),
                Joined::Filling(_) | Joined::Follows(_) => {}
            }
            own.is_some()
        });
        let own = own.expect("a transfer");
        wait_until(|| own.fill.is_whole(&head, 1));
        let of_another = BlockSource::Filling(own.fill.join(1, true));
        let own = BlockSource::Filling(own);
        let found = |opened| edge.inner.missed(&head, 1, CacheUse::Hit, opened);
        assert_eq!(found(&of_another), CacheUse::Hit);
        assert_eq!(found(&own), CacheUse::Partial);
    }
}
