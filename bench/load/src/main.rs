//! `open-loop`: loads two servers at the same time, at a rate that does not depend on their speed,
//! and prints the results as one JSON object. A disturbance, such as a preempted core, affects both
//! servers in the same milliseconds. With only one server, it loads that one in the same way.
//!
//! Requests are due at the times of a Poisson process for each server. A request that is due while
//! all connections are busy waits for one. Latency is measured from the **due** time. The generator
//! polls before a request is due and reports its own delay. With `--capacity` it keeps all
//! connections busy instead, and prints the throughput of each server.
//!
//! One thread reads the responses of both servers. If one server stalls and then sends many
//! responses at once, responses of the other wait to be read. This reduces the difference between
//! the tails of the two servers.
//!
//! # Why not h2load or oha
//!
//! Both were measured (oha 1.16, nghttp2's h2load) on two cores that other work was also using:
//!
//! | | h2load `--h1 --rps` | oha `-q --latency-correction` | this |
//! | --- | --- | --- | --- |
//! | latency is measured from | sending | the due time | the due time |
//! | CPU per request, 256 connections kept busy, as a ratio | about 1 | 2.1 to 2.4 | 1 |
//! | maximum rate on one core (`wrk`, same server: 35,000/s) | | 19,000/s | 26,000/s or more |
//! | requests per millisecond, variance/mean (Poisson: 1) | 36 to 48 | 0.7 to 4 | 7 to 18 |
//! | median at 2,000/s, 64 connections | | 124 to 154 µs | 67 to 94 µs |
//! | two servers at the same time, reports its own delay | no | no | yes |
//!
//! h2load gives each connection a timer, and all timers start together: with 64 connections, up to
//! 64 requests are sent at once. At a requested rate of 41,000/s it sent 17,400/s and reported a
//! mean latency of 29 ms, although it had not sent more than half of the requests after three
//! seconds. oha measures correctly but needs twice the CPU time: at a requested rate of 40,000/s it
//! sent 18,400/s, less than the server handles. So it cannot load a fast server to nine tenths of
//! its capacity, and its results there would describe oha itself.
//!
//! The uneven rate of this program in the table is caused by the machine. The program sleeps until
//! shortly before a request is due and then polls; if it is preempted, it sends late and then many
//! requests at once. `late_us_p99` reports this delay, and a long delay marks the window. The
//! program should have a core of its own.

mod arrivals;
mod response;
mod schedule;
mod server;
mod window;

use arrivals::Arrivals;
use clap::Parser;
use schedule::Order;
use serde::Serialize;
use serde_json::{Value, json};
use server::{Ask, Server, Watch};
use std::{io, net::SocketAddr, num::NonZeroU64, process::ExitCode, time::Duration};
use window::Plan;

/// Loads two servers at the same time and compares their latency, measured from the due time.
#[derive(Debug, Parser)]
#[command(name = "open-loop")]
struct Options {
    /// The first server, such as 127.0.0.1:8080
    a: SocketAddr,

    /// The second server; the same address compares a server with itself
    b: Option<SocketAddr>,

    /// Connections to each server
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,

    /// Average number of requests per second to each server
    #[arg(long, default_value_t = 10_000.0, value_parser = positive)]
    rate: f64,

    /// Length of a window, in seconds
    #[arg(long, default_value_t = 2.0, value_parser = positive)]
    seconds: f64,

    /// Warm-up at the start of each window, which does not count, in seconds
    #[arg(long, default_value_t = 0.2, value_parser = positive)]
    warm_up: f64,

    /// Number of windows
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// Request target
    #[arg(long, default_value = "/")]
    path: String,

    /// Bytes of content that each response must have
    #[arg(long, default_value_t = 13)]
    length: u64,

    /// Seed of the request times; the servers exchange their sequences in the next window
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Marks windows in which the generator's delay exceeds this (µs, 99th percentile)
    #[arg(long, default_value_t = 500)]
    late_max_us: u64,

    /// Uses all connections in turn instead of the one that was used last
    #[arg(long)]
    spread: bool,

    /// Keeps all connections busy instead, and prints requests per second
    #[arg(long)]
    capacity: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("not a number above 0".to_owned()),
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("open-loop: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<Value, String> {
    if options.warm_up >= options.seconds {
        return Err("--warm-up must be shorter than --seconds".to_owned());
    }
    if !options.path.starts_with('/') || !options.path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("--path must begin with / and have no spaces".to_owned());
    }
    // With a slack of 1 ns, a sleep ends on time and not up to 50 µs later.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
        .map_err(|error| format!("cannot set the timer slack: {error}"))?;
    let mut watch = Watch::new().map_err(|error| format!("cannot create an epoll: {error}"))?;
    let addresses = [Some(options.a), options.b];
    let mut servers = Vec::new();
    for (number, address) in addresses.into_iter().flatten().enumerate() {
        servers.push(connect(options, &watch, number, address)?);
    }
    let mut windows = vec![Vec::new(); servers.len()];
    for number in 0..options.windows {
        let results = window(options, &mut watch, &mut servers, number).map_err(|error| {
            let b = options.b.map_or(String::new(), |b| format!(" and {b}"));
            format!("{}{b}: {error}", options.a)
        })?;
        for (windows, result) in windows.iter_mut().zip(results) {
            windows.push(result);
        }
    }
    Ok(report(options, windows))
}

fn connect(
    options: &Options,
    watch: &Watch,
    number: usize,
    address: SocketAddr,
) -> Result<Server, String> {
    let ask = Ask::get(&options.path, options.length);
    Server::connect(watch, number, address, options.connections.into(), ask)
        .map_err(|error| format!("cannot connect to {address}: {error}"))
}

fn window(
    options: &Options,
    watch: &mut Watch,
    servers: &mut [Server],
    number: u32,
) -> io::Result<Vec<Value>> {
    let order = match options.spread {
        true => Order::LongestIdle,
        false => Order::LastUsed,
    };
    let plan = Plan {
        length: Duration::from_secs_f64(options.seconds),
        warm_up: Duration::from_secs_f64(options.warm_up),
        late_max: Duration::from_micros(options.late_max_us),
        order,
    };
    if options.capacity {
        return values(window::closed(watch, servers, &plan)?);
    }
    // In two consecutive windows, each of two servers gets both sequences.
    let count = servers.len() as u32;
    let seed = |which: u32| {
        let sequence = number / count * count + (number + which) % count;
        options.seed.wrapping_add(u64::from(sequence))
    };
    let arrivals = (0..count).map(|which| Arrivals::new(options.rate, seed(which)));
    values(window::open(watch, servers, arrivals.collect(), &plan)?)
}

fn values(windows: Vec<impl Serialize>) -> io::Result<Vec<Value>> {
    let values = windows.into_iter().map(serde_json::to_value);
    values
        .map(|value| value.map_err(io::Error::other))
        .collect()
}

fn report(options: &Options, windows: Vec<Vec<Value>>) -> Value {
    let mut report = json!({
        "mode": if options.capacity { "capacity" } else { "open-loop" },
        "connections": options.connections,
        "rate": (!options.capacity).then_some(options.rate),
        "seconds": options.seconds,
        "warm_up": options.warm_up,
        "path": options.path,
        "seed": options.seed,
    });
    let addresses = [Some(options.a), options.b].into_iter().flatten();
    for ((name, address), windows) in ["a", "b"].into_iter().zip(addresses).zip(windows) {
        report[name] = json!({ "address": address.to_string(), "windows": windows });
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Options::command().debug_assert();
        let parse = |line: &str| Options::try_parse_from(line.split(' ')).is_ok();
        assert!(parse(
            "open-loop --rate 4e4 --windows 3 127.0.0.1:1 127.0.0.1:2"
        ));
        assert!(!parse("open-loop --rate 0 127.0.0.1:1 127.0.0.1:2"));
        assert!(!parse("open-loop --connections 0 127.0.0.1:1 127.0.0.1:2"));
        assert!(parse("open-loop --spread 127.0.0.1:1"));
        assert!(!parse("open-loop"));
    }
}
