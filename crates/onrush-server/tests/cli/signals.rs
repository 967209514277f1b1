//! Signals while requests are in progress: no request that was sent is reset when the program ends,
//! and none is lost when it is stopped and continued.

use crate::program::{Folder, Server, TIMEOUT, both_drivers};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

const CLIENTS: usize = 24;

/// The number of restarts per driver; `ONRUSH_TEST_RESTARTS` changes it.
fn restarts() -> usize {
    let restarts = std::env::var("ONRUSH_TEST_RESTARTS").ok();
    restarts.map_or(5, |restarts| restarts.parse().expect("a number"))
}

/// The outcomes of the requests of all clients.
#[derive(Debug, Default)]
struct Outcomes {
    completed: AtomicUsize,
    /// Reset, or ended without a response, after the request was sent.
    lost: AtomicUsize,
    over: AtomicBool,
}

fn request(keep_alive: bool) -> String {
    let connection = if keep_alive { "keep-alive" } else { "close" };
    format!("GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n")
}

/// Reads one response to the end of its content. Returns whether it announces the close.
fn read_response(stream: &mut TcpStream) -> std::io::Result<bool> {
    let mut response = Vec::new();
    let mut piece = [0; 4096];
    while !response.ends_with(b"\r\n\r\ncontent") {
        match testing::read_some(stream, &mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => response.extend_from_slice(&piece[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&response).contains("onnection: close"))
}

/// Connects repeatedly, with one request or many per connection, until no listener is left.
fn send_requests(address: SocketAddr, keep_alive: bool, outcomes: &Outcomes) {
    while !outcomes.over.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, TIMEOUT) else {
            return; // Refused: there is no listener, so no request was sent.
        };
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        let mut first = true;
        loop {
            let sent = stream.write_all(request(keep_alive).as_bytes());
            let response = sent.and_then(|()| read_response(&mut stream));
            let last = match response {
                Ok(last) => last || !keep_alive,
                // A persistent connection may end between two requests (RFC 9112 §9.5).
                Err(error) if !first && error.kind() != ErrorKind::ConnectionReset => true,
                Err(_) => {
                    outcomes.lost.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            };
            outcomes.completed.fetch_add(1, Ordering::Relaxed);
            if last {
                break;
            }
            first = false;
        }
    }
}

#[test]
fn requests_sent_before_the_end_get_responses() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in both_drivers() {
        for restart in 0..restarts() {
            let mut server = Server::start(folder.path(), &["--driver", driver, "--workers", "2"]);
            let (address, outcomes) = (server.address(), Outcomes::default());
            std::thread::scope(|scope| {
                for client in 0..CLIENTS {
                    let outcomes = &outcomes;
                    scope.spawn(move || send_requests(address, client % 3 == 0, outcomes));
                }
                while outcomes.completed.load(Ordering::Relaxed) < 10 * CLIENTS {
                    sleep(Duration::from_millis(1));
                }
                server.signal("TERM");
                assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
                outcomes.over.store(true, Ordering::Relaxed);
            });
            let lost = outcomes.lost.into_inner();
            assert_eq!(lost, 0, "{driver}, restart {restart}");
        }
    }
}

/// A client that has connected and sends its request after the signal.
#[test]
fn client_with_deferred_accept_gets_its_response_at_the_end() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in both_drivers() {
        let mut server = Server::start(folder.path(), &["--driver", driver, "--workers", "2"]);
        let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
        server.signal("TERM");
        for client in &mut clients {
            client
                .write_all(request(false).as_bytes())
                .expect("the connection is open");
        }
        for client in &mut clients {
            read_response(client).expect("no reset");
        }
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
    }
}

/// Begins an upload of 8 bytes. When the server asks for them, the request is in progress.
fn begin_upload(client: &mut TcpStream) {
    let head = "PUT /up HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\
                Expect: 100-continue\r\n\r\n";
    client.write_all(head.as_bytes()).expect("the server reads");
    let mut interim = [0; 25];
    client.read_exact(&mut interim).expect("a response");
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
}

/// An upload in progress is neither cut without a drain timeout, nor when the timeout is long.
#[test]
fn without_a_drain_timeout_uploads_are_completed() {
    for driver in both_drivers() {
        for off in ["off", "0", "1h"] {
            let folder = Folder::new();
            let flags = ["--driver", driver, "--allow=put", "--drain-timeout", off];
            let mut server = Server::start(folder.path(), &flags);
            let mut client = server.connect();
            begin_upload(&mut client);
            client.write_all(b"half").expect("the server reads");
            server.signal("TERM");
            server.logs("shutting down");
            sleep(Duration::from_millis(300)); // A drain without time would have ended.
            client.write_all(b"done").expect("the connection is open");
            let mut response = String::new();
            client.read_to_string(&mut response).expect("a response");
            assert!(response.starts_with("HTTP/1.1 201"), "{off}: {response}");
            drop(client); // The server waits for this.
            assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
            assert_eq!(server.warnings(), [""; 0], "{driver} {off}");
        }
    }
}

/// The log says that connections were ended only if there were some.
#[test]
fn drain_timeout_is_logged_only_if_it_ends_connections() {
    let folder = Folder::new();
    for driver in both_drivers() {
        for connected in [true, false] {
            let flags = ["--driver", driver, "--drain-timeout=1ms", "--allow=put"];
            let mut server = Server::start(folder.path(), &flags);
            let mut client = connected.then(|| server.connect());
            if let Some(client) = &mut client {
                begin_upload(client);
            }
            server.signal("TERM");
            assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
            let log = server.logs(" stopped");
            let text = "WARN the drain timeout ended connections open=1";
            assert_eq!(log.contains(text), connected, "{driver}: {log}");
            assert!(!log.contains("open=0"), "{driver}: {log}");
        }
    }
}

/// When the program continues, the time limits of all connections have passed, also of those whose
/// requests have arrived meanwhile.
#[test]
fn requests_that_arrive_while_stopped_get_responses() {
    for driver in both_drivers() {
        // A busy machine needs a part of the limits to begin.
        let mut limits_s = [2, 8, 32, 128].into_iter();
        while !respond_after_a_stop(driver, limits_s.next().expect("the machine is too slow")) {}
    }
}

/// False if the machine is too slow for these time limits.
fn respond_after_a_stop(driver: &str, limit_s: u64) -> bool {
    let folder = Folder::new();
    folder.file("x", "content");
    let limit = format!("{limit_s}s");
    let limits = ["--idle-timeout", &limit, "--header-timeout", &limit];
    let arguments = [&["--driver", driver, "--workers", "1"][..], &limits].concat();
    let server = Server::start(folder.path(), &arguments);
    let request = request(true);
    let (first, rest) = request.as_bytes().split_at(20);
    let start = Instant::now();
    // More than one system call fetches.
    let mut idle: Vec<TcpStream> = (0..700).map(|_| server.connect()).collect();
    for stream in &mut idle {
        if stream.write_all(request.as_bytes()).is_err() || read_response(stream).is_err() {
            break;
        }
    }
    let mut begun = server.connect();
    begun.write_all(first).expect("the server reads");
    sleep(Duration::from_millis(100)); // The server has read that, or will read all at once.
    server.signal("STOP");
    let setup = start.elapsed();
    if setup.as_secs() >= limit_s / 2 {
        return false;
    }
    begun.write_all(rest).expect("the kernel takes it");
    for stream in &mut idle {
        stream
            .write_all(request.as_bytes())
            .expect("the kernel takes it");
    }
    sleep(Duration::from_secs(limit_s) + Duration::from_millis(1_500));
    server.signal("CONT");
    for (number, stream) in idle.iter_mut().chain([&mut begun]).enumerate() {
        read_response(stream).unwrap_or_else(|error| panic!("{driver}, {number}: {error}"));
    }
    true
}
