//! A limit on how many requests a handler works on: nobody beyond it, and no place is ever lost.
mod common;

use common::{calm, drivers, get, serve_with, text, watchdog};
use onrush::metrics::Format;
use onrush::sim::Simulation;
use onrush::{Limits, Metrics, Request, Response, Router, limited};
use onrush_rt::driver::sim::Client;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Sleeps, panics at each possible point, or answers at once.
async fn work(request: Request) -> Response {
    match request.param("what") {
        Some("sleep") => request.worker().sleep(Duration::from_millis(100)).await,
        Some("panic") => panic!("on purpose: at the first poll"),
        Some("stream") => {
            let left = 10 * 64 * 1024;
            return Response::with_body(onrush::Body::stream(common::app::Endless { left }, None));
        }
        Some("late-panic") => {
            request.worker().sleep(Duration::from_millis(100)).await;
            panic!("on purpose: at a later poll")
        }
        _ => {}
    }
    Response::text("worked")
}

fn router(requests_max: usize) -> Router {
    let work = limited(requests_max, work);
    Router::new()
        .get("/work/{what}", work.clone())
        .post("/work/{what}", work)
        .get("/other/{what}", limited(1, async |_: Request| "other"))
}

fn asked(sim: &mut Simulation, path: &str) -> Client {
    let client = sim.connect();
    sim.send(&client, get(path).as_bytes());
    sim.run();
    client
}

fn status(client: &Client) -> Option<u16> {
    let response = text(&client.receive().expect("a connection"));
    let is_busy = response.starts_with("HTTP/1.1 503 ");
    assert_eq!(
        response.contains("\r\nRetry-After: 1\r\n"),
        is_busy,
        "{response}"
    );
    response.get(9..12).map(|status| status.parse().unwrap())
}

#[test]
fn beyond_the_limit_requests_are_refused_at_once() {
    let mut sim = calm(&router(2), Limits::default());
    for round in 1..=3 {
        let working: Vec<_> = (0..2).map(|_| asked(&mut sim, "/work/sleep")).collect();
        let beyond = asked(&mut sim, "/work/now");
        assert_eq!(status(&beyond), Some(503));
        // One with a body, by another method of the same handler.
        let post = "POST /work/now HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nabcde";
        sim.send(&beyond, post.as_bytes());
        sim.run();
        assert_eq!(status(&beyond), Some(503));
        assert_eq!(status(&asked(&mut sim, "/other/now")), Some(200));
        assert_eq!(sim.counters().limit_hits.get(), 2 * round);
        assert!(working.iter().all(|client| status(client).is_none()));
        sim.advance(110);
        assert!(working.iter().all(|client| status(client) == Some(200)));
        sim.send(&beyond, get("/work/now").as_bytes());
        sim.run();
        assert_eq!(status(&beyond), Some(200));
    }
}

#[test]
fn a_place_comes_back_however_its_request_ends() {
    let mut sim = calm(&router(1), Limits::default());
    for _ in 0..3 {
        assert_eq!(status(&asked(&mut sim, "/work/now")), Some(200));
        assert_eq!(status(&asked(&mut sim, "/work/panic")), Some(500));
        let late = asked(&mut sim, "/work/late-panic");
        assert_eq!(status(&asked(&mut sim, "/work/now")), Some(503));
        sim.advance(110);
        assert_eq!(status(&late), Some(500));
        let gone = asked(&mut sim, "/work/sleep");
        assert_eq!(status(&asked(&mut sim, "/work/now")), Some(503));
        gone.reset();
        sim.run();
        assert_eq!(status(&asked(&mut sim, "/work/now")), Some(200));
    }
}

#[test]
fn none_may_pass_where_the_limit_is_nought() {
    let mut sim = calm(&limited(0, work), Limits::default());
    assert_eq!(status(&asked(&mut sim, "/")), Some(503));
}

/// One limit for all workers: never more at a time, and all places are there in the end.
#[test]
fn real_workers_share_a_limit() {
    let _dog = watchdog("real_workers_share_a_limit");
    const PLACES: usize = 2;
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 50;
    for driver in drivers() {
        let (inside, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (count, seen) = (inside.clone(), most.clone());
        let handler = move |request: Request| {
            let (count, seen) = (count.clone(), seen.clone());
            async move {
                seen.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                request.worker().sleep(Duration::from_millis(1)).await;
                count.fetch_sub(1, Ordering::SeqCst);
                "worked"
            }
        };
        let metrics = Metrics::new();
        let limited = limited(PLACES, handler);
        let server = serve_with(driver, limited, |server| {
            server.workers(3).metrics(&metrics)
        });
        let (worked, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let mut stream = server.connect();
                    for _ in 0..ROUNDS {
                        stream.write_all(get("/").as_bytes()).unwrap();
                        let response = one_response(&mut stream);
                        let counted = match &response[9..12] {
                            "200" => &worked,
                            "503" => &refused,
                            _ => panic!("{response}"),
                        };
                        counted.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(inside.load(Ordering::SeqCst), 0);
        let most = most.load(Ordering::SeqCst);
        assert!((1..=PLACES).contains(&most), "{most} at a time");
        let (worked, refused) = (worked.into_inner(), refused.into_inner());
        assert_eq!(worked + refused, CLIENTS * ROUNDS);
        let page = metrics.render(Format::Prometheus);
        let hits = page
            .lines()
            .filter(|line| line.starts_with("onrush_limit_hits_total{"));
        let hits = hits.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap());
        assert_eq!(hits.sum::<usize>(), refused, "{page}");
        let last = text(&server.get("/"));
        assert!(last.ends_with("\r\n\r\nworked"), "{last}");
    }
}

/// Reads the head and, as told there, the content.
fn one_response(stream: &mut std::net::TcpStream) -> String {
    let (mut response, mut byte) = (Vec::new(), [0]);
    while !response.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        response.push(byte[0]);
    }
    let head = text(&response);
    let (_, length) = head.split_once("Content-Length: ").expect("a length");
    let length: usize = length.lines().next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    head + &text(&body)
}

/// A handler is at work until the last of its answer is made.
#[test]
fn a_streamed_answer_keeps_its_place() {
    let mut sim = calm(&router(1), Limits::default());
    let streaming = asked(&mut sim, "/work/stream");
    let beyond = asked(&mut sim, "/work/now");
    assert_eq!(status(&beyond), Some(503));
    let mut received = 0;
    while received < 10 * 64 * 1024 {
        received += streaming.receive().expect("more").len();
        sim.run();
    }
    let next = asked(&mut sim, "/work/now");
    assert_eq!(status(&next), Some(200));
    // A client that goes gives the place back as well.
    let streaming = asked(&mut sim, "/work/stream");
    streaming.reset();
    sim.run();
    assert_eq!(status(&asked(&mut sim, "/work/now")), Some(200));
}
