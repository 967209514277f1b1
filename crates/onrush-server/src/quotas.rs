//! Quotas of the served folder: counted at start, and again now and then, because other programs
//! change the folder, too.

use crate::failure::{self, Failure};
use onrush::metrics::{Collector, MetricType, TextWriter};
use onrush_store::{Folder, Key, Quota, QuotaStore, StoreError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two counts, and how many times longer than a count it is at least.
const COUNT_INTERVAL: Duration = Duration::from_secs(600);
const COUNT_SHARE: u32 = 100;

/// The quotas of the served folder, which can be replaced.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    store: QuotaStore,
    /// The thread that counts again. It starts with the first quota.
    counting: Arc<OnceLock<()>>,
}

impl Quotas {
    /// Counts the objects, if there are quotas.
    pub(crate) fn open(folder: Folder, quotas: &[Quota]) -> Result<Quotas, Failure> {
        let store = QuotaStore::new(folder, Vec::new()).map_err(not_counted)?;
        let opened = Quotas {
            store,
            counting: Arc::default(),
        };
        opened.set(quotas)?;
        Ok(opened)
    }

    /// The store that keeps them.
    pub(crate) fn store(&self) -> &QuotaStore {
        &self.store
    }

    /// Replaces the quotas; see [`QuotaStore::set_quotas`]. Blocks.
    pub(crate) fn set(&self, quotas: &[Quota]) -> Result<(), Failure> {
        let started = Instant::now();
        self.store.set_quotas(quotas).map_err(not_counted)?;
        for (quota, used) in self.store.used() {
            let prefix = prefix(&quota);
            tracing::info!(prefix, used, bytes_max = quota.bytes_max, "a quota applies");
        }
        if quotas.is_empty() || self.counting.set(()).is_err() {
            return Ok(());
        }
        let (store, mut took) = (self.store.clone(), started.elapsed());
        let run = move || {
            loop {
                thread::sleep(COUNT_INTERVAL.max(took * COUNT_SHARE));
                let started = Instant::now();
                if let Err(error) = store.count() {
                    tracing::warn!(%error, "the objects cannot be counted again");
                }
                took = started.elapsed();
            }
        };
        let thread = thread::Builder::new().name("onrush-quotas".to_owned());
        let started = thread.spawn(run).map_err(|error| {
            let reason = failure::error_text(&error);
            Failure::run(format!("cannot start the thread for quotas: {reason}"))
        });
        started.map(drop)
    }
}

fn not_counted(error: StoreError) -> Failure {
    Failure::run(format!("the objects cannot be counted: {error}"))
}

/// The path of the folder of a quota.
pub(crate) fn prefix(quota: &Quota) -> String {
    let key = quota.prefix.as_ref().map(Key::as_bytes).unwrap_or_default();
    format!("/{}", String::from_utf8_lossy(key))
}

impl Collector for Quotas {
    fn collect(&self, text: &mut TextWriter) {
        let used = self.store.used();
        if used.is_empty() {
            return;
        }
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
