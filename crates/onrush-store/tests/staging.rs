//! Uploads before their commit, on all backends: their files in `.onrush/staging`.

use crate::common::*;
use crate::edge_common::wait_until;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_rt::fs::{Dir, OpenHow};
use onrush_store::*;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};

on_all! {
    aborted_uploads_leave_nothing
    removed_staging_is_created_again
    uploads_of_live_processes_are_not_swept
}

fn aborted_uploads_leave_nothing(backend: &Backend) {
    let folder = backend.folder();
    put(&folder, "a", b"old").unwrap();
    block_on(async {
        let mut upload = folder
            .stage(&key("a"), Condition::None, Some(1 << 20))
            .await
            .unwrap();
        assert_eq!(staged(&folder, backend), 0, "no byte has arrived");
        upload.write(body(50_000)).await.unwrap();
        assert_eq!(staged(&folder, backend), 1);
        drop(upload);
        assert_eq!(staged(&folder, backend), 0);
        let mut upload = folder
            .stage(&key("a"), Condition::None, None)
            .await
            .unwrap();
        upload.write(body(50_000)).await.unwrap();
        drop(upload.write(body(50_000))); // never polled, so the upload is still valid
        drop(upload.commit()); // the commit happens completely or not at all
    });
    assert_eq!(staged(&folder, backend), 0);
    assert!([3, 50_000].contains(&get(&folder, "a").unwrap().len()));
    drop(folder);
    let staging = backend.root().open_dir(b".onrush/staging").unwrap();
    assert_eq!(
        entries(&staging),
        [],
        "a dropped store leaves no folder in staging"
    );
}

/// Another program removes `.onrush` while the store is open: puts create it again.
fn remove_staging(root: &Dir) {
    let staging = root.open_dir(b".onrush/staging").unwrap();
    for (own, _) in entries(&staging) {
        let files = staging.open_dir(&own).unwrap();
        for (file, _) in entries(&files) {
            files.unlink(&file).unwrap();
        }
        staging.remove_dir(&own).unwrap();
    }
    let reserved = root.open_dir(b".onrush").unwrap();
    reserved.remove_dir(b"staging").unwrap();
    reserved.unlink(b"locks").unwrap_or_default(); // Created at the start only.
    root.remove_dir(b".onrush").unwrap();
}

fn removed_staging_is_created_again(backend: &Backend) {
    if backend.lacks(&[Ability::NamelessFiles]) {
        return;
    }
    let folder = backend.folder();
    let root = backend.root();
    for (at, size) in [("a", 3), ("dir/b", 3), ("c", 50_000), ("a", 50_000)] {
        remove_staging(&root);
        put(&folder, at, &body(size)).unwrap();
        assert_eq!(get(&folder, at).unwrap().len(), size);
        assert_eq!(staged(&folder, backend), 0);
    }
    // An upload in progress loses its file. That is no conflict with another object.
    block_on(async {
        let mut upload = folder
            .stage(&key("lost"), Condition::None, Some(50_000))
            .await
            .unwrap();
        upload.write(body(50_000)).await.unwrap();
        remove_staging(&root);
        let lost = upload.commit().await;
        assert!(matches!(lost, Err(StoreError::Io(_))), "{lost:?}");
    });
    put(&folder, "d", b"in the new folder").unwrap();
    drop(folder);
    assert_eq!(entries(&root.open_dir(b".onrush/staging").unwrap()), []);
}

fn uploads_of_live_processes_are_not_swept(backend: &Backend) {
    let one = backend.folder();
    block_on(async {
        let mut upload = one
            .stage(&key("a"), Condition::None, Some(1 << 20))
            .await
            .unwrap();
        upload.write(body(20_000)).await.unwrap();
        let two = backend.folder(); // sweeps
        upload.commit().await.unwrap();
        assert_eq!(get(&two, "a").unwrap(), body(20_000));
    });
    // A dead process leaves a folder without a lock.
    let staging = backend.root().open_dir(b".onrush/staging").unwrap();
    staging.create_dir(b"4711-dead", 0o700).unwrap();
    staging
        .open(b"4711-dead/0", OpenHow::create_new(0o600))
        .unwrap();
    let three = backend.folder();
    assert_eq!(staged(&three, backend), 0);
    assert!(staging.metadata(b"4711-dead").is_err());
    assert_eq!(
        entries(&staging).len(),
        2,
        "the folders of stores one and three stay"
    );
}

/// A folder that is moved away and made again, or a link that leads elsewhere: the store goes on
/// with the folder that its path leads to.
#[test]
fn the_path_of_the_folder_leads_elsewhere() {
    for base in [TempDir::new(), TempDir::beneath(Path::new("/dev/shm"))] {
        if abilities::lacks(base.path().parent().unwrap(), &[Ability::Symlinks]) {
            continue;
        }
        let at = |name: &str| base.path().join(name);
        std::fs::create_dir(at("one")).unwrap();
        std::fs::create_dir(at("two")).unwrap();
        std::os::unix::fs::symlink("one", at("link")).unwrap();
        let options = FolderOptions::default();
        let pool = BlockingPool::threads(1, 16);
        let folder = Folder::open(&at("link"), pool, options.clone()).unwrap();
        put(&folder, "d/object", b"one").unwrap();
        let generation = || folder.generation(&key("d/object"));
        let before = generation();
        // An upload that is in progress reaches the folder that is there when it ends.
        let mut upload = block_on(folder.stage(&key("d/b"), Condition::None, None)).unwrap();
        block_on(upload.write(body(50_000))).unwrap();
        std::fs::rename(at("link"), at("old link")).unwrap();
        std::os::unix::fs::symlink("two", at("link")).unwrap();
        folder.set_options(&options).unwrap(); // Looks at once.
        assert_ne!(generation(), before, "a cache must ask again");
        assert_eq!(get(&folder, "d/object"), Err(StoreError::NotFound));
        block_on(upload.commit()).unwrap();
        put(&folder, "d/object", b"two").unwrap();
        assert_eq!(std::fs::read(at("two/d/object")).unwrap(), b"two");
        assert_eq!(std::fs::read(at("two/d/b")).unwrap(), body(50_000));
        assert_eq!(std::fs::read(at("one/d/object")).unwrap(), b"one");
        // Gone, and made again.
        std::fs::rename(at("two"), at("away")).unwrap();
        let _ = folder.set_options(&options);
        assert_eq!(folder.look_again(), Some(std::io::ErrorKind::NotFound));
        std::fs::create_dir(at("two")).unwrap();
        // Noticed by requests alone, within a second.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while folder.look_again().is_some() {
            assert!(std::time::Instant::now() < end);
            let _ = get(&folder, "d/object");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        put(&folder, "d/object", b"three").unwrap();
        assert_eq!(std::fs::read(at("two/d/object")).unwrap(), b"three");
        drop(folder);
        let own = std::fs::read_dir(at("two/.onrush/staging")).unwrap();
        assert_eq!(own.count(), 0);
    }
}

/// Unfinished uploads of a folder stay if what is known is of the folder before it.
#[test]
fn what_is_known_of_one_folder_decides_nothing_in_another_one() {
    let base = TempDir::new();
    if abilities::lacks(base.path().parent().unwrap(), &[Ability::Symlinks]) {
        return;
    }
    let at = |name: &str| base.path().join(name);
    let options = FolderOptions::default();
    let open = |at: &Path| Folder::open(at, BlockingPool::threads(1, 16), options.clone()).unwrap();
    std::fs::create_dir(at("one")).unwrap();
    std::fs::create_dir(at("two")).unwrap();
    let two = open(&at("two"));
    let kept = block_on(async {
        let mut upload = two.stage(&key("a"), Condition::None, None).await.unwrap();
        upload.write(body(50_000)).await.unwrap();
        upload.keep().await.unwrap()
    });
    drop(two);
    let own = || {
        std::fs::read_dir(at("two/.onrush/staging"))
            .unwrap()
            .count()
    };
    wait_until("the process has ended", || own() == 0);
    std::os::unix::fs::symlink("one", at("link")).unwrap();
    let folder = open(&at("link"));
    let before = folder.swaps();
    std::fs::remove_file(at("link")).unwrap();
    std::os::unix::fs::symlink("two", at("link")).unwrap();
    folder.set_options(&options).unwrap(); // Looks at once.
    assert_ne!(folder.swaps(), before);
    assert_eq!(folder.discard_unknown(&[], before), Ok(0));
    assert_eq!(block_on(folder.is_kept(&kept)), Ok(true));
    assert_eq!(folder.discard_unknown(&[], folder.swaps()), Ok(1));
    assert_eq!(block_on(folder.is_kept(&kept)), Ok(false));
}

/// A look at a file system that hangs takes one thread, and no caller waits for it.
#[test]
fn a_look_that_hangs_stops_nobody() {
    let base = TempDir::new();
    let at = |name: &str| base.path().join(name);
    std::fs::create_dir(at("new")).unwrap();
    let pool = BlockingPool::threads(2, 16);
    let folder = Folder::open(&at("data"), pool, FolderOptions::default()).unwrap();
    let (entered, is_in) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let may_leave = Mutex::new(may_leave);
    folder.check_swaps(move |_, _| {
        entered.send(()).unwrap();
        let _ = may_leave.lock().unwrap().recv();
        Ok(())
    });
    std::fs::rename(at("data"), at("old")).unwrap();
    std::fs::rename(at("new"), at("data")).unwrap();
    wait_until("a thread looks", || {
        folder.look_again();
        is_in.try_recv().is_ok()
    });
    wait_until("the folder does not respond", || {
        block_on(folder.pool().run(|| ())).unwrap();
        folder.look_again() == Some(std::io::ErrorKind::TimedOut)
    });
    assert!(is_in.try_recv().is_err(), "one thread at a time looks");
    leave.send(()).unwrap();
    drop(leave);
    wait_until("it responds", || folder.look_again().is_none());
    assert_ne!(folder.swaps(), 0);
}

/// After a look that panicked, others are made.
#[test]
fn a_look_that_panics_is_made_again() {
    let base = TempDir::new();
    let at = |name: &str| base.path().join(name);
    std::fs::create_dir(at("new")).unwrap();
    let pool = BlockingPool::threads(2, 16);
    let folder = Folder::open(&at("data"), pool, FolderOptions::default()).unwrap();
    let looked = Arc::new(AtomicUsize::new(0));
    let counter = looked.clone();
    folder.check_swaps(move |_, _| match counter.fetch_add(1, SeqCst) {
        0 => std::panic::panic_any(OnPurpose),
        _ => Ok(()),
    });
    let _silence = ::testing::panics::silence(|info| info.payload().is::<OnPurpose>());
    std::fs::rename(at("data"), at("old")).unwrap();
    std::fs::rename(at("new"), at("data")).unwrap();
    wait_until("it looks again", || {
        folder.look_again();
        looked.load(SeqCst) == 2 && folder.swaps() == 1
    });
    assert_eq!(folder.look_again(), None);
}

struct OnPurpose;

/// Rules for paths do not hold in the folder to which the path leads now.
#[test]
fn uploads_in_progress_do_not_go_on_when_the_folder_is_refused() {
    let base = TempDir::new();
    let at = |name: &str| base.path().join(name);
    std::fs::create_dir(at("new")).unwrap();
    let options = FolderOptions::default();
    let pool = BlockingPool::threads(1, 16);
    let folder = Folder::open(&at("data"), pool, options.clone()).unwrap();
    folder.check_swaps(|_, _| Err(std::io::ErrorKind::Unsupported.into()));
    put(&folder, "source", b"source").unwrap();
    let upload = |name: &str| block_on(folder.stage(&key(name), Condition::None, None)).unwrap();
    let (mut small, mut large, mut kept) = (upload("small"), upload("large"), upload("kept"));
    block_on(small.write(body(10))).unwrap();
    block_on(large.write(body(50_000))).unwrap();
    block_on(kept.write(body(50_000))).unwrap();
    let place = block_on(kept.keep()).unwrap();
    std::fs::rename(at("data"), at("old")).unwrap();
    std::fs::rename(at("new"), at("data")).unwrap();
    let _ = folder.set_options(&options); // Looks at once.
    let unavailable = Some(StoreError::Unavailable);
    let part = body(1);
    assert_eq!(block_on(small.write(body(50_000))).err(), unavailable);
    assert_eq!(block_on(large.write(body(50_000))).err(), unavailable);
    assert_eq!(block_on(kept.keep()).err(), unavailable);
    let written = block_on(folder.write_partial(&place, 0, part));
    assert_eq!(written.err(), unavailable);
    assert_eq!(block_on(folder.sync_partial(&place)).err(), unavailable);
    let resumed = block_on(folder.resume(&key("kept"), Condition::None, &place));
    assert_eq!(resumed.err(), unavailable);
    assert_eq!(block_on(large.commit()).err(), unavailable);
    let how = Relocation {
        from: key("source"),
        from_condition: Condition::None,
        to: key("copy"),
        to_condition: Condition::None,
    };
    assert_eq!(block_on(folder.copy(how)).err(), unavailable);
    assert_eq!(block_on(folder.create_folder(&key("d"))).err(), unavailable);
    assert_eq!(std::fs::read_dir(at("data")).unwrap().count(), 0);
    // It is the earlier one again: what was kept goes on.
    drop(kept);
    std::fs::rename(at("data"), at("new")).unwrap();
    std::fs::rename(at("old"), at("data")).unwrap();
    folder.set_options(&options).unwrap();
    let resumed = block_on(folder.resume(&key("kept"), Condition::None, &place));
    block_on(resumed.unwrap().commit()).unwrap();
    assert_eq!(get(&folder, "kept"), Ok(body(50_000)));
}

/// The names of the folders in staging: one for each open store.
fn own_folders(backend: &Backend) -> Vec<Vec<u8>> {
    let staging = backend.root().open_dir(b".onrush/staging").unwrap();
    entries(&staging)
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}

/// Two stores whose process ids and start times are equal, such as the first process of two
/// containers.
#[test]
fn stores_with_equal_start_times_have_different_folders() {
    let disk = SimFs::new(1);
    let backend = Backend::Sim(disk.clone());
    disk.set_clock_ns(1_000_000_000);
    let first = backend.folder();
    let own = own_folders(&backend).remove(0);
    let staging = backend.root().open_dir(b".onrush/staging").unwrap();
    staging.remove_dir(&own).unwrap(); // by another program
    disk.set_clock_ns(1_000_000_000);
    let second = backend.folder();
    let of_second = own_folders(&backend);
    assert_eq!(of_second.len(), 1);
    drop(first); // It removes its folder, which does not exist any more, and no other one.
    assert_eq!(own_folders(&backend), of_second);
    put(&second, "a", b"x").unwrap();
    assert_eq!(own_folders(&backend), of_second);
}

/// On NFS, operations in a folder that another client has removed fail with ESTALE.
#[test]
fn stale_staging_folder_is_created_again() {
    let mut replaced = 0;
    for failing in 0.. {
        let disk = SimFs::new(1);
        let backend = Backend::Sim(disk.clone());
        let folder = backend.folder();
        let before = own_folders(&backend);
        let first = disk.operations();
        disk.fail_at(first + failing, libc::ESTALE);
        let result = put(&folder, "a", b"x");
        if disk.operations() <= first + failing {
            break; // The put has fewer operations.
        }
        disk.clear_faults();
        assert_eq!(staged(&folder, &backend), 0);
        if own_folders(&backend) != before {
            assert!(result.is_ok(), "operation {failing}: {result:?}");
            assert_eq!(get(&folder, "a").unwrap(), b"x");
            replaced += 1;
        }
    }
    assert_eq!(replaced, 1, "only creating the staged file can find out");
}
