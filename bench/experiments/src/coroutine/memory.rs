//! Memory of each waiting handler or connection: the slope from few to many, so that the other
//! memory of the process does not count.

use super::servers::{Endpoint, Subject};
use crate::{run::Run, scrape, workers::get};
use runner::{probe::receive, server::Server};
use std::{io::ErrorKind, io::Write, net::TcpStream, time::Duration};
use xtask::shell::Outcome;

/// After this many connections, one more request checks that the server has received all of them.
const BATCH: usize = 100;

/// Wait before memory is measured, so that the server frees memory that it needs only briefly.
const SETTLE: Duration = Duration::from_secs(1);

/// The memory of waiting handlers or connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// Bytes for one more of them.
    pub(super) bytes_each: f64,
    /// Stacks in use at the end, and the most that one of them has touched, in bytes. Only Onrush
    /// with metrics reports them.
    pub(super) stacks: Option<(u64, u64)>,
}

/// Opens connections up to `few` and up to `many`. With [`Endpoint::Sleep`] each waits for its
/// handler. With [`Endpoint::Hello`] each has received one response and is idle.
pub(super) fn waiting(
    run: &Run,
    endpoint: Endpoint,
    subject: Subject,
    [few, many]: [usize; 2],
) -> Outcome<Waiting> {
    let server = subject.start(endpoint, None)?;
    let mut open = Vec::with_capacity(many);
    let before = fill(run, &server, endpoint, &mut open, few)?;
    let after = fill(run, &server, endpoint, &mut open, many)?;
    Ok(Waiting {
        bytes_each: (after as f64 - before as f64) / (many - few) as f64,
        stacks: get(&server, "/metrics").ok().and_then(|text| stacks(&text)),
    })
}

/// Opens connections until there are `count`. Returns the resident bytes of the server then.
fn fill(
    run: &Run,
    server: &Server,
    endpoint: Endpoint,
    open: &mut Vec<TcpStream>,
    count: usize,
) -> Outcome<u64> {
    let request = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", endpoint.path());
    while open.len() < count {
        let failed = |error: String| format!("connection {}: {error}", open.len() + 1);
        let opened = TcpStream::connect(server.address).and_then(|mut stream| {
            stream.write_all(request.as_bytes())?;
            Ok(stream)
        });
        let mut stream = opened.map_err(|error| failed(error.to_string()))?;
        if endpoint != Endpoint::Sleep {
            receive(&mut stream, &mut Vec::new()).map_err(failed)?;
        }
        open.push(stream);
        if open.len().is_multiple_of(BATCH) || open.len() == count {
            run.check_interrupt()?;
            get(server, "/")?;
        }
    }
    run.sleep(SETTLE)?;
    match open.iter().all(is_silent) {
        true => server.resident_bytes(),
        false => Err(format!(
            "some of {count} connections received data or were closed"
        )),
    }
}

/// Whether neither data nor the end of the connection has arrived.
fn is_silent(stream: &TcpStream) -> bool {
    let peeked = stream
        .set_nonblocking(true)
        .and_then(|()| stream.peek(&mut [0]));
    peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        && stream.set_nonblocking(false).is_ok()
}

/// The stacks in use by all workers, and the most that one stack has touched, from the metrics.
fn stacks(metrics: &str) -> Option<(u64, u64)> {
    let all = scrape::samples(metrics, "onrush_coroutine_stacks");
    let in_use = all.filter(|(labels, _)| scrape::label(labels, "state") == Some("in_use"));
    let mut most = scrape::samples(metrics, "onrush_coroutine_stack_bytes_max");
    let (_, most) = most.next()?;
    Some((in_use.map(|(_, count)| count).sum(), most))
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
        assert_eq!(stacks(text), Some((7, 4096)));
        assert_eq!(stacks("else\n"), None);
    }
}
