//! `onrush scrub` as a program: what it names, its counts, its exit codes, its rate.

use crate::program::{Folder, Server, onrush, output};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

fn scrub(folder: &Path, more: &[&str]) -> Output {
    output(onrush().arg("scrub").arg(folder).args(more))
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn put(server: &Server, path: &str, content: &[u8]) {
    let mut stream = server.connect();
    let length = content.len();
    let head = format!("PUT {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    stream.write_all(content).expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 201"), "{response}");
}

/// Changes a byte without changing size and time, as a bad disk does.
fn flip(path: &Path, at: u64) {
    let file = File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("open");
    let modified = file
        .metadata()
        .and_then(|found| found.modified())
        .expect("a time");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("written");
    file.set_modified(modified).expect("set");
}

#[test]
fn scrub_names_what_is_damaged_changed_and_without_a_checksum() {
    let folder = Folder::new();
    let dir = folder.path();
    let server = Server::start(dir, &["--allow", "put"]);
    let large = vec![7; 700_000];
    for name in ["intact", "d/damaged", "d/changed", "d/e/large", "empty"] {
        let content: &[u8] = match name {
            "d/e/large" => &large,
            "empty" => b"",
            _ => b"content",
        };
        put(&server, &format!("/{name}"), content);
    }
    let intact = scrub(dir, &[]);
    assert_eq!(intact.status.code(), Some(0), "{intact:?}");
    let counts = "5 intact, 0 damaged, 0 unreadable, 0 changed by other programs, 0 without a \
                  checksum; 683.6 KiB read\n";
    assert_eq!(text(&intact), counts);

    flip(&dir.join("d/damaged"), 3);
    flip(&dir.join("d/e/large"), 699_999);
    fs::write(dir.join("d/changed"), "another").expect("written");
    fs::write(dir.join("of\nanother program"), "x").expect("written");
    let found = scrub(dir, &["--rate", "off"]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let expected = "no checksum: of\\nanother program\nchanged: d/changed\ndamaged: d/damaged\n\
                    damaged: d/e/large\n2 intact, 2 damaged, 0 unreadable, 1 changed by other \
                    programs, 1 without a checksum; 683.6 KiB read\n";
    assert_eq!(text(&found), expected);
    assert_eq!(found.stderr, b"onrush: 2 files are damaged or unreadable\n");

    let found = text(&scrub(dir, &["--json"]));
    let lines: Vec<serde_json::Value> = found
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(lines.len(), 5, "{found}");
    assert_eq!(lines[0]["path"], "of\nanother program");
    assert_eq!(
        (&lines[2]["path"], &lines[2]["state"]),
        (&"d/damaged".into(), &"damaged".into())
    );
    assert_ne!(lines[2]["stored"], lines[2]["read"]);
    assert_eq!(lines[4]["damaged"], 2);

    // The next PUT stores the object anew.
    let mut stream = server.connect();
    let request = "PUT /d/damaged HTTP/1.0\r\nContent-Length: 1\r\n\r\nx";
    stream.write_all(request.as_bytes()).expect("sent");
    stream.read_to_end(&mut Vec::new()).expect("a response");
    assert!(!text(&scrub(dir, &[])).contains("d/damaged"));
}

#[test]
fn without_checksums_there_is_nothing_to_verify() {
    let folder = Folder::new();
    let server = Server::start(folder.path(), &["--allow", "put", "--checksums=off"]);
    put(&server, "/a", b"content");
    let found = scrub(folder.path(), &[]);
    assert_eq!(found.status.code(), Some(0));
    assert!(
        text(&found).starts_with("no checksum: a\n0 intact"),
        "{found:?}"
    );
}

/// The rate is a bound, so the time has a lower bound that no load can break.
#[test]
fn scrub_keeps_its_rate() {
    let folder = Folder::new();
    let server = Server::start(folder.path(), &["--allow", "put"]);
    put(&server, "/a", &[1; 300_000]);
    let begun = Instant::now();
    assert_eq!(
        scrub(folder.path(), &["--rate", "500KB"]).status.code(),
        Some(0)
    );
    assert!(begun.elapsed() >= Duration::from_millis(500));
}

#[test]
fn scrub_reports_wrong_usage() {
    for words in [&["--rate", "0"][..], &["--rate", "x"], &["b"], &["--quick"]] {
        let wrong = scrub(Path::new("a"), words);
        assert_eq!(wrong.status.code(), Some(2), "{words:?}");
        assert_eq!(
            wrong.stderr.iter().filter(|&&byte| byte == b'\n').count(),
            1
        );
    }
    let missing = scrub(Path::new("/nowhere/at/all"), &[]);
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
}

/// The files of a cache are no objects, and have checksums of their own.
#[test]
fn the_folder_of_a_cache_is_refused() {
    let folder = Folder::new();
    drop(Server::start(folder.path(), &["--cache", "64MiB"]));
    let refused = scrub(folder.path(), &[]);
    assert_eq!(refused.status.code(), Some(2));
    let line = String::from_utf8(refused.stderr).expect("UTF-8");
    assert!(
        line.contains("is a cache, which verifies its files itself"),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1);
    assert_eq!(refused.stdout, b"");
}
