//! The binary in front of a bucket of an S3 server in this process.

use crate::program::plain::{get, printed};
use crate::program::{Folder, Server, curl, drivers, is_installed, onrush, output, pattern};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use testing_s3::canned::{Canned, Reply, status};
use testing_s3::s3::Fields;
use testing_s3::{Bucket, KEY};

/// Adds the variables of a service.
fn service(mut command: Command, address: SocketAddr) -> Command {
    command.env("AWS_ENDPOINT_URL", format!("http://{address}"));
    command.env("AWS_ACCESS_KEY_ID", KEY.0);
    command.env("AWS_SECRET_ACCESS_KEY", KEY.1);
    command
}

/// The server in front of a service.
fn command(address: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = service(onrush(), address);
    command.args(["--port", "0"]).args(arguments);
    command
}

#[test]
fn a_bucket_is_served() {
    if !is_installed("curl") {
        return;
    }
    let files = Folder::new();
    let content = pattern(1, 20_000_000);
    let upload = files.file("upload", &content);
    let (upload, got) = (upload.to_str().expect("UTF-8"), files.path().join("got"));
    let got = got.to_str().expect("UTF-8");
    for driver in drivers() {
        let bucket = Bucket::new();
        let arguments = [
            "s3://bucket/prefix",
            "--allow",
            "put,delete",
            "--driver",
            driver,
            "--admin",
            "127.0.0.1:0",
        ];
        // Two servers, one bucket.
        let servers = [(); 2].map(|()| Server::run(command(bucket.address, &arguments)));
        let [one, two] = servers
            .each_ref()
            .map(|server| server.url.trim_end_matches('/'));
        let status = |arguments: &[&str]| curl(&[&["-w", "%{http_code}"], arguments].concat());

        let typed = ["-H", "Content-Type: text/x", "-T", upload];
        assert_eq!(
            status(&[&typed[..], &[&format!("{one}/a%20b/large")]].concat()),
            "201"
        );
        assert_eq!(status(&["-o", got, &format!("{two}/a%20b/large")]), "200");
        assert!(std::fs::read(got).expect("a file") == content);
        // The server looks for old uploads at any time.
        let requests = || {
            let mut requests = std::mem::take(&mut bucket.service.lock().requests);
            requests.remove("LIST");
            requests
        };
        requests();
        let head = curl(&["-I", &format!("{two}/a%20b/large")]).to_ascii_lowercase();
        assert_eq!(requests(), [("HEAD", 1)].into());
        assert!(head.contains("content-length: 20000000\r\n"), "{head}");
        assert!(head.contains("content-type: text/x\r\n"), "{head}");
        assert!(head.contains("etag: \""), "{head}");
        curl(&[
            "-r",
            "9999999-10000001",
            "-o",
            got,
            &format!("{two}/a%20b/large"),
        ]);
        assert_eq!(
            std::fs::read(got).expect("a file"),
            content[9_999_999..=10_000_001]
        );
        assert_eq!(requests(), [("GET", 1)].into());
        // The object has its own key.
        let objects = bucket.service.lock();
        let stored = &objects.by_key["prefix/a b/large"];
        assert!(stored.content == content);
        assert_eq!(stored.fields.content_type.as_deref(), Some("text/x"));
        drop(objects);
        let foreign = Fields {
            content_type: Some("text/y".to_owned()),
            content_encoding: Some("gzip".to_owned()),
            ..Fields::default()
        };
        let key = "prefix/foreign.html".to_owned();
        (bucket.service.lock()).put(key, b"x"[..].into(), foreign);
        let head = curl(&["-I", &format!("{two}/foreign.html")]).to_ascii_lowercase();
        assert!(head.contains("content-type: text/y\r\n"), "{head}");
        assert!(head.contains("content-encoding: gzip\r\n"), "{head}");

        let small = format!("{one}/small");
        let put = |body: &str, field: &str| {
            status(&["-o", got, "-X", "PUT", "-d", body, "-H", field, &small])
        };
        assert_eq!(put("one", "If-None-Match: *"), "201");
        assert_eq!(put("two", "If-None-Match: *"), "412");
        assert_eq!(put("two", "If-Match: \"x\""), "412");
        assert_eq!(put("two", "If-Match: *"), "204");
        assert_eq!(curl(&[&format!("{two}/small")]), "two");
        let not_modified = format!("If-None-Match: {}", tag(&small));
        requests();
        assert_eq!(status(&["-H", &not_modified, "-o", got, &small]), "304");
        assert_eq!(requests(), [("HEAD", 1)].into());

        let json = ["-H", "Accept: application/json"];
        let listing = curl(&[&json[..], &[&format!("{two}/")]].concat());
        assert!(
            listing.contains("\"small\"") && listing.contains("\"a b"),
            "{listing}"
        );
        // A bucket does not know when a folder was modified.
        let folder = "\"type\":\"directory\",\"size\":null,\"modified\":null";
        assert!(listing.contains(folder), "{listing}");
        assert_eq!(status(&[&format!("{one}/a%20b"), "-o", got]), "301");
        assert_eq!(status(&["-X", "DELETE", &small]), "204");
        assert_eq!(status(&[&format!("{two}/small"), "-o", got]), "404");

        let metrics = get(printed(&servers[0], "admin"), "/-/metrics", "localhost");
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            let line = line.unwrap_or_else(|| panic!("{name}: {metrics}"));
            line.trim().parse::<f64>().expect("a number")
        };
        let count = "onrush_store_request_duration_seconds_count";
        // One for each PUT that the service has accepted, and one for the object that tells whether
        // it evaluates conditions.
        assert_eq!(
            value(&format!("{count}{{method=\"PUT\",outcome=\"2xx\"}}")),
            4.0
        );
        assert!(value("onrush_store_sent_bytes_total") >= 20_000_000.0);
        assert_eq!(value("onrush_store_retries_total"), 0.0);
        assert_eq!(value("onrush_store_open_uploads"), 0.0);
    }
}

/// The entity tag of an object, with its quotes.
fn tag(url: &str) -> String {
    let head = curl(&["-I", url]);
    let line = head
        .lines()
        .find(|line| line.to_ascii_lowercase().starts_with("etag: "));
    line.expect("a tag")[6..].trim().to_owned()
}

#[test]
fn a_wrong_bucket_or_option_is_one_clear_line() {
    let bucket = Bucket::new();
    for (arguments, code, reason) in [
        (&["s3://absent"][..], 1, "s3://absent at http://127.0.0.1:"),
        (&["s3://"], 2, "s3://: the name of a bucket"),
        (
            &["gs://bucket"],
            2,
            "gs://bucket: a location is s3://BUCKET",
        ),
        (
            &["s3://bucket", "--tls-self-signed"],
            2,
            "--tls-self-signed keeps the certificate in the served folder",
        ),
        (
            &["s3://bucket", "--durability", "full"],
            2,
            "--durability: s3://bucket",
        ),
    ] {
        let output = output(&mut command(bucket.address, arguments));
        let log = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(code), "{log}");
        let line = log.lines().last().expect("a line");
        assert!(line.contains(reason), "{line}");
    }
    for endpoint in ["", "127.0.0.1:7480", "ftp://127.0.0.1", "http://"] {
        let mut command = command(bucket.address, &["s3://bucket"]);
        let output = output(command.env("AWS_ENDPOINT_URL", endpoint));
        let log = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{endpoint}: {log}");
        let line = log.lines().last().expect("a line");
        let reason = "write AWS_ENDPOINT_URL as in http://127.0.0.1:7480";
        assert!(line.contains(reason), "{endpoint}: {line}");
    }
}

#[test]
fn a_service_that_ignores_conditions_is_a_warning() {
    let mut service = testing_s3::s3::MemoryS3::default();
    service.ignores_conditions = true;
    let bucket = Bucket::with(service);
    let read_only = Server::run(command(bucket.address, &["s3://bucket"]));
    assert_eq!(bucket.service.lock().requests.get("PUT"), None);
    drop(read_only);
    let server = Server::run(command(bucket.address, &["s3://bucket", "--allow", "put"]));
    let log = server.log();
    assert_eq!(
        log.matches("the service ignores If-Match").count(),
        1,
        "{log}"
    );
    let put = |field: &str| {
        let url = format!("{}/a", server.url.trim_end_matches('/'));
        curl(&[
            "-w",
            "%{http_code}",
            "-o",
            "/dev/null",
            "-X",
            "PUT",
            "-d",
            "x",
            "-H",
            field,
            &url,
        ])
    };
    if is_installed("curl") {
        assert_eq!(put("If-None-Match: *"), "501");
        assert_eq!(put("X: y"), "201");
        assert_eq!(put("If-Match: *"), "501");
    }
}

#[test]
fn a_service_that_does_not_respond_is_a_warning() {
    let silent = Canned::new(vec![Reply::Close]);
    let arguments = ["s3://bucket", "--admin", "127.0.0.1:0"];
    let server = Server::run(command(silent.address, &arguments));
    assert!(
        server.log().contains("the store does not respond"),
        "{}",
        server.log()
    );
    let response = server.get("/a");
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
    assert!(
        response.to_ascii_lowercase().contains("retry-after: "),
        "{response}"
    );
    // Requests that fail for some seconds are an outage, which readiness and metrics report.
    let admin = |path: &str| get(printed(&server, "admin"), path, "localhost");
    let end = Instant::now() + Duration::from_secs(120);
    while !admin("/-/ready").contains("the store cannot be reached") {
        assert!(Instant::now() < end, "{}", server.log());
        server.get("/a");
    }
    assert!(admin("/-/ready").starts_with("HTTP/1.1 503 "));
    assert!(admin("/-/metrics").contains("onrush_store_reachable 0\n"));
    let log = server.log();
    let line = log
        .lines()
        .find(|line| line.contains("the store cannot be reached"));
    let line = line.expect("a line");
    let store = format!("store=\"s3://bucket at http://{}\"", silent.address);
    for part in [&store, "error=", "failing_for="] {
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn a_revoked_key_makes_the_server_not_ready() {
    let bucket = Bucket::new();
    let edge = Folder::new();
    let edge = edge.path().join("edge");
    let edge = ["--edge", edge.to_str().expect("UTF-8")];
    // Fresh copies are served nevertheless, but soon there are none.
    for edge in [&[][..], &edge] {
        let arguments = [&["s3://bucket", "--admin", "127.0.0.1:0"], edge].concat();
        let server = Server::run(command(bucket.address, &arguments));
        let ready = || get(printed(&server, "admin"), "/-/ready", "localhost");
        let wait_for = |status: &str| {
            let end = Instant::now() + Duration::from_secs(120);
            while !ready().starts_with(status) {
                assert!(Instant::now() < end, "{}", server.log());
                server.get("/a");
            }
        };
        wait_for("HTTP/1.1 200 ");
        bucket.service.is_revoked.store(true, Ordering::Relaxed);
        wait_for("HTTP/1.1 503 ");
        assert!(ready().contains("the store refuses all requests"));
        assert!(server.get("/a").starts_with("HTTP/1.1 403 "));
        bucket.service.is_revoked.store(false, Ordering::Relaxed);
        wait_for("HTTP/1.1 200 ");
        let log = server.log();
        let lines = log
            .matches("the store refuses all requests; check the key")
            .count();
        assert_eq!(lines, 1, "{log}");
        assert!(log.contains("the store accepts requests again"), "{log}");
    }
}

#[test]
fn sweep_lists_and_removes_unfinished_uploads() {
    use onrush_store::{Condition, Key, Store};
    let bucket = Bucket::new();
    let store = bucket.store("s3://bucket/p");
    onrush_store::testing::block_on(async {
        let key = Key::parse(b"left").expect("a key");
        let upload = store.stage(&key, Condition::None, None).await;
        let mut upload = upload.expect("an upload");
        upload.write(vec![1; 9 << 20]).await.expect("room");
        std::mem::forget(upload); // As if the process were killed.
    });
    let sweep = |arguments: &[&str]| {
        let mut command = service(onrush(), bucket.address);
        let output = output(command.arg("sweep").args(arguments));
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{text}");
        text
    };
    let at = "s3://bucket/p";
    assert_eq!(sweep(&[at]), "nothing to remove; 1 younger\n");
    let found = sweep(&[at, "--older-than", "0"]);
    assert!(
        found.contains(" p/left\n1 found, --delete removes them; 0 younger\n"),
        "{found}"
    );
    assert_eq!(bucket.service.lock().uploads.len(), 1);
    let removed = sweep(&[at, "--older-than", "0", "--delete"]);
    assert!(
        removed.ends_with(" p/left\n1 removed; 0 younger\n"),
        "{removed}"
    );
    assert!(bucket.service.lock().uploads.is_empty());
    let mut wrong = service(onrush(), bucket.address);
    let wrong = output(wrong.args(["sweep", "./data"]));
    assert_eq!(wrong.status.code(), Some(2));
    // An error names the service.
    bucket.service.is_revoked.store(true, Ordering::Relaxed);
    let refused = output(service(onrush(), bucket.address).args(["sweep", at]));
    let text = String::from_utf8(refused.stderr).expect("text");
    let store = format!("{at} at http://{}: ", bucket.address);
    let reason = "the key may not list the bucket (";
    assert!(text.contains(&format!("{store}{reason}")), "{text}");
}

/// Without a key, the role of the machine is asked for. The message says what to set.
#[test]
fn a_missing_key_is_named() {
    for arguments in [["s3://bucket", "--port=0"], ["sweep", "s3://bucket"]] {
        let metadata = Canned::new(vec![Reply::Send(status("403 Forbidden"))]);
        let mut command = onrush();
        for name in [
            "AWS_ACCESS_KEY_ID",
            "AWS_SHARED_CREDENTIALS_FILE",
            "AWS_PROFILE",
        ] {
            command.env_remove(name);
        }
        command
            .env("HOME", "/nonexistent")
            .env("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
        command.env(
            "AWS_METADATA_ENDPOINT",
            format!("http://{}", metadata.address),
        );
        let failed = output(command.args(arguments));
        assert_eq!(failed.status.code(), Some(1), "{arguments:?}");
        let text = String::from_utf8(failed.stderr).expect("text");
        assert!(
            text.contains("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

/// The service ends the transfer early. The client sees that the object is incomplete.
#[test]
fn a_truncated_response_of_the_service_is_truncated_for_the_client() {
    if !is_installed("curl") {
        return;
    }
    let listing = "<ListBucketResult><Name>bucket</Name></ListBucketResult>";
    let listing = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{listing}",
        listing.len()
    );
    let truncated = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\
         ETag: \"x\"\r\nConnection: close\r\n\
         Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n{}",
        "x".repeat(100_000)
    );
    for driver in drivers() {
        let replies = vec![Reply::Send(listing.clone()), Reply::Send(truncated.clone())];
        let canned = Canned::new(replies);
        let arguments = ["s3://bucket", "--driver", driver];
        let server = Server::run(command(canned.address, &arguments));
        let mut curl = Command::new("curl");
        let url = format!("{}a", server.url.trim_end_matches('/').to_owned() + "/");
        let output = output(curl.args(["-sS", "--max-time", "60", &url]));
        // 18: "Partial file". 56: the connection was reset.
        let code = output.status.code();
        assert!(matches!(code, Some(18 | 56)), "{driver}: {code:?}");
        assert!(output.stdout.len() <= 100_000, "{driver}");
    }
}
