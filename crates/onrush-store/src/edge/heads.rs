//! The objects that were opened lately: their properties, how fresh they are, and the generation of
//! each key.
//!
//! A generation changes when the entry of a key is replaced or invalidated, or becomes stale or
//! fresh again. The number of changes counts only those that invalidate: what was fetched becomes
//! the current version only if there was no change since before the fetch. Keys share both numbers,
//! so they may advance without a reason, which costs only time.

use crate::cache::Name;
use crate::key::Key;
use crate::meta::Meta;
use crate::object::CacheUse;
use crate::record::Record;
use lru::LruCache;
use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The stripes of keys.
const STRIPES: usize = 1024;
/// The most heads in memory, of all stripes. The others are read from the disk again.
const HEADS_MAX: usize = 64 * 1024;

/// One version of an object.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) key: Key,
    pub(super) meta: Meta,
    pub(super) metadata: Arc<[u8]>,
    /// The name of the file with the record, and with the content if it is small.
    pub(super) file: Name,
    /// The size of blocks.
    pub(super) block_bytes: u64,
    /// Whether the file `file` is in the cache and has this version.
    pub(super) is_stored: AtomicBool,
    /// When the other store has last confirmed the version.
    confirmed_ms: AtomicI64,
    /// Until then it is served without asking.
    fresh_until_ms: AtomicI64,
    is_stale: AtomicBool,
    /// When it was confirmed for the first time, a change within the same unit of time was still
    /// possible.
    may_hide_a_change: bool,
}

/// Some stores keep times in seconds, or in units of 2 s. If such a time is older than this, a
/// later change has another one, also if the clock of the other store is 1 s behind.
const COARSE_MS: i64 = 3_000;

/// Whether an object that was opened at `opened_ms`, by the clock of the system, may change without
/// getting another time: if it changes twice within the unit in which the other store keeps times
/// (RFC 9110 §8.8.2.2).
pub(super) fn may_hide_a_change(meta: &Meta, opened_ms: i64) -> bool {
    meta.modified_ns % 1_000_000_000 == 0
        && meta.modified_ns / 1_000_000 > opened_ms.saturating_sub(COARSE_MS)
}

impl Head {
    /// The name of the file with the record of a key.
    pub(super) fn file_of(key: &Key) -> Name {
        Name::of(&[key.as_bytes()])
    }

    pub(super) fn new(
        key: Key,
        meta: Meta,
        metadata: Vec<u8>,
        block_bytes: u64,
        confirmed_ms: i64,
        opened_ms: i64,
    ) -> Head {
        Head {
            file: Head::file_of(&key),
            key,
            meta,
            metadata: metadata.into(),
            block_bytes,
            is_stored: AtomicBool::new(false),
            confirmed_ms: AtomicI64::new(confirmed_ms),
            fresh_until_ms: AtomicI64::new(i64::MIN),
            is_stale: AtomicBool::new(false),
            may_hide_a_change: may_hide_a_change(&meta, opened_ms),
        }
    }

    /// Whether the content is in the same file as the record.
    pub(super) fn is_small(&self) -> bool {
        self.meta.size <= self.block_bytes
    }

    /// Identifies a block of this version.
    pub(super) fn block(&self, number: u64) -> Name {
        let version = self.meta.version;
        Name::of(&[
            self.key.as_bytes(),
            version.as_bytes(),
            &number.to_le_bytes(),
        ])
    }

    /// The bytes of a block.
    pub(super) fn block_len(&self, number: u64) -> u64 {
        let start = number.saturating_mul(self.block_bytes).min(self.meta.size);
        (self.meta.size - start).min(self.block_bytes)
    }

    /// The record of a file with so much content.
    pub(super) fn record(&self, content_bytes: u64) -> Record {
        Record {
            key: self.key.clone(),
            meta: self.meta,
            metadata: self.metadata.to_vec(),
            content_bytes,
        }
    }

    /// Whether something with these properties has the content of this version.
    pub(super) fn has_content(&self, meta: &Meta) -> bool {
        meta.version == self.meta.version && meta.size == self.meta.size
    }

    /// Whether something with these properties has also the metadata of this version. Where the
    /// version is made from the content only, as in S3, the time says whether metadata has changed,
    /// unless [`Head::may_hide_a_change`].
    pub(super) fn has_properties(&self, meta: &Meta) -> bool {
        self.has_content(meta) && meta.modified_ns == self.meta.modified_ns
    }

    /// Whether the same properties do not prove that the metadata is the same, because it may have
    /// changed within the unit of time in which this version was made.
    pub(super) fn may_hide_a_change(&self) -> bool {
        self.may_hide_a_change
    }

    /// Whether a record is of this version. A block has only content.
    pub(super) fn is_of(&self, record: &Record) -> bool {
        record.key == self.key
            && match self.is_small() {
                true => self.has_properties(&record.meta),
                false => self.has_content(&record.meta),
            }
    }

    /// The milliseconds for which it is served without asking; 0 if the time is over.
    pub(super) fn fresh_ms(&self, now_ms: i64) -> u64 {
        let left = self.fresh_until_ms.load(Relaxed).saturating_sub(now_ms);
        u64::try_from(left).unwrap_or(0)
    }

    /// The time since the other store has last confirmed the version.
    pub(super) fn age_ms(&self, now_ms: i64) -> i64 {
        now_ms.saturating_sub(self.confirmed_ms.load(Relaxed))
    }

    /// How it is found while it is served without asking.
    pub(super) fn how_fresh(&self) -> CacheUse {
        match self.is_stale.load(Relaxed) {
            true => CacheUse::Stale,
            false => CacheUse::Hit,
        }
    }

    /// The other store has confirmed the version. Returns whether it was stale.
    pub(super) fn confirm(&self, now_ms: i64, fresh_ms: i64) -> bool {
        self.confirmed_ms.store(now_ms, Relaxed);
        self.fresh_until_ms
            .store(now_ms.saturating_add(fresh_ms), Relaxed);
        self.is_stale.swap(false, Relaxed)
    }

    /// The version is to be confirmed before it is served again.
    fn expire(&self) {
        self.fresh_until_ms.store(i64::MIN, Relaxed);
    }

    /// The other store has not responded. Returns whether it was stale before.
    pub(super) fn keep_stale(&self, now_ms: i64, pause_ms: i64) -> bool {
        self.fresh_until_ms
            .store(now_ms.saturating_add(pause_ms), Relaxed);
        self.is_stale.swap(true, Relaxed)
    }
}

/// The heads by key.
#[derive(Debug)]
pub(super) struct Heads(Box<[Stripe]>);

#[derive(Debug)]
struct Stripe {
    generation: AtomicU64,
    /// Advances while `heads` is locked.
    changes: AtomicU64,
    heads: Mutex<LruCache<Key, Arc<Head>>>,
    /// Held by jobs of the pool while a file with a record gets its name or is removed.
    files: Mutex<()>,
    /// The names of files with records that have ended and cannot be removed. They change while
    /// `files` is locked.
    ended: Mutex<HashSet<Name>>,
}

impl Heads {
    pub(super) fn new() -> Heads {
        let each = NonZeroUsize::new(HEADS_MAX / STRIPES).unwrap_or(NonZeroUsize::MIN);
        let stripe = |_| Stripe {
            generation: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            heads: Mutex::new(LruCache::new(each)),
            files: Mutex::new(()),
            ended: Mutex::default(),
        };
        Heads((0..STRIPES).map(stripe).collect())
    }

    fn stripe(&self, key: &Key) -> &Stripe {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(key);
        &self.0[hash as usize % STRIPES]
    }

    pub(super) fn generation(&self, key: &Key) -> u64 {
        self.stripe(key).generation.load(Acquire)
    }

    /// The number of changes of a key.
    pub(super) fn changes(&self, key: &Key) -> u64 {
        self.stripe(key).changes.load(Acquire)
    }

    /// Changes the generation of a key.
    pub(super) fn advance(&self, key: &Key) {
        self.stripe(key).generation.fetch_add(1, AcqRel);
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<Head>> {
        self.stripe(key).heads().get(key).cloned()
    }

    /// Adds a head that was read from the disk, unless there is one or the generation has changed.
    /// Returns the head of the key.
    pub(super) fn add(&self, head: Arc<Head>, generation: u64) -> Arc<Head> {
        let stripe = self.stripe(&head.key);
        let mut heads = stripe.heads();
        if let Some(present) = heads.get(&head.key) {
            return present.clone();
        }
        if stripe.generation.load(Acquire) == generation {
            heads.put(head.key.clone(), head.clone());
        }
        head
    }

    /// Replaces the head of a key, unless there were other changes. Returns the new generation.
    pub(super) fn replace(&self, head: &Arc<Head>, changes: u64) -> Option<u64> {
        let stripe = self.stripe(&head.key);
        let mut heads = stripe.heads();
        if stripe.changes.load(Acquire) != changes {
            return None;
        }
        heads.put(head.key.clone(), head.clone());
        Some(stripe.generation.fetch_add(1, AcqRel) + 1)
    }

    /// The other store has confirmed a version, which it was asked for after `changes`. Returns
    /// the generation to which it belongs; `None` if there was another change: nothing is known.
    pub(super) fn confirm(
        &self,
        head: &Head,
        changes: u64,
        now_ms: i64,
        fresh_ms: i64,
    ) -> Option<u64> {
        let stripe = self.stripe(&head.key);
        let _held = stripe.heads(); // A change either comes before or ends what this confirms.
        if stripe.changes.load(Acquire) != changes {
            return None;
        }
        if head.confirm(now_ms, fresh_ms) {
            stripe.generation.fetch_add(1, AcqRel); // Responses say no longer that it is stale.
        }
        Some(stripe.generation.load(Acquire))
    }

    /// Removes the head of a key, as a change.
    pub(super) fn forget(&self, key: &Key) {
        let stripe = self.stripe(key);
        let mut heads = stripe.heads();
        stripe.generation.fetch_add(1, AcqRel);
        stripe.changes.fetch_add(1, AcqRel);
        heads.pop(key);
    }

    /// Removes the head of a key, as a change, if it is of the same version as `gone`: the other
    /// store has another one.
    pub(super) fn forget_version(&self, gone: &Head) {
        let stripe = self.stripe(&gone.key);
        let mut heads = stripe.heads();
        let present = heads.peek(&gone.key);
        if present.is_some_and(|present| present.has_content(&gone.meta)) {
            stripe.generation.fetch_add(1, AcqRel);
            stripe.changes.fetch_add(1, AcqRel);
            heads.pop(&gone.key);
        }
    }

    /// Has the head of a key confirmed before it is used again. Nothing that was asked before
    /// confirms it.
    pub(super) fn expire(&self, key: &Key) {
        let stripe = self.stripe(key);
        let mut heads = stripe.heads();
        stripe.generation.fetch_add(1, AcqRel);
        stripe.changes.fetch_add(1, AcqRel);
        if let Some(head) = heads.get(key) {
            head.expire();
        }
    }

    /// Whether this is the current version of its key. If there is none in memory, it is the one
    /// of `generation`.
    pub(super) fn is_current(&self, head: &Arc<Head>, generation: Option<u64>) -> bool {
        let stripe = self.stripe(&head.key);
        match stripe.heads().peek(&head.key) {
            Some(current) => Arc::ptr_eq(current, head),
            None => generation == Some(stripe.generation.load(Acquire)),
        }
    }

    /// Runs a change of the file with the record of a key, after those before. Blocks.
    pub(super) fn change_file<R>(&self, key: &Key, change: impl FnOnce() -> R) -> R {
        let stripe = self.stripe(key);
        let _held = stripe.files.lock().unwrap_or_else(PoisonError::into_inner);
        change()
    }

    /// Whether the record in the file `name` of a key has ended, although the file is there.
    pub(super) fn has_ended(&self, key: &Key, name: &Name) -> bool {
        self.stripe(key).ended().contains(name)
    }

    /// The record in the file `name` of a key has ended and stays on the disk, or not any more.
    pub(super) fn set_ended(&self, key: &Key, name: &Name, has_ended: bool) {
        let mut ended = self.stripe(key).ended();
        match has_ended {
            true => ended.insert(*name),
            false => ended.remove(name),
        };
    }
}

impl Stripe {
    fn ended(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heads(&self) -> MutexGuard<'_, LruCache<Key, Arc<Head>>> {
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::{Kind, Version};

    fn head(heads: &Heads) -> (Key, Arc<Head>) {
        let key = Key::parse(b"a").expect("a key");
        let meta = Meta {
            kind: Kind::File,
            size: 1,
            modified_ns: 0,
            changed_ns: None,
            version: Version::parse(b"v").expect("a version"),
        };
        let head = Arc::new(Head::new(key.clone(), meta, Vec::new(), 1, 0, 0));
        heads.replace(&head, 0).expect("the first one");
        (key, head)
    }

    #[test]
    fn a_version_is_confirmed_unless_there_was_a_change() {
        let heads = Heads::new();
        let (key, head) = head(&heads);
        let (changes, generation) = (heads.changes(&key), heads.generation(&key));
        assert_eq!(heads.confirm(&head, changes, 0, 1000), Some(generation));
        assert_eq!(head.fresh_ms(0), 1000);
        head.keep_stale(0, 1);
        let confirmed = heads.confirm(&head, changes, 0, 1000);
        assert_eq!(confirmed, Some(generation + 1), "it was stale");
        heads.expire(&key);
        assert_eq!(heads.confirm(&head, changes, 0, 1000), None);
        assert_eq!(head.fresh_ms(0), 0);
    }

    /// A change either comes before a response, which confirms nothing then, or ends its effect.
    #[test]
    fn no_older_response_makes_a_version_fresh_after_a_change() {
        let heads = Heads::new();
        let (key, head) = head(&heads);
        let has_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Relaxed) {
                    let changes = heads.changes(&key);
                    heads.confirm(&head, changes, changes as i64, 0);
                }
            });
            let mut older = None;
            for changes in 1..=200_000 {
                heads.expire(&key);
                // Fresh until the number of changes at which the other store was asked.
                let mut until = (0..20).map(|_| head.fresh_until_ms.load(Relaxed));
                let is_older = |&until: &i64| until != i64::MIN && until < changes;
                older = older.or(until.find(is_older));
            }
            has_ended.store(true, Relaxed);
            assert_eq!(older, None);
        });
    }
}
