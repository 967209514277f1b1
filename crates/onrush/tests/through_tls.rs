//! The tests of these files again, with TLS between their clients and the servers: what the engine
//! does is the same. `common::through_tls` is true in this binary. Tests on the simulator do not
//! change.
//!
//! Not among them are files about what differs (a connection over the limit gets no 503, and none
//! can be established while all workers are blocked), and files that measure the memory of the
//! process.
#![cfg(feature = "tls")]
// Each of the files includes the common ones.
#![allow(clippy::duplicate_mod)]

#[path = "access_log.rs"]
mod access_log;
#[path = "adversarial_ends.rs"]
mod adversarial_ends;
#[path = "adversarial_lifetimes.rs"]
mod adversarial_lifetimes;
#[path = "coroutine.rs"]
mod coroutine;
#[path = "fairness.rs"]
mod fairness;
#[path = "files.rs"]
mod files;
#[path = "hostile.rs"]
mod hostile;
#[path = "limited.rs"]
mod limited;
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
