//! Group commit: puts that are ready at the same time share their syncs, if the store is opened so
//! ([`FolderOptions::share_syncs`](super::FolderOptions::share_syncs)).
//!
//! A put first does everything that concerns only itself, on any thread of the pool: it checks its
//! condition, and writes its staged file. What remains are the sync of the content, the rename,
//! and the sync of the folder. A leader does them for all puts that are ready, while further ones
//! become ready. It makes each sync once per file or folder, or one of the whole file system
//! (`syncfs(2)`), which costs about as much as one of a file when little is unsynced. A quarter of
//! the threads may lead at a time: Linux joins the syncs of several threads as well, and their
//! renames overlap.
//!
//! A put that becomes ready when there are fewer leaders is committed on its own thread, which
//! leads. So a few clients pay for nothing. On a disk whose syncs are short, every put is
//! (`sync_time`). Otherwise the thread of another put does not wait, so the pool does not limit how
//! many puts share a sync.
//!
//! Every put completes only after its own content and folder were synced. If a sync of the whole
//! file system fails, all puts fail that needed it; other failures concern one put or one folder.
//! The content of an upload that was written earlier than its commit is never left to `syncfs`,
//! whose error may be reported to an earlier caller (see `parents` on failures).

use super::Inner;
use super::commit::{CommitOutcome, Obstacle, Put};
use super::sync_time::SyncTime;
use crate::error::{Result, StoreError};
use onrush_rt::fs::Dir;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// The most puts that share their syncs. It bounds the time for which one leader works.
const PUTS_MAX: usize = 256;

/// With more bytes than this that any program has not synced, a sync of the whole file system would
/// wait for them, and files are synced one by one.
const UNSYNCED_BYTES_MAX: u64 = 32 << 20;
/// How long that number is taken for current.
const UNSYNCED_AGE: Duration = Duration::from_millis(100);

pub(super) struct Group {
    leaders_max: usize,
    state: Mutex<State>,
    /// Whether one sync of the whole file system replaces those of many small files now.
    syncs_whole: AtomicBool,
}

struct State {
    leaders: usize,
    sync_time: SyncTime,
    ready: VecDeque<(Put, Sender)>,
    /// Whether the file system can be synced as a whole, and when there was little to sync.
    can_sync_whole: bool,
    checked: Option<Instant>,
}

impl Group {
    /// For a pool of `threads` threads, of which a quarter may lead.
    pub(super) fn new(root: &Dir, threads: usize) -> Group {
        let can_sync_whole = root.can_sync_file_system();
        Group {
            leaders_max: (threads / 4).max(1),
            syncs_whole: AtomicBool::new(can_sync_whole),
            state: Mutex::new(State {
                leaders: 0,
                sync_time: SyncTime::UNKNOWN,
                ready: VecDeque::new(),
                can_sync_whole,
                checked: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete, so the state of a poisoned lock is valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one sync of the whole file system is better than several.
    fn prefers_whole(&self, root: &Dir) -> bool {
        let mut state = self.lock();
        if !state.can_sync_whole {
            return false;
        }
        if (state.checked).is_none_or(|checked| checked.elapsed() > UNSYNCED_AGE) {
            state.checked = Some(Instant::now());
            let unsynced = root.unsynced_bytes().unwrap_or(u64::MAX);
            let is_little = unsynced <= UNSYNCED_BYTES_MAX;
            self.syncs_whole.store(is_little, Ordering::Relaxed);
        }
        self.syncs_whole.load(Ordering::Relaxed)
    }

    /// Runs a sync of little data, and notes how long it takes.
    pub(super) fn measure<T>(&self, sync: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let synced = sync();
        self.lock().sync_time.note(begun.elapsed());
        synced
    }

    /// Decides as if many syncs had taken `time`.
    #[cfg(feature = "testing")]
    pub(super) fn assume_sync_time(&self, time: Duration) {
        self.lock().sync_time.note_many(time);
    }

    #[cfg(feature = "testing")]
    pub(super) fn ready(&self) -> usize {
        self.lock().ready.len()
    }
}

/// What becomes of a put that is ready.
pub(super) enum Submitted {
    Done(Result<CommitOutcome>),
    /// The leader will commit it.
    Waits(Outcome),
}

impl Submitted {
    /// Waits until the put was committed.
    pub(super) async fn outcome(self) -> Result<CommitOutcome> {
        match self {
            Submitted::Done(outcome) => outcome,
            Submitted::Waits(outcome) => outcome.await,
        }
    }
}

/// Commits a put, or leaves it to the leader. Blocks while it is committed.
pub(super) fn submit(inner: &Arc<Inner>, mut put: Put) -> Submitted {
    // Without syncs there is nothing to share, and a worker must not do the work of others.
    // A sync of the whole file system does not reach another one.
    let shares = inner.shares_syncs() && put.is_at_home();
    if !shares || inner.change_pool.is_inline() {
        return Submitted::Done(put.commit(inner));
    }
    let is_shared = put.is_small() && inner.group.syncs_whole.load(Ordering::Relaxed);
    if !is_shared && let Err(error) = put.sync_content(inner) {
        return Submitted::Done(put.fail(error));
    }
    let mut state = inner.group.lock();
    if state.leaders >= inner.group.leaders_max && state.sync_time.is_long() {
        let (sender, outcome) = channel();
        state.ready.push_back((put, sender));
        return Submitted::Waits(outcome);
    }
    state.leaders += 1;
    drop(state);
    let _leadership = Leadership(inner.clone(), 1);
    Submitted::Done(put.commit(inner))
}

/// Held by a thread that commits: it counts as so many leaders. Its drop passes the leadership on
/// if puts are ready.
pub(super) struct Leadership(Arc<Inner>, usize);

impl Leadership {
    /// Counts as all leaders. There must be none.
    #[cfg(feature = "testing")]
    pub(super) fn take(inner: &Arc<Inner>) -> Leadership {
        let all = inner.group.leaders_max;
        let leaders = std::mem::replace(&mut inner.group.lock().leaders, all);
        assert_eq!(leaders, 0, "another thread commits");
        Leadership(inner.clone(), all)
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        let mut state = self.0.group.lock();
        state.leaders -= self.1;
        // There may be more leaders if syncs were short when these began.
        if !state.ready.is_empty() && state.leaders < self.0.group.leaders_max {
            state.leaders += 1;
            drop(state);
            let next = Leadership(self.0.clone(), 1);
            self.0.change_pool.run(move || lead(next)).detach();
        }
    }
}

/// Commits the puts that are ready.
fn lead(leadership: Leadership) {
    let inner = &leadership.0;
    let mut state = inner.group.lock();
    let count = state.ready.len().min(PUTS_MAX);
    let (puts, senders): (Vec<Put>, Vec<Sender>) = state.ready.drain(..count).unzip();
    drop(state);
    for (outcome, sender) in commit_all(inner, puts).into_iter().zip(senders) {
        sender.send(outcome);
    }
}

/// Commits several puts, of different keys. The outcomes are in their order.
fn commit_all(inner: &Arc<Inner>, mut puts: Vec<Put>) -> Vec<Result<CommitOutcome>> {
    let prefers_whole = inner.group.prefers_whole(&inner.root);
    let unsynced = puts.iter().filter(|put| !put.is_synced()).count();
    let all_contents = (unsynced > 1 && prefers_whole)
        .then(|| (inner.group).measure(|| inner.parents.sync_all(&inner.root)));
    let place = |put: &mut Put| {
        match all_contents {
            Some(synced) if !put.is_synced() => synced.map(|()| put.set_synced())?,
            _ => put.sync_content(inner)?,
        }
        put.place(inner)
    };
    let placed: Vec<Result<Option<Obstacle>>> = puts.iter_mut().map(place).collect();

    // The folders of the puts that have their names now, each once.
    let mut folders: Vec<((u64, u64), &Dir)> = Vec::new();
    let mut index_of = |(dir, identity): (_, _)| {
        let known = folders.iter().position(|(known, _)| *known == identity);
        known.unwrap_or_else(|| {
            folders.push((identity, dir));
            folders.len() - 1
        })
    };
    let mut folder_of = Vec::with_capacity(puts.len());
    for (put, placed) in puts.iter().zip(&placed) {
        folder_of.push(match placed {
            Ok(None) => put.folder().map(|folder| Some(index_of(folder))),
            _ => Ok(None), // It needs no sync.
        });
    }
    let synced: Vec<Result<()>> = match folders.len() > 1 && prefers_whole {
        true => vec![inner.parents.sync_all(&inner.root); folders.len()],
        false => {
            let each = folders.iter().map(|(_, dir)| inner.parents.sync(dir));
            each.map(|synced| synced.map_err(StoreError::from_open_file))
                .collect()
        }
    };
    let each = puts.into_iter().zip(placed).zip(folder_of);
    each.map(|((put, placed), folder)| {
        let synced = folder.and_then(|index| index.map_or(Ok(()), |index| synced[index]));
        put.complete(inner, placed, synced)
    })
    .collect()
}

/// The outcome of a put that the leader commits. Dropping it changes nothing.
pub(super) struct Outcome(Arc<Mutex<Slot>>);

/// Dropping it without an outcome fails the put: the leader has panicked.
struct Sender(Arc<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    outcome: Option<Result<CommitOutcome>>,
    waker: Option<Waker>,
}

fn channel() -> (Sender, Outcome) {
    let slot = Arc::new(Mutex::new(Slot::default()));
    (Sender(slot.clone()), Outcome(slot))
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sender {
    fn send(&self, outcome: Result<CommitOutcome>) {
        let mut slot = lock(&self.0);
        slot.outcome = Some(outcome);
        let waker = slot.waker.take();
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // The receiver takes the first outcome only.
        if lock(&self.0).outcome.is_none() {
            self.send(Err(StoreError::Io(io::ErrorKind::Other.into())));
        }
    }
}

impl Future for Outcome {
    type Output = Result<CommitOutcome>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.0);
        match slot.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
