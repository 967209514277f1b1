//! The changes of folders, for all that watch them: one notifier of the kernel and one thread per
//! store, which exist while something is watched.
//!
//! The thread blocks in the kernel. It distributes what it reads into the queues of the watchers
//! and wakes their tasks, and never waits for one of them. Watchers of the same directory share its
//! watch. The end of the last watch is reported to the thread like any change, and ends it.

use super::FolderInner;
use crate::changes::{ChangedName, Changes, FolderChanges};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::object::LocalFuture;
use onrush_rt::fs::{Dir, Notice, Notifier, WatchId};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::thread;

/// The names in the queue of a watcher. Beyond it, only a listing tells what has changed.
const NAMES_MAX: usize = 256;

/// The watches of a store.
#[derive(Default)]
pub(super) struct Watches(Arc<Mutex<WatchesState>>);

#[derive(Default)]
struct WatchesState {
    /// `None` while nothing is watched.
    notifier: Option<Arc<Notifier>>,
    queues: HashMap<WatchId, Vec<Arc<Queue>>>,
}

/// What one watcher has not taken yet.
#[derive(Default)]
struct Queue(Mutex<Queued>);

#[derive(Default)]
struct Queued {
    names: Vec<ChangedName>,
    has_missed: bool,
    has_ended: bool,
    waker: Option<Waker>,
}

/// A watcher of a folder.
pub(super) struct FolderWatch {
    inner: Arc<FolderInner>,
    folder: Option<Key>,
    watch: WatchId,
    queue: Arc<Queue>,
}

/// Begins to watch a folder.
pub(super) async fn watch(
    inner: &Arc<FolderInner>,
    folder: Option<&Key>,
) -> Result<Box<dyn FolderChanges>> {
    if folder.is_some_and(Key::is_internal) {
        return Err(StoreError::NotFound);
    }
    let folder = folder.cloned();
    let job = move |inner: &Arc<FolderInner>| {
        let queue = Arc::<Queue>::default();
        let dir = open(inner, folder.as_ref())?;
        let watch = inner.watches.add(&dir, &queue)?;
        Ok(FolderWatch {
            inner: inner.clone(),
            folder,
            watch,
            queue,
        })
    };
    Ok(Box::new(inner.run(&inner.pool, job).await?))
}

fn open(inner: &FolderInner, folder: Option<&Key>) -> Result<Dir> {
    let path = folder.map_or(&b"."[..], Key::as_bytes);
    inner.root.open_dir(path).map_err(StoreError::from_lookup)
}

impl Watches {
    /// Watches `dir` for `queue`.
    fn add(&self, dir: &Dir, queue: &Arc<Queue>) -> Result<WatchId> {
        let mut state = lock(&self.0);
        let notifier = match &state.notifier {
            Some(notifier) => notifier.clone(),
            None => Arc::new(Notifier::new().map_err(StoreError::from_watch)?),
        };
        let watch = notifier.add(dir).map_err(StoreError::from_watch)?;
        if state.notifier.is_none() {
            let (shared, reading) = (Arc::downgrade(&self.0), notifier.clone());
            let thread = thread::Builder::new().name("onrush-watch".to_owned());
            let started = thread.spawn(move || read(&shared, &reading));
            started.map_err(|_| StoreError::Busy)?;
            state.notifier = Some(notifier);
        }
        state.queues.entry(watch).or_default().push(queue.clone());
        Ok(watch)
    }

    /// Ends the watch of `queue`.
    fn remove(&self, watch: WatchId, queue: &Arc<Queue>) {
        let mut state = lock(&self.0);
        let Some(queues) = state.queues.get_mut(&watch) else {
            return; // It has ended by itself.
        };
        queues.retain(|other| !Arc::ptr_eq(other, queue));
        if queues.is_empty() {
            state.end(watch);
        }
    }

    /// Whether `dir` is the directory of this watch.
    fn is_of(&self, watch: WatchId, dir: &Dir) -> Result<bool> {
        let mut state = lock(&self.0);
        let Some(notifier) = state.notifier.clone() else {
            return Ok(false);
        };
        let found = notifier.add(dir).map_err(StoreError::from_watch)?;
        if !state.queues.contains_key(&found) {
            state.end(found);
        }
        Ok(found == watch)
    }
}

impl WatchesState {
    fn end(&mut self, watch: WatchId) {
        self.queues.remove(&watch);
        if let Some(notifier) = &self.notifier {
            notifier.remove(watch);
        }
    }

    /// Puts a report into the queues. Returns the tasks to wake.
    fn distribute(&mut self, notice: Notice<'_>) -> Vec<Waker> {
        let queues = match notice {
            Notice::Entry { watch, .. } => self.queues.get(&watch).cloned(),
            Notice::Moved(watch) => {
                let queues = self.queues.get(&watch).cloned();
                self.end(watch);
                queues
            }
            Notice::Ended(watch) => self.queues.remove(&watch),
            Notice::Missed => Some(self.queues.values().flatten().cloned().collect()),
        };
        let queues = queues.unwrap_or_default();
        queues
            .iter()
            .filter_map(|queue| queue.add(notice))
            .collect()
    }
}

impl Queue {
    /// Adds a report. Returns the task to wake.
    fn add(&self, notice: Notice<'_>) -> Option<Waker> {
        let mut queued = lock(&self.0);
        match notice {
            Notice::Missed => queued.miss(),
            Notice::Moved(_) | Notice::Ended(_) => queued.has_ended = true,
            Notice::Entry {
                name,
                appeared,
                left,
                ..
            } => queued.add(name, appeared, left),
        }
        queued.waker.take()
    }

    fn take(&self) -> Changes {
        let mut queued = lock(&self.0);
        let names = std::mem::take(&mut queued.names);
        let has_missed = std::mem::take(&mut queued.has_missed);
        match (queued.has_ended, has_missed) {
            (true, _) => Changes::Ended,
            (false, true) => Changes::Missed,
            (false, false) => Changes::Names(names),
        }
    }

    fn poll_changed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queued = lock(&self.0);
        if queued.has_ended || queued.has_missed || !queued.names.is_empty() {
            return Poll::Ready(());
        }
        queued.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Queued {
    fn miss(&mut self) {
        self.has_missed = true;
        self.names = Vec::new();
    }

    fn add(&mut self, name: &[u8], appeared: bool, left: bool) {
        if self.has_missed {
            return;
        }
        if let Some(known) = self.names.iter_mut().find(|known| known.name == name) {
            known.appeared |= appeared;
            known.left |= left;
        } else if self.names.len() == NAMES_MAX {
            self.miss();
        } else {
            self.names.push(ChangedName {
                name: name.to_vec(),
                appeared,
                left,
            });
        }
    }
}

impl FolderChanges for FolderWatch {
    fn changed(&mut self) -> LocalFuture<'_, ()> {
        Box::pin(poll_fn(|cx| self.queue.poll_changed(cx)))
    }

    fn take(&mut self) -> Changes {
        self.queue.take()
    }

    fn is_current(&self) -> LocalFuture<'_, Result<bool>> {
        let (inner, folder, watch) = (self.inner.clone(), self.folder.clone(), self.watch);
        let job = move || match open(&inner, folder.as_ref()) {
            Ok(dir) => inner.watches.is_of(watch, &dir),
            Err(StoreError::NotFound) => Ok(false),
            Err(error) => Err(error),
        };
        Box::pin(async move { self.inner.pool.run(job).await? })
    }
}

impl Drop for FolderWatch {
    fn drop(&mut self) {
        self.inner.watches.remove(self.watch, &self.queue);
    }
}

/// The thread: distributes reports until nothing is watched.
fn read(shared: &Weak<Mutex<WatchesState>>, notifier: &Notifier) {
    loop {
        let mut wakers = Vec::new();
        let mut each = |notice: Notice<'_>| {
            if let Some(shared) = shared.upgrade() {
                wakers.extend(lock(&shared).distribute(notice));
            }
        };
        let result = notifier.read(&mut each);
        // A waker may run other code, so nothing is locked.
        wakers.into_iter().for_each(Waker::wake);
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let mut state = lock(&shared);
        if state.queues.is_empty() || result.is_err() {
            let ended = std::mem::take(&mut *state);
            drop(state);
            for (watch, queues) in ended.queues {
                let wakers = queues.iter().map(|queue| queue.add(Notice::Ended(watch)));
                wakers.flatten().for_each(Waker::wake);
            }
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
