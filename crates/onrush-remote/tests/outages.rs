//! A real service whose parts are killed and restarted meanwhile by `cargo xtask scale`: no
//! acknowledged object is lost, and none is torn.

mod common;

use common::{block_on, read_all};
use onrush_remote::RemoteStore;
use onrush_store::{Condition, Key, Store, StoreError};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const WRITERS: usize = 8;
const READERS: usize = 8;
/// Objects of each writer.
const KEYS: usize = 5;
/// A short object, one whose body is a stream, and one that is a multipart upload.
const SIZES: [usize; 3] = [4 << 10, (1 << 20) + 1, (8 << 20) + 1];

/// What a writer knows of its object.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The last acknowledged number.
    acknowledged: u64,
    /// The last number that may have been stored.
    attempted: u64,
}

fn key(writer: usize, number: usize) -> Key {
    Key::parse(format!("outage/{writer}/{number}").as_bytes()).expect("a key")
}

/// Content that tells its number at each position.
fn content(number: u64, size: usize) -> Vec<u8> {
    number
        .to_le_bytes()
        .into_iter()
        .cycle()
        .take(size)
        .collect()
}

/// The number of an object, which must be whole.
fn number_of(bytes: &[u8]) -> u64 {
    let first = bytes[..8].try_into().expect("eight bytes");
    let number = u64::from_le_bytes(first);
    assert!(SIZES.contains(&bytes.len()), "{} bytes", bytes.len());
    assert!(
        bytes == content(number, bytes.len()),
        "number {number} is torn"
    );
    number
}

async fn put(store: &RemoteStore, key: &Key, number: u64) -> Result<(), StoreError> {
    let size = SIZES[number as usize % SIZES.len()];
    let is_multipart = size > 8 << 20;
    let known = (!is_multipart).then_some(size as u64);
    let mut upload = store.stage(key, Condition::None, known).await?;
    upload.write(content(number, size)).await?;
    upload.commit().await.map(drop)
}

async fn get(store: &RemoteStore, key: &Key) -> Result<u64, StoreError> {
    let object = store.get(key).await?;
    read_all(&object).await.map(|bytes| number_of(&bytes))
}

/// Errors that an outage may cause.
fn is_outage(error: StoreError) -> bool {
    matches!(
        error,
        StoreError::Unavailable
            | StoreError::Timeout
            | StoreError::Throttled { .. }
            | StoreError::Changed
            | StoreError::Io(_)
    )
}

#[test]
fn no_acknowledged_object_of_a_real_service_is_lost() {
    let seconds = std::env::var("ONRUSH_TEST_SECONDS").ok();
    let (Some(store), Some(seconds)) = (common::real(), seconds) else {
        return;
    };
    let stores: Vec<RemoteStore> = (0..3).map(|_| store()).collect();
    let end = Instant::now() + Duration::from_secs(seconds.parse().expect("a number"));
    let known = Arc::new(Mutex::new([[Known::default(); KEYS]; WRITERS]));
    let (puts, gets, failures) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let is_over = AtomicBool::new(false);
    let of = |writer: usize, at: usize| known.lock().expect("no panic")[writer][at];
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (store, known) = (&stores[writer % stores.len()], &known);
                let (puts, failures) = (&puts, &failures);
                scope.spawn(move || {
                    for number in 1.. {
                        if Instant::now() > end {
                            return;
                        }
                        let at = number as usize % KEYS;
                        known.lock().expect("no panic")[writer][at].attempted = number;
                        match block_on(put(store, &key(writer, at), number)) {
                            Ok(()) => {
                                known.lock().expect("no panic")[writer][at].acknowledged = number;
                                puts.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => {
                                assert!(is_outage(error), "{error}");
                                failures.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                })
            })
            .collect();
        for reader in 0..READERS {
            let (store, of, is_over) = (&stores[reader % stores.len()], &of, &is_over);
            let (gets, failures) = (&gets, &failures);
            scope.spawn(move || {
                for step in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let (writer, at) = ((reader + step) % WRITERS, step % KEYS);
                    let before = of(writer, at);
                    match block_on(get(store, &key(writer, at))) {
                        Ok(number) => {
                            let after = of(writer, at);
                            let range = before.acknowledged..=after.attempted;
                            assert!(range.contains(&number), "{number} is not in {range:?}");
                            gets.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(StoreError::NotFound) => assert_eq!(before.acknowledged, 0),
                        Err(error) => {
                            assert!(is_outage(error), "{error}");
                            failures.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        for writer in writers {
            writer.join().expect("no panic");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let mut checked = 0;
    for writer in 0..WRITERS {
        for at in 0..KEYS {
            let Known {
                acknowledged,
                attempted,
            } = of(writer, at);
            if acknowledged > 0 {
                let found = block_on(get(&stores[0], &key(writer, at))).expect("an object");
                assert!((acknowledged..=attempted).contains(&found));
                checked += 1;
            }
        }
    }
    let [puts, gets, failures] = [puts, gets, failures].map(AtomicUsize::into_inner);
    println!("{puts} PUTs, {gets} GETs, {failures} failed, {checked} objects checked");
    assert!(puts > 0 && gets > 0 && checked > 0);
}
