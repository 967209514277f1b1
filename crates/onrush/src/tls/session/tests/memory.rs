//! The memory of an open session.
//!
//! A counting allocator needs unsafe code, and would not see what aws-lc allocates in C. So a
//! process of its own opens sessions and reads how much memory it has gained.

use super::peer::{Pair, TLS12, TLS13, Versions, client, server};
use crate::tls::session::Session;
use std::process::Command;
use std::sync::Arc;

const SESSIONS: usize = 1000;
const SESSION_BYTES_MAX: usize = 4096;

#[test]
fn an_open_session_is_small() {
    let program = std::env::current_exe().unwrap();
    for child in ["child_12", "child_13"] {
        let name = format!("tls::session::tests::memory::{child}");
        let run = Command::new(&program)
            .args([
                "--exact",
                &name,
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success(), "{text}");
        let bytes = text
            .split_once("bytes per session: ")
            .expect("the child has printed")
            .1;
        let bytes: usize = bytes.lines().next().unwrap().trim().parse().unwrap();
        assert!(
            (500..=SESSION_BYTES_MAX).contains(&bytes),
            "{child}: {bytes} bytes"
        );
    }
    assert!(size_of::<Session>() <= 384, "{}", size_of::<Session>());
}

#[test]
#[ignore = "an_open_session_is_small runs it alone in a process"]
fn child_12() {
    measure(TLS12);
}

#[test]
#[ignore = "an_open_session_is_small runs it alone in a process"]
fn child_13() {
    measure(TLS13);
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
    println!("bytes per session: {}", gained / SESSIONS);
    drop((warm, sessions));
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
