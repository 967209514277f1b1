//! Uploads whose parts arrive in any order, of the running program: `kill -9` while several
//! connections send.

use crate::program::{Folder, Server, drivers, pattern};
use base64::prelude::{BASE64_STANDARD, Engine};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, mpsc};
use std::thread;

const PART_BYTES: usize = 300_000;
const CONNECTIONS: usize = 3;

/// A request, and the response; empty if the connection is lost.
fn exchange(address: SocketAddr, head: &str, body: &[u8]) -> String {
    let fields = "Host: localhost\r\nConnection: close";
    let length = body.len();
    let request = format!("{head}\r\n{fields}\r\nContent-Length: {length}\r\n\r\n");
    let mut response = Vec::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        let sent = stream.write_all(&[request.as_bytes(), body].concat());
        let received = sent.and_then(|()| stream.read_to_end(&mut response));
        if received.is_err() {
            response.clear();
        }
    }
    String::from_utf8_lossy(&response).into_owned()
}

fn field<'r>(response: &'r str, name: &str) -> &'r str {
    let mut lines = response.lines();
    let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name} in {response}"))
}

/// The parts that have not arrived.
fn missing(server: &Server, url: &str, count: usize) -> Vec<usize> {
    let head = exchange(server.address(), &format!("HEAD {url} HTTP/1.1"), b"");
    let bits = field(&head, "Onrush-Parts").trim_matches(':');
    let bits = BASE64_STANDARD.decode(bits).expect("base64");
    let is_missing = |part: &usize| bits[part / 8] & (1 << (part % 8)) == 0;
    (0..count).filter(is_missing).collect()
}

/// Sends these parts over several connections. Calls `arrived` for each one that was acknowledged.
fn send(
    address: SocketAddr,
    url: &str,
    content: &[u8],
    parts: Vec<usize>,
    arrived: &mpsc::Sender<usize>,
) {
    let parts = Mutex::new(parts);
    let next = || parts.lock().expect("not poisoned").pop();
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                while let Some(part) = next() {
                    let at = part * PART_BYTES;
                    let head = format!(
                        "PATCH {url} HTTP/1.1\r\nUpload-Offset: {at}\r\nUpload-Complete: ?0\r\n\
                         Content-Type: application/partial-upload"
                    );
                    let end = content.len().min(at + PART_BYTES);
                    let response = exchange(address, &head, &content[at..end]);
                    if response.is_empty() {
                        break; // The server was killed.
                    }
                    assert!(response.starts_with("HTTP/1.1 204 "), "{response}");
                    arrived.send(part).expect("the test waits");
                }
            });
        }
    });
}

#[test]
fn acknowledged_parts_survive_kill_9() {
    for driver in drivers() {
        let folder = Folder::new();
        let flags = ["--allow", "put", "--driver", driver];
        let mut server = Server::start(folder.path(), &flags);
        let content = pattern(1, 9_000_000);
        let count = content.len().div_ceil(PART_BYTES);
        let head = format!(
            "PUT /x HTTP/1.1\r\nUpload-Complete: ?0\r\nUpload-Length: {}\r\n\
             Onrush-Part-Size: {PART_BYTES}",
            content.len()
        );
        let url = field(&exchange(server.address(), &head, b""), "Location").to_owned();
        let mut acknowledged = Vec::new();
        // The number of parts after which the server is killed; the last time it is not.
        for kill_after in [0, 1, 4, 7, usize::MAX] {
            let parts = missing(&server, &url, count);
            assert!(!parts.is_empty() && acknowledged.iter().all(|part| !parts.contains(part)));
            assert!(server.get("/x").starts_with("HTTP/1.1 404 "));
            let (arrived, has_arrived) = mpsc::channel();
            let address = server.address();
            thread::scope(|scope| {
                scope.spawn(|| send(address, &url, &content, parts, &{ arrived }));
                acknowledged.extend(has_arrived.iter().take(kill_after));
                if kill_after < usize::MAX {
                    server.child.kill().expect("killed");
                    server.child.wait().expect("ended");
                    acknowledged.extend(has_arrived.iter());
                }
            });
            if kill_after < usize::MAX {
                server = Server::start(folder.path(), &flags);
            }
        }
        let last = format!(
            "PATCH {url} HTTP/1.1\r\nUpload-Offset: {}\r\nUpload-Complete: ?1\r\n\
             Content-Type: application/partial-upload",
            content.len()
        );
        let response = exchange(server.address(), &last, b"");
        assert!(response.starts_with("HTTP/1.1 201 "), "{response}");
        assert!(std::fs::read(folder.path().join("x")).expect("an object") == content);
    }
}
