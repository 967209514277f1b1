//! CPU per event of streams that stay open (`text/event-stream`), of two servers at the same time.

use super::{Step, title};
use crate::{
    bench::{Bench, NO_TIME, ROUNDS_PER_START},
    events::Streams,
    peers::{Launch, Role},
    plan::Pairing,
    row::{Metrics, Round, Row},
    server::{Server, free_port},
    work::Place,
};
use std::{
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// Clients of each server.
const CLIENTS: u32 = 1000;

/// Length of a round, in which each client receives some events.
const ROUND: Duration = Duration::from_secs(2);

/// Time to start both servers and to open all streams.
const START: Duration = Duration::from_secs(3);

/// Time from the first event of the last stream to the first round.
const SETTLE: Duration = Duration::from_millis(500);

pub(super) struct Task {
    profile: &'static str,
    role: Role,
    pair: Pairing,
}

pub(super) fn step(profile: &'static str, role: Role, pair: Pairing) -> Step {
    Step {
        profile,
        title: title(&scenario(), &pair),
        weight: 1,
        task: super::Task::Events(Task {
            profile,
            role,
            pair,
        }),
    }
}

fn scenario() -> String {
    format!("events to {CLIENTS} clients")
}

impl Task {
    pub(super) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        let mut row = Row {
            profile: self.profile,
            scenario: scenario(),
            about: self.pair.about,
            unit: "CPU µs/event",
            server: bench.side(&self.pair.server, self.role),
            reference: bench.side(&self.pair.reference, self.role),
            access_log: "off",
            target: self.pair.target,
            ..Row::default()
        };
        let rounds = bench.effort.rounds;
        let is_over = |bench: &Bench, time| bench.clock.row_is_over(time);
        while (row.rounds.len() as u32) < rounds && !is_over(bench, START + ROUND) {
            let missing = rounds - row.rounds.len() as u32;
            let measured = self.rounds(bench, &mut row, missing.min(ROUNDS_PER_START));
            if let Err(reason) = measured {
                row.voids.push(reason);
                break;
            }
        }
        if row.rounds.is_empty() && row.voids.is_empty() {
            row.voids.push(NO_TIME.to_owned());
        }
        vec![row]
    }

    /// Starts both servers and adds up to `count` rounds to the row.
    fn rounds(&self, bench: &mut Bench, row: &mut Row, count: u32) -> Outcome {
        let server = self.start(bench, true)?;
        let reference = self.start(bench, false)?;
        let mut streams = Streams::open(CLIENTS, &[server.address, reference.address])?;
        thread::sleep(SETTLE);
        for _ in 0..count {
            if bench.clock.row_is_over(ROUND) {
                break;
            }
            let (number, scenario) = (row.rounds.len() + 1, &row.scenario);
            crate::progress(&format!("{} · {scenario}, {number}", self.profile));
            row.rounds.push(round(&server, &reference, &mut streams)?);
        }
        row.server.peak_bytes = row.server.peak_bytes.max(server.peak_bytes().ok());
        row.reference.peak_bytes = row.reference.peak_bytes.max(reference.peak_bytes().ok());
        Ok(())
    }

    fn start(&self, bench: &mut Bench, is_server: bool) -> Outcome<Server> {
        let subject = match is_server {
            true => &self.pair.server,
            false => &self.pair.reference,
        };
        if let Some(reason) = bench.missing.get(subject.peer.name) {
            return Err(reason.clone());
        }
        let launch = Launch {
            role: self.role,
            port: free_port()?,
            folder: bench.work.empty(Place::Disk)?,
            scratch: bench.work.empty(Place::Disk)?,
            connections: CLIENTS,
        };
        let named = |reason: String| format!("{}: {reason}", subject.label);
        let mut command = (subject.peer.launch)(&bench.setup, &launch).map_err(named)?;
        command.envs(subject.environment.iter().copied());
        Server::start(&command, launch.port).map_err(named)
    }
}

/// The CPU time of both servers while events arrive, by their number.
fn round(server: &Server, reference: &Server, streams: &mut Streams) -> Outcome<Round> {
    let both = [server, reference];
    let (begun, before) = (Instant::now(), both.map(Server::usage));
    let first = streams.counts()?;
    thread::sleep(ROUND);
    let after = both.map(Server::usage);
    let last = streams.counts()?;
    let seconds = begun.elapsed().as_secs_f64();
    let of = |at: usize| match last[at] - first[at] {
        events if events > 0.0 => Ok(Metrics {
            requests_per_s: events / seconds,
            ..Metrics::only(after[at].ns_since(&before[at]) / 1e3 / events)
        }),
        _ => Err("no events have arrived".to_owned()),
    };
    Ok(Round {
        server: of(0)?,
        reference: of(1)?,
    })
}
