//! How tasks wait for each other, on any executor and any thread: wakers are called when no lock is
//! held. The mutexes inside are held for a few instructions.
//!
//! Submodules: `exclusive` (one user of what a key names) · `semaphore` (permits, in order) ·
//! `watch` (a value that changes).

pub(crate) mod exclusive;
pub(crate) mod semaphore;
pub(crate) mod watch;

pub use exclusive::{Exclusive, Held};
