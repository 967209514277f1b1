//! A server under measurement: started pinned to a core, and what it and its children have used.
//! Must not know what is measured, nor which server it is.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::{
    collections::HashSet,
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use xtask::process::tree;
use xtask::shell::{Outcome, cannot_run, field_kib, shown};

pub use xtask::process::threads;

/// The one core servers run on; what loads them runs on [`CLIENT_CORE`].
pub const SERVER_CORE: &str = "0";
/// See [`SERVER_CORE`].
pub const CLIENT_CORE: &str = "1";

/// Longest wait for a server to listen: some compile themselves first.
const PATIENCE: Duration = Duration::from_secs(20);

/// What ticks may differ from nanoseconds by, of as much as was measured and at least.
const TICKS_ERROR: f64 = 0.03;
const TICKS_ERROR_MIN_NS: f64 = 30e6;

/// A running server; it and all it started end when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Server {
    /// Runs `command` on the server's core and waits until it listens on `port`.
    pub fn start(command: &Command, port: u16) -> Outcome<Server> {
        Server::start_on(command, port, SERVER_CORE, Stdio::null())
    }

    /// As [`Server::start`], on the `cores` of such a list as `0-1`; what it prints goes to `out`.
    pub fn start_on(command: &Command, port: u16, cores: &str, out: Stdio) -> Outcome<Server> {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut pinned = pinned(command, cores);
        pinned
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(Stdio::null())
            // A group of its own: an interrupt at the terminal is for the bench to deal with.
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
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(format!("`{}` does not listen on {address}", shown(command)))
    }

    /// Asks it to end, and waits for that; whether it did in time.
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

    /// It and its children, and theirs.
    pub fn processes(&self) -> Vec<u32> {
        tree(self.child.id())
    }

    /// What all of it has used so far.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for process in self.processes() {
            usage.add(process);
        }
        usage
    }

    /// Bytes of resident memory now, shared pages counted whole.
    pub fn resident_bytes(&self) -> Outcome<u64> {
        self.memory("VmRSS:")
    }

    /// The most bytes of resident memory there were, each process at its own time.
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
            0 => Err("the server is gone".to_owned()),
            kib => Ok(kib * 1024),
        }
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Children first looked up, then ended: without their parent they would be nobody's.
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

/// `command` on one core, ended by the kernel should this program end without doing so.
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

/// A port that nobody has now. That it stays so is likely, for the kernel hands out others first.
pub fn free_port() -> Outcome<u16> {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    address
        .map(|address| address.port())
        .map_err(|error| format!("no free port: {error}"))
}

/// CPU time of a tree of processes, counted in two ways.
///
/// The scheduler counts each thread's nanoseconds, but forgets a thread that ends. The process
/// keeps the time of those as well, in ticks of usually 10 ms. The first is taken unless the second
/// says that something was forgotten.
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
        let lost = !before.threads.is_subset(&self.threads);
        let forgotten = ticks_ns - ns > (ns * TICKS_ERROR).max(TICKS_ERROR_MIN_NS);
        if lost || forgotten { ticks_ns } else { ns }
    }
}

/// User and system time of a process and of its children that were waited for, from its `stat`.
fn ticks(stat: &str) -> u64 {
    // The name before the last parenthesis may have spaces. The 14th to 17th field are wanted.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let numbers = fields.split_whitespace().skip(11).take(4);
    numbers
        .filter_map(|number| number.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn nanoseconds_count_unless_a_thread_was_forgotten() {
        let before = usage(1_000, 0, &[1, 2]);
        let after = usage(500_001_000, 510_000_000, &[1, 2, 3]);
        assert_eq!(after.ns_since(&before), 5e8);
        let one_ended = usage(400_001_000, 510_000_000, &[1]);
        assert_eq!(one_ended.ns_since(&before), 5.1e8);
        let came_and_went = usage(300_001_000, 510_000_000, &[1, 2]);
        assert_eq!(came_and_went.ns_since(&before), 5.1e8);
    }

    #[test]
    fn a_server_has_children_and_leaves_none() {
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
        // The children are init's to wait for; ended they are in any case.
        let state = |id: &u32| fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let alive = |id: &u32| !state(id).is_empty() && !state(id).contains(") Z ");
        while all.iter().any(alive) && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!all.iter().any(alive));
    }

    #[test]
    fn what_ends_at_once_is_no_server() {
        let port = free_port().expect("a port");
        let error = Server::start(&Command::new("false"), port).expect_err("ends");
        assert!(error.contains("ended at once"), "{error}");
    }
}
