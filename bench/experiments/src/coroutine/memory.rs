//! Memory of each of many that wait: the slope between few and many, so that what the process needs
//! anyway does not count. Must not know what was promised.

use super::servers::{Ask, Who};
use crate::{run::Run, workers::by_worker};
use runner::{
    probe::{probe, receive},
    server::Server,
};
use std::{io::ErrorKind, io::Write, net::TcpStream, time::Duration};
use xtask::shell::Outcome;

/// After so many it is asked whether it has come to all of them.
const BATCH: usize = 100;

/// For what was used for a moment only to be given back.
const SETTLE: Duration = Duration::from_secs(1);

/// What was found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// For one more that waits.
    pub(super) bytes_each: f64,
    /// Stacks in use at the end, and the most that one of them has touched, in bytes. Only Onrush
    /// tells, and only where it has metrics.
    pub(super) stacks: Option<(u64, u64)>,
}

/// Opens connections up to `few` and up to `many`. With [`Ask::Sleep`] each is left waiting for
/// its handler; with [`Ask::Hello`] each was answered once and is kept.
pub(super) fn waiting(run: &Run, ask: Ask, who: Who, [few, many]: [usize; 2]) -> Outcome<Waiting> {
    let server = who.start(ask, None)?;
    let mut open = Vec::with_capacity(many);
    let before = fill(run, &server, ask, &mut open, few)?;
    let after = fill(run, &server, ask, &mut open, many)?;
    Ok(Waiting {
        bytes_each: (after as f64 - before as f64) / (many - few) as f64,
        stacks: stacks(&server),
    })
}

/// Resident bytes with `count` of them waiting.
fn fill(
    run: &Run,
    server: &Server,
    ask: Ask,
    open: &mut Vec<TcpStream>,
    count: usize,
) -> Outcome<u64> {
    let request = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", ask.path());
    while open.len() < count {
        let failed = |error: String| format!("connection {}: {error}", open.len() + 1);
        let opened = TcpStream::connect(server.address).and_then(|mut stream| {
            stream.write_all(request.as_bytes())?;
            Ok(stream)
        });
        let mut stream = opened.map_err(|error| failed(error.to_string()))?;
        if ask != Ask::Sleep {
            receive(&mut stream, &mut Vec::new()).map_err(failed)?;
        }
        open.push(stream);
        if open.len().is_multiple_of(BATCH) || open.len() == count {
            run.go_on()?;
            let hello = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            probe(server.address, hello)?;
        }
    }
    run.sleep(SETTLE)?;
    match open.iter().all(is_silent) {
        true => server.resident_bytes(),
        false => Err(format!("of {count} some were answered or closed")),
    }
}

/// Whether nothing has come, not even the end.
fn is_silent(stream: &TcpStream) -> bool {
    let peeked = stream
        .set_nonblocking(true)
        .and_then(|()| stream.peek(&mut [0]));
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        && stream.set_nonblocking(false).is_ok()
}

fn stacks(server: &Server) -> Option<(u64, u64)> {
    let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let response = probe(server.address, request).ok()?;
    let text = String::from_utf8(response.body).ok()?;
    in_metrics(&text)
}

fn in_metrics(text: &str) -> Option<(u64, u64)> {
    let in_use = text.lines().filter(|line| line.contains("\"in_use\""));
    let in_use: String = in_use.flat_map(|line| [line, "\n"]).collect();
    let in_use = by_worker(&in_use, "onrush_coroutine_stacks");
    let most = text
        .lines()
        .find_map(|line| line.strip_prefix("onrush_coroutine_stack_bytes_max "));
    let in_use = in_use.iter().map(|(_, count)| count).sum();
    Some((in_use, most?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_read_of_all_workers() {
        let text = "onrush_coroutine_stacks{worker=\"0\",state=\"in_use\"} 3\n\
            onrush_coroutine_stacks{worker=\"0\",state=\"pooled\"} 9\n\
            onrush_coroutine_stacks{worker=\"1\",state=\"in_use\"} 4\n\
            onrush_coroutine_stack_bytes_max 4096\n";
        assert_eq!(in_metrics(text), Some((7, 4096)));
        assert_eq!(in_metrics("else\n"), None);
    }
}
