//! Kept uploads that are joined to an object, on the simulated disk: a power cut and an error at
//! every operation. The object appears whole or not at all, and the parts stay what they were.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_store::*;
use std::ops::Range;

const BYTES: usize = 150_000;
/// The first one takes two steps to copy.
const PARTS: [Range<usize>; 3] = [0..140_000, 140_000..140_010, 140_010..BYTES];
const OLD: &[u8] = b"old";

fn open(disk: &SimFs) -> Folder {
    let root = disk.root().unwrap();
    Folder::on(root, BlockingPool::inline(), FolderOptions::default()).unwrap()
}

fn prepare(seed: u64) -> (SimFs, Folder, Vec<PartialUpload>) {
    let disk = SimFs::new(seed);
    let folder = open(&disk);
    put(&folder, "object", OLD).unwrap();
    let whole = body(BYTES);
    let keep = |part: Range<usize>| {
        block_on(async {
            let mut upload = folder.stage(&key("part"), Condition::None, None).await?;
            upload.write(whole[part].to_vec()).await?;
            upload.keep().await
        })
    };
    let kept = PARTS.map(|part| keep(part).unwrap());
    (disk, folder, kept.to_vec())
}

fn join(folder: &Folder, parts: &[PartialUpload]) -> Result<Committed> {
    block_on(async {
        let size = Some(BYTES as u64);
        let mut upload = folder
            .stage(&key("object"), Condition::Present, size)
            .await?;
        for part in parts {
            upload.append_partial(part).await?;
        }
        upload.commit().await
    })
}

fn count_operations() -> u64 {
    let (disk, folder, parts) = prepare(1);
    let before = disk.operations();
    join(&folder, &parts).unwrap();
    disk.operations() - before
}

/// The object is the old one or the whole new one, and the parts can be joined again.
fn assert_intact(folder: &Folder, parts: &[PartialUpload], at: &str) -> bool {
    let found = get(folder, "object").unwrap();
    let is_new = found == body(BYTES);
    assert!(is_new || found == OLD, "{at}: torn");
    join(folder, parts).unwrap_or_else(|error| panic!("{at}: {error}"));
    assert!(get(folder, "object").unwrap() == body(BYTES), "{at}");
    is_new
}

#[test]
fn a_power_cut_at_any_operation_leaves_the_parts() {
    let (mut new, count) = (0, count_operations());
    assert!(count > 8, "{count}");
    for seed in 0..3 {
        for number in 0..=count {
            for cut in [Cut::Before, Cut::During, Cut::After] {
                let at = format!("seed {seed}, operation {number}, {cut:?}");
                let (disk, folder, parts) = prepare(seed);
                disk.power_cut_at(disk.operations() + number, cut);
                let is_acknowledged = join(&folder, &parts).is_ok();
                disk.power_cut();
                drop(folder);
                disk.restart();
                let is_new = assert_intact(&open(&disk), &parts, &at);
                assert!(is_new || !is_acknowledged, "{at}: lost");
                new += usize::from(is_new);
            }
        }
    }
    assert!(new > 3, "{new}");
}

#[test]
fn an_error_at_any_operation_leaves_the_parts_and_nothing_else() {
    let count = count_operations();
    for (number, errno) in (0..count).flat_map(|number| [(number, 5), (number, 28)]) {
        let at = format!("operation {number}, errno {errno}");
        let (disk, folder, parts) = prepare(1);
        disk.fail_at(disk.operations() + number, errno);
        let joined = join(&folder, &parts);
        let is_new = assert_intact(&folder, &parts, &at);
        assert_eq!(joined.is_ok(), is_new, "{at}");
        if joined.is_err() {
            // Otherwise it was the removal of the old object that has failed.
            assert_eq!(staged(&folder, &Backend::Sim(disk.clone())), 0, "{at}");
        }
    }
}

/// A part that another program has cut off is no part.
#[test]
fn a_truncated_part_is_refused() {
    for backend in [Backend::real(), Backend::memory()] {
        let folder = backend.folder();
        let kept = block_on(async {
            let at = key("part");
            let staged = folder.stage(&at, Condition::None, None);
            let mut upload = staged.await.unwrap();
            upload.write(body(BYTES)).await.unwrap();
            upload.keep().await.unwrap()
        });
        let uploads = backend.path(b".onrush/uploads").unwrap();
        let file = std::fs::read_dir(uploads).unwrap().next().unwrap().unwrap();
        let file = std::fs::File::options().write(true).open(file.path());
        file.unwrap().set_len(1000).unwrap();
        put(&folder, "object", OLD).unwrap();
        assert_eq!(join(&folder, &[kept]), Err(StoreError::NotFound));
        assert_eq!(get(&folder, "object"), Ok(OLD.to_vec()));
        assert_eq!(staged(&folder, &backend), 0);
    }
}
