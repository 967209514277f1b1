//! Responses that are being compressed while the pool for CPU work is full, on both drivers and in
//! the simulator. Nothing but the test runs a job of these pools.

use crate::common::*;
use onrush::offload::{ManualExecutor, OffloadJob, OffloadOptions, OffloadPool};
use onrush_files::FilesOptions;
use std::future::Future;
use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Why a pool refuses jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Its queue is full, so it refuses them at once.
    Full,
    /// No thread takes them in time.
    Late,
}

/// Longer than a test that runs a job needs until it has seen it.
const WAIT_MAX: Duration = Duration::from_secs(2);

fn options() -> FilesOptions {
    FilesOptions {
        compress: true,
        ..FilesOptions::default()
    }
}

/// A pool with room for one job.
fn pool(wait_max: Duration) -> (OffloadPool, ManualExecutor) {
    let options = OffloadOptions::default().queue_max(1).wait_max(wait_max);
    OffloadPool::manual(&options)
}

/// A job that takes the only place of a pool.
fn fill(pool: &OffloadPool) -> OffloadJob<()> {
    let mut job = pool.run(|_| ());
    let polled = Pin::new(&mut job).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(polled, Poll::Pending, "another job has the place");
    job
}

/// Text that becomes smaller.
fn text(bytes: usize) -> Vec<u8> {
    let lines = (0u64..).flat_map(|number| {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        format!("line {number} has the value {mixed}\n").into_bytes()
    });
    lines.take(bytes).collect()
}

fn ask(server: &mut TestServer, path: &str, coding: &str) -> Connection {
    let mut connection = server.connect();
    let fields = format!("Host: test\r\nAccept-Encoding: {coding}\r\nConnection: close");
    let request = format!("GET {path} HTTP/1.1\r\n{fields}\r\n\r\n");
    server.send(&mut connection, request.as_bytes());
    connection
}

/// The compressed response to `GET /a.txt` whose first piece the pool has compressed, and no other.
fn begin_compressed(
    server: &mut TestServer,
    (pool, hand): (&OffloadPool, &ManualExecutor),
    coding: &str,
) -> Connection {
    let connection = ask(server, "/a.txt", coding);
    wait_until(server, |_| pool.stats().queued == 1);
    assert!(hand.run_one());
    connection
}

fn decode(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    let read = match coding {
        "gzip" => flate2::read::GzDecoder::new(bytes).read_to_end(&mut content),
        _ => zstd::stream::read::Decoder::new(bytes)
            .expect("a decoder")
            .read_to_end(&mut content),
    };
    read.expect("complete and valid");
    content
}

#[test]
fn a_compressed_object_under_way_outlasts_a_busy_pool() {
    let content = text(300_000);
    for (refusal, coding) in [
        (Refusal::Full, "gzip"),
        (Refusal::Full, "zstd"),
        (Refusal::Late, "gzip"),
    ] {
        on_all_backends_with_pool(
            &options(),
            || pool(WAIT_MAX),
            |server, pool, hand| {
                if refusal == Refusal::Full && !server.is_simulated() {
                    return; // Its next piece has taken the place already.
                }
                server.add("a.txt", &content);
                let mut connection = begin_compressed(server, (pool, &hand), coding);
                let _filled = (refusal == Refusal::Full).then(|| fill(pool));
                let response = server.receive_in_time(&mut connection);
                let reply = Reply::parse(&response, false);
                assert_eq!(reply.status, 200, "{refusal:?}");
                assert_eq!(reply.field("content-encoding"), Some(coding));
                assert!(decode(coding, &reply.body) == content, "{refusal:?}");
                let stats = pool.stats();
                assert_eq!(stats.done_total, 1, "{refusal:?}");
                let refused = match refusal {
                    Refusal::Full => stats.full_total,
                    Refusal::Late => stats.late_total,
                };
                assert!(refused > 1, "{refusal:?}: {stats:?}");
            },
        );
    }
}

#[test]
fn a_compressed_archive_outlasts_a_busy_pool() {
    let content = text(700_000);
    for refusal in [Refusal::Full, Refusal::Late] {
        on_all_backends_with_pool(
            &options(),
            || pool(Duration::from_millis(100)),
            |server, pool, _hand| {
                server.add("folder/a.txt", &content);
                let _filled = (refusal == Refusal::Full).then(|| fill(pool));
                let mut connection = ask(server, "/folder/?archive=tar.zst", "identity");
                let response = server.receive_in_time(&mut connection);
                let reply = Reply::parse(&response, false);
                assert_eq!(reply.status, 200);
                let tar = decode("zstd", &reply.body);
                assert!(tar.windows(content.len()).any(|found| found == content));
                assert!(tar.ends_with(&[0; 1024]), "it is complete");
                let stats = pool.stats();
                assert_eq!(stats.done_total, 0, "{refusal:?}");
                let refused = match refusal {
                    Refusal::Full => stats.full_total,
                    Refusal::Late => stats.late_total,
                };
                assert!(refused > 1, "{refusal:?}: {stats:?}");
            },
        );
    }
}

/// Checks that the job of a piece is withdrawn when its client leaves, and that no task is left.
/// `begin` returns the connection of a response that waits for the job.
fn assert_leaving_ends_the_wait(
    begin: impl Fn(&mut TestServer, &OffloadPool, &ManualExecutor) -> Connection,
) {
    on_all_backends_with_pool(
        &options(),
        || pool(Duration::from_secs(1_000_000)),
        |server, pool, hand| {
            server.add("a.txt", &text(300_000));
            server.add("folder/b.txt", &text(700_000));
            let connection = begin(server, pool, &hand);
            wait_until(server, |_| pool.stats().queued == 1);
            server.abort(connection);
            wait_until(server, |_| pool.stats().queued == 0);
            // One sends the frames of all connections.
            let of_engine = usize::from(over_http2());
            wait_until(server, |server| {
                server.live_tasks().is_none_or(|it| it == of_engine)
            });
            let stats = pool.stats();
            assert_eq!((stats.dropped_total, stats.late_total), (1, 0));
            assert!(!hand.run_one());
        },
    );
}

#[test]
fn a_client_that_leaves_ends_the_wait_of_its_archive() {
    assert_leaving_ends_the_wait(|server, _, _| {
        ask(server, "/folder/?archive=tar.zst", "identity")
    });
}

#[test]
fn a_client_that_leaves_ends_the_wait_of_its_object() {
    assert_leaving_ends_the_wait(|server, pool, hand| {
        begin_compressed(server, (pool, hand), "zstd")
    });
}
