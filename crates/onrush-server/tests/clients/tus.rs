//! Clients of tus upload to the running program: tuspy, and tus-js-client with parallel parts.

use crate::program::{Folder, SETUP, SETUP_NIGHTLY, Server};
use crate::program::{drivers, is_installed, output_within, pattern, tool, wait_until};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Runs a script of `upload_clients` for each driver, with the URL of a server and a file to upload
/// as last arguments. It completes or terminates all its uploads.
fn run(program: &Path, script: &str, arguments: &[&Path]) {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upload_clients");
    let source = Folder::new();
    let file = source.file("source", pattern(1, 1_234_567));
    for driver in drivers() {
        let folder = Folder::new();
        let server = Server::start(folder.path(), &["--allow", "put", "--driver", driver]);
        let mut command = Command::new(program);
        command.arg(scripts.join(script)).args(arguments);
        let output = output_within(
            command.arg(&server.url).arg(&file),
            Duration::from_secs(120),
        );
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{driver}: {said}");
        for unfinished in [".onrush/uploads", ".onrush/state/uploads"] {
            let left = || std::fs::read_dir(folder.path().join(unfinished));
            wait_until(|| left().map_or(0, Iterator::count) == 0);
        }
    }
}

#[test]
fn tuspy_uploads_in_chunks_and_continues() {
    if let Some(python) = tool("python/tuspy/bin/python", SETUP) {
        run(&python, "tus.py", &[]);
    }
}

#[test]
#[ignore = "nightly"] // tus-js-client comes from npm
fn tus_js_client_uploads_in_parallel_and_continues() {
    let package = "tus-js/node_modules/tus-js-client/package.json";
    let package = tool(package, SETUP_NIGHTLY);
    let Some(package) = package.filter(|_| is_installed("node")) else {
        return;
    };
    let tools = package.ancestors().nth(3).expect("a folder");
    run(Path::new("node"), "tus.cjs", &[tools]);
}
