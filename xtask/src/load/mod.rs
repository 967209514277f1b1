//! Clients that read, write and remove the same objects of a server, and clients that change
//! objects under the condition that they have not changed. Every observation goes to the ledger.
//!
//! No acknowledged object may be lost, none may be torn, an entity tag always belongs to the same
//! bytes, and conditional changes are linearizable.

pub mod body;
pub mod chaos;
pub mod http;
mod ledger;

use crate::history::{Event, Operation};
use body::{Id, body, identify};
use http::{Client, Response};
use ledger::Ledger;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How many clients of each kind there are, and what they do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Clients that replace objects which all writers and readers share.
    pub writers: u32,
    /// Clients that read these objects.
    pub readers: u32,
    /// The number of these objects.
    pub keys: u32,
    /// Clients that change objects under a condition.
    pub changers: u32,
    /// The groups of these clients. Those of a group change the same object.
    pub groups: u32,
    /// One of so many writes removes an object. `None`: no write does.
    pub removals: Option<u32>,
    /// One of so many changes under a condition removes an object. `None`: no change does.
    pub conditional_removals: Option<u32>,
    /// One of so many reads fetches the object in two parts. `None`: no read does.
    pub parts: Option<u32>,
    /// The lengths of bodies, in turn. A body of more than [`STREAMED`] bytes is sent without its
    /// length, and never with a condition, because a bucket stores it in parts.
    pub lengths: &'static [usize],
    /// The time between two requests of a client.
    pub pause: Duration,
}

/// The maximum length of a body that is sent with its length, in bytes.
pub const STREAMED: usize = 8 << 20;
/// Changes of one key, before the next one is used: a short history is checked soon.
const CHANGES_PER_KEY: usize = 100;
/// The bytes of the first part of a read in two parts.
const FIRST_PART: usize = 2_000;
/// Ceph 16 responds with 500 to some conditional PUTs when another client was faster. The server
/// cannot know more than that.
const LOST_RACE: &str = "conditional PUT 503, perhaps made";
/// The end of the text of such a response.
const PERHAPS_MADE: &str = "which may have been made";

/// What a client does again and again: with its own number, and that of the repetition.
type Step = fn(&Load, u32, u32, &mut Client);

/// What the clients have done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Acknowledged writes of shared objects.
    pub written: usize,
    /// Acknowledged removals of shared objects.
    pub removed: usize,
    /// Complete reads.
    pub read: usize,
    /// Acknowledged conditional changes.
    pub changed: usize,
    /// Requests without a clear response.
    pub failed: usize,
}

/// What all clients share.
pub struct Load {
    plan: Plan,
    ledger: Ledger,
    written: AtomicUsize,
    removed: AtomicUsize,
    read: AtomicUsize,
    changed: AtomicUsize,
    /// Attempts of each group.
    attempts: Vec<AtomicUsize>,
    /// Failed requests, by method and status.
    failed: Mutex<BTreeMap<String, usize>>,
    /// The time of the last failure.
    last_failure: AtomicU64,
    is_over: AtomicBool,
}

/// Clients that are running.
pub struct Running {
    /// What they do.
    pub load: Arc<Load>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Starts all clients of an address.
    pub fn start(front: SocketAddr, plan: Plan) -> Running {
        let load = Arc::new(Load {
            plan,
            ledger: Ledger::new((0..plan.keys).map(shared_key)),
            written: AtomicUsize::new(0),
            removed: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            changed: AtomicUsize::new(0),
            attempts: (0..plan.groups).map(|_| AtomicUsize::new(0)).collect(),
            failed: Mutex::default(),
            last_failure: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let mut running = Running {
            load,
            threads: Vec::new(),
        };
        running.spawn(front, Load::write, 0..plan.writers);
        running.also_read(front, plan.readers);
        let numbers = plan.writers..plan.writers + plan.changers;
        running.spawn(front, Load::change, numbers);
        running
    }

    /// Starts more clients that read the objects, from another server of the same store.
    pub fn also_read(&mut self, server: SocketAddr, readers: u32) {
        self.spawn(server, Load::look, 0..readers);
    }

    fn spawn(&mut self, server: SocketAddr, client: Step, numbers: Range<u32>) {
        for number in numbers {
            let load = self.load.clone();
            self.threads.push(thread::spawn(move || {
                let mut http = Client::new(server);
                for step in 0.. {
                    if load.is_over.load(Relaxed) {
                        return;
                    }
                    client(&load, number, step, &mut http);
                    thread::sleep(load.plan.pause);
                }
            }));
        }
    }

    /// Stops all clients, reads every object through each server, and checks everything. Returns
    /// the number of objects and of the events of histories, or fails with what is wrong.
    pub fn end(self, servers: &[SocketAddr]) -> Result<(usize, usize), String> {
        self.load.is_over.store(true, Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| "a client panicked")?;
        }
        let (ledger, keys) = (&self.load.ledger, self.load.plan.keys);
        let (shared, histories) = ((0..keys).map(shared_key), ledger.histories());
        let objects = keys as usize + histories.len();
        let before = self.load.counts();
        for &server in servers {
            let mut http = Client::new(server);
            for key in shared.clone() {
                self.load.look_at(&key, false, &mut http);
            }
            for key in &histories {
                self.load.observe(key, &mut http);
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
    /// What the clients have done so far.
    pub fn counts(&self) -> Counts {
        Counts {
            written: self.written.load(Relaxed),
            removed: self.removed.load(Relaxed),
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
    pub fn failures(&self) -> BTreeMap<String, usize> {
        let failed = self.failed.lock();
        failed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is wrong so far.
    pub fn all_wrong(&self) -> Vec<String> {
        self.ledger.all_wrong()
    }

    /// Waits until requests of each kind succeed and none has failed for some seconds. Returns the
    /// time from now to the last failure.
    pub fn recover(&self) -> Result<Duration, String> {
        let (begun, from) = (Instant::now(), self.ledger.now());
        let (mut calm, mut before) = (Instant::now(), self.counts());
        loop {
            thread::sleep(Duration::from_millis(100));
            let now = self.counts();
            if now.failed > before.failed {
                (calm, before) = (Instant::now(), now);
            }
            let works = now.written > before.written + self.plan.writers as usize
                && now.read > before.read + self.plan.readers as usize
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

    /// A client replaces or removes an object.
    fn write(&self, writer: u32, step: u32, http: &mut Client) {
        let key = shared_key((writer * 7 + step) % self.plan.keys);
        let at = writer + step;
        if is_chosen(self.plan.removals, at) {
            return self.remove(&key, http);
        }
        let length = self.plan.lengths[at as usize % self.plan.lengths.len()];
        let id = Id {
            writer,
            sequence: step,
        };
        let body = body(&key, id, length);
        let begun = self.ledger.write_begins(&key, id);
        let result = http.put(&format!("/{key}"), "", &body, length > STREAMED);
        match &result {
            Ok(response) if matches!(response.status, 201 | 204) => {
                self.ledger.write_ends(&key, id, begun);
                self.ledger.tag(&key, response.tag.as_deref(), id);
                self.written.fetch_add(1, Relaxed);
            }
            _ => self.fails("PUT", &result),
        }
    }

    fn remove(&self, key: &str, http: &mut Client) {
        let floor = self.ledger.floor(key);
        let begun = self.ledger.removal_begins(key);
        let result = http.delete(&format!("/{key}"), "");
        match &result {
            Ok(response) if response.status == 204 => {
                self.ledger.removal_ends(key, begun, true);
                self.removed.fetch_add(1, Relaxed);
            }
            Ok(response) if response.status == 404 => {
                self.ledger.removal_ends(key, begun, false);
                self.ledger.read(key, floor, None);
            }
            _ => self.fails("DELETE", &result),
        }
    }

    /// A client reads an object.
    fn look(&self, reader: u32, step: u32, http: &mut Client) {
        let in_parts = is_chosen(self.plan.parts, reader + step);
        self.look_at(
            &shared_key((reader + step) % self.plan.keys),
            in_parts,
            http,
        );
    }

    fn look_at(&self, key: &str, in_parts: bool, http: &mut Client) {
        let floor = self.ledger.floor(key);
        if let Some(found) = self.get(key, in_parts, http) {
            self.ledger.read(key, floor, found.map(|(id, _)| id));
        }
    }

    /// The write and the tag of an object, if there is one. `None` if the request fails.
    fn get(&self, key: &str, in_parts: bool, http: &mut Client) -> Option<Option<(Id, String)>> {
        let path = format!("/{key}");
        let result = match in_parts {
            true => get_parts(&path, http),
            false => http.get(&path, ""),
        };
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
    fn observe(&self, key: &str, http: &mut Client) -> Option<Option<(Id, String)>> {
        let begun = self.ledger.now();
        let found = self.get(key, false, http)?;
        let value = found.as_ref().map(|(id, _)| id.number());
        self.record(key, begun, Operation::Read(value));
        Some(found)
    }

    /// A client replaces or removes an object, if it is still the one that it has read.
    fn change(&self, writer: u32, step: u32, http: &mut Client) {
        let group = writer % self.plan.groups;
        let number = self.attempts[group as usize].fetch_add(1, Relaxed);
        let key = format!("history/{group}-{:04}", number / CHANGES_PER_KEY);
        let Some(found) = self.observe(&key, http) else {
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
        let is_removal = found.is_some() && is_chosen(self.plan.conditional_removals, step);
        let from = found.map(|(id, _)| id.number());
        let to = (!is_removal).then_some(id.number());
        let (path, begun) = (format!("/{key}"), self.ledger.now());
        let (method, result) = match is_removal {
            true => ("conditional DELETE", http.delete(&path, &condition)),
            false => {
                let body = body(&key, id, self.length(step));
                ("conditional PUT", http.put(&path, &condition, &body, false))
            }
        };
        let operation = match &result {
            Ok(response) if matches!(response.status, 201 | 204) => {
                if !is_removal {
                    self.ledger.tag(&key, response.tag.as_deref(), id);
                }
                self.changed.fetch_add(1, Relaxed);
                Operation::Changed { from, to }
            }
            Ok(response) if response.status == 412 => Operation::Refused { from },
            _ => {
                self.fails(method, &result);
                Operation::Unknown { from, to }
            }
        };
        self.record(&key, begun, operation);
    }

    /// The length of the body of a conditional change.
    fn length(&self, step: u32) -> usize {
        let lengths = self.plan.lengths.iter().copied();
        let possible: Vec<usize> = lengths.filter(|&length| length <= STREAMED).collect();
        possible[step as usize % possible.len()]
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

/// Whether it is the turn of what happens once in `every` steps.
fn is_chosen(every: Option<u32>, step: u32) -> bool {
    every.is_some_and(|every| step % every == every - 1)
}

/// Reads an object by two requests for ranges. If it is not the same for the second one, the
/// response to that has the whole new object.
fn get_parts(path: &str, http: &mut Client) -> io::Result<Response> {
    let first = http.get(path, &format!("Range: bytes=0-{}\r\n", FIRST_PART - 1))?;
    let Some(tag) = first.tag.as_ref().filter(|_| first.status == 206) else {
        return Ok(first);
    };
    let rest = format!("Range: bytes={FIRST_PART}-\r\nIf-Range: {tag}\r\n");
    let mut response = http.get(path, &rest)?;
    if response.status == 206 {
        // Parts of different objects have no common checksum.
        response.body.splice(..0, first.body);
        response.status = 200;
    }
    Ok(response)
}
