//! `Files` in front of a store that is not a folder: no local files, no generations.

use crate::common::*;
use onrush_store::StoreError;
use onrush_store::testing::MemoryStore;
use std::sync::Arc;
use std::time::Duration;

fn on_memory_store(test: impl Fn(&mut TestServer)) {
    for driver in drivers() {
        let store = Arc::new(MemoryStore::new());
        test(&mut TestServer::on_store(store, &writable(), driver));
    }
}

fn body(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
fn objects_of_any_size_are_served() {
    on_memory_store(|server| {
        for len in [0, 5, 16_385, 65_536, 65_537, 1_000_000] {
            let all = body(len);
            let created = server.put("/d/a", &all);
            assert_eq!(created.status, 201, "{len}: {created:?}");
            let reply = server.get("/d/a");
            assert_eq!((reply.status, reply.body == all), (200, true), "{len}");
            assert_eq!(reply.etag(), created.etag());
            let head = server.request("HEAD /d/a", b"");
            let length = len.to_string();
            assert_eq!(head.field("content-length"), Some(&length[..]));
            assert_eq!(server.delete("/d/a").status, 204);
            assert_eq!(server.get("/d/a").status, 404);
        }
    });
}

#[test]
fn a_store_without_folders_of_their_own_creates_none() {
    on_memory_store(|server| {
        server.put("/a/x", b"content");
        assert_eq!(server.put("/a/new/", b"").status, 501);
        let page = server.request("GET /a/\nAccept: text/html", b"");
        assert!(page.text().contains("upload-files") && !page.text().contains("new-folder"));
        let archive = server.get("/?archive=tar");
        assert_eq!(archive.status, 200);
        let mut archive = tar::Archive::new(&archive.body[..]);
        let entries = archive.entries().expect("an archive").map(|entry| {
            let entry = entry.expect("an entry");
            (
                entry.path().expect("a path").display().to_string(),
                entry.size(),
            )
        });
        let expected = [("files/", 0), ("files/a/", 0), ("files/a/x", 7)];
        assert!(entries.eq(expected.map(|(path, size)| (path.to_owned(), size))));
    });
}

#[test]
fn ranges_are_streams() {
    on_memory_store(|server| {
        let all = body(200_000);
        server.put("/a", &all);
        let one = server.request("GET /a\nRange: bytes=70000-139999", b"");
        assert_eq!((one.status, &one.body[..]), (206, &all[70_000..140_000]));
        let two = server.request("GET /a\nRange: bytes=0-9999,150000-199999", b"");
        assert_eq!(two.status, 206);
        let has = |part: &[u8]| two.body.windows(part.len()).any(|window| window == part);
        assert!(has(&all[..10_000]) && has(&all[150_000..]));
        assert!(two.body.len() < 61_000);
    });
}

/// Without generations, nothing may be served from memory after another server's change.
#[test]
fn change_by_another_server_is_visible_at_once() {
    let store = MemoryStore::new();
    let server = |driver| TestServer::on_store(Arc::new(store.clone()), &writable(), driver);
    let drivers = available_drivers();
    let (mut one, mut other) = (server(drivers[0]), server(drivers[drivers.len() - 1]));
    for round in 0..20 {
        let content = format!("round {round}");
        one.put("/a", content.as_bytes());
        assert_eq!(other.get("/a").body, content.as_bytes());
    }
}

#[test]
fn preconditions_and_stored_fields_hold() {
    on_memory_store(|server| {
        let first = server.request("PUT /a\nIf-None-Match: *\nContent-Type: a/b", b"1");
        assert_eq!(first.status, 201);
        assert_eq!(server.get("/a").field("content-type"), Some("a/b"));
        let etag = first.etag().to_owned();
        let ask = |server: &mut TestServer, field: &str| {
            let head = format!("PUT /a\n{field}");
            server.request(&head, b"2").status
        };
        let past = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (field, status) in [
            ("If-None-Match: *".to_owned(), 412),
            ("If-Match: \"other\"".to_owned(), 412),
            (format!("If-None-Match: {etag}"), 412),
            (format!("If-Unmodified-Since: {past}"), 412),
            (format!("If-Match: \"other\", {etag}"), 204),
            (format!("If-Match: {etag}"), 412),
            (format!("If-None-Match: {etag}"), 204),
            ("If-Match: *".to_owned(), 204),
            (
                "If-Unmodified-Since: Fri, 31 Dec 2100 08:49:37 GMT".to_owned(),
                204,
            ),
        ] {
            assert_eq!(ask(server, &field), status, "{field}");
        }
        let delete = server.request(&format!("DELETE /a\nIf-Match: {etag}"), b"");
        assert_eq!(delete.status, 412);
        let delete = server.request(&format!("DELETE /a\nIf-None-Match: {etag}"), b"");
        assert_eq!(delete.status, 204);
        let delete = server.request("DELETE /a\nIf-Match: *", b"");
        assert_eq!(delete.status, 412);
    });
}

/// The client learns whether and when to try again, and the object stays as it was.
#[test]
fn failures_of_the_store_have_their_status() {
    let throttled = |ms| StoreError::Throttled {
        retry_after: Some(Duration::from_millis(ms)),
    };
    for driver in drivers() {
        let store = MemoryStore::new();
        let mut server = TestServer::on_store(Arc::new(store.clone()), &writable(), driver);
        server.put("/a", b"old");
        for (failure, status, retry_after) in [
            (throttled(6500), 503, Some("7")),
            (StoreError::Unavailable, 503, Some("1")),
            (StoreError::Timeout, 504, Some("1")),
            (StoreError::Unsupported, 501, None),
        ] {
            store.fail_with(Some(failure));
            for head in [
                "GET /a",
                "GET /",
                "PUT /a",
                "PUT /a\nIf-Match: *",
                "DELETE /a",
            ] {
                let reply = server.request(head, b"");
                assert_eq!(reply.status, status, "{head}: {failure}");
                assert_eq!(reply.field("retry-after"), retry_after, "{head}: {failure}");
            }
            store.fail_with(None);
            assert_eq!(server.get("/a").body, b"old");
        }
    }
}

#[test]
fn folders_are_listed() {
    on_memory_store(|server| {
        for path in ["/d/b", "/d/a", "/d/e/f"] {
            assert_eq!(server.put(path, b"x").status, 201);
        }
        assert_eq!(server.get("/d").status, 301);
        let page = server.get("/d/?format=json");
        let text = String::from_utf8(page.body).unwrap();
        let at = |name: &str| text.find(&format!("\"name\":\"{name}\""));
        assert!(
            at("a").unwrap() < at("b").unwrap() && at("b") < at("e"),
            "{text}"
        );
        assert_eq!(server.delete("/d/").status, 409);
    });
}
