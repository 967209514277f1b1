//! Tests that every store passes ([`conformance`]), and a store in memory ([`MemoryStore`]).
//!
//! The feature `testing` enables this module. Programs do not use it.

mod conformance;
mod memory;

pub use conformance::conformance;
pub use memory::MemoryStore;
