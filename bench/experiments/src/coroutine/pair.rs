//! Measures two servers at the same time, or one alone: CPU per request, requests per second and
//! response times. Works like the pairs of the bench, but on any cores and for any path.

use super::servers::{Endpoint, Subject};
use crate::{run::Run, workers::get};
use runner::{
    server::Server,
    stats::{Summary, median},
    wrk::{Report, Running},
};
use std::{fs, process::Command, time::Duration};
use xtask::shell::Outcome;

/// Connections to each server, as in the original experiment.
pub(super) const CONNECTIONS: u32 = 200;

/// Rounds before both servers are restarted: their addresses in memory affect the result.
const ROUNDS_PER_START: u32 = 3;

/// The highest permitted share of errors.
const ERRORS_MAX: f64 = 0.001;

/// Pause before the next start, in which both sides close the connections of `/call`.
const PAUSE: Duration = Duration::from_millis(100);

/// Makes wrk print its results in the form that [`Report`] reads.
const SCRIPT: &str = "\
done = function(summary, latency)
  local e = summary.errors
  io.write(string.format('bench requests=%.0f bytes=%.0f us=%.0f connect=%.0f read=%.0f ' ..
    'write=%.0f status=%.0f timeout=%.0f p50=%.0f p99=%.0f p999=%.0f\\n', summary.requests,
    summary.bytes, summary.duration, e.connect, e.read, e.write, e.status, e.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
";

/// Ratios of CPU per request, each of two servers at the same time.
#[derive(Clone, Debug, Default)]
pub(super) struct Compared {
    pub(super) ratios: Vec<f64>,
    /// CPU per request of the first server, in microseconds.
    pub(super) cpu_us: Vec<f64>,
}

impl Compared {
    pub(super) fn ratio(&self) -> Option<Summary> {
        Summary::of(self.ratios.iter().copied())
    }
}

/// The results of one server without another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    pub(super) requests_per_s: f64,
    pub(super) p99_ms: f64,
}

/// Compares two servers under the same load in `rounds` rounds.
pub(super) fn compare(
    run: &Run,
    endpoint: Endpoint,
    pair: [Subject; 2],
    backend: u16,
    rounds: u32,
) -> Outcome<Compared> {
    let mut compared = Compared::default();
    let mut done = 0;
    while done < rounds {
        let servers = [
            start(run, endpoint, pair[0], backend)?,
            start(run, endpoint, pair[1], backend)?,
        ];
        if rounds > 1 {
            round(run, endpoint, pair[0], &servers.each_ref())?;
        }
        for _ in 0..ROUNDS_PER_START.min(rounds - done) {
            // The order in which the loads start alternates.
            let mut order = servers.each_ref();
            let flip = done % 2 == 1;
            if flip {
                order.reverse();
            }
            let mut cpu = round(run, endpoint, pair[0], &order)?;
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

/// Measures one server without another. Returns medians.
pub(super) fn alone(
    run: &Run,
    endpoint: Endpoint,
    subject: Subject,
    backend: u16,
    rounds: u32,
) -> Outcome<Alone> {
    let server = start(run, endpoint, subject, backend)?;
    let mut all = Vec::new();
    for _ in 0..rounds {
        all.extend(round(run, endpoint, subject, &[&server])?);
    }
    Ok(Alone {
        requests_per_s: median(all.iter().map(|one| one.requests_per_s)),
        p99_ms: median(all.iter().map(|one| one.p99_ms)),
    })
}

fn start(run: &Run, endpoint: Endpoint, subject: Subject, backend: u16) -> Outcome<Server> {
    run.check_interrupt()?;
    let server = subject.start(endpoint, Some(backend))?;
    let failed = |reason: &str| format!("{}: {reason}", subject.name());
    match get(&server, endpoint.path()) {
        Ok(content) if content == "Hello, World!" => Ok(server),
        Ok(content) => Err(failed(&format!("wrong content: {content}"))),
        Err(reason) => Err(failed(&reason)),
    }
}

#[derive(Clone, Copy, Debug)]
struct One {
    cpu_us: f64,
    requests_per_s: f64,
    p99_ms: f64,
}

/// Loads all servers for one second. Their number of workers is that of `subject`.
fn round(
    run: &Run,
    endpoint: Endpoint,
    subject: Subject,
    servers: &[&Server],
) -> Outcome<Vec<One>> {
    run.check_interrupt()?;
    let script = run.folder("wrk")?.join("load.lua");
    fs::write(&script, SCRIPT).map_err(|error| format!("{}: {error}", script.display()))?;
    let load = |server: &&Server| {
        // `Running` binds wrk to the clients' core. With two workers it may use both cores.
        let mut wrk = Command::new("taskset");
        let (cores, threads) = match subject.workers {
            1 => (runner::server::CLIENT_CORE, "1"),
            _ => (subject.cores(), "2"),
        };
        wrk.args(["--cpu-list", cores, "wrk", "--threads", threads]);
        wrk.args(["--timeout", "10s", "--duration=1s"]);
        wrk.arg(format!("--connections={CONNECTIONS}"));
        wrk.arg("--script").arg(&script);
        wrk.arg(format!("http://{}{}", server.address, endpoint.path()));
        Running::start(&wrk)
    };
    let before: Vec<_> = servers.iter().map(|server| server.usage()).collect();
    let loads: Vec<Running> = servers.iter().map(load).collect::<Outcome<_>>()?;
    // Waits for all before it checks one: the cores must be free in the next round.
    let reports: Vec<_> = loads.into_iter().map(Running::finish).collect();
    let after: Vec<_> = servers.iter().map(|server| server.usage()).collect();
    let mut all = Vec::new();
    for (at, report) in reports.into_iter().enumerate() {
        let report = report?;
        check(&report)?;
        all.push(One {
            cpu_us: after[at].ns_since(&before[at]) / 1e3 / report.requests,
            requests_per_s: report.requests / (report.us / 1e6),
            p99_ms: report.p99_us / 1e3,
        });
    }
    Ok(all)
}

/// Fails without requests, or with too many errors.
fn check(report: &Report) -> Outcome {
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
    fn reports_with_errors_are_rejected() {
        let report = Report {
            requests: 1000.0,
            ..Report::default()
        };
        assert_eq!(check(&report), Ok(()));
        let status = Report {
            status: 2.0,
            ..report
        };
        assert!(check(&status).is_err());
        let sockets = Report {
            read: 1.0,
            timeout: 1.0,
            ..report
        };
        assert!(check(&sockets).is_err());
        assert!(check(&Report::default()).is_err());
    }
}
