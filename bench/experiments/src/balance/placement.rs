//! The original experiment: uploads of 40 MB from 32 threads, which the servers discard.

use crate::{
    chart::{Bar, bars},
    quota::Quota,
    run::{Run, Target},
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

/// Bytes of each upload, as in the original experiment.
const BODY_BYTES: u64 = 40_000_000;

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

/// Uploads that measure the CPU of one upload.
const CALIBRATION_UPLOADS: u64 = 128;

/// One run of all uploads.
struct Trial {
    finish_s: f64,
    served: Vec<Served>,
    cpu_s: Vec<f64>,
    /// The share of a core that each worker could use.
    share: f64,
}

impl Trial {
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
    let uploads = run.effort.of(160, 480, 10_000);
    // The clients share a core. They need about 7 ms for each upload, and must not be the
    // bottleneck.
    let ideal_s = uploads as f64 * 0.0125;
    let mut summary = Table::new(
        &format!(
            "balance · {uploads} PUTs of 40 MB from {CLIENTS} connections, {WORKERS} workers with \
             an equal quota of CPU each"
        ),
        &[
            "server",
            "runs",
            "connections by worker, first run",
            "fewest",
            "most",
            "bytes, busiest / mean",
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
        let trials = trials(run, kind, times, uploads, ideal_s)?;
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
    let title = format!("balance: {uploads} uploads of 40 MB over {CLIENTS} connections");
    let note = "finish divided by that of an even split; shorter is better; whiskers: all runs";
    run.write("balance.svg", &bars(&title, note, Some(1.0), &chart))?;
    let most = differences.iter().max().copied();
    Ok(vec![Target {
        what: EVEN.to_owned(),
        found: format!("{}", most.unwrap_or(0)),
        holds: most.map(|most| most <= 1),
    }])
}

/// `times` runs of all uploads. With a single worker, which is slow, a quarter of the uploads.
fn trials(
    run: &Run,
    kind: ServerKind,
    times: u32,
    uploads: u64,
    ideal_s: f64,
) -> Outcome<Vec<Trial>> {
    let (uploads, ideal_s) = match kind {
        ServerKind::Onrush("single", _) => (uploads / 4, ideal_s / 4.0),
        _ => (uploads, ideal_s),
    };
    // The CPU of one upload differs widely between servers. Each server gets a quota with which an
    // even split takes `ideal_s`, but at most `SHARE` for each worker; then it takes longer.
    let unlimited = trial(run, kind, CALIBRATION_UPLOADS, None)?;
    let each_s = unlimited.cpu_s.iter().sum::<f64>() / CALIBRATION_UPLOADS as f64;
    let share = each_s * uploads as f64 / ideal_s / WORKERS as f64;
    let quota = Quota::of_share(share.min(SHARE));
    let mut all = Vec::new();
    for number in 0..times {
        runner::progress(&format!(
            "balance · {}, run {}/{times}",
            kind.name(),
            number + 1
        ));
        all.push(trial(run, kind, uploads, Some(quota))?);
    }
    Ok(all)
}

fn trial(run: &Run, kind: ServerKind, uploads: u64, quota: Option<Quota>) -> Outcome<Trial> {
    run.check_interrupt()?;
    let settings = Settings {
        kind,
        workers: WORKERS,
        work_us: 0,
        cores: runner::server::SERVER_CORE,
        quota,
    };
    let workers = Workers::start(run, &settings)?;
    let shape = Shape {
        clients: CLIENTS,
        body_bytes: BODY_BYTES,
        fresh: false,
        count: Some(uploads),
    };
    let before = workers.cpu_ns();
    let mut load = shape.start(workers.server.address, 0)?;
    while !load.has_ended() {
        run.check_interrupt()?;
        thread::sleep(Duration::from_millis(5));
    }
    let after = workers.cpu_ns();
    let report = load.finish()?;
    if report.requests != uploads as f64 || report.status > 0.0 {
        let (name, responses, errors) = (kind.name(), report.requests, report.status);
        let broken = report.read;
        return Err(format!(
            "{name}: {responses} of {uploads} uploads got a response, {errors} an error status; \
             {broken} connections failed"
        ));
    }
    let cpu_s = before.iter().zip(&after);
    let cpu_s = cpu_s.map(|(before, after)| after.saturating_sub(*before) as f64 / 1e9);
    let cpu_s = cpu_s.collect();
    let served = workers.end(uploads, BODY_BYTES)?;
    Ok(Trial {
        finish_s: report.us / 1e6,
        served,
        cpu_s,
        share: quota.map_or(1.0, Quota::share),
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
        let cells = summary_cells(ServerKind::Store, &[trial]);
        assert_eq!(&cells[..5], ["store in C", "1", "1 3", "1", "3"]);
    }
}
