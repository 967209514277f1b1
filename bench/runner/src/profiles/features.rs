//! The cost of each feature: hello with a feature of the engine compared with hello without it, PUT
//! with checksums compared with PUT without them, and GET from a cache compared with GET from the
//! folder itself.

use super::{Step, files, objects, pair_step};
use crate::{
    bench::Bench,
    peers::{Driver, Role, onrush::EDGE},
    plan::{Load, Pairing, Scenario, Subject},
    row::{About, Target},
    work::Place,
    wrk::Requests,
};

/// Name, environment variable, and maximum ratio.
type Feature = (&'static str, (&'static str, &'static str), Option<f64>);

const FEATURES: &[Feature] = &[
    ("access log, text", ("APP_ACCESS_LOG", "text"), None),
    ("access log, JSON", ("APP_ACCESS_LOG", "json"), None),
    ("no time limits", ("APP_TIME_LIMITS", "off"), None),
    ("metrics", ("APP_METRICS", "on"), Some(1.02)),
];

/// Turns the checksums of objects off, which are on by default.
const NO_CHECKSUMS: (&str, &str) = ("ONRUSH_CHECKSUMS", "off");

/// Maximum ratio of PUT with checksums to PUT without them.
const CHECKSUMS_MAX: f64 = 1.03;

/// Maximum ratio of a cache that has the object.
const EDGE_MAX: f64 = 1.10;

pub(super) fn features(bench: &Bench) -> Vec<Step> {
    let target = "/";
    let deep = Load::requests(64, Requests::Get { target, depth: 16 });
    let loads = [
        ("64 connections", Load::get(64, target)),
        ("16 deep, 64 connections", deep),
    ];
    let mut steps = Vec::new();
    for (name, load) in loads
        .into_iter()
        .take(if bench.effort.quick { 1 } else { 2 })
    {
        let scenario = Scenario::new("features", name, Role::Hello, load);
        for &driver in &bench.field.drivers {
            let Some(plain) = bench.field.ours(driver) else {
                continue;
            };
            for &(name, setting, most) in FEATURES {
                let server = Subject {
                    label: format!("{}, {name}", plain.label),
                    environment: vec![setting],
                    ..plain.clone()
                };
                let pairing = Pairing {
                    about: About::Feature,
                    server,
                    reference: plain.clone(),
                    target: most.map(Target::AtMost),
                };
                steps.push(pair_step(&scenario, pairing));
            }
        }
    }
    steps.extend(checksums(bench));
    steps.extend(edge(bench));
    steps
}

/// Checksums of objects. With a type, there is an attribute also without them. A GET does the same
/// with and without them.
fn checksums(bench: &Bench) -> Vec<Step> {
    let plain = objects::small("PUT of 4 KiB, memory", Role::Put, Place::Memory);
    let typed = objects::typed("PUT of 4 KiB with a type, memory", Place::Memory);
    let mut steps = Vec::new();
    for scenario in [plain, typed] {
        let scenario = Scenario {
            profile: "features",
            ..scenario
        };
        let drivers = bench.field.drivers.iter();
        for server in drivers.filter_map(|&driver| bench.field.ours(driver)) {
            let reference = Subject {
                label: format!("{}, no checksums", server.label),
                environment: vec![NO_CHECKSUMS],
                ..server.clone()
            };
            let pairing = Pairing {
                about: About::Feature,
                server: server.clone(),
                reference,
                target: Some(Target::AtMost(CHECKSUMS_MAX)),
            };
            steps.push(pair_step(&scenario, pairing));
        }
    }
    steps
}

/// A cache in front of a folder.
fn edge(bench: &Bench) -> Vec<Step> {
    let is_measured = bench.field.drivers.contains(&Driver::Uring);
    let (Some(cache), Some(folder)) = (bench.field.peer(EDGE), bench.field.ours(Driver::Uring))
    else {
        return Vec::new();
    };
    let sizes = [("GET of 1 KiB", 1 << 10, 64), ("GET of 1 MB", 1_000_000, 8)];
    let steps = sizes.into_iter().filter(|_| is_measured);
    let steps = steps.map(|(name, bytes, connections)| {
        let scenario = Scenario {
            profile: "features",
            ..files::one(name, bytes, connections)
        };
        let pairing = Pairing {
            about: About::Feature,
            server: Subject::of(cache),
            reference: folder.clone(),
            target: Some(Target::AtMost(EDGE_MAX)),
        };
        pair_step(&scenario, pairing)
    });
    steps.collect()
}
