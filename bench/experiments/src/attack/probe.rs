//! Consecutive requests of well-behaved clients during an attack, and their response times.

use super::clients::{SMALL, get, put};
use runner::probe::receive;
use std::{
    io::{self, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// The pause between two requests of one client.
const PAUSE: Duration = Duration::from_millis(10);
/// The time of a lost response. A connection that takes longer fails, and so does a response
/// without new data for this time ([`receive`]).
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The response times of one client.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Times {
    /// Milliseconds of each response. Lost responses count as [`WAIT_MAX`].
    pub(super) times_ms: Vec<f64>,
    /// Requests without a successful response.
    pub(super) lost: u64,
    /// The end of the longest response.
    pub(super) longest_end: Option<Instant>,
}

impl Times {
    pub(super) fn longest_ms(&self) -> f64 {
        self.times_ms.iter().copied().fold(f64::NAN, f64::max)
    }

    fn add(&mut self, time: Duration, is_lost: bool) {
        let time = if is_lost { WAIT_MAX } else { time };
        let ms = time.as_secs_f64() * 1e3;
        let is_longest = self.times_ms.is_empty() || ms > self.longest_ms();
        if is_longest {
            self.longest_end = Some(Instant::now());
        }
        self.times_ms.push(ms);
        self.lost += u64::from(is_lost);
    }
}

/// Sends requests on one connection until `ends` is set. When the server closes the connection, the
/// response is lost and a new connection follows.
pub(super) fn probe_established(
    mut stream: TcpStream,
    address: SocketAddr,
    ends: &AtomicBool,
) -> Times {
    let mut times = Times::default();
    while !ends.load(Ordering::Acquire) {
        let begun = Instant::now();
        let is_lost = exchange(&mut stream, &get(SMALL)).is_err();
        times.add(begun.elapsed(), is_lost);
        if is_lost && let Ok(new) = connect(address) {
            stream = new;
        }
        thread::sleep(PAUSE);
    }
    times
}

/// Sends each request on a new connection until `ends` is set: GETs, or PUTs of one object.
pub(super) fn probe_new(address: SocketAddr, puts: bool, ends: &AtomicBool) -> Times {
    let request = if puts { put("/probe", 0) } else { get(SMALL) };
    let mut times = Times::default();
    while !ends.load(Ordering::Acquire) {
        let begun = Instant::now();
        let result = connect(address).map(|mut stream| exchange(&mut stream, &request));
        times.add(begun.elapsed(), !matches!(result, Ok(Ok(()))));
        thread::sleep(PAUSE);
    }
    times
}

pub(super) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, WAIT_MAX)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends one request and receives its response. Fails unless the status is 2xx.
pub(super) fn exchange(stream: &mut TcpStream, request: &str) -> Outcome {
    let sent = stream.write_all(request.as_bytes());
    sent.map_err(|error| error.to_string())?;
    match receive(stream, &mut Vec::new())?.status {
        200..=299 => Ok(()),
        status => Err(format!("status {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, net::TcpListener};

    #[test]
    fn a_lost_response_counts_as_the_longest() {
        let mut times = Times::default();
        assert!(times.longest_ms().is_nan());
        times.add(Duration::from_millis(2), false);
        assert_eq!((times.longest_ms(), times.lost), (2.0, 0));
        times.add(Duration::ZERO, true);
        assert_eq!((times.longest_ms(), times.lost), (10_000.0, 1));
    }

    #[test]
    fn only_successful_responses_count() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let address = listener.local_addr().expect("an address");
        let server = thread::spawn(move || {
            for status in ["200 OK", "503 Service Unavailable"] {
                let (mut stream, _) = listener.accept().expect("a client");
                let response = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(response.as_bytes()).expect("sent");
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        let result = || exchange(&mut connect(address).expect("connects"), &get("/"));
        assert_eq!(result(), Ok(()));
        assert_eq!(result(), Err("status 503".to_owned()));
        server.join().expect("ends");
    }
}
