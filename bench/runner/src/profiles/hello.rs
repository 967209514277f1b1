//! Small responses from memory, which show the cost of the engine itself.

use super::{Step, bare, on_both, pairs};
use crate::{
    bench::Bench,
    peers::Role,
    plan::{Expect, Load, Scenario, Targets},
    wrk::{Requests, TENTH},
};

/// Servers that need more CPU than Onrush. The first entry of a server counts.
const AHEAD_OF: [(&str, f64); 4] = [
    ("hyper", 1.0),
    ("nginx", 1.0),
    ("h2o", 1.0),
    ("lighttpd", 1.0),
];

pub(super) fn plaintext(bench: &Bench) -> Vec<Step> {
    let targets = Targets {
        limits: bare(1.05, 1.05),
        ahead_of: AHEAD_OF.to_vec(),
        ..Targets::default()
    };
    let mut steps = Vec::new();
    for connections in [64, 512]
        .into_iter()
        .take(if bench.effort.quick { 1 } else { 2 })
    {
        let name = format!("{connections} connections");
        let load = Load::get(connections, "/");
        let scenario = Scenario::new("plaintext", &name, Role::Hello, load);
        steps.extend(pairs(bench, &scenario, &targets));
    }
    steps
}

pub(super) fn pipelined(bench: &Bench) -> Vec<Step> {
    let targets = Targets {
        limits: bare(1.15, 1.08),
        ahead_of: [
            &[("hyper", 2.0), ("may_minihttp", 1.0)],
            AHEAD_OF.as_slice(),
        ]
        .concat(),
        ..Targets::default()
    };
    let all = [(16, 64), (32, 64), (16, 760), (32, 760)];
    let all = all.into_iter().take(if bench.effort.quick { 1 } else { 4 });
    let mut steps = Vec::new();
    for (depth, connections) in all {
        let name = format!("{depth} deep, {connections} connections");
        let target = "/";
        let load = Load::requests(connections, Requests::Get { target, depth });
        let scenario = Scenario::new("pipelined", &name, Role::Hello, load);
        steps.extend(pairs(bench, &scenario, &targets));
    }
    // Onrush does not parse a head again that equals the previous one. This row measures requests
    // that all differ. The limits parse every head, so there is no target relative to them.
    let load = Load::requests(64, Requests::Distinct { depth: 16 });
    let scenario = Scenario::new("pipelined", "16 deep, all different", Role::Hello, load);
    let targets = Targets {
        limits: on_both((super::LIMIT_EPOLL, None), (super::LIMIT_URING, None)),
        ahead_of: AHEAD_OF.to_vec(),
        ..Targets::default()
    };
    steps.extend(pairs(bench, &scenario, &targets));
    steps
}

pub(super) fn close(bench: &Bench) -> Vec<Step> {
    let ahead_of = vec![("h2o", 1.0), ("nginx", 1.0), ("hyper", 1.0)];
    let each = Targets {
        limits: on_both(
            ("limit-epoll-close", Some(1.06)),
            ("limit-uring-close", Some(1.06)),
        ),
        ahead_of: ahead_of.clone(),
        ..Targets::default()
    };
    let load = Load::requests(64, Requests::Closing { every: 1 });
    let scenario = Scenario::new("close", "one request per connection", Role::Hello, load);
    let mut steps = pairs(bench, &scenario, &each);
    if bench.effort.quick {
        return steps;
    }
    let tenth = Targets {
        limits: on_both(
            ("limit-epoll-asked", Some(1.06)),
            ("limit-uring-asked", Some(1.06)),
        ),
        ahead_of,
        ..Targets::default()
    };
    let load = Load::requests(64, Requests::Closing { every: TENTH });
    let mut scenario = Scenario::new("close", "ten requests per connection", Role::Hello, load);
    // One of ten responses has `Connection: close`.
    scenario.slack = 0.03;
    steps.extend(pairs(bench, &scenario, &tenth));
    steps
}

pub(super) fn json(bench: &Bench) -> Vec<Step> {
    let targets = Targets {
        ahead_of: AHEAD_OF.to_vec(),
        ..Targets::default()
    };
    let scenario = Scenario::new("json", "64 connections", Role::Json, Load::get(64, "/json"));
    pairs(bench, &scenario, &targets)
}

pub(super) fn echo(bench: &Bench) -> Vec<Step> {
    let targets = Targets {
        ahead_of: AHEAD_OF.to_vec(),
        ..Targets::default()
    };
    let mut steps = Vec::new();
    let sizes = [("1 KiB", 1 << 10), ("64 KiB", 64 << 10)];
    for (size, body_bytes) in sizes {
        let target = "/echo";
        let load = Load::requests(64, Requests::Post { target, body_bytes });
        let mut scenario = Scenario::new("echo", size, Role::Echo, load);
        scenario.expect = Expect::BodyBytes(u64::from(body_bytes));
        scenario.volume_bytes = (body_bytes > 1 << 14).then_some(u64::from(body_bytes));
        steps.extend(pairs(bench, &scenario, &targets));
    }
    steps
}

pub(super) fn many(bench: &Bench) -> Vec<Step> {
    let targets = Targets {
        limits: bare(1.10, 1.10),
        ..Targets::default()
    };
    let mut steps = Vec::new();
    for connections in [4_096, 15_000]
        .into_iter()
        .take(if bench.effort.quick { 1 } else { 2 })
    {
        let name = format!("{connections} connections");
        let load = Load::get(connections, "/");
        let scenario = Scenario::new("many", &name, Role::Hello, load);
        steps.extend(pairs(bench, &scenario, &targets));
    }
    steps
}
