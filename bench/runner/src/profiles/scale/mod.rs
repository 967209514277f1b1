//! Front ends of a bucket on a real Ceph cluster: CPU per request beside other front ends, latency
//! and rate beside the gateway itself, and memory during many large transfers.

pub(super) mod direct;
pub(super) mod memory;

use super::{Step, others, pairs};
use crate::{
    bench::Bench,
    peers::{Kind, Peer, Role},
    plan::{Content, Load, Scenario, Subject, Targets},
    uploads,
};

const PROFILE: &str = "scale";

/// Clients of small requests. The gateway is busy with fewer.
const CLIENTS: u32 = 16;
/// Clients that GET 1 MB.
const LARGE_CLIENTS: u32 = 8;
/// Clients that PUT 40 MB. Each byte is written three times to the same disk.
const UPLOADING: u32 = 2;

const SMALL_UPLOAD_BYTES: u64 = 4096;
const LARGE_UPLOAD_BYTES: u64 = 40_000_000;

/// Rounds of the rows that write gigabytes.
const UPLOAD_ROUNDS_MAX: u32 = 5;

fn get(name: &str, clients: u32, target: &'static str) -> Scenario {
    let mut scenario = Scenario::new(PROFILE, name, Role::Remote, Load::get(clients, target));
    scenario.content = Content::Bucket;
    // The gateway's fields of a response have no constant length.
    scenario.slack = 0.1;
    scenario.seconds_min = 2;
    scenario
}

/// Each client replaces its own object.
fn put(name: &str, clients: u32, body_bytes: u64) -> Scenario {
    let shape = uploads::Shape {
        clients,
        body_bytes,
        fresh: false,
        has_type: false,
        count: None,
    };
    let mut scenario = Scenario::new(PROFILE, name, Role::RemotePut, Load::Uploads(shape));
    scenario.content = Content::Bucket;
    scenario.slack = 1.0; // Responses differ for new and for replaced objects.
    scenario.seconds_min = 2;
    scenario
}

pub(super) fn scale(bench: &Bench) -> Vec<Step> {
    let mut steps = Vec::new();
    let targets = Targets {
        ahead_of: vec![("rclone", 2.0)],
        ..Targets::default()
    };
    let mut large = put("PUT of 40 MB", UPLOADING, LARGE_UPLOAD_BYTES);
    large.rounds_max = UPLOAD_ROUNDS_MAX;
    large.volume_bytes = Some(LARGE_UPLOAD_BYTES);
    for scenario in [
        get("GET of 1 KiB", CLIENTS, "/1k"),
        get("GET of 1 MB", LARGE_CLIENTS, "/1m"),
        put("PUT of 4 KiB", CLIENTS, SMALL_UPLOAD_BYTES),
        large,
    ] {
        steps.extend(pairs(bench, &scenario, &targets));
    }
    steps.extend(direct::steps(bench));
    steps.extend(memory::steps(bench));
    steps
}

/// Every configuration of Onrush on each driver, and the peers that have `role`. An entry of
/// `peers::onrush::OURS` is all that a further configuration needs.
fn front_ends(bench: &Bench, role: Role) -> Vec<Subject> {
    let drivers = &bench.field.drivers;
    let is_ours = |peer: &&&Peer| {
        let is_measured = peer.driver.is_some_and(|driver| drivers.contains(&driver));
        peer.kind == Kind::Onrush && is_measured && peer.roles.contains(&role)
    };
    let ours = bench.field.all.iter().filter(is_ours);
    let ours = ours.map(|peer| Subject::of(peer));
    ours.chain(others(bench, role)).collect()
}
