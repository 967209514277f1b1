//! What the server counts, as text for Prometheus.
//!
//! Each worker counts for itself, in cells that it alone writes, by plain loads and stores; whoever
//! asks for the text adds them up. So no lock and no read-modify-write is on the path of a request,
//! and no two workers touch the same line of memory. Names are OpenTelemetry's for HTTP servers, in
//! Prometheus' spelling.
//!
//! Modules, lowest first: `cell` · `kinds` · `requests` · `text` · `offload` · `process`. Must not
//! know connections.

mod cell;
mod kinds;
mod offload;
mod process;
mod requests;
mod text;

pub use cell::Counter;
pub use kinds::{CloseReason, CountBy, Kind, Refusal, TimeLimit};
pub(crate) use requests::{Measured, Recorder};
pub use text::Format;

use crate::handler::Handler;
use crate::request::Request;
use crate::response::Response;
use crate::worker_set::WorkerLoad;
use cell::{DURATION_BUCKETS, HistogramSnapshot, SIZE_BUCKETS, duration_bounds, size_bounds};
use onrush_rt::coroutine;
use onrush_rt::offload::StatsHandle;
use onrush_rt::worker::{WorkerContext, monotonic_ms};
use requests::{Labels, METHODS, Requests};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use text::{Family, Label, Text};

/// Plain counters of one worker, since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections that began to be served here, whoever accepted them.
    pub placed: Counter,
    /// Connections handed over to another worker, alive.
    pub handed_over: Counter,
    /// Connections taken over from another worker, alive.
    pub taken_over: Counter,
    /// Connections closed, for whatever reason.
    pub done: CountBy<CloseReason>,
    /// Connections refused because the cap was reached.
    pub refused: Counter,
    /// Requests given to the application.
    pub requests: Counter,
    /// Requests refused before that.
    pub rejected: CountBy<Refusal>,
    /// Partial heads given up, and answered 408, because receive memory was short.
    pub evicted: Counter,
    /// Limits on time that clients have missed.
    pub timed_out: CountBy<TimeLimit>,
    /// Handlers that panicked.
    pub panicked: Counter,
    /// Panics that were caught by the event loop: of wakers, destructors and spawned tasks.
    pub caught: Counter,
    /// Event-loop iterations of more than 100 ms, and their time in milliseconds.
    pub blocked: Counter,
    /// See [`Counters::blocked`].
    pub blocked_ms: Counter,
    /// Bytes of receive memory that are taken, as of a moment ago. Not a count: it falls, too.
    pub receive_bytes: Counter,
    /// Requests refused by [`limited`](crate::limited()).
    pub limit_hits: Counter,
}

/// The figures of a server, or of several that share them. Cheap to clone.
///
/// Given to [`Server::metrics`](crate::Server::metrics), and mounted where it is to be read, for it
/// is a handler as well:
///
/// ```no_run
/// use onrush::{Metrics, Request, Response, Router, Server};
/// async fn hello(_: Request) -> Response {
///     Response::text("Hello, World!")
/// }
/// fn main() -> std::io::Result<()> {
///     let metrics = Metrics::new();
///     let router = Router::new().get("/", hello).get("/metrics", metrics.clone());
///     Server::bind("127.0.0.1:8080").metrics(&metrics).serve(router)
/// }
/// ```
///
/// A duration ends when the answer is handed to the kernel. It begins when the worker has dealt
/// with what came before in the same turn: the wait behind requests that came at the same moment is
/// in it, but neither the time that a client takes between two requests, nor the wait for the
/// answer to an earlier request of the same connection. Pipelined requests whose answers leave
/// together have begun and ended together.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Also those that have ended: what was counted must not become less.
    workers: Mutex<Vec<Worker>>,
    /// The same of pools for CPU work.
    pools: Mutex<Vec<StatsHandle>>,
}

/// Where one worker's figures are.
#[derive(Clone, Debug)]
struct Worker {
    index: usize,
    driver: &'static str,
    counters: Arc<Counters>,
    requests: Arc<Requests>,
    busy: Arc<WorkerLoad>,
    stacks: Arc<coroutine::StackCounters>,
}

impl Metrics {
    /// Figures of nobody yet.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Worker>> {
        let workers = self.0.workers.lock();
        workers.unwrap_or_else(PoisonError::into_inner)
    }

    fn pools(&self) -> MutexGuard<'_, Vec<StatsHandle>> {
        let pools = self.0.pools.lock();
        pools.unwrap_or_else(PoisonError::into_inner)
    }

    /// A server has this pool, perhaps with others together.
    pub(crate) fn offload_pool(&self, pool: StatsHandle) {
        let mut pools = self.pools();
        if !pools.iter().any(|known| known.is_same(&pool)) {
            pools.push(pool);
        }
    }

    /// A worker begins, on this thread.
    pub(crate) fn worker(
        &self,
        context: &WorkerContext,
        counters: &Arc<Counters>,
        busy: &Arc<WorkerLoad>,
    ) -> Recorder {
        let requests = Arc::<Requests>::default();
        self.workers().push(Worker {
            index: context.index(),
            driver: context.driver().name(),
            counters: counters.clone(),
            requests: requests.clone(),
            busy: busy.clone(),
            stacks: coroutine::counters(),
        });
        Recorder::new(requests, context.clone())
    }

    /// All figures of this moment. Those of one worker may be a moment apart.
    pub fn render(&self, format: Format) -> String {
        let workers = self.workers().clone();
        let mut text = Text::new(format);
        text.family("onrush_build", Family::Info, "Which version this is.");
        text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        let help = "How the workers ask the kernel.";
        text.family("onrush_driver", Family::Info, help);
        let drivers: BTreeSet<&str> = workers.iter().map(|worker| worker.driver).collect();
        for driver in drivers {
            text.sample(&[("driver", driver)], 1);
        }
        connections(&mut text, &workers);
        at_work(&mut text, &workers);
        requests(&mut text, &workers);
        offload::render(&mut text, &self.pools().clone());
        process::write(&mut text);
        text.finish()
    }
}

/// Sums of figures by worker: workers of servers that came one after the other are one. `values`
/// gives each with its label, if it has one.
fn by_worker<'w, F>(
    text: &mut Text,
    workers: &'w [Worker],
    (name, family, help): (&'static str, Family, &str),
    values: impl Fn(&'w Worker) -> F,
) where
    F: IntoIterator<Item = (Option<Label<'static>>, u64)>,
{
    let mut sums: BTreeMap<_, u64> = BTreeMap::new();
    for worker in workers {
        for (label, figure) in values(worker) {
            *sums.entry((worker.index, label)).or_default() += figure;
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

fn connections(text: &mut Text, workers: &[Worker]) {
    let families: [(_, _, _, CounterField); 11] = [
        (
            "onrush_connections_accepted",
            Family::Counter,
            "Connections accepted.",
            |counters| counters.accepted.get(),
        ),
        (
            "onrush_connections_placed",
            Family::Counter,
            "Connections that began to be served by this worker, whoever accepted them.",
            |counters| counters.placed.get(),
        ),
        (
            "onrush_connections_handed_over",
            Family::Counter,
            "Connections handed over to another worker, alive.",
            |counters| counters.handed_over.get(),
        ),
        (
            "onrush_connections_taken_over",
            Family::Counter,
            "Connections taken over from another worker, alive.",
            |counters| counters.taken_over.get(),
        ),
        (
            "onrush_connections_open",
            Family::Gauge,
            "Connections open.",
            // Read in this order it is never less than nothing.
            |counters| {
                let gone = counters.done.get() + counters.handed_over.get();
                let come = counters.placed.get() + counters.taken_over.get();
                come.saturating_sub(gone)
            },
        ),
        (
            "onrush_connections_refused",
            Family::Counter,
            "Connections answered 503 because there were too many.",
            |counters| counters.refused.get(),
        ),
        (
            "onrush_heads_evicted",
            Family::Counter,
            "Partial request heads answered 408 because receive memory was short.",
            |counters| counters.evicted.get(),
        ),
        (
            "onrush_handler_panics",
            Family::Counter,
            "Handlers that panicked.",
            |counters| counters.panicked.get(),
        ),
        (
            "onrush_worker_panics",
            Family::Counter,
            "Panics of wakers, destructors and spawned tasks that the worker caught.",
            |counters| counters.caught.get(),
        ),
        (
            "onrush_worker_blocked",
            Family::Counter,
            "Event-loop iterations of more than 100 ms: a handler that computes or blocks.",
            |counters| counters.blocked.get(),
        ),
        (
            "onrush_limit_hits",
            Family::Counter,
            "Requests answered 503 because their handler was at work on as many as it may.",
            |counters| counters.limit_hits.get(),
        ),
    ];
    for (name, family, help, figure) in families {
        by_worker(text, workers, (name, family, help), |worker| {
            [(None, figure(&worker.counters))]
        });
    }
    fn kinds<K: Kind>(
        label: &'static str,
        counts: &CountBy<K>,
    ) -> impl Iterator<Item = (Option<Label<'static>>, u64)> {
        let told = move |(kind, count): (K, u64)| (Some((label, kind.name())), count);
        counts.each().map(told)
    }
    let counter = |name, help| (name, Family::Counter, help);
    let family = counter("onrush_connections_done", "Connections closed, and why.");
    by_worker(text, workers, family, |worker| {
        kinds("reason", &worker.counters.done)
    });
    let family = counter(
        "onrush_timeouts",
        "Limits on time that clients have missed.",
    );
    by_worker(text, workers, family, |worker| {
        kinds("limit", &worker.counters.timed_out)
    });
    let help = "Requests refused before a handler saw them.";
    by_worker(
        text,
        workers,
        counter("onrush_requests_rejected", help),
        |worker| kinds("http_response_status_code", &worker.counters.rejected),
    );
}

fn at_work(text: &mut Text, workers: &[Worker]) {
    let now_ms = monotonic_ms();
    let alive = || workers.iter().filter(|worker| worker.busy.is_alive());
    // Workers of two servers may have the same number.
    let mut ratios: BTreeMap<usize, u32> = BTreeMap::new();
    for worker in alive() {
        let ratio = ratios.entry(worker.index).or_default();
        *ratio = worker.busy.permille(now_ms).max(*ratio);
    }
    let help = "The share of time a worker was at work, lately.";
    text.family("onrush_worker_busy_ratio", Family::Gauge, help);
    for (index, permille) in ratios {
        let ratio = f64::from(permille) / 1000.0;
        text.sample(&[("worker", &index.to_string())], ratio);
    }
    let mut blocked: BTreeMap<usize, u64> = BTreeMap::new();
    for worker in workers {
        *blocked.entry(worker.index).or_default() += worker.counters.blocked_ms.get();
    }
    let help = "Time in event-loop iterations of more than 100 ms.";
    text.family("onrush_worker_blocked_seconds", Family::Counter, help);
    for (index, ms) in blocked {
        text.sample(&[("worker", &index.to_string())], ms as f64 / 1000.0);
    }
    let mut iterations: BTreeMap<usize, u64> = BTreeMap::new();
    for worker in alive() {
        let ms = worker.busy.iteration(now_ms).map_or(0, |(ms, _)| ms);
        let longest = iterations.entry(worker.index).or_default();
        *longest = ms.max(*longest);
    }
    let help = "How long the present event-loop iteration has taken; 0 while the worker sleeps.";
    text.family("onrush_worker_iteration_seconds", Family::Gauge, help);
    for (index, ms) in iterations {
        text.sample(&[("worker", &index.to_string())], ms as f64 / 1000.0);
    }
    let help = "Memory for receiving when the worker was last awake: posted to the kernel, kept \
                for reuse, or holding what was not dealt with yet.";
    let family = ("onrush_receive_buffer_bytes", Family::Gauge, help);
    let alive: Vec<Worker> = alive().cloned().collect();
    by_worker(text, &alive, family, |worker| {
        [(None, worker.counters.receive_bytes.get())]
    });
    let help = "Stacks of coroutines: with one on them, and kept for the next.";
    let family = ("onrush_coroutine_stacks", Family::Gauge, help);
    by_worker(text, &alive, family, |worker| {
        let stacks = &worker.stacks;
        [("in_use", stacks.in_use()), ("pooled", stacks.pooled())]
            .map(|(state, count)| (Some(("state", state)), count))
    });
    let most = alive.iter().map(|worker| worker.stacks.touched_bytes_max());
    let help = "The most memory that any one stack was seen to have touched.";
    text.family("onrush_coroutine_stack_bytes_max", Family::Gauge, help);
    text.sample(&[], most.max().unwrap_or_default());
}

/// Series of all workers that have the same labels.
#[derive(Default)]
struct Sums {
    duration_ns: HistogramSnapshot<DURATION_BUCKETS>,
    request_bytes: HistogramSnapshot<SIZE_BUCKETS>,
    response_bytes: HistogramSnapshot<SIZE_BUCKETS>,
}

fn requests(text: &mut Text, workers: &[Worker]) {
    let sum = |figure: &dyn Fn(&Requests) -> u64| -> u64 {
        workers.iter().map(|worker| figure(&worker.requests)).sum()
    };
    let help = "Requests that ended without a whole answer.";
    text.family("onrush_requests_aborted", Family::Counter, help);
    text.sample(&[], sum(&|requests| requests.aborted.get()));

    let help = "Requests being answered.";
    text.family("http_server_active_requests", Family::Gauge, help);
    for (method, name) in METHODS.iter().enumerate() {
        let over = sum(&|requests| requests.over[method].get());
        let begun = sum(&|requests| requests.begun[method].get());
        if begun > 0 {
            let labels = [("http_request_method", *name), ("url_scheme", "http")];
            text.sample(&labels, begun.saturating_sub(over));
        }
    }

    let mut series: BTreeMap<Labels, Sums> = BTreeMap::new();
    for one in workers.iter().flat_map(|worker| worker.requests.series()) {
        let sums = series.entry(one.labels.clone()).or_default();
        one.duration_ns.add_to(&mut sums.duration_ns);
        one.request_bytes.add_to(&mut sums.request_bytes);
        one.response_bytes.add_to(&mut sums.response_bytes);
    }
    let mut histograms = |name, help, write: fn(&mut Text, &[Label<'_>], &Sums)| {
        text.family(name, Family::Histogram, help);
        for (labels, sums) in &series {
            labelled(labels, |labels| write(text, labels, sums));
        }
    };
    histograms(
        "http_server_request_duration_seconds",
        "From when the worker turned to the request to its answer handed to the kernel.",
        |text, labels, sums| text.histogram(labels, duration_bounds(), &sums.duration_ns, 1e-9),
    );
    histograms(
        "http_server_request_body_size_bytes",
        "Bodies of requests, as announced.",
        |text, labels, sums| text.histogram(labels, size_bounds(), &sums.request_bytes, 1.0),
    );
    histograms(
        "http_server_response_body_size_bytes",
        "Bodies of answers whose length was known ahead.",
        |text, labels, sums| text.histogram(labels, size_bounds(), &sums.response_bytes, 1.0),
    );
}

/// Labels as OpenTelemetry names them.
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
