//! A client for HTTP/1.1 with one connection, as small as the load needs it.

use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than the time limits of the load balancer and of the servers.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A client of one address. It connects when it has no connection.
pub struct Client {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

/// A complete response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The entity tag, with its quotes.
    pub tag: Option<String>,
    /// The content.
    pub body: Vec<u8>,
}

impl Client {
    /// A client of this address. It connects with the first request.
    pub fn new(address: SocketAddr) -> Client {
        Client {
            address,
            stream: None,
        }
    }

    /// `fields`: more lines of the head. Fails without a complete response.
    pub fn get(&mut self, path: &str, fields: &str) -> io::Result<Response> {
        self.send(&head("GET", path, fields), &[])
    }

    /// `fields`: more lines of the head. Fails without a complete response.
    pub fn delete(&mut self, path: &str, fields: &str) -> io::Result<Response> {
        self.send(&head("DELETE", path, fields), &[])
    }

    /// `fields`: more lines of the head. The body is chunked if it `is_chunked`. Fails without a
    /// complete response.
    pub fn put(
        &mut self,
        path: &str,
        fields: &str,
        body: &[u8],
        is_chunked: bool,
    ) -> io::Result<Response> {
        let bytes = body.len();
        if is_chunked {
            let head = head(
                "PUT",
                path,
                &format!("{fields}Transfer-Encoding: chunked\r\n"),
            );
            let first = format!("{bytes:x}\r\n");
            return self.send(&head, &[first.as_bytes(), body, b"\r\n0\r\n\r\n"]);
        }
        let head = head("PUT", path, &format!("{fields}Content-Length: {bytes}\r\n"));
        self.send(&head, &[body])
    }

    fn send(&mut self, head: &str, body: &[&[u8]]) -> io::Result<Response> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => connect(self.address)?,
        };
        let all = [&[head.as_bytes()], body].concat().concat();
        // A response may arrive before the whole body is sent.
        let sent = stream.get_mut().write_all(&all);
        let (response, is_kept) = receive(&mut stream)?;
        if is_kept && sent.is_ok() {
            self.stream = Some(stream);
        }
        Ok(response)
    }
}

fn head(method: &str, path: &str, fields: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n")
}

fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(BufReader::new(stream))
}

/// A response, and whether the connection stays open.
fn receive(stream: &mut impl BufRead) -> io::Result<(Response, bool)> {
    let invalid = || Error::from(ErrorKind::InvalidData);
    let first = line(stream)?;
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.ok_or_else(invalid)?;
    let (mut tag, mut length, mut is_kept) = (None, None, true);
    loop {
        let field = line(stream)?;
        if field.is_empty() {
            break;
        }
        let (name, value) = field.split_once(':').ok_or_else(invalid)?;
        match (name.to_ascii_lowercase().as_str(), value.trim()) {
            ("etag", value) => tag = Some(value.to_owned()),
            ("content-length", value) => length = value.parse().ok(),
            ("connection", value) => is_kept = !value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    let mut body = Vec::new();
    if !matches!(status, 204 | 304) {
        let length: u64 = length.ok_or_else(invalid)?;
        if stream.take(length).read_to_end(&mut body)? as u64 != length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    let response = Response { status, tag, body };
    Ok((response, is_kept))
}

fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    match stream.read_line(&mut text)? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(text.trim_end().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_responses_are_received() {
        let whole = "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: 3\r\n\r\nabc";
        let (response, is_kept) = receive(&mut whole.as_bytes()).expect("a response");
        assert_eq!((response.status, is_kept), (200, true));
        assert_eq!(response.tag.as_deref(), Some("\"x\""));
        assert_eq!(response.body, b"abc");
        for end in 0..whole.len() {
            assert!(receive(&mut &whole.as_bytes()[..end]).is_err(), "{end}");
        }
        let empty = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        let (response, is_kept) = receive(&mut empty.as_bytes()).expect("a response");
        assert_eq!((response.status, is_kept), (204, false));
    }
}
