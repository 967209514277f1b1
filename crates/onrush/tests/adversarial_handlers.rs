//! Safe handler code that tries to stop its worker. After each attack, the single worker still
//! serves requests, on an earlier connection and on a new one.
#![forbid(unsafe_code)]

use crate::common::attack::{attack, closing, closing_post};
use crate::common::{calm, content, drivers, is_served, serve, serve_with, statuses, watchdog};
use crate::evil::{FIRED, OTHERS, PAYLOAD, POLLED, WAKERS, alone, app, ask};
use onrush::metrics::Format;
use onrush::{Limits, Metrics};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Attacks until one takes place.
const ATTEMPTS: usize = 20;

#[test]
fn wakers_of_handlers() {
    let _alone = alone();
    let _dog = watchdog("wakers_of_handlers");
    for driver in drivers() {
        let server = serve(driver, app);
        let mut before = server.connect();
        assert!(ask(&mut before, "/").ends_with("hello"));
        for what in POLLED {
            for how in WAKERS {
                let context = format!("{driver:?} {what} {how}");
                if how.ends_with("calls-back") {
                    let (head, body) = (closing_post("/stash", 3), b"abc");
                    assert_eq!(statuses(&attack(&server, &head, body)), [200], "{context}");
                }
                let fired = FIRED.load(Ordering::SeqCst);
                let path = format!("/poll/{what}/{how}");
                // On a busy machine the body may arrive before the handler waits for it.
                for _ in 0..ATTEMPTS {
                    match what.starts_with("body") {
                        // The driver reports the first bytes, then the end.
                        true => attack(&server, &closing_post(&path, 200_000), &PAYLOAD),
                        false => attack(&server, &closing(&path), &[]),
                    };
                    assert!(ask(&mut before, "/").ends_with("hello"), "{context}");
                    assert!(ask(&mut before, "/quiet").ends_with("quiet"), "{context}");
                    assert!(server.get("/").ends_with(b"hello"), "{context}");
                    if FIRED.load(Ordering::SeqCst) > fired {
                        break;
                    }
                }
                assert!(FIRED.load(Ordering::SeqCst) > fired, "{context}: no attack");
            }
        }
    }
}

#[test]
fn destructors_and_polls_of_handlers() {
    let _alone = alone();
    let _dog = watchdog("destructors_and_polls_of_handlers");
    for driver in drivers() {
        let metrics = Metrics::new();
        let server = serve_with(driver, app, |server| server.metrics(&metrics));
        let mut before = server.connect();
        for what in OTHERS {
            let context = format!("{driver:?} {what}");
            if what == "calls-back" {
                for _ in 0..2 {
                    let (head, body) = (closing_post("/stash", 3), b"abc");
                    assert_eq!(statuses(&attack(&server, &head, body)), [200], "{context}");
                }
            }
            let fired = FIRED.load(Ordering::SeqCst);
            let path = format!("/other/{what}");
            let response = match what {
                "bytes-of-a-head" => {
                    attack(&server, &closing(&path).replacen("GET", "HEAD", 1), &[])
                }
                _ => attack(&server, &closing(&path), &[]),
            };
            // A response from before the destructor is complete.
            let length = match what {
                "bytes-small" => Some(10),
                "bytes-large" => Some(PAYLOAD.len()),
                "parts" => Some(2 * PAYLOAD.len()),
                "calls-back" => Some(4),
                _ => None,
            };
            if let Some(length) = length {
                assert_eq!(content(&response).len(), length, "{context}");
            }
            assert!(ask(&mut before, "/").ends_with("hello"), "{context}");
            assert!(ask(&mut before, "/quiet").ends_with("quiet"), "{context}");
            assert!(server.get("/").ends_with(b"hello"), "{context}");
            assert!(FIRED.load(Ordering::SeqCst) > fired, "{context}: no attack");
        }
        let samples = metrics.render(Format::Prometheus);
        let caught = "onrush_worker_panics_total{worker=\"0\"} ";
        let line = samples.lines().find_map(|line| line.strip_prefix(caught));
        assert!(line.is_some_and(|count| count != "0"), "{samples}");
    }
}

#[test]
fn every_attack_on_the_simulator() {
    let _alone = alone();
    let mut sim = calm(&app, Limits::default());
    for what in OTHERS.into_iter().filter(|what| *what != "kept-response") {
        let client = sim.connect();
        sim.send(&client, closing(&format!("/other/{what}")).as_bytes());
        for _ in 0..50 {
            let _ = client.receive();
            sim.advance(Duration::from_millis(1));
        }
        drop(client);
        sim.run();
        assert!(is_served(&mut sim), "{what}");
    }
    for what in POLLED {
        // The pools of a simulation have no threads: their jobs are ready at the first poll.
        if what == "blocking" || what == "offload" {
            continue;
        }
        for how in WAKERS {
            let client = sim.connect();
            let path = format!("/poll/{what}/{how}");
            sim.send(&client, closing_post(&path, 200_000).as_bytes());
            sim.advance(Duration::from_millis(1));
            let mut rest = &PAYLOAD[..];
            for _ in 0..50 {
                let sent = client.send(rest).unwrap_or(0);
                rest = &rest[sent..];
                let _ = client.receive();
                sim.advance(Duration::from_millis(1));
            }
            drop(client);
            sim.run();
            assert!(is_served(&mut sim), "{what} {how}");
        }
    }
    sim.advance(Duration::from_millis(100));
    assert_eq!(sim.worker().live_tasks(), 0);
}
