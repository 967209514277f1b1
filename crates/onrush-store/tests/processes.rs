//! Two processes on one folder: conditions hold against the changes of both, and a process that
//! ends or hangs does not hold up the other for longer than it must.

use crate::common::*;
use ::testing::child::only;
use onrush_rt::blocking::BlockingPool;
use onrush_store::*;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const DIR_VAR: &str = "ONRUSH_TEST_PROCESSES_DIR";
const DURABLE_VAR: &str = "ONRUSH_TEST_PROCESSES_DURABLE";
const WRITERS: usize = 16;
const INCREMENTS: usize = 12;
const PATIENCE: Duration = Duration::from_secs(60);

fn open(dir: &Path, durability: Durability) -> Folder {
    let options = FolderOptions {
        durability,
        ..FolderOptions::default()
    };
    let folder = Folder::open(dir, BlockingPool::threads(8, 64), options).unwrap();
    assert!(folder.excludes_processes());
    folder
}

/// The environment of a process that a test starts. `None`: this process runs the tests.
fn child_dir() -> Option<std::path::PathBuf> {
    std::env::var_os(DIR_VAR).map(Into::into)
}

fn start(name: &str, dir: &Path, durable: &str) -> Child {
    only(module_path!(), name)
        .env(DIR_VAR, dir)
        .env(DURABLE_VAR, durable)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Increments the number in the object `n` by If-Match. Returns the numbers that it has stored.
fn increment(folder: &Folder) -> Vec<u32> {
    let mut stored = Vec::new();
    while stored.len() < INCREMENTS {
        let object = block_on(folder.get(&key("n"))).unwrap();
        let text = block_on(object.read(0, 99, Vec::with_capacity(99))).unwrap();
        let number = str::from_utf8(&text).unwrap().parse::<u32>().unwrap() + 1;
        let seen = Condition::Versions(vec![object.meta().version]);
        match put_if(folder, "n", number.to_string().as_bytes(), seen) {
            Ok(_) => stored.push(number),
            Err(error) => assert_eq!(error, StoreError::PreconditionFailed),
        }
    }
    stored
}

fn increment_with_writers(folder: &Folder) -> Vec<u32> {
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| scope.spawn(|| increment(folder)))
            .collect();
        writers
            .into_iter()
            .flat_map(|writer| writer.join().unwrap())
            .collect()
    })
}

/// Not a test of its own: the work of the other process. It reports what it has stored.
#[test]
fn incrementing_child() {
    let Some(dir) = child_dir() else { return };
    let durability = match std::env::var(DURABLE_VAR).unwrap().as_str() {
        "full" => Durability::Full,
        _ => Durability::None,
    };
    let folder = open(&dir, durability);
    let mut line = String::new();
    writeln!(std::io::stderr(), "ready").unwrap();
    std::io::stdin().read_line(&mut line).unwrap();
    for number in increment_with_writers(&folder) {
        writeln!(std::io::stderr(), "{number}").unwrap();
    }
}

#[test]
fn increments_of_two_processes_have_one_winner_each() {
    let backends = [
        (Backend::real(), "full"),
        (Backend::real(), "none"),
        (Backend::memory(), "full"),
    ];
    for (backend, durable) in backends {
        let Backend::Real(dir) = &backend else {
            unreachable!()
        };
        let durability = match durable {
            "full" => Durability::Full,
            _ => Durability::None,
        };
        let folder = open(dir.path(), durability);
        put(&folder, "n", b"0").unwrap();
        let mut child = start("incrementing_child", dir.path(), durable);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let mut stored = increment_with_writers(&folder);
        stored.extend(lines.map(|line| line.unwrap().parse::<u32>().unwrap()));
        assert!(child.wait().unwrap().success());
        stored.sort_unstable();
        let all: Vec<u32> = (1..=2 * (WRITERS * INCREMENTS) as u32).collect();
        assert_eq!(stored, all, "each number was stored by one writer");
        assert_eq!(get(&folder, "n").unwrap(), all.len().to_string().as_bytes());
    }
}

/// Not a test of its own: a process that hangs in the middle of a change.
#[test]
fn hanging_child() {
    let Some(dir) = child_dir() else { return };
    let folder = open(&dir, Durability::None);
    folder.set_check_hook(|| {
        writeln!(std::io::stderr(), "locked").unwrap();
        loop {
            thread::park();
        }
    });
    let _ = put_if(&folder, "a", b"child", Condition::Absent);
}

#[test]
fn a_process_that_hangs_blocks_only_its_keys_and_its_end_unlocks_them() {
    for backend in [Backend::real(), Backend::memory()] {
        let Backend::Real(dir) = &backend else {
            unreachable!()
        };
        let folder = open(dir.path(), Durability::Full);
        let mut child = start("hanging_child", dir.path(), "none");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "locked");
        let (sender, done) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let result = put_if(&folder, "a", b"parent", Condition::Absent);
                sender.send(result.map(|_| ())).unwrap();
            });
            for number in 0..50 {
                put(&folder, &format!("b{number}"), b"x").unwrap();
            }
            assert_eq!(get(&folder, "a"), Err(StoreError::NotFound));
            assert!(done.try_recv().is_err(), "the other process has the lock");
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(done.recv_timeout(PATIENCE).unwrap(), Ok(()));
        });
        assert_eq!(get(&folder, "a").unwrap(), b"parent");
        delete(&folder, "a").unwrap();
    }
}

/// Two stores of one folder: they behave as two processes.
fn two_stores(dir: &TempDir) -> [Folder; 2] {
    [(); 2].map(|()| open(dir.path(), Durability::None))
}

/// The locks cover deletes and renames as well.
#[test]
fn every_kind_of_change_waits_for_the_other_store() {
    let dir = TempDir::new();
    let [one, other] = two_stores(&dir);
    let (entered, is_in) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let may_leave = std::sync::Mutex::new(may_leave);
    one.set_check_hook(move || {
        entered.send(()).unwrap();
        may_leave.lock().unwrap().recv_timeout(PATIENCE).unwrap();
    });
    let rename =
        |folder: &Folder| block_on(folder.rename(relocation("from", "a"), Kind::File)).map(|_| ());
    type Change<'c> = &'c (dyn Fn(&Folder) -> Result<()> + Sync);
    let changes: [Change<'_>; 3] = [
        &|folder| put(folder, "a", b"x").map(|_| ()),
        &|folder| delete(folder, "a").map(|_| ()),
        &rename,
    ];
    for change in changes {
        put(&other, "a", b"old").unwrap();
        put(&other, "from", b"from").unwrap();
        thread::scope(|scope| {
            let holder = scope.spawn(|| put_if(&one, "a", b"new", Condition::Present));
            is_in.recv_timeout(PATIENCE).unwrap();
            let waiter = scope.spawn(|| change(&other));
            put(&other, "b", b"another key").unwrap();
            assert_eq!(get(&other, "a").unwrap(), b"old");
            assert!(!waiter.is_finished());
            leave.send(()).unwrap();
            assert!(holder.join().unwrap().is_ok());
            waiter.join().unwrap().unwrap();
        });
    }
}

/// An upload that another process has is refused, not waited for: its client may send slowly.
#[test]
fn an_upload_of_another_process_is_busy() {
    let dir = TempDir::new();
    let [one, other] = two_stores(&dir);
    block_on(async {
        let at = key("a");
        let mut upload = one.stage(&at, Condition::None, None).await.unwrap();
        upload.write(b"1".to_vec()).await.unwrap();
        let kept = upload.keep().await.unwrap();
        let resumed = other.resume(&at, Condition::None, &kept).await;
        assert_eq!(resumed.err(), Some(StoreError::InUse));
        let written = other.write_partial(&kept, 1, b"2".to_vec()).await;
        assert_eq!(written.err(), Some(StoreError::InUse));
        assert_eq!(other.discard(&kept).await, Err(StoreError::InUse));
        assert_eq!(other.discard_older(Duration::ZERO).await, Ok(0));
        drop(upload);
        let mut upload = other.resume(&at, Condition::None, &kept).await.unwrap();
        upload.write(b"2".to_vec()).await.unwrap();
        upload.commit().await.unwrap();
    });
    assert_eq!(get(&one, "a").unwrap(), b"12");
}

/// An upload of `1` and then `23`, as it was kept after each.
async fn keep_twice(folder: &Folder, at: &Key) -> (PartialUpload, PartialUpload) {
    let mut upload = folder.stage(at, Condition::None, None).await.unwrap();
    upload.write(b"1".to_vec()).await.unwrap();
    let before = upload.keep().await.unwrap();
    upload.write(b"23".to_vec()).await.unwrap();
    (before, upload.keep().await.unwrap())
}

/// What a process has kept since another one has read where the upload ends is lost only when that
/// one goes on.
#[test]
fn a_resume_of_fewer_bytes_drops_none_by_itself() {
    let dir = TempDir::new();
    let [one, other] = two_stores(&dir);
    block_on(async {
        let at = key("a");
        let (before, kept) = keep_twice(&one, &at).await;
        let resumed = other.resume(&at, Condition::None, &before).await;
        assert_eq!(resumed.unwrap().written_bytes(), 1);
        let upload = one.resume(&at, Condition::None, &kept).await.unwrap();
        assert_eq!(upload.written_bytes(), 3);
        drop(upload);
        let mut upload = other.resume(&at, Condition::None, &before).await.unwrap();
        upload.write(b"4".to_vec()).await.unwrap();
        upload.commit().await.unwrap();
        assert_eq!(get(&other, "a").unwrap(), b"14");
        // Neither a commit nor what is kept has them.
        for commits in [true, false] {
            let (before, _) = keep_twice(&one, &at).await;
            let mut upload = other.resume(&at, Condition::None, &before).await.unwrap();
            if !commits {
                let kept = upload.keep().await.unwrap();
                drop(upload);
                let longer = PartialUpload { bytes: 3, ..kept };
                let resumed = one.resume(&at, Condition::None, &longer).await;
                assert_eq!(resumed.err(), Some(StoreError::NotFound));
                continue;
            }
            upload.commit().await.unwrap();
            assert_eq!(get(&other, "a").unwrap(), b"1");
        }
    });
}

/// One process waits for two keys while another one does so crosswise, and both may wait with one
/// thread only. A change that waits for that thread must not have a lock.
#[test]
fn renames_of_two_stores_do_not_wait_for_each_other_in_a_circle() {
    let Backend::Real(dir) = Backend::memory() else {
        unreachable!()
    };
    // In memory, the first poll of a change tries to lock.
    let store = |threads| {
        let pool = BlockingPool::threads(threads, 64);
        let folder = Folder::open(dir.path(), pool, FolderOptions::default()).unwrap();
        assert!(folder.excludes_processes() && folder.writes_inline());
        folder
    };
    let (one, other, holder) = (store(4), store(4), store(4));
    let names = ["a", "m", "n", "y", "z"];
    for name in names {
        put(&holder, name, name.as_bytes()).unwrap();
    }
    let (entered, is_in) = mpsc::channel();
    let (leave, may_leave) = mpsc::channel::<()>();
    let may_leave = std::sync::Mutex::new(may_leave);
    holder.set_check_hook(move || {
        entered.send(()).unwrap();
        may_leave.lock().unwrap().recv_timeout(PATIENCE).unwrap();
    });
    for name in ["a", "n", "z"] {
        let holder = holder.clone();
        thread::spawn(move || put_if(&holder, name, b"held", Condition::Present).unwrap());
        is_in.recv_timeout(PATIENCE).unwrap();
    }
    let (sender, done) = mpsc::channel();
    thread::spawn(move || {
        let rename = |folder: &Folder, from: &str, to: &str| {
            let (folder, how) = (folder.clone(), relocation(from, to));
            Box::pin(async move { folder.rename(how, Kind::File).await.map(|_| ()) })
        };
        let mut changes = [
            rename(&other, "a", "m"), // It waits for `a`, on the thread that may wait.
            rename(&other, "y", "z"), // It has `y`, and waits for that thread.
            rename(&one, "y", "yy"),  // It waits for `y`, on the thread that may wait.
            rename(&one, "m", "n"),   // It has `m`, and waits for the thread of that store.
        ]
        .map(Some);
        let mut is_first = true;
        block_on(std::future::poll_fn(|cx| {
            for change in &mut changes {
                if change
                    .as_mut()
                    .is_some_and(|change| change.as_mut().poll(cx).is_ready())
                {
                    *change = None;
                }
            }
            if std::mem::take(&mut is_first) {
                (0..3).for_each(|_| leave.send(()).unwrap());
            }
            match changes.iter().all(Option::is_none) {
                true => std::task::Poll::Ready(()),
                false => std::task::Poll::Pending,
            }
        }));
        sender.send(()).unwrap();
    });
    done.recv_timeout(PATIENCE).expect("all changes end");
}
