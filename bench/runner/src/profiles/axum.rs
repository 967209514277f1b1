//! One axum router on `axum::serve` and on Onrush: what an application gains by the changed line.

use super::{Step, events, idle, pair_step, tail};
use crate::{
    bench::Bench,
    peers::{Driver, Role},
    plan::{Expect, Load, Pairing, Scenario, Subject},
    row::{About, Target},
    wrk::Requests,
};

/// The server that runs the router on Onrush, and the other one.
const OURS: &str = "onrush-axum";
const THEIRS: &str = "axum-serve";

/// The bytes of a request's and a response's body.
const BODY_BYTES: u32 = 1024;

/// The greatest ratios of the CPU per event, and of the memory of an idle connection.
const EVENTS_MAX: f64 = 0.90;
const IDLE_MAX: f64 = 0.1;

/// A design of `onrush-tower`: its name in labels, and the variable that selects it.
type Design = (&'static str, Option<(&'static str, &'static str)>);

const CHOSEN: Design = ("", None);
/// It was not chosen, and has no target.
const OTHER: Design = (", tasks of tokio", Some(("ONRUSH_TOWER_SPAWN", "1")));

/// Idle connections, of which those of `axum::serve` each have a task and buffers.
const IDLE: idle::Kind = idle::Kind {
    per: idle::Per::Connection,
    profile: "axum",
    role: Role::Axum,
    few: 1_000,
    many: 5_000,
    is_below_nginx: false,
};

/// What each driver is compared with, and the greatest ratio.
fn scenarios() -> Vec<(Scenario, f64)> {
    let target = "/";
    let hello = |name: &str, load: Load| {
        let mut scenario = Scenario::new("axum", name, Role::Axum, load);
        scenario.expect = Expect::Body(b"Hello, World!");
        scenario
    };
    let body_bytes = BODY_BYTES;
    let json = Requests::PostJson {
        target: "/json",
        body_bytes,
    };
    let mut json = Scenario::new(
        "axum",
        "JSON of 1 KiB",
        Role::Axum,
        Load::requests(64, json),
    );
    json.expect = Expect::BodyBytes(BODY_BYTES.into());
    let deep = Load::requests(64, Requests::Get { target, depth: 16 });
    let closing = Load::requests(64, Requests::Closing { every: 1 });
    vec![
        (hello("64 connections", Load::get(64, target)), 0.86),
        (hello("16 deep", deep), 0.45),
        (json, 0.90),
        (hello("512 connections", Load::get(512, target)), 0.86),
        (hello("one request per connection", closing), 0.55),
    ]
}

/// The pairs of a scenario, if both servers are chosen.
pub(super) fn axum(bench: &Bench) -> Vec<Step> {
    let chosen = |name: &str| {
        let is_chosen = bench.field.chosen.contains(&name);
        bench.field.peer(name).filter(|_| is_chosen)
    };
    let Some((ours, theirs)) = chosen(OURS).zip(chosen(THEIRS)) else {
        return Vec::new();
    };
    let scenarios = scenarios().into_iter();
    let scenarios = scenarios.take(if bench.effort.quick { 3 } else { usize::MAX });
    let designs = [CHOSEN, OTHER];
    let designs = &designs[..if bench.effort.quick { 1 } else { 2 }];
    let pairing = |driver: Driver, (design, setting): Design, most: f64| Pairing {
        about: About::Feature,
        server: Subject {
            label: format!("{OURS} on {}{design}", driver.name()),
            environment: [("ONRUSH_DRIVER", driver.name())]
                .into_iter()
                .chain(setting)
                .collect(),
            ..Subject::of(ours)
        },
        reference: Subject::of(theirs),
        target: setting.is_none().then_some(Target::AtMost(most)),
    };
    let mut steps = Vec::new();
    for (scenario, most) in scenarios {
        for &driver in &bench.field.drivers {
            for &design in designs {
                steps.push(pair_step(&scenario, pairing(driver, design, most)));
            }
        }
    }
    for &driver in &bench.field.drivers {
        let at_most = |most| pairing(driver, CHOSEN, most);
        steps.push(events::step("axum", Role::Axum, at_most(EVENTS_MAX)));
        steps.push(tail::nine_tenths("axum", Role::Axum, &at_most(1.0)));
        steps.push(idle::pair_step(IDLE, at_most(IDLE_MAX)));
    }
    steps
}
