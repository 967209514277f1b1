//! An open loop: requests are sent when they are due, whether or not earlier ones have a response,
//! and their time counts from then. Sends three kinds at the same time: work, each on a new
//! connection, and pings on new and on established connections. One thread with non-blocking
//! sockets.

use crate::{
    client::{Epoll, pin_to_client_core},
    run::Run,
};
use fastrand::Rng;
use rustix::{
    event::epoll::EventFlags,
    net::{AddressFamily, SocketFlags, SocketType, connect, socket_with},
};
use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// A request without a response for this time is lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between two samples of the listener's queue.
const SAMPLE: Duration = Duration::from_millis(50);

/// A wait ends this time before the next request is due: the kernel wakes threads a little late.
const EARLY: Duration = Duration::from_micros(100);

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `GET /data` with `Connection: close`.
    Data,
    /// `GET /ping` with `Connection: close`: shows how soon connections are accepted.
    New,
    /// `GET /ping` on an open connection.
    Established,
}

/// The mean number of requests of each kind per second, and the duration of the load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) data_per_s: f64,
    pub(super) pings_per_s: f64,
    pub(super) time: Duration,
    pub(super) seed: u64,
}

/// The results of a load.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadResults {
    /// Microseconds until each response with status 200 within [`PATIENCE`], by kind.
    pub(super) data_us: Vec<f64>,
    pub(super) new_us: Vec<f64>,
    pub(super) established_us: Vec<f64>,
    /// Microseconds until each response with status 503 to `/data`.
    pub(super) rejected_us: Vec<f64>,
    /// `/data` without a response within [`PATIENCE`].
    pub(super) lost: u64,
    /// Pings without a response within [`PATIENCE`].
    pub(super) pings_lost: u64,
    /// Samples: seconds; connections opened, accepted, and done until then.
    pub(super) samples: Vec<(f64, u64, u64, u64)>,
}

/// The time of each request after the beginning, in order.
fn schedule(plan: &Plan) -> Vec<(Duration, Kind)> {
    let mut rng = Rng::with_seed(plan.seed);
    let mut all = Vec::new();
    let kinds = [
        (Kind::Data, plan.data_per_s),
        (Kind::New, plan.pings_per_s),
        (Kind::Established, plan.pings_per_s),
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

/// A request without a complete response.
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
    epoll: Epoll,
    /// The place of a request is its number in `epoll`.
    pending: Vec<Option<Pending>>,
    free: Vec<usize>,
    /// Idle connections for [`Kind::Established`].
    idle: Vec<TcpStream>,
    begun: Instant,
    results: LoadResults,
    /// Connections opened for `/data` and new pings, and how many of them have ended.
    opened: u64,
    ended: u64,
}

/// Loads the server at `address` from the clients' core.
pub(super) fn load(run: &Run, address: SocketAddr, plan: &Plan) -> Outcome<LoadResults> {
    pin_to_client_core()?;
    let mut all = Loop {
        run,
        address,
        epoll: Epoll::new()?,
        pending: Vec::new(),
        free: Vec::new(),
        idle: Vec::new(),
        begun: Instant::now(),
        results: LoadResults::default(),
        opened: 0,
        ended: 0,
    };
    all.run(&schedule(plan), plan.time)?;
    Ok(all.results)
}

impl Loop<'_> {
    fn run(&mut self, schedule: &[(Duration, Kind)], time: Duration) -> Outcome {
        let end = self.begun + time;
        let mut next = 0;
        let mut sampled = self.begun;
        loop {
            self.run.check_interrupt()?;
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
            let wait = wait.saturating_duration_since(now);
            self.poll(wait.saturating_sub(EARLY))?;
        }
        for pending in self.pending.iter_mut().filter_map(Option::take) {
            match pending.kind {
                Kind::Data => self.results.lost += 1,
                Kind::New | Kind::Established => self.results.pings_lost += 1,
            }
        }
        Ok(())
    }

    fn sample(&mut self) {
        let queued = queued(self.address.port());
        let at = self.begun.elapsed().as_secs_f64();
        let accepted = self.opened.saturating_sub(queued);
        let sample = (at, self.opened, accepted, self.ended);
        self.results.samples.push(sample);
    }

    fn begin(&mut self, kind: Kind, due: Instant) -> Outcome {
        let reused = match kind {
            Kind::Established => self.idle.pop(),
            Kind::Data | Kind::New => None,
        };
        let is_new = reused.is_none();
        let stream = match reused {
            Some(stream) => stream,
            None => begin_connection(self.address)?,
        };
        if is_new && kind != Kind::Established {
            self.opened += 1;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        match is_new {
            true => self.epoll.add(&stream, at, flags)?,
            false => self.epoll.modify(&stream, at, flags)?,
        }
        self.pending[at] = Some(Pending {
            kind,
            due,
            stream,
            is_sent: false,
            received: Vec::new(),
        });
        Ok(())
    }

    /// Waits for events, and sends and receives on the sockets that are ready.
    fn poll(&mut self, wait: Duration) -> Outcome {
        for at in self.epoll.wait(wait)? {
            let Some(mut pending) = self.pending[at].take() else {
                continue;
            };
            match pending.poll() {
                None => self.pending[at] = Some(pending),
                Some(status) => {
                    self.free.push(at);
                    self.record(pending, status);
                }
            }
        }
        Ok(())
    }

    /// Records a request that has ended. Its status is 0 if it has no response.
    fn record(&mut self, pending: Pending, status: u16) {
        let time = pending.due.elapsed();
        let us = time.as_secs_f64() * 1e6;
        let in_time = status == 200 && time <= PATIENCE;
        let results = &mut self.results;
        if pending.kind != Kind::Established {
            self.ended += 1;
        }
        match (pending.kind, in_time) {
            (Kind::Data, true) => results.data_us.push(us),
            (Kind::Data, false) if status == 503 => results.rejected_us.push(us),
            (Kind::Data, false) => results.lost += 1,
            (Kind::New, true) => results.new_us.push(us),
            (Kind::Established, true) => results.established_us.push(us),
            (Kind::New | Kind::Established, false) => results.pings_lost += 1,
        }
        if pending.kind == Kind::Established && status != 0 {
            self.idle.push(pending.stream);
        }
    }
}

impl Pending {
    /// Sends and receives without blocking. Returns the status when the request has ended, 0
    /// without a response.
    fn poll(&mut self) -> Option<u16> {
        if !self.is_sent {
            match self.stream.write(self.request()) {
                Ok(_) => self.is_sent = true,
                Err(error) if is_not_ready(error.kind()) => return None,
                Err(_) => return Some(0),
            }
        }
        let mut piece = [0; 2048];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return Some(status(&self.received).unwrap_or(0)),
                Ok(count) => self.received.extend_from_slice(&piece[..count]),
                Err(error) if is_not_ready(error.kind()) => break,
                Err(_) => return Some(0),
            }
            if self.kind == Kind::Established && self.received.ends_with(b"pong\n") {
                return Some(status(&self.received).unwrap_or(0));
            }
        }
        None
    }

    /// The request. It fits into the send buffer of a new connection.
    fn request(&self) -> &'static [u8] {
        match self.kind {
            Kind::Data => b"GET /data HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            Kind::New => b"GET /ping HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            Kind::Established => b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
        }
    }
}

fn is_not_ready(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::NotConnected)
}

fn status(response: &[u8]) -> Option<u16> {
    let code = response.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(code).ok()?.parse().ok()
}

/// Begins a connection without waiting for it: clients of a full listener wait.
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

/// Connections that wait to be accepted on `port`. Reads the first page of `/proc/net/tcp`
/// (proc_pid_net(5)), where listeners come first. Their fifth field ends in the queue length.
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
    use std::{net::TcpListener, thread};

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
        assert!((850..1_150).contains(&count(Kind::Established)));
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

    /// Serves each connection on its own thread, with the `response` to the path.
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
    fn responses_of_each_kind_are_counted() {
        let address = server(|path| match path {
            "/ping" => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\npong\n",
            _ => "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        });
        let run = Run::for_test("open");
        let plan = Plan {
            data_per_s: 100.0,
            pings_per_s: 100.0,
            time: Duration::from_millis(300),
            seed: 3,
        };
        let results = load(&run, address, &plan).expect("runs");
        let due = schedule(&plan);
        let count = |kind| due.iter().filter(|(_, one)| *one == kind).count();
        assert_eq!(results.rejected_us.len(), count(Kind::Data));
        assert_eq!(results.new_us.len(), count(Kind::New));
        assert_eq!(results.established_us.len(), count(Kind::Established));
        assert_eq!(
            (results.data_us.len(), results.lost, results.pings_lost),
            (0, 0, 0)
        );
        assert!(!results.samples.is_empty());
    }
}
