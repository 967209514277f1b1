//! The binary with `--cache`: the protocol as build tools use it, digests of names, the limit under
//! load, restarts, and wrong folders and options. `cargo xtask cache` runs it at full size.

use crate::keep_alive::{Connection, Response};
use crate::program::plain::{get, printed};
use crate::program::users::{UsersFile, login, request};
use crate::program::{Folder, Server, TIMEOUT, drivers, onrush, output, pattern, wait_until};
use onrush_store::testing::disk_bytes;
use sha2::{Digest, Sha256};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn sha256(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn start(dir: &Path, size: &str, more: &[&str]) -> Server {
    Server::start(dir, &[&["--cache", size, "--admin", "0"], more].concat())
}

/// The value of a metric without labels, or with those in `name`.
fn metric(server: &Server, name: &str) -> u64 {
    let metrics = get(printed(server, "admin"), "/-/metrics", "localhost");
    let value = metrics.lines().find_map(|line| {
        let (found, value) = line.rsplit_once(' ')?;
        (found == name).then(|| value.parse().expect("a number"))
    });
    value.unwrap_or_else(|| panic!("{name}: {metrics}"))
}

/// A scan of a million objects takes longer than other things.
fn wait_until_scanned(server: &Server) {
    let end = Instant::now() + Duration::from_secs(600);
    while metric(server, "onrush_cache_scanned") != 1 {
        assert!(Instant::now() < end, "the scan does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A number from the environment, for runs at full size.
fn number(variable: &str, default: u64) -> u64 {
    let value = std::env::var(variable).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}

/// nx takes 201 and 204 for failures, and must not replace a record.
#[test]
fn nx_stores_a_record_once() {
    for driver in drivers() {
        let folder = Folder::new();
        let dir = folder.path().join("cache");
        let server = start(&dir, "64MiB", &["--driver", driver]);
        let mut client = Connection::new(server.address());
        let type_of_stream = "Content-Type: application/octet-stream\r\n";
        for prefix in ["", "/team"] {
            let path = format!("{prefix}/v1/cache/13254237");
            assert_eq!(client.get(&path).status, 404);
            assert_eq!(client.put_with(&path, type_of_stream, b"one").status, 200);
            let second = client.put_with(&path, type_of_stream, b"two");
            assert_eq!(second.status, 409);
            assert_eq!(
                second.field("content-type"),
                Some("text/plain; charset=utf-8")
            );
            assert!(client.get(&path).is(200, b"one"));
            let other = format!("{prefix}/v1/other/13254237");
            assert_eq!(client.put(&other, b"one").status, 201);
        }
        drop(server);
        let server = start(&dir, "64MiB", &["--driver", driver, "--allow", "none"]);
        let mut client = Connection::new(server.address());
        assert_eq!(client.put("/v1/cache/2", b"x").status, 405);
    }
}

/// nx shows the text of a refusal only if it is plain.
#[test]
fn a_refusal_of_a_record_is_plain_text() {
    let (folder, file) = (Folder::new(), UsersFile::new());
    file.add("ann", &["read"]);
    let server = start(folder.path(), "64M", &["--auth-file", file.path()]);
    let nx = "Accept: application/octet-stream\r\n";
    for (name, status) in [("", 401), ("ann", 403)] {
        let fields = format!("{nx}{}", login(name));
        let (found, response) = request(&server, "PUT", "/v1/cache/13254237", &fields);
        assert_eq!(found, status, "{response}");
        let head = response.to_lowercase();
        assert!(head.contains("content-type: text/plain"), "{response}");
    }
    let (found, _) = request(&server, "GET", "/v1/cache/13254237", &login("ann"));
    assert_eq!(found, 404);
}

/// The folders of a cache are implied, so one for a copy exists. Nothing is renamed.
#[test]
fn objects_are_copied_to_new_folders() {
    let folder = Folder::new();
    let server = start(folder.path(), "64M", &["--allow", "put,delete"]);
    let mut client = Connection::new(server.address());
    assert_eq!(client.put("/a/x", b"x").status, 201);
    let to = "Destination: /b/c/y\r\n";
    assert_eq!(client.request("COPY", "/a/x", to, b"").status, 201);
    assert!(client.get("/b/c/y").is(200, b"x"));
    let refused = client.request("MOVE", "/a/x", to, b"");
    assert_eq!(refused.status, 405);
    let allow = refused.field("allow").expect("a list");
    assert!(allow.contains("COPY") && !allow.contains("MOVE"), "{allow}");
}

/// Turborepo compares the signature that it has sent, and shows the time that is saved.
#[test]
fn turborepo_finds_its_fields_again() {
    for driver in drivers() {
        let folder = Folder::new();
        let dir = folder.path().join("cache");
        let server = start(&dir, "64MiB", &["--driver", driver]);
        let mut client = Connection::new(server.address());
        for prefix in ["", "/team"] {
            for path in ["v8/artifacts/status?slug=a", "v8/./%61rtifacts//status"] {
                let status = client.get(&format!("{prefix}/{path}"));
                assert!(status.is(200, b"{\"status\":\"enabled\"}\n"), "{path}");
                assert_eq!(status.field("content-type"), Some("application/json"));
            }
            let path = format!("{prefix}/v8/artifacts/12ab?slug=a");
            let fields = "x-artifact-duration: 400\r\nx-artifact-tag: Tc0B+/=\r\n";
            assert_eq!(client.put_with(&path, fields, b"artifact").status, 201);
            for found in [client.head(&path), client.get(&path)] {
                assert_eq!(found.status, 200);
                assert_eq!(found.field("x-artifact-duration"), Some("400"));
                assert_eq!(found.field("x-artifact-tag"), Some("Tc0B+/="));
            }
            // Without them.
            assert_eq!(client.put(&path, b"artifact").status, 204);
            assert_eq!(client.get(&path).field("x-artifact-tag"), None);
        }
        drop(server);
        let other = Folder::new();
        let server = Server::start(other.path(), &["--driver", driver, "--allow", "put"]);
        let mut client = Connection::new(server.address());
        assert_eq!(client.get("/v8/artifacts/status").status, 404);
        let fields = "x-artifact-tag: a\r\n";
        assert_eq!(client.put_with("/v8/artifacts/1", fields, b"x").status, 201);
        assert_eq!(client.get("/v8/artifacts/1").field("x-artifact-tag"), None);
    }
}

#[test]
fn bazel_and_gradle_store_and_find_results() {
    for driver in drivers() {
        let folder = Folder::new();
        let dir = folder.path().join("cache");
        let server = start(&dir, "64MiB", &["--driver", driver]);
        let mut client = Connection::new(server.address());
        for prefix in ["", "/team/linux"] {
            // Bazel asks for the result of an action, then stores its files and the result.
            let action = format!("{prefix}/ac/{KEY}");
            assert_eq!(client.get(&action).status, 404);
            for content in [&b""[..], b"hello\n", &pattern(7, 1_000_000)] {
                let path = format!("{prefix}/cas/{}", sha256(content));
                assert_eq!(client.get(&path).status, 404);
                assert_eq!(client.put(&path, content).status, 201);
                assert_eq!(client.put(&path, content).status, 204);
                assert!(client.get(&path).is(200, content));
                let head = client.head(&path);
                let length = content.len().to_string();
                assert_eq!(head.field("content-length"), Some(&length[..]));
            }
            assert_eq!(client.put(&action, b"result").status, 201);
            assert!(client.get(&action).is(200, b"result"));
        }
        // Gradle waits for 100 before it sends, and gets the type that it has sent.
        let kind = "application/vnd.gradle.build-cache-artifact.v1";
        let fields = format!("Expect: 100-continue\r\nContent-Type: {kind}\r\n");
        let path = "/cache/9f86d081884c7d659a2feaa0c55ad015";
        assert_eq!(client.get(path).status, 404);
        assert_eq!(client.put_with(path, &fields, b"entry").status, 201);
        let found = client.get(path);
        assert!(found.is(200, b"entry"));
        assert_eq!(found.field("content-type"), Some(kind));
        let large = client.request(
            "PUT",
            path,
            &format!("{fields}Content-Length: 67108864\r\n"),
            b"",
        );
        assert_eq!(large.status, 413, "before the body is sent");
        // sccache begins with the name of a hidden file.
        let mut client = Connection::new(server.address());
        assert_eq!(client.put("/.sccache_check", b"x").status, 201);
        assert!(client.get("/.sccache_check").is(200, b"x"));
        let folder = client.request("PROPFIND", "/a&b/c/", "Depth: 0\r\n", b"");
        assert_eq!(folder.status, 207);
        assert!(
            folder.text().contains("<D:href>/a&amp;b/c/</D:href>"),
            "{folder:?}"
        );
        assert_eq!(client.put("/.onrush/x", b"x").status, 403);
        let listed = client.get("/");
        assert_eq!(listed.status, 501, "the cache does not know its keys");
        assert!(listed.text().contains("the store has no listings"));
        assert_eq!(client.request("DELETE", path, "", b"").status, 405);
        assert_eq!(
            metric(&server, "onrush_cache_requests_total{result=\"hit\"}"),
            16
        );
        assert_eq!(
            metric(&server, "onrush_cache_requests_total{result=\"miss\"}"),
            9
        );
        assert_eq!(metric(&server, "onrush_cache_objects"), 10);
        assert_eq!(metric(&server, "onrush_cache_limit_bytes"), 64 << 20);
        assert_eq!(metric(&server, "onrush_cache_used_bytes"), disk_bytes(&dir));
        assert_eq!(metric(&server, "onrush_cache_evictions_total"), 0);
        let stored = metric(&server, "onrush_cache_stored_bytes_total");
        assert_eq!(stored, 4 * 1_000_006 + 2 * 6 + 5 + 1);
        assert_eq!(metric(&server, "onrush_cache_scanned"), 1);
        assert!(metric(&server, "onrush_cache_oldest_seconds") < 3600);
        server.logs("the cache is scanned");
    }
}

#[test]
fn content_that_differs_from_its_name_is_refused() {
    for driver in drivers() {
        let folder = Folder::new();
        let server = start(
            folder.path(),
            "64MiB",
            &["--driver", driver, "--allow", "put,delete"],
        );
        for size in [0, 5, 20_000, 3_000_000] {
            let mut content = pattern(1, size);
            content.push(0);
            let path = format!("/cas/{}", sha256(&content));
            content[size] = 1;
            let mut client = Connection::new(server.address());
            let refused = client.put(&path, &content);
            assert_eq!(refused.status, 400);
            assert_eq!(refused.text(), "the digest of the body does not match\n");
            let mut client = Connection::new(server.address());
            assert_eq!(client.get(&path).status, 404);
            content[size] = 0;
            assert_eq!(client.put(&path, &content).status, 201);
            // A good object stays when a bad one follows.
            assert_eq!(client.put(&path, b"bad").status, 400);
            let mut client = Connection::new(server.address());
            assert!(client.get(&path).is(200, &content));
            assert_eq!(client.request("DELETE", &path, "", b"").status, 204);
            assert_eq!(client.get(&path).status, 404);
        }
        let mut client = Connection::new(server.address());
        for name in ["x".to_owned(), KEY.to_uppercase(), format!("{KEY}0")] {
            let refused = client.put(&format!("/cas/{name}"), b"");
            assert_eq!(refused.status, 400, "{name}");
            assert!(
                refused.text().contains("named by its SHA-256"),
                "{refused:?}"
            );
            client = Connection::new(server.address());
        }
        // A digest names these bytes as they are.
        let (path, length) = (
            format!("/cas/{}", sha256(b"content")),
            "Content-Length: 7\r\n",
        );
        for (fields, status) in [
            ("Content-Encoding: gzip\r\n", 415),
            (
                "Content-Type: text/html\r\nContent-Disposition: inline\r\n",
                201,
            ),
        ] {
            let mut client = Connection::new(server.address());
            assert_eq!(
                client
                    .request("PUT", &path, &(length.to_owned() + fields), b"content")
                    .status,
                status
            );
        }
        let mut client = Connection::new(server.address());
        let got = client.get(&path);
        assert!(got.is(200, b"content"));
        assert_eq!(got.field("content-disposition"), None);
        assert_eq!(got.field("content-type"), Some("application/octet-stream"));
        assert_eq!(client.request("DELETE", &path, "", b"").status, 204);
        wait_until(|| disk_bytes(folder.path()) == 0);
        assert_eq!(metric(&server, "onrush_cache_used_bytes"), 0);
    }
}

/// Many clients store five times what fits. `ONRUSH_TEST_CACHE_BYTES` is the limit.
#[test]
fn a_cache_filled_by_32_writers_keeps_its_limit_and_no_request_fails() {
    const WRITERS: u64 = 32;
    const ROUNDS: u64 = 10;
    let limit = number("ONRUSH_TEST_CACHE_BYTES", 64 << 20);
    let folder = Folder::new();
    let server = start(folder.path(), &limit.to_string(), &[]);
    let begun = Instant::now();
    // From 1 KiB to a 64th of the limit: uploads in progress have at most half of it.
    let size = |number: u64| (1024 << (number % 11)) * (limit >> 26).max(1);
    let all = pattern(3, size(10) as usize + 256);
    let content = |number: u64| {
        let from = (number % 251) as usize;
        &all[from..from + size(number) as usize]
    };
    let connect = |writer| (Connection::new(server.address()), writer, writer);
    let mut writers: Vec<(Connection, u64, u64)> = (0..WRITERS).map(connect).collect();
    let store_part = |(client, writer, number): &mut (Connection, u64, u64)| {
        let mut left = (5 * limit / WRITERS / ROUNDS) as i64;
        while left > 0 {
            let body = content(*number);
            let stored = client.put(&format!("/w{writer}/{number}"), body);
            assert_eq!(stored.status, 201, "{stored:?}");
            let before = number.saturating_sub(WRITERS);
            let found = client.get(&format!("/w{writer}/{before}"));
            let is_right = found.status == 404 || found.is(200, content(before));
            assert!(is_right, "{before}: {}", found.status);
            left -= body.len() as i64;
            *number += WRITERS;
        }
    };
    let store_part = &store_part;
    for _ in 0..ROUNDS {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let running: Vec<_> = (writers.iter_mut())
                .map(|writer| scope.spawn(move || store_part(writer)))
                .collect();
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    assert!(metric(&server, "onrush_cache_used_bytes") <= limit);
                }
            });
            let ended: Vec<_> = running.into_iter().map(|thread| thread.join()).collect();
            is_over.store(true, SeqCst);
            assert!(ended.iter().all(Result::is_ok), "a writer has failed");
        });
        // No object is stored now, so the disk has what is accounted for.
        wait_until(|| disk_bytes(folder.path()) == metric(&server, "onrush_cache_used_bytes"));
        assert!(disk_bytes(folder.path()) <= limit);
    }
    assert!(metric(&server, "onrush_cache_stored_bytes_total") >= 5 * limit);
    assert!(metric(&server, "onrush_cache_used_bytes") > limit / 2);
    let seconds = begun.elapsed().as_secs_f64();
    let evictions = metric(&server, "onrush_cache_evictions_total");
    println!(
        "{limit} bytes, filled with five times as much in {seconds:.1} s, {evictions} evicted"
    );
}

/// `ONRUSH_TEST_CACHE_OBJECTS` objects are found after a restart, and a new one is stored. With
/// `ONRUSH_TEST_CACHE_SERVES_WITHIN_MS`, the time from the start of the program is checked.
#[test]
fn a_restarted_cache_serves_while_it_is_scanned() {
    const CLIENTS: u64 = 16;
    let objects = number("ONRUSH_TEST_CACHE_OBJECTS", 2000);
    let folder = Folder::new();
    let mut server = start(folder.path(), "1TiB", &[]);
    let body = |number: u64| format!("object {number}");
    std::thread::scope(|scope| {
        for first in 0..CLIENTS {
            let address = server.address();
            scope.spawn(move || {
                let mut client = Connection::new(address);
                for number in (first..objects).step_by(CLIENTS as usize) {
                    let stored = client.put(&format!("/o{number}"), body(number).as_bytes());
                    assert_eq!(stored.status, 201);
                }
            });
        }
    });
    for (signal, stored) in [("TERM", 1), ("KILL", 2)] {
        server.signal(signal);
        server.wait_for_exit(10 * TIMEOUT);
        drop(server);
        let begun = Instant::now();
        server = start(folder.path(), "1TiB", &[]);
        let mut client = Connection::new(server.address());
        for at in 0..100 {
            let number = (at * 7919 + 13) % objects;
            let found = client.get(&format!("/o{number}"));
            assert!(found.is(200, body(number).as_bytes()), "{found:?}");
        }
        let served_ms = begun.elapsed().as_millis() as u64;
        let put = client.put(&format!("/after-{signal}"), b"x");
        assert_eq!(put.status, 201, "{put:?}");
        let stored_ms = begun.elapsed().as_millis() as u64;
        let is_scanned = metric(&server, "onrush_cache_scanned") == 1;
        wait_until_scanned(&server);
        let scanned_ms = begun.elapsed().as_millis();
        println!(
            "{objects} objects after {signal}: 100 served within {served_ms} ms, one stored \
             within {stored_ms} ms, scanned {} and after {scanned_ms} ms at most; {} KiB of memory",
            if is_scanned { "before that" } else { "later" },
            server.peak_kib(),
        );
        let within_ms = number("ONRUSH_TEST_CACHE_SERVES_WITHIN_MS", u64::MAX);
        assert!(stored_ms <= within_ms, "it serves too late");
        assert_eq!(metric(&server, "onrush_cache_objects"), objects + stored);
        assert_eq!(
            metric(&server, "onrush_cache_used_bytes"),
            disk_bytes(folder.path())
        );
    }
}

/// Uploads that end with the process leave nothing behind.
#[test]
fn a_killed_server_leaves_no_part_of_an_object() {
    let folder = Folder::new();
    let content = pattern(1, 5_000_000);
    for round in 0..5 {
        let mut server = start(folder.path(), "64MiB", &[]);
        let mut client = Connection::new(server.address());
        let path = format!("/o{round}");
        assert_eq!(client.put(&path, &content).status, 201);
        let half = &content[..2_000_000];
        client.send("PUT", "/half", "Content-Length: 5000000\r\n", half);
        wait_until(|| disk_bytes(&folder.path().join("new")) > 0);
        server.signal("KILL");
        server.wait_for_exit(TIMEOUT);
        drop(server);
        let server = start(folder.path(), "64MiB", &[]);
        let mut client = Connection::new(server.address());
        assert_eq!(client.get("/half").status, 404);
        assert!(client.get(&path).is(200, &content), "it was complete");
        wait_until_scanned(&server);
        assert_eq!(
            metric(&server, "onrush_cache_used_bytes"),
            disk_bytes(folder.path())
        );
        assert_eq!(disk_bytes(&folder.path().join("new")), 0);
    }
}

#[test]
fn access_control_applies_to_a_cache() {
    let folder = Folder::new();
    let server = start(
        folder.path(),
        "64MiB",
        &["--auth", "ann:secret", "--public-read"],
    );
    let mut client = Connection::new(server.address());
    let path = format!("/ac/{KEY}");
    assert_eq!(client.put(&path, b"x").status, 401);
    let login = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
    let mut client = Connection::new(server.address());
    assert_eq!(client.put_with(&path, login, b"x").status, 201);
    assert!(client.get(&path).is(200, b"x"));
    drop(server);
    let server = start(folder.path(), "64MiB", &["--allow", "none"]);
    let mut client = Connection::new(server.address());
    assert!(client.get(&path).is(200, b"x"));
    assert_eq!(client.put(&path, b"y").status, 405);
}

#[test]
fn a_cache_that_is_served_as_a_folder_gets_a_warning() {
    let folder = Folder::new();
    let server = start(folder.path(), "64MiB", &[]);
    drop(server);
    let server = Server::start(folder.path(), &[]);
    server.logs("this is the folder of a cache; without --cache or --edge");
    // A client cannot make a folder look like one.
    let mark = std::fs::read(folder.path().join("onrush-cache")).expect("a mark");
    let (plain, written) = (Folder::new(), Folder::new());
    plain.file("onrush-cache", "of a client");
    drop(Server::start(written.path(), &["--allow", "put"]));
    written.file("onrush-cache", mark);
    for folder in [plain, written] {
        let server = Server::start(folder.path(), &[]);
        let log = server.log();
        assert!(!log.contains("folder of a cache"), "{log}");
    }
}

#[test]
fn a_wrong_folder_or_option_is_one_clear_line() {
    let (used, other, loose) = (Folder::new(), Folder::new(), Folder::new());
    let _server = start(used.path(), "64MiB", &[]);
    let file = other.file("precious", "x");
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(loose.path(), mode).expect("set");
    let new = used.path().join("x");
    for (dir, arguments, code, reason) in [
        (
            other.path(),
            &["--cache", "1G"][..],
            1,
            "is not empty and is no cache of onrush",
        ),
        (
            used.path(),
            &["--cache", "1G"],
            1,
            "is in use by another process",
        ),
        (loose.path(), &["--cache", "1G"], 1, "chown and chmod 700"),
        (file.as_path(), &["--cache", "1G"], 1, "not a directory"),
        (
            new.as_path(),
            &["--cache", "1M"],
            2,
            "cache: 1048576 is less than 64mib",
        ),
        (
            new.as_path(),
            &["--cache", "big"],
            2,
            "write a size as in 10mib",
        ),
        (
            new.as_path(),
            &["--cache", "-1"],
            2,
            "write a size as in 10mib",
        ),
        (
            new.as_path(),
            &["--cache", "1G", "--edge", "e"],
            2,
            "cache and edge exclude each other",
        ),
        (
            new.as_path(),
            &["--cache", "1G", "--sink"],
            2,
            "cache and sink exclude each other",
        ),
        (
            new.as_path(),
            &["--cache", "1G", "--durability", "full"],
            2,
            "cache and durability exclude",
        ),
        (
            Path::new("s3://bucket/p"),
            &["--cache", "1G"],
            2,
            "s3://bucket/p is not a folder",
        ),
        (
            new.as_path(),
            &["--cache", "1G", "--bind", "0.0.0.0"],
            2,
            "everyone who can reach",
        ),
    ] {
        let mut command = onrush();
        let output = output(command.arg(dir).args(["--port", "0"]).args(arguments));
        let log = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {log}");
        assert!(log.to_lowercase().contains(reason), "{arguments:?}: {log}");
    }
    assert!(!new.exists());
    assert_eq!(std::fs::read(file).expect("it is still there"), b"x");
}

impl Response {
    fn is(&self, status: u16, body: &[u8]) -> bool {
        self.status == status && self.body == body
    }
}
