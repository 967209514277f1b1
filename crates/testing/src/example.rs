//! The examples of the workspace as programs.
//!
//! Cargo builds examples into the folder beside that of the test binaries, if all tests are built
//! (`cargo xtask nightly`), and not for one test alone.

use crate::{ReservedPort, or_skip};
use std::{
    env,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The time within which an example listens, and its responses arrive.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A running example that listens on loopback. Dropping it ends it.
pub struct Example {
    /// The process.
    pub child: Child,
    /// Where it listens.
    pub port: u16,
    _reserved: ReservedPort,
}

impl Example {
    /// Starts the example `name`, whose first argument is a port, and waits until it listens.
    ///
    /// # Panics
    /// If it does not start, or does not listen within 20 seconds.
    pub fn start(name: &str, driver: &str, workers: u32, arguments: &[&str]) -> Example {
        let reserved = ReservedPort::new().expect("a free port");
        let port = reserved.number();
        let child = Command::new(program(name))
            .arg(port.to_string())
            .args(arguments)
            .env("ONRUSH_WORKERS", workers.to_string())
            .env("ONRUSH_DRIVER", driver)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let example = Example {
            child,
            port,
            _reserved: reserved,
        };
        let end = Instant::now() + TIMEOUT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "{name} does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        example
    }

    /// A new connection, on which a read fails after 20 seconds.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Sends `sent` on a new connection and returns all responses up to its end.
    pub fn ask(&self, sent: impl AsRef<[u8]>) -> Vec<u8> {
        let mut stream = self.connect();
        let (mut writer, sent) = (stream.try_clone().unwrap(), sent.as_ref().to_vec());
        let writes = thread::spawn(move || {
            let _ = writer.write_all(&sent); // It may be refused before everything is sent.
        });
        let mut responses = Vec::new();
        let _ = stream.read_to_end(&mut responses);
        writes.join().unwrap();
        responses
    }

    /// The response to a GET of `path`, with its head.
    ///
    /// # Panics
    /// If it is not UTF-8.
    pub fn get(&self, path: &str) -> String {
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        String::from_utf8(self.ask(head)).unwrap()
    }

    /// Whether cargo has built the example `name`. If not, a message tells it.
    ///
    /// # Panics
    /// If it is not built and `CI` is set: there, all are.
    pub fn is_built(name: &str) -> bool {
        let reason = format!("{name} is missing; `cargo build --workspace --examples` builds it");
        or_skip(program(name).exists(), &reason)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of the example `name`, built or not.
pub fn program(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    profile.join("examples").join(name)
}
