//! A panic of a handler affects only its request, wherever it happens.

use crate::common::{
    ask, calm, drivers, get, is_served, read_some, serve, statuses, text, watchdog,
};
use onrush::{Body, Bytes, Limits, Request, Response, Server, per_worker};
use std::future::Future;
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("on purpose: while dropped");
    }
}

/// Panics before there is a future, while it is polled, or while it is dropped.
fn app(request: Request) -> Pin<Box<dyn Future<Output = Response>>> {
    let path = request.path().to_owned();
    assert_ne!(path, "/at-call", "on purpose: when called");
    Box::pin(async move {
        let worker = request.worker().clone();
        match path.as_str() {
            "/first-poll" => panic!("on purpose: at the first poll"),
            "/payload" => std::panic::panic_any(Bomb),
            "/late-payload" => {
                worker.sleep(Duration::from_millis(1)).await;
                std::panic::panic_any(Bomb)
            }
            "/later-poll" => {
                worker.sleep(Duration::from_millis(1)).await;
                panic!("on purpose: at a later poll")
            }
            "/wrong-status" => Response::new(99),
            "/drop-ready" => {
                drop(Bomb);
                Response::text("not reached")
            }
            "/drop-while-it-waits" => {
                let _bomb = Bomb;
                std::future::pending().await
            }
            "/drop-of-a-stream" => Response::with_body(Body::stream(Armed(Bomb), None)),
            _ => Response::text("hello"),
        }
    })
}

struct Armed(#[allow(dead_code, reason = "only its drop matters")] Bomb);

impl futures_core::Stream for Armed {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(None)
    }
}

/// A future that returns its output and panics when it is dropped.
struct ReadyBomb(
    #[allow(dead_code, reason = "only its drop matters")] Bomb,
    bool,
);

impl Future for ReadyBomb {
    type Output = Response;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        if std::mem::replace(&mut self.1, false) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Response::text("ready"))
    }
}

#[test]
fn panics_in_every_place_on_the_simulator() {
    let mut sim = calm(&app, Limits::default());
    let client = sim.connect();
    for path in [
        "/at-call",
        "/first-poll",
        "/later-poll",
        "/payload",
        "/late-payload",
        "/wrong-status",
        "/drop-ready",
    ] {
        sim.send(&client, get(path).as_bytes());
        sim.advance(Duration::from_millis(5));
        assert_eq!(statuses(&client.receive().unwrap()), [500], "{path}");
        // The same connection continues, and the slot of the handler's future is reused.
        assert!(
            ask(&mut sim, &client, &get("/")).ends_with("hello"),
            "{path}"
        );
    }
    for _ in 0..3 {
        let response = ask(&mut sim, &client, &get("/drop-of-a-stream"));
        assert!(response.ends_with("\r\n\r\n0\r\n\r\n"), "{response}");
        ask(
            &mut sim,
            &client,
            &get("/drop-of-a-stream").replace("GET", "HEAD"),
        );
    }
    assert_eq!(sim.counters().panicked.get(), 7);
    assert!(is_served(&mut sim));
}

#[test]
fn future_that_panics_when_its_client_disconnects() {
    let mut sim = calm(&app, Limits::default());
    for _ in 0..10 {
        let client = sim.connect();
        sim.send(&client, get("/drop-while-it-waits").as_bytes());
        assert_eq!(sim.worker().live_tasks(), 1);
        client.reset();
        sim.run();
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
    }
    // A future that its task does not poll any more.
    let client = sim.connect();
    client.send(get("/drop-while-it-waits").as_bytes()).unwrap();
    sim.poll();
    drop(client);
    sim.run();
    assert!(is_served(&mut sim));
}

#[test]
fn future_that_panics_after_its_output() {
    for waits in [false, true] {
        let handler = move |_: Request| ReadyBomb(Bomb, waits);
        let mut sim = calm(&handler, Limits::default());
        let client = sim.connect();
        for _ in 0..3 {
            sim.send(&client, get("/").as_bytes());
            sim.advance(Duration::from_millis(5));
            let response = text(&client.receive().unwrap());
            assert!(["200", "500"].contains(&&response[9..12]), "{response}");
        }
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (1, 0));
    }
}

/// A thousand panics do not change the single worker.
#[test]
fn thousand_panics_on_real_servers() {
    let _dog = watchdog("thousand_panics_on_real_servers");
    let paths = [
        "/at-call",
        "/first-poll",
        "/later-poll",
        "/drop-ready",
        "/drop-of-a-stream",
    ];
    for driver in drivers() {
        let server = serve(driver, app);
        let mut stream = server.connect();
        for round in 0..200 {
            for path in paths {
                stream
                    .write_all((get(path) + &get("/")).as_bytes())
                    .unwrap();
            }
            let (mut responses, mut piece) = (Vec::new(), [0; 8192]);
            while statuses_so_far(&responses) < 10 || !responses.ends_with(b"hello") {
                let n = read_some(&mut stream, &mut piece).unwrap();
                assert!(n > 0, "round {round}: {}", text(&responses));
                responses.extend_from_slice(&piece[..n]);
            }
            let expected = [500, 200, 500, 200, 500, 200, 500, 200, 200, 200];
            assert_eq!(statuses(&responses), expected, "{driver:?}");
        }
        // Clients disconnect while a future waits that panics when it is dropped.
        for _ in 0..50 {
            let mut stream = server.connect();
            stream
                .write_all(get("/drop-while-it-waits").as_bytes())
                .unwrap();
            assert!(server.get("/").ends_with(b"hello"));
        }
    }
}

fn statuses_so_far(responses: &[u8]) -> usize {
    responses.windows(9).filter(|w| w == b"HTTP/1.1 ").count()
}

#[test]
fn failing_application_factory_fails_the_start() {
    let _dog = watchdog("failing_application_factory_fails_the_start");
    for driver in drivers() {
        let application = per_worker(|worker: &onrush::WorkerHandle| {
            assert_ne!(worker.index(), 1, "on purpose: on the second worker");
            async |_: Request| Response::new(204)
        });
        let server = Server::bind("127.0.0.1:0")
            .driver(driver)
            .workers(3)
            .pinned(false);
        let error = server.start(application).expect_err("a worker is missing");
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
