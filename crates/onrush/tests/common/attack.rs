//! Requests of clients that accept any outcome.

use super::Served;
use std::io::{Read, Write};
use std::time::Duration;

/// Sends a request and reads the response, if any.
pub fn attack(server: &Served, request: &str, more: &[u8]) -> Vec<u8> {
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).unwrap();
    if !more.is_empty() {
        std::thread::sleep(Duration::from_millis(10)); // So that the handler waits already.
        let _ = stream.write_all(more);
    }
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response); // A reset is a valid end, too.
    response
}

pub fn closing(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
}

/// A `POST` whose body does not follow at once.
pub fn closing_post(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    )
}
