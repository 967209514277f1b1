//! Bodies and pipelined requests in little receive memory: complete requests get responses.

use crate::common::gate::until;
use crate::common::memory::{MEMORY, assert_prompt, evicted, hello, metric, serve, serve_limited};
use crate::common::{content, drivers, get, read_some, statuses, through_tls, watchdog};
use onrush::{Limits, Metrics, Request, Response};
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn bodies_ahead_of_slow_handlers_leave_memory_for_others() {
    let _dog = watchdog("bodies_ahead_of_slow_handlers_leave_memory_for_others");
    static MAY_READ: AtomicBool = AtomicBool::new(false);
    const BODY_BYTES: usize = 60_000;
    async fn patient(mut request: Request) -> Response {
        if request.path() == "/hello" {
            return Response::text("hello");
        }
        while !MAY_READ.load(Ordering::Acquire) {
            request.worker().sleep(Duration::from_millis(20)).await;
        }
        let mut bytes = 0;
        while let Some(piece) = request.body().next().await {
            bytes += piece.expect("a body").len();
        }
        Response::text(format!("{bytes}"))
    }
    for driver in drivers() {
        MAY_READ.store(false, Ordering::Release);
        let metrics = Metrics::new();
        let server = serve(driver, patient, &metrics);
        let mut established = server.connect();
        assert_prompt(&mut established);
        let head = format!("PUT / HTTP/1.1\r\nHost: t\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
        let clients = (0..200).map(|number| {
            let mut stream = server.connect();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&[b'x'; BODY_BYTES]).unwrap();
            if number % 20 == 0 {
                assert_prompt(&mut established);
                assert_prompt(&mut server.connect());
            }
            stream
        });
        let mut clients: Vec<TcpStream> = clients.collect();
        assert_prompt(&mut established);
        assert_prompt(&mut server.connect());
        MAY_READ.store(true, Ordering::Release);
        let mut whole = 0;
        for client in &mut clients {
            let mut response = [0; 4096];
            let n = read_some(client, &mut response).expect("no reset");
            match statuses(&response[..n])[0] {
                200 => assert_eq!(content(&response[..n]), b"60000", "{driver:?}"),
                status => assert_eq!(status, 503, "{driver:?}"),
            }
            whole += usize::from(response.starts_with(b"HTTP/1.1 200"));
        }
        // Bodies from before the shortage are complete. The others got 503.
        assert!((20..200).contains(&whole), "{driver:?}: {whole}");
        assert_eq!(evicted(&metrics), 0);
    }
}

/// Only handlers that keep received bytes can exhaust the receive memory. The disconnect of a
/// client that waits for memory then is noticed.
#[test]
fn disconnect_is_noticed_while_memory_is_exhausted() {
    if through_tls() {
        return; // A client without a handshake cannot send its request.
    }
    let _dog = watchdog("disconnect_is_noticed_while_memory_is_exhausted");
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    async fn keeper(mut request: Request) -> Response {
        let mut kept = Vec::new();
        while let Some(Ok(piece)) = request.body().next().await {
            KEPT.fetch_add(piece.len(), Ordering::Relaxed);
            kept.push(piece);
        }
        Response::text("hello")
    }
    for driver in drivers() {
        KEPT.store(0, Ordering::Relaxed);
        let metrics = Metrics::new();
        // No time limit ends the connection that waits: it ends because its client leaves.
        let limits = Limits::default()
            .body_timeout(Duration::from_secs(1_000))
            .head_timeout(Duration::from_secs(1_000))
            .idle_timeout(Duration::from_secs(1_000));
        let server = serve_limited(driver, keeper, limits, &metrics);
        let keeper = |_| {
            let mut stream = server.connect();
            let head = b"PUT / HTTP/1.1\r\nHost: t\r\nContent-Length: 9999999\r\n\r\n";
            stream.write_all(head).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        };
        let mut keepers: Vec<TcpStream> = (0..40).map(keeper).collect();
        let waiting = loop {
            for stream in &mut keepers {
                let _ = stream.write(&[b'x'; 60_000]); // The socket may be full.
            }
            let mut other = server.connect();
            other
                .set_read_timeout(Some(Duration::from_millis(300)))
                .unwrap();
            other.write_all(get("/hello").as_bytes()).unwrap();
            let read = testing::read_some(&mut other, &mut [0; 4096]);
            if read
                .as_ref()
                .is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            {
                break other; // The server does not receive from it, for lack of memory.
            }
        };
        assert!(KEPT.load(Ordering::Relaxed) > MEMORY / 2);
        let open = || metric(&metrics, "onrush_connections_open");
        until(|| open() == keepers.len() as u64 + 1);
        drop(waiting);
        until(|| open() == keepers.len() as u64);
    }
}

/// Complete requests that are sent together get responses, also from a worker with little memory:
/// input that is left for later must not use the memory that is missing.
#[test]
fn whole_pipelines_are_served_with_little_memory() {
    let _dog = watchdog("whole_pipelines_are_served_with_little_memory");
    const CLIENTS: usize = 400;
    const REQUESTS: usize = 300;
    for driver in drivers() {
        let metrics = Metrics::new();
        let server = serve(driver, hello, &metrics);
        let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| server.connect()).collect();
        let requests = get("/hello").repeat(REQUESTS);
        for client in &mut clients {
            client.write_all(requests.as_bytes()).unwrap();
        }
        for client in &mut clients {
            let (mut responses, mut memory) = (0, [0; 16 * 1024]);
            let mut tail = Vec::new();
            while responses < REQUESTS {
                let n = read_some(client, &mut memory).expect("no reset");
                assert!(n > 0, "{driver:?}: closed after {responses} responses");
                tail.extend_from_slice(&memory[..n]);
                responses = tail.windows(9).filter(|w| *w == b"HTTP/1.1 ").count();
            }
            assert!(statuses(&tail).iter().all(|&status| status == 200));
        }
        assert_eq!(
            metric(&metrics, "onrush_memory_evictions_total"),
            0,
            "{driver:?}"
        );
    }
}
