//! The cost of each feature of the engine: hello with the feature compared with hello without it.

use super::{Step, pair_step};
use crate::{
    bench::Bench,
    peers::Role,
    plan::{Load, Pairing, Scenario, Subject},
    row::{About, Target},
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
    steps
}
