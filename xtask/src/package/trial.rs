//! Runs an installed program: it stores an object, returns it, reports that it is ready, and ends.

use super::{create, tree};
use crate::{
    load::http::Client,
    shell::{Outcome, cannot_run, run as run_command},
};
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// The maximum time for something that takes milliseconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the installed program with the installed configuration, except for the folder and the
/// addresses. `program` is a command without arguments, or one whose last argument is the program.
/// `root`: where the package is installed. `seen`: the same folder as the program sees it.
pub(super) fn run(program: &mut Command, root: &Path, seen: &Path) -> Outcome {
    let data = "data";
    create(&root.join(data))?;
    let config = seen.join("etc/onrush/onrush.toml");
    program.arg("--config").arg(config).arg(seen.join(data));
    program.args(["--bind", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    program.args(["--allow", "put"]);
    let child = program.stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
    let mut server = Running(child.map_err(|error| cannot_run(program, &error))?);
    let (sender, lines) = mpsc::channel();
    let out = BufReader::new(server.0.stdout.take().expect("it is piped"));
    thread::spawn(move || {
        let lines = out.lines().map_while(Result::ok);
        lines
            .map(|line| sender.send(line))
            .take_while(Result::is_ok)
            .for_each(drop);
    });
    let address = |prefix: &str| {
        let line = lines.recv_timeout(TIMEOUT).unwrap_or_default();
        let address = line.strip_prefix(prefix);
        let address = address.map(|address| address.trim_end_matches("/-/").to_owned());
        address.ok_or_else(|| format!("the program printed '{line}', not {prefix}…"))
    };
    let objects: SocketAddr = address("http://")?.parse().map_err(|_| "no address")?;
    let admin = address("admin http://")?;
    exchange(objects).map_err(|error| format!("the installed program: {error}"))?;
    let binary = root.join("usr/bin/onrush");
    let binary = if binary.exists() {
        binary
    } else {
        root.join("bin/onrush")
    };
    let health = tree::said(Command::new(binary).args(["health", &admin]))?;
    if health != "ready\n" {
        return Err(format!("the installed program is not ready: {health}"));
    }
    let process = server.0.id().to_string();
    run_command(Command::new("sh").args(["-c", "kill -TERM $0", &process]))?;
    let status = server.0.wait().map_err(|error| error.to_string())?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("the installed program ended with {status}")),
    }
}

/// Stores an object and reads it again.
fn exchange(address: SocketAddr) -> Outcome {
    let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut client = Client::new(address);
    let stored = client.put("/a/object", "", &content, false);
    let stored = stored.map_err(|error| error.to_string())?;
    let loaded = client.get("/a/object", "");
    let loaded = loaded.map_err(|error| error.to_string())?;
    match (stored.status, loaded.status) {
        (201, 200) if loaded.body == content => Ok(()),
        (201, 200) => Err("GET returned something other than PUT stored".to_owned()),
        (put, get) => Err(format!("PUT returned {put} and GET {get}")),
    }
}

/// A running program. Dropping it ends it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
