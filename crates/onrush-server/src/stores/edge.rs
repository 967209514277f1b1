//! The cache on a local disk in front of the store (`--edge`): its options, how it is opened, and
//! its metrics.

use crate::options::Options;
use crate::options::tls_values::FilePath;
use crate::process::failure::{self, Failure};
use crate::stores::cache_metrics::EDGE;
use onrush::metrics::{Collector, MetricType, TextWriter};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::Descriptors;
use onrush_store::cache::{CacheOptions, DiskEvent};
use onrush_store::{EdgeMetrics, EdgeOptions, EdgeStore, Store};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A smaller cache would have room for a few blocks only.
const BYTES_MIN: u64 = 64 << 20;

/// The values of `--edge` and the options that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EdgeSettings {
    pub(crate) dir: PathBuf,
    pub(crate) bytes_max: u64,
    pub(crate) fresh: Duration,
    pub(crate) stale: Duration,
}

impl EdgeSettings {
    /// `None` without `--edge`. An error is [`Failure::Usage`].
    pub(crate) fn new(options: &Options) -> Result<Option<EdgeSettings>, Failure> {
        let Some(FilePath(dir)) = options.edge.clone() else {
            let others = [
                ("edge-size", options.edge_size.is_some()),
                ("edge-fresh", options.edge_fresh.is_some()),
                ("edge-stale", options.edge_stale.is_some()),
            ];
            return match others.iter().find(|(_, is_set)| *is_set) {
                Some((name, _)) => Err(Failure::usage(format!("{name}: it needs edge"))),
                None => Ok(None),
            };
        };
        let bytes_max = options.edge_size().bytes;
        if bytes_max < BYTES_MIN {
            return Err(Failure::usage(format!(
                "edge-size: {bytes_max} is less than 64MiB"
            )));
        }
        Ok(Some(EdgeSettings {
            dir,
            bytes_max,
            fresh: options.edge_fresh().duration(),
            stale: options.edge_stale().duration(),
        }))
    }

    /// Opens the cache in front of `store`. `origin`: what the store is. `served`: its folder, if
    /// it is one.
    pub(crate) fn open(
        &self,
        store: Arc<dyn Store>,
        origin: String,
        served: Option<&Path>,
        pool: BlockingPool,
        descriptors: Descriptors,
    ) -> Result<Arc<EdgeStore>, Failure> {
        let fail = |reason: &str| {
            let dir = failure::one_line(&self.dir.display().to_string());
            Failure::run(format!("--edge: {dir}: {reason}"))
        };
        let dir = self.dir.display().to_string();
        let report = move |event: DiskEvent| match event {
            DiskEvent::Fails(error) => tracing::warn!(
                dir, %error,
                "the cache directory fails; objects are served without storing them"
            ),
            DiskEvent::Works => tracing::info!(dir, "the cache directory works again"),
            DiskEvent::IsCreatedAgain => tracing::warn!(
                dir,
                "the cache directory was removed while it was in use; it is created again, empty"
            ),
            DiskEvent::IsScanned(_) => {}
        };
        let options = EdgeOptions {
            cache: CacheOptions {
                origin,
                bytes_max: self.bytes_max,
                descriptors,
                report: Arc::new(report),
            },
            fresh: self.fresh,
            stale: self.stale,
            block_bytes: EdgeOptions::BLOCK_BYTES,
        };
        let is_served = || served.is_some_and(|served| is_inside(&self.dir, served));
        if is_served() {
            return Err(fail("is in the folder that is served"));
        }
        let edge = EdgeStore::open(store, &self.dir, pool, options);
        let edge = edge.map_err(|error| fail(&failure::error_text(&error)))?;
        match is_served() {
            // The path had `..` behind a folder that did not exist.
            true => Err(fail("is in the folder that is served")),
            false => Ok(Arc::new(edge)),
        }
    }
}

/// Whether a folder, which may not exist yet, is in another one.
fn is_inside(dir: &Path, outer: &Path) -> bool {
    let (Ok(dir), Ok(outer)) = (std::path::absolute(dir), outer.canonicalize()) else {
        return false;
    };
    let existing = dir.ancestors().find_map(|part| part.canonicalize().ok());
    existing.is_some_and(|existing| existing.starts_with(outer))
}

/// What an edge counts, as metrics.
#[derive(Debug)]
pub(crate) struct EdgeCollector(pub(crate) EdgeMetrics);

impl Collector for EdgeCollector {
    fn collect(&self, text: &mut TextWriter) {
        let help = "Objects that were opened, by how the cache has found them.";
        text.family("onrush_edge_opened", MetricType::Counter, help);
        for (how, count) in self.0.opened() {
            text.sample(&[("result", how)], count);
        }
        let help = "Bytes that were transferred from the store into the cache.";
        text.family("onrush_edge_fetched_bytes", MetricType::Counter, help);
        text.sample(&[], self.0.fetched_bytes());
        EDGE.collect(&self.0.cache(), text);
    }
}
