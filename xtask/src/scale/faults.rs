//! What goes wrong while the clients run. Each fault ends with everything as it was before.

use super::load::Load;
use super::site::{Site, until};
use crate::ceph::{Cluster, GATEWAY};
use crate::shell::Outcome;
use std::thread;
use std::time::Duration;
use xtask::proxy::Fault as Network;

/// What a fault acts on.
pub(super) struct Stage<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) site: &'a mut Site,
    pub(super) load: &'a Load,
}

/// A fault: its name on the command line, and what it does.
pub(super) type Fault = (&'static str, fn(&mut Stage) -> Outcome);

pub(super) const ALL: [Fault; 12] = [
    ("none", |_| pause(10)),
    ("osd", |stage| kill_osds(stage, &["osd.1"])),
    ("two-osds", |stage| kill_osds(stage, &["osd.0", "osd.2"])),
    ("gateway", gateway),
    ("servers", servers),
    ("network-cut", |stage| network(stage, Network::Cut)),
    ("network-silent", |stage| network(stage, Network::BlackHole)),
    ("network-slow", |stage| {
        network(stage, Network::Slow(100_000))
    }),
    ("network-reset", |stage| {
        network(stage, Network::CutAfter(50_000))
    }),
    ("quota", |stage| full(stage, "PUT 507", Cluster::set_quota)),
    ("full", |stage| full(stage, "PUT 504", Cluster::set_full)),
    ("rolling-restart", rolling_restart),
];

fn pause(seconds: u64) -> Outcome {
    thread::sleep(Duration::from_secs(seconds));
    Ok(())
}

/// With one of three storage daemons killed, the cluster continues; with two, it waits for one.
fn kill_osds(stage: &mut Stage, names: &[&str]) -> Outcome {
    for name in names {
        stage.cluster.stop(name, "KILL")?;
    }
    pause(8)?;
    names
        .iter()
        .try_for_each(|name| stage.cluster.start_osd(name))
}

fn gateway(stage: &mut Stage) -> Outcome {
    stage.cluster.stop(GATEWAY, "KILL")?;
    pause(4)?;
    stage.cluster.start_gateway()
}

/// Kills one server after the other.
fn servers(stage: &mut Stage) -> Outcome {
    for replica in &mut stage.site.replicas {
        replica.stop("KILL")?;
        replica.start()?;
    }
    Ok(())
}

/// Disturbs the network of one server, and then those of all.
fn network(stage: &mut Stage, fault: Network) -> Outcome {
    for count in [1, stage.site.replicas.len()] {
        for replica in &stage.site.replicas[..count] {
            replica.proxy.set(fault);
        }
        pause(7)?;
        for replica in &stage.site.replicas {
            replica.proxy.set(Network::None);
        }
        pause(3)?;
    }
    Ok(())
}

/// There is no space for writes, which get `expected`. Reads continue.
fn full(stage: &mut Stage, expected: &str, set: fn(&Cluster, bool) -> Outcome) -> Outcome {
    let count = |of: &str| stage.load.failures().get(of).copied().unwrap_or(0);
    let (refused, unread) = (count(expected), count_reads(stage.load));
    set(stage.cluster, true)?;
    let observe = || {
        until(expected, || count(expected) > refused)?;
        let before = stage.load.counts().read;
        until("reads", || stage.load.counts().read > before + 200)?;
        match count_reads(stage.load) - unread {
            0 => Ok(()),
            failed => Err(format!("{failed} reads failed, because there was no space")),
        }
    };
    let observed = observe();
    set(stage.cluster, false)?;
    observed
}

/// Reads that failed so far.
fn count_reads(load: &Load) -> usize {
    let failures = load.failures();
    let reads = failures.iter().filter(|(what, _)| what.starts_with("GET"));
    reads.map(|(_, count)| count).sum()
}

/// Restarts one server after the other. No request fails.
fn rolling_restart(stage: &mut Stage) -> Outcome {
    let before = stage.load.counts();
    for replica in &mut stage.site.replicas {
        replica.stop("TERM")?;
        replica.start()?;
    }
    match stage.load.counts().failed - before.failed {
        0 => Ok(()),
        failed => Err(format!(
            "{failed} requests failed: {:?}",
            stage.load.failures()
        )),
    }
}
