//! SIGUSR2 while an earlier process still drains: the process between them ends first.

use crate::program::{Folder, Server, TIMEOUT, both_drivers, onrush, wait_until};
use crate::service_manager::{ServiceManager, is_running, signal};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Begins an upload, and waits until the server receives it.
fn begin(server: &Server, name: &str) -> TcpStream {
    let mut stream = server.connect();
    let head = format!(
        "PUT /{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\
         Expect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    assert!(read_head(&mut stream).starts_with(b"HTTP/1.1 100"));
    stream
}

fn complete(stream: &mut TcpStream) {
    stream.write_all(b"content").expect("sent");
    assert!(read_head(stream).starts_with(b"HTTP/1.1 201"));
}

/// Reads a response without content.
fn read_head(stream: &mut TcpStream) -> Vec<u8> {
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a response");
        response.push(byte[0]);
    }
    response
}

/// That the second process has ended is ordinary: it is no warning, and the first one drains.
#[test]
fn a_process_that_drains_outlives_the_one_that_replaced_it() {
    for driver in both_drivers() {
        let folder = Folder::new();
        let mut manager = ServiceManager::new();
        let mut command = onrush();
        command.arg(folder.path());
        command.args(["--port=0", "--allow=put", "--driver", driver]);
        manager.manage(&mut command);
        let mut server = Server::run(command);
        manager.receives("READY=1");
        // One becomes idle when the second process has ended; the other one keeps the first alive.
        let (mut passed, mut held) = (begin(&server, "a"), begin(&server, "b"));
        signal(server.child.id(), "USR2");
        let second = manager.new_process();
        signal(second, "USR2");
        let third = manager.new_process();
        wait_until(|| !is_running(second));
        complete(&mut passed);
        server.logs("the new process has ended as well; the other connections drain");
        complete(&mut held);
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
        signal(third, "TERM");
        wait_until(|| !is_running(third));
        let log = server.log();
        let is_problem = |line: &&str| {
            let is_busy = line.contains("a worker was blocked"); // The machine may be.
            (line.contains(" WARN ") || line.contains(" ERROR ")) && !is_busy
        };
        assert_eq!(log.lines().find(is_problem), None, "{log}");
    }
}
