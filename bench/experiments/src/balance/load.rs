//! A load that is not spread evenly over its connections: some ask again as soon as they are
//! answered, all others seldom. One thread, without blocking. Must not know what is asked, nor what
//! is made of it.

use crate::run::Run;
use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    thread::{CpuSet, gettid, sched_setaffinity},
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// Longest time without any answer.
const PATIENCE: Duration = Duration::from_secs(20);
const EVENTS: usize = 64;

/// What is asked of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) address: SocketAddr,
    pub(super) connections: usize,
    /// The first so many of them ask without a pause.
    pub(super) hot: usize,
    /// Requests of the hot ones for each of the others, which take turns.
    pub(super) hot_by_cold: u64,
    /// Requests in all.
    pub(super) total: u64,
}

/// What others may see of it while it runs.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Its thread, once it has begun.
    pub(super) thread: AtomicU32,
    pub(super) answered: AtomicU64,
    /// Answers that hot connections got.
    pub(super) hot: AtomicU64,
}

/// All connections, each of which has been answered once.
pub(super) struct Connections {
    load: Load,
    epoll: OwnedFd,
    all: Vec<Connection>,
    request: Vec<u8>,
    /// Of every answer, head and all.
    response_bytes: usize,
}

struct Connection {
    stream: TcpStream,
    /// Bytes of the answer that are still to come; 0 when none is.
    awaited: usize,
}

impl Connections {
    /// Opens all of them, and has each answered once.
    pub(super) fn open(run: &Run, load: Load) -> Outcome<Connections> {
        let failed = |error: &dyn std::fmt::Display| format!("a connection: {error}");
        let request = format!("GET /work HTTP/1.1\r\nHost: {}\r\n\r\n", load.address);
        let mut connections = Connections {
            load,
            epoll: epoll::create(CreateFlags::CLOEXEC).map_err(|error| failed(&error))?,
            all: Vec::with_capacity(load.connections),
            request: request.into_bytes(),
            response_bytes: 0,
        };
        for at in 0..load.connections {
            run.go_on()?;
            let stream = TcpStream::connect(load.address).map_err(|error| failed(&error))?;
            stream.set_nodelay(true).map_err(|error| failed(&error))?;
            let mut stream = stream;
            let sent = stream.write_all(&connections.request);
            sent.map_err(|error| failed(&error))?;
            let response = runner::probe::receive(&mut stream, &mut Vec::new())?;
            if response.status != 200 {
                return Err(format!("/work was answered {}", response.status));
            }
            connections.response_bytes = response.wire_bytes;
            stream
                .set_nonblocking(true)
                .map_err(|error| failed(&error))?;
            let data = EventData::new_u64(at as u64);
            epoll::add(&connections.epoll, &stream, data, EventFlags::IN)
                .map_err(|error| failed(&error))?;
            connections.all.push(Connection { stream, awaited: 0 });
        }
        Ok(connections)
    }

    /// Sends all requests and awaits all answers, from the clients' core; gives the seconds taken.
    pub(super) fn run(mut self, run: &Run, seen: &Seen) -> Outcome<f64> {
        let mut core = CpuSet::new();
        core.set(runner::server::CLIENT_CORE.parse().unwrap_or(1));
        sched_setaffinity(None, &core).map_err(|error| format!("no core: {error}"))?;
        // Where a worker has the same core, what was answered must not wait for that worker's turn
        // to end: the others would have nothing to do meanwhile. Only root may; else it waits.
        let _ = rustix::process::nice(-10);
        let thread = gettid().as_raw_nonzero().get().cast_unsigned();
        seen.thread.store(thread, Ordering::Relaxed);
        let begun = Instant::now();
        let (mut sent, mut hot_responses, mut answered) = (0, 0, 0);
        let mut next_cold = self.load.hot;
        for at in 0..self.load.hot.min(self.load.total as usize) {
            self.ask(at)?;
            sent += 1;
        }
        let mut last = Instant::now();
        let mut ready = Vec::with_capacity(EVENTS);
        let mut buffer = [0; 4096];
        while answered < self.load.total {
            run.go_on()?;
            if last.elapsed() > PATIENCE {
                return Err(format!("no answer after {answered}"));
            }
            ready.clear();
            let wait = Timespec {
                tv_sec: 0,
                tv_nsec: 100_000_000,
            };
            let room = rustix::buffer::spare_capacity(&mut ready);
            match epoll::wait(&self.epoll, room, Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(format!("epoll: {error}")),
            }
            for event in &ready {
                let event: &Event = event;
                let at = event.data.u64() as usize;
                if !self.receive(at, &mut buffer)? {
                    continue;
                }
                last = Instant::now();
                answered += 1;
                let is_hot = at < self.load.hot;
                if is_hot {
                    hot_responses += 1;
                    if sent < self.load.total {
                        self.ask(at)?;
                        sent += 1;
                    }
                    let is_due = hot_responses % self.load.hot_by_cold == 0;
                    if is_due && sent < self.load.total {
                        sent += self.ask_cold(&mut next_cold)?;
                    }
                }
            }
            seen.answered.store(answered, Ordering::Relaxed);
            seen.hot.store(hot_responses, Ordering::Relaxed);
            if sent < self.load.total && answered == sent {
                return Err("nobody is left to ask".to_owned());
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Asks on the next of the others that awaits nothing; gives how many it asked: one or none.
    fn ask_cold(&mut self, next: &mut usize) -> Outcome<u64> {
        for _ in self.load.hot..self.all.len() {
            let at = *next;
            *next += 1;
            if *next == self.all.len() {
                *next = self.load.hot;
            }
            if self.all[at].awaited == 0 {
                self.ask(at)?;
                return Ok(1);
            }
        }
        Ok(0)
    }

    fn ask(&mut self, at: usize) -> Outcome {
        let connection = &mut self.all[at];
        connection.awaited = self.response_bytes;
        let sent = connection.stream.write_all(&self.request);
        sent.map_err(|error| format!("a request was not taken: {error}"))
    }

    /// Whether an answer has ended.
    fn receive(&mut self, at: usize, buffer: &mut [u8]) -> Outcome<bool> {
        let connection = &mut self.all[at];
        match connection.stream.read(buffer) {
            Ok(0) => Err("a connection was closed".to_owned()),
            Ok(count) if count <= connection.awaited => {
                connection.awaited -= count;
                Ok(connection.awaited == 0)
            }
            Ok(_) => Err("an answer is longer than the first one".to_owned()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(format!("an answer: {error}")),
        }
    }
}

/// Runs `load` on a thread of its own while `watch` is called with what there is to see; gives the
/// seconds it took.
pub(super) fn watched(
    run: &Run,
    connections: Connections,
    every: Duration,
    mut watch: impl FnMut(&Seen),
) -> Outcome<f64> {
    let seen = Seen::default();
    thread::scope(|scope| {
        let seen = &seen;
        let load = scope.spawn(move || connections.run(run, seen));
        while !load.is_finished() {
            if seen.thread.load(Ordering::Relaxed) != 0 {
                watch(seen);
            }
            thread::sleep(every);
        }
        load.join().map_err(|_| "the load panicked".to_owned())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Effort;
    use std::{net::TcpListener, sync::Arc};

    const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    /// Answers on each connection, on a thread of its own; each gives how often it was asked.
    fn server(connections: usize) -> (SocketAddr, thread::JoinHandle<Vec<u64>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let serve = |mut stream: TcpStream| {
            let (mut asked, mut received) = (0, Vec::new());
            let mut piece = [0; 512];
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                received.extend_from_slice(&piece[..count]);
                while let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
                    received.drain(..end + 4);
                    asked += 1;
                    stream.write_all(RESPONSE).expect("taken");
                }
            }
            asked
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
    fn few_ask_for_most_of_it_and_all_is_answered() {
        let out = std::env::temp_dir().join(format!("onrush-load-{}", std::process::id()));
        let run = Run::new(Effort::Quick, out.clone(), String::new(), Arc::default());
        let run = run.expect("made");
        let (address, server) = server(12);
        let load = Load {
            address,
            connections: 12,
            hot: 2,
            hot_by_cold: 9,
            total: 200,
        };
        let connections = Connections::open(&run, load).expect("open");
        let mut answered = 0;
        let every = Duration::from_millis(1);
        let watch = |seen: &Seen| answered = seen.answered.load(Ordering::Relaxed);
        watched(&run, connections, every, watch).expect("runs");
        assert!(answered <= 200);
        let asked = server.join().expect("ends");
        assert_eq!(asked.iter().sum::<u64>(), 200 + 12);
        let hot: u64 = asked[..2].iter().sum();
        assert!((175..=185).contains(&hot), "{asked:?}");
        assert!(
            asked[2..].iter().all(|&asked| (2..=4).contains(&asked)),
            "{asked:?}"
        );
        drop(run);
        std::fs::remove_dir_all(out).expect("removed");
    }
}
