//! Latency of small GETs over HTTP/1.1, from when they are due (`bench/load`), while another load
//! keeps the same server busy.

use crate::{
    peers::Setup,
    row::Metrics,
    server::{CLIENT_CORE, Server, Usage, pinned},
};
use serde_json::Value;
use std::{
    process::Command,
    time::{Duration, Instant},
};
use xtask::shell::{Outcome, capture};

/// Connections of small GETs, and their total rate per second. The rate is a small part of the
/// capacity of a core, so the latency without the background is that of a lightly loaded server.
pub(super) const CONNECTIONS: u32 = 64;
const RATE: u32 = 2000;

/// Maximum delay of the generator (99th percentile). Latency counts from the due time, so a delay
/// increases it; this maximum is a fraction of the target.
const LATE_MAX_US: u32 = 1500;

/// Warm-up at the beginning of a window. It does not count.
const WARM_UP: Duration = Duration::from_millis(500);

/// The small response that is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) path: &'static str,
    /// Bytes of its content.
    pub(super) length: u64,
}

impl Asked {
    /// Measures the latency for `time`, and the server's CPU in this time, as a share of a core.
    pub(super) fn measure(
        self,
        tools: &Setup,
        server: &Server,
        priority: Priority,
        time: Duration,
    ) -> Outcome<(Window, f64)> {
        let mut command = Command::new(tools.built("open-loop"));
        command.arg(server.address.to_string());
        command.args(["--path", self.path, "--length", &self.length.to_string()]);
        command.args(["--connections", &CONNECTIONS.to_string(), "--spread"]);
        command.args(["--rate", &RATE.to_string(), "--windows", "1"]);
        command.args(["--seconds", &(WARM_UP + time).as_secs_f64().to_string()]);
        command.args(["--warm-up", &WARM_UP.as_secs_f64().to_string()]);
        command.args(["--late-max-us", &LATE_MAX_US.to_string()]);
        let mut command = pinned(&priority.generator(command), CLIENT_CORE);
        let (begun, before): (Instant, Usage) = (Instant::now(), server.usage());
        let (ok, text) = capture(&mut command)?;
        let cpu_ns = server.usage().ns_since(&before);
        let cpu = cpu_ns / begun.elapsed().as_nanos() as f64;
        match serde_json::from_str(&text) {
            Ok(report) if ok => Ok((Window::read(&report)?, cpu)),
            _ => Err(format!("the load failed: {}", text.trim())),
        }
    }
}

/// Latency of the small GETs, measured from their due times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Window {
    pub(super) requests_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) max_us: f64,
    /// Delay of the generator (99th percentile).
    pub(super) late_us: f64,
    pub(super) is_late: bool,
}

impl Window {
    fn read(report: &Value) -> Outcome<Window> {
        let window = &report["a"]["windows"][0];
        let field = |name: &str| {
            let number = window[name].as_f64();
            number.ok_or_else(|| format!("the load printed no {name}: {report}"))
        };
        let marks = window["marks"].as_array();
        let is_late = |mark: &Value| mark == "generator late";
        Ok(Window {
            requests_per_s: field("achieved_rate")?,
            p50_us: field("p50_us")?,
            p99_us: field("p99_us")?,
            p999_us: field("p999_us")?,
            max_us: field("max_us")?,
            late_us: field("late_us_p99")?,
            is_late: marks.is_some_and(|marks| marks.iter().any(is_late)),
        })
    }

    /// The metrics of a row about `value`.
    pub(super) fn metrics(&self, value: f64) -> Metrics {
        Metrics {
            value,
            requests_per_s: self.requests_per_s,
            p50_us: self.p50_us,
            p99_us: self.p99_us,
            p999_us: self.p999_us,
        }
    }
}

/// The priorities of the generator of small requests and of the background load, which share a
/// core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// The generator has a real-time priority (`SCHED_FIFO`, sched(7)), so that no other program
    /// delays it.
    RealTime,
    /// Where that is not permitted (`CAP_SYS_NICE`), the background load runs only while its core
    /// is idle (`SCHED_IDLE`), so that at least this load does not delay the generator.
    Idle,
}

impl Priority {
    pub(super) fn permitted() -> Priority {
        let tried = capture(Command::new("chrt").args(["--fifo", "10", "true"]));
        match tried {
            Ok((true, _)) => Priority::RealTime,
            _ => Priority::Idle,
        }
    }

    fn generator(self, command: Command) -> Command {
        match self {
            Priority::RealTime => prefixed(&["chrt", "--fifo", "10"], &command),
            Priority::Idle => command,
        }
    }

    pub(super) fn background(self, command: Command) -> Command {
        match self {
            Priority::RealTime => command,
            Priority::Idle => prefixed(&["chrt", "--idle", "0"], &command),
        }
    }
}

/// `command`, run by the program and the arguments of `prefix`.
fn prefixed(prefix: &[&str], command: &Command) -> Command {
    let mut prefixed = Command::new(prefix[0]);
    prefixed.args(&prefix[1..]).arg(command.get_program());
    prefixed.args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        prefixed.current_dir(folder);
    }
    let variables = command.get_envs();
    prefixed.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    prefixed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::path::Path;

    #[test]
    fn a_prefix_keeps_the_command_and_its_environment() {
        let mut command = Command::new("server");
        command
            .args(["8080", "folder"])
            .env("WORKERS", "1")
            .current_dir("/");
        let command = prefixed(&["chrt", "--idle", "0"], &command);
        assert_eq!(
            xtask::shell::shown(&command),
            "chrt --idle 0 server 8080 folder"
        );
        assert_eq!(command.get_envs().count(), 1);
        assert_eq!(command.get_current_dir(), Some(Path::new("/")));
    }

    #[test]
    fn an_incomplete_window_is_rejected() {
        let window = json!({
            "achieved_rate": 2000.0, "p50_us": 1.0, "p99_us": 2.0, "p999_us": 3.0,
            "max_us": 4.0, "late_us_p99": 5.0, "marks": ["errors", "generator late"],
        });
        let report = |window: &Value| json!({ "a": { "windows": [window] } });
        let read = Window::read(&report(&window)).expect("whole");
        assert!(read.is_late && read.max_us == 4.0);
        let metrics = read.metrics(9.0);
        assert_eq!((metrics.value, metrics.p99_us), (9.0, 2.0));
        assert!(Window::read(&report(&json!({ "p50_us": 1.0 }))).is_err());
    }
}
