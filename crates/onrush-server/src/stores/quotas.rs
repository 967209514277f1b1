//! Quotas of the served folder. Its objects are counted at start, and again now and then, because
//! other programs change the folder, too. If the first count takes long, the server serves
//! meanwhile, and only changes that need room in a quota get 503.
//!
//! The same thread first looks at what an earlier process has left: unfinished uploads count, and
//! what none of their records names is removed. If the folder becomes another one, all of this
//! begins again.

use crate::process::failure::{self, Failure};
use crate::process::service_manager::ServiceManager;
use onrush::metrics::{Collector, MetricType, TextWriter};
use onrush_files::recorded_uploads;
use onrush_store::{Counted, Folder, HandedOver, Key, Quota, QuotaStore, Store, StoreError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two counts, and how many times longer than a count it is at least.
const COUNT_INTERVAL: Duration = Duration::from_secs(600);
const COUNT_SHARE: u32 = 100;

/// How long the start waits for the first count, before the server serves without it.
const START_WAIT: Duration = Duration::from_secs(2);
/// The pause before a first count that has failed begins again.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// How often a count says how far it is.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(3);
/// How long the service manager waits from then on, at least.
const PROGRESS_WAIT: Duration = Duration::from_secs(60);

/// The quotas of the served folder, which can be replaced.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    counter: Arc<Counter>,
    shared: Arc<Shared>,
}

/// Counts.
#[derive(Debug)]
struct Counter {
    store: QuotaStore,
    folder: Folder,
    manager: ServiceManager,
}

/// What the thread that counts shares with others.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<QuotasState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QuotasState {
    is_started: bool,
    /// The result of the first count, which has ended.
    first: Option<Result<(), StoreError>>,
    /// The process with which this one has shared the quotas has ended: count now.
    is_alone: bool,
    /// The folder has become another one: nothing is known of it.
    is_swapped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, QuotasState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut QuotasState)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// Waits until something has changed so, at most for `limit`.
    fn wait(
        &self,
        limit: Duration,
        has_changed: impl Fn(&QuotasState) -> bool,
    ) -> MutexGuard<'_, QuotasState> {
        let wait = |state: &mut QuotasState| !has_changed(state);
        let waited = self.changed.wait_timeout_while(self.lock(), limit, wait);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Says how far a count is: in the log, and to the service manager, which would otherwise end a
/// start or a reload that takes long.
struct Progress<'q> {
    manager: &'q ServiceManager,
    begun: Instant,
    said: Instant,
}

impl Progress<'_> {
    fn new(manager: &ServiceManager) -> Progress<'_> {
        let begun = Instant::now();
        Progress {
            manager,
            begun,
            said: begun,
        }
    }

    fn report(&mut self, counted: Counted) {
        if self.said.elapsed() < PROGRESS_INTERVAL {
            return;
        }
        self.said = Instant::now();
        let Counted {
            objects,
            folders,
            bytes,
        } = counted;
        let seconds = self.begun.elapsed().as_secs();
        tracing::info!(objects, folders, bytes, seconds, "counting for the quotas");
        let status = format!("counting for the quotas: {objects} objects");
        self.manager.extend_timeout(PROGRESS_WAIT, &status);
    }
}

impl Quotas {
    /// Begins to count what `folder` has, and waits for that for a moment. `known`: what the
    /// process knows whose place this one takes.
    pub(crate) fn open(
        folder: Folder,
        quotas: &[Quota],
        known: &[HandedOver],
        manager: &ServiceManager,
    ) -> Result<Quotas, Failure> {
        let store = QuotaStore::uncounted(folder.clone(), quotas);
        store.take_over(known);
        let is_writable = folder.writable();
        let shared = Arc::<Shared>::default();
        let swapped = shared.clone();
        folder.on_swap(move || swapped.change(|state| state.is_swapped = true));
        let counter = Counter {
            store,
            folder,
            manager: manager.clone(),
        };
        let opened = Quotas {
            counter: Arc::new(counter),
            shared,
        };
        if quotas.is_empty() && !is_writable {
            return Ok(opened);
        }
        if opened.counter.store.is_counted() {
            opened.start_thread()?;
            opened.counter.report(Duration::ZERO);
            return Ok(opened);
        }
        tracing::info!("counting for the quotas: all objects and folders");
        opened.start_thread()?;
        let state = (opened.shared).wait(START_WAIT, |state| state.first.is_some());
        let first = state.first;
        drop(state);
        if let Some(Err(error)) = first {
            return Err(not_counted(error));
        }
        if first.is_none() {
            tracing::info!(
                "serving while the objects are counted; until then, changes that need room in a \
                 quota get 503"
            );
        }
        Ok(opened)
    }

    /// The store that keeps them.
    pub(crate) fn store(&self) -> &QuotaStore {
        &self.counter.store
    }

    /// Replaces the quotas; see [`QuotaStore::set_quotas`]. Blocks.
    pub(crate) fn set(&self, quotas: &[Quota]) -> Result<(), Failure> {
        let Counter { store, manager, .. } = &*self.counter;
        let mut progress = Progress::new(manager);
        let set = store.set_quotas_with(quotas, &mut |counted| progress.report(counted));
        set.map_err(not_counted)?;
        self.counter.report(progress.begun.elapsed());
        match quotas.is_empty() {
            true => Ok(()),
            false => self.start_thread(),
        }
    }

    /// What a process has to know that takes the place of this one; see [`QuotaStore::hand_over`].
    pub(crate) fn hand_over(&self) -> Vec<HandedOver> {
        self.counter.store.hand_over()
    }

    /// No other process shares the quotas any more.
    pub(crate) fn end_sharing(&self) {
        self.shared.change(|state| state.is_alone = true);
    }

    fn start_thread(&self) -> Result<(), Failure> {
        if std::mem::replace(&mut self.shared.lock().is_started, true) {
            return Ok(());
        }
        let (counter, shared) = (self.counter.clone(), self.shared.clone());
        let thread = thread::Builder::new().name("onrush-quotas".to_owned());
        let started = thread.spawn(move || run(counter, &shared));
        started.map(drop).map_err(|error| {
            let reason = failure::error_text(&error);
            Failure::run(format!("cannot start the thread for quotas: {reason}"))
        })
    }
}

/// The thread. It holds no store while it waits, so that the end of the server can close it.
fn run(counter: Arc<Counter>, shared: &Shared) {
    let mut took = counter.count_first(shared);
    let others = Arc::downgrade(&counter);
    drop(counter);
    loop {
        let pause = COUNT_INTERVAL.max(took * COUNT_SHARE);
        let mut state = shared.wait(pause, |state| state.is_alone || state.is_swapped);
        let is_swapped = std::mem::take(&mut state.is_swapped);
        let is_alone = !is_swapped && std::mem::take(&mut state.is_alone);
        drop(state);
        let Some(counter) = others.upgrade() else {
            return;
        };
        if is_swapped {
            tracing::info!("the folder is another one; counting for the quotas");
            took = counter.count_first(shared);
            continue;
        }
        let store = &counter.store;
        let begun = Instant::now();
        match store.count() {
            Ok(()) if is_alone => store.end_sharing(),
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "the objects cannot be counted again");
                if is_alone {
                    thread::sleep(RETRY_PAUSE);
                    shared.change(|state| state.is_alone = true);
                }
            }
        }
        took = begun.elapsed();
    }
}

impl Counter {
    fn report(&self, took: Duration) {
        let seconds = took.as_secs_f32();
        for (quota, used) in self.store.used() {
            let (prefix, bytes_max) = (prefix(&quota), quota.bytes_max);
            tracing::info!(prefix, used, bytes_max, seconds, "a quota applies");
        }
    }

    /// Counts until that succeeds. Returns how long it took.
    fn count_first(&self, shared: &Shared) -> Duration {
        let mut is_known = false;
        loop {
            let mut progress = Progress::new(&self.manager);
            let mut count = || {
                if !is_known {
                    self.find_left()?;
                    is_known = true;
                }
                match self.store.is_counted() {
                    true => Ok(()),
                    false => {
                        self.store
                            .count_with(&mut |counted| progress.report(counted))?;
                        self.report(progress.begun.elapsed());
                        Ok(())
                    }
                }
            };
            let counted = count();
            let took = progress.begun.elapsed();
            // What an earlier process has left matters for quotas only.
            let is_done = counted.is_ok() || self.store.is_counted();
            if let Err(error) = &counted {
                tracing::error!(%error, "what an earlier process has left cannot be counted");
            }
            shared.change(|state| state.first = Some(counted));
            if is_done {
                return took;
            }
            thread::sleep(RETRY_PAUSE);
        }
    }

    /// Counts the unfinished uploads, and removes what earlier processes have left besides.
    fn find_left(&self) -> Result<(), StoreError> {
        if !self.folder.writable() {
            return Ok(());
        }
        let swaps = self.folder.swaps();
        let recorded = recorded_uploads(Arc::new(self.folder.clone()))?;
        let kept: Vec<_> = recorded.iter().map(|upload| upload.kept.clone()).collect();
        match self.folder.discard_unknown(&kept, swaps) {
            Ok(0) => {}
            Ok(files) => tracing::info!(files, "removed what an earlier process has left"),
            Err(error) => tracing::warn!(%error, "what an earlier process has left remains"),
        }
        self.store.find_partial(&recorded)
    }
}

fn not_counted(error: StoreError) -> Failure {
    Failure::run(format!("the objects cannot be counted: {error}"))
}

/// The path of the folder of a quota.
pub(crate) fn prefix(quota: &Quota) -> String {
    let key = quota.prefix.as_ref().map(Key::as_bytes).unwrap_or_default();
    format!("/{}", String::from_utf8_lossy(key))
}

impl Collector for Quotas {
    fn collect(&self, text: &mut TextWriter) {
        let used = self.counter.store.used();
        if used.is_empty() {
            return;
        }
        let help = "What counts beneath the folder of a quota.";
        text.family("onrush_quota_used_bytes", MetricType::Gauge, help);
        for (quota, bytes) in &used {
            text.sample(&[("prefix", &prefix(quota))], *bytes);
        }
        let help = "The maximum of what counts beneath the folder of a quota.";
        text.family("onrush_quota_max_bytes", MetricType::Gauge, help);
        for (quota, _) in &used {
            text.sample(&[("prefix", &prefix(quota))], quota.bytes_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_long_count_extends_the_time_of_the_service_manager() {
        let path = std::env::temp_dir().join(format!("onrush-count-{}", std::process::id()));
        let receiver = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::at(&path);
        let mut progress = Progress::new(&manager);
        progress.said -= PROGRESS_INTERVAL;
        let counted = |objects| Counted {
            objects,
            ..Counted::default()
        };
        progress.report(counted(5));
        progress.said += Duration::from_secs(3600); // A busy machine takes long.
        progress.report(counted(6)); // Too early.
        progress.said = progress.begun - PROGRESS_INTERVAL;
        progress.report(counted(7));
        for objects in [5, 7] {
            let mut message = [0; 200];
            let bytes = receiver.recv(&mut message).unwrap();
            let expected = format!(
                "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=counting for the quotas: {objects} objects"
            );
            assert_eq!(String::from_utf8_lossy(&message[..bytes]), expected);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
