//! SIGUSR2 of a server with quotas: the new process knows what the old one has counted, and both
//! together never exceed a quota.

use crate::program::{Folder, Server, TIMEOUT, both_drivers, onrush, pattern, wait_until};
use crate::service_manager::{ServiceManager, is_running, signal};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const TEXT: &str = "the objects are being counted for the quota of this path; try again later";

fn start(folder: &Folder, manager: &mut ServiceManager, arguments: &[&str]) -> Server {
    let mut command = onrush();
    command.arg(folder.path()).args(["--port=0", "--allow=put"]);
    command.args(arguments);
    manager.manage(&mut command);
    let server = Server::run(command);
    manager.receives("READY=1");
    server
}

/// Sends the head of a PUT, and waits until the server receives it.
fn begin(server: &Server, name: &str, length: usize) -> TcpStream {
    let mut stream = server.connect();
    let head = format!(
        "PUT /{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\
         Connection: close\r\nExpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream
}

/// The status of a PUT, and the whole response.
fn put(server: &Server, name: &str, length: usize) -> (u16, String) {
    let mut stream = begin(server, name, length);
    let mut response = String::new();
    let mut byte = [0];
    while testing::read_some(&mut stream, &mut byte).expect("a response") == 1 {
        response.push(char::from(byte[0]));
        if response == "HTTP/1.1 100 Continue\r\n\r\n" {
            response.clear();
            stream.write_all(&pattern(7, length)).expect("sent");
        }
    }
    let status = response.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), response)
}

fn put_when_counted(server: &Server, name: &str, length: usize) -> u16 {
    let mut status = 503;
    wait_until(|| {
        status = put(server, name, length).0;
        status != 503
    });
    status
}

#[test]
fn the_new_process_knows_what_the_old_one_has_counted() {
    for driver in both_drivers() {
        let folder = Folder::new();
        let mut manager = ServiceManager::new();
        let arguments = ["--quota=/=100000", "--driver", driver];
        let mut server = start(&folder, &mut manager, &arguments);
        assert_eq!(put(&server, "a", 30_000).0, 201);
        let mut held = begin(&server, "held", 20_000);
        held.read_exact(&mut [0; 25]).expect("100");
        signal(server.child.id(), "USR2");
        let new = manager.new_process();
        // What is left is shared: 65904, as the upload that goes on counts its name. A connection
        // may still be one of the old process.
        assert_eq!(put(&server, "b", 12_000).0, 201);
        let (status, response) = put(&server, "c", 45_000);
        assert_eq!(status, 503, "{response}");
        assert!(response.contains("Retry-After: 5"), "{response}");
        assert!(response.contains(TEXT), "{response}");
        assert_eq!(put(&server, "c", 75_000).0, 507);
        held.write_all(&pattern(7, 20_000)).expect("sent");
        let mut response = String::new();
        held.read_to_string(&mut response).expect("a response");
        assert!(response.starts_with("HTTP/1.1 201"), "{response}");
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
        // All is left for the new one when it has counted what the old one has done.
        assert_eq!(put_when_counted(&server, "d", 38_001), 507);
        assert_eq!(put_when_counted(&server, "d", 38_000), 201);
        assert_eq!(put(&server, "e", 1).0, 507);
        let log = server.log();
        let first = log.matches("counting for the quotas: all objects").count();
        assert_eq!(first, 1, "{log}");
        signal(new, "TERM");
        wait_until(|| !is_running(new));
    }
}

/// A new process that fails gives its part back.
#[test]
fn the_old_process_has_all_again_after_a_failure() {
    let (folder, outside) = (Folder::new(), Folder::new());
    let occupied = TcpListener::bind("127.0.0.1:0").expect("a port");
    let config = outside.file("onrush.toml", "quota = '/=100000'\n");
    let path = config.to_str().expect("UTF-8");
    let mut manager = ServiceManager::new();
    let server = start(&folder, &mut manager, &["--config", path]);
    let address = occupied.local_addr().expect("an address");
    let text = format!("quota = '/=100000'\nadmin = '{address}'\n");
    std::fs::write(&config, text).expect("written");
    server.signal("USR2");
    server.logs("the restart failed: the new process has ended (exit status: 1)");
    assert_eq!(put_when_counted(&server, "a", 90_000), 201);
    assert_eq!(put(&server, "b", 10_001).0, 507);
}
