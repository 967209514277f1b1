//! Runs CPU-bound work on the thread pool, so that other requests do not wait for it:
//! `offload [PORT] [--threads N] [--queue N] [--wait-ms N] [--inline]`.
//!
//! `GET /data` costs 4 ms of CPU, `GET /ping` almost nothing, `GET /metrics` returns the metrics.
//! The options set the number of threads, of waiting jobs, and the longest wait of a job. With
//! `--inline` the worker does the work, for comparison; then `/ping` waits for it.
//!
//! The program measures at the start how much work takes 4 ms of the CPU time of a thread
//! (clock_gettime(2)), so a request is the same work however many threads share the cores.

use onrush::offload::{OffloadError, OffloadOptions, offload_with};
use onrush::{Metrics, Request, Response, Router, Server};
use std::time::Duration;

/// CPU time of one `/data`.
const WORK: Duration = Duration::from_millis(4);
/// Steps between two checks for cancellation.
const STEPS: u64 = 10_000;

/// Runs `times` × [`STEPS`] steps of a random number generator, each of which depends on the one
/// before. Ends early when the job is cancelled.
fn work(times: u64, mut is_cancelled: impl FnMut() -> bool) -> u64 {
    let mut number = 88_172_645_463_325_252_u64;
    for _ in (0..times).take_while(|_| !is_cancelled()) {
        for _ in 0..STEPS {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
        }
    }
    number
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Measures how many times [`STEPS`] steps fit into [`WORK`]. Returns the maximum of several tries,
/// because noise only lowers the number.
fn calibrate() -> u64 {
    let try_once = |_| {
        let (begun, mut times) = (cpu_time(), 0);
        std::hint::black_box(work(u64::MAX, || {
            times += 1;
            cpu_time() - begun >= WORK
        }));
        times
    };
    (0..10).map(try_once).max().unwrap_or(1)
}

async fn data(times: u64, inline: bool) -> Result<Response, OffloadError> {
    let number = match inline {
        true => work(times, || false),
        false => offload_with(move |token| work(times, || token.is_cancelled())).await?,
    };
    Ok(Response::text(format!("{number:016x}\n")))
}

/// The port, the bounds of the pool, and whether the worker does the work; or a wrong flag.
fn read() -> Result<(String, OffloadOptions, bool), String> {
    let mut given = std::env::args().skip(1);
    let port = given.next().unwrap_or_else(|| "8080".to_owned());
    let (mut options, mut inline) = (OffloadOptions::default(), false);
    while let Some(flag) = given.next() {
        if flag == "--inline" {
            inline = true;
            continue;
        }
        let number = given.next().and_then(|number| number.parse().ok());
        options = match (flag.as_str(), number) {
            ("--threads", Some(number @ 1..)) => options.threads(number),
            ("--queue", Some(number)) => options.queue_max(number),
            ("--wait-ms", Some(ms @ 1..)) => options.wait_max(Duration::from_millis(ms as u64)),
            _ => return Err(flag),
        };
    }
    Ok((port, options, inline))
}

fn main() -> std::io::Result<()> {
    let (port, options, inline) = read().unwrap_or_else(|flag| {
        eprintln!("offload: {flag} is unknown, or its number is missing or too small");
        eprintln!("usage: offload [PORT] [--threads N] [--queue N] [--wait-ms N] [--inline]");
        std::process::exit(2)
    });
    let (times, metrics) = (calibrate(), Metrics::new());
    let router = Router::new()
        .get("/data", move |_: Request| data(times, inline))
        .get("/ping", async |_: Request| "pong\n")
        .get("/metrics", metrics.clone());
    Server::bind(format!("127.0.0.1:{port}"))
        .from_env()?
        .offload(options)
        .metrics(&metrics)
        .serve(router)
}
