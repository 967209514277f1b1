//! Metrics and health of the real binary: on their own address and on the address of the
//! objects.

use crate::program::{Folder, Server, TIMEOUT, onrush, output, pattern, wait_until};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The response of a GET at an address; empty if there is no listener.
fn get_from(address: &str, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return String::new();
    };
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut response = String::new();
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.read_to_string(&mut response);
    response
}

fn admin_address(server: &Server) -> String {
    let log = server.logs(" admin ");
    let line = log
        .lines()
        .find(|line| line.contains(" admin "))
        .expect("a line");
    let (_, address) = line.split_once("address=").expect("an address");
    address.trim_matches('"').to_owned()
}

fn samples(page: &str) -> BTreeMap<String, f64> {
    let (_, body) = page.split_once("\r\n\r\n").expect("a body");
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

fn sum(samples: &BTreeMap<String, f64>, name: &str) -> f64 {
    let named = samples
        .iter()
        .filter(|(key, _)| key.split('{').next() == Some(name));
    named.map(|(_, value)| value).sum()
}

#[test]
fn metrics_on_their_own_address() {
    let folder = Folder::new();
    folder.file("x", "content");
    folder.file("-/metrics", "an object");
    let mut server = Server::start(folder.path(), &["--admin", "127.0.0.1:0", "--workers", "2"]);
    let admin = admin_address(&server);
    for _ in 0..5 {
        assert!(server.get("/x").ends_with("content"));
    }
    assert!(server.get("/nothing").starts_with("HTTP/1.1 404 "));
    // The address of the objects serves only objects.
    assert!(server.get("/-/metrics").ends_with("an object"));
    assert!(get_from(&admin, "/-/health").ends_with("alive\n"));
    assert!(get_from(&admin, "/-/ready").ends_with("ready\n"));
    for path in ["/", "/-/", "/-/x", "/x"] {
        let missing = get_from(&admin, path);
        assert!(
            missing.starts_with("HTTP/1.1 404 ")
                && missing.ends_with("see /-/dashboard, /-/metrics, /-/health and /-/ready\n"),
            "{path}: {missing}"
        );
    }
    let page = get_from(&admin, "/-/dashboard");
    assert!(page.contains("<dt>Requests</dt>"), "{page}");
    assert!(page.contains("\r\nContent-Security-Policy: default-src 'none'; script-src 'nonce-"));
    for name in ["css", "mjs"] {
        let asset = get_from(&admin, &format!("/-/dashboard.{name}"));
        assert!(asset.starts_with("HTTP/1.1 200 "), "{asset}");
    }
    let values = samples(&get_from(&admin, "/-/metrics"));
    assert_eq!(
        sum(&values, "http_server_request_duration_seconds_count"),
        7.0
    );
    assert_eq!(sum(&values, "onrush_connections_accepted_total"), 7.0);
    assert_eq!(sum(&values, "onrush_connections_placed_total"), 7.0);
    assert!(sum(&values, "process_resident_memory_bytes") > 1e5);
    assert_eq!(
        values
            .keys()
            .filter(|key| key.starts_with("onrush_worker_busy_ratio"))
            .count(),
        2
    );

    assert!(server.get("/-/dashboard").starts_with("HTTP/1.1 404 "));

    // While it drains, it is alive and not ready. One request is in progress.
    let mut slow = server.connect();
    slow.write_all(b"PUT /y HTTP/1.1\r\nHost: localhost\r\n")
        .expect("sent");
    let accepted = || {
        let page = get_from(&admin, "/-/metrics");
        sum(&samples(&page), "onrush_connections_accepted_total")
    };
    wait_until(|| accepted() == 9.0); // It is accepted when its first bytes have arrived.
    server.signal("TERM");
    let end = Instant::now() + TIMEOUT;
    while !get_from(&admin, "/-/ready").ends_with("ending\n") {
        assert!(Instant::now() < end, "the server does not become unready");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(get_from(&admin, "/-/ready").starts_with("HTTP/1.1 503 "));
    assert!(get_from(&admin, "/-/health").starts_with("HTTP/1.1 200 "));
    drop(slow);
    assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
    assert_eq!(get_from(&admin, "/-/health"), "");
}

#[test]
fn metrics_on_the_same_address_reserve_their_paths() {
    let folder = Folder::new();
    folder.file("x", "content");
    folder.file("-/metrics", "an object");
    folder.file("a/-/metrics", "another");
    let server = Server::start(folder.path(), &["--admin=same", "--allow", "put,delete"]);
    assert!(server.get("/x").ends_with("content"));
    assert!(
        server
            .get("/-/metrics")
            .contains("\nonrush_connections_accepted_total{")
    );
    assert!(server.get("/-/ready").ends_with("ready\n"));
    for path in ["/%2d/metrics", "/%2D/metrics", "/-/", "/-", "/-/x"] {
        let response = server.get(path);
        assert!(response.starts_with("HTTP/1.1 404 "), "{path}: {response}");
        assert!(!response.contains("an object"));
    }
    for path in ["/-/metrics", "/-", "/%2d/metrics", "/-/x"] {
        let put = format!(
            "PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: 1\r\n\r\ny"
        );
        let response = server.exchange(put.as_bytes());
        let status = &response[9..12];
        assert!(
            ["403", "404", "405"].contains(&status),
            "{path}: {response}"
        );
    }
    let list = server.get("/?format=json");
    assert!(list.contains("\"x\"") && !list.contains("\"-\""), "{list}");
    assert!(
        server.get("/a/-/metrics").ends_with("another"),
        "only at the root"
    );
}

#[test]
fn unavailable_admin_address_is_reported() {
    let folder = Folder::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let mut command = onrush();
    command
        .arg(folder.path())
        .args(["--port", "0", "--admin", &address]);
    let output = output(&mut command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&address) && said.contains("is in use"),
        "{said}"
    );
    assert!(said.contains("--admin"), "the flag is named: {said}");
}

/// Scripts that use `--admin 0` learn the port from stdout.
#[test]
fn admin_address_is_printed_after_the_others() {
    let folder = Folder::new();
    let flags = ["--admin", "0", "--bind", "127.0.0.1:0,127.0.0.1:0"];
    let server = Server::start(folder.path(), &flags);
    let printed = server.prints("admin ");
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, &server.url[..]), "{printed}");
    let admin = lines[2].strip_prefix("admin http://127.0.0.1:");
    let port = admin.and_then(|rest| rest.strip_suffix("/-/"));
    let port: u16 = port.and_then(|port| port.parse().ok()).expect(&printed);
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream
        .set_read_timeout(Some(crate::program::TIMEOUT))
        .expect("set");
    let request = b"GET /-/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    std::io::Write::write_all(&mut stream, request).expect("sent");
    let mut response = String::new();
    std::io::Read::read_to_string(&mut stream, &mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
}

/// A folder that is removed while it is served: the server says so, and goes on with the one that
/// is made in its place.
#[test]
fn the_folder_is_gone_and_made_again() {
    let base = Folder::new();
    let dir = base.path().join("data");
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::write(dir.join("x"), "old").expect("written");
    let server = Server::start(&dir, &["--admin", "127.0.0.1:0", "--allow", "put"]);
    let admin = admin_address(&server);
    assert!(get_from(&admin, "/-/ready").ends_with("ready\n"));
    assert!(server.get("/x").ends_with("old"));
    std::fs::rename(&dir, base.path().join("away")).expect("renamed");
    wait_until(|| {
        let response = get_from(&admin, "/-/ready");
        response.starts_with("HTTP/1.1 503 ") && response.ends_with("the folder is gone\n")
    });
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::write(dir.join("x"), "new").expect("written");
    wait_until(|| get_from(&admin, "/-/ready").ends_with("ready\n"));
    wait_until(|| server.get("/x").ends_with("new"));
    let put = "PUT /y HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n";
    let put = format!("{put}Connection: close\r\n\r\ny");
    assert!(server.exchange(put.as_bytes()).starts_with("HTTP/1.1 201 "));
    assert_eq!(std::fs::read(dir.join("y")).expect("an object"), b"y");
}

/// Another folder at the path: quotas and limits are about what that one has.
#[test]
fn what_counts_is_that_of_the_folder_of_this_moment() {
    let base = Folder::new();
    let [dir, first, second] = ["data", "first", "second"].map(|name| base.path().join(name));
    for folder in [&dir, &second] {
        std::fs::create_dir(folder).expect("a folder");
    }
    std::fs::write(dir.join("x"), "first").expect("written");
    let second_object = "second".repeat(80_000);
    std::fs::write(second.join("x"), &second_object).expect("written");
    let server = Server::start(
        &dir,
        &[
            "--admin=127.0.0.1:0",
            "--allow=put",
            "--quota=/=1M",
            "--unfinished-size=200000", // One client may have half of it.
        ],
    );
    let admin = admin_address(&server);
    let begin = || {
        let head = "PUT /y HTTP/1.1\r\nHost: localhost\r\nUpload-Complete: ?0\r\n";
        let head = format!(
            "{head}Upload-Length: 90000\r\nContent-Length: 80000\r\nConnection: close\r\n\r\n"
        );
        let response = server.exchange(&[head.as_bytes(), &pattern(2, 80_000)].concat());
        response[9..12].to_owned()
    };
    let counts = |bytes: usize| {
        let line = format!("onrush_quota_used_bytes{{prefix=\"/\"}} {bytes}\n");
        wait_until(|| {
            server.get("/x"); // Requests make the server look.
            get_from(&admin, "/-/metrics").contains(&line)
        });
    };
    let swap = |to_second: bool| {
        let (old, new) = match to_second {
            true => (&first, &second),
            false => (&second, &first),
        };
        std::fs::rename(&dir, old).expect("renamed");
        std::fs::rename(new, &dir).expect("renamed");
    };
    assert_eq!((begin(), begin()), ("201".to_owned(), "507".to_owned()));
    counts(4096 + 80_000);
    swap(true);
    wait_until(|| server.get("/x").contains("second"));
    counts(second_object.len());
    // The unfinished upload of the other folder is not one of this one.
    assert_eq!((begin(), begin()), ("201".to_owned(), "507".to_owned()));
    counts(second_object.len() + 80_000);
    swap(false);
    wait_until(|| server.get("/x").ends_with("first"));
    counts(4096 + 80_000);
    assert_eq!(begin(), "507", "it has its upload");
}

/// The path leads to another folder while a request continues an upload. Nothing of that upload
/// counts for the limits there when the request has ended.
#[test]
fn an_upload_in_progress_does_not_count_in_another_folder() {
    const PART: usize = 1 << 20;
    let tus = "Tus-Resumable: 1.0.0\r\n";
    let draft = "Upload-Complete: ?0\r\n";
    let stream = format!("{tus}Content-Type: application/offset+octet-stream\r\n");
    let partial = format!("{draft}Content-Type: application/partial-upload\r\n");
    for (method, begin, fields) in [
        ("POST", tus.to_owned(), stream),
        ("PUT", draft.to_owned(), partial.clone()),
        (
            "PUT",
            format!("{draft}Onrush-Part-Size: {PART}\r\n"),
            partial,
        ),
    ] {
        let base = Folder::new();
        let [dir, other] = ["data", "other"].map(|name| base.path().join(name));
        for folder in [&dir, &other] {
            std::fs::create_dir(folder).expect("a folder");
        }
        std::fs::write(other.join("x"), "other").expect("written");
        let server = Server::start(&dir, &["--admin=127.0.0.1:0", "--allow=put"]);
        let admin = admin_address(&server);
        let used = || {
            let page = samples(&get_from(&admin, "/-/metrics"));
            ["unfinished_uploads", "unfinished_bytes"]
                .map(|budget| page[&format!("onrush_shares_used{{budget=\"{budget}\"}}")] as usize)
        };
        let begin = || {
            let begun = server.exchange(
                format!(
                    "{method} /y HTTP/1.1\r\nHost: localhost\r\n{begin}Upload-Length: {}\r\n\
                     Content-Length: 0\r\nConnection: close\r\n\r\n",
                    2 * PART
                )
                .as_bytes(),
            );
            assert!(begun.starts_with("HTTP/1.1 201 "), "{begun}");
            begun
        };
        let begun = begin();
        let (_, url) = begun.split_once("Location: ").expect("a URL");
        let url = url.lines().next().expect("a line");
        let url = url.trim_start_matches(&server.url);
        let head = format!(
            "PATCH {url} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: 0\r\n{fields}\
             Content-Length: {PART}\r\nConnection: close\r\n\r\n"
        );
        let content = pattern(3, PART);
        let mut patch = server.connect();
        patch.write_all(head.as_bytes()).expect("sent");
        patch.write_all(&content[..PART / 2]).expect("sent");
        wait_until(|| used()[1] > 0);
        std::fs::rename(&dir, base.path().join("old")).expect("renamed");
        std::fs::rename(&other, &dir).expect("renamed");
        wait_until(|| server.get("/x").ends_with("other"));
        begin();
        let _ = patch.write_all(&content[PART / 2..]); // It may have been refused by now.
        let mut response = Vec::new();
        let _ = patch.read_to_end(&mut response);
        wait_until(|| used() == [1, 0]);
    }
}
