//! Load by this program itself: clients that each have a thread, and what they see.

use crate::{
    probe,
    stats::{percentile, sorted},
    wrk::Report,
};
use std::{thread, time::Instant};
use xtask::shell::Outcome;

/// The measurements of one client.
#[derive(Default)]
pub(crate) struct Seen {
    times_us: Vec<f64>,
    bytes: f64,
    status: f64,
    broken: f64,
}

impl Seen {
    /// Counts a request that began at `begun`. Returns whether the client goes on: against a server
    /// that rejects everything, that would be a busy loop.
    pub(crate) fn count(&mut self, begun: Instant, response: Outcome<&probe::Response>) -> bool {
        match response {
            Ok(response) => {
                self.times_us.push(begun.elapsed().as_secs_f64() * 1e6);
                self.bytes += response.wire_bytes as f64;
                self.status += f64::from(u8::from(response.status / 100 != 2));
            }
            Err(_) => self.broken += 1.0,
        }
        self.broken <= 10.0
    }
}

/// Runs `client` with each number below `clients` at the same time.
pub(crate) fn run(clients: u32, client: impl Fn(u32) -> Seen + Sync) -> Report {
    let begun = Instant::now();
    let all: Vec<Seen> = thread::scope(|scope| {
        let client = &client;
        let start = |number| scope.spawn(move || client(number));
        let running: Vec<_> = (0..clients).map(start).collect();
        running
            .into_iter()
            .map(|client| client.join().unwrap_or_default())
            .collect()
    });
    let us = begun.elapsed().as_secs_f64() * 1e6;
    let times = sorted(all.iter().flat_map(|seen| seen.times_us.iter().copied()));
    let sum = |of: fn(&Seen) -> f64| all.iter().map(of).sum::<f64>();
    let at = |share| percentile(&times, share);
    Report {
        requests: times.len() as f64,
        bytes: sum(|seen| seen.bytes),
        us,
        read: sum(|seen| seen.broken),
        status: sum(|seen| seen.status),
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
        ..Report::default()
    }
}
