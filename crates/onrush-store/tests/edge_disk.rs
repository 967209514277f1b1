//! The disk of an edge: its limit, restarts, torn files, power cuts and failures.

use crate::common::*;
use crate::edge_common::{
    BLOCK, Counted, MISS, edge, files, get, on_sim, opened, options, read, stats, wait_until,
};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::{Cut, SimFs};
use onrush_store::testing::disk_bytes;
use onrush_store::*;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const LIMIT: u64 = 3 << 20;

/// No file is being changed, so the disk and the account agree.
fn assert_exact(edge: &EdgeStore, dir: &TempDir) {
    wait_until("the disk has what is accounted for", || {
        disk_bytes(dir.path()) == stats(edge).used_bytes
    });
    assert!(disk_bytes(dir.path()) <= LIMIT);
}

#[test]
fn the_limit_is_never_exceeded() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(LIMIT));
    let sizes = [1, 5000, 70_000, 300_000, 1_000_000];
    let at = |number: usize| format!("o{number}");
    for number in 0..100 {
        store.put(&at(number), &body(sizes[number % sizes.len()] + number));
    }
    let left = AtomicUsize::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (edge, left) = (&edge, &left);
            scope.spawn(move || {
                for round in 0..60 {
                    let number = (round * 7 + thread * 13) % 100;
                    let (found, _) = get(edge, &at(number)).expect("an object");
                    assert!(found == body(sizes[number % sizes.len()] + number));
                }
                left.fetch_sub(1, SeqCst);
            });
        }
        while left.load(SeqCst) > 0 {
            assert!(stats(&edge).used_bytes <= LIMIT);
        }
    });
    assert!(stats(&edge).evictions > 0 && stats(&edge).used_bytes > LIMIT / 2);
    assert_exact(&edge, &dir);

    // Files that are being filled are on the disk, too.
    store.held.after(Some(200_000));
    let begun = store.transferred();
    let waiting: Vec<_> = (200..220)
        .map(|number| {
            store.put(&at(number), &body(BLOCK as usize));
            let (edge, at) = (&edge, key(at(number)));
            let mut opening = Box::pin(async move { edge.get(&at).await });
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let _ = std::future::Future::poll(opening.as_mut(), &mut cx);
            opening
        })
        .collect();
    wait_until("many are being filled", || {
        store.transferred() >= begun + 8 * 200_000
    });
    assert!(disk_bytes(dir.path()) <= LIMIT);
    store.held.after(None);
    drop(waiting);
    wait_until("the transfers have ended", || {
        disk_bytes(&dir.path().join("new")) == 0
    });
    assert_exact(&edge, &dir);
}

/// Removed files that are open still have their space, and their bytes.
#[test]
fn readers_keep_what_is_evicted() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(LIMIT));
    store.put("small", &body(200_000));
    store.put("large", &body(4 * BLOCK as usize));
    get(&edge, "small").expect("an object");
    get(&edge, "large").expect("an object");
    let small = block_on(edge.get(&key("small"))).expect("an object");
    assert!(small.local().is_some());
    let large = block_on(edge.get(&key("large"))).expect("an object");
    let mut stream = large.stream(0..4 * BLOCK);
    let piece = block_on(std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)));
    let first = piece.expect("a piece").expect("bytes").len() as u64;
    for number in 0..40 {
        let at = format!("o{number}");
        store.put(&at, &body(200_000));
        get(&edge, &at).expect("an object");
        assert!(stats(&edge).used_bytes <= LIMIT);
    }
    // What a reader has open is not evicted, since that would free nothing.
    assert!(block_on(read(&small, 0..200_000)).expect("bytes") == body(200_000));
    let rest = block_on(async {
        let mut all = Vec::new();
        while let Some(piece) = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
            all.extend_from_slice(&piece.expect("bytes"));
        }
        all
    });
    assert!(rest == body(4 * BLOCK as usize)[first as usize..]);
    // A change removes the name at once.
    crate::edge_common::put(&edge, "small", b"new");
    assert!(block_on(read(&small, 0..200_000)).expect("bytes") == body(200_000));
    let used = stats(&edge).used_bytes;
    drop(small);
    assert!(stats(&edge).used_bytes <= used - 200_000);
}

#[test]
fn a_restart_keeps_files_and_their_order() {
    if temp_lacks(&[Ability::FineTimes]) {
        return;
    }
    let (dir, store) = (TempDir::new(), Counted::new());
    let always = EdgeOptions {
        fresh: Duration::ZERO,
        ..options(LIMIT)
    };
    let edge1 = edge(&store, dir.path(), always.clone());
    for at in ["a", "b", "c"] {
        store.put(at, &body(900_000));
        get(&edge1, at).expect("an object");
        std::thread::sleep(Duration::from_millis(5)); // Times have a resolution of 1 ms.
    }
    get(&edge1, "a").expect("an object");
    // Its list is written only if its own start has ended.
    wait_until("the scan is complete", || stats(&edge1).is_complete);
    wait_until("the last file has its name", || store.is_idle());
    edge1.close();
    let used = stats(&edge1).used_bytes;
    drop(edge1);
    store.opens();
    store.metas();
    let edge2 = edge(&store, dir.path(), always.clone());
    assert_eq!(stats(&edge2).used_bytes, used);
    // Room for this one is made by those that were not used for the longest time.
    store.put("d", &body(900_000));
    get(&edge2, "d").expect("an object");
    store.opens();
    let found = get(&edge2, "a").expect("an object");
    assert!(found.0 == body(900_000));
    assert_eq!(found.1, CacheUse::Revalidated);
    assert_eq!((store.opens().len(), store.metas()), (0, 1));
    let (found, how) = get(&edge2, "b").expect("an object");
    assert!(found == body(900_000) && !store.opens().is_empty());
    assert_eq!(how, CacheUse::Partial, "its blocks were the oldest files");
}

#[test]
fn files_are_served_while_the_scan_runs() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge1 = edge(&store, dir.path(), options(64 << 20));
    let at = |number: usize| format!("o{number}");
    for number in 0..1000 {
        store.put(&at(number), at(number).as_bytes());
        get(&edge1, &at(number)).expect("an object");
    }
    drop(edge1);
    store.opens();
    let edge2 = opened(&store, dir.path(), options(64 << 20));
    for number in (0..1000).rev().step_by(10) {
        let found = get(&edge2, &at(number)).expect("an object");
        assert_eq!(found, (at(number).into_bytes(), CacheUse::Revalidated));
    }
    assert_eq!(store.opens(), []);
    wait_until("the scan is complete", || stats(&edge2).is_complete);
    assert_eq!(stats(&edge2).entries, 1000);
    assert_eq!(disk_bytes(dir.path()), stats(&edge2).used_bytes);
    // A lower limit holds after the scan.
    drop(edge2);
    let edge3 = edge(&store, dir.path(), options(1 << 20));
    wait_until("files are removed", || stats(&edge3).used_bytes <= 1 << 20);
    wait_until("also from the disk", || disk_bytes(dir.path()) <= 1 << 20);
}

/// Whatever happened to the files, no wrong byte is served.
#[test]
fn torn_files_are_fetched_again() {
    let tear: [fn(&std::fs::File, u64); 5] = [
        |file, _| file.set_len(0).unwrap(),
        |file, len| file.set_len(len - 1).unwrap(),
        |file, len| file.set_len(len / 2).unwrap(),
        |file, len| file.write_all_at(&[0; 64], len / 3).unwrap(),
        |file, len| file.write_all_at(&vec![0; len as usize], 0).unwrap(),
    ];
    for size in [1000, 3 * BLOCK as usize] {
        for tear in tear {
            let (dir, store) = (TempDir::new(), Counted::new());
            store.put("a", &body(size));
            get(&edge(&store, dir.path(), options(LIMIT)), "a").expect("an object");
            for path in files(dir.path()) {
                let file = std::fs::File::options().write(true).open(path).unwrap();
                let len = file.metadata().unwrap().len();
                tear(&file, len);
            }
            store.opens();
            let edge = edge(&store, dir.path(), options(LIMIT));
            for _ in 0..2 {
                assert!(get(&edge, "a").expect("an object").0 == body(size));
            }
            assert!(!store.opens().is_empty());
            assert!(get(&edge, "a") == Ok((body(size), CacheUse::Hit)));
            assert_exact(&edge, &dir);
        }
    }
}

/// A file of another object under this name is not served.
#[test]
fn a_file_of_another_object_is_not_served() {
    let (dir, store) = (TempDir::new(), Counted::new());
    store.put("a", b"content of a");
    let edge1 = edge(&store, dir.path(), options(LIMIT));
    get(&edge1, "a").expect("an object");
    let path = files(dir.path()).pop().expect("a file");
    store.put("b", b"content of b");
    get(&edge1, "b").expect("an object");
    let other = files(dir.path()).into_iter().find(|other| *other != path);
    drop(edge1);
    std::fs::copy(&path, other.expect("a file")).expect("copied");
    let edge2 = edge(&store, dir.path(), options(LIMIT));
    assert_eq!(get(&edge2, "b"), Ok((b"content of b".to_vec(), MISS)));
}

#[test]
fn a_power_cut_leaves_no_wrong_byte() {
    let mut kept = 0;
    for seed in 0..24 {
        let (disk, store) = (SimFs::new(seed), Counted::new());
        let sizes = [10, 5000, 100_000, 3 * BLOCK as usize];
        let edge1 = on_sim(&store, &disk, options(LIMIT));
        wait_until("the scan is complete", || stats(&edge1).is_complete);
        for size in sizes {
            store.put(&format!("o{size}"), &body(size));
            get(&edge1, &format!("o{size}")).expect("an object");
            if seed % 4 == 0 {
                disk.sync_all(); // As the kernel does from time to time.
            }
        }
        if seed % 2 == 0 {
            disk.power_cut();
        } else {
            disk.power_cut_at(disk.operations() + seed / 4, Cut::Before);
            let _ = get(&edge1, "o100000");
            store.put("more", &body(50_000));
            let _ = get(&edge1, "more");
            disk.power_cut();
        }
        drop(edge1);
        disk.restart();
        let edge2 = on_sim(&store, &disk, options(LIMIT));
        store.opens();
        for size in sizes {
            let (found, how) = get(&edge2, &format!("o{size}")).expect("an object");
            assert!(found == body(size), "{seed}: {size}");
            kept += usize::from(how == CacheUse::Revalidated);
        }
    }
    assert!(kept > 0, "some files survive");
}

/// A large object can be served during an outage after a restart, as long as it has blocks.
#[test]
fn blocks_are_removed_before_the_properties_of_their_object() {
    const HOUR: i64 = 3_600_000_000_000;
    for restarts in [false, true] {
        let (disk, store) = (SimFs::new(1), Counted::new());
        let options = EdgeOptions {
            fresh: Duration::from_secs(100 * 3600),
            stale: Duration::from_secs(100 * 3600),
            ..options(LIMIT)
        };
        let content = body(4 * BLOCK as usize);
        store.put("a", &content);
        disk.set_clock_ns(1000 * HOUR);
        let mut edge = on_sim(&store, &disk, options.clone());
        wait_until("the scan is complete", || stats(&edge).is_complete);
        get(&edge, "a").expect("an object");
        wait_until("all is stored", || stats(&edge).entries == 5);
        if restarts {
            disk.set_clock_ns(1002 * HOUR);
            get(&edge, "a").expect("an object"); // Its blocks are used, and it is not confirmed.
            edge.close();
            drop(edge);
            edge = on_sim(&store, &disk, options.clone());
            wait_until("the scan is complete", || stats(&edge).is_complete);
        }
        for number in 0.. {
            let at = format!("o{number}");
            store.put(&at, &body(200_000));
            get(&edge, &at).expect("an object");
            if stats(&edge).evictions > 0 {
                break;
            }
        }
        drop(edge);
        store.store.fail_with(Some(StoreError::Unavailable));
        let edge = on_sim(&store, &disk, options);
        let served = |number: &u64| {
            let range = number * BLOCK..(number + 1) * BLOCK;
            let found = block_on(async {
                let object = edge.open(&key("a"), Wanted::Range(range.clone())).await?;
                read(&object, range.clone()).await
            });
            found.is_ok_and(|bytes| bytes == content[range.start as usize..range.end as usize])
        };
        assert_eq!((0..4).filter(served).count(), 3, "{restarts}");
    }
}

/// The stale time begins with the last confirmation, however often a copy is used.
#[test]
fn a_restart_keeps_the_time_of_the_last_confirmation() {
    const HOUR: i64 = 3_600_000_000_000;
    for size in [1000, 2 * BLOCK as usize] {
        for confirms in [false, true] {
            let (disk, store) = (SimFs::new(1), Counted::new());
            let options = EdgeOptions {
                fresh: Duration::from_secs(if confirms { 0 } else { 100 * 3600 }),
                stale: Duration::from_secs(3600),
                ..options(LIMIT)
            };
            store.put("a", &body(size));
            disk.set_clock_ns(1000 * HOUR);
            let edge1 = on_sim(&store, &disk, options.clone());
            wait_until("the scan is complete", || stats(&edge1).is_complete);
            get(&edge1, "a").expect("an object");
            let entries = if size > BLOCK as usize { 3 } else { 1 };
            wait_until("all is stored", || stats(&edge1).entries == entries);
            disk.set_clock_ns(1002 * HOUR);
            let (_, how) = get(&edge1, "a").expect("an object");
            assert_eq!(how == CacheUse::Revalidated, confirms);
            edge1.close();
            drop(edge1);
            let edge2 = on_sim(&store, &disk, options);
            store.store.fail_with(Some(StoreError::Unavailable));
            let found = get(&edge2, "a");
            match confirms {
                true => assert!(found == Ok((body(size), CacheUse::Stale)), "{size}"),
                false => assert_eq!(found, Err(StoreError::Unavailable), "{size}"),
            }
        }
    }
}

/// As on a file system that keeps times in seconds: two changes within one give the same version.
#[test]
fn an_object_that_may_change_within_its_time_is_not_kept() {
    let (disk, store) = (SimFs::new(1), Counted::new());
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap();
    disk.set_clock_ns(now().as_nanos() as i64);
    let edge = on_sim(&store, &disk, options(LIMIT));
    wait_until("the scan is complete", || stats(&edge).is_complete);
    store.same_versions.store(true, SeqCst);
    store.whole_seconds.store(true, SeqCst);
    for size in [1000, 2 * BLOCK as usize] {
        let at = format!("o{size}");
        for byte in 0..3 {
            store.put(&at, &vec![byte; size]);
            assert!(get(&edge, &at).expect("an object").0 == vec![byte; size]);
        }
        assert_eq!(stats(&edge).entries, 0);
    }
    // Later a change has another time.
    disk.set_clock_ns((now() + Duration::from_secs(4)).as_nanos() as i64);
    for size in [1000, 2 * BLOCK as usize] {
        let at = format!("o{size}");
        assert!(get(&edge, &at) == Ok((vec![2; size], MISS)));
        assert!(get(&edge, &at) == Ok((vec![2; size], CacheUse::Hit)));
    }
}

#[test]
fn only_a_folder_of_its_own_is_used() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let open = |path: &std::path::Path| {
        let pool = BlockingPool::threads(1, 10);
        EdgeStore::open(store.clone(), path, pool, options(LIMIT)).map(drop)
    };
    let own = dir.path().join("new/cache");
    let first = edge(&store, &own, options(LIMIT));
    let error = open(&own).expect_err("it is in use");
    assert!(
        error.to_string().contains("in use by another process"),
        "{error}"
    );
    store.put("a", b"x");
    get(&first, "a").expect("an object");
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&own), 0o700);
    for file in files(&own) {
        let mode_of_file = match temp_lacks(&[Ability::Modes]) {
            true => mode(&file) & 0o700,
            false => 0o600,
        };
        let of_both = (mode(&file), mode(file.parent().unwrap()));
        assert_eq!(of_both, (mode_of_file, 0o700));
    }
    let mut mark = String::new();
    let file = std::fs::File::open(own.join("onrush-cache"));
    file.unwrap().read_to_string(&mut mark).unwrap();
    assert!(mark.contains("cache of onrush"));
    let other = dir.path().join("new");
    std::fs::write(other.join("file"), "precious").unwrap();
    let error = open(&other).expect_err("it contains something else");
    assert!(error.to_string().contains("not empty"), "{error}");
    let error = open(&other.join("file")).expect_err("it is a file");
    assert_eq!(error.kind(), std::io::ErrorKind::NotADirectory);
    assert_eq!(
        std::fs::read_to_string(other.join("file")).unwrap(),
        "precious"
    );
}
