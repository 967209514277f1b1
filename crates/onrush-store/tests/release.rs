//! A store on tmpfs passes large objects that are replaced, deleted or aborted to the thread pool:
//! the worker that makes the change does not free them itself.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_store::*;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

const LARGE: usize = 20 << 20;

/// Occupies the thread of a pool with one thread until the result is dropped.
fn occupy(pool: &BlockingPool) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let (begun, begins) = mpsc::channel();
    pool.run(move || {
        let _ = begun.send(());
        let _ = released.recv();
    })
    .detach();
    begins.recv().expect("the job begins");
    release
}

/// Descriptors of this process that hold a deleted file in `folder`.
fn open_deleted_files(folder: &Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("lists descriptors");
    let target = |entry: std::io::Result<std::fs::DirEntry>| -> Option<PathBuf> {
        std::fs::read_link(entry.ok()?.path()).ok()
    };
    let is_held =
        |path: &PathBuf| path.starts_with(folder) && path.to_string_lossy().ends_with(" (deleted)");
    open.filter_map(target).filter(is_held).count()
}

#[test]
fn pool_frees_replaced_and_deleted_objects() {
    for durability in [Durability::None, Durability::Full] {
        let dir = TempDir::beneath(Path::new("/dev/shm"));
        let pool = BlockingPool::threads(1, 1);
        let options = FolderOptions {
            durability,
            ..FolderOptions::default()
        };
        let folder = Folder::open(dir.path(), pool.clone(), options).unwrap();
        put(&folder, "large", &vec![1; LARGE]).unwrap();
        put(&folder, "small", b"1").unwrap();

        let busy = occupy(&pool);
        put(&folder, "small", b"2").unwrap();
        assert_eq!(
            open_deleted_files(dir.path()),
            0,
            "a small object is freed at once"
        );
        put(&folder, "large", &vec![2; LARGE]).unwrap();
        assert_eq!(
            open_deleted_files(dir.path()),
            1,
            "the pool has not freed it yet"
        );
        delete(&folder, "large").unwrap();
        assert_eq!(open_deleted_files(dir.path()), 2, "nor the deleted object");
        drop(busy);

        // The pool has one thread, so all earlier jobs are done when it runs this one.
        block_on(pool.run(|| ())).unwrap();
        assert_eq!(open_deleted_files(dir.path()), 0);
    }
}

/// A reader keeps the content of an object that is deleted meanwhile. Its end frees the content on
/// the pool, and frees nothing if the object still exists.
#[test]
fn pool_frees_object_that_a_reader_closes_last() {
    let dir = TempDir::beneath(Path::new("/dev/shm"));
    let pool = BlockingPool::threads(1, 1);
    let folder = Folder::open(dir.path(), pool.clone(), FolderOptions::default()).unwrap();
    put(&folder, "large", &vec![1; LARGE]).unwrap();
    put(&folder, "kept", &vec![1; LARGE]).unwrap();
    let open = |name| block_on(folder.get(&key(name))).unwrap();
    let (reader, other) = (open("large"), open("kept"));
    delete(&folder, "large").unwrap();
    block_on(pool.run(|| ())).unwrap();
    assert_eq!(open_deleted_files(dir.path()), 1, "the reader holds it");

    let busy = occupy(&pool);
    let jobs = pool.stats().queued_total;
    drop(reader);
    assert_eq!(
        open_deleted_files(dir.path()),
        1,
        "the pool has not freed it yet"
    );
    drop(other);
    assert_eq!(pool.stats().queued_total, jobs + 1, "nothing to free");
    drop(busy);
    block_on(pool.run(|| ())).unwrap();
    assert_eq!(open_deleted_files(dir.path()), 0);
}
