//! How often requests are made, for how long, and what they say about the service.

mod common;

use common::canned::{Canned, FOUND, Reply, status};
use common::{KEY, block_on, read_all};
use onrush_remote::{Options, RemoteStore};
use onrush_store::{Condition, Key, Store, StoreError, Upload, Version};
use std::thread;
use std::time::{Duration, Instant};

fn open(server: &Canned, change: impl FnOnce(&mut Options)) -> RemoteStore {
    let mut options = Options::default();
    options.outage_after = Duration::MAX;
    change(&mut options);
    let endpoint = format!("http://{}", server.address);
    let location = "s3://bucket".parse().expect("a location");
    RemoteStore::at(&endpoint, KEY, location, options).expect("a store")
}

fn key() -> Key {
    Key::parse(b"a").expect("a key")
}

async fn stage(store: &RemoteStore, condition: Condition, bytes: usize) -> Box<dyn Upload> {
    let upload = store.stage(&key(), condition, Some(bytes as u64)).await;
    upload.expect("an upload")
}

async fn put(store: &RemoteStore, condition: Condition, bytes: usize) -> Result<(), StoreError> {
    let mut upload = stage(store, condition, bytes).await;
    upload.write(vec![0; bytes]).await?;
    upload.commit().await.map(drop)
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The requests with a method and an outcome.
fn count(store: &RemoteStore, method: &str, outcome: &str) -> u64 {
    let all = store.metrics().requests();
    let mut found = all.iter().filter(|one| one.method == method);
    let found = found.find(|one| one.outcome == outcome);
    found.map_or(0, |one| one.buckets.iter().sum())
}

/// The requests whose head begins so.
fn requests(server: &Canned, beginning: &str) -> usize {
    let all = server.requests();
    all.iter()
        .filter(|head| head.starts_with(beginning))
        .count()
}

const PUT: &str = "PUT /bucket/a";

/// A server that finds out first whether the service evaluates conditions, and then gets `reply`.
fn conditional(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Canned {
    Canned::choosing(
        move |_, head| match head.contains("/.onrush/state/conditions") {
            true => Reply::Send(status("412 Precondition Failed")),
            false => reply(head),
        },
    )
}

/// A commit that replaces one of several versions asks and tries several times.
#[test]
fn a_call_has_one_limit_for_all_its_requests() {
    let late = |line| Reply::Delayed(Duration::from_millis(400), status(line));
    let server = conditional(move |head| match head.starts_with("HEAD ") {
        true => late(FOUND),
        false => late("412 Precondition Failed"),
    });
    let store = open(&server, |options| {
        options.operation_timeout = Duration::from_secs(1);
    });
    let current = Condition::Versions(vec![Version::parse(b"x").expect("a version")]);
    let result = block_on(async {
        let mut upload = stage(&store, current, 3).await;
        upload.write(vec![0; 3]).await?;
        upload.commit().await
    });
    assert_eq!(result.map(drop), Err(StoreError::Timeout));
}

/// In between, another client may have undone the change.
#[test]
fn a_conditional_put_that_may_have_been_made_is_not_repeated() {
    for reply in [
        Reply::Close,
        Reply::Send(status("500 Internal")),
        Reply::Send(status("502 Bad Gateway")),
        Reply::Send(status("503 Service Unavailable")),
    ] {
        let again = reply.clone();
        let server = conditional(move |_| again.clone());
        let result = block_on(put(&open(&server, |_| ()), Condition::Absent, 3));
        assert_eq!(result, Err(StoreError::Interrupted), "{reply:?}");
        assert_eq!(requests(&server, PUT), 1, "{reply:?}");
    }
    // It was not made.
    let server = conditional(|_| Reply::Send(status("429 Too Many")));
    let result = block_on(put(&open(&server, |_| ()), Condition::Absent, 3));
    assert_eq!(result, Err(StoreError::Throttled { retry_after: None }));
    assert!(requests(&server, PUT) > 1);
}

/// The client gets the response at once, and comes back later.
#[test]
fn a_request_is_not_repeated_before_the_service_wants_it() {
    let server = Canned::choosing(|_, head| {
        Reply::Send(status(match head.starts_with("HEAD ") {
            true => "404 Not Found",
            false => "503 Slow Down\r\nRetry-After: 30",
        }))
    });
    let store = open(&server, |_| ());
    let retry_after = Some(Duration::from_secs(30));
    let busy = StoreError::Throttled { retry_after };
    assert_eq!(block_on(store.get(&key())).map(drop), Err(busy));
    assert_eq!(requests(&server, "GET /bucket/a "), 1);
    for bytes in [3, 2 << 20] {
        assert_eq!(block_on(put(&store, Condition::None, bytes)), Err(busy));
    }
    assert_eq!(requests(&server, PUT), 2);
    assert_eq!(store.metrics().retries(), 0);
}

/// The bytes of an upload are passed on, and the service takes them without a response.
#[test]
fn an_upload_without_a_response_is_a_failure_of_the_service() {
    let server = Canned::choosing(|_, head| match head.starts_with("HEAD ") {
        true => Reply::Send(status("404 Not Found")),
        false => Reply::Silence,
    });
    let store = open(&server, |options| {
        (options.retries, options.outage_after) = (0, Duration::ZERO);
        options.operation_timeout = Duration::from_secs(2);
    });
    block_on(async {
        let mut uploads = Vec::new();
        for _ in 0..4 {
            let mut upload = stage(&store, Condition::None, 2 << 20).await;
            upload.write(vec![0; 2 << 20]).await.expect("sent");
            uploads.push(upload);
        }
        // A response later on would say that the service can be reached.
        wait_for("no responses", || count(&store, "HEAD", "4xx") == 4);
        for upload in uploads {
            let result = upload.commit().await;
            assert_eq!(result.map(drop), Err(StoreError::Timeout));
        }
    });
    assert_eq!(count(&store, "PUT", "failed"), 4);
    assert!(!store.is_reachable());
}

#[test]
fn an_upload_whose_client_leaves_is_no_failure_of_the_service() {
    let server = Canned::choosing(|_, head| match head.starts_with("HEAD ") {
        true => Reply::Send(status("404 Not Found")),
        false => Reply::Silence,
    });
    let store = open(&server, |_| ());
    let sent = 2 << 20;
    block_on(async {
        let mut upload = stage(&store, Condition::None, sent + 1).await;
        upload.write(vec![0; sent]).await.expect("sent");
        wait_for("no request", || requests(&server, PUT) == 1);
    });
    wait_for("no record", || count(&store, "PUT", "cancelled") == 1);
    assert_eq!(count(&store, "PUT", "failed"), 0);
    assert!((1..=sent as u64).contains(&store.metrics().sent_bytes()));
}

/// Only the bytes that have arrived are counted.
#[test]
fn bytes_that_never_arrive_are_not_counted() {
    let server = Canned::new(vec![Reply::Send(
        "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\nETag: \"x\"\r\nConnection: close\r\n\
         Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\nabc"
            .to_owned(),
    )]);
    let store = open(&server, |options| options.retries = 0);
    let read = block_on(async { read_all(&store.get(&key()).await?).await });
    assert_eq!(read, Err(StoreError::BadResponse));
    assert_eq!(store.metrics().received_bytes(), 3);
}

/// During an outage, one request at a time finds out when the service responds again.
#[test]
fn the_request_that_looks_for_the_end_of_an_outage_is_not_repeated() {
    let server = Canned::new(vec![Reply::Close]);
    let store = open(&server, |options| options.outage_after = Duration::ZERO);
    assert_eq!(
        block_on(store.get(&key())).map(drop),
        Err(StoreError::Unavailable)
    );
    assert!(!store.is_reachable());
    let before = store.metrics().retries();
    let probes = || {
        server
            .requests()
            .iter()
            .filter(|head| head.contains("list-type=2"))
            .count()
    };
    wait_for("no requests", || probes() >= 3);
    assert_eq!(store.metrics().retries(), before);
}

/// A URL with a signature may be in the log of a proxy, so it is of no use a minute later.
#[test]
fn a_signed_url_is_valid_for_a_minute() {
    let server = Canned::new(vec![
        Reply::Send(status("404 Not Found")),
        Reply::Send(status(FOUND)),
    ]);
    let store = open(&server, |_| {});
    let _ = block_on(put(&store, Condition::None, 2 << 20));
    let requests = server.requests();
    let expires: Vec<&str> = (requests.iter())
        .filter_map(|head| {
            head.split("X-Amz-Expires=")
                .nth(1)?
                .split(['&', ' '])
                .next()
        })
        .collect();
    assert_eq!(expires, ["60"], "{requests:?}");
}
