//! Resumable uploads as in the IETF draft, on both drivers and in the simulator.

use crate::common::{Json as _, Reply, TestServer, on_all_backends, wait_until, writable};
use onrush_files::{FilesOptions, UploadLimits};

const V8: &str = "Upload-Draft-Interop-Version: 8";
const PART: &str = "Content-Type: application/partial-upload";

fn body(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Begins an upload and returns its URL.
fn begin(server: &mut TestServer, head: &str, body: &[u8]) -> String {
    let reply = server.request(&format!("{head}\nUpload-Complete: ?0"), body);
    assert_eq!(reply.status, 201, "{head}: {}", reply.text());
    assert_eq!(reply.field("upload-complete"), Some("?0"));
    assert_eq!(
        reply.field("upload-offset"),
        Some(&body.len().to_string()[..])
    );
    assert!(
        reply
            .field("upload-limit")
            .is_some_and(|limit| limit.starts_with("max-age="))
    );
    reply.field("location").expect("a URL").to_owned()
}

fn append(server: &mut TestServer, url: &str, offset: usize, last: bool, body: &[u8]) -> Reply {
    let last = if last { "?1" } else { "?0" };
    let fields = format!("Upload-Offset: {offset}\nUpload-Complete: {last}\n{PART}");
    server.request(
        &format!("PATCH {url}\n{fields}\nContent-Length: {}", body.len()),
        body,
    )
}

/// The fields of HEAD: offset, completeness, length.
fn head(server: &mut TestServer, url: &str) -> (u16, [Option<String>; 3]) {
    let reply = server.request(&format!("HEAD {url}"), b"");
    let names = ["upload-offset", "upload-complete", "upload-length"];
    let fields = names.map(|name| reply.field(name).map(str::to_owned));
    (reply.status, fields)
}

fn state(offset: &str, complete: &str, length: Option<&str>) -> (u16, [Option<String>; 3]) {
    let of = |text: &str| Some(text.to_owned());
    (204, [of(offset), of(complete), length.and_then(of)])
}

/// The type of a problem, without its common beginning.
fn problem(reply: &Reply) -> String {
    assert_eq!(
        reply.field("content-type"),
        Some("application/problem+json")
    );
    let json = reply.json();
    let kind = json["type"].as_str().expect("a type");
    let name = kind.strip_prefix("https://iana.org/assignments/http-problem-types#");
    name.expect("a registered type").to_owned()
}

#[test]
fn an_object_is_uploaded_in_parts() {
    on_all_backends(&writable(), |server| {
        let whole = body(300_000);
        let put = "PUT /a/b.txt\nContent-Type: text/x-test";
        let url = begin(server, put, &whole[..1000]);
        let id = url
            .strip_prefix("/a/b.txt?upload-id=")
            .expect("the path of the object");
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(server.get("/a/b.txt").status, 404, "nothing is visible yet");
        assert_eq!(head(server, &url), state("1000", "?0", None));
        let reply = append(server, &url, 1000, false, &whole[1000..250_000]);
        assert_eq!(
            (reply.status, reply.field("upload-complete")),
            (204, Some("?0"))
        );
        assert_eq!(reply.field("upload-offset"), Some("250000"));
        assert_eq!(head(server, &url), state("250000", "?0", None));
        let reply = append(server, &url, 250_000, true, &whole[250_000..]);
        assert_eq!(
            (reply.status, reply.field("upload-complete")),
            (201, Some("?1"))
        );
        assert_eq!(reply.field("location"), Some("/a/b.txt"));
        let got = server.get("/a/b.txt");
        assert!(got.body == whole, "{}", server.name);
        assert_eq!(got.field("content-type"), Some("text/x-test"));
        assert_eq!(Some(got.etag()), reply.field("etag"));
        // A client that has lost the response learns that the upload is complete.
        assert_eq!(head(server, &url), state("300000", "?1", Some("300000")));
        let again = append(server, &url, 300_000, true, b"");
        assert_eq!(
            (again.status, &problem(&again)[..]),
            (400, "completed-upload")
        );
        // The content was given to the object, and the record is removed soon.
        wait_until(server, |server| left(server) == 0);
        // An upload that replaces an object; its last request is empty.
        let url = begin(server, "PUT /a/b.txt", b"new");
        let reply = append(server, &url, 3, true, b"");
        assert_eq!((reply.status, reply.field("location")), (204, None));
        assert_eq!(server.get("/a/b.txt").body, b"new");
    });
}

/// The files of unfinished uploads, with their records.
fn left(server: &TestServer) -> usize {
    let count = |path: &[u8]| {
        server.root().open_dir(path).map_or(0, |dir| {
            let mut count = 0;
            let counted = dir.read_dir(&mut |_, _| {
                count += 1;
                std::ops::ControlFlow::Continue(())
            });
            counted.expect("readable");
            count
        })
    };
    count(b".onrush/uploads") + count(b".onrush/state/uploads")
}

#[test]
fn a_put_that_is_not_interrupted_is_a_put() {
    on_all_backends(&writable(), |server| {
        let whole = body(300_000);
        for (fields, has_104) in [(V8, true), ("X-None: 1", false)] {
            let mut connection = server.connect();
            let request = format!(
                "PUT /x HTTP/1.1\r\nHost: test\r\nUpload-Complete: ?1\r\n{fields}\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n",
                whole.len()
            );
            server.send(&mut connection, &[request.as_bytes(), &whole].concat());
            let received = server.receive(&mut connection);
            let text = String::from_utf8_lossy(&received);
            assert_eq!(text.starts_with("HTTP/1.1 104 "), has_104, "{text}");
            let last = text.rfind("HTTP/1.1 ").expect("a response");
            let reply = Reply::parse(&received[last..], false);
            assert!(matches!(reply.status, 201 | 204), "{text}");
            assert!(server.get("/x").body == whole);
            assert_eq!(left(server), 0);
        }
    });
}

#[test]
fn an_interrupted_put_continues_where_it_stopped() {
    on_all_backends(&writable(), |server| {
        let whole = body(700_000);
        for (round, sent) in [0, 1, 300_000, 699_999].into_iter().enumerate() {
            let path = format!("/round-{round}");
            let mut connection = server.connect();
            let request = format!(
                "PUT {path} HTTP/1.1\r\nHost: test\r\nUpload-Complete: ?1\r\n{V8}\r\n\
                 Content-Length: {}\r\n\r\n",
                whole.len()
            );
            server.send(&mut connection, request.as_bytes());
            let interim = server.receive_until(&mut connection, |all| all.ends_with(b"\r\n\r\n"));
            let interim = String::from_utf8(interim).expect("text");
            assert!(
                interim.starts_with("HTTP/1.1 104 Upload Resumption Supported\r\n"),
                "{interim}"
            );
            assert!(
                interim.contains("Upload-Draft-Interop-Version: 8\r\n"),
                "{interim}"
            );
            let url = interim
                .lines()
                .find_map(|line| line.strip_prefix("Location: "));
            let url = url.expect("a URL").to_owned();
            server.send(&mut connection, &whole[..sent]);
            if round % 2 == 0 {
                drop(connection);
            }
            // If the server does not know yet that the connection is lost, HEAD ends the transfer.
            let (status, fields) = head(server, &url);
            assert_eq!(status, 204, "{} {sent}: {fields:?}", server.name);
            let offset: usize = fields[0]
                .as_ref()
                .expect("an offset")
                .parse()
                .expect("a number");
            assert!(offset <= sent, "{offset} {sent}");
            assert_eq!(fields[2].as_deref(), Some("700000"));
            let reply = append(server, &url, offset, true, &whole[offset..]);
            assert_eq!(reply.status, 201, "{} {sent} {offset}", server.name);
            assert!(
                server.get(&path).body == whole,
                "{} {sent} {offset}",
                server.name
            );
        }
        wait_until(server, |server| left(server) == 0);
    });
}

#[test]
fn conditions_and_digests_are_those_of_the_first_request() {
    on_all_backends(&writable(), |server| {
        let url = begin(server, "PUT /x\nIf-None-Match: *", b"one");
        assert_eq!(server.put("/x", b"other").status, 201);
        let reply = append(server, &url, 3, true, b"two");
        assert_eq!(
            (reply.status, reply.field("upload-complete")),
            (412, Some("?1"))
        );
        assert_eq!(server.get("/x").body, b"other");
        assert_eq!(left(server), 0, "it cannot succeed any more");
        let refused = server.request("PUT /x\nIf-None-Match: *\nUpload-Complete: ?0", b"one");
        assert_eq!(refused.status, 412, "checked at the beginning, too");

        let digest = "Repr-Digest: sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:";
        for (last, status) in [(&b"lo"[..], 204), (b"l0", 400)] {
            let url = begin(server, &format!("PUT /x\n{digest}"), b"h");
            assert_eq!(append(server, &url, 1, false, b"el").status, 204);
            let reply = append(server, &url, 3, true, last);
            assert_eq!(
                (reply.status, reply.field("upload-complete")),
                (status, Some("?1"))
            );
            assert_eq!(server.get("/x").body, b"hello");
        }
        // The digest of one message: what it does not match is not appended.
        let url = begin(server, "PUT /y", b"");
        for (digest, status, offset) in [("AAAA", 400, "0"), ("LPJN", 204, "5")] {
            let digest = format!("sha-256=:{digest}ul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:");
            let fields = format!("Upload-Offset: 0\nUpload-Complete: ?0\n{PART}");
            let head_lines = format!("PATCH {url}\n{fields}\nContent-Digest: {digest}");
            assert_eq!(server.request(&head_lines, b"hello").status, status);
            assert_eq!(head(server, &url), state(offset, "?0", None));
        }
        assert_eq!(server.delete(&url).status, 204);
        assert_eq!(head(server, &url).0, 404);
        wait_until(server, |server| left(server) == 0);
    });
}

#[test]
fn wrong_appends_change_nothing() {
    on_all_backends(&writable(), |server| {
        let url = begin(server, "PUT /x\nUpload-Length: 10", b"12345");
        let reply = append(server, &url, 4, false, b"6");
        assert_eq!(
            (reply.status, &problem(&reply)[..]),
            (409, "mismatching-upload-offset")
        );
        assert_eq!(reply.field("upload-offset"), Some("5"));
        assert_eq!(reply.json()["expected-offset"], 5);
        assert_eq!(reply.json()["provided-offset"], 4);
        for (last, bytes) in [(true, 4), (true, 6), (false, 6)] {
            let reply = append(server, &url, 5, last, &body(bytes));
            assert_eq!(
                (reply.status, &problem(&reply)[..]),
                (400, "inconsistent-upload-length")
            );
        }
        let complete = "Upload-Complete: ?1";
        for (fields, status) in [
            (format!("Upload-Offset: 5\n{complete}"), 415),
            (
                format!("Upload-Offset: 5\n{complete}\nContent-Type: text/plain"),
                415,
            ),
            (format!("{complete}\n{PART}"), 400),
            (format!("Upload-Offset: -5\n{complete}\n{PART}"), 400),
            (format!("Upload-Offset: 5\n{PART}"), 400),
            (format!("Upload-Offset: 5\nUpload-Complete: 1\n{PART}"), 400),
            (
                format!("Upload-Offset: 5\n{complete}\nUpload-Length: 11\n{PART}"),
                400,
            ),
        ] {
            let reply = server.request(&format!("PATCH {url}\n{fields}"), b"67890");
            assert_eq!(reply.status, status, "{fields}");
        }
        assert_eq!(head(server, &url), state("5", "?0", Some("10")));
        // The id belongs to its path.
        let elsewhere = url.replace("/x", "/y");
        assert_eq!(head(server, &elsewhere).0, 404);
        assert_eq!(append(server, &elsewhere, 5, true, b"67890").status, 404);
        assert_eq!(server.delete(&elsewhere).status, 404);
        for id in ["", "0", &"0".repeat(32), "x&upload-id=y"] {
            assert_eq!(head(server, &format!("/x?upload-id={id}")).0, 404);
        }
        let options = server.request(&format!("OPTIONS {url}"), b"");
        let allow = Some("DELETE, HEAD, OPTIONS, PATCH");
        assert_eq!((options.status, options.field("allow")), (204, allow));
        assert_eq!(append(server, &url, 5, true, b"67890").status, 201);
        assert_eq!(server.get("/x").body, b"1234567890");
        let other = server.request("PATCH /x\nContent-Length: 0", b"");
        assert_eq!(other.status, 405);
        // More than announced ends the upload.
        let url = begin(server, "PUT /x\nUpload-Length: 3", b"1");
        let fields = format!("Upload-Offset: 1\nUpload-Complete: ?0\n{PART}");
        let chunked = format!("PATCH {url}\n{fields}\nTransfer-Encoding: chunked");
        let reply = server.request(&chunked, b"5\r\n23456\r\n0\r\n\r\n");
        assert_eq!(
            (reply.status, &problem(&reply)[..]),
            (400, "inconsistent-upload-length")
        );
        assert_eq!(head(server, &url).0, 404);
    });
}

#[test]
fn unfinished_uploads_are_limited_and_expire() {
    let limits = UploadLimits {
        object_bytes_max: 1000,
        age_max_s: 100,
        count_max: 4, // Half of it, and of the bytes, for one client.
        bytes_max: 3000,
    };
    let options = FilesOptions {
        upload_limits: limits,
        ..writable()
    };
    let try_begin = |server: &mut TestServer, fields: &str, body: &[u8]| {
        let head = format!("PUT /x\nUpload-Complete: ?0{fields}");
        server.request(&head, body).status
    };
    on_all_backends(&options, |server| {
        let found = server.request("OPTIONS /x", b"");
        assert_eq!(
            found.field("upload-limit"),
            Some("max-age=100, max-size=1000")
        );
        assert_eq!(
            found.field("accept-patch"),
            Some("application/partial-upload")
        );
        assert_eq!(try_begin(server, "\nUpload-Length: 1001", b""), 413);
        assert_eq!(try_begin(server, "", &body(1001)), 413);
        let url = begin(server, "PUT /x\nUpload-Length: 1000", &body(1000));
        assert_eq!(try_begin(server, "\nUpload-Length: 501", b""), 507);
        let other = begin(server, "PUT /y\nUpload-Length: 500", b"");
        assert_eq!(try_begin(server, "", b""), 429);
        assert_eq!(server.delete(&other).status, 204);
        let other = begin(server, "PUT /y", b"");
        assert_eq!(append(server, &other, 0, false, &body(600)).status, 507);
        assert_eq!(server.delete(&other).status, 204);
        assert_eq!(head(server, &url).0, 204);
        if server.is_simulated() {
            server.advance(99_000);
            assert_eq!(head(server, &url).0, 204);
            server.advance(2_000);
            assert_eq!(head(server, &url).0, 404);
            server.advance(60_000);
            assert_eq!(left(server), 0, "removed");
        }
    });
}

#[test]
fn an_announced_length_occupies_no_space() {
    let limits = UploadLimits {
        bytes_max: 3000, // Half of it for one client.
        ..UploadLimits::default()
    };
    let options = FilesOptions {
        upload_limits: limits,
        ..writable()
    };
    on_all_backends(&options, |server| {
        let fields = "\nUpload-Length: 1500";
        let silent = begin(server, &format!("PUT /silent{fields}"), b"");
        let first = begin(server, &format!("PUT /first{fields}"), &body(1000));
        let second = begin(server, "PUT /second\nUpload-Length: 500", b"");
        assert_eq!(append(server, &second, 0, false, &body(400)).status, 204);
        // What arrives must fit. What has arrived is kept, and continues when there is room.
        let rest = body(500);
        assert_eq!(append(server, &first, 1000, true, &rest).status, 507);
        assert_eq!(append(server, &second, 400, true, &rest[400..]).status, 201);
        let (status, ..) = head(server, &first);
        assert_eq!(status, 204);
        assert_eq!(append(server, &first, 1000, true, &rest).status, 201);
        assert_eq!(server.delete(&silent).status, 204);
    });
}

/// The sizes of the files of a folder in `.onrush`.
fn sizes(server: &TestServer, path: &str) -> Vec<u64> {
    let dir = server.root().open_dir(format!(".onrush/{path}").as_bytes());
    let Ok(dir) = dir else { return Vec::new() };
    let mut names = Vec::new();
    let counted = dir.read_dir(&mut |name, _| {
        names.push(name.to_vec());
        std::ops::ControlFlow::Continue(())
    });
    counted.expect("readable");
    let size = |name: &Vec<u8>| dir.entry_metadata(name).expect("a file").size;
    names.iter().map(size).collect()
}

#[test]
fn bytes_over_the_limit_are_neither_stored_nor_counted() {
    let limits = UploadLimits {
        bytes_max: 3000, // Half of it for one client.
        age_max_s: 100,
        ..UploadLimits::default()
    };
    let options = FilesOptions {
        upload_limits: limits,
        ..writable()
    };
    on_all_backends(&options, |server| {
        let url = begin(server, "PUT /x", &body(900));
        assert_eq!(append(server, &url, 900, false, &body(900)).status, 507);
        assert_eq!(sizes(server, "uploads"), [900]);
        // An announced length that is refused.
        let fields = format!("Upload-Offset: 900\nUpload-Complete: ?0\n{PART}");
        let announced = format!("PATCH {url}\n{fields}\nUpload-Length: 100000");
        assert_eq!(server.request(&announced, b"1").status, 507);
        assert_eq!(head(server, &url), state("900", "?0", None));
        // Bytes that are verified at their end count as well, until they are dropped.
        let digest = "Content-Digest: sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:";
        for (bytes, status) in [(601, 507), (600, 400)] {
            let head_lines = format!("PATCH {url}\n{fields}\n{digest}");
            assert_eq!(server.request(&head_lines, &body(bytes)).status, status);
            assert_eq!(sizes(server, "uploads"), [900], "{} {bytes}", server.name);
        }
        let other = begin(server, "PUT /y", &body(600));
        assert_eq!(append(server, &other, 600, false, b"1").status, 507);
        assert_eq!(server.delete(&other).status, 204);
        if server.is_simulated() {
            // Only bytes prolong an upload, because the store looks at the age of the bytes.
            server.advance(60_000);
            assert_eq!(append(server, &url, 900, false, b"").status, 204);
            server.advance(50_000);
            assert_eq!(head(server, &url).0, 404);
        }
    });
}

#[test]
fn a_failed_completion_leaves_nothing() {
    on_all_backends(&writable(), |server| {
        let url = begin(server, "PUT /folder/x", &body(300_000));
        assert_eq!(server.put("/folder", b"a file").status, 201);
        let reply = append(server, &url, 300_000, true, b"");
        assert_eq!(reply.status, 409, "{}", reply.text());
        assert_eq!(head(server, &url).0, 404);
        assert_eq!(left(server), 0, "{}", server.name);
    });
}

#[test]
fn a_record_has_one_version_of_a_long_list() {
    on_all_backends(&writable(), |server| {
        let etag = server.put("/x", b"old").etag().to_owned();
        let tags = format!("If-Match: {}{etag}", "\"a\", ".repeat(1000));
        let url = begin(server, &format!("PUT /x\n{tags}"), b"new");
        assert!(
            sizes(server, "state/uploads")
                .iter()
                .all(|&size| size < 1000)
        );
        assert_eq!(append(server, &url, 3, true, b"").status, 204);
        let etag = server.get("/x").etag().to_owned();
        let url = begin(server, &format!("PUT /x\nIf-Match: {etag}"), b"x");
        assert_eq!(server.put("/x", b"other").status, 204);
        assert_eq!(append(server, &url, 1, true, b"").status, 412);
    });
}

#[test]
fn a_store_without_this_does_not_offer_it() {
    use onrush::DriverPreference;
    use onrush_store::testing::MemoryStore;
    use std::sync::Arc;
    let store = Arc::new(MemoryStore::new());
    let mut server = TestServer::on_store(store, &writable(), DriverPreference::Epoll);
    let found = server.request("OPTIONS /x", b"");
    assert_eq!(
        (found.field("upload-limit"), found.field("accept-patch")),
        (None, None)
    );
    // A part must not become the object.
    let reply = server.request("PUT /x\nUpload-Complete: ?0", b"part");
    assert_eq!(reply.status, 501);
    let reply = server.request(
        &format!("PUT /x\nUpload-Complete: ?1\n{V8}"),
        &body(300_000),
    );
    assert_eq!(reply.status, 201);
    assert_eq!(server.get("/x").body.len(), 300_000);
}
