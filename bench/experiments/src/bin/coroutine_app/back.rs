//! What is asked of the server behind, and where its answer ends. Must not know how bytes travel.

use std::io::{self, ErrorKind, Read, Write};

pub(super) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: back\r\n\r\n";

/// Longest answer that is taken, in bytes.
pub(super) const BYTES_MAX: usize = 2048;

/// The content, once all of an answer is there.
pub(super) fn content(received: &[u8]) -> io::Result<Option<&[u8]>> {
    let mut fields = [httparse::EMPTY_HEADER; 16];
    let mut head = httparse::Response::new(&mut fields);
    let wrong = |why: &str| io::Error::new(ErrorKind::InvalidData, why);
    let parsed = head
        .parse(received)
        .map_err(|error| wrong(&error.to_string()))?;
    let httparse::Status::Complete(head_bytes) = parsed else {
        return Ok(None);
    };
    let mut lengths = head.headers.iter();
    let length = lengths.find(|field| field.name.eq_ignore_ascii_case("Content-Length"));
    let length = length.and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
    let length: usize = length.ok_or_else(|| wrong("no length"))?;
    Ok(received[head_bytes..].get(..length))
}

/// Asks over a stream that waits.
pub(super) fn ask(stream: &mut (impl Read + Write)) -> io::Result<Vec<u8>> {
    stream.write_all(REQUEST)?;
    let mut received = [0; BYTES_MAX];
    let mut have = 0;
    loop {
        match stream.read(&mut received[have..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => have += more,
        }
        if let Some(content) = content(&received[..have])? {
            return Ok(content.to_vec());
        }
    }
}
