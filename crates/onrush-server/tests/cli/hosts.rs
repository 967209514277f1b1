//! The hosts that the program accepts, by bound address and by `--host`, and the sandbox for active
//! content.

use crate::program::{Folder, Server, curl, drivers, is_installed, onrush};
use std::io::{Read, Write};
use std::net::TcpStream;
use testing::ReservedPort;

/// The status of a request for `host` at `address`.
fn status_at(address: &str, method: &str, path: &str, host: &str) -> u16 {
    let stream = TcpStream::connect(address).expect("the server accepts");
    stream
        .set_read_timeout(Some(crate::program::TIMEOUT))
        .expect("set");
    status_on(stream, method, path, host)
}

/// The status of a request for `host` on a new connection.
fn status_on(mut stream: impl Read + Write, method: &str, path: &str, host: &str) -> u16 {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\
         Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream
        .write_all(request.as_bytes())
        .expect("the server reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response[9..12].parse().expect("a status")
}

fn put(server: &Server, host: &str) -> u16 {
    let address = server.address();
    // A wildcard address is not a valid destination on every system.
    let address = format!("127.0.0.1:{}", address.port());
    status_at(&address, "PUT", "/x", host)
}

/// DNS rebinding: a page makes its own name resolve to 127.0.0.1.
#[test]
fn rebound_name_gets_neither_objects_nor_metrics() {
    for driver in drivers() {
        for place in ["127.0.0.1:0", "same"] {
            let folder = Folder::new();
            let arguments = ["--allow", "put", "--driver", driver, "--admin", place];
            let server = Server::start(folder.path(), &arguments);
            let admin = match place {
                "same" => server.address().to_string(),
                _ => {
                    let log = server.logs(" admin address=");
                    let (_, rest) = log.split_once(" admin address=").expect("a line");
                    rest.lines().next().expect("an address").to_owned()
                }
            };
            for host in [
                "evil.example",
                "EVIL.example:8080",
                "localhost.evil.example",
            ] {
                assert_eq!(put(&server, host), 421, "{driver} {host}");
                for path in ["/-/metrics", "/-/health", "/-/ready", "/-/x"] {
                    assert_eq!(status_at(&admin, "GET", path, host), 421, "{path} {host}");
                }
            }
            assert!(!folder.path().join("x").exists());
            let own = server.address().to_string();
            for host in [
                "localhost",
                "127.0.0.1:1",
                "[::1]:8080",
                "LOCALHOST.:1",
                &own,
            ] {
                assert!(matches!(put(&server, host), 201 | 204), "{driver} {host}");
                assert_eq!(status_at(&admin, "GET", "/-/metrics", host), 200, "{host}");
            }
        }
    }
}

#[test]
fn names_are_added_by_flag_variable_and_file() {
    let folder = Folder::new();
    let config = Folder::new();
    let file = config.file(
        "onrush.toml",
        "host = ['a.example', 'b.example']\nallow = ['put']\n",
    );
    let start = |arguments: &[&str], variable: Option<&str>| {
        let mut command = onrush();
        command.arg(folder.path()).args(["--port", "0"]);
        command.args(arguments);
        if let Some(variable) = variable {
            command.env("ONRUSH_HOST", variable);
        }
        Server::run(command)
    };
    let file = file.to_str().expect("UTF-8");
    let flags = ["--allow=put", "--host", "a.example", "--host=B.example."];
    for server in [
        start(&flags, None),
        start(&["--allow=put"], Some("a.example,b.example")),
        start(&["--config", file], None),
    ] {
        for host in ["a.example", "A.Example.:81", "b.example:80", "localhost"] {
            assert!(matches!(put(&server, host), 201 | 204), "{host}");
        }
        for host in ["c.example", "x.a.example"] {
            assert_eq!(put(&server, host), 421, "{host}");
        }
    }
}

#[test]
fn public_addresses_accept_every_host_unless_names_are_set() {
    let folder = Folder::new();
    let public = ["--allow=put", "--insecure-writes", "--bind", "0.0.0.0"];
    let server = Server::start(folder.path(), &public);
    for host in ["anything.example", "192.0.2.1:80", "localhost"] {
        assert!(matches!(put(&server, host), 201 | 204), "{host}");
    }
    let named = [&public[..], &["--host", "a.example"]].concat();
    let server = Server::start(folder.path(), &named);
    for host in ["a.example", "192.0.2.1:80", "[2001:db8::1]", "localhost"] {
        assert!(matches!(put(&server, host), 201 | 204), "{host}");
    }
    assert_eq!(put(&server, "anything.example"), 421);
}

/// No browser can connect to a Unix socket.
#[test]
fn unix_socket_accepts_every_host() {
    if !is_installed("curl") {
        return;
    }
    let folder = Folder::new();
    folder.file("x", "content");
    let place = Folder::new();
    let socket = place.path().join("s");
    let bind = format!("unix:{}", socket.display());
    let _server = Server::start(folder.path(), &["--bind", &bind]);
    let socket = socket.to_str().expect("UTF-8");
    let content = curl(&["--unix-socket", socket, "http://evil.example/x"]);
    assert_eq!(content, "content");
}

/// Each address has the rule for its kind, whatever the others are.
#[test]
fn mixed_addresses_have_a_rule_each() {
    let folder = Folder::new();
    for driver in drivers() {
        let place = Folder::new();
        let socket = place.path().join("s");
        let unix = format!("unix:{}", socket.display());
        let bind = format!("127.0.0.1:0,0.0.0.0:0,{unix}");
        let flags = ["--bind", &bind, "--driver", driver, "--workers", "2"];
        let server = Server::start(folder.path(), &flags);
        let log = server.logs(" serving ");
        let (_, addresses) = log.split_once("address=\"").expect("several");
        let addresses: Vec<&str> = addresses.split(['"', ' ']).take(2).collect();
        let ports = addresses
            .iter()
            .map(|url| url.rsplit(':').next().expect("a port"));
        let ports: Vec<&str> = ports.collect();
        // More than once, so that both workers serve some.
        for _ in 0..8 {
            let loopback = format!("127.0.0.1:{}", ports[0]);
            assert_eq!(status_at(&loopback, "GET", "/", "evil.example"), 421);
            assert_eq!(status_at(&loopback, "GET", "/", "localhost"), 200);
            // No browser connects to a Unix socket.
            let stream = std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
            assert_eq!(status_on(stream, "GET", "/", "evil.example"), 200);
        }
        drop(server);
        let reserved = ReservedPort::new().expect("a port"); // Other tests cannot get it.
        let port = reserved.number();
        let bind = format!("127.0.0.1:0,0.0.0.0:{port},{unix}");
        let server = Server::start(folder.path(), &["--bind", &bind, "--driver", driver]);
        let public = format!("127.0.0.1:{port}");
        assert_eq!(status_at(&public, "GET", "/", "evil.example"), 200);
        let loopback = server.address().to_string();
        assert_eq!(status_at(&loopback, "GET", "/", "evil.example"), 421);
    }
}

/// With curl: uploaded pages get a sandbox, and pages of a site do not.
#[test]
fn uploaded_pages_are_sandboxed() {
    if !is_installed("curl") {
        return;
    }
    for driver in drivers() {
        for (site, sandboxed) in [("--site=off", true), ("--site", false)] {
            let folder = Folder::new();
            let page = folder.file("page", "<script>fetch('/x', {method: 'PUT'})</script>");
            let page = page.to_str().expect("UTF-8");
            let arguments = ["--allow=put", "--driver", driver, site];
            let server = Server::start(folder.path(), &arguments);
            for (name, runs) in [("up.html", true), ("up.svg", true), ("up.txt", false)] {
                let url = format!("{}/{name}", server.url);
                curl(&["-T", page, &url]);
                let head = curl(&["-o", "/dev/null", "-D", "-", &url]);
                let has = head.contains("\r\nContent-Security-Policy: sandbox\r\n");
                assert_eq!(has, runs && sandboxed, "{driver} {site} {name}: {head}");
                assert!(
                    head.contains("\r\nX-Content-Type-Options: nosniff\r\n"),
                    "{head}"
                );
            }
            let cross = [
                "-w",
                "%{http_code}",
                "-H",
                "Origin: http://evil.example",
                "-T",
                page,
            ];
            let url = format!("{}/other", server.url);
            let said = curl(&[&cross[..], &[&url]].concat());
            assert!(said.ends_with("403"), "{driver}: {said}");
        }
    }
}

/// `--depth-max` of the running program.
#[test]
fn depth_of_paths_is_limited_by_a_flag() {
    for driver in drivers() {
        let folder = Folder::new();
        let arguments = ["--allow=put", "--driver", driver, "--depth-max", "3"];
        let server = Server::start(folder.path(), &arguments);
        let address = server.address().to_string();
        assert_eq!(
            status_at(&address, "PUT", "/a/b/c", "localhost"),
            201,
            "{driver}"
        );
        assert_eq!(
            status_at(&address, "PUT", "/d/e/f/g", "localhost"),
            400,
            "{driver}"
        );
        assert!(!folder.path().join("d").exists());
    }
}
