//! A real Prometheus scrapes the real binary without complaints and evaluates queries about it.

use crate::program::{Folder, Server, TIMEOUT, is_installed, output, wait};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use testing::ReservedPort;

/// The content at an address; empty without a response.
fn content(address: &str, path: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else {
        return String::new();
    };
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    let mut response = Vec::new();
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.read_to_end(&mut response);
    let response = String::from_utf8_lossy(&response);
    let (_, content) = response.split_once("\r\n\r\n").unwrap_or_default();
    content.to_owned()
}

fn admin_address(server: &Server) -> String {
    let log = server.logs(" admin ");
    let line = log.lines().find(|line| line.contains(" admin "));
    let (_, address) = line
        .and_then(|line| line.split_once("address="))
        .expect("an address");
    address.trim_matches('"').to_owned()
}

/// Queries until `fits` is true, and panics with the last result if it never is.
fn query_until(what: &str, query: impl Fn() -> String, fits: impl Fn(&str) -> bool) {
    let end = Instant::now() + TIMEOUT;
    loop {
        let response = query();
        if fits(&response) {
            return;
        }
        assert!(Instant::now() < end, "{what}: {response}");
        sleep(Duration::from_millis(50));
    }
}

/// A Prometheus that scrapes one target. Dropping it ends it.
struct Prometheus {
    child: Child,
    _port: ReservedPort,
    address: String,
    folder: Folder,
}

impl Prometheus {
    fn start(target: &str) -> Prometheus {
        let folder = Folder::new();
        let config = folder.file(
            "prometheus.yml",
            format!(
                "scrape_configs:\n\
                 - job_name: onrush\n  \
                   scrape_interval: 200ms\n  \
                   scrape_timeout: 200ms\n  \
                   metrics_path: /-/metrics\n  \
                   static_configs:\n  \
                   - targets: ['{target}']\n"
            ),
        );
        let port = ReservedPort::new().expect("a free port");
        let address = port.address().to_string();
        let log = std::fs::File::create(folder.path().join("log")).expect("a folder");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--storage.tsdb.path")
            .arg(folder.path().join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        Prometheus {
            child,
            address,
            _port: port,
            folder,
        }
    }

    /// The value of a query with one sample; empty if there is none.
    fn value(&self, query: &str) -> String {
        let response = content(&self.address, &format!("/api/v1/query?query={query}"));
        let response: serde_json::Value = serde_json::from_str(&response).unwrap_or_default();
        let value = response["data"]["result"][0]["value"][1].as_str();
        value.unwrap_or_default().to_owned()
    }

    fn target(&self) -> serde_json::Value {
        let response = content(&self.address, "/api/v1/targets?state=active");
        let response: serde_json::Value = serde_json::from_str(&response).unwrap_or_default();
        response["data"]["activeTargets"][0].clone()
    }

    /// Its log lines above the level `info`.
    fn complaints(&self) -> Vec<String> {
        let log = self.folder.path().join("log");
        let log = std::fs::read_to_string(log).expect("a log");
        let is_complaint =
            |line: &&str| line.contains("level=warn") || line.contains("level=error");
        log.lines()
            .filter(is_complaint)
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = wait(&mut self.child, TIMEOUT);
    }
}

/// The output of `promtool check metrics` for a page; empty if there are no complaints.
fn checked(page: &Path) -> String {
    let mut promtool = Command::new("promtool");
    let page = std::fs::File::open(page).expect("there");
    let output = output(promtool.args(["check", "metrics"]).stdin(page));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
#[ignore = "nightly"] // Prometheus is large
fn prometheus_scrapes_without_complaints() {
    if !is_installed("prometheus") || !is_installed("promtool") {
        return;
    }
    let folder = Folder::new();
    folder.file("x", "content");
    let server = Server::start(folder.path(), &["--admin", "127.0.0.1:0", "--workers", "2"]);
    let admin = admin_address(&server);
    for _ in 0..20 {
        assert!(server.get("/x").ends_with("content"));
    }
    assert!(server.get("/nothing").starts_with("HTTP/1.1 404 "));

    let page = folder.file("page", content(&admin, "/-/metrics"));
    assert_eq!(checked(&page), "");

    let prometheus = Prometheus::start(&admin);
    let up = || prometheus.target().to_string();
    query_until("a scrape", up, |target| {
        target.contains("\"health\":\"up\"")
    });
    let expect = |query: &str, expected: &str| {
        query_until(query, || prometheus.value(query), |value| value == expected);
    };
    // All requests in the last bucket of a histogram, and those with one status, by label.
    expect("sum(http_server_request_duration_seconds_count)", "21");
    let last = "sum(http_server_request_duration_seconds_bucket%7Ble=%22%2BInf%22%7D)";
    expect(last, "21");
    let by_status = "sum(http_server_request_duration_seconds_count\
                     %7Bhttp_response_status_code=%22404%22%7D)";
    expect(by_status, "1");
    expect("sum(onrush_connections_accepted_total)", "21");
    // It continues to scrape and sees later requests.
    assert!(server.get("/x").ends_with("content"));
    expect("sum(http_server_request_duration_seconds_count)", "22");
    let target = prometheus.target();
    assert_eq!(target["lastError"], "", "{target}");
    let complaints = prometheus.complaints();
    assert!(complaints.is_empty(), "{complaints:?}");
}
