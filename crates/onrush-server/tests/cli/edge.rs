//! The binary with `--edge`: in front of a bucket of an S3 server in this process, and of a folder.

use crate::program::plain::{get, printed};
use crate::program::{Folder, Server, TIMEOUT, drivers, onrush, output, pattern, wait_until};
use onrush_store::{Condition, Key, Store};
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use testing::Reply;
use testing_s3::{Bucket, KEY};

const BLOCK: usize = 4 << 20;

fn command(address: SocketAddr, edge: &Path, arguments: &[&str]) -> Command {
    let mut command = onrush();
    command.env("AWS_ENDPOINT_URL", format!("http://{address}"));
    command.env("AWS_ACCESS_KEY_ID", KEY.0);
    command.env("AWS_SECRET_ACCESS_KEY", KEY.1);
    command.args(["s3://bucket/p", "--port", "0", "--edge"]);
    command.arg(edge).args(arguments);
    command
}

fn request(address: SocketAddr, head: &str, body: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    let head = format!("{head}Host: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("the server reads");
    stream.write_all(body).expect("the server reads");
    let mut response = Vec::new();
    stream
        .read_to_end(&mut response)
        .expect("the server responds");
    Reply::parse(&response, head.starts_with("HEAD"))
}

/// A response: its content and `Cache-Status`.
fn fetch(address: SocketAddr, path: &str, field: &str) -> (u16, String, Vec<u8>) {
    let reply = request(address, &format!("GET {path} HTTP/1.1\r\n{field}"), b"");
    let status = reply.field("cache-status").unwrap_or_default().to_owned();
    (reply.status, status, reply.body)
}

/// Puts an object into the bucket, as another server would.
fn put(bucket: &Bucket, name: &str, content: &[u8]) {
    let store = bucket.store("s3://bucket/p");
    onrush_store::testing::block_on(async {
        let key = Key::parse(name.as_bytes()).expect("a key");
        let size = Some(content.len() as u64);
        let upload = store.stage(&key, Condition::None, size).await;
        let mut upload = upload.expect("an upload");
        upload.write(content.to_vec()).await.expect("room");
        upload.commit().await.expect("an object");
    });
    // The edge does not confirm an object that was changed within the last seconds.
    let mut stored = bucket.service.lock();
    let object = stored.by_key.get_mut(&format!("p/{name}"));
    object.expect("it is stored").modified -= Duration::from_secs(3600);
}

fn requests(bucket: &Bucket) -> Vec<(&'static str, usize)> {
    let all = std::mem::take(&mut bucket.service.lock().requests);
    all.into_iter().collect()
}

#[test]
fn objects_of_a_bucket_are_fetched_once() {
    for driver in drivers() {
        let (bucket, dir) = (Bucket::new(), Folder::new());
        let edge = dir.path().join("edge");
        let small = pattern(1, 3000);
        let (single, large) = (pattern(2, BLOCK), pattern(3, 3 * BLOCK + 5));
        for (name, content) in [("small", &small), ("single", &single), ("large", &large)] {
            put(&bucket, name, content);
        }
        let arguments = ["--driver", driver, "--allow", "put,delete", "--admin", "0"];
        let server = Server::run(command(bucket.address, &edge, &arguments));
        let at = server.address();
        requests(&bucket);
        let (miss, hit) = ("onrush; fwd=uri-miss; stored", "onrush; hit");
        for (name, content) in [("/small", &small), ("/single", &single), ("/large", &large)] {
            let (status, how, found) = fetch(at, name, "");
            assert!((status, &found) == (200, content), "{name} {status}");
            assert_eq!(how, miss, "{name}");
            assert_eq!(requests(&bucket), [("GET", 1)], "{name}");
            for _ in 0..3 {
                let (status, how, found) = fetch(at, name, "");
                assert!((status, &found) == (200, content), "{name} {status}");
                assert_eq!(how, hit, "{name}");
            }
            let range = format!("Range: bytes=2000-{}\r\n", content.len() - 2);
            let (status, how, found) = fetch(at, name, &range);
            assert!((status, &found[..]) == (206, &content[2000..content.len() - 1]));
            assert_eq!(how, hit, "{name}");
            let head = request(at, &format!("HEAD {name} HTTP/1.1\r\n"), b"");
            let length = content.len().to_string();
            assert_eq!(head.field("content-length"), Some(&length[..]));
            assert_eq!(head.field("cache-status"), Some(hit));
            let tag = head.field("etag").expect("a tag");
            let (status, how, _) = fetch(at, name, &format!("If-None-Match: {tag}\r\n"));
            assert_eq!((status, &how[..]), (304, hit));
            assert_eq!(requests(&bucket), []);
        }
        // A change through this server is visible at once; its condition is that of the bucket.
        let put = "PUT /small HTTP/1.1\r\nContent-Length: 3\r\n";
        let refused = request(at, &format!("{put}If-None-Match: *\r\n"), b"new");
        assert_eq!(refused.status, 412);
        assert_eq!(request(at, put, b"new").status, 204);
        let (_, how, found) = fetch(at, "/small", "");
        assert_eq!((&how[..], &found[..]), (miss, &b"new"[..]));
        assert_eq!(request(at, "DELETE /small HTTP/1.1\r\n", b"").status, 204);
        let (status, how, _) = fetch(at, "/small", "");
        assert_eq!((status, &how[..]), (404, ""));

        let metrics = get(printed(&server, "admin"), "/-/metrics", "localhost");
        for line in [
            "onrush_edge_opened_total{result=\"miss\"} 4\n",
            "onrush_edge_fetched_bytes_total ",
            "onrush_edge_used_bytes ",
            "onrush_edge_limit_bytes 10737418240\n",
            "onrush_edge_files 6\n",
            "onrush_edge_scanned 1\n",
        ] {
            assert!(metrics.contains(line), "{line}: {metrics}");
        }
    }
}

#[test]
fn all_clients_wait_for_the_same_fetch() {
    for driver in drivers() {
        let (bucket, dir) = (Bucket::new(), Folder::new());
        let content = pattern(1, 5 * BLOCK + 1);
        put(&bucket, "a", &content);
        let arguments = ["--driver", driver, "--workers", "2"];
        let server = Server::run(command(bucket.address, dir.path(), &arguments));
        requests(&bucket);
        std::thread::scope(|scope| {
            for _ in 0..24 {
                scope.spawn(|| {
                    let (status, _, found) = fetch(server.address(), "/a", "");
                    assert!(status == 200 && found == content);
                });
            }
        });
        assert_eq!(requests(&bucket), [("GET", 1)], "{driver}");
    }
}

#[test]
fn copies_survive_a_restart_and_an_outage() {
    for driver in drivers() {
        let (bucket, dir) = (Bucket::new(), Folder::new());
        let small = pattern(1, 3000);
        let large = pattern(2, 2 * BLOCK + 1);
        put(&bucket, "small", &small);
        put(&bucket, "large", &large);
        let arguments = ["--driver", driver, "--edge-fresh", "0"];
        let run = || Server::run(command(bucket.address, dir.path(), &arguments));
        let mut first = run();
        for name in ["/small", "/large"] {
            fetch(first.address(), name, "");
            let (_, how, _) = fetch(first.address(), name, "");
            assert_eq!(how, "onrush; fwd=stale", "it is confirmed");
        }
        // Only one process uses the folder.
        let second = output(&mut command(bucket.address, dir.path(), &arguments));
        let log = String::from_utf8(second.stderr).expect("text");
        assert_eq!(second.status.code(), Some(1), "{log}");
        assert!(log.contains("in use by another process"), "{log}");
        first.signal("KILL");
        first.wait_for_exit(TIMEOUT);
        let server = run();
        requests(&bucket);
        for (name, content) in [("/small", &small), ("/large", &large)] {
            let (status, how, found) = fetch(server.address(), name, "");
            assert!((status, &found) == (200, content));
            assert_eq!(how, "onrush; fwd=stale", "{name}");
            assert_eq!(requests(&bucket), [("HEAD", 1)], "{name}");
        }
        drop(bucket);
        for (name, content) in [("/small", &small), ("/large", &large)] {
            let (status, how, found) = fetch(server.address(), name, "");
            assert!((status, &found) == (200, content), "{name} {status}");
            assert_eq!(how, "onrush; hit; detail=stale", "{name}");
        }
        let (status, how, _) = fetch(server.address(), "/other", "");
        assert_eq!((status, &how[..]), (503, ""));
    }
}

#[test]
fn a_folder_can_have_an_edge() {
    let (data, dir) = (Folder::new(), Folder::new());
    let content = pattern(1, 100_000);
    data.file("a", &content);
    let edge = dir.path().join("edge");
    let path = edge.to_str().expect("UTF-8");
    let arguments = ["--edge", path, "--edge-fresh", "1h", "--edge-size", "64MiB"];
    let server = Server::start(data.path(), &arguments);
    let (_, how, found) = fetch(server.address(), "/a", "");
    assert!(found == content);
    assert_eq!(how, "onrush; fwd=uri-miss; stored");
    std::fs::remove_file(data.path().join("a")).expect("removed");
    let (_, how, found) = fetch(server.address(), "/a", "");
    assert!(found == content);
    assert_eq!(how, "onrush; hit");
    // A folder without one says nothing about caches.
    data.file("b", "b");
    let plain = Server::start(data.path(), &[]);
    assert_eq!(fetch(plain.address(), "/b", "").1, "");
}

#[test]
fn a_wrong_folder_or_option_is_one_clear_line() {
    let (data, other) = (Folder::new(), Folder::new());
    other.file("precious", "x");
    let path = |folder: &Folder| folder.path().to_str().expect("UTF-8").to_owned();
    let inside = data.path().join("edge").to_str().expect("UTF-8").to_owned();
    let file = other
        .path()
        .join("precious")
        .to_str()
        .expect("UTF-8")
        .to_owned();
    for (arguments, code, reason) in [
        (["--edge", &path(&other)], 1, "is not empty and is no cache"),
        (["--edge", &inside], 2, "is in the served folder"),
        (["--edge", &file], 1, "not a directory"),
        (["--edge-size", "1GiB"], 2, "edge-size: it needs edge"),
    ] {
        let mut command = onrush();
        let output = output(
            command
                .arg(data.path())
                .args(["--port", "0"])
                .args(arguments),
        );
        let log = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{log}");
        let line = log.lines().last().expect("a line");
        assert!(line.to_lowercase().contains(reason), "{line}");
    }
    let mut command = onrush();
    command
        .arg(data.path())
        .args(["--edge", "x", "--edge-size", "1MiB"]);
    let log = String::from_utf8(output(&mut command).stderr).expect("text");
    assert!(log.contains("less than 64MiB"), "{log}");
    wait_until(|| !data.path().join("edge").exists());
}

/// Copies of one store are never served for another one, and not if other users could make them.
#[test]
fn a_cache_belongs_to_one_store_and_one_user() {
    let (one, two, edge) = (Folder::new(), Folder::new(), Folder::new());
    one.file("a", "of one");
    two.file("a", "of two");
    let cache = edge.path().join("cache");
    let start = |folder: &Folder| {
        let mut command = onrush();
        command.arg(folder.path()).args(["--port", "0", "--edge"]);
        command.arg(&cache);
        command
    };
    let server = Server::run(start(&one));
    assert_eq!(fetch(server.address(), "/a", "").2, b"of one");
    drop(server);
    let refused = |folder: &Folder, reason: &str| {
        let output = output(&mut start(folder));
        let log = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(
            log.lines().last().expect("a line").contains(reason),
            "{log}"
        );
    };
    refused(&two, "has copies of ");
    std::fs::set_permissions(&cache, Permissions::from_mode(0o777)).expect("set");
    refused(&one, "can be changed by other users");
    std::fs::set_permissions(&cache, Permissions::from_mode(0o700)).expect("set");
    let server = Server::run(start(&one));
    assert_eq!(fetch(server.address(), "/a", "").2, b"of one");
}
