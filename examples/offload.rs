//! Runs CPU-bound work on the thread pool, so that other requests do not wait for it:
//! `offload [PORT] [--threads N] [--queue N] [--wait-ms N] [--inline]`.
//!
//! `GET /data` costs 4 ms of CPU, `GET /ping` almost nothing, `GET /metrics` returns the metrics.
//! The options set the number of threads, of waiting jobs, and the longest wait of a job. With
//! `--inline` the worker does the work, for comparison; then `/ping` waits for it.
//!
//! The program measures at the start how much work takes 4 ms. It uses the CPU time of the thread
//! (`CLOCK_THREAD_CPUTIME_ID`, clock_gettime(2)), not the wall clock, so a request is the same
//! amount of work however many threads share the cores.

use onrush::offload::{self, offload_with};
use onrush::{Metrics, Request, Response, Router, Server};
use std::time::Duration;

/// CPU time of one `/data`.
const WORK: Duration = Duration::from_millis(4);
/// Steps between two checks for cancellation.
const STEPS: u64 = 10_000;

/// Runs `steps` steps of a random number generator. Each step depends on the previous one.
fn step(mut number: u64, steps: u64) -> u64 {
    for _ in 0..steps {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
    }
    number
}

/// Runs `times` × [`STEPS`] steps. Ends early when the job is cancelled.
fn work(times: u64, is_cancelled: impl Fn() -> bool) -> u64 {
    let times = (0..times).take_while(|_| !is_cancelled());
    times.fold(88_172_645_463_325_252, |number, _| step(number, STEPS))
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Measures how many times [`STEPS`] steps fit into [`WORK`]. Returns the maximum of several tries,
/// because noise only lowers the number.
fn calibrate() -> u64 {
    const TRIES: usize = 10;
    let try_once = || {
        let begun = cpu_time();
        let mut times = 0;
        while cpu_time() - begun < WORK {
            std::hint::black_box(step(std::hint::black_box(times + 1), STEPS));
            times += 1;
        }
        times
    };
    (0..TRIES).map(|_| try_once()).max().unwrap_or(1)
}

async fn data(times: u64, inline: bool) -> Result<Response, offload::OffloadError> {
    let number = match inline {
        true => work(times, || false),
        false => offload_with(move |token| work(times, || token.is_cancelled())).await?,
    };
    Ok(Response::text(format!("{number:016x}\n")))
}

struct Arguments {
    port: String,
    options: offload::OffloadOptions,
    inline: bool,
}

impl Arguments {
    fn read(mut given: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut arguments = Arguments {
            port: given.next().unwrap_or_else(|| "8080".to_owned()),
            options: offload::OffloadOptions::default(),
            inline: false,
        };
        while let Some(flag) = given.next() {
            let mut number = |least: u64| {
                let number = given.next().and_then(|number| number.parse().ok());
                let number = number.filter(|number| *number >= least);
                number.ok_or_else(|| format!("{flag} needs a number of at least {least}"))
            };
            let options = arguments.options.clone();
            arguments.options = match flag.as_str() {
                "--threads" => options.threads(number(1)? as usize),
                "--queue" => options.queue_max(number(0)? as usize),
                "--wait-ms" => options.wait_max(Duration::from_millis(number(1)?)),
                "--inline" => {
                    arguments.inline = true;
                    options
                }
                _ => return Err(format!("unknown option {flag}")),
            };
        }
        Ok(arguments)
    }
}

fn main() -> std::io::Result<()> {
    let arguments = Arguments::read(std::env::args().skip(1)).unwrap_or_else(|wrong| {
        eprintln!("offload: {wrong}");
        eprintln!("usage: offload [PORT] [--threads N] [--queue N] [--wait-ms N] [--inline]");
        std::process::exit(2)
    });
    let (times, inline) = (calibrate(), arguments.inline);
    let metrics = Metrics::new();
    let router = Router::new()
        .get("/data", move |_: Request| data(times, inline))
        .get("/ping", async |_: Request| "pong\n")
        .get("/metrics", metrics.clone());
    Server::bind(format!("127.0.0.1:{}", arguments.port))
        .from_env()?
        .offload(arguments.options)
        .metrics(&metrics)
        .serve(router)
}
