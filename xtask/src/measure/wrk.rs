//! One run of wrk against a server. Must not know what is compared.

use super::server::{CLIENT_CORE, Server};
use crate::shell::{Outcome, cannot_run, target};
use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// Different ones, of several requests each: 65,536 requests at 16 pipelined.
const BATCHES: usize = 4096;

/// How a server is loaded.
#[derive(Clone, Debug)]
pub(super) struct Load {
    pub(super) connections: u32,
    pub(super) seconds: u64,
    /// The script that sends several requests at once; none for one at a time.
    script: Option<PathBuf>,
}

impl Load {
    /// `pipelined` requests at a time on each of 64 connections.
    pub(super) fn new(seconds: u64, pipelined: usize) -> Outcome<Load> {
        let script = match pipelined {
            1 => None,
            count => Some(write_script(
                &format!("pipelined-{count}"),
                &repeated(count),
            )?),
        };
        Ok(Load {
            connections: 64,
            seconds,
            script,
        })
    }

    /// As [`Load::new`], each request with another target of the same length.
    pub(super) fn distinct(seconds: u64, pipelined: usize) -> Outcome<Load> {
        let script = write_script(&format!("distinct-{pipelined}"), &numbered(pipelined))?;
        Ok(Load {
            connections: 64,
            seconds,
            script: Some(script),
        })
    }

    /// Begins to load `server` from the clients' core.
    pub(super) fn start(&self, server: &Server) -> Outcome<Running> {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", CLIENT_CORE, "wrk", "--threads", "1"]);
        command.args([format!("--connections={}", self.connections)]);
        command.args([format!("--duration={}s", self.seconds)]);
        if let Some(script) = &self.script {
            command.arg("--script").arg(script);
        }
        command.arg(format!("http://{}/", server.address));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command
            .spawn()
            .map(Running)
            .map_err(|error| cannot_run(&command, &error))
    }
}

/// One request, `count` times.
fn repeated(count: usize) -> String {
    format!(
        "init = function()\n  batch = string.rep(wrk.format(), {count})\nend\n\
         request = function() return batch end\n"
    )
}

/// `count` requests, numbered. Made before the clock runs; when the [`BATCHES`] are used up they
/// come again, to connections that have seen thousands of others meanwhile.
fn numbered(count: usize) -> String {
    format!(
        "\
init = function()
  batches, at = {{}}, 0
  for batch = 1, {BATCHES} do
    local all = {{}}
    for one = 1, {count} do
      all[one] = wrk.format('GET', string.format('/?%07d', batch * {count} + one))
    end
    batches[batch] = table.concat(all)
  end
end
request = function()
  at = at % {BATCHES} + 1
  return batches[at]
end
"
    )
}

fn write_script(name: &str, text: &str) -> Outcome<PathBuf> {
    let file = target().join(format!("{name}.lua"));
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

/// A wrk under way.
pub(super) struct Running(Child);

impl Running {
    /// Waits for its end. Gives the requests that were answered, or `None` when more than one in
    /// a hundred was not answered with success: such a run measures nothing.
    pub(super) fn finish(self) -> Outcome<Option<u64>> {
        let output = self
            .0
            .wait_with_output()
            .map_err(|error| format!("wrk: {error}"))?;
        let report = String::from_utf8_lossy(&output.stdout);
        answered(&report).ok_or_else(|| format!("wrk said nothing useful: {report}"))
    }
}

fn answered(report: &str) -> Option<Option<u64>> {
    let line = report.lines().find(|line| line.contains(" requests in "))?;
    let requests: u64 = line.split_whitespace().next()?.parse().ok()?;
    let after = |mark: &str| {
        report
            .lines()
            .find_map(|line| line.trim().strip_prefix(mark))
    };
    let refused = after("Non-2xx or 3xx responses:").and_then(|count| count.trim().parse().ok());
    let broken = after("Socket errors:").map_or(0, |counts| {
        let numbers = counts
            .split([' ', ','])
            .filter_map(|word| word.parse::<u64>().ok());
        numbers.sum()
    });
    let bad = refused.unwrap_or(0u64) + broken;
    Some((requests > 0 && bad <= requests / 100).then_some(requests))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_requests_are_made_in_advance() {
        let text = numbered(16);
        assert!(text.contains("for one = 1, 16 do"), "{text}");
        assert!(text.contains("'/?%07d', batch * 16 + one"), "{text}");
    }

    #[test]
    fn reports_are_read() {
        let report =
            "  Latency   1ms\n  12345 requests in 2.00s, 1.76MB read\nRequests/sec: 6172\n";
        assert_eq!(answered(report), Some(Some(12_345)));
        assert_eq!(answered("unable to connect"), None);
    }

    #[test]
    fn runs_with_errors_are_void() {
        let report = |rest: &str| format!("  1000 requests in 2.00s, 1MB read\n{rest}");
        let few = report("  Non-2xx or 3xx responses: 10\n");
        assert_eq!(answered(&few), Some(Some(1000)));
        let many = report("  Non-2xx or 3xx responses: 11\n");
        assert_eq!(answered(&many), Some(None));
        let broken = report("  Socket errors: connect 0, read 7, write 0, timeout 9\n");
        assert_eq!(answered(&broken), Some(None));
        assert_eq!(answered("  0 requests in 2.00s, 0B read"), Some(None));
    }
}
