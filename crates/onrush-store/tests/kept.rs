//! Uploads that are continued, on the simulated disk: a power cut and an error at every operation.
//! What was kept stays, and the object appears whole or not at all.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_store::*;
use std::sync::{Mutex, mpsc};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

const BYTES: usize = 50_000;
/// The bytes that are written before each keep, and before the commit.
const STEPS: [usize; 3] = [5000, 30_000, BYTES];

/// The last operations of a commit, from the rename on: it, the sync of the folder, and the removal
/// of the old object.
const OPERATIONS_FROM_RENAME: u64 = 3;

/// The object before the upload. It is larger than what is kept.
fn old() -> Vec<u8> {
    b"o".repeat(BYTES + 1000)
}

fn open(disk: &SimFs) -> Folder {
    let root = disk.root().unwrap();
    Folder::on(root, BlockingPool::inline(), FolderOptions::default()).unwrap()
}

fn prepare_disk(seed: u64) -> (SimFs, Folder) {
    let disk = SimFs::new(seed);
    let folder = open(&disk);
    put(&folder, "folder/object", &old()).unwrap();
    (disk, folder)
}

/// Uploads in steps. `kept` is what was acknowledged last, also if this fails.
fn upload(folder: &Folder, kept: &mut Option<PartialUpload>) -> Result<Committed> {
    block_on(async {
        let (at, whole) = (key("folder/object"), body(BYTES));
        let condition = Condition::Present;
        let mut upload = match &*kept {
            Some(kept) => folder.resume(&at, condition, kept).await?,
            None => folder.stage(&at, condition, Some(BYTES as u64)).await?,
        };
        for end in STEPS {
            let from = upload.written_bytes() as usize;
            if from < end {
                upload.write(whole[from..end].to_vec()).await?;
            }
            if end < BYTES && from < end {
                *kept = Some(upload.keep().await?);
            }
        }
        upload.commit().await
    })
}

fn count_operations(seed: u64) -> u64 {
    let (disk, folder) = prepare_disk(seed);
    let before = disk.operations();
    upload(&folder, &mut None).unwrap();
    disk.operations() - before
}

/// Continues an upload that has failed. The object is the old one, or the new one if the failure
/// came after it was published. `may_be_lost`: the power failed while the file was renamed to the
/// object, and only the removal of its name has reached the disk.
fn assert_continues(folder: &Folder, mut kept: Option<PartialUpload>, may_be_lost: bool, at: &str) {
    let found = get(folder, "folder/object").unwrap();
    let is_published = found == body(BYTES);
    assert!(is_published || found == old(), "{at}: torn");
    if let Err(error) = upload(folder, &mut kept) {
        if (may_be_lost || is_published) && error == StoreError::NotFound {
            return;
        }
        panic!("{at}: {kept:?} does not continue: {error}");
    }
    let found = get(folder, "folder/object").unwrap();
    assert!(found == body(BYTES), "{at}: the parts do not fit");
}

#[test]
fn what_was_kept_survives_a_power_cut_at_any_operation() {
    let mut continued = 0;
    for seed in 0..16 {
        let count = count_operations(seed);
        assert!(count > 15, "{count}");
        for number in 0..=count {
            for cut in [Cut::Before, Cut::During, Cut::After] {
                let at = format!("seed {seed}, operation {number}, {cut:?}");
                let (disk, folder) = prepare_disk(seed);
                disk.power_cut_at(disk.operations() + number, cut);
                let mut kept = None;
                let _ = upload(&folder, &mut kept);
                disk.power_cut();
                drop(folder);
                disk.restart();
                continued += usize::from(kept.is_some());
                // The commit sets the time and syncs before it renames.
                let is_kept = kept.as_ref().is_some_and(|kept| kept.bytes >= 30_000);
                let may_be_lost = is_kept && number + OPERATIONS_FROM_RENAME >= count;
                assert_continues(&open(&disk), kept, may_be_lost, &at);
            }
        }
    }
    assert!(continued > 500, "{continued}");
}

#[test]
fn what_was_kept_survives_an_error_at_any_operation() {
    for seed in 0..4 {
        let count = count_operations(seed);
        for (number, errno) in (0..count).flat_map(|number| [(number, 5), (number, 28)]) {
            let at = format!("seed {seed}, operation {number}, errno {errno}");
            let (disk, folder) = prepare_disk(seed);
            disk.fail_at(disk.operations() + number, errno);
            let mut kept = None;
            if upload(&folder, &mut kept).is_ok() {
                continue; // Removing the old object has failed.
            }
            assert!(get(&folder, "folder/object") == Ok(old()), "{at}");
            assert_continues(&folder, kept, false, &at);
            assert_eq!(staged(&folder, &Backend::Sim(disk.clone())), 0, "{at}");
        }
    }
}

/// A client that loses its connection during the commit continues at once, in another request.
#[test]
fn a_resume_waits_for_the_commit_of_a_dropped_upload() {
    let backend = Backend::real();
    let pool = BlockingPool::threads(3, 16);
    let folder = Folder::on(backend.root(), pool, FolderOptions::default()).unwrap();
    if folder.writes_inline() {
        return; // In memory (tmpfs), nothing runs beside this thread.
    }
    let at = key("object");
    put(&folder, "object", &old()).unwrap();
    let (whole, more) = (body(BYTES), BYTES / 2);
    let kept = block_on(async {
        let staged = folder.stage(&at, Condition::Present, Some(BYTES as u64));
        let mut upload = staged.await.unwrap();
        upload.write(whole[..more].to_vec()).await.unwrap();
        let kept = upload.keep().await.unwrap();
        upload.write(whole[more..].to_vec()).await.unwrap();
        let (started, is_started) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let may_go_on = Mutex::new(may_go_on);
        folder.set_check_hook(move || {
            started.send(()).unwrap();
            let _ = may_go_on.lock().unwrap().recv();
        });
        let mut commit = upload.commit();
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(commit.as_mut().poll(cx).is_pending());
        is_started.recv_timeout(Duration::from_secs(60)).unwrap();
        drop(commit);
        let mut resumed = folder.resume(&at, Condition::Present, &kept);
        // Without a lock, a job truncates the file now. This one is queued after it.
        assert!(resumed.as_mut().poll(cx).is_pending());
        folder.pool().run(|| ()).await.unwrap();
        assert!(resumed.as_mut().poll(cx).is_pending());
        assert_eq!(folder.discard_older(Duration::ZERO).await, Ok(0));
        drop(go_on);
        assert_eq!(resumed.await.err(), Some(StoreError::NotFound));
        kept
    });
    assert!(get(&folder, "object") == Ok(whole), "torn");
    block_on(folder.discard(&kept)).unwrap();
}

/// A commit that fails before it has a folder leaves the kept bytes, until they are discarded.
#[test]
fn kept_bytes_of_a_failed_commit_can_be_discarded() {
    for backend in [Backend::real(), Backend::memory(), Backend::sim()] {
        let folder = backend.folder();
        put(&folder, "file", b"object").unwrap();
        let uploads = || entries(&backend.root().open_dir(b".onrush/uploads").unwrap()).len();
        for (at, condition, by_age) in [
            ("file/object", Condition::None, false),
            ("none/object", Condition::Present, false),
            ("none/object", Condition::Present, true),
        ] {
            block_on(async {
                let at = key(at);
                let mut upload = folder.stage(&at, condition, None).await.unwrap();
                upload.write(body(BYTES)).await.unwrap();
                let kept = upload.keep().await.unwrap();
                assert!(upload.commit().await.is_err());
                assert_eq!(uploads(), 1);
                match by_age {
                    false => folder.discard(&kept).await.unwrap(),
                    true => {
                        // A clock may not have advanced since the write.
                        let end = Instant::now() + Duration::from_secs(60);
                        while folder.discard_older(Duration::ZERO).await == Ok(0) {
                            assert!(Instant::now() < end);
                        }
                    }
                }
                assert_eq!(uploads(), 0);
                let gone = folder.resume(&at, Condition::None, &kept).await;
                assert_eq!(gone.err(), Some(StoreError::NotFound));
            });
        }
    }
}
