//! Precompressed siblings: `name.zst`, `name.br` and `name.gz` beside `name`, with the same content
//! in a content coding.
//!
//! If the client of a GET of `name` accepts a coding, the response has the bytes of the sibling,
//! its ETag, and ranges of it, and the type and the other stored fields of `name`. So each coding
//! is a representation of its own (RFC 9110 §8.8.3.3).
//!
//! - A range is one of `name` itself, unless `If-Range` has the tag of a sibling.
//! - There must be an object `name`, without a `Content-Encoding` of its own.
//! - A sibling that may have the content from before a change is ignored; see [`is_current`].
//! - The client must have the right to read the sibling, too.
//!
//! Which siblings there are is remembered for each object, as briefly as the cache uses an object
//! without asking the store: a request then costs a lookup here and opens only what it sends. A
//! store without generations is asked for each request, for the siblings that the client accepts,
//! all at once and together with the object.
//!
//! A client that may create objects but not replace them must not replace what a name shows, by
//! creating a sibling of it: see `destination`.

use crate::files::http::codings;
use crate::files::object::LoadedObject;
use crate::files::object::cache::CacheContext;
use crate::files::shared::client_rights::may_read;
use crate::files::shared::stored_fields::StoredFields;
use lru::LruCache;
use onrush::Request;
use onrush::compression::{Accepted, Coding};
use onrush_store::{Key, Kind, Meta, Store};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum number of objects of a worker whose siblings are remembered, about 1 KiB each.
const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// One for each coding, in the order of [`Coding::ALL`].
pub(super) type PerCoding<T> = [T; Coding::ALL.len()];

/// By key.
type Remembered = LruCache<Box<[u8]>, Arc<Known>>;

/// What is remembered of the objects of all workers.
#[derive(Debug)]
pub(in crate::files) struct Siblings {
    /// One for each core, as in the cache.
    shards: Box<[Mutex<Remembered>]>,
    max_age_ms: u64,
}

/// The siblings of an object.
#[derive(Debug)]
pub(in crate::files) struct Known {
    pub(super) checked_ms: u64,
    pub(super) key: Key,
    pub(super) siblings: PerCoding<Key>,
    /// The store's generations of the key and of the siblings, before they were looked up.
    pub(super) generations: Option<(u64, PerCoding<u64>)>,
    pub(super) is_usable: PerCoding<bool>,
    /// The type by the name of the object.
    pub(super) content_type: &'static str,
    /// The stored fields of the object with the coding.
    pub(super) fields: PerCoding<Arc<StoredFields>>,
}

impl Siblings {
    /// `max_age_ms`: as of the cache.
    pub(in crate::files) fn new(max_age_ms: u64) -> Siblings {
        let shards = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let shard = |_| Mutex::new(LruCache::new(REMEMBERED_MAX));
        Siblings {
            shards: (0..shards).map(shard).collect(),
            max_age_ms,
        }
    }

    /// What is known about the object at `key`, the bytes of a key or a path as sent.
    pub(in crate::files) fn get(
        &self,
        key: &[u8],
        context: CacheContext,
        store: &dyn Store,
    ) -> Option<Arc<Known>> {
        let shard = &self.shards[context.worker % self.shards.len()];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shard.get(key)?;
        let is_fresh = context.now_ms.saturating_sub(known.checked_ms) < self.max_age_ms
            && known.generations == generations(store, &known.key, &known.siblings);
        is_fresh.then(|| known.clone())
    }

    /// Forgets everything.
    pub(in crate::files) fn clear(&self) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    pub(super) fn add(&self, known: &Arc<Known>, context: CacheContext) {
        // `get` compares paths as sent, where a percent sign begins an escape.
        if known.generations.is_none() || known.key.as_bytes().contains(&b'%') {
            return;
        }
        let shard = &self.shards[context.worker % self.shards.len()];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        shard.put(known.key.as_bytes().into(), known.clone());
    }
}

impl Known {
    /// The sibling that suits a client best, if one suits it better than the object itself.
    pub(in crate::files) fn choose(&self, accepted: Accepted, request: &Request) -> Option<Coding> {
        accepted.best(|coding| self.offers(coding, request))
    }

    pub(super) fn offers(&self, coding: Coding, request: &Request) -> bool {
        self.is_usable[coding as usize] && may_read(request, self.sibling(coding))
    }

    pub(in crate::files) fn sibling(&self, coding: Coding) -> &Key {
        &self.siblings[coding as usize]
    }

    /// A loaded sibling as a representation of the object. `None` if it is coded twice.
    pub(in crate::files) fn represent(
        &self,
        coding: Coding,
        loaded: LoadedObject,
    ) -> Option<LoadedObject> {
        let fields = &self.fields[coding as usize];
        (!loaded.has_coding()).then(|| loaded.representing(self.content_type, fields))
    }
}

/// The generations that decide whether something known is current. `None`: the store has none.
pub(super) fn generations(
    store: &dyn Store,
    key: &Key,
    siblings: &PerCoding<Key>,
) -> Option<(u64, PerCoding<u64>)> {
    let mut of_siblings = [0; Coding::ALL.len()];
    for (generation, sibling) in of_siblings.iter_mut().zip(siblings) {
        *generation = store.generation(sibling)?;
    }
    Some((store.generation(key)?, of_siblings))
}

/// The keys of the siblings. `None` if the key is that of a sibling, or one would be too long.
pub(super) fn keys(key: &Key) -> Option<PerCoding<Key>> {
    if codings::of_sibling(key.as_bytes()).is_some() {
        return None;
    }
    let sibling = |coding: Coding| {
        let bytes = [key.as_bytes(), codings::extension(coding).as_bytes()].concat();
        Key::parse(&bytes).ok()
    };
    let [first, second, third] = Coding::ALL.map(sibling);
    Some([first?, second?, third?])
}

/// Whether a sibling has the content of an object, as far as times say. `object`: its times of
/// modification and of the last change of any kind (ctime).
///
/// - Tools that compress a file give the result its time of modification. If that has a part of a
///   second, no other content has had it, so the same time is sufficient. The order in which a copy
///   or an archive was written, and a later `chmod` or `ln`, do not matter then.
/// - Otherwise neither time of the sibling may be older. Programs set the time of modification: all
///   files of a reproducible build have one (`SOURCE_DATE_EPOCH`), an unpacked or restored object
///   has an old one. None sets the other time. Some tools that compress keep whole seconds only, so
///   a time of modification in whole seconds counts as any time of that second.
pub(super) fn is_current(sibling: &Meta, object: (i64, Option<i64>)) -> bool {
    const SECOND_NS: i64 = 1_000_000_000;
    let (modified_ns, changed_ns) = object;
    let is_whole = sibling.modified_ns % SECOND_NS == 0;
    let is_same = sibling.modified_ns == modified_ns && !is_whole;
    let least_ns = match is_whole {
        true => modified_ns - modified_ns.rem_euclid(SECOND_NS),
        false => modified_ns,
    };
    // In a store that does not know the other time, no program can set the first one.
    let is_later = sibling.modified_ns >= least_ns && sibling.changed_ns >= changed_ns;
    sibling.kind == Kind::File && (is_same || is_later)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onrush_store::Version;

    #[test]
    fn older_siblings_are_not_current() {
        let at = |modified_ns, changed_ns, kind| Meta {
            kind,
            size: 1,
            modified_ns,
            changed_ns,
            version: Version::parse(b"1").expect("a version"),
        };
        let second = 1_000_000_000;
        for (sibling_ns, object_ns, expected) in [
            (5 * second, 5 * second, true),
            (5 * second + 7, 5 * second + 7, true),
            (5 * second + 8, 5 * second + 7, true),
            (5 * second + 6, 5 * second + 7, false),
            (5 * second, 5 * second + 7, true),
            (5 * second, 6 * second, false),
            (4 * second, 5 * second + 7, false),
            (-second, -second + 1, true),
            (-2 * second, -second + 1, false),
        ] {
            for changed_ns in [None, Some(3)] {
                let sibling = at(sibling_ns, changed_ns, Kind::File);
                let found = is_current(&sibling, (object_ns, changed_ns));
                assert_eq!(found, expected, "{sibling_ns} {object_ns} {changed_ns:?}");
            }
            // The object was changed after the sibling: only the same part of a second counts.
            let found = is_current(&at(sibling_ns, Some(3), Kind::File), (object_ns, Some(4)));
            let is_same = sibling_ns == object_ns && object_ns % second != 0;
            assert_eq!(found, is_same, "{sibling_ns} {object_ns}");
        }
        assert!(!is_current(
            &at(9 * second, None, Kind::Directory),
            (1, None)
        ));
    }

    #[test]
    fn a_sibling_has_no_siblings() {
        let keys = |name: &str| keys(&Key::parse(name.as_bytes()).expect("a key"));
        let found = keys("a/b").expect("three keys");
        let found = found.map(|key| String::from_utf8(key.as_bytes().to_vec()).unwrap());
        assert_eq!(found, ["a/b.zst", "a/b.br", "a/b.gz"]);
        assert!(keys("a.gz").is_none());
        assert!(keys(&"x".repeat(252)).is_none(), "name.zst is too long");
    }
}
