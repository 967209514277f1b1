//! Time of the first page of a large folder in the cache, and of the whole folder for a program,
//! while other clients GET a small object. The targets are 100 ms, and half of a second, which is
//! what autoindex of nginx needs. The latency of the small GETs shows whether the listing blocks
//! them.

use super::Step;
use crate::{
    bench::{Bench, NO_TIME},
    peers::{Driver, Launch, Role},
    probe::probe,
    row::{About, Metrics, Round, Row, Side, Target},
    server::{Server, free_port},
    stats::{percentile, sorted},
    work::Place,
};
use std::{
    fs,
    io::Write,
    net::TcpStream,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

const ENTRIES: usize = 100_000;
/// Number of pages in each format.
const PAGES: u32 = 20;
/// Entries of a page if the client requests no number.
const PAGE_ENTRIES: usize = 1000;
/// Duration of the small GETs without listings, for comparison.
const ALONE: Duration = Duration::from_secs(1);
/// Connections with small GETs, one after the other.
const READERS: usize = 2;

/// What is requested.
struct Form {
    name: &'static str,
    accept: &'static str,
    /// The number of entries that the response has at least.
    entries: usize,
    /// Target for the median.
    ms_max: f64,
}

const FORMS: [Form; 3] = [
    Form {
        name: "first page of 100000 entries JSON",
        accept: "application/json",
        entries: PAGE_ENTRIES,
        ms_max: 100.0,
    },
    Form {
        name: "first page of 100000 entries HTML",
        accept: "text/html",
        entries: PAGE_ENTRIES,
        ms_max: 100.0,
    },
    Form {
        name: "all of 100000 entries HTML",
        accept: "*/*",
        entries: ENTRIES,
        ms_max: 500.0,
    },
];

pub(super) struct Task {
    drivers: Vec<Driver>,
}

pub(super) fn list(bench: &Bench) -> Vec<Step> {
    let drivers = bench.field.drivers.clone();
    vec![Step {
        profile: "list",
        title: format!("first page of {ENTRIES}"),
        weight: 3,
        task: super::Task::List(Task { drivers }),
    }]
}

impl Task {
    pub(super) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        let mut rows = Vec::new();
        let folder = bench.work.empty(Place::Disk).and_then(|folder| {
            fill(&folder)?;
            Ok(folder)
        });
        for &driver in &self.drivers {
            crate::progress(&format!("list · {}", driver.name()));
            let measured = match &folder {
                _ if bench.clock.is_over(ALONE) => Err(NO_TIME.to_owned()),
                Ok(folder) => pages_of(bench, driver, folder),
                Err(reason) => Err(reason.clone()),
            };
            match measured {
                Ok(both) => rows.extend(both),
                Err(reason) => {
                    let mut row = empty_row(bench, driver, "first page");
                    row.voids.push(reason);
                    rows.push(row);
                }
            }
        }
        if let Ok(folder) = folder {
            let _ = fs::remove_dir_all(folder);
        }
        rows
    }
}

fn empty_row(bench: &Bench, driver: Driver, scenario: &str) -> Row {
    let server = bench
        .field
        .ours(driver)
        .map(|ours| bench.side(&ours, Role::Files));
    Row {
        profile: "list",
        scenario: scenario.to_owned(),
        about: About::Bound,
        unit: "ms",
        server: server.unwrap_or_default(),
        reference: Side::named("target"),
        access_log: "off",
        target: Some(Target::AtMost(1.0)),
        ..Row::default()
    }
}

/// A row for each format of the page.
fn pages_of(bench: &mut Bench, driver: Driver, folder: &Path) -> Outcome<Vec<Row>> {
    let ours = bench.field.ours(driver).ok_or("Onrush is not measured")?;
    let launch = Launch {
        role: Role::Files,
        port: free_port()?,
        folder: folder.to_owned(),
        scratch: bench.work.empty(Place::Disk)?,
        connections: 8,
    };
    let command = (ours.peer.launch)(&bench.setup, &launch)?;
    let server = Server::start(&command, launch.port)?;
    let (_, alone) = with_readers(&server, || {
        thread::sleep(ALONE);
        Ok(())
    })?;
    let mut rows = Vec::new();
    for form in &FORMS {
        let mut row = empty_row(bench, driver, form.name);
        let (times, gets) = with_readers(&server, || {
            // One page more: the first one fills the caches of the file system.
            (0..=PAGES)
                .map(|_| page(&server, form))
                .collect::<Outcome<Vec<f64>>>()
        })?;
        row.rounds.extend(times.into_iter().skip(1).map(|ms| Round {
            server: Metrics::only(ms),
            reference: Metrics::only(form.ms_max),
        }));
        row.note = format!("p99 of small GETs {gets:.2} ms meanwhile, {alone:.2} ms alone");
        row.server.peak_bytes = server.peak_bytes().ok();
        rows.push(row);
    }
    Ok(rows)
}

/// Runs `act` during small GETs. Returns its result, and the 99th percentile of the latency of the
/// GETs in milliseconds.
fn with_readers<T>(server: &Server, act: impl FnOnce() -> Outcome<T>) -> Outcome<(T, f64)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| scope.spawn(|| read_small(server, &over)))
            .collect();
        let done = act();
        over.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        for reader in readers {
            let read = reader.join().map_err(|_| "a reader panicked".to_owned())?;
            times.extend(read?);
        }
        Ok((done?, percentile(&sorted(times), 0.99)))
    })
}

/// GETs a small object repeatedly until `over` is set. Returns the milliseconds of each GET.
fn read_small(server: &Server, over: &AtomicBool) -> Outcome<Vec<f64>> {
    let stream = TcpStream::connect(server.address);
    let mut stream = stream.map_err(|error| error.to_string())?;
    let mut times = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let sent = stream.write_all(b"GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n");
        sent.map_err(|error| error.to_string())?;
        crate::probe::receive(&mut stream, &mut Vec::new())?;
        times.push(ms(begun));
    }
    Ok(times)
}

fn page(server: &Server, form: &Form) -> Outcome<f64> {
    let request = format!(
        "GET /many/ HTTP/1.1\r\nHost: localhost\r\nAccept: {}\r\n\
             Connection: close\r\n\r\n",
        form.accept
    );
    let begun = Instant::now();
    let response = probe(server.address, request.as_bytes())?;
    let time = ms(begun);
    let text = String::from_utf8_lossy(&response.body);
    let last = name(form.entries - 1);
    match response.status == 200 && text.contains(&last) {
        true => Ok(time),
        false => Err(format!("status {}, and no entry {last}", response.status)),
    }
}

fn ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

fn name(at: usize) -> String {
    format!("entry-{at:06}.txt")
}

/// Creates a folder with many entries, and a small object.
fn fill(folder: &Path) -> Outcome {
    let write = || {
        let many = folder.join("many");
        fs::create_dir(&many)?;
        fs::write(folder.join("small"), "small")?;
        (0..ENTRIES).try_for_each(|at| fs::write(many.join(name(at)), ""))
    };
    write().map_err(|error| format!("{}: {error}", folder.display()))
}
