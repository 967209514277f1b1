//! Tests of `main.rs` again, with TLS between their clients and the servers: what the engine does
//! is the same. `common::through_tls` is true in this binary. Tests on the simulator do not change;
//! the long ones among them return at once.
//!
//! `NOT_HERE` lists the files that are not among them, with the reasons. Single tests about what
//! differs return at once, with the reason.
#![cfg(feature = "tls")]

#[allow(dead_code, reason = "`main.rs` uses all of it")]
mod common;
#[allow(dead_code, reason = "`main.rs` uses all of it")]
mod evil;

mod access_log;
mod adversarial_ends;
mod adversarial_lifetimes;
mod blocked;
mod compression;
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
mod served_files;
mod streaming;
mod upgrade;

/// The other modules of `main.rs`, with the reasons.
const NOT_HERE: [(&str, &[&str]); 8] = [
    (
        "they are about TLS",
        &[
            "tls",
            "tls_attacks",
            "tls_config",
            "tls_engine",
            "tls_errors",
            "tls_limits",
            "tls_memory",
            "tls_sessions",
            "tls_streams",
            "tls_tickets",
            "tls_warnings",
        ],
    ),
    (
        "they have servers with TLS beside those without",
        &["both_drivers", "framing", "proxy_protocol"],
    ),
    (
        "they use only the simulator, or programs without TLS",
        &[
            "asking",
            "body_waits",
            "compression_streams",
            "content",
            "events",
            "http2",
            "http_types",
            "offload",
            "ported",
            "routing",
            "signals",
            "timeouts",
        ],
    ),
    (
        "their subject is a handler, its stack or a log subscriber, whatever carries its bytes",
        &[
            "adversarial_handlers",
            "coroutine_ends",
            "diagnosis",
            "states",
        ],
    ),
    (
        "they measure the memory of the process or need thousands of handshakes",
        &["memory_heads", "memory_unread", "pressure", "unread"],
    ),
    ("they call the compiler", &["compile_errors"]),
    (
        "connections over the limit have no entry",
        &["access_log_limit"],
    ),
    (
        "connections with TLS are not passed to another process",
        &["passing"],
    ),
];

#[test]
fn each_module_is_here_or_has_a_reason() {
    let (main, here) = (include_str!("main.rs"), include_str!("through_tls.rs"));
    testing::assert_all_modules(main, here, &NOT_HERE);
}
