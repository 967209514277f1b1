//! The contents of the responses, and the request to the backend. It does not depend on the kind of
//! streams.

use std::{
    cell::RefCell,
    io::{self, ErrorKind, Read, Write},
    thread::LocalKey,
    time::Duration,
};

/// Longer than any client waits.
pub(super) const SLEEP: Duration = Duration::from_secs(600);

pub(super) const HELLO: &str = "Hello, World!";
pub(super) const SLEPT: &str = "It took its time.\n";

pub(super) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: backend\r\n\r\n";

/// The largest response that fits, in bytes.
pub(super) const BYTES_MAX: usize = 2048;

/// The content of a response, once all of it has arrived.
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

/// The content that the backend sends, over blocking streams: an idle one of `pool`, or a new one
/// by `connect`.
pub(super) fn call<S: Read + Write>(
    pool: &'static LocalKey<RefCell<Vec<S>>>,
    connect: impl FnOnce() -> io::Result<S>,
) -> io::Result<Vec<u8>> {
    let mut stream = match pool.with_borrow_mut(Vec::pop) {
        Some(idle) => idle,
        None => connect()?,
    };
    stream.write_all(REQUEST)?;
    let mut received = [0; BYTES_MAX];
    let mut have = 0;
    loop {
        match stream.read(&mut received[have..])? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            more => have += more,
        }
        if let Some(content) = content(&received[..have])? {
            pool.with_borrow_mut(|pool| pool.push(stream));
            return Ok(content.to_vec());
        }
    }
}
