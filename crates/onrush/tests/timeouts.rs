//! Time limits, on a clock that the test moves: each fires at its time and not while progress is
//! made.
mod common;

use common::app::{Endless, app};
use common::{ask, calm, get, plain, statuses};
use onrush::sim::Simulation;
use onrush::{Body, Bytes, Limits, Request, Response};
use std::time::Duration;

/// Every limit another, so that none can be taken for another.
fn limits() -> Limits {
    Limits {
        head_timeout_ms: 1_000,
        body_timeout_ms: 2_000,
        write_timeout_ms: 3_000,
        idle_timeout_ms: 5_000,
        total_timeout_ms: 0,
        rate_bytes_per_s_min: 0,
        linger_timeout_ms: 500,
        ..Limits::default()
    }
}

fn all_off() -> Limits {
    Limits {
        head_timeout_ms: 0,
        body_timeout_ms: 0,
        write_timeout_ms: 0,
        idle_timeout_ms: 0,
        total_timeout_ms: 0,
        ..Limits::default()
    }
}

const HALF_BODY: &str = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\nhalf";
const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;

#[test]
fn a_silent_connection_is_closed_like_a_slow_head() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    sim.advance(999);
    assert!(!client.at_end());
    sim.advance(2);
    assert!(client.at_end());
    assert_eq!(client.receive().unwrap(), b"", "nobody is owed an answer");
    assert_eq!(sim.open_connections(), 0);
}

#[test]
fn a_slow_head_is_refused_whatever_its_progress() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    for byte in get("/hello").as_bytes()[..30].iter() {
        sim.send(&client, &[*byte]);
        sim.advance(30);
    }
    assert!(!client.at_end());
    sim.advance(150);
    let response = client.receive().unwrap();
    assert_eq!(statuses(&response), [408]);
    assert!(client.at_end());
    sim.advance(600);
    assert_eq!(sim.open_connections(), 0, "the linger is over too");
    assert_eq!(sim.counters().timed_out.get(), 1);
}

#[test]
fn the_head_of_a_later_request_has_its_own_time() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    for _ in 0..3 {
        assert!(ask(&mut sim, &client, &get("/hello")).ends_with("hello"));
        sim.advance(4_900);
        sim.send(&client, b"GET /hel");
        sim.advance(900);
        assert!(ask(&mut sim, &client, "lo HTTP/1.1\r\nHost: t\r\n\r\n").ends_with("hello"));
    }
    sim.send(&client, b"GET /hel");
    sim.advance(1_001);
    assert_eq!(statuses(&client.receive().unwrap()), [408]);
}

#[test]
fn an_idle_connection_is_closed() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    ask(&mut sim, &client, &get("/late"));
    sim.advance(20);
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
    sim.advance(4_900);
    assert_eq!(sim.open_connections(), 1);
    sim.advance(200);
    assert!(client.at_end());
    assert_eq!(sim.open_connections(), 0);
    assert_eq!(sim.counters().timed_out.get(), 0, "that is no failure");
}

#[test]
fn a_body_that_stops_is_told_to_the_handler_and_answered() {
    for path in ["/echo", "/fill", "/whole", "/discard", "/late-echo"] {
        let mut sim = calm(&app, limits());
        let client = sim.connect();
        sim.send(&client, HALF_BODY.replace("/echo", path).as_bytes());
        sim.advance(1_990);
        assert_eq!(client.receive().unwrap(), b"", "{path}");
        sim.advance(20);
        assert_eq!(statuses(&client.receive().unwrap()), [408], "{path}");
        assert!(client.at_end());
        sim.advance(600);
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
    }
    // A failure in the handler's own words is left to it.
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    sim.send(
        &client,
        HALF_BODY.replace("/echo", "/own-failure").as_bytes(),
    );
    sim.advance(2_010);
    assert!(common::text(&client.receive().unwrap()).ends_with("my own words"));
}

#[test]
fn a_body_that_goes_on_slowly_is_waited_for() {
    for path in ["/echo", "/fill", "/whole", "/discard"] {
        let mut sim = calm(&app, limits());
        let client = sim.connect();
        sim.send(&client, HALF_BODY.replace("/echo", path).as_bytes());
        for _ in 0..96 {
            sim.advance(1_900);
            assert_eq!(client.receive().unwrap(), b"");
            sim.send(&client, b"x");
        }
        assert_eq!(statuses(&client.receive().unwrap()), [200], "{path}");
    }
}

/// Who waits for many bytes at a time is not told of few. They count all the same.
#[test]
fn a_large_body_that_becomes_slow_is_waited_for_as_long_as_it_comes() {
    const BYTES: usize = 1_000_000;
    const FAST: usize = 300_000;
    for path in ["/fill", "/whole", "/discard"] {
        for slow in [0, 1, 40] {
            let mut sim = calm(&app, limits());
            let client = sim.connect();
            let head =
                format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {BYTES}\r\n\r\n");
            sim.send(&client, head.as_bytes());
            assert_eq!(sim.send(&client, &[b'x'; FAST]), FAST);
            for _ in 0..slow {
                sim.advance(1_000);
                assert_eq!(client.receive().unwrap(), b"", "{path} {slow}");
                sim.send(&client, b"x");
            }
            if slow == 40 {
                let rest = BYTES - FAST - slow;
                assert_eq!(sim.send(&client, &vec![b'x'; rest]), rest);
                sim.run();
                assert_eq!(statuses(&client.receive().unwrap()), [200], "{path}");
                assert!(ask(&mut sim, &client, &get("/hello")).ends_with("hello"));
                continue;
            }
            sim.advance(1_990);
            assert_eq!(client.receive().unwrap(), b"", "{path} {slow}");
            // A piece that nobody was told of is found when the time is over, and counts from then.
            sim.advance(2_030);
            assert_eq!(statuses(&client.receive().unwrap()), [408], "{path} {slow}");
            assert_eq!(sim.counters().timed_out.get(), 1);
        }
    }
}

#[test]
fn the_rest_of_an_unread_body_has_a_limit() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    sim.send(&client, HALF_BODY.replace("/echo", "/early").as_bytes());
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
    sim.advance(1_900);
    assert!(!client.at_end());
    sim.advance(200);
    assert!(client.at_end());
}

/// A handler may give up waiting for the body; what comes later is no reason to cut it off.
#[test]
fn a_wait_that_was_given_up_has_no_limit() {
    async fn impatient(mut request: Request) -> Response {
        let worker = request.worker().clone();
        let moment = Duration::from_millis(10);
        let piece = worker.timeout(moment, request.body().next()).await;
        assert!(piece.is_none());
        worker.sleep(Duration::from_secs(60)).await;
        Response::text("done")
    }
    let mut sim = calm(&impatient, limits());
    let client = sim.connect();
    let head = HALF_BODY.strip_suffix("half").unwrap();
    sim.send(&client, head.as_bytes());
    sim.advance(100);
    sim.send(&client, b"half");
    sim.advance(61_000);
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
}

#[test]
fn a_handler_may_take_its_time() {
    async fn slow(request: Request) -> Response {
        request.worker().sleep(Duration::from_secs(3600)).await;
        Response::text("at last")
    }
    let mut sim = calm(&slow, limits());
    let client = sim.connect();
    sim.send(&client, get("/").as_bytes());
    sim.advance(3_599_000);
    assert_eq!(client.receive().unwrap(), b"");
    sim.advance(2_000);
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
}

#[test]
fn who_takes_nothing_of_an_answer_is_cut_off() {
    // Driven answers; and many small ones, which wait in the buffer of the connection.
    let many = get("/hello").repeat(1_000);
    for requests in [
        get("/big"),
        get("/late-big"),
        get("/endless"),
        many.clone(),
        many + "GET",
    ] {
        let app = |request: Request| async move {
            if request.path() == "/endless" {
                return Response::with_body(Body::stream(Endless { left: 1 << 30 }, None));
            }
            app(request).await
        };
        let mut sim = calm(&app, limits());
        let client = sim.connect();
        sim.send(&client, requests.as_bytes());
        sim.advance(2_990);
        assert_eq!(sim.open_connections(), 1);
        sim.advance(100);
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
        assert!(
            client.receive().is_err(),
            "it must see that this is not whole"
        );
        assert_eq!(sim.counters().timed_out.get(), 1);
    }
}

#[test]
fn who_takes_a_little_now_and_then_is_not() {
    let many = get("/hello").repeat(700);
    for (requests, pipe_bytes) in [(get("/big"), 4096), (many, 1024)] {
        let mut sim = Simulation::with_behaviour(1, &app, limits(), plain(pipe_bytes));
        let client = sim.connect();
        let mut sent = sim.send(&client, requests.as_bytes());
        let mut bytes = 0;
        for _ in 0..200 {
            sim.advance(2_900);
            // A server that waits for its client does not read ahead.
            sent += client.send(&requests.as_bytes()[sent..]).unwrap_or(0);
            bytes += client.receive().unwrap().len();
            sim.run();
        }
        assert!(bytes > 90_000, "{bytes}");
        assert_eq!(sim.counters().timed_out.get(), 0);
    }
}

/// Answers of earlier requests wait for the peer while a later request's handler works. When they
/// have left, no limit may remain.
#[test]
fn a_handler_behind_slow_answers_may_take_its_time() {
    async fn mixed(request: Request) -> Response {
        if request.path() == "/slow" {
            request.worker().sleep(Duration::from_secs(600)).await;
        }
        Response::with_body(vec![b'x'; 1000])
    }
    let mut sim = Simulation::with_behaviour(1, &mixed, limits(), plain(4096));
    let client = sim.connect();
    let requests = get("/").repeat(16) + &get("/slow");
    sim.send(&client, requests.as_bytes());
    let mut responses = Vec::new();
    for _ in 0..10 {
        sim.advance(1_000);
        responses.extend(client.receive().unwrap());
        sim.run();
    }
    assert_eq!(statuses(&responses), [200; 16]);
    sim.advance(600_000);
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
    // And who takes nothing meanwhile is cut off all the same.
    let client = sim.connect();
    sim.send(&client, requests.as_bytes());
    assert_eq!(
        (sim.counters().requests.get(), sim.worker().live_tasks()),
        (34, 1)
    );
    sim.advance(3_100);
    assert!(client.receive().is_err());
    assert_eq!(
        (sim.counters().timed_out.get(), sim.worker().live_tasks()),
        (1, 0)
    );
}

/// While a client sends on, it makes progress in one direction, and none in the other.
#[test]
fn sending_does_not_excuse_from_reading() {
    async fn both_ways(request: Request) -> Response {
        let (mut sender, body) = Body::channel(8 * 1024);
        let worker = request.worker().clone();
        let mut from = request.into_body();
        let pump = async move {
            while let Some(Ok(piece)) = from.next().await {
                if sender.send(Bytes::copy_from_slice(&piece)).await.is_err() {
                    return;
                }
            }
        };
        worker.spawn(pump).detach();
        Response::with_body(body)
    }
    let mut sim = calm(&both_ways, limits());
    let client = sim.connect();
    let head = "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000000\r\n\r\n";
    sim.send(&client, head.replace("1000000000", "60000000").as_bytes());
    let mut waited = 0;
    while sim.open_connections() > 0 {
        let _ = client.send(&[b'x'; 1000]);
        sim.advance(100);
        waited += 100;
        assert!(waited < 60_000, "it is never cut off");
    }
    assert_eq!(sim.worker().live_tasks(), 0);
}

#[test]
fn the_total_limit_ends_everything() {
    async fn forever(request: Request) -> Response {
        match request.path() {
            "/sleep" => std::future::pending().await,
            "/stream" => Response::with_body(Body::stream(Endless { left: u64::MAX }, None)),
            _ => app(request).await,
        }
    }
    let total = Limits {
        total_timeout_ms: 10_000,
        ..limits()
    };
    for request in [get("/sleep"), get("/stream"), HALF_BODY.to_owned()] {
        let mut sim = calm(&forever, total.clone());
        let client = sim.connect();
        sim.send(&client, request.as_bytes());
        for _ in 0..9 {
            sim.advance(1_000);
            client.receive().unwrap();
            sim.send(&client, b"x");
        }
        assert_eq!(sim.open_connections(), 1, "{request}");
        sim.advance(1_100);
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
        assert!(client.receive().is_err());
    }
    // One request's time is not counted against the next.
    let mut sim = calm(&app, total);
    let client = sim.connect();
    for _ in 0..6 {
        sim.send(&client, HALF_BODY.as_bytes());
        for _ in 0..4 {
            sim.advance(1_500);
            sim.send(&client, b"x");
        }
        sim.send(&client, &[b'x'; 92]);
        assert_eq!(statuses(&client.receive().unwrap()), [200]);
        sim.advance(3_000);
    }
}

#[test]
fn lingering_ends() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    let head = "POST /early HTTP/1.1\r\nHost: t\r\nContent-Length: 9000000\r\n\r\n";
    sim.send(&client, head.as_bytes());
    for _ in 0..4 {
        // What it still sends is taken and thrown away.
        let bytes = vec![b'x'; 100_000];
        assert_eq!(sim.send(&client, &bytes), bytes.len());
        sim.advance(100);
    }
    assert_eq!(sim.open_connections(), 1);
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
    sim.advance(150);
    assert_eq!(sim.open_connections(), 0);
}

#[test]
fn limits_that_are_off_never_fire() {
    let mut sim = calm(&app, all_off());
    let (silent, half, slow) = (sim.connect(), sim.connect(), sim.connect());
    let (body, unread) = (sim.connect(), sim.connect());
    sim.send(&half, b"GET /hel");
    ask(&mut sim, &slow, &get("/hello"));
    sim.send(&body, HALF_BODY.as_bytes());
    sim.send(&unread, get("/big").as_bytes());
    sim.advance(YEAR_MS);
    for client in [&silent, &slow] {
        assert!(ask(&mut sim, client, &get("/hello")).ends_with("hello"));
    }
    assert!(ask(&mut sim, &half, "lo HTTP/1.1\r\nHost: t\r\n\r\n").ends_with("hello"));
    assert!(ask(&mut sim, &body, &"x".repeat(96)).ends_with(&"x".repeat(96)));
    assert_eq!(sim.open_connections(), 5);
}
