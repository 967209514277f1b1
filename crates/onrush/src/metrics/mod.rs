//! Metrics of a server, as text for Prometheus.
//!
//! Each worker has its own counters and writes them by plain loads and stores. Rendering adds the
//! counters of all workers. So a request takes no lock and needs no atomic read-modify-write, and
//! no two workers write to the same cache line. Metrics of requests have the names that
//! OpenTelemetry defines for HTTP servers, in the spelling of Prometheus.
//!
//! Modules, lowest first: `cell` · `kinds` · `requests` · `text` · `certificates`, `offload` ·
//! `process`.

mod cell;
#[cfg(feature = "tls")]
mod certificates;
mod kinds;
mod offload;
mod process;
mod requests;
mod text;

pub use cell::Counter;
pub use kinds::{CloseReason, CountBy, Handshake, Kind, Refusal, TimeLimit};
pub(crate) use requests::{Measured, Recorder};
pub use text::Format;

use crate::handler::Handler;
use crate::request::Request;
use crate::response::Response;
use crate::worker_set::WorkerLoad;
use cell::{DURATION_BUCKETS, HistogramSnapshot, SIZE_BUCKETS, duration_bounds, size_bounds};
#[cfg(feature = "tls")]
use certificates::Certificates;
use onrush_rt::coroutine;
use onrush_rt::offload::StatsHandle;
use onrush_rt::worker::{WorkerContext, monotonic_ms};
use requests::{Labels, METHODS, Requests};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use text::{Label, MetricType, TextWriter};

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
    pub handshakes: CountBy<Handshake>,
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
    #[cfg(feature = "tls")]
    certificates: Certificates,
}

/// The sources of the metrics of one worker.
#[derive(Clone, Debug)]
struct WorkerSources {
    index: usize,
    driver: &'static str,
    counters: Arc<Counters>,
    requests: Arc<Requests>,
    load: Arc<WorkerLoad>,
    stacks: Arc<coroutine::StackCounters>,
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
            stacks: coroutine::counters(),
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
    /// use onrush_rt::driver::sim::Behaviour;
    ///
    /// let metrics = Metrics::new();
    /// let (limits, network) = (Limits::default(), Behaviour::default());
    /// let mut sim = Simulation::with_metrics(1, &hello, limits, network, &metrics);
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
        connections(&mut text, &workers);
        worker_activity(&mut text, &workers);
        requests(&mut text, &workers);
        #[cfg(feature = "tls")]
        self.certificates().render(&mut text);
        offload::render(&mut text, &self.pools().clone());
        process::write(&mut text);
        text.finish()
    }
}

/// Writes a family with the sums by worker index. `values` returns the values of a worker, each
/// with its label, if it has one.
fn by_worker<'w, F>(
    text: &mut TextWriter,
    workers: &'w [WorkerSources],
    (name, family, help): (&'static str, MetricType, &str),
    values: impl Fn(&'w WorkerSources) -> F,
) where
    F: IntoIterator<Item = (Option<Label<'static>>, u64)>,
{
    let mut sums: BTreeMap<_, u64> = BTreeMap::new();
    for worker in workers {
        for (label, value) in values(worker) {
            *sums.entry((worker.index, label)).or_default() += value;
        }
    }
    text.family(name, family, help);
    for ((index, label), sum) in sums {
        let index = index.to_string();
        let labels: Vec<Label<'_>> = [("worker", &*index)].into_iter().chain(label).collect();
        text.sample(&labels, sum);
    }
}

type CounterField = fn(&Counters) -> u64;

fn connections(text: &mut TextWriter, workers: &[WorkerSources]) {
    let families: [(_, _, _, CounterField); 11] = [
        (
            "onrush_connections_accepted",
            MetricType::Counter,
            "Accepted connections.",
            |counters| counters.accepted.get(),
        ),
        (
            "onrush_connections_placed",
            MetricType::Counter,
            "New connections assigned to this worker, whichever worker accepted them.",
            |counters| counters.placed.get(),
        ),
        (
            "onrush_connections_handed_over",
            MetricType::Counter,
            "Established connections transferred to another worker.",
            |counters| counters.handed_over.get(),
        ),
        (
            "onrush_connections_taken_over",
            MetricType::Counter,
            "Established connections transferred from another worker.",
            |counters| counters.taken_over.get(),
        ),
        (
            "onrush_connections_open",
            MetricType::Gauge,
            "Open connections.",
            // In this order, a concurrent change cannot make the difference negative.
            |counters| {
                let left = counters.done.get() + counters.handed_over.get();
                let arrived = counters.placed.get() + counters.taken_over.get();
                arrived.saturating_sub(left)
            },
        ),
        (
            "onrush_connections_refused",
            MetricType::Counter,
            "Connections refused with 503 because the maximum was reached.",
            |counters| counters.refused.get(),
        ),
        (
            "onrush_memory_evictions",
            MetricType::Counter,
            "Connections closed because receive memory was short.",
            |counters| counters.evicted.get(),
        ),
        (
            "onrush_handler_panics",
            MetricType::Counter,
            "Handlers that panicked.",
            |counters| counters.panicked.get(),
        ),
        (
            "onrush_worker_panics",
            MetricType::Counter,
            "Panics of wakers, destructors and spawned tasks that the worker caught.",
            |counters| counters.caught.get(),
        ),
        (
            "onrush_worker_blocked",
            MetricType::Counter,
            "Event-loop iterations of more than 100 ms: a handler computed or blocked.",
            |counters| counters.blocked.get(),
        ),
        (
            "onrush_limit_hits",
            MetricType::Counter,
            "Requests refused with 503 because their handler had reached its limit.",
            |counters| counters.limit_hits.get(),
        ),
    ];
    for (name, family, help, value) in families {
        by_worker(text, workers, (name, family, help), |worker| {
            [(None, value(&worker.counters))]
        });
    }
    fn kinds<K: Kind>(
        label: &'static str,
        counts: &CountBy<K>,
    ) -> impl Iterator<Item = (Option<Label<'static>>, u64)> {
        let with_label = move |(kind, count): (K, u64)| (Some((label, kind.name())), count);
        counts.each().map(with_label)
    }
    let counter = |name, help| (name, MetricType::Counter, help);
    let family = counter("onrush_connections_done", "Closed connections, by reason.");
    by_worker(text, workers, family, |worker| {
        kinds("reason", &worker.counters.done)
    });
    #[cfg(feature = "tls")]
    by_worker(
        text,
        workers,
        counter("onrush_tls_handshakes", "TLS handshakes, by outcome."),
        |worker| kinds("outcome", &worker.counters.handshakes),
    );
    let family = counter("onrush_timeouts", "Time limits that clients have exceeded.");
    by_worker(text, workers, family, |worker| {
        kinds("limit", &worker.counters.timed_out)
    });
    let help = "Requests rejected before they reached a handler.";
    by_worker(
        text,
        workers,
        counter("onrush_requests_rejected", help),
        |worker| kinds("http_response_status_code", &worker.counters.rejected),
    );
}

fn worker_activity(text: &mut TextWriter, workers: &[WorkerSources]) {
    let now_ms = monotonic_ms();
    let alive = || workers.iter().filter(|worker| worker.load.is_alive());
    // Workers of two servers may have the same index.
    let mut ratios: BTreeMap<usize, u32> = BTreeMap::new();
    for worker in alive() {
        let ratio = ratios.entry(worker.index).or_default();
        *ratio = worker.load.permille(now_ms).max(*ratio);
    }
    let help = "Recent share of time in which the worker was busy.";
    text.family("onrush_worker_busy_ratio", MetricType::Gauge, help);
    for (index, permille) in ratios {
        let ratio = f64::from(permille) / 1000.0;
        text.sample(&[("worker", &index.to_string())], ratio);
    }
    let mut blocked: BTreeMap<usize, u64> = BTreeMap::new();
    for worker in workers {
        *blocked.entry(worker.index).or_default() += worker.counters.blocked_ms.get();
    }
    let help = "Duration of event-loop iterations of more than 100 ms.";
    text.family("onrush_worker_blocked_seconds", MetricType::Counter, help);
    for (index, ms) in blocked {
        text.sample(&[("worker", &index.to_string())], ms as f64 / 1000.0);
    }
    let mut iterations: BTreeMap<usize, u64> = BTreeMap::new();
    for worker in alive() {
        let ms = worker.load.iteration(now_ms).map_or(0, |(ms, _)| ms);
        let longest = iterations.entry(worker.index).or_default();
        *longest = ms.max(*longest);
    }
    let help = "Duration of the present event-loop iteration so far; 0 while the worker sleeps.";
    text.family("onrush_worker_iteration_seconds", MetricType::Gauge, help);
    for (index, ms) in iterations {
        text.sample(&[("worker", &index.to_string())], ms as f64 / 1000.0);
    }
    let help = "Receive memory when the worker was last awake: posted to the kernel, kept for \
                reuse, or holding data that is not processed yet.";
    let family = ("onrush_receive_buffer_bytes", MetricType::Gauge, help);
    let alive: Vec<WorkerSources> = alive().cloned().collect();
    by_worker(text, &alive, family, |worker| {
        [(None, worker.counters.receive_bytes.get())]
    });
    let help = "Stacks of coroutines: in use, and kept for reuse.";
    let family = ("onrush_coroutine_stacks", MetricType::Gauge, help);
    by_worker(text, &alive, family, |worker| {
        let stacks = &worker.stacks;
        [("in_use", stacks.in_use()), ("pooled", stacks.pooled())]
            .map(|(state, count)| (Some(("state", state)), count))
    });
    let touched_bytes = alive.iter().map(|worker| worker.stacks.touched_bytes_max());
    let help = "Largest memory that a stack of a coroutine has touched, by samples.";
    text.family("onrush_coroutine_stack_bytes_max", MetricType::Gauge, help);
    text.sample(&[], touched_bytes.max().unwrap_or_default());
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
    for (method, name) in METHODS.iter().enumerate() {
        let ended = sum(&|requests| requests.ended[method].get());
        let begun = sum(&|requests| requests.begun[method].get());
        if begun > 0 {
            let labels = [("http_request_method", *name), ("url_scheme", "http")];
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
    let version = format!("1.{}", labels.minor_version);
    let mut all = vec![
        ("http_request_method", METHODS[labels.method]),
        ("http_response_status_code", &status),
        ("network_protocol_version", &version),
        ("url_scheme", "http"),
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
