//! Clients that receive events of servers (`text/event-stream`), as one process on the clients'
//! core. It opens all streams, and then says how many events have arrived whenever it is asked. So
//! a window of a measurement contains neither the opening of connections nor their end.

use crate::server::{CLIENT_CORE, pinned};
use rustix::{
    buffer::spare_capacity,
    event::epoll::{self, CreateFlags, EventData, EventFlags},
};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};
use xtask::shell::{Outcome, cannot_run};

/// The hidden first argument with which this program runs as the clients.
pub(crate) const SUBCOMMAND: &str = "--events";

/// What the clients request.
const TARGET: &str = "/events";
/// What they print when each has received an event.
const READY: &str = "ready";
/// The number of the standard input among the streams.
const INPUT: u64 = u64::MAX;

/// Running clients. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct Streams {
    child: Child,
    ask: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Streams {
    /// Opens this number of streams from each of the servers, and waits until all have an event.
    pub(crate) fn open(clients: u32, servers: &[SocketAddr]) -> Outcome<Streams> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(own);
        command.args([SUBCOMMAND, &clients.to_string()]);
        command.args(servers.iter().map(SocketAddr::to_string));
        let mut command = pinned(&command, CLIENT_CORE);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| cannot_run(&command, &error))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (ask, out) = pipes.ok_or("the clients have no pipes")?;
        let lines = BufReader::new(out);
        let mut streams = Streams { child, ask, lines };
        match streams.line()?.trim() {
            READY => Ok(streams),
            other => Err(format!("the clients of events: '{other}'")),
        }
    }

    /// The number of events of each server that have arrived so far.
    pub(crate) fn counts(&mut self) -> Outcome<Vec<f64>> {
        let asked = self.ask.write_all(b"\n");
        asked.map_err(|error| format!("the clients of events have ended: {error}"))?;
        let line = self.line()?;
        let counts = line.split_whitespace().map(|word| {
            let count: Result<f64, _> = word.parse();
            count.map_err(|_| format!("the clients of events: '{}'", line.trim()))
        });
        counts.collect()
    }

    fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(1..) => Ok(line),
            _ => Err("the clients of events have ended: a stream has failed".to_owned()),
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the clients. The arguments are `CLIENTS ADDRESS…`.
pub(crate) fn main(arguments: &[String]) -> Outcome {
    let [clients, servers @ ..] = arguments else {
        return Err(format!("{SUBCOMMAND} is internal"));
    };
    let clients = clients.parse();
    let clients: usize = clients.map_err(|_| format!("{SUBCOMMAND}: not a number"))?;
    let servers: Result<Vec<SocketAddr>, _> = servers.iter().map(|text| text.parse()).collect();
    let servers = servers.map_err(|error| format!("{SUBCOMMAND}: {error}"))?;
    let clients = Clients::open(clients, &servers);
    let received = clients.and_then(|clients| clients.receive(io::stdin(), io::stdout()));
    received.map_err(|error| format!("{SUBCOMMAND}: {error}"))
}

/// A stream of one client.
struct Stream {
    socket: TcpStream,
    /// The number of its server.
    server: usize,
    counter: Counter,
    has_begun: bool,
}

/// Counts events in the bytes of a response: each ends with two line feeds, which neither a head
/// nor the framing of chunks contains.
#[derive(Debug, Default)]
struct Counter {
    /// The last byte was a line feed.
    after_lf: bool,
}

impl Counter {
    fn count(&mut self, bytes: &[u8]) -> u64 {
        let mut events = 0;
        for &byte in bytes {
            let is_lf = byte == b'\n';
            events += u64::from(is_lf && self.after_lf);
            self.after_lf = is_lf && !self.after_lf;
        }
        events
    }
}

struct Clients {
    epoll: OwnedFd,
    streams: Vec<Stream>,
    /// The events of each server.
    counts: Vec<u64>,
    /// Streams without an event.
    waiting: usize,
}

impl Clients {
    /// Sends the requests of all clients.
    fn open(clients: usize, servers: &[SocketAddr]) -> io::Result<Clients> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut streams = Vec::with_capacity(clients * servers.len());
        for _ in 0..clients {
            for (server, address) in servers.iter().enumerate() {
                let mut socket = TcpStream::connect(address)?;
                let request = format!("GET {TARGET} HTTP/1.1\r\nHost: {address}\r\n\r\n");
                socket.write_all(request.as_bytes())?;
                let number = EventData::new_u64(streams.len() as u64);
                epoll::add(&epoll, &socket, number, EventFlags::IN)?;
                streams.push(Stream {
                    socket,
                    server,
                    counter: Counter::default(),
                    has_begun: false,
                });
            }
        }
        Ok(Clients {
            epoll,
            waiting: streams.len(),
            streams,
            counts: vec![0; servers.len()],
        })
    }

    /// Receives until `input` ends. For what arrives there, prints the counts.
    fn receive(
        mut self,
        mut input: impl Read + std::os::fd::AsFd,
        mut out: impl Write,
    ) -> io::Result<()> {
        epoll::add(
            &self.epoll,
            &input,
            EventData::new_u64(INPUT),
            EventFlags::IN,
        )?;
        let mut ready = Vec::with_capacity(1024);
        let mut piece = vec![0; 16 * 1024];
        let mut was_waiting = true;
        loop {
            epoll::wait(&self.epoll, spare_capacity(&mut ready), None)?;
            let mut is_asked = false;
            for event in ready.drain(..) {
                match event.data.u64() {
                    INPUT => is_asked = true,
                    number => self.read(number as usize, &mut piece)?,
                }
            }
            if was_waiting && self.waiting == 0 {
                was_waiting = false;
                writeln!(out, "{READY}")?;
                out.flush()?;
            }
            if is_asked {
                if input.read(&mut piece)? == 0 {
                    return Ok(());
                }
                let counts: Vec<String> = self.counts.iter().map(u64::to_string).collect();
                writeln!(out, "{}", counts.join(" "))?;
                out.flush()?;
            }
        }
    }

    fn read(&mut self, number: usize, piece: &mut [u8]) -> io::Result<()> {
        let stream = &mut self.streams[number];
        let bytes = stream.socket.read(piece)?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let events = stream.counter.count(&piece[..bytes]);
        self.counts[stream.server] += events;
        if events > 0 && !stream.has_begun {
            stream.has_begun = true;
            self.waiting -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, os::unix::net::UnixStream, thread};

    const RESPONSE: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
        c\r\ndata: tick\n\n\r\n18\r\ndata: tick\n\ndata: tick\n\n\r\n";

    #[test]
    fn events_are_counted_wherever_they_are_split() {
        for at in 0..RESPONSE.len() {
            let mut counter = Counter::default();
            let (first, second) = RESPONSE.as_bytes().split_at(at);
            assert_eq!(counter.count(first) + counter.count(second), 3, "{at}");
        }
    }

    #[test]
    fn clients_count_the_events_of_each_server() {
        let servers = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("listens"));
        let addresses = [0, 1].map(|at: usize| servers[at].local_addr().expect("an address"));
        for server in servers {
            thread::spawn(move || {
                let accept = |_| server.accept().expect("a client").0;
                let mut streams: Vec<TcpStream> = (0..2).map(accept).collect();
                for stream in &mut streams {
                    stream.write_all(RESPONSE.as_bytes()).expect("sent");
                }
                thread::park(); // The streams stay open.
            });
        }
        let clients = Clients::open(2, &addresses).expect("connected");
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        let out = theirs.try_clone().expect("a handle");
        let receiving = thread::spawn(move || clients.receive(theirs, out));
        let mut lines = BufReader::new(ours.try_clone().expect("a handle"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        ours.write_all(b"\n").expect("sent");
        line.clear();
        lines.read_line(&mut line).expect("a line");
        assert_eq!(line, "6 6\n");
        ours.shutdown(std::net::Shutdown::Write).expect("the end");
        receiving.join().expect("no panic").expect("no error");
    }

    #[test]
    fn a_stream_that_ends_is_an_error() {
        let server = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = server.local_addr().expect("an address");
        thread::spawn(move || drop(server.accept()));
        let clients = Clients::open(1, &[address]).expect("connected");
        let (_ours, theirs) = UnixStream::pair().expect("a pair");
        assert!(clients.receive(theirs, io::sink()).is_err());
        assert!(main(&[]).is_err() && main(&["x".to_owned()]).is_err());
    }
}
