//! Clients that create, replace and delete objects, and note for each change where the log of the
//! disk was when the request began and when it was acknowledged.
//!
//! Each client has keys of its own, so the order of the changes of a key is known. All share
//! folders, and so the syncs and the journal of the file system.

use crate::disk::Disk;
use crate::random::Random;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};
use xtask::load::body::{Id, body};
use xtask::load::http;

const CLIENTS: u32 = 8;
/// The keys of each client.
const KEYS: u64 = 12;
/// The time between two requests of a client. It makes the load last longer than the intervals in
/// which file systems write by themselves.
const PAUSE: Duration = Duration::from_millis(20);
/// The requests of a client.
const STEPS: u32 = 500;
/// A client that begins no further request when this time is over.
const TIME: Duration = Duration::from_secs(60);
/// Lengths of bodies: those of one job, and longer ones that are written in steps.
const LENGTHS: [usize; 8] = [0, 900, 3_000, 3_000, 12_000, 20_000, 70_000, 300_000];

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The position of the log when the request began.
    pub(crate) begun: usize,
    /// The position when the change was acknowledged.
    pub(crate) acknowledged: Option<usize>,
    /// The object afterwards. `None`: there is none.
    pub(crate) to: Option<Version>,
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) id: Id,
    /// The entity tag of the response.
    pub(crate) tag: Option<String>,
}

/// The changes of each key, in their order.
pub(crate) type Histories = BTreeMap<String, Vec<Change>>;

/// The states that a key may have after a power cut at a position of the log: after the last
/// acknowledged change, or after the one that was in progress.
pub(crate) fn possible(history: &[Change], at: usize) -> Vec<Option<&Version>> {
    let is_done = |change: &&Change| change.acknowledged.is_some_and(|end| end <= at);
    let done = history.iter().take_while(is_done).count();
    let last = history[..done].last().and_then(|change| change.to.as_ref());
    let next = history.get(done).filter(|change| change.begun <= at);
    let next = next.map(|change| change.to.as_ref());
    [Some(last), next].into_iter().flatten().collect()
}

/// The folders of all keys.
pub(crate) fn folders() -> Vec<String> {
    let shared = ["a", "b", "b/c"].map(str::to_owned);
    let own = (0..CLIENTS).flat_map(|client| [format!("own-{client}"), format!("own-{client}/x")]);
    shared.into_iter().chain(own).collect()
}

/// Loads the server until every client is done. Fails if a request fails.
pub(crate) fn run(server: SocketAddr, disk: &Disk, seed: u64) -> Result<Histories, String> {
    let client = |number: u32| Client {
        number,
        http: http::Client::new(server),
        disk: disk.clone(),
        random: Random::new(seed ^ u64::from(number) << 32),
        histories: Histories::new(),
    };
    let threads: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let client = client(number);
            thread::spawn(move || client.run())
        })
        .collect();
    let mut all = Histories::new();
    for thread in threads {
        all.extend(thread.join().map_err(|_| "a client panicked")??);
    }
    Ok(all)
}

struct Client {
    number: u32,
    http: http::Client,
    disk: Disk,
    random: Random,
    histories: Histories,
}

impl Client {
    fn run(mut self) -> Result<Histories, String> {
        let end = Instant::now() + TIME;
        for sequence in 0..STEPS {
            if Instant::now() > end {
                break;
            }
            let number = self.random.below(KEYS);
            let key = self.key(number);
            match self.random.below(16) {
                0 => self.remove_folder()?,
                1..4 => self.delete(&key)?,
                _ => self.put(&key, sequence)?,
            }
            thread::sleep(PAUSE);
        }
        Ok(self.histories)
    }

    fn key(&self, number: u64) -> String {
        let client = self.number;
        let folder = match number % 6 {
            0 => String::new(),
            1 | 2 => "a/".to_owned(),
            3 | 4 => "b/c/".to_owned(),
            _ => format!("own-{client}/x/"),
        };
        format!("{folder}{client}-{number}")
    }

    /// A request begins that makes this of an object.
    fn begin(&mut self, key: &str, to: Option<Version>) {
        let change = Change {
            begun: self.disk.position(),
            acknowledged: None,
            to,
        };
        let history = self.histories.entry(key.to_owned()).or_default();
        history.push(change);
    }

    /// It is acknowledged.
    fn end(&mut self, key: &str, tag: Option<String>) {
        let at = self.disk.position();
        let change = self.histories.get_mut(key).and_then(|all| all.last_mut());
        if let Some(change) = change {
            change.acknowledged = Some(at);
            if let Some(version) = &mut change.to {
                version.tag = tag;
            }
        }
    }

    fn put(&mut self, key: &str, sequence: u32) -> Result<(), String> {
        let id = Id {
            writer: self.number,
            sequence,
        };
        let length = LENGTHS[self.random.below(LENGTHS.len() as u64) as usize];
        let body = body(key, id, length);
        self.begin(key, Some(Version { id, tag: None }));
        let response = self.http.put(&format!("/{key}"), "", &body, false);
        match response {
            Ok(response) if matches!(response.status, 201 | 204) => {
                self.end(key, response.tag);
                Ok(())
            }
            other => Err(format!("PUT {key}: {other:?}")),
        }
    }

    /// Deletes an object, if there is one.
    fn delete(&mut self, key: &str) -> Result<(), String> {
        let last = self.histories.get(key).and_then(|all| all.last());
        if last.is_none_or(|change| change.to.is_none()) {
            return Ok(());
        }
        self.begin(key, None);
        match self.http.delete(&format!("/{key}"), "") {
            Ok(response) if response.status == 204 => {
                self.end(key, None);
                Ok(())
            }
            other => Err(format!("DELETE {key}: {other:?}")),
        }
    }

    /// Deletes the folders of this client, so that later objects create them again.
    fn remove_folder(&mut self) -> Result<(), String> {
        for number in 0..KEYS {
            let key = self.key(number);
            if key.starts_with("own-") {
                self.delete(&key)?;
            }
        }
        let own = format!("/own-{}/", self.number);
        for folder in [format!("{own}x/"), own] {
            match self.http.delete(&folder, "") {
                Ok(response) if matches!(response.status, 204 | 404) => {}
                other => return Err(format!("DELETE {folder}: {other:?}")),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn possible_states_are_known() {
        let version = |sequence| Version {
            id: Id {
                writer: 1,
                sequence,
            },
            tag: None,
        };
        let change = |begun, acknowledged, to| Change {
            begun,
            acknowledged: Some(acknowledged),
            to,
        };
        let history = [
            change(10, 20, Some(version(1))),
            change(25, 30, Some(version(2))),
            change(40, 50, None),
        ];
        let (one, two) = (version(1), version(2));
        let cases: [(usize, &[Option<&Version>]); 6] = [
            (9, &[None]),
            (10, &[None, Some(&one)]),
            (20, &[Some(&one)]),
            (29, &[Some(&one), Some(&two)]),
            (49, &[Some(&two), None]),
            (50, &[None]),
        ];
        for (at, states) in cases {
            assert_eq!(possible(&history, at), states, "{at}");
        }
    }

    #[test]
    fn every_folder_of_a_key_is_known() {
        let folders = folders();
        for number in 0..CLIENTS {
            let client = Client {
                number,
                http: http::Client::new(([127, 0, 0, 1], 1).into()),
                disk: Disk::default(),
                random: Random::new(1),
                histories: Histories::new(),
            };
            for key in (0..KEYS).map(|number| client.key(number)) {
                let folder = key.rsplit_once('/').map(|(folder, _)| folder.to_owned());
                assert!(folder.is_none_or(|folder| folders.contains(&folder)));
            }
        }
    }
}
