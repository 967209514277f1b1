//! An edge: a cache on a local disk in front of another store.

use crate::common::*;
use crate::edge_common::{
    BLOCK, Counted, MISS, TIMEOUT, at_once, edge, get, on_sim, opened, options, put, put_with,
    read, stats, wait_until,
};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_store::testing::conformance;
use onrush_store::*;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Waker};
use std::time::Duration;

#[test]
fn an_edge_is_a_store() {
    let dir = TempDir::new();
    let edge = edge(&Counted::new(), dir.path(), options(1 << 30));
    block_on(conformance(&edge));
}

#[test]
fn an_edge_in_front_of_a_folder_is_a_store() {
    let (dir, cache) = (TempDir::new(), TempDir::new());
    let pool = BlockingPool::threads(2, 64);
    let folder = Folder::open(dir.path(), pool.clone(), FolderOptions::default()).unwrap();
    let edge = EdgeStore::open(Arc::new(folder), cache.path(), pool, options(1 << 30)).unwrap();
    block_on(conformance(&edge));
}

#[test]
fn an_edge_that_always_asks_is_a_store() {
    let dir = TempDir::new();
    let options = EdgeOptions {
        fresh: Duration::ZERO,
        ..options(1 << 30)
    };
    let edge = edge(&Counted::new(), dir.path(), options);
    block_on(conformance(&edge));
}

#[test]
fn an_edge_whose_cache_takes_nothing_is_a_store() {
    let dir = TempDir::new();
    let edge = edge(&Counted::new(), dir.path(), options(1000));
    block_on(conformance(&edge));
    assert_eq!(stats(&edge).entries, 0);
}

#[test]
fn an_edge_whose_cache_is_nearly_full_is_a_store() {
    let dir = TempDir::new();
    let edge = edge(&Counted::new(), dir.path(), options(600_000));
    block_on(conformance(&edge));
    assert!(stats(&edge).used_bytes <= 600_000);
}

/// Sizes around those of a block.
#[test]
fn objects_of_any_size_are_fetched_once() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    let block = BLOCK as usize;
    for size in [0, 1, block - 1, block, block + 1, 2 * block, 5 * block + 7] {
        let (at, content) = (format!("o{size}"), body(size));
        store.put(&at, &content);
        let found = get(&edge, &at);
        assert!(found == Ok((content.clone(), MISS)), "{size}");
        assert_eq!(store.opens(), [Wanted::Range(0..u64::MAX)], "{size}");
        for _ in 0..2 {
            let found = get(&edge, &at);
            assert!(found == Ok((content.clone(), CacheUse::Hit)), "{size}");
        }
        assert_eq!((store.opens().len(), store.metas()), (0, 0), "{size}");
        if size <= block && !temp_lacks(&[Ability::Local]) {
            let object = at_once(&edge, &at);
            assert!(object.local().is_some_and(LocalFile::is_copy));
        }
    }
}

#[test]
fn everybody_waits_for_the_same_fetch() {
    for size in [1000, 200_000, 10 * BLOCK as usize + 1] {
        let (dir, store) = (TempDir::new(), Counted::new());
        let edge = edge(&store, dir.path(), options(1 << 30));
        let content = body(size);
        store.put("a", &content);
        store.held.after(Some(500)); // Until all are there.
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..100).map(|_| scope.spawn(|| get(&edge, "a"))).collect();
            wait_until("a fetch begins", || store.transferred() > 0);
            store.held.after(None);
            for reader in readers {
                let (found, how) = reader.join().expect("no panic").expect("an object");
                assert!(found == content, "{size}");
                let is_miss = matches!(how, CacheUse::Miss { .. } | CacheUse::Partial);
                assert!(is_miss || how == CacheUse::Hit, "{how:?}");
            }
        });
        assert_eq!(store.opens(), [Wanted::Range(0..u64::MAX)], "{size}");
        assert_eq!(store.transferred(), size);
    }
}

/// Polls a future once.
fn begin<F: Future + ?Sized>(future: Pin<&mut F>) {
    let polled = future.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
}

/// The store has sent one request the version when the object is replaced by another server. Until
/// the fresh time is over, a second request may wait for the same response; after it, it must not.
#[test]
fn no_response_is_older_than_the_request_and_the_fresh_time() {
    for fresh in [Duration::ZERO, Duration::from_secs(3600)] {
        for old in [None, Some(b"old")] {
            let (dir, store) = (TempDir::new(), Counted::new());
            let mut options = options(1 << 30);
            options.fresh = Duration::ZERO;
            let asked_before = old.map_or(0, |old| {
                store.put("a", old);
                let edge = edge(&store, dir.path(), options.clone());
                get(&edge, "a").expect("an object");
                store.metas() + store.opens().len()
            });
            assert_eq!(asked_before, usize::from(old.is_some()));
            options.fresh = fresh;
            let edge = edge(&store, dir.path(), options);
            let a = key("a");
            store.responses.after(Some(0));
            let mut first = edge.open(&a, Wanted::All);
            let asked = || store.asked.load(SeqCst) + store.opened.lock().unwrap().len();
            wait_until("the store is asked", || {
                begin(first.as_mut());
                asked() == 1
            });
            store.put("a", b"new");
            let mut second = edge.open(&a, Wanted::All);
            begin(second.as_mut());
            store.responses.after(None);
            let content = |object: Result<Object>| {
                object.map(|object| block_on(read(&object, 0..u64::MAX)).expect("bytes"))
            };
            let first = content(block_on(first)).ok();
            let second = content(block_on(second)).ok();
            assert_eq!(first.as_deref(), old.map(|old| &old[..]));
            match fresh.is_zero() {
                true => assert_eq!(second.as_deref(), Some(&b"new"[..])),
                false => assert_eq!(second, first),
            }
        }
    }
}

#[test]
fn a_fetch_outlives_the_client_that_began_it() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    let content = body(8 * BLOCK as usize);
    store.put("a", &content);
    store.held.after(Some(100_000));
    let a = key("a");
    let first = block_on(edge.get(&a)).expect("an object");
    let second = block_on(edge.get(&a)).expect("an object");
    drop(first);
    store.held.after(None);
    let found = block_on(read(&second, 0..u64::MAX)).expect("bytes");
    assert!(found == content);
    assert_eq!(
        (store.opens().len(), store.transferred()),
        (1, content.len())
    );
}

#[test]
fn a_fetch_without_clients_ends_with_its_block() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    let content = body(20 * BLOCK as usize);
    store.put("a", &content);
    store.held.after(Some(100_000));
    drop(block_on(edge.get(&key("a"))).expect("an object"));
    store.held.after(None);
    wait_until("the record and a block are stored", || {
        stats(&edge).entries == 2
    });
    wait_until("the fetch has ended", || store.is_idle());
    // What was there already when the fetch ended is not lost, but it is less than a block.
    assert!(store.transferred() < 2 * BLOCK as usize);
    let found = get(&edge, "a").expect("an object");
    assert!(found == (content.clone(), CacheUse::Partial));
    assert_eq!(store.opens()[1], Wanted::Range(BLOCK..content.len() as u64));
}

/// Clients that come and go do not cause any number of requests.
#[test]
fn few_fetches_without_clients_go_on() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    let keys: Vec<Key> = (0..400).map(|number| key(format!("o{number}"))).collect();
    for number in 0..keys.len() {
        store.put(&format!("o{number}"), &body(2000 + number));
    }
    store.held.after(Some(0));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let mut clients = Vec::new();
    for key in &keys {
        let mut opening = Box::pin(edge.get(key));
        assert!(opening.as_mut().poll(&mut cx).is_pending());
        clients.push(opening);
    }
    // Each transfer has a reader of the object and a stream of it.
    let transfers = || (Arc::strong_count(&store.held) - 1).div_ceil(2);
    wait_until("all are being transferred", || transfers() == keys.len());
    let stays = clients.split_off(390);
    drop(clients);
    wait_until("some are cancelled", || transfers() <= 128 + stays.len());
    assert!(transfers() >= 128);
    store.held.after(None);
    for (number, client) in (390..).zip(stays) {
        let object = block_on(client).expect("an object");
        let found = block_on(read(&object, 0..u64::MAX)).expect("bytes");
        assert!(found == body(2000 + number));
    }
    assert_eq!(store.opens().len(), keys.len());
    for number in 0..keys.len() {
        let (found, _) = get(&edge, &format!("o{number}")).expect("an object");
        assert!(found == body(2000 + number));
    }
    assert!(store.opens().len() <= keys.len() - 128);
}

/// A reader that stops reading does not make the fetch go on.
#[test]
fn a_fetch_is_a_few_blocks_ahead_of_its_readers() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    let content = body(20 * BLOCK as usize);
    store.put("a", &content);
    let object = block_on(edge.get(&key("a"))).expect("an object");
    let mut stream = object.stream(0..content.len() as u64);
    let piece = block_on(std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)));
    let piece = piece.expect("a piece").expect("bytes");
    wait_until("three blocks are stored", || stats(&edge).entries == 4);
    assert!(store.transferred() < 5 * BLOCK as usize);
    let mut found = piece.to_vec();
    block_on(async {
        while let Some(piece) = std::future::poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
            found.extend_from_slice(&piece.expect("bytes"));
        }
    });
    assert!(found == content);
    assert_eq!(store.opens().len(), 1, "one request for all");
}

#[test]
fn a_range_fetches_only_its_blocks() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    let content = body(10 * BLOCK as usize + 5);
    store.put("a", &content);
    let range = 3 * BLOCK + 10..4 * BLOCK + 1;
    for how in [MISS, CacheUse::Hit] {
        let found = block_on(async {
            let wanted = Wanted::Range(range.clone());
            let object = edge.open(&key("a"), wanted).await.expect("an object");
            assert_eq!(object.cached().expect("an edge").how, how);
            read(&object, range.clone()).await
        });
        assert!(found.expect("bytes") == content[range.start as usize..range.end as usize]);
        wait_until("both blocks are stored", || stats(&edge).entries == 3);
    }
    assert_eq!(store.opens(), [Wanted::Range(3 * BLOCK..5 * BLOCK)]);
    wait_until("its blocks are complete", || {
        store.transferred() as u64 == 2 * BLOCK
    });
    // Beyond the end, and of an object whose other blocks are there.
    block_on(async {
        let end = content.len() as u64;
        let beyond = edge.open(&key("a"), Wanted::Range(end..end + 1)).await;
        assert_eq!(beyond.expect("an object").meta().size, end);
        let first = edge
            .open(&key("a"), Wanted::Range(0..1))
            .await
            .expect("an object");
        assert_eq!(first.cached().expect("an edge").how, CacheUse::Partial);
        assert_eq!(read(&first, 0..1).await.expect("bytes"), content[..1]);
    });
}

/// Not by its first block only.
#[test]
fn a_response_is_a_hit_if_all_its_blocks_are_in_the_cache() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    store.put("a", &body(4 * BLOCK as usize));
    let found = |blocks: std::ops::Range<u64>| {
        let range = blocks.start * BLOCK..blocks.end * BLOCK;
        block_on(async {
            let object = edge.open(&key("a"), Wanted::Range(range.clone())).await?;
            read(&object, range).await?;
            Ok::<_, StoreError>(object.cached().expect("an edge").how)
        })
    };
    let stored = |count| wait_until("it is stored", || stats(&edge).entries == count);
    assert_eq!(found(0..2), Ok(MISS));
    stored(3);
    assert_eq!(found(0..2), Ok(CacheUse::Hit));
    assert_eq!(found(1..2), Ok(CacheUse::Hit));
    assert_eq!(found(1..3), Ok(CacheUse::Partial));
    stored(4);
    assert_eq!(found(1..3), Ok(CacheUse::Hit));
    assert_eq!(found(0..4), Ok(CacheUse::Partial));
    stored(5);
    assert_eq!(found(0..4), Ok(CacheUse::Hit));
    let object = block_on(edge.open(&key("a"), Wanted::Properties)).expect("an object");
    assert_eq!(object.cached().expect("an edge").how, CacheUse::Hit);
}

/// A client that has the last byte may ask again before the last file has its name.
#[test]
fn a_response_is_a_hit_if_all_its_bytes_have_arrived() {
    let (disk, store) = (SimFs::new(1), Counted::new());
    let block_bytes = 2 * BLOCK;
    let options = EdgeOptions {
        block_bytes,
        ..options(1 << 30)
    };
    let edge = on_sim(&store, &disk, options);
    wait_until("the scan is complete", || stats(&edge).is_complete);
    // A large object is a file with its properties and a file per block.
    for (name, blocks, files) in [("single", 1, 1), ("large", 3, 4)] {
        let content = body((blocks * block_bytes) as usize);
        store.put(name, &content);
        disk.hold_folders_after(files - 1);
        assert!(get(&edge, name) == Ok((content.clone(), MISS)), "{name}");
        assert_eq!(disk.wait_for_held(1, TIMEOUT), 1, "{name}");
        assert!(get(&edge, name) == Ok((content, CacheUse::Hit)), "{name}");
        disk.hold_folders(false);
        assert_eq!(store.opens().len(), 1, "{name}");
    }
}

#[test]
fn blocks_in_the_cache_are_parts_of_files() {
    if temp_lacks(&[Ability::Local]) {
        return;
    }
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    let content = body(20 * BLOCK as usize + 5);
    store.put("a", &content);
    let parts = |range: std::ops::Range<u64>| {
        let wanted = Wanted::Range(range.clone());
        let object = block_on(edge.open(&key("a"), wanted)).expect("an object");
        let reader = object.reader().expect("a large object").clone();
        let parts = reader.local_parts(range)?;
        let mut all = Vec::new();
        for part in &parts {
            let mut bytes = vec![0; part.len as usize];
            let read = part.file.read_at(&mut bytes, part.offset).expect("bytes");
            assert_eq!(read, bytes.len());
            all.extend_from_slice(&bytes);
        }
        Some((parts.len(), all))
    };
    let range = BLOCK + 7..4 * BLOCK + 1;
    get(&edge, "a").expect("an object");
    for (range, count) in [
        (range, 4),
        (0..1, 1),
        (BLOCK..2 * BLOCK, 1),
        (0..16 * BLOCK, 16),
        (20 * BLOCK..20 * BLOCK + 5, 1),
    ] {
        let bytes = &content[range.start as usize..range.end as usize];
        let mut found = None;
        wait_until("the files can be opened at once", || {
            found = parts(range.clone());
            found.is_some()
        });
        assert!(found == Some((count, bytes.to_vec())));
    }
    assert!(parts(0..20 * BLOCK).is_none(), "too many files");
}

#[test]
fn versions_are_never_mixed() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    let (old, new) = (body(8 * BLOCK as usize), vec![7; 8 * BLOCK as usize]);
    store.put("a", &old);
    let object = block_on(edge.open(&key("a"), Wanted::Range(0..10))).expect("an object");
    let mut begin = block_on(read(&object, 0..10)).expect("bytes");
    store.put("a", &new); // By another server.
    // The reader has the old block, and cannot have the others.
    let rest = block_on(read(&object, 10..BLOCK)).expect("the block that is in the cache");
    begin.extend_from_slice(&rest);
    assert!(begin == old[..BLOCK as usize]);
    assert_eq!(
        block_on(read(&object, BLOCK..BLOCK + 1)),
        Err(StoreError::Changed)
    );
    // Before the first byte, the request begins again with the new version.
    let found = block_on(async {
        let wanted = Wanted::Range(2 * BLOCK..3 * BLOCK);
        let object = edge.open(&key("a"), wanted).await?;
        read(&object, 0..u64::MAX).await
    });
    assert!(found.expect("bytes") == new);
}

/// The first block is in the cache, and another server replaces or deletes the object. The request
/// that finds a later block gone is the last one that gets the old version.
#[test]
fn a_version_that_is_gone_is_not_served_again() {
    for (cache_bytes, is_deleted) in [(1 << 30, false), (1 << 30, true), (300_000, false)] {
        let (dir, store) = (TempDir::new(), Counted::new());
        let edge = edge(&store, dir.path(), options(cache_bytes));
        let (old, new) = (body(3 * BLOCK as usize), vec![7; 3 * BLOCK as usize]);
        store.put("a", &old);
        let first = block_on(async {
            let object = edge.open(&key("a"), Wanted::Range(0..BLOCK)).await?;
            read(&object, 0..BLOCK).await
        });
        assert!(first.expect("the first block") == old[..BLOCK as usize]);
        match is_deleted {
            true => drop(block_on(store.delete(
                &key("a"),
                Kind::File,
                Condition::None,
            ))),
            false => store.put("a", &new),
        }
        let whole = get(&edge, "a").map(|(content, _)| content);
        if stats(&edge).entries > 1 {
            assert_eq!(whole, Err(StoreError::Changed), "its first block was sent");
        }
        let again = get(&edge, "a").map(|(content, _)| content);
        match is_deleted {
            true => assert_eq!(again, Err(StoreError::NotFound)),
            false => assert!(again.expect("the new version") == new),
        }
    }
}

#[test]
fn a_version_is_confirmed_by_one_question() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let always = EdgeOptions {
        fresh: Duration::ZERO,
        ..options(1 << 30)
    };
    let edge = edge(&store, dir.path(), always);
    for (at, size) in [("small", 1000), ("large", 3 * BLOCK as usize)] {
        store.put(at, &body(size));
        get(&edge, at).expect("an object");
        get(&edge, at).expect("an object");
        store.opens();
        store.metas();
        for _ in 0..3 {
            let (found, how) = get(&edge, at).expect("an object");
            assert!(found == body(size));
            assert_eq!(how, CacheUse::Revalidated);
            assert_eq!((store.opens().len(), store.metas()), (0, 1), "{at}");
        }
        store.put(at, &vec![1; size]);
        assert!(get(&edge, at).expect("an object") == (vec![1; size], MISS));
        block_on(store.delete(&key(at), Kind::File, Condition::None)).expect("deleted");
        assert_eq!(get(&edge, at), Err(StoreError::NotFound));
        // Absence is not kept.
        store.put(at, b"again");
        assert!(get(&edge, at).expect("an object") == (b"again".to_vec(), MISS));
    }
}

/// As in S3, where the version is made from the content only.
#[test]
fn a_change_of_metadata_is_seen() {
    let (dir, store) = (TempDir::new(), Counted::new());
    store.same_versions.store(true, SeqCst);
    let always = EdgeOptions {
        fresh: Duration::ZERO,
        ..options(1 << 30)
    };
    for size in [1000, 3 * BLOCK as usize] {
        let edge = edge(&store, dir.path(), always.clone());
        let at = format!("o{size}");
        let found = |edge: &EdgeStore| {
            block_on(async {
                let object = edge.get(&key(&at)).await.expect("an object");
                assert!(read(&object, 0..u64::MAX).await.expect("bytes") == body(size));
                let metadata = object.metadata().await.expect("metadata");
                String::from_utf8(metadata).expect("text")
            })
        };
        for metadata in ["text/plain", "text/html"] {
            put_with(&store.store, &at, &body(size), metadata);
            assert_eq!(found(&edge), metadata);
            assert_eq!(found(&edge), metadata);
        }
        // Also the copy has the new metadata.
        drop(edge);
        let edge = opened(&store, dir.path(), always.clone());
        store.opens();
        assert_eq!(found(&edge), "text/html");
        assert_eq!(store.opens(), []);
    }
}

/// Two changes within one second have the same time in S3. So the properties of an object that was
/// opened in that second do not confirm its metadata.
#[test]
fn a_change_of_metadata_within_a_second_is_seen() {
    let (dir, store) = (TempDir::new(), Counted::new());
    store.same_versions.store(true, SeqCst);
    store.whole_seconds.store(true, SeqCst);
    store.versions_by_content.store(true, SeqCst);
    let always = EdgeOptions {
        fresh: Duration::ZERO,
        ..options(1 << 30)
    };
    for size in [1000, 3 * BLOCK as usize] {
        let edge = edge(&store, dir.path(), always.clone());
        let at = format!("o{size}");
        for metadata in ["text/plain", "text/html", "text/css"] {
            put_with(&store.store, &at, &body(size), metadata);
            let object = block_on(edge.get(&key(&at))).expect("an object");
            let found = block_on(object.metadata()).expect("metadata");
            assert_eq!(String::from_utf8_lossy(&found), metadata);
            let content = block_on(read(&object, 0..u64::MAX));
            assert!(content.expect("bytes") == body(size));
        }
    }
}

/// The keys share locks and numbers. That a neighbour is fetched is no reason not to store.
#[test]
fn what_is_fetched_at_once_is_stored() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    let at = |number: usize| format!("o{number}");
    for number in 0..300 {
        store.put(&at(number), &body(1000 + number));
    }
    store.held.after(Some(0));
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..300)
            .map(|number| {
                scope.spawn({
                    let edge = &edge;
                    move || get(edge, &at(number))
                })
            })
            .collect();
        wait_until("all are being fetched", || {
            store.opened.lock().unwrap().len() == 300
        });
        store.held.after(None);
        for (number, reader) in readers.into_iter().enumerate() {
            let found = reader.join().expect("no panic");
            assert!(found == Ok((body(1000 + number), MISS)), "{number}");
        }
    });
    store.opens();
    for number in 0..300 {
        let found = get(&edge, &at(number));
        assert!(
            found == Ok((body(1000 + number), CacheUse::Hit)),
            "{number}"
        );
    }
    assert_eq!(store.opens(), []);
}

#[test]
fn a_change_through_this_server_is_visible_at_once() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    for size in [10, 2 * BLOCK as usize] {
        for round in 0..3 {
            let content = vec![round; size];
            let before = edge.generation(&key("a"));
            put(&edge, "a", &content);
            assert_ne!(edge.generation(&key("a")), before);
            assert!(get(&edge, "a").expect("an object").0 == content);
            assert!(get(&edge, "a") == Ok((content, CacheUse::Hit)));
        }
        block_on(edge.delete(&key("a"), Kind::File, Condition::None)).expect("deleted");
        assert_eq!(get(&edge, "a"), Err(StoreError::NotFound));
    }
    // A fetch that began before the change does not bring the old version back.
    store.put("b", &[1; 1000]);
    store.held.after(Some(0));
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| get(&edge, "b"));
        wait_until("a fetch begins", || {
            !store.opened.lock().unwrap().is_empty()
        });
        put(&edge, "b", &[2; 1000]);
        store.held.after(None);
        assert!(slow.join().expect("no panic").is_ok());
    });
    let found = get(&edge, "b").expect("an object").0;
    assert_eq!(found, [2; 1000]);
    assert_eq!(get(&edge, "b").expect("an object"), (found, CacheUse::Hit));
}

#[test]
fn state_of_the_server_is_not_cached() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    let at = Key::state(b"users").expect("a key");
    for content in ["1", "2"] {
        put(&store.store, ".onrush/state/users", content.as_bytes());
        let object = block_on(edge.get(&at)).expect("an object");
        assert_eq!(
            block_on(read(&object, 0..1)).expect("bytes"),
            content.as_bytes()
        );
    }
    assert_eq!(stats(&edge).entries, 0);
}

#[test]
fn dropping_an_edge_ends_its_fetches() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    store.put("a", &body(100_000));
    store.held.after(Some(10));
    let a = key("a");
    let mut opening = Box::pin(edge.get(&a));
    let waker = std::task::Waker::noop();
    let mut cx = std::task::Context::from_waker(waker);
    let polled = std::future::Future::poll(opening.as_mut(), &mut cx);
    assert!(polled.is_pending());
    wait_until("a fetch begins", || store.transferred() > 0);
    drop(opening);
    drop(edge);
    wait_until("nothing uses the store", || Arc::strong_count(&store) == 1);
    // The next process removes what was not complete.
    let edge = opened(&store, dir.path(), options(1 << 30));
    store.held.after(None);
    assert!(get(&edge, "a").expect("an object").0 == body(100_000));
}
