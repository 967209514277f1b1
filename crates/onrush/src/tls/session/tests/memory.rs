//! The memory of an open session.
//!
//! A counting allocator needs unsafe code, and would not see what aws-lc allocates in C. So a
//! process of its own opens sessions and reads how much memory it has gained.

use super::peer::{Pair, TLS12, TLS13, Versions, client, server};
use crate::tls::session::Session;
use std::sync::Arc;
use testing::child::elsewhere;

const SESSIONS: usize = 1000;
const SESSION_BYTES_MAX: usize = 4096;

#[test]
fn an_open_session_of_tls_1_2_is_small() {
    if !elsewhere(module_path!(), "an_open_session_of_tls_1_2_is_small") {
        measure(TLS12);
    }
}

#[test]
fn an_open_session_of_tls_1_3_is_small() {
    if !elsewhere(module_path!(), "an_open_session_of_tls_1_3_is_small") {
        measure(TLS13);
    }
}

fn measure(versions: Versions) {
    let (client, server) = (Arc::new(client(versions)), server());
    let open = |count| -> Vec<Session> {
        let open_one = |_| {
            let mut pair = Pair::new(&client, server.clone());
            pair.handshake();
            pair.server.session
        };
        (0..count).map(open_one).collect()
    };
    // What the allocator needs for handshakes, it needs once.
    let warm = open(200);
    let before = resident_bytes();
    let sessions = open(SESSIONS);
    let gained = resident_bytes().saturating_sub(before);
    let bytes = gained / SESSIONS;
    assert!((500..=SESSION_BYTES_MAX).contains(&bytes), "{bytes} bytes");
    drop((warm, sessions));
    assert!(size_of::<Session>() <= 384, "{}", size_of::<Session>());
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}
