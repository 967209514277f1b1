//! The traces: scripts of client requests, replayed on the simulator. Every response is checked.
//! The simulator counts what would be system calls: those of the driver, and operations of the
//! disk.
//!
//! The network neither splits nor delays data, the script controls the time, and files are
//! simulated, too: every run executes the same instructions. Callgrind counts inside [`serve`],
//! which it finds by name.

use onrush::coroutine::{self, Contract, handler, scope};
use onrush::{Application, Request, Response, Router, sim::Simulation};
use onrush_files::{Allow, Files, FilesOptions};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::driver::sim::{Behaviour, Client};
use onrush_rt::fs::{Dir, OpenHow, sim::SimFs};
use onrush_store::{Durability, Folder, FolderOptions};
use std::hint::black_box;
use std::io::{self, Write};

/// Clients of each trace.
const CONNECTIONS: usize = 32;
/// Requests in flight on each connection of a pipelined trace.
const DEPTH: usize = 16;
/// Simulated time between two rounds, about as long as one of 32 clients waits for responses.
const ROUND_MS: u64 = 1;
/// Bytes of the file of `get`.
const FILE_BYTES: usize = 1024;
/// Bytes of the file of `get_large`.
const LARGE_BYTES: usize = 1 << 20;
/// Bytes of the objects of `put`.
const OBJECT_BYTES: usize = 4096;
/// Modification time of that file: old enough for it to be cached.
const MODIFIED_S: i64 = 1_600_000_000;

/// A script and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// `GET /` with a constant response, one request at a time.
    Hello,
    /// The same, 16 requests deep.
    Pipelined,
    /// The same, 16 requests deep, and all requests differ.
    Distinct,
    /// The same as `Hello`, with a blocking handler on its own stack (coroutine).
    Coroutine,
    /// One cached file of 1 KiB, one request at a time.
    Get,
    /// One file of 1 MiB, which the kernel takes whole.
    GetLarge,
    /// Objects of 4 KiB, synced before the response; every other one replaces an existing object.
    Put,
    /// The same without syncs, as to a folder in memory.
    PutMemory,
}

impl Trace {
    pub(crate) const ALL: [Trace; 8] = [
        Trace::Hello,
        Trace::Pipelined,
        Trace::Distinct,
        Trace::Coroutine,
        Trace::Get,
        Trace::GetLarge,
        Trace::Put,
        Trace::PutMemory,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Trace::Hello => "hello",
            Trace::Pipelined => "pipelined",
            Trace::Distinct => "distinct",
            Trace::Coroutine => "coroutine",
            Trace::Get => "get",
            Trace::GetLarge => "get_large",
            Trace::Put => "put",
            Trace::PutMemory => "put_memory",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Trace> {
        Trace::ALL.into_iter().find(|trace| trace.name() == name)
    }

    fn depth(self) -> usize {
        match self {
            Trace::Pipelined | Trace::Distinct => DEPTH,
            _ => 1,
        }
    }

    /// Rounds before counting begins, which warm up caches and memory. An even number, because
    /// every other round of `put` replaces objects.
    fn rounds_before(self) -> usize {
        match self {
            Trace::GetLarge => 2,
            _ => 16,
        }
    }

    /// Counted rounds. An even number, because every other round of `put` replaces objects.
    fn rounds(self) -> usize {
        match self {
            Trace::Hello | Trace::Coroutine | Trace::Get => 256,
            Trace::Pipelined | Trace::Distinct => 32,
            Trace::Put | Trace::PutMemory => 32,
            Trace::GetLarge => 2,
        }
    }

    /// Number of counted requests.
    pub(crate) fn requests(self) -> u64 {
        (self.rounds() * CONNECTIONS * self.depth()) as u64
    }

    /// The request with the given number, counted over all rounds and connections.
    fn request(self, number: usize) -> Vec<u8> {
        let target = match self {
            Trace::Hello | Trace::Pipelined | Trace::Coroutine => "/".to_owned(),
            Trace::Distinct => format!("/?{number:07}"),
            Trace::Get => "/file.txt".to_owned(),
            Trace::GetLarge => "/large.txt".to_owned(),
            Trace::Put | Trace::PutMemory => {
                // Each object occurs in two consecutive rounds.
                let (round, client) = (number / CONNECTIONS, number % CONNECTIONS);
                format!("/objects/{:07}", round / 2 * CONNECTIONS + client)
            }
        };
        if !self.is_put() {
            return format!("GET {target} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n").into_bytes();
        }
        let head = format!(
            "PUT {target} HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\
             Content-Length: {OBJECT_BYTES}\r\n\r\n"
        );
        [head.as_bytes(), &content(OBJECT_BYTES)].concat()
    }

    fn is_put(self) -> bool {
        matches!(self, Trace::Put | Trace::PutMemory)
    }

    /// The beginning and the end of a response in round `round`.
    fn response(self, round: usize) -> (&'static str, Vec<u8>) {
        match self {
            Trace::Hello | Trace::Pipelined | Trace::Distinct | Trace::Coroutine => {
                ("HTTP/1.1 200 ", b"Hello, World!".to_vec())
            }
            Trace::Get => ("HTTP/1.1 200 ", content(FILE_BYTES)),
            Trace::GetLarge => ("HTTP/1.1 200 ", content(LARGE_BYTES)),
            Trace::Put | Trace::PutMemory if round.is_multiple_of(2) => {
                ("HTTP/1.1 201 ", b"\r\n\r\n".to_vec())
            }
            Trace::Put | Trace::PutMemory => ("HTTP/1.1 204 ", b"\r\n\r\n".to_vec()),
        }
    }

    /// Replays the trace, and returns the number of calls per request. Fails if a response is not
    /// as expected, and shows it.
    pub(crate) fn replay(self) -> Result<f64, String> {
        let disk = SimFs::new(1);
        match self {
            Trace::Hello | Trace::Pipelined | Trace::Distinct => self.replay_on(&hello, &disk),
            Trace::Coroutine => {
                scope(|| self.replay_on(&handler(contract(), hello_by_writing), &disk))
            }
            Trace::Get | Trace::GetLarge | Trace::Put | Trace::PutMemory => {
                let files = self.files(&disk);
                let files = files.map_err(|error| format!("the simulated files: {error}"))?;
                self.replay_on(&Router::new().any("/{*key}", files), &disk)
            }
        }
    }

    fn replay_on(self, application: &impl Application, disk: &SimFs) -> Result<f64, String> {
        let calm = Behaviour {
            pipe_bytes: 2 * LARGE_BYTES,
            split: false,
            delay: false,
        };
        let mut sim = Simulation::builder(1).network(calm).start(application);
        let calls = |sim: &Simulation| sim.net().calls() + disk.operations();
        let mut counted = 0;
        let clients: Vec<Client> = (0..CONNECTIONS).map(|_| sim.connect()).collect();
        for round in 0..self.rounds_before() + self.rounds() {
            for (index, client) in clients.iter().enumerate() {
                let first = (round * CONNECTIONS + index) * self.depth();
                let requests = (first..first + self.depth()).map(|number| self.request(number));
                let requests = requests.collect::<Vec<_>>().concat();
                if client.send(&requests).ok() != Some(requests.len()) {
                    return Err("a connection did not accept its requests".to_owned());
                }
            }
            if round < self.rounds_before() {
                sim.run();
            } else {
                let before = calls(&sim);
                serve(&mut sim);
                counted += calls(&sim) - before;
            }
            for client in &clients {
                let responses = client.receive().map_err(|error| error.to_string())?;
                self.check(&responses, round)?;
            }
            sim.net().advance(ROUND_MS);
        }
        Ok(counted as f64 / self.requests() as f64)
    }

    /// A simulated folder with files, served as `onrush --allow put` does.
    fn files(self, disk: &SimFs) -> io::Result<Files> {
        add(&disk.root()?, b"file.txt", &content(FILE_BYTES))?;
        add(&disk.root()?, b"large.txt", &content(LARGE_BYTES))?;
        let options = FilesOptions {
            allow: Allow {
                put: true,
                ..Allow::default()
            },
            durability: match self {
                Trace::PutMemory => Durability::None,
                _ => Durability::Full,
            },
            ..FilesOptions::default()
        };
        let how = FolderOptions {
            durability: options.durability,
            ..FolderOptions::default()
        };
        let folder = Folder::on(disk.root()?, BlockingPool::inline(), how)
            .map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Files::new(folder, options))
    }

    fn check(self, responses: &[u8], round: usize) -> Result<(), String> {
        let (begin, end) = self.response(round);
        // Content has no heads.
        let heads = &responses[..responses.len().saturating_sub(end.len())];
        let begins = heads
            .windows(begin.len())
            .filter(|part| *part == begin.as_bytes());
        let whole = responses.starts_with(begin.as_bytes()) && responses.ends_with(&end);
        if whole && begins.count() == self.depth() {
            return Ok(());
        }
        let shown = responses[..responses.len().min(300)].escape_ascii();
        Err(format!("unexpected responses: {shown}"))
    }
}

/// Runs the server until it has responded to all requests. Callgrind counts the instructions
/// between the beginning and the end of this function.
#[inline(never)]
pub(crate) fn serve(sim: &mut Simulation) {
    while sim.poll() {}
    black_box(sim);
}

async fn hello(_: Request) -> Response {
    Response::text("Hello, World!")
}

#[allow(unsafe_code)]
fn contract() -> Contract {
    // SAFETY: `hello_by_writing` uses no thread-local, no scope and no closure that waits.
    unsafe { Contract::accept() }
}

fn hello_by_writing(
    _: &mut coroutine::RequestReader,
    response: &mut coroutine::ResponseWriter,
) -> io::Result<()> {
    response.set_content_type("text/plain; charset=utf-8");
    response.write_all(b"Hello, World!")
}

fn add(root: &Dir, name: &[u8], content: &[u8]) -> io::Result<()> {
    let file = root.open(name, OpenHow::create_new(0o644))?;
    file.write_all_at(content, 0)?;
    file.set_modified(MODIFIED_S * 1_000_000_000)
}

/// Content without line ends or status lines.
fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| b'a' + (at * 7 % 26) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trace_gets_the_expected_responses() {
        for trace in Trace::ALL {
            let calls = trace.replay();
            let calls = calls.unwrap_or_else(|error| panic!("{}: {error}", trace.name()));
            assert!(calls > 0.0, "{}", trace.name());
        }
    }

    #[test]
    fn traces_are_found_by_their_names() {
        for trace in Trace::ALL {
            assert_eq!(Trace::from_name(trace.name()), Some(trace));
        }
        assert_eq!(Trace::from_name("hell"), None);
    }

    #[test]
    fn an_unexpected_response_is_an_error() {
        let good = b"HTTP/1.1 200 OK\r\n\r\nHello, World!";
        assert_eq!(Trace::Hello.check(good, 0), Ok(()));
        assert!(Trace::Pipelined.check(good, 0).is_err(), "one of sixteen");
        assert!(Trace::Hello.check(&[&good[..], good].concat(), 0).is_err());
        assert!(Trace::Hello.check(b"HTTP/1.1 500 \r\n\r\n", 0).is_err());
        assert!(Trace::Hello.check(b"", 0).is_err());
    }

    #[test]
    fn only_distinct_and_put_requests_differ() {
        assert_eq!(Trace::Pipelined.request(1), Trace::Pipelined.request(2));
        assert_ne!(Trace::Distinct.request(1), Trace::Distinct.request(2));
        assert_eq!(Trace::Put.request(1), Trace::Put.request(1 + CONNECTIONS));
        assert_ne!(
            Trace::Put.request(1),
            Trace::Put.request(1 + 2 * CONNECTIONS)
        );
    }
}
