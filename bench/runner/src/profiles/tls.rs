//! TLS 1.3 with a P-256 certificate: small responses, handshakes, files, uploads, and the memory of
//! idle connections.

use super::{
    Step,
    files::{FILE, LARGE_BYTES, one_in},
    idle, objects, on_both, pairs,
};
use crate::{
    bench::Bench,
    handshakes,
    peers::{Driver, Role},
    plan::{Load, Scenario, Targets},
    work::Place,
    wrk::Requests,
};

const LIMIT: &str = "limit-tls";
const LIMIT_CLOSE: &str = "limit-tls-close";
const LIMIT_FILE: &str = "limit-tls-file";
/// The same, but it reads the file for each response.
const LIMIT_READ: &str = "limit-tls-read";

const PEERS: [&str; 5] = ["nginx", "h2o", "lighttpd", "go", "hyper"];

/// Clients of handshakes. More would only wait for the servers' core.
const HANDSHAKING: u32 = 16;

const UPLOADING: u32 = 8;

const IDLE: idle::Kind = idle::Kind {
    per: idle::Per::Connection,
    profile: "tls",
    role: Role::TlsHello,
    few: 1_000,
    many: 5_000,
    is_below_nginx: true,
};

/// Target for the resident memory of an idle connection.
const IDLE_BYTES_MAX: f64 = 8.0 * 1024.0;

type Limits = Vec<(Driver, &'static str, Option<f64>)>;

fn limits(name: &'static str, most: Option<f64>) -> Limits {
    on_both((name, most), (name, most))
}

fn hello(name: &str, load: Load) -> Scenario {
    Scenario::new("tls", name, Role::TlsHello, load)
}

/// Small responses on kept-alive connections.
fn small(bench: &Bench) -> Vec<Step> {
    let targets = Targets {
        limits: limits(LIMIT, Some(1.08)),
        ahead_of: vec![("nginx", 1.0 / 0.72), ("hyper", 1.0 / 0.88)],
        ..Targets::default()
    };
    let numbers: &[u32] = if bench.effort.quick {
        &[64]
    } else {
        &[64, 512]
    };
    let steps = |&connections: &u32| {
        let name = format!("{connections} connections");
        let mut scenario = hello(&name, Load::get(connections, "/"));
        // All handshakes take place within the round. One costs as much as 20 to 50 requests.
        scenario.seconds_min = 3 + u64::from(connections) / 100;
        pairs(bench, &scenario, &targets)
    };
    numbers.iter().flat_map(steps).collect()
}

fn pipelined(bench: &Bench) -> Vec<Step> {
    let targets = Targets {
        limits: limits(LIMIT, None),
        ahead_of: vec![("hyper", 2.0)],
        ..Targets::default()
    };
    let (target, depth) = ("/", 16);
    let load = Load::requests(64, Requests::Get { target, depth });
    pairs(bench, &hello("16 deep, 64 connections", load), &targets)
}

fn handshakes(bench: &Bench, name: &str, load: Load) -> Vec<Step> {
    let targets = Targets {
        limits: limits(LIMIT_CLOSE, Some(1.03)),
        ahead_of: PEERS.map(|name| (name, 1.0)).to_vec(),
        ..Targets::default()
    };
    let mut scenario = hello(name, load);
    scenario.seconds_min = 2;
    pairs(bench, &scenario, &targets)
}

/// One file in the page cache.
fn file(bench: &Bench, name: &str, bytes: u64, connections: u32) -> Vec<Step> {
    let targets = Targets {
        limits: [
            limits(LIMIT_FILE, Some(1.05)),
            limits(LIMIT_READ, Some(1.05)),
        ]
        .concat(),
        ahead_of: vec![("nginx", 1.0 / 0.68), ("h2o", 1.0), ("lighttpd", 1.0)],
        ..Targets::default()
    };
    let load = Load::get(connections, FILE);
    let mut scenario = one_in(("tls", name), Role::TlsFiles, load, bytes);
    scenario.seconds_min = 2;
    pairs(bench, &scenario, &targets)
}

/// Uploads to memory. Each client replaces its own object.
fn put(bench: &Bench) -> Vec<Step> {
    let targets = Targets {
        ahead_of: vec![("nginx", 1.0), ("hyper", 1.0)],
        ..Targets::default()
    };
    let name = ("tls", "PUT of 40 MB, memory");
    let scenario = objects::large(name, Role::TlsPut, Place::Memory, UPLOADING);
    pairs(bench, &scenario, &targets)
}

pub(super) fn tls(bench: &Bench) -> Vec<Step> {
    let mut steps = small(bench);
    if !bench.effort.quick {
        steps.extend(pipelined(bench));
    }
    let clients = HANDSHAKING;
    let full = Load::Handshakes(handshakes::Shape { clients });
    steps.extend(handshakes(bench, "full handshakes", full));
    if !bench.effort.quick {
        let resumed = Load::requests(clients, Requests::Closing { every: 1 });
        steps.extend(handshakes(bench, "resumed handshakes", resumed));
    }
    steps.extend(file(bench, "GET of 1 MB", 1_000_000, 16));
    if !bench.effort.quick {
        steps.extend(file(bench, "GET of 40 MB", LARGE_BYTES, 8));
        steps.extend(put(bench));
        steps.push(idle::step(bench, IDLE, IDLE_BYTES_MAX));
    }
    steps
}
