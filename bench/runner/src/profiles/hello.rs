//! Small answers from memory: what the engine itself costs. Must not know files.

use super::{Step, bare, on_both, pairs};
use crate::{
    bench::Bench,
    peers::Role,
    plan::{Expect, Load, Promise, Scenario},
    wrk::{Requests, TENTH},
};

pub(super) fn plaintext(bench: &Bench) -> Vec<Step> {
    let promise = Promise {
        limits: bare(1.05, 1.05),
        ahead_of_all: true,
        ..Promise::default()
    };
    let mut steps = Vec::new();
    for connections in [64, 512]
        .into_iter()
        .take(if bench.effort.quick { 1 } else { 2 })
    {
        let name = format!("{connections} connections");
        let load = Load::get(connections, "/");
        let scenario = Scenario::new("plaintext", &name, Role::Hello, load);
        steps.extend(pairs(bench, &scenario, &promise));
    }
    steps
}

pub(super) fn pipelined(bench: &Bench) -> Vec<Step> {
    let promise = Promise {
        limits: bare(1.15, 1.08),
        ahead_of_all: true,
        ahead_of: vec![("hyper", 2.0), ("may_minihttp", 1.0)],
        ..Promise::default()
    };
    let all = [(16, 64), (32, 64), (16, 760), (32, 760)];
    let all = all.into_iter().take(if bench.effort.quick { 1 } else { 4 });
    let mut steps = Vec::new();
    for (depth, connections) in all {
        let name = format!("{depth} deep, {connections} connections");
        let target = "/";
        let load = Load::requests(connections, Requests::Get { target, depth });
        let scenario = Scenario::new("pipelined", &name, Role::Hello, load);
        steps.extend(pairs(bench, &scenario, &promise));
    }
    // A head that was seen before is cheaper to ours; this is what one costs that was not. The
    // bare loops parse each head in any case, and so there is no promise beside them.
    let load = Load::requests(64, Requests::Distinct { depth: 16 });
    let scenario = Scenario::new("pipelined", "16 deep, no two alike", Role::Hello, load);
    let promise = Promise {
        limits: on_both((super::LIMIT_EPOLL, None), (super::LIMIT_URING, None)),
        ahead_of_all: true,
        ..Promise::default()
    };
    steps.extend(pairs(bench, &scenario, &promise));
    steps
}

pub(super) fn close(bench: &Bench) -> Vec<Step> {
    let ahead_of = vec![("h2o", 1.0), ("nginx", 1.0), ("hyper", 1.0)];
    let each = Promise {
        limits: on_both(
            ("limit-epoll-close", Some(1.06)),
            ("limit-uring-close", Some(1.06)),
        ),
        ahead_of: ahead_of.clone(),
        ..Promise::default()
    };
    let load = Load::requests(64, Requests::Closing { every: 1 });
    let scenario = Scenario::new("close", "a connection a request", Role::Hello, load);
    let mut steps = pairs(bench, &scenario, &each);
    if bench.effort.quick {
        return steps;
    }
    let tenth = Promise {
        limits: on_both(
            ("limit-epoll-asked", Some(1.06)),
            ("limit-uring-asked", Some(1.06)),
        ),
        ahead_of,
        ..Promise::default()
    };
    let load = Load::requests(64, Requests::Closing { every: TENTH });
    let mut scenario = Scenario::new("close", "ten requests a connection", Role::Hello, load);
    // One in ten answers says that it is the last.
    scenario.slack = 0.03;
    steps.extend(pairs(bench, &scenario, &tenth));
    steps
}

pub(super) fn json(bench: &Bench) -> Vec<Step> {
    let promise = Promise {
        ahead_of_all: true,
        ..Promise::default()
    };
    let scenario = Scenario::new("json", "64 connections", Role::Json, Load::get(64, "/json"));
    pairs(bench, &scenario, &promise)
}

pub(super) fn echo(bench: &Bench) -> Vec<Step> {
    let promise = Promise {
        ahead_of_all: true,
        ..Promise::default()
    };
    let mut steps = Vec::new();
    let sizes = [("1 KiB", 1 << 10), ("64 KiB", 64 << 10)];
    for (size, body_bytes) in sizes {
        let target = "/echo";
        let load = Load::requests(64, Requests::Post { target, body_bytes });
        let mut scenario = Scenario::new("echo", size, Role::Echo, load);
        scenario.expect = Expect::BodyBytes(u64::from(body_bytes));
        scenario.volume_bytes = (body_bytes > 1 << 14).then_some(u64::from(body_bytes));
        steps.extend(pairs(bench, &scenario, &promise));
    }
    steps
}

pub(super) fn many(bench: &Bench) -> Vec<Step> {
    let promise = Promise {
        limits: bare(1.10, 1.10),
        ..Promise::default()
    };
    let mut steps = Vec::new();
    for connections in [4_096, 15_000]
        .into_iter()
        .take(if bench.effort.quick { 1 } else { 2 })
    {
        let name = format!("{connections} connections");
        let load = Load::get(connections, "/");
        let scenario = Scenario::new("many", &name, Role::Hello, load);
        steps.extend(pairs(bench, &scenario, &promise));
    }
    steps
}
