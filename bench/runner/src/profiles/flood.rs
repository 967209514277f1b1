//! Latency of small GETs while one client sends requests over HTTP/2 and takes each back at once.

use super::{
    Step,
    latency::{Asked, CONNECTIONS, Priority},
    others,
};
use crate::{
    bench::{Bench, NO_TIME},
    flood::{Running, Sent},
    peers::{Kind, Launch, Role},
    plan::Subject,
    row::{About, Round, Row, Side, Target},
    server::{Server, free_port},
    work::Place,
};
use std::time::Duration;
use xtask::shell::{Outcome, cargo, run};

/// Requests per second: the whole flood in one second, again and again, and as many as possible.
const RATES: [u32; 2] = [100_000, 0];

/// Requests that the client sends at least in a round.
const REQUESTS: u64 = 100_000;

/// The small GETs.
const ASKED: Asked = Asked {
    path: "/",
    length: 13,
};

/// The peers that speak both versions on one port, as the small GETs need.
const PEERS: [&str; 4] = ["go", "h2o", "h2o-canned", "caddy"];

/// The windows without and with the flood.
const ALONE: Duration = Duration::from_secs(3);
const FLOODED: Duration = Duration::from_secs(6);

/// Estimated time for a round, with the start of the server.
const ROUND: Duration = Duration::from_secs(12);

/// Number of rounds that are repeated at most because the generator was late.
const REPEATS_MAX: u32 = 3;

/// Target for the 99th percentile with the flood by that without it.
const FACTOR_MAX: f64 = 3.0;

pub(super) struct Task {
    subject: Subject,
    per_second: u32,
}

pub(super) fn steps(bench: &Bench) -> Vec<Step> {
    let drivers = bench.field.drivers.iter();
    let ours = drivers.filter_map(|&driver| bench.field.ours(driver));
    let others = others(bench, Role::H2Hello).into_iter();
    let others = others.filter(|other| PEERS.contains(&other.peer.name));
    let subjects: Vec<Subject> = ours.chain(others).collect();
    let step = |per_second: u32, subject: &Subject| Step {
        profile: "h2",
        title: format!("{}: {}", scenario(per_second), subject.label),
        weight: 3,
        task: super::Task::Flood(Task {
            subject: subject.clone(),
            per_second,
        }),
    };
    let at = |per_second| {
        subjects
            .iter()
            .map(move |subject| step(per_second, subject))
    };
    RATES.into_iter().flat_map(at).collect()
}

fn scenario(per_second: u32) -> String {
    match per_second {
        0 => "p99 while requests are taken back, as many as possible".to_owned(),
        rate => format!("p99 while {rate} requests a second are taken back"),
    }
}

impl Task {
    pub(super) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        let is_ours = self.subject.peer.kind == Kind::Onrush;
        let mut row = Row {
            profile: "h2",
            scenario: scenario(self.per_second),
            about: About::Feature,
            unit: "µs",
            server: bench.side(&self.subject, Role::H2Hello),
            reference: Side::named("without them"),
            access_log: "off",
            target: (is_ours && self.per_second > 0).then_some(Target::AtMost(FACTOR_MAX)),
            ..Row::default()
        };
        if let Err(reason) = self.measure(bench, &mut row) {
            row.voids.push(reason);
        }
        vec![row]
    }

    fn measure(&self, bench: &mut Bench, row: &mut Row) -> Outcome {
        if let Some(reason) = bench.missing.get(self.subject.peer.name) {
            return Err(reason.clone());
        }
        run(&mut cargo("build --profile=dist --quiet -p load"))?;
        let wanted = bench.effort.rounds;
        let mut all = Sent::default();
        for _ in 0..wanted + REPEATS_MAX {
            if row.rounds.len() as u32 == wanted {
                break;
            }
            if bench.clock.row_is_over(ROUND) {
                row.voids.push(NO_TIME.to_owned());
                break;
            }
            let number = row.rounds.len() + 1;
            crate::progress(&format!(
                "h2 · {}: {}, {number}",
                row.scenario, self.subject.label
            ));
            match self.round(bench)? {
                Ok((round, sent)) => {
                    row.rounds.push(round);
                    all.requests += sent.requests;
                    all.connections += sent.connections;
                }
                Err(reason) => row.voids.push(reason),
            }
        }
        if let Some(rounds) = Some(row.rounds.len() as u64).filter(|&rounds| rounds > 0) {
            let (requests, connections) = (all.requests / rounds, all.connections / rounds);
            row.note = format!("{requests} requests on {connections} connections in a round");
        }
        Ok(())
    }

    /// The round and what the client has sent, or why the round is void.
    fn round(&self, bench: &mut Bench) -> Outcome<Result<(Round, Sent), String>> {
        let launch = Launch {
            role: Role::H2Hello,
            port: free_port()?,
            folder: bench.work.empty(Place::Memory)?,
            scratch: bench.work.empty(Place::Memory)?,
            connections: CONNECTIONS + 64,
        };
        let command = (self.subject.peer.launch)(&bench.setup, &launch)?;
        let server = Server::start(&command, launch.port)?;
        let priority = Priority::permitted();
        let measure = |time| ASKED.measure(&bench.setup, &server, priority, time);
        let (alone, _) = measure(ALONE)?;
        let prepare = |command| priority.background(command);
        let flood = Running::start(server.address, self.per_second, prepare)?;
        let (flooded, _) = measure(FLOODED)?;
        let sent = flood.finish()?;
        if alone.is_late || flooded.is_late {
            let late = alone.late_us.max(flooded.late_us);
            return Ok(Err(format!("generator late by {late:.0} µs (p99)")));
        }
        if sent.requests < REQUESTS {
            return Ok(Err(format!("only {} requests were sent", sent.requests)));
        }
        let round = Round {
            server: flooded.metrics(flooded.p99_us),
            reference: alone.metrics(alone.p99_us),
        };
        Ok(Ok((round, sent)))
    }
}
