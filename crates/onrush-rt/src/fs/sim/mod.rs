//! A file system in memory, behind the same [`Dir`] and [`File`](super::File), that models what
//! a disk promises and nothing more.
//!
//! - What was written to a file but not `fsync`ed, and what was changed in a directory but not
//!   `fsync`ed through that directory, is lost at a power cut; or some of it stays, as the seed
//!   decides: nothing, everything, a prefix in time, or any part (sectors of a write, names of a
//!   directory; the two halves of a rename between directories are independent).
//! - An `fsync` that fails forgets what it was to write; a later one succeeds and keeps nothing.
//! - Every operation has a running number from 0; errors and power cuts are placed by it.
//!
//! The same calls with the same seed give the same result, whatever the machine.
//!
//! This module must not know the kernel, nor what is built on the files.

mod disk;
mod handle;

pub use handle::{SimDir, SimFile};

use super::{Dir, DirInner};
use disk::Disk;
use handle::Handle;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The root directory's inode number.
const ROOT: u64 = 1;

/// A simulated file system; clones are handles of the same one.
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
    state: Arc<Mutex<State>>,
    held: Arc<Held>,
}

/// Which calls that make a folder wait.
#[derive(Debug, Default)]
struct Held {
    state: Mutex<Hold>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Hold {
    /// Calls wait when no more may pass.
    is_on: bool,
    /// So many more may pass.
    passes: usize,
    /// So many calls wait.
    waiting: usize,
}

/// When the power goes, relative to the operation it is set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The operation does nothing any more.
    Before,
    /// The operation is torn: a part of a write is done, a part of an `fsync` has reached the
    /// disk; an operation without parts is done or not, as the seed decides.
    During,
    /// The operation is done, but its caller never learns of it.
    After,
}

/// What happens to one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Whole,
    Fails(i32),
    Torn,
}

#[derive(Debug)]
struct State {
    disk: Disk,
    random: Random,
    /// Handles of an earlier epoch are dead.
    epoch: u64,
    /// Between a power cut and the restart.
    off: bool,
    operations: u64,
    failures: BTreeMap<u64, i32>,
    cut: Option<(u64, Cut)>,
    /// Bytes that may still be written; `None` is no limit.
    space: Option<u64>,
    /// Nothing is in the caches.
    cold: bool,
    /// Flags of a rename are refused.
    plain_renames: bool,
    /// Extended attributes are refused.
    no_attributes: bool,
    clock_ns: i64,
    /// `flock`s by inode: the handles that hold it, and whether alone.
    locks: HashMap<u64, Vec<(u64, bool)>>,
    next_handle: u64,
    /// How many live handles there are of each inode.
    open: HashMap<u64, usize>,
}

impl SimFs {
    /// An empty file system; `seed` decides all that a real disk leaves open.
    pub fn new(seed: u64) -> SimFs {
        let state = State {
            disk: Disk::new(ROOT),
            random: Random(seed),
            epoch: 0,
            off: false,
            operations: 0,
            failures: BTreeMap::new(),
            cut: None,
            space: None,
            cold: false,
            plain_renames: false,
            no_attributes: false,
            clock_ns: 1_700_000_000_000_000_000,
            locks: HashMap::new(),
            next_handle: 0,
            open: HashMap::new(),
        };
        SimFs {
            state: Arc::new(Mutex::new(state)),
            held: Arc::default(),
        }
    }

    /// Opens the root directory. Fails with `EIO` while the power is off. Not a numbered
    /// operation.
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

    /// How many operations there have been; the next one has this number.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Lets operation `number` fail with `errno` and do nothing (an `fsync` also forgets what it
    /// was to write). May be called for several numbers.
    pub fn fail_at(&self, number: u64, errno: i32) {
        self.lock().failures.insert(number, errno);
    }

    /// Forgets all that [`SimFs::fail_at`] and [`SimFs::power_cut_at`] have planned.
    pub fn clear_faults(&self) {
        let mut state = self.lock();
        state.failures.clear();
        state.cut = None;
    }

    /// Cuts the power at operation `number`; only the last call counts.
    pub fn power_cut_at(&self, number: u64, cut: Cut) {
        self.lock().cut = Some((number, cut));
    }

    /// Cuts the power now: every open handle is dead (`EIO`) for good, locks are gone, and what
    /// the disk did not keep is forgotten.
    pub fn power_cut(&self) {
        self.lock().power_cut();
    }

    /// Switches on again after a power cut; the tree is what the disk kept. Planned faults are
    /// cleared. Without a power cut before, this does nothing to the tree.
    pub fn restart(&self) {
        self.lock().off = false;
        self.clear_faults();
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.lock().off
    }

    /// Ends all handles and locks but keeps the tree, as `kill -9` of every process does: the
    /// page cache survives.
    pub fn kill_processes(&self) {
        self.lock().end_epoch();
    }

    /// Writes everything to the disk, as the kernel does by itself from time to time; what a
    /// failed `fsync` forgot stays forgotten. Not a numbered operation.
    pub fn sync_all(&self) {
        // Fails only for an inode that is not there, and these were just listed.
        let _ = self.lock().disk.sync_all();
    }

    /// Lets the disk be full after `bytes` more; `None` lifts the limit. Space freed by deletion
    /// is not given back.
    pub fn disk_full_after(&self, bytes: Option<u64>) {
        self.lock().space = bytes;
    }

    /// Whether only plain renames are known, as on some file systems: one that must not replace, or
    /// that exchanges, is `EINVAL` then (`renameat2(2)`).
    pub fn set_plain_renames(&self, plain: bool) {
        self.lock().plain_renames = plain;
    }

    /// Whether the file system keeps extended attributes (xattr(7)); `EOPNOTSUPP` where not.
    pub fn set_keeps_attributes(&self, keeps: bool) {
        self.lock().no_attributes = !keeps;
    }

    /// Whether the caches are cold: then all that must not block answers `WouldBlock`.
    pub fn set_cold(&self, cold: bool) {
        self.lock().cold = cold;
    }

    /// Whether every call that makes a folder blocks its thread, before it does anything, until
    /// this is called with `false`: for tests of what else a slow disk holds up.
    pub fn hold_folders(&self, hold: bool) {
        self.set_hold(hold, 0);
    }

    /// As [`SimFs::hold_folders`] with `true`, for the calls after the next `passes` ones.
    pub fn hold_folders_after(&self, passes: usize) {
        self.set_hold(true, passes);
    }

    fn set_hold(&self, is_on: bool, passes: usize) {
        let mut state = self.hold();
        (state.is_on, state.passes) = (is_on, passes);
        drop(state);
        self.held.changed.notify_all();
    }

    fn hold(&self) -> MutexGuard<'_, Hold> {
        self.held
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until at least `calls` calls are blocked by [`SimFs::hold_folders`], for at most
    /// `timeout`, and gives how many are.
    pub fn wait_for_held(&self, calls: usize, timeout: Duration) -> usize {
        let too_few = |state: &mut Hold| state.waiting < calls;
        let changed = &self.held.changed;
        let waited = changed.wait_timeout_while(self.hold(), timeout, too_few);
        waited.unwrap_or_else(PoisonError::into_inner).0.waiting
    }

    fn wait_while_held(&self) {
        let mut state = self.hold();
        if !state.is_on {
            return;
        }
        if state.passes > 0 {
            state.passes -= 1;
            return;
        }
        state.waiting += 1;
        self.held.changed.notify_all();
        let waited = self.held.changed.wait_while(state, |state| state.is_on);
        waited.unwrap_or_else(PoisonError::into_inner).waiting -= 1;
    }

    /// Sets the clock, from which modification times come. Each change advances it by 1 ns.
    pub fn set_clock_ns(&self, now_ns: i64) {
        self.lock().clock_ns = now_ns;
    }

    /// Puts a symbolic link at `path`, durably, creating no parents: test set-up, not an
    /// operation.
    pub fn add_symlink(&self, path: &[u8], target: &[u8]) -> io::Result<()> {
        self.lock()
            .disk
            .add_durable(ROOT, path, disk::Body::Symlink(target.into()))
    }

    /// Puts a FIFO at `path`, durably, as [`SimFs::add_symlink`].
    pub fn add_fifo(&self, path: &[u8]) -> io::Result<()> {
        self.lock()
            .disk
            .add_durable(ROOT, path, disk::Body::Special)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one numbered operation, which itself says what failing or being torn means to it.
    fn operate<R>(
        &self,
        epoch: u64,
        run: impl FnOnce(&mut State, Fate) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut state = self.lock();
        if state.off || state.epoch != epoch {
            return Err(errno(libc::EIO));
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
            _ => Fate::Whole,
        };
        let result = run(&mut state, fate);
        if cut.is_some() {
            state.power_cut();
            return Err(errno(libc::EIO));
        }
        result
    }

    /// Runs an operation that is done or not done, with nothing in between.
    fn atomically<R>(
        &self,
        epoch: u64,
        run: impl FnOnce(&mut State) -> io::Result<R>,
    ) -> io::Result<R> {
        self.operate(epoch, |state, fate| match fate {
            Fate::Fails(code) => Err(errno(code)),
            Fate::Torn if state.random.coin() => Err(errno(libc::EIO)),
            Fate::Torn | Fate::Whole => run(state),
        })
    }
}

impl State {
    fn power_cut(&mut self) {
        if self.off {
            return;
        }
        self.off = true;
        self.end_epoch();
        self.disk.forget(&mut self.random);
    }

    /// All handles are dead from now on.
    fn end_epoch(&mut self) {
        self.epoch += 1;
        self.locks.clear();
        self.open.clear();
    }

    /// Takes `bytes` of free space, or as many as there are.
    fn take_space(&mut self, bytes: u64) -> u64 {
        let Some(space) = &mut self.space else {
            return bytes;
        };
        let taken = bytes.min(*space);
        *space -= taken;
        taken
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
