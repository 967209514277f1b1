//! Uploads of objects: discarded, to memory, to disk, durable and not.

use super::{Step, files::LARGE_BYTES, on_both, pairs};
use crate::{
    bench::Bench,
    peers::Role,
    plan::{Content, Load, Scenario, Targets},
    uploads::Shape,
    work::Place,
};

const DRAIN: &str = "limit-drain";
const STORE: &str = "limit-store";

/// Clients, as in the experiment that led to Onrush.
const CLIENTS: u32 = 32;

/// Permits any length: responses differ for new and for replaced objects. The load itself checks
/// that each response is complete and has a status 2xx.
const ANY_LENGTH: f64 = 1.0;

/// Rounds of a row that writes gigabytes to a disk.
const DISK_ROUNDS_MAX: u32 = 7;

/// Uploads of 40 MB. Each client replaces its own object, which limits the memory. `name` is that
/// of the profile, and that of the scenario.
pub(super) fn large(
    name: (&'static str, &str),
    role: Role,
    place: Place,
    clients: u32,
) -> Scenario {
    let shape = Shape {
        clients,
        body_bytes: LARGE_BYTES,
        fresh: false,
        has_type: false,
        count: None,
    };
    large_by(name, role, place, Load::Uploads(shape))
}

/// Uploads of 40 MB by any load.
pub(super) fn large_by(
    name: (&'static str, &str),
    role: Role,
    place: Place,
    load: Load,
) -> Scenario {
    let mut scenario = Scenario::new(name.0, name.1, role, load);
    scenario.content = Content::Uploads(place);
    scenario.slack = ANY_LENGTH;
    scenario.volume_bytes = Some(LARGE_BYTES);
    scenario.seconds_min = 3;
    if place == Place::Disk {
        scenario.rounds_max = DISK_ROUNDS_MAX;
    }
    scenario
}

/// Uploads of 4 KiB from 32 clients. Each object is new.
pub(super) fn small(name: &str, role: Role, place: Place) -> Scenario {
    let shape = Shape {
        clients: CLIENTS,
        body_bytes: 4096,
        fresh: true,
        has_type: false,
        count: None,
    };
    let mut scenario = Scenario::new("put", name, role, Load::Uploads(shape));
    scenario.content = Content::Uploads(place);
    scenario.slack = ANY_LENGTH;
    scenario
}

/// As [`small`] to memory, but each client replaces its own object.
fn replacing() -> Scenario {
    let mut scenario = small("4 KiB, memory, replaced", Role::Put, Place::Memory);
    if let Load::Uploads(shape) = &mut scenario.load {
        shape.fresh = false;
    }
    scenario
}

/// As [`small`], with a `Content-Type` that is stored.
pub(super) fn typed(name: &str, place: Place) -> Scenario {
    let mut scenario = small(name, Role::Put, place);
    if let Load::Uploads(shape) = &mut scenario.load {
        shape.has_type = true;
    }
    scenario
}

pub(super) fn put(bench: &Bench) -> Vec<Step> {
    let sink = Targets {
        limits: on_both((DRAIN, Some(1.20)), (DRAIN, Some(1.20))),
        ..Targets::default()
    };
    // `share`: our CPU by that of nginx.
    let store = |share: f64| Targets {
        ahead_of: vec![(STORE, 1.0), ("nginx", 1.0 / share), ("lighttpd", 1.0)],
        also: vec![STORE],
        ..Targets::default()
    };
    let large = |name, role, place| large(("put", name), role, place, CLIENTS);
    let to_sink = large("40 MB, sink", Role::Sink, Place::Memory);
    let mut steps = pairs(bench, &to_sink, &sink);
    let small_memory = small("4 KiB, memory", Role::Put, Place::Memory);
    if bench.effort.quick {
        steps.extend(pairs(bench, &small_memory, &store(0.90)));
        return steps;
    }
    let all = [
        (large("40 MB, memory", Role::Put, Place::Memory), 0.80),
        (large("40 MB, disk", Role::Put, Place::Disk), 0.80),
        (small_memory, 0.90),
        (replacing(), 0.90),
        (
            small("4 KiB, memory, durable", Role::PutDurable, Place::Memory),
            1.0,
        ),
        (small("4 KiB, disk", Role::Put, Place::Disk), 1.0),
        (
            small("4 KiB, disk, durable", Role::PutDurable, Place::Disk),
            0.85,
        ),
    ];
    for (scenario, share) in &all {
        steps.extend(pairs(bench, scenario, &store(*share)));
    }
    steps
}
