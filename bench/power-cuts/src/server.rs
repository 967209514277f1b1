//! The program under test, and ways to take syncs from it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use xtask::shell::{Outcome, cannot_run, target};

/// The staged files of an upload are numbered. So many of them are not synced.
const STAGED_MAX: usize = 6_000;
/// The time until a program traces all threads of another one.
const ATTACHED_MAX: Duration = Duration::from_secs(60);

/// Which syncs the server makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Syncs {
    /// All of them: `--durability full`.
    All,
    /// `--durability none`.
    None,
    /// `fsync` of a file succeeds and does nothing.
    NotOfFiles,
    /// The same of folders.
    NotOfFolders,
}

/// A running server. Dropping it kills it.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    child: Child,
    /// Takes syncs from it.
    tracer: Option<Child>,
}

impl Server {
    /// Serves `data`. `folders` are those that objects are in, relative to it.
    pub(crate) fn start(data: &Path, syncs: Syncs, folders: &[String]) -> Outcome<Server> {
        let durability = if syncs == Syncs::None { "none" } else { "full" };
        let mut command = Command::new(target().join("debug/onrush"));
        command
            .arg(data)
            .args(["--port", "0", "--allow", "put,delete"])
            .args(["--durability", durability]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(Stdio::piped());
        let child = command.spawn();
        let mut child = child.map_err(|error| cannot_run(&command, &error))?;
        let output = child.stdout.take().into_iter();
        let mut lines = output.flat_map(|output| BufReader::new(output).lines());
        let address = lines.find_map(|line| address(&line.ok()?));
        let Some(address) = address else {
            let _ = child.kill();
            let _ = child.wait();
            return Err("the server does not start".to_owned());
        };
        // A pipe that is not read would fill up.
        thread::spawn(move || lines.for_each(drop));
        let mut server = Server {
            address,
            child,
            tracer: None,
        };
        match syncs {
            Syncs::All | Syncs::None => {}
            Syncs::NotOfFiles => server.omit(staged(data)?)?,
            Syncs::NotOfFolders => {
                let below = folders.iter().map(|name| data.join(name));
                server.omit(below.chain([data.to_owned()]))?;
            }
        }
        Ok(server)
    }

    /// `fsync` of these paths does nothing from now on.
    fn omit(&mut self, paths: impl IntoIterator<Item = std::path::PathBuf>) -> Outcome {
        let process = self.child.id();
        let mut command = Command::new("strace");
        command.args(["-f", "-q", "-o", "/dev/null", "-e", "trace=fsync"]);
        command.args(["-e", "inject=fsync:retval=0", "-p", &process.to_string()]);
        for path in paths {
            command.arg("-P").arg(path);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        let tracer = command.spawn();
        let tracer = tracer.map_err(|error| cannot_run(&command, &error))?;
        let is_traced = format!("TracerPid:\t{}\n", tracer.id());
        self.tracer = Some(tracer);
        let end = Instant::now() + ATTACHED_MAX;
        let threads = || xtask::process::threads(process);
        let is_attached = |thread: &u32| {
            let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status"));
            status.is_ok_and(|status| status.contains(&is_traced))
        };
        while !threads().iter().all(is_attached) {
            if Instant::now() > end {
                return Err("strace does not trace the server".to_owned());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(tracer) = &mut self.tracer {
            let _ = tracer.wait(); // It ends with the server.
        }
    }
}

/// The paths of the next staged files.
fn staged(data: &Path) -> Outcome<Vec<std::path::PathBuf>> {
    let staging = data.join(".onrush/staging");
    let entries = fs::read_dir(&staging).map_err(|error| format!("{staging:?}: {error}"))?;
    let own = entries.flatten().map(|entry| entry.path()).next();
    let own = own.ok_or("the server has no folder for uploads")?;
    let numbers = 0..STAGED_MAX;
    Ok(numbers.map(|number| own.join(number.to_string())).collect())
}

/// The address in a line that the server prints.
fn address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("http://")?;
    let end = rest.find(['/', ' ']).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn the_address_is_found() {
        let line = "Serving /x at http://127.0.0.1:4567/ (read-only)";
        assert_eq!(address(line), "127.0.0.1:4567".parse().ok());
        assert_eq!(address("nothing"), None);
    }
}
