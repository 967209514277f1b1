//! Scripts that drive Chromium, in `tests/browser`.

use super::{TIMEOUT, output_within};
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Runs a script, which prints `done` at its end.
pub fn run(script: &str, arguments: &[&str]) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    let mut command = Command::new(python());
    command.arg(scripts.join(script)).args(arguments);
    command.env("PYTHONDONTWRITEBYTECODE", "1"); // They import each other.
    let output = output_within(&mut command, 20 * TIMEOUT);
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && out.trim_end().ends_with("done"),
        "{out}{err}"
    );
}
