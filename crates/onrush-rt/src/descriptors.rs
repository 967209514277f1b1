//! One budget for the descriptors of a process (`RLIMIT_NOFILE`, `getrlimit(2)`): sockets of
//! connections, files of uploads and files of downloads share it, each up to its own limit.
//!
//! A budget only counts. It opens and closes nothing: callers take a permit before they open and
//! drop it after they close. The limits are ordered so that an attack with one kind of descriptor
//! leaves room for the kinds that are cheaper to serve:
//!
//! 1. Files never take the five eighths that are for connections, nor the last eighth that is free.
//! 2. Uploads leave an eighth more, for downloads.
//! 3. Connections may use all but an eighth, which is kept for files, and the reserve.
//! 4. A file that is open for one short read or one commit may use the reserve too.
//!
//! This module does not depend on sockets or files.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The reserve for files that are open briefly: this fraction of the budget, between these limits.
const RESERVE_PART: u64 = 16;
const RESERVE_MIN: u64 = 2;
const RESERVE_MAX: u64 = 256;
/// Files are always allowed this fraction of the budget, however many connections there are. Files
/// leave as much free for further connections, and uploads as much for downloads.
const FILES_PART: u64 = 8;
/// The number of such fractions that files leave to connections, even when there are few
/// connections: those of an attack may arrive after its files.
const CONNECTION_PARTS: u64 = 5;

/// The budget. Clones share it; [`Descriptors::default`] has no limit and counts nothing.
///
/// # Examples
/// ```
/// use onrush_rt::descriptors::{Descriptors, FileUse};
///
/// let budget = Descriptors::new(64);
/// assert!(budget.open_connection()); // Before the socket is accepted.
/// let permit = budget.open_file(FileUse::Download).expect("there is room");
/// assert_eq!((budget.used().connections, budget.used().files), (1, 1));
/// drop(permit); // After the file is closed.
/// budget.close_connection(); // After the socket is closed.
/// assert_eq!(budget.used().files, 0);
/// ```
#[derive(Clone, Default)]
pub struct Descriptors(Option<Arc<Shared>>);

struct Shared {
    /// All descriptors.
    total: u64,
    /// Part of `total` that only briefly opened files may use.
    reserve: u64,
    /// The number of files that connections must leave room for.
    files_min: u64,
    connections_max: u64,
    /// Connections in the upper half, files in the lower half: one atomic operation checks and
    /// changes both.
    used: AtomicU64,
}

/// What a file is open for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUse {
    /// One read or one commit; it is closed before the task waits for a client.
    Brief,
    /// A response that a client reads at its own pace, or a cache.
    Download,
    /// An upload that a client sends at its own pace.
    Upload,
}

/// A permit for one open file. Drop it after the file is closed.
#[derive(Debug)]
pub struct FilePermit(Descriptors);

/// A count of the descriptors in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Sockets of connections.
    pub connections: u64,
    /// Files of every [`FileUse`].
    pub files: u64,
}

const ONE_CONNECTION: u64 = 1 << 32;

fn unpack(used: u64) -> Used {
    Used {
        connections: used >> 32,
        files: used & (ONE_CONNECTION - 1),
    }
}

impl Descriptors {
    /// A budget of `total` descriptors, capped at 2³¹, not counting those that the process itself
    /// needs. At least one connection and one file are always allowed.
    pub fn new(total: u64) -> Descriptors {
        let total = total.clamp(2 + RESERVE_MIN, 1 << 31);
        let reserve = (total / RESERVE_PART).clamp(RESERVE_MIN, RESERVE_MAX);
        let files_min = (total / FILES_PART).max(1);
        Descriptors(Some(Arc::new(Shared {
            total,
            reserve,
            files_min,
            connections_max: total - reserve - files_min,
            used: AtomicU64::new(0),
        })))
    }

    /// The maximum number of connections; `usize::MAX` without a limit.
    pub fn connections_max(&self) -> usize {
        let limit = self.0.as_ref().map(|shared| shared.connections_max);
        limit.map_or(usize::MAX, |most| {
            usize::try_from(most).unwrap_or(usize::MAX)
        })
    }

    /// Counts one more connection; `false`, with nothing counted, when the budget has no room. Each
    /// `true` is paired with one [`Descriptors::close_connection`] after the socket is closed.
    #[must_use]
    pub fn open_connection(&self) -> bool {
        self.add(ONE_CONNECTION, Shared::admits_connection)
    }

    /// Counts one connection less. The count never goes below zero.
    pub fn close_connection(&self) {
        self.subtract(ONE_CONNECTION, |used| used.connections);
    }

    /// Counts one more file; `None` when the budget has no room.
    pub fn open_file(&self, what_for: FileUse) -> Option<FilePermit> {
        self.add(1, |shared, used| shared.admits_file(used, what_for))
            .then(|| FilePermit(self.clone()))
    }

    /// Whether a file would be admitted now. A snapshot: another thread may take the room first.
    pub fn has_room(&self, what_for: FileUse) -> bool {
        let shared = self.0.as_ref();
        shared.is_none_or(|shared| shared.admits_file(self.used(), what_for))
    }

    /// What clients compete for: half of the files that may be open for uploads now. `u64::MAX`
    /// without a limit.
    pub fn shared_files(&self) -> u64 {
        self.files_for_uploads()
            .map_or(u64::MAX, |max| max.div_ceil(2))
    }

    /// Whether more than the other half is open, for any use: then there are not enough for all.
    /// Downloads may take more files than uploads, but those of one client must not keep the
    /// uploads of others out.
    pub fn are_files_contested(&self) -> bool {
        let max = self.files_for_uploads();
        max.is_some_and(|max| self.used().files > max / 2)
    }

    fn files_for_uploads(&self) -> Option<u64> {
        let shared = self.0.as_ref()?;
        Some(shared.files_max(self.used().connections, FileUse::Upload))
    }

    /// The descriptors in use; zeros without a limit, since nothing is counted then.
    pub fn used(&self) -> Used {
        let shared = self.0.as_ref();
        unpack(shared.map_or(0, |shared| shared.used.load(Ordering::Relaxed)))
    }

    fn add(&self, one: u64, admits: impl Fn(&Shared, Used) -> bool) -> bool {
        let Some(shared) = &self.0 else { return true };
        let add = |used| admits(shared, unpack(used)).then_some(used + one);
        let (order, used) = (Ordering::Relaxed, &shared.used);
        used.fetch_update(order, order, add).is_ok()
    }

    fn subtract(&self, one: u64, part: impl Fn(Used) -> u64) {
        let Some(shared) = &self.0 else { return };
        let subtract = |used| (part(unpack(used)) > 0).then(|| used - one);
        let (order, used) = (Ordering::Relaxed, &shared.used);
        let updated = used.fetch_update(order, order, subtract);
        debug_assert!(updated.is_ok(), "more was given back than taken");
    }
}

impl Shared {
    fn admits_connection(&self, used: Used) -> bool {
        used.connections + 1 + used.files.max(self.files_min) <= self.total - self.reserve
    }

    fn admits_file(&self, used: Used, what_for: FileUse) -> bool {
        let used = Used {
            files: used.files + 1,
            ..used
        };
        self.allows_file(used, what_for)
    }

    /// Whether a file that is counted in `used` already may be open for this use.
    fn allows_file(&self, used: Used, what_for: FileUse) -> bool {
        used.files <= self.files_max(used.connections, what_for)
    }

    /// The maximum number of files of which one is for this use, with so many connections.
    fn files_max(&self, connections: u64, what_for: FileUse) -> u64 {
        let part = self.total / FILES_PART;
        let (guaranteed, spare) = match what_for {
            FileUse::Brief => return self.total.saturating_sub(connections),
            FileUse::Download => (self.files_min, 0),
            FileUse::Upload => (self.files_min.div_ceil(2), part),
        };
        let connections = (connections + part).max(CONNECTION_PARTS * part);
        let left = (self.total - self.reserve).saturating_sub(connections + spare);
        guaranteed.max(left)
    }
}

impl FilePermit {
    /// Whether the file may stay open for another use than it was opened for. The count stays the
    /// same: a file is one descriptor for any use.
    pub fn allows(&self, what_for: FileUse) -> bool {
        let shared = self.0.0.as_ref();
        shared.is_none_or(|shared| shared.allows_file(self.0.used(), what_for))
    }
}

impl Drop for FilePermit {
    fn drop(&mut self) {
        self.0.subtract(1, |used| used.files);
    }
}

impl PartialEq for Descriptors {
    /// Whether both are the same budget, not whether they have the same size.
    fn eq(&self, other: &Descriptors) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (one, two) => one.is_none() && two.is_none(),
        }
    }
}

impl Eq for Descriptors {}

impl fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptors")
            .field("total", &self.0.as_ref().map(|shared| shared.total))
            .field("used", &self.used())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(budget: &Descriptors, count: usize) -> usize {
        (0..count).filter(|_| budget.open_connection()).count()
    }

    fn open(budget: &Descriptors, what_for: FileUse, count: usize) -> Vec<FilePermit> {
        let open = |_| budget.open_file(what_for);
        (0..count).filter_map(open).collect()
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let budget = Descriptors::default();
        assert_eq!(budget.connections_max(), usize::MAX);
        assert_eq!(connect(&budget, 10), 10);
        let files = open(&budget, FileUse::Upload, 10);
        assert!(files.len() == 10 && files[0].allows(FileUse::Download));
        assert_eq!(budget.used(), unpack(0));
        budget.close_connection();
    }

    /// 1,600 descriptors: a reserve of 100, and 200 that connections leave to files.
    #[test]
    fn connections_leave_room_for_files() {
        let budget = Descriptors::new(1600);
        assert_eq!(budget.connections_max(), 1300);
        assert_eq!(connect(&budget, 2000), 1300);
        let uploads = open(&budget, FileUse::Upload, 500);
        assert_eq!(uploads.len(), 100, "half of what files are guaranteed");
        let downloads = open(&budget, FileUse::Download, 500);
        assert_eq!(downloads.len(), 100);
        let brief = open(&budget, FileUse::Brief, 500);
        assert_eq!(brief.len(), 100, "the reserve");
        assert!(brief[0].allows(FileUse::Brief) && !brief[0].allows(FileUse::Download));
        assert_eq!(connect(&budget, 1), 0);
        drop((uploads, downloads, brief));
        (0..1300).for_each(|_| budget.close_connection());
        assert_eq!(budget.used(), unpack(0));
    }

    #[test]
    fn uploads_leave_room_for_downloads_and_those_for_connections() {
        let budget = Descriptors::new(1600);
        assert_eq!(connect(&budget, 700), 700);
        let uploads = open(&budget, FileUse::Upload, 2000);
        assert_eq!(uploads.len(), 1500 - 1000 - 200);
        let downloads = open(&budget, FileUse::Download, 2000);
        assert_eq!(downloads.len(), 200);
        assert!(!budget.has_room(FileUse::Upload) && !budget.has_room(FileUse::Download));
        assert_eq!(connect(&budget, 2000), 300, "a thousand in all");
        assert!(budget.has_room(FileUse::Brief));
        assert!(downloads[0].allows(FileUse::Brief) && !downloads[0].allows(FileUse::Upload));
        drop((uploads, downloads));
        assert!(budget.has_room(FileUse::Upload));
    }

    #[test]
    fn half_of_the_files_for_uploads_is_contested() {
        let budget = Descriptors::new(1600);
        assert_eq!(budget.shared_files(), 150, "300 may be open");
        let downloads = open(&budget, FileUse::Download, 150);
        assert!(!budget.are_files_contested());
        let one = open(&budget, FileUse::Download, 1);
        assert!(budget.are_files_contested());
        drop((downloads, one));
        assert!(!budget.are_files_contested());
        assert_eq!(connect(&budget, 1000), 1000);
        assert_eq!(budget.shared_files(), 50);
        let unlimited = Descriptors::default();
        assert_eq!(unlimited.shared_files(), u64::MAX);
        assert!(!unlimited.are_files_contested());
    }

    #[test]
    fn many_connections_leave_fewer_files() {
        let budget = Descriptors::new(1600);
        assert_eq!(connect(&budget, 1000), 1000);
        assert_eq!(open(&budget, FileUse::Download, 2000).len(), 300);
        assert_eq!(open(&budget, FileUse::Upload, 2000).len(), 100);
    }

    #[test]
    fn the_smallest_budget_serves_one_connection_and_one_file() {
        let budget = Descriptors::new(0);
        assert_eq!(connect(&budget, 5), 1);
        assert_eq!(open(&budget, FileUse::Download, 5).len(), 1);
    }

    #[test]
    fn threads_never_take_more_than_there_is() {
        let budget = Descriptors::new(64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let connected = budget.open_connection();
                        let _file = budget.open_file(FileUse::Brief);
                        let used = budget.used();
                        assert!(used.connections + used.files <= 64, "{used:?}");
                        if connected {
                            budget.close_connection();
                        }
                    }
                });
            }
        });
        assert_eq!(budget.used(), unpack(0));
    }
}
