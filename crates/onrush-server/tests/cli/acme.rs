//! Automatic certificates of the real binary, from pebble, the test server of Let's Encrypt.

use crate::program::certificates::Authority;
use crate::program::{Folder, SETUP_NIGHTLY, Server, TIMEOUT, curl, onrush, output, tool};
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use testing::ReservedPort;

const NAME: &str = "files.example";

/// A DNS server for which every name is 127.0.0.1. Returns its address. Pebble asks by TCP.
fn start_dns() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || respond_to_queries(client));
        }
    });
    address
}

/// Messages have a length in front of them (RFC 1035, section 4.2.2).
fn respond_to_queries(mut client: TcpStream) -> Option<()> {
    loop {
        let mut length = [0; 2];
        client.read_exact(&mut length).ok()?;
        let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
        client.read_exact(&mut query).ok()?;
        // The question begins behind the header of 12 bytes: a name that ends with 0, type, class.
        let name = query.get(12..)?.iter().position(|&byte| byte == 0)?;
        let question = query.get(12..12 + name + 5)?;
        let is_address = question[name + 1..][..2] == [0, 1];
        let mut response = query[..2].to_vec();
        response.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
        response.extend(question);
        if is_address {
            response.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
        }
        let length = (response.len() as u16).to_be_bytes();
        client.write_all(&[&length[..], &response].concat()).ok()?;
    }
}

/// An authority that validates names at these ports of 127.0.0.1.
struct Pebble {
    program: PathBuf,
    child: Option<Child>,
    files: Folder,
    /// The file of the authority of its own HTTPS.
    ca: String,
    port: ReservedPort,
    management_port: ReservedPort,
    https_port: ReservedPort,
    http_port: ReservedPort,
}

impl Pebble {
    /// It issues certificates that are valid for this long. It does not run yet. `None` if it is
    /// not installed.
    fn new(valid: Duration) -> Option<Pebble> {
        let program = tool("bin/pebble", SETUP_NIGHTLY)?;
        let files = Folder::new();
        let authority = Authority::new("authority of pebble");
        let ca = authority.file(&files, "ca.pem");
        let (certificate, key) = authority.local(&files);
        let [port, management_port, https_port, http_port] =
            [(); 4].map(|()| ReservedPort::new().expect("a free port"));
        let config = serde_json::json!({"pebble": {
            "listenAddress": port.address().to_string(),
            "managementListenAddress": management_port.address().to_string(),
            "certificate": certificate,
            "privateKey": key,
            "httpPort": http_port.number(),
            "tlsPort": https_port.number(),
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "retryAfter": {"authz": 1, "order": 1},
            "profiles": {"default": {"description": "d", "validityPeriod": valid.as_secs()}},
        }});
        files.file("pebble.json", config.to_string());
        Some(Pebble {
            program,
            child: None,
            files,
            ca,
            port,
            management_port,
            https_port,
            http_port,
        })
    }

    fn start(mut self) -> Pebble {
        let mut command = Command::new(&self.program);
        command
            .arg("-config")
            .arg(self.files.path().join("pebble.json"));
        command.args(["-dnsserver", &start_dns()]);
        command
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_AUTHZREUSE", "0");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.child = Some(command.spawn().expect("pebble"));
        let end = Instant::now() + TIMEOUT;
        while TcpStream::connect(self.port.address()).is_err() {
            assert!(Instant::now() < end, "pebble does not start");
            sleep(Duration::from_millis(10));
        }
        self
    }

    fn directory(&self) -> String {
        format!("https://{}/dir", self.port.address())
    }

    /// Serves `folder` with a certificate from this authority.
    fn serve(&self, folder: &Folder, arguments: &[&str]) -> Server {
        self.serve_at(self.https_port.number(), folder, arguments)
    }

    fn serve_at(&self, port: u16, folder: &Folder, arguments: &[&str]) -> Server {
        let mut command = onrush();
        command
            .arg(folder.path())
            .args(["--port", &port.to_string()]);
        command.args([
            "--host",
            NAME,
            "--acme",
            NAME,
            "--acme-email",
            "admin@mail.example",
        ]);
        command.args(["--acme-ca", &self.ca]);
        if !arguments.contains(&"--acme-directory") {
            command.args(["--acme-directory", &self.directory()]);
        }
        command.args(arguments);
        Server::run(command)
    }

    /// The content of `/file` for a client that trusts this authority.
    fn get(&self) -> String {
        let root = self.files.path().join("root.pem");
        let url = format!("https://{}/roots/0", self.management_port.address());
        let pem = curl(&["--cacert", &self.ca, &url]);
        fs::write(&root, pem).expect("written");
        let at = format!("{NAME}:{}", self.https_port.number());
        let resolve = format!("{at}:127.0.0.1");
        let root = root.to_str().expect("UTF-8");
        curl(&[
            "--cacert",
            root,
            "--resolve",
            &resolve,
            &format!("https://{at}/file"),
        ])
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

const MONTH: Duration = Duration::from_secs(30 * 86_400);

fn folder() -> Folder {
    let folder = Folder::new();
    folder.file("file", "content");
    folder
}

fn state(folder: &Folder, name: &str) -> String {
    let path = folder.path().join(".onrush/acme").join(name);
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
#[ignore = "nightly"] // pebble
fn a_certificate_is_obtained_kept_and_not_ordered_again() {
    let Some(pebble) = Pebble::new(MONTH) else {
        return;
    };
    let (pebble, folder) = (pebble.start(), folder());
    let server = pebble.serve(&folder, &[]);
    server.logs("clients get a temporary one");
    server.logs("method=tls-alpn-01");
    server.logs("a certificate was obtained");
    server.logs("certificates loaded again");
    assert_eq!(pebble.get(), "content");
    // Only the owner can read the keys, and clients cannot.
    let acme = folder.path().join(".onrush/acme");
    let mode = |path: &Path| fs::metadata(path).expect("exists").permissions().mode() & 0o777;
    assert_eq!(mode(&acme), 0o700);
    for entry in fs::read_dir(&acme).expect("a folder") {
        let path = entry.expect("an entry").path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    assert!(state(&folder, "account.json").contains("admin@mail.example"));
    assert_eq!(state(&folder, "attempts.json"), "");
    let certificate = state(&folder, "certificate.pem");
    drop(server);

    let server = pebble.serve(&folder, &["--hidden"]);
    server.logs("the next certificate is ordered at this time");
    assert_eq!(pebble.get(), "content");
    let log = server.log();
    assert!(
        !log.contains("is being ordered") && !log.contains("temporary"),
        "{log}"
    );
    assert_eq!(state(&folder, "certificate.pem"), certificate);
    drop(server);

    // Another name is another order.
    let server = pebble.serve(&folder, &["--acme", "www.files.example"]);
    server.logs("a certificate was obtained");
    server.logs("www.files.example (expires");
    assert_eq!(pebble.get(), "content");
    drop(server);
}

#[test]
#[ignore = "nightly"] // pebble
fn a_certificate_that_cannot_be_used_is_ordered_again() {
    let Some(pebble) = Pebble::new(MONTH) else {
        return;
    };
    let (pebble, folder) = (pebble.start(), folder());
    for broken in [
        "",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        folder.file(".onrush/acme/certificate.pem", broken);
        let server = pebble.serve(&folder, &[]);
        server.logs("the certificate cannot be used");
        server.logs("a certificate was obtained");
        server.logs("certificates loaded again");
        assert_eq!(pebble.get(), "content");
        let path = folder.path().join(".onrush/acme/certificate.pem");
        let mode = fs::metadata(path).expect("exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
#[ignore = "nightly"] // pebble
fn a_certificate_that_is_due_at_once_is_not_ordered_without_pause() {
    // It is renewed after two thirds of no time.
    let Some(pebble) = Pebble::new(Duration::from_secs(1)) else {
        return;
    };
    let (pebble, folder) = (pebble.start(), folder());
    let server = pebble.serve(&folder, &[]);
    let log = server.logs("the next certificate is ordered at this time");
    let is_due = log.contains("is due for renewal already");
    assert!(is_due || log.contains("it has expired at"), "{log}");
    let attempts: serde_json::Value =
        serde_json::from_str(&state(&folder, "attempts.json")).expect("JSON");
    assert_eq!(attempts["failures"], 1, "{log}");
    assert_eq!(log.matches("is being ordered").count(), 1, "{log}");
}

#[test]
#[ignore = "nightly"] // pebble
fn a_certificate_is_obtained_at_the_port_that_redirects() {
    let Some(pebble) = Pebble::new(MONTH) else {
        return;
    };
    let (pebble, folder) = (pebble.start(), folder());
    // The first order used the other method and has failed.
    let subject = format!("{NAME} from {}", pebble.directory());
    let attempts = serde_json::json!({"subject": subject, "failures": 1, "not_before": 0});
    folder.file(".onrush/acme/attempts.json", attempts.to_string());
    let port = pebble.http_port.number().to_string();
    let server = pebble.serve(&folder, &["--http-redirect", &port]);
    server.logs("method=http-01");
    server.logs("a certificate was obtained");
    server.logs("certificates loaded again");
    assert_eq!(pebble.get(), "content");
    // The challenge is over.
    let url = format!("http://127.0.0.1:{port}/.well-known/acme-challenge/x");
    let code = curl(&["-o", "/dev/null", "-w", "%{http_code}", &url]);
    assert_eq!(code, "308");
}

#[test]
#[ignore = "nightly"] // pebble
fn certificates_are_renewed_while_the_server_runs() {
    let Some(pebble) = Pebble::new(Duration::from_secs(9)) else {
        return;
    };
    let (pebble, folder) = (pebble.start(), folder());
    let server = pebble.serve(&folder, &[]);
    server.logs("a certificate was obtained");
    let first = state(&folder, "certificate.pem");
    let end = Instant::now() + TIMEOUT;
    while state(&folder, "certificate.pem") == first {
        assert!(Instant::now() < end, "{}", server.log());
        sleep(Duration::from_millis(50));
    }
    let end = Instant::now() + TIMEOUT;
    while server.log().matches("certificates loaded again").count() < 2 {
        assert!(Instant::now() < end, "{}", server.log());
        sleep(Duration::from_millis(50));
    }
    assert_eq!(pebble.get(), "content");
}

#[test]
#[ignore = "nightly"] // pebble
fn a_failed_validation_is_logged_and_not_repeated_at_once() {
    let Some(pebble) = Pebble::new(MONTH) else {
        return;
    };
    let (pebble, folder) = (pebble.start(), folder());
    // The server listens at another port than the one that is validated.
    let server = pebble.serve_at(0, &folder, &[]);
    let log = server.logs("no certificate could be obtained");
    assert!(
        log.contains("files.example: unauthorized: Failed to connect"),
        "{log}"
    );
    assert!(
        log.contains("clients still get a temporary certificate"),
        "{log}"
    );
    let attempts: serde_json::Value =
        serde_json::from_str(&state(&folder, "attempts.json")).expect("JSON");
    assert_eq!(attempts["failures"], 1);
    let url = format!("{}/file", server.url);
    assert_eq!(
        curl(&["--insecure", "-H", "Host: localhost", &url]),
        "content"
    );
    drop(server);
    // A restart does not order sooner.
    let server = pebble.serve_at(0, &folder, &[]);
    server.logs("the next certificate is ordered at this time");
    assert!(!server.log().contains("is being ordered"));
}

#[test]
#[ignore = "nightly"] // pebble
fn an_authority_that_cannot_be_reached_is_tried_again_soon() {
    let Some(pebble) = Pebble::new(MONTH) else {
        return;
    };
    let folder = folder();
    let server = pebble.serve(&folder, &[]);
    let log = server.logs("no certificate could be obtained");
    assert!(log.contains(&pebble.directory()), "{log}");
    let pebble = pebble.start();
    server.logs("a certificate was obtained");
    server.logs("certificates loaded again");
    assert_eq!(pebble.get(), "content");
    drop(server);

    // Something else than an ACME server.
    let other = crate::program::Folder::new();
    let url = format!("{}/nothing", pebble.directory());
    let server = pebble.serve(&other, &["--acme-directory", &url]);
    server.logs(&format!("{url} responds with 404"));
}

#[test]
fn a_folder_that_cannot_keep_keys_is_an_error_at_start() {
    let folder = folder();
    folder.file(".onrush/acme", "a file");
    let mut command = onrush();
    command
        .arg(folder.path())
        .args(["--port", "0", "--acme", NAME]);
    let output = output(&mut command);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("acme: cannot keep certificates in "), "{log}");
}

#[test]
fn a_bad_file_with_authorities_is_an_error_at_start() {
    let (folder, files) = (folder(), Folder::new());
    let not_der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (name, content, reason) in [
        ("missing.pem", None, "does not exist"),
        (".", None, "is a folder"),
        ("empty.pem", Some(""), "is empty"),
        ("words.pem", Some("words"), "holds no certificate"),
        ("cut.pem", Some(&not_der[..30]), "is malformed"),
        ("wrong.pem", Some(not_der), "is malformed"),
    ] {
        if let Some(content) = content {
            files.file(name, content);
        }
        let path = files.path().join(name);
        let mut command = onrush();
        command
            .arg(folder.path())
            .args(["--port", "0", "--acme", NAME, "--log-level", "error"]);
        command.arg("--acme-ca").arg(&path);
        let output = output(&mut command);
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{log}");
        let line = format!("onrush: acme-ca: {} {reason}", path.display());
        assert!(log.starts_with(&line) && log.lines().count() == 1, "{log}");
    }
}
