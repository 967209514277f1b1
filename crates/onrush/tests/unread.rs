//! Rendered responses that clients do not read count in the budget for receive memory. When it is
//! exhausted, the connections that hold them for the longest time are reset. What the kernel holds
//! of a response depends on what the client has taken.

use crate::common::gate::until;
use crate::common::memory::{MEMORY, assert_prompt, limits, metric, serve_limited};
use crate::common::{drivers, get, resident_bytes, serve_plain, watchdog};
use onrush::{Body, Metrics, Request, Response, Router};
use onrush_rt::fs::{Dir, OpenHow};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use testing::TempDir;

const ATTACKERS: usize = 600;
/// A response that shares a buffer with others, and one that is too large for that.
static PIECE: [u8; 16_000] = [b'x'; 16_000];
static LARGE: [u8; 4 << 20] = [b'x'; 4 << 20];
/// Memory of the process beside the budget. Without a budget, 600 clients use 70 to 128 KiB each.
const SLACK: usize = 8 << 20;

async fn sized(request: Request) -> Response {
    match request.path() {
        "/hello" => Response::text("hello"),
        "/large" => Response::with_body(Body::from(&LARGE[..])),
        _ => Response::with_body(Body::from(PIECE.to_vec())),
    }
}

/// A connection with a small receive buffer, so that it takes little before its client reads.
fn connect_with_small_buffer(address: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_recv_buffer_size(&stream, 4096).expect("an option");
    connect(&stream, &address).expect("the server listens");
    stream.into()
}

#[test]
fn unread_responses_stay_within_the_budget() {
    let _dog = watchdog("unread_responses_stay_within_the_budget");
    // It measures the memory of the process.
    if testing::child::elsewhere(module_path!(), "unread_responses_stay_within_the_budget") {
        return;
    }
    // Each client requests more than the kernel takes. Half of them then request a large response.
    let pipelines = [
        get("/p").repeat(300),
        get("/p").repeat(280) + &get("/large"),
    ];
    for driver in drivers() {
        let metrics = Metrics::new();
        let limits = limits().write_timeout(Duration::from_secs(100));
        let server = serve_limited(driver, sized, limits, &metrics);
        let mut established = server.connect();
        assert_prompt(&mut established);
        let before = resident_bytes();
        let mut most = 0;
        let mut attackers = Vec::new();
        for number in 0..ATTACKERS {
            let mut stream = connect_with_small_buffer(server.address());
            stream
                .write_all(pipelines[number % 2].as_bytes())
                .expect("the server reads a small request");
            attackers.push(stream);
            if number % 50 == 0 {
                assert_prompt(&mut established);
                assert_prompt(&mut server.connect());
                most = most.max(metric(&metrics, "onrush_receive_buffer_bytes"));
            }
        }
        until(|| {
            std::thread::sleep(Duration::from_millis(10));
            assert_prompt(&mut server.connect());
            most = most.max(metric(&metrics, "onrush_receive_buffer_bytes"));
            // Workers publish their usage from time to time.
            let is_counted = most > 1 << 20;
            is_counted && metric(&metrics, "onrush_memory_evictions_total") > ATTACKERS as u64 / 4
        });
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < MEMORY + SLACK, "{driver:?}: {grown} bytes");
        // Unused blocks are kept in addition.
        assert!(
            most <= (MEMORY + MEMORY / 4) as u64,
            "{driver:?}: {most} bytes"
        );
        // Clients that read are served meanwhile and afterwards.
        assert_prompt(&mut established);
        assert_prompt(&mut server.connect());
        drop(attackers);
        until(|| metric(&metrics, "onrush_connections_open") == 1);
        assert_prompt(&mut established);
    }
}

/// More than any client of [`the_limit_on_unsent_bytes_follows_the_client`] takes.
const ENDLESS_BYTES: u64 = 64 << 20;

/// Responds with bytes from memory, and from a file.
fn endless(folder: &TempDir) -> Router {
    let path = folder.path().join("file");
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(ENDLESS_BYTES).expect("a sparse file");
    let dir = Dir::open_root(folder.path()).expect("the folder");
    let file = Arc::new(dir.open(b"file", OpenHow::READ).expect("the file"));
    Router::new()
        .get("/file", move |_| {
            let body = Body::file(file.clone(), 0, ENDLESS_BYTES);
            async { Response::with_body(body) }
        })
        .get("/memory", async |_| {
            Response::with_body(Body::from(vec![0; ENDLESS_BYTES as usize]))
        })
}

/// What the kernel holds for this client: bytes that it has accepted from the server and that the
/// client's socket has not received.
fn held_bytes(stream: &TcpStream) -> u64 {
    let port = |address: io::Result<SocketAddr>| format!(":{:04X}", address.unwrap().port());
    let (client, server) = (port(stream.local_addr()), port(stream.peer_addr()));
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of sockets");
    let row = table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_it = columns.get(1)?.ends_with(&server) && columns.get(2)?.ends_with(&client);
        is_it.then(|| columns[4].split(':').next().map(str::to_owned))?
    });
    u64::from_str_radix(&row.expect("the server's socket"), 16).expect("a number")
}

/// What the kernel holds when that does not change any more.
fn settled_bytes(stream: &TcpStream) -> u64 {
    let mut held = held_bytes(stream);
    loop {
        thread::sleep(Duration::from_millis(50));
        let before = std::mem::replace(&mut held, held_bytes(stream));
        if held > 0 && held == before {
            return held;
        }
    }
}

fn take(stream: &mut TcpStream, bytes: usize) {
    stream.read_exact(&mut vec![0; bytes]).expect("a response");
}

/// A client that stops, also after it has read, and goes on.
fn read_with_pauses(address: SocketAddr, path: &str, what: &str) {
    const UNREAD_MAX: u64 = 256 << 10;
    const GROWN_MIN: u64 = 1 << 20;
    const GROWN_MAX: u64 = (2 << 20) + UNREAD_MAX;
    let mut stream = connect_with_small_buffer(address);
    stream.write_all(get(path).as_bytes()).expect("a request");
    let held = settled_bytes(&stream);
    assert!(held <= UNREAD_MAX, "{what}: {held} before it reads");
    // A machine that is busy for a second looks like a client that has stopped.
    let held = loop {
        take(&mut stream, 1 << 20);
        let held = settled_bytes(&stream);
        if held > GROWN_MIN {
            break held;
        }
    };
    assert!(held <= GROWN_MAX, "{what}: {held} after it has read");
    thread::sleep(Duration::from_millis(1_100));
    // The next send is the last one with the limit before.
    let mut left = held + (2 << 20);
    while settled_bytes(&stream) > UNREAD_MAX {
        take(&mut stream, 64 << 10);
        left = left.checked_sub(64 << 10).expect("the limit falls");
    }
}

#[test]
fn the_limit_on_unsent_bytes_follows_the_client() {
    let _dog = watchdog("the_limit_on_unsent_bytes_follows_the_client");
    let folder = TempDir::new();
    for driver in drivers() {
        let server = serve_plain(driver, endless(&folder));
        let address = server.address();
        thread::scope(|scope| {
            for path in ["/file", "/memory"] {
                scope.spawn(move || read_with_pauses(address, path, &format!("{driver:?} {path}")));
            }
        });
    }
}
