//! Hostile and broken peers: the server continues to serve others, and nothing of the peers
//! remains.

use crate::common::app::app;
use crate::common::{
    calm, drivers, get, is_served, pattern, seeds, serve_with, statuses, text, through_tls,
    watchdog,
};
use onrush::{Limits, Request, Response, sim::Simulation};
use onrush_rt::driver::sim::{Behaviour, Random};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::Duration;

const HALF_BODY: &str = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\nhalf";

fn requests() -> Vec<String> {
    let chunked = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    let sized = |path: &str, bytes: usize| {
        let body = "x".repeat(bytes);
        format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {bytes}\r\n\r\n{body}")
    };
    vec![
        get("/hello").repeat(5),
        get("/late") + &get("/hello") + &get("/late"),
        get("/big"),
        get("/late-big"),
        get("/stream"),
        get("/sized"),
        get("/broken"),
        get("/late-panic"),
        sized("/echo", 3_000),
        sized("/late-echo", 3_000),
        sized("/fill", 100_000),
        sized("/discard", 100_000),
        sized("/whole", 500_000),
        sized("/discard", 500_000),
        sized("/early", 30_000),
        sized("/early", 100_000),
        format!("{chunked}5\r\nhello\r\n0\r\nX: y\r\n\r\n"),
        format!("{chunked}5\r\nhelloX"),
        "GET /hello HTTP/1.1\r\nHo st: t\r\n\r\n".to_owned(),
        get("/close"),
    ]
}

/// A client disconnects at any moment: none of its connections and tasks remains.
#[test]
fn clients_that_disconnect_at_any_moment_leave_nothing() {
    if through_tls() {
        return; // The simulator does the same.
    }
    let _dog = watchdog("clients_that_disconnect_at_any_moment_leave_nothing");
    for (index, request) in requests().iter().enumerate() {
        for seed in 0..seeds(120) {
            let mut random = Random::new(seed * 1000 + index as u64);
            let behaviour = Behaviour {
                pipe_bytes: 1 << (8 + random.below(10)),
                ..Behaviour::default()
            };
            let mut sim = Simulation::builder(seed).network(behaviour).start(&app);
            let client = sim.connect();
            let moment = random.below(40);
            let mut rest = request.as_bytes();
            for _ in 0..moment {
                rest = &rest[client.send(rest).unwrap_or(rest.len())..];
                match random.below(4) {
                    0 => drop(client.receive()),
                    1 => sim.advance(Duration::from_millis(1)),
                    _ => drop(sim.poll()),
                }
            }
            match random.below(3) {
                0 => client.reset(),
                1 => client.shutdown_write(),
                _ => {}
            }
            drop(client);
            sim.advance(Duration::from_millis(100));
            let left = (sim.open_connections(), sim.worker().live_tasks());
            assert_eq!(left, (0, 0), "seed {seed} at {moment}: {request:.100}");
            assert!(is_served(&mut sim));
        }
    }
}

/// Requests with random changed bytes, at all speeds, beside a good client.
#[test]
fn damaged_requests_on_the_simulator() {
    let _dog = watchdog("damaged_requests_on_the_simulator");
    let good = requests().concat();
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let mut sim = Simulation::new(seed, &app, Limits::default());
        let client = sim.connect();
        let from = random.below(good.len() as u64) as usize;
        let mut bytes = good.as_bytes()[from..].to_vec();
        bytes.truncate(1 + random.below(20_000) as usize);
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        sim.send(&client, &bytes);
        sim.advance(Duration::from_millis(10));
        let _ = client.receive();
        assert!(is_served(&mut sim), "seed {seed}");
        client.shutdown_write();
        for _ in 0..1_000 {
            sim.advance(Duration::from_millis(1));
            let _ = client.receive();
            if client.at_end() {
                break;
            }
        }
        drop(client);
        sim.advance(Duration::from_secs(100));
        let left = (sim.open_connections(), sim.worker().live_tasks());
        assert_eq!(left, (0, 0), "seed {seed}");
    }
}

#[test]
fn both_drivers_continue_to_serve() {
    let _dog = watchdog("both_drivers_continue_to_serve");
    let limits = Limits::default()
        .head_timeout(Duration::from_millis(300))
        .linger_timeout(Duration::from_millis(100));
    for driver in drivers() {
        let server = serve_with(driver, app, |server| server.limits(limits));
        let alive = |what: &str| {
            let response = server.get("/hello");
            assert!(
                response.ends_with(b"hello"),
                "{driver:?} after {what}: {}",
                text(&response)
            );
        };
        // A slow client, connected all the time.
        let mut slow = server.connect();
        slow.write_all(b"GET /hel").unwrap();
        for seed in 0..50 {
            let mut stream = server.connect();
            let garbage = pattern(10_000 + seed);
            let _ = stream.write_all(&garbage[seed..]);
            let mut response = Vec::new();
            let _ = stream.read_to_end(&mut response);
            assert!(
                response.is_empty() || statuses(&response)[0] >= 400,
                "{}",
                text(&response)
            );
        }
        alive("garbage");
        for request in requests() {
            for part in [1, 2, 3] {
                let mut stream = server.connect();
                let _ = stream.write_all(&request.as_bytes()[..request.len() * part / 3]);
            }
        }
        alive("half requests");
        for request in requests() {
            // Closing with unread responses sends a reset.
            let mut stream = server.connect();
            let _ = stream.write_all(request.as_bytes());
            let _ = testing::read_some(&mut stream, &mut [0; 1]);
            drop(stream);
        }
        alive("resets");
        let mut stream = server.connect();
        let head = format!(
            "GET /hello HTTP/1.1\r\nHost: t\r\nX: {}",
            "x".repeat(1_000_000)
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        assert_eq!(statuses(&response), [431]);
        alive("a million-byte head");
        let mut response = Vec::new();
        slow.read_to_end(&mut response).unwrap();
        assert_eq!(statuses(&response), [408]);
        alive("a slow client");
        for _ in 0..300 {
            drop(server.connect());
        }
        alive("connections that say nothing");
    }
}

/// 500 clients hold their connections in different states. Another client is served at the same
/// time on the same worker.
#[test]
fn many_held_connections_on_both_drivers() {
    let _dog = watchdog("many_held_connections_on_both_drivers");
    for driver in drivers() {
        let server = serve_with(driver, app, |server| server.half_close(true));
        let held: Vec<_> = (0..500)
            .map(|index| {
                let mut stream = server.connect();
                let part = match index % 5 {
                    0 => String::new(),
                    1 => "GET /hello HT".to_owned(),
                    2 => "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nx".to_owned(),
                    3 => get("/hello"),
                    _ => get("/big"),
                };
                stream.write_all(part.as_bytes()).unwrap();
                stream
            })
            .collect();
        for _ in 0..50 {
            assert!(server.get("/late").ends_with(b"late"));
        }
        for (index, mut stream) in held.into_iter().enumerate() {
            let rest = [
                "GET /hello HT",
                "TP/1.1\r\nHost: t\r\n\r\n",
                "12345678",
                "",
                "",
            ];
            stream.write_all(rest[index % 5].as_bytes()).unwrap();
            let _ = stream.shutdown(Shutdown::Write);
            let mut response = Vec::new();
            stream.read_to_end(&mut response).unwrap();
            let expected: &[u16] = if index % 5 == 0 { &[] } else { &[200] };
            assert_eq!(statuses(&response), expected, "{driver:?} {index}");
        }
    }
}

/// A handler holds views of received bytes when the client disconnects.
#[test]
fn views_outlive_their_connection() {
    async fn holder(mut request: Request) -> Response {
        let mut held = Vec::new();
        while let Some(piece) = request.body().next().await {
            match piece {
                Ok(piece) => held.push(piece),
                Err(_) => break,
            }
        }
        let worker = request.worker().clone();
        drop(request);
        let sum = async move {
            worker.sleep(Duration::from_secs(1)).await;
            held.iter()
                .flat_map(|piece| piece.iter())
                .map(|&b| u64::from(b))
                .sum::<u64>()
        };
        Response::text(format!("{}", sum.await))
    }
    let mut sim = calm(&holder, Limits::default());
    for _ in 0..20 {
        let client = sim.connect();
        let head = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 50000\r\n\r\n";
        sim.send(&client, head.as_bytes());
        sim.send(&client, &pattern(40_000));
        client.reset();
        sim.run();
    }
    sim.advance(Duration::from_secs(2));
    assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
    let used = sim.receive_bytes();
    assert!(used < 200 << 10, "only free blocks remain: {used}");
}

#[test]
fn slow_clients_time_out_while_a_good_one_is_served() {
    let _dog = watchdog("slow_clients_time_out_while_a_good_one_is_served");
    let limits = Limits::default()
        .head_timeout(Duration::from_secs(1))
        .body_timeout(Duration::from_secs(2))
        .linger_timeout(Duration::from_millis(500));
    let mut sim = calm(&app, limits);
    let kinds = [get("/hello"), HALF_BODY.to_owned(), String::new()];
    let slow: Vec<_> = (0..2_000).map(|_| sim.connect()).collect();
    sim.run();
    for step in 0..30 {
        for (index, client) in slow.iter().enumerate() {
            // Heads byte by byte, bodies and silence: each has its deadline.
            let bytes = kinds[index % 3].as_bytes();
            let _ = match index % 3 {
                0 => client.send(&bytes[step % 20..step % 20 + 1]),
                1 if step == 0 => client.send(bytes),
                _ => Ok(0),
            };
        }
        sim.advance(Duration::from_millis(100));
        assert!(is_served(&mut sim));
    }
    sim.advance(Duration::from_millis(600));
    assert!(
        slow.iter()
            .all(|client| client.receive().is_err() || client.at_end())
    );
    drop(slow);
    sim.advance(Duration::from_secs(10));
    assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
}
