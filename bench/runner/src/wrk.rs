//! Load by wrk: its script with the requests, and its report at the end.

use crate::{
    client::{OPENSSL_CONF, Protocol},
    probe::Response,
    server::{CLIENT_CORE, pinned},
};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use xtask::shell::{Outcome, cannot_run};

/// Number of different batches of [`Requests::Distinct`]: 65,536 requests with 16 per batch.
const BATCHES: u32 = 4096;

/// With this value of [`Requests::Closing`], one of ten requests closes its connection.
pub(crate) const TENTH: u32 = 10;

/// The requests that wrk sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// `GET` of the target, with `depth` requests in flight on each connection.
    Get { target: &'static str, depth: u32 },
    /// As above, for the root. All requests differ.
    Distinct { depth: u32 },
    /// `POST` of `body_bytes` to the target.
    Post {
        target: &'static str,
        body_bytes: u32,
    },
    /// `POST` of a JSON object of `body_bytes` to the target.
    PostJson {
        target: &'static str,
        body_bytes: u32,
    },
    /// `GET` of the root, where one of `every` requests has `Connection: close`. wrk counts the
    /// requests of all connections together, so a connection carries this number on average.
    Closing { every: u32 },
    /// `GET` of `count` names from `/0000000` on, one after the other, repeatedly.
    Names { count: u32 },
}

/// The media type of [`json`].
const JSON: &str = "application/json";

/// An object of this many bytes, at least 80, with members of several kinds.
fn json(bytes: u32) -> String {
    let begin = r#"{"active":true,"id":123456,"name":"Ada Lovelace","tags":["a","b","c"],"text":""#;
    let end = r#""}"#;
    let rest = (bytes as usize).saturating_sub(begin.len() + end.len());
    [begin, &"x".repeat(rest), end].concat()
}

/// The load on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) connections: u32,
    pub(crate) requests: Requests,
}

impl Shape {
    /// Maximum number of responses in flight on each connection.
    pub(crate) fn depth(&self) -> u32 {
        match self.requests {
            Requests::Get { depth, .. } | Requests::Distinct { depth } => depth,
            _ => 1,
        }
    }

    /// An example of the requests.
    pub(crate) fn request(&self, address: SocketAddr) -> Vec<u8> {
        let none = String::new;
        let (method, target, more, body) = match &self.requests {
            Requests::Get { target, .. } => ("GET", *target, none(), none()),
            Requests::Distinct { .. } => ("GET", "/?0000001", none(), none()),
            Requests::Closing { every: 1 } => ("GET", "/", "Connection: close\r\n".into(), none()),
            Requests::Closing { .. } => ("GET", "/", none(), none()),
            Requests::Names { .. } => ("GET", "/0000000", none(), none()),
            Requests::Post { target, body_bytes } => {
                let length = format!("Content-Length: {body_bytes}\r\n");
                ("POST", *target, length, "x".repeat(*body_bytes as usize))
            }
            Requests::PostJson { target, body_bytes } => {
                let more = format!("Content-Type: {JSON}\r\nContent-Length: {body_bytes}\r\n");
                ("POST", *target, more, json(*body_bytes))
            }
        };
        let head = format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\n{more}\r\n");
        [head, body].concat().into_bytes()
    }

    /// The script for wrk. If it defines no function `request`, wrk sends bytes that it prepares
    /// once with `wrk.format`, and calls no Lua until the end.
    fn script(&self) -> String {
        let requests = match &self.requests {
            Requests::Get { depth: 1, .. } => String::new(),
            Requests::Get { depth, .. } => format!(
                "init = function()\n  local one = wrk.format\n  \
                 wrk.format = function(...) return string.rep(one(...), {depth}) end\nend\n"
            ),
            Requests::Distinct { depth } => numbered(*depth),
            Requests::Post { body_bytes, .. } => {
                format!("wrk.method = 'POST'\nwrk.body = string.rep('x', {body_bytes})\n")
            }
            Requests::PostJson { body_bytes, .. } => format!(
                "wrk.method = 'POST'\nwrk.body = '{}'\nwrk.headers['Content-Type'] = '{JSON}'\n",
                json(*body_bytes)
            ),
            Requests::Closing { every: 1 } => "wrk.headers['Connection'] = 'close'\n".to_owned(),
            Requests::Closing { every } => format!(
                "init = function()\n  sent, plain = 0, wrk.format()\n  \
                 closing = wrk.format(nil, nil, {{['Host'] = wrk.headers['Host'], \
                 ['Connection'] = 'close'}})\nend\n\
                 request = function()\n  sent = sent + 1\n  \
                 if sent % {every} == 0 then return closing end\n  return plain\nend\n"
            ),
            Requests::Names { count } => format!(
                "init = function()\n  all, at = {{}}, 0\n  for name = 1, {count} do\n    \
                 all[name] = wrk.format(nil, string.format('/%07d', name - 1))\n  end\nend\n\
                 request = function()\n  at = at % {count} + 1\n  return all[at]\nend\n"
            ),
        };
        requests + DONE
    }

    /// Starts the load on the server at `address` from the clients' core. The script is written to
    /// `scratch`.
    pub(crate) fn start(
        &self,
        protocol: Protocol,
        address: SocketAddr,
        seconds: u64,
        scratch: &Path,
    ) -> Outcome<Running> {
        let script = written(scratch, "load.lua", &self.script())?;
        let target = match &self.requests {
            Requests::Get { target, .. }
            | Requests::Post { target, .. }
            | Requests::PostJson { target, .. } => target,
            _ => "/",
        };
        let mut wrk = Command::new("wrk");
        if protocol == Protocol::Https {
            let settings = written(scratch, "openssl.cnf", OPENSSL_CONF)?;
            wrk.env("OPENSSL_CONF", settings);
        }
        wrk.args(["--threads", "1", "--timeout", "10s"])
            .arg(format!("--connections={}", self.connections))
            .arg(format!("--duration={seconds}s"))
            .arg("--script")
            .arg(script)
            .arg(format!("{}://{address}{target}", protocol.scheme()));
        Running::start(&wrk)
    }
}

/// Writes a file of a load to the folder `scratch`, and returns its path.
pub(crate) fn written(scratch: &Path, name: &str, text: &str) -> Outcome<PathBuf> {
    let file = scratch.join(name);
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

/// Batches of `depth` numbered requests, prepared before the measurement. After all [`BATCHES`]
/// they are repeated, when the connections have carried thousands of other requests.
fn numbered(depth: u32) -> String {
    format!(
        "\
init = function()
  batches, at = {{}}, 0
  for batch = 1, {BATCHES} do
    local all = {{}}
    for one = 1, {depth} do
      all[one] = wrk.format('GET', string.format('/?%07d', batch * {depth} + one))
    end
    batches[batch] = table.concat(all)
  end
end
request = function()
  at = at % {BATCHES} + 1
  return batches[at]
end
"
    )
}

/// Prints one line with all results. Times are in microseconds.
const DONE: &str = "\
done = function(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    'bench requests=%.0f bytes=%.0f us=%.0f connect=%.0f read=%.0f write=%.0f status=%.0f ' ..
    'timeout=%.0f p50=%.0f p99=%.0f p999=%.0f\\n',
    summary.requests, summary.bytes, summary.duration, errors.connect, errors.read, errors.write,
    errors.status, errors.timeout, latency:percentile(50), latency:percentile(99),
    latency:percentile(99.9)))
end
";

/// A running load. It is killed when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Option<Child>,
    /// Finds the report in what the load has printed.
    read: fn(&str) -> Option<Report>,
}

impl Running {
    /// Runs `command` on the clients' core. It must print the line of [`Report::read`] at its end.
    pub fn start(command: &Command) -> Outcome<Running> {
        Running::start_with(command, Report::read)
    }

    /// As [`Running::start`], with another report, which `read` finds in the output.
    pub(crate) fn start_with(
        command: &Command,
        read: fn(&str) -> Option<Report>,
    ) -> Outcome<Running> {
        let mut pinned = pinned(command, CLIENT_CORE);
        pinned
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = pinned
            .spawn()
            .map_err(|error| cannot_run(&pinned, &error))?;
        let child = Some(child);
        Ok(Running { child, read })
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        let child = self.child.as_mut();
        child.is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Waits for its end and returns its report.
    pub fn finish(mut self) -> Outcome<Report> {
        let child = self.child.take().ok_or("the load has already ended")?;
        let output = child.wait_with_output();
        let output = output.map_err(|error| format!("the load: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        (self.read)(&text).ok_or_else(|| format!("the load printed no report: {text}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The report of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Completed requests.
    pub requests: f64,
    /// Bytes received, including heads.
    pub bytes: f64,
    /// Duration in microseconds.
    pub us: f64,
    /// Connections that could not be established.
    pub connect: f64,
    /// Connections that failed while waiting for a response.
    pub read: f64,
    /// Connections that failed while sending a request.
    pub write: f64,
    /// Responses with a status other than 2xx and 3xx.
    pub status: f64,
    /// Responses that timed out.
    pub timeout: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile of the latency in microseconds.
    pub p999_us: f64,
}

impl Report {
    /// Parses the line that begins with `bench`. `None` if there is none, or if a field is missing.
    pub fn read(text: &str) -> Option<Report> {
        let line = text.lines().find_map(|line| line.strip_prefix("bench "))?;
        let field = |name: &str| {
            let of = |word: &str| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
            line.split_whitespace().find_map(of)
        };
        Some(Report {
            requests: field("requests")?,
            bytes: field("bytes")?,
            us: field("us")?,
            connect: field("connect")?,
            read: field("read")?,
            write: field("write")?,
            status: field("status")?,
            timeout: field("timeout")?,
            p50_us: field("p50")?,
            p99_us: field("p99")?,
            p999_us: field("p999")?,
        })
    }

    /// The line that [`Report::read`] parses.
    pub(crate) fn line(&self) -> String {
        format!(
            "bench requests={} bytes={} us={:.0} connect={} read={} write={} status={} timeout={} \
             p50={:.0} p99={:.0} p999={:.0}",
            self.requests,
            self.bytes,
            self.us,
            self.connect,
            self.read,
            self.write,
            self.status,
            self.timeout,
            self.p50_us,
            self.p99_us,
            self.p999_us
        )
    }

    /// Maximum share of failed requests.
    const ERRORS_MAX: f64 = 0.001;

    /// Why the round is void, if it is. `slack` is the share by which the length of responses may
    /// differ from the `probed` response. Up to `in_flight` responses may have arrived in part.
    pub(crate) fn void(&self, probed: &Response, in_flight: f64, slack: f64) -> Option<String> {
        let errors = self.connect + self.read + self.write + self.timeout;
        let allowed = self.requests * Self::ERRORS_MAX;
        if self.bytes <= 0.0 {
            return Some("no responses".to_owned());
        }
        if self.status > allowed {
            return Some(format!("{} responses were not 2xx", self.status));
        }
        if errors > allowed {
            return Some(format!(
                "{errors} socket errors (connect {}, read {}, write {}, timeout {})",
                self.connect, self.read, self.write, self.timeout
            ));
        }
        let expected = self.requests * probed.wire_bytes as f64;
        let least = expected * (1.0 - slack);
        let most = (expected + in_flight * probed.wire_bytes as f64) * (1.0 + slack);
        (self.bytes < least || self.bytes > most).then(|| {
            format!(
                "responses of {:.1} bytes instead of {}",
                self.bytes / self.requests,
                probed.wire_bytes
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(requests: Requests) -> Shape {
        Shape {
            connections: 64,
            requests,
        }
    }

    #[test]
    fn only_changing_requests_need_a_request_function() {
        let plain = |requests| !shape(requests).script().contains("request = function");
        assert!(plain(Requests::Get {
            target: "/",
            depth: 1
        }));
        assert!(plain(Requests::Get {
            target: "/",
            depth: 16
        }));
        assert!(plain(Requests::Post {
            target: "/echo",
            body_bytes: 9
        }));
        assert!(plain(Requests::Closing { every: 1 }));
        assert!(!plain(Requests::Closing { every: TENTH }));
        assert!(!plain(Requests::Distinct { depth: 16 }));
        let text = numbered(16);
        assert!(text.contains("'/?%07d', batch * 16 + one"), "{text}");
    }

    #[test]
    fn probes_are_like_the_requests_of_wrk() {
        let address = SocketAddr::from(([127, 0, 0, 1], 80));
        let request = |requests| String::from_utf8(shape(requests).request(address)).unwrap();
        assert_eq!(
            request(Requests::Get {
                target: "/json",
                depth: 1
            }),
            "GET /json HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n"
        );
        assert_eq!(
            request(Requests::Post {
                target: "/echo",
                body_bytes: 3
            }),
            "POST /echo HTTP/1.1\r\nHost: 127.0.0.1:80\r\nContent-Length: 3\r\n\r\nxxx"
        );
        assert!(request(Requests::Closing { every: 1 }).contains("Connection: close"));
    }

    const LINE: &str = "  2 requests in 1.00s\nbench requests=1000 bytes=110000 us=1000000 \
        connect=0 read=0 write=0 status=0 timeout=0 p50=10 p99=20 p999=30\n";

    #[test]
    fn incomplete_reports_are_rejected() {
        let report = Report::read(LINE).expect("complete");
        assert_eq!((report.requests, report.bytes), (1000.0, 110_000.0));
        assert_eq!((report.p50_us, report.p999_us), (10.0, 30.0));
        assert_eq!(Report::read("unable to connect"), None);
        assert_eq!(Report::read(&LINE.replace(" p999=30", "")), None);
    }

    #[test]
    fn rounds_with_errors_or_other_responses_are_void() {
        let probed = Response {
            status: 200,
            wire_bytes: 110,
            body: Vec::new(),
            closes: false,
        };
        let good = Report::read(LINE).expect("complete");
        let void = |report: Report, in_flight| report.void(&probed, in_flight, 0.01);
        assert_eq!(void(good, 0.0), None);
        assert_eq!(
            void(
                Report {
                    status: 1.0,
                    ..good
                },
                0.0
            ),
            None
        );
        assert!(
            void(
                Report {
                    status: 2.0,
                    ..good
                },
                0.0
            )
            .is_some()
        );
        assert_eq!(
            void(
                Report {
                    timeout: 1.0,
                    ..good
                },
                0.0
            ),
            None
        );
        let broken = Report {
            read: 1.0,
            write: 1.0,
            ..good
        };
        assert!(void(broken, 0.0).unwrap().contains("socket errors"));
        // 20 responses more than requests are possible only if they were in flight.
        let more = Report {
            bytes: 112_200.0,
            ..good
        };
        assert!(void(more, 0.0).unwrap().contains("112.2 bytes"));
        assert_eq!(void(more, 64.0), None);
        assert!(
            void(
                Report {
                    bytes: 108_000.0,
                    ..good
                },
                64.0
            )
            .is_some()
        );
        assert!(
            void(
                Report {
                    requests: 0.0,
                    bytes: 0.0,
                    ..good
                },
                64.0
            )
            .is_some()
        );
    }
}
