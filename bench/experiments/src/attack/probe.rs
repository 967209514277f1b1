//! Requests of well-behaved clients during an attack, one after the other, and how long the longest
//! response took. Must not know the attack.

use super::clients::{SMALL, get, put};
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// The pause between two requests of one client.
const PAUSE: Duration = Duration::from_millis(10);
/// A response that takes longer is lost.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(10);

/// What a client saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Milliseconds of each response, lost ones as [`WAIT_MAX`].
    pub(super) times_ms: Vec<f64>,
    /// Requests without a response of success.
    pub(super) lost: u64,
    /// When the longest response had come.
    pub(super) longest_end: Option<Instant>,
}

impl Seen {
    pub(super) fn longest_ms(&self) -> f64 {
        self.times_ms.iter().copied().fold(f64::NAN, f64::max)
    }

    fn add(&mut self, time: Duration, result: io::Result<()>) -> bool {
        let is_lost = result.is_err();
        let time = if is_lost { WAIT_MAX } else { time };
        let ms = time.as_secs_f64() * 1e3;
        let is_longest = self.times_ms.is_empty() || ms > self.longest_ms();
        if is_longest {
            self.longest_end = Some(Instant::now());
        }
        self.times_ms.push(ms);
        self.lost += u64::from(is_lost);
        !is_lost
    }
}

/// Requests on one connection, until `ends`. One that the server closes is made anew and counts as
/// lost.
pub(super) fn established(mut stream: TcpStream, address: SocketAddr, ends: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !ends.load(Ordering::Acquire) {
        let begun = Instant::now();
        let result = exchange(&mut stream, &get(SMALL), "200");
        if !seen.add(begun.elapsed(), result)
            && let Ok(again) = connect(address)
        {
            stream = again;
        }
        thread::sleep(PAUSE);
    }
    seen
}

/// Requests on a new connection each, until `ends`: GETs, or PUTs of an object of its own.
pub(super) fn fresh(address: SocketAddr, puts: bool, ends: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !ends.load(Ordering::Acquire) {
        let begun = Instant::now();
        let result = connect(address).and_then(|mut stream| match puts {
            true => exchange(&mut stream, &put("/probe", 0), "20"),
            false => exchange(&mut stream, &get(SMALL), "200"),
        });
        seen.add(begun.elapsed(), result);
        thread::sleep(PAUSE);
    }
    seen
}

pub(super) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, WAIT_MAX)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// One request, and its response read to its end; fails unless its status begins with `status`.
pub(super) fn exchange(stream: &mut TcpStream, request: &str, status: &str) -> io::Result<()> {
    stream.write_all(request.as_bytes())?;
    let (mut response, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => response.extend_from_slice(&piece[..n]),
        }
        if let Some(length) = whole(&response)
            && response.len() >= length
        {
            let is_wanted = response.starts_with(format!("HTTP/1.1 {status}").as_bytes());
            return is_wanted.then_some(()).ok_or(io::ErrorKind::Other.into());
        }
    }
}

/// The bytes of a response whose head is there.
fn whole(response: &[u8]) -> Option<usize> {
    let head = response.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&response[..head]).to_ascii_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    Some(
        head + length
            .and_then(|length| length.trim().parse().ok())
            .unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_whole_with_its_content() {
        assert_eq!(whole(b"HTTP/1.1 200 OK\r\n"), None);
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(whole(head), Some(head.len() + 5));
        let empty = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(whole(empty), Some(empty.len()));
    }

    #[test]
    fn what_is_lost_took_longest() {
        let mut seen = Seen::default();
        assert!(seen.longest_ms().is_nan());
        assert!(seen.add(Duration::from_millis(2), Ok(())));
        assert_eq!((seen.longest_ms(), seen.lost), (2.0, 0));
        assert!(!seen.add(Duration::ZERO, Err(io::ErrorKind::Other.into())));
        assert_eq!((seen.longest_ms(), seen.lost), (10_000.0, 1));
    }
}
