//! HTTP/2: small responses, files, uploads to the sink, requests with trailers, the memory of idle
//! connections and streams, a page in a browser, and latency during a flood. The reference of small
//! responses is libh2o with a constant response.

use super::{
    Step,
    files::{FILE, LARGE_BYTES, one_in},
    flood, idle, objects, page, pair_step,
};
use crate::{
    bench::Bench,
    h2load::{Requests, Shape},
    peers::Role,
    plan::{Load, Scenario, Targets},
    row::About,
    trailers,
    work::Place,
};

const CANNED: &str = "h2o-canned";

/// What a round of downloads transfers, in bytes.
const FILES_BYTES: u64 = 2_000_000_000;

/// Uploads of a round, and the connections that send them one at a time.
const UPLOADS: u32 = 24;
const UPLOADING: u32 = 8;

const IDLE: idle::Kind = idle::Kind {
    per: idle::Per::Connection,
    profile: "h2",
    role: Role::H2Hello,
    few: 1_000,
    many: 3_000,
    is_below_nginx: false,
};

/// Streams that wait: 10 to 80 on each connection, fewer than any server permits.
const WAITING: idle::Kind = idle::Kind {
    per: idle::Per::Stream(50),
    profile: "h2",
    role: Role::H2Echo,
    few: 500,
    many: 4_000,
    is_below_nginx: false,
};

/// Targets for the resident memory of an idle connection and of a waiting stream.
const IDLE_BYTES_MAX: f64 = 4.0 * 1024.0;
const WAITING_BYTES_MAX: f64 = 300.0;

/// Connections, and streams of each.
type Crowd = (u32, u32);

fn load((connections, streams): Crowd, requests: Requests) -> Load {
    Load::H2(Shape {
        connections,
        streams,
        requests,
    })
}

fn hello(name: &str, role: Role, crowd: Crowd, requests: Requests) -> Scenario {
    let mut scenario = Scenario::new("h2", name, role, load(crowd, requests));
    // Requests in flight at the end of a round are not counted.
    scenario.seconds_min = 1 + u64::from(crowd.0) / 200;
    if role == Role::H2TlsHello {
        // All handshakes take place within the round.
        scenario.seconds_min = 3;
    }
    scenario
}

/// Onrush beside libh2o, with the greatest ratio.
fn beside_canned(most: Option<f64>) -> Targets {
    Targets {
        against: vec![(CANNED, most)],
        ..Targets::default()
    }
}

/// One file in the page cache.
fn file(name: &str, bytes: u64) -> Scenario {
    let requests = Requests::Get {
        target: FILE,
        count: Some((FILES_BYTES / bytes) as u32),
    };
    let load = load((16, 32), requests);
    let mut scenario = one_in(("h2", name), Role::H2Files, load, bytes);
    scenario.seconds_min = 2;
    scenario
}

fn put() -> Scenario {
    let requests = Requests::Put {
        body_bytes: LARGE_BYTES,
        count: UPLOADS,
    };
    let load = load((UPLOADING, 1), requests);
    // The folder in memory is for the files that h2load sends.
    let name = ("h2", "PUT of 40 MB, sink");
    objects::large_by(name, Role::H2Sink, Place::Memory, load)
}

/// Small uploads that are sent back, with trailers.
fn with_trailers() -> Scenario {
    let shape = trailers::Shape {
        connections: 16,
        streams: 32,
    };
    let name = "POST of 1 KiB with trailers, 16 × 32";
    let load = Load::Trailers(shape);
    Scenario::new("h2", name, Role::H2Echo, load)
}

pub(super) fn h2(bench: &Bench) -> Vec<Step> {
    let get = || Requests::Get {
        target: "/",
        count: None,
    };
    let plain = |name, crowd| hello(name, Role::H2Hello, crowd, get());
    let tls = hello("TLS, 64 × 1", Role::H2TlsHello, (64, 1), get());
    let distinct = hello(
        "16 × 32, all different",
        Role::H2Hello,
        (16, 32),
        Requests::Distinct,
    );
    let beside = |names: &[&'static str]| Targets {
        against: names.iter().map(|&name| (name, Some(1.0))).collect(),
        ..Targets::default()
    };
    let files = || beside(&["h2o", "nginx"]);
    let all = [
        (plain("16 × 32", (16, 32)), beside_canned(Some(0.90))),
        (plain("1 × 100", (1, 100)), beside_canned(Some(0.95))),
        (plain("512 × 8", (512, 8)), beside_canned(Some(0.95))),
        (distinct, beside_canned(None)),
        (tls, beside_canned(Some(0.90))),
        (file("GET of 16 KiB", 16 * 1024), files()),
        (file("GET of 1 MB", 1_000_000), files()),
        (put(), beside(&[CANNED, "hyper"])),
        (with_trailers(), beside(&["hyper"])),
    ];
    let mut steps = Vec::new();
    for (at, (scenario, targets)) in all.iter().enumerate() {
        let mut pairings = bench.field.pairings(scenario.role, targets);
        if bench.effort.quick && at > 0 {
            // The other peers are measured with one of the plain small responses.
            let has_all = scenario.role != Role::H2Hello;
            let is_kept = |about| about == About::Feature || (has_all && about == About::Peer);
            pairings.retain(|pairing| is_kept(pairing.about));
        }
        let step = |pairing| pair_step(scenario, pairing);
        steps.extend(pairings.into_iter().map(step));
    }
    steps.push(idle::step(bench, IDLE, IDLE_BYTES_MAX));
    steps.push(idle::step(bench, WAITING, WAITING_BYTES_MAX));
    steps.extend(page::steps(bench));
    steps.extend(flood::steps(bench));
    steps
}
