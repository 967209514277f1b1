//! One row: two servers loaded at the same moment, from the same core, on the same core; what
//! disturbs one disturbs the other. Must not know the profiles, nor how a row is shown.
//!
//! CPU is taken from before the loads are started to after both have ended, and divided by all that
//! was answered. A window within the load would leave out the opening of connections, but wrk says
//! how many requests it made only at its end, so the requests of a window would have to be guessed
//! from the whole, and wrk does not go evenly (it measures for itself first). What is in the figure
//! instead, the opening of connections and what was under way at the end, is in that of both
//! servers, is one part in hundreds at 64 connections, and with more connections rounds are longer.

use crate::{
    bench::{Bench, ROUNDS_A_START},
    peers::Launch,
    plan::{Content, Expect, Load, Pairing, Scenario, Subject},
    probe::{Response, probe},
    row::{Metrics, Round, Row},
    server::{Server, Usage, free_port},
    work::{self, Place},
    wrk::{Report, Running},
};
use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// For a server to compile, allocate and cache what it does for its first requests.
const WARM: Duration = Duration::from_millis(1000);

/// From these bytes on an answer is counted by the part of it that came: few are whole at the end.
const COUNTED_BY_BYTES: usize = 64 * 1024;

/// Starts that may fail before a row is given up.
const FAILED_STARTS_MAX: u32 = 2;

/// A server of the pair, and what it was found to answer.
struct Started {
    server: Server,
    folder: PathBuf,
    scratch: PathBuf,
    probed: Response,
    /// Last, so that the server has ended when it goes.
    _temporary: Temporary,
}

/// Folders that go with the server they were made for: what 32 clients upload is more than a
/// gigabyte, and many servers are started in one run.
struct Temporary(Vec<PathBuf>);

impl Drop for Temporary {
    fn drop(&mut self) {
        for folder in &self.0 {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Measures a row. What cannot be measured is in it as a reason.
pub(crate) fn measure(bench: &mut Bench, scenario: &Scenario, pairing: &Pairing) -> Row {
    let mut row = Row {
        profile: scenario.profile,
        scenario: scenario.name.clone(),
        about: pairing.about,
        unit: crate::row::CPU,
        server: bench.side(&pairing.server, scenario.role),
        reference: bench.side(&pairing.reference, scenario.role),
        durability: scenario.durability(),
        access_log: "off",
        target: pairing.target,
        rounds: Vec::new(),
        voids: Vec::new(),
        note: String::new(),
        volume_bytes: scenario.volume_bytes,
    };
    if let Some(reason) = missing(bench, pairing) {
        row.voids.push(reason);
        return row;
    }
    let rounds = bench.effort.rounds.min(scenario.rounds_max);
    let seconds = bench.effort.seconds.max(scenario.seconds_min);
    let mut failed_starts = 0;
    let mut next = Duration::from_secs(seconds + 1) + WARM;
    let mut done = 0;
    while done < rounds && failed_starts < FAILED_STARTS_MAX && !bench.clock.row_is_over(next) {
        let pair = start_both(bench, scenario, pairing);
        let (server, reference) = match pair {
            Ok(pair) => pair,
            Err(reason) => {
                failed_starts += 1;
                row.voids.push(reason);
                continue;
            }
        };
        for _ in 0..ROUNDS_A_START {
            // What the start took is spent; a round alone is shorter.
            next = Duration::from_secs(seconds) + WARM / 2;
            if done == rounds || bench.clock.row_is_over(next) {
                break;
            }
            crate::progress(&format!(
                "{} · {}: {} beside {}, {}/{rounds}",
                row.profile,
                row.scenario,
                row.server.name,
                row.reference.name,
                done + 1
            ));
            // Who is loaded first changes from round to round.
            let flip = done % 2 == 1;
            let begun = Instant::now();
            match one_round(scenario, &server, &reference, seconds, flip) {
                Ok(round) => row.rounds.push(round),
                Err(_) if bench.clock.interrupted() => return row,
                Err(reason) => row.voids.push(reason),
            }
            done += 1;
            // One that fails at once fails every time, and one that takes long takes long again.
            next = begun.elapsed().max(next);
        }
        note(&mut row.server.peak_bytes, &server);
        note(&mut row.reference.peak_bytes, &reference);
        if done >= rounds || bench.clock.row_is_over(next) {
            row.server.calls = calls(bench, scenario, &pairing.server, &server);
            row.reference.calls = calls(bench, scenario, &pairing.reference, &reference);
        }
        next += WARM;
    }
    if row.rounds.is_empty() && row.voids.is_empty() {
        row.voids.push("left out: time was up".to_owned());
    }
    row
}

/// Why one of both cannot be started.
fn missing(bench: &Bench, pairing: &Pairing) -> Option<String> {
    let both = [&pairing.server, &pairing.reference];
    both.into_iter()
        .find_map(|subject| bench.missing.get(subject.peer.name).cloned())
}

/// Loads both for as long as `look` takes, which is `seconds`. Gives what it saw, and how many
/// requests a second each has answered.
pub(crate) fn watch<R>(
    bench: &mut Bench,
    scenario: &Scenario,
    pairing: &Pairing,
    seconds: u64,
    look: impl FnOnce(&Server, &Server) -> Outcome<R>,
) -> Outcome<(R, [f64; 2])> {
    if let Some(reason) = missing(bench, pairing) {
        return Err(reason);
    }
    let (server, reference) = start_both(bench, scenario, pairing)?;
    let both = [&server, &reference];
    for on in both {
        prepare(scenario, on)?;
    }
    let first = begin(scenario, both[0], seconds + 2)?;
    let second = begin(scenario, both[1], seconds + 2)?;
    thread::sleep(WARM);
    let seen = look(&server.server, &reference.server);
    let reports = [first.finish(), second.finish()];
    let mut per_s = [0.0; 2];
    for (at, report) in reports.into_iter().enumerate() {
        let usage = Usage::default();
        let metrics = judge(scenario, &both[at].probed, &usage, &usage, report?)?;
        per_s[at] = metrics.requests_per_s;
    }
    Ok((seen?, per_s))
}

fn note(peak_bytes: &mut Option<u64>, started: &Started) {
    let now = started.server.peak_bytes().ok();
    *peak_bytes = (*peak_bytes).max(now);
}

fn start_both(
    bench: &mut Bench,
    scenario: &Scenario,
    pairing: &Pairing,
) -> Outcome<(Started, Started)> {
    let server = start(bench, scenario, &pairing.server, "a")?;
    let reference = start(bench, scenario, &pairing.reference, "b")?;
    let both = [&server, &reference];
    let loads: Outcome<Vec<Running>> = both
        .iter()
        .map(|started| begin(scenario, started, WARM.as_secs().max(1)))
        .collect();
    for load in loads? {
        // Whether all goes well is for the rounds to tell.
        let _ = load.finish();
    }
    Ok((server, reference))
}

/// Starts one and asks it once. `copy` tells its files from those of the other.
fn start(
    bench: &mut Bench,
    scenario: &Scenario,
    subject: &Subject,
    copy: &str,
) -> Outcome<Started> {
    let place = match scenario.content {
        Content::Uploads(place) => place,
        _ => Place::Disk,
    };
    let folder = match scenario.content {
        Content::Nothing | Content::Uploads(_) => bench.work.empty(place)?,
        Content::Hot(files) => bench.work.files(files, "hot")?,
        Content::Cold(files) => bench.work.files(files, copy)?,
    };
    let scratch = bench.work.empty(place)?;
    let mut temporary = Temporary(vec![scratch.clone()]);
    if let Content::Uploads(_) = scenario.content {
        temporary.0.push(folder.clone());
    }
    let launch = Launch {
        role: scenario.role,
        port: free_port()?,
        folder: folder.clone(),
        scratch: scratch.clone(),
        connections: scenario.load.connections(),
    };
    let named = |reason: String| format!("{}: {reason}", subject.label);
    let mut command = (subject.peer.launch)(&bench.setup, &launch).map_err(named)?;
    command.envs(subject.environment.iter().copied());
    let server = Server::start(&command, launch.port).map_err(named)?;
    let request = match &scenario.load {
        Load::Wrk(shape) => shape.request(server.address),
        Load::Uploads(shape) => {
            let head = shape.head(server.address, 0, 0).into_bytes();
            [head, b"x".repeat(shape.body_bytes as usize)].concat()
        }
    };
    let probed = probe(server.address, &request).map_err(named)?;
    // A limit may stand for what it cannot do: its canned answer is short for a file as well.
    let expect = match subject.peer.roles.contains(&scenario.role) {
        true => scenario.expect,
        false => Expect::Success,
    };
    check(expect, &probed).map_err(named)?;
    Ok(Started {
        server,
        folder,
        scratch,
        probed,
        _temporary: temporary,
    })
}

/// Fails unless `response` is what everybody must answer.
fn check(expect: Expect, response: &Response) -> Outcome {
    if response.status / 100 != 2 {
        return Err(format!("answered {}", response.status));
    }
    let bytes = response.body.len() as u64;
    match expect {
        Expect::Success => Ok(()),
        Expect::BodyBytes(expected) if bytes == expected => Ok(()),
        Expect::BodyBytes(expected) => Err(format!("{bytes} bytes answered, not {expected}")),
        Expect::Body(expected) if response.body == expected => Ok(()),
        Expect::Body(_) => Err(format!("answered '{}'", response.body.escape_ascii())),
    }
}

fn begin(scenario: &Scenario, on: &Started, seconds: u64) -> Outcome<Running> {
    match &scenario.load {
        Load::Wrk(shape) => shape.start(on.server.address, seconds, &on.scratch),
        Load::Uploads(shape) => shape.start(on.server.address, seconds),
    }
}

fn prepare(scenario: &Scenario, on: &Started) -> Outcome {
    match scenario.content {
        Content::Cold(_) => work::evict(&on.folder),
        Content::Uploads(_) => work::remove_uploads(&on.folder),
        Content::Nothing | Content::Hot(_) => Ok(()),
    }
}

fn one_round(
    scenario: &Scenario,
    server: &Started,
    reference: &Started,
    seconds: u64,
    flip: bool,
) -> Outcome<Round> {
    prepare(scenario, server)?;
    prepare(scenario, reference)?;
    let mut order = [server, reference];
    if flip {
        order.reverse();
    }
    let before = order.map(|on| on.server.usage());
    let first = begin(scenario, order[0], seconds)?;
    let second = begin(scenario, order[1], seconds)?;
    // Both are waited for before either is judged: the next round must find the core free.
    let reports = [first.finish(), second.finish()];
    let after = order.map(|on| on.server.usage());
    let mut metrics = Vec::new();
    for (at, report) in reports.into_iter().enumerate() {
        let probed = &order[at].probed;
        let figure = judge(scenario, probed, &before[at], &after[at], report?);
        let whose = if (at == 0) == flip {
            "reference"
        } else {
            "server"
        };
        metrics.push(figure.map_err(|reason| format!("{whose}: {reason}"))?);
    }
    if flip {
        metrics.reverse();
    }
    Ok(Round {
        server: metrics[0],
        reference: metrics[1],
    })
}

/// What a load says, or why it says nothing.
fn judge(
    scenario: &Scenario,
    probed: &Response,
    before: &Usage,
    after: &Usage,
    report: Report,
) -> Outcome<Metrics> {
    let (under_way, by_bytes) = match &scenario.load {
        Load::Wrk(shape) => {
            let under_way = shape.connections * shape.depth();
            (f64::from(under_way), probed.wire_bytes >= COUNTED_BY_BYTES)
        }
        Load::Uploads(_) => (0.0, false),
    };
    if let Some(reason) = report.void(probed, under_way, scenario.slack) {
        return Err(reason);
    }
    let requests = match by_bytes {
        true => report.bytes / probed.wire_bytes as f64,
        false => report.requests,
    };
    Ok(Metrics {
        value: after.ns_since(before) / 1e3 / requests,
        requests_per_s: requests / (report.us / 1e6),
        p50_us: report.p50_us,
        p99_us: report.p99_us,
        p999_us: report.p999_us,
    })
}

/// System calls of a request of `subject`, counted once a scenario.
fn calls(bench: &mut Bench, scenario: &Scenario, subject: &Subject, on: &Started) -> Option<f64> {
    let counter = bench.counter?;
    let name = format!("{} {}", scenario.profile, scenario.name);
    let key = (name, subject.peer.name.to_owned() + &subject.label);
    if let Some(&known) = bench.calls.get(&key) {
        return Some(known);
    }
    prepare(scenario, on).ok()?;
    let seconds = scenario.seconds_min;
    let load = || begin(scenario, on, seconds);
    let counted = counter.per_request(&on.server, load, &on.scratch).ok()?;
    // What is written is the start's own; nothing must be left for another to trip over.
    let _ = prepare(scenario, on);
    thread::sleep(Duration::from_millis(50));
    bench.calls.insert(key, counted);
    Some(counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Role;

    fn response(status: u16, body: &[u8]) -> Response {
        Response {
            status,
            wire_bytes: 100 + body.len(),
            body: body.to_vec(),
            closes: false,
        }
    }

    #[test]
    fn a_server_must_answer_what_all_answer() {
        assert_eq!(check(Expect::Body(b"hi"), &response(200, b"hi")), Ok(()));
        assert!(check(Expect::Body(b"hi"), &response(200, b"ho")).is_err());
        assert!(check(Expect::Body(b"hi"), &response(404, b"hi")).is_err());
        assert_eq!(check(Expect::BodyBytes(2), &response(200, b"ho")), Ok(()));
        assert!(check(Expect::BodyBytes(3), &response(200, b"ho")).is_err());
        assert_eq!(check(Expect::Success, &response(204, b"")), Ok(()));
        assert!(check(Expect::Success, &response(307, b"")).is_err());
    }

    #[test]
    fn large_answers_count_by_their_bytes_and_small_ones_whole() {
        let report = |requests, bytes| Report {
            requests,
            bytes,
            us: 1e6,
            ..Report::default()
        };
        let load = Load::get(8, "/file");
        let scenario = Scenario::new("get", "", Role::Files, load);
        let usage = Usage::default();
        let judged = |body: usize, requests: f64, bytes: f64| {
            let probed = response(200, &vec![0; body]);
            judge(&scenario, &probed, &usage, &usage, report(requests, bytes))
        };
        let small = judged(900, 100.0, 104_000.0).expect("good");
        assert_eq!(small.requests_per_s, 100.0);
        let large = judged(999_900, 10.0, 12_500_000.0).expect("good");
        assert_eq!(large.requests_per_s, 12.5);
        assert!(judged(900, 100.0, 120_000.0).is_err());
    }
}
