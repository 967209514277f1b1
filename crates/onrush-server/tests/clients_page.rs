//! The page of a folder in Chromium: `browser/page.py` drives it. Every feature is used, with
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

#[test]
fn chromium_uses_every_feature_of_the_page() {
    if !is_installed("chromium") {
        return;
    }
    let folder = Folder::new();
    let data = folder.path().join("data");
    let server = Server::start(&data, &["--allow", "put,delete"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser/page.py");
    let mut command = Command::new(python());
    command.arg(script).arg(&server.url).arg(&data);
    let output = output_within(&mut command, 10 * TIMEOUT);
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && out.trim_end().ends_with("done"),
        "{out}{err}"
    );
}
