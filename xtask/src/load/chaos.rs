//! Reads, writes and removals of the same few objects at the same time, as fast as the server
//! responds. Nothing disturbs the server, so no request may fail.

use super::{Counts, Plan, Running};
use std::fmt;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// A quarter of the changes are removals, so a reader finds each object new, replaced or absent.
const PLAN: Plan = Plan {
    writers: 16,
    readers: 64,
    keys: 64,
    changers: 8,
    groups: 2,
    removals: Some(4),
    parts: Some(8),
    lengths: &LENGTHS,
    pause: Duration::ZERO,
};
/// Lengths of bodies: those of one job, and longer ones that are written and sent in steps.
const LENGTHS: [usize; 61] = {
    let mut lengths = [3_000; 61];
    lengths[7] = 20_000;
    lengths[23] = 70_000;
    lengths[37] = 300_000;
    lengths[53] = 1_200_000;
    lengths
};
/// Without a read for this long, the server hangs.
const QUIET_MAX: Duration = Duration::from_secs(120);

/// What was done and checked.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// The requests.
    pub counts: Counts,
    /// Conditional changes and reads whose order was checked.
    pub events: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            written,
            removed,
            read,
            changed,
            ..
        } = self.counts;
        write!(
            f,
            "{read} reads, {written} writes, {removed} removals, {changed} conditional changes; \
             {} events are linearizable",
            self.events
        )
    }
}

/// Runs the clients until they have read `reads` times. Fails with what is wrong.
pub fn run(server: SocketAddr, reads: usize) -> Result<Summary, String> {
    let running = Running::start(server, PLAN);
    let (mut last, mut since) = (Counts::default(), Instant::now());
    while last.read < reads && running.load.all_wrong().is_empty() {
        thread::sleep(Duration::from_millis(100));
        let now = running.load.counts();
        if now.read > last.read {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > QUIET_MAX {
            return Err(format!(
                "no read for {QUIET_MAX:?}: {:?}",
                running.load.failures()
            ));
        }
    }
    let (load, counts) = (running.load.clone(), running.load.counts());
    let (_, events) = running.end(&[server])?;
    match load.failures() {
        failures if failures.is_empty() => Ok(Summary { counts, events }),
        failures => Err(format!("requests failed: {failures:?}")),
    }
}
