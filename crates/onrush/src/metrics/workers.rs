//! The metrics of connections and workers.

use super::text::{Label, MetricType, TextWriter};
use super::{CountBy, Counters, Kind, WorkerSources};
use onrush_rt::worker::monotonic_ms;
use std::collections::BTreeMap;

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

pub(super) fn connections(text: &mut TextWriter, workers: &[WorkerSources]) {
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
            "Established connections transferred to another worker or process.",
            |counters| counters.handed_over.get(),
        ),
        (
            "onrush_connections_taken_over",
            MetricType::Counter,
            "Established connections transferred from another worker or process.",
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
    let help = "Connections closed because the PROXY protocol is required, by reason.";
    by_worker(
        text,
        workers,
        counter("onrush_proxy_protocol_refused", help),
        |worker| kinds("reason", &worker.counters.not_proxied),
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

pub(super) fn activity(text: &mut TextWriter, workers: &[WorkerSources]) {
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
    #[cfg(feature = "coroutine")]
    stacks(text, &alive);
}

/// The stacks of coroutines.
#[cfg(feature = "coroutine")]
fn stacks(text: &mut TextWriter, alive: &[WorkerSources]) {
    let help = "Stacks of coroutines: in use, and kept for reuse.";
    let family = ("onrush_coroutine_stacks", MetricType::Gauge, help);
    by_worker(text, alive, family, |worker| {
        let stacks = &worker.stacks;
        [("in_use", stacks.in_use()), ("pooled", stacks.pooled())]
            .map(|(state, count)| (Some(("state", state)), count))
    });
    let touched_bytes = alive.iter().map(|worker| worker.stacks.touched_bytes_max());
    let help = "Largest memory that a stack of a coroutine has touched, by samples.";
    text.family("onrush_coroutine_stack_bytes_max", MetricType::Gauge, help);
    text.sample(&[], touched_bytes.max().unwrap_or_default());
}
