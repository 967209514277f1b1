//! A measured server: starts it on a core, and reads the CPU time and memory of it and its
//! children.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::{
    collections::HashSet,
    fs,
    net::{SocketAddr, TcpStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use testing::ReservedPort;
use xtask::process::tree;
use xtask::shell::{Outcome, cannot_run, field_kib, shown};

pub use xtask::process::threads;

/// The core of the servers. The load generators run on [`CLIENT_CORE`].
pub const SERVER_CORE: &str = "0";
/// See [`SERVER_CORE`].
pub const CLIENT_CORE: &str = "1";

/// Longest wait for a server to listen. Some servers compile code first.
const PATIENCE: Duration = Duration::from_secs(20);

/// Permitted difference between ticks and nanoseconds, as a share of the measured time and as a
/// minimum.
const TICKS_ERROR: f64 = 0.03;
const TICKS_ERROR_MIN_NS: f64 = 30e6;

/// A running server. It and its children are killed when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// The address at which it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Runs `command` on the server's core and waits until it listens on `port`.
    pub fn start(command: &Command, port: u16) -> Outcome<Server> {
        Server::start_on(command, port, SERVER_CORE, Stdio::null())
    }

    /// As [`Server::start`], on the `cores` of a list such as `0-1`, with `out` as standard output.
    pub fn start_on(command: &Command, port: u16, cores: &str, out: Stdio) -> Outcome<Server> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut pinned = pinned(command, cores);
        pinned
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(Stdio::null())
            // In its own process group, so that an interrupt at the terminal affects only the
            // bench.
            .process_group(0);
        let child = pinned
            .spawn()
            .map_err(|error| cannot_run(&pinned, &error))?;
        let mut server = Server { child, address };
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("`{}` ended at once: {status}", shown(command)));
            }
            if TcpStream::connect(address).is_ok() {
                reserved().retain(|reserved| reserved.number() != port);
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(format!("`{}` does not listen on {address}", shown(command)))
    }

    /// Sends SIGTERM and waits for the end. Returns whether the server ended in time.
    pub fn end(mut self) -> bool {
        if let Some(process) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process(process, Signal::TERM);
        }
        let begun = Instant::now();
        while self.runs() {
            if begun.elapsed() > PATIENCE {
                return false;
            }
            thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// The process and all its descendants.
    pub fn processes(&self) -> Vec<u32> {
        tree(self.child.id())
    }

    /// The CPU time of all its processes so far.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for process in self.processes() {
            usage.add(process);
        }
        usage
    }

    /// Resident memory of all its processes in bytes. Shared pages count for each process.
    pub fn resident_bytes(&self) -> Outcome<u64> {
        self.memory("VmRSS:")
    }

    /// Peak resident memory in bytes: the sum of the peaks of its processes.
    pub fn peak_bytes(&self) -> Outcome<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> Outcome<u64> {
        let of = |process: &u32| {
            let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
            field_kib(&text, field)
        };
        let kib: u64 = self.processes().iter().filter_map(of).sum();
        match kib {
            0 => Err("the server has ended".to_owned()),
            kib => Ok(kib * 1024),
        }
    }

    /// Whether it is still running.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The children are looked up first: without their parent they could not be found.
        let all = self.processes();
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        for process in all.iter().filter_map(|&id| Pid::from_raw(id as i32)) {
            let _ = kill_process(process, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// `command`, pinned to `core`. The kernel kills it when this program ends.
pub(crate) fn pinned(command: &Command, core: &str) -> Command {
    let mut pinned = Command::new("setpriv");
    pinned.args(["--pdeathsig", "KILL", "taskset", "--cpu-list", core]);
    pinned.arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        pinned.current_dir(folder);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => pinned.env(name, value),
            None => pinned.env_remove(name),
        };
    }
    pinned
}

/// Ports for which no [`Server`] has listened yet.
static RESERVED: Mutex<Vec<ReservedPort>> = Mutex::new(Vec::new());

/// A free port. It is reserved until a [`Server`] listens there.
pub fn free_port() -> Outcome<u16> {
    let port = ReservedPort::new().map_err(|error| format!("no free port: {error}"))?;
    let number = port.number();
    reserved().push(port);
    Ok(number)
}

fn reserved() -> MutexGuard<'static, Vec<ReservedPort>> {
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// CPU time of a tree of processes, from two sources.
///
/// The scheduler counts nanoseconds for each thread, but not for threads that have ended. Each
/// process counts ticks of usually 10 ms, which include ended threads. The ticks are used only if
/// they show that the nanoseconds are incomplete.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    ns: u64,
    ticks_ns: u64,
    threads: HashSet<u32>,
}

impl Usage {
    fn add(&mut self, process: u32) {
        for thread in threads(process) {
            let file = format!("/proc/{process}/task/{thread}/schedstat");
            let text = fs::read_to_string(Path::new(&file)).unwrap_or_default();
            let ns = text.split_whitespace().next().and_then(|n| n.parse().ok());
            self.ns += ns.unwrap_or(0u64);
            self.threads.insert(thread);
        }
        let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        self.ticks_ns += ticks(&text) * 1_000_000_000 / rustix::param::clock_ticks_per_second();
    }

    /// Nanoseconds of CPU from `before` to this.
    pub fn ns_since(&self, before: &Usage) -> f64 {
        let ns = self.ns as f64 - before.ns as f64;
        let ticks_ns = self.ticks_ns as f64 - before.ticks_ns as f64;
        let ended = !before.threads.is_subset(&self.threads);
        let incomplete = ticks_ns - ns > (ns * TICKS_ERROR).max(TICKS_ERROR_MIN_NS);
        if ended || incomplete { ticks_ns } else { ns }
    }
}

/// User and system time of a process and of its children that were waited for, from its `stat`
/// file (proc(5)).
fn ticks(stat: &str) -> u64 {
    // The name before the last parenthesis may contain spaces. The times are fields 14 to 17.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let numbers = fields.split_whitespace().skip(11).take(4);
    numbers
        .filter_map(|number| number.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn ticks_are_four_fields_after_any_name() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 10 0 0 0 11 22 33 44 20 0 1 0 99";
        assert_eq!(ticks(stat), 110);
        assert_eq!(ticks(""), 0);
    }

    fn usage(ns: u64, ticks_ns: u64, threads: &[u32]) -> Usage {
        let threads = threads.iter().copied().collect();
        Usage {
            ns,
            ticks_ns,
            threads,
        }
    }

    #[test]
    fn nanoseconds_count_unless_a_thread_has_ended() {
        let before = usage(1_000, 0, &[1, 2]);
        let after = usage(500_001_000, 510_000_000, &[1, 2, 3]);
        assert_eq!(after.ns_since(&before), 5e8);
        let one_ended = usage(400_001_000, 510_000_000, &[1]);
        assert_eq!(one_ended.ns_since(&before), 5.1e8);
        let came_and_went = usage(300_001_000, 510_000_000, &[1, 2]);
        assert_eq!(came_and_went.ns_since(&before), 5.1e8);
    }

    #[test]
    fn the_children_of_a_server_end_with_it() {
        let port = free_port().expect("a port");
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("listens");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 100 & sleep 100; true"]);
        let server = Server::start(&command, port).expect("runs");
        let begun = Instant::now();
        while server.processes().len() < 3 && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        let all = server.processes();
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(server.resident_bytes().expect("memory") > 0);
        drop(server);
        drop(listener);
        // The process 1 waits for the children, so they may be zombies.
        let state = |id: &u32| fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let alive = |id: &u32| !state(id).is_empty() && !state(id).contains(") Z ");
        while all.iter().any(alive) && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!all.iter().any(alive));
    }

    #[test]
    fn a_program_that_ends_at_once_is_an_error() {
        let port = free_port().expect("a port");
        let error = Server::start(&Command::new("false"), port).expect_err("ends");
        assert!(error.contains("ended at once"), "{error}");
    }
}
