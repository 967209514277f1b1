//! Several servers on one bucket, each behind a network that fails: conditional changes and reads
//! are linearizable, and no object is torn. `cargo xtask scale` does the same with programs on a
//! real cluster.

use crate::common::{block_on, read_all};
use onrush_remote::{Options, RemoteStore};
use onrush_store::{Condition, Key, Store, StoreError, Version};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};
use testing_s3::{Bucket, KEY};
use xtask::history::{Event, Operation, Value, check};
use xtask::proxy::{Fault, Proxy};

const SERVERS: usize = 3;
/// Clients of each server, objects, and changes of each client to an object.
const CLIENTS: usize = 4;
const KEYS: usize = 4;
const CHANGES: usize = 6;
/// A short object, one that is read by two requests, and one whose body is a stream.
const SIZES: [usize; 3] = [100, 300_000, (1 << 20) + 1];
/// What happens to the network of one server after the other; each server gets each fault.
const FAULTS: [Fault; 7] = [
    Fault::CutAfter(200_000),
    Fault::None,
    Fault::BlackHole,
    Fault::Cut,
    Fault::Slow(2_000_000),
    Fault::CutAfter(1_500),
    Fault::None,
];
const FAULT_TIME: Duration = Duration::from_millis(60);

/// Content that has its number at each position.
fn content(number: u64) -> Vec<u8> {
    let size = SIZES[number as usize % SIZES.len()];
    let bytes = number.to_le_bytes().into_iter().cycle();
    bytes.take(size).collect()
}

/// The number of an object, which must be whole.
fn number_of(bytes: &[u8]) -> u64 {
    let first = bytes[..8].try_into().expect("eight bytes");
    let number = u64::from_le_bytes(first);
    assert!(bytes == content(number), "number {number} is torn");
    number
}

/// What all clients share.
struct Clients {
    stores: Vec<RemoteStore>,
    begun: Instant,
    numbers: AtomicU64,
    /// The events of each object.
    events: [Mutex<Vec<Event>>; KEYS],
    /// The number of each version: the same bytes have the same version.
    versions: Mutex<HashMap<Version, u64>>,
}

impl Clients {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn events(&self, at: usize) -> MutexGuard<'_, Vec<Event>> {
        self.events[at].lock().expect("no panic")
    }

    fn record(&self, at: usize, begun: u64, operation: Operation) {
        let ended = self.now();
        self.events(at).push(Event {
            operation,
            begun,
            ended,
        });
    }

    /// Reads an object. A failure of the network tells nothing.
    async fn read(&self, store: &RemoteStore, at: usize) -> Option<(Value, Condition)> {
        let begun = self.now();
        let found = match get(store, &key(at)).await {
            Ok((number, version)) => {
                let mut versions = self.versions.lock().expect("no panic");
                let known = *versions.entry(version).or_insert(number);
                assert_eq!(known, number, "two contents have one version");
                (Some(number), Condition::Versions(vec![version]))
            }
            Err(StoreError::NotFound) => (None, Condition::Absent),
            Err(error) => {
                assert!(is_outage(&error), "{error}");
                return None;
            }
        };
        self.record(at, begun, Operation::Read(found.0));
        Some(found)
    }

    /// Replaces the object, if it still is the one that was read.
    async fn change(&self, store: &RemoteStore, at: usize) {
        let Some((from, condition)) = self.read(store, at).await else {
            return;
        };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (begun, to) = (self.now(), Some(number));
        let operation = match put(store, &key(at), condition, number).await {
            Ok(()) => Operation::Changed { from, to },
            Err(StoreError::PreconditionFailed) => Operation::Refused { from },
            Err(error) => {
                assert!(is_outage(&error), "{error}");
                Operation::Unknown { from, to }
            }
        };
        self.record(at, begun, operation);
    }
}

fn key(at: usize) -> Key {
    Key::parse(format!("history/{at}").as_bytes()).expect("a key")
}

async fn get(store: &RemoteStore, key: &Key) -> Result<(u64, Version), StoreError> {
    let object = store.get(key).await?;
    let bytes = read_all(&object).await?;
    Ok((number_of(&bytes), object.meta().version))
}

async fn put(
    store: &RemoteStore,
    key: &Key,
    condition: Condition,
    number: u64,
) -> Result<(), StoreError> {
    let bytes = content(number);
    let size = Some(bytes.len() as u64);
    let mut upload = store.stage(key, condition, size).await?;
    upload.write(bytes).await?;
    upload.commit().await.map(drop)
}

/// Errors that a network may cause, or an object that is replaced while it is read.
fn is_outage(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Unavailable
            | StoreError::Interrupted
            | StoreError::Timeout
            | StoreError::Throttled { .. }
            | StoreError::BadResponse
            | StoreError::Changed
            | StoreError::Io(_)
    )
}

#[test]
fn changes_through_several_servers_are_linearizable_when_the_network_fails() {
    let bucket = Bucket::new();
    let proxies: Vec<Proxy> = (0..SERVERS)
        .map(|_| Proxy::new(bucket.address).expect("a port"))
        .collect();
    let store = |proxy: &Proxy| {
        let mut options = Options::default();
        options.read_timeout = Duration::from_millis(100);
        options.operation_timeout = Duration::from_millis(500);
        options.retries = 2;
        let location = "s3://bucket".parse().expect("a location");
        let endpoint = format!("http://{}", proxy.address());
        RemoteStore::at(&endpoint, KEY, location, options).expect("a store")
    };
    let clients = Clients {
        stores: proxies.iter().map(store).collect(),
        begun: Instant::now(),
        numbers: AtomicU64::new(1),
        events: Default::default(),
        versions: Mutex::default(),
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for step in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                proxies[step % SERVERS].set(FAULTS[step % FAULTS.len()]);
                thread::sleep(FAULT_TIME);
            }
        });
        let all: Vec<_> = (0..SERVERS * CLIENTS)
            .map(|client| {
                let clients = &clients;
                scope.spawn(move || {
                    let store = &clients.stores[client % SERVERS];
                    for step in 0..KEYS * CHANGES {
                        block_on(clients.change(store, step / CHANGES));
                    }
                })
            })
            .collect();
        let ends: Vec<_> = all.into_iter().map(|client| client.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok), "a client has failed");
    });
    for proxy in &proxies {
        proxy.set(Fault::None);
    }
    let mut counts = [0; 4];
    for at in 0..KEYS {
        // Each server sees what all have done. A connection that was cut may still be in use.
        for store in &clients.stores {
            let seen = || block_on(clients.read(store, at));
            let is_read = (0..100).any(|_| seen().is_some());
            assert!(is_read, "the network works again");
        }
        let events = clients.events(at);
        for event in events.iter() {
            counts[match event.operation {
                Operation::Read(_) => 0,
                Operation::Changed { .. } => 1,
                Operation::Refused { .. } => 2,
                Operation::Unknown { .. } => 3,
            }] += 1;
        }
        assert_eq!(check(None, &events), Ok(()), "object {at}");
    }
    let [reads, changed, refused, unknown] = counts;
    println!("{reads} reads; changes: {changed} made, {refused} refused, {unknown} unknown");
    assert!(changed > 0, "no change was made");
}
