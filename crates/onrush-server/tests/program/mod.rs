//! Shared by the tests of the program: starting the real binary and waiting for it, folders to
//! serve, a small client, and external clients. Every wait is bounded.

pub mod certificates;
pub mod plain;
pub mod users;

use onrush_rt::driver::{Config, Preference, choose};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant};
use testing::{TempDir, drivers::available, matrix};

pub use testing::programs::{is_installed, output_within, tool, wait};

/// The maximum time for something that takes milliseconds on an idle machine.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// The binary, without the caller's `ONRUSH_*` variables.
pub fn onrush() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_onrush"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ONRUSH_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a command that should end by itself. If it does not, kills it and fails.
pub fn output(command: &mut Command) -> Output {
    output_within(command, TIMEOUT)
}

/// A running server. Dropping it kills it.
pub struct Server {
    pub child: Child,
    /// As printed: `http://127.0.0.1:PORT`, or with `https`.
    pub url: String,
    /// All lines on stdout.
    out: Arc<Mutex<String>>,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Serves `dir` on a free port. If this fails, panics with the log.
    pub fn start(dir: &Path, arguments: &[&str]) -> Server {
        let mut command = onrush();
        command.arg(dir).args(["--port", "0"]).args(arguments);
        Server::run(command)
    }

    /// As [`Server::start`], with a limit on open files (`ulimit -n`).
    pub fn with_descriptors(descriptors: u32, dir: &Path, arguments: &[&str]) -> Server {
        let mut shell = Command::new("sh");
        let script = format!("ulimit -n {descriptors}; exec \"$@\"");
        let program = env!("CARGO_BIN_EXE_onrush");
        shell.args(["-c", &script, "sh", program, "--port", "0"]);
        shell.arg(dir).args(arguments);
        Server::run(shell)
    }

    /// The number of its open descriptors.
    pub fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(path).expect("the process runs").count()
    }

    /// Runs a command made with [`onrush`] and waits for the address that it prints.
    pub fn run(command: Command) -> Server {
        Server::try_run(command).unwrap_or_else(|log| panic!("the server does not start: {log}"))
    }

    /// As [`Server::run`], but returns the log if the program ends.
    pub fn try_run(mut command: Command) -> Result<Server, String> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let collected = log.clone();
        let logs = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut log = collected.lock().expect("no panic");
                log.push_str(&line);
                log.push('\n');
            }
        });
        let (sender, receiver) = mpsc::channel();
        let out = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let printed = out.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut printed = printed.lock().expect("no panic");
                printed.push_str(&line);
                printed.push('\n');
                let _ = sender.send(line); // Only the first one is awaited.
            }
        });
        let line = receiver.recv_timeout(TIMEOUT).unwrap_or_default();
        let mut server = Server {
            child,
            url: line.trim_end().to_owned(),
            out,
            log,
        };
        if server.url.is_empty() {
            // The log ends with the process.
            if wait(&mut server.child, TIMEOUT).is_some() {
                logs.join().expect("the log is read to its end");
            }
            return Err(server.log());
        }
        Ok(server)
    }

    /// Its output on stderr so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }

    /// The warnings in the log, except that a worker was blocked: so is every program on a machine
    /// that runs others instead.
    pub fn warnings(&self) -> Vec<String> {
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains(" WARN "));
        lines
            .filter(|line| !line.contains("a worker was blocked"))
            .map(str::to_owned)
            .collect()
    }

    /// Waits until the log contains `text`.
    pub fn logs(&self, text: &str) -> String {
        wait_for(&self.log, text)
    }

    /// Waits until stdout contains `text`. Returns all of stdout.
    pub fn prints(&self, text: &str) -> String {
        wait_for(&self.out, text)
    }

    pub fn address(&self) -> SocketAddr {
        let (_, address) = self.url.split_once("://").expect("a TCP address");
        address.parse().expect("an address and port")
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).expect("the server accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        stream.set_write_timeout(Some(TIMEOUT)).expect("set");
        stream
    }

    /// Sends raw bytes and returns all bytes until the server closes.
    pub fn exchange(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).expect("the server reads");
        let mut response = Vec::new();
        let read = stream.read_to_end(&mut response);
        read.expect("the server responds and closes");
        String::from_utf8_lossy(&response).into_owned()
    }

    /// The whole response to a GET.
    pub fn get(&self, path: &str) -> String {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        self.exchange(request.as_bytes())
    }

    /// Sends a signal, as `kill -TERM` does.
    pub fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let mut kill = Command::new("kill");
        let status = kill.args([&format!("-{name}"), &pid]).status();
        assert!(status.expect("kill can be started").success());
    }

    /// Waits for its end and returns the exit code.
    pub fn wait_for_exit(&mut self, time: Duration) -> Option<i32> {
        let status = wait(&mut self.child, time);
        let status = status.unwrap_or_else(|| panic!("the server still runs"));
        status.code()
    }

    /// Its peak resident memory in KiB (`VmHWM` of `/proc/PID/status`).
    pub fn peak_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    /// Its resident memory in KiB without files, such as the program, which is read when it runs
    /// (`RssAnon` of `/proc/PID/status`).
    pub fn anonymous_kib(&self) -> u64 {
        self.status_kib("RssAnon:")
    }

    fn status_kib(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.expect("a line").trim().trim_end_matches(" kB");
        kib.parse().expect("a number")
    }
}

/// Waits until `output` contains `text`.
fn wait_for(output: &Mutex<String>, text: &str) -> String {
    let end = Instant::now() + TIMEOUT;
    loop {
        let all = output.lock().expect("no panic").clone();
        if all.contains(text) {
            return all;
        }
        assert!(Instant::now() < end, "no {text:?} in the output:\n{all}");
        sleep(Duration::from_millis(5));
    }
}

/// Waits until the condition holds.
pub fn wait_until(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "the condition does not hold in time");
        sleep(Duration::from_millis(5));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// A folder of this test alone, in the target directory. Dropping it removes it.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(TempDir::beneath(Path::new(env!("CARGO_TARGET_TMPDIR"))))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(&path, content).expect("written");
        path
    }
}

/// The command that installs the programs of the short test run.
pub const SETUP: &str = "cargo xtask setup";

/// The command that installs those of the nightly run as well.
pub const SETUP_NIGHTLY: &str = "cargo xtask setup --nightly";

/// Runs `curl -sS`, which must succeed. It may take three minutes, because requests that follow
/// each other in a test wait for a busy machine as well. Returns its output.
pub fn curl(arguments: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "180"]).args(arguments);
    let output = output_within(&mut command, 7 * TIMEOUT);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The drivers that a test uses: one that is available, which its name selects, or all if the
/// matrix is full. Tests of sockets, limits, TLS, signals and restarts use [`both_drivers`].
pub fn drivers() -> Vec<&'static str> {
    matrix::select(&both_drivers())
}

/// The available drivers. Prints the reason if one is not available.
pub fn both_drivers() -> Vec<&'static str> {
    let probe = || choose(Preference::Uring, &Config::default());
    available("io_uring", "epoll", probe)
}

/// Bytes that depend on the seed and the position, so that no two versions or places are equal.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut content = Vec::with_capacity(bytes + 8);
    while content.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content.truncate(bytes);
    content
}
