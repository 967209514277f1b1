//! GETs of files, small and large, in the page cache and not.

use super::{Step, bare, on_both, pairs};
use crate::{
    bench::Bench,
    peers::Role,
    plan::{Content, Expect, Load, Scenario, Targets},
    work::Files,
    wrk::Requests,
};

const SENDFILE: &str = "limit-sendfile";

/// Length of the large file in bytes, as in the experiment that led to Onrush.
pub(super) const LARGE_BYTES: u64 = 40_000_000;

/// The files that are not in the page cache. A round cannot read all of them.
const COLD: Files = Files {
    count: 8192,
    bytes: 64 << 10,
};

/// The CPU of nginx by ours is at least this: ours is at most 0.85 of it.
const AHEAD_OF_NGINX: f64 = 1.0 / 0.85;

/// The target of the only file.
pub(super) const FILE: &str = "/file";

/// One file, requested repeatedly.
pub(super) fn one(name: &str, bytes: u64, connections: u32) -> Scenario {
    let load = Load::get(connections, FILE);
    let volume_bytes = (bytes > 1 << 14).then_some(bytes);
    Scenario {
        volume_bytes,
        ..one_in(("get", name), Role::Files, load, bytes)
    }
}

/// One file of `bytes` in `role`, in the page cache, that `load` requests as [`FILE`]. `name` is
/// that of the profile, and that of the scenario.
pub(super) fn one_in(name: (&'static str, &str), role: Role, load: Load, bytes: u64) -> Scenario {
    let mut scenario = Scenario::new(name.0, name.1, role, load);
    scenario.content = Content::Hot(Files { count: 1, bytes });
    scenario.expect = Expect::BodyBytes(bytes);
    scenario.volume_bytes = Some(bytes);
    scenario
}

/// Many files, requested one after the other.
fn several(name: &str, content: Content, files: Files) -> Scenario {
    let count = files.count;
    let load = Load::requests(64, Requests::Names { count });
    let mut scenario = Scenario::new("get", name, Role::Files, load);
    scenario.content = content;
    scenario.expect = Expect::BodyBytes(files.bytes);
    scenario
}

pub(super) fn get(bench: &Bench) -> Vec<Step> {
    let ahead_of = vec![("lighttpd", 1.0), ("h2o", 1.0), ("nginx", 1.0)];
    let with = |limits| Targets {
        limits,
        ahead_of: ahead_of.clone(),
        ..Targets::default()
    };
    let sendfile = || on_both((SENDFILE, Some(1.10)), (SENDFILE, Some(1.10)));
    let small = one("1 KiB", 1 << 10, 64);
    let mut large = one("40 MB", LARGE_BYTES, 8);
    large.seconds_min = 2;
    let mut steps = pairs(bench, &small, &with(bare(1.25, 1.25)));
    if bench.effort.quick {
        steps.extend(pairs(bench, &large, &with(sendfile())));
        return steps;
    }
    for scenario in [one("16 KiB", 16 << 10, 64), large] {
        steps.extend(pairs(bench, &scenario, &with(sendfile())));
    }
    // What a kernel does with a response depends on its size and on the number of connections.
    for (name, bytes) in [
        ("64 KiB", 64 << 10),
        ("256 KiB", 256 << 10),
        ("1 MiB", 1 << 20),
        ("4 MiB", 4 << 20),
        ("40 MiB", 40 << 20),
    ] {
        for connections in [8, 64] {
            let mut scenario = one(&format!("{name}, {connections}"), bytes, connections);
            scenario.seconds_min = if bytes >= 1 << 20 { 2 } else { 1 };
            let targets = Targets {
                ahead_of: vec![("lighttpd", 1.0), ("h2o", 1.0), ("nginx", AHEAD_OF_NGINX)],
                ..with(sendfile())
            };
            steps.extend(pairs(bench, &scenario, &targets));
        }
    }
    let cold = several("64 KiB, not in the page cache", Content::Cold(COLD), COLD);
    let files = Files {
        count: 10_000,
        bytes: 1 << 10,
    };
    let different = several("1 KiB, 10,000 files", Content::Hot(files), files);
    for scenario in [
        cold,
        different,
        one("1 KiB, 5,000 connections", 1 << 10, 5_000),
    ] {
        steps.extend(pairs(bench, &scenario, &with(Vec::new())));
    }
    steps
}
