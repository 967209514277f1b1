//! Scripts that drive Chromium, in `tests/browser`.

use crate::program::{TIMEOUT, output_within};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Python with Playwright, which drives the browser.
fn python() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("target");
    let python = target.join("tools/python/browser/bin/python");
    let shown = python.display().to_string();
    assert!(
        python.is_file(),
        "{shown} is missing; `cargo xtask test` installs it"
    );
    python
}

/// The time limit of a script. It grows with the size of the largest upload, which is 192 MiB
/// unless the variable says otherwise.
fn limit() -> Duration {
    let mib = std::env::var("ONRUSH_TEST_LARGE_MIB").ok();
    let mib: u32 = mib.map_or(0, |mib| mib.parse().expect("a number"));
    20 * TIMEOUT * mib.div_ceil(192).max(1)
}

/// Runs a script, which prints `done` at its end.
pub fn run(script: &str, arguments: &[&str]) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    let mut command = Command::new(python());
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
