//! Counts what an edge does.

use crate::cache::{Cache, CacheStats};
use crate::object::CacheUse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of an [`EdgeStore`](crate::EdgeStore).
#[derive(Debug)]
pub struct EdgeMetrics {
    cache: Cache,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    hits: AtomicU64,
    stale: AtomicU64,
    revalidated: AtomicU64,
    misses: AtomicU64,
    partial: AtomicU64,
    pub(super) fetched_bytes: AtomicU64,
}

impl Counts {
    pub(super) fn count(&self, how: CacheUse) {
        let counter = match how {
            CacheUse::Hit => &self.hits,
            CacheUse::Stale => &self.stale,
            CacheUse::Revalidated => &self.revalidated,
            CacheUse::Miss { .. } => &self.misses,
            CacheUse::Partial => &self.partial,
        };
        counter.fetch_add(1, Relaxed);
    }
}

impl EdgeMetrics {
    pub(super) fn new(cache: Cache, counts: Arc<Counts>) -> EdgeMetrics {
        EdgeMetrics { cache, counts }
    }

    /// The objects that were opened, by how they were found ([`CacheUse`]). An object that a
    /// handler keeps in memory is not opened again while it is fresh.
    pub fn opened(&self) -> [(&'static str, u64); 5] {
        [
            ("hit", self.counts.hits.load(Relaxed)),
            ("stale", self.counts.stale.load(Relaxed)),
            ("revalidated", self.counts.revalidated.load(Relaxed)),
            ("miss", self.counts.misses.load(Relaxed)),
            ("partial", self.counts.partial.load(Relaxed)),
        ]
    }

    /// The bytes that were transferred into the cache.
    pub fn fetched_bytes(&self) -> u64 {
        self.counts.fetched_bytes.load(Relaxed)
    }

    /// The state of the cache.
    pub fn cache(&self) -> CacheStats {
        self.cache.stats()
    }
}
