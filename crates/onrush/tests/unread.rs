//! Rendered responses that clients do not read count in the budget for receive memory. When it is
//! exhausted, the connections that hold them for the longest time are reset.

use crate::common::gate::until;
use crate::common::memory::{MEMORY, assert_prompt, limits, metric, serve_limited};
use crate::common::{drivers, get, resident_bytes, watchdog};
use onrush::{Body, Limits, Metrics, Request, Response};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

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
        let limits = Limits {
            write_timeout_ms: 100_000,
            ..limits()
        };
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
