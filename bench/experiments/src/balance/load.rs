//! An uneven load: some connections send their next request as soon as they have a response, all
//! others rarely send one. One thread with non-blocking sockets.

use crate::{
    client::{Epoll, pin_to_client_core},
    run::Run,
};
use rustix::{event::epoll::EventFlags, thread::gettid};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// Longest time without a response.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest wait for events, after which the run checks for an interrupt.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// The load on a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) address: SocketAddr,
    pub(super) connections: usize,
    /// The first `hot` connections send requests without a pause.
    pub(super) hot: usize,
    /// Requests of hot connections for each request of the others, which send in rotation.
    pub(super) hot_by_cold: u64,
    /// Requests of all connections.
    pub(super) total: u64,
}

/// All connections. Each has received one response.
pub(super) struct Connections {
    load: Load,
    epoll: Epoll,
    all: Vec<Connection>,
    request: Vec<u8>,
    /// Bytes of every response, with its head.
    response_bytes: usize,
}

struct Connection {
    stream: TcpStream,
    /// Bytes of the response that have not arrived; 0 without a request.
    awaited: usize,
}

impl Connections {
    /// Opens all connections, and receives one response on each.
    pub(super) fn open(run: &Run, load: Load) -> Outcome<Connections> {
        let failed = |error: &dyn std::fmt::Display| format!("a connection: {error}");
        let request = format!("GET /work HTTP/1.1\r\nHost: {}\r\n\r\n", load.address);
        let mut connections = Connections {
            load,
            epoll: Epoll::new()?,
            all: Vec::with_capacity(load.connections),
            request: request.into_bytes(),
            response_bytes: 0,
        };
        for at in 0..load.connections {
            run.check_interrupt()?;
            let mut stream = TcpStream::connect(load.address).map_err(|error| failed(&error))?;
            stream.set_nodelay(true).map_err(|error| failed(&error))?;
            let sent = stream.write_all(&connections.request);
            sent.map_err(|error| failed(&error))?;
            let response = runner::probe::receive(&mut stream, &mut Vec::new())?;
            if response.status != 200 {
                return Err(format!("/work: status {}", response.status));
            }
            connections.response_bytes = response.wire_bytes;
            stream
                .set_nonblocking(true)
                .map_err(|error| failed(&error))?;
            connections.epoll.add(&stream, at, EventFlags::IN)?;
            connections.all.push(Connection { stream, awaited: 0 });
        }
        Ok(connections)
    }

    /// Sends all requests and receives all responses, on the clients' core. Stores the id of its
    /// thread in `thread` at the beginning. Returns the duration in seconds.
    fn run(mut self, run: &Run, thread: &AtomicU32) -> Outcome<f64> {
        pin_to_client_core()?;
        // If a worker has the same core, this thread must not wait until that worker's time slice
        // ends: the other workers would be idle meanwhile. It needs a privilege (CAP_SYS_NICE).
        let _ = rustix::process::nice(-10);
        let own = gettid().as_raw_nonzero().get().cast_unsigned();
        thread.store(own, Ordering::Relaxed);
        let begun = Instant::now();
        let (mut sent, mut hot_responses, mut responses) = (0, 0, 0);
        let mut next_cold = self.load.hot;
        for at in 0..self.load.hot.min(self.load.total as usize) {
            self.send(at)?;
            sent += 1;
        }
        let mut last = Instant::now();
        let mut buffer = [0; 4096];
        while responses < self.load.total {
            run.check_interrupt()?;
            if last.elapsed() > PATIENCE {
                return Err(format!("no response after {responses}"));
            }
            for at in self.epoll.wait(WAIT_MAX)? {
                if !self.receive(at, &mut buffer)? {
                    continue;
                }
                last = Instant::now();
                responses += 1;
                if at < self.load.hot {
                    hot_responses += 1;
                    if sent < self.load.total {
                        self.send(at)?;
                        sent += 1;
                    }
                    let is_due = hot_responses % self.load.hot_by_cold == 0;
                    if is_due && sent < self.load.total {
                        sent += self.send_cold(&mut next_cold)?;
                    }
                }
            }
            if sent < self.load.total && responses == sent {
                return Err("no connection sends further requests".to_owned());
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Sends a request on the next cold connection that awaits no response. Returns how many
    /// requests it sent: one or none.
    fn send_cold(&mut self, next: &mut usize) -> Outcome<u64> {
        for _ in self.load.hot..self.all.len() {
            let at = *next;
            *next += 1;
            if *next == self.all.len() {
                *next = self.load.hot;
            }
            if self.all[at].awaited == 0 {
                self.send(at)?;
                return Ok(1);
            }
        }
        Ok(0)
    }

    fn send(&mut self, at: usize) -> Outcome {
        let connection = &mut self.all[at];
        connection.awaited = self.response_bytes;
        let sent = connection.stream.write_all(&self.request);
        sent.map_err(|error| format!("a request was not sent: {error}"))
    }

    /// Receives a part of a response. Returns whether the response is complete.
    fn receive(&mut self, at: usize, buffer: &mut [u8]) -> Outcome<bool> {
        let connection = &mut self.all[at];
        match connection.stream.read(buffer) {
            Ok(0) => Err("a connection was closed".to_owned()),
            Ok(count) if count <= connection.awaited => {
                connection.awaited -= count;
                Ok(connection.awaited == 0)
            }
            Ok(_) => Err("a response is longer than the first one".to_owned()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(format!("a response: {error}")),
        }
    }
}

/// Runs the load of `connections` on a new thread. Meanwhile calls `sample` once per `interval`
/// with the id of that thread. Returns the duration of the load in seconds.
pub(super) fn run_sampled(
    run: &Run,
    connections: Connections,
    interval: Duration,
    mut sample: impl FnMut(u32),
) -> Outcome<f64> {
    let thread = AtomicU32::new(0);
    thread::scope(|scope| {
        let thread = &thread;
        let load = scope.spawn(move || connections.run(run, thread));
        while !load.is_finished() {
            match thread.load(Ordering::Relaxed) {
                0 => {}
                id => sample(id),
            }
            thread::sleep(interval);
        }
        load.join().map_err(|_| "the load panicked".to_owned())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    /// Serves each connection on its own thread. Returns the number of requests of each.
    fn server(connections: usize) -> (SocketAddr, thread::JoinHandle<Vec<u64>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let serve = |mut stream: TcpStream| {
            let (mut requests, mut received) = (0, Vec::new());
            let mut piece = [0; 512];
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                received.extend_from_slice(&piece[..count]);
                while let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
                    received.drain(..end + 4);
                    requests += 1;
                    stream.write_all(RESPONSE).expect("sent");
                }
            }
            requests
        };
        let all = thread::spawn(move || {
            let streams = (0..connections).map(|_| listener.accept().expect("a client").0);
            let threads: Vec<_> = streams
                .map(|stream| thread::spawn(move || serve(stream)))
                .collect();
            let counts = threads
                .into_iter()
                .map(|thread| thread.join().expect("ends"));
            counts.collect()
        });
        (address, all)
    }

    #[test]
    fn hot_connections_send_most_requests_and_all_get_responses() {
        let run = Run::for_test("load");
        let (address, server) = server(12);
        let load = Load {
            address,
            connections: 12,
            hot: 2,
            hot_by_cold: 9,
            total: 200,
        };
        let connections = Connections::open(&run, load).expect("open");
        let own = gettid().as_raw_nonzero().get().cast_unsigned();
        let sample = |thread| assert_ne!(thread, own);
        run_sampled(&run, connections, Duration::from_millis(1), sample).expect("runs");
        let requests = server.join().expect("ends");
        assert_eq!(requests.iter().sum::<u64>(), 200 + 12);
        let hot: u64 = requests[..2].iter().sum();
        // One that waits for a response is skipped, so the shares are not exact on a busy machine.
        assert!(hot >= 175, "{requests:?}");
        assert!(
            requests[2..].iter().all(|&count| count >= 2),
            "{requests:?}"
        );
    }
}
