//! Requests of clients that take whatever comes of them.

use super::Served;
use std::io::{Read, Write};
use std::time::Duration;

/// Sends a request and reads whatever comes of it: an answer, or none.
pub fn attack(server: &Served, request: &str, more: &[u8]) -> Vec<u8> {
    let mut stream = server.connect();
    stream.write_all(request.as_bytes()).unwrap();
    if !more.is_empty() {
        std::thread::sleep(Duration::from_millis(10)); // After the handler has begun to wait.
        let _ = stream.write_all(more);
    }
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response); // A reset is an end as well.
    response
}

pub fn closing(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
}

/// A body of which nothing comes with the head.
pub fn closing_post(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    )
}
