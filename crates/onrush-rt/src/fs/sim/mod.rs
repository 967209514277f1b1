//! A file system in memory, behind the same [`Dir`] and [`File`](super::File), that models the
//! guarantees of a disk and nothing more.
//!
//! - Data written to a file, its mode and its owner without an `fsync`, and changes of a directory
//!   without an `fsync` of that directory, are lost at a power cut, or partly kept. The seed
//!   decides: nothing, everything, a prefix in time, or any part (sectors of a write, names of a
//!   directory; the two halves of a rename between directories are independent, unless there is a
//!   journal: [`SimFs::set_journaled`]), for each mount on its own.
//! - An `fsync` that fails drops the changes it was to write; a later one succeeds without them.
//! - Every operation has a number, counted from 0; errors and power cuts are placed by it.
//!
//! The same calls with the same seed give the same result on every machine.
//!
//! This module depends neither on the kernel nor on users of the files.

mod change;
mod disk;
mod handle;
mod hold;
mod links;
mod locks;

pub use handle::{SimDir, SimFile, SimNames};

use super::{Dir, DirInner};
use disk::Disk;
use handle::Handle;
use hold::Hold;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The root directory's inode number.
const ROOT: u64 = 1;

/// A simulated file system; clones share it.
///
/// ```
/// use onrush_rt::fs::{OpenHow, sim::SimFs};
/// let disk = SimFs::new(7);
/// let root = disk.root()?;
/// root.open(b"kept", OpenHow::create_new(0o644))?.sync()?;
/// root.sync()?;
/// root.open(b"perhaps", OpenHow::create_new(0o644))?; // neither it nor its name is synced
/// disk.power_cut();
/// assert!(root.metadata(b"kept").is_err()); // every open handle is dead
/// disk.restart();
/// assert!(disk.root()?.metadata(b"kept").is_ok());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SimFs {
    state: Arc<Mutex<DiskState>>,
    /// Holds calls that create a directory.
    new_folders: Arc<Hold>,
    /// Holds calls that list one.
    lists: Arc<Hold>,
    /// Notified when a byte is unlocked.
    unlocked: Arc<Condvar>,
}

/// When the power fails, relative to the operation it is set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The operation has no effect.
    Before,
    /// The operation is torn: a part of a write is done, or a part of an `fsync` is on the disk.
    /// The seed decides whether an operation without parts is done.
    During,
    /// The operation is done, but its caller gets an error.
    After,
}

/// What happens to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Whole,
    Fails(i32),
    Torn,
    /// A sync that does nothing and reports success.
    Ignored,
}

/// What another program does before an operation.
struct Interruption(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interruption")
    }
}

/// See [`SimFs::observe`].
struct Observer(Box<dyn FnMut() + Send>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

#[derive(Debug)]
struct DiskState {
    disk: Disk,
    random: Random,
    /// Handles of an earlier epoch are dead.
    epoch: u64,
    power_cuts: u64,
    /// Between a power cut and the restart.
    off: bool,
    operations: u64,
    syncs: u64,
    ignored_syncs: u64,
    failures: BTreeMap<u64, i32>,
    /// Syncs that do nothing.
    ignored: BTreeSet<u64>,
    cut: Option<(u64, Cut)>,
    interruptions: BTreeMap<u64, Interruption>,
    observer: Option<Observer>,
    /// The observer is running.
    is_observed: bool,
    /// Bytes that may still be written; `None` is no limit.
    space: Option<u64>,
    /// The caches are empty.
    cold: bool,
    /// Renames with flags are refused.
    plain_renames: bool,
    /// Extended attributes are refused.
    no_attributes: bool,
    /// Files may have several names.
    has_links: bool,
    /// Setting an extended attribute fails so.
    attributes_fail: Option<i32>,
    /// All files belong to another user.
    foreign_owner: bool,
    /// See [`SimFs::set_local`].
    not_local: bool,
    /// No rename leads from one directory to another.
    single_folders: bool,
    /// The number of mounts.
    mounts: u64,
    clock_ns: i64,
    /// `flock`s by inode: the handles that hold it, and whether exclusively.
    locks: HashMap<u64, Vec<(u64, bool)>>,
    /// Locked bytes, by inode and position: the handles that hold them.
    byte_locks: HashMap<(u64, u64), u64>,
    next_handle: u64,
    /// The number of live handles of each inode.
    open: HashMap<u64, usize>,
}

impl SimFs {
    /// An empty file system; `seed` decides everything that a real disk leaves open.
    pub fn new(seed: u64) -> SimFs {
        let state = DiskState {
            disk: Disk::new(ROOT),
            random: Random(seed),
            epoch: 0,
            power_cuts: 0,
            off: false,
            operations: 0,
            syncs: 0,
            ignored_syncs: 0,
            failures: BTreeMap::new(),
            ignored: BTreeSet::new(),
            cut: None,
            interruptions: BTreeMap::new(),
            observer: None,
            is_observed: false,
            space: None,
            cold: false,
            plain_renames: false,
            no_attributes: false,
            has_links: false,
            attributes_fail: None,
            foreign_owner: false,
            not_local: false,
            single_folders: false,
            mounts: 1,
            clock_ns: 1_700_000_000_000_000_000,
            locks: HashMap::new(),
            byte_locks: HashMap::new(),
            next_handle: 0,
            open: HashMap::new(),
        };
        SimFs {
            state: Arc::new(Mutex::new(state)),
            new_folders: Arc::default(),
            lists: Arc::default(),
            unlocked: Arc::default(),
        }
    }

    /// Opens the root directory. Fails with `EIO` while the power is off. Not a numbered operation.
    pub fn root(&self) -> io::Result<Dir> {
        let state = self.lock();
        if state.off {
            return Err(errno(libc::EIO));
        }
        let epoch = state.epoch;
        drop(state);
        Ok(Dir(DirInner::Sim(SimDir::new(Handle::new(
            self, ROOT, epoch,
        )))))
    }

    /// The number of operations so far; the next one has this number.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// The number of syncs so far, without those that were ignored.
    pub fn syncs(&self) -> u64 {
        self.lock().syncs
    }

    /// The number of syncs that were ignored ([`SimFs::ignore_sync_at`]).
    pub fn ignored_syncs(&self) -> u64 {
        self.lock().ignored_syncs
    }

    /// Makes operation `number` fail with `errno` and do nothing (an `fsync` also drops what it was
    /// to write). May be called for several numbers.
    pub fn fail_at(&self, number: u64, errno: i32) {
        self.lock().failures.insert(number, errno);
    }

    /// Makes operation `number`, if it is a sync, report success without doing anything: for tests
    /// of whether every sync is needed.
    pub fn ignore_sync_at(&self, number: u64) {
        self.lock().ignored.insert(number);
    }

    /// Calls `run` right before operation `number`, once, on the thread of that operation: as if
    /// another program had its turn then. `run` may use the disk. Its operations have this number
    /// and the next ones, and the operation that waited has the number after them.
    pub fn interrupt_at(&self, number: u64, run: impl FnOnce() + Send + 'static) {
        let interruption = Interruption(Box::new(run));
        let earlier = self.lock().interruptions.insert(number, interruption);
        drop(earlier);
    }

    /// Calls `look` after each operation, on the thread of that operation: as if another program
    /// had its turn then. What `look` does on the disk has no numbers and no faults.
    pub fn observe(&self, look: impl FnMut() + Send + 'static) {
        let earlier = self.lock().observer.replace(Observer(Box::new(look)));
        drop(earlier);
    }

    /// Clears the faults of [`SimFs::fail_at`], [`SimFs::ignore_sync_at`] and
    /// [`SimFs::power_cut_at`], and the calls of [`SimFs::interrupt_at`].
    pub fn clear_faults(&self) {
        let mut state = self.lock();
        state.failures.clear();
        state.ignored.clear();
        state.cut = None;
        let interruptions = mem::take(&mut state.interruptions);
        drop(state);
        // What they hold may be handles, which lock the state.
        drop(interruptions);
    }

    /// Cuts the power at operation `number`; only the last call counts.
    pub fn power_cut_at(&self, number: u64, cut: Cut) {
        self.lock().cut = Some((number, cut));
    }

    /// Cuts the power now: every open handle is dead (`EIO`) for good, locks are gone, and what the
    /// disk did not keep is lost.
    pub fn power_cut(&self) {
        self.lock().power_cut();
    }

    /// Turns the power on after a cut; the tree is what the disk kept. Clears planned faults.
    /// Without a preceding power cut, this does not change the tree.
    pub fn restart(&self) {
        self.lock().off = false;
        self.clear_faults();
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.lock().off
    }

    /// Ends all handles and locks but keeps the tree, as `kill -9` of every process does: the page
    /// cache survives.
    pub fn kill_processes(&self) {
        self.lock().end_epoch();
    }

    /// Writes everything to the disk, as the kernel does from time to time. Changes that a failed
    /// `fsync` dropped stay lost. Not a numbered operation.
    pub fn sync_all(&self) {
        // Fails only for an inode that does not exist, and these were just listed.
        let _ = self.lock().disk.sync_all();
    }

    /// Makes the disk full after `bytes` more; `None` lifts the limit. Deletion does not free
    /// space.
    pub fn disk_full_after(&self, bytes: Option<u64>) {
        self.lock().space = bytes;
    }

    /// Whether the file system has a journal, as ext4 and XFS have: changes of directories reach
    /// the disk in the order in which they were made, a rename as a whole, and a sync of one
    /// directory syncs all changes before it. Each mount has its own.
    pub fn set_journaled(&self, is_journaled: bool) {
        self.lock().disk.is_journaled = is_journaled;
    }

    /// Whether only plain renames work, as on some file systems: a rename that must not replace, or
    /// that exchanges, then fails with `EINVAL` (`renameat2(2)`), and a link with `EPERM`.
    pub fn set_plain_renames(&self, plain: bool) {
        self.lock().plain_renames = plain;
    }

    /// Whether the file system keeps extended attributes (xattr(7)); `EOPNOTSUPP` where not.
    pub fn set_keeps_attributes(&self, keeps: bool) {
        self.lock().no_attributes = !keeps;
    }

    /// Has every call that sets an extended attribute fail with `errno`; `None` ends that.
    pub fn fail_attributes(&self, errno: Option<i32>) {
        self.lock().attributes_fail = errno;
    }

    /// Whether all files belong to another user, as on a mount that shows another owner: setting
    /// time, mode or owner fails with `EPERM`, while contents can be written.
    pub fn set_foreign_owner(&self, foreign: bool) {
        self.lock().foreign_owner = foreign;
    }

    /// Whether [`Dir::is_local`] is true, as it is at first.
    pub fn set_local(&self, local: bool) {
        self.lock().not_local = !local;
    }

    /// Makes the file or the empty directory at `path` another file system: a rename or a link from
    /// or to others fails with `EXDEV`, a change of its own name with `EBUSY`. Test set-up, not an
    /// operation.
    pub fn mount(&self, path: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        let found = state.disk.resolve(ROOT, path, true)?;
        let inode = found.inode.ok_or_else(|| errno(libc::ENOENT))?;
        state.mounts += 1;
        let mount = state.mounts;
        state.disk.node(inode)?.mount = mount;
        Ok(())
    }

    /// Names must be UTF-8, as on some file systems, and other bytes fail with this code: `EILSEQ`,
    /// or `EINVAL` as in folders of ext4 and tmpfs with `casefold` and a strict encoding.
    pub fn set_unicode_names(&self, failure: Option<i32>) {
        self.lock().disk.unicode_names = failure;
    }

    /// Whether a rename from one directory to another fails with `EXDEV`, as between directories of
    /// different quota projects.
    pub fn refuse_renames_between_folders(&self, refuse: bool) {
        self.lock().single_folders = refuse;
    }

    /// Whether the caches are cold: then all calls that must not block return `WouldBlock`.
    pub fn set_cold(&self, cold: bool) {
        self.lock().cold = cold;
    }

    /// Whether every call that creates a directory blocks its thread before it does anything, until
    /// this is called with `false`: for tests of what a slow disk delays.
    pub fn hold_folders(&self, hold: bool) {
        self.new_folders.set(hold.then_some(0));
    }

    /// Like [`SimFs::hold_folders`] with `true`, for the calls after the next `passes` ones.
    pub fn hold_folders_after(&self, passes: usize) {
        self.new_folders.set(Some(passes));
    }

    /// Waits until [`SimFs::hold_folders`] blocks at least `calls` calls, for at most `timeout`.
    /// Returns the number of blocked calls.
    pub fn wait_for_held(&self, calls: usize, timeout: Duration) -> usize {
        self.new_folders.wait(calls, timeout)
    }

    /// Whether calls that list a directory block their threads after the next `passes` ones; `None`
    /// ends that. For tests of what is done while a folder is read.
    pub fn hold_lists(&self, passes: Option<usize>) {
        self.lists.set(passes);
    }

    /// Like [`SimFs::wait_for_held`], for [`SimFs::hold_lists`].
    pub fn wait_for_held_lists(&self, calls: usize, timeout: Duration) -> usize {
        self.lists.wait(calls, timeout)
    }

    /// Sets the clock for modification times. Each change advances it by 1 ns.
    pub fn set_clock_ns(&self, now_ns: i64) {
        self.lock().clock_ns = now_ns;
    }

    /// Creates a symbolic link at `path`, durably, without parents. Test set-up, not an operation.
    pub fn add_symlink(&self, path: &[u8], target: &[u8]) -> io::Result<()> {
        self.lock()
            .disk
            .add_durable(ROOT, path, disk::Body::Symlink(target.into()))
    }

    /// Creates a FIFO at `path`, durably, like [`SimFs::add_symlink`].
    pub fn add_fifo(&self, path: &[u8]) -> io::Result<()> {
        self.lock()
            .disk
            .add_durable(ROOT, path, disk::Body::Special)
    }

    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, for a handle of `epoch`. Fails with `EIO` if the handle is dead.
    fn lock_live(&self, epoch: u64) -> io::Result<MutexGuard<'_, DiskState>> {
        let state = self.lock();
        match state.off || state.epoch != epoch {
            true => Err(errno(libc::EIO)),
            false => Ok(state),
        }
    }

    /// Runs one numbered operation; `run` defines what failing or being torn means for it.
    fn operate<R>(
        &self,
        epoch: u64,
        run: impl FnOnce(&mut DiskState, Fate) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut state = self.lock_live(epoch)?;
        if state.is_observed {
            return run(&mut state, Fate::Whole);
        }
        let next = state.operations;
        if let Some(Interruption(run)) = state.interruptions.remove(&next) {
            drop(state);
            run();
            state = self.lock_live(epoch)?;
        }
        let number = state.operations;
        state.operations += 1;
        state.clock_ns += 1;
        let cut = state.cut.filter(|cut| cut.0 == number).map(|cut| cut.1);
        if cut == Some(Cut::Before) {
            state.power_cut();
            return Err(errno(libc::EIO));
        }
        let fate = match (cut, state.failures.remove(&number)) {
            (Some(Cut::During), _) => Fate::Torn,
            (_, Some(code)) => Fate::Fails(code),
            _ if state.ignored.remove(&number) => Fate::Ignored,
            _ => Fate::Whole,
        };
        let result = run(&mut state, fate);
        if cut.is_some() {
            state.power_cut();
            return Err(errno(libc::EIO));
        }
        if let Some(mut observer) = state.observer.take() {
            state.is_observed = true;
            drop(state);
            observer.0();
            state = self.lock();
            state.is_observed = false;
            state.observer.get_or_insert(observer);
        }
        result
    }

    /// Runs a sync, which takes its time.
    fn sync_with(
        &self,
        epoch: u64,
        run: impl FnOnce(&mut DiskState, Fate) -> io::Result<()>,
    ) -> io::Result<()> {
        self.operate(epoch, |state, fate| match fate {
            Fate::Ignored => {
                state.ignored_syncs += 1;
                Ok(())
            }
            fate => {
                state.syncs += 1;
                run(state, fate)
            }
        })
    }

    /// Runs an operation that is either done or not done.
    fn atomically<R>(
        &self,
        epoch: u64,
        run: impl FnOnce(&mut DiskState) -> io::Result<R>,
    ) -> io::Result<R> {
        self.operate(epoch, |state, fate| match fate {
            Fate::Fails(code) => Err(errno(code)),
            Fate::Torn if state.random.coin() => Err(errno(libc::EIO)),
            Fate::Torn | Fate::Whole | Fate::Ignored => run(state),
        })
    }
}

impl DiskState {
    fn power_cut(&mut self) {
        if self.off {
            return;
        }
        self.off = true;
        self.power_cuts += 1;
        self.end_epoch();
        self.disk.forget(&mut self.random);
    }

    /// Makes all existing handles dead.
    fn end_epoch(&mut self) {
        self.epoch += 1;
        self.locks.clear();
        self.byte_locks.clear();
        self.open.clear();
    }

    /// Takes `bytes` of free space, or as many as are left.
    fn take_space(&mut self, bytes: u64) -> u64 {
        let Some(space) = &mut self.space else {
            return bytes;
        };
        let taken = bytes.min(*space);
        *space -= taken;
        taken
    }
}

impl SimDir {
    pub(in crate::fs) fn boot_id(&self) -> io::Result<String> {
        let power_cuts = self.at.fs.lock().power_cuts;
        Ok(format!("{power_cuts:036}"))
    }
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// SplitMix64: small, and good enough to choose what a disk forgets.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// A number from 0 to `max`, both included.
    fn up_to(&mut self, max: usize) -> usize {
        (self.next() % (max as u64 + 1)) as usize
    }
}
