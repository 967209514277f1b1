//! The state of a server: running, draining or ending. Workers read it; this module wakes them when
//! it changes. Other threads learn here what the workers do and where they listen.

use super::listening::{ListeningSockets, Slot};
use super::settings::RunningSettings;
use crate::engine::{Outbox, Settings};
use crate::watchdog::Watchdog;
use crate::worker_set::WorkerLoad;
use onrush_rt::net;
use onrush_rt::worker::{Notifier, monotonic_ms};
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) const RUNNING: u8 = 0;
pub(super) const DRAINING: u8 = 1;
pub(super) const ENDING: u8 = 2;

#[derive(Debug)]
pub(super) struct Control {
    state: AtomicU8,
    /// Increases when the settings change.
    settings_generation: AtomicU64,
    settings: Mutex<RunningSettings>,
    /// Another process accepts from the listening sockets.
    is_handed_over: AtomicBool,
    /// Where workers that drain put connections for another process.
    outbox: Mutex<Option<Arc<Outbox>>>,
    engine_settings: Settings,
    workers: Mutex<Vec<Notifier>>,
    /// Of all workers.
    loads: Vec<Arc<WorkerLoad>>,
    watchdog: Arc<Watchdog>,
    slots: Vec<Slot>,
    /// The addresses as they were given.
    addresses: Vec<String>,
}

impl Control {
    pub(super) fn new(
        settings: &Settings,
        running: RunningSettings,
        slots: Vec<Slot>,
        addresses: Vec<String>,
    ) -> Control {
        let set = &settings.worker_set;
        Control {
            state: AtomicU8::new(RUNNING),
            settings_generation: AtomicU64::new(0),
            settings: Mutex::new(running),
            is_handed_over: AtomicBool::new(false),
            outbox: Mutex::default(),
            engine_settings: settings.clone(),
            workers: Mutex::default(),
            loads: (0..set.workers()).map(|at| set.load(at).clone()).collect(),
            watchdog: settings.watchdog.clone(),
            slots,
            addresses,
        }
    }

    /// Registers a worker, which is woken when the state changes.
    pub(super) fn join(&self, worker: Notifier) {
        self.workers().push(worker);
    }

    /// Sets the state, unless the present state is a later one, and wakes the workers.
    pub(super) fn set(&self, state: u8) {
        self.state.fetch_max(state, Ordering::AcqRel);
        self.wake_workers();
    }

    pub(super) fn wake_workers(&self) {
        for worker in self.workers().iter() {
            worker.notify();
        }
    }

    /// Replaces the settings and wakes the workers.
    pub(super) fn set_settings(&self, settings: RunningSettings) {
        *self.lock_settings() = settings;
        self.settings_generation.fetch_add(1, Ordering::Release);
        self.wake_workers();
    }

    pub(super) fn settings(&self) -> RunningSettings {
        self.lock_settings().clone()
    }

    /// The settings, if their generation is not `known`, which becomes it.
    pub(super) fn new_settings(&self, known: &mut u64) -> Option<RunningSettings> {
        let generation = self.settings_generation.load(Ordering::Acquire);
        (generation != std::mem::replace(known, generation)).then(|| self.settings())
    }

    fn lock_settings(&self) -> MutexGuard<'_, RunningSettings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drains; another process accepts from now on.
    pub(super) fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::Release);
        self.set(DRAINING);
    }

    /// As [`Control::hand_over`], with connections passed on through `outbox`.
    pub(super) fn pass_on(&self, outbox: Arc<Outbox>) {
        *self.outbox.lock().unwrap_or_else(PoisonError::into_inner) = Some(outbox);
        self.hand_over();
    }

    /// Where connections for another process go, while there is one that takes them.
    pub(super) fn outbox(&self) -> Option<Arc<Outbox>> {
        let outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        outbox.clone().filter(|outbox| !outbox.is_closed())
    }

    pub(super) fn engine_settings(&self) -> &Settings {
        &self.engine_settings
    }

    pub(super) fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Notifier>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// The duration so far of the longest event-loop iteration that is in progress.
    pub(super) fn longest_iteration(&self) -> Duration {
        let now_ms = monotonic_ms();
        let iterations = self.loads.iter().filter_map(|load| load.iteration(now_ms));
        Duration::from_millis(iterations.map(|(ms, _)| ms).max().unwrap_or(0))
    }

    /// Duplicates of the listening sockets, each once, by address. Workers that do not accept any
    /// more have none.
    pub(super) fn listening(&self) -> io::Result<Vec<ListeningSockets>> {
        let all = (0..self.loads.len()).map(|worker| self.watchdog.duplicates(worker));
        let all = all.collect::<io::Result<Vec<_>>>()?;
        let mut all: Vec<_> = all.into_iter().map(Vec::into_iter).collect();
        let mut listening: Vec<ListeningSockets> = (self.addresses.iter())
            .map(|address| ListeningSockets {
                address: address.clone(),
                sockets: Vec::new(),
                is_shared: false,
            })
            .collect();
        let mut seen = BTreeSet::new();
        for slot in &self.slots {
            let of = &mut listening[slot.address];
            of.is_shared = slot.is_shared;
            for socket in all.iter_mut().filter_map(Iterator::next) {
                // Workers may share a socket.
                if seen.insert(net::socket_id(&socket)?) {
                    of.sockets.push(socket);
                }
            }
        }
        Ok(listening)
    }
}
