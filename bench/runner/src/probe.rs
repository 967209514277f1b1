//! One request over a plain socket, and its whole answer. Must not know which server it asks.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};
use xtask::shell::Outcome;

/// Longest wait for the next piece of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// As they came over the wire, head and framing included.
    pub wire_bytes: usize,
    /// The content, without framing.
    pub body: Vec<u8>,
    /// The server said that it closes after it.
    pub closes: bool,
}

/// Sends `request` on a connection of its own.
pub fn probe(address: SocketAddr, request: &[u8]) -> Outcome<Response> {
    let stream = TcpStream::connect(address);
    let mut stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
    let sent = stream.write_all(request);
    sent.map_err(|error| format!("a request was not taken: {error}"))?;
    receive(&mut stream, &mut Vec::new())
}

/// Reads one response from `stream`; `received` holds what has come and keeps what is left over.
pub fn receive(stream: &mut TcpStream, received: &mut Vec<u8>) -> Outcome<Response> {
    receive_within(PATIENCE, stream, received)
}

/// Like [`receive`], but fails only when nothing has come for `patience`.
pub(crate) fn receive_within(
    patience: Duration,
    stream: &mut TcpStream,
    received: &mut Vec<u8>,
) -> Outcome<Response> {
    let failed = |error: std::io::Error| format!("a request was not answered: {error}");
    stream.set_read_timeout(Some(patience)).map_err(failed)?;
    let mut piece = [0; 16 * 1024];
    loop {
        if let Some(response) = take(received, false)? {
            return Ok(response);
        }
        match stream.read(&mut piece).map_err(failed)? {
            0 => return take(received, true)?.ok_or_else(|| "an answer was cut off".to_owned()),
            count => received.extend_from_slice(&piece[..count]),
        }
    }
}

/// Takes the first answer out of `received`, once it is whole; `ended` when nothing more will come.
fn take(received: &mut Vec<u8>, ended: bool) -> Outcome<Option<Response>> {
    let Some(head_len) = received.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head_len = head_len + 4;
    let head = String::from_utf8_lossy(&received[..head_len]).to_ascii_lowercase();
    let malformed = || format!("no answer of HTTP/1: {}", received.escape_ascii());
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

/// The body that chunks make, and the bytes they take; `None` until the last has come.
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
            // Nobody measured here sends trailers.
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
    fn an_answer_is_whole_when_its_content_is() {
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
    fn chunks_and_closed_connections_end_answers_too() {
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
    fn what_comes_after_is_left_and_nonsense_is_refused() {
        let mut two = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\nHTTP/1.1 ".to_vec();
        assert_eq!(take(&mut two, false).unwrap().unwrap().status, 201);
        assert_eq!(two, b"HTTP/1.1 ");
        assert!(take(&mut b"SSH-2.0\r\n\r\n".to_vec(), false).is_err());
        assert_eq!(take(&mut b"HTTP/1.1 200".to_vec(), true), Ok(None));
    }

    #[test]
    fn closing_is_noticed() {
        let mut text =
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".to_vec();
        assert!(take(&mut text, false).unwrap().unwrap().closes);
    }
}
