//! The bytes beneath prefixes, and the room that is left. It knows neither a store nor a disk.

use crate::error::{Result, StoreError};
use crate::key::Key;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

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
        covers(self.prefix.as_ref(), key)
    }
}

fn covers(prefix: Option<&Key>, key: &Key) -> bool {
    match prefix {
        _ if key.reserved() => false,
        None => true,
        Some(prefix) => is_beneath(key, prefix),
    }
}

/// Whether `key` lies in the folder `folder`.
pub(super) fn is_beneath(key: &Key, folder: &Key) -> bool {
    let rest = key.as_bytes().strip_prefix(folder.as_bytes());
    rest.is_some_and(|rest| rest.first() == Some(&b'/'))
}

/// All quotas, and how far they are used.
#[derive(Debug)]
pub(super) struct Usages {
    list: RwLock<Arc<[Arc<Usage>]>>,
    /// Whether the list is empty, as it is for most folders: a change takes no lock then.
    is_empty: AtomicBool,
}

/// A quota, and how far it is used.
#[derive(Debug)]
pub(super) struct Usage {
    prefix: Option<Key>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// [`Quota::bytes_max`]. `None` until the objects have been counted for the first time.
    bytes_max: Option<u64>,
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
    fn new(quota: &Quota) -> Usage {
        Usage {
            prefix: quota.prefix.clone(),
            state: Mutex::default(),
        }
    }

    /// See [`Quota::covers`].
    fn covers(&self, key: &Key) -> bool {
        covers(self.prefix.as_ref(), key)
    }

    /// The folder, whose objects a count counts.
    pub(super) fn prefix(&self) -> Option<&Key> {
        self.prefix.as_ref()
    }

    /// Begins to count the objects.
    pub(super) fn begin_count(&self) {
        self.lock().added = Some(0);
    }

    /// Ends a count with its result. What was added meanwhile may or may not be in it, so it is
    /// added: the quota is not exceeded, and the next count is exact again.
    pub(super) fn end_count(&self, counted: Option<u64>) {
        let mut state = self.lock();
        let added = state.added.take().unwrap_or(0);
        if let Some(counted) = counted {
            state.used = i128::from(counted.saturating_add(added));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(state: &State, bytes: u64) -> bool {
        let all = state.used_bytes().saturating_add(state.pending);
        (state.bytes_max).is_none_or(|bytes_max| all.saturating_add(bytes) <= bytes_max)
    }
}

impl Usages {
    /// Without any quota.
    pub(super) fn new() -> Arc<Usages> {
        Arc::new(Usages {
            list: RwLock::new([].into()),
            is_empty: AtomicBool::new(true),
        })
    }

    /// The quotas of this moment.
    pub(super) fn list(&self) -> Arc<[Arc<Usage>]> {
        self.list
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces the quotas. `count` counts the objects of those whose folder had none before; they
    /// hold once that has succeeded for all. Until then, and after an error, the earlier ones hold.
    /// The caller makes sure that no other count is in progress.
    pub(super) fn replace(
        &self,
        quotas: &[Quota],
        mut count: impl FnMut(&Usage) -> Result<()>,
    ) -> Result<()> {
        let before = self.list();
        let mut new: Vec<Arc<Usage>> = Vec::new();
        let next: Vec<Arc<Usage>> = (quotas.iter())
            .map(|quota| {
                let known = before.iter().find(|usage| usage.prefix == quota.prefix);
                known.cloned().unwrap_or_else(|| {
                    let usage = Arc::new(Usage::new(quota));
                    new.push(usage.clone());
                    usage
                })
            })
            .collect();
        // First, so that no change is missed from here on.
        new.iter().for_each(|usage| usage.begin_count());
        self.set(before.iter().chain(&new).cloned().collect());
        if let Err(error) = new.iter().try_for_each(|usage| count(usage)) {
            self.set(before);
            return Err(error);
        }
        for (usage, quota) in next.iter().zip(quotas) {
            usage.lock().bytes_max = Some(quota.bytes_max);
        }
        self.set(next.into());
        Ok(())
    }

    fn set(&self, usages: Arc<[Arc<Usage>]>) {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        self.is_empty.store(usages.is_empty(), Ordering::Release);
        *list = usages;
    }

    /// Each quota with the bytes of its objects.
    pub(super) fn used(&self) -> Vec<(Quota, u64)> {
        let used = |usage: &Arc<Usage>| {
            let state = usage.lock();
            let prefix = usage.prefix.clone();
            let quota = state.bytes_max.map(|bytes_max| Quota { prefix, bytes_max });
            quota.map(|quota| (quota, state.used_bytes()))
        };
        self.list().iter().filter_map(used).collect()
    }

    /// Whether a quota has `folder`, or one beneath it.
    pub(super) fn is_divided(&self, folder: &Key) -> bool {
        let of = |prefix: &Key| prefix == folder || is_beneath(prefix, folder);
        let usages = self.list();
        usages.iter().any(|usage| usage.prefix().is_some_and(of))
    }

    /// Whether the same quotas count objects of both keys.
    pub(super) fn are_alike(&self, one: &Key, other: &Key) -> bool {
        let usages = self.list();
        (usages.iter()).all(|usage| usage.covers(one) == usage.covers(other))
    }

    fn covering(&self, key: &Key) -> impl Iterator<Item = Arc<Usage>> {
        if self.is_empty.load(Ordering::Acquire) {
            return Vec::new().into_iter();
        }
        let usages = self.list();
        let covering: Vec<_> = (usages.iter().filter(|usage| usage.covers(key)))
            .cloned()
            .collect();
        covering.into_iter()
    }

    /// Fails if there is no room for `bytes` more at `key`.
    pub(super) fn check(&self, key: &Key, bytes: u64) -> Result<()> {
        let mut covering = self.covering(key);
        match covering.all(|usage| Usage::has_room(&usage.lock(), bytes)) {
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
}

/// The room that an upload in progress occupies. Dropping it returns the room.
#[derive(Debug)]
pub(super) struct Reservation {
    /// The quotas from when it began.
    covering: Vec<Arc<Usage>>,
    bytes: u64,
}

impl Reservation {
    pub(super) fn new(usages: &Arc<Usages>, key: &Key) -> Reservation {
        Reservation {
            covering: usages.covering(key).collect(),
            bytes: 0,
        }
    }

    /// Whether there is a quota that it counts for.
    pub(super) fn counts(&self) -> bool {
        !self.covering.is_empty()
    }

    /// Occupies `bytes` more. If a quota has no room for them, this fails and changes nothing.
    pub(super) fn grow(&mut self, bytes: u64) -> Result<()> {
        let mut grown = 0;
        for usage in &self.covering {
            let mut state = usage.lock();
            if !Usage::has_room(&state, bytes) {
                break;
            }
            state.pending += bytes;
            grown += 1;
        }
        if grown == self.covering.len() {
            self.bytes += bytes;
            return Ok(());
        }
        let grown = &self.covering[..grown];
        grown.iter().for_each(|usage| usage.lock().pending -= bytes);
        Err(StoreError::OverQuota)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let covering = self.covering.iter();
        covering.for_each(|usage| usage.lock().pending -= self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::parse(text.as_bytes()).expect("a key")
    }

    /// Counts so many bytes.
    fn counted(bytes: u64) -> impl FnMut(&Usage) -> Result<()> {
        move |usage| {
            usage.end_count(Some(bytes));
            Ok(())
        }
    }

    fn usages() -> Arc<Usages> {
        let quota = |prefix: Option<&str>, bytes_max| Quota {
            prefix: prefix.map(key),
            bytes_max,
        };
        let usages = Usages::new();
        let quotas = [quota(None, 100), quota(Some("a/b"), 10)];
        usages.replace(&quotas, counted(0)).expect("counted");
        usages
    }

    #[test]
    fn a_prefix_covers_whole_segments() {
        let quota = &usages().list()[1].clone();
        for (name, expected) in [
            ("a/b/c", true),
            ("a/b", false),
            ("a/bc", false),
            ("x", false),
        ] {
            assert_eq!(quota.covers(&key(name)), expected, "{name}");
        }
        let state = Key::state(b"x").expect("a key");
        assert!(!usages().list()[0].covers(&state));
    }

    #[test]
    fn reservations_are_returned_and_all_quotas_count() {
        let usages = usages();
        let (inside, outside) = (key("a/b/c"), key("x"));
        let mut upload = Reservation::new(&usages, &inside);
        assert!(upload.grow(8).is_ok());
        assert_eq!(upload.grow(3), Err(StoreError::OverQuota));
        assert_eq!(
            usages.list()[0].lock().pending,
            8,
            "a failure changes nothing"
        );
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
        usages.list()[0].begin_count();
        usages.change(&key("y"), 7, 0);
        usages.change(&key("y"), 0, 3);
        usages.list()[0].end_count(Some(40));
        assert_eq!(usages.used()[0].1, 47);
        usages.list()[0].begin_count();
        usages.list()[0].end_count(None);
        assert_eq!(usages.used()[0].1, 47, "a count that fails changes nothing");
    }

    #[test]
    fn quotas_are_replaced_while_uploads_are_in_progress() {
        let usages = usages();
        usages.change(&key("a/b/c"), 5, 0);
        let mut before = Reservation::new(&usages, &key("a/b/d"));
        assert!(before.grow(5).is_ok());
        let quotas = |text: &[(Option<&str>, u64)]| -> Vec<Quota> {
            let of = |&(prefix, bytes_max): &(Option<&str>, u64)| Quota {
                prefix: prefix.map(key),
                bytes_max,
            };
            text.iter().map(of).collect()
        };
        let next = quotas(&[(Some("a/b"), 20), (Some("a"), 12)]);
        let fail = |_: &Usage| Err(StoreError::Busy);
        assert_eq!(usages.replace(&next, fail), Err(StoreError::Busy));
        assert_eq!(
            usages.used().len(),
            2,
            "the earlier quotas remain after an error"
        );
        let count = |usage: &Usage| {
            usages.change(&key("a/e"), 1, 0); // It may or may not be in the sum.
            assert!(usages.check(&key("a/f"), 50).is_ok(), "not counted yet");
            assert_eq!(usages.check(&key("a/b/f"), 1), Err(StoreError::OverQuota));
            usage.end_count(Some(5));
            Ok(())
        };
        usages.replace(&next, count).expect("counted");
        assert_eq!(usages.used(), [(next[0].clone(), 5), (next[1].clone(), 6)]);
        // What was known of `a/b` stays: its room includes the upload.
        assert!(usages.check(&key("a/f"), 6).is_ok());
        assert_eq!(usages.check(&key("a/f"), 7), Err(StoreError::OverQuota));
        let full = Reservation::new(&usages, &key("a/b/g")).grow(7);
        assert_eq!(full, Err(StoreError::OverQuota));
        assert_eq!(usages.list()[0].lock().pending, 5);
        drop(before);
        assert_eq!(usages.list()[0].lock().pending, 0);
        assert_eq!(usages.list()[1].lock().pending, 0);
        usages.replace(&[], fail).expect("nothing to count");
        assert!(usages.check(&key("a/b/f"), u64::MAX).is_ok());
    }
}
