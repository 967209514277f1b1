//! Idle connections move from a server that drains to another one, as between two processes.

use crate::common::{Served, drivers, read_some, serve_with, watchdog};
use onrush::server::Passing;
use onrush::{DriverPreference, Handle, Limits, Request};
use onrush_rt::worker::monotonic_ms;
use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CONNECTIONS: usize = 20;

/// A server whose responses have `name`. It has two workers.
fn named(driver: DriverPreference, name: &'static str, limits: Limits, max: usize) -> Served {
    let application = move |_: Request| async move { name };
    serve_with(driver, application, |server| {
        server.workers(2).limits(limits).connections_max(max)
    })
}

fn ask(stream: &mut TcpStream, name: &str) -> String {
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")
        .expect("the server reads");
    response(stream, name)
}

/// A response that ends with `name`.
fn response(stream: &mut TcpStream, name: &str) -> String {
    let mut response = Vec::new();
    while !response.ends_with(name.as_bytes()) {
        let mut piece = [0; 1024];
        let bytes = read_some(stream, &mut piece).expect("a response");
        assert_ne!(bytes, 0, "closed after {response:?}");
        response.extend_from_slice(&piece[..bytes]);
    }
    String::from_utf8(response).expect("text")
}

/// The next connection goes to `to`; returns whether that serves it. `None`: there is none.
fn pass_one(passing: &Passing, to: &Handle, limit: Duration) -> Option<bool> {
    let connection = passing.next(limit)?;
    let socket = connection.socket().expect("a real socket");
    let socket = socket.try_clone_to_owned().expect("a descriptor");
    let facts = connection.facts().expect("it was not passed on");
    let is_served = to.take_over(socket, facts);
    match is_served {
        true => connection.passed(),
        false => drop(connection),
    }
    Some(is_served)
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn idle_connections_continue_on_the_other_server() {
    let _dog = watchdog("idle_connections_continue_on_the_other_server");
    for from in drivers() {
        for to in drivers() {
            let (old, new) = (
                named(from, "old", Limits::default(), 1000),
                named(to, "new", Limits::default(), 1000),
            );
            let mut open: Vec<TcpStream> = (0..CONNECTIONS).map(|_| old.connect()).collect();
            for stream in &mut open {
                ask(stream, "old");
            }
            let passing = old.running().handle().pass_on();
            for _ in 0..CONNECTIONS {
                let passed = pass_one(&passing, &new.running().handle(), LONG);
                assert_eq!(passed, Some(true));
            }
            old.wait().expect("it ends when no connection is left");
            for stream in &mut open {
                let response = ask(stream, "new");
                assert!(!response.contains("onnection: close"), "{response}");
            }
        }
    }
}

/// Nothing of a request is lost, wherever the request is when the server begins to drain.
#[test]
fn a_connection_with_a_request_moves_after_its_response() {
    let _dog = watchdog("a_connection_with_a_request_moves_after_its_response");
    for driver in drivers() {
        let (go, gate) = channel();
        let gate = Arc::new(Mutex::new(gate));
        let application = move |request: Request| {
            let gate: Arc<Mutex<Receiver<()>>> = gate.clone();
            async move {
                if request.path() == "/slow" {
                    let wait = move || gate.lock().expect("one at a time").recv().is_ok();
                    let _ = request.worker().blocking(wait).await;
                }
                "old"
            }
        };
        let go: Sender<()> = go;
        let old = serve_with(driver, application, |server| server.workers(1));
        let new = named(driver, "new", Limits::default(), 1000);
        let (mut partial, mut busy) = (old.connect(), old.connect());
        partial.write_all(b"GET / HTTP/1.1\r\nHo").expect("sent");
        busy.write_all(b"GET /slow HTTP/1.1\r\nHost: t\r\n\r\nGET / HTTP/1.1\r\nHost: t\r\n\r\n")
            .expect("sent");
        // Both have arrived when a later connection is served.
        let mut idle = old.connect();
        ask(&mut idle, "old");
        let passing = old.running().handle().pass_on();
        let to = new.running().handle();
        // The worker has looked at the others when it passes on the last one.
        assert_eq!(pass_one(&passing, &to, LONG), Some(true));
        ask(&mut idle, "new");
        assert_eq!(pass_one(&passing, &to, Duration::ZERO), None);
        partial.write_all(b"st: t\r\n\r\n").expect("sent");
        let last = response(&mut partial, "old");
        assert!(!last.contains("onnection: close"), "{last}");
        assert_eq!(pass_one(&passing, &to, LONG), Some(true));
        ask(&mut partial, "new");
        go.send(()).expect("it waits");
        response(&mut busy, "old");
        // Either server responds to the pipelined request.
        assert_eq!(pass_one(&passing, &to, LONG), Some(true));
        old.wait().expect("it ends when no connection is left");
        ask(&mut busy, "new");
    }
}

/// What the other server refuses drains, and so does everything after the end.
#[test]
fn connections_that_are_not_taken_drain() {
    let _dog = watchdog("connections_that_are_not_taken_drain");
    for driver in drivers() {
        let old = named(driver, "old", Limits::default(), 1000);
        let new = named(driver, "new", Limits::default(), 5);
        let mut open: Vec<TcpStream> = (0..CONNECTIONS).map(|_| old.connect()).collect();
        for stream in &mut open {
            ask(stream, "old");
        }
        let passing = old.running().handle().pass_on();
        let to = new.running().handle();
        let passed = (0..10).filter(|_| pass_one(&passing, &to, LONG) == Some(true));
        assert_eq!(passed.count(), 5);
        drop(passing);
        old.wait().expect("the others are closed");
        let mut served = 0;
        for stream in &mut open {
            let request = b"GET / HTTP/1.1\r\nHost: t\r\n\r\n";
            let is_open = stream.write_all(request).is_ok()
                && read_some(stream, &mut [0; 1024]).is_ok_and(|bytes| bytes > 0);
            served += usize::from(is_open);
        }
        assert_eq!(served, 5);
    }
}

/// The deadline of an idle connection moves with it, and the new server's limit holds as well.
#[test]
fn an_adopted_connection_is_idle_no_longer_than_permitted() {
    let _dog = watchdog("an_adopted_connection_is_idle_no_longer_than_permitted");
    const HOUR_MS: u64 = 3_600_000;
    let idle =
        |idle_timeout_ms| Limits::default().idle_timeout(Duration::from_millis(idle_timeout_ms));
    for driver in drivers() {
        for (is_over, after) in [(true, HOUR_MS), (false, 100)] {
            let (old, new) = (
                named(driver, "old", idle(HOUR_MS), 1000),
                named(driver, "new", idle(after), 1000),
            );
            let mut stream = old.connect();
            ask(&mut stream, "old");
            let passing = old.running().handle().pass_on();
            let connection = passing.next(LONG).expect("it is idle");
            let mut facts = connection.facts().expect("it was not passed on");
            let left_ms = facts.deadline_ms.saturating_sub(monotonic_ms());
            let minutes = HOUR_MS / 2..=HOUR_MS + 1000;
            assert!(minutes.contains(&left_ms), "{left_ms}");
            if is_over {
                facts.deadline_ms = monotonic_ms();
            }
            let socket = connection.socket().expect("a real socket");
            let socket = socket.try_clone_to_owned().expect("a descriptor");
            assert!(new.running().handle().take_over(socket, facts));
            connection.passed();
            assert_eq!(read_some(&mut stream, &mut [0; 10]).expect("the end"), 0);
        }
    }
}
