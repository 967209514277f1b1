//! GET, HEAD, ranges and conditions, on both drivers and in the simulator.

use crate::common::Json as _;
use crate::common::*;
use onrush_files::{Files, FilesOptions};

#[test]
fn get_and_head_return_an_object_with_its_fields() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("a/hello.txt", b"hello");
        let reply = server.get("/a/hello.txt");
        assert_eq!(reply.status, 200, "{}: {reply:?}", server.name);
        assert_eq!(reply.body, b"hello");
        assert_eq!(
            reply.field("content-type"),
            Some("text/plain; charset=utf-8")
        );
        assert_eq!(reply.field("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.field("accept-ranges"), Some("bytes"));
        assert_eq!(reply.field("cache-control"), Some("no-cache"));
        assert_eq!(
            reply.field("last-modified"),
            Some("Sun, 13 Sep 2020 12:26:40 GMT")
        );
        let etag = reply.etag().to_owned();
        assert!(etag.starts_with('"') && etag.ends_with('"') && etag.len() > 2);
        let head = server.request("HEAD /a/hello.txt", b"");
        assert_eq!(
            (head.status, head.field("content-length")),
            (200, Some("5"))
        );
        assert_eq!(head.etag(), etag);
        let names = [
            ("empty", "application/octet-stream"),
            ("p.html", "text/html; charset=utf-8"),
            ("p.PNG", "image/png"),
        ];
        for (name, content_type) in names {
            server.add(name, b"");
            let reply = server.get(&format!("/{name}"));
            assert_eq!(reply.field("content-type"), Some(content_type));
            assert_eq!((reply.status, reply.body.len()), (200, 0));
        }
    });
}

/// Uploaded pages must not run with the server's origin, except with `--site`, whose purpose they
/// are.
#[test]
fn active_content_is_sandboxed_unless_it_is_a_site() {
    let names = [
        ("a.html", true),
        ("A.HTM", true),
        ("a.xhtml", true),
        ("a.svg", true),
        ("a.xml", true),
        ("a.js", true),
        ("a.txt", false),
        ("a.css", false),
        ("a.png", false),
        ("a.pdf", false),
        ("a", false),
    ];
    for site in [false, true] {
        let options = FilesOptions { site, ..writable() };
        on_all_backends(&options, |server| {
            for (name, runs) in names {
                server.add(name, b"<script>alert(origin)</script>");
                let policy = (runs && !site).then_some("sandbox");
                let check = |reply: Reply, status: u16| {
                    assert_eq!(reply.status, status, "{name}");
                    let found: Vec<_> = reply.all("content-security-policy").collect();
                    assert_eq!(found, Vec::from_iter(policy), "{name}, site: {site}");
                    assert_eq!(reply.field("x-content-type-options"), Some("nosniff"));
                    reply
                };
                // Cold, then from the cache, then every other form of the response.
                let first = server.get(&format!("/{name}"));
                let etag = check(first, 200).etag().to_owned();
                check(server.get(&format!("/{name}")), 200);
                check(server.request(&format!("HEAD /{name}"), b""), 200);
                check(
                    server.request(&format!("GET /{name}\nRange: bytes=0-3"), b""),
                    206,
                );
                let ranges = format!("GET /{name}\nRange: bytes=0-3,8-9");
                check(server.request(&ranges, b""), 206);
                let known = format!("GET /{name}\nIf-None-Match: {etag}");
                check(server.request(&known, b""), 304);
                // A recent upload is not cached.
                server.put(&format!("/new-{name}"), b"<script>");
                check(server.get(&format!("/new-{name}")), 200);
            }
            let listing = server.request("GET /\nAccept: text/html", b"");
            let policy = listing.field("content-security-policy");
            assert!(policy.is_some_and(|policy| policy.starts_with("default-src 'none';")));
        });
    }
}

#[test]
fn every_size_is_sent_whole_cached_and_uncached() {
    let sizes = [1, 1000, 16_384, 16_385, 65_536, 65_537, 300_000, 1_500_000];
    on_all_backends(&FilesOptions::default(), |server| {
        for size in sizes {
            let content = pattern(size);
            let name = format!("f{size}");
            server.add(&name, &content);
            for round in 0..3 {
                if server.is_simulated() {
                    server.disk().set_cold(round == 0);
                }
                let reply = server.get(&format!("/{name}"));
                assert!(
                    reply.status == 200 && reply.body == content,
                    "{} {name}",
                    server.name
                );
                let part = server.request(&format!("GET /{name}\nRange: bytes=-777"), b"");
                let from = size.saturating_sub(777);
                assert!(part.status == 206 && part.body == content[from..], "{name}");
            }
        }
    });
}

#[test]
fn ranges_return_the_requested_bytes() {
    // (Range, status, Content-Range, content)
    let table: [(&str, u16, Option<&str>, &[u8]); 12] = [
        ("bytes=0-4", 206, Some("bytes 0-4/26"), b"abcde"),
        ("bytes=-3", 206, Some("bytes 23-25/26"), b"xyz"),
        ("bytes=24-", 206, Some("bytes 24-25/26"), b"yz"),
        ("bytes=0-", 206, Some("bytes 0-25/26"), ALPHABET),
        ("bytes=25-1000", 206, Some("bytes 25-25/26"), b"z"),
        ("bytes=0-3,2-5", 206, Some("bytes 0-5/26"), b"abcdef"),
        (
            "bytes=26-",
            416,
            Some("bytes */26"),
            b"the range contains no byte of the object\n",
        ),
        (
            "bytes=-0",
            416,
            Some("bytes */26"),
            b"the range contains no byte of the object\n",
        ),
        ("bytes=5-2", 200, None, ALPHABET),
        ("bytes=x", 200, None, ALPHABET),
        ("lines=1-2", 200, None, ALPHABET),
        ("bytes=0-9,10-25", 200, None, ALPHABET),
    ];
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("f.txt", ALPHABET);
        for (range, status, content_range, content) in table {
            let reply = server.request(&format!("GET /f.txt\nRange: {range}"), b"");
            assert_eq!(reply.status, status, "{range}");
            assert_eq!(reply.field("content-range"), content_range, "{range}");
            assert_eq!(reply.body, content, "{range}");
            if status == 206 {
                assert!(reply.field("etag").is_some());
                assert_eq!(
                    reply.field("content-type"),
                    Some("text/plain; charset=utf-8")
                );
            }
            let head = server.request(&format!("HEAD /f.txt\nRange: {range}"), b"");
            assert_eq!(
                (head.status, head.field("content-length")),
                (200, Some("26"))
            );
        }
        let many = (0..300).map(|_| "0-").collect::<Vec<_>>().join(",");
        let reply = server.request(&format!("GET /f.txt\nRange: bytes={many}"), b"");
        assert_eq!((reply.status, reply.body.len()), (200, 26));
    });
}

const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz";

#[test]
fn several_ranges_give_a_multipart_response() {
    on_all_backends(&FilesOptions::default(), |server| {
        for size in [26, 40_000, 500_000] {
            let content = pattern(size);
            server.add(&format!("{size}.bin"), &content);
            let wanted = [0..3, 20..21, size - 2..size];
            let range = "bytes=0-2, 20-20, -2";
            let reply = server.request(&format!("GET /{size}.bin\nRange: {range}"), b"");
            assert_eq!(reply.status, 206);
            assert_eq!(reply.field("content-range"), None);
            let content_type = reply.field("content-type").unwrap();
            let boundary = content_type.strip_prefix("multipart/byteranges; boundary=");
            let boundary = boundary.unwrap().to_owned();
            let mut expected = Vec::new();
            for range in wanted {
                let (first, last) = (range.start, range.end - 1);
                expected.extend_from_slice(b"\r\n--");
                expected.extend_from_slice(boundary.as_bytes());
                expected.extend_from_slice(b"\r\nContent-Type: application/octet-stream\r\n");
                let head = format!("Content-Range: bytes {first}-{last}/{size}\r\n\r\n");
                expected.extend_from_slice(head.as_bytes());
                expected.extend_from_slice(&content[range]);
            }
            expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
            assert_eq!(reply.body, expected);
        }
    });
}

/// As zchunk asks for the parts of a file that have changed.
#[test]
fn many_ranges_are_sent_and_never_more_than_the_object() {
    on_all_backends(&FilesOptions::default(), |server| {
        let content = pattern(20_000);
        server.add("z.bin", &content);
        for (count, status) in [(72, 206), (256, 206), (257, 200)] {
            let ranges: Vec<String> = (0..count).map(|n| format!("{0}-{0}", n * 70)).collect();
            let get = format!("GET /z.bin\nRange: bytes={}", ranges.join(","));
            let reply = server.request(&get, b"");
            assert_eq!(reply.status, status, "{count}");
            let parts = reply
                .body
                .windows(15)
                .filter(|part| part == b"\r\nContent-Range");
            assert_eq!(parts.count(), if status == 206 { count } else { 0 });
        }
        // Overlapping ranges are one.
        let overlapping = ["0-15000"; 250].join(",");
        let reply = server.request(&format!("GET /z.bin\nRange: bytes={overlapping}"), b"");
        assert_eq!((reply.status, reply.body.len()), (206, 15_001));
    });
}

#[test]
fn preconditions_of_reads_are_evaluated() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("f", b"0123456789");
        let etag = server.get("/f").etag().to_owned();
        let date = "Sun, 13 Sep 2020 12:26:40 GMT";
        let before = "Sun, 13 Sep 2020 12:26:39 GMT";
        let table = [
            (format!("If-None-Match: {etag}"), 304),
            (format!("If-None-Match: W/{etag}"), 304),
            (format!("If-None-Match: \"x\", {etag}"), 304),
            ("If-None-Match: *".into(), 304),
            ("If-None-Match: \"x\"".into(), 200),
            (format!("If-Modified-Since: {date}"), 304),
            (format!("If-Modified-Since: {before}"), 200),
            (
                format!("If-None-Match: \"x\"\nIf-Modified-Since: {date}"),
                200,
            ),
            (format!("If-Match: {etag}"), 200),
            ("If-Match: *".into(), 200),
            ("If-Match: \"x\"".into(), 412),
            (format!("If-Match: W/{etag}"), 412),
            (format!("If-Unmodified-Since: {date}"), 200),
            (format!("If-Unmodified-Since: {before}"), 412),
            (
                format!("If-Match: {etag}\nIf-Unmodified-Since: {before}"),
                200,
            ),
            (format!("If-Match: \"x\"\nIf-None-Match: {etag}"), 412),
            (format!("Range: bytes=0-1\nIf-None-Match: {etag}"), 304),
            (format!("Range: bytes=0-1\nIf-Range: {etag}"), 206),
            (format!("Range: bytes=0-1\nIf-Range: {date}"), 206),
            ("Range: bytes=0-1\nIf-Range: \"x\"".into(), 200),
            (format!("Range: bytes=0-1\nIf-Range: W/{etag}"), 200),
            (format!("Range: bytes=0-1\nIf-Range: {before}"), 200),
            ("Range: bytes=90-\nIf-Range: \"x\"".into(), 200),
        ];
        for (fields, status) in &table {
            let reply = server.request(&format!("GET /f\n{fields}"), b"");
            assert_eq!(reply.status, *status, "{}: {fields}", server.name);
            if *status == 304 {
                assert_eq!(reply.etag(), etag);
                assert_eq!(reply.field("cache-control"), Some("no-cache"));
                assert_eq!(reply.field("content-type"), None);
            }
            if !fields.contains("Range") {
                let head = server.request(&format!("HEAD /f\n{fields}"), b"");
                assert_eq!(head.status, *status, "{fields}");
            }
        }
    });
}

#[test]
fn other_methods_are_refused_and_errors_are_text_or_json() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("f", b"x");
        for method in ["PUT", "DELETE", "POST", "PATCH", "get", "BREW"] {
            let reply = server.request(&format!("{method} /f"), b"");
            assert_eq!(reply.status, 405, "{method}");
            assert_eq!(reply.field("allow"), Some("GET, HEAD, OPTIONS"));
            let is_known = matches!(method, "PUT" | "DELETE" | "POST");
            let names_option = reply.text().contains("permits no changes (--allow)");
            assert_eq!(names_option, is_known, "{method}: {}", reply.text());
        }
        let options = server.request("OPTIONS /f", b"");
        assert_eq!(options.status, 204);
        assert_eq!(options.field("allow"), Some("GET, HEAD, OPTIONS"));
        let text = server.get("/missing");
        assert_eq!(
            (text.status, text.text()),
            (404, "there is no such object\n")
        );
        assert_eq!(
            text.field("content-type"),
            Some("text/plain; charset=utf-8")
        );
        let problem = server.request("GET /missing\nAccept: application/json", b"");
        let kind = problem.field("content-type");
        assert_eq!(kind, Some("application/problem+json"));
        assert_eq!(problem.json()["status"], 404);
        assert_eq!(problem.json()["title"], "Not Found");
        assert_eq!(server.request("HEAD /missing", b"").status, 404);
    });
}

#[test]
fn io_error_gives_500_without_details() {
    let mut server = TestServer::simulated("/", &FilesOptions::default(), 1);
    server.add("secret-name", &pattern(1000));
    server.disk().set_cold(true);
    let mut failures = 0;
    for ahead in 0..4 {
        let next = server.disk().operations() + ahead;
        server.disk().fail_at(next, 5);
        let reply = server.get("/secret-name");
        server.disk().clear_faults();
        if reply.status != 200 {
            assert_eq!((reply.status, reply.text()), (500, "the disk failed\n"));
            failures += 1;
        }
    }
    assert!(failures > 0);
    assert_eq!(server.get("/secret-name").status, 200);
}

#[test]
fn slow_clients_use_bounded_memory() {
    let options = FilesOptions {
        cache_bytes_max: 100_000,
        ..FilesOptions::default()
    };
    let mut server = TestServer::simulated("/", &options, 1);
    let content = pattern(60_000);
    let mut slow: Vec<_> = (0..20)
        .map(|i| {
            server.add(&format!("f{i}"), &content);
            let mut connection = server.connect();
            let request = format!("GET /f{i} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
            server.send(&mut connection, request.as_bytes());
            connection
        })
        .collect();
    for connection in &mut slow {
        let reply = Reply::parse(&server.receive(connection), false);
        assert!(reply.status == 200 && reply.body == content);
    }
}

#[test]
fn folder_that_cannot_be_opened_gives_one_error_line() {
    let dir = TempDir::new();
    let missing = dir.path().join("missing");
    let error = Files::open(&missing, FilesOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with("does not exist; it is created only if writing is allowed"),
        "{text}"
    );
    Files::open(&missing, writable()).unwrap();
    assert!(missing.is_dir());
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    for options in [FilesOptions::default(), writable()] {
        let text = Files::open(&file, options).unwrap_err().to_string();
        assert!(text.ends_with("file is not a folder"), "{text}");
    }
}
