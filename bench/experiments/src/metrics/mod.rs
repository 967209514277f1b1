//! The cost of metrics: of a lock, of atomics, and of cells that each worker has for itself; the
//! cost for `hello`; and whether the counters are correct.
//!
//! Files, lowest first: `recorders` · `hello` · `counters`.

mod counters;
mod hello;
mod recorders;

use crate::run::{Run, Target};
use xtask::shell::Outcome;

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    runner::progress("metrics · building the servers");
    runner::beside::have_servers()?;
    recorders::show(run)?;
    let mut targets = counters::measure(run)?;
    targets.extend(hello::measure(run)?);
    Ok(targets)
}
