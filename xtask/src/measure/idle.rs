//! Memory of the server for each idle keep-alive connection: the slope between few and many, so
//! that what the process needs anyway does not count.

use super::{
    Driver,
    server::{Memory, Program, Server, ask},
};
use crate::{
    Failure, Options,
    shell::{Outcome, run},
};
use std::{fs, net::TcpStream, process::Command, thread, time::Duration};

const FEW: usize = 5_000;
const MANY: usize = 15_000;

/// Most bytes of resident memory that one more idle connection may cost.
const BYTES_MAX: f64 = 1024.0;

/// For answers that left to be forgotten, and buffers to be given back.
const SETTLE: Duration = Duration::from_secs(1);

pub(crate) fn main(mut options: Options) -> Result<(), Failure> {
    let drivers = Driver::chosen(&mut options)?;
    let instead = options.text("--server")?;
    let report_only = options.flag("--report-only");
    options.end()?;
    raise_descriptors()?;

    let mut over = false;
    println!("bytes of memory for each idle connection, from {FEW} to {MANY} connections");
    println!(
        "{:9} {:>6} {:>9} {:>6}",
        "driver", "Rss", "Anonymous", "limit"
    );
    for driver in drivers {
        let slope = slope(&Program::hello(driver, instead.as_deref())?)?;
        let fits = slope.rss <= BYTES_MAX;
        let mark = if fits { "" } else { "  OVER" };
        println!(
            "{:9} {:6.0} {:9.0} {BYTES_MAX:6}{mark}",
            driver.name(),
            slope.rss,
            slope.anonymous
        );
        over |= !fits;
    }
    match over && !report_only {
        true => Err(Failure::Because("the limit was passed".to_owned())),
        false => Ok(()),
    }
}

/// Raises the soft limit on descriptors to the hard one, for this process and those it starts.
fn raise_descriptors() -> Outcome {
    let text = fs::read_to_string("/proc/self/limits").map_err(|error| error.to_string())?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let hard = line
        .and_then(|line| line.split_whitespace().nth(1))
        .unwrap_or_default();
    if hard.parse::<usize>().is_ok_and(|hard| hard < MANY + 100) {
        return Err(format!(
            "{MANY} connections need more descriptors than the {hard} allowed"
        ));
    }
    let own = std::process::id().to_string();
    run(Command::new("prlimit").args(["--pid", &own, &format!("--nofile={hard}:{hard}")]))
}

/// Bytes a connection.
struct Slope {
    rss: f64,
    anonymous: f64,
}

fn slope(program: &Program) -> Outcome<Slope> {
    let mut server = program.start()?;
    let mut idle = Vec::with_capacity(MANY);
    let few = open(&mut server, &mut idle, FEW)?;
    let many = open(&mut server, &mut idle, MANY)?;
    let per_connection = |few: u64, many: u64| (many as f64 - few as f64) / (MANY - FEW) as f64;
    Ok(Slope {
        rss: per_connection(few.rss, many.rss),
        anonymous: per_connection(few.anonymous, many.anonymous),
    })
}

/// Opens connections until there are `count`, each with one request answered, and gives the
/// server's memory with all of them idle.
fn open(server: &mut Server, idle: &mut Vec<TcpStream>, count: usize) -> Outcome<Memory> {
    while idle.len() < count {
        let number = idle.len() + 1;
        let connected = TcpStream::connect(server.address);
        let mut stream = connected.map_err(|error| format!("connection {number}: {error}"))?;
        ask(&mut stream).map_err(|error| format!("connection {number}: {error}"))?;
        idle.push(stream);
    }
    thread::sleep(SETTLE);
    match server.runs() && still_open(idle) {
        true => server.memory(),
        false => Err(format!(
            "the server gave up connections before there were {count}"
        )),
    }
}

/// Whether the peer has closed none of these.
fn still_open(idle: &[TcpStream]) -> bool {
    idle.iter().all(|stream| {
        let silent = stream
            .set_nonblocking(true)
            .and_then(|()| stream.peek(&mut [0]));
        let is_silent = silent.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        is_silent && stream.set_nonblocking(false).is_ok()
    })
}
