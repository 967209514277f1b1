//! The bytes beneath prefixes, and the room that is left. It knows neither a store nor a disk.

use crate::error::{Result, StoreError};
use crate::key::Key;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A limit on the content of all objects beneath a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// A folder; `None` is the top folder.
    pub prefix: Option<Key>,
    /// The maximum of the sizes of all objects together, in bytes.
    pub bytes_max: u64,
}

impl Quota {
    /// Whether an object with this key counts. The objects of [`Key::state`] never do.
    pub fn covers(&self, key: &Key) -> bool {
        match &self.prefix {
            _ if key.reserved() => false,
            None => true,
            Some(prefix) => is_beneath(key, prefix),
        }
    }
}

/// Whether `key` lies in the folder `folder`.
pub(super) fn is_beneath(key: &Key, folder: &Key) -> bool {
    let rest = key.as_bytes().strip_prefix(folder.as_bytes());
    rest.is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// All quotas, and how far they are used.
#[derive(Debug)]
pub(super) struct Usages(Vec<Usage>);

#[derive(Debug)]
struct Usage {
    quota: Quota,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The bytes of the objects. Less than 0 for a moment, if the end of an object is counted
    /// before its beginning.
    used: i128,
    /// The bytes of uploads in progress.
    pending: u64,
    /// The bytes that were added since a count began, if one is in progress.
    added: Option<u64>,
}

impl State {
    fn used_bytes(&self) -> u64 {
        u64::try_from(self.used.max(0)).unwrap_or(u64::MAX)
    }
}

impl Usage {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self, state: &State, bytes: u64) -> bool {
        let all = state.used_bytes().saturating_add(state.pending);
        all.saturating_add(bytes) <= self.quota.bytes_max
    }
}

impl Usages {
    pub(super) fn new(quotas: Vec<Quota>) -> Arc<Usages> {
        let usage = |quota| Usage {
            quota,
            state: Mutex::default(),
        };
        Arc::new(Usages(quotas.into_iter().map(usage).collect()))
    }

    pub(super) fn quotas(&self) -> impl Iterator<Item = &Quota> {
        self.0.iter().map(|usage| &usage.quota)
    }

    /// Each quota with the bytes of its objects.
    pub(super) fn used(&self) -> Vec<(Quota, u64)> {
        let used = |usage: &Usage| (usage.quota.clone(), usage.lock().used_bytes());
        self.0.iter().map(used).collect()
    }

    fn covering(&self, key: &Key) -> impl Iterator<Item = &Usage> {
        self.0.iter().filter(|usage| usage.quota.covers(key))
    }

    /// Fails if there is no room for `bytes` more at `key`.
    pub(super) fn check(&self, key: &Key, bytes: u64) -> Result<()> {
        let mut covering = self.covering(key);
        match covering.all(|usage| usage.has_room(&usage.lock(), bytes)) {
            true => Ok(()),
            false => Err(StoreError::OverQuota),
        }
    }

    /// Counts a change: an object of `added` bytes, or of `removed` bytes, or one for the other.
    pub(super) fn change(&self, key: &Key, added: u64, removed: u64) {
        self.covering(key).for_each(|usage| {
            let mut state = usage.lock();
            state.used += i128::from(added) - i128::from(removed);
            state.added = state.added.map(|sum| sum.saturating_add(added));
        });
    }

    /// Begins to count the objects of the quota at `index`.
    pub(super) fn begin_count(&self, index: usize) {
        self.0[index].lock().added = Some(0);
    }

    /// Ends a count with its result. What was added meanwhile may or may not be in it, so it is
    /// added: the quota is not exceeded, and the next count is exact again.
    pub(super) fn end_count(&self, index: usize, counted: Option<u64>) {
        let mut state = self.0[index].lock();
        let added = state.added.take().unwrap_or(0);
        if let Some(counted) = counted {
            state.used = i128::from(counted.saturating_add(added));
        }
    }
}

/// The room that an upload in progress occupies. Dropping it returns the room.
#[derive(Debug)]
pub(super) struct Reservation {
    usages: Arc<Usages>,
    key: Key,
    bytes: u64,
}

impl Reservation {
    pub(super) fn new(usages: &Arc<Usages>, key: &Key) -> Reservation {
        Reservation {
            usages: usages.clone(),
            key: key.clone(),
            bytes: 0,
        }
    }

    /// Occupies `bytes` more. If a quota has no room for them, this fails and changes nothing.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<()> {
        let mut grown = 0;
        for usage in self.usages.covering(&self.key) {
            let mut state = usage.lock();
            if !usage.has_room(&state, bytes) {
                break;
            }
            state.pending += bytes;
            grown += 1;
        }
        if grown == self.usages.covering(&self.key).count() {
            self.bytes += bytes;
            return Ok(());
        }
        let grown = self.usages.covering(&self.key).take(grown);
        grown.for_each(|usage| usage.lock().pending -= bytes);
        Err(StoreError::OverQuota)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let covering = self.usages.covering(&self.key);
        covering.for_each(|usage| usage.lock().pending -= self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::parse(text.as_bytes()).expect("a key")
    }

    fn usages() -> Arc<Usages> {
        let quota = |prefix: Option<&str>, bytes_max| Quota {
            prefix: prefix.map(key),
            bytes_max,
        };
        Usages::new(vec![quota(None, 100), quota(Some("a/b"), 10)])
    }

    #[test]
    fn a_prefix_covers_whole_segments() {
        let quota = &usages().0[1].quota.clone();
        for (name, expected) in [
            ("a/b/c", true),
            ("a/b", false),
            ("a/bc", false),
            ("x", false),
        ] {
            assert_eq!(quota.covers(&key(name)), expected, "{name}");
        }
        let state = Key::state(b"x").expect("a key");
        assert!(!usages().0[0].quota.covers(&state));
    }

    #[test]
    fn reservations_are_returned_and_all_quotas_count() {
        let usages = usages();
        let (inside, outside) = (key("a/b/c"), key("x"));
        let mut upload = Reservation::new(&usages, &inside);
        assert!(upload.grow(8).is_ok());
        assert_eq!(upload.grow(3), Err(StoreError::OverQuota));
        assert_eq!(usages.0[0].lock().pending, 8, "a failure changes nothing");
        assert_eq!(usages.check(&inside, 3), Err(StoreError::OverQuota));
        assert!(usages.check(&inside, 2).is_ok() && usages.check(&outside, 92).is_ok());
        assert_eq!(usages.check(&outside, 93), Err(StoreError::OverQuota));
        drop(upload);
        usages.change(&inside, 8, 0);
        usages.change(&outside, 40, 0);
        usages.change(&outside, 50, 40);
        let used: Vec<u64> = usages.used().into_iter().map(|(_, used)| used).collect();
        assert_eq!(used, [58, 8]);
        assert!(usages.check(&inside, 2).is_ok());
        assert_eq!(usages.check(&inside, 3), Err(StoreError::OverQuota));
        usages.change(&inside, 0, 8);
        assert!(usages.check(&inside, 10).is_ok());
    }

    #[test]
    fn what_is_added_during_a_count_is_not_lost() {
        let usages = usages();
        usages.change(&key("x"), 50, 0);
        usages.begin_count(0);
        usages.change(&key("y"), 7, 0);
        usages.change(&key("y"), 0, 3);
        usages.end_count(0, Some(40));
        assert_eq!(usages.used()[0].1, 47);
        usages.begin_count(0);
        usages.end_count(0, None);
        assert_eq!(usages.used()[0].1, 47, "a count that fails changes nothing");
    }
}
