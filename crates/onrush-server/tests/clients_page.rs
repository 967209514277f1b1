//! The page of a folder in Chromium: the programs in `browser/` drive it. Every feature is used, with
//! hostile names, with 10,000 entries, without scripts, and on a small screen; axe-core finds no
//! problem of accessibility.

mod program;

use program::{Folder, Server, TIMEOUT, is_installed, output_within};
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

/// Runs a program of `browser/` with a server that has these arguments.
fn drive(program: &str, arguments: &[&str]) {
    if !is_installed("chromium") {
        return;
    }
    let folder = Folder::new();
    let data = folder.path().join("data");
    let server = Server::start(&data, arguments);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    let mut command = Command::new(python());
    command
        .arg(script.join(program))
        .arg(&server.url)
        .arg(&data);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let output = output_within(&mut command, 20 * TIMEOUT);
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && out.trim_end().ends_with("done"),
        "{out}{err}"
    );
}

#[test]
fn chromium_uses_every_feature_of_the_page() {
    drive("page.py", &["--allow", "put,delete"]);
}

#[test]
fn chromium_renames_and_moves() {
    drive("moves.py", &["--allow", "put,delete"]);
}

#[test]
fn chromium_uploads_without_the_right_to_list() {
    drive("upload_only.py", &["--upload-only"]);
}

#[test]
fn chromium_continues_large_uploads() {
    drive("uploads.py", &["--allow", "put,delete"]);
}
