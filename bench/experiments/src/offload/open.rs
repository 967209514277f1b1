//! An open loop: requests are sent when they are due, whatever became of those before, and their
//! time counts from then. Three kinds at once: work, each on a connection of its own; and pings, on
//! new connections and on one that is kept. One thread, without blocking. Must not know what the
//! server does with them.

use crate::run::Run;
use fastrand::Rng;
use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with},
    thread::{CpuSet, sched_setaffinity},
};
use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// Nobody waits longer for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// How often the queue of the listener is looked at.
const SAMPLE: Duration = Duration::from_millis(50);
const EVENTS: usize = 128;

/// So long before something is due nothing is waited for any more.
const EARLY: Duration = Duration::from_micros(100);

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `GET /data` with `Connection: close`.
    Data,
    /// `GET /ping` with `Connection: close`: tells how soon connections are accepted.
    Fresh,
    /// `GET /ping` on a connection that is there.
    Kept,
}

/// How many of each kind a second, on average, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) data_per_s: f64,
    pub(super) pings_per_s: f64,
    pub(super) time: Duration,
    pub(super) seed: u64,
}

/// What became of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Of answers 200 that somebody still waited for, in microseconds, by kind.
    pub(super) data_us: Vec<f64>,
    pub(super) fresh_us: Vec<f64>,
    pub(super) kept_us: Vec<f64>,
    /// `/data` answered 503, after so many microseconds.
    pub(super) shed_us: Vec<f64>,
    /// `/data` not answered while somebody waited, or not at all.
    pub(super) lost: u64,
    /// Pings not answered in time.
    pub(super) pings_lost: u64,
    /// `/data` answered 200 while the load lasted, however late.
    pub(super) done: u64,
    /// Over time: seconds, connections made, accepted, and done.
    pub(super) course: Vec<(f64, u64, u64, u64)>,
}

/// When each request is due, from the beginning, in order.
fn schedule(plan: &Plan) -> Vec<(Duration, Kind)> {
    let mut rng = Rng::with_seed(plan.seed);
    let mut all = Vec::new();
    let kinds = [
        (Kind::Data, plan.data_per_s),
        (Kind::Fresh, plan.pings_per_s),
        (Kind::Kept, plan.pings_per_s),
    ];
    for (kind, per_s) in kinds.into_iter().filter(|(_, per_s)| *per_s > 0.0) {
        let mut at = 0.0;
        loop {
            at += -(1.0 - rng.f64()).ln() / per_s;
            if at >= plan.time.as_secs_f64() {
                break;
            }
            all.push((Duration::from_secs_f64(at), kind));
        }
    }
    all.sort_by_key(|(due, _)| *due);
    all
}

/// A request under way.
struct Pending {
    kind: Kind,
    due: Instant,
    stream: TcpStream,
    is_sent: bool,
    received: Vec<u8>,
}

struct Loop<'a> {
    run: &'a Run,
    address: SocketAddr,
    epoll: OwnedFd,
    pending: Vec<Option<Pending>>,
    free: Vec<usize>,
    /// Connections that are open and idle, for [`Kind::Kept`].
    kept: Vec<TcpStream>,
    begun: Instant,
    seen: Seen,
    /// Connections made for `/data` and new pings; and how many of them have ended.
    made: u64,
    ended: u64,
}

/// Loads the server at `address` from the clients' core.
pub(super) fn load(run: &Run, address: SocketAddr, plan: &Plan) -> Outcome<Seen> {
    let mut core = CpuSet::new();
    core.set(runner::server::CLIENT_CORE.parse().unwrap_or(1));
    sched_setaffinity(None, &core).map_err(|error| format!("no core: {error}"))?;
    let mut all = Loop {
        run,
        address,
        epoll: epoll::create(CreateFlags::CLOEXEC).map_err(|error| format!("epoll: {error}"))?,
        pending: Vec::new(),
        free: Vec::new(),
        kept: Vec::new(),
        begun: Instant::now(),
        seen: Seen::default(),
        made: 0,
        ended: 0,
    };
    all.run(&schedule(plan), plan.time)?;
    Ok(all.seen)
}

impl Loop<'_> {
    fn run(&mut self, schedule: &[(Duration, Kind)], time: Duration) -> Outcome {
        let end = self.begun + time;
        let mut next = 0;
        let mut sampled = self.begun;
        loop {
            self.run.go_on()?;
            let now = Instant::now();
            if now >= sampled && now < end {
                sampled += SAMPLE;
                self.sample();
            }
            while let Some(&(due, kind)) = schedule.get(next) {
                if self.begun + due > now {
                    break;
                }
                next += 1;
                self.begin(kind, self.begun + due)?;
            }
            let waits = self.pending.len() > self.free.len();
            if now >= end && (!waits || now >= end + PATIENCE) {
                break;
            }
            let due = schedule.get(next).map(|(due, _)| self.begun + *due);
            let wait = due.unwrap_or(end + PATIENCE).min(sampled.max(now + SAMPLE));
            // The kernel wakes a little late; the core is its own, so it rather looks again.
            let wait = wait.saturating_duration_since(now);
            self.turn(wait.saturating_sub(EARLY), end)?;
        }
        for pending in self.pending.iter_mut().filter_map(Option::take) {
            match pending.kind {
                Kind::Data => self.seen.lost += 1,
                _ => self.seen.pings_lost += 1,
            }
        }
        Ok(())
    }

    /// Notes how far things are.
    fn sample(&mut self) {
        let queued = queued(self.address.port());
        let at = self.begun.elapsed().as_secs_f64();
        let accepted = self.made.saturating_sub(queued);
        self.seen.course.push((at, self.made, accepted, self.ended));
    }

    fn begin(&mut self, kind: Kind, due: Instant) -> Outcome {
        let reused = match kind {
            Kind::Kept => self.kept.pop(),
            _ => None,
        };
        let is_new = reused.is_none();
        let stream = match reused {
            Some(stream) => stream,
            None => begin_connection(self.address)?,
        };
        if is_new && kind != Kind::Kept {
            self.made += 1;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        let data = EventData::new_u64(at as u64);
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let added = match is_new {
            true => epoll::add(&self.epoll, &stream, data, flags),
            false => epoll::modify(&self.epoll, &stream, data, flags),
        };
        added.map_err(|error| format!("epoll: {error}"))?;
        self.pending[at] = Some(Pending {
            kind,
            due,
            stream,
            is_sent: false,
            received: Vec::new(),
        });
        Ok(())
    }

    fn turn(&mut self, wait: Duration, end: Instant) -> Outcome {
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let mut ready: Vec<Event> = Vec::with_capacity(EVENTS);
        let room = rustix::buffer::spare_capacity(&mut ready);
        match epoll::wait(&self.epoll, room, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(format!("epoll: {error}")),
        }
        for event in &ready {
            let at = event.data.u64() as usize;
            let Some(mut pending) = self.pending[at].take() else {
                continue;
            };
            match pending.go_on() {
                None => self.pending[at] = Some(pending),
                Some(status) => {
                    self.free.push(at);
                    self.over(pending, status, end);
                }
            }
        }
        Ok(())
    }

    /// Counts a request that is over; 0 is the status of one without an answer.
    fn over(&mut self, pending: Pending, status: u16, end: Instant) {
        let time = pending.due.elapsed();
        let us = time.as_secs_f64() * 1e6;
        let in_time = status == 200 && time <= PATIENCE;
        match pending.kind {
            Kind::Data => {
                self.ended += 1;
                self.seen.done += u64::from(status == 200 && Instant::now() < end);
                match (in_time, status) {
                    (true, _) => self.seen.data_us.push(us),
                    (false, 503) => self.seen.shed_us.push(us),
                    _ => self.seen.lost += 1,
                }
            }
            Kind::Fresh => {
                self.ended += 1;
                match in_time {
                    true => self.seen.fresh_us.push(us),
                    false => self.seen.pings_lost += 1,
                }
            }
            Kind::Kept => {
                match in_time {
                    true => self.seen.kept_us.push(us),
                    false => self.seen.pings_lost += 1,
                }
                if status != 0 {
                    self.kept.push(pending.stream);
                }
            }
        }
    }
}

impl Pending {
    /// Does what can be done now; gives the status when it is over, 0 for none.
    fn go_on(&mut self) -> Option<u16> {
        if !self.is_sent {
            match self.stream.write(self.request()) {
                Ok(_) => self.is_sent = true,
                Err(error) if is_for_later(error.kind()) => return None,
                Err(_) => return Some(0),
            }
        }
        let mut piece = [0; 2048];
        loop {
            match self.stream.read(&mut piece) {
                // Whoever keeps a connection has its answer before its end.
                Ok(0) => return Some(status(&self.received).unwrap_or(0)),
                Ok(count) => self.received.extend_from_slice(&piece[..count]),
                Err(error) if is_for_later(error.kind()) => break,
                Err(_) => return Some(0),
            }
            if self.kind == Kind::Kept && self.received.ends_with(b"pong\n") {
                return Some(status(&self.received).unwrap_or(0));
            }
        }
        None
    }

    /// Small enough to be taken whole by a new connection.
    fn request(&self) -> &'static [u8] {
        match self.kind {
            Kind::Data => b"GET /data HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            Kind::Fresh => b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            Kind::Kept => b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
        }
    }
}

fn is_for_later(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

fn status(response: &[u8]) -> Option<u16> {
    let code = response.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(code).ok()?.parse().ok()
}

/// A connection that may not be there yet: a full listener lets clients wait.
fn begin_connection(address: SocketAddr) -> Outcome<TcpStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
    let socket = socket.map_err(|error| format!("a socket: {error}"))?;
    match connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(format!("a connection: {error}")),
    }
    let stream = TcpStream::from(socket);
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Connections that wait to be accepted on `port`, from the first page of `/proc/net/tcp`, where
/// listeners come first: of one the fifth field ends in the length of its queue.
fn queued(port: u16) -> u64 {
    let mut page = [0; 4096];
    let read = File::open("/proc/net/tcp").and_then(|mut file| file.read(&mut page));
    let text = String::from_utf8_lossy(&page[..read.unwrap_or(0)]).into_owned();
    listener_queue(&text, port)
}

fn listener_queue(text: &str, port: u16) -> u64 {
    const LISTEN: &str = "0A";
    let own = format!(":{port:04X}");
    let queue = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_own = fields.get(1)?.ends_with(&own) && *fields.get(3)? == LISTEN;
        let (_, queue) = fields.get(4).filter(|_| is_own)?.split_once(':')?;
        u64::from_str_radix(queue, 16).ok()
    };
    text.lines().filter_map(queue).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Effort;
    use std::{net::TcpListener, sync::Arc, thread};

    #[test]
    fn requests_are_due_as_often_as_planned() {
        let plan = Plan {
            data_per_s: 1000.0,
            pings_per_s: 100.0,
            time: Duration::from_secs(10),
            seed: 1,
        };
        let all = schedule(&plan);
        let count = |kind| all.iter().filter(|(_, one)| *one == kind).count();
        assert!((9_500..10_500).contains(&count(Kind::Data)));
        assert!((850..1_150).contains(&count(Kind::Kept)));
        assert!(all.is_sorted_by_key(|(due, _)| *due));
        assert_eq!(all, schedule(&plan));
    }

    #[test]
    fn a_listener_and_its_queue_are_found() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
            0: 0100007F:1F90 00000000:0000 0A 00000000:0000002A 00:0\n   \
            1: 0100007F:1F90 0100007F:C350 01 00000000:00000007 00:0\n";
        assert_eq!(listener_queue(text, 8080), 42);
        assert_eq!(listener_queue(text, 8081), 0);
    }

    /// Answers each connection with what `response` says to its path, on a thread of its own.
    fn server(response: fn(&str) -> &'static str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let serve = move |mut stream: TcpStream| {
            let mut piece = [0; 512];
            while let Ok(count @ 1..) = stream.read(&mut piece) {
                let text = String::from_utf8_lossy(&piece[..count]).into_owned();
                let path = text.split(' ').nth(1).unwrap_or_default();
                if stream.write_all(response(path).as_bytes()).is_err() {
                    return;
                }
                if text.contains("close") {
                    return;
                }
            }
        };
        // Ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || serve(stream));
            }
        });
        address
    }

    #[test]
    fn answers_of_each_kind_are_counted() {
        let address = server(|path| match path {
            "/ping" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\npong\n",
            _ => "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        });
        let out = std::env::temp_dir().join(format!("onrush-open-{}", std::process::id()));
        let run = Run::new(Effort::Quick, out.clone(), String::new(), Arc::default());
        let run = run.expect("made");
        let plan = Plan {
            data_per_s: 100.0,
            pings_per_s: 100.0,
            time: Duration::from_millis(300),
            seed: 3,
        };
        let seen = load(&run, address, &plan).expect("runs");
        let due = schedule(&plan);
        let count = |kind| due.iter().filter(|(_, one)| *one == kind).count();
        assert_eq!(seen.shed_us.len(), count(Kind::Data));
        assert_eq!(seen.fresh_us.len(), count(Kind::Fresh));
        assert_eq!(seen.kept_us.len(), count(Kind::Kept));
        assert_eq!((seen.lost, seen.pings_lost, seen.done), (0, 0, 0));
        assert!(!seen.course.is_empty());
        drop(run);
        std::fs::remove_dir_all(out).expect("removed");
    }
}
