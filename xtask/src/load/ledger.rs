//! What the clients know of the objects, and which observations contradict it.

use super::body::Id;
use crate::history::{self, Event};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The writes of all clients, and what is wrong. Times are nanoseconds since its begin.
pub(super) struct Ledger {
    begun: Instant,
    objects: HashMap<String, Mutex<Object>>,
    /// The write of each entity tag: two contents never have one tag.
    tags: Mutex<HashMap<String, Id>>,
    /// The conditional changes and the reads, by key.
    histories: Mutex<BTreeMap<String, Vec<Event>>>,
    /// Observations that must not be.
    wrong: Mutex<Vec<String>>,
}

/// More observations do not explain more.
const WRONG_MAX: usize = 20;

/// The changes of one key.
#[derive(Default)]
struct Object {
    /// The writes. Each has its end, if it was acknowledged.
    writes: HashMap<Id, Option<u64>>,
    /// Removals that have begun and have no clear response yet.
    removals: usize,
    /// The latest end of an acknowledged removal. There is no object at first.
    removed: u64,
    /// The latest begin of an acknowledged change. A change that ended before is replaced.
    floor: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    pub(super) fn new(keys: impl Iterator<Item = String>) -> Ledger {
        Ledger {
            begun: Instant::now(),
            objects: keys.map(|key| (key, Mutex::default())).collect(),
            tags: Mutex::default(),
            histories: Mutex::default(),
            wrong: Mutex::default(),
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// A write begins. Returns the time.
    pub(super) fn write_begins(&self, key: &str, id: Id) -> u64 {
        lock(&self.objects[key]).writes.insert(id, None);
        self.now()
    }

    /// A write is acknowledged.
    pub(super) fn write_ends(&self, key: &str, id: Id, begun: u64) {
        let ended = self.now();
        let mut object = lock(&self.objects[key]);
        object.writes.insert(id, Some(ended));
        object.floor = object.floor.max(begun);
    }

    /// A removal begins. Returns the time.
    pub(super) fn removal_begins(&self, key: &str) -> u64 {
        lock(&self.objects[key]).removals += 1;
        self.now()
    }

    /// A removal ends. It `has_removed` an object, or there was none. One without a clear response
    /// never ends.
    pub(super) fn removal_ends(&self, key: &str, begun: u64, has_removed: bool) {
        let ended = self.now();
        let mut object = lock(&self.objects[key]);
        object.removals -= 1;
        if has_removed {
            object.removed = object.removed.max(ended);
            object.floor = object.floor.max(begun);
        }
    }

    /// What a read that begins now must not be older than.
    pub(super) fn floor(&self, key: &str) -> u64 {
        lock(&self.objects[key]).floor
    }

    /// A read has found this write, or no object.
    pub(super) fn read(&self, key: &str, floor: u64, found: Option<Id>) {
        let object = lock(&self.objects[key]);
        let problem = match found.map(|id| (id, object.writes.get(&id))) {
            None if object.removals == 0 && object.removed < floor => {
                "an acknowledged object is lost".to_owned()
            }
            Some((id, None)) => format!("{id} was never made"),
            Some((id, Some(Some(ended)))) if *ended < floor => {
                format!("{id} is returned after a later one was acknowledged")
            }
            _ => return,
        };
        self.wrong(format!("{key}: {problem}"));
    }

    /// A response had this tag and belongs to this write.
    pub(super) fn tag(&self, key: &str, tag: Option<&str>, id: Id) {
        let Some(tag) = tag else {
            return self.wrong(format!("{key}: a response without an entity tag"));
        };
        let known = *lock(&self.tags).entry(tag.to_owned()).or_insert(id);
        if known != id {
            self.wrong(format!("{key}: {known} and {id} have one entity tag"));
        }
    }

    /// A conditional change or a read has ended.
    pub(super) fn event(&self, key: &str, event: Event) {
        let mut histories = lock(&self.histories);
        histories.entry(key.to_owned()).or_default().push(event);
    }

    /// The keys that have histories.
    pub(super) fn histories(&self) -> Vec<String> {
        lock(&self.histories).keys().cloned().collect()
    }

    /// Something was observed that must not be.
    pub(super) fn wrong(&self, what: String) {
        let mut wrong = lock(&self.wrong);
        if wrong.len() < WRONG_MAX && !wrong.contains(&what) {
            wrong.push(what);
        }
    }

    /// What is wrong so far.
    pub(super) fn all_wrong(&self) -> Vec<String> {
        lock(&self.wrong).clone()
    }

    /// Checks the histories. Returns the number of their events.
    pub(super) fn check_histories(&self) -> usize {
        let histories = lock(&self.histories);
        for (key, events) in &*histories {
            if let Err(problem) = history::check(None, events) {
                self.wrong(format!("{key}: not linearizable: {problem}"));
            }
        }
        histories.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sequence: u32) -> Id {
        Id {
            writer: 1,
            sequence,
        }
    }

    fn ledger() -> Ledger {
        Ledger::new(["k".to_owned()].into_iter())
    }

    #[test]
    fn lost_and_stale_objects_are_found() {
        let ledger = ledger();
        ledger.read("k", ledger.floor("k"), None);
        let begun = ledger.write_begins("k", id(1));
        ledger.read("k", ledger.floor("k"), Some(id(1)));
        ledger.write_ends("k", id(1), begun);
        let unknown = id(9);
        ledger.write_begins("k", unknown);
        let before = ledger.floor("k");
        let begun = ledger.write_begins("k", id(2));
        ledger.write_ends("k", id(2), begun);
        // A read that began before may return the old one, and an unknown write is never too old.
        ledger.read("k", before, Some(id(1)));
        ledger.read("k", ledger.floor("k"), Some(id(2)));
        ledger.read("k", ledger.floor("k"), Some(unknown));
        assert!(ledger.all_wrong().is_empty());

        ledger.read("k", ledger.floor("k"), Some(id(1)));
        ledger.read("k", ledger.floor("k"), None);
        ledger.read("k", 0, Some(id(3)));
        assert_eq!(ledger.all_wrong().len(), 3);
    }

    #[test]
    fn removed_objects_do_not_return() {
        let ledger = ledger();
        let begun = ledger.write_begins("k", id(1));
        ledger.write_ends("k", id(1), begun);
        // While a removal is in progress, both may be seen.
        let begun = ledger.removal_begins("k");
        ledger.read("k", ledger.floor("k"), Some(id(1)));
        ledger.read("k", ledger.floor("k"), None);
        ledger.removal_ends("k", begun, true);
        ledger.read("k", ledger.floor("k"), None);
        // A removal that has found no object changes nothing.
        let begun = ledger.removal_begins("k");
        ledger.removal_ends("k", begun, false);
        ledger.read("k", ledger.floor("k"), None);
        assert!(ledger.all_wrong().is_empty());

        ledger.read("k", ledger.floor("k"), Some(id(1)));
        let begun = ledger.write_begins("k", id(2));
        ledger.write_ends("k", id(2), begun);
        ledger.read("k", ledger.floor("k"), None);
        assert_eq!(ledger.all_wrong().len(), 2);
    }

    #[test]
    fn a_tag_belongs_to_one_content() {
        let ledger = ledger();
        ledger.tag("k", Some("x"), id(1));
        ledger.tag("k", Some("x"), id(1));
        assert!(ledger.all_wrong().is_empty());
        ledger.tag("k", Some("x"), id(2));
        ledger.tag("k", None, id(1));
        assert_eq!(ledger.all_wrong().len(), 2);
    }
}
