//! What it costs to count: a lock, atomics, or cells that each worker has for itself; what that
//! makes of `hello`; and whether what was counted is what happened. Must not know how Onrush
//! counts, but for what `/metrics` says.
//!
//! Files, lowest first: `ways` · `hello` · `truth`.

mod hello;
mod truth;
mod ways;

use crate::run::{Run, Target};
use xtask::shell::Outcome;

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    runner::progress("metrics · building what takes part");
    runner::beside::have_servers()?;
    ways::show(run)?;
    let mut targets = truth::measure(run)?;
    targets.extend(hello::measure(run)?);
    Ok(targets)
}
