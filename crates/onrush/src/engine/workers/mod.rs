//! What workers do for each other: connections move to the one that has the fewest, or to the
//! process that replaces this one, and those of a blocked worker are accepted by others.
//!
//! Modules, lowest first: `migration` (connections that move) · `passing` (to another process) ·
//! `rebalance` (which connections move) · `stall` (blocked workers).

pub(in crate::engine) mod migration;
pub(in crate::engine) mod passing;
pub(in crate::engine) mod rebalance;
pub(in crate::engine) mod stall;
