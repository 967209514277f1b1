//! Requests as they are counted: what is remembered of one while it is answered, and the series it
//! ends in. Must not know how the figures are shown.

use super::cell::{
    Counter, DURATION_BUCKETS, Histogram, SIZE_BUCKETS, duration_bucket, size_bucket,
};
use crate::params::Template;
use onrush_proto::head::Version;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

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
    begun: Instant,
    method: usize,
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
    requests: Arc<Requests>,
    known: RefCell<Known>,
    /// When the last request was over, unless other things were done since: the next one in the
    /// same receive begins then, and the clock need not be read again.
    last_end: Cell<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Most requests are like the one before.
    last: Option<(Key, Arc<Series>)>,
    /// With the route that the key has the address of.
    all: HashMap<Key, (Option<Rc<Template>>, Arc<Series>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    route: usize,
    method: usize,
    status: u16,
    minor_version: u8,
}

impl Recorder {
    pub(crate) fn new(requests: Arc<Requests>) -> Recorder {
        Recorder {
            requests,
            known: RefCell::default(),
            last_end: Cell::new(None),
        }
    }

    /// Something has been received: time has passed since the last request.
    #[inline]
    pub(crate) fn received(&self) {
        self.last_end.set(None);
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
            begun: self.last_end.take().unwrap_or_else(Instant::now),
            method,
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

    /// Its answer was handed to the kernel.
    #[inline]
    pub(crate) fn end(&self, measured: &Measured) {
        let now = Instant::now();
        self.last_end.set(Some(now));
        let ns = now.saturating_duration_since(measured.begun).as_nanos();
        let ns = u64::try_from(ns).unwrap_or(u64::MAX);
        self.requests.over[measured.method].add(1);
        let key = Key {
            route: (measured.route.as_ref()).map_or(0, |route| Rc::as_ptr(route) as usize),
            method: measured.method,
            status: measured.status,
            minor_version: measured.minor_version,
        };
        let mut known = self.known.borrow_mut();
        let series = match &known.last {
            Some((last, series)) if *last == key => series,
            _ => {
                let series = self.series(&mut known, key, measured);
                &known.last.insert((key, series)).1
            }
        };
        series.duration_ns.record(duration_bucket(ns), ns);
        let bytes = measured.request_bytes;
        series.request_bytes.record(size_bucket(bytes), bytes);
        if let Some(bytes) = measured.response_bytes {
            series.response_bytes.record(size_bucket(bytes), bytes);
        }
    }

    /// It is over without that: its connection went, or its answer was cut off.
    pub(crate) fn abort(&self, measured: &Measured) {
        self.requests.over[measured.method].add(1);
        self.requests.aborted.add(1);
    }

    fn series(&self, known: &mut Known, key: Key, measured: &Measured) -> Arc<Series> {
        if let Some((_, series)) = known.all.get(&key) {
            return series.clone();
        }
        let series = Arc::new(Series {
            labels: Labels {
                route: measured.route.as_ref().map(|route| route.text.clone()),
                method: key.method,
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
