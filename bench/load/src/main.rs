//! `open-loop`: loads two servers at the same moment, each at a rate that does not depend on how
//! fast they answer, and prints what was seen of each as one JSON object. What disturbs one of
//! them, such as a core that is taken away, disturbs the other in the same milliseconds. Given one
//! server only, it loads that one in the same way.
//!
//! Requests are due at the moments of a Poisson process for each server. One that is due while
//! every connection is busy waits for one, and the latency of each runs from the moment it was
//! **due**. The generator polls before a request is due, and says how late it was itself. With
//! `--capacity` it keeps all connections busy instead, and prints what each server carries.
//!
//! One thread reads the answers of both. When one server stalls, and then answers many at once,
//! answers of the other wait meanwhile to be read: what is far out differs less than it would.
//!
//! # Why not h2load or oha
//!
//! Both were measured (oha 1.16, nghttp2's h2load), on two cores that other work was using too:
//!
//! | | h2load `--h1 --rps` | oha `-q --latency-correction` | this |
//! | --- | --- | --- | --- |
//! | latency runs from | sending | the due moment | the due moment |
//! | CPU a request, 256 connections kept busy, as a ratio | about 1 | 2.1 to 2.4 | 1 |
//! | one core carries, of a server that gives `wrk` 35,000/s | | 19,000/s | 26,000/s and more |
//! | requests in a millisecond, variance/mean (Poisson: 1) | 36 to 48 | 0.7 to 4 | 7 to 18 |
//! | median at 2,000/s, 64 connections | | 124 to 154 µs | 67 to 94 µs |
//! | two servers at the same moment, and how late it was itself | no | no | yes |
//!
//! h2load gives each connection a timer, and they all begin together: with 64 connections up to
//! 64 requests come at once. Asked for 41,000/s it sent 17,400 and reported a mean of 29 ms, though
//! after three seconds more than half of the requests had not even been sent. oha counts honestly,
//! but costs twice as much: asked for 40,000/s it reached 18,400, less than the server, so nine
//! tenths of what a fast server carries is out of its reach, and what it shows there is itself.
//!
//! The unevenness of this one in the table is that of the machine: it sleeps until shortly before
//! a request is due and polls from then on, and what preempts it meanwhile makes it send late
//! and then all at once. That is what `late_us_p99` says and what marks a window. It wants a
//! core of its own.

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

/// Loads two servers at the same moment and compares their latency from the due moment.
#[derive(Debug, Parser)]
#[command(name = "open-loop")]
struct Options {
    /// The first server, such as 127.0.0.1:8080
    a: SocketAddr,

    /// The second server; the same address again compares it with itself
    b: Option<SocketAddr>,

    /// Connections to each server
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,

    /// Requests a second to each server, on average
    #[arg(long, default_value_t = 10_000.0, value_parser = positive)]
    rate: f64,

    /// Length of a window
    #[arg(long, default_value_t = 2.0, value_parser = positive)]
    seconds: f64,

    /// The beginning of each window that does not count, in seconds
    #[arg(long, default_value_t = 0.2, value_parser = positive)]
    warm_up: f64,

    /// Windows
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    windows: u32,

    /// What is asked for
    #[arg(long, default_value = "/")]
    path: String,

    /// Bytes of content that each answer must have
    #[arg(long, default_value_t = 13)]
    length: u64,

    /// Begins the moments of requests; in the next window the servers change places
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Marks windows in which the generator was later than this (µs, 99 of 100 requests)
    #[arg(long, default_value_t = 500)]
    late_max_us: u64,

    /// Uses all connections in turn, and not the one that was used last
    #[arg(long)]
    spread: bool,

    /// Keeps all connections busy instead, and prints requests a second
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
    // A nanosecond: sleeping ends when it should, not up to 50 µs later.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))
        .map_err(|error| format!("cannot set the timer slack: {error}"))?;
    let mut watch = Watch::new().map_err(|error| format!("no epoll: {error}"))?;
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
    // Of two windows each of two servers has each of two sequences.
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
