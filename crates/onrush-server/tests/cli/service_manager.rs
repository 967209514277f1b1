//! A service manager for tests: the socket that receives notifications, and listening sockets that
//! a server inherits.

use crate::program::{Folder, TIMEOUT, onrush};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Instant;

/// The socket for notifications. Dropping it kills the processes that were announced.
pub struct ServiceManager {
    folder: Folder,
    socket: UnixDatagram,
    processes: Vec<u32>,
}

impl ServiceManager {
    pub fn new() -> ServiceManager {
        let folder = Folder::new();
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("bound");
        socket.set_read_timeout(Some(TIMEOUT)).expect("set");
        ServiceManager {
            folder,
            socket,
            processes: Vec::new(),
        }
    }

    /// Lets a program notify this manager.
    pub fn manage(&self, command: &mut Command) {
        command.env("NOTIFY_SOCKET", self.folder.path().join("notify"));
    }

    /// Waits for a message with this line; returns the whole message.
    pub fn receives(&mut self, line: &str) -> String {
        let end = Instant::now() + TIMEOUT;
        let mut before = Vec::new();
        loop {
            let message = self.next();
            if message.lines().any(|found| found.starts_with(line)) {
                return message;
            }
            before.push(message);
            assert!(Instant::now() < end, "no {line}: {before:?}");
        }
    }

    /// The next message.
    pub fn next(&mut self) -> String {
        let mut bytes = [0; 4096];
        let received = self.socket.recv(&mut bytes).expect("a notification");
        let message = String::from_utf8_lossy(&bytes[..received]).into_owned();
        self.processes.extend(main_process(&message));
        message
    }

    /// Waits until a new main process is announced and serves.
    pub fn new_process(&mut self) -> u32 {
        let message = self.receives("MAINPID=");
        if !message.contains("READY=1") {
            self.receives("READY=1");
        }
        main_process(&message).expect("a number")
    }
}

fn main_process(message: &str) -> Option<u32> {
    let line = message
        .lines()
        .find_map(|line| line.strip_prefix("MAINPID="));
    line.map(|process| process.parse().expect("a number"))
}

impl Drop for ServiceManager {
    fn drop(&mut self) {
        for process in &self.processes {
            if is_running(*process) {
                signal(*process, "KILL");
            }
        }
    }
}

/// Whether a process exists and has not ended. It may be another one's child.
pub fn is_running(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| &rest[..1]);
    !matches!(state, None | Some("Z" | "X"))
}

/// Sends a signal to any process.
pub fn signal(process: u32, name: &str) {
    let mut kill = Command::new("kill");
    let status = kill
        .args([&format!("-{name}"), &process.to_string()])
        .status();
    assert!(status.expect("kill can be started").success());
}

/// A command that runs the binary with inherited listening sockets, by name. Sockets whose
/// descriptors a child would not inherit have to be duplicated: see [`inheritable`].
pub fn activated(sockets: &[(&str, &OwnedFd)]) -> Command {
    let redirections: Vec<String> = (sockets.iter().enumerate())
        .map(|(at, (_, socket))| format!("{}<&{}", at + 3, socket.as_raw_fd()))
        .collect();
    let redirections = redirections.join(" ");
    let program = onrush();
    let mut command = Command::new("bash");
    let script = format!("export LISTEN_PID=$$; exec \"$@\" {redirections}");
    command
        .args(["-c", &script, "bash"])
        .arg(program.get_program());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let names: Vec<&str> = sockets.iter().map(|(name, _)| *name).collect();
    command.env("LISTEN_FDS", sockets.len().to_string());
    command.env("LISTEN_FDNAMES", names.join(":"));
    command
}

/// A duplicate that child processes inherit.
pub fn inheritable(listener: &TcpListener) -> OwnedFd {
    rustix::io::dup(listener).expect("a descriptor")
}
