//! What quotas count: after random operations, and in the next process, the sums are those of a new
//! count.

use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_store::*;

on_all! {
    names_and_folders_count_a_block
    unfinished_uploads_count
    a_failure_counts_nothing
    folders_in_each_other_are_counted_together
}

const BLOCK: u64 = COUNTED_BYTES_MIN;

fn quota(prefix: Option<&str>, bytes_max: u64) -> Quota {
    Quota {
        prefix: prefix.map(key),
        bytes_max,
    }
}

fn used(store: &QuotaStore) -> Vec<u64> {
    store.used().into_iter().map(|(_, used)| used).collect()
}

async fn put_in(store: &QuotaStore, at: &str, bytes: usize) -> Result<Committed> {
    let mut upload = store.stage(&key(at), Condition::None, None).await?;
    upload.write(body(bytes)).await?;
    upload.commit().await
}

fn names_and_folders_count_a_block(backend: &Backend) {
    let quotas = vec![quota(None, 10 * BLOCK), quota(Some("a/b"), 5 * BLOCK)];
    let store = QuotaStore::new(backend.folder(), quotas).unwrap();
    block_on(async {
        put_in(&store, "a/b/c/empty", 0).await.unwrap();
        assert_eq!(used(&store), [4 * BLOCK, 2 * BLOCK]);
        assert_eq!(store.create_folder(&key("a/b/c/d/e")).await, Ok(true));
        assert_eq!(used(&store), [6 * BLOCK, 4 * BLOCK]);
        // There is room for one more, and nothing of what does not fit stays.
        let refused = put_in(&store, "a/b/x/object", 1).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        let refused = store.create_folder(&key("a/b/x/y")).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        assert_eq!(
            store.meta(&key("a/b/x")).await.err(),
            Some(StoreError::NotFound)
        );
        assert_eq!(used(&store), [6 * BLOCK, 4 * BLOCK]);
        put_in(&store, "a/b/last", 1).await.unwrap();
        let refused = put_in(&store, "a/b/another", 0).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        let refused = store.copy(relocation("a/b/last", "a/b/another")).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        let folder = key("a/b/c/d/e");
        let deleted = store.delete(&folder, Kind::Directory, Condition::None);
        deleted.await.unwrap();
        assert_eq!(store.create_folder(&key("a/b/another")).await, Ok(true));
        let refused = put_in(&store, "a/b/last", 0).await; // It needs room beside the old one.
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        assert_eq!(used(&store), [7 * BLOCK, 5 * BLOCK]);
        store.count().unwrap();
        assert_eq!(used(&store), [7 * BLOCK, 5 * BLOCK]);
    });
}

/// Of earlier processes as well, from the first byte until they are complete or discarded.
fn unfinished_uploads_count(backend: &Backend) {
    let quotas = [quota(None, 30 * BLOCK), quota(Some("in"), 10 * BLOCK)];
    let store = QuotaStore::new(backend.folder(), quotas.to_vec()).unwrap();
    let at = key("in/x");
    let kept = block_on(async {
        let mut upload = store.stage(&at, Condition::None, None).await.unwrap();
        assert_eq!(used(&store), [BLOCK, BLOCK]);
        upload.write(body(3 * BLOCK as usize)).await.unwrap();
        let kept = upload.keep().await.unwrap();
        upload.write(body(BLOCK as usize)).await.unwrap();
        drop(upload);
        // What was written after it is on the disk as well.
        assert_eq!(used(&store), [4 * BLOCK, 4 * BLOCK]);
        let refused = put_in(&store, "in/y", 7 * BLOCK as usize).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        kept
    });
    drop(store);
    let upload = RecordedUpload {
        key: at.clone(),
        kept: kept.clone(),
        arrived_bytes: None,
    };
    let store = QuotaStore::uncounted(backend.folder(), &quotas);
    store.find_partial(&[upload]).unwrap();
    assert!(!store.is_counted());
    block_on(async {
        let refused = put_in(&store, "in/y", 1).await;
        assert_eq!(refused.err(), Some(StoreError::NotCounted));
        let refused = store.create_folder(&key("a")).await;
        assert_eq!(refused.err(), Some(StoreError::NotCounted));
        store.count().unwrap();
        assert_eq!(used(&store), [4 * BLOCK, 4 * BLOCK]);
        let refused = put_in(&store, "in/y", 7 * BLOCK as usize).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        // Another quota counts it, too.
        let quotas = [&quotas[..], &[quota(Some("in/x"), 1)]].concat();
        store.set_quotas(&quotas[1..]).unwrap();
        assert_eq!(used(&store), [4 * BLOCK, 0]);
        store.set_quotas(&quotas[..2]).unwrap();
        assert_eq!(used(&store), [4 * BLOCK, 4 * BLOCK]);
        let resumed = store.resume(&at, Condition::None, &kept).await;
        let mut upload = resumed.unwrap();
        assert_eq!(used(&store), [3 * BLOCK, 3 * BLOCK]);
        let refused = upload.write(body(7 * BLOCK as usize + 1)).await;
        assert_eq!(refused.err(), Some(StoreError::OverQuota));
        drop(upload);
        assert_eq!(used(&store), [3 * BLOCK, 3 * BLOCK]);
        // Its folder counts as well.
        let resumed = store.resume(&at, Condition::None, &kept).await;
        resumed.unwrap().commit().await.unwrap();
        assert_eq!(used(&store), [4 * BLOCK, 3 * BLOCK]);
        for is_old in [false, true] {
            let mut upload = store.stage(&at, Condition::None, None).await.unwrap();
            upload.write(body(BLOCK as usize + 1)).await.unwrap();
            let kept = upload.keep().await.unwrap();
            drop(upload);
            assert_eq!(used(&store)[1], 4 * BLOCK + 1);
            match is_old {
                true => while store.discard_older(std::time::Duration::ZERO).await == Ok(0) {},
                false => store.discard(&kept).await.unwrap(),
            }
            assert_eq!(used(&store), [4 * BLOCK, 3 * BLOCK]);
        }
        store.count().unwrap();
        assert_eq!(used(&store), [4 * BLOCK, 3 * BLOCK]);
    });
}

/// One count for all, also of a folder that is reached through a link.
fn folders_in_each_other_are_counted_together(backend: &Backend) {
    if backend.lacks(&[Ability::Symlinks]) {
        return;
    }
    let folder = backend.folder();
    for (name, bytes) in [
        ("a/b/c/x", 5000),
        ("a/b/y", 6000),
        ("a/z", 7000),
        ("ab/z", 8000),
    ] {
        put(&folder, name, &body(bytes)).unwrap();
    }
    put(&folder, "top", &body(9000)).unwrap();
    backend.symlink("link", "a/b");
    let of = [
        None,
        Some("link"),
        Some("a/b/c"),
        Some("a"),
        Some("none"),
        Some("a/b"),
    ];
    let quotas = of.map(|prefix| quota(prefix, 1 << 30)).to_vec();
    let (a, b, c) = (18_000 + 2 * BLOCK, 11_000 + BLOCK, 5000);
    let all = a + BLOCK + 8000 + BLOCK + 9000;
    let store = QuotaStore::new(folder, quotas).unwrap();
    assert_eq!(used(&store), [all, b, c, a, 0, b]);
    store.count().unwrap();
    assert_eq!(used(&store), [all, b, c, a, 0, b]);
}

/// A condition that does not hold, a name that is in the way: what was reserved is returned.
fn a_failure_counts_nothing(backend: &Backend) {
    let store = QuotaStore::new(backend.folder(), vec![quota(None, 20 * BLOCK)]).unwrap();
    block_on(async {
        put_in(&store, "a", 5000).await.unwrap();
        put_in(&store, "d/b", 5).await.unwrap();
        let before = used(&store);
        let mut upload = store
            .stage(&key("new/x"), Condition::Present, None)
            .await
            .unwrap();
        upload.write(body(20_000)).await.unwrap();
        assert_eq!(used(&store), [before[0] + 20_000]);
        upload.commit().await.unwrap_err();
        put_in(&store, "a/b/c", 5).await.unwrap_err();
        put_in(&store, "d", 5).await.unwrap_err();
        store.copy(relocation("none", "new/y")).await.unwrap_err();
        store
            .rename(relocation("none", "new/y"), Kind::File)
            .await
            .unwrap_err();
        let deleted = store
            .delete(&key("d"), Kind::Directory, Condition::None)
            .await;
        assert_eq!(deleted.err(), Some(StoreError::NotEmpty));
        block_on(store_jobs(&store));
        assert_eq!(used(&store), before);
        store.count().unwrap();
        assert_eq!(used(&store), before);
    });
}

/// Waits for the jobs that have begun, such as the removal of folders.
async fn store_jobs(store: &QuotaStore) {
    let _ = store.list(None, ListHow::default()).await;
}

/// The disk fails at each operation of a put into new folders: the sum is that of a new count.
#[test]
fn what_an_error_leaves_is_counted() {
    for failing in 0.. {
        let disk = SimFs::new(1);
        let folder = Folder::on(
            disk.root().unwrap(),
            BlockingPool::inline(),
            FolderOptions::default(),
        );
        let store = QuotaStore::new(folder.unwrap(), vec![quota(None, 100 * BLOCK)]).unwrap();
        let first = disk.operations();
        disk.fail_at(first + failing, libc::EIO);
        let result = block_on(put_in(&store, "a/b/c", 10_000));
        let is_over = disk.operations() <= first + failing;
        disk.clear_faults();
        let counted = used(&store);
        store.count().unwrap();
        assert_eq!(counted, used(&store), "operation {failing}: {result:?}");
        if is_over {
            assert!(failing > 5);
            break;
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = (self.0)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }

    fn name(&mut self) -> String {
        const NAMES: [&str; 5] = ["a", "b", "in", "x", "y"];
        let depth = 1 + self.below(4);
        let names: Vec<_> = (0..depth).map(|_| NAMES[self.below(NAMES.len())]).collect();
        names.join("/")
    }
}

/// An operation, which may fail.
async fn change(store: &QuotaStore, random: &mut Random, kept: &mut Vec<RecordedUpload>) {
    let (from, to) = (random.name(), random.name());
    let bytes = random.below(12_000);
    let kind = [Kind::File, Kind::Directory][random.below(2)];
    match random.below(13) {
        0..=2 => drop(put_in(store, &to, bytes).await),
        3 => drop(store.create_folder(&key(&to)).await),
        4 | 5 => drop(store.delete(&key(&from), kind, Condition::None).await),
        6 => drop(store.copy(relocation(&from, &to)).await),
        7 if from != to => drop(store.rename(relocation(&from, &to), kind).await),
        8 if from != to => drop(
            store
                .replace(relocation(&from, &to), kind, ShownNames::all())
                .await,
        ),
        9 => {
            let Ok(mut upload) = store.stage(&key(&to), Condition::None, None).await else {
                return;
            };
            if upload.write(body(bytes)).await.is_err() {
                return;
            }
            kept.push(RecordedUpload {
                key: key(&to),
                kept: upload.keep().await.unwrap(),
                arrived_bytes: None,
            });
            let _ = upload.write(body(bytes / 2)).await;
        }
        10 if !kept.is_empty() => {
            let at = random.below(kept.len());
            let RecordedUpload { key, kept, .. } = &mut kept[at];
            if let Ok(mut upload) = store.resume(key, Condition::None, kept).await
                && upload.write(body(bytes)).await.is_ok()
            {
                *kept = upload.keep().await.unwrap();
            }
        }
        11 if !kept.is_empty() => {
            let upload = kept.swap_remove(random.below(kept.len()));
            let resumed = store
                .resume(&upload.key, Condition::None, &upload.kept)
                .await;
            let committed = match resumed {
                Ok(upload) => upload.commit().await.is_ok(),
                Err(_) => false,
            };
            if !committed {
                store.discard(&upload.kept).await.unwrap();
            }
        }
        12 if !kept.is_empty() => {
            let upload = kept.swap_remove(random.below(kept.len()));
            store.discard(&upload.kept).await.unwrap();
        }
        _ => {}
    }
}

#[test]
fn random_operations_are_counted_exactly() {
    for (seed, durability) in [
        (1, Durability::Full),
        (2, Durability::None),
        (3, Durability::Full),
    ] {
        for backend in [Backend::memory(), Backend::sim(), Backend::plain()] {
            let folder = || {
                let options = FolderOptions {
                    durability,
                    ..FolderOptions::default()
                };
                Folder::on(backend.root(), BlockingPool::inline(), options).unwrap()
            };
            let quotas = [
                quota(None, 60 * BLOCK),
                quota(Some("in"), 20 * BLOCK),
                quota(Some("a/in"), 10 * BLOCK),
            ];
            let mut store = QuotaStore::new(folder(), quotas.to_vec()).unwrap();
            let mut random = Random(seed);
            let mut kept = Vec::new();
            for number in 0..1500 {
                block_on(change(&store, &mut random, &mut kept));
                let counted = used(&store);
                for (used, quota) in counted.iter().zip(&quotas) {
                    assert!(*used <= quota.bytes_max, "{number}: {counted:?}");
                }
                if number % 100 == 99 {
                    store.count().unwrap();
                    assert_eq!(counted, used(&store), "after {number}, counted again");
                    drop(store);
                    store = QuotaStore::uncounted(folder(), &quotas);
                    store.find_partial(&kept).unwrap();
                    store.count().unwrap();
                    assert_eq!(counted, used(&store), "after {number}, in the next process");
                }
            }
            assert!(used(&store)[0] > 20 * BLOCK, "something was stored");
        }
    }
}
