//! The tests of these files again, with TLS between their clients and the servers: what the engine
//! does is the same. `common::through_tls` is true in this binary. Tests on the simulator do not
//! change.
//!
//! `through_tls_blocked` is a binary of its own, because it records events of the whole process.
//! Not among them are files that measure the memory of the process or need thousands of handshakes
//! (`memory_heads`, `memory_unread`, `pressure`), `access_log_limit`, because connections over the
//! limit have no entry, and single tests about what differs. The latter return at once, with the
//! reason.
#![cfg(feature = "tls")]
// Each of the files includes the common ones.
#![allow(clippy::duplicate_mod)]

#[path = "access_log.rs"]
mod access_log;
#[path = "adversarial_ends.rs"]
mod adversarial_ends;
#[path = "adversarial_lifetimes.rs"]
mod adversarial_lifetimes;
#[path = "connections.rs"]
mod connections;
#[path = "coroutine.rs"]
mod coroutine;
#[path = "drain.rs"]
mod drain;
#[path = "fairness.rs"]
mod fairness;
#[path = "files.rs"]
mod files;
#[path = "hostile.rs"]
mod hostile;
#[path = "lifecycle.rs"]
mod lifecycle;
#[path = "limited.rs"]
mod limited;
#[path = "memory_requests.rs"]
mod memory_requests;
#[path = "metrics.rs"]
mod metrics;
#[path = "migration.rs"]
mod migration;
#[path = "offload_real.rs"]
mod offload_real;
#[path = "panics.rs"]
mod panics;
#[path = "rates.rs"]
mod rates;
#[path = "streaming.rs"]
mod streaming;
