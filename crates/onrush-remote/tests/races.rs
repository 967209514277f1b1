//! Several servers change the same object at the same time: no acknowledged change is lost.

use crate::common::{block_on, read_all};
use onrush_remote::RemoteStore;
use onrush_store::{Condition, Key, Store, StoreError, Version};
use std::collections::BTreeSet;
use std::thread;
use testing_s3::Bucket;

/// Servers, clients of each, and changes of each client.
const SERVERS: usize = 3;
const CLIENTS: usize = 4;
const CHANGES: usize = 10;
/// Larger than what is held until the commit, so that the body is a stream.
const LONG_BYTES: usize = (1 << 20) + 1;

/// The number in an object of `bytes` bytes, and its version.
async fn read(store: &RemoteStore, key: &Key) -> Result<(u64, Version), StoreError> {
    let object = store.get(key).await?;
    let content = read_all(&object).await?;
    let digits = content
        .split(|&byte| byte == b' ')
        .next()
        .unwrap_or_default();
    let text = String::from_utf8_lossy(digits);
    Ok((text.parse().expect("a number"), object.meta().version))
}

async fn write(
    store: &RemoteStore,
    key: &Key,
    number: u64,
    condition: Condition,
    bytes: usize,
) -> Result<(), StoreError> {
    let mut content = format!("{number} ").into_bytes();
    content.resize(bytes.max(content.len()), b' ');
    let size = content.len() as u64;
    let mut upload = store.stage(key, condition, Some(size)).await?;
    upload.write(content).await?;
    upload.commit().await.map(drop)
}

/// Each client adds one to a number under the condition that the object has not changed. Every
/// acknowledged addition has its own result.
fn count(store: impl Fn() -> RemoteStore, bytes: usize) {
    let key = Key::parse(b"race/counter").expect("a key");
    block_on(write(&store(), &key, 0, Condition::None, bytes)).expect("the first");
    let stores: Vec<RemoteStore> = (0..SERVERS).map(|_| store()).collect();
    let results: Vec<u64> = thread::scope(|scope| {
        let clients: Vec<_> = (0..SERVERS * CLIENTS)
            .map(|client| {
                let (store, key) = (&stores[client % SERVERS], &key);
                scope.spawn(move || block_on(add(store, key, bytes)))
            })
            .collect();
        let results = clients
            .into_iter()
            .map(|client| client.join().expect("no panic"));
        results.flatten().collect()
    });
    assert_eq!(results.len(), SERVERS * CLIENTS * CHANGES);
    let distinct: BTreeSet<u64> = results.iter().copied().collect();
    assert_eq!(distinct.len(), results.len(), "an addition was lost");
    let (last, _) = block_on(read(&stores[0], &key)).expect("the last");
    assert!(distinct.last() <= Some(&last));
}

async fn add(store: &RemoteStore, key: &Key, bytes: usize) -> Vec<u64> {
    let mut results = Vec::new();
    while results.len() < CHANGES {
        let (number, version) = match read(store, key).await {
            Ok(found) => found,
            Err(StoreError::Changed) => continue,
            Err(error) => panic!("{error}"),
        };
        let condition = Condition::Versions(vec![version]);
        match write(store, key, number + 1, condition, bytes).await {
            Ok(()) => results.push(number + 1),
            // A loser gets 412, or 500 from Ceph: it compares again.
            Err(StoreError::PreconditionFailed | StoreError::Interrupted) => {}
            Err(error) => panic!("{error}"),
        }
    }
    results
}

/// One of many clients creates an object.
fn create(store: impl Fn() -> RemoteStore, bytes: usize) {
    let stores: Vec<RemoteStore> = (0..SERVERS).map(|_| store()).collect();
    for round in 0..CHANGES {
        let key = Key::parse(format!("race/new/{round}").as_bytes()).expect("a key");
        let created = thread::scope(|scope| {
            let clients: Vec<_> = (0..SERVERS * CLIENTS)
                .map(|client| {
                    let (store, key) = (&stores[client % SERVERS], &key);
                    let write = move || {
                        block_on(write(store, key, client as u64, Condition::Absent, bytes))
                    };
                    scope.spawn(write)
                })
                .collect();
            let results = clients
                .into_iter()
                .map(|client| client.join().expect("no panic"));
            results.filter(Result::is_ok).count()
        });
        assert_eq!(created, 1, "round {round}");
    }
}

#[test]
fn no_acknowledged_change_is_lost() {
    let bucket = Bucket::new();
    for bytes in [0, LONG_BYTES] {
        count(|| bucket.store("s3://bucket"), bytes);
    }
}

#[test]
fn one_client_creates_an_object() {
    let bucket = Bucket::new();
    create(|| bucket.store("s3://bucket/short"), 0);
    create(|| bucket.store("s3://bucket/long"), LONG_BYTES);
}

#[test]
fn no_acknowledged_change_is_lost_on_a_real_service() {
    let Some(store) = crate::common::real() else {
        return;
    };
    for bytes in [0, LONG_BYTES] {
        count(&store, bytes);
    }
}

#[test]
fn one_client_creates_an_object_on_a_real_service() {
    if crate::common::real().is_none() {
        return;
    }
    for bytes in [0, LONG_BYTES] {
        let prefix = format!("{}-{bytes}", std::process::id());
        create(
            || crate::common::real_at(&prefix).expect("the variable is set"),
            bytes,
        );
    }
}
