//! A proxy that delays what passes, as a long way does: the time of a connection's opening, and of
//! its bytes in both directions. It limits no rate.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// The running proxy. It accepts no more connections when this is dropped; those that are open end
/// with their clients and the server.
#[derive(Debug)]
pub(crate) struct Delay {
    /// The address for clients.
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Delay {
    /// Starts it in front of `server`. `round_trip` is the time to the server and back.
    pub(crate) fn start(server: SocketAddr, round_trip: Duration) -> io::Result<Delay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let accepted = Arc::new(AtomicU32::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let (count, end) = (accepted.clone(), is_over.clone());
        let accepting = thread::spawn(move || {
            for client in listener.incoming() {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                count.fetch_add(1, Ordering::Relaxed);
                // A connection that fails is one that its client sees closed.
                let _ = client.and_then(|client| connect(client, server, round_trip));
            }
        });
        Ok(Delay {
            address,
            accepted,
            is_over,
            accepting: Some(accepting),
        })
    }

    /// The number of connections so far.
    pub(crate) fn accepted(&self) -> u32 {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn connect(client: TcpStream, server: SocketAddr, round_trip: Duration) -> io::Result<()> {
    // The client believes that it is connected. Over a long way it would know that, and send its
    // first bytes, one round trip later.
    let opened = Instant::now() + round_trip;
    let server = TcpStream::connect(server)?;
    for socket in [&client, &server] {
        socket.set_nodelay(true)?;
    }
    let one_way = round_trip / 2;
    let (to_server, to_client) = (server.try_clone()?, client.try_clone()?);
    pass(client, to_server, move |now| now.max(opened) + one_way);
    pass(server, to_client, move |now| now + one_way);
    Ok(())
}

/// Sends on what `from` sends, when it is `due` by its time of arrival. No bytes are the end.
fn pass(mut from: TcpStream, mut to: TcpStream, due: impl Fn(Instant) -> Instant + Send + 'static) {
    let (send, receive) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut piece = vec![0; 64 * 1024];
        loop {
            let length = from.read(&mut piece).unwrap_or(0);
            let sent = send.send((due(Instant::now()), piece[..length].to_vec()));
            if length == 0 || sent.is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, bytes) in receive {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if bytes.is_empty() || to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_the_end_pass_both_ways_and_not_too_early() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
        let server = listener.local_addr().expect("an address");
        let echo = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("the proxy");
            let mut all = Vec::new();
            stream.read_to_end(&mut all).expect("reads");
            stream.write_all(&all).expect("writes");
        });
        let round_trip = Duration::from_millis(40);
        let delay = Delay::start(server, round_trip).expect("starts");
        let begun = Instant::now();
        let mut client = TcpStream::connect(delay.address).expect("connects");
        let content: Vec<u8> = (0..300_000_u32).map(|at| at as u8).collect();
        client.write_all(&content).expect("writes");
        client.shutdown(Shutdown::Write).expect("ends");
        let mut back = Vec::new();
        client.read_to_end(&mut back).expect("reads");
        // One for the opening of the connection, and one for the content.
        assert!(begun.elapsed() >= 2 * round_trip);
        assert!(back == content, "{} bytes", back.len());
        assert_eq!(delay.accepted(), 1);
        echo.join().expect("ends");
    }
}
