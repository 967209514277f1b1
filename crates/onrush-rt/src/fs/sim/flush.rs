//! The time that a disk needs for a sync, for measurements. No test of behaviour uses it.
//!
//! This module does not depend on the simulated files.

use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long syncs take, in real time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncTime {
    /// They take no time.
    #[default]
    None,
    /// The disk makes one after the other, each in this time.
    OneByOne(Duration),
    /// The disk makes one after the other, and those that wait become one, as Linux joins flushes.
    Joined(Duration),
}

/// The queue of a disk.
#[derive(Debug, Default)]
pub(super) struct Device {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    time: SyncTime,
    is_busy: bool,
    begun: u64,
    ended: u64,
}

impl Device {
    pub(super) fn set(&self, time: SyncTime) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.time = time;
    }

    /// Waits as long as a sync that begins now takes.
    pub(super) fn sync(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (time, joins) = match state.time {
            SyncTime::None => return,
            SyncTime::OneByOne(time) => (time, false),
            SyncTime::Joined(time) => (time, true),
        };
        // One that has begun already may not include what the caller has written.
        let needed = state.begun + 1;
        while !joins || state.ended < needed {
            if state.is_busy {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_busy = true;
            state.begun += 1;
            let number = state.begun;
            drop(state);
            thread::sleep(time);
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_busy = false;
            state.ended = number;
            self.changed.notify_all();
            if !joins {
                return;
            }
        }
    }
}
