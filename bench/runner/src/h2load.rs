//! Load over HTTP/2 by h2load: its command line, and its report at the end. wrk speaks only
//! HTTP/1.1. h2load prints no percentiles, so the report has none.

use crate::{
    client::Protocol,
    probe::Response,
    wrk::{Report, Running, written},
};
use std::{
    fmt::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use xtask::shell::{Outcome, cannot_run};

/// Number of different requests of [`Requests::Distinct`]. Each connection sends them one after the
/// other, and then again. A table of header compression holds a hundred of them at most.
const DISTINCT: u32 = 16_384;

/// Bytes that count for the head of a response: the header of its frame. The rest depends on what
/// the connection has compressed before, so only bodies are compared.
const HEAD_BYTES: usize = 9;

/// The requests that h2load sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// `GET` of the target. With a `count`, that many for all connections together, however long it
    /// takes: of large responses, many are half sent when a time is up.
    Get {
        target: &'static str,
        count: Option<u32>,
    },
    /// `GET` of the root. All requests differ.
    Distinct,
    /// `PUT` of `body_bytes`, `count` times in the same way.
    Put { body_bytes: u64, count: u32 },
}

/// The load on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) connections: u32,
    /// Requests in flight on each connection.
    pub(crate) streams: u32,
    pub(crate) requests: Requests,
}

impl Shape {
    /// Sends one of the requests by curl, which fails if the server does not speak HTTP/2.
    pub(crate) fn probe(
        &self,
        protocol: Protocol,
        address: SocketAddr,
        scratch: &Path,
    ) -> Outcome<Response> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--insecure", "--max-time", "60"]);
        curl.arg(match protocol {
            Protocol::Http => "--http2-prior-knowledge",
            Protocol::Https => "--http2",
        });
        curl.args(["--write-out", "\n%{http_code} %{http_version}"]);
        if let Requests::Put { body_bytes, .. } = self.requests {
            curl.arg("--upload-file").arg(body(scratch, body_bytes)?);
        }
        let url = format!("{}://{address}{}", protocol.scheme(), self.target());
        curl.arg(url).stdin(Stdio::null());
        let output = curl.output().map_err(|error| cannot_run(&curl, &error))?;
        response(&output.stdout).ok_or_else(|| {
            let error = String::from_utf8_lossy(&output.stderr);
            format!("no response over HTTP/2: {}", error.trim())
        })
    }

    /// Starts the load on the server at `address` from the clients' core. Its files are written to
    /// `scratch`.
    pub(crate) fn start(
        &self,
        protocol: Protocol,
        address: SocketAddr,
        seconds: u64,
        scratch: &Path,
    ) -> Outcome<Running> {
        let base = format!("{}://{address}", protocol.scheme());
        let mut h2load = Command::new("h2load");
        h2load
            .arg("--threads=1")
            .arg(format!("--clients={}", self.connections))
            .arg(format!("--max-concurrent-streams={}", self.streams))
            .args(["--tls13-ciphers=TLS_AES_256_GCM_SHA384", "--groups=X25519"]);
        h2load.arg(match self.requests {
            Requests::Put { count, .. }
            | Requests::Get {
                count: Some(count), ..
            } => {
                format!("--requests={count}")
            }
            _ => format!("--duration={seconds}"),
        });
        if let Requests::Put { body_bytes, .. } = self.requests {
            h2load.args(["--header", ":method: PUT"]);
            h2load.arg("--data").arg(body(scratch, body_bytes)?);
        }
        match self.requests {
            Requests::Distinct => {
                h2load.arg("--input-file");
                h2load.arg(written(scratch, "requests", &numbered(&base))?);
            }
            _ => _ = h2load.arg(base + self.target()),
        }
        Running::start_with(&h2load, read)
    }

    fn target(&self) -> &'static str {
        match self.requests {
            Requests::Get { target, .. } => target,
            Requests::Distinct => "/?0000001",
            Requests::Put { .. } => "/object",
        }
    }
}

/// The addresses of [`Requests::Distinct`], one a line.
fn numbered(base: &str) -> String {
    let mut text = String::new();
    for number in 0..DISTINCT {
        let _ = writeln!(text, "{base}/?{number:07}");
    }
    text
}

/// A file of `bytes` in `scratch`, which is written once.
fn body(scratch: &Path, bytes: u64) -> Outcome<PathBuf> {
    let name = format!("body-{bytes}");
    let file = scratch.join(&name);
    match file.is_file() {
        true => Ok(file),
        false => written(scratch, &name, &"x".repeat(bytes as usize)),
    }
}

/// Reads what curl prints: the body, and a line with the status and the version of HTTP. `None` if
/// there was no response, or not over HTTP/2.
fn response(printed: &[u8]) -> Option<Response> {
    let end = printed.iter().rposition(|&byte| byte == b'\n')?;
    let line = std::str::from_utf8(&printed[end + 1..]).ok()?;
    let (status, version) = line.split_once(' ')?;
    let body = printed[..end].to_vec();
    (version == "2").then_some(Response {
        status: status.parse().ok()?,
        wire_bytes: HEAD_BYTES + body.len(),
        body,
        closes: false,
    })
}

/// Parses the report of h2load. `None` if it is not complete.
fn read(text: &str) -> Option<Report> {
    let line = |begin: &str| text.lines().find_map(|line| line.strip_prefix(begin));
    let requests = line("requests: ")?;
    let codes = line("status codes: ")?;
    let done = count(requests, "done")?;
    let data = line("traffic: ")?.split(", ").last()?;
    let data: f64 = data.split(['(', ')']).nth(1)?.parse().ok()?;
    // A status counts with its head, so those of 2xx include responses that are not complete.
    let status = |class| count(codes, class);
    Some(Report {
        requests: count(requests, "succeeded")?,
        bytes: data + done * HEAD_BYTES as f64,
        us: us(line("finished in ")?.split(',').next()?)?,
        read: count(requests, "errored")?,
        status: status("3xx")? + status("4xx")? + status("5xx")?,
        timeout: count(requests, "timeout")?,
        p50_us: f64::NAN,
        p99_us: f64::NAN,
        p999_us: f64::NAN,
        ..Report::default()
    })
}

/// The number before `what` in a list such as `3 total, 2 done`.
fn count(list: &str, what: &str) -> Option<f64> {
    let of = |item: &str| item.strip_suffix(what)?.trim().parse().ok();
    list.split(", ").find_map(of)
}

/// The microseconds of a time with its unit: `us`, `ms` or `s`.
fn us(time: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let of = |(unit, us): (&str, f64)| Some(time.strip_suffix(unit)?.parse::<f64>().ok()? * us);
    units.into_iter().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "finished in 1.50s, 260032.00 req/s, 9.92MB/s\n\
        requests: 100 total, 132 started, 100 done, 99 succeeded, 1 failed, 1 errored, 2 timeout\n\
        status codes: 120 2xx, 1 3xx, 2 4xx, 1 5xx\n\
        traffic: 9.92MB (10402752) total, 2.23MB (2341280) headers (space savings 90.62%), \
        1.27KB (1300) data\n";

    #[test]
    fn a_report_has_all_counts() {
        let report = read(TEXT).expect("complete");
        assert_eq!((report.requests, report.us), (99.0, 1.5e6));
        assert_eq!(report.bytes, 1300.0 + 100.0 * 9.0);
        assert_eq!(
            (report.read, report.status, report.timeout),
            (1.0, 4.0, 2.0)
        );
        assert!(report.p50_us.is_nan());
    }

    #[test]
    fn incomplete_reports_are_rejected() {
        assert_eq!(read("connection refused"), None);
        for line in TEXT.lines() {
            assert_eq!(read(&TEXT.replace(line, "")), None, "{line}");
        }
    }

    #[test]
    fn times_have_units() {
        let times = ["1.99s", "995.25ms", "7us"].map(us);
        assert_eq!(times, [Some(1.99e6), Some(995_250.0), Some(7.0)]);
        assert_eq!(us("1h"), None);
    }

    #[test]
    fn only_a_response_over_http_2_is_one() {
        let two = response(b"a\nb\n200 2").expect("HTTP/2");
        assert_eq!((two.status, two.body), (200, b"a\nb".to_vec()));
        assert_eq!(two.wire_bytes, 9 + 3);
        assert_eq!(response(b"a\n200 1.1"), None);
        assert_eq!(response(b"\n000 0"), None);
        assert_eq!(response(b""), None);
    }

    #[test]
    fn numbered_requests_all_differ() {
        let text = numbered("http://[::1]:80");
        let all: std::collections::HashSet<&str> = text.lines().collect();
        assert_eq!(all.len(), DISTINCT as usize);
        assert!(all.contains("http://[::1]:80/?0000007"));
    }
}
