//! Sends one request and receives the complete response.

use crate::client::{Client, Protocol};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};
use xtask::shell::Outcome;

/// Longest wait for the next bytes of a response.
const PATIENCE: Duration = Duration::from_secs(10);

/// A complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Bytes received, including the head and the framing.
    pub wire_bytes: usize,
    /// The content, without framing.
    pub body: Vec<u8>,
    /// Whether the response has `Connection: close`.
    pub closes: bool,
}

/// Sends `request` on a new connection and receives the response.
pub fn probe(address: SocketAddr, request: &[u8]) -> Outcome<Response> {
    probe_over(Protocol::Http, address, request)
}

/// As [`probe`], plain or with TLS.
pub(crate) fn probe_over(
    protocol: Protocol,
    address: SocketAddr,
    request: &[u8],
) -> Outcome<Response> {
    let stream = Client::new(protocol)?.connect(address);
    let mut stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
    let limited = stream.socket().set_read_timeout(Some(PATIENCE));
    let sent = limited.and_then(|()| stream.write_all(request));
    sent.map_err(|error| format!("cannot send a request: {error}"))?;
    read_response(&mut stream, &mut Vec::new())
}

/// Receives one response from `stream`. `received` holds bytes that were received before, and keeps
/// those after the response.
pub fn receive(stream: &mut TcpStream, received: &mut Vec<u8>) -> Outcome<Response> {
    let limited = stream.set_read_timeout(Some(PATIENCE));
    limited.map_err(|error| format!("no response: {error}"))?;
    read_response(stream, received)
}

/// As [`receive`], from a stream that has its own time limit.
pub(crate) fn read_response(stream: &mut impl Read, received: &mut Vec<u8>) -> Outcome<Response> {
    let failed = |error: std::io::Error| format!("no response: {error}");
    let mut piece = [0; 16 * 1024];
    loop {
        if let Some(response) = take(received, false)? {
            return Ok(response);
        }
        match stream.read(&mut piece).map_err(failed)? {
            0 => return take(received, true)?.ok_or_else(|| "incomplete response".to_owned()),
            count => received.extend_from_slice(&piece[..count]),
        }
    }
}

/// Removes the first response from `received` if it is complete. `ended` says that no more bytes
/// will arrive.
fn take(received: &mut Vec<u8>, ended: bool) -> Outcome<Option<Response>> {
    let Some(head_len) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head_len = head_len + 4;
    let head = String::from_utf8_lossy(&received[..head_len]).to_ascii_lowercase();
    let malformed = || format!("not an HTTP/1 response: {}", received.escape_ascii());
    let mut words = head.split_whitespace();
    let version = words.next().filter(|word| word.starts_with("http/1."));
    let status = version.and_then(|_| words.next()?.parse().ok());
    let status: u16 = status.ok_or_else(malformed)?;
    let field = |name: &str| {
        let of = |line: &str| Some(line.strip_prefix(name)?.trim().to_owned());
        head.lines().find_map(of)
    };
    let rest = &received[head_len..];
    let bodiless = status == 204 || status == 304;
    let found = if bodiless {
        Some((Vec::new(), 0))
    } else if field("transfer-encoding:").is_some_and(|coding| coding.contains("chunked")) {
        chunked(rest)
    } else if let Some(length) = field("content-length:") {
        let length: usize = length.parse().map_err(|_| malformed())?;
        rest.get(..length).map(|body| (body.to_vec(), length))
    } else {
        ended.then(|| (rest.to_vec(), rest.len()))
    };
    let Some((body, taken)) = found else {
        return Ok(None);
    };
    received.drain(..head_len + taken);
    let closes = field("connection:").is_some_and(|value| value.contains("close"));
    Ok(Some(Response {
        status,
        wire_bytes: head_len + taken,
        body,
        closes,
    }))
}

/// Decodes a chunked body. Returns the body and the number of bytes of its chunks. `None` until the
/// last chunk has arrived.
fn chunked(mut rest: &[u8]) -> Option<(Vec<u8>, usize)> {
    let whole = rest.len();
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let size = String::from_utf8_lossy(&rest[..end]);
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        let chunk = rest.get(end + 2..end + 2 + size)?;
        body.extend_from_slice(chunk);
        rest = rest.get(end + 2 + size..)?.strip_prefix(b"\r\n")?;
        if size == 0 {
            // No measured server sends trailers.
            return Some((body, whole - rest.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str, ended: bool) -> Option<(u16, usize, String)> {
        let mut received = text.as_bytes().to_vec();
        let response = take(&mut received, ended).expect("well-formed")?;
        let body = String::from_utf8(response.body).expect("text");
        Some((response.status, response.wire_bytes, body))
    }

    #[test]
    fn a_response_is_complete_with_its_content() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(taken(&text[..20], false), None);
        assert_eq!(taken(&text[..text.len() - 1], false), None);
        assert_eq!(
            taken(text, false),
            Some((200, text.len(), "hello".to_owned()))
        );
        let none = "HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(taken(none, false), Some((204, none.len(), String::new())));
    }

    #[test]
    fn chunks_and_closed_connections_end_responses_too() {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
            5\r\nhello\r\n1;x\r\n!\r\n0\r\n\r\n";
        assert_eq!(taken(&text[..text.len() - 3], false), None);
        assert_eq!(
            taken(text, false),
            Some((200, text.len(), "hello!".to_owned()))
        );
        let open = "HTTP/1.0 404 Not Found\r\n\r\ngone";
        assert_eq!(taken(open, false), None);
        assert_eq!(
            taken(open, true),
            Some((404, open.len(), "gone".to_owned()))
        );
    }

    #[test]
    fn later_bytes_are_kept_and_other_protocols_rejected() {
        let mut two = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\nHTTP/1.1 ".to_vec();
        assert_eq!(take(&mut two, false).unwrap().unwrap().status, 201);
        assert_eq!(two, b"HTTP/1.1 ");
        assert!(take(&mut b"SSH-2.0\r\n\r\n".to_vec(), false).is_err());
        assert_eq!(take(&mut b"HTTP/1.1 200".to_vec(), true), Ok(None));
    }

    #[test]
    fn connection_close_is_recognised() {
        let mut text =
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_vec();
        assert!(take(&mut text, false).unwrap().unwrap().closes);
    }
}
