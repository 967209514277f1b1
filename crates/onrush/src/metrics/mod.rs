//! Metrics of a server, as text for Prometheus.
//!
//! Each worker has its own counters and writes them by plain loads and stores. Rendering adds the
//! counters of all workers. So a request takes no lock and needs no atomic read-modify-write, and
//! no two workers write to the same cache line. Metrics of requests have the names that
//! OpenTelemetry defines for HTTP servers, in the spelling of Prometheus.
//!
//! Modules, lowest first: `cell` · `kinds` · `requests` · `text` · `certificates`, `handshakes`,
//! `offload` · `process`, `workers`.

mod cell;
#[cfg(feature = "tls")]
mod certificates;
#[cfg(feature = "tls")]
mod handshakes;
mod kinds;
mod offload;
mod process;
mod requests;
mod text;
mod workers;

pub use cell::Counter;
pub use kinds::{CloseReason, CountBy, HandshakeOutcome, Kind, ProxyRefusal, Refusal, TimeLimit};
pub(crate) use requests::{Measured, Recorder};
pub use text::{Format, Label, MetricType, TextWriter};

use crate::handler::Handler;
use crate::request::Request;
use crate::response::Response;
use crate::worker_set::WorkerLoad;
use cell::{DURATION_BUCKETS, HistogramSnapshot, SIZE_BUCKETS, duration_bounds, size_bounds};
#[cfg(feature = "tls")]
use certificates::Certificates;
#[cfg(feature = "coroutine")]
use onrush_coroutine::{StackCounters, counters as stack_counters};
use onrush_proto::head::Version;
use onrush_rt::offload::StatsHandle;
use onrush_rt::worker::WorkerContext;
use requests::{Labels, METHODS, Requests, method_and_scheme};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The counters of one worker since its start.
///
/// # Examples
/// ```
/// # use onrush::{Limits, Request, Response, sim::Simulation};
/// # async fn hello(_: Request) -> Response { Response::text("hello") }
/// let mut sim = Simulation::new(1, &hello, Limits::default());
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// let counters = sim.counters();
/// assert_eq!((counters.accepted.get(), counters.requests.get()), (1, 1));
/// assert_eq!((counters.done.get(), counters.panicked.get()), (0, 0));
/// ```
#[derive(Debug, Default)]
pub struct Counters {
    /// Accepted connections.
    pub accepted: Counter,
    /// New connections assigned to this worker, whichever worker accepted them.
    pub placed: Counter,
    /// Established connections transferred to another worker.
    pub handed_over: Counter,
    /// Established connections transferred from another worker.
    pub taken_over: Counter,
    /// Closed connections, by reason.
    pub done: CountBy<CloseReason>,
    /// Connections refused with 503 because the maximum was reached.
    pub refused: Counter,
    /// Requests passed to the application.
    pub requests: Counter,
    /// Requests rejected before they reached the application, by status.
    pub rejected: CountBy<Refusal>,
    /// Connections closed because receive memory was short: partial heads, which receive 408, and
    /// clients that do not read their responses, which are reset.
    pub evicted: Counter,
    /// TLS handshakes, by outcome.
    pub handshakes: CountBy<HandshakeOutcome>,
    /// What complete TLS handshakes negotiated, and their duration.
    #[cfg(feature = "tls")]
    pub(crate) tls: handshakes::Handshakes,
    /// Connections closed because they did not begin with a header of the PROXY protocol.
    pub not_proxied: CountBy<ProxyRefusal>,
    /// Time limits that clients have exceeded.
    pub timed_out: CountBy<TimeLimit>,
    /// Handlers that panicked.
    pub panicked: Counter,
    /// Panics of wakers, destructors and spawned tasks that the event loop caught.
    pub caught: Counter,
    /// Event-loop iterations of more than 100 ms.
    pub blocked: Counter,
    /// The duration of the iterations in [`Counters::blocked`], in milliseconds.
    pub blocked_ms: Counter,
    /// Bytes of receive memory in use when the worker was last awake. This value can decrease.
    pub receive_bytes: Counter,
    /// Requests refused with 503 by [`limited`](crate::limited()).
    pub limit_hits: Counter,
}

/// The metrics of a server, or of several servers that share them. Cheap to clone.
///
/// [`Server::metrics`](crate::Server::metrics) connects them to a server. They are also a handler,
/// which returns [`Format::OpenMetrics`] if the `Accept` field contains its media type, and
/// [`Format::Prometheus`] otherwise. [`Admin`](crate::Admin) has a route to it.
///
/// The duration of a request ends when its response is passed to the kernel. It begins when the
/// worker has processed the earlier input of the same event-loop iteration. So it includes the wait
/// for requests that arrived at the same time. It includes neither the time between two requests of
/// a client, nor the wait for the response to an earlier request of the same connection. Pipelined
/// requests whose responses are sent together have the same duration.
///
/// # Examples
/// ```no_run
/// use onrush::{Metrics, Request, Response, Router, Server};
///
/// async fn hello(_: Request) -> Response {
///     Response::text("Hello, World!")
/// }
///
/// fn main() -> std::io::Result<()> {
///     let metrics = Metrics::new();
///     let router = Router::new().get("/", hello).get("/metrics", metrics.clone());
///     Server::bind("127.0.0.1:8080").metrics(&metrics).serve(router)
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// The workers, including those that have ended, because a counter must not decrease.
    workers: Mutex<Vec<WorkerSources>>,
    /// The pools for CPU-bound work, including those that have ended.
    pools: Mutex<Vec<StatsHandle>>,
    collectors: Mutex<Vec<Arc<dyn Collector>>>,
    #[cfg(feature = "tls")]
    certificates: Certificates,
}

/// Metrics of the application ([`Metrics::add_collector`]).
pub trait Collector: std::fmt::Debug + Send + Sync {
    /// Writes the present values. It is called for each rendering, by a worker, and must not wait.
    fn collect(&self, text: &mut TextWriter);
}

/// The sources of the metrics of one worker.
#[derive(Clone, Debug)]
struct WorkerSources {
    index: usize,
    driver: &'static str,
    counters: Arc<Counters>,
    requests: Arc<Requests>,
    load: Arc<WorkerLoad>,
    #[cfg(feature = "coroutine")]
    stacks: Arc<StackCounters>,
}

impl Metrics {
    /// Creates metrics without servers.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    fn workers(&self) -> MutexGuard<'_, Vec<WorkerSources>> {
        let workers = self.0.workers.lock();
        workers.unwrap_or_else(PoisonError::into_inner)
    }

    fn pools(&self) -> MutexGuard<'_, Vec<StatsHandle>> {
        let pools = self.0.pools.lock();
        pools.unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds metrics of the application. They follow those of the engine.
    pub fn add_collector(&self, collector: Arc<dyn Collector>) {
        self.collectors().push(collector);
    }

    fn collectors(&self) -> MutexGuard<'_, Vec<Arc<dyn Collector>>> {
        let collectors = self.0.collectors.lock();
        collectors.unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the pool of a server. Servers may share a pool.
    pub(crate) fn offload_pool(&self, pool: StatsHandle) {
        let mut pools = self.pools();
        if !pools.iter().any(|known| known.is_same(&pool)) {
            pools.push(pool);
        }
    }

    /// The certificates of the servers.
    #[cfg(feature = "tls")]
    pub(crate) fn certificates(&self) -> &Certificates {
        &self.0.certificates
    }

    /// Adds a worker, which begins on this thread.
    pub(crate) fn worker(
        &self,
        context: &WorkerContext,
        counters: &Arc<Counters>,
        load: &Arc<WorkerLoad>,
    ) -> Recorder {
        let requests = Arc::<Requests>::default();
        self.workers().push(WorkerSources {
            index: context.index(),
            driver: context.driver().name(),
            counters: counters.clone(),
            requests: requests.clone(),
            load: load.clone(),
            #[cfg(feature = "coroutine")]
            stacks: stack_counters(),
        });
        Recorder::new(requests, context.clone())
    }

    /// Renders all metrics. Counters that change during the call may be inconsistent with each
    /// other.
    ///
    /// # Examples
    /// ```
    /// # use onrush::{Limits, Request, Response, sim::Simulation};
    /// # async fn hello(_: Request) -> Response { Response::text("hello") }
    /// use onrush::metrics::{Format, Metrics};
    ///
    /// let metrics = Metrics::new();
    /// let mut sim = Simulation::builder(1).metrics(&metrics).start(&hello);
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    ///
    /// let text = metrics.render(Format::Prometheus);
    /// assert!(text.contains("onrush_connections_accepted_total{worker=\"0\"} 1\n"));
    /// assert!(text.contains("http_server_request_duration_seconds_count{"));
    /// ```
    pub fn render(&self, format: Format) -> String {
        let workers = self.workers().clone();
        let mut text = TextWriter::new(format);
        text.family("onrush_build", MetricType::Info, "Version of the server.");
        text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        let help = "Drivers of the workers.";
        text.family("onrush_driver", MetricType::Info, help);
        let drivers: BTreeSet<&str> = workers.iter().map(|worker| worker.driver).collect();
        for driver in drivers {
            text.sample(&[("driver", driver)], 1);
        }
        workers::connections(&mut text, &workers);
        workers::activity(&mut text, &workers);
        requests(&mut text, &workers);
        #[cfg(feature = "tls")]
        {
            let of_workers = workers.iter().map(|worker| &worker.counters.tls);
            handshakes::render(&mut text, of_workers);
            self.certificates().render(&mut text);
        }
        offload::render(&mut text, &self.pools().clone());
        process::write(&mut text);
        // A copy, because a collector may add another one.
        let collectors = self.collectors().clone();
        for collector in collectors {
            collector.collect(&mut text);
        }
        text.finish()
    }
}

/// The sum of the series of all workers that have the same labels.
#[derive(Default)]
struct Sums {
    duration_ns: HistogramSnapshot<DURATION_BUCKETS>,
    request_bytes: HistogramSnapshot<SIZE_BUCKETS>,
    response_bytes: HistogramSnapshot<SIZE_BUCKETS>,
}

fn requests(text: &mut TextWriter, workers: &[WorkerSources]) {
    let sum = |value: &dyn Fn(&Requests) -> u64| -> u64 {
        workers.iter().map(|worker| value(&worker.requests)).sum()
    };
    let help = "Requests that ended without a complete response.";
    text.family("onrush_requests_aborted", MetricType::Counter, help);
    text.sample(&[], sum(&|requests| requests.aborted.get()));

    let help = "Requests in progress.";
    text.family("http_server_active_requests", MetricType::Gauge, help);
    for method in 0..2 * METHODS.len() {
        let ended = sum(&|requests| requests.ended[method].get());
        let begun = sum(&|requests| requests.begun[method].get());
        if begun > 0 {
            let (name, scheme) = method_and_scheme(method);
            let labels = [("http_request_method", name), ("url_scheme", scheme)];
            text.sample(&labels, begun.saturating_sub(ended));
        }
    }

    let mut series: BTreeMap<Labels, Sums> = BTreeMap::new();
    for series_of_worker in workers.iter().flat_map(|worker| worker.requests.series()) {
        let sums = series.entry(series_of_worker.labels.clone()).or_default();
        series_of_worker.duration_ns.add_to(&mut sums.duration_ns);
        series_of_worker
            .request_bytes
            .add_to(&mut sums.request_bytes);
        series_of_worker
            .response_bytes
            .add_to(&mut sums.response_bytes);
    }
    let mut histograms = |name, help, write: fn(&mut TextWriter, &[Label<'_>], &Sums)| {
        text.family(name, MetricType::Histogram, help);
        for (labels, sums) in &series {
            labelled(labels, |labels| write(text, labels, sums));
        }
    };
    histograms(
        "http_server_request_duration_seconds",
        "From the start of processing to the time when the response is passed to the kernel.",
        |text, labels, sums| text.histogram(labels, duration_bounds(), &sums.duration_ns, 1e-9),
    );
    histograms(
        "http_server_request_body_size_bytes",
        "Content-Length of requests; 0 without one.",
        |text, labels, sums| text.histogram(labels, size_bounds(), &sums.request_bytes, 1.0),
    );
    histograms(
        "http_server_response_body_size_bytes",
        "Bodies of responses whose length was known in advance.",
        |text, labels, sums| text.histogram(labels, size_bounds(), &sums.response_bytes, 1.0),
    );
}

/// Calls `write` with the labels under the names of OpenTelemetry.
fn labelled(labels: &Labels, write: impl FnOnce(&[Label<'_>])) {
    let status = labels.status.to_string();
    let version = match labels.version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
    };
    let (method, scheme) = method_and_scheme(labels.method);
    let mut all = vec![
        ("http_request_method", method),
        ("http_response_status_code", &status),
        ("network_protocol_version", version),
        ("url_scheme", scheme),
    ];
    if let Some(route) = &labels.route {
        all.push(("http_route", route));
    }
    write(&all);
}

impl Handler for Metrics {
    fn handle(&self, request: Request) -> impl Future<Output = Response> + use<> + 'static {
        let accepts = |what: &str| {
            let accept = request.header_str("accept");
            accept.is_some_and(|accept| accept.contains(what))
        };
        let format = match accepts("application/openmetrics-text") {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        };
        let response = Response::text(self.render(format)).content_type(format.content_type());
        ready(response.with_header("Cache-Control", "no-store"))
    }
}
