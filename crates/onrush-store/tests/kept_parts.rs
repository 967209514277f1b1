//! Uploads whose parts arrive in any order, on the simulated disk: a power cut and an error at
//! every operation. What was synced stays, and an upload of which bytes may be lost is gone.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_store::*;
use std::ops::Range;

const BYTES: usize = 50_000;
/// The parts in the order in which they arrive.
const PARTS: [Range<usize>; 4] = [40_000..BYTES, 0..10_000, 20_000..40_000, 10_000..20_000];

fn open(disk: &SimFs) -> Folder {
    let root = disk.root().unwrap();
    Folder::on(root, BlockingPool::inline(), FolderOptions::default()).unwrap()
}

/// An upload, as a server records it.
#[derive(Clone, Default)]
struct Recorded {
    kept: Option<PartialUpload>,
    arrived: [bool; PARTS.len()],
}

/// Sends what is missing. `recorded` is what was acknowledged last, also if this fails.
fn upload(folder: &Folder, recorded: &mut Recorded) -> Result<Committed> {
    block_on(async {
        let (at, whole) = (key("object"), body(BYTES));
        let mut kept = match &recorded.kept {
            Some(kept) => kept.clone(),
            None => {
                let staged = folder.stage(&at, Condition::Absent, Some(BYTES as u64));
                recorded.kept.insert(staged.await?.keep().await?).clone()
            }
        };
        for (part, has_arrived) in PARTS.into_iter().zip(&mut recorded.arrived) {
            if !*has_arrived {
                let position = part.start as u64;
                let written = folder.write_partial(&kept, position, whole[part].to_vec());
                written.await?;
                folder.sync_partial(&kept).await?;
                *has_arrived = true;
            }
        }
        kept.bytes = BYTES as u64;
        let resumed = folder.resume(&at, Condition::Absent, &kept).await?;
        resumed.commit().await
    })
}

fn count_operations(seed: u64) -> u64 {
    let disk = SimFs::new(seed);
    let folder = open(&disk);
    let before = disk.operations();
    upload(&folder, &mut Recorded::default()).unwrap();
    disk.operations() - before
}

#[test]
fn parts_survive_a_power_cut_at_any_operation() {
    let mut continued = 0;
    for seed in 0..8 {
        let count = count_operations(seed);
        assert!(count > 15, "{count}");
        for number in 0..=count {
            for cut in [Cut::Before, Cut::During, Cut::After] {
                let at = format!("seed {seed}, operation {number}, {cut:?}");
                let disk = SimFs::new(seed);
                let folder = open(&disk);
                disk.power_cut_at(disk.operations() + number, cut);
                let mut recorded = Recorded::default();
                let _ = upload(&folder, &mut recorded);
                disk.power_cut();
                drop(folder);
                disk.restart();
                let folder = open(&disk);
                let is_whole = recorded.arrived.iter().all(|arrived| *arrived);
                continued += usize::from(recorded.arrived.contains(&true) && !is_whole);
                let found = get(&folder, "object");
                if found.is_err() {
                    match upload(&folder, &mut recorded) {
                        // The power failed while the file became the object.
                        Err(StoreError::NotFound) if is_whole => continue,
                        done => assert!(done.is_ok(), "{at}: {done:?}"),
                    }
                }
                assert!(get(&folder, "object") == Ok(body(BYTES)), "{at}: torn");
            }
        }
    }
    assert!(continued > 100, "{continued}");
}

#[test]
fn parts_survive_an_error_at_any_operation() {
    let mut removed = 0;
    for seed in 0..4 {
        for (number, errno) in (0..count_operations(seed)).flat_map(|at| [(at, 5), (at, 28)]) {
            let at = format!("seed {seed}, operation {number}, errno {errno}");
            let disk = SimFs::new(seed);
            let folder = open(&disk);
            disk.fail_at(disk.operations() + number, errno);
            let mut recorded = Recorded::default();
            if upload(&folder, &mut recorded).is_err() {
                assert_eq!(get(&folder, "object"), Err(StoreError::NotFound), "{at}");
                if upload(&folder, &mut recorded) == Err(StoreError::NotFound) {
                    removed += 1; // A sync or the commit has failed.
                    upload(&folder, &mut Recorded::default()).unwrap();
                }
            }
            assert!(get(&folder, "object") == Ok(body(BYTES)), "{at}: torn");
        }
    }
    assert!(removed > 0);
}

#[test]
fn parts_leave_the_minimum_of_free_space() {
    let disk = SimFs::new(1);
    let options = FolderOptions {
        min_free_bytes: 100_000,
        ..FolderOptions::default()
    };
    let folder = Folder::on(disk.root().unwrap(), BlockingPool::inline(), options).unwrap();
    block_on(async {
        let at = key("object");
        let staged = folder.stage(&at, Condition::Absent, None);
        let kept = staged.await.unwrap().keep().await.unwrap();
        disk.disk_full_after(Some(120_000));
        let write = async |bytes| folder.write_partial(&kept, 0, body(bytes)).await;
        let is_full = |written: Result<_>| matches!(written, Err(StoreError::Full(_)));
        assert!(is_full(write(20_001).await));
        assert!(write(20_000).await.is_ok());
        assert!(is_full(write(1).await));
        disk.disk_full_after(None);
        assert!(write(20_001).await.is_ok());
    });
}
