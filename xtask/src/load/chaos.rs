//! Reads, writes and removals of the same few objects at the same time, as fast as the server
//! responds. Nothing disturbs the server, so no request may fail.

use super::{Counts, Plan, Running};
use std::fmt;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// A quarter of the changes are removals, so a reader finds each object new, replaced or absent.
const PLAN: Plan = Plan {
    writers: 16,
    readers: 64,
    keys: 64,
    changers: 8,
    groups: 2,
    removals: Some(4),
    conditional_removals: Some(4),
    parts: Some(8),
    lengths: &LENGTHS,
    pause: Duration::ZERO,
};
/// Lengths of bodies: those of one job, and longer ones that are written and sent in steps.
const LENGTHS: [usize; 61] = {
    let mut lengths = [3_000; 61];
    lengths[7] = 20_000;
    lengths[23] = 70_000;
    lengths[37] = 300_000;
    lengths[53] = 1_200_000;
    lengths
};
/// Without a read for this long, the server hangs.
const QUIET_MAX: Duration = Duration::from_secs(120);

/// What was done and checked.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// The requests.
    pub counts: Counts,
    /// Conditional changes and reads whose order was checked.
    pub events: usize,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            written,
            removed,
            read,
            changed,
            ..
        } = self.counts;
        write!(
            f,
            "{read} reads, {written} writes, {removed} removals, {changed} conditional changes; \
             {} events are linearizable",
            self.events
        )
    }
}

/// Runs the clients until they have read `reads` times, and made at least a hundredth as many
/// changes. Fails with what is wrong.
pub fn run(server: SocketAddr, reads: usize) -> Result<Summary, String> {
    let running = Running::start(server, PLAN);
    let (mut last, mut since) = (Counts::default(), Instant::now());
    let is_short = |now: &Counts| now.read < reads || now.written + now.removed < reads / 100;
    while is_short(&last) && running.load.all_wrong().is_empty() {
        thread::sleep(Duration::from_millis(100));
        let now = running.load.counts();
        if now.read > last.read {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > QUIET_MAX {
            return Err(format!(
                "no read for {QUIET_MAX:?}: {:?}",
                running.load.failures()
            ));
        }
    }
    let (load, counts) = (running.load.clone(), running.load.counts());
    let (_, events) = running.end(&[server])?;
    match load.failures() {
        failures if failures.is_empty() => Ok(Summary { counts, events }),
        failures => Err(format!("requests failed: {failures:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    /// A server that acknowledges every write and stores nothing.
    fn forgetful() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(|| respond(BufReader::new(stream)));
            }
        });
        address
    }

    fn respond(mut stream: BufReader<TcpStream>) -> Option<()> {
        for number in 0.. {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                (stream.read_line(&mut head).ok()? > 0).then_some(())?;
            }
            let length = head.split_once("Content-Length: ");
            let length = length.and_then(|(_, rest)| rest.lines().next()?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut body).ok()?;
            let port = stream.get_ref().peer_addr().ok()?.port();
            let response = match head.starts_with("PUT") {
                true => format!("201 Created\r\nETag: \"{port}-{number}\""),
                false => "404 Not Found".to_owned(),
            };
            let response = format!("HTTP/1.1 {response}\r\nContent-Length: 0\r\n\r\n");
            stream.get_mut().write_all(response.as_bytes()).ok()?;
        }
        None
    }

    #[test]
    fn a_server_that_loses_objects_is_found() {
        let wrong = run(forgetful(), usize::MAX).expect_err("it loses objects");
        assert!(wrong.contains("an acknowledged object is lost"), "{wrong}");
    }
}
