//! Handlers that read and write as if they blocked. Compares their CPU with that of an `async fn`,
//! of a library on threads, of the same library on coroutines, and of the coroutines of
//! may_minihttp. Measures the memory of each waiting handler and connection.
//!
//! Modules, lowest first: `servers` · `pair` `memory`.

mod memory;
mod pair;
mod servers;

use crate::{
    chart::{Bar, bars},
    run::{Run, Target},
    table::{Table, ratio_cells, ratio_text},
};
use memory::{Waiting, waiting};
use pair::{Alone, CONNECTIONS, Compared, alone, compare};
use runner::stats::median;
use servers::{Endpoint, Style, Subject, build, start_backend};
use xtask::shell::Outcome;

/// The highest permitted CPU of a coroutine handler, divided by that of an `async fn`.
const HANDLER_MAX: f64 = 1.05;

/// The most memory that a waiting coroutine may touch, in bytes.
const WAITING_BYTES_MAX: f64 = 8.0 * 1024.0;

/// The styles that are compared with an `async fn` on the same driver. The first, an `async fn`
/// again, shows the measurement error.
const STYLES: [Style; 4] = [
    Style::Async,
    Style::Handler,
    Style::Coroutines,
    Style::Threads,
];

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    runner::progress("coroutine · building the servers");
    build()?;
    let mut cpu = Cpu::new(run)?;
    for workers in [1, 2] {
        for endpoint in [Endpoint::Hello, Endpoint::Call] {
            for style in STYLES {
                cpu.compare_with_async(endpoint, style, "io_uring", workers)?;
            }
        }
    }
    for endpoint in [Endpoint::Hello, Endpoint::Call] {
        cpu.compare_with_async(endpoint, Style::Handler, "epoll", 1)?;
    }
    let may = subject(Style::May, "io_uring", 1);
    let handler = subject(Style::Handler, "io_uring", 1);
    let compared = cpu.measure(Endpoint::Hello, may, handler)?;
    cpu.target(
        "may_minihttp needs more CPU for hello than a coroutine handler".to_owned(),
        &compared,
        |ratio| ratio >= 1.0,
    );
    run.show("coroutine", &cpu.table)?;
    let title = "coroutine: CPU per request divided by that of an async fn";
    let note = format!("{CONNECTIONS} connections, the same driver and time; 95 % interval");
    run.write("coroutine.svg", &bars(title, &note, Some(1.0), &cpu.bars))?;
    let mut targets = cpu.targets;
    targets.extend(memory(run)?);
    Ok(targets)
}

fn subject(style: Style, driver: &'static str, workers: u32) -> Subject {
    Subject {
        style,
        driver,
        workers,
    }
}

/// The measurements of CPU.
struct Cpu<'r> {
    run: &'r Run,
    /// The server to which `/call` sends its requests.
    backend: runner::server::Server,
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
            "endpoint",
            "workers",
            "reference",
            "ratio",
            "low",
            "high",
            "CPU µs",
            "alone: requests/s",
            "p99 ms",
        ];
        Ok(Cpu {
            run,
            backend: start_backend()?,
            table: Table::new(&title, &head),
            bars: Vec::new(),
            targets: Vec::new(),
        })
    }

    fn compare_with_async(
        &mut self,
        endpoint: Endpoint,
        style: Style,
        driver: &'static str,
        workers: u32,
    ) -> Outcome {
        let server = subject(style, driver, workers);
        let reference = subject(Style::Async, driver, workers);
        let compared = self.measure(endpoint, server, reference)?;
        if style == Style::Handler && workers == 1 {
            let (name, most) = (endpoint.name(), HANDLER_MAX);
            let what = format!("{name} on {driver}: a coroutine ≤ {most} × an async fn");
            self.target(what, &compared, |ratio| ratio <= HANDLER_MAX);
        }
        if let Some(ratio) = compared.ratio().filter(|_| style != Style::Async) {
            let plural = if workers == 1 { "" } else { "s" };
            let on = match server.driver() {
                "" => String::new(),
                driver => format!(", {driver}"),
            };
            let (name, endpoint) = (server.name(), endpoint.name());
            self.bars.push(Bar {
                name: format!("{name}{on}: {endpoint}, {workers} worker{plural}"),
                ours: style != Style::Threads,
                values: vec![ratio.low, ratio.median, ratio.high],
            });
        }
        Ok(())
    }

    /// Measures two servers, and adds a row to the table.
    fn measure(
        &mut self,
        endpoint: Endpoint,
        server: Subject,
        reference: Subject,
    ) -> Outcome<Compared> {
        let (name, workers, driver) = (server.name(), server.workers, server.driver());
        let shown = endpoint.name();
        runner::progress(&format!("coroutine · {shown}, {workers}: {name} {driver}"));
        let port = self.backend.address.port();
        let rounds = self.run.effort.of(1, 6, 24);
        let compared = compare(self.run, endpoint, [server, reference], port, rounds)?;
        let alone = match rounds {
            1 => None,
            _ => Some(alone(self.run, endpoint, server, port, 2)?),
        };
        let rate = |alone: Alone| format!("{:.0}", alone.requests_per_s);
        let [median_ratio, low, high] = ratio_cells(compared.ratio());
        self.table.row([
            name.to_owned(),
            driver.to_owned(),
            shown.to_owned(),
            workers.to_string(),
            reference.name().to_owned(),
            median_ratio,
            low,
            high,
            format!("{:.2}", median(compared.cpu_us.iter().copied())),
            alone.map_or_else(String::new, rate),
            alone.map_or_else(String::new, |alone| format!("{:.2}", alone.p99_ms)),
        ]);
        Ok(compared)
    }

    fn target(&mut self, what: String, compared: &Compared, holds: impl Fn(f64) -> bool) {
        let ratio = compared.ratio();
        self.targets.push(Target {
            what,
            found: ratio_text(ratio),
            holds: ratio.map(|ratio| holds(ratio.median)),
        });
    }
}

/// Measures the memory of each waiting handler, and of each idle connection.
fn memory(run: &Run) -> Outcome<Vec<Target>> {
    let many = run.effort.of([500, 1500], [5_000, 15_000], [5_000, 15_000]);
    let threads = run.effort.of([100, 300], [500, 2_000], [500, 2_000]);
    let subjects = [
        (Style::Async, Endpoint::Sleep, many),
        (Style::Handler, Endpoint::Sleep, many),
        (Style::Coroutines, Endpoint::Sleep, many),
        (Style::Threads, Endpoint::Sleep, threads),
        (Style::Handler, Endpoint::Hello, many),
        (Style::Coroutines, Endpoint::Hello, many),
        (Style::May, Endpoint::Hello, many),
    ];
    let title = "coroutine · bytes of memory for each waiting handler or connection";
    let head = [
        "server", "waits", "from", "to", "bytes", "stacks", "touched",
    ];
    let mut table = Table::new(title, &head);
    let mut found = Vec::new();
    for (style, endpoint, [few, most]) in subjects {
        let server = subject(style, "io_uring", 1);
        let waits = match endpoint {
            Endpoint::Sleep => "in the handler",
            _ => "for the client",
        };
        runner::progress(&format!("coroutine · {} waits {waits}", server.name()));
        let memory = waiting(run, endpoint, server, [few, most])?;
        let counts = memory.stacks.filter(|_| style == Style::Handler);
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

/// The targets, from the results in the order of the subjects. A coroutine of may_minihttp that
/// waits for its client is a lower bound: in a handler it has the same stack, with more on it.
fn targets(found: &[Waiting], count: usize) -> Vec<Target> {
    let (asleep, idle, may) = (found[1], found[4], found[6].bytes_each);
    let (stacks, touched) = asleep.stacks.unwrap_or_default();
    let each = asleep.bytes_each;
    let beyond = each - found[0].bytes_each;
    let less_than_may = |what: &str, bytes: f64| Target {
        what: format!("{what} needs less memory than an idle connection of may_minihttp"),
        found: format!("{bytes:.0} and {may:.0} bytes"),
        holds: Some(bytes < may),
    };
    vec![
        Target {
            what: format!("{count} sleeping coroutine handlers touch at most 8 KiB each"),
            found: format!(
                "{beyond:.0} bytes more than a sleeping async fn, at most {touched} of a stack, \
                 {stacks} stacks"
            ),
            holds: Some(beyond.max(touched as f64) <= WAITING_BYTES_MAX && stacks >= count as u64),
        },
        Target {
            what: "the same, including connection and request".to_owned(),
            found: format!("{each:.0} bytes"),
            holds: Some(each <= WAITING_BYTES_MAX),
        },
        less_than_may("a sleeping coroutine handler", asleep.bytes_each),
        less_than_may(
            "an idle connection with coroutine handlers",
            idle.bytes_each,
        ),
    ]
}
