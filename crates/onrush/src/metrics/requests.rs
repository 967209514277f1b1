//! Requests as they are counted: what is remembered of one while it is answered, and the series it
//! ends in. Must not know how the figures are shown.
//!
//! Reading the clock is most of what a record costs, so it is read once for all answers that are
//! handed to the kernel together. Such answers are most often alike, down to their sizes; a run of
//! them is counted, and recorded as one. The begin of a request is a time that is known already:
//! the last one read in this turn of the worker, or the beginning of the turn.

use super::cell::{
    Counter, DURATION_BUCKETS, Histogram, SIZE_BUCKETS, duration_bucket, size_bucket,
};
use crate::params::Template;
use onrush_proto::head::Version;
use onrush_rt::worker::WorkerContext;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// The methods that are told apart (RFC 9110 §9, RFC 5789); the last stands for all others.
pub(crate) const METHODS: [&str; 10] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "_OTHER",
];

/// What tells requests apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Labels {
    /// The route's template, never a path: there are only so many of them.
    pub(crate) route: Option<String>,
    /// Of [`METHODS`].
    pub(crate) method: usize,
    pub(crate) status: u16,
    pub(crate) minor_version: u8,
}

/// Requests that are alike, on one worker.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) labels: Labels,
    pub(crate) duration_ns: Histogram<DURATION_BUCKETS>,
    pub(crate) request_bytes: Histogram<SIZE_BUCKETS>,
    pub(crate) response_bytes: Histogram<SIZE_BUCKETS>,
}

/// What one worker has counted of requests.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// By method, begun and over: their difference is at work.
    pub(crate) begun: [Counter; METHODS.len()],
    pub(crate) over: [Counter; METHODS.len()],
    /// Over without a whole answer.
    pub(crate) aborted: Counter,
    /// Locked by the worker for a combination of labels that is new, and by whoever reads.
    series: Mutex<Vec<Arc<Series>>>,
}

impl Requests {
    pub(crate) fn series(&self) -> Vec<Arc<Series>> {
        let series = self.series.lock();
        series.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Measured {
    begun_ns: u64,
    method: u8,
    minor_version: u8,
    request_bytes: u64,
    pub(crate) route: Option<Rc<Template>>,
    pub(crate) status: u16,
    /// Of the body; `None` when that was not known ahead.
    pub(crate) response_bytes: Option<u64>,
}

/// The writing side, on the worker.
#[derive(Debug)]
pub(crate) struct Recorder {
    context: WorkerContext,
    requests: Arc<Requests>,
    known: RefCell<Known>,
    /// When requests were last recorded, by the worker's clock.
    recorded_ns: Cell<u64>,
}

#[derive(Debug, Default)]
struct Known {
    /// Most requests are like the one before.
    last: Option<(Key, Arc<Series>)>,
    /// With the route that the key has the address of.
    all: HashMap<Key, (Option<Rc<Template>>, Arc<Series>)>,
    run: Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    route: usize,
    method: u8,
    status: u16,
    minor_version: u8,
}

/// Requests that are over and not recorded yet: all of [`Known::last`], and alike.
#[derive(Debug, Default)]
struct Run {
    count: u64,
    begun_ns: u64,
    request_bytes: u64,
    response_bytes: Option<u64>,
}

impl Run {
    #[inline]
    fn is_like(&self, measured: &Measured) -> bool {
        self.begun_ns == measured.begun_ns
            && self.request_bytes == measured.request_bytes
            && self.response_bytes == measured.response_bytes
    }
}

impl Recorder {
    pub(crate) fn new(requests: Arc<Requests>, context: WorkerContext) -> Recorder {
        Recorder {
            context,
            requests,
            known: RefCell::default(),
            recorded_ns: Cell::new(0),
        }
    }

    /// A request has come whole as far as its head goes.
    #[inline]
    pub(crate) fn begin(&self, method: &str, version: Version, request_bytes: u64) -> Measured {
        let method = match method {
            "GET" => 0,
            other => METHODS[..METHODS.len() - 1]
                .iter()
                .position(|known| *known == other)
                .unwrap_or(METHODS.len() - 1),
        };
        self.requests.begun[method].add(1);
        Measured {
            begun_ns: self.recorded_ns.get().max(self.context.now_ns()),
            method: method as u8,
            minor_version: match version {
                Version::Http10 => 0,
                Version::Http11 => 1,
            },
            request_bytes,
            route: None,
            status: 0,
            response_bytes: None,
        }
    }

    /// It is answered. [`Recorder::record`] follows, at the latest when its answer is handed to
    /// the kernel.
    #[inline]
    pub(crate) fn end(&self, measured: &Measured) {
        let key = Key {
            route: (measured.route.as_ref()).map_or(0, |route| Rc::as_ptr(route) as usize),
            method: measured.method,
            status: measured.status,
            minor_version: measured.minor_version,
        };
        let mut known = self.known.borrow_mut();
        let is_like_last = matches!(&known.last, Some((last, _)) if *last == key);
        if known.run.count > 0 {
            if is_like_last && known.run.is_like(measured) {
                known.run.count += 1;
                return;
            }
            self.record_run(&mut known);
        }
        if !is_like_last {
            let series = self.series(&mut known, key, measured);
            known.last = Some((key, series));
        }
        known.run = Run {
            count: 1,
            begun_ns: measured.begun_ns,
            request_bytes: measured.request_bytes,
            response_bytes: measured.response_bytes,
        };
    }

    /// Records what is over, as of now.
    #[inline]
    pub(crate) fn record(&self) {
        let mut known = self.known.borrow_mut();
        if known.run.count > 0 {
            self.record_run(&mut known);
        }
    }

    #[inline]
    fn record_run(&self, known: &mut Known) {
        let run = std::mem::take(&mut known.run);
        let Some((key, series)) = &known.last else {
            return;
        };
        let now_ns = self.context.clock_ns();
        self.recorded_ns.set(now_ns);
        let ns = now_ns.saturating_sub(run.begun_ns);
        self.requests.over[usize::from(key.method)].add(run.count);
        (series.duration_ns).record(duration_bucket(ns), ns, run.count);
        let bytes = run.request_bytes;
        (series.request_bytes).record(size_bucket(bytes), bytes, run.count);
        if let Some(bytes) = run.response_bytes {
            (series.response_bytes).record(size_bucket(bytes), bytes, run.count);
        }
    }

    /// It is over without that: its connection went, or its answer was cut off.
    pub(crate) fn abort(&self, measured: &Measured) {
        self.requests.over[usize::from(measured.method)].add(1);
        self.requests.aborted.add(1);
    }

    fn series(&self, known: &mut Known, key: Key, measured: &Measured) -> Arc<Series> {
        if let Some((_, series)) = known.all.get(&key) {
            return series.clone();
        }
        let series = Arc::new(Series {
            labels: Labels {
                route: measured.route.as_ref().map(|route| route.text.clone()),
                method: usize::from(key.method),
                status: key.status,
                minor_version: key.minor_version,
            },
            duration_ns: Histogram::default(),
            request_bytes: Histogram::default(),
            response_bytes: Histogram::default(),
        });
        let all = self.requests.series.lock();
        all.unwrap_or_else(PoisonError::into_inner)
            .push(series.clone());
        known
            .all
            .insert(key, (measured.route.clone(), series.clone()));
        series
    }
}
