//! The life of a connection in `tracing` events, and subscribers that panic.

use crate::common::gate::until;
use crate::common::{calm, drivers, get, is_served, plain, serve, watchdog};
use onrush::{Limits, Request, Response, sim::Simulation};
use std::fmt::{Debug, Write as _};
use std::io::{Read, Write as _};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testing::log::with_subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// An event: its message and its fields.
struct Line(String, String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.0 = format!("{value:?}"),
            name => write!(self.1, " {name}={value:?}").unwrap(),
        }
    }
}

/// Records the events of the engine and the runtime, and calls `then` in each.
#[derive(Clone)]
struct Collector {
    lines: Arc<Mutex<Vec<String>>>,
    then: fn(),
}

impl Collector {
    fn new(then: fn()) -> Collector {
        Collector {
            lines: Arc::default(),
            then,
        }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("onrush")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new(), String::new());
        event.record(&mut line);
        self.lines.lock().unwrap().push(line.0 + &line.1);
        (self.then)();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The events of the engine on this thread while `act` runs.
pub(crate) fn events_of(act: impl FnOnce()) -> Vec<String> {
    let collector = Collector::new(|| {});
    with_subscriber(collector.clone(), act);
    collector.lines()
}

/// Does not read the body of its request and never ends.
async fn stuck(request: Request) -> Response {
    if request.path() == "/stuck" {
        std::future::pending::<()>().await;
    }
    Response::text("hello")
}

const PUT: &[u8] = b"PUT /stuck HTTP/1.1\r\nHost: t\r\nContent-Length: 9000000\r\n\r\n";

/// Checks that `lines` contains lines that begin with `texts`, in this order.
#[track_caller]
fn assert_order(lines: &[String], texts: &[&str]) {
    let mut rest = lines.iter();
    for text in texts {
        let found = rest.any(|line| line.starts_with(text));
        assert!(found, "{text:?} is missing or out of order: {lines:#?}");
    }
}

#[test]
fn events_describe_a_stuck_connection() {
    let collector = Collector::new(|| {});
    with_subscriber(collector.clone(), || {
        let limits = Limits::default().total_timeout(Duration::from_secs(60));
        let mut sim = Simulation::builder(1)
            .limits(limits)
            .network(plain(64 * 1024))
            .start(&stuck);
        let client = sim.connect();
        sim.send(&client, PUT);
        for _ in 0..40 {
            client.send(&[b'x'; 8192]).unwrap();
            sim.run();
        }
        // The events exist while the connection is stuck, not only at its end.
        let lines = collector.lines();
        assert_order(
            &lines,
            &[
                "connection opened worker=0 connection=",
                "connection state changed connection=0 from=\"ready\" to=\"busy\"",
                "receiving paused connection=0 input_bytes=",
            ],
        );
        assert!(
            !lines
                .iter()
                .any(|line| line.starts_with("connection closed"))
        );
        sim.advance(Duration::from_secs(70));
        assert_order(
            &collector.lines()[lines.len()..],
            &[
                "time limit reached connection=0 phase=\"busy\"",
                "connection closed worker=0 connection=0 reason=\"timed_out\" phase=\"busy\"",
            ],
        );
    });
}

/// A subscriber that uses everything that the engine may have borrowed, and then panics.
#[test]
fn subscriber_that_panics_breaks_nothing() {
    static EVENTS: AtomicUsize = AtomicUsize::new(0);
    let collector = Collector::new(|| {
        EVENTS.fetch_add(1, Ordering::Relaxed);
        if let Some(worker) = onrush_rt::worker::WorkerContext::current() {
            drop(worker.driver());
        }
        panic!("on purpose");
    });
    let _silence = testing::panics::silence(|info| info.payload_as_str() == Some("on purpose"));
    with_subscriber(collector.clone(), || {
        let mut sim = calm(&stuck, Limits::default());
        let client = sim.connect();
        sim.send(&client, PUT);
        for _ in 0..40 {
            client.send(&[b'x'; 8192]).unwrap();
            sim.run();
        }
        assert!(is_served(&mut sim));
        client.reset();
        sim.run();
        assert!(is_served(&mut sim));
        assert!(EVENTS.load(Ordering::Relaxed) >= 6);
        // No event reports a panic that reached the event loop.
        let lines = collector.lines();
        assert!(
            !lines.iter().any(|line| line.contains("caught")),
            "{lines:#?}"
        );
    });
}

/// On the kernel drivers, from the opening of a connection to its reset.
#[test]
fn reset_is_reported_on_both_drivers() {
    let _dog = watchdog("reset_is_reported_on_both_drivers");
    // It records the events of the whole process.
    if testing::child::elsewhere(module_path!(), "reset_is_reported_on_both_drivers") {
        return;
    }
    static WORKING: AtomicBool = AtomicBool::new(false);
    async fn busy(request: Request) -> Response {
        WORKING.store(true, Ordering::Release);
        stuck(request).await
    }
    let collector = Collector::new(|| {});
    tracing::subscriber::set_global_default(collector.clone()).unwrap();
    for driver in drivers() {
        WORKING.store(false, Ordering::Release);
        let before = collector.lines().len();
        let lines = || collector.lines()[before..].to_vec();
        let server = serve(driver, busy);
        let mut stream = server.connect();
        stream.write_all(get("/").as_bytes()).unwrap();
        // Unlike `read`, this continues after a signal.
        stream.read_exact(&mut [0; 12]).unwrap();
        WORKING.store(false, Ordering::Release);
        stream.write_all(PUT).unwrap();
        until(|| WORKING.load(Ordering::Acquire));
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        drop(stream);
        let has = |text: &str| lines().iter().any(|line| line.starts_with(text));
        until(|| has("connection closed worker=0 connection=0 reason=\"broken\""));
        assert_order(
            &lines(),
            &[
                "connection opened worker=0 connection=0",
                "connection state changed connection=0 from=\"ready\" to=\"busy\"",
                "stream failed worker=0 token=0 error=",
                "connection closed worker=0 connection=0 reason=\"broken\" phase=\"busy\"",
            ],
        );
        assert!(
            has("receive memory changed worker=0 bytes="),
            "{:?}",
            lines()
        );
    }
}
