//! Measurements of requests: what is stored of a request until its response is sent, and the series
//! that it is added to.
//!
//! Most of the cost of a measurement is reading the clock. So the clock is read once for all
//! responses that are passed to the kernel together. Most of these are alike, including their
//! sizes: a run of them is counted and recorded as one. The start of a request is a time that is
//! already known: the last one read in this event-loop iteration, or the start of the iteration.

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

/// The methods that have labels of their own (RFC 9110 §9, RFC 5789). The last one stands for all
/// others.
pub(crate) const METHODS: [&str; 10] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "_OTHER",
];

/// The name of a method and the scheme, by [`Labels::method`].
pub(crate) fn method_and_scheme(index: usize) -> (&'static str, &'static str) {
    let scheme = match index < METHODS.len() {
        true => "http",
        false => "https",
    };
    (METHODS[index % METHODS.len()], scheme)
}

/// The labels of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Labels {
    /// The template of the route, not the path, so that the number of series is bounded.
    pub(crate) route: Option<String>,
    /// An index of [`METHODS`], plus their number over TLS.
    pub(crate) method: usize,
    pub(crate) status: u16,
    pub(crate) version: Version,
}

/// Requests of one worker that have the same labels.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) labels: Labels,
    pub(crate) duration_ns: Histogram<DURATION_BUCKETS>,
    pub(crate) request_bytes: Histogram<SIZE_BUCKETS>,
    pub(crate) response_bytes: Histogram<SIZE_BUCKETS>,
}

/// The measurements of one worker.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Requests that have begun and ended, by [`Labels::method`]. The difference is in progress.
    pub(crate) begun: [Counter; 2 * METHODS.len()],
    pub(crate) ended: [Counter; 2 * METHODS.len()],
    /// Requests that ended without a complete response.
    pub(crate) aborted: Counter,
    /// The worker locks this only for a new combination of labels. Readers lock it, too.
    series: Mutex<Vec<Arc<Series>>>,
}

impl Requests {
    pub(crate) fn series(&self) -> Vec<Arc<Series>> {
        let series = self.series.lock();
        series.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Measured {
    begun_ns: u64,
    method: u8,
    version: Version,
    request_bytes: u64,
    pub(crate) route: Option<Rc<Template>>,
    pub(crate) status: u16,
    /// Length of the response body; `None` if it was not known in advance.
    pub(crate) response_bytes: Option<u64>,
}

/// Records the requests of one worker, on its thread.
#[derive(Debug)]
pub(crate) struct Recorder {
    context: WorkerContext,
    requests: Arc<Requests>,
    cache: RefCell<SeriesCache>,
    /// When requests were last recorded, in ns of the worker's clock.
    recorded_ns: Cell<u64>,
}

#[derive(Debug, Default)]
struct SeriesCache {
    /// The last series; most requests have the same labels as the previous one.
    last: Option<(Key, Arc<Series>)>,
    /// Each entry holds the route whose address is in its key.
    all: HashMap<Key, (Option<Rc<Template>>, Arc<Series>)>,
    run: Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    route: usize,
    method: u8,
    status: u16,
    version: Version,
}

/// Ended requests that are not recorded yet. All are equal and belong to [`SeriesCache::last`].
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
            cache: RefCell::default(),
            recorded_ns: Cell::new(0),
        }
    }

    /// Begins to measure a request whose head is complete.
    #[inline]
    pub(crate) fn begin(
        &self,
        method: &str,
        is_tls: bool,
        version: Version,
        request_bytes: u64,
    ) -> Measured {
        let of_scheme = usize::from(is_tls) * METHODS.len();
        let method = of_scheme
            + match method {
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
            version,
            request_bytes,
            route: None,
            status: 0,
            response_bytes: None,
        }
    }

    /// Ends a request. The caller calls [`Recorder::record`] before the response is passed to the
    /// kernel.
    #[inline]
    pub(crate) fn end(&self, measured: &Measured) {
        let key = Key {
            route: (measured.route.as_ref()).map_or(0, |route| Rc::as_ptr(route) as usize),
            method: measured.method,
            status: measured.status,
            version: measured.version,
        };
        let mut cache = self.cache.borrow_mut();
        let is_like_last = matches!(&cache.last, Some((last, _)) if *last == key);
        if cache.run.count > 0 {
            if is_like_last && cache.run.is_like(measured) {
                cache.run.count += 1;
                return;
            }
            self.record_run(&mut cache);
        }
        if !is_like_last {
            let series = self.series(&mut cache, key, measured);
            cache.last = Some((key, series));
        }
        cache.run = Run {
            count: 1,
            begun_ns: measured.begun_ns,
            request_bytes: measured.request_bytes,
            response_bytes: measured.response_bytes,
        };
    }

    /// Records the ended requests with the present time as their end.
    #[inline]
    pub(crate) fn record(&self) {
        let mut cache = self.cache.borrow_mut();
        if cache.run.count > 0 {
            self.record_run(&mut cache);
        }
    }

    #[inline]
    fn record_run(&self, cache: &mut SeriesCache) {
        let run = std::mem::take(&mut cache.run);
        let Some((key, series)) = &cache.last else {
            return;
        };
        let now_ns = self.context.clock_ns();
        self.recorded_ns.set(now_ns);
        let ns = now_ns.saturating_sub(run.begun_ns);
        self.requests.ended[usize::from(key.method)].add(run.count);
        (series.duration_ns).record(duration_bucket(ns), ns, run.count);
        let bytes = run.request_bytes;
        (series.request_bytes).record(size_bucket(bytes), bytes, run.count);
        if let Some(bytes) = run.response_bytes {
            (series.response_bytes).record(size_bucket(bytes), bytes, run.count);
        }
    }

    /// Ends a request without a complete response.
    pub(crate) fn abort(&self, measured: &Measured) {
        self.requests.ended[usize::from(measured.method)].add(1);
        self.requests.aborted.add(1);
    }

    fn series(&self, cache: &mut SeriesCache, key: Key, measured: &Measured) -> Arc<Series> {
        if let Some((_, series)) = cache.all.get(&key) {
            return series.clone();
        }
        let series = Arc::new(Series {
            labels: Labels {
                route: measured.route.as_ref().map(|route| route.text.clone()),
                method: usize::from(key.method),
                status: key.status,
                version: key.version,
            },
            duration_ns: Histogram::default(),
            request_bytes: Histogram::default(),
            response_bytes: Histogram::default(),
        });
        let all = self.requests.series.lock();
        all.unwrap_or_else(PoisonError::into_inner)
            .push(series.clone());
        cache
            .all
            .insert(key, (measured.route.clone(), series.clone()));
        series
    }
}
