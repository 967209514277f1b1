//! Counters of the transfers of all clients.

use serde_json::{Value, json};
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// The kind of transfer of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Upload,
    Stream,
    Download,
    Pipeline,
}

/// Totals of all clients since the start.
#[derive(Debug)]
pub(crate) struct Counters {
    uploaded_bytes: AtomicU64,
    streamed_bytes: AtomicU64,
    downloaded_bytes: AtomicU64,
    pipelined_requests: AtomicU64,
    failures: AtomicU64,
    /// Why the last client failed.
    failure: Mutex<String>,
    /// Whether each client has made progress.
    started: Vec<AtomicBool>,
}

impl Counters {
    /// Creates counters for `clients` clients.
    pub(crate) fn new(clients: usize) -> Counters {
        Counters {
            uploaded_bytes: AtomicU64::new(0),
            streamed_bytes: AtomicU64::new(0),
            downloaded_bytes: AtomicU64::new(0),
            pipelined_requests: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            failure: Mutex::default(),
            started: (0..clients).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Adds progress of the client at `place`: bytes, or requests of a pipeline.
    pub(crate) fn add(&self, place: usize, kind: Kind, amount: u64) {
        let counter = match kind {
            Kind::Upload => &self.uploaded_bytes,
            Kind::Stream => &self.streamed_bytes,
            Kind::Download => &self.downloaded_bytes,
            Kind::Pipeline => &self.pipelined_requests,
        };
        counter.fetch_add(amount, Ordering::Relaxed);
        if amount > 0 {
            self.started[place].store(true, Ordering::Relaxed);
        }
    }

    /// Records that a client lost its connection, or that its request failed.
    pub(crate) fn fail(&self, reason: String) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }

    /// Whether every client has made progress.
    pub(crate) fn all_started(&self) -> bool {
        let started = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        self.started.iter().all(started)
    }

    /// All totals, `time` after the start.
    pub(crate) fn snapshot(&self, time: Duration) -> Value {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let idle = self
            .started
            .iter()
            .filter(|flag| !flag.load(Ordering::Relaxed));
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "seconds": time.as_secs_f64(),
            "uploaded_bytes": get(&self.uploaded_bytes),
            "streamed_bytes": get(&self.streamed_bytes),
            "downloaded_bytes": get(&self.downloaded_bytes),
            "pipelined_requests": get(&self.pipelined_requests),
            "clients_without_progress": idle.count(),
            "failures": get(&self.failures),
            "failure": *failure,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_of_all_clients_and_progress_of_each() {
        let counters = Counters::new(2);
        counters.add(0, Kind::Upload, 5);
        counters.add(1, Kind::Upload, 0);
        assert!(!counters.all_started());
        counters.add(1, Kind::Pipeline, 7);
        assert!(counters.all_started());
        counters.fail("closed".to_owned());
        let snapshot = counters.snapshot(Duration::from_millis(500));
        assert_eq!(snapshot["seconds"], 0.5);
        assert_eq!(snapshot["uploaded_bytes"], 5);
        assert_eq!(snapshot["pipelined_requests"], 7);
        assert_eq!(snapshot["clients_without_progress"], 0);
        assert_eq!(
            (&snapshot["failures"], &snapshot["failure"]),
            (&json!(1), &json!("closed"))
        );
    }
}
