//! Clients that do not read their responses: their input does not use up the receive memory, and
//! other clients get responses meanwhile.

use crate::common::gate::until;
use crate::common::memory::{assert_prompt, evicted, metric, serve, status};
use crate::common::{drivers, get, watchdog};
use onrush::{Metrics, Request, Response};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

/// Clients that request much and read nothing, and pipelines whose responses are not read.
#[test]
fn clients_that_do_not_read_do_not_delay_others() {
    let _dog = watchdog("clients_that_do_not_read_do_not_delay_others");
    static LARGE: [u8; 4 << 20] = [b'x'; 4 << 20];
    async fn sized(request: Request) -> Response {
        match request.path() {
            "/hello" => Response::text("hello"),
            _ => Response::with_body(onrush::Body::from(&LARGE[..])),
        }
    }
    for driver in drivers() {
        let metrics = Metrics::new();
        let server = serve(driver, sized, &metrics);
        let mut established = server.connect();
        assert_prompt(&mut established);
        let attacks = [get("/large"), get("/hello").repeat(1_000)];
        let mut attackers = Vec::new();
        for number in 0..200 {
            let mut stream = server.connect();
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(attacks[number % 2].as_bytes()); // It may be a partial write.
            attackers.push(stream);
            if number % 20 == 0 {
                assert_prompt(&mut established);
                assert_prompt(&mut server.connect());
            }
        }
        assert_prompt(&mut established);
        assert_prompt(&mut server.connect());
        assert!(
            metric(&metrics, "onrush_connections_open") > 200,
            "{driver:?}"
        );
    }
}

/// Clients that pipeline requests and do not read the responses hold receive memory without
/// progress. They are reset, the oldest first, when others need memory.
#[test]
fn unread_pipelines_leave_memory_for_others() {
    let _dog = watchdog("unread_pipelines_leave_memory_for_others");
    static PIECE: [u8; 12_000] = [b'x'; 12_000];
    async fn sized(request: Request) -> Response {
        match request.path() {
            "/hello" => Response::text("hello"),
            _ => Response::with_body(onrush::Body::from(&PIECE[..])),
        }
    }
    for driver in drivers() {
        let metrics = Metrics::new();
        let server = serve(driver, sized, &metrics);
        let mut established = server.connect();
        assert_prompt(&mut established);
        let requests = get("/piece").repeat(4_000);
        let mut attackers = Vec::new();
        for number in 0..500 {
            let mut stream = server.connect();
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write(requests.as_bytes()); // It may be a partial write.
            attackers.push(stream);
            if number % 50 == 0 {
                assert_prompt(&mut established);
                assert_prompt(&mut server.connect());
            }
        }
        for _ in 0..10 {
            // They continue to send as much as possible.
            for stream in &mut attackers {
                let _ = stream.write(requests.as_bytes());
            }
            assert_prompt(&mut established);
            assert_prompt(&mut server.connect());
        }
        assert!(
            metric(&metrics, "onrush_memory_evictions_total") > 0,
            "{driver:?}"
        );
    }
}

/// Clients request a large response and do not read it, or one that is not ready yet, and send a
/// few more bytes after the request. These bytes are kept until the response is sent. Neither they
/// nor the request may hold the whole block into which they were received. If there are too many of
/// them, clients that do not read are reset.
#[test]
fn input_behind_an_unread_response_leaves_memory_for_others() {
    let _dog = watchdog("input_behind_an_unread_response_leaves_memory_for_others");
    static LARGE: [u8; 4 << 20] = [b'x'; 4 << 20];
    // This many blocks exceed the memory.
    const CLIENTS: usize = 1_500;
    async fn sized(mut request: Request) -> Response {
        match request.path() {
            "/large" => Response::with_body(onrush::Body::from(&LARGE[..])),
            "/never" => loop {
                request.worker().sleep(Duration::from_secs(60)).await;
            },
            _ => {
                while let Some(piece) = request.body().next().await {
                    assert!(piece.is_ok(), "a whole body");
                }
                Response::text("hello")
            }
        }
    }
    /// A request with a body: it gets 503 if memory is short.
    fn upload(stream: &mut TcpStream) -> u16 {
        let head = "PUT /hello HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello";
        stream.write_all(head.as_bytes()).unwrap();
        status(stream)
    }
    let surplus_of = |bytes: usize| {
        let head = b"GET / HTTP/1.1\r\nHost: t\r\nX: ";
        let mut surplus = head[..bytes.min(head.len())].to_vec();
        surplus.resize(bytes, b'x');
        surplus
    };
    for driver in drivers() {
        for (path, surplus_bytes, is_too_much) in [
            ("/large", 1, false),
            ("/never", 1, false),
            ("/large", 3_000, true),
        ] {
            let case = format!("{driver:?}, {path}, {surplus_bytes}");
            let metrics = Metrics::new();
            let server = serve(driver, sized, &metrics);
            let mut established = server.connect();
            assert_prompt(&mut established);
            let mut request = get(path).into_bytes();
            request.extend_from_slice(&surplus_of(surplus_bytes));
            let mut attackers = Vec::new();
            for number in 0..CLIENTS {
                let mut stream = server.connect();
                rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
                stream.write_all(&request).unwrap();
                attackers.push(stream);
                if number % 100 == 0 {
                    assert_prompt(&mut established);
                    assert_prompt(&mut server.connect());
                }
            }
            // All clients are served or were reset.
            let open = || metric(&metrics, "onrush_connections_open");
            until(|| {
                let active = metric(&metrics, "http_server_active_requests");
                active + evicted(&metrics) >= CLIENTS as u64
            });
            assert_prompt(&mut established);
            assert_prompt(&mut server.connect());
            match is_too_much {
                true => {
                    until(|| evicted(&metrics) > 0);
                    assert!(open() < CLIENTS as u64, "{case}");
                }
                false => {
                    // After the last handlers have ended, there is memory for bodies, too.
                    until(|| upload(&mut server.connect()) == 200);
                    assert_eq!(upload(&mut established), 200, "{case}");
                    assert_eq!(evicted(&metrics), 0, "{case}");
                    assert!(open() > CLIENTS as u64, "{case}");
                }
            }
        }
    }
}
