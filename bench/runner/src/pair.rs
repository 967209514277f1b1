//! Measures a row: two servers share one core and are loaded from another core at the same time, so
//! a disturbance affects both.
//!
//! CPU is measured from before both loads start until both have ended, and divided by the number of
//! responses. A window within the load would exclude the opening of connections. But wrk reports
//! its number of requests only at the end, and its rate is not constant (it calibrates itself
//! first), so the requests within a window could only be estimated. The result includes the opening
//! of connections and the requests in flight at the end for both servers. With 64 connections this
//! is about one percent; rounds with more connections are longer.

use crate::{
    bench::{Bench, NO_TIME, ROUNDS_PER_START},
    handshakes,
    peers::Launch,
    plan::{Content, Expect, Load, Pairing, Scenario, Subject},
    probe::{Response, probe_over},
    row::{Metrics, Round, Row},
    server::{Server, Usage, free_port},
    trailers,
    work::{self, Place},
    wrk::{Report, Running},
};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// Warm-up, in which a server compiles, allocates and caches for its first requests.
const WARM: Duration = Duration::from_millis(1000);

/// Responses of this length and more are counted by the bytes that arrived, because few of them are
/// complete at the end.
const COUNTED_BY_BYTES: usize = 64 * 1024;

/// Number of failed starts after which a row is abandoned.
const FAILED_STARTS_MAX: u32 = 2;

/// A running server of the pair, and its response to a probe.
struct Started {
    server: Server,
    folder: PathBuf,
    scratch: PathBuf,
    probed: Response,
    /// The last field, so that the server has ended when the folders are removed.
    _temporary: Temporary,
}

/// Folders that are removed with the server that they were created for: 32 clients upload more than
/// a gigabyte, and a run starts many servers.
struct Temporary(Vec<PathBuf>);

impl Drop for Temporary {
    fn drop(&mut self) {
        for folder in &self.0 {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Measures a row. If it cannot be measured, the row contains the reason.
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
        volume_bytes: scenario.volume_bytes,
        ..Row::default()
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
        for _ in 0..ROUNDS_PER_START {
            // The servers run, so the next round takes less time.
            next = Duration::from_secs(seconds) + WARM / 2;
            if done == rounds || bench.clock.row_is_over(next) {
                break;
            }
            crate::progress(&format!(
                "{} · {}: {} and {}, {}/{rounds}",
                row.profile,
                row.scenario,
                row.server.name,
                row.reference.name,
                done + 1
            ));
            // The server that is loaded first alternates from round to round.
            let flip = done % 2 == 1;
            let begun = Instant::now();
            match one_round(scenario, &server, &reference, seconds, flip) {
                Ok(round) => row.rounds.push(round),
                Err(_) if bench.clock.interrupted() => return row,
                Err(reason) => row.voids.push(reason),
            }
            done += 1;
            // The next round probably takes as long as this one.
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
        row.voids.push(NO_TIME.to_owned());
    }
    row
}

/// Why one of the two servers cannot be started, if that is known.
fn missing(bench: &Bench, pairing: &Pairing) -> Option<String> {
    let both = [&pairing.server, &pairing.reference];
    both.into_iter()
        .find_map(|subject| bench.missing.get(subject.peer.name).cloned())
}

/// Loads both servers while `look` runs, which takes `seconds`. Returns its result, and the
/// requests per second of each server.
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
        // Errors will show in the rounds.
        let _ = load.finish();
    }
    Ok((server, reference))
}

/// Starts a server and probes it with one request. `copy` distinguishes its files from those of the
/// other server.
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
        Content::Bucket => bench.bucket(copy)?,
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
    let probed = probed(scenario, server.address, &scratch).map_err(named)?;
    if scenario.resumes() {
        handshakes::check_resumption(server.address).map_err(named)?;
    }
    // A limit sends its prebuilt response in roles that it does not implement, too.
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

/// The response to one request of the load.
fn probed(scenario: &Scenario, address: SocketAddr, scratch: &Path) -> Outcome<Response> {
    let protocol = scenario.role.protocol();
    let request = match &scenario.load {
        Load::Wrk(shape) => shape.request(address),
        Load::Uploads(shape) => {
            let head = shape.head(address, 0, 0).into_bytes();
            [head, b"x".repeat(shape.body_bytes as usize)].concat()
        }
        Load::Handshakes(_) => handshakes::Shape::request(address).into_bytes(),
        Load::H2(shape) => return shape.probe(protocol, address, scratch),
        Load::Trailers(_) => return trailers::Shape::probe(address),
    };
    probe_over(protocol, address, &request)
}

/// Fails unless `response` is as expected.
fn check(expect: Expect, response: &Response) -> Outcome {
    if response.status / 100 != 2 {
        return Err(format!("status {}", response.status));
    }
    let bytes = response.body.len() as u64;
    match expect {
        Expect::Success => Ok(()),
        Expect::BodyBytes(expected) if bytes == expected => Ok(()),
        Expect::BodyBytes(expected) => Err(format!("{bytes} bytes received, not {expected}")),
        Expect::Body(expected) if response.body == expected => Ok(()),
        Expect::Body(_) => Err(format!(
            "unexpected body '{}'",
            response.body.escape_ascii()
        )),
    }
}

fn begin(scenario: &Scenario, on: &Started, seconds: u64) -> Outcome<Running> {
    let (protocol, address) = (scenario.role.protocol(), on.server.address);
    match &scenario.load {
        Load::Wrk(shape) => shape.start(protocol, address, seconds, &on.scratch),
        Load::Uploads(shape) => shape.start_over(protocol, address, seconds),
        Load::Handshakes(shape) => shape.start(address, seconds),
        Load::H2(shape) => shape.start(protocol, address, seconds, &on.scratch),
        Load::Trailers(shape) => shape.start(address, seconds),
    }
}

fn prepare(scenario: &Scenario, on: &Started) -> Outcome {
    match scenario.content {
        Content::Cold(_) => work::evict(&on.folder),
        Content::Uploads(_) => work::remove_uploads(&on.folder),
        Content::Nothing | Content::Hot(_) | Content::Bucket => Ok(()),
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
    // Both loads must have ended before an error returns: the next round needs a free core.
    let reports = [first.finish(), second.finish()];
    let after = order.map(|on| on.server.usage());
    let mut metrics = Vec::new();
    for (at, report) in reports.into_iter().enumerate() {
        let probed = &order[at].probed;
        let result = judge(scenario, probed, &before[at], &after[at], report?);
        let whose = if (at == 0) == flip {
            "reference"
        } else {
            "server"
        };
        metrics.push(result.map_err(|reason| format!("{whose}: {reason}"))?);
    }
    if flip {
        metrics.reverse();
    }
    Ok(Round {
        server: metrics[0],
        reference: metrics[1],
    })
}

/// The metrics of a server from the report of its load, or why the round is void.
fn judge(
    scenario: &Scenario,
    probed: &Response,
    before: &Usage,
    after: &Usage,
    report: Report,
) -> Outcome<Metrics> {
    let (in_flight, by_bytes) = match &scenario.load {
        Load::Wrk(shape) => (shape.connections * shape.depth(), true),
        Load::H2(shape) => (shape.connections * shape.streams, true),
        Load::Trailers(shape) => (shape.connections * shape.streams, true),
        Load::Uploads(_) | Load::Handshakes(_) => (0, false),
    };
    let in_flight = f64::from(in_flight);
    let by_bytes = by_bytes && probed.wire_bytes >= COUNTED_BY_BYTES;
    if let Some(reason) = report.void(probed, in_flight, scenario.slack) {
        return Err(reason);
    }
    let requests = match by_bytes {
        true => report.bytes / probed.wire_bytes as f64,
        false => report.requests,
    };
    let value = after.ns_since(before) / 1e3 / requests;
    Ok(Metrics::of(&report, requests, value))
}

/// System calls per request of `subject`, counted once per scenario.
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
    // Removes the objects of the counted load.
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
    fn a_response_must_be_as_expected() {
        assert_eq!(check(Expect::Body(b"hi"), &response(200, b"hi")), Ok(()));
        assert!(check(Expect::Body(b"hi"), &response(200, b"ho")).is_err());
        assert!(check(Expect::Body(b"hi"), &response(404, b"hi")).is_err());
        assert_eq!(check(Expect::BodyBytes(2), &response(200, b"ho")), Ok(()));
        assert!(check(Expect::BodyBytes(3), &response(200, b"ho")).is_err());
        assert_eq!(check(Expect::Success, &response(204, b"")), Ok(()));
        assert!(check(Expect::Success, &response(307, b"")).is_err());
    }

    #[test]
    fn only_large_responses_count_by_their_bytes() {
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
