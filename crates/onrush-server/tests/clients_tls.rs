//! HTTPS clients of other languages, and a browser, against the real binary.

mod program;

use program::certificates::Authority;
use program::{Folder, Server, TIMEOUT, drivers, is_installed, output_within};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file of `tests/tls_clients`.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tls_clients")
        .join(name)
}

/// Runs a client with the URL of a server and the file of its authority, for each driver. It must
/// print `done`.
fn succeeds(make: impl Fn() -> Command) {
    for driver in drivers() {
        let (folder, files) = (Folder::new(), Folder::new());
        folder.file("x", "content");
        let authority = Authority::new("authority");
        let ca = authority.file(&files, "ca.pem");
        let (certificate, key) = authority.local(&files);
        let arguments = [
            "--tls-cert",
            &certificate,
            "--tls-key",
            &key,
            "--driver",
            driver,
        ];
        let server = Server::start(
            folder.path(),
            &[&arguments[..], &["--allow", "put"]].concat(),
        );
        let url = format!("https://localhost:{}", server.address().port());
        let mut command = make();
        command.args([&url, &ca]).current_dir(files.path());
        let Output {
            status,
            stdout,
            stderr,
        } = output_within(&mut command, 4 * TIMEOUT);
        let (out, err) = (
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr),
        );
        assert!(
            status.success() && out.trim_end().ends_with("done"),
            "{driver}: {out}{err}"
        );
    }
}

#[test]
fn go_reads_writes_and_resumes() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("target");
    let program = target.join("tools/bin/tls-client");
    let shown = program.display().to_string();
    assert!(
        program.is_file(),
        "{shown} is missing; `cargo xtask test` builds it"
    );
    succeeds(|| Command::new(&program));
}

#[test]
fn s_time_connects_with_and_without_earlier_sessions() {
    if !is_installed("openssl") {
        return;
    }
    for driver in drivers() {
        let folder = Folder::new();
        folder.file("x", "content");
        let server = Server::start(folder.path(), &["--tls-self-signed", "--driver", driver]);
        let address = server.address().to_string();
        for version in ["-tls1_2", "-tls1_3"] {
            for mode in ["-new", "-reuse"] {
                let mut command = Command::new("openssl");
                command.args(["s_time", "-connect", &address, "-www", "/x", "-time", "1"]);
                let output = output_within(command.args([version, mode]), 4 * TIMEOUT);
                let out = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success(), "{driver} {version} {mode}: {out}");
                let line = out.lines().rfind(|line| line.contains(" connections in "));
                let number = line.and_then(|line| line.split(' ').next());
                let number = number.and_then(|number| number.parse::<u32>().ok());
                assert!(number > Some(1), "{driver} {version} {mode}: {out}");
            }
        }
    }
}

#[test]
fn node_reads_writes_and_resumes() {
    if is_installed("node") {
        succeeds(|| {
            let mut command = Command::new("node");
            command.arg(source("client.mjs"));
            command
        });
    }
}

#[test]
fn java_reads_and_writes() {
    if is_installed("java") {
        succeeds(|| {
            let mut command = Command::new("java");
            command.arg(source("Client.java"));
            command
        });
    }
}

/// Malformed handshakes, records, alerts and truncations, for TLS 1.2 and 1.3.
#[test]
fn violations_end_in_the_alert_of_the_rfc() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("target");
    let python = target.join("tools/python/tlslite/bin/python");
    let shown = python.display().to_string();
    assert!(
        python.is_file(),
        "{shown} is missing; `cargo xtask test` installs it"
    );
    succeeds(|| {
        let mut command = Command::new(&python);
        command.arg(source("attack.py"));
        command
    });
}

/// The browser shows a listing and a file, and uploads one.
#[test]
fn chromium_shows_a_listing() {
    if !is_installed("chromium") {
        return;
    }
    let (folder, profile) = (Folder::new(), Folder::new());
    folder.file("a file.txt", "the content of the file");
    let script = "fetch('/uploaded', { method: 'PUT', body: 'x'.repeat(3000000) })\
        .then((response) => { document.title = 'status ' + response.status; });";
    let page = format!("<!doctype html><title>upload</title><script>{script}</script>");
    folder.file("upload.html", page);
    for driver in drivers() {
        let arguments = [
            "--tls-self-signed",
            "--allow",
            "put",
            "--site",
            "--driver",
            driver,
        ];
        let server = Server::start(folder.path(), &arguments);
        let dump = |path: &str| {
            let mut command = Command::new("chromium");
            command.args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--dump-dom",
            ]);
            command.args(["--ignore-certificate-errors", "--disable-dev-shm-usage"]);
            command.arg("--virtual-time-budget=10000");
            command.arg(format!("--user-data-dir={}", profile.path().display()));
            command.arg(format!(
                "https://localhost:{}{path}",
                server.address().port()
            ));
            let output = output_within(&mut command, 4 * TIMEOUT);
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let page = dump("/upload.html");
        assert!(page.contains("<title>status 201</title>"), "{page}");
        let uploaded = folder.path().join("uploaded");
        let bytes = std::fs::metadata(&uploaded).expect("uploaded").len();
        assert_eq!(bytes, 3_000_000);
        std::fs::remove_file(uploaded).expect("removed");
        let listing = dump("/");
        assert!(listing.contains("a%20file.txt"), "{listing}");
        let page = dump("/a%20file.txt");
        assert!(page.contains("the content of the file"), "{page}");
    }
}
