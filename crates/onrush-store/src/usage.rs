//! The bytes beneath prefixes, and the room that is left. It knows neither a store nor a disk.
//!
//! What counts is what the objects need on a disk, as far as it follows from their sizes: an object
//! counts its size, and each object, folder and unfinished upload at least [`COUNTED_BYTES_MIN`].

use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::store::Space;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// What an object, a folder or an unfinished upload counts at least, in bytes: a block of most file
/// systems. So many names without content use up a quota, as they use up a disk.
pub const COUNTED_BYTES_MIN: u64 = 4096;

/// What an object of `size` bytes counts.
pub(crate) fn counted_bytes(size: u64) -> u64 {
    size.max(COUNTED_BYTES_MIN)
}

/// A limit on everything beneath a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// A folder, which does not count itself; `None` is the top folder.
    pub prefix: Option<Key>,
    /// The maximum of what counts together, in bytes.
    pub bytes_max: u64,
}

impl Quota {
    /// Whether an object or a folder with this key counts. Those of [`Key::state`] never do.
    pub fn covers(&self, key: &Key) -> bool {
        covers(self.prefix.as_ref(), key)
    }
}

fn covers(prefix: Option<&Key>, key: &Key) -> bool {
    match prefix {
        _ if key.reserved() => false,
        None => true,
        Some(prefix) => key.is_beneath(prefix),
    }
}

/// All quotas, and how far they are used.
#[derive(Debug)]
pub(crate) struct Usages {
    list: RwLock<Arc<[Arc<Usage>]>>,
    /// Whether the list is empty, as it is for most folders: a change takes no lock then.
    is_empty: AtomicBool,
}

/// A quota, and how far it is used.
#[derive(Debug)]
pub(crate) struct Usage {
    prefix: Option<Key>,
    state: Mutex<UsageState>,
}

#[derive(Debug, Default)]
struct UsageState {
    /// [`Quota::bytes_max`]. `None`: the quota does not hold yet.
    bytes_max: Option<u64>,
    /// Whether `used` has what was there before: if not, nothing may be added.
    is_counted: bool,
    /// The bytes of objects and folders. Less than 0 for a moment, if the end of an object is
    /// counted before its beginning.
    used: i128,
    /// The bytes of uploads that are not complete.
    pending: u64,
    /// The bytes that another process may have added or may still add.
    elsewhere: u64,
    /// The bytes that were added since a count began, if one is in progress.
    added: Option<u64>,
}

impl UsageState {
    fn used_bytes(&self) -> u64 {
        u64::try_from(self.used.max(0)).unwrap_or(u64::MAX)
    }

    /// What is known to be in use.
    fn known_bytes(&self) -> u64 {
        self.used_bytes().saturating_add(self.pending)
    }

    /// Fails if there is no room for `bytes` more, or this cannot be known now.
    fn check(&self, bytes: u64) -> Result<()> {
        let Some(bytes_max) = self.bytes_max else {
            return Ok(());
        };
        let all = self.known_bytes().saturating_add(bytes);
        if all > bytes_max {
            return Err(StoreError::OverQuota);
        }
        match self.is_counted && all.saturating_add(self.elsewhere) <= bytes_max {
            true => Ok(()),
            false => Err(StoreError::NotCounted),
        }
    }
}

/// What a process knows of a quota, for the one that continues its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// The quota.
    pub quota: Quota,
    /// The bytes of its objects and folders.
    pub used: u64,
    /// What the other process may still add, in bytes.
    pub elsewhere: u64,
}

impl Usage {
    fn new(prefix: Option<&Key>) -> Usage {
        Usage {
            prefix: prefix.cloned(),
            state: Mutex::default(),
        }
    }

    /// A quota that holds, and is not counted.
    fn begin(quota: Quota) -> Arc<Usage> {
        let usage = Usage::new(quota.prefix.as_ref());
        usage.lock().bytes_max = Some(quota.bytes_max);
        Arc::new(usage)
    }

    /// See [`Quota::covers`].
    fn covers(&self, key: &Key) -> bool {
        covers(self.prefix.as_ref(), key)
    }

    /// The folder, whose objects a count counts.
    pub(crate) fn prefix(&self) -> Option<&Key> {
        self.prefix.as_ref()
    }

    /// Begins to count the objects.
    pub(crate) fn begin_count(&self) {
        self.lock().added = Some(0);
    }

    /// Ends a count with its result. What was added meanwhile may or may not be in it, so it is
    /// added: the quota is not exceeded, and the next count is exact again.
    pub(crate) fn end_count(&self, counted: Option<u64>) {
        let mut state = self.lock();
        let added = state.added.take().unwrap_or(0);
        if let Some(counted) = counted {
            state.used = i128::from(counted.saturating_add(added));
            state.is_counted = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, UsageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quota(&self, state: &UsageState) -> Option<Quota> {
        let prefix = self.prefix.clone();
        state.bytes_max.map(|bytes_max| Quota { prefix, bytes_max })
    }
}

impl Usages {
    /// Without any quota.
    pub(crate) fn new() -> Arc<Usages> {
        Arc::new(Usages {
            list: RwLock::new([].into()),
            is_empty: AtomicBool::new(true),
        })
    }

    /// The quotas of this moment.
    pub(crate) fn list(&self) -> Arc<[Arc<Usage>]> {
        self.list
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sets the quotas, which hold at once. Until a count has succeeded, nothing may be added.
    pub(crate) fn begin(&self, quotas: &[Quota]) {
        self.update(|_| Some(quotas.iter().cloned().map(Usage::begin).collect()));
    }

    /// Forgets what was counted: it was that of another folder. What is in use there does not count
    /// any more, nor does a count that is in progress.
    pub(crate) fn forget(&self) {
        self.update(|usages| {
            let quotas = usages.iter().filter_map(|usage| usage.quota(&usage.lock()));
            Some(quotas.map(Usage::begin).collect())
        });
    }

    /// Replaces the quotas. `count` counts the objects of those whose folder had none before; they
    /// hold once that has succeeded for all. Until then, and after an error, the earlier ones hold.
    /// If they are forgotten meanwhile ([`Usages::forget`]), it begins again. The caller makes sure
    /// that no other count is in progress.
    pub(crate) fn replace(
        &self,
        quotas: &[Quota],
        mut count: impl FnMut(&[Arc<Usage>]) -> Result<()>,
    ) -> Result<()> {
        loop {
            let before = self.list();
            let mut new: Vec<Arc<Usage>> = Vec::new();
            let next: Arc<[Arc<Usage>]> = (quotas.iter())
                .map(|quota| {
                    let known = before.iter().find(|usage| usage.prefix == quota.prefix);
                    known.cloned().unwrap_or_else(|| {
                        let usage = Arc::new(Usage::new(quota.prefix.as_ref()));
                        new.push(usage.clone());
                        usage
                    })
                })
                .collect();
            // First, so that no change is missed from here on.
            new.iter().for_each(|usage| usage.begin_count());
            let both: Arc<[Arc<Usage>]> = before.iter().chain(&new).cloned().collect();
            if !self.exchange(&before, &both) {
                continue;
            }
            if !new.is_empty()
                && let Err(error) = count(&new)
            {
                self.exchange(&both, &before);
                return Err(error);
            }
            for (usage, quota) in next.iter().zip(quotas) {
                usage.lock().bytes_max = Some(quota.bytes_max);
            }
            if self.exchange(&both, &next) {
                return Ok(());
            }
        }
    }

    /// Replaces the list `from`. Returns false if it is another one by now.
    fn exchange(&self, from: &Arc<[Arc<Usage>]>, to: &Arc<[Arc<Usage>]>) -> bool {
        self.update(|list| Arc::ptr_eq(list, from).then(|| to.clone()))
    }

    /// Replaces the list, if `next` returns another one. Returns whether it does.
    fn update(&self, next: impl FnOnce(&Arc<[Arc<Usage>]>) -> Option<Arc<[Arc<Usage>]>>) -> bool {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let Some(usages) = next(&list) else {
            return false;
        };
        self.is_empty.store(usages.is_empty(), Ordering::Release);
        *list = usages;
        true
    }

    /// Each quota with the bytes that count: `None` until they are known.
    pub(crate) fn used(&self) -> Vec<(Quota, Option<u64>)> {
        let used = |usage: &Arc<Usage>| {
            let state = usage.lock();
            let bytes = state.is_counted.then(|| state.known_bytes());
            usage.quota(&state).map(|quota| (quota, bytes))
        };
        self.list().iter().filter_map(used).collect()
    }

    /// The space of a folder, if that of its file system is `disk`. What is in use is that of the
    /// quota with the least room, if there is one. `None` until it is counted.
    pub(crate) fn space(&self, folder: Option<&Key>, disk: Space) -> Option<Space> {
        let holds = |usage: &&Arc<Usage>| match (usage.prefix(), folder) {
            (None, _) => true,
            (Some(prefix), Some(folder)) => prefix == folder || folder.is_beneath(prefix),
            (Some(_), None) => false,
        };
        let mut least: Option<Space> = None;
        for usage in self.list().iter().filter(holds) {
            let state = usage.lock();
            let Some(bytes_max) = state.bytes_max else {
                continue;
            };
            if !state.is_counted {
                return None;
            }
            let used_bytes = state.known_bytes();
            let available_bytes =
                bytes_max.saturating_sub(used_bytes.saturating_add(state.elsewhere));
            if least.is_none_or(|least| available_bytes < least.available_bytes) {
                least = Some(Space {
                    available_bytes,
                    used_bytes,
                });
            }
        }
        Some(least.map_or(disk, |least| Space {
            available_bytes: least.available_bytes.min(disk.available_bytes),
            ..least
        }))
    }

    /// What another process has to know of the quotas that are counted. It may use the half of what
    /// is left of each from now on, and this one the other half, until [`Usages::end_sharing`].
    pub(crate) fn hand_over(&self) -> Vec<HandedOver> {
        let hand_over = |usage: &Arc<Usage>| {
            let mut state = usage.lock();
            let quota = usage.quota(&state).filter(|_| state.is_counted)?;
            // Another process may have a part already.
            let all = state.known_bytes().saturating_add(state.elsewhere);
            let left = quota.bytes_max.saturating_sub(all);
            let elsewhere = state.pending.saturating_add(state.elsewhere) + left / 2;
            state.elsewhere = state.elsewhere.saturating_add(left - left / 2);
            Some(HandedOver {
                quota,
                used: state.used_bytes(),
                elsewhere,
            })
        };
        self.list().iter().filter_map(hand_over).collect()
    }

    /// Takes over what another process knows. A quota that it does not know, or has with another
    /// limit, stays as it is.
    pub(crate) fn take_over(&self, known: &[HandedOver]) {
        for usage in self.list().iter() {
            let mut state = usage.lock();
            let quota = usage.quota(&state);
            let same = known
                .iter()
                .find(|known| Some(&known.quota) == quota.as_ref());
            if let Some(HandedOver {
                used, elsewhere, ..
            }) = same
            {
                state.used += i128::from(*used);
                state.elsewhere = *elsewhere;
                state.is_counted = true;
            }
        }
    }

    /// No other process uses the folder any more.
    pub(crate) fn end_sharing(&self) {
        (self.list().iter()).for_each(|usage| usage.lock().elsewhere = 0);
    }

    /// Whether a quota has `folder`, or one beneath it.
    pub(crate) fn is_divided(&self, folder: &Key) -> bool {
        let of = |prefix: &Key| prefix == folder || prefix.is_beneath(folder);
        let usages = self.list();
        usages.iter().any(|usage| usage.prefix().is_some_and(of))
    }

    /// Whether the same quotas count objects of both keys.
    pub(crate) fn are_alike(&self, one: &Key, other: &Key) -> bool {
        let usages = self.list();
        (usages.iter()).all(|usage| usage.covers(one) == usage.covers(other))
    }

    fn covering(&self, key: &Key) -> Vec<Arc<Usage>> {
        if self.is_empty.load(Ordering::Acquire) {
            return Vec::new();
        }
        let usages = self.list();
        (usages.iter().filter(|usage| usage.covers(key)))
            .cloned()
            .collect()
    }

    /// Fails if there is no room at `key` for an object of `size` bytes.
    pub(crate) fn check(&self, key: &Key, size: u64) -> Result<()> {
        let bytes = counted_bytes(size);
        let covering = self.covering(key);
        covering
            .iter()
            .try_for_each(|usage| usage.lock().check(bytes))
    }

    /// Counts a change: `added` bytes more and `removed` bytes less.
    pub(crate) fn change(&self, key: &Key, added: u64, removed: u64) {
        for usage in self.covering(key) {
            let mut state = usage.lock();
            state.used += i128::from(added) - i128::from(removed);
            state.added = state.added.map(|sum| sum.saturating_add(added));
        }
    }

    /// Counts a folder that is about to be made at `path`. If there is no room for it, this fails
    /// and changes nothing.
    pub(crate) fn add_folder(self: &Arc<Self>, path: &[u8]) -> Result<()> {
        if self.is_empty.load(Ordering::Acquire) {
            return Ok(());
        }
        let key = Key::parse(path)?;
        let mut room = Reservation::new(self, &key);
        room.grow(0)?;
        self.change(&key, COUNTED_BYTES_MIN, 0);
        Ok(())
    }

    /// The folder at `path` is gone, or was not made.
    pub(crate) fn remove_folder(&self, path: &[u8]) {
        if let Ok(key) = Key::parse(path) {
            self.change(&key, 0, COUNTED_BYTES_MIN);
        }
    }
}

/// The room that an upload occupies until it is complete. Dropping it returns the room. By default
/// it is one that counts for no quota.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    /// The quotas from when it began.
    covering: Vec<Arc<Usage>>,
    /// The bytes of the upload.
    size: u64,
    /// What it counts; 0 before the first call of [`Reservation::grow`].
    bytes: u64,
}

impl Reservation {
    pub(crate) fn new(usages: &Arc<Usages>, key: &Key) -> Reservation {
        Reservation {
            covering: usages.covering(key),
            size: 0,
            bytes: 0,
        }
    }

    /// Whether there is a quota that it counts for.
    pub(crate) fn counts(&self) -> bool {
        !self.covering.is_empty()
    }

    /// The bytes of the upload.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Occupies the room for `size` bytes more, and for the name. If a quota has no room for them,
    /// this fails and changes nothing.
    pub(crate) fn grow(&mut self, size: u64) -> Result<()> {
        let size = self.size.saturating_add(size);
        let bytes = counted_bytes(size);
        let more = bytes.saturating_sub(self.bytes);
        for (at, usage) in self.covering.iter().enumerate() {
            let mut state = usage.lock();
            if let Err(error) = state.check(more) {
                drop(state);
                let grown = &self.covering[..at];
                grown.iter().for_each(|usage| usage.lock().pending -= more);
                return Err(error);
            }
            state.pending += more;
        }
        (self.size, self.bytes) = (size, self.bytes + more);
        Ok(())
    }

    /// It has so many bytes, also if that is more than there is room for: they exist.
    pub(crate) fn set(&mut self, size: u64) {
        let bytes = counted_bytes(size);
        for usage in &self.covering {
            let mut state = usage.lock();
            state.pending = (state.pending - self.bytes).saturating_add(bytes);
        }
        (self.size, self.bytes) = (size, bytes);
    }

    /// Counts for the quotas of this moment, also if they have no room.
    pub(crate) fn renew(&mut self, usages: &Arc<Usages>, key: &Key) {
        let mut renewed = Reservation::new(usages, key);
        if self.bytes > 0 {
            renewed.set(self.size);
        }
        *self = renewed;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let covering = self.covering.iter();
        covering.for_each(|usage| usage.lock().pending -= self.bytes);
    }
}

#[cfg(test)]
mod tests;
