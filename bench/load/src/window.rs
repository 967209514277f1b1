//! Runs one window of load on one or more servers at a time, and computes the results of each.

use crate::{
    arrivals::Arrivals,
    schedule::{Order, Schedule},
    server::{Server, Watch},
};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::{
    io,
    time::{Duration, Instant},
};

/// Time after the end of a window in which responses are still awaited.
const GRACE: Duration = Duration::from_secs(1);

/// Time before a request is due in which the generator polls instead of sleeping, because a wake-up
/// takes about as long.
const POLLING_NS: u64 = 50_000;

/// Longest sleep of a closed loop.
const CLOSED_PATIENCE: Duration = Duration::from_millis(10);

/// Upper limit of the latency histogram, in nanoseconds.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Share of the requests that need a response in time; below it the window is marked.
const ACHIEVED_MIN: f64 = 0.98;

/// The parameters of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) length: Duration,
    /// Requests due in this time at the start do not count.
    pub(crate) warm_up: Duration,
    /// A window in which the generator's delay exceeds this (99th percentile) is marked.
    pub(crate) late_max: Duration,
    /// Which idle connection carries the next request.
    pub(crate) order: Order,
}

impl Plan {
    /// The part of the window that counts, in seconds.
    fn counted_seconds(&self) -> f64 {
        (self.length - self.warm_up).as_secs_f64()
    }
}

/// The results of an open-loop window. Latencies are measured from the due time.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Open {
    /// Requests due after the warm-up.
    pub(crate) requests: u64,
    /// Wrong responses, failed connections and requests without a response, warm-up included.
    pub(crate) errors: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// Correct responses per second between the warm-up and the end.
    pub(crate) achieved_rate: f64,
    /// The generator's delay for requests that did not have to wait for a connection.
    pub(crate) late_us_p99: f64,
    pub(crate) late_us_max: f64,
    /// Why the window should not count: `generator late`, `rate not achieved`, `errors`.
    pub(crate) marks: Vec<&'static str>,
}

/// The results of a closed-loop window.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Closed {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) requests_per_second: f64,
}

/// Sends requests to each server at the times of its own arrivals, however fast the server is.
/// `arrivals` and the result have one entry for each of `servers`.
///
/// # Errors
/// As epoll fails, or renewing connections that failed before.
pub(crate) fn open(
    watch: &mut Watch,
    servers: &mut [Server],
    arrivals: Vec<Arrivals>,
    plan: &Plan,
) -> io::Result<Vec<Open>> {
    for server in servers.iter_mut() {
        server.renew(watch)?;
    }
    let (end, warm_up) = (nanos(plan.length), nanos(plan.warm_up));
    let schedules = arrivals.into_iter().zip(servers.iter());
    let schedules = schedules
        .map(|(arrivals, server)| Schedule::new(arrivals, server.len(), end, plan.order))
        .collect();
    let mut load = Load {
        seen: servers.iter().map(|_| Seen::new(warm_up, end)).collect(),
        servers,
        schedules,
        begin: Instant::now(),
    };
    let last = end + nanos(GRACE);
    let mut now = 0;
    while now < last && !load.schedules.iter().all(Schedule::is_over) {
        now = load.send_due();
        let next = load.next_send_ns().map_or(last, |(next, _)| next.min(last));
        let sleep = next.saturating_sub(now + POLLING_NS);
        for event in 0..watch.poll(Duration::from_nanos(sleep))? {
            let (which, connection) = watch.event(event);
            if let Some(is_right) = load.servers[which].receive(watch, connection) {
                now = load.over(which, connection, is_right);
                now = now.max(load.send_due());
            }
        }
    }
    let Load {
        mut schedules,
        mut seen,
        ..
    } = load;
    for (schedule, seen) in schedules.iter_mut().zip(&mut seen) {
        for due in schedule.outstanding(now) {
            seen.over(due, now, false);
        }
    }
    Ok(seen.iter().map(|seen| seen.result(plan)).collect())
}

/// An open-loop window in progress.
struct Load<'s> {
    servers: &'s mut [Server],
    schedules: Vec<Schedule>,
    seen: Vec<Seen>,
    begin: Instant,
}

impl Load<'_> {
    /// The time of the next send, and its server.
    fn next_send_ns(&self) -> Option<(u64, usize)> {
        let schedules = self.schedules.iter().enumerate();
        schedules
            .filter_map(|(which, schedule)| Some((schedule.next_send_ns()?, which)))
            .min()
    }

    /// Sends every request that is due and has a connection, the oldest first. Returns the time
    /// afterwards.
    fn send_due(&mut self) -> u64 {
        let mut now = nanos(self.begin.elapsed());
        while let Some((_, which)) = self.next_send_ns().filter(|(next, _)| *next <= now) {
            let (schedule, seen) = (&mut self.schedules[which], &mut self.seen[which]);
            if let Some(send) = schedule.next(now) {
                seen.sent(send.due_ns, send.late_ns);
                if !self.servers[which].send(send.connection) {
                    // The connection becomes idle again, and each further request on it fails at
                    // once.
                    schedule.done(send.connection, now);
                    seen.over(send.due_ns, now, false);
                }
            }
            now = nanos(self.begin.elapsed());
        }
        now
    }

    /// Records that a request has its response or has failed. Returns the time.
    fn over(&mut self, which: usize, connection: usize, is_right: bool) -> u64 {
        let now = nanos(self.begin.elapsed());
        if let Some(due) = self.schedules[which].done(connection, now) {
            self.seen[which].over(due, now, is_right);
        }
        now
    }
}

/// Keeps every connection to all servers busy for a window.
///
/// # Errors
/// As [`open`].
pub(crate) fn closed(
    watch: &mut Watch,
    servers: &mut [Server],
    plan: &Plan,
) -> io::Result<Vec<Closed>> {
    let (mut requests, mut errors) = (vec![0; servers.len()], vec![0; servers.len()]);
    for server in servers.iter_mut() {
        server.renew(watch)?;
    }
    let begin = Instant::now();
    for (server, errors) in servers.iter_mut().zip(&mut errors) {
        for connection in 0..server.len() {
            *errors += u64::from(!server.send(connection));
        }
    }
    // The next window begins with all connections idle.
    let is_busy = |servers: &[Server]| servers.iter().any(Server::is_busy);
    while is_busy(servers) && begin.elapsed() < plan.length + GRACE {
        let elapsed = begin.elapsed();
        for event in 0..watch.poll(CLOSED_PATIENCE)? {
            let (which, connection) = watch.event(event);
            let Some(is_right) = servers[which].receive(watch, connection) else {
                continue;
            };
            errors[which] += u64::from(!is_right);
            if elapsed < plan.length {
                requests[which] += u64::from(is_right && elapsed >= plan.warm_up);
                servers[which].send(connection);
            }
        }
    }
    let results = requests.into_iter().zip(errors);
    Ok(results
        .map(|(requests, errors)| Closed {
            requests,
            errors,
            requests_per_second: requests as f64 / plan.counted_seconds(),
        })
        .collect())
}

/// Measurements of one server in an open-loop window.
struct Seen {
    warm_up: u64,
    end: u64,
    requests: u64,
    errors: u64,
    in_time_count: u64,
    latency: Histogram<u64>,
    late: Histogram<u64>,
}

impl Seen {
    fn new(warm_up: u64, end: u64) -> Seen {
        let histogram =
            || Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("constant bounds are valid");
        Seen {
            warm_up,
            end,
            requests: 0,
            errors: 0,
            in_time_count: 0,
            latency: histogram(),
            late: histogram(),
        }
    }

    fn sent(&mut self, due: u64, late: Option<u64>) {
        if let Some(late) = late.filter(|_| due >= self.warm_up) {
            self.late.saturating_record(late);
        }
    }

    /// Records the end of a request. The latency of a failed request is the time until its failure.
    fn over(&mut self, due: u64, now: u64, is_right: bool) {
        self.errors += u64::from(!is_right);
        let in_time = (self.warm_up..self.end).contains(&now);
        self.in_time_count += u64::from(is_right && in_time);
        if due >= self.warm_up {
            self.requests += 1;
            self.latency.saturating_record(now.saturating_sub(due));
        }
    }

    fn result(&self, plan: &Plan) -> Open {
        let us = |histogram: &Histogram<u64>, quantile: f64| {
            histogram.value_at_quantile(quantile) as f64 / 1e3
        };
        let mut marks = Vec::new();
        let late_us_p99 = us(&self.late, 0.99);
        if late_us_p99 > plan.late_max.as_secs_f64() * 1e6 {
            marks.push("generator late");
        }
        if (self.in_time_count as f64) < self.requests as f64 * ACHIEVED_MIN {
            marks.push("rate not achieved");
        }
        if self.errors > 0 {
            marks.push("errors");
        }
        Open {
            requests: self.requests,
            errors: self.errors,
            p50_us: us(&self.latency, 0.5),
            p99_us: us(&self.latency, 0.99),
            p999_us: us(&self.latency, 0.999),
            max_us: self.latency.max() as f64 / 1e3,
            achieved_rate: self.in_time_count as f64 / plan.counted_seconds(),
            late_us_p99,
            late_us_max: self.late.max() as f64 / 1e3,
            marks,
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan {
        length: Duration::from_secs(2),
        warm_up: Duration::from_secs(1),
        late_max: Duration::from_micros(100),
        order: Order::LastUsed,
    };
    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_warm_up_does_not_count() {
        let mut seen = Seen::new(SECOND, 2 * SECOND);
        seen.over(10, 500, true);
        for k in 0..100 {
            let due = SECOND + k * 1000;
            seen.sent(due, Some(10));
            seen.over(due, due + 20_000, true);
        }
        let result = seen.result(&PLAN);
        assert_eq!((result.requests, result.errors), (100, 0));
        assert!((result.p50_us - 20.0).abs() < 0.1 && (result.max_us - 20.0).abs() < 0.1);
        assert!((result.achieved_rate - 100.0).abs() < 1e-9);
        assert!(result.marks.is_empty());
    }

    #[test]
    fn problems_mark_a_window() {
        let mut seen = Seen::new(SECOND, 2 * SECOND);
        for _ in 0..50 {
            seen.sent(SECOND, Some(200_000));
            seen.over(SECOND, SECOND + 1, true);
            seen.over(SECOND, 2 * SECOND + 1, true);
        }
        seen.over(SECOND, 2 * SECOND + 1, false);
        let marks = seen.result(&PLAN).marks;
        assert_eq!(marks, ["generator late", "rate not achieved", "errors"]);
    }
}
