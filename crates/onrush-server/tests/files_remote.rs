//! `Files` in front of a service that misbehaves: the status of the response says what has failed.

#[allow(dead_code, unreachable_pub)]
#[path = "../../onrush-remote/tests/common/canned.rs"]
mod canned;
mod common;

use canned::{Canned, Reply};
use common::*;
use onrush::DriverPreference;
use onrush_remote::{Options, RemoteStore};
use std::sync::Arc;
use std::time::Duration;

fn response(head: &str, body: &str) -> Reply {
    let length = body.len();
    Reply::Send(format!(
        "HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    ))
}

/// Status, `Retry-After` and text.
type Failed = (u16, Option<String>, String);

/// The replies to a GET, a PUT, a DELETE and the listing of a folder, if the service replies so.
fn replies(reply: &Reply, options: &Options) -> [Failed; 4] {
    let service = Canned::new(vec![reply.clone()]);
    let location = "s3://bucket".parse().expect("a location");
    let endpoint = format!("http://{}", service.address);
    let store = RemoteStore::at(&endpoint, ("key", "secret"), location, options.clone());
    let store = Arc::new(store.expect("a store"));
    let mut server = TestServer::on_store(store, &writable(), DriverPreference::Epoll);
    [
        server.get("/a"),
        server.put("/a", b"content"),
        server.delete("/a"),
        server.get("/"),
    ]
    .map(|reply| {
        let retry_after = reply.field("retry-after").map(str::to_owned);
        (reply.status, retry_after, reply.text().to_owned())
    })
}

#[test]
fn each_failure_of_the_service_has_its_status() {
    let mut options = Options::default();
    options.read_timeout = Duration::from_millis(300);
    options.operation_timeout = Duration::from_secs(2);
    options.retries = 1;
    options.outage_after = Duration::MAX;
    let page = "<html><body>Log in to the network</body></html>";
    let one = Some("1");
    for (reply, status, retry_after, text) in [
        // What a proxy says in place of the service.
        (response("200 OK", page), 502, one, "malformed response"),
        (response("400 Bad", page), 502, one, "malformed response"),
        (response("302 Found", page), 502, one, "malformed response"),
        (response("200 OK", "<a><b>"), 502, one, "malformed response"),
        // Fewer bytes than announced.
        (
            Reply::Send("HTTP/1.1 400 Bad\r\nContent-Length: 100\r\n\r\nabc".to_owned()),
            502,
            one,
            "malformed response",
        ),
        (
            response("503 Slow Down\r\nRetry-After: 7", ""),
            503,
            Some("7"),
            "too many requests",
        ),
        (response("500 Internal", page), 503, one, "unavailable"),
        (response("502 Bad Gateway", page), 503, one, "unavailable"),
        (Reply::Close, 503, one, "unavailable"),
        (Reply::Silence, 504, one, "did not respond in time"),
        (
            response("403 Forbidden", page),
            403,
            None,
            "permission denied",
        ),
        (
            response("507 Insufficient Storage", ""),
            507,
            None,
            "the store is full",
        ),
    ] {
        for (got, retry, body) in replies(&reply, &options) {
            let what = format!("{reply:?}: {got} {retry:?} {body}");
            assert_eq!((got, retry.as_deref()), (status, retry_after), "{what}");
            // The same failure during a change says that it may have been made.
            let is_uncertain = text == "unavailable" && body.contains("failed during the change");
            assert!(body.contains(text) || is_uncertain, "{what}");
            assert!(
                !body.contains("disk") && !body.contains("file system"),
                "{what}"
            );
        }
    }
    // After an outage has been found, nothing is sent to the service.
    (options.retries, options.outage_after) = (4, Duration::ZERO);
    for (status, retry, body) in replies(&Reply::Close, &options) {
        assert_eq!((status, retry.as_deref()), (503, one), "{body}");
    }
}
