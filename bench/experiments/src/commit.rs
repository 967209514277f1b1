//! Small durable PUTs per second when each makes its own syncs, and when they share them where that
//! pays (group commit): on a simulated disk whose sync takes 5 ms, and on the disk of this machine.

use crate::run::{Run, Target};
use crate::table::Table;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::Dir;
use onrush_rt::fs::sim::{SimFs, SyncTime};
use onrush_store::testing::block_on;
use onrush_store::{Condition, Folder, FolderOptions, Key, Store, StoreError};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

const SYNC_TIME: Duration = Duration::from_millis(5);
const CONTENT: [u8; 1024] = [7; 1024];
/// As the server has by default.
const POOL_THREADS: usize = 16;

/// The disks: how their name is shown, and how they sync. The last one is real.
const DISKS: [(&str, Option<SyncTime>); 3] = [
    ("5 ms, one by one", Some(SyncTime::OneByOne(SYNC_TIME))),
    ("5 ms, joined", Some(SyncTime::Joined(SYNC_TIME))),
    ("this machine's", None),
];

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    let head = ["disk", "clients", "separate PUT/s", "shared PUT/s", "ratio"];
    let mut table = Table::new("Durable PUTs of 1 KiB", &head);
    let mut targets = Vec::new();
    for (name, sync_time) in DISKS {
        for clients in [1, 32] {
            if !run.includes(&format!("{name}, {clients}")) {
                continue;
            }
            runner::progress(&format!("commit · {name} · {clients} clients"));
            let rate = |shares| rate(run, clients, shares, &open(run, sync_time)?);
            let (separate, shared) = (rate(false)?, rate(true)?);
            let ratio = shared / separate;
            let text = |number: f64| format!("{number:.0}");
            let cells = [text(separate), text(shared), format!("{ratio:.2}")];
            table.row(
                [name.to_owned(), clients.to_string()]
                    .into_iter()
                    .chain(cells),
            );
            let least = match (sync_time, clients) {
                (Some(SyncTime::OneByOne(_)), 32) => 3.0,
                _ => 0.95, // Never slower.
            };
            targets.push(Target {
                what: format!("shared / separate ≥ {least}, {clients} clients, disk {name}"),
                found: format!("{ratio:.2}"),
                holds: Some(ratio >= least),
            });
        }
    }
    run.show("commit", &table)?;
    Ok(targets)
}

/// A store on a new disk, with as many threads as the server has by default.
fn open(run: &Run, sync_time: Option<SyncTime>) -> Outcome<Folder> {
    let root = match sync_time {
        Some(time) => {
            let disk = SimFs::new(1);
            disk.set_sync_time(time);
            disk.root()
        }
        None => Dir::open_root(&run.folder("commit")?),
    };
    let root = root.map_err(|error| format!("the disk cannot be opened: {error}"))?;
    let pool = BlockingPool::threads(POOL_THREADS, 4096);
    let options = FolderOptions {
        share_syncs: true,
        ..FolderOptions::default()
    };
    let folder = Folder::on(root, pool, options);
    folder.map_err(|error| format!("the store cannot be opened: {error}"))
}

/// PUTs per second by so many clients. They share syncs where that pays, or never.
fn rate(run: &Run, clients: usize, shares: bool, folder: &Folder) -> Outcome<f64> {
    let next = AtomicU64::new(0);
    let begun = Instant::now();
    let seconds = run.effort.of(0.2, 3.0, 10.0);
    let end = begun + Duration::from_secs_f64(seconds);
    let client = || -> Outcome {
        while Instant::now() < end {
            run.check_interrupt()?;
            if !shares {
                folder.assume_sync_time(Duration::ZERO);
            }
            // The objects of earlier PUTs are replaced, as in a cache that is full.
            let number = next.fetch_add(1, Ordering::Relaxed) % 100;
            let put = block_on(put(folder, &number.to_string()));
            put.map_err(|error| format!("a PUT has failed: {error}"))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| Err("a client has panicked".to_owned()))
        })
    })?;
    Ok(next.into_inner() as f64 / begun.elapsed().as_secs_f64())
}

async fn put(folder: &Folder, name: &str) -> Result<(), StoreError> {
    let (key, size) = (Key::parse(name.as_bytes())?, CONTENT.len() as u64);
    let mut upload = folder.stage(&key, Condition::None, Some(size)).await?;
    upload.write(CONTENT.to_vec()).await?;
    upload.commit().await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_durable() {
        let disk = SimFs::new(1);
        let root = || disk.root().expect("a root");
        let pool = BlockingPool::threads(1, 16);
        let folder = Folder::on(root(), pool, FolderOptions::default()).expect("a store");
        assert_eq!(block_on(put(&folder, "7")), Ok(()));
        disk.power_cut();
        drop(folder);
        disk.restart();
        assert_eq!(
            root().metadata(b"7").map(|found| found.size).ok(),
            Some(1024)
        );
    }
}
