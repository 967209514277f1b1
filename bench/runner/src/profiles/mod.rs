//! The profiles: groups of scenarios, their servers and their targets.

mod axum;
mod events;
mod features;
mod files;
mod flood;
mod h2;
mod hello;
mod idle;
mod latency;
mod list;
mod mixed;
mod objects;
mod page;
mod scale;
mod tail;
mod tls;

use crate::{
    bench::Bench,
    pair,
    peers::{Driver, Role},
    perf,
    plan::{Pairing, Scenario, Subject, Targets},
    row::{About, Row},
};
use xtask::shell::Outcome;

/// The names of the limits for small responses.
const LIMIT_EPOLL: &str = "limit-epoll";
const LIMIT_URING: &str = "limit-uring";

/// A group of measurements with a name.
pub(crate) struct Profile {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Whether it needs a service of objects. Then it is measured only if it is named.
    pub(crate) is_remote: bool,
    steps: fn(&Bench) -> Vec<Step>,
}

/// All profiles, in the order in which they are measured.
pub(crate) const PROFILES: &[Profile] = &[
    Profile {
        name: "plaintext",
        what: "hello, 64 and 512 connections, one request at a time",
        is_remote: false,
        steps: hello::plaintext,
    },
    Profile {
        name: "pipelined",
        what: "hello, 16 and 32 deep, 64 and 760 connections; also with all requests different",
        is_remote: false,
        steps: hello::pipelined,
    },
    Profile {
        name: "close",
        what: "hello, one and ten requests per connection",
        is_remote: false,
        steps: hello::close,
    },
    Profile {
        name: "json",
        what: "a small JSON response",
        is_remote: false,
        steps: hello::json,
    },
    Profile {
        name: "echo",
        what: "POST whose body is sent back, 1 KiB and 64 KiB",
        is_remote: false,
        steps: hello::echo,
    },
    Profile {
        name: "axum",
        what: "an axum router on Onrush and on axum::serve; events, latency at a rate, memory",
        is_remote: false,
        steps: axum::axum,
    },
    Profile {
        name: "get",
        what: "files of 1 KiB to 40 MB; not in the page cache; 10,000 files; 5,000 connections",
        is_remote: false,
        steps: files::get,
    },
    Profile {
        name: "put",
        what: "uploads of 40 MB and 4 KiB: discarded, to memory, to disk; durable and not",
        is_remote: false,
        steps: objects::put,
    },
    Profile {
        name: "tls",
        what: "HTTPS: small responses, handshakes, files, uploads, and idle connections",
        is_remote: false,
        steps: tls::tls,
    },
    Profile {
        name: "h2",
        what: "HTTP/2: small responses, files, uploads, trailers, idle connections and streams, a \
            page in Chromium, latency during a flood",
        is_remote: false,
        steps: h2::h2,
    },
    Profile {
        name: "idle",
        what: "memory per idle connection, slope from 5,000 to 15,000",
        is_remote: false,
        steps: idle::idle,
    },
    Profile {
        name: "tail",
        what: "latency of 512 connections at a fixed rate, half and nine tenths of capacity",
        is_remote: false,
        steps: tail::tail,
    },
    Profile {
        name: "many",
        what: "hello, 4,096 and 15,000 active connections",
        is_remote: false,
        steps: hello::many,
    },
    Profile {
        name: "features",
        what: "hello with an access log, with metrics, and without time limits; PUT with checksums",
        is_remote: false,
        steps: features::features,
    },
    Profile {
        name: "mixed",
        what: "latency of 1 KiB GETs during uploads, streams, downloads and a pipeline",
        is_remote: false,
        steps: mixed::mixed,
    },
    Profile {
        name: "list",
        what: "first page of a folder of 100,000 entries, while other clients are served",
        is_remote: false,
        steps: list::list,
    },
    Profile {
        name: "scale",
        what: "front ends of a bucket on a Ceph cluster that it starts: GET of 1 KiB and 1 MB, \
            PUT of 4 KiB and 40 MB, added latency, memory",
        is_remote: true,
        steps: scale::scale,
    },
];

/// A part of a profile that is measured at once.
pub(crate) struct Step {
    pub(crate) profile: &'static str,
    pub(crate) title: String,
    /// Duration relative to one pair.
    pub(crate) weight: u32,
    task: Task,
}

enum Task {
    Pair(Box<Scenario>, Box<Pairing>),
    Idle(idle::Task),
    IdlePair(idle::PairTask),
    Events(events::Task),
    Tail(tail::Task),
    List(list::Task),
    Page(page::Task),
    Flood(flood::Task),
    Mixed(mixed::Task),
    Direct(scale::direct::Task),
    Memory(scale::memory::Task),
}

impl Step {
    /// Measures it. Rows that cannot be measured contain the reason.
    pub(crate) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        match &self.task {
            Task::Pair(scenario, pairing) => vec![pair::measure(bench, scenario, pairing)],
            Task::Idle(task) => task.run(bench),
            Task::IdlePair(task) => task.run(bench),
            Task::Events(task) => task.run(bench),
            Task::Tail(task) => task.run(bench),
            Task::List(task) => task.run(bench),
            Task::Page(task) => task.run(bench),
            Task::Flood(task) => task.run(bench),
            Task::Mixed(task) => task.run(bench),
            Task::Direct(task) => task.run(bench),
            Task::Memory(task) => task.run(bench),
        }
    }

    /// Whether it compares both drivers of Onrush.
    pub(crate) fn is_of_both_drivers(&self) -> bool {
        match &self.task {
            Task::Pair(_, pairing) => pairing.about == About::Driver,
            _ => false,
        }
    }

    /// Profiles the CPU of both servers. `None` if the step is not a pair.
    pub(crate) fn perf(&self, bench: &mut Bench) -> Option<Outcome<String>> {
        match &self.task {
            Task::Pair(scenario, pairing) => Some(perf::sample(bench, scenario, pairing)),
            _ => None,
        }
    }
}

impl Profile {
    /// The steps of this profile.
    pub(crate) fn steps(&self, bench: &Bench) -> Vec<Step> {
        (self.steps)(bench)
    }
}

/// The limits for both drivers, and the maximum ratio to each.
fn on_both(
    epoll: (&'static str, Option<f64>),
    uring: (&'static str, Option<f64>),
) -> Vec<(Driver, &'static str, Option<f64>)> {
    vec![
        (Driver::Epoll, epoll.0, epoll.1),
        (Driver::Uring, uring.0, uring.1),
    ]
}

/// The limits for small responses on both drivers.
fn bare(epoll: f64, uring: f64) -> Vec<(Driver, &'static str, Option<f64>)> {
    on_both((LIMIT_EPOLL, Some(epoll)), (LIMIT_URING, Some(uring)))
}

/// A step for each pair of a scenario.
fn pairs(bench: &Bench, scenario: &Scenario, targets: &Targets) -> Vec<Step> {
    let pairings = bench.field.pairings(scenario.role, targets);
    let step = |pairing: Pairing| pair_step(scenario, pairing);
    pairings.into_iter().map(step).collect()
}

/// The title of a pair. `--perf` selects pairs by it.
fn title(scenario: &str, pair: &Pairing) -> String {
    let (server, reference) = (&pair.server.label, &pair.reference.label);
    format!("{scenario}: {server} and {reference}")
}

fn pair_step(scenario: &Scenario, pairing: Pairing) -> Step {
    Step {
        profile: scenario.profile,
        title: title(&scenario.name, &pairing),
        weight: 1,
        task: Task::Pair(Box::new(scenario.clone()), Box::new(pairing)),
    }
}

/// The chosen peers that have `role`, for steps that are not pairs.
fn others(bench: &Bench, role: Role) -> Vec<Subject> {
    let chosen = bench.field.chosen.iter();
    let peers = chosen.filter_map(|name| bench.field.peer(name));
    peers
        .filter(|peer| peer.roles.contains(&role))
        .map(Subject::of)
        .collect()
}
