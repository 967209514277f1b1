//! Two servers at the same moment, or one alone: CPU of a request, requests a second and their
//! times. As the bench does it, but on any cores and for any path. Must not know who is compared.

use super::servers::{Ask, Who};
use crate::run::Run;
use runner::{
    probe::probe,
    server::Server,
    stats::{Summary, median},
    wrk::{Report, Running},
};
use std::{fs, process::Command, time::Duration};
use xtask::shell::Outcome;

/// As many as there were originally.
pub(super) const CONNECTIONS: u32 = 200;

/// Rounds of a start; then both are started anew, for their place in memory matters.
const ROUNDS_A_START: u32 = 3;

/// Most errors that may be among the requests.
const ERRORS_MAX: f64 = 0.001;

/// Bounds the wait for ports of `/call` to be closed on both sides before the next start.
const PAUSE: Duration = Duration::from_millis(100);

/// What wrk has to say at its end, as the bench reads it.
const SCRIPT: &str = "\
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format('bench requests=%.0f bytes=%.0f us=%.0f connect=%.0f read=%.0f ' ..
    'write=%.0f status=%.0f timeout=%.0f p50=%.0f p99=%.0f p999=%.0f\\n', summary.requests,
    summary.bytes, summary.duration, e.connect, e.read, e.write, e.status, e.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
";

/// Ratios of CPU per request, each of two servers at the same moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Compared {
    pub(super) ratios: Vec<f64>,
    /// Of the first of the two, in microseconds.
    pub(super) cpu_us: Vec<f64>,
}

impl Compared {
    pub(super) fn ratio(&self) -> Option<Summary> {
        Summary::of(self.ratios.iter().copied())
    }
}

/// One server that has the cores for itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    pub(super) requests_per_s: f64,
    pub(super) p99_ms: f64,
}

/// Compares both under the same load, as often as `rounds`.
pub(super) fn compare(
    run: &Run,
    ask: Ask,
    pair: [Who; 2],
    behind: u16,
    rounds: u32,
) -> Outcome<Compared> {
    let mut compared = Compared::default();
    let mut done = 0;
    while done < rounds {
        let servers = [
            start(run, ask, pair[0], behind)?,
            start(run, ask, pair[1], behind)?,
        ];
        if rounds > 1 {
            round(run, ask, pair[0], &servers.each_ref())?;
        }
        for _ in 0..ROUNDS_A_START.min(rounds - done) {
            // Who is loaded first changes from round to round.
            let mut order = servers.each_ref();
            let flip = done % 2 == 1;
            if flip {
                order.reverse();
            }
            let mut cpu = round(run, ask, pair[0], &order)?;
            if flip {
                cpu.reverse();
            }
            compared.ratios.push(cpu[0].cpu_us / cpu[1].cpu_us);
            compared.cpu_us.push(cpu[0].cpu_us);
            done += 1;
        }
        drop(servers);
        run.sleep(PAUSE)?;
    }
    Ok(compared)
}

/// What one answers when nobody else is loaded: medians.
pub(super) fn alone(run: &Run, ask: Ask, who: Who, behind: u16, rounds: u32) -> Outcome<Alone> {
    let server = start(run, ask, who, behind)?;
    let mut all = Vec::new();
    for _ in 0..rounds {
        all.extend(round(run, ask, who, &[&server])?);
    }
    Ok(Alone {
        requests_per_s: median(all.iter().map(|one| one.requests_per_s)),
        p99_ms: median(all.iter().map(|one| one.p99_ms)),
    })
}

fn start(run: &Run, ask: Ask, who: Who, behind: u16) -> Outcome<Server> {
    run.go_on()?;
    let server = who.start(ask, Some(behind))?;
    let path = ask.path();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let response = probe(server.address, request.as_bytes());
    let response = response.map_err(|reason| format!("{}: {reason}", who.name()))?;
    match (response.status, response.body.as_slice()) {
        (200, b"Hello, World!") => Ok(server),
        (status, _) => Err(format!("{}: {path} was answered {status}", who.name())),
    }
}

#[derive(Clone, Copy, Debug)]
struct One {
    cpu_us: f64,
    requests_per_s: f64,
    p99_ms: f64,
}

/// Loads all of them for a second.
fn round(run: &Run, ask: Ask, who: Who, servers: &[&Server]) -> Outcome<Vec<One>> {
    run.go_on()?;
    let script = run.folder("wrk")?.join("load.lua");
    fs::write(&script, SCRIPT).map_err(|error| format!("{}: {error}", script.display()))?;
    let load = |server: &&Server| {
        // Bound to the clients' core, which it is let off again where servers have both.
        let mut wrk = Command::new("taskset");
        let (cores, threads) = match who.workers {
            1 => (runner::server::CLIENT_CORE, "1"),
            _ => (who.cores(), "2"),
        };
        wrk.args(["--cpu-list", cores, "wrk", "--threads", threads]);
        wrk.args(["--timeout", "10s", "--duration=1s"]);
        wrk.arg(format!("--connections={CONNECTIONS}"));
        wrk.arg("--script").arg(&script);
        wrk.arg(format!("http://{}{}", server.address, ask.path()));
        Running::start(&wrk)
    };
    let before: Vec<_> = servers.iter().map(|server| server.usage()).collect();
    let loads: Vec<Running> = servers.iter().map(load).collect::<Outcome<_>>()?;
    // All are waited for before one is judged: the next round must find the cores free.
    let reports: Vec<_> = loads.into_iter().map(Running::finish).collect();
    let after: Vec<_> = servers.iter().map(|server| server.usage()).collect();
    let mut all = Vec::new();
    for (at, report) in reports.into_iter().enumerate() {
        let report = report?;
        sound(&report)?;
        all.push(One {
            cpu_us: after[at].ns_since(&before[at]) / 1e3 / report.requests,
            requests_per_s: report.requests / (report.us / 1e6),
            p99_ms: report.p99_us / 1e3,
        });
    }
    Ok(all)
}

/// Fails where a report says nothing.
fn sound(report: &Report) -> Outcome {
    let sockets = report.connect + report.read + report.write + report.timeout;
    let failed = report.status.max(sockets);
    match report.requests > 0.0 && failed <= report.requests * ERRORS_MAX {
        true => Ok(()),
        false => Err(format!("{} of {} requests failed", failed, report.requests)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_with_errors_are_refused() {
        let report = Report {
            requests: 1000.0,
            ..Report::default()
        };
        assert_eq!(sound(&report), Ok(()));
        let status = Report {
            status: 2.0,
            ..report
        };
        assert!(sound(&status).is_err());
        let sockets = Report {
            read: 1.0,
            timeout: 1.0,
            ..report
        };
        assert!(sound(&sockets).is_err());
        assert!(sound(&Report::default()).is_err());
    }
}
