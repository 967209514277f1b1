//! Clients of WebDAV with the running program: litmus (a test suite of the protocol), cadaver and
//! rclone.

use crate::program::{Folder, Server, drivers, is_installed, output_within, pattern};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(180);

fn start(folder: &Folder, driver: &str) -> Server {
    let flags = [
        "--webdav",
        "--allow",
        "put,delete-folders",
        "--driver",
        driver,
    ];
    Server::start(folder.path(), &flags)
}

fn text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

#[test]
#[ignore = "nightly"] // litmus; `files::webdav` tests the same
fn litmus_passes() {
    if !is_installed("litmus") {
        return;
    }
    for driver in drivers() {
        let (folder, work) = (Folder::new(), Folder::new());
        let server = start(&folder, driver);
        let mut litmus = Command::new("litmus");
        litmus.args(["-k", &format!("{}/", server.url)]);
        litmus.env("TESTS", "basic copymove props locks http");
        let output = output_within(litmus.current_dir(work.path()), LONG);
        let said = text(&output);
        // Each line shows its progress before its result.
        let lines = said.split(['\n', '\r']);
        let is_bad = |line: &&str| {
            ["FAIL", "WARNING", "SKIPPED"]
                .iter()
                .any(|bad| line.contains(bad))
        };
        let bad: Vec<&str> = lines.filter(is_bad).collect();
        assert!(bad.is_empty(), "{driver}: {bad:#?}\n{said}");
        assert_eq!(
            said.matches(" 0 failed. 100.0%").count(),
            5,
            "{driver}: {said}"
        );
        for suite in ["basic", "copymove", "props", "locks", "http"] {
            assert!(
                said.contains(&format!("summary for `{suite}'")),
                "{driver}: {said}"
            );
        }
    }
}

#[test]
fn cadaver_edits_locks_and_moves() {
    if !is_installed("cadaver") {
        return;
    }
    for driver in drivers() {
        let (folder, home) = (Folder::new(), Folder::new());
        let server = start(&folder, driver);
        let content = pattern(1, 300_000);
        home.file("source.bin", &content);
        let mut cadaver = Command::new("cadaver");
        cadaver.arg(format!("{}/", server.url));
        cadaver.env("HOME", home.path()).current_dir(home.path());
        cadaver
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = cadaver.spawn().expect("it starts");
        let mut commands = child.stdin.take().expect("piped");
        commands
            .write_all(
                b"mkcol docs\ncd docs\nput source.bin\nlock source.bin\nput source.bin\n\
                  propset source.bin color red\npropget source.bin color\nunlock source.bin\n\
                  copy source.bin copy.bin\nmove copy.bin moved.bin\nls\nget moved.bin back.bin\n\
                  cd ..\ncopy docs/ more/\nrmcol docs\nquit\n",
            )
            .expect("it reads");
        drop(commands);
        let output = child.wait_with_output().expect("it ends");
        let said = text(&output);
        assert!(!said.contains("failed"), "{driver}: {said}");
        assert!(
            said.contains("moved.bin") && said.contains("red"),
            "{driver}: {said}"
        );
        let read = |path: &Path| std::fs::read(path).expect("a file");
        assert!(read(&home.path().join("back.bin")) == content, "{driver}");
        assert!(
            read(&folder.path().join("more/moved.bin")) == content,
            "{driver}"
        );
        assert!(!folder.path().join("docs").exists(), "{driver}");
    }
}

/// Runs rclone with a remote `:webdav:` of this vendor.
fn rclone(server: &Server, vendor: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("rclone");
    command.args([
        "--config",
        "/dev/null",
        "--retries",
        "1",
        "--low-level-retries",
        "1",
    ]);
    command.args(["--webdav-url", &server.url, "--webdav-vendor", vendor]);
    let output = output_within(command.args(arguments), LONG);
    let said = text(&output);
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

#[test]
fn rclone_copies_checks_and_synchronizes() {
    if !is_installed("rclone") {
        return;
    }
    for driver in drivers() {
        let (folder, source) = (Folder::new(), Folder::new());
        for at in 0..40 {
            source.file(
                &format!("sub {}/{at}.bin", at % 4),
                pattern(at, 1000 * at as usize),
            );
        }
        source.file("ümlaut & more/100%.txt", "hundred");
        source.file("large.bin", pattern(99, 20 << 20));
        let server = start(&folder, driver);
        let from = source.path().to_str().expect("UTF-8").to_owned();
        rclone(&server, "other", &["copy", &from, ":webdav:backup"]);
        rclone(
            &server,
            "other",
            &["check", "--download", &from, ":webdav:backup"],
        );
        std::fs::remove_file(source.path().join("sub 0/0.bin")).expect("removed");
        std::fs::remove_dir_all(source.path().join("sub 1")).expect("removed");
        source.file("sub 2/new.bin", "new");
        rclone(&server, "other", &["sync", &from, ":webdav:backup"]);
        rclone(
            &server,
            "other",
            &["check", "--download", &from, ":webdav:backup"],
        );
        assert!(!folder.path().join("backup/sub 0/0.bin").exists());
        rclone(
            &server,
            "other",
            &["moveto", ":webdav:backup", ":webdav:moved"],
        );
        rclone(&server, "other", &["check", &from, ":webdav:moved"]);
        rclone(&server, "other", &["purge", ":webdav:moved"]);
        assert!(!folder.path().join("moved").exists());
    }
}

#[test]
fn rclone_keeps_the_time_of_files() {
    if !is_installed("rclone") {
        return;
    }
    for driver in drivers() {
        let (folder, source) = (Folder::new(), Folder::new());
        let file = source.file("old.txt", "old");
        let status = Command::new("touch")
            .args(["-d", "2001-09-09 01:46:40Z"])
            .arg(&file)
            .status();
        assert!(status.expect("touch starts").success());
        let server = start(&folder, driver);
        let from = source.path().to_str().expect("UTF-8").to_owned();
        rclone(&server, "owncloud", &["copy", &from, ":webdav:kept"]);
        let listed = rclone(
            &server,
            "owncloud",
            &["lsf", "--format", "tp", ":webdav:kept"],
        );
        let time = "2001-09-09 0";
        assert!(
            listed.contains(time) && listed.contains("old.txt"),
            "{driver}: {listed}"
        );
        // Nothing is copied again.
        let arguments = ["copy", "-v", "--dry-run", &from, ":webdav:kept"];
        let again = rclone(&server, "owncloud", &arguments);
        assert!(!again.contains("Skipped copy"), "{driver}: {again}");
    }
}
