//! Asks the other store for the current version of a key. The requests that need it at the same
//! time wait for the same response, unless it may be older than a request by more than the fresh
//! time: such a request waits for the next one.

use super::heads::{Head, may_hide_a_change};
use super::readers::{Member, Run};
use super::run::{publish_record, run};
use super::{ATTEMPTS, EdgeInner};
use crate::checksum::Checksum;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::store::Wanted;
use crate::sync::watch::Watch;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A request for the current version of a key.
pub(super) type Opening = Watch<Opened>;

/// A request that has no response yet.
pub(super) struct Pending {
    pub(super) opening: Arc<Opening>,
    /// The requests that wait are its readers.
    pub(super) run: Arc<Run>,
    /// The response is at least as new as this.
    pub(super) begun: Instant,
}

/// A place among those who wait for an [`Opening`].
pub(super) struct Waiting {
    pub(super) opening: Arc<Opening>,
    /// Kept while waiting.
    pub(super) _member: Member,
    /// Whether another request has begun it.
    pub(super) is_collapsed: bool,
    /// Whether its response may be served: it is not older than the request, the fresh time aside.
    pub(super) is_recent: bool,
}

/// The state of an [`Opening`].
#[derive(Clone, Debug)]
pub(super) enum Opened {
    Waits,
    /// The other store takes long: who has something to serve does not wait any more.
    IsSlow,
    /// `None`: the next version may look the same, so the cache is not to be used.
    Done(Result<Option<Current>>),
}

/// The current version of a key.
#[derive(Clone, Debug)]
pub(super) struct Current {
    pub(super) head: Arc<Head>,
    /// Whether it was in the cache before.
    pub(super) is_known: bool,
    /// The transfer of its first blocks. It goes on until those who wait have joined it.
    pub(super) member: Option<Arc<Member>>,
}

impl Current {
    pub(super) fn known(head: Arc<Head>) -> Current {
        Current {
            head,
            is_known: true,
            member: None,
        }
    }
}

impl EdgeInner {
    /// Joins the request for the current version of a key, or begins it. `known`: the version to
    /// confirm. `asked`: when the client has asked. `None` if another version is known meanwhile.
    pub(super) fn opening(
        self: &Arc<Self>,
        key: &Key,
        wanted: &Wanted,
        known: Option<&Arc<Head>>,
        asked: Instant,
    ) -> Option<Waiting> {
        let mut openings = self.openings();
        if let Some(pending) = openings.get(key) {
            let age = asked.saturating_duration_since(pending.begun);
            return Some(Waiting {
                opening: pending.opening.clone(),
                _member: pending.run.join(),
                is_collapsed: true,
                is_recent: age.is_zero()
                    || age < Duration::from_millis(self.fresh_ms.load(Relaxed) as u64),
            });
        }
        let current = self.heads.get(key);
        if current.is_some_and(|now| known.is_none_or(|known| !Arc::ptr_eq(known, &now))) {
            return None;
        }
        let opening = Arc::new(Watch::new(Opened::Waits));
        let (run, begun) = (Run::new(Some(key)), Instant::now());
        let member = run.join();
        let pending = Pending {
            opening: opening.clone(),
            run: run.clone(),
            begun,
        };
        openings.insert(key.clone(), pending);
        drop(openings);
        let changes = self.heads.changes(key);
        let guard = OpeningGuard {
            inner: self.clone(),
            key: key.clone(),
            opening: opening.clone(),
            run: run.clone(),
        };
        let (wanted, known) = (wanted.clone(), known.cloned());
        let begun_ms = self.ms_at(begun);
        let start = OpeningStart { changes, begun_ms };
        self.fetch(run, move || Box::pin(open(guard, wanted, known, start)));
        Some(Waiting {
            opening,
            _member: member,
            is_collapsed: false,
            is_recent: true,
        })
    }

    /// The other store has confirmed a version. Returns its generation; `None` if a change through
    /// this server came between.
    fn confirm(&self, head: &Head, start: OpeningStart) -> Option<u64> {
        let fresh_ms = self.fresh_ms.load(Relaxed);
        let confirmed = (self.heads).confirm(head, start.changes, start.begun_ms, fresh_ms);
        if confirmed.is_some() {
            self.cache.stamp(&head.file);
        }
        confirmed
    }
}

/// What was known when an opening began.
#[derive(Clone, Copy, Debug)]
struct OpeningStart {
    /// The number of changes of the key.
    changes: u64,
    /// A version is fresh from this time on, not from the time of the response: it may have been
    /// replaced while the response was on its way.
    begun_ms: i64,
}

/// Completes an opening also if its task ends early.
struct OpeningGuard {
    inner: Arc<EdgeInner>,
    key: Key,
    opening: Arc<Opening>,
    run: Arc<Run>,
}

impl OpeningGuard {
    fn finish(&self, result: Result<Option<Current>>) {
        let mut openings = self.inner.openings();
        let own = openings.get(&self.key);
        if own.is_some_and(|own| Arc::ptr_eq(&own.opening, &self.opening)) {
            openings.remove(&self.key);
        }
        drop(openings);
        self.opening.update(|state| match state {
            Opened::Done(_) => {}
            state => *state = Opened::Done(result),
        });
    }
}

impl Drop for OpeningGuard {
    fn drop(&mut self) {
        self.finish(Err(StoreError::Io(io::ErrorKind::Other.into())));
    }
}

/// Asks the other store for the current version of a key, and begins to transfer it if it is not
/// `known`.
async fn open(
    guard: OpeningGuard,
    wanted: Wanted,
    known: Option<Arc<Head>>,
    mut start: OpeningStart,
) {
    let (inner, key) = (guard.inner.clone(), guard.key.clone());
    if let Some(known) = known.as_ref().filter(|known| !known.may_hide_a_change()) {
        for _ in 0..ATTEMPTS {
            match inner.store.meta(&key).await {
                Ok(meta) if known.has_properties(&meta) => {
                    if let Some(generation) = inner.confirm(known, start) {
                        guard.finish(Ok(Some(Current::known(known.clone()))));
                        return restore_record(&inner, known, generation).await;
                    }
                    // The response may be older than a change through this server.
                    start.changes = inner.heads.changes(&key);
                }
                Ok(_) => break,
                Err(error) => return fail(guard, error, true).await,
            }
        }
    }
    let block_bytes = inner.block_bytes;
    let range = match wanted {
        Wanted::Properties => 0..0,
        Wanted::All => 0..u64::MAX,
        Wanted::Range(range) => {
            let start = range.start - range.start % block_bytes;
            let end = range.end.checked_next_multiple_of(block_bytes);
            start..end.unwrap_or(u64::MAX)
        }
    };
    let hint = match range.is_empty() {
        true => Wanted::Properties,
        false => Wanted::Range(range.clone()),
    };
    let opened_ms = inner.cache.now_ms();
    let object = match inner.store.open(&key, hint).await {
        Ok(object) => object,
        Err(error) => return fail(guard, error, known.is_some()).await,
    };
    let is_exact = inner.store.features().versions_by_content;
    if !is_exact && may_hide_a_change(object.meta(), opened_ms) {
        inner.invalidate(&key).await; // The copy is of an older version.
        return guard.finish(Ok(None));
    }
    let metadata = match object.metadata().await {
        Ok(metadata) => metadata,
        Err(error) => return guard.finish(Err(error)),
    };
    let head = Arc::new(Head::new(
        key,
        *object.meta(),
        metadata,
        block_bytes,
        start.begun_ms,
        opened_ms,
    ));
    head.confirm(start.begun_ms, inner.fresh_ms.load(Relaxed));
    let end = range.end.min(head.meta.size);
    let number = range.start / block_bytes;
    // An empty object is a block without bytes.
    let is_empty = head.meta.size == 0 && range.start == 0 && !range.is_empty();
    let has_bytes = range.start < end || is_empty;
    // Before others find the version, so that they find the transfer as well.
    let fill = has_bytes
        .then(|| inner.begin(&head, number, &guard.run))
        .flatten();
    let generation = inner.heads.replace(&head, start.changes);
    if !head.is_small()
        && let Some(generation) = generation
    {
        store_record(&inner, &head, generation).await;
    }
    guard.finish(Ok(Some(Current {
        head: head.clone(),
        is_known: false,
        member: (fill.as_ref()).map(|fill| fill.fill.join(number, false).member),
    })));
    drop(guard);
    let Some(fill) = fill else {
        return; // Nothing is wanted, or someone else was faster.
    };
    let stream = object.stream(range.start..end);
    let blocks = number..end.div_ceil(block_bytes).max(number + 1);
    run(head, generation, fill, blocks, stream).await;
}

/// Completes an opening that has failed. A version that was `known` is removed if there is no
/// object any more.
async fn fail(guard: OpeningGuard, error: StoreError, known: bool) {
    if known && matches!(error, StoreError::NotFound | StoreError::IsDirectory) {
        guard.inner.invalidate(&guard.key).await;
    }
    guard.finish(Err(error));
}

/// Stores the record of a large object again if it is not in the cache any more. `generation`: the
/// one in which the version was confirmed.
async fn restore_record(inner: &Arc<EdgeInner>, head: &Arc<Head>, generation: u64) {
    if !head.is_small() && inner.cache.is_complete() && !inner.cache.contains(&head.file) {
        store_record(inner, head, generation).await;
    }
}

/// Stores the record of a large object, which is needed after a restart.
async fn store_record(inner: &Arc<EdgeInner>, head: &Arc<Head>, generation: u64) {
    let record = head.record(0);
    let Ok(new) = inner.cache.create(record.file_bytes_max()).await else {
        return;
    };
    let (own, head) = (inner.clone(), head.clone());
    let store = move || match new.file().write_all_at(&record.trailer(Checksum::EMPTY), 0) {
        Ok(()) => publish_record(&own, &head, new, Some(generation)),
        Err(error) => own.cache.failed(&error),
    };
    let _ = inner.cache.pool().run(store).await; // Without it, the object is fetched again.
}
