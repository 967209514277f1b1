//! `background-load`: keeps one server busy with transfers that never end, while another program
//! measures the latency of small requests.
//!
//! Each connection has a thread that blocks. The caller gives the program that measures a higher
//! priority, so that this one does not delay it on the core that they share.
//! Received content is discarded in the kernel (`MSG_TRUNC`, tcp(7)), so that the server and not
//! this client limits the throughput.
//!
//! It prints `ready` when every connection has made progress, or after [`READY_MAX`]. For each line
//! on its standard input it prints a line of JSON with the totals so far. It ends at the end of its
//! standard input.

mod client;
mod count;

use clap::Parser;
use count::{Counters, Kind};
use std::{
    io::{self, BufRead, Write},
    net::SocketAddr,
    process::ExitCode,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Longest wait for the first progress of every connection: a server may starve some of them.
const READY_MAX: Duration = Duration::from_secs(3);

/// How often the progress is checked.
const READY_STEP: Duration = Duration::from_millis(20);

/// Keeps a server busy with transfers that never end.
#[derive(Debug, Parser)]
#[command(name = "background-load")]
pub(crate) struct Options {
    /// The server, such as 127.0.0.1:8080
    address: SocketAddr,

    /// Clients that PUT /upload-N again and again
    #[arg(long, default_value_t = 0)]
    uploads: u32,

    /// Length of each upload
    #[arg(long, default_value_t = 1 << 30)]
    upload_bytes: u64,

    /// Clients that receive the endless response of GET /stream
    #[arg(long, default_value_t = 0)]
    streams: u32,

    /// Clients that GET /large again and again
    #[arg(long, default_value_t = 0)]
    downloads: u32,

    /// Clients that send GET /small without waiting for responses
    #[arg(long, default_value_t = 0)]
    pipelines: u32,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("background-load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let counts = [
        (Kind::Upload, options.uploads),
        (Kind::Stream, options.streams),
        (Kind::Download, options.downloads),
        (Kind::Pipeline, options.pipelines),
    ];
    let total: u32 = counts.iter().map(|(_, count)| count).sum();
    let counters = Arc::new(Counters::new(total as usize));
    let mut place = 0;
    for (kind, count) in counts {
        for number in 0..count {
            let client = client::Client {
                address: options.address,
                kind,
                number,
                upload_bytes: options.upload_bytes,
                counters: counters.clone(),
                place,
            };
            // Not joined: the threads end with the process.
            thread::Builder::new().spawn(move || client.run())?;
            place += 1;
        }
    }
    let begun = Instant::now();
    while !counters.all_started() && begun.elapsed() < READY_MAX {
        thread::sleep(READY_STEP);
    }
    let mut out = io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        line?;
        writeln!(out, "{}", counters.snapshot(begun.elapsed()))?;
        out.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Options::command().debug_assert();
        let line = "background-load 127.0.0.1:1 --uploads 4 --streams 4 --pipelines 1";
        let options = Options::try_parse_from(line.split(' ')).expect("valid");
        assert_eq!((options.uploads, options.downloads), (4, 0));
    }
}
