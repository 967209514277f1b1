//! The original experiment: uploads from 32 threads, which the servers read and discard.

use crate::{
    chart::{Bar, bars},
    quota::Quota,
    run::{Effort, Run, Target},
    table::{Table, median_and_range},
    workers::{Served, ServerKind, Settings, Workers},
};
use runner::{
    stats::{median, sorted},
    uploads::Shape,
};
use std::{thread, time::Duration};
use xtask::shell::Outcome;

/// Workers of every server.
pub(super) const WORKERS: usize = 8;

/// The largest share of a core for each worker. Together they leave a part of the core unused.
pub(super) const SHARE: f64 = 0.1;

/// Clients. Each has one connection, which it keeps open.
const CLIENTS: u32 = 32;

pub(super) const EVEN: &str = "least-loaded: connections per worker differ by at most 1";

/// The servers, and the number of runs of each. Random placements have more runs.
const ALL: [(ServerKind, u32); 7] = [
    (ServerKind::Onrush("single", false), 1),
    (ServerKind::Onrush("reuseport", false), 5),
    (ServerKind::Onrush("round-robin", false), 3),
    (ServerKind::Onrush("least-loaded", false), 3),
    (ServerKind::Onrush("least-loaded", true), 3),
    (ServerKind::Store, 5),
    (ServerKind::Nginx, 3),
];

/// Bytes a second at which the clients, which share a core, are not the bottleneck.
const BYTES_PER_S: f64 = 3.2e9;

/// Runs that measure the CPU of one upload, and the bytes of each of these runs.
const CALIBRATIONS: u32 = 2;
const CALIBRATION_BYTES: u64 = 1_280_000_000;

/// The limits of one run.
#[derive(Clone, Copy, Debug)]
struct Limits {
    uploads: u64,
    /// The time that an even split takes.
    ideal_s: f64,
    body_bytes: u64,
}

impl Limits {
    fn of(effort: Effort) -> Limits {
        // The original had 10,000 uploads of 40 MB. With 4 MB, each client makes dozens of uploads
        // in a few seconds, so its last one hardly affects the time.
        let (uploads, ideal_s, body_bytes) = effort.of(
            (640, 1.0, 4_000_000),
            (3_200, 4.0, 4_000_000),
            (10_000, f64::INFINITY, 40_000_000),
        );
        Limits {
            uploads,
            ideal_s,
            body_bytes,
        }
    }
}

/// The uploads of one run, and the quota of each worker.
#[derive(Clone, Copy, Debug)]
struct Plan {
    uploads: u64,
    body_bytes: u64,
    quota: Quota,
}

impl Plan {
    /// Measures the CPU of an upload first.
    fn calibration(limits: Limits) -> Plan {
        Plan {
            uploads: CALIBRATION_BYTES / limits.body_bytes,
            body_bytes: limits.body_bytes,
            quota: Quota::of_share(SHARE),
        }
    }

    /// As many uploads as `limits` permit, if one needs `each_s` seconds of CPU. The quota keeps
    /// the workers busy all the time: [`SHARE`], or less if the clients would be the bottleneck.
    fn new(limits: Limits, each_s: f64) -> Plan {
        let workers = WORKERS as f64;
        let per_s = (SHARE * workers / each_s).min(BYTES_PER_S / limits.body_bytes as f64);
        // A multiple of the number of clients, so that all of them have as many.
        let each_client = (limits.ideal_s * per_s) as u64 / u64::from(CLIENTS);
        let uploads = each_client.max(1).saturating_mul(u64::from(CLIENTS));
        Plan {
            uploads: uploads.min(limits.uploads),
            body_bytes: limits.body_bytes,
            quota: Quota::of_share(each_s * per_s / workers),
        }
    }
}

/// One run of all uploads.
struct Trial {
    finish_s: f64,
    served: Vec<Served>,
    cpu_s: Vec<f64>,
    /// The share of a core that each worker could use.
    share: f64,
}

impl Trial {
    fn uploads(&self) -> u64 {
        self.served.iter().map(|served| served.requests).sum()
    }

    /// CPU for one upload, in seconds.
    fn each_s(&self) -> f64 {
        self.cpu_s.iter().sum::<f64>() / self.uploads() as f64
    }

    /// Seconds that the uploads would have taken with an even split of the CPU that was used.
    fn ideal_s(&self) -> f64 {
        let all: f64 = self.cpu_s.iter().sum();
        all / (self.share * self.cpu_s.len() as f64)
    }

    fn ratio(&self) -> f64 {
        self.finish_s / self.ideal_s()
    }

    /// The fewest and the most connections of a worker.
    fn connections(&self) -> (u64, u64) {
        let all = || self.served.iter().map(|served| served.connections);
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    }

    /// Bytes of the busiest worker, divided by the mean.
    fn busiest_bytes_ratio(&self) -> f64 {
        let all = || self.served.iter().map(|served| served.bytes as f64);
        all().fold(0.0, f64::max) * self.served.len() as f64 / all().sum::<f64>()
    }
}

pub(super) fn measure(run: &Run, with_nginx: bool) -> Outcome<Vec<Target>> {
    let limits = Limits::of(run.effort);
    let megabytes = limits.body_bytes / 1_000_000;
    let mut summary = Table::new(
        &format!(
            "balance · PUTs of {megabytes} MB from {CLIENTS} connections, {WORKERS} workers with \
             an equal quota of CPU each"
        ),
        &[
            "server",
            "runs",
            "connections by worker, first run",
            "fewest",
            "most",
            "bytes, busiest / mean",
            "PUTs",
            "CPU ms per PUT",
            "quota %",
            "finish s",
            "ideal s",
            "finish / ideal",
        ],
    );
    let mut chart = Vec::new();
    let mut differences = Vec::new();
    for (kind, times) in ALL {
        if kind == ServerKind::Nginx && !with_nginx {
            continue;
        }
        let times = run.effort.of(times.min(2), times, times.min(3));
        let trials = trials(run, kind, times, limits)?;
        summary.row(summary_cells(kind, &trials));
        if kind == ServerKind::Onrush("least-loaded", false) {
            let difference = |trial: &Trial| trial.connections().1 - trial.connections().0;
            differences.extend(trials.iter().map(difference));
        }
        chart.push(Bar {
            name: kind.name(),
            ours: matches!(kind, ServerKind::Onrush(..)),
            values: trials.iter().map(Trial::ratio).collect(),
        });
    }
    run.show("balance", &summary)?;
    let title = format!("balance: uploads of {megabytes} MB over {CLIENTS} connections");
    let note = "finish divided by that of an even split; shorter is better; whiskers: all runs";
    run.write("balance.svg", &bars(&title, note, Some(1.0), &chart))?;
    let most = differences.iter().max().copied();
    Ok(vec![Target {
        what: EVEN.to_owned(),
        found: format!("{}", most.unwrap_or(0)),
        holds: most.map(|most| most <= 1),
    }])
}

/// `times` runs. With a single worker, which is slow, a quarter of the uploads.
///
/// The CPU of an upload differs between servers and machines, so it is measured first. It also
/// depends on the quota: a worker that waits for its quota finds more bytes in its sockets. So it
/// is measured with a quota, and again if another quota follows.
fn trials(run: &Run, kind: ServerKind, times: u32, limits: Limits) -> Outcome<Vec<Trial>> {
    let part = match kind {
        ServerKind::Onrush("single", _) => 4,
        _ => 1,
    };
    let mut plan = Plan::calibration(limits);
    let uploads = (plan.uploads / part).max(1);
    for number in 1..=CALIBRATIONS {
        runner::progress(&format!(
            "balance · {}, CPU of an upload {number}/{CALIBRATIONS}",
            kind.name()
        ));
        let quota = plan.quota;
        let each_s = trial(run, kind, Plan { uploads, ..plan })?.each_s();
        plan = Plan::new(limits, each_s);
        if plan.quota == quota {
            break;
        }
    }
    plan.uploads = (plan.uploads / part).max(1);
    let mut all = Vec::new();
    for number in 0..times {
        runner::progress(&format!(
            "balance · {}, run {}/{times}",
            kind.name(),
            number + 1
        ));
        all.push(trial(run, kind, plan)?);
    }
    Ok(all)
}

fn trial(run: &Run, kind: ServerKind, plan: Plan) -> Outcome<Trial> {
    run.check_interrupt()?;
    let settings = Settings {
        kind,
        workers: WORKERS,
        work_us: 0,
        cores: runner::server::SERVER_CORE,
        quota: Some(plan.quota),
    };
    let workers = Workers::start(run, &settings)?;
    let shape = Shape {
        clients: CLIENTS,
        body_bytes: plan.body_bytes,
        fresh: false,
        has_type: false,
        count: Some(plan.uploads),
    };
    let before = workers.cpu_ns();
    let mut load = shape.start(workers.server.address, 0)?;
    while !load.has_ended() {
        run.check_interrupt()?;
        thread::sleep(Duration::from_millis(5));
    }
    let after = workers.cpu_ns();
    let report = load.finish()?;
    if report.requests != plan.uploads as f64 || report.status > 0.0 {
        let (name, responses, errors) = (kind.name(), report.requests, report.status);
        let broken = report.read;
        return Err(format!(
            "{name}: {responses} of {} uploads got a response, {errors} an error status; \
             {broken} connections failed",
            plan.uploads
        ));
    }
    let cpu_s = before.iter().zip(&after);
    let cpu_s = cpu_s.map(|(before, after)| after.saturating_sub(*before) as f64 / 1e9);
    let cpu_s = cpu_s.collect();
    let served = workers.end(plan.uploads, plan.body_bytes)?;
    Ok(Trial {
        finish_s: report.us / 1e6,
        served,
        cpu_s,
        share: plan.quota.share(),
    })
}

fn summary_cells(kind: ServerKind, trials: &[Trial]) -> Vec<String> {
    let first = trials.first().map(|trial| &trial.served[..]);
    let first = first.unwrap_or_default().iter();
    let first = sorted(first.map(|served| served.connections as f64));
    let first: Vec<String> = first.iter().map(f64::to_string).collect();
    let fewest = trials.iter().map(|trial| trial.connections().0).min();
    let most = trials.iter().map(|trial| trial.connections().1).max();
    let of = |value: fn(&Trial) -> f64| -> Vec<f64> { trials.iter().map(value).collect() };
    vec![
        kind.name(),
        trials.len().to_string(),
        first.join(" "),
        fewest.unwrap_or(0).to_string(),
        most.unwrap_or(0).to_string(),
        median_and_range(&of(Trial::busiest_bytes_ratio), 2),
        format!("{:.0}", median(of(|trial| trial.uploads() as f64))),
        format!("{:.2}", 1e3 * median(of(Trial::each_s))),
        format!("{:.1}", 100.0 * median(of(|trial| trial.share))),
        format!("{:.1}", median(of(|trial| trial.finish_s))),
        format!("{:.1}", median(of(Trial::ideal_s))),
        median_and_range(&of(Trial::ratio), 2),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_is_an_even_split_of_the_cpu_used() {
        let served = |connections, bytes| Served {
            connections,
            requests: 1,
            bytes,
        };
        let trial = Trial {
            finish_s: 6.0,
            served: vec![served(1, 10), served(3, 30)],
            cpu_s: vec![0.1, 0.3],
            share: 0.1,
        };
        assert!((trial.ideal_s() - 2.0).abs() < 1e-9);
        assert!((trial.ratio() - 3.0).abs() < 1e-9);
        assert_eq!(trial.connections(), (1, 3));
        assert_eq!(trial.busiest_bytes_ratio(), 1.5);
        assert!((trial.each_s() - 0.2).abs() < 1e-9);
        let cells = summary_cells(ServerKind::Store, &[trial]);
        assert_eq!(&cells[..5], ["store in C", "1", "1 3", "1", "3"]);
        assert_eq!(&cells[6..9], ["2", "200.00", "10.0"]);
    }

    #[test]
    fn uploads_and_quota_follow_the_cpu_of_an_upload() {
        let limits = Limits::of(Effort::Usual);
        let ideal_s = |plan: Plan, each_s: f64| {
            plan.uploads as f64 * each_s / (plan.quota.share() * WORKERS as f64)
        };
        // A cheap upload gets a small quota, because the clients would be the bottleneck. An
        // expensive one gets the largest quota, and there are fewer of them.
        let (cheap, expensive) = (Plan::new(limits, 0.0002), Plan::new(limits, 0.002));
        assert!(cheap.quota.share() < SHARE / 2.0 && cheap.uploads == limits.uploads);
        assert_eq!(expensive.quota, Quota::of_share(SHARE));
        assert_eq!(expensive.uploads, 1_600);
        for (plan, each_s) in [(cheap, 0.0002), (expensive, 0.002)] {
            assert!((ideal_s(plan, each_s) - limits.ideal_s).abs() < 0.1);
        }
        let original = Plan::new(Limits::of(Effort::Full), 0.02);
        assert_eq!(
            (original.uploads, original.body_bytes),
            (10_000, 40_000_000)
        );
        assert_eq!(Plan::new(limits, 60.0).uploads, 32);
    }
}
