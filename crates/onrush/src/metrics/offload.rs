//! The metrics of the pools for CPU-bound work: the sums over all pools.

use super::cell::{HistogramSnapshot, duration_bounds};
use super::text::{MetricType, TextWriter};
use onrush_rt::durations::Durations;
use onrush_rt::offload::{OffloadStats, StatsHandle};

/// Writes nothing if there is no pool.
pub(super) fn render(text: &mut TextWriter, pools: &[StatsHandle]) {
    if pools.is_empty() {
        return;
    }
    let stats: Vec<OffloadStats> = pools.iter().map(StatsHandle::stats).collect();
    gauges(text, &stats);
    counters(text, &stats);
    let mut write_histogram = |name, help, durations: fn(&OffloadStats) -> &Durations| {
        let mut histogram = HistogramSnapshot::default();
        stats
            .iter()
            .for_each(|stats| histogram.add(durations(stats)));
        text.family(name, MetricType::Histogram, help);
        text.histogram(&[], duration_bounds(), &histogram, 1e-9);
    };
    let help = "Waiting time of CPU jobs that were started.";
    write_histogram("onrush_offload_wait_seconds", help, |stats| &stats.wait);
    let help = "Running time of CPU jobs, in wall-clock time.";
    write_histogram("onrush_offload_run_seconds", help, |stats| &stats.run);
}

type Gauge = fn(&OffloadStats) -> usize;

fn gauges(text: &mut TextWriter, stats: &[OffloadStats]) {
    let families: [(_, _, Gauge); 3] = [
        (
            "onrush_offload_threads",
            "Threads for CPU jobs, busy and idle.",
            |stats| stats.threads,
        ),
        (
            "onrush_offload_queue_depth",
            "CPU jobs that wait for a thread.",
            |stats| stats.queued,
        ),
        ("onrush_offload_running", "CPU jobs that run.", |stats| {
            stats.running
        }),
    ];
    for (name, help, read) in families {
        text.family(name, MetricType::Gauge, help);
        text.sample(&[], stats.iter().map(read).sum::<usize>());
    }
}

fn counters(text: &mut TextWriter, stats: &[OffloadStats]) {
    let sum = |read: fn(&OffloadStats) -> u64| stats.iter().map(read).sum::<u64>();
    let help = "CPU jobs that completed.";
    text.family("onrush_offload_done", MetricType::Counter, help);
    text.sample(&[], sum(|stats| stats.done_total));

    let help = "CPU jobs that panicked.";
    text.family("onrush_offload_panicked", MetricType::Counter, help);
    text.sample(&[], sum(|stats| stats.panicked_total));

    let help = "CPU jobs refused because the queue was full or the wait too long.";
    text.family("onrush_offload_shed", MetricType::Counter, help);
    text.sample(&[("reason", "full")], sum(|stats| stats.full_total));
    text.sample(&[("reason", "late")], sum(|stats| stats.late_total));

    let help = "CPU jobs that were cancelled, by their state at that time.";
    text.family("onrush_offload_cancelled", MetricType::Counter, help);
    text.sample(&[("while", "queued")], sum(|stats| stats.dropped_total));
    text.sample(&[("while", "running")], sum(|stats| stats.cancelled_total));
}
