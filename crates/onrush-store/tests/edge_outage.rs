//! An edge whose store does not respond, or refuses a change.

use crate::common::*;
use crate::edge_common::{
    BLOCK, Counted, MISS, at_once, edge, get, options, put, read, stats, wait_until,
};
use onrush_store::*;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Waker};
use std::time::Duration;

fn put_if(edge: &EdgeStore, at: &str, condition: Condition) -> Result<Committed> {
    block_on(async {
        let mut upload = edge.stage(&key(at), condition, None).await?;
        upload.set_metadata(at.as_bytes().to_vec())?;
        upload.write(b"new".to_vec()).await?;
        upload.commit().await
    })
}

/// A change that was not made leaves the copy, which the store confirms before it is used again.
#[test]
fn a_change_that_is_refused_leaves_the_copy() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    for size in [1000, 2 * BLOCK as usize] {
        let at = format!("o{size}");
        store.put(&at, &body(size));
        for failure in [
            StoreError::Unavailable,
            StoreError::Throttled { retry_after: None },
        ] {
            get(&edge, &at).expect("an object");
            store.opens();
            let a = key(&at);
            let upload = block_on(edge.stage(&a, Condition::None, None)).expect("an upload");
            store.store.fail_with(Some(failure));
            assert_eq!(block_on(upload.commit()).map(drop), Err(failure));
            let deleted = block_on(edge.delete(&a, Kind::File, Condition::None));
            assert_eq!(deleted, Err(failure));
            assert!(get(&edge, &at) == Ok((body(size), CacheUse::Stale)));
            store.store.fail_with(None);
            wait_until("the copy is confirmed", || {
                get(&edge, &at) == Ok((body(size), CacheUse::Revalidated))
            });
            assert_eq!(store.opens(), []);
        }
        // One that may have been made ends its use.
        let upload = block_on(edge.stage(&key(&at), Condition::None, None)).expect("an upload");
        let failure = StoreError::Interrupted;
        store.store.fail_with(Some(failure));
        let result = block_on(upload.commit());
        assert_eq!(result.map(drop), Err(failure));
        store.store.fail_with(Some(StoreError::Unavailable));
        assert_eq!(get(&edge, &at), Err(StoreError::Unavailable));
        store.store.fail_with(None);
    }
}

/// The response that confirms a copy is on its way while the object is deleted or replaced.
#[test]
fn a_response_that_is_older_than_a_change_restores_nothing() {
    for size in [1000, 2 * BLOCK as usize] {
        for is_deleted in [true, false] {
            let (dir, store) = (TempDir::new(), Counted::new());
            let always = EdgeOptions {
                fresh: Duration::ZERO,
                ..options(1 << 30)
            };
            let edge = edge(&store, dir.path(), always);
            let (a, old) = (key("a"), body(size));
            store.put("a", &old);
            get(&edge, "a").expect("an object");
            let entries = if size > BLOCK as usize { 3 } else { 1 };
            wait_until("all is stored", || stats(&edge).entries == entries);
            store.metas();
            store.responses.after(Some(0));
            let mut asks = edge.open(&a, Wanted::All);
            wait_until("the store is asked", || {
                let mut cx = Context::from_waker(Waker::noop());
                assert!(asks.as_mut().poll(&mut cx).is_pending());
                store.asked.load(SeqCst) == 1
            });
            match is_deleted {
                true => drop(block_on(edge.delete(&a, Kind::File, Condition::None))),
                false => put(&edge, "a", b"new"),
            }
            store.responses.after(None);
            let found = block_on(asks);
            let found = found.map(|object| block_on(read(&object, 0..u64::MAX)).expect("bytes"));
            match is_deleted {
                true => assert!(found == Err(StoreError::NotFound), "{size}"),
                false => assert!(found == Ok(b"new".to_vec()), "{size}"),
            }
            // What the response has begun has its end before these.
            for number in 0..20 {
                let at = format!("o{number}");
                store.put(&at, b"other");
                get(&edge, &at).expect("an object");
            }
            store.store.fail_with(Some(StoreError::Unavailable));
            let gone = Err(StoreError::Unavailable);
            // A disk may take its time to store the new one.
            wait_until("it is stored", || is_deleted || get(&edge, "a") != gone);
            let found = get(&edge, "a");
            match is_deleted {
                true => assert!(found == gone, "{size}"),
                false => assert!(found == Ok((b"new".to_vec(), CacheUse::Stale)), "{size}"),
            }
        }
    }
}

/// Another client has changed the object.
#[test]
fn a_copy_is_confirmed_after_a_condition_has_failed() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let edge = edge(&store, dir.path(), options(1 << 30));
    store.put("a", b"old");
    get(&edge, "a").expect("an object");
    let version = block_on(edge.meta(&key("a"))).expect("an object").version;
    store.put("a", b"other"); // By another server.
    let generation = edge.generation(&key("a"));
    let result = put_if(&edge, "a", Condition::Versions(vec![version]));
    assert_eq!(result.map(drop), Err(StoreError::PreconditionFailed));
    assert_ne!(edge.generation(&key("a")), generation);
    assert!(edge.try_get(&key("a")).is_none());
    assert_eq!(get(&edge, "a"), Ok((b"other".to_vec(), MISS)));
    let result = put_if(&edge, "a", Condition::Absent);
    assert_eq!(result.map(drop), Err(StoreError::PreconditionFailed));
    let same = Ok((b"other".to_vec(), CacheUse::Revalidated));
    assert_eq!(get(&edge, "a"), same);
}

#[test]
fn while_the_store_is_down_copies_are_served() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let always = EdgeOptions {
        fresh: Duration::ZERO,
        ..options(1 << 30)
    };
    let edge = edge(&store, dir.path(), always);
    store.put("a", b"content");
    store.put("b", b"other");
    get(&edge, "a").expect("an object");
    store.metas();
    let failures = [
        StoreError::Unavailable,
        StoreError::Interrupted,
        StoreError::Timeout,
        StoreError::Throttled { retry_after: None },
    ];
    for failure in failures {
        store.store.fail_with(Some(failure));
        for _ in 0..3 {
            let stale = Ok((b"content".to_vec(), CacheUse::Stale));
            assert_eq!(get(&edge, "a"), stale);
        }
        assert!(store.metas() <= 1, "once in a second");
        assert_eq!(get(&edge, "b"), Err(failure), "it is not in the cache");
        if !temp_lacks(&[Ability::Local]) {
            let object = at_once(&edge, "a");
            assert_eq!(object.cached().expect("an edge").how, CacheUse::Stale);
        }
        store.store.fail_with(None);
        wait_until("the store is asked again", || {
            get(&edge, "a").expect("an object").1 == CacheUse::Revalidated
        });
        store.metas();
    }
    // Another failure is not an outage.
    let denied = StoreError::Io(std::io::ErrorKind::InvalidData.into());
    store.store.fail_with(Some(denied));
    assert_eq!(get(&edge, "a"), Err(denied));
}

/// A store that neither responds nor fails does not hold up who has a copy.
#[test]
fn a_store_that_takes_long_is_not_waited_for() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let always = EdgeOptions {
        fresh: Duration::ZERO,
        ..options(1 << 30)
    };
    let edge = edge(&store, dir.path(), always);
    store.put("a", b"content");
    get(&edge, "a").expect("an object");
    store.hangs.store(true, SeqCst);
    for _ in 0..3 {
        let stale = Ok((b"content".to_vec(), CacheUse::Stale));
        assert_eq!(get(&edge, "a"), stale);
    }
}

#[test]
fn copies_that_are_too_old_are_not_served() {
    let (dir, store) = (TempDir::new(), Counted::new());
    let never = EdgeOptions {
        fresh: Duration::ZERO,
        stale: Duration::ZERO,
        ..options(1 << 30)
    };
    let edge = edge(&store, dir.path(), never);
    store.put("a", b"content");
    get(&edge, "a").expect("an object");
    store.store.fail_with(Some(StoreError::Unavailable));
    wait_until("the copy is too old", || {
        get(&edge, "a") == Err(StoreError::Unavailable)
    });
}
