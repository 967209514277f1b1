//! Quotas of the served folder: counted at start, and again now and then, because other programs
//! change the folder, too.

use crate::failure::{self, Failure};
use onrush::metrics::{Collector, MetricType, TextWriter};
use onrush_store::{Folder, Key, Quota, QuotaStore};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The time between two counts, and how many times longer than a count it is at least.
const COUNT_INTERVAL: Duration = Duration::from_secs(600);
const COUNT_SHARE: u32 = 100;

/// Counts the objects, and starts the thread that counts them again.
pub(crate) fn open(folder: Folder, quotas: &[Quota]) -> Result<QuotaStore, Failure> {
    let started = Instant::now();
    let store = QuotaStore::new(folder, quotas.to_vec())
        .map_err(|error| Failure::run(format!("the objects cannot be counted: {error}")))?;
    let mut took = started.elapsed();
    for (quota, used) in store.used() {
        let prefix = prefix(&quota);
        tracing::info!(prefix, used, bytes_max = quota.bytes_max, "quota");
    }
    let counting = store.clone();
    let run = move || {
        loop {
            thread::sleep(COUNT_INTERVAL.max(took * COUNT_SHARE));
            let started = Instant::now();
            if let Err(error) = counting.count() {
                tracing::warn!(%error, "the objects cannot be counted again");
            }
            took = started.elapsed();
        }
    };
    let thread = thread::Builder::new().name("onrush-quotas".to_owned());
    thread.spawn(run).map_err(|error| {
        let reason = failure::error_text(&error);
        Failure::run(format!("cannot start the thread for quotas: {reason}"))
    })?;
    Ok(store)
}

fn prefix(quota: &Quota) -> String {
    let key = quota.prefix.as_ref().map(Key::as_bytes).unwrap_or_default();
    format!("/{}", String::from_utf8_lossy(key))
}

/// The quotas, as metrics.
#[derive(Debug)]
struct Quotas(QuotaStore);

pub(crate) fn collector(store: &QuotaStore) -> Arc<dyn Collector> {
    Arc::new(Quotas(store.clone()))
}

impl Collector for Quotas {
    fn collect(&self, text: &mut TextWriter) {
        let used = self.0.used();
        let help = "The sizes of all objects beneath the folder of a quota.";
        text.family("onrush_quota_used_bytes", MetricType::Gauge, help);
        for (quota, bytes) in &used {
            text.sample(&[("prefix", &prefix(quota))], *bytes);
        }
        let help = "The maximum of the sizes of all objects beneath the folder of a quota.";
        text.family("onrush_quota_max_bytes", MetricType::Gauge, help);
        for (quota, _) in &used {
            text.sample(&[("prefix", &prefix(quota))], quota.bytes_max);
        }
    }
}
