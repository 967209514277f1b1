//! Handlers that read and write as if they blocked: what they cost beside `async fn`, beside a
//! library on threads and the same on coroutines, and beside somebody else's coroutines; and what
//! memory one takes that waits. Must not know how a pair is measured.
//!
//! Modules, lowest first: `servers` · `pair` `memory`.

mod memory;
mod pair;
mod servers;

use crate::{
    chart::{Bar, bars},
    run::{Run, Target},
    table::Table,
};
use memory::{Waiting, waiting};
use pair::{Alone, CONNECTIONS, Compared, alone, compare};
use runner::stats::median;
use servers::{Ask, Way, Who, behind, build};
use xtask::shell::Outcome;

/// What a handler that is a coroutine may cost, by one that is an `async fn`.
const HANDLER_MAX: f64 = 1.05;

/// Bytes that a coroutine may take which waits.
const WAITING_BYTES_MAX: f64 = 8.0 * 1024.0;

/// Who is beside an `async fn` of the same driver; itself first, which shows the error.
const WAYS: [Way; 4] = [Way::Async, Way::Handler, Way::Coroutines, Way::Threads];

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    runner::progress("coroutine · building what takes part");
    build()?;
    let mut cpu = Cpu::new(run)?;
    for workers in [1, 2] {
        for ask in [Ask::Hello, Ask::Call] {
            for way in WAYS {
                cpu.beside_async(ask, way, "io_uring", workers)?;
            }
        }
    }
    for ask in [Ask::Hello, Ask::Call] {
        cpu.beside_async(ask, Way::Handler, "epoll", 1)?;
    }
    let may = who(Way::May, "io_uring", 1);
    let handler = who(Way::Handler, "io_uring", 1);
    let ratio = cpu.measure(Ask::Hello, may, handler)?;
    cpu.target(
        "may_minihttp takes more CPU for hello than a coroutine handler".to_owned(),
        &ratio,
        |ratio| ratio >= 1.0,
    );
    run.show("coroutine", &cpu.table)?;
    let title = "coroutine: CPU per request by that of an async fn";
    let note =
        format!("{CONNECTIONS} connections, the same driver, the same moment; 95 % interval");
    run.write("coroutine.svg", &bars(title, &note, Some(1.0), &cpu.bars))?;
    let mut targets = cpu.targets;
    targets.extend(memory(run)?);
    Ok(targets)
}

fn who(way: Way, driver: &'static str, workers: u32) -> Who {
    Who {
        way,
        driver,
        workers,
    }
}

/// What is found on CPU.
struct Cpu<'r> {
    run: &'r Run,
    /// The server that `/call` asks.
    behind: runner::server::Server,
    table: Table,
    bars: Vec<Bar>,
    targets: Vec<Target>,
}

impl<'r> Cpu<'r> {
    fn new(run: &'r Run) -> Outcome<Cpu<'r>> {
        let title = format!("coroutine · CPU per request, {CONNECTIONS} connections");
        let head = [
            "server",
            "driver",
            "asked",
            "workers",
            "beside",
            "ratio",
            "low",
            "high",
            "CPU µs",
            "alone: per s",
            "p99 ms",
        ];
        Ok(Cpu {
            run,
            behind: behind()?,
            table: Table::new(&title, &head),
            bars: Vec::new(),
            targets: Vec::new(),
        })
    }

    fn beside_async(&mut self, ask: Ask, way: Way, driver: &'static str, workers: u32) -> Outcome {
        let server = who(way, driver, workers);
        let compared = self.measure(ask, server, who(Way::Async, driver, workers))?;
        if way == Way::Handler && workers == 1 {
            let (asked, most) = (ask.name(), HANDLER_MAX);
            let what = format!("{asked} on {driver}: a coroutine ≤ {most} of an async fn");
            self.target(what, &compared, |ratio| ratio <= HANDLER_MAX);
        }
        if let Some(ratio) = compared.ratio().filter(|_| way != Way::Async) {
            let plural = if workers == 1 { "" } else { "s" };
            let on = match server.driver() {
                "" => String::new(),
                driver => format!(", {driver}"),
            };
            let (name, asked) = (server.name(), ask.name());
            self.bars.push(Bar {
                name: format!("{name}{on}: {asked}, {workers} worker{plural}"),
                ours: way != Way::Threads,
                values: vec![ratio.low, ratio.median, ratio.high],
            });
        }
        Ok(())
    }

    /// One row.
    fn measure(&mut self, ask: Ask, server: Who, beside: Who) -> Outcome<Compared> {
        let (name, asked, workers) = (server.name(), ask.name(), server.workers);
        let on = server.driver();
        runner::progress(&format!("coroutine · {asked}, {workers}: {name} {on}"));
        let port = self.behind.address.port();
        let rounds = self.run.effort.of(1, 6, 24);
        let compared = compare(self.run, ask, [server, beside], port, rounds)?;
        let alone = match rounds {
            1 => None,
            _ => Some(alone(self.run, ask, server, port, 2)?),
        };
        let ratio = compared.ratio();
        let figure = |figure: Option<f64>| figure.map_or_else(String::new, |f| format!("{f:.3}"));
        let rate = |alone: Alone| format!("{:.0}", alone.requests_per_s);
        self.table.row([
            name.to_owned(),
            on.to_owned(),
            asked.to_owned(),
            workers.to_string(),
            beside.name().to_owned(),
            figure(ratio.map(|ratio| ratio.median)),
            figure(ratio.map(|ratio| ratio.low)),
            figure(ratio.map(|ratio| ratio.high)),
            format!("{:.2}", median(compared.cpu_us.iter().copied())),
            alone.map_or_else(String::new, rate),
            alone.map_or_else(String::new, |alone| format!("{:.2}", alone.p99_ms)),
        ]);
        Ok(compared)
    }

    fn target(&mut self, what: String, compared: &Compared, holds: impl Fn(f64) -> bool) {
        let ratio = compared.ratio();
        let found = ratio.map_or_else(
            || "no round counts".to_owned(),
            |ratio| format!("{:.3}, {:.3}–{:.3}", ratio.median, ratio.low, ratio.high),
        );
        self.targets.push(Target {
            what,
            found,
            holds: ratio.map(|ratio| holds(ratio.median)),
        });
    }
}

/// What one takes that waits: in its handler, or for its client where each connection is one.
fn memory(run: &Run) -> Outcome<Vec<Target>> {
    let many = run.effort.of([500, 1500], [5_000, 15_000], [5_000, 15_000]);
    let threads = run.effort.of([100, 300], [500, 2_000], [500, 2_000]);
    let subjects = [
        (Way::Async, Ask::Sleep, many),
        (Way::Handler, Ask::Sleep, many),
        (Way::Coroutines, Ask::Sleep, many),
        (Way::Threads, Ask::Sleep, threads),
        (Way::Handler, Ask::Hello, many),
        (Way::Coroutines, Ask::Hello, many),
        (Way::May, Ask::Hello, many),
    ];
    let title = "coroutine · bytes of memory for each that waits";
    let head = [
        "server", "waits", "from", "to", "bytes", "stacks", "touched",
    ];
    let mut table = Table::new(title, &head);
    let mut found = Vec::new();
    for (way, ask, [few, most]) in subjects {
        let server = who(way, "io_uring", 1);
        let waits = match ask {
            Ask::Sleep => "in the handler",
            _ => "for the client",
        };
        runner::progress(&format!("coroutine · {} waits {waits}", server.name()));
        let memory = waiting(run, ask, server, [few, most])?;
        let counts = memory.stacks.filter(|_| way == Way::Handler);
        table.row([
            server.name().to_owned(),
            waits.to_owned(),
            few.to_string(),
            most.to_string(),
            format!("{:.0}", memory.bytes_each),
            counts.map_or_else(String::new, |(stacks, _)| stacks.to_string()),
            counts.map_or_else(String::new, |(_, touched)| touched.to_string()),
        ]);
        found.push(memory);
    }
    run.show("coroutine-memory", &table)?;
    Ok(targets(&found, many[1]))
}

/// Of the subjects in their order. Of may's coroutines one that waits for its client is as cheap as
/// they get: asleep in a handler it would have the same stack and more on it.
fn targets(found: &[Waiting], count: usize) -> Vec<Target> {
    let (asleep, idle, may) = (found[1], found[4], found[6].bytes_each);
    let (stacks, touched) = asleep.stacks.unwrap_or_default();
    let each = asleep.bytes_each;
    let beyond = each - found[0].bytes_each;
    let beside_may = |what: &str, bytes: f64| Target {
        what: format!("{what} takes less memory than a connection of may_minihttp that waits"),
        found: format!("{bytes:.0} and {may:.0} bytes"),
        holds: Some(bytes < may),
    };
    vec![
        Target {
            what: format!("{count} coroutine handlers that sleep touch at most 8 KiB each"),
            found: format!(
                "{beyond:.0} bytes more than an async fn that sleeps, {touched} at most of a \
                 stack, {stacks} stacks"
            ),
            holds: Some(beyond.max(touched as f64) <= WAITING_BYTES_MAX && stacks >= count as u64),
        },
        Target {
            what: "with its connection and request as well".to_owned(),
            found: format!("{each:.0} bytes"),
            holds: Some(each <= WAITING_BYTES_MAX),
        },
        beside_may("a coroutine handler that sleeps", asleep.bytes_each),
        beside_may("a connection to coroutine handlers", idle.bytes_each),
    ]
}
