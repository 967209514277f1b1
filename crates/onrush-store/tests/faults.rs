//! On the simulated disk: a power cut at every operation of a put, an error of every operation, and
//! long random histories with a cut anywhere. A completed change stays, and no object is ever torn.

use crate::common::*;
use ::testing::matrix::is_full;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_store::*;
use std::collections::BTreeMap;
use std::thread;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The state of the disk before a put.
#[derive(Clone, Copy, Debug)]
struct Scene {
    key: &'static str,
    /// Size of the old object, if any.
    old: Option<usize>,
    new: usize,
    /// Another object in the same folder, so that the folder exists.
    neighbour: Option<&'static str>,
}

/// Small objects stay in memory, large ones use a staged file.
const SCENES: [Scene; 6] = [
    Scene {
        key: "a",
        old: None,
        new: 3000,
        neighbour: None,
    },
    Scene {
        key: "a",
        old: Some(5000),
        new: 2500,
        neighbour: None,
    },
    Scene {
        key: "a",
        old: Some(0),
        new: 40_000,
        neighbour: None,
    },
    Scene {
        key: "x/y/a",
        old: None,
        new: 3000,
        neighbour: None,
    },
    Scene {
        key: "x/y/a",
        old: None,
        new: 40_000,
        neighbour: Some("x/b"),
    },
    Scene {
        key: "x/y/a",
        old: Some(20_000),
        new: 20_000,
        neighbour: Some("x/y/b"),
    },
];

fn old(scene: Scene) -> Option<Vec<u8>> {
    scene.old.map(|len| b"o".repeat(len))
}

fn new(scene: Scene) -> Vec<u8> {
    b"n".repeat(scene.new)
}

fn open(disk: &SimFs) -> Folder {
    Folder::on(
        disk.root().unwrap(),
        BlockingPool::inline(),
        FolderOptions::default(),
    )
    .unwrap()
}

/// A disk with the scene on it, durably. For every second seed the folder is opened again, so that
/// it does not know which folders are durable.
fn prepare_disk(scene: Scene, seed: u64) -> (SimFs, Folder) {
    let disk = SimFs::new(seed);
    let mut folder = open(&disk);
    if let Some(neighbour) = scene.neighbour {
        put(&folder, neighbour, b"neighbour").unwrap();
    }
    if let Some(old) = old(scene) {
        put(&folder, scene.key, &old).unwrap();
    }
    if seed % 2 == 1 {
        drop(folder);
        folder = open(&disk);
    }
    (disk, folder)
}

/// The number of disk operations of the put in a scene.
fn count_operations(scene: Scene, seed: u64) -> u64 {
    let (disk, folder) = prepare_disk(scene, seed);
    let before = disk.operations();
    put(&folder, scene.key, &new(scene)).unwrap();
    disk.operations() - before
}

fn read_object(folder: &Folder, scene: Scene) -> Option<Vec<u8>> {
    match get_both(folder, scene.key) {
        Ok((found, metadata)) => {
            assert_eq!(metadata, metadata_of(&found), "{scene:?}: torn or lost");
            Some(found)
        }
        Err(StoreError::NotFound) => None,
        Err(error) => panic!("{scene:?}: {error}"),
    }
}

fn assert_neighbour_and_staging(folder: &Folder, disk: &SimFs, scene: Scene, at: &str) {
    assert_eq!(
        staged(folder, &Backend::Sim(disk.clone())),
        0,
        "{at}: a staged file was not removed"
    );
    if let Some(neighbour) = scene.neighbour {
        assert_eq!(
            get(folder, neighbour).as_deref(),
            Ok(&b"neighbour"[..]),
            "{at}"
        );
    }
}

/// The number of operations after the put is durable: removing the exchanged old object.
fn operations_after_last_sync(scene: Scene) -> u64 {
    u64::from(scene.old.is_some())
}

/// What the tests of this file prove depends on each sync of a put: without one, a power cut tears
/// the object or loses a completed put. There are two, of the content and of the folder.
#[test]
fn a_put_makes_two_syncs_and_needs_both() {
    let prepare = |seed| {
        let disk = SimFs::new(seed);
        let folder = open(&disk);
        put(&folder, "d/x", b"x").unwrap();
        (disk, folder)
    };
    let (content, (disk, folder)) = (b"content".repeat(500), prepare(0));
    let (operations, syncs) = (disk.operations(), disk.syncs());
    put(&folder, "d/a", &content).unwrap();
    assert_eq!(disk.syncs() - syncs, 2);
    let hurts = |&number: &u64| {
        (0..12).any(|seed| {
            let (disk, folder) = prepare(seed);
            disk.ignore_sync_at(disk.operations() + number);
            put(&folder, "d/a", &content).unwrap();
            disk.power_cut();
            drop(folder);
            disk.restart();
            get(&open(&disk), "d/a").ok() != Some(content.clone())
        })
    };
    let needed = (0..disk.operations() - operations).filter(hurts).count();
    assert_eq!(needed, 2);
}

/// Many clients on few threads: all complete.
#[test]
fn more_puts_than_threads_complete() {
    let disk = SimFs::new(3);
    let pool = BlockingPool::threads(2, 64);
    let root = disk.root().unwrap();
    let folder = Folder::on(root, pool, FolderOptions::default()).unwrap();
    let keys = |client| (0..20).map(move |number| format!("f{}/{client}-{number}", number % 3));
    thread::scope(|scope| {
        for client in 0..16 {
            let folder = &folder;
            scope.spawn(move || {
                for key in keys(client) {
                    put(folder, &key, key.as_bytes()).unwrap();
                }
            });
        }
    });
    disk.power_cut();
    drop(folder);
    disk.restart();
    let folder = open(&disk);
    for key in (0..16).flat_map(keys) {
        assert_eq!(get(&folder, &key).unwrap(), key.as_bytes());
    }
}

/// Enough folders that several jobs create them.
const DEEP: Scene = Scene {
    key: "1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17/a",
    old: None,
    new: 100,
    neighbour: Some("b"),
};

#[test]
fn power_cut_while_folders_are_created_leaves_no_torn_object() {
    assert!(cut_power_at_every_operation(&[DEEP], 2) > 500);
}

/// A failed put leaves none of the folders that were created for it.
#[test]
fn failed_put_removes_all_created_folders() {
    for seed in 0..2 {
        for number in 0..count_operations(DEEP, seed) {
            let at = format!("seed {seed}, operation {number}");
            let (disk, folder) = prepare_disk(DEEP, seed);
            disk.fail_at(disk.operations() + number, EIO);
            let result = put(&folder, DEEP.key, &new(DEEP));
            assert!(matches!(result, Err(StoreError::Io(_))), "{at}: {result:?}");
            let top = disk.root().unwrap().entry_metadata(b"1");
            assert!(top.is_err(), "{at}: a folder was not removed");
            assert_next_put_is_durable(&disk, folder, DEEP, &at);
        }
    }
}

/// A put whose condition does not hold creates no folder.
#[test]
fn refused_put_creates_no_folder() {
    let disk = SimFs::new(0);
    let folder = open(&disk);
    for condition in [Condition::Present, Condition::Versions(Vec::new())] {
        let result = put_if(&folder, "x/y/a", b"x", condition);
        assert_eq!(result, Err(StoreError::PreconditionFailed));
        assert!(disk.root().unwrap().entry_metadata(b"x").is_err());
    }
    put_if(&folder, "x/y/a", b"x", Condition::Absent).unwrap();
}

#[test]
fn power_cut_at_any_operation_leaves_old_or_new_object() {
    // A long run explores more of what a cut may leave of the changes that were not synced.
    let seeds = if is_full() { 24 } else { 12 };
    assert!(cut_power_at_every_operation(&SCENES, seeds) >= 2000);
}

/// Cuts the power at every operation of a put, in each way. Returns the number of cuts.
fn cut_power_at_every_operation(scenes: &[Scene], seeds: u64) -> usize {
    let mut cuts = 0;
    for &scene in scenes {
        for seed in 0..seeds {
            let count = count_operations(scene, seed);
            assert!(count > 5);
            // One more than the operations: after the put has completed.
            for number in 0..=count {
                for cut in [Cut::Before, Cut::During, Cut::After] {
                    let at = format!("{scene:?}, seed {seed}, operation {number}, {cut:?}");
                    let (disk, folder) = prepare_disk(scene, seed);
                    disk.power_cut_at(disk.operations() + number, cut);
                    let result = put(&folder, scene.key, &new(scene));
                    let completed = number >= count - operations_after_last_sync(scene);
                    assert_eq!(result.is_ok(), completed, "{at}: {result:?}");
                    disk.power_cut();
                    drop(folder);
                    disk.restart();
                    let folder = open(&disk);
                    let found = read_object(&folder, scene);
                    if result.is_ok() {
                        assert!(found == Some(new(scene)), "{at}: completed, but lost");
                    } else {
                        assert!(
                            found == old(scene) || found == Some(new(scene)),
                            "{at}: torn"
                        );
                    }
                    assert_neighbour_and_staging(&folder, &disk, scene, &at);
                    cuts += 1;
                }
            }
        }
    }
    cuts
}

#[test]
fn error_at_any_operation_is_reported_and_undone() {
    for scene in SCENES {
        for seed in 0..4 {
            let count = count_operations(scene, seed);
            for (number, errno) in (0..count).flat_map(|n| [(n, EIO), (n, ENOSPC)]) {
                let at = format!("{scene:?}, seed {seed}, operation {number}, errno {errno}");
                let (disk, folder) = prepare_disk(scene, seed);
                disk.fail_at(disk.operations() + number, errno);
                let result = put(&folder, scene.key, &new(scene));
                let found = read_object(&folder, scene);
                match result {
                    // Already durable. The next start sweeps the old object.
                    Ok(_) if number >= count - operations_after_last_sync(scene) => {
                        assert!(found == Some(new(scene)), "{at}");
                        continue;
                    }
                    Err(error) => {
                        let reported = match errno {
                            EIO => matches!(error, StoreError::Io(_)),
                            _ => matches!(error, StoreError::Full(_)),
                        };
                        assert!(reported, "{at}: {error:?}");
                        let cause = error.cause().and_then(|cause| cause.errno());
                        assert!(cause.is_none_or(|cause| cause == errno), "{at}: {error:?}");
                        assert!(found == old(scene), "{at}: {error:?}");
                    }
                    Ok(_) => panic!("{at}: the error is not reported"),
                }
                assert_neighbour_and_staging(&folder, &disk, scene, &at);
                assert_next_put_is_durable(&disk, folder, scene, &at);
            }
        }
    }
}

/// After a failure, the next put succeeds and is durable: no failed sync is taken for a success.
fn assert_next_put_is_durable(disk: &SimFs, folder: Folder, scene: Scene, at: &str) {
    put(&folder, scene.key, b"again").unwrap_or_else(|error| panic!("{at}: {error}"));
    disk.power_cut();
    drop(folder);
    disk.restart();
    let folder = open(disk);
    assert_eq!(
        get(&folder, scene.key).as_deref(),
        Ok(&b"again"[..]),
        "{at}"
    );
    assert_neighbour_and_staging(&folder, disk, scene, at);
}

#[test]
fn power_cut_after_failed_put_leaves_old_or_new_object() {
    for scene in SCENES {
        for seed in 0..8 {
            let count = count_operations(scene, seed);
            for number in 0..count - operations_after_last_sync(scene) {
                let (disk, folder) = prepare_disk(scene, seed);
                disk.fail_at(disk.operations() + number, EIO);
                put(&folder, scene.key, &new(scene)).unwrap_err();
                disk.power_cut();
                drop(folder);
                disk.restart();
                let found = read_object(&open(&disk), scene);
                let whole = found == old(scene) || found == Some(new(scene));
                assert!(whole, "{scene:?}, seed {seed}, operation {number}");
            }
        }
    }
}

/// The kernel reports a failed sync once, perhaps to another request than the affected one. All
/// requests in progress at that moment must fail.
#[test]
fn failed_sync_of_another_request_fails_the_put() {
    let count = count_operations(SCENES[0], 0);
    let disk = SimFs::new(0);
    let folder = open(&disk);
    let (other, at) = (folder.clone(), disk.clone());
    folder.set_check_hook(move || {
        at.fail_at(at.operations() + count - 1, EIO);
        assert!(matches!(
            put(&other, "a", &[b'n'; 3000]),
            Err(StoreError::Io(_))
        ));
    });
    let result = put_if(&folder, "b", b"x", Condition::Absent);
    assert!(matches!(result, Err(StoreError::Io(_))), "{result:?}");
    put(&folder, "b", b"x").unwrap();
}

/// The same while folders are created: they are neither remembered as durable nor kept.
#[test]
fn failed_sync_of_another_request_removes_created_folders() {
    let count = count_operations(SCENES[0], 0);
    let disk = SimFs::new(0);
    let folder = open(&disk);
    let (other, at) = (folder.clone(), disk.clone());
    folder.set_check_hook(move || {
        at.fail_at(at.operations() + count - 1, EIO);
        let failed = put(&other, "a", &[b'n'; 3000]);
        assert!(matches!(failed, Err(StoreError::Io(_))));
    });
    // The condition is checked before the folders are created.
    let result = put_if(&folder, "x/y/b", b"x", Condition::Absent);
    assert!(matches!(result, Err(StoreError::Io(_))), "{result:?}");
    assert!(disk.root().unwrap().entry_metadata(b"x").is_err());
    put(&folder, "x/y/b", b"kept").unwrap();
    disk.power_cut();
    drop(folder);
    disk.restart();
    assert_eq!(get(&open(&disk), "x/y/b").unwrap(), b"kept");
}

#[test]
fn next_start_removes_files_of_a_killed_process() {
    for seed in 0..8 {
        let disk = SimFs::new(seed);
        let folder = open(&disk);
        put(&folder, "a", b"old").unwrap();
        let mut upload = block_on(folder.stage(&key("a"), Condition::None, Some(1 << 20))).unwrap();
        block_on(upload.write(vec![0; 100_000])).unwrap();
        disk.kill_processes();
        assert!(block_on(upload.commit()).is_err());
        drop(folder);
        let folder = open(&disk);
        assert_eq!(staged(&folder, &Backend::Sim(disk.clone())), 0);
        assert_eq!(get(&folder, "a").unwrap(), b"old");
    }
}

#[test]
fn completed_delete_survives_a_power_cut() {
    for seed in 0..50 {
        let disk = SimFs::new(seed);
        let folder = open(&disk);
        put(&folder, "d/a", b"x").unwrap();
        delete(&folder, "d/a").unwrap();
        if seed % 2 == 0 {
            delete(&folder, "d").unwrap();
        }
        disk.power_cut();
        disk.restart();
        let folder = open(&disk);
        assert_eq!(get(&folder, "d/a"), Err(StoreError::NotFound));
        let gone = block_on(folder.meta(&key("d"))).is_err();
        assert_eq!(gone, seed % 2 == 0);
    }
}

/// A new folder may get the inode of a deleted one that was remembered as durable.
#[test]
fn recreated_folder_is_synced_again() {
    for seed in 0..50 {
        let disk = SimFs::new(seed);
        let folder = open(&disk);
        for _ in 0..3 {
            put(&folder, "d/e/a", b"kept").unwrap();
            delete(&folder, "d/e/a").unwrap();
            delete(&folder, "d/e").unwrap();
            delete(&folder, "d").unwrap();
            disk.sync_all();
        }
        put(&folder, "d/e/a", b"kept").unwrap();
        disk.power_cut();
        disk.restart();
        assert_eq!(get(&open(&disk), "d/e/a").unwrap(), b"kept");
    }
}

/// The first put into a folder that another program created syncs the folder.
#[test]
fn folder_of_another_program_is_synced() {
    for seed in 0..50 {
        let disk = SimFs::new(seed);
        let folder = open(&disk);
        put(&folder, "before", b"x").unwrap();
        let root = disk.root().unwrap();
        root.create_dir(b"d", 0o755).unwrap();
        root.open_dir(b"d")
            .unwrap()
            .create_dir(b"e", 0o755)
            .unwrap();
        put(&folder, "d/e/a", b"kept").unwrap();
        disk.power_cut();
        disk.restart();
        assert_eq!(get(&open(&disk), "d/e/a").unwrap(), b"kept");
    }
}

/// A separate random generator, so that the choices of the disk and of the history are independent.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Random puts and deletes with occasional errors and a power cut at a random operation, checked
/// against the completed changes. An incomplete or failed change may leave any of its states.
#[test]
fn completed_changes_survive_power_cut_in_random_histories() {
    const KEYS: [&str; 5] = ["a", "b", "d/a", "d/e/a", "f/a"];
    for seed in 0..400 {
        let disk = SimFs::new(seed);
        let mut random = Random(seed);
        // The possible contents of each key; `None` means no object.
        let mut may: BTreeMap<&str, Vec<Option<Vec<u8>>>> =
            KEYS.map(|key| (key, vec![None])).into();
        for life in 0..4 {
            let folder = open(&disk);
            for (key, states) in &mut may {
                let found = get(&folder, key).ok();
                assert!(states.contains(&found), "seed {seed}, life {life}, {key}");
                *states = vec![found];
            }
            let begin = disk.operations();
            let cut = [Cut::Before, Cut::During, Cut::After][random.below(3) as usize];
            disk.power_cut_at(begin + random.below(400), cut);
            if random.below(2) == 0 {
                disk.fail_at(begin + random.below(300), EIO);
            }
            while !disk.is_off() {
                if random.below(4) == 0 {
                    disk.sync_all();
                }
                let key = KEYS[random.below(5) as usize];
                let (wanted, result) = if random.below(4) == 0 {
                    let result = delete(&folder, key).map(|_| ());
                    for parent in ["d/e", "d", "f"] {
                        let _ = delete(&folder, parent); // only if it is empty
                    }
                    (None, result)
                } else {
                    let len = random.below(25_000) as usize;
                    let body = [random.below(256) as u8].repeat(len);
                    let result = put(&folder, key, &body).map(|_| ());
                    (Some(body), result)
                };
                let states = may.get_mut(key).unwrap();
                match result {
                    Ok(()) => *states = vec![wanted],
                    Err(StoreError::NotFound) => {}
                    Err(_) => states.push(wanted),
                }
            }
            drop(folder);
            disk.restart();
        }
    }
}
