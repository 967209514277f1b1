//! A front end beside the gateway itself: the latency that it adds, and its rate.
//!
//! For latency, one client sends requests through the front end and directly, in turn. So both are
//! measured within the same milliseconds, and neither waits for the other.

use super::{
    super::{Step, Task as AnyTask},
    CLIENTS, LARGE_UPLOAD_BYTES, PROFILE, SMALL_UPLOAD_BYTES, front_ends,
};
use crate::{
    backend::{self, COPIES},
    bench::{Bench, NO_TIME},
    client::Protocol,
    peers::{Kind, Launch, Role, onrush::EDGE},
    plan::{Load, Subject},
    probe,
    row::{About, Metrics, Round, Row, Side, Target},
    server::{Server, free_port},
    stats::{percentile, sorted},
    work::Place,
    wrk,
};
use std::{
    io::Write,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// Target for the added median.
const ADDED_MS_MAX: f64 = 1.0;

/// Target for the rate of a cache that has the object, by that of the gateway.
const EDGE_RATE_MIN: f64 = 5.0;

/// Longest time in which no part of an upload is taken. A cluster without space takes nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// [`backend::target`] of the small object.
const DIRECT: &str = "/open/b/1k";

/// What one client does.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// Latency of `GET` of this object.
    Get(&'static str),
    /// Latency of the first `GET` of objects of this number of bytes, through an empty cache.
    First(usize),
    /// Latency of `PUT` of this number of bytes.
    Put(u64),
    /// Requests per second of `GET` of 1 KiB.
    Rate,
}

/// What is measured, its name, and the number of requests of a round.
const ALL: [(Asked, &str, u32); 7] = [
    (Asked::Get("1k"), "GET of 1 KiB, added", 200),
    (Asked::Get("1m"), "GET of 1 MB, added", 60),
    (Asked::First(1024), "first GET of 1 KiB, added", 60),
    (Asked::First(1_000_000), "first GET of 1 MB, added", 10),
    (Asked::Put(SMALL_UPLOAD_BYTES), "PUT of 4 KiB, added", 60),
    (Asked::Put(LARGE_UPLOAD_BYTES), "PUT of 40 MB, added", 4),
    (Asked::Rate, "GET of 1 KiB, rate", 0),
];

impl Asked {
    fn role(self) -> Role {
        match self {
            Asked::Put(_) => Role::RemotePut,
            Asked::Get(_) | Asked::First(_) | Asked::Rate => Role::Remote,
        }
    }

    /// The name of the object of the request with this number.
    fn object(self, number: u32) -> String {
        match self {
            Asked::Get(name) => name.to_owned(),
            Asked::First(bytes) => format!("first-{bytes}-{number}"),
            Asked::Put(_) | Asked::Rate => "upload".to_owned(),
        }
    }
}

pub(in crate::profiles) struct Task {
    asked: Asked,
    name: &'static str,
    requests: u32,
    subject: Subject,
}

pub(super) fn steps(bench: &Bench) -> Vec<Step> {
    let mut steps = Vec::new();
    for (asked, name, requests) in ALL {
        let mut subjects = front_ends(bench, asked.role());
        if matches!(asked, Asked::First(_)) {
            // Without a cache, each request is as the first.
            subjects.retain(|subject| subject.peer.name == EDGE);
        }
        for subject in subjects {
            steps.push(Step {
                profile: PROFILE,
                title: format!("{name}: {}", subject.label),
                weight: 1,
                task: AnyTask::Direct(Task {
                    asked,
                    name,
                    requests,
                    subject,
                }),
            });
        }
    }
    steps
}

impl Task {
    pub(in crate::profiles) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        let mut row = self.empty_row(bench);
        if let Err(reason) = self.measure(bench, &mut row) {
            row.voids.push(reason);
        }
        vec![row]
    }

    fn empty_row(&self, bench: &Bench) -> Row {
        let is_ours = self.subject.peer.kind == Kind::Onrush;
        let is_edge = self.subject.peer.name == EDGE;
        let (about, unit, reference) = match self.asked {
            // The reference's value is 1 ms.
            Asked::Get(_) | Asked::First(_) | Asked::Put(_) => {
                (About::Bound, "ms added to the median", "gateway + 1 ms")
            }
            Asked::Rate => (About::Feature, "requests/s", "gateway"),
        };
        Row {
            profile: PROFILE,
            scenario: self.name.to_owned(),
            about,
            unit,
            server: bench.side(&self.subject, self.asked.role()),
            reference: Side::named(reference),
            access_log: "off",
            target: match about {
                About::Bound => is_ours.then_some(Target::AtMost(ADDED_MS_MAX)),
                _ => is_edge.then_some(Target::AtLeast(EDGE_RATE_MIN)),
            },
            ..Row::default()
        }
    }

    fn measure(&self, bench: &mut Bench, row: &mut Row) -> Outcome {
        if let Some(reason) = bench.missing.get(self.subject.peer.name) {
            return Err(reason.clone());
        }
        let rounds = bench.effort.rounds;
        let launch = Launch {
            role: self.asked.role(),
            port: free_port()?,
            folder: bench.bucket(COPIES[0])?,
            scratch: bench.work.empty(Place::Disk)?,
            connections: CLIENTS,
        };
        let backend = bench.backend()?;
        let gateway = backend.service.gateway;
        if let Asked::First(bytes) = self.asked {
            for number in 0..self.requests * (rounds + 1) {
                for copy in COPIES {
                    backend.put(copy, (&self.asked.object(number), bytes))?;
                }
            }
        }
        let mut command = (self.subject.peer.launch)(&bench.setup, &launch)?;
        command.envs(self.subject.environment.iter().copied());
        let server = Server::start(&command, launch.port)?;
        // The first round warms up.
        for round in 0..=rounds {
            let next = Duration::from_secs(2);
            if bench.clock.row_is_over(next) {
                break;
            }
            let measured = match self.asked {
                Asked::Rate => self.rates(&launch, server.address, gateway)?,
                _ => self.latencies(server.address, gateway, round * self.requests)?,
            };
            if round > 0 {
                row.rounds.push(measured);
            }
        }
        row.server.peak_bytes = server.peak_bytes().ok();
        match row.rounds.is_empty() {
            true => Err(NO_TIME.to_owned()),
            false => Ok(()),
        }
    }

    /// One second of load on the gateway, and one on the front end.
    fn rates(&self, launch: &Launch, front: SocketAddr, gateway: SocketAddr) -> Outcome<Round> {
        let rate = |address, target| {
            let Load::Wrk(shape) = Load::get(CLIENTS, target) else {
                return Err("not a load of wrk".to_owned());
            };
            let running = shape.start(Protocol::Http, address, 1, &launch.scratch)?;
            let report: wrk::Report = running.finish()?;
            match report.status + report.connect + report.read + report.timeout > 0.0 {
                true => Err("requests failed".to_owned()),
                false => {
                    let rate = report.requests / report.us * 1e6;
                    Ok(Metrics::of(&report, report.requests, rate))
                }
            }
        };
        Ok(Round {
            reference: rate(gateway, DIRECT)?,
            server: rate(front, "/1k")?,
        })
    }

    /// Requests through the front end and directly, in turn. `first` is the number of the first.
    fn latencies(&self, front: SocketAddr, gateway: SocketAddr, first: u32) -> Outcome<Round> {
        let connect = |address| {
            let stream = TcpStream::connect(address);
            let limited = stream.and_then(|stream| {
                stream.set_write_timeout(Some(PATIENCE))?;
                Ok(stream)
            });
            limited.map_err(|error| error.to_string())
        };
        let mut streams = [connect(front)?, connect(gateway)?];
        let mut times = [Vec::new(), Vec::new()];
        for number in first..first + self.requests {
            let name = self.asked.object(number);
            let requests = [
                self.request(front, &format!("/{name}")),
                self.request(gateway, &backend::target(COPIES[1], &name)),
            ];
            for (at, stream) in streams.iter_mut().enumerate() {
                let begun = Instant::now();
                let sent = stream.write_all(&requests[at]);
                sent.map_err(|error| error.to_string())?;
                let response = probe::receive(stream, &mut Vec::new())?;
                times[at].push(begun.elapsed().as_secs_f64() * 1e6);
                if response.status / 100 != 2 {
                    return Err(format!("status {}", response.status));
                }
            }
        }
        let of = |times: Vec<f64>| {
            let rate = times.len() as f64 / times.iter().sum::<f64>() * 1e6;
            let times = sorted(times);
            Metrics {
                value: 1.0,
                requests_per_s: rate,
                p50_us: percentile(&times, 0.5),
                p99_us: percentile(&times, 0.99),
                p999_us: f64::NAN,
            }
        };
        let [server, reference] = times.map(of);
        let added = (server.p50_us - reference.p50_us) / 1e3;
        Ok(Round {
            server: Metrics {
                value: added,
                ..server
            },
            reference,
        })
    }

    /// The request for `target`.
    fn request(&self, address: SocketAddr, target: &str) -> Vec<u8> {
        let host = format!("{target} HTTP/1.1\r\nHost: {address}\r\n");
        match self.asked {
            Asked::Put(bytes) => {
                let head = format!("PUT {host}Content-Length: {bytes}\r\n\r\n");
                [head.into_bytes(), vec![b'x'; bytes as usize]].concat()
            }
            Asked::Get(_) | Asked::First(_) | Asked::Rate => format!("GET {host}\r\n").into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gateway_is_asked_for_the_same_object() {
        assert_eq!(DIRECT, backend::target(COPIES[1], "1k"));
    }
}
