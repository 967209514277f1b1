//! tuspy, a client of tus, uploads to the running program.

mod program;

use program::{Folder, Server, drivers, output_within, pattern};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Python with tuspy. If it is missing, prints that the test is skipped, but fails if `CI` is set.
fn python() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let python = target
        .expect("target")
        .join("tools/python/tuspy/bin/python");
    if !python.is_file() {
        assert!(
            std::env::var_os("CI").is_none(),
            "{} is missing",
            python.display()
        );
        println!("skipped: tuspy is missing; `cargo xtask test` installs it");
        return None;
    }
    Some(python)
}

#[test]
fn tuspy_uploads_in_chunks_and_continues() {
    let Some(python) = python() else {
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upload_clients/tus.py");
    let source = Folder::new();
    let file = source.file("source", pattern(1, 1_234_567));
    for driver in drivers() {
        let folder = Folder::new();
        let server = Server::start(folder.path(), &["--allow", "put", "--driver", driver]);
        let mut command = Command::new(&python);
        command.arg(&script).arg(&server.url).arg(&file);
        let output = output_within(&mut command, Duration::from_secs(120));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{driver}: {said}");
        let unfinished = folder.path().join(".onrush/uploads");
        let left = std::fs::read_dir(unfinished).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{driver}");
    }
}
