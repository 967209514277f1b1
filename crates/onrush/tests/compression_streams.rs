//! Compressed responses while they are sent: streams that are slow, fail, or lose their client, and
//! who compresses.

use crate::common::coded::{Items, KINDS, Reply, bodies, lines, receive_all, request, router};
use crate::common::{calm, plain, text};
use onrush::body::Trailers;
use onrush::compression::compress;
use onrush::offload::{ManualExecutor, OffloadOptions, OffloadPool};
use onrush::sim::Simulation;
use onrush::sse::{Event, Sse};
use onrush::{Body, BodySender, Bytes, File, Limits, Metrics, Part, Request, Response, Router};
use onrush_rt::driver::sim::Client;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use testing::TempDir;

thread_local! {
    /// The senders of the responses of [`written`]. The simulator runs on the thread of the test.
    static SENDERS: RefCell<Vec<BodySender>> = const { RefCell::new(Vec::new()) };
}

/// A router whose responses the test writes.
fn written() -> Router {
    let handler = async |_: Request| {
        let (sender, body) = Body::channel(1 << 20);
        SENDERS.with_borrow_mut(|senders| senders.push(sender));
        Response::text(body)
    };
    Router::new().get("/", handler).layer(compress)
}

/// Sends a piece in each response. Returns how many of them have ended.
fn write_all(sim: &mut Simulation, piece: &[u8]) -> usize {
    let mut senders = SENDERS.take();
    let all = senders.len();
    let piece = Bytes::copy_from_slice(piece);
    let task = sim.worker().spawn(async move {
        let mut open = Vec::new();
        for mut sender in senders.drain(..) {
            if sender.send(piece.clone()).await.is_ok() {
                open.push(sender);
            }
        }
        SENDERS.set(open);
    });
    sim.run();
    assert!(task.is_finished());
    all - SENDERS.with_borrow(Vec::len)
}

#[test]
fn what_a_stream_has_yielded_arrives_before_the_next_piece_is_made() {
    let mut later = lines(100_000);
    later.truncate(later.len() - 1);
    // Little is compressed by the worker, more by the pool; the third flush is of a piece that the
    // encoder would keep back.
    let pieces = [&b"first"[..], b"x", &later[..30_000], &later, b"\n"];
    for coding in ["gzip", "zstd"] {
        let mut sim = calm(&written(), Limits::default());
        let client = sim.connect();
        // HTTP/1.0, so that the content is not chunked.
        let request = format!("GET / HTTP/1.0\r\nAccept-Encoding: {coding}\r\n\r\n");
        sim.send(&client, request.as_bytes());
        let (mut response, mut sent) = (Vec::new(), Vec::new());
        for piece in pieces {
            assert_eq!(write_all(&mut sim, piece), 0);
            sim.run();
            sent.extend_from_slice(piece);
            response.extend(client.receive().unwrap());
            let reply = Reply::new(&response);
            assert_eq!(reply.coding(), Some(coding));
            let start = Reply::decoded_start(coding, &reply.content);
            assert!(start == sent, "{coding}: {} of {}", start.len(), sent.len());
            assert!(client.receive().unwrap().is_empty() && !client.at_end());
        }
        SENDERS.take().into_iter().for_each(BodySender::finish);
        response.extend(receive_all(&mut sim, &client));
        assert!(client.at_end());
        assert!(Reply::new(&response).decoded() == sent);
    }
}

/// More clients than there is memory for encoders: the last ones get what is not compressed. When
/// all have left, their encoders have, too.
#[test]
fn clients_that_leave_free_their_encoders_and_drop_their_streams() {
    let mut sim = calm(&written(), Limits::default());
    for _ in 0..3 {
        let mut clients = Vec::new();
        for _ in 0..40 {
            let client = sim.connect();
            sim.send(&client, request("GET", "/", "zstd").as_bytes());
            clients.push(client);
        }
        assert_eq!(write_all(&mut sim, &lines(2000)), 0);
        let coded = clients
            .iter()
            .map(|client| text(&client.receive().unwrap()));
        let coded: Vec<bool> = coded
            .map(|it| it.contains("\r\nContent-Encoding: "))
            .collect();
        assert_eq!(coded.iter().filter(|coded| **coded).count(), 32);
        assert!(
            coded.is_sorted_by(|a, b| a >= b),
            "the first ones are compressed"
        );
        clients.iter().for_each(Client::reset);
        sim.run();
        assert_eq!(write_all(&mut sim, b"in vain"), 40);
        assert_eq!(sim.worker().live_tasks(), 0);
    }
}

/// The client sees that content is incomplete.
#[test]
fn streams_that_fail_or_have_another_length_are_cut_off() {
    let content = lines(20_000);
    for change in [-1i64, 1, 0] {
        let content = content.clone();
        let router = router(move || {
            let mut items = Items::new(&content, 5000, false);
            let length = content.len() as i64 + change;
            if change == 0 {
                items.left.push_back(Err(io::Error::other("on purpose")));
            }
            Response::text(Body::stream(items, (change != 0).then_some(length as u64)))
        });
        for coding in ["gzip", "zstd"] {
            let mut sim = calm(&router, Limits::default());
            let client = sim.connect();
            let request = format!("GET / HTTP/1.1\r\nHost: t\r\nAccept-Encoding: {coding}\r\n\r\n");
            sim.send(&client, request.as_bytes());
            let response = receive_all(&mut sim, &client);
            assert!(client.at_end());
            assert!(!response.ends_with(b"\r\n0\r\n\r\n"), "{coding} {change}");
        }
    }
}

/// What precedes the part could be compressed, but is not all.
#[test]
fn a_file_that_is_shorter_than_its_part_makes_no_complete_response() {
    let folder = TempDir::new();
    let path = folder.path().join("short");
    std::fs::write(&path, lines(1000)).unwrap();
    let file = Arc::new(File::from(std::fs::File::open(&path).unwrap()));
    for length in [5000, 100_000] {
        let file = file.clone();
        let router = router(move || {
            let before = Part::Bytes(lines(2000).into());
            let part = Part::File {
                file: file.clone(),
                offset: 0,
                length,
            };
            Response::text(Body::parts([before, part]))
        });
        for coding in ["gzip", "zstd"] {
            let mut sim = calm(&router, Limits::default());
            let client = sim.connect();
            sim.send(&client, request("GET", "/", coding).as_bytes());
            let response = receive_all(&mut sim, &client);
            assert!(client.at_end());
            if response.is_empty() {
                continue; // The connection was reset before it was received.
            }
            assert!(!response.ends_with(b"\r\n0\r\n\r\n"), "{coding} {length}");
            let end = response.windows(4).position(|it| it == b"\r\n\r\n");
            let (head, content) = response.split_at(end.expect("a whole head") + 4);
            let said = text(head)
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok());
            assert!(
                said.is_none_or(|said: usize| content.len() < said),
                "{}",
                text(head)
            );
        }
    }
}

#[test]
fn trailers_follow_compressed_content() {
    let handler = async |_: Request| {
        let trailers = Trailers::new();
        trailers.append("X-Sum", "7").unwrap();
        let body = Body::stream(Items::new(&lines(50_000), 9000, true), None);
        Response::text(body.with_trailers(trailers))
    };
    let router = Router::new().get("/", handler).layer(compress);
    let mut sim = calm(&router, Limits::default());
    let client = sim.connect();
    sim.send(&client, request("GET", "/", "gzip").as_bytes());
    let response = receive_all(&mut sim, &client);
    let response = response
        .strip_suffix(b"X-Sum: 7\r\n\r\n")
        .expect("a trailer");
    let reply = Reply::new(&[response, b"\r\n"].concat());
    assert_eq!(reply.coding(), Some("gzip"));
    assert!(reply.decoded() == lines(50_000));
}

#[test]
fn events_are_sent_as_they_are_and_at_once() {
    let handler = async |request: Request| {
        let (mut sender, events) = Sse::channel(4096);
        let worker = request.worker().clone();
        let task = request.worker().spawn(async move {
            for number in 0.. {
                let event = Event::new(number.to_string());
                if sender.send(event).await.is_err() {
                    return;
                }
                worker.sleep(Duration::from_secs(1)).await;
            }
        });
        task.detach();
        events
    };
    let mut sim = calm(
        &Router::new().get("/", handler).layer(compress),
        Limits::default(),
    );
    let client = sim.connect();
    sim.send(
        &client,
        b"GET / HTTP/1.0\r\nAccept-Encoding: gzip, zstd\r\n\r\n",
    );
    let first = text(&client.receive().unwrap());
    assert!(first.ends_with("\r\n\r\ndata: 0\n\n"), "{first}");
    assert!(!first.contains("Content-Encoding") && !first.contains("Vary"));
    sim.advance(Duration::from_secs(1) + Duration::from_millis(1));
    assert_eq!(text(&client.receive().unwrap()), "data: 1\n\n");
}

/// A simulation whose jobs of the offload pool are run by hand.
fn by_hand(router: &Router, queue_max: usize) -> (Simulation, ManualExecutor, OffloadPool) {
    let (pool, hand) = OffloadPool::manual(&OffloadOptions::default().queue_max(queue_max));
    let (limits, metrics) = (Limits::default(), Metrics::new());
    let network = plain(1 << 20);
    let of_sim = pool.clone();
    let sim = Simulation::builder(1)
        .limits(limits)
        .network(network)
        .metrics(&metrics)
        .offload_pool(of_sim)
        .start(router);
    (sim, hand, pool)
}

#[test]
fn only_small_pieces_are_compressed_by_the_worker() {
    let folder = TempDir::new();
    for size in [8192, 8193, 65_537, 400_001] {
        let content = lines(size);
        let router = bodies(&content, &folder);
        for kind in KINDS {
            for coding in ["gzip", "zstd"] {
                let (mut sim, hand, _) = by_hand(&router, 10);
                let client = sim.connect();
                sim.send(
                    &client,
                    request("GET", &format!("/{kind}"), coding).as_bytes(),
                );
                let (mut response, mut jobs) = (Vec::new(), 0);
                while !client.at_end() {
                    response.extend(client.receive().unwrap());
                    jobs += usize::from(hand.run_one());
                    sim.advance(Duration::from_millis(1));
                }
                response.extend(client.receive().unwrap());
                let reply = Reply::new(&response);
                assert!(reply.decoded() == content, "{size} {kind} {coding}");
                assert!(reply.coding().is_some());
                let pieces = size.div_ceil(64 * 1024);
                match size {
                    8192 => assert_eq!(jobs, 0, "{kind} {coding}"),
                    _ => assert!(
                        jobs >= pieces - 1 && jobs > 0,
                        "{size} {kind} {coding}: {jobs}"
                    ),
                }
            }
        }
    }
}

/// The encoder may keep all of it back until the flush, which then compresses all of it.
#[test]
fn a_flush_of_much_that_the_encoder_holds_is_a_job() {
    let content = lines(64 * 1024 + 2);
    for coding in ["gzip", "zstd"] {
        let (mut sim, hand, pool) = by_hand(&written(), 10);
        let client = sim.connect();
        let request = format!("GET / HTTP/1.0\r\nAccept-Encoding: {coding}\r\n\r\n");
        sim.send(&client, request.as_bytes());
        assert_eq!(write_all(&mut sim, &content), 0);
        let mut response = client.receive().unwrap();
        for job in ["the first 64 KiB", "the rest, and the flush"] {
            assert_eq!(pool.stats().queued, 1, "{coding}: {job}");
            assert!(hand.run_one());
            sim.run();
        }
        assert!(!hand.run_one());
        response.extend(client.receive().unwrap());
        let start = Reply::decoded_start(coding, &Reply::new(&response).content);
        assert!(start == content, "{coding}");
        // A little behind it is the worker's again.
        assert_eq!(write_all(&mut sim, b"a little"), 0);
        assert!(!hand.run_one());
        response.extend(client.receive().unwrap());
        let start = Reply::decoded_start(coding, &Reply::new(&response).content);
        assert!(start.ends_with(b"a little"), "{coding}");
        SENDERS.take().into_iter().for_each(BodySender::finish);
    }
}

#[test]
fn a_pool_that_refuses_leaves_known_content_as_it_is_and_streams_to_the_worker() {
    let folder = TempDir::new();
    let content = lines(100_000);
    let router = bodies(&content, &folder);
    for (kind, coding) in KINDS
        .iter()
        .flat_map(|kind| [(kind, "gzip"), (kind, "zstd")])
    {
        let (mut sim, hand, _) = by_hand(&router, 1);
        // Another job occupies the queue.
        let job = sim.worker().offload(|| ());
        let client = sim.connect();
        sim.send(
            &client,
            request("GET", &format!("/{kind}"), coding).as_bytes(),
        );
        let mut response = client.receive().unwrap();
        let is_stream = !["bytes", "file", "parts"].contains(kind);
        assert_eq!(client.at_end(), !is_stream, "{kind}");
        response.extend(receive_all(&mut sim, &client));
        drop((job, hand));
        let reply = Reply::new(&response);
        assert_eq!(reply.coding(), is_stream.then_some(coding), "{kind}");
        assert!(reply.decoded() == content, "{kind}");
    }
}

/// The pool compresses the first piece, and refuses the others at once or late.
#[test]
fn compressed_content_under_way_outlasts_a_busy_pool() {
    let folder = TempDir::new();
    let content = lines(200_000);
    let router = bodies(&content, &folder);
    for (kind, coding) in KINDS
        .iter()
        .flat_map(|kind| [(kind, "gzip"), (kind, "zstd")])
    {
        for is_full in [true, false] {
            let (mut sim, hand, pool) = by_hand(&router, 1);
            let client = sim.connect();
            let request = request("GET", &format!("/{kind}"), coding);
            sim.send(&client, request.as_bytes());
            while !hand.run_one() {
                sim.advance(Duration::from_millis(1));
            }
            let _job = is_full.then(|| sim.worker().offload(|| ()));
            let reply = Reply::new(&receive_all(&mut sim, &client));
            assert_eq!(reply.coding(), Some(coding), "{kind}");
            assert!(reply.decoded() == content, "{kind} {coding}");
            let stats = pool.stats();
            let refused = (stats.full_total > 0, stats.late_total > 0);
            assert_eq!(refused, (is_full, !is_full), "{kind}: {stats:?}");
        }
    }
}

/// A job that waits is cancelled, and its response is gone.
#[test]
fn a_client_that_leaves_cancels_the_job_of_its_response() {
    let folder = TempDir::new();
    let router = bodies(&lines(300_000), &folder);
    for kind in KINDS {
        let (mut sim, hand, pool) = by_hand(&router, 10);
        let client = sim.connect();
        sim.send(
            &client,
            request("GET", &format!("/{kind}"), "zstd").as_bytes(),
        );
        sim.run();
        assert_eq!(pool.stats().queued, 1, "{kind}");
        client.reset();
        sim.run();
        assert_eq!(pool.stats().queued, 0, "{kind}");
        assert!(!hand.run_one(), "{kind}");
        assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
    }
}
