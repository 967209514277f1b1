//! Tests that every store passes ([`conformance`]; [`conformance_of_objects`] without folders), and
//! a store in memory ([`MemoryStore`]).
//!
//! The feature `testing` enables this module. Programs do not use it.

mod conformance;
mod memory;

pub use conformance::{conformance, conformance_of_objects};
pub use memory::MemoryStore;
