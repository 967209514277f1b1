//! Peak memory of a front end during 64 transfers of 1 GB: downloads whose clients read some
//! megabytes and then wait, so that every buffer on the way fills, and uploads in progress.

use super::{
    super::{Step, Task as AnyTask},
    PROFILE, front_ends,
};
use crate::{
    backend::COPIES,
    bench::Bench,
    peers::{Kind, Launch, Role},
    plan::Subject,
    row::{About, Metrics, Round, Row, Side, Target},
    server::{Server, free_port},
    work::Place,
};
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

const TRANSFERS: usize = 64;
const OBJECT: (&str, usize) = ("1g", 1_000_000_000);
/// Bytes of each transfer before its client waits.
const MOVED_BYTES: usize = 8_000_000;
/// Time for the buffers to fill, once all clients wait.
const SETTLE: Duration = Duration::from_secs(2);
/// Longest time of a client, for a front end that passes nothing on.
const PATIENCE: Duration = Duration::from_secs(60);
/// Target for the resident memory.
const MIB_MAX: f64 = 256.0;

pub(in crate::profiles) struct Task {
    role: Role,
    subjects: Vec<Subject>,
}

pub(super) fn steps(bench: &Bench) -> Vec<Step> {
    let step = |role| {
        let subjects = front_ends(bench, role);
        Step {
            profile: PROFILE,
            title: scenario(role),
            weight: subjects.len() as u32,
            task: AnyTask::Memory(Task { role, subjects }),
        }
    };
    [Role::Remote, Role::RemotePut].map(step).into()
}

fn scenario(role: Role) -> String {
    let method = match role {
        Role::RemotePut => "PUT",
        _ => "GET",
    };
    format!("{TRANSFERS} times {method} of 1 GB, memory")
}

impl Task {
    pub(in crate::profiles) fn run(&self, bench: &mut Bench) -> Vec<Row> {
        let rows = self.subjects.iter().map(|subject| {
            crate::progress(&format!("{}: {}", scenario(self.role), subject.label));
            let mut row = self.empty_row(bench, subject);
            match self.measure(bench, subject) {
                Ok(bytes) => {
                    row.server.peak_bytes = Some(bytes);
                    row.rounds.push(Round {
                        server: Metrics::only(bytes as f64 / f64::from(1 << 20)),
                        reference: Metrics::only(MIB_MAX),
                    });
                }
                Err(reason) => row.voids.push(reason),
            }
            row
        });
        rows.collect()
    }

    fn empty_row(&self, bench: &Bench, subject: &Subject) -> Row {
        let is_ours = subject.peer.kind == Kind::Onrush;
        Row {
            profile: PROFILE,
            scenario: scenario(self.role),
            about: About::Bound,
            unit: "MiB",
            server: bench.side(subject, self.role),
            reference: Side::named("256 MiB"),
            access_log: "off",
            target: is_ours.then_some(Target::AtMost(1.0)),
            ..Row::default()
        }
    }

    fn measure(&self, bench: &mut Bench, subject: &Subject) -> Outcome<u64> {
        if let Some(reason) = bench.missing.get(subject.peer.name) {
            return Err(reason.clone());
        }
        bench.backend()?.need(COPIES[0], OBJECT)?;
        let launch = Launch {
            role: self.role,
            port: free_port()?,
            folder: bench.bucket(COPIES[0])?,
            scratch: bench.work.empty(Place::Disk)?,
            connections: TRANSFERS as u32,
        };
        let mut command = (subject.peer.launch)(&bench.setup, &launch)?;
        command.envs(subject.environment.iter().copied());
        let server = Server::start(&command, launch.port)?;
        let moved = self.transfer_all(server.address);
        thread::sleep(SETTLE);
        let peak = server.peak_bytes();
        drop(server);
        match moved?.iter().filter(|bytes| **bytes < MOVED_BYTES).count() {
            0 => peak,
            short => Err(format!(
                "{short} of {TRANSFERS} transfers did not take place"
            )),
        }
    }

    /// Makes all transfers at the same time, and returns the bytes of each. Their connections are
    /// open until all have made their part.
    fn transfer_all(&self, address: SocketAddr) -> Outcome<Vec<usize>> {
        thread::scope(|scope| {
            let clients: Vec<_> = (0..TRANSFERS)
                .map(|number| scope.spawn(move || self.transfer(address, number)))
                .collect();
            let ended = clients.into_iter().map(|client| {
                let joined = client.join().map_err(|_| "a client panicked".to_owned())?;
                joined.map_err(|error| error.to_string())
            });
            let ended = ended.collect::<Outcome<Vec<(TcpStream, usize)>>>()?;
            thread::sleep(SETTLE);
            Ok(ended.into_iter().map(|(_, bytes)| bytes).collect())
        })
    }

    /// Moves the first bytes of a transfer. Returns its number of bytes and its connection.
    fn transfer(&self, address: SocketAddr, number: usize) -> io::Result<(TcpStream, usize)> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (name, bytes) = OBJECT;
        let (end, mut moved) = (Instant::now() + PATIENCE, 0);
        let mut piece = vec![b'x'; 64 * 1024];
        if self.role == Role::RemotePut {
            write!(
                stream,
                "PUT /unfinished-{number} HTTP/1.1\r\nHost: {address}\r\n\
                 Content-Length: {bytes}\r\n\r\n"
            )?;
        } else {
            write!(stream, "GET /{name} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
        }
        while moved < MOVED_BYTES && Instant::now() < end {
            moved += match self.role {
                Role::RemotePut => stream.write(&piece)?,
                _ => stream.read(&mut piece)?,
            };
        }
        Ok((stream, moved))
    }
}
