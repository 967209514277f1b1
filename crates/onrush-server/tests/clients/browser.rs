//! Scripts that drive Chromium and Firefox, in `tests/browser`.

use crate::program::{SETUP, SETUP_NIGHTLY, TIMEOUT, is_installed, output_within, tool};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The time limit of a script. It grows with the size of the largest upload, which is 192 MiB
/// unless the variable says otherwise.
fn limit() -> Duration {
    let mib = std::env::var("ONRUSH_TEST_LARGE_MIB").ok();
    let mib: u32 = mib.map_or(0, |mib| mib.parse().expect("a number"));
    20 * TIMEOUT * mib.div_ceil(192).max(1)
}

/// Runs a script that drives Chromium, and prints `done` at its end. Does nothing if the browser or
/// Playwright, which drives it, is missing; then the test is skipped, or fails with `CI`.
pub fn run(script: &str, arguments: &[&str]) {
    drive(
        "python/browser/bin/python",
        SETUP,
        "chromium",
        script,
        arguments,
    );
}

/// As [`run`], with Firefox and Marionette.
pub fn run_firefox(script: &str, arguments: &[&str]) {
    let python = "python/firefox/bin/python";
    drive(python, SETUP_NIGHTLY, "firefox-esr", script, arguments);
}

fn drive(python: &str, setup: &str, browser: &str, script: &str, arguments: &[&str]) {
    let python = tool(python, setup);
    let Some(python) = python.filter(|_| is_installed(browser)) else {
        return;
    };
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    let mut command = Command::new(python);
    command.arg(scripts.join(script)).args(arguments);
    command.env("PYTHONDONTWRITEBYTECODE", "1"); // They import each other.
    let output = output_within(&mut command, limit());
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && out.trim_end().ends_with("done"),
        "{out}{err}"
    );
}
