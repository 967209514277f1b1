//! What goes wrong while the clients run. Each fault ends with everything as it was before.

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

/// A fault: its name on the command line, and what it does.
pub(super) type Fault = (&'static str, fn(&mut System) -> Outcome);

pub(super) const ALL: [Fault; 12] = [
    ("none", |_| pause(10)),
    ("osd", |system| kill_osds(system, &["osd.1"])),
    ("two-osds", |system| kill_osds(system, &["osd.0", "osd.2"])),
    ("gateway", gateway),
    ("servers", servers),
    ("network-cut", |system| network(system, Network::Cut)),
    ("network-silent", |system| {
        network(system, Network::BlackHole)
    }),
    ("network-slow", |system| {
        network(system, Network::Slow(100_000))
    }),
    ("network-reset", |system| {
        network(system, Network::CutAfter(50_000))
    }),
    ("quota", |system| {
        full(system, "PUT 507", Cluster::set_quota)
    }),
    ("full", |system| full(system, "PUT 504", Cluster::set_full)),
    ("rolling-restart", rolling_restart),
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
    pause(8)?;
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
    for count in [1, system.site.replicas.len()] {
        for replica in &system.site.replicas[..count] {
            replica.proxy.set(fault);
        }
        pause(7)?;
        for replica in &system.site.replicas {
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

/// Reads that failed so far.
fn count_reads(load: &Load) -> usize {
    let failures = load.failures();
    let reads = failures.iter().filter(|(what, _)| what.starts_with("GET"));
    reads.map(|(_, count)| count).sum()
}

/// Restarts one server after the other. No request fails.
fn rolling_restart(system: &mut System) -> Outcome {
    let before = system.load.counts();
    for replica in &mut system.site.replicas {
        replica.stop("TERM")?;
        replica.start()?;
    }
    match system.load.counts().failed - before.failed {
        0 => Ok(()),
        failed => Err(format!(
            "{failed} requests failed: {:?}",
            system.load.failures()
        )),
    }
}
