//! A limit on the concurrent requests of a handler: it is never exceeded, and no permit is lost.

use crate::common::{calm, drivers, get, serve_with, text, watchdog};
use onrush::metrics::Format;
use onrush::sim::Simulation;
use onrush::{Limits, Metrics, Request, Response, Router, limited};
use onrush_rt::driver::sim::Client;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Sleeps, panics at each possible point, or responds at once.
async fn work(request: Request) -> Response {
    match request.param("what") {
        Some("sleep") => request.worker().sleep(Duration::from_millis(100)).await,
        Some("panic") => panic!("on purpose: at the first poll"),
        Some("stream") => {
            let left = 10 * 64 * 1024;
            return Response::with_body(onrush::Body::stream(
                crate::common::app::Endless { left },
                None,
            ));
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

fn request(sim: &mut Simulation, path: &str) -> Client {
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
fn requests_beyond_the_limit_are_refused_at_once() {
    let mut sim = calm(&router(2), Limits::default());
    for round in 1..=3 {
        let working: Vec<_> = (0..2).map(|_| request(&mut sim, "/work/sleep")).collect();
        let beyond = request(&mut sim, "/work/now");
        assert_eq!(status(&beyond), Some(503));
        // A request with a body and another method for the same handler.
        let post = "POST /work/now HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nabcde";
        sim.send(&beyond, post.as_bytes());
        sim.run();
        assert_eq!(status(&beyond), Some(503));
        assert_eq!(status(&request(&mut sim, "/other/now")), Some(200));
        assert_eq!(sim.counters().limit_hits.get(), 2 * round);
        assert!(working.iter().all(|client| status(client).is_none()));
        sim.advance(Duration::from_millis(110));
        assert!(working.iter().all(|client| status(client) == Some(200)));
        sim.send(&beyond, get("/work/now").as_bytes());
        sim.run();
        assert_eq!(status(&beyond), Some(200));
    }
}

#[test]
fn permit_is_released_however_its_request_ends() {
    let mut sim = calm(&router(1), Limits::default());
    for _ in 0..3 {
        assert_eq!(status(&request(&mut sim, "/work/now")), Some(200));
        assert_eq!(status(&request(&mut sim, "/work/panic")), Some(500));
        let late = request(&mut sim, "/work/late-panic");
        assert_eq!(status(&request(&mut sim, "/work/now")), Some(503));
        sim.advance(Duration::from_millis(110));
        assert_eq!(status(&late), Some(500));
        let gone = request(&mut sim, "/work/sleep");
        assert_eq!(status(&request(&mut sim, "/work/now")), Some(503));
        gone.reset();
        sim.run();
        assert_eq!(status(&request(&mut sim, "/work/now")), Some(200));
    }
}

#[test]
fn limit_of_zero_refuses_all_requests() {
    let mut sim = calm(&limited(0, work), Limits::default());
    assert_eq!(status(&request(&mut sim, "/")), Some(503));
}

/// One limit for all workers: it is never exceeded, and all permits are free in the end.
#[test]
fn real_workers_share_a_limit() {
    let _dog = watchdog("real_workers_share_a_limit");
    const PERMITS: usize = 2;
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
        let limited = limited(PERMITS, handler);
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
        assert!((1..=PERMITS).contains(&most), "{most} at a time");
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

/// Reads a head and its content.
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

/// A request holds its permit until its streamed response has ended.
#[test]
fn streamed_response_keeps_its_permit() {
    let mut sim = calm(&router(1), Limits::default());
    let streaming = request(&mut sim, "/work/stream");
    let beyond = request(&mut sim, "/work/now");
    assert_eq!(status(&beyond), Some(503));
    let mut received = 0;
    while received < 10 * 64 * 1024 {
        received += streaming.receive().expect("more").len();
        sim.run();
    }
    let next = request(&mut sim, "/work/now");
    assert_eq!(status(&next), Some(200));
    // A client that disconnects releases the permit, too.
    let streaming = request(&mut sim, "/work/stream");
    streaming.reset();
    sim.run();
    assert_eq!(status(&request(&mut sim, "/work/now")), Some(200));
}
