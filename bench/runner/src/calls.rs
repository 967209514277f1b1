//! Counts system calls per request with perf, or with strace where perf is not permitted. Both slow
//! a server down, so this is a separate pass.

use crate::{
    server::{CLIENT_CORE, Server, pinned},
    wrk::{Report, Running},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::Duration,
};
use xtask::shell::{Outcome, capture, which};

/// Time for strace to attach to every thread.
const ATTACH: Duration = Duration::from_millis(300);

const EVENT: &str = "raw_syscalls:sys_enter";

/// The tool that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    Perf,
    Strace,
}

impl Counter {
    /// The best tool that works here. `None` if there is none.
    pub(crate) fn find() -> Option<Counter> {
        let mut perf = Command::new("perf");
        perf.args(["stat", "-x,", "-e", EVENT, "true"]);
        let counts = which("perf").is_some()
            && capture(&mut perf).is_ok_and(|(ok, text)| ok && perf_count(&text).is_some());
        if counts {
            return Some(Counter::Perf);
        }
        which("strace").map(|_| Counter::Strace)
    }

    /// Runs `load` against `server` and returns the number of system calls per request. The tool
    /// writes its report to the folder `scratch`.
    pub(crate) fn per_request(
        self,
        server: &Server,
        load: impl FnOnce() -> Outcome<Running>,
        scratch: &Path,
    ) -> Outcome<f64> {
        let file = scratch.join("calls");
        let mut counter = self.command(server, &file);
        counter
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = counter.spawn().map_err(|error| error.to_string())?;
        thread::sleep(ATTACH);
        let report = load().and_then(Running::finish);
        // Both tools write their report at SIGINT. The child is the tool itself: `setpriv` and
        // `taskset` have executed it in their place.
        if let Some(id) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process(id, Signal::INT);
        }
        child.wait().map_err(|error| error.to_string())?;
        let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let count = match self {
            Counter::Perf => perf_count(&text),
            Counter::Strace => strace_count(&text),
        };
        let Report { requests, .. } = report?;
        let per_request = count.map(|count| count / requests);
        per_request
            .filter(|per_request| per_request.is_finite())
            .ok_or_else(|| "system calls were not counted".to_owned())
    }

    fn command(self, server: &Server, file: &Path) -> Command {
        let ids: Vec<String> = server.processes().iter().map(u32::to_string).collect();
        let mut command = match self {
            Counter::Perf => Command::new("perf"),
            Counter::Strace => Command::new("strace"),
        };
        match self {
            Counter::Perf => {
                command
                    .args(["stat", "-x,", "-e", EVENT, "-p", &ids.join(","), "-o"])
                    .arg(file);
            }
            Counter::Strace => {
                command.args(["-f", "-c", "-o"]).arg(file);
                for id in &ids {
                    command.args(["-p", id]);
                }
            }
        }
        pinned(&command, CLIENT_CORE)
    }
}

/// The count in a line such as `29,,raw_syscalls:sys_enter,…`.
fn perf_count(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains(EVENT))?;
    line.split(',').next()?.trim().parse().ok()
}

/// The count in the last line: `100.00  0.123  4  31234  5 total`. The column of errors may be
/// empty.
fn strace_count(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.trim().ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_both_reports() {
        let perf = "# started\n\n1234,,raw_syscalls:sys_enter,55,100.00,,\n";
        assert_eq!(perf_count(perf), Some(1234.0));
        assert_eq!(
            perf_count("<not counted>,,raw_syscalls:sys_enter,0\n"),
            None
        );
        let table = " 60.00    0.000600           1       600        10 read\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
            100.00    0.001000           1      1000        10 total\n";
        assert_eq!(strace_count(table), Some(1000.0));
        assert_eq!(strace_count(""), None);
    }
}
