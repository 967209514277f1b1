//! What a worker remembers between two checks of the load and of the other workers.

use std::cell::{Cell, RefCell};

/// The state that a worker keeps between two measurements.
#[derive(Debug, Default)]
pub(in crate::engine) struct RebalanceState {
    pub(in crate::engine) next_ms: Cell<u64>,
    pub(in crate::engine) measure_ms: Cell<u64>,
    /// The worker's clock and its idle time at the last measurement, in ns.
    pub(in crate::engine) last_ns: Cell<Option<(u64, u64)>>,
    /// Requests have been counted since the last measurement.
    pub(in crate::engine) counting: Cell<bool>,
    pub(in crate::engine) cooldown_until_ms: Cell<u64>,
}

/// The state of a worker's reports.
#[derive(Debug, Default)]
pub(in crate::engine) struct StallReports {
    /// When this worker last logged that it was blocked.
    pub(in crate::engine) warned_ms: Cell<Option<u64>>,
    /// The number of cases that it has not logged since.
    pub(in crate::engine) suppressed: Cell<u64>,
    /// Other workers that were reported as blocked and have not continued since.
    pub(in crate::engine) stalled: RefCell<Vec<usize>>,
    /// When the timer for the next check fires, in ms of the worker's clock.
    pub(in crate::engine) check_ms: Cell<u64>,
    /// The number of requests at the last check.
    pub(in crate::engine) requests: Cell<u64>,
}
