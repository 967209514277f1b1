//! Runs tests in a mount namespace of their own (mount_namespaces(7)).

use crate::common::TempDir;
use ::testing::child::{only, shown};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Set in the process that has the mounts.
const DIR_VAR: &str = "ONRUSH_TEST_MOUNTS_DIR";
/// The exit code of that process if it cannot have them.
const NO_MOUNTS: i32 = 99;

/// Runs the test `name` of `module` again in a process with a mount namespace of its own. There,
/// this returns its folder, beneath which are the mounts `disk` (tmpfs) and `bound` (of the folder
/// `other`, on the same file system). `None`: the test has passed there, or no namespace can be
/// made.
///
/// # Panics
/// If the test fails there or its process ends in any other way; if `CI` is set and this is root,
/// also if no namespace can be made.
pub(crate) fn with_mounts(module: &str, name: &str) -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os(DIR_VAR) {
        return Some(PathBuf::from(dir));
    }
    let script = format!(
        "mount -t tmpfs -o mode=755 none \"$1/disk\" && \
         mount --bind \"$1/other\" \"$1/bound\" || exit {NO_MOUNTS}; shift; exec \"$@\""
    );
    let dir = TempDir::new();
    for folder in ["disk", "bound", "other"] {
        std::fs::create_dir(dir.path().join(folder)).unwrap();
    }
    let test = only(module, name);
    let mut unshare = Command::new("unshare");
    unshare.arg(if is_root() { "-m" } else { "-rm" });
    unshare.args(["sh", "-c", &script, "sh"]).arg(dir.path());
    unshare.arg(test.get_program()).args(test.get_args());
    unshare.env(DIR_VAR, dir.path());
    let reason = match unshare.output() {
        Ok(output) => skip_reason(&output)?,
        Err(error) => format!("unshare: {error}"),
    };
    let is_needed = std::env::var_os("CI").is_some() && is_root();
    assert!(!is_needed, "no mount namespace can be made: {reason}");
    // Not `println!`, which the test harness captures.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {}", reason.trim_end());
    None
}

/// Runs a script of the shell, in which `$1` is the folder of the mounts.
///
/// # Panics
/// If it fails.
pub(crate) fn run(dir: &Path, script: &str) {
    let mut shell = Command::new("sh");
    let status = shell.args(["-c", script, "sh"]).arg(dir).status();
    assert!(status.unwrap().success(), "{script}");
}

/// Unmounts `bound`, and then removes its mount point.
pub(crate) const AWAY: [&str; 2] = ["umount -l \"$1/bound\"", "rmdir \"$1/bound\""];
/// Mounts `bound` again after that.
pub(crate) const BACK: &str = "mkdir \"$1/bound\" && mount --bind \"$1/other\" \"$1/bound\"";

/// `None` if the test has passed in the process that `unshare` has started, or why that process has
/// no mounts.
///
/// # Panics
/// If the test has failed, has not run, or its process has crashed.
fn skip_reason(output: &Output) -> Option<String> {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|all| String::from_utf8_lossy(all));
    match output.status.code() {
        Some(0) if stdout.contains("1 passed") => None,
        Some(NO_MOUNTS) => Some(stderr.into_owned()),
        // Its own failure (unshare(1)). The test harness prints a line before the test begins.
        Some(1) if stdout.is_empty() && stderr.starts_with("unshare: ") => {
            Some(stderr.into_owned())
        }
        _ => panic!("with mounts: {}\n{}", output.status, shown(output)),
    }
}

/// Only a test that passed is a pass, and only missing mounts are a reason to skip it.
#[test]
fn a_crash_with_mounts_fails_the_test() {
    let ended = |script: &str| {
        let output = Command::new("sh").args(["-c", script]).output().unwrap();
        let _silence = ::testing::panics::silence(|_| true);
        std::panic::catch_unwind(|| skip_reason(&output)).ok()
    };
    assert_eq!(ended("echo 'ok. 1 passed; 0 failed'"), Some(None));
    let refused = "echo 'unshare: unshare failed: Operation not permitted' >&2";
    let reason = "unshare: unshare failed: Operation not permitted\n".to_owned();
    assert_eq!(ended(&format!("{refused}; exit 1")), Some(Some(reason)));
    let reason = "mount: refused\n".to_owned();
    let no_mounts = format!("echo 'mount: refused' >&2; exit {NO_MOUNTS}");
    assert_eq!(ended(&no_mounts), Some(Some(reason)));
    for failed in [
        "kill -SEGV $$",
        "kill -ABRT $$",
        "kill -KILL $$",
        "exit 0",
        "exit 1",
        "exit 101",
        "echo '1 passed'; exit 101",
        "echo running 1 test; echo 'unshare: refused' >&2; exit 1",
    ] {
        assert_eq!(ended(failed), None, "{failed}");
    }
}

/// Whether this process needs no user namespace.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}
