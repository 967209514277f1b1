//! The folder as a build cache (`--cache`): the option, how it is opened, and its metrics.

use crate::options::Options;
use crate::process::failure::{self, Failure};
use crate::stores::cache_metrics::BUILD_CACHE;
use onrush::metrics::{Collector, MetricType, TextWriter};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::Descriptors;
use onrush_store::BuildCache;
use onrush_store::cache::{CacheOptions, DiskEvent};
use std::path::Path;
use std::sync::Arc;

/// A smaller cache would have room for a few large objects only.
const BYTES_MIN: u64 = 64 << 20;

/// The value of `--cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BuildCacheSettings {
    pub(crate) bytes_max: u64,
}

impl BuildCacheSettings {
    /// `None` without `--cache`. An error is [`Failure::Usage`].
    pub(crate) fn new(options: &Options) -> Result<Option<BuildCacheSettings>, Failure> {
        let Some(size) = options.cache else {
            return Ok(None);
        };
        let others = [
            ("edge", options.edge.is_some()),
            ("sink", options.sink == Some(true)),
            ("durability", options.durability.is_some()),
            ("webdav", options.webdav == Some(true)),
            ("site", options.site == Some(true)),
            ("terraform-state", options.terraform_state == Some(true)),
            ("precompressed", options.precompressed == Some(true)),
            ("quota", options.quota.is_some()),
            ("min-free", options.min_free.is_some()),
        ];
        if let Some((name, _)) = others.iter().find(|(_, is_set)| *is_set) {
            return Err(Failure::usage(format!(
                "cache and {name} exclude each other; use one of them"
            )));
        }
        match size.bytes < BYTES_MIN {
            true => Err(Failure::usage(format!(
                "cache: {} is less than 64MiB",
                size.bytes
            ))),
            false => Ok(Some(BuildCacheSettings {
                bytes_max: size.bytes,
            })),
        }
    }

    /// Opens the folder `path`, which the log names when the disk fails.
    pub(crate) fn open(
        self,
        path: &Path,
        pool: BlockingPool,
        descriptors: Descriptors,
    ) -> Result<BuildCache, Failure> {
        let dir = failure::one_line(&path.display().to_string());
        let name = dir.clone();
        let report = move |event: DiskEvent| match event {
            DiskEvent::Fails(error) => tracing::warn!(
                dir, %error,
                "the disk of the cache fails; uploads get 503 until it works again"
            ),
            DiskEvent::Works => tracing::info!(dir, "the disk of the cache works again"),
            DiskEvent::IsCreatedAgain => tracing::warn!(
                dir,
                "the folder was removed while it was in use; it is created again, empty"
            ),
            DiskEvent::IsScanned(stats) => tracing::info!(
                dir,
                files = stats.entries,
                used_bytes = stats.used_bytes,
                limit_bytes = stats.limit_bytes,
                oldest_s = stats.oldest_ms / 1000,
                "the cache is scanned"
            ),
        };
        let options = CacheOptions {
            origin: "build results".to_owned(),
            bytes_max: self.bytes_max,
            descriptors,
            report: Arc::new(report),
        };
        BuildCache::open(path, pool, options).map_err(|error| {
            Failure::run(format!("--cache: {name}: {}", failure::error_text(&error)))
        })
    }
}

/// What a build cache counts, as metrics.
#[derive(Debug)]
pub(crate) struct BuildCacheCollector(pub(crate) BuildCache);

impl Collector for BuildCacheCollector {
    fn collect(&self, text: &mut TextWriter) {
        let metrics = self.0.metrics();
        let help = "Objects that were asked for by GET and HEAD, by whether they exist.";
        text.family("onrush_cache_requests", MetricType::Counter, help);
        for (result, count) in [("hit", metrics.hits), ("miss", metrics.misses)] {
            text.sample(&[("result", result)], count);
        }
        let help = "Bytes of the objects that were stored.";
        text.family("onrush_cache_stored_bytes", MetricType::Counter, help);
        text.sample(&[], metrics.stored_bytes);
        BUILD_CACHE.collect(&metrics.cache, text);
    }
}
