//! The duration of complete TLS handshakes, by what they negotiated.

use super::cell::{
    DURATION_BUCKETS, Histogram, HistogramSnapshot, duration_bounds, duration_bucket,
};
use super::text::{MetricType, TextWriter};
use crate::tls::TlsInfo;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Version, cipher suite, and whether an earlier session was resumed.
type Labels = (&'static str, &'static str, bool);

/// The complete handshakes of one worker.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    /// Few: one for each suite that clients use. The worker locks this for each handshake, which
    /// takes a hundred times as long.
    series: Mutex<Vec<(Labels, Arc<Histogram<DURATION_BUCKETS>>)>>,
}

impl Handshakes {
    fn series(&self) -> MutexGuard<'_, Vec<(Labels, Arc<Histogram<DURATION_BUCKETS>>)>> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a complete handshake. Called on the worker's thread only.
    pub(crate) fn record(&self, info: &TlsInfo, duration: Duration) {
        let labels = (info.version(), info.cipher_suite(), info.is_resumed());
        let mut series = self.series();
        let found = series.iter().find(|(other, _)| *other == labels);
        let histogram = match found {
            Some((_, histogram)) => histogram.clone(),
            None => {
                series.push((labels, Arc::default()));
                series
                    .last()
                    .map_or_else(Arc::default, |(_, new)| new.clone())
            }
        };
        drop(series);
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        histogram.record(duration_bucket(ns), ns, 1);
    }
}

/// Writes the handshakes of all workers.
pub(super) fn render<'w>(text: &mut TextWriter, workers: impl Iterator<Item = &'w Handshakes>) {
    let mut sums: BTreeMap<Labels, HistogramSnapshot<DURATION_BUCKETS>> = BTreeMap::new();
    for worker in workers {
        for (labels, histogram) in worker.series().iter() {
            histogram.add_to(sums.entry(*labels).or_default());
        }
    }
    if sums.is_empty() {
        return;
    }
    let help = "Complete TLS handshakes, from the first bytes of the client to its last message.";
    let name = "onrush_tls_handshake_duration_seconds";
    text.family(name, MetricType::Histogram, help);
    for ((version, cipher, resumed), sum) in sums {
        let labels = [
            ("tls_protocol_version", version.trim_start_matches("TLSv")),
            ("tls_cipher", cipher),
            ("tls_resumed", if resumed { "true" } else { "false" }),
        ];
        text.histogram(&labels, duration_bounds(), &sum, 1e-9);
    }
}
