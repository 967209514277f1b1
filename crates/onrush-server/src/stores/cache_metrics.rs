//! The metrics that every cache on a disk has, under names of its own.

use onrush::metrics::{MetricType, TextWriter};
use onrush_store::cache::CacheStats;

/// How a cache is described in its metrics.
pub(crate) struct CacheMetrics {
    /// Of the numbers of evictions and files, the space and its limit, the time since the last use,
    /// and the scan.
    names: [&'static str; 6],
    /// What the cache consists of.
    one: &'static str,
    many: &'static str,
    /// What takes space before it is complete.
    in_progress: &'static str,
}

/// The cache in front of a store.
pub(crate) const EDGE: CacheMetrics = CacheMetrics {
    names: [
        "onrush_edge_evictions",
        "onrush_edge_files",
        "onrush_edge_used_bytes",
        "onrush_edge_limit_bytes",
        "onrush_edge_oldest_seconds",
        "onrush_edge_scanned",
    ],
    one: "file",
    many: "Files",
    in_progress: "files that are being filled",
};

/// The build cache.
pub(crate) const BUILD_CACHE: CacheMetrics = CacheMetrics {
    names: [
        "onrush_cache_evictions",
        "onrush_cache_objects",
        "onrush_cache_used_bytes",
        "onrush_cache_limit_bytes",
        "onrush_cache_oldest_seconds",
        "onrush_cache_scanned",
    ],
    one: "object",
    many: "Objects",
    in_progress: "uploads in progress",
};

impl CacheMetrics {
    /// Writes the state of the cache.
    pub(crate) fn collect(&self, stats: &CacheStats, text: &mut TextWriter) {
        let CacheMetrics {
            one,
            many,
            in_progress,
            ..
        } = self;
        let [evictions, entries, used, limit, oldest, scanned] = self.names;
        let mut family = |name, kind, help: &str, value: u64| {
            text.family(name, kind, help);
            text.sample(&[], value);
        };
        let help = format!("{many} that were removed from the cache to make room.");
        family(evictions, MetricType::Counter, &help, stats.evictions);
        let help = format!("{many} in the cache.");
        family(entries, MetricType::Gauge, &help, stats.entries);
        let help = format!("Disk space of the cache, with {in_progress}.");
        family(used, MetricType::Gauge, &help, stats.used_bytes);
        let help = "Limit of the disk space of the cache.";
        family(limit, MetricType::Gauge, help, stats.limit_bytes);
        let help = format!("Time since the last use of the {one} that is removed next.");
        family(oldest, MetricType::Gauge, &help, stats.oldest_ms / 1000);
        let help = "1 if the scan after the start is complete, otherwise 0.";
        family(
            scanned,
            MetricType::Gauge,
            help,
            u64::from(stats.is_complete),
        );
    }
}
