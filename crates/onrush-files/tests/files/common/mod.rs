//! Shared by the tests of `files`: a server with a folder, on a driver or in the simulator, and a
//! client that sends raw HTTP, or in `over_http2.rs` the same as frames.

mod connection;
pub mod hooked;
pub mod tus;
pub mod webdav;

pub use connection::Connection;
pub use testing::Reply;
pub use testing::TempDir;

use onrush::offload::OffloadPool;
use onrush::sim::Simulation;
use onrush::{DriverPreference, Limits, Router, Running, Server};
use onrush_files::{Allow, Files, FilesOptions, Guard, Hosts, ListenAddress};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::driver::{Config, choose};
use onrush_rt::fs::sim::SimFs;
use onrush_rt::fs::{Create, Dir, OpenHow};
use onrush_store::{Folder, FolderOptions, Store};
use std::net::{Ipv4Addr, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testing::matrix;

/// A response whose content is JSON.
pub trait Json {
    /// # Panics
    /// If it is something else.
    fn json(&self) -> serde_json::Value;
}

impl Json for Reply {
    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Whether all clients of this test binary speak HTTP/2. See `over_http2.rs`.
pub const fn over_http2() -> bool {
    matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"files_over_http2")
}

/// A time long ago, so that an object changed then may be cached.
pub const LONG_AGO_S: u64 = 1_600_000_000;

/// Reading and writing, no hidden names, no site.
pub fn writable() -> FilesOptions {
    FilesOptions {
        allow: Allow {
            put: true,
            delete: true,
            ..Allow::default()
        },
        ..FilesOptions::default()
    }
}

enum Backend {
    Real {
        running: Option<Running>,
        dir: TempDir,
    },
    Sim {
        sim: Box<Simulation>,
        disk: SimFs,
    },
}

impl Backend {
    fn sim(&mut self) -> Option<&mut Simulation> {
        match self {
            Backend::Real { .. } => None,
            Backend::Sim { sim, .. } => Some(sim),
        }
    }
}

/// A server with a folder.
pub struct TestServer {
    backend: Backend,
    pub name: &'static str,
    pub files: Files,
    /// The path where it is mounted, with a slash at both ends.
    pub mount: &'static str,
    /// The connection of [`TestServer::request`], in HTTP/2.
    shared: Option<Connection>,
    /// Connections that outlive their requests.
    kept: Vec<Connection>,
}

/// The drivers that work here. Prints why one does not.
pub fn available_drivers() -> Vec<DriverPreference> {
    let probe = || choose(DriverPreference::Uring, &Config::default());
    testing::drivers::available(DriverPreference::Uring, DriverPreference::Epoll, probe)
}

/// The drivers that a test uses: an available one, which its name selects, or all if the matrix is
/// full.
pub fn drivers() -> Vec<DriverPreference> {
    let mut available = available_drivers();
    if over_http2() {
        available.reverse(); // So the two test binaries use both, in each test.
    }
    matrix::select(&available)
}

/// Runs a test on a driver and in the simulator with a seed, which its name selects; with a full
/// matrix, on both drivers and with three seeds.
pub fn on_all_backends(options: &FilesOptions, test: impl Fn(&mut TestServer)) {
    on_all_backends_at("/", options, test);
}

pub fn on_all_backends_at(
    mount: &'static str,
    options: &FilesOptions,
    test: impl Fn(&mut TestServer),
) {
    for driver in drivers() {
        test(&mut TestServer::real(mount, options, driver));
    }
    for seed in matrix::select(&[1, 2, 3]) {
        test(&mut TestServer::simulated(mount, options, seed));
    }
}

/// As [`on_all_backends`], with pools for CPU work that `pool` makes, one for each server.
pub fn on_all_backends_with_pool<P>(
    options: &FilesOptions,
    pool: impl Fn() -> (OffloadPool, P),
    test: impl Fn(&mut TestServer, &OffloadPool, P),
) {
    for driver in drivers() {
        let (offload, rest) = pool();
        let mut server = TestServer::real_with_pool("/", options, driver, Some(offload.clone()));
        test(&mut server, &offload, rest);
    }
    for seed in matrix::select(&[1, 2, 3]) {
        let (offload, rest) = pool();
        let (disk, of_server) = (SimFs::new(seed), Some(offload.clone()));
        let mut server = TestServer::simulated_with_pool(disk, "/", options, seed, of_server);
        test(&mut server, &offload, rest);
    }
}

/// The guard of the program on a loopback address, with the host names of the clients here.
fn guarded(mount: &str, files: &Files) -> Guard<Router> {
    let router = Router::new().any(&format!("{mount}{{*key}}"), files.clone());
    let names = ["test".to_owned(), "t".to_owned()];
    let hosts = Hosts::for_listener(&ListenAddress::resolve("127.0.0.1:0"), &names);
    Guard::new(hosts, router).body_bytes_max(32 << 20)
}

/// Limits for all tests but one.
fn limits() -> Limits {
    Limits::default()
        .body_bytes_max(u64::MAX) // The guard has a limit.
        // The machine may be busy.
        .head_timeout(Duration::from_secs(120))
        .body_timeout(Duration::from_secs(120))
        .write_timeout(Duration::from_secs(120))
        .linger_timeout(Duration::from_secs(20))
}

fn start(
    application: Guard<Router>,
    driver: DriverPreference,
    offload: Option<OffloadPool>,
) -> Running {
    let mut server = Server::bind("127.0.0.1:0").workers(2).driver(driver);
    if let Some(offload) = offload {
        server = server.offload_pool(offload);
    }
    server.limits(limits()).start(application).unwrap()
}

impl TestServer {
    pub fn real(
        mount: &'static str,
        options: &FilesOptions,
        driver: DriverPreference,
    ) -> TestServer {
        TestServer::real_with_pool(mount, options, driver, None)
    }

    fn real_with_pool(
        mount: &'static str,
        options: &FilesOptions,
        driver: DriverPreference,
        offload: Option<OffloadPool>,
    ) -> TestServer {
        let dir = TempDir::new();
        let files = Files::open(dir.path(), options.clone()).unwrap();
        let running = start(guarded(mount, &files), driver, offload);
        TestServer {
            name: running.driver().name(),
            backend: Backend::Real {
                running: Some(running),
                dir,
            },
            files,
            mount,
            shared: None,
            kept: Vec::new(),
        }
    }

    /// A real server in front of any store.
    pub fn on_store(
        store: Arc<dyn Store>,
        options: &FilesOptions,
        driver: DriverPreference,
    ) -> TestServer {
        let files = Files::on_store(store, BlockingPool::inline(), options.clone());
        let running = start(guarded("/", &files), driver, None);
        TestServer {
            name: running.driver().name(),
            backend: Backend::Real {
                running: Some(running),
                dir: TempDir::new(),
            },
            files,
            mount: "/",
            shared: None,
            kept: Vec::new(),
        }
    }

    /// Ends the server at once and starts another one with the same [`Files`].
    pub fn restart(&mut self, driver: DriverPreference) {
        let Backend::Real { running, .. } = &mut self.backend else {
            panic!("only a real server can restart");
        };
        let before = running.take().unwrap();
        before.handle().shutdown_now();
        before.wait().unwrap();
        self.shared = None;
        *running = Some(start(guarded(self.mount, &self.files), driver, None));
    }

    pub fn simulated(mount: &'static str, options: &FilesOptions, seed: u64) -> TestServer {
        TestServer::simulated_on(SimFs::new(seed), mount, options, seed)
    }

    pub fn simulated_on(
        disk: SimFs,
        mount: &'static str,
        options: &FilesOptions,
        seed: u64,
    ) -> TestServer {
        TestServer::simulated_with_pool(disk, mount, options, seed, None)
    }

    fn simulated_with_pool(
        disk: SimFs,
        mount: &'static str,
        options: &FilesOptions,
        seed: u64,
        offload: Option<OffloadPool>,
    ) -> TestServer {
        let how = FolderOptions {
            writable: options.allow.put || options.allow.delete,
            durability: options.durability,
            min_free_bytes: options.min_free_bytes,
            descriptors: options.descriptors.clone(),
            keep_properties: options.webdav,
            ..FolderOptions::default()
        };
        let folder = Folder::on(disk.root().unwrap(), BlockingPool::inline(), how).unwrap();
        let files = Files::new(folder, options.clone());
        let mut builder = Simulation::builder(seed).limits(limits());
        if let Some(offload) = offload {
            builder = builder.offload_pool(offload);
        }
        let sim = Box::new(builder.start(&guarded(mount, &files)));
        TestServer {
            name: "simulator",
            backend: Backend::Sim { sim, disk },
            files,
            mount,
            shared: None,
            kept: Vec::new(),
        }
    }

    /// The tasks of a simulated server.
    pub fn live_tasks(&self) -> Option<usize> {
        match &self.backend {
            Backend::Real { .. } => None,
            Backend::Sim { sim, .. } => Some(sim.worker().live_tasks()),
        }
    }

    pub fn is_simulated(&self) -> bool {
        matches!(self.backend, Backend::Sim { .. })
    }

    /// The simulated disk.
    pub fn disk(&self) -> &SimFs {
        match &self.backend {
            Backend::Sim { disk, .. } => disk,
            Backend::Real { .. } => panic!("this disk is not simulated"),
        }
    }

    /// The real folder.
    pub fn path(&self) -> Option<&Path> {
        match &self.backend {
            Backend::Real { dir, .. } => Some(dir.path()),
            Backend::Sim { .. } => None,
        }
    }

    pub fn root(&self) -> Dir {
        match &self.backend {
            Backend::Real { dir, .. } => Dir::open_root(dir.path()).unwrap(),
            Backend::Sim { disk, .. } => disk.root().unwrap(),
        }
    }

    /// Writes a file into the folder without the server. Its last change was long ago.
    pub fn add(&self, key: &str, content: &[u8]) {
        self.add_at(key.as_bytes(), content, LONG_AGO_S);
    }

    /// The same for any name, with a given time of the last change.
    pub fn add_at(&self, key: &[u8], content: &[u8], modified_s: u64) {
        let (dir, name) = self.parent_of(key);
        let how = OpenHow {
            create: Create::IfMissing,
            ..OpenHow::create_new(0o644)
        };
        let file = dir.open(name, how).unwrap();
        file.set_len(0).unwrap();
        file.write_all_at(content, 0).unwrap();
        file.set_modified(modified_s as i64 * 1_000_000_000)
            .unwrap();
    }

    /// Sets the time of the last change of an object to long ago, so that it may be cached.
    pub fn set_age(&self, key: &str) {
        let how = OpenHow {
            write: true,
            ..OpenHow::READ
        };
        let file = self.root().open(key.as_bytes(), how).unwrap();
        file.set_modified(LONG_AGO_S as i64 * 1_000_000_000)
            .unwrap();
    }

    pub fn add_folder(&self, key: &str) {
        let (dir, name) = self.parent_of(key.as_bytes());
        dir.create_dir(name, 0o755).unwrap();
    }

    fn parent_of<'k>(&self, key: &'k [u8]) -> (Dir, &'k [u8]) {
        let mut dir = self.root();
        let mut rest = key;
        while let Some(slash) = rest.iter().position(|&b| b == b'/') {
            let name = &rest[..slash];
            if dir.open_dir(name).is_err() {
                dir.create_dir(name, 0o755).unwrap();
            }
            dir = dir.open_dir(name).unwrap();
            rest = &rest[slash + 1..];
        }
        (dir, rest)
    }

    pub fn add_symlink(&self, key: &str, target: &str) {
        match &self.backend {
            Backend::Real { dir, .. } => {
                std::os::unix::fs::symlink(target, dir.path().join(key)).unwrap();
            }
            Backend::Sim { disk, .. } => {
                disk.add_symlink(key.as_bytes(), target.as_bytes()).unwrap()
            }
        }
    }

    pub fn add_fifo(&self, key: &str) {
        match &self.backend {
            Backend::Real { dir, .. } => {
                let made = std::process::Command::new("mkfifo")
                    .arg(dir.path().join(key))
                    .status();
                assert!(made.unwrap().success());
            }
            Backend::Sim { disk, .. } => disk.add_fifo(key.as_bytes()).unwrap(),
        }
    }

    /// The content of a file, read without the server.
    pub fn content(&self, key: &str) -> Option<Vec<u8>> {
        let file = self.root().open(key.as_bytes(), OpenHow::READ).ok()?;
        let mut content = vec![0; file.metadata().unwrap().size as usize];
        let mut at = 0;
        while at < content.len() {
            at += file.read_at(&mut content[at..], at as u64).unwrap();
        }
        Some(content)
    }

    /// The number of staged uploads on the disk.
    pub fn staged(&self) -> usize {
        let Ok(staging) = self.root().open_dir(b".onrush/staging") else {
            return 0;
        };
        let names = entries(&staging);
        let files = |name: &Vec<u8>| entries(&staging.open_dir(name).unwrap()).len();
        names.iter().map(files).sum()
    }

    /// Lets time pass.
    pub fn advance(&mut self, ms: u64) {
        match &mut self.backend {
            Backend::Real { .. } => std::thread::sleep(Duration::from_millis(ms)),
            Backend::Sim { sim, .. } => sim.advance(Duration::from_millis(ms)),
        }
    }

    /// The address of a real server.
    pub fn address(&self) -> String {
        match &self.backend {
            Backend::Real { running, .. } => running.as_ref().unwrap().address().to_string(),
            Backend::Sim { .. } => panic!("a simulated server has no address"),
        }
    }

    pub fn connect(&mut self) -> Connection {
        match &mut self.backend {
            Backend::Sim { sim, .. } => Connection::simulated(sim.connect()),
            Backend::Real { .. } => Connection::real(connect(&self.address())),
        }
    }

    /// A connection of another client than that of the other connections, to a real server.
    pub fn connect_from_another_address(&self) -> Connection {
        let address = self.address().parse().expect("an address");
        let stream = ::testing::connect_from(Ipv4Addr::new(127, 0, 0, 2), address);
        let timeout = Some(std::time::Duration::from_secs(20));
        stream.set_read_timeout(timeout).expect("a time");
        Connection::real(stream)
    }

    /// Sends as much of `bytes` as possible. A server that has responded may not read the rest.
    pub fn send(&mut self, connection: &mut Connection, bytes: &[u8]) {
        connection.send(self.backend.sim(), bytes);
    }

    /// Ends the last request in HTTP/2, although its content is shorter than announced.
    pub fn end_early(&mut self, connection: &mut Connection) {
        connection.end_early(self.backend.sim());
    }

    /// Receives up to the end of the connection.
    pub fn receive(&mut self, connection: &mut Connection) -> Vec<u8> {
        self.receive_until(connection, |_| false)
    }

    /// Receives until the bytes are complete, or up to the end of the connection.
    pub fn receive_until(
        &mut self,
        connection: &mut Connection,
        is_complete: impl Fn(&[u8]) -> bool,
    ) -> Vec<u8> {
        connection.receive_until(self.backend.sim(), is_complete)
    }

    /// Receives up to the end of the connection. In the simulator time passes meanwhile, up to an
    /// hour, which is longer than any limit of the server.
    pub fn receive_in_time(&mut self, connection: &mut Connection) -> Vec<u8> {
        let mut all = Vec::new();
        for _ in 0..36_000 {
            if self.is_simulated() {
                self.advance(100);
            }
            let Some(received) = connection.receive_some(self.backend.sim()) else {
                break;
            };
            all.extend(received);
        }
        all
    }

    /// Lets a client leave in the middle: it resets the connection, or in HTTP/2 the streams.
    pub fn abort(&mut self, connection: Connection) {
        self.kept.extend(connection.abort(self.backend.sim()));
    }

    /// Sends a request on its own connection and receives the response. `head` is the request line
    /// and the relevant fields, separated by `\n`. The path is not changed. In HTTP/2, all these
    /// requests share a connection.
    pub fn request(&mut self, head: &str, body: &[u8]) -> Reply {
        let mut lines = head.lines();
        let mut request = format!("{} HTTP/1.1\r\nHost: test\r\n", lines.next().unwrap());
        let mut framed = false;
        for line in lines {
            framed |= line.to_ascii_lowercase().starts_with("transfer-encoding:");
            framed |= line.to_ascii_lowercase().starts_with("content-length:");
            request.push_str(line);
            request.push_str("\r\n");
        }
        if !framed && (!body.is_empty() || head.starts_with("PUT ")) {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        request.push_str("Connection: close\r\n\r\n");
        let mut bytes = request.into_bytes();
        bytes.extend_from_slice(body);
        let response = self.exchange(&bytes);
        Reply::parse(&response, head.starts_with("HEAD "))
    }

    /// Sends a request and receives up to the end of the connection, or of the exchange in HTTP/2.
    fn exchange(&mut self, request: &[u8]) -> Vec<u8> {
        loop {
            let mut shared = self.shared.take();
            let sim = self.backend.sim();
            let is_open = shared.as_mut().is_some_and(|shared| shared.is_open(sim));
            let shared = shared.filter(|_| is_open);
            let mut connection = shared.unwrap_or_else(|| self.connect());
            self.send(&mut connection, request);
            let response = self.receive(&mut connection);
            if !connection.is_refused() {
                self.shared = connection.reuse();
                return response;
            }
        }
    }

    pub fn get(&mut self, path: &str) -> Reply {
        self.request(&format!("GET {path}"), b"")
    }

    pub fn put(&mut self, path: &str, body: &[u8]) -> Reply {
        self.request(&format!("PUT {path}"), body)
    }

    pub fn delete(&mut self, path: &str) -> Reply {
        self.request(&format!("DELETE {path}"), b"")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Backend::Real { running, .. } = &mut self.backend
            && let Some(running) = running.take()
        {
            running.handle().shutdown_now();
            running.wait().unwrap();
        }
    }
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    let timeout = Some(Duration::from_secs(60));
    stream.set_read_timeout(timeout).unwrap();
    stream.set_write_timeout(timeout).unwrap();
    stream
}

/// One request to a real server, for clients on other threads.
pub fn request_to(address: &str, method: &str, path: &str, body: &[u8]) -> Reply {
    let mut connection = Connection::real(connect(address));
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    connection.send(None, &[head.as_bytes(), body].concat());
    let response = connection.receive_until(None, |_| false);
    Reply::parse(&response, method == "HEAD")
}

/// Sends a request to a server that is nothing but a simulator, and receives up to the end.
pub fn ask_simulated(sim: &mut Simulation, request: &str) -> Vec<u8> {
    let mut connection = Connection::simulated(sim.connect());
    connection.send(Some(sim), request.as_bytes());
    connection.receive_until(Some(sim), |_| false)
}

pub fn entries(dir: &Dir) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    dir.read_dir(&mut |name, _| {
        all.push(name.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

/// Bytes that depend on their position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 16) as u8)
        .collect()
}

/// Waits until `holds` is true, for at most a minute: a machine may be busy.
pub fn wait_until(server: &mut TestServer, holds: impl Fn(&TestServer) -> bool) {
    let begin = Instant::now();
    while !holds(server) {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "the condition did not become true"
        );
        server.advance(5);
    }
}
