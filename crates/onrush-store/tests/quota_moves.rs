//! What a quota counts while objects move across its border and change at the same time.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_store::*;
use std::thread;

fn put_in(store: &QuotaStore, at: &str, bytes: usize) -> Result<Committed> {
    block_on(async {
        let key = key(at);
        let mut upload = store.stage(&key, Condition::None, None).await?;
        upload.write(body(bytes)).await?;
        upload.commit().await
    })
}

fn rename(store: &QuotaStore, from: &str, to: &str, kind: Kind) -> Result<Committed> {
    block_on(store.rename(relocation(from, to), kind))
}

fn store(backend: &Backend, bytes_max: u64) -> QuotaStore {
    let options = FolderOptions {
        durability: Durability::None,
        ..FolderOptions::default()
    };
    let folder = Folder::on(backend.root(), BlockingPool::threads(4, 16), options);
    let quota = |prefix: &str| Quota {
        prefix: Some(key(prefix)),
        bytes_max,
    };
    let quotas = vec![quota("in"), quota("out")];
    QuotaStore::new(folder.expect("a folder"), quotas).expect("a count")
}

fn used(store: &QuotaStore) -> Vec<u64> {
    store.used().into_iter().map(|(_, used)| used).collect()
}

#[test]
fn an_object_that_changes_during_a_move_is_counted_exactly() {
    let backend = Backend::real();
    let store = store(&backend, 1 << 20);
    for name in ["in/x", "out/keep"] {
        put_in(&store, name, 10).expect("stored");
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..400 {
                put_in(&store, "in/x", 1 + round * 37 % 15_000).expect("stored");
            }
        });
        scope.spawn(|| {
            for _ in 0..400 {
                match rename(&store, "in/x", "out/x", Kind::File) {
                    Ok(_) | Err(StoreError::NotFound | StoreError::Conflict) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    });
    let counted = used(&store);
    store.count().expect("a count");
    assert_eq!(counted, used(&store));
}

#[test]
fn conditions_of_a_move_hold_for_both_names() {
    let backend = Backend::real();
    let store = store(&backend, 12_000);
    let first = put_in(&store, "in/x", 6000).expect("stored").meta;
    put_in(&store, "out/y", 7000).expect("stored");
    let over = rename(&store, "in/x", "out/x", Kind::File);
    assert_eq!(over, Err(StoreError::OverQuota));
    put_in(&store, "in/x", 4200).expect("stored");
    let conditional = |from_condition, to_condition, to: &str| {
        block_on(store.rename(
            Relocation {
                from: key("in/x"),
                from_condition,
                to: key(to),
                to_condition,
            },
            Kind::File,
        ))
    };
    let failed = Err(StoreError::PreconditionFailed);
    let old = Condition::Versions(vec![first.version]);
    assert_eq!(conditional(old, Condition::None, "out/x"), failed);
    assert_eq!(
        conditional(Condition::None, Condition::Absent, "out/y"),
        failed
    );
    assert_eq!(used(&store), [4200, 7000]);
    let moved = conditional(Condition::Present, Condition::Present, "out/y");
    assert_eq!(moved.map(|moved| moved.created), Ok(false));
    assert_eq!(used(&store), [0, 4200]);
}

#[test]
fn a_folder_takes_what_is_in_it_along() {
    let backend = Backend::real();
    let store = store(&backend, 60_000);
    for (name, bytes) in [("in/d/a", 10_000), ("in/d/e/b", 20_000), ("in/c", 5000)] {
        put_in(&store, name, bytes).expect("stored");
    }
    put_in(&store, "out/x", 10).expect("stored");
    // Each folder and each small object count 4096.
    assert_eq!(used(&store), [35_000 + 2 * 4096, 4096]);
    rename(&store, "in/d", "in/f", Kind::Directory).expect("renamed");
    assert_eq!(used(&store), [35_000 + 2 * 4096, 4096]);
    rename(&store, "in/f", "out/f", Kind::Directory).expect("renamed");
    assert_eq!(used(&store), [5000, 30_000 + 3 * 4096]);
    put_in(&store, "out/x", 13_616).expect("stored");
    put_in(&store, "out/y", 10).expect("stored");
    assert_eq!(used(&store), [5000, 55_904]);
    put_in(&store, "in/g/a", 1).expect("stored");
    let over = rename(&store, "in/g", "out/g", Kind::Directory);
    assert_eq!(over, Err(StoreError::OverQuota));
    assert_eq!(used(&store), [13_192, 55_904]);
    store.count().expect("a count");
    assert_eq!(used(&store), [13_192, 55_904]);
}
