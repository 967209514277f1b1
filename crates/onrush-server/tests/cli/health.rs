//! `onrush health` reports whether a running server is ready.

use crate::program::{Folder, Server, onrush, output, wait_until};
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;

/// The exit code and everything that is printed.
fn health(command: &mut Command) -> (Option<i32>, String) {
    let output = output(command);
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).expect("UTF-8");
    assert_eq!(printed.lines().count(), 1, "{printed}");
    (output.status.code(), printed)
}

#[test]
fn health_reports_whether_a_server_is_ready() {
    let folder = Folder::new();
    let server = Server::start(folder.path(), &["--admin", "127.0.0.1:0"]);
    let printed = server.prints("admin http://");
    let (_, admin) = printed.split_once("admin http://").expect("printed");
    let admin = admin.split('/').next().expect("an address").to_owned();
    let (_, port) = admin.rsplit_once(':').expect("a port");
    for address in [&admin, port] {
        let result = health(onrush().args(["health", address]));
        assert_eq!(result, (Some(0), "ready\n".to_owned()));
    }
    let by_variable = health(onrush().arg("health").env("ONRUSH_ADMIN", &admin));
    assert_eq!(by_variable, (Some(0), "ready\n".to_owned()));
    // The address of the objects has no such page.
    let (code, line) = health(onrush().args(["health", &server.address().to_string()]));
    assert_eq!(code, Some(1));
    assert!(line.contains(": 404 "), "{line}");
    assert!(line.contains("is it the address of --admin?"), "{line}");
    drop(server);
    let (code, line) = health(onrush().args(["health", &admin]));
    assert_eq!(code, Some(1));
    assert!(line.contains("Connection re"), "refused or reset: {line}");
}

/// A server that is alive and not ready, because it cannot reach its store: its reason is printed.
#[test]
fn a_server_that_is_not_ready_is_a_failure() {
    let base = Folder::new();
    let dir = base.path().join("data");
    std::fs::create_dir(&dir).expect("a folder");
    let server = Server::start(&dir, &["--admin", "127.0.0.1:0"]);
    let printed = server.prints("admin http://");
    let (_, admin) = printed.split_once("admin http://").expect("printed");
    let admin = admin.split('/').next().expect("an address").to_owned();
    let ask = || health(onrush().args(["health", &admin]));
    assert_eq!(ask(), (Some(0), "ready\n".to_owned()));
    std::fs::rename(&dir, base.path().join("away")).expect("renamed");
    // It looks at the folder from time to time.
    wait_until(|| ask().1 != "ready\n");
    let reason = format!("onrush: {admin}: 503 the folder is gone\n");
    assert_eq!(ask(), (Some(1), reason));
    std::fs::create_dir(&dir).expect("a folder");
    wait_until(|| ask().1 == "ready\n");
    assert_eq!(ask(), (Some(0), "ready\n".to_owned()));
}

#[test]
fn another_program_is_not_ready() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let (code, line) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 512];
            let read = testing::read_some(&mut stream, &mut request).expect("a request");
            assert!(request[..read].starts_with(b"GET /-/ready HTTP/1.1\r\n"));
            stream.write_all(b"220 mail\x1b[31m\r\n").expect("sent");
        });
        health(onrush().args(["health", &address]))
    });
    assert_eq!(
        (code, line),
        (Some(1), format!("onrush: {address}: not an HTTP server\n"))
    );
    // It accepts nothing more, but its backlog does.
    let (code, line) = health(onrush().args(["health", &address, "--timeout", "10ms"]));
    assert_eq!(code, Some(1), "{line}");
    let (code, line) = health(onrush().args(["health", "same"]));
    assert_eq!(code, Some(2), "{line}");
}
