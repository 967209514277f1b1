//! Services that fail: each failure is an error that says what the client can do, within the time
//! limits, and never bytes that look complete.

use crate::common::{block_on, read_all};
use onrush_remote::{Check, Options, RemoteStore};
use onrush_store::{Condition, Key, Kind, ListHow, Store, StoreError};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use testing_s3::canned::{self, Canned, FOUND, Reply};
use testing_s3::{Bucket, KEY};

fn store(server: &Canned) -> RemoteStore {
    let mut options = Options::default();
    options.read_timeout = Duration::from_millis(300);
    options.operation_timeout = Duration::from_secs(2);
    options.retries = 2;
    options.outage_after = Duration::MAX;
    open(server, options)
}

fn open(server: &Canned, options: Options) -> RemoteStore {
    let endpoint = format!("http://{}", server.address);
    let location = "s3://bucket".parse().expect("a location");
    RemoteStore::at(&endpoint, KEY, location, options).expect("a store")
}

fn key(text: &str) -> Key {
    Key::parse(text.as_bytes()).expect("a key")
}

fn status(line: &str) -> Reply {
    Reply::Send(canned::status(line))
}

/// The error of each operation on a service that always replies so.
fn errors(reply: &Reply) -> Vec<StoreError> {
    let server = Canned::new(vec![reply.clone()]);
    let store = store(&server);
    let at = key("a");
    block_on(async {
        let get = store.get(&at).await.map(drop);
        let meta = store.meta(&at).await.map(drop);
        let list = store.list(None, ListHow::default()).await.map(drop);
        let delete = store.delete(&at, Kind::File, Condition::None).await;
        let put = async {
            let mut upload = store.stage(&at, Condition::None, Some(3)).await?;
            upload.write(b"abc".to_vec()).await?;
            upload.commit().await.map(drop)
        };
        let put = put.await;
        let all = [get, meta, list, delete.map(drop), put];
        all.map(|result| result.expect_err("the service fails"))
            .into()
    })
}

#[test]
fn failures_of_the_service_have_their_meaning() {
    let retry_after = Some(Duration::from_secs(3));
    for (reply, expected) in [
        (
            status("503 Slow Down\r\nRetry-After: 3"),
            StoreError::Throttled { retry_after },
        ),
        (status("500 Internal"), StoreError::Unavailable),
        (status("501 Not Implemented"), StoreError::Unsupported),
        (Reply::Close, StoreError::Unavailable),
        (Reply::Silence, StoreError::Timeout),
        (status("200 OK"), StoreError::BadResponse),
        (status("302 Found"), StoreError::BadResponse),
        (status("400 Bad Request"), StoreError::BadResponse),
    ] {
        let mut errors = errors(&reply);
        let put = errors.pop().expect("that of a PUT");
        assert_eq!(errors, [expected; 4], "{reply:?}");
        let put_expected = match expected {
            StoreError::Unavailable => StoreError::Interrupted, // It may have been made.
            expected => expected,
        };
        assert_eq!(put, put_expected, "{reply:?}");
    }
    for error in errors(&status("403 Forbidden")) {
        assert!(
            matches!(error, StoreError::PermissionDenied(_)),
            "{error:?}"
        );
    }
}

/// A proxy may respond with 503 after it has passed the request on.
#[test]
fn a_change_was_not_made_if_the_service_says_so() {
    let busy = |body: &str| {
        let length = body.len();
        Reply::Send(format!(
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        ))
    };
    let is_busy = StoreError::Throttled { retry_after: None };
    let retry_after = Some(Duration::from_secs(3));
    for (reply, expected) in [
        (busy(""), StoreError::Interrupted),
        (
            busy("upstream connect error or disconnect/reset before headers"),
            StoreError::Interrupted,
        ),
        (busy("<Error><Code>SlowDown</Code></Error>"), is_busy),
        (
            busy("<Error><Code>ServiceUnavailable</Code></Error>"),
            is_busy,
        ),
        (
            status("503 Slow Down\r\nRetry-After: 3"),
            StoreError::Throttled { retry_after },
        ),
        (status("429 Too Many"), is_busy),
    ] {
        for bytes in [3, 2 << 20] {
            let server = Canned::new(vec![status("404 Not Found"), reply.clone()]);
            let put = put_after_head(&server, bytes);
            assert_eq!(put, Err(expected), "{bytes}, {reply:?}");
        }
        let server = Canned::new(vec![status(FOUND), reply.clone()]);
        let deleted = block_on(store(&server).delete(&key("a"), Kind::File, Condition::None));
        assert_eq!(deleted.map(drop), Err(expected), "{reply:?}");
    }
}

/// Nothing was sent, so nothing was changed.
#[test]
fn a_change_without_a_connection_was_not_made() {
    let port = testing::ReservedPort::new().expect("a port without a listener");
    let location = "s3://bucket".parse().expect("a location");
    let mut options = Options::default();
    (options.retries, options.outage_after) = (1, Duration::MAX);
    let store = RemoteStore::at(
        &format!("http://{}", port.address()),
        KEY,
        location,
        options,
    );
    let store = store.expect("a store");
    block_on(async {
        let deleted = store.delete(&key("a"), Kind::File, Condition::None).await;
        assert_eq!(deleted.map(drop), Err(StoreError::Unavailable));
        for bytes in [3, 2 << 20] {
            let put = async {
                let mut upload = store.stage(&key("a"), Condition::None, Some(bytes)).await?;
                upload.write(vec![0; bytes as usize]).await?;
                upload.commit().await.map(drop)
            };
            assert_eq!(put.await, Err(StoreError::Unavailable), "{bytes}");
        }
    });
}

/// What the repetition of a change is refused for says nothing about the first request.
#[test]
fn a_refused_repetition_does_not_hide_a_change() {
    for refusal in ["403 Forbidden", "404 Not Found", "501 No", "507 Full"] {
        for first in [status("500 Internal"), Reply::Close] {
            let server = Canned::new(vec![status(FOUND), first.clone(), status(refusal)]);
            let store = store(&server);
            let deleted = block_on(store.delete(&key("a"), Kind::File, Condition::None));
            assert_eq!(deleted.map(drop), Err(StoreError::Interrupted), "{refusal}");
            let server = Canned::new(vec![status("404 Not Found"), first, status(refusal)]);
            let put = put_after_head(&server, 3);
            assert_eq!(put, Err(StoreError::Interrupted), "{refusal}");
        }
    }
}

/// Sends an object, after the first reply was used for the question whether there is one.
fn put_after_head(server: &Canned, bytes: usize) -> Result<(), StoreError> {
    let store = store(server);
    block_on(async {
        let size = Some(bytes as u64);
        let mut upload = store.stage(&key("a"), Condition::None, size).await?;
        let end = Instant::now() + Duration::from_secs(60);
        while server.requests().is_empty() {
            assert!(Instant::now() < end, "no request");
            thread::sleep(Duration::from_millis(1));
        }
        upload.write(vec![0; bytes]).await?;
        upload.commit().await.map(drop)
    })
}

#[test]
fn a_failure_that_passes_is_not_noticed() {
    let listing = "<?xml version=\"1.0\"?><ListBucketResult><Name>bucket</Name>\
        <Contents><Key>a</Key><Size>3</Size><ETag>\"x\"</ETag>\
        <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>";
    let found = Reply::Send(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{listing}",
        listing.len()
    ));
    let server = Canned::new(vec![Reply::Close, status("503 Slow Down"), found]);
    let store = store(&server);
    let page = block_on(store.list(None, ListHow::default())).expect("a page");
    assert_eq!(page.entries.len(), 1);
    assert_eq!(server.requests().len(), 3);
    assert_eq!(store.metrics().retries(), 2);
}

#[test]
fn a_truncated_object_is_an_error() {
    // The first has a short object, which is received when it is opened; the second a long one.
    for size in [10, 300_000] {
        let response = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nETag: \"x\"\r\nConnection: close\r\n\
             Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\nabc"
        );
        // The rest is requested, in vain: the service does not respond, or sends the beginning.
        let server = Canned::new(vec![Reply::Send(response.clone())]);
        let read = block_on(async {
            let object = self::store(&server).get(&key("a")).await?;
            read_all(&object).await
        });
        assert_eq!(read, Err(StoreError::BadResponse), "{size}");
        let server = Canned::new(vec![Reply::Send(response.clone()), Reply::Close]);
        let store = store(&server);
        let read = block_on(async {
            let object = store.get(&key("a")).await?;
            read_all(&object).await
        });
        // A stream, of which bytes have been sent, does not tell which request has failed.
        let expected = match size {
            10 => StoreError::Unavailable,
            _ => StoreError::BadResponse,
        };
        assert_eq!(read, Err(expected), "{size}");
        if size == 10 {
            // Another object that is shorter has the key now.
            let shorter = status("416 Range Not Satisfiable");
            let server = Canned::new(vec![Reply::Send(response), shorter]);
            let read = block_on(self::store(&server).get(&key("a"))).map(drop);
            assert_eq!(read, Err(StoreError::Changed));
        }
    }
}

/// A response to a listing.
fn listing() -> Reply {
    let page = "<ListBucketResult><Name>bucket</Name></ListBucketResult>";
    Reply::Send(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
        page.len()
    ))
}

/// After an outage has been found, requests are not sent to the service. A request of the store
/// itself finds the end of the outage, even if no client asks.
#[test]
fn requests_fail_at_once_during_an_outage() {
    let mut replies = vec![Reply::Close; 5];
    replies.push(listing());
    let server = Canned::new(replies);
    let mut options = Options::default();
    (options.retries, options.outage_after) = (0, Duration::ZERO);
    let store = open(&server, options);
    assert!(store.is_reachable());
    let get = || block_on(store.get(&key("a"))).map(drop);
    for _ in 0..4 {
        assert_eq!(get(), Err(StoreError::Unavailable));
    }
    assert!(!store.is_reachable());
    let put = block_on(async {
        let mut upload = store
            .stage(&key("a"), Condition::None, Some(2 << 20))
            .await?;
        upload.write(vec![0; 2 << 20]).await?;
        upload.commit().await.map(drop)
    });
    assert_eq!([get(), put], [Err(StoreError::Unavailable); 2]);
    let gets = |requests: &[String]| requests.iter().filter(|r| r.contains(" /bucket/a")).count();
    assert_eq!(gets(&server.requests()), 4);
    // The first request of the store fails, and the second does not.
    let end = Instant::now() + Duration::from_secs(60);
    while !store.is_reachable() {
        assert!(Instant::now() < end, "the store stays unreachable");
        thread::sleep(Duration::from_millis(10));
    }
    assert!(block_on(store.list(None, ListHow::default())).is_ok());
}

/// A service that accepts requests and never responds is out of service long before a request
/// reaches its time limit. What waits then ends, and further requests fail at once.
#[test]
fn a_service_that_hangs_cannot_be_reached() {
    let server = Canned::new(vec![Reply::Silence]);
    let mut options = Options::default();
    options.outage_after = Duration::from_secs(1);
    options.read_timeout = Duration::from_secs(3600);
    options.operation_timeout = Duration::from_secs(3600);
    let store = open(&server, options);
    block_on(async {
        let get = store.get(&key("a")).await.map(drop);
        assert_eq!(get, Err(StoreError::Unavailable));
        assert!(!store.is_reachable());
        let list = store.list(None, ListHow::default()).await.map(drop);
        let delete = store.delete(&key("a"), Kind::File, Condition::None).await;
        assert_eq!([list, delete.map(drop)], [Err(StoreError::Unavailable); 2]);
    });
}

/// The same, if no client waits any more.
#[test]
fn a_service_that_hangs_is_noticed_after_clients_have_given_up() {
    let server = Canned::new(vec![Reply::Silence]);
    let mut options = Options::default();
    options.outage_after = Duration::from_secs(1);
    let store = open(&server, options);
    {
        let at = key("a");
        let mut get = std::pin::pin!(store.get(&at));
        let end = Instant::now() + Duration::from_secs(60);
        while server.requests().is_empty() {
            assert!(Instant::now() < end, "no request");
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(get.as_mut().poll(&mut cx).is_pending());
            thread::sleep(Duration::from_millis(1));
        }
    }
    let end = Instant::now() + Duration::from_secs(60);
    while store.is_reachable() {
        assert!(Instant::now() < end, "the store seems to be reachable");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_error_response_that_is_truncated_is_malformed() {
    let truncated =
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\nConnection: close\r\n\r\nabc";
    let server = Canned::new(vec![Reply::Send(truncated.to_owned())]);
    let store = store(&server);
    let at = key("a");
    block_on(async {
        let get = store.get(&at).await.map(drop);
        let list = store.list(None, ListHow::default()).await.map(drop);
        let put = async {
            let mut upload = store.stage(&at, Condition::None, Some(3)).await?;
            upload.write(b"abc".to_vec()).await?;
            upload.commit().await.map(drop)
        };
        for result in [get, list, put.await] {
            assert_eq!(result, Err(StoreError::BadResponse));
        }
    });
}

#[test]
fn a_check_distinguishes_refusals_from_outages() {
    let check = |reply| store(&Canned::new(vec![reply])).check();
    assert!(matches!(check(status("403 Forbidden")), Check::Refuses(_)));
    assert!(matches!(check(status("404 Not Found")), Check::Refuses(_)));
    for (code, meaning) in [
        ("NoSuchBucket", "there is no such bucket ("),
        (
            "SignatureDoesNotMatch",
            "the AWS_SECRET_ACCESS_KEY is wrong (",
        ),
        ("AccessDenied", "the key may not list the bucket ("),
    ] {
        let body = format!("<Error><Code>{code}</Code></Error>");
        let head = "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length:";
        let reply = Reply::Send(format!("{head} {}\r\n\r\n{body}", body.len()));
        let Check::Refuses(reason) = check(reply) else {
            panic!("{code} is no refusal");
        };
        assert!(
            reason.starts_with(meaning) && reason.contains(code),
            "{reason}"
        );
    }
    // Another server has the address.
    assert!(matches!(check(status("200 OK")), Check::Refuses(_)));
    for reply in [status("503 Slow Down"), Reply::Close, Reply::Silence] {
        assert!(matches!(check(reply), Check::Unreachable(_)));
    }
}

/// Several refusals in a row may concern only what one client asks for. The store finds out.
#[test]
fn a_revoked_key_is_noticed() {
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket");
    let get = || block_on(store.get(&key("a"))).map(drop);
    let wait_for = |is_refused: bool| {
        let end = Instant::now() + Duration::from_secs(60);
        while store.is_refused() != is_refused {
            assert!(Instant::now() < end, "the store does not notice it");
            thread::sleep(Duration::from_millis(10));
        }
    };
    assert_eq!(get(), Err(StoreError::NotFound));
    bucket.service.is_revoked.store(true, Ordering::Relaxed);
    for _ in 0..4 {
        assert!(matches!(get(), Err(StoreError::PermissionDenied(_))));
    }
    wait_for(true);
    // It is not an outage: requests are sent, and a request of the store notices the end.
    assert!(store.is_reachable());
    assert!(matches!(get(), Err(StoreError::PermissionDenied(_))));
    bucket.service.is_revoked.store(false, Ordering::Relaxed);
    wait_for(false);
    assert_eq!(get(), Err(StoreError::NotFound));
}
