//! Programs of others that tests run: whether they are installed, and runs that are bounded.

use crate::or_skip;
use std::env;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The maximum time for the output of a process that has ended.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Whether a client program is on the `PATH`. If it is missing, prints that the test is skipped,
/// but fails if `CI` is set. The program is not run: zsyncmake takes `--version` for options and
/// writes a file.
pub fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_executable = |file: PathBuf| {
        file.metadata()
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let found = env::split_paths(&path).any(|folder| is_executable(folder.join(program)));
    or_skip(found, &format!("{program} is missing"))
}

/// The folder in which `cargo xtask setup` installs what no package of Debian has: in the target
/// directory, which has the running test in `PROFILE/deps`.
pub fn tools() -> PathBuf {
    let test = env::current_exe().expect("a program");
    let target = test.ancestors().nth(3);
    target.expect("a target directory").join("tools")
}

/// The file `path` of [`tools`], which the command `setup` installs. If it is missing, prints that
/// the test is skipped, but fails if `CI` is set.
pub fn tool(path: impl AsRef<Path>, setup: &str) -> Option<PathBuf> {
    let file = tools().join(path);
    let reason = format!("{} is missing; `{setup}` installs it", file.display());
    or_skip(file.is_file(), &reason).then_some(file)
}

/// Runs a command that should end by itself in this time. If it does not, kills it and fails.
pub fn output_within(command: &mut Command, time: Duration) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let out = read_all(child.stdout.take());
    let err = read_all(child.stderr.take());
    let Some(status) = wait(&mut child, time) else {
        let _ = child.kill();
        let _ = child.wait();
        let said = String::from_utf8_lossy(&err.recv().unwrap_or_default()).into_owned();
        panic!("{command:?} did not end: {said}");
    };
    Output {
        status,
        stdout: out.recv_timeout(TIMEOUT).expect("stdout ends"),
        stderr: err.recv_timeout(TIMEOUT).expect("stderr ends"),
    }
}

fn read_all(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.expect("a pipe").read_to_end(&mut all);
        let _ = sender.send(all);
    });
    receiver
}

/// Waits for the end of a process. `None` if it does not end in this time.
pub fn wait(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + time;
    loop {
        match child.try_wait().expect("a child process") {
            None if Instant::now() < end => sleep(Duration::from_millis(5)),
            ended => return ended,
        }
    }
}
