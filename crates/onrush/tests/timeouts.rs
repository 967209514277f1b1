//! Time limits, on a clock that the test controls: each fires at its time, and not while there is
//! progress.

use crate::common::app::{Endless, app};
use crate::common::memory::hello;
use crate::common::{ask, calm, get, plain, statuses};
use onrush::sim::Simulation;
use onrush::{Body, Bytes, Limits, Request, Response};
use std::time::Duration;

/// All limits differ, so that a test detects which one fired.
fn limits() -> Limits {
    Limits::default()
        .head_timeout(Duration::from_secs(1))
        .body_timeout(Duration::from_secs(2))
        .write_timeout(Duration::from_secs(3))
        .idle_timeout(Duration::from_secs(5))
        .total_timeout(Duration::ZERO)
        .rate_bytes_per_s_min(0)
        .linger_timeout(Duration::from_millis(500))
}

fn all_off() -> Limits {
    Limits::default()
        .head_timeout(Duration::ZERO)
        .body_timeout(Duration::ZERO)
        .write_timeout(Duration::ZERO)
        .idle_timeout(Duration::ZERO)
        .total_timeout(Duration::ZERO)
}

const HALF_BODY: &str = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\nhalf";
const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;

#[test]
fn silent_connection_is_closed_after_the_head_timeout() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    sim.advance(Duration::from_millis(999));
    assert!(!client.at_end());
    sim.advance(Duration::from_millis(2));
    assert!(client.at_end());
    assert_eq!(
        client.receive().unwrap(),
        b"",
        "no request was sent, so there is no response"
    );
    assert_eq!(sim.open_connections(), 0);
}

#[test]
fn slow_head_is_refused_despite_progress() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    for byte in get("/hello").as_bytes()[..30].iter() {
        sim.send(&client, &[*byte]);
        sim.advance(Duration::from_millis(30));
    }
    assert!(!client.at_end());
    sim.advance(Duration::from_millis(150));
    let response = client.receive().unwrap();
    assert_eq!(statuses(&response), [408]);
    assert!(client.at_end());
    sim.advance(Duration::from_millis(600));
    assert_eq!(sim.open_connections(), 0, "lingering has ended, too");
    assert_eq!(sim.counters().timed_out.get(), 1);
}

#[test]
fn later_heads_have_their_own_time_limit() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    for _ in 0..3 {
        assert!(ask(&mut sim, &client, &get("/hello")).ends_with("hello"));
        sim.advance(Duration::from_millis(4_900));
        sim.send(&client, b"GET /hel");
        sim.advance(Duration::from_millis(900));
        assert!(ask(&mut sim, &client, "lo HTTP/1.1\r\nHost: t\r\n\r\n").ends_with("hello"));
    }
    sim.send(&client, b"GET /hel");
    sim.advance(Duration::from_millis(1_001));
    assert_eq!(statuses(&client.receive().unwrap()), [408]);
}

#[test]
fn idle_connection_is_closed() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    ask(&mut sim, &client, &get("/late"));
    sim.advance(Duration::from_millis(20));
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
    sim.advance(Duration::from_millis(4_900));
    assert_eq!(sim.open_connections(), 1);
    sim.advance(Duration::from_millis(200));
    assert!(client.at_end());
    assert_eq!(sim.open_connections(), 0);
    assert_eq!(
        sim.counters().timed_out.get(),
        0,
        "an idle timeout is not counted as a failure"
    );
}

#[test]
fn stopped_body_is_reported_to_the_handler_and_gets_a_response() {
    for path in ["/echo", "/fill", "/whole", "/discard", "/late-echo"] {
        let mut sim = calm(&app, limits());
        let client = sim.connect();
        sim.send(&client, HALF_BODY.replace("/echo", path).as_bytes());
        sim.advance(Duration::from_millis(1_990));
        assert_eq!(client.receive().unwrap(), b"", "{path}");
        sim.advance(Duration::from_millis(20));
        assert_eq!(statuses(&client.receive().unwrap()), [408], "{path}");
        assert!(client.at_end());
        sim.advance(Duration::from_millis(600));
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
    }
    // The handler may send its own error response.
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    sim.send(
        &client,
        HALF_BODY.replace("/echo", "/own-failure").as_bytes(),
    );
    sim.advance(Duration::from_millis(2_010));
    assert!(crate::common::text(&client.receive().unwrap()).ends_with("my own words"));
}

#[test]
fn slow_body_with_progress_does_not_time_out() {
    for path in ["/echo", "/fill", "/whole", "/discard"] {
        let mut sim = calm(&app, limits());
        let client = sim.connect();
        sim.send(&client, HALF_BODY.replace("/echo", path).as_bytes());
        for _ in 0..96 {
            sim.advance(Duration::from_millis(1_900));
            assert_eq!(client.receive().unwrap(), b"");
            sim.send(&client, b"x");
        }
        assert_eq!(statuses(&client.receive().unwrap()), [200], "{path}");
    }
}

/// A reader that waits for many bytes is not woken for few. They count as progress nevertheless.
#[test]
fn large_body_that_becomes_slow_does_not_time_out() {
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
                sim.advance(Duration::from_secs(1));
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
            sim.advance(Duration::from_millis(1_990));
            assert_eq!(client.receive().unwrap(), b"", "{path} {slow}");
            // A piece without a wake is found at the time limit, and counts from then.
            sim.advance(Duration::from_millis(2_030));
            assert_eq!(statuses(&client.receive().unwrap()), [408], "{path} {slow}");
            assert_eq!(sim.counters().timed_out.get(), 1);
        }
    }
}

#[test]
fn rest_of_an_unread_body_has_a_time_limit() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    sim.send(&client, HALF_BODY.replace("/echo", "/early").as_bytes());
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
    sim.advance(Duration::from_millis(1_900));
    assert!(!client.at_end());
    sim.advance(Duration::from_millis(200));
    assert!(client.at_end());
}

/// A handler may cancel its wait for the body. Later bytes must not end the connection.
#[test]
fn cancelled_wait_has_no_time_limit() {
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
    sim.advance(Duration::from_millis(100));
    sim.send(&client, b"half");
    sim.advance(Duration::from_secs(61));
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
}

#[test]
fn handler_has_no_time_limit() {
    async fn slow(request: Request) -> Response {
        request.worker().sleep(Duration::from_secs(3600)).await;
        Response::text("at last")
    }
    let mut sim = calm(&slow, limits());
    let client = sim.connect();
    sim.send(&client, get("/").as_bytes());
    sim.advance(Duration::from_secs(3_599));
    assert_eq!(client.receive().unwrap(), b"");
    sim.advance(Duration::from_secs(2));
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
}

#[test]
fn client_that_reads_nothing_of_a_response_is_reset() {
    // Streamed responses, and many small ones, which wait in the buffer of the connection.
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
        sim.advance(Duration::from_millis(2_990));
        assert_eq!(sim.open_connections(), 1);
        sim.advance(Duration::from_millis(100));
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
        assert!(
            client.receive().is_err(),
            "the client must see that the response is incomplete"
        );
        assert_eq!(sim.counters().timed_out.get(), 1);
    }
}

#[test]
fn client_that_reads_slowly_is_not_reset() {
    let many = get("/hello").repeat(700);
    for (requests, pipe_bytes) in [(get("/big"), 4096), (many, 1024)] {
        let mut sim = Simulation::builder(1)
            .limits(limits())
            .network(plain(pipe_bytes))
            .start(&app);
        let client = sim.connect();
        let mut sent = sim.send(&client, requests.as_bytes());
        let mut bytes = 0;
        for _ in 0..200 {
            sim.advance(Duration::from_millis(2_900));
            // A server that waits for its client does not read ahead.
            sent += client.send(&requests.as_bytes()[sent..]).unwrap_or(0);
            bytes += client.receive().unwrap().len();
            sim.run();
        }
        assert!(bytes > 90_000, "{bytes}");
        assert_eq!(sim.counters().timed_out.get(), 0);
    }
}

/// A part of a head arrived with the requests before it, whose responses the client reads later.
#[test]
fn head_behind_slow_responses_has_its_time_limit() {
    let requests = get("/hello").repeat(300) + &get("/hello")[..20];
    let mut sim = Simulation::builder(1)
        .limits(limits())
        .network(plain(1024))
        .start(&app);
    let client = sim.connect();
    let mut sent = 0;
    let mut responses = Vec::new();
    while sent < requests.len() {
        sent += sim.send(&client, &requests.as_bytes()[sent..]);
        sim.advance(Duration::from_millis(100)); // The responses fill the socket.
        responses.extend(client.receive().unwrap());
    }
    for _ in 0..10 {
        sim.run();
        responses.extend(client.receive().unwrap());
    }
    assert_eq!(statuses(&responses), [200; 300]);
    assert_eq!(sim.open_connections(), 1);
    sim.advance(Duration::from_millis(1_100));
    assert_eq!(statuses(&client.receive().unwrap()), [408]);
    sim.advance(Duration::from_millis(600));
    assert_eq!(sim.open_connections(), 0);
}

/// Responses to earlier requests wait for the peer while the handler of a later request works.
/// After they have been sent, no time limit may remain.
#[test]
fn handler_behind_slow_responses_has_no_time_limit() {
    async fn mixed(request: Request) -> Response {
        if request.path() == "/slow" {
            request.worker().sleep(Duration::from_secs(600)).await;
        }
        Response::with_body(vec![b'x'; 1000])
    }
    let mut sim = Simulation::builder(1)
        .limits(limits())
        .network(plain(4096))
        .start(&mixed);
    let client = sim.connect();
    let requests = get("/").repeat(16) + &get("/slow");
    sim.send(&client, requests.as_bytes());
    let mut responses = Vec::new();
    for _ in 0..10 {
        sim.advance(Duration::from_secs(1));
        responses.extend(client.receive().unwrap());
        sim.run();
    }
    assert_eq!(statuses(&responses), [200; 16]);
    sim.advance(Duration::from_secs(600));
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
    // A client that reads nothing meanwhile is reset nevertheless.
    let client = sim.connect();
    sim.send(&client, requests.as_bytes());
    assert_eq!(
        (sim.counters().requests.get(), sim.worker().live_tasks()),
        (34, 1)
    );
    sim.advance(Duration::from_millis(3_100));
    assert!(client.receive().is_err());
    assert_eq!(
        (sim.counters().timed_out.get(), sim.worker().live_tasks()),
        (1, 0)
    );
}

/// A client that continues to send makes progress in one direction only.
#[test]
fn sending_does_not_count_as_reading() {
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
            sender.finish();
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
        sim.advance(Duration::from_millis(100));
        waited += 100;
        assert!(waited < 60_000, "the client is never reset");
    }
    assert_eq!(sim.worker().live_tasks(), 0);
}

#[test]
fn total_timeout_ends_every_phase() {
    async fn forever(request: Request) -> Response {
        match request.path() {
            "/sleep" => std::future::pending().await,
            "/stream" => Response::with_body(Body::stream(Endless { left: u64::MAX }, None)),
            _ => app(request).await,
        }
    }
    let total = limits().total_timeout(Duration::from_secs(10));
    for request in [get("/sleep"), get("/stream"), HALF_BODY.to_owned()] {
        let mut sim = calm(&forever, total);
        let client = sim.connect();
        sim.send(&client, request.as_bytes());
        for _ in 0..9 {
            sim.advance(Duration::from_secs(1));
            client.receive().unwrap();
            sim.send(&client, b"x");
        }
        assert_eq!(sim.open_connections(), 1, "{request}");
        sim.advance(Duration::from_millis(1_100));
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
        assert!(client.receive().is_err());
    }
    // The time of one request does not count for the next.
    let mut sim = calm(&app, total);
    let client = sim.connect();
    for _ in 0..6 {
        sim.send(&client, HALF_BODY.as_bytes());
        for _ in 0..4 {
            sim.advance(Duration::from_millis(1_500));
            sim.send(&client, b"x");
        }
        sim.send(&client, &[b'x'; 92]);
        assert_eq!(statuses(&client.receive().unwrap()), [200]);
        sim.advance(Duration::from_secs(3));
    }
}

#[test]
fn lingering_has_a_time_limit() {
    let mut sim = calm(&app, limits());
    let client = sim.connect();
    let head = "POST /early HTTP/1.1\r\nHost: t\r\nContent-Length: 9000000\r\n\r\n";
    sim.send(&client, head.as_bytes());
    for _ in 0..4 {
        // Bytes that it still sends are received and discarded.
        let bytes = vec![b'x'; 100_000];
        assert_eq!(sim.send(&client, &bytes), bytes.len());
        sim.advance(Duration::from_millis(100));
    }
    assert_eq!(sim.open_connections(), 1);
    assert_eq!(statuses(&client.receive().unwrap()), [200]);
    sim.advance(Duration::from_millis(150));
    assert_eq!(sim.open_connections(), 0);
}

#[test]
fn disabled_limits_never_fire() {
    let mut sim = calm(&app, all_off());
    let (silent, half, slow) = (sim.connect(), sim.connect(), sim.connect());
    let (body, unread) = (sim.connect(), sim.connect());
    sim.send(&half, b"GET /hel");
    ask(&mut sim, &slow, &get("/hello"));
    sim.send(&body, HALF_BODY.as_bytes());
    sim.send(&unread, get("/big").as_bytes());
    sim.advance(Duration::from_millis(YEAR_MS));
    for client in [&silent, &slow] {
        assert!(ask(&mut sim, client, &get("/hello")).ends_with("hello"));
    }
    assert!(ask(&mut sim, &half, "lo HTTP/1.1\r\nHost: t\r\n\r\n").ends_with("hello"));
    assert!(ask(&mut sim, &body, &"x".repeat(96)).ends_with(&"x".repeat(96)));
    assert_eq!(sim.open_connections(), 5);
}

/// The clock jumps while requests wait in the network, as for a process that was stopped.
#[test]
fn arrived_input_is_read_before_a_time_limit_applies() {
    for seed in 0..100 {
        let limits = Limits::default();
        let mut sim = Simulation::builder(seed).limits(limits).start(&hello);
        let (idle, begun, fresh, silent) =
            (sim.connect(), sim.connect(), sim.connect(), sim.connect());
        assert!(ask(&mut sim, &idle, &get("/")).ends_with("hello"));
        assert!(ask(&mut sim, &silent, &get("/")).ends_with("hello"));
        let request = get("/");
        let (first, rest) = request.as_bytes().split_at(20);
        assert_eq!(sim.send(&begun, first), first.len());
        let waiting = [
            (&idle, request.as_bytes()),
            (&begun, rest),
            (&fresh, request.as_bytes()),
        ];
        for (client, bytes) in waiting {
            let mut sent = 0;
            while sent < bytes.len() {
                sent += client.send(&bytes[sent..]).unwrap(); // The network takes a part at a time.
            }
        }
        sim.net().advance(1_000_000);
        sim.run();
        for (client, _) in waiting {
            let response = client.receive().unwrap();
            assert_eq!(statuses(&response), [200], "seed {seed}");
        }
        assert!(silent.at_end(), "its time limit has passed");
    }
}
