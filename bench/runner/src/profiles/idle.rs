//! Memory of a server per idle keep-alive connection, or per stream that waits: the slope between
//! few and many of them, which excludes the memory that the process needs without.

use super::{Step, others, title};
use crate::{
    bench::{Bench, NO_TIME},
    client::{Client, Stream},
    http2::{self, END_HEADERS, HEADERS, POST_ECHO},
    peers::{Launch, Role},
    plan::{Pairing, Subject},
    probe,
    row::{About, Metrics, Round, Row, Side, Target},
    server::{Server, free_port},
    work::Place,
};
use std::{
    io::{self, Write},
    net::TcpStream,
    ops::Range,
    thread,
    time::Duration,
};
use xtask::shell::Outcome;

/// What memory is measured of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Per {
    Connection,
    /// A request over HTTP/2 that waits for its body, on one of this number of connections.
    Stream(usize),
}

impl Per {
    fn unit(self) -> &'static str {
        match self {
            Per::Connection => "bytes/connection",
            Per::Stream(_) => "bytes/stream",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) per: Per,
    pub(super) profile: &'static str,
    pub(super) role: Role,
    /// The numbers of connections or streams.
    pub(super) few: usize,
    pub(super) many: usize,
    /// Whether a connection is to need less than one of nginx.
    pub(super) is_below_nginx: bool,
}

const PLAIN: Kind = Kind {
    per: Per::Connection,
    profile: "idle",
    role: Role::Hello,
    few: 5_000,
    many: 15_000,
    is_below_nginx: true,
};

/// Target for the resident memory of an idle connection.
const PLAIN_BYTES_MAX: f64 = 512.0;

impl Kind {
    fn scenario(&self) -> String {
        let (few, many) = (self.few, self.many);
        if let Per::Stream(connections) = self.per {
            return format!("{few} to {many} waiting streams on {connections} connections");
        }
        match self.role {
            Role::TlsHello | Role::H2Hello => format!("{few} to {many} idle connections"),
            _ => format!("{few} to {many} connections"),
        }
    }
}

/// Rounds of a row at most. The slope hardly differs between starts.
const ROUNDS_MAX: u32 = 3;

/// Longest wait for a response.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for the server to release the buffers of its responses.
const SETTLE: Duration = Duration::from_secs(1);

/// Approximate duration of one measurement.
const SLOPE: Duration = Duration::from_secs(8);

pub(super) struct Task {
    kind: Kind,
    /// Target for the resident memory of an idle connection.
    bytes_max: f64,
    /// Onrush first.
    subjects: Vec<Subject>,
    /// The number of entries that are Onrush.
    ours: usize,
}

pub(super) fn idle(bench: &Bench) -> Vec<Step> {
    vec![step(bench, PLAIN, PLAIN_BYTES_MAX)]
}

pub(super) fn step(bench: &Bench, kind: Kind, bytes_max: f64) -> Step {
    let ours = bench.field.bases.iter().chain(&bench.field.drivers);
    let mut subjects: Vec<Subject> = Vec::new();
    for subject in ours.filter_map(|&driver| bench.field.ours(driver)) {
        if !subjects.iter().any(|known| known.label == subject.label) {
            subjects.push(subject);
        }
    }
    let ours = subjects.len();
    subjects.extend(others(bench, kind.role));
    let weight = subjects.len() as u32;
    Step {
        profile: kind.profile,
        title: kind.scenario(),
        weight,
        task: super::Task::Idle(Task {
            kind,
            bytes_max,
            subjects,
            ours,
        }),
    }
}

/// Two servers that are compared with each other.
pub(super) struct PairTask {
    kind: Kind,
    pair: Pairing,
}

pub(super) fn pair_step(kind: Kind, pair: Pairing) -> Step {
    Step {
        profile: kind.profile,
        title: title(&kind.scenario(), &pair),
        weight: 2,
        task: super::Task::IdlePair(PairTask { kind, pair }),
    }
}

impl PairTask {
    pub(super) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        let (kind, pair) = (&self.kind, &self.pair);
        let mut row = Row {
            about: pair.about,
            reference: bench.side(&pair.reference, kind.role),
            target: pair.target,
            ..empty_row(bench, kind, &pair.server)
        };
        let ours = slopes(bench, kind, &pair.server, &mut row.voids);
        let theirs = slopes(bench, kind, &pair.reference, &mut row.voids);
        row.server.peak_bytes = ours.peak_bytes;
        row.reference.peak_bytes = theirs.peak_bytes;
        let both = ours.all.iter().zip(&theirs.all);
        let round = |(&server, &reference)| Round {
            server: Metrics::only(server),
            reference: Metrics::only(reference),
        };
        row.rounds = both.map(round).collect();
        vec![row]
    }
}

impl Task {
    /// Compares Onrush with the target, and the peers with Onrush.
    pub(super) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut first: Vec<f64> = Vec::new();
        for (at, subject) in self.subjects.iter().enumerate() {
            let is_ours = at < self.ours;
            let mut row = self.empty_row(bench, subject, is_ours);
            let Slopes {
                all: slopes,
                peak_bytes,
            } = slopes(bench, &self.kind, subject, &mut row.voids);
            row.server.peak_bytes = peak_bytes;
            let pair = |(at, &slope): (usize, &f64)| {
                let own = first.get(at).or(first.last()).copied();
                let bytes_max = Some(self.bytes_max);
                let reference = if is_ours { bytes_max } else { own };
                Some(Round {
                    server: Metrics::only(slope),
                    reference: Metrics::only(reference?),
                })
            };
            row.rounds = slopes.iter().enumerate().filter_map(pair).collect();
            if !slopes.is_empty() && row.rounds.is_empty() {
                row.voids.push("Onrush was not measured".to_owned());
            }
            if at == 0 {
                first = slopes;
            }
            rows.push(row);
        }
        rows
    }

    fn empty_row(&self, bench: &Bench, subject: &Subject, is_ours: bool) -> Row {
        let (about, reference, target) = match is_ours {
            true => (
                About::Bound,
                Side::named("target"),
                Some(Target::AtMost(1.0)),
            ),
            false => {
                let has_target = self.kind.is_below_nginx && subject.peer.name == "nginx";
                let target = has_target.then_some(Target::AtLeast(1.0));
                let first = bench.side(&self.subjects[0], self.kind.role);
                (About::Peer, first, target)
            }
        };
        Row {
            about,
            reference,
            target,
            ..empty_row(bench, &self.kind, subject)
        }
    }
}

/// A row without what `subject` is compared with.
fn empty_row(bench: &Bench, kind: &Kind, subject: &Subject) -> Row {
    Row {
        profile: kind.profile,
        scenario: kind.scenario(),
        unit: kind.per.unit(),
        server: bench.side(subject, kind.role),
        access_log: "off",
        ..Row::default()
    }
}

/// The measurements of a server.
#[derive(Default)]
struct Slopes {
    /// Bytes of each.
    all: Vec<f64>,
    /// The peak resident memory.
    peak_bytes: Option<u64>,
}

/// Bytes of each, measured as often as the time permits. `voids` gets the reasons why not.
fn slopes(bench: &mut Bench, kind: &Kind, subject: &Subject, voids: &mut Vec<String>) -> Slopes {
    let mut slopes = Slopes::default();
    if let Some(reason) = bench.missing.get(subject.peer.name) {
        voids.push(reason.clone());
        return slopes;
    }
    let rounds = match bench.effort.quick {
        true => 1,
        false => bench.effort.rounds.min(ROUNDS_MAX),
    };
    for round in 0..rounds {
        if bench.clock.row_is_over(SLOPE) {
            break;
        }
        let (scenario, number) = (kind.scenario(), round + 1);
        let what = format!("{scenario}: {}, {number}/{rounds}", subject.label);
        crate::progress(&format!("{} · {what}", kind.profile));
        match slope(bench, kind, subject) {
            Ok((slope, peak_bytes)) => {
                slopes.all.push(slope);
                slopes.peak_bytes = slopes.peak_bytes.max(Some(peak_bytes));
            }
            Err(reason) => {
                voids.push(format!("{}: {reason}", subject.label));
                break;
            }
        }
    }
    if slopes.all.is_empty() && voids.is_empty() {
        voids.push(NO_TIME.to_owned());
    }
    slopes
}

/// Bytes of each, and the peak resident memory.
fn slope(bench: &mut Bench, kind: &Kind, subject: &Subject) -> Outcome<(f64, u64)> {
    let launch = Launch {
        role: kind.role,
        port: free_port()?,
        folder: bench.work.empty(Place::Disk)?,
        scratch: bench.work.empty(Place::Disk)?,
        connections: kind.many as u32,
    };
    let mut command = (subject.peer.launch)(&bench.setup, &launch)?;
    command.envs(subject.environment.iter().copied());
    let mut server = Server::start(&command, launch.port)?;
    let client = Client::new(kind.role.protocol())?;
    let mut idle = Vec::with_capacity(kind.many);
    let mut streams = 0;
    let mut resident = |count| {
        let connections = match kind.per {
            Per::Connection => count,
            Per::Stream(connections) => connections,
        };
        open(
            bench,
            (kind.role, &client),
            &mut server,
            &mut idle,
            connections,
        )?;
        if let Per::Stream(_) = kind.per {
            let each = count / connections;
            ask(&mut idle, streams..each).map_err(|error| error.to_string())?;
            streams = each;
        }
        settled(&mut server, &idle, count)
    };
    let (few, many) = (resident(kind.few)?, resident(kind.many)?);
    let slope = (many as f64 - few as f64) / (kind.many - kind.few) as f64;
    Ok((slope, server.peak_bytes()?))
}

/// Opens connections until there are `count`, with one request and response on each. The client's
/// state of TLS is dropped, which the server does not notice.
fn open(
    bench: &Bench,
    (role, client): (Role, &Client),
    server: &mut Server,
    idle: &mut Vec<TcpStream>,
    count: usize,
) -> Outcome {
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    while idle.len() < count {
        let failed = |error: String| format!("connection {}: {error}", idle.len() + 1);
        if bench.clock.interrupted() {
            return Err("interrupted".to_owned());
        }
        let connected = client.connect(server.address);
        let mut stream = connected.map_err(|error| failed(error.to_string()))?;
        let limited = stream.socket().set_read_timeout(Some(PATIENCE));
        limited.map_err(|error| failed(error.to_string()))?;
        match role.is_http2() {
            true => http2::get_root(&mut stream).map_err(failed)?,
            false => get_root(&mut stream, &request).map_err(failed)?,
        }
        idle.push(stream.into_socket());
    }
    Ok(())
}

/// Begins requests on each of the connections that wait for their bodies. Numbers begin at 0, after
/// the request with which a connection was opened.
fn ask(connections: &mut [TcpStream], numbers: Range<usize>) -> io::Result<()> {
    let mut frames = Vec::new();
    for number in numbers {
        let stream = 3 + 2 * number as u32;
        http2::push(&mut frames, (HEADERS, END_HEADERS), stream, POST_ECHO);
    }
    connections
        .iter_mut()
        .try_for_each(|connection| connection.write_all(&frames))
}

/// The server's resident memory when all that was opened is idle.
fn settled(server: &mut Server, idle: &[TcpStream], count: usize) -> Outcome<u64> {
    thread::sleep(SETTLE);
    match server.runs() && still_open(idle) {
        true => server.resident_bytes(),
        false => Err(format!("some were closed before there were {count}")),
    }
}

/// Sends one request over HTTP/1.1 and receives its response.
fn get_root(stream: &mut Stream, request: &str) -> Outcome {
    let sent = stream.write_all(request.as_bytes());
    sent.map_err(|error| error.to_string())?;
    match probe::read_response(stream, &mut Vec::new())?.status {
        200 => Ok(()),
        status => Err(format!("status {status}")),
    }
}

/// Whether the server has closed none of the connections.
fn still_open(idle: &[TcpStream]) -> bool {
    idle.iter().all(|stream| {
        let silent = stream
            .set_nonblocking(true)
            .and_then(|()| stream.peek(&mut [0]));
        let is_silent = silent.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        is_silent && stream.set_nonblocking(false).is_ok()
    })
}
