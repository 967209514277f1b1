//! What goes wrong while the clients run. Each fault ends with everything as it was before.

use super::disk::SmallDisk;
use super::site::{Site, until};
use crate::ceph::{Cluster, GATEWAY};
use crate::shell::Outcome;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;
use xtask::load::Load;
use xtask::proxy::Fault as Network;

/// What a fault acts on.
pub(super) struct System<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) site: &'a mut Site,
    pub(super) load: &'a Load,
}

/// What clients must see of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    NoFailures,
    /// At least one failed request: otherwise the fault was none.
    Failures,
    /// Repetitions may hide the fault. It checks its effect itself.
    Either,
}

/// A fault: its name on the command line, what clients must see, and what it does.
pub(super) type Fault = (&'static str, Expected, fn(&mut System) -> Outcome);

pub(super) const ALL: [Fault; 13] = [
    ("none", Expected::NoFailures, |_| pause(10)),
    ("disk", Expected::Either, disk),
    ("osd", Expected::Either, |system| {
        kill_osds(system, &["osd.1"])
    }),
    ("two-osds", Expected::Either, |system| {
        kill_osds(system, &["osd.0", "osd.2"])
    }),
    ("gateway", Expected::Failures, gateway),
    ("servers", Expected::Either, servers),
    ("network-cut", Expected::Failures, |system| {
        network(system, Network::Cut)
    }),
    ("network-silent", Expected::Either, |system| {
        network(system, Network::BlackHole)
    }),
    ("network-slow", Expected::Either, |system| {
        network(system, Network::Slow(100_000))
    }),
    ("network-reset", Expected::Either, |system| {
        network(system, Network::CutAfter(50_000))
    }),
    ("quota", Expected::Failures, |system| {
        full(system, "PUT 507", Cluster::set_quota)
    }),
    ("full", Expected::Failures, |system| {
        full(system, "PUT 504", Cluster::set_full)
    }),
    ("rolling-restart", Expected::NoFailures, rolling_restart),
];

fn pause(seconds: u64) -> Outcome {
    thread::sleep(Duration::from_secs(seconds));
    Ok(())
}

/// With one of three storage daemons killed, the cluster continues; with two, it waits for one.
fn kill_osds(system: &mut System, names: &[&str]) -> Outcome {
    for name in names {
        system.cluster.stop(name, "KILL")?;
    }
    let before = system.load.counts().written;
    pause(8)?;
    let written = system.load.counts().written - before;
    match (names.len(), written) {
        (1, 0) => return Err("no PUT succeeds without one of three OSDs".to_owned()),
        // The writers together send a hundred a second.
        (2.., 100..) => return Err(format!("{written} PUTs without two of three OSDs")),
        _ => {}
    }
    names
        .iter()
        .try_for_each(|name| system.cluster.start_osd(name))
}

fn gateway(system: &mut System) -> Outcome {
    system.cluster.stop(GATEWAY, "KILL")?;
    pause(4)?;
    system.cluster.start_gateway()?;
    let address = ("127.0.0.1", system.cluster.port);
    until("the gateway", || TcpStream::connect(address).is_ok())
}

/// Kills one server after the other.
fn servers(system: &mut System) -> Outcome {
    for replica in &mut system.site.replicas {
        replica.stop("KILL")?;
        replica.start()?;
    }
    Ok(())
}

/// Disturbs the network of one server, and then those of all.
fn network(system: &mut System, fault: Network) -> Outcome {
    let mut servers: Vec<_> = system.site.replicas.iter().collect();
    servers.push(&system.site.edge);
    for count in [1, servers.len()] {
        for replica in &servers[..count] {
            replica.proxy.set(fault);
        }
        let before = system.load.counts().read;
        pause(7)?;
        let read = system.load.counts().read - before;
        // Of the readers, each may have had a request on its way.
        if count > 1 && matches!(fault, Network::Cut | Network::BlackHole) && read > 200 {
            return Err(format!("{read} reads without a network"));
        }
        for replica in &servers {
            replica.proxy.set(Network::None);
        }
        pause(3)?;
    }
    Ok(())
}

/// There is no space for writes, which get `expected`. Reads continue.
fn full(system: &mut System, expected: &str, set: fn(&Cluster, bool) -> Outcome) -> Outcome {
    let count = |of: &str| system.load.failures().get(of).copied().unwrap_or(0);
    let (refused, unread) = (count(expected), count_reads(system.load));
    set(system.cluster, true)?;
    let observe = || {
        until(expected, || count(expected) > refused)?;
        let before = system.load.counts().read;
        until("reads", || system.load.counts().read > before + 200)?;
        match count_reads(system.load) - unread {
            0 => Ok(()),
            failed => Err(format!("{failed} reads failed, because there was no space")),
        }
    };
    let observed = observe();
    set(system.cluster, false)?;
    observed
}

/// The disk of one storage daemon has no space at all. The daemon ends, and writes continue.
fn disk(system: &mut System) -> Outcome {
    const DAEMON: &str = "osd.1";
    let disk = SmallDisk::new(system.cluster, DAEMON)?;
    disk.fill()?;
    let before = system.load.counts().written;
    until("writes", || system.load.counts().written > before + 100)?;
    disk.repair()
}

/// Reads that failed so far.
fn count_reads(load: &Load) -> usize {
    let failures = load.failures();
    let reads = failures.iter().filter(|(what, _)| what.starts_with("GET"));
    reads.map(|(_, count)| count).sum()
}

/// Restarts one server after the other.
fn rolling_restart(system: &mut System) -> Outcome {
    for replica in &mut system.site.replicas {
        replica.stop("TERM")?;
        replica.start()?;
    }
    Ok(())
}
