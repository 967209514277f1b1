//! The optimised object server as a child of a task.

use crate::shell::{Outcome, cannot_run, target};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The binary `onrush`, on a port that it selects. Dropping it ends it.
pub(crate) struct ObjectServer {
    child: Child,
    address: String,
}

impl ObjectServer {
    /// Serves `folder` with these options. The binary was built with `--release`.
    pub(crate) fn start(folder: &Path, options: &[&str]) -> Outcome<ObjectServer> {
        let mut command = Command::new(target().join("release/onrush"));
        command.arg(folder).args(["--port", "0"]).args(options);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command
            .spawn()
            .map_err(|error| cannot_run(&command, &error))?;
        let output = child.stdout.take();
        let mut lines = output
            .into_iter()
            .flat_map(|out| BufReader::new(out).lines());
        let address = lines.find_map(|line| address(&line.ok()?));
        let address = address.ok_or("the server printed no address")?;
        // A pipe that is not read would fill up.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(ObjectServer { child, address })
    }

    /// The host and the port, with a colon between them.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The host and the port of the URL in a line, if there is one.
fn address(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("://")?;
    let end = rest.find(['/', ' ']).unwrap_or(rest.len());
    Some(rest[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn the_address_is_found() {
        let line = "Serving /x at https://127.0.0.1:4567/ (self-signed)";
        assert_eq!(address(line).as_deref(), Some("127.0.0.1:4567"));
        assert_eq!(
            address("http://[::1]:8\n".trim()).as_deref(),
            Some("[::1]:8")
        );
        assert_eq!(address("nothing"), None);
    }
}
