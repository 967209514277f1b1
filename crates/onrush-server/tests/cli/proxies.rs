//! The real program behind proxies: the real HAProxy, and requests as proxies send them.

use crate::program::certificates::Authority;
use crate::program::plain::printed;
use crate::program::users::{UsersFile, basic};
use crate::program::{Folder, Server, TIMEOUT, both_drivers, curl, onrush, output, wait_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use testing::ReservedPort;

/// Sends `head` and returns everything until the server closes.
fn exchange(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
    let mut response = Vec::new();
    let sent = stream.write_all(head.as_bytes());
    // A refused connection may be reset.
    let _ = sent.and_then(|()| stream.read_to_end(&mut response));
    String::from_utf8_lossy(&response).into_owned()
}

/// A GET with these field lines.
fn get(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n")
}

/// HAProxy on a port of 127.0.0.1. Dropping it kills it.
struct Haproxy {
    child: Child,
    address: SocketAddr,
    _port: ReservedPort,
}

impl Haproxy {
    /// With these lines in its only section. `None` if it is missing, which fails with `CI`.
    fn start(folder: &Path, lines: &str) -> Option<Haproxy> {
        let program = match Path::new("/usr/sbin/haproxy").exists() {
            true => "/usr/sbin/haproxy",
            false => "haproxy",
        };
        if !crate::program::is_installed(program) {
            return None;
        }
        let port = ReservedPort::new().expect("a free port");
        let address = port.address();
        let configuration = format!(
            "defaults\n  timeout connect 30s\n  timeout client 30s\n  timeout server 30s\n\
             listen site\n  bind {address}\n{lines}"
        );
        let path = folder.join("haproxy.cfg");
        std::fs::write(&path, configuration).expect("written");
        let mut command = Command::new(program);
        command.arg("-db").arg("-f").arg(path).stdin(Stdio::null());
        let child = command.spawn().expect("it starts");
        let haproxy = Haproxy {
            child,
            address,
            _port: port,
        };
        wait_until(|| TcpStream::connect(address).is_ok());
        Some(haproxy)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// HAProxy connects from 127.0.0.1, and the client from 127.0.0.5.
#[test]
#[ignore = "nightly"] // HAProxy; the tests below send what it sends
fn haproxy_tells_the_address_of_the_client() {
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let authority = Authority::new("authority");
    let ca = authority.file(&files, "ca.pem");
    let (certificate, key) = authority.local(&files);
    for driver in both_drivers() {
        let shared = [
            "--driver",
            driver,
            "--access-log=on",
            "--trusted-proxy=127.0.0.1",
        ];
        for (mode, option, over_tls) in [
            ("tcp", "send-proxy", false),
            ("tcp", "send-proxy-v2", false),
            ("tcp", "send-proxy-v2", true),
            ("http\n  option forwardfor", "", false),
        ] {
            let mut arguments = shared.to_vec();
            if !option.is_empty() {
                arguments.push("--proxy-protocol");
            }
            if over_tls {
                arguments.extend(["--tls-cert", &certificate, "--tls-key", &key]);
            }
            let server = Server::start(folder.path(), &arguments);
            let lines = format!("  mode {mode}\n  server s {} {option}\n", server.address());
            let Some(haproxy) = Haproxy::start(files.path(), &lines) else {
                return;
            };
            let scheme = if over_tls { "https" } else { "http" };
            let port = haproxy.address.port();
            let url = format!("{scheme}://localhost:{port}/x");
            let here = format!("localhost:{port}:127.0.0.1");
            let from = ["--interface", "127.0.0.5", "--resolve", &here];
            let spoofed = ["-H", "X-Forwarded-For: 9.9.9.9", "--cacert", &ca, &url];
            assert_eq!(curl(&[&from[..], &spoofed].concat()), "content", "{mode}");
            let log = server.logs("target=/x ");
            assert!(log.contains("peer=127.0.0.5"), "{mode} {option}: {log}");
            assert!(log.contains("proxy=127.0.0.1:"), "{mode} {option}: {log}");
            assert!(!log.contains("9.9.9.9"), "{mode} {option}: {log}");
        }
    }
}

#[test]
fn a_connection_without_the_protocol_or_of_another_peer_is_closed() {
    let folder = Folder::new();
    folder.file("x", "content");
    let header = "PROXY TCP4 192.0.2.1 192.0.2.2 50000 80\r\n";
    for driver in both_drivers() {
        let shared = ["--driver", driver, "--proxy-protocol", "--admin=0"];
        for (trusted, reason, attempt) in [
            ("127.0.0.0/8", "no PROXY protocol header", String::new()),
            ("10.0.0.0/8", "the peer is not trusted", header.to_owned()),
        ] {
            let arguments = [&shared[..], &["--trusted-proxy", trusted]].concat();
            let server = Server::start(folder.path(), &arguments);
            let request = get("/x", "");
            assert_eq!(
                exchange(server.address(), &format!("{attempt}{request}")),
                ""
            );
            server.logs(&format!("reason=\"{reason}\""));
            let served = exchange(server.address(), &format!("{header}{request}"));
            assert_eq!(
                served.ends_with("content"),
                trusted == "127.0.0.0/8",
                "{served}"
            );
        }
    }
}

#[test]
fn fields_of_trusted_proxies_decide_and_those_of_others_do_not() {
    let folder = Folder::new();
    folder.file("x", "content");
    let users = UsersFile::new();
    users.add("ann", &["all"]);
    for driver in both_drivers() {
        let shared = [
            "--driver",
            driver,
            "--auth-file",
            users.path(),
            "--access-log-format=combined",
        ];
        for (trusted, address) in [("127.0.0.1", "192.0.2.1"), ("10.0.0.0/8", "127.0.0.1")] {
            let arguments = [&shared[..], &["--trusted-proxy", trusted]].concat();
            let server = Server::start(folder.path(), &arguments);
            let wrong = basic("ann", "wrong");
            let fields = format!("X-Forwarded-For: 9.9.9.9, 192.0.2.1\r\n{wrong}");
            let response = exchange(server.address(), &get("/x", &fields));
            assert!(response.starts_with("HTTP/1.1 401 "), "{response}");
            let log = server.logs("login failed");
            assert!(
                log.contains(&format!("address={address} ")),
                "{trusted}: {log}"
            );
            let log = server.logs("GET /x ");
            assert!(log.contains(&format!("{address} - ")), "{trusted}: {log}");
            let fields = format!("Forwarded: for=192.0.2.1;proto=https\r\n{wrong}");
            exchange(server.address(), &get("/y", &fields));
            let log = server.logs("GET /y ");
            let line = log
                .lines()
                .find(|line| line.contains("GET /y "))
                .expect("a line");
            assert!(line.starts_with(&format!("{address} - ")), "{line}");
        }
    }
}

/// A proxy that ends TLS forwards plain requests, which must not be redirected without end.
/// The client of such a header is unknown, so it may not choose an address as a proxy does. Without
/// a client, the connection is the proxy's own.
#[test]
fn the_fields_of_a_client_that_the_header_does_not_name_mean_nothing() {
    let folder = Folder::new();
    folder.file("x", "content");
    let arguments = [
        "--proxy-protocol",
        "--trusted-proxy=127.0.0.1",
        "--access-log=on",
    ];
    let binary = |command: u8| {
        let start = b"\r\n\r\n\0\r\nQUIT\n";
        let header = [&start[..], &[command, 0, 0, 0]].concat();
        String::from_utf8(header).expect("it is ASCII")
    };
    for (header, peer) in [
        ("PROXY UNKNOWN\r\n".to_owned(), "peer=0.0.0.0:0 "),
        (binary(0x21), "peer=0.0.0.0:0 "),
        (binary(0x20), "peer=9.9.9.9 "),
    ] {
        let server = Server::start(folder.path(), &arguments);
        let request = get("/x", "X-Forwarded-For: 9.9.9.9\r\n");
        let served = exchange(server.address(), &format!("{header}{request}"));
        assert!(served.ends_with("content"), "{served}");
        let log = server.logs("target=/x ");
        assert!(log.contains(peer), "{log}");
    }
}

#[test]
fn the_scheme_of_the_client_decides_about_redirections_and_hsts() {
    let (folder, files) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let (certificate, key) = Authority::new("authority").local(&files);
    let mut arguments = vec!["--tls-cert", &certificate, "--tls-key", &key];
    arguments.extend(["--http-redirect=0", "--hsts", "--trusted-proxy=127.0.0.1"]);
    let server = Server::start(folder.path(), &arguments);
    let ask = |fields: &str| exchange(printed(&server, "redirect"), &get("/x", fields));
    for fields in [
        "X-Forwarded-Proto: https\r\n",
        "Forwarded: for=192.0.2.1;proto=https\r\n",
    ] {
        let response = ask(fields);
        assert!(response.ends_with("content"), "{response}");
        assert!(
            response.contains("\r\nStrict-Transport-Security: "),
            "{response}"
        );
    }
    for fields in [
        "",
        "X-Forwarded-Proto: http\r\n",
        "X-Forwarded-Proto: https, http\r\n",
    ] {
        let response = ask(fields);
        assert!(response.starts_with("HTTP/1.1 308 "), "{response}");
    }
    drop(server);
    arguments.pop();
    let server = Server::start(folder.path(), &arguments);
    let spoofed = get("/x", "X-Forwarded-Proto: https\r\n");
    let response = exchange(printed(&server, "redirect"), &spoofed);
    assert!(response.starts_with("HTTP/1.1 308 "), "{response}");
}

#[test]
fn check_prints_the_proxies() {
    let folder = Folder::new();
    let check = |arguments: &[&str]| {
        let mut command = onrush();
        command.arg("check").arg(folder.path()).args(arguments);
        let output = output(&mut command);
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    };
    let proxies = ["--trusted-proxy=10.0.0.0/8,unix", "--trusted-proxy", "::1"];
    let text = check(&proxies);
    assert!(
        text.contains("proxies      10.0.0.0/8, unix, ::1\n"),
        "{text}"
    );
    let text = check(&[&proxies[..], &["--proxy-protocol"]].concat());
    assert!(
        text.contains("unix, ::1 (PROXY protocol required)\n"),
        "{text}"
    );
    assert!(!text.contains("warning"), "{text}");
    let text = check(&["--proxy-protocol"]);
    assert!(
        text.contains("warning      --proxy-protocol without --trusted-proxy"),
        "{text}"
    );
    assert!(!check(&[]).contains("proxies"));
    let text = check(&["--trusted-proxy=10.0.0.1/8"]);
    assert!(
        text.contains("neither the address 10.0.0.1 nor the network 10.0.0.0/8"),
        "{text}"
    );
}
