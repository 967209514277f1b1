//! Shared by the tests of the drivers and of the worker: one rig per driver, connected pairs of
//! every transport, a watchdog for each test, and tests that run themselves in a child process.
#![allow(unreachable_pub)]

use onrush_rt::driver::sim::{self, Behaviour};
use onrush_rt::driver::{Choice, Config, Driver, Event, Preference, Socket, StreamId, choose};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;
pub use testing::watchdog;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Uring,
    Epoll,
    Sim,
}

pub const KERNEL: [Kind; 2] = [Kind::Uring, Kind::Epoll];
pub const ALL: [Kind; 3] = [Kind::Uring, Kind::Epoll, Kind::Sim];

/// The transport of a connected pair. The simulated network ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp4,
    Tcp6,
    Unix,
}

/// A driver that the test itself polls.
pub struct Rig {
    pub kind: Kind,
    pub driver: Driver,
    pub net: Option<sim::Net>,
}

/// The choice of a kernel driver. If it is refused, prints the reason and returns `None`.
pub fn choice(kind: Kind) -> Option<Choice> {
    static URING: OnceLock<Choice> = OnceLock::new();
    let choose = |preference| choose(preference, &Config::default());
    if kind != Kind::Uring {
        return choose(Preference::Epoll).ok();
    }
    let probe = || choose(Preference::Uring).map(|choice| URING.set(choice));
    let works = testing::drivers::available(Kind::Uring, Kind::Epoll, probe);
    works.contains(&kind).then(|| URING.wait().clone())
}

pub fn rig_with(kind: Kind, config: &Config, seed: u64) -> Option<Rig> {
    if kind == Kind::Sim {
        let net = sim::Net::new(seed, Behaviour::default());
        let driver = sim::SimDriver::new(net.clone(), config.receive_bytes_max);
        return Some(Rig {
            kind,
            driver: Driver::Sim(Box::new(driver)),
            net: Some(net),
        });
    }
    let driver = choice(kind)?.build(config).expect("the driver was probed");
    Some(Rig {
        kind,
        driver,
        net: None,
    })
}

/// Runs `test` on each of `kinds` that is available, under a watchdog.
pub fn on(kinds: &[Kind], what: &'static str, test: impl Fn(&mut Rig)) {
    let _dog = watchdog(what);
    for &kind in kinds {
        if let Some(mut rig) = rig_with(kind, &Config::default(), 1) {
            test(&mut rig);
        }
    }
}

/// Two connected sockets.
pub fn sockets(transport: Transport, net: Option<&sim::Net>) -> io::Result<(Socket, Socket)> {
    if let Some(net) = net {
        let (a, b) = net.pair();
        return Ok((Socket::Sim(a), Socket::Sim(b)));
    }
    let address = match transport {
        Transport::Tcp4 => "127.0.0.1:0",
        Transport::Tcp6 => "[::1]:0",
        Transport::Unix => {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let family = AddressFamily::UNIX;
            let (a, b) = rustix::net::socketpair(family, SocketType::STREAM, flags, None)?;
            return Ok((Socket::Os(a), Socket::Os(b)));
        }
    };
    let listener = TcpListener::bind(address)?;
    let a = TcpStream::connect(listener.local_addr()?)?;
    let (b, _) = listener.accept()?;
    for stream in [&a, &b] {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
    }
    Ok((Socket::Os(a.into()), Socket::Os(b.into())))
}

impl Rig {
    /// Two connected streams, tokens 1 and 2.
    pub fn pair(&mut self, transport: Transport) -> (StreamId, StreamId) {
        let (a, b) = sockets(transport, self.net.as_ref()).expect("a connected pair");
        (
            self.driver.attach(a, 1).expect("attached"),
            self.driver.attach(b, 2).expect("attached"),
        )
    }

    /// Polls once, for at most 20 ms, and returns all events.
    pub fn poll(&mut self) -> Vec<Event> {
        let driver = &mut self.driver;
        driver
            .poll_events(Some(Duration::from_millis(20)))
            .expect("the poll succeeds");
        std::iter::from_fn(|| driver.next()).collect()
    }

    /// Polls a few times, until the driver should be idle, and returns the events.
    pub fn poll_until_idle(&mut self) -> Vec<Event> {
        (0..8).flat_map(|_| self.poll()).collect()
    }

    /// Polls until `done` returns true. The watchdog limits the time.
    pub fn until(&mut self, mut done: impl FnMut(&mut Driver, Event) -> bool) {
        loop {
            let driver = &mut self.driver;
            driver
                .poll_events(Some(Duration::from_millis(20)))
                .expect("the poll succeeds");
            let mut over = false;
            while let Some(event) = self.driver.next() {
                over |= done(&mut self.driver, event);
            }
            if over {
                return;
            }
        }
    }

    /// All bytes that `stream` receives up to its end, which must be orderly.
    pub fn all_of(&mut self, stream: StreamId) -> Vec<u8> {
        let mut all = Vec::new();
        self.until(|_, event| match event {
            Event::Data {
                stream: from, data, ..
            } if from == stream => {
                assert!(!data.is_empty());
                all.extend_from_slice(&data);
                false
            }
            Event::End {
                stream: from,
                result,
                ..
            } if from == stream => {
                result.expect("an orderly end");
                true
            }
            _ => false,
        });
        all
    }
}

/// The stream and the token of an event; `None` for events of listeners.
pub fn whose(event: &Event) -> Option<(StreamId, u64)> {
    match event {
        Event::Data { stream, token, .. }
        | Event::End { stream, token, .. }
        | Event::ReceiveStopped { stream, token }
        | Event::Readable { stream, token }
        | Event::Writable { stream, token } => Some((*stream, *token)),
        Event::Accepted { .. } | Event::AcceptPaused { .. } => None,
    }
}

/// Bytes that depend on their position, so that a lost, duplicated or reordered one is detected.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = sim::Random::new(seed);
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

/// Runs `act` in a child process. The test `name` of `module` must do nothing but call this.
pub fn in_child(module: &str, name: &'static str, act: impl FnOnce()) {
    let _dog = watchdog(name);
    if !testing::child::elsewhere(module, name) {
        act();
    }
}

/// The CPU time that this process has used, in user space and in the kernel.
pub fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
