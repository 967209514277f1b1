//! Moves that a dead process has not ended: another process and the next start complete them.

use crate::common::*;
use crate::mount_namespace::{AWAY, BACK, run, with_mounts};
use crate::mounts;
use crate::replaced::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_store::*;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Ends the process of a folder at an operation: no later one has an effect, and its locks are
/// gone. Others go on.
fn end_process(disk: &SimFs, folder: Folder, scene: Scene, number: u64) {
    let begin = disk.operations();
    for later in number..number + 400 {
        disk.fail_at(begin + later, EIO);
    }
    let _ = scene.run(&folder);
    drop(folder);
    disk.clear_faults();
}

/// What another process finds of a change whose process has ended, and goes on with. All changes
/// that begin with the state after the move need `old` to be there.
#[test]
fn another_process_completes_what_a_dead_one_has_begun() {
    let mut completed = 0;
    for scene in SCENES {
        for number in 0..count_operations(scene, 0) {
            let at = format!("{scene:?}, operation {number}");
            let (disk, folder) = prepare(scene, number);
            let other = open(&disk);
            end_process(&disk, folder, scene, number);
            // The client tries again, at the other process.
            let seen = found(&other);
            let result = scene.run(&other);
            let found = found(&other);
            // It may have been made before: then there is nothing to move any more.
            if let Err(error) = result {
                assert_eq!(error, StoreError::NotFound, "{at}");
                assert!(seen != before(scene), "{at}");
                completed += 1;
            }
            assert!(found == after(scene), "{at}: {:?}", names_of(&found));
            // Neither does the next start change anything.
            drop(other);
            disk.kill_processes();
            let folder = open(&disk);
            assert_found(&folder, &after(scene), &at);
            assert_eq!(staged(&folder, &Backend::Sim(disk.clone())), 0, "{at}");
            assert_eq!(records(&disk), 0, "{at}");
        }
    }
    assert!(completed > 10, "{completed}");
}

/// The number of records of moves.
fn records(disk: &SimFs) -> usize {
    match disk.root().unwrap().open_dir(b".onrush/moves") {
        Ok(moves) => entries(&moves).len(),
        Err(_) => 0,
    }
}

/// Ends the process of the first folder between the two steps of the move: both are there, each at
/// the other's name. Returns the other process.
fn half_moved(scene: Scene) -> (SimFs, Folder) {
    let exchanged = |found: &Found| *found != before(scene) && *found != after(scene);
    for number in 0..count_operations(scene, 0) {
        let (disk, folder) = prepare(scene, number);
        let other = open(&disk);
        end_process(&disk, folder, scene, number);
        if exchanged(&found(&other)) {
            return (disk, other);
        }
    }
    panic!("{scene:?} has no such moment");
}

const MOVES: [Scene; 3] = [
    Scene::FolderToFolder,
    Scene::FileToFolder,
    Scene::FolderToFile,
];

/// Each other change begins with the completed move as well.
#[test]
fn what_is_moved_copied_or_deleted_is_what_the_move_has_left() {
    for scene in MOVES {
        let kind = |name: &str, folder: &Folder| block_on(folder.meta(&key(name))).unwrap().kind;
        // The old one cannot be moved or copied any more.
        let (_disk, other) = half_moved(scene);
        let of_old = kind("new", &other);
        let moved = block_on(other.rename(relocation("new", "elsewhere"), of_old));
        assert_eq!(moved.err(), Some(StoreError::NotFound), "{scene:?}");
        assert_found(&other, &after(scene), &format!("{scene:?}"));
        let (_disk, other) = half_moved(scene);
        let staged = block_on(other.stage_copy(&key("new"), &key("old")));
        assert!(staged.is_ok() && block_on(other.meta(&key("new"))).is_err());
        assert_found(&other, &after(scene), &format!("{scene:?}"));
        // The new one is at its new name.
        let (disk, other) = half_moved(scene);
        let of_new = kind("old", &other);
        let moved = block_on(other.rename(relocation("old", "elsewhere"), of_new));
        assert_eq!(moved.map(|moved| moved.created), Ok(true), "{scene:?}");
        assert_found(&other, &Vec::new(), &format!("{scene:?}"));
        assert_eq!(records(&disk), 0);
        // So is what is beneath it.
        let (_disk, other) = half_moved(scene);
        let first = scene.published().remove(0).0;
        delete(&other, first).unwrap();
        let left = scene.published().into_iter().skip(1).collect();
        assert_found(&other, &left, &format!("{scene:?}"));
    }
}

/// Several processes end one after the other.
#[test]
fn each_dead_process_may_have_left_a_move() {
    let (disk, other) = half_moved(Scene::FolderToFolder);
    // The second one completes the first move, and then moves what is at the new name further.
    put(&other, "third/a", b"third").unwrap();
    let mut ended = false;
    let begin = disk.operations();
    let last = open(&disk);
    for number in 0..200 {
        // Each attempt is that of a process which ends one operation later.
        let process = open(&disk);
        for later in number..number + 400 {
            disk.fail_at(disk.operations() + later, EIO);
        }
        let result = replace(&process, "old", "third", Kind::Directory);
        drop(process);
        disk.clear_faults();
        if result.is_ok() || get(&last, "third/1").is_ok() {
            ended = true;
            break;
        }
    }
    assert!(ended && disk.operations() > begin);
    // The last one finds both moves as they were meant.
    let again = replace(&last, "old", "third", Kind::Directory);
    assert_eq!(again.err(), Some(StoreError::NotFound));
    assert!(get(&last, "third/1").unwrap() == body(9000));
    assert_eq!(get(&last, "third/sub/2").unwrap(), b"2");
    assert_found(&last, &Vec::new(), "both are moved");
    assert_eq!(get(&last, "third/a"), Err(StoreError::NotFound));
    assert_eq!(records(&disk), 0);
}

/// What was put beneath the old one since, in whatever depth, is not removed with it.
#[test]
fn what_was_put_since_is_kept() {
    for at in ["new/fresh", "new/x/fresh", "new/x/y"] {
        let (disk, other) = half_moved(Scene::FolderToFolder);
        put(&other, at, b"fresh").unwrap();
        for folder in [other.clone(), open(&disk)] {
            let again = block_on(folder.delete(&key("new/none"), Kind::File, Condition::None));
            assert_eq!(again.err(), Some(StoreError::NotFound), "{at}");
            assert_eq!(get(&folder, at).unwrap(), b"fresh", "{at}");
            assert!(get(&folder, "old/1").unwrap() == body(9000), "{at}");
        }
        assert_eq!(records(&disk), 0, "{at}");
    }
}

/// Another file or folder has the name by now: a program has moved it there.
#[test]
fn a_record_of_other_inodes_moves_nothing() {
    for name in ["new", "old"] {
        let (disk, other) = half_moved(Scene::FolderToFolder);
        let root = disk.root().unwrap();
        root.rename(name.as_bytes(), &root, b"aside", true).unwrap();
        root.create_dir(name.as_bytes(), 0o755).unwrap();
        put(&other, &format!("{name}/another"), b"another").unwrap();
        let missing = delete(&other, &format!("{name}/none"));
        assert_eq!(missing.err(), Some(StoreError::NotFound));
        assert_eq!(get(&other, &format!("{name}/another")).unwrap(), b"another");
        let (left, content) = match name {
            "new" => ("old/1", body(9000)),
            _ => ("new/1", body(13_000)),
        };
        assert!(get(&other, left).unwrap() == content);
        assert!(get(&other, "aside/1").is_ok());
        assert_eq!(records(&disk), 0);
    }
}

/// The record of a move of which only the second step is missing: what is at `from` was replaced by
/// what is at `to`.
fn record_of_exchanged(root: &Path, from: &str, to: &str) -> String {
    let found = |name: &Path| std::fs::symlink_metadata(root.join(name)).unwrap();
    let folder = |name: &str| found(Path::new(name).parent().unwrap()).ino();
    let (old, new) = (found(Path::new(from)), found(Path::new(to)));
    let modified_ns = old.mtime() * 1_000_000_000 + old.mtime_nsec();
    format!(
        "{} {} {} {} {modified_ns} {}\n{from}{to}",
        folder(from),
        folder(to),
        old.ino(),
        new.ino(),
        from.len()
    )
}

/// A live process that is between the two steps, or hangs there, delays only who needs its names.
#[test]
fn a_move_in_progress_is_not_completed_by_another_process() {
    let dir = TempDir::beneath(Path::new("/dev/shm"));
    if abilities::lacks(dir.path().parent().unwrap(), &[Ability::Exchange]) {
        return;
    }
    let (one, other) = (open_at(dir.path()), open_at(dir.path()));
    Scene::FolderToFolder.put(&one);
    put(&one, "third/1", b"third").unwrap();
    let moves = dir.path().join(".onrush/moves");
    std::fs::create_dir_all(&moves).unwrap();
    // A record as of a process that has exchanged both: the keys are locked by a change of it.
    let (entered, is_in) = std::sync::mpsc::channel();
    let (leave, may_leave) = std::sync::mpsc::channel::<()>();
    let may_leave = std::sync::Mutex::new(may_leave);
    one.set_check_hook(move || {
        entered.send(()).unwrap();
        may_leave.lock().unwrap().recv().unwrap();
    });
    let held = Relocation {
        from_condition: Condition::Present,
        ..relocation("new", "old")
    };
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| {
            block_on(one.replace(held, Kind::Directory, ShownNames::default())).map(drop)
        });
        is_in.recv().unwrap();
        let text = record_of_exchanged(dir.path(), "new", "old");
        std::fs::write(moves.join("1-1-1"), text).unwrap();
        // Others are not concerned.
        delete(&other, "third/1").unwrap();
        drop(open_at(dir.path()));
        assert!(moves.join("1-1-1").exists());
        let waiter = scope.spawn(|| delete(&other, "old/1").map(drop));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiter.is_finished() && dir.path().join("new/1").exists());
        leave.send(()).unwrap();
        assert_eq!(holder.join().unwrap(), Ok(()));
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
    assert_eq!(get(&other, "old/sub/2").unwrap(), b"2");
    assert_eq!(get(&other, "old/1"), Err(StoreError::NotFound));
    assert!(!moves.join("1-1-1").exists());
}

fn open_at(dir: &Path) -> Folder {
    let pool = BlockingPool::threads(4, 16);
    Folder::open(dir, pool, FolderOptions::default()).unwrap()
}

/// A move that a dead process has left there is completed when the file system is back.
#[test]
fn moves_outlive_a_time_without_their_mount() {
    if temp_lacks(&[Ability::Exchange]) {
        return; // There are no such moves.
    }
    let Some(dir) = with_mounts(module_path!(), "moves_outlive_a_time_without_their_mount") else {
        return;
    };
    let folder = mounts::open(&dir);
    put(&folder, "bound/new/a", b"replaced").unwrap();
    put(&folder, "bound/old/a", b"moved").unwrap();
    drop(folder);
    let moves = dir.join(".onrush/moves");
    std::fs::create_dir_all(&moves).unwrap();
    let text = record_of_exchanged(&dir, "bound/new", "bound/old");
    std::fs::write(moves.join("1-1-1"), text).unwrap();
    for away in AWAY {
        run(&dir, away);
        let folder = mounts::open(&dir);
        put(&folder, "other-object", b"x").unwrap();
        delete(&folder, "other-object").unwrap();
        assert!(moves.join("1-1-1").exists(), "{away}");
    }
    run(&dir, BACK);
    let folder = mounts::open(&dir);
    assert!(!moves.join("1-1-1").exists());
    assert_eq!(get(&folder, "bound/old/a").unwrap(), b"moved");
    assert_eq!(get(&folder, "bound/new/a"), Err(StoreError::NotFound));
    block_on(folder.pool().run(|| ())).unwrap();
    let staged = mounts::files(&dir.join("bound/.onrush-staging"));
    assert_eq!(staged, Vec::<String>::new());
}
