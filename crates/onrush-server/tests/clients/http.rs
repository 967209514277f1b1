//! curl, wget and wrk against the real binary.

use crate::program::{
    Folder, Server, TIMEOUT, both_drivers, curl, drivers, is_installed, output_within, pattern,
};
use std::process::Command;
use std::time::Duration;

/// Status code and body of a request by curl.
fn curl_status_and_body(arguments: &[&str]) -> (u16, String) {
    let response = curl(&[&["-w", "\n%{http_code}"], arguments].concat());
    let (body, status) = response.rsplit_once('\n').expect("both");
    (status.parse().expect("a number"), body.to_owned())
}

#[test]
fn curl_puts_gets_and_deletes() {
    if !is_installed("curl") {
        return;
    }
    let folder = Folder::new();
    let source = folder.file("source", "hello\n");
    let source = source.to_str().expect("UTF-8");
    for driver in drivers() {
        let served = Folder::new();
        let flags = ["--allow", "put,delete", "--driver", driver];
        let server = Server::start(served.path(), &flags);
        let url = format!("{}/a/b%20c.txt", server.url);
        assert_eq!(curl_status_and_body(&[&url]).0, 404);
        assert_eq!(curl_status_and_body(&["-T", source, &url]).0, 201);
        assert_eq!(curl_status_and_body(&["-T", source, &url]).0, 204);
        assert_eq!(
            std::fs::read(served.path().join("a/b c.txt")).expect("a file"),
            b"hello\n"
        );
        assert_eq!(curl_status_and_body(&[&url]), (200, "hello\n".to_owned()));
        assert_eq!(
            curl_status_and_body(&["-r", "1-2", &url]),
            (206, "el".to_owned())
        );
        assert_eq!(
            curl_status_and_body(&["-r", "-2", &url]),
            (206, "o\n".to_owned())
        );
        assert_eq!(curl_status_and_body(&["-r", "99-", &url]).0, 416);
        assert_eq!(
            curl_status_and_body(&["--http1.0", &url]),
            (200, "hello\n".to_owned())
        );
        let known = "--http2-prior-knowledge";
        assert_eq!(curl(&["-w", " %{http_version}", known, &url]), "hello\n 2");
        assert_eq!(curl_status_and_body(&[known, "-T", source, &url]).0, 204);
        let head = curl(&["-I", &url]).to_lowercase();
        assert!(head.contains("content-length: 6\r\n"), "{head}");
        assert!(head.contains("content-type: text/plain"), "{head}");
        let etag = head
            .lines()
            .find_map(|line| line.strip_prefix("etag: "))
            .expect("an ETag");
        assert_eq!(
            curl_status_and_body(&["-H", &format!("If-None-Match: {etag}"), &url]).0,
            304
        );
        let create_only = ["-H", "If-None-Match: *", "-T", source, &url];
        assert_eq!(curl_status_and_body(&create_only).0, 412);
        assert_eq!(curl_status_and_body(&["-X", "DELETE", &url]).0, 204);
        assert_eq!(curl_status_and_body(&[&url]).0, 404);
        // Several requests over one connection.
        let again = format!("{}/a/", server.url);
        let used = curl(&[
            "-w",
            "%{num_connects}",
            "-o",
            "/dev/null",
            &again,
            "-o",
            "/dev/null",
            &again,
        ]);
        assert_eq!(used, "10", "the second request needs no connection");
    }
}

#[test]
fn curl_puts_large_bodies_with_and_without_expect_and_chunked() {
    if !is_installed("curl") {
        return;
    }
    let folder = Folder::new();
    let content = pattern(1, 20 << 20);
    let source = folder.file("source", &content);
    let source = source.to_str().expect("UTF-8");
    let back = folder.path().join("back");
    let back = back.to_str().expect("UTF-8");
    for driver in drivers() {
        let served = Folder::new();
        let server = Server::start(served.path(), &["--allow", "put", "--driver", driver]);
        let ways: [&[&str]; 4] = [
            &["-H", "Expect: 100-continue"],
            &["-H", "Expect:"],
            &["-H", "Transfer-Encoding: chunked"],
            &["--http1.0", "-H", "Expect:"],
        ];
        for (at, way) in ways.iter().enumerate() {
            let url = format!("{}/{at}", server.url);
            let put = curl(&[way, &["-v", "-T", source, &url, "-w", "%{http_code}"][..]].concat());
            assert_eq!(put, "201", "{driver} {way:?}");
            curl(&["-o", back, &url]);
            assert!(
                std::fs::read(back).expect("fetched") == content,
                "{driver} {way:?}"
            );
        }
        // Refused before curl sends a byte of the body.
        let mut command = Command::new("curl");
        command.args(["-sSv", "--max-time", "60", "-H", "Expect: 100-continue"]);
        command.args(["-H", "If-None-Match: *", "-T", source]);
        let output = output_within(command.arg(format!("{}/0", server.url)), 2 * TIMEOUT);
        let trace = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(trace.contains("< HTTP/1.1 412"), "{trace}");
        assert!(!trace.contains("< HTTP/1.1 100"), "{trace}");
    }
}

#[test]
fn rings_of_any_size_serve_requests() {
    if !is_installed("curl") || !both_drivers().contains(&"io_uring") {
        return;
    }
    let folder = Folder::new();
    let content = pattern(4, 3 << 20);
    let source = folder.file("source", &content);
    let back = folder.path().join("back");
    let back = back.to_str().expect("UTF-8");
    for (buffers, size) in [
        ("2", "512B"),
        ("8", "1KiB"),
        ("1024", "16KiB"),
        ("32768", "4KiB"),
    ] {
        let served = Folder::new();
        let flags = [
            "--driver",
            "io_uring",
            "--allow=put",
            "--ring-buffers",
            buffers,
        ];
        let flags = [&flags[..], &["--ring-buffer-size", size]].concat();
        let server = Server::start(served.path(), &flags);
        let url = format!("{}/x", server.url);
        // A head that is longer than a small buffer.
        let long = format!("X-Long: {}", "x".repeat(5000));
        let put = curl_status_and_body(&["-H", &long, "-T", source.to_str().expect("UTF-8"), &url]);
        assert_eq!(put.0, 201, "{buffers} {size}");
        curl(&["-o", back, &url]);
        assert!(
            std::fs::read(back).expect("fetched") == content,
            "{buffers} {size}"
        );
    }
}

#[test]
fn sink_accepts_uploads_and_stores_nothing() {
    if !is_installed("curl") {
        return;
    }
    let folder = Folder::new();
    let source = folder.file("source", pattern(2, 30 << 20));
    for driver in drivers() {
        let served = Folder::new();
        let server = Server::start(served.path(), &["--sink", "--driver", driver]);
        let url = format!("{}/x", server.url);
        let (status, _) = curl_status_and_body(&["-T", source.to_str().expect("UTF-8"), &url]);
        assert!((200..300).contains(&status), "{status}");
        assert_eq!(curl_status_and_body(&[&url]).0, 404);
        assert_eq!(
            std::fs::read_dir(served.path()).expect("a folder").count(),
            0
        );
    }
}

#[test]
fn wget_mirrors_a_small_tree() {
    if !is_installed("wget") {
        return;
    }
    let served = Folder::new();
    let names = [
        "a.txt",
        "b/c.txt",
        "b/d/with space & <marks>.bin",
        "größe/100%.txt",
        "e/#?;=:+",
    ];
    for (at, name) in names.iter().enumerate() {
        served.file(name, pattern(at as u64, 1000 * at + 1));
    }
    for driver in drivers() {
        let server = Server::start(served.path(), &["--driver", driver]);
        let copy = Folder::new();
        let mut wget = Command::new("wget");
        wget.args([
            "-r",
            "-np",
            "-nH",
            "-q",
            "--restrict-file-names=nocontrol",
            "-e",
        ]);
        wget.args(["robots=off", "-R", "index.html*", "-P"]);
        wget.arg(copy.path()).arg(format!("{}/", server.url));
        let output = output_within(&mut wget, 2 * TIMEOUT);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        for (at, name) in names.iter().enumerate() {
            let content = std::fs::read(copy.path().join(name));
            let content = content.unwrap_or_else(|error| panic!("{driver} {name}: {error}"));
            assert!(
                content == pattern(at as u64, 1000 * at + 1),
                "{driver} {name}"
            );
        }
    }
}

#[test]
fn wrk_sees_no_error() {
    if !is_installed("wrk") {
        return;
    }
    let served = Folder::new();
    served.file("small", "hello");
    served.file("large", pattern(3, 300_000));
    for driver in drivers() {
        let server = Server::start(served.path(), &["--driver", driver]);
        for path in ["small", "large", ""] {
            let mut wrk = Command::new("wrk");
            wrk.args(["-t2", "-c32", "-d1s"])
                .arg(format!("{}/{path}", server.url));
            let output = output_within(&mut wrk, TIMEOUT);
            let report = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && report.contains("Requests/sec"),
                "{report}"
            );
            let bad = report.contains("Socket errors") || report.contains("Non-2xx");
            assert!(!bad, "{driver} /{path}: {report}");
            assert!(!report.contains(" 0 requests in"), "{report}");
        }
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(server.warnings(), [""; 0]);
    }
}
