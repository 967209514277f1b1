//! Shared by the tests of the engine: servers on each driver, a scripted client for the
//! simulated network and real sockets, and the application that the scripts use.
#![allow(unreachable_pub)]

pub mod app;
pub mod attack;
pub mod coded;
pub mod contract;
pub mod entries;
pub mod gate;
pub mod memory;
#[cfg(feature = "tls")]
pub mod over_tls;
pub mod script;
#[cfg(feature = "tls")]
pub mod sim_tls;

use onrush::{
    Application, BodySender, DriverPreference, Limits, RequestBody, Response, Running, Server,
    Upgraded, sim::Simulation,
};
use onrush_rt::driver::sim::{Behaviour, Client};
use onrush_rt::net::Address;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
pub use testing::{read_some, watchdog};

/// The available kernel drivers. Prints why one is not.
pub fn drivers() -> Vec<DriverPreference> {
    let config = onrush_rt::driver::Config::default();
    let probe = || onrush_rt::driver::choose(DriverPreference::Uring, &config);
    testing::drivers::available(DriverPreference::Uring, DriverPreference::Epoll, probe)
}

/// A server on a free port of 127.0.0.1. Dropping it ends it at once.
pub struct Served {
    running: Option<Running>,
    #[cfg_attr(not(feature = "tls"), expect(dead_code, reason = "always false"))]
    uses_tls: bool,
}

/// Whether all servers of this test binary use TLS. See `tests/through_tls.rs`.
pub const fn through_tls() -> bool {
    cfg!(feature = "tls") && matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"through_tls")
}

/// Starts a server. `configure` gets one with a single worker.
pub fn serve_with(
    driver: DriverPreference,
    application: impl Application,
    configure: impl FnOnce(Server) -> Server,
) -> Served {
    start(driver, application, configure, through_tls())
}

/// A server without TLS, also in `tests/through_tls.rs`.
pub fn serve_plain(driver: DriverPreference, application: impl Application) -> Served {
    start(driver, application, |server| server, false)
}

/// Limits for clients that take their time on a busy machine. Tests of limits set their own.
fn patient() -> Limits {
    Limits::default()
        .handshake_timeout(Duration::from_secs(120))
        .head_timeout(Duration::from_secs(120))
        .body_timeout(Duration::from_secs(120))
        .write_timeout(Duration::from_secs(120))
        .idle_timeout(Duration::from_secs(120))
}

fn start(
    driver: DriverPreference,
    application: impl Application,
    configure: impl FnOnce(Server) -> Server,
    uses_tls: bool,
) -> Served {
    let server = Server::bind("127.0.0.1:0").driver(driver).workers(1);
    let server = server.limits(patient());
    let server = configure(server).pinned(false);
    #[cfg(feature = "tls")]
    let server = match uses_tls {
        true => server.tls(over_tls::CONFIGS.0.clone()),
        false => server,
    };
    Served {
        running: Some(server.start(application).expect("a server starts")),
        uses_tls,
    }
}

/// Servers of the scripts' application on each driver, plain, and with TLS if the crate has it.
pub fn servers() -> impl Iterator<Item = (DriverPreference, Served)> {
    let each = |driver| {
        let servers = [
            serve_with(driver, app::app, |server| server.half_close(true)),
            #[cfg(feature = "tls")]
            serve_tls(driver, app::app, |server| server.half_close(true)),
        ];
        servers.into_iter().map(move |server| (driver, server))
    };
    drivers().into_iter().flat_map(each)
}

/// [`serve_with`], whose connections go through TLS.
#[cfg(feature = "tls")]
pub fn serve_tls(
    driver: DriverPreference,
    application: impl Application,
    configure: impl FnOnce(Server) -> Server,
) -> Served {
    start(driver, application, configure, true)
}

pub fn serve(driver: DriverPreference, application: impl Application) -> Served {
    serve_with(driver, application, |server| server)
}

/// Asks `server` for a file of `bytes` bytes, which `shrink` makes shorter while it is sent: the
/// client sees that the response is incomplete, and others are served.
pub fn check_shrinking_file(server: &Served, request: &str, bytes: u64, shrink: impl FnOnce()) {
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    shrink();
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    assert!((rest.len() as u64) < bytes);
    let kind = ended.expect_err("an incomplete response").kind();
    assert_eq!(kind, io::ErrorKind::ConnectionReset);
    assert!(server.get("/hello").ends_with(b"hello"));
}

impl Served {
    pub fn running(&self) -> &Running {
        self.running.as_ref().expect("present until dropped")
    }

    fn open(&self) -> TcpStream {
        #[cfg(feature = "tls")]
        if self.uses_tls {
            return over_tls::connect(self.address());
        }
        TcpStream::connect(self.address()).expect("the server listens")
    }

    pub fn address(&self) -> SocketAddr {
        match self.running().address() {
            Address::Tcp(address) => *address,
            other => panic!("a TCP address, not {other}"),
        }
    }

    /// A connection whose reads and writes have a timeout.
    pub fn connect(&self) -> TcpStream {
        let stream = self.open();
        stream.set_nodelay(true).expect("an option");
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).expect("an option");
        stream.set_write_timeout(limit).expect("an option");
        stream
    }

    /// The response to one request for `path`, on its own connection.
    pub fn get(&self, path: &str) -> Vec<u8> {
        let mut stream = self.connect();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).expect("a response");
        response
    }

    /// Waits for the end of the server and returns its result.
    pub fn wait(mut self) -> io::Result<()> {
        self.running.take().expect("present until dropped").wait()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.handle().shutdown_now();
            let ended = running.wait();
            if !std::thread::panicking() {
                ended.expect("no worker failed");
            }
        }
    }
}

/// How many of `all` seeds a test of the simulator uses: all of them if the matrix is full.
pub fn seeds(all: u64) -> u64 {
    match testing::matrix::is_full() {
        true => all,
        false => all * 2 / 5,
    }
}

/// A network without splits and delays.
pub fn plain(pipe_bytes: usize) -> Behaviour {
    Behaviour {
        pipe_bytes,
        split: false,
        delay: false,
    }
}

/// A simulation without splits and delays, for tests of time and memory.
pub fn calm(application: &impl Application, limits: Limits) -> Simulation {
    Simulation::builder(1)
        .limits(limits)
        .network(plain(64 * 1024))
        .start(application)
}

/// The response to one request on a persistent connection.
pub fn ask(sim: &mut Simulation, client: &Client, request: &str) -> String {
    assert_eq!(sim.send(client, request.as_bytes()), request.len());
    sim.run();
    text(&client.receive().expect("a response"))
}

/// A `GET` with the required fields.
pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n")
}

/// Whether a new client gets a response.
pub fn is_served(sim: &mut Simulation) -> bool {
    let client = sim.connect();
    ask(sim, &client, &get("/hello")).ends_with("\r\n\r\nhello")
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The status codes of several responses whose content does not look like a status line.
pub fn statuses(responses: &[u8]) -> Vec<u16> {
    let responses = text(responses);
    let lines = responses.split("HTTP/1.1 ").skip(1);
    lines
        .map(|line| line[..3].parse().expect("a status"))
        .collect()
}

/// The bytes after the first head.
pub fn content(response: &[u8]) -> &[u8] {
    let end = response.windows(4).position(|w| w == b"\r\n\r\n");
    &response[end.expect("a whole head") + 4..]
}

/// The responses with every date replaced.
pub fn mask_dates(responses: &[u8]) -> String {
    let responses = text(responses);
    let mut masked = String::with_capacity(responses.len());
    for (index, part) in responses.split("\r\nDate: ").enumerate() {
        if index > 0 {
            masked.push_str("\r\nDate: -");
        }
        masked.push_str(if index > 0 { &part[29..] } else { part });
    }
    masked
}

/// Decodes a complete chunked body.
pub fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let line = body.windows(2).position(|w| w == b"\r\n").expect("a size");
        let size = std::str::from_utf8(&body[..line]).expect("a size in hex");
        let size = usize::from_str_radix(size, 16).expect("a size in hex");
        body = &body[line + 2..];
        if size == 0 {
            assert_eq!(body, b"\r\n", "the end of the body");
            return all;
        }
        all.extend_from_slice(&body[..size]);
        assert_eq!(&body[size..size + 2], b"\r\n");
        body = &body[size + 2..];
    }
}

/// Bytes that depend on their position, so that a lost, duplicated or reordered one is detected.
pub fn pattern(bytes: usize) -> Vec<u8> {
    let value = |i: usize| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
    (0..bytes).map(value).collect()
}

/// The resident memory of this process in bytes.
pub fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<usize>().ok())
        .expect("a size")
        * 1024
}

/// The parts of an upgrade: the response, and both directions of the other protocol.
pub fn parts(upgraded: Upgraded) -> (Response, RequestBody, BodySender) {
    let Upgraded {
        response,
        from_client,
        to_client,
        ..
    } = upgraded;
    (response, from_client, to_client)
}
