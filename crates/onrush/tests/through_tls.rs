//! Tests of `main.rs` again, with TLS between their clients and the servers: what the engine does
//! is the same. `common::through_tls` is true in this binary. Tests on the simulator do not change;
//! the long ones among them return at once.
//!
//! Not among them are files that measure the memory of the process or need thousands of handshakes
//! (`memory_heads`, `memory_unread`, `pressure`, `unread`), `access_log_limit`, because connections
//! over the limit have no entry, and single tests about what differs. The latter return at once,
//! with the reason.
#![cfg(feature = "tls")]

#[allow(dead_code, reason = "`main.rs` uses all of it")]
mod common;
#[allow(dead_code, reason = "`main.rs` uses all of it")]
mod evil;

mod access_log;
mod adversarial_ends;
mod adversarial_lifetimes;
mod blocked;
mod connections;
mod coroutine;
mod drain;
mod fairness;
mod files;
mod hostile;
mod lifecycle;
mod limited;
mod memory_requests;
mod metrics;
mod migration;
mod offload_real;
mod panics;
mod rates;
mod streaming;
