//! Uploads whose parts arrive in any order, on both drivers and in the simulator.

use crate::common::hooked::{Call, Hooked, Hooks};
use crate::common::{
    Connection, Reply, TempDir, TestServer, drivers, on_all_backends, pattern, writable,
};
use base64::prelude::{BASE64_STANDARD, Engine};
use onrush_rt::blocking::BlockingPool;
use onrush_store::*;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

const LENGTH: usize = 350_000;
const PART_BYTES: usize = 100_000;
const PARTIAL: &str = "Content-Type: application/partial-upload";

/// Begins an upload of `LENGTH` bytes and returns its URL.
fn begin(server: &mut TestServer, fields: &str) -> String {
    let head = format!(
        "PUT /a/b.txt\nUpload-Complete: ?0\nUpload-Length: {LENGTH}\n\
         Onrush-Part-Size: {PART_BYTES}{fields}"
    );
    let reply = server.request(&head, b"");
    assert_eq!(reply.status, 201, "{}", reply.text());
    assert_eq!(reply.field("onrush-part-size"), Some("100000"));
    assert_eq!(reply.field("onrush-parts"), Some(":AA==:"));
    assert_eq!(reply.field("upload-offset"), Some("0"));
    reply.field("location").expect("a URL").to_owned()
}

fn range(part: usize) -> Range<usize> {
    part * PART_BYTES..LENGTH.min((part + 1) * PART_BYTES)
}

/// The head of the request with a part, and a digest of `content`.
fn head_of(url: &str, part: usize, content: &[u8]) -> String {
    let offset = range(part).start;
    let digest = BASE64_STANDARD.encode(Sha256::digest(content));
    format!(
        "PATCH {url}\nUpload-Offset: {offset}\nUpload-Complete: ?0\n{PARTIAL}\n\
         Content-Digest: sha-256=:{digest}:"
    )
}

fn send_part(server: &mut TestServer, url: &str, part: usize) -> Reply {
    let content = &pattern(LENGTH)[range(part)];
    server.request(&head_of(url, part, content), content)
}

fn complete(server: &mut TestServer, url: &str, offset: usize) -> Reply {
    let fields = format!("Upload-Offset: {offset}\nUpload-Complete: ?1\n{PARTIAL}");
    server.request(&format!("PATCH {url}\n{fields}\nContent-Length: 0"), b"")
}

/// The parts that have arrived, and the offset.
fn state(server: &mut TestServer, url: &str) -> (String, String) {
    let reply = server.request(&format!("HEAD {url}"), b"");
    assert_eq!(reply.status, 204);
    assert_eq!(reply.field("upload-length"), Some("350000"));
    let field = |name| reply.field(name).expect("a field").to_owned();
    (field("onrush-parts"), field("upload-offset"))
}

fn of(parts: &str, offset: &str) -> (String, String) {
    (parts.to_owned(), offset.to_owned())
}

/// Sends the beginning of a part, after the server has begun to receive it.
fn begin_part(server: &mut TestServer, url: &str, part: usize, bytes: usize) -> Connection {
    let content = &pattern(LENGTH)[range(part)];
    let head = head_of(url, part, content).replacen('\n', " HTTP/1.1\nHost: test\n", 1);
    let length = content.len();
    let head =
        format!("{head}\nExpect: 100-continue\nContent-Length: {length}\nConnection: close\n\n");
    let mut connection = server.connect();
    server.send(&mut connection, head.replace('\n', "\r\n").as_bytes());
    let interim = server.receive_until(&mut connection, |all| all.ends_with(b"\r\n\r\n"));
    assert!(interim.starts_with(b"HTTP/1.1 100 "), "{}", server.name);
    server.send(&mut connection, &content[..bytes]);
    connection
}

#[test]
fn parts_arrive_in_any_order() {
    on_all_backends(&writable(), |server| {
        let url = begin(server, "\nContent-Type: text/x-test");
        for (part, parts, offset) in [
            (3, ":CA==:", "0"),
            (0, ":CQ==:", "100000"),
            (2, ":DQ==:", "100000"),
        ] {
            let reply = send_part(server, &url, part);
            assert_eq!(reply.status, 204, "{}", reply.text());
            assert_eq!(reply.field("onrush-parts"), Some(parts));
            assert_eq!(reply.field("upload-offset"), Some(offset));
            assert_eq!(state(server, &url), of(parts, offset));
        }
        // It is not complete, whatever the client claims.
        for (offset, status) in [(LENGTH, 409), (PART_BYTES, 400)] {
            assert_eq!(complete(server, &url, offset).status, status, "{offset}");
        }
        assert_eq!(server.get("/a/b.txt").status, 404);
        assert_eq!(send_part(server, &url, 1).status, 204);
        assert_eq!(state(server, &url), of(":Dw==:", "350000"));
        let reply = complete(server, &url, LENGTH);
        assert_eq!(reply.status, 201, "{}", reply.text());
        let got = server.get("/a/b.txt");
        assert!(got.body == pattern(LENGTH), "{}", server.name);
        assert_eq!(got.field("content-type"), Some("text/x-test"));
        // A late part does not change the object.
        assert_eq!(send_part(server, &url, 1).status, 400);
        assert_eq!(server.get("/a/b.txt").etag(), got.etag());
    });
}

#[test]
fn a_damaged_part_is_not_recorded_and_a_recorded_one_does_not_change() {
    on_all_backends(&writable(), |server| {
        let url = begin(server, "");
        let whole = pattern(LENGTH);
        let mut damaged = whole[range(1)].to_vec();
        damaged[77_777] ^= 1;
        let head = head_of(&url, 1, &whole[range(1)]);
        let reply = server.request(&head, &damaged);
        assert_eq!(reply.status, 400);
        assert!(reply.text().contains("digest"), "{}", reply.text());
        assert_eq!(state(server, &url), of(":AA==:", "0"));
        for part in 0..4 {
            assert_eq!(send_part(server, &url, part).status, 204);
        }
        let without_digest = head.split("\nContent-Digest").next().expect("a head");
        assert_eq!(server.request(without_digest, &damaged).status, 204);
        assert_eq!(complete(server, &url, LENGTH).status, 201);
        assert!(server.get("/a/b.txt").body == whole, "{}", server.name);
    });
}

#[test]
fn several_parts_arrive_at_a_time() {
    on_all_backends(&writable(), |server| {
        let url = begin(server, "");
        let whole = pattern(LENGTH);
        let mut first = begin_part(server, &url, 0, 60_000);
        let mut lost = begin_part(server, &url, 1, 60_000);
        assert_eq!(send_part(server, &url, 2).status, 204);
        // A later request for the same part ends the earlier one.
        assert_eq!(send_part(server, &url, 1).status, 204);
        let ended = Reply::parse(&server.receive(&mut lost), false);
        assert_eq!(ended.status, 409, "{}", ended.text());
        assert_eq!(state(server, &url), of(":Bg==:", "0"));
        server.send(&mut first, &whole[60_000..PART_BYTES]);
        let reply = Reply::parse(&server.receive(&mut first), false);
        assert_eq!(reply.field("onrush-parts"), Some(":Bw==:"));
        // A lost connection costs its part only.
        drop(begin_part(server, &url, 3, 10_000));
        assert_eq!(state(server, &url), of(":Bw==:", "300000"));
        assert_eq!(send_part(server, &url, 3).status, 204);
        assert_eq!(complete(server, &url, LENGTH).status, 201);
        assert!(server.get("/a/b.txt").body == whole, "{}", server.name);
    });
}

#[test]
fn an_upload_that_is_removed_takes_no_parts() {
    on_all_backends(&writable(), |server| {
        let url = begin(server, "");
        let mut late = begin_part(server, &url, 0, 60_000);
        assert_eq!(server.delete(&url).status, 204);
        server.send(&mut late, &pattern(LENGTH)[60_000..PART_BYTES]);
        let reply = Reply::parse(&server.receive(&mut late), false);
        assert_eq!(reply.status, 404, "{}", reply.text());
        assert_eq!(send_part(server, &url, 1).status, 404);
        let folder = server
            .root()
            .open_dir(b".onrush/uploads")
            .expect("a folder");
        assert!(crate::common::entries(&folder).is_empty());
    });
}

#[test]
fn wrong_parts_are_refused() {
    on_all_backends(&writable(), |server| {
        let put = "PUT /x\nUpload-Complete: ?0";
        let digest = "Repr-Digest: sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:";
        for (fields, body) in [
            ("Onrush-Part-Size: 10", &b""[..]),
            ("Onrush-Part-Size: 10\nUpload-Length: 20", b"x"),
            ("Onrush-Part-Size: 0\nUpload-Length: 20", b""),
            ("Onrush-Part-Size: -1\nUpload-Length: 20", b""),
            ("Onrush-Part-Size: 10\nUpload-Length: 0", b""),
            ("Onrush-Part-Size: 1\nUpload-Length: 10001", b""),
            (
                &format!("Onrush-Part-Size: 10\nUpload-Length: 20\n{digest}"),
                b"",
            ),
        ] {
            let reply = server.request(&format!("{put}\n{fields}"), body);
            assert_eq!(reply.status, 400, "{fields}");
        }
        let url = begin(server, "");
        for (offset, bytes, status) in [
            (0, PART_BYTES - 1, 400),
            (0, PART_BYTES + 1, 400),
            (1, PART_BYTES, 400),
            (300_000, PART_BYTES, 400),
            (400_000, 1, 400),
            (LENGTH, 0, 400),
        ] {
            let fields = format!("Upload-Offset: {offset}\nUpload-Complete: ?0\n{PARTIAL}");
            let body = vec![0; bytes];
            let head = format!("PATCH {url}\n{fields}\nContent-Length: {bytes}");
            assert_eq!(
                server.request(&head, &body).status,
                status,
                "{offset} {bytes}"
            );
        }
        let chunked = format!(
            "PATCH {url}\nUpload-Offset: 0\nUpload-Complete: ?0\n{PARTIAL}\n\
             Transfer-Encoding: chunked"
        );
        assert_eq!(server.request(&chunked, b"1\r\nx\r\n0\r\n\r\n").status, 411);
        assert_eq!(send_part(server, &url, 1).status, 204);
        // Other appends would overwrite parts.
        let tus = "Tus-Resumable: 1.0.0\nContent-Type: application/offset+octet-stream";
        let reply = server.request(&format!("PATCH {url}\nUpload-Offset: 0\n{tus}"), b"x");
        assert_eq!(reply.status, 409, "{}", reply.text());
        let last = format!("PATCH {url}\nUpload-Offset: 0\nUpload-Complete: ?1\n{PARTIAL}");
        assert_eq!(server.request(&last, &pattern(LENGTH)).status, 409);
        assert_eq!(state(server, &url), of(":Ag==:", "0"));
    });
}

/// A client asks how far its upload is while the server completes it.
#[test]
fn a_question_does_not_end_a_completion() {
    for driver in drivers() {
        let mut server = TestServer::real("/", &writable(), driver);
        for round in 0..50 {
            let begin = format!("PUT /{round}\nUpload-Complete: ?0");
            let begun = server.request(&begin, b"content");
            let url = begun.field("location").expect("a URL").to_owned();
            let mut send = |line: String| {
                let mut connection = server.connect();
                let head = format!("{line}\nConnection: close\n\n");
                server.send(&mut connection, head.replace('\n', "\r\n").as_bytes());
                connection
            };
            let fields = format!(
                "Host: test\nUpload-Offset: 7\nUpload-Complete: ?1\n{PARTIAL}\nContent-Length: 0"
            );
            let mut completion = send(format!("PATCH {url} HTTP/1.1\n{fields}"));
            let mut questions: Vec<_> = (0..4)
                .map(|_| send(format!("HEAD {url} HTTP/1.1\nHost: test")))
                .collect();
            let reply = Reply::parse(&server.receive(&mut completion), false);
            assert_eq!(reply.status, 201, "{round}: {}", reply.text());
            for question in &mut questions {
                let reply = Reply::parse(&server.receive(question), true);
                assert_eq!(reply.status, 204);
            }
        }
    }
}

/// Whether the file system is away while a part is made durable.
#[derive(Debug)]
struct Away(AtomicBool);

impl Hooks for Away {
    fn before(&self, call: Call) -> LocalFuture<'_, Result<()>> {
        let is_away = call == Call::SyncPartial && self.0.load(SeqCst);
        Box::pin(async move {
            match is_away {
                true => Err(StoreError::Unavailable),
                false => Ok(()),
            }
        })
    }
}

/// A sync that was not tried says nothing about the parts that were acknowledged.
#[test]
fn a_file_system_that_is_away_for_a_moment_ends_no_upload() {
    for driver in drivers() {
        let dir = TempDir::new();
        let pool = BlockingPool::threads(2, 64);
        let store = Arc::new(Hooked {
            folder: Folder::open(dir.path(), pool, FolderOptions::default()).expect("a folder"),
            hooks: Away(AtomicBool::new(false)),
        });
        let server = &mut TestServer::on_store(store.clone(), &writable(), driver);
        let url = begin(server, "");
        assert_eq!(send_part(server, &url, 1).status, 204);
        store.hooks.0.store(true, SeqCst);
        assert_eq!(send_part(server, &url, 0).status, 503);
        store.hooks.0.store(false, SeqCst);
        for part in [0, 2, 3] {
            assert_eq!(send_part(server, &url, part).status, 204, "{part}");
        }
        assert_eq!(complete(server, &url, LENGTH).status, 201);
        assert!(server.get("/a/b.txt").body == pattern(LENGTH));
    }
}
