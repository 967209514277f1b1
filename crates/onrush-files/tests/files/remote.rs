//! `Files` in front of a service that misbehaves: the status of the response says what has failed.

use crate::common::*;
use onrush::DriverPreference;
use onrush_remote::{Options, RemoteStore};
use std::sync::Arc;
use std::time::Duration;
use testing_s3::canned::{Canned, Reply, status};

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
    let mut patient = Options::default();
    patient.retries = 0;
    patient.outage_after = Duration::MAX;
    let mut impatient = patient.clone();
    impatient.retries = 1;
    impatient.read_timeout = Duration::from_millis(300);
    impatient.operation_timeout = Duration::from_secs(2);
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
        // A service that responds may take as long as a busy machine needs.
        let options = match &reply {
            Reply::Silence => &impatient,
            Reply::Send(text) if text.ends_with("\r\n\r\nabc") => &impatient,
            _ => &patient,
        };
        for (got, retry, body) in replies(&reply, options) {
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
    (patient.retries, patient.outage_after) = (4, Duration::ZERO);
    for (status, retry, body) in replies(&Reply::Close, &patient) {
        assert_eq!((status, retry.as_deref()), (503, one), "{body}");
    }
}

/// Replies of a service whose object is replaced by a new one, "new content", before the next
/// request for the old version. The old one has 1,000 bytes, of which requests get `sent`.
fn replaced(head: &str, sent: usize) -> Reply {
    let head = head.to_ascii_lowercase();
    if head.contains("\r\nif-match:") {
        return Reply::Send(status("412 Precondition Failed"));
    }
    let date = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nConnection: close";
    if head.starts_with("head ") {
        return Reply::Send(format!(
            "HTTP/1.1 200 OK\r\nETag: \"old\"\r\n{date}\r\nContent-Length: 1000\r\n\r\n"
        ));
    }
    if head.contains("\r\nrange:") {
        let bytes = "o".repeat(sent);
        return Reply::Send(format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"old\"\r\n{date}\r\nContent-Length: 990\r\n\
             Content-Range: bytes 10-999/1000\r\n\r\n{bytes}"
        ));
    }
    Reply::Send(format!(
        "HTTP/1.1 200 OK\r\nETag: \"new\"\r\n{date}\r\nContent-Length: 11\r\n\r\nnew content"
    ))
}

/// A server in front of [`replaced`].
fn before_replaced(sent: usize) -> (Canned, TestServer) {
    let service = Canned::choosing(move |_, head| replaced(head, sent));
    let location = "s3://bucket".parse().expect("a location");
    let endpoint = format!("http://{}", service.address);
    let store = RemoteStore::at(&endpoint, ("key", "secret"), location, Options::default());
    let store = Arc::new(store.expect("a store"));
    let server = TestServer::on_store(store, &writable(), DriverPreference::Epoll);
    (service, server)
}

#[test]
fn an_object_that_is_replaced_between_two_requests_is_opened_again() {
    let (_service, mut server) = before_replaced(990);
    // The first request returns a range, and the client needs the whole object.
    let reply = server.request("GET /a\nRange: bytes=10-\nIf-Range: \"older\"", b"");
    assert_eq!((reply.status, reply.text()), (200, "new content"));
    assert_eq!(reply.field("etag"), Some("\"new\""));
    // The first request returns the properties only.
    for (fields, status, text) in [
        ("Range: bytes=-7", 206, "content"),
        ("If-None-Match: \"older\"", 200, "new content"),
    ] {
        let reply = server.request(&format!("GET /a\n{fields}"), b"");
        assert_eq!((reply.status, reply.text()), (status, text), "{fields}");
    }
}

#[test]
fn the_head_is_sent_after_the_first_bytes_have_arrived() {
    let (_service, mut server) = before_replaced(0);
    // The service ends its response before the first byte of the range.
    let reply = server.request("GET /a\nRange: bytes=10-", b"");
    assert_eq!(reply.status, 502, "{}", reply.text());
    assert_eq!(reply.field("retry-after"), Some("1"));
    // A response to HEAD needs no bytes.
    let reply = server.request("HEAD /a", b"");
    assert_eq!(
        (reply.status, reply.field("content-length")),
        (200, Some("1000"))
    );
}
