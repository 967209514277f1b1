//! The clients: writers and readers of the same objects, and clients that change objects under the
//! condition that they have not changed. Every observation goes to the ledger.

use super::body::{Id, body, identify};
use super::http::{Client, Response};
use super::ledger::Ledger;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use xtask::history::{Event, Operation};

const WRITERS: u32 = 32;
const READERS: u32 = 64;
const CHANGERS: u32 = 12;
const DELETERS: u32 = 4;
/// Clients that read through the cache.
const EDGE_READERS: u32 = 8;
/// The clients that change objects form groups. Those of a group change the same object.
const GROUPS: u32 = 3;
/// Objects that all writers and readers share.
const KEYS: u32 = 16;
/// The last of them, which are deleted as well.
const DELETED_KEYS: u32 = 4;
/// Changes of one key, before the next one is used: a short history is checked soon.
const CHANGES_PER_KEY: usize = 100;
/// Between two requests of a client, so that two cores can serve all of them.
const PAUSE: Duration = Duration::from_millis(200);
/// Lengths of bodies: short ones mostly, some that are read by two requests, some whose body is
/// passed on as it arrives, and few that are multipart uploads.
const LENGTHS: [usize; 32] = {
    let mut lengths = [4_000; 32];
    lengths[7] = 100_000;
    lengths[15] = 400_000;
    lengths[23] = (1 << 20) + 1;
    lengths[31] = MULTIPART;
    lengths
};
/// Longer than a part, and sent without its length.
const MULTIPART: usize = (8 << 20) + 1;
/// Ceph 16 responds with 500 to some conditional PUTs when another client was faster. The server
/// cannot know more than that.
const LOST_RACE: &str = "conditional PUT 503, perhaps made";
/// The end of the text of such a response.
const PERHAPS_MADE: &str = "which may have been made";

/// What a client does again and again: with its own number, and that of the repetition.
type Step = fn(&Load, u32, u32, &mut Client);

/// What the clients have done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) written: usize,
    pub(super) read: usize,
    pub(super) changed: usize,
    pub(super) failed: usize,
}

/// What all clients share.
pub(super) struct Load {
    ledger: Ledger,
    written: AtomicUsize,
    read: AtomicUsize,
    changed: AtomicUsize,
    /// Attempts of each group.
    attempts: [AtomicUsize; GROUPS as usize],
    /// Failed requests, by method and status.
    failed: Mutex<BTreeMap<String, usize>>,
    /// The time of the last failure.
    last_failure: AtomicU64,
    is_over: AtomicBool,
}

/// Clients that are running.
pub(super) struct Running {
    pub(super) load: Arc<Load>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Starts all clients of the replicas, and readers of the server with a cache.
    pub(super) fn start(front: SocketAddr, edge: SocketAddr) -> Running {
        let load = Arc::new(Load {
            ledger: Ledger::new((0..KEYS).map(shared_key)),
            written: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            changed: AtomicUsize::new(0),
            attempts: Default::default(),
            failed: Mutex::default(),
            last_failure: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let spawn = |server, client: Step, number: u32| {
            let load = load.clone();
            thread::spawn(move || {
                let mut http = Client::new(server);
                for step in 0.. {
                    if load.is_over.load(Relaxed) {
                        return;
                    }
                    client(&load, number, step, &mut http);
                    thread::sleep(PAUSE);
                }
            })
        };
        let clients: [(SocketAddr, Step, _); 5] = [
            (front, Load::write, 0..WRITERS),
            (front, Load::read, 0..READERS),
            (front, Load::change, WRITERS..WRITERS + CHANGERS),
            (front, Load::delete, 0..DELETERS),
            (edge, Load::read, 0..EDGE_READERS),
        ];
        let threads = clients.into_iter().flat_map(|(server, client, numbers)| {
            numbers.map(move |number| (server, client, number))
        });
        let threads = threads
            .map(|(server, client, number)| spawn(server, client, number))
            .collect();
        Running { load, threads }
    }

    /// Stops all clients, reads every object through each server, and checks everything. Returns
    /// the number of objects and of the events of histories, or fails with what is wrong.
    pub(super) fn end(self, servers: &[SocketAddr]) -> Result<(usize, usize), String> {
        self.load.is_over.store(true, Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| "a client panicked")?;
        }
        let ledger = &self.load.ledger;
        let (shared, histories) = ((0..KEYS).map(shared_key), ledger.histories());
        let objects = KEYS as usize + histories.len();
        let before = self.load.counts();
        for &server in servers {
            let mut http = Client::new(server);
            for key in shared.clone() {
                self.load.read_shared(&key, &mut http);
            }
            for key in &histories {
                self.load.read_recorded(key, &mut http);
            }
        }
        if self.load.counts().failed > before.failed {
            ledger.wrong("an object could not be read at the end".to_owned());
        }
        let events = ledger.check_histories();
        match ledger.all_wrong() {
            wrong if wrong.is_empty() => Ok((objects, events)),
            wrong => Err(wrong.join("\n")),
        }
    }
}

impl Load {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            written: self.written.load(Relaxed),
            read: self.read.load(Relaxed),
            changed: self.changed.load(Relaxed),
            failed: (self
                .failures()
                .iter()
                .filter(|(what, _)| *what != LOST_RACE))
            .map(|(_, count)| count)
            .sum(),
        }
    }

    /// Failed requests so far, by method and status.
    pub(super) fn failures(&self) -> BTreeMap<String, usize> {
        let failed = self.failed.lock();
        failed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is wrong so far.
    pub(super) fn all_wrong(&self) -> Vec<String> {
        self.ledger.all_wrong()
    }

    /// Waits until requests of each kind succeed and none has failed for some seconds. Returns the
    /// time from now to the last failure.
    pub(super) fn recover(&self) -> Result<Duration, String> {
        let (begun, from) = (Instant::now(), self.ledger.now());
        let (mut calm, mut before) = (Instant::now(), self.counts());
        loop {
            thread::sleep(Duration::from_millis(100));
            let now = self.counts();
            if now.failed > before.failed {
                (calm, before) = (Instant::now(), now);
            }
            let works = now.written > before.written + WRITERS as usize
                && now.read > before.read + READERS as usize
                && now.changed > before.changed;
            if works && calm.elapsed() > Duration::from_secs(4) {
                let last = self.last_failure.load(Relaxed);
                return Ok(Duration::from_nanos(last.saturating_sub(from)));
            }
            if begun.elapsed() > Duration::from_secs(180) {
                let failures = self.failures();
                return Err(format!("requests still fail after 3 minutes: {failures:?}"));
            }
        }
    }

    /// A failed request: its outcome is not known.
    fn fails(&self, method: &str, result: &io::Result<Response>) {
        let what = match result {
            Ok(response) => {
                let text = String::from_utf8_lossy(&response.body);
                let text = text.trim_end();
                // 500 would mean that the server does not know what has happened.
                if !matches!(response.status, 502..=504 | 507) {
                    self.ledger
                        .wrong(format!("{method}: status {}: {text}", response.status));
                }
                let perhaps = match text.ends_with(PERHAPS_MADE) {
                    true => ", perhaps made",
                    false => "",
                };
                format!("{method} {}{perhaps}", response.status)
            }
            Err(error) => format!("{method} {:?}", error.kind()),
        };
        if what != LOST_RACE {
            self.last_failure.store(self.ledger.now(), Relaxed);
        }
        let failed = self.failed.lock();
        *(failed.unwrap_or_else(PoisonError::into_inner).entry(what)).or_default() += 1;
    }

    /// A client replaces an object.
    fn write(&self, writer: u32, step: u32, http: &mut Client) {
        let key = shared_key((writer * 7 + step) % KEYS);
        let length = LENGTHS[(writer + step) as usize % LENGTHS.len()];
        let id = Id {
            writer,
            sequence: step,
        };
        let body = body(&key, id, length);
        let begun = self.ledger.write_begins(&key, id);
        let result = http.put(&format!("/{key}"), "", &body, length == MULTIPART);
        match &result {
            Ok(response) if matches!(response.status, 201 | 204) => {
                self.ledger.write_ends(&key, id, begun);
                self.ledger.tag(&key, response.tag.as_deref(), id);
                self.written.fetch_add(1, Relaxed);
            }
            _ => self.fails("PUT", &result),
        }
    }

    /// A client reads an object.
    fn read(&self, reader: u32, step: u32, http: &mut Client) {
        self.read_shared(&shared_key((reader + step) % KEYS), http);
    }

    fn read_shared(&self, key: &str, http: &mut Client) {
        let floor = self.ledger.floor(key);
        if let Some(found) = self.get(key, http) {
            self.ledger.read(key, floor, found.map(|(id, _)| id));
        }
    }

    /// The write and the tag of an object, if there is one. `None` if the request fails.
    fn get(&self, key: &str, http: &mut Client) -> Option<Option<(Id, String)>> {
        let result = http.get(&format!("/{key}"));
        let found = match &result {
            Ok(response) if response.status == 404 => None,
            Ok(response) if response.status == 200 => {
                let id = match identify(key, &response.body) {
                    Ok(id) => id,
                    Err(problem) => {
                        self.ledger.wrong(problem);
                        return None;
                    }
                };
                self.ledger.tag(key, response.tag.as_deref(), id);
                Some((id, response.tag.clone().unwrap_or_default()))
            }
            _ => {
                self.fails("GET", &result);
                return None;
            }
        };
        self.read.fetch_add(1, Relaxed);
        Some(found)
    }

    /// Reads an object that has a history.
    fn read_recorded(&self, key: &str, http: &mut Client) -> Option<Option<(Id, String)>> {
        let begun = self.ledger.now();
        let found = self.get(key, http)?;
        let value = found.as_ref().map(|(id, _)| id.number());
        self.record(key, begun, Operation::Read(value));
        Some(found)
    }

    /// A client deletes an object.
    fn delete(&self, deleter: u32, step: u32, http: &mut Client) {
        // Each object exists most of the time.
        if !step.is_multiple_of(8) {
            return;
        }
        let key = shared_key(KEYS - DELETED_KEYS + (deleter + step / 8) % DELETED_KEYS);
        self.ledger.delete(&key, || {
            let result = http.request("DELETE", &format!("/{key}"), "");
            let is_acknowledged =
                matches!(&result, Ok(response) if matches!(response.status, 204 | 404));
            if !is_acknowledged {
                self.fails("DELETE", &result);
            }
            is_acknowledged
        });
    }

    /// A client replaces an object, if it is still the one that it has read.
    fn change(&self, writer: u32, step: u32, http: &mut Client) {
        let group = writer % GROUPS;
        let number = self.attempts[group as usize].fetch_add(1, Relaxed);
        let key = format!("history/{group}-{:04}", number / CHANGES_PER_KEY);
        let Some(found) = self.read_recorded(&key, http) else {
            return;
        };
        let condition = match &found {
            Some((_, tag)) => format!("If-Match: {tag}\r\n"),
            None => "If-None-Match: *\r\n".to_owned(),
        };
        let id = Id {
            writer,
            sequence: step,
        };
        // A condition excludes multipart uploads.
        let length = LENGTHS[step as usize % (LENGTHS.len() - 1)];
        let body = body(&key, id, length);
        let (from, to) = (found.map(|(id, _)| id.number()), Some(id.number()));
        let begun = self.ledger.now();
        let result = http.put(&format!("/{key}"), &condition, &body, false);
        let operation = match &result {
            Ok(response) if matches!(response.status, 201 | 204) => {
                self.ledger.tag(&key, response.tag.as_deref(), id);
                self.changed.fetch_add(1, Relaxed);
                Operation::Changed { from, to }
            }
            Ok(response) if response.status == 412 => Operation::Refused { from },
            _ => {
                self.fails("conditional PUT", &result);
                Operation::Unknown { from, to }
            }
        };
        self.record(&key, begun, operation);
    }

    fn record(&self, key: &str, begun: u64, operation: Operation) {
        let ended = self.ledger.now();
        let event = Event {
            operation,
            begun,
            ended,
        };
        self.ledger.event(key, event);
    }
}

fn shared_key(number: u32) -> String {
    format!("objects/{number:02}")
}
