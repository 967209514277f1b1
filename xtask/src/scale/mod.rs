//! `cargo xtask scale`: the tests of remote stores on a real cluster, and three servers behind
//! HAProxy with clients that read, write, change and delete objects while parts of the system fail.
//!
//! No acknowledged object may be lost, none may be torn, an entity tag always belongs to the same
//! bytes, and conditional changes are linearizable. After each fault the service recovers.

mod disk;
mod faults;
mod site;

use crate::ceph::{self, Cluster, KEY};
use crate::shell::{Outcome, cargo, run, target};
use crate::tally::run_tests;
use crate::{Arguments, Failure, packages};
use faults::{Expected, Fault, System};
use site::Site;
use std::fs;
use std::time::Duration;
use xtask::load::{Plan, Running, STREAMED};

/// The tests of the store itself, as a name beside those of the faults.
const STORE: &str = "store";

/// Two cores can serve all of these clients.
const PLAN: Plan = Plan {
    writers: 32,
    readers: 64,
    keys: 16,
    changers: 12,
    groups: 3,
    removals: Some(16),
    // Ceph 16 ignores the condition of a DELETE, so Onrush refuses one.
    conditional_removals: None,
    parts: Some(4),
    lengths: &LENGTHS,
    pause: Duration::from_millis(200),
};
/// Clients that read through the server with a cache.
const EDGE_READERS: u32 = 8;
/// Lengths of bodies: short ones mostly, some that are read by two requests, some whose body is
/// passed on as it arrives, and few that are multipart uploads.
const LENGTHS: [usize; 32] = {
    let mut lengths = [4_000; 32];
    lengths[7] = 100_000;
    lengths[15] = 400_000;
    lengths[23] = (1 << 20) + 1;
    lengths[31] = STREAMED + 1;
    lengths
};

/// Runs the tests of the store and the named faults, or all.
pub(crate) fn main(mut arguments: Arguments) -> Result<(), Failure> {
    let cluster = Cluster::new(&mut arguments)?;
    let names = faults::ALL.iter().map(|(name, ..)| *name);
    let known: Vec<&str> = [STORE].into_iter().chain(names).collect();
    let Some(wanted) = arguments.wanted(&known)? else {
        return Ok(());
    };
    ceph::programs()?;
    packages::need(&[("haproxy", "haproxy")])?;
    run(&mut cargo("build --profile=dist --quiet -p onrush-server"))?;
    cluster.up()?;
    if wanted.has(STORE) {
        println!("== tests of the store");
        let mut tests = cargo("test --quiet -p onrush-remote --test remote");
        tests.args(["--", "real_service"]);
        let service = format!("{} {} {}", cluster.endpoint(), KEY.0, KEY.1);
        run_tests(tests.env("ONRUSH_TEST_S3", service))?;
    }
    let faults: Vec<Fault> = (faults::ALL.into_iter())
        .filter(|(name, ..)| wanted.has(name))
        .collect();
    if !faults.is_empty() {
        disturb(&cluster, &faults)?;
    }
    Ok(())
}

/// Runs the clients during all faults.
fn disturb(cluster: &Cluster, faults: &[Fault]) -> Outcome {
    let folder = target().join("scale");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut site = Site::start(cluster, &folder)?;
    let mut running = Running::start(site.front, PLAN);
    running.also_read(site.edge.address, EDGE_READERS);
    let load = running.load.clone();
    println!("== requests during each fault, and the time from its end to the last failed request");
    println!("fault              PUT    GET  changes  failed  recovery");
    for (name, expected, cause) in faults {
        let before = load.counts();
        let mut system = System {
            cluster,
            site: &mut site,
            load: &load,
        };
        cause(&mut system).map_err(|problem| format!("{name}: {problem}"))?;
        if *expected == Expected::Failures && load.counts().failed == before.failed {
            return Err(format!("{name}: no request failed, so there was no fault"));
        }
        let recovery = load
            .recover()
            .map_err(|problem| format!("{name}: {problem}"))?;
        let now = load.counts();
        if *expected == Expected::NoFailures && now.failed > before.failed {
            return Err(format!("{name}: requests failed: {:?}", load.failures()));
        }
        println!(
            "{name:16} {:5} {:6} {:8} {:7} {:7.1} s",
            now.written - before.written,
            now.read - before.read,
            now.changed - before.changed,
            now.failed - before.failed,
            recovery.as_secs_f64()
        );
        let wrong = load.all_wrong();
        if !wrong.is_empty() {
            return Err(format!("{name}:\n{}", wrong.join("\n")));
        }
    }
    let servers: Vec<_> = site
        .replicas
        .iter()
        .chain([&site.edge])
        .map(|replica| replica.address)
        .collect();
    println!("failed requests: {:?}", load.failures());
    let (objects, events) = running.end(&servers)?;
    println!(
        "{objects} objects are whole and current on each server; {events} conditional changes"
    );
    println!("and reads are linearizable");
    Ok(())
}
