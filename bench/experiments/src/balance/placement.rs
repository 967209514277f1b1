//! The original experiment: uploads of 40 MB from 32 threads into nothing. Must not know how a
//! server is started, nor how a worker is held to its share.

use super::{BODY_BYTES, SHARE, WORKERS};
use crate::{
    chart::{Bar, bars},
    quota::Quota,
    run::{Run, Target},
    table::{Table, spread},
    workers::{Done, Wanted, Who, Workers},
};
use runner::{
    stats::{median, sorted},
    uploads::Shape,
};
use std::{thread, time::Duration};
use xtask::shell::Outcome;

/// Each with a connection of its own, which it keeps.
const CLIENTS: u32 = 32;

pub(super) const EVEN: &str = "least-loaded: connections per worker differ by at most 1";

/// Everybody, and how often it is measured: what is a matter of luck, more often.
const ALL: [(Who, u32); 7] = [
    (Who::Onrush("single", false), 1),
    (Who::Onrush("reuseport", false), 5),
    (Who::Onrush("round-robin", false), 3),
    (Who::Onrush("least-loaded", false), 3),
    (Who::Onrush("least-loaded", true), 3),
    (Who::Store, 5),
    (Who::Nginx, 3),
];

/// Uploads to find out what one costs.
const TO_TELL: u64 = 128;

/// One run of all uploads.
struct Trial {
    finish_s: f64,
    done: Vec<Done>,
    cpu_s: Vec<f64>,
    /// Seconds of CPU a second that each worker could have.
    share: f64,
}

impl Trial {
    /// When the last would have been answered, had the work been divided evenly.
    fn ideal_s(&self) -> f64 {
        let all: f64 = self.cpu_s.iter().sum();
        all / (self.share * self.cpu_s.len() as f64)
    }

    fn ratio(&self) -> f64 {
        self.finish_s / self.ideal_s()
    }

    /// Connections of the worker with the fewest and of that with the most.
    fn connections(&self) -> (u64, u64) {
        let all = || self.done.iter().map(|done| done.connections);
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    }

    /// Bytes of the busiest worker, by the mean.
    fn bytes_apart(&self) -> f64 {
        let all = || self.done.iter().map(|done| done.bytes as f64);
        all().fold(0.0, f64::max) * self.done.len() as f64 / all().sum::<f64>()
    }
}

pub(super) fn measure(run: &Run, with_nginx: bool) -> Outcome<Vec<Target>> {
    let uploads = run.effort.of(160, 480, 10_000);
    // Clients share a core and cannot send faster than some 7 ms an upload, and they must not be
    // what all waits for.
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
    let head = [
        "server",
        "run",
        "worker",
        "connections",
        "uploads",
        "bytes",
        "cpu_s",
        "share",
    ];
    let mut details = Table::new("balance · by worker", &head);
    let mut drawn = Vec::new();
    let mut apart = Vec::new();
    for (who, times) in ALL {
        if who == Who::Nginx && !with_nginx {
            continue;
        }
        let times = run.effort.of(times.min(2), times, times.min(3));
        let trials = trials(run, who, times, uploads, ideal_s)?;
        for (number, trial) in trials.iter().enumerate() {
            for (worker, done) in trial.done.iter().enumerate() {
                let numbers = [done.connections, done.requests, done.bytes];
                let mut cells = vec![who.name(), number.to_string(), worker.to_string()];
                cells.extend(numbers.map(|number| number.to_string()));
                cells.push(format!("{:.4}", trial.cpu_s[worker]));
                cells.push(format!("{:.5}", trial.share));
                details.row(cells);
            }
        }
        summary.row(summed_up(who, &trials));
        if who == Who::Onrush("least-loaded", false) {
            let differ = |trial: &Trial| trial.connections().1 - trial.connections().0;
            apart.extend(trials.iter().map(differ));
        }
        drawn.push(Bar {
            name: who.name(),
            ours: matches!(who, Who::Onrush(..)),
            values: trials.iter().map(Trial::ratio).collect(),
        });
    }
    run.show("balance", &summary)?;
    run.keep("balance-workers", &details)?;
    let title = format!("balance: {uploads} uploads of 40 MB over {CLIENTS} connections");
    let note =
        "finish by an ideal, even split over 8 workers; shorter is better; whiskers: all runs";
    run.write("balance.svg", &bars(&title, note, Some(1.0), &drawn))?;
    let most = apart.iter().max().copied();
    Ok(vec![Target {
        what: EVEN.to_owned(),
        found: format!("{}", most.unwrap_or(0)),
        holds: most.map(|most| most <= 1),
    }])
}

/// So many runs of all uploads. A single worker gets a quarter of them: it takes so long.
fn trials(run: &Run, who: Who, times: u32, uploads: u64, ideal_s: f64) -> Outcome<Vec<Trial>> {
    let uploads = match who {
        Who::Onrush("single", _) => uploads / 4,
        _ => uploads,
    };
    let ideal_s = match who {
        Who::Onrush("single", _) => ideal_s / 4.0,
        _ => ideal_s,
    };
    // What one upload takes differs from server to server by far. All get as much CPU as makes the
    // ideal equally long, but no more than there is: then it takes longer.
    let plain = trial(run, who, TO_TELL, None)?;
    let each_s = plain.cpu_s.iter().sum::<f64>() / TO_TELL as f64;
    let share = each_s * uploads as f64 / ideal_s / WORKERS as f64;
    let quota = Quota::of_share(share.min(SHARE));
    let mut all = Vec::new();
    for number in 0..times {
        runner::progress(&format!(
            "balance · {}, run {}/{times}",
            who.name(),
            number + 1
        ));
        all.push(trial(run, who, uploads, Some(quota))?);
    }
    Ok(all)
}

fn trial(run: &Run, who: Who, uploads: u64, quota: Option<Quota>) -> Outcome<Trial> {
    run.go_on()?;
    let wanted = Wanted {
        who,
        workers: WORKERS,
        work_us: 0,
        cores: runner::server::SERVER_CORE,
        quota,
    };
    let workers = Workers::start(run, &wanted)?;
    let shape = Shape {
        clients: CLIENTS,
        body_bytes: BODY_BYTES,
        fresh: false,
        count: Some(uploads),
    };
    let before = workers.cpu_ns();
    let mut load = shape.start(workers.server.address, 0)?;
    while !load.has_ended() {
        run.go_on()?;
        thread::sleep(Duration::from_millis(5));
    }
    let after = workers.cpu_ns();
    let report = load.finish()?;
    if report.requests != uploads as f64 || report.status > 0.0 {
        let (name, done, refused) = (who.name(), report.requests, report.status);
        let broken = report.read;
        return Err(format!(
            "{name}: {done} of {uploads} uploads got a response, {refused} an error status; \
             {broken} connections failed"
        ));
    }
    let cpu_s = before.iter().zip(&after);
    let cpu_s = cpu_s.map(|(before, after)| after.saturating_sub(*before) as f64 / 1e9);
    let cpu_s = cpu_s.collect();
    let done = workers.end(uploads)?;
    Ok(Trial {
        finish_s: report.us / 1e6,
        done,
        cpu_s,
        share: quota.map_or(1.0, Quota::share),
    })
}

fn summed_up(who: Who, trials: &[Trial]) -> Vec<String> {
    let first = trials.first().map(|trial| &trial.done[..]);
    let first = first.unwrap_or_default().iter();
    let first = sorted(first.map(|done| done.connections as f64));
    let first: Vec<String> = first.iter().map(f64::to_string).collect();
    let fewest = trials.iter().map(|trial| trial.connections().0).min();
    let most = trials.iter().map(|trial| trial.connections().1).max();
    let of = |figure: fn(&Trial) -> f64| -> Vec<f64> { trials.iter().map(figure).collect() };
    vec![
        who.name(),
        trials.len().to_string(),
        first.join(" "),
        fewest.unwrap_or(0).to_string(),
        most.unwrap_or(0).to_string(),
        spread(&of(Trial::bytes_apart), 2),
        format!("{:.1}", median(of(|trial| trial.finish_s))),
        format!("{:.1}", median(of(Trial::ideal_s))),
        spread(&of(Trial::ratio), 2),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ideal_is_an_even_split_of_what_was_used() {
        let done = |connections, bytes| Done {
            connections,
            requests: 1,
            bytes,
        };
        let trial = Trial {
            finish_s: 6.0,
            done: vec![done(1, 10), done(3, 30)],
            cpu_s: vec![0.1, 0.3],
            share: 0.1,
        };
        assert!((trial.ideal_s() - 2.0).abs() < 1e-9);
        assert!((trial.ratio() - 3.0).abs() < 1e-9);
        assert_eq!(trial.connections(), (1, 3));
        assert_eq!(trial.bytes_apart(), 1.5);
        let cells = summed_up(Who::Store, &[trial]);
        assert_eq!(&cells[..5], ["store in C", "1", "1 3", "1", "3"]);
    }
}
