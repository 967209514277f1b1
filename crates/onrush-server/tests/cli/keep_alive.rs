//! A client that sends several requests over one connection.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The maximum time for something that takes milliseconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection; one request at a time.
pub struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
}

/// A response with its body.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    head: String,
    pub body: Vec<u8>,
}

impl Connection {
    pub fn new(address: SocketAddr) -> Connection {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_nodelay(true).expect("set");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        stream.set_write_timeout(Some(TIMEOUT)).expect("set");
        Connection {
            stream,
            received: Vec::new(),
        }
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.request("GET", path, "", b"")
    }

    pub fn head(&mut self, path: &str) -> Response {
        self.request("HEAD", path, "", b"")
    }

    pub fn put(&mut self, path: &str, body: &[u8]) -> Response {
        self.put_with(path, "", body)
    }

    /// `fields` are whole lines.
    pub fn put_with(&mut self, path: &str, fields: &str, body: &[u8]) -> Response {
        let length = format!("Content-Length: {}\r\n", body.len());
        self.request("PUT", path, &(length + fields), body)
    }

    pub fn request(&mut self, method: &str, path: &str, fields: &str, body: &[u8]) -> Response {
        self.send(method, path, fields, body);
        loop {
            let response = self.receive(method == "HEAD");
            if response.status != 100 {
                return response;
            }
        }
    }

    /// Sends a request, perhaps without the end of its body. The server may respond earlier.
    pub fn send(&mut self, method: &str, path: &str, fields: &str, body: &[u8]) {
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        let _ = self.stream.write_all(&[head.as_bytes(), body].concat());
    }

    fn receive(&mut self, is_head: bool) -> Response {
        let end = loop {
            let found = self
                .received
                .windows(4)
                .position(|bytes| bytes == b"\r\n\r\n");
            match found {
                Some(end) => break end + 4,
                None => self.fill(),
            }
        };
        let head = String::from_utf8(self.received.drain(..end).collect()).expect("text");
        let mut response = Response {
            status: head[9..12].parse().expect("a status"),
            head,
            body: Vec::new(),
        };
        if !is_head && !matches!(response.status, 100 | 204 | 304) {
            let length = response.field("content-length").expect("a length");
            let length: usize = length.parse().expect("a number");
            while self.received.len() < length {
                self.fill();
            }
            response.body = self.received.drain(..length).collect();
        }
        response
    }

    fn fill(&mut self) {
        let mut piece = vec![0; 64 * 1024];
        let read = testing::read_some(&mut self.stream, &mut piece).expect("the server responds");
        assert!(read > 0, "the server has closed the connection");
        self.received.extend_from_slice(&piece[..read]);
    }
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let line = lines.find(|(have, _)| have.eq_ignore_ascii_case(name));
        line.map(|(_, value)| value)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }
}
