//! A server under measurement: started on a port of its own, pinned to a core, and what it has
//! used so far. Must not know what is measured.

use super::Driver;
use crate::shell::{Outcome, cannot_run, cargo, field_kib, is_executable, root, run, target};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The one core servers run on; what loads them runs on [`CLIENT_CORE`].
const SERVER_CORE: &str = "0";
pub(super) const CLIENT_CORE: &str = "1";

/// The smallest request there is.
pub(super) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Longest wait for a server to listen, or to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What can be started as a server.
#[derive(Clone, Debug)]
pub(super) struct Program {
    file: PathBuf,
    driver: Driver,
    /// Served on every core, by the program that serves folders.
    folder: Option<PathBuf>,
}

impl Program {
    /// The example `hello`, built for it; or the program `instead`.
    pub(super) fn hello(driver: Driver, instead: Option<&str>) -> Outcome<Program> {
        let file = match instead {
            Some(program) => root().join(program),
            None => {
                run(&mut cargo(
                    "build --release --quiet --workspace --example hello",
                ))?;
                target().join("release/examples/hello")
            }
        };
        Program::new(file, driver)
    }

    /// The bare loop on `driver`.
    pub(super) fn bare(driver: Driver) -> Outcome<Program> {
        let name = match driver {
            Driver::Epoll => "limit-epoll",
            Driver::Uring => "limit-uring",
        };
        run(&mut cargo(
            "build --release --quiet -p limits --manifest-path bench/Cargo.toml",
        ))?;
        Program::new(target().join("release").join(name), driver)
    }

    /// The product itself, built for it, serving `folder` as it does when nothing is said.
    pub(super) fn onrush(driver: Driver, folder: &Path) -> Outcome<Program> {
        run(&mut cargo(
            "build --release --quiet -p onrush-server --bin onrush",
        ))?;
        let program = Program::new(target().join("release/onrush"), driver)?;
        let folder = Some(folder.to_owned());
        Ok(Program { folder, ..program })
    }

    fn new(file: PathBuf, driver: Driver) -> Outcome<Program> {
        match is_executable(&file) {
            true => Ok(Program {
                file,
                driver,
                folder: None,
            }),
            false => Err(format!("{} is not a program", file.display())),
        }
    }

    pub(super) fn name(&self) -> String {
        let name = self.file.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    fn command(&self, port: u16) -> Command {
        if let Some(folder) = &self.folder {
            let mut command = Command::new(&self.file);
            command.arg(folder).args(["--port", &port.to_string()]);
            return command;
        }
        let mut command = Command::new("taskset");
        command
            .args(["--cpu-list", SERVER_CORE])
            .arg(&self.file)
            .arg(port.to_string())
            .env("ONRUSH_WORKERS", "1");
        command
    }

    /// Starts it, with one worker unless it serves a folder, and waits until it listens.
    pub(super) fn start(&self) -> Outcome<Server> {
        let port = free_port()?;
        let mut command = self.command(port);
        command
            .env("ONRUSH_DRIVER", self.driver.name())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command
            .spawn()
            .map_err(|error| cannot_run(&command, &error))?;
        let mut server = Server {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        };
        server.wait_until_listening(&self.file)?;
        Ok(server)
    }
}

/// A port that nobody has now. That it stays so is likely, for the kernel hands out others first.
fn free_port() -> Outcome<u16> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    address
        .map(|address| address.port())
        .map_err(|error| format!("no free port: {error}"))
}

/// A running server; it ends when this is dropped.
pub(super) struct Server {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Server {
    fn wait_until_listening(&mut self, file: &Path) -> Outcome {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("{} ended at once: {status}", file.display()));
            }
            if TcpStream::connect(self.address).is_ok() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(format!(
            "{} does not listen on {}",
            file.display(),
            self.address
        ))
    }

    /// CPU time of all its threads so far, in nanoseconds, as the scheduler counts it.
    pub(super) fn cpu_ns(&self) -> Outcome<u64> {
        let folder = format!("/proc/{}/task", self.child.id());
        let threads = fs::read_dir(&folder).map_err(|error| format!("{folder}: {error}"))?;
        let spent = threads.filter_map(|thread| {
            let text = fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse::<u64>().ok()
        });
        Ok(spent.sum())
    }

    /// Memory that is in use now.
    pub(super) fn memory(&self) -> Outcome<Memory> {
        let file = format!("/proc/{}/smaps_rollup", self.child.id());
        let text = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
        let bytes = |name| {
            let kib = field_kib(&text, name).ok_or_else(|| format!("{file} has no {name}"))?;
            Ok::<u64, String>(kib * 1024)
        };
        Ok(Memory {
            rss: bytes("Rss:")?,
            anonymous: bytes("Anonymous:")?,
        })
    }

    /// The most memory that was in use at a time, in bytes.
    pub(super) fn peak(&self) -> Outcome<u64> {
        let file = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
        let kib = field_kib(&text, "VmHWM:").ok_or_else(|| format!("{file} has no VmHWM"))?;
        Ok(kib * 1024)
    }

    /// Whether it still runs.
    pub(super) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In bytes, shared pages counted whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    /// All resident pages of the process.
    pub(super) rss: u64,
    /// Those of them that are no file's.
    pub(super) anonymous: u64,
}

/// Sends [`REQUEST`] and reads its whole answer, which must be a 200.
pub(super) fn ask(stream: &mut TcpStream) -> Outcome<Vec<u8>> {
    ask_for(stream, REQUEST)
}

/// As [`ask`], with a request whose answer tells its length.
pub(super) fn ask_for(stream: &mut TcpStream, request: &[u8]) -> Outcome<Vec<u8>> {
    let failed = |error: std::io::Error| format!("a request was not answered: {error}");
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(request).map_err(failed)?;
    let mut answer = Vec::new();
    let mut piece = [0; 1024];
    while answer_len(&answer).is_none_or(|len| answer.len() < len) {
        match stream.read(&mut piece).map_err(failed)? {
            0 => return Err("an answer was cut off".to_owned()),
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    match answer.starts_with(b"HTTP/1.1 200 ") {
        true => Ok(answer),
        false => Err(format!("not a 200: {}", answer.escape_ascii())),
    }
}

/// How long the answer will be, once its head has come.
fn answer_len(answer: &[u8]) -> Option<usize> {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&answer[..head]).to_ascii_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    Some(
        head + length
            .and_then(|length| length.trim().parse().ok())
            .unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_content_is() {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(answer_len(&head[..20]), None);
        assert_eq!(answer_len(head), Some(head.len() + 5));
        assert_eq!(answer_len(b"HTTP/1.1 204 No Content\r\n\r\n"), Some(27));
    }
}
