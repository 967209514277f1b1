//! Load by one client over HTTP/2 that takes each of its requests back at once: HEADERS and
//! RST_STREAM. When a server closes its connection, it opens another one. It runs as a separate
//! process on the clients' core.

use crate::{
    http2::{ACKNOWLEDGED, BEGIN, CANCEL, RST_STREAM, get, push},
    server::{CLIENT_CORE, pinned},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::{Outcome, cannot_run};

/// The hidden first argument with which this program runs as the load.
pub(crate) const SUBCOMMAND: &str = "--flood";

/// Requests that are sent together.
const BATCH: u32 = 100;

/// Time before a refused connection is tried again.
const PAUSE: Duration = Duration::from_millis(10);

/// How often the load looks whether it is to end while a server reads nothing.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// What the client has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// Requests that were taken back.
    pub(crate) requests: u64,
    pub(crate) connections: u64,
}

/// The running client. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// Its end is the end of the load.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Starts it, as the command that `prepare` makes of its own, and waits for the first requests.
    /// `per_second` is the rate, or 0 for as many as possible.
    pub(crate) fn start(
        address: SocketAddr,
        per_second: u32,
        prepare: impl Fn(Command) -> Command,
    ) -> Outcome<Running> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.args([SUBCOMMAND, &address.to_string(), &per_second.to_string()]);
        let mut command = pinned(&prepare(command), CLIENT_CORE);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| cannot_run(&command, &error))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut running = Running {
            child,
            input,
            output,
        };
        match running.line()?.trim() {
            "ready" => Ok(running),
            line => Err(format!("the flood printed '{line}'")),
        }
    }

    /// Ends it, and returns what it has sent.
    pub(crate) fn finish(mut self) -> Outcome<Sent> {
        self.input = None;
        let line = self.line()?;
        let mut numbers = line.split_whitespace().map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        match (next(), next()) {
            (Some(requests), Some(connections)) => Ok(Sent {
                requests,
                connections,
            }),
            _ => Err(format!("the flood printed '{}'", line.trim())),
        }
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        read.map_err(|error| format!("the flood: {error}"))?;
        Ok(line)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the load until the end of the standard input. The arguments are `ADDRESS PER_SECOND`, where
/// 0 is as many as possible.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let [address, per_second] = arguments else {
        return Err(format!("{SUBCOMMAND} is internal"));
    };
    let per_second = per_second.parse().map_err(|_| "not a number".to_owned())?;
    let address = address.parse().map_err(|_| "not an address".to_owned())?;
    let is_over = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
            is_over.store(true, Ordering::Relaxed);
        });
        let mut ready = Some(|| println!("ready"));
        let begun = Instant::now();
        send_until(address, &is_over, &mut |sent| {
            if let Some(print) = ready.take() {
                print();
            }
            if let Some(due) = due(sent, per_second) {
                thread::sleep(due.saturating_sub(begun.elapsed()));
            }
        })
    });
    println!("{} {}", sent.requests, sent.connections);
    Ok(())
}

/// When so many requests may have been sent, since the begin.
fn due(requests: u64, per_second: u32) -> Option<Duration> {
    let nanoseconds = (requests * 1_000_000_000).checked_div(per_second.into())?;
    Some(Duration::from_nanos(nanoseconds))
}

/// Sends until `is_over`, and calls `on_batch` with the number of requests after each [`BATCH`].
fn send_until(address: SocketAddr, is_over: &AtomicBool, on_batch: &mut dyn FnMut(u64)) -> Sent {
    let mut sent = Sent::default();
    while !is_over.load(Ordering::Relaxed) {
        if connection(address, is_over, on_batch, &mut sent).is_err() {
            thread::sleep(PAUSE);
        }
    }
    sent
}

/// One connection, until the server closes it. Fails if it cannot be opened.
fn connection(
    address: SocketAddr,
    is_over: &AtomicBool,
    on_batch: &mut dyn FnMut(u64),
    sent: &mut Sent,
) -> io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    sent.connections += 1;
    let mut out = BEGIN.to_vec();
    let mut pending = 0;
    let (mut stream, mut is_acknowledged) = (1, false);
    let mut piece = vec![0; 64 * 1024];
    while !is_over.load(Ordering::Relaxed) {
        let mut ready = [PollFd::new(&socket, PollFlags::IN | PollFlags::OUT)];
        poll(&mut ready, Some(&LOOK))?;
        match socket.read(&mut piece) {
            Ok(0) => return Ok(()),
            // The first bytes of a server are its SETTINGS.
            Ok(_) if !is_acknowledged => {
                is_acknowledged = true;
                out.extend_from_slice(ACKNOWLEDGED);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return Ok(()),
        }
        if out.is_empty() {
            for _ in 0..BATCH {
                out.extend_from_slice(&get(stream));
                push(&mut out, (RST_STREAM, 0), stream, &CANCEL.to_be_bytes());
                stream += 2;
            }
            pending = BATCH;
        }
        match socket.write(&out) {
            Ok(length) => _ = out.drain(..length),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return Ok(()),
        }
        if out.is_empty() && pending > 0 {
            sent.requests += u64::from(pending);
            pending = 0;
            on_batch(sent.requests);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http2::{END_HEADERS, END_STREAM, Frame, HEADERS};
    use std::net::TcpListener;

    #[test]
    fn each_request_is_taken_back_and_a_closed_connection_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let is_over = AtomicBool::new(false);
        let sent = thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..2 {
                    let (mut socket, _) = listener.accept().expect("a client");
                    let mut received = vec![0; BEGIN.len() + 200 * 28];
                    socket.read_exact(&mut received).expect("requests");
                    let mut rest = &received[BEGIN.len()..];
                    for number in 0..200 {
                        let (frame, length) = Frame::first(rest).expect("short").expect("whole");
                        let shown = (frame.kind, frame.flags, frame.stream);
                        assert_eq!(shown, (HEADERS, END_STREAM | END_HEADERS, 2 * number + 1));
                        rest = &rest[length..];
                        let (frame, length) = Frame::first(rest).expect("short").expect("whole");
                        assert_eq!((frame.kind, frame.stream), (RST_STREAM, 2 * number + 1));
                        assert_eq!(frame.payload, CANCEL.to_be_bytes());
                        rest = &rest[length..];
                    }
                }
                is_over.store(true, Ordering::Relaxed);
            });
            send_until(address, &is_over, &mut |_| {})
        });
        assert!(sent.connections >= 2 && sent.requests >= 200, "{sent:?}");
        assert_eq!(due(500, 1000), Some(Duration::from_millis(500)));
        assert_eq!(due(500, 0), None);
        assert!(main(&[]).is_err() && main(&["x".to_owned()]).is_err());
    }
}
