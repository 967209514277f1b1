//! What the tests of the program share: starting the real binary and waiting for it, folders to
//! serve, a client of a few lines, and other people's clients. Every wait here is bounded.
// Each test binary includes this file and uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for something that takes milliseconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The binary, with none of the caller's `ONRUSH_*`.
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

/// Runs a command that should end by itself; kills it and fails when it does not.
pub fn output(command: &mut Command) -> Output {
    output_within(command, PATIENCE)
}

/// As [`output`], for what takes its time.
pub fn output_within(command: &mut Command, time: Duration) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it can be started");
    let out = read_all(child.stdout.take());
    let err = read_all(child.stderr.take());
    let Some(status) = wait(&mut child, time) else {
        let _ = child.kill();
        let _ = child.wait();
        let said = String::from_utf8_lossy(&err.recv().unwrap_or_default()).into_owned();
        panic!("{command:?} did not end: {said}");
    };
    Output {
        status,
        stdout: out.recv_timeout(PATIENCE).expect("its stdout ends"),
        stderr: err.recv_timeout(PATIENCE).expect("its stderr ends"),
    }
}

fn read_all(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.expect("it is piped").read_to_end(&mut all);
        let _ = sender.send(all);
    });
    receiver
}

/// Waits for the end of a process.
pub fn wait(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + time;
    loop {
        match child.try_wait().expect("it is our child") {
            None if Instant::now() < end => sleep(Duration::from_millis(5)),
            ended => return ended,
        }
    }
}

/// A server at work; killed when dropped.
pub struct Server {
    pub child: Child,
    /// As printed: `http://127.0.0.1:PORT`.
    pub url: String,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Serves `dir` on a free port, or panics with what it said.
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

    /// How many descriptors it has open.
    pub fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.child.id());
        std::fs::read_dir(path).expect("it runs").count()
    }

    /// Runs a command that was made with [`onrush`], and waits for the address it prints.
    pub fn run(command: Command) -> Server {
        Server::try_run(command).unwrap_or_else(|log| panic!("it does not serve: {log}"))
    }

    /// As [`Server::run`]; gives what it said when it ends instead.
    pub fn try_run(mut command: Command) -> Result<Server, String> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it can be started");
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let collected = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut log = collected.lock().expect("no panic");
                log.push_str(&line);
                log.push('\n');
            }
        });
        let (sender, receiver) = mpsc::channel();
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = out.read_line(&mut line);
            let _ = sender.send(line);
            let _ = std::io::copy(&mut out, &mut std::io::sink());
        });
        let line = receiver.recv_timeout(PATIENCE).unwrap_or_default();
        let mut server = Server {
            child,
            url: line.trim_end().to_owned(),
            log,
        };
        if server.url.is_empty() {
            wait(&mut server.child, PATIENCE);
            sleep(Duration::from_millis(50));
            return Err(server.log());
        }
        Ok(server)
    }

    /// What it has said on stderr.
    pub fn log(&self) -> String {
        self.log.lock().expect("no panic").clone()
    }

    /// Waits until the log has `text`.
    pub fn logs(&self, text: &str) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            let log = self.log();
            if log.contains(text) {
                return log;
            }
            assert!(Instant::now() < end, "no {text:?} in the log:\n{log}");
            sleep(Duration::from_millis(5));
        }
    }

    pub fn address(&self) -> SocketAddr {
        let address = self.url.strip_prefix("http://").expect("it is TCP");
        address.parse().expect("an address and port")
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).expect("it accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.set_write_timeout(Some(PATIENCE)).expect("set");
        stream
    }

    /// Sends raw bytes, and gives everything until the server closes.
    pub fn exchange(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).expect("it reads");
        let mut response = Vec::new();
        let read = stream.read_to_end(&mut response);
        read.expect("it answers and closes");
        String::from_utf8_lossy(&response).into_owned()
    }

    /// A GET of a path; the whole answer.
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

    /// Waits for its end; gives the exit code.
    pub fn ended(&mut self, time: Duration) -> Option<i32> {
        let status = wait(&mut self.child, time);
        let status = status.unwrap_or_else(|| panic!("it runs on"));
        status.code()
    }

    /// The most memory it has had resident, in KiB (`VmHWM` of `/proc/PID/status`).
    pub fn peak_kib(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(path).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = line.expect("a line").trim().trim_end_matches(" kB");
        peak.parse().expect("a number")
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

/// A folder of its own for a test; gone with this.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let path = path.join(format!("folder-{}-{count}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("made");
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and gives its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("made");
        std::fs::write(&path, content).expect("written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether a client program is there. It may be missing on somebody's desk, which is told; but not
/// where `CI` is set, for then nothing would have been shown.
pub fn have(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        let in_ci = std::env::var_os("CI").is_some();
        assert!(!in_ci, "{program} is missing");
        println!("skipped: {program} is missing");
    }
    found
}

/// `curl -sS`, which must succeed, within a minute; gives what it printed.
pub fn curl(arguments: &[&str]) -> String {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "60"]).args(arguments);
    let output = output_within(&mut command, 2 * PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The drivers that can be had here, and a word about one that cannot.
pub fn drivers() -> Vec<&'static str> {
    let folder = Folder::new();
    let works = |driver: &&str| {
        let mut command = onrush();
        command
            .arg(folder.path())
            .args(["--port", "0", "--driver", driver]);
        let result = Server::try_run(command);
        if let Err(log) = &result {
            assert!(log.contains("io_uring is refused"), "{log}");
            println!("skipped on {driver}: {log}");
        }
        result.is_ok()
    };
    ["io_uring", "epoll"].into_iter().filter(works).collect()
}

/// Bytes that tell what and where they are: no two versions, nor two places, look the same.
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
