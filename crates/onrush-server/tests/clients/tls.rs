//! HTTPS clients of other languages, and a browser, against the real binary.

use crate::program::certificates::Authority;
use crate::program::plain::handshakes;
use crate::program::{Folder, SETUP_NIGHTLY, Server, TIMEOUT};
use crate::program::{drivers, is_installed, output_within, tool, wait_until};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

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
#[ignore = "nightly"] // other languages, and Chromium
fn go_reads_writes_and_resumes() {
    let Some(program) = tool("bin/tls-client", SETUP_NIGHTLY) else {
        return;
    };
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
        let arguments = ["--tls-self-signed", "--admin", "127.0.0.1:0"];
        let server = Server::start(
            folder.path(),
            &[&arguments[..], &["--driver", driver]].concat(),
        );
        let address = server.address().to_string();
        for (version, label) in [("-tls1_2", "tls1.2"), ("-tls1_3", "tls1.3")] {
            for mode in ["-new", "-reuse"] {
                let outcome = format!("{label}_resumed");
                let before = handshakes(&server, &outcome);
                let mut command = Command::new("openssl");
                command.args(["s_time", "-connect", &address, "-www", "/x", "-time", "1"]);
                let output = output_within(command.args([version, mode]), 4 * TIMEOUT);
                let out = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success(), "{driver} {version} {mode}: {out}");
                let line = out.lines().rfind(|line| line.contains(" connections in "));
                let number = line.and_then(|line| line.split(' ').next());
                let number = number.and_then(|number| number.parse::<u32>().ok());
                assert!(number > Some(1), "{driver} {version} {mode}: {out}");
                let resumed = handshakes(&server, &outcome) - before;
                assert_eq!(resumed > 0, mode == "-reuse", "{driver} {version} {mode}");
            }
        }
    }
}

/// A response that ends early has no `close_notify`, so that the client reports an error even if
/// the length of the body is not known.
#[test]
fn curl_reports_a_truncated_response() {
    if !is_installed("curl") {
        return;
    }
    // 56: "Failure with receiving network data". 92: "Stream error in HTTP/2 framing layer".
    let versions = [("--http1.1", 56), ("--http2", 92)];
    let both = |driver| versions.map(|version| (driver, version));
    for (driver, (version, code)) in drivers().into_iter().flat_map(both) {
        let (folder, files) = (Folder::new(), Folder::new());
        let path = folder.file("large", vec![b'x'; 64 << 20]);
        let authority = Authority::new("authority");
        let ca = authority.file(&files, "ca.pem");
        let (certificate, key) = authority.local(&files);
        let arguments = ["--tls-cert", &certificate, "--tls-key", &key];
        let more = ["--driver", driver];
        let server = Server::start(folder.path(), &[&arguments[..], &more].concat());
        let url = format!("https://localhost:{}/large", server.address().port());
        let got = files.path().join("got");
        let mut curl = Command::new("curl");
        curl.args([
            "-sS",
            version,
            "--cacert",
            &ca,
            "--ignore-content-length",
            &url,
            "-o",
        ]);
        // The file shrinks while the client reads slowly.
        let child = curl
            .arg(&got)
            .args(["--limit-rate", "4M"])
            .stderr(Stdio::piped());
        let child = child.spawn().expect("curl");
        wait_until(|| std::fs::metadata(&got).is_ok_and(|got| got.len() > 1 << 20));
        let file = std::fs::File::options().write(true).open(&path);
        file.and_then(|file| file.set_len(3 << 20))
            .expect("truncated");
        let Output { status, stderr, .. } = child.wait_with_output().expect("curl");
        let shown = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(code), "{driver} {version}: {shown}");
    }
}

#[test]
#[ignore = "nightly"] // other languages, and Chromium
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
#[ignore = "nightly"] // other languages, and Chromium
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
#[ignore = "nightly"] // other languages, and Chromium
fn violations_end_in_the_alert_of_the_rfc() {
    let Some(python) = tool("python/tlslite/bin/python", SETUP_NIGHTLY) else {
        return;
    };
    succeeds(|| {
        let mut command = Command::new(&python);
        command.arg(source("attack.py"));
        command
    });
}

/// Adds an authority to the ones that Chromium trusts when `home` is the home directory. Returns
/// false if the program that does is not installed.
fn trust(home: &Path, ca: &str) -> bool {
    if !is_installed("certutil") {
        return false;
    }
    let store = home.join(".pki/nssdb");
    std::fs::create_dir_all(&store).expect("a folder");
    let store = format!("sql:{}", store.display());
    for arguments in [
        &["-N", "--empty-password"][..],
        &["-A", "-n", "authority", "-t", "C,,", "-i", ca],
    ] {
        let mut command = Command::new("certutil");
        let output = output_within(command.args(["-d", &store]).args(arguments), TIMEOUT);
        assert!(output.status.success(), "{output:?}");
    }
    true
}

/// The browser trusts the certificate, shows a listing and a file, and uploads one.
#[test]
#[ignore = "nightly"] // other languages, and Chromium
fn chromium_shows_a_listing() {
    if !is_installed("chromium") {
        return;
    }
    let (folder, profile, files) = (Folder::new(), Folder::new(), Folder::new());
    let authority = Authority::new("authority");
    let ca = authority.file(&files, "ca.pem");
    let (certificate, key) = authority.local(&files);
    if !trust(profile.path(), &ca) {
        return;
    }
    folder.file("a file.txt", "the content of the file");
    let script = "fetch('/uploaded', { method: 'PUT', body: 'x'.repeat(3000000) })\
        .then((response) => { document.title = 'status ' + response.status; });";
    let page = format!("<!doctype html><title>upload</title><script>{script}</script>");
    folder.file("upload.html", page);
    for driver in drivers() {
        let arguments = ["--tls-cert", &certificate, "--tls-key", &key];
        let more = ["--allow", "put", "--site", "--driver", driver];
        let server = Server::start(folder.path(), &[&arguments[..], &more].concat());
        let dump = |path: &str, option: &str| {
            let mut command = Command::new("chromium");
            command.env("HOME", profile.path());
            command.args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--dump-dom",
            ]);
            command.args(["--disable-dev-shm-usage", option]);
            command.arg(format!("--user-data-dir={}", profile.path().display()));
            command.arg(format!(
                "https://localhost:{}{path}",
                server.address().port()
            ));
            let output = output_within(&mut command, 4 * TIMEOUT);
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let page = dump("/upload.html", "--virtual-time-budget=10000");
        assert!(page.contains("<title>status 201</title>"), "{page}");
        let uploaded = folder.path().join("uploaded");
        let bytes = std::fs::metadata(&uploaded).expect("uploaded").len();
        assert_eq!(bytes, 3_000_000);
        std::fs::remove_file(uploaded).expect("removed");
        // Virtual time would wait for the end of `?watch`.
        let listing = dump("/", "--timeout=60000");
        assert!(listing.contains("a%20file.txt"), "{listing}");
        let page = dump("/a%20file.txt", "--timeout=60000");
        assert!(page.contains("the content of the file"), "{page}");
    }
}
