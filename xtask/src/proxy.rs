//! A TCP proxy that disturbs the network between two programs.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// What happens to all connections, those that exist and new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Bytes pass.
    None,
    /// Connections end, and new ones end at once.
    Cut,
    /// No byte passes. Connections stay, and continue when the fault has passed.
    BlackHole,
    /// In each direction, at most this number of bytes passes per second.
    Slow(usize),
    /// A connection ends when this number of bytes has passed in one direction. Its peers see that
    /// it was reset if they were sending, and otherwise that it ends early.
    CutAfter(usize),
}

/// The most bytes that pass at once.
const PIECE_BYTES: usize = 16 * 1024;
/// How soon a connection sees that a fault has passed.
const INTERVAL: Duration = Duration::from_millis(5);

/// A proxy in front of one address. Dropping it ends all connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    /// Both ends of each connection.
    open: Vec<Weak<[TcpStream; 2]>>,
    is_closed: bool,
}

impl Proxy {
    /// Listens on a free port of loopback.
    pub fn new(target: SocketAddr) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = State {
            fault: Fault::None,
            open: Vec::new(),
            is_closed: false,
        };
        let shared = Arc::new(Shared {
            target,
            state: Mutex::new(state),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.lock().is_closed {
                    return;
                }
                // A target that is not there ends the connection.
                let _ = client.and_then(|client| accepting.connect(client));
            }
        });
        Ok(Proxy { address, shared })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins a fault, and ends the one before.
    pub fn set(&self, fault: Fault) {
        let mut state = self.shared.lock();
        state.fault = fault;
        if fault == Fault::Cut {
            state.cut();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        state.cut();
        drop(state);
        let _ = TcpStream::connect(self.address); // Wakes the thread that accepts.
    }
}

impl State {
    fn cut(&mut self) {
        for ends in self.open.drain(..).filter_map(|ends| ends.upgrade()) {
            end(&ends);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<Shared>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect_timeout(&self.target, Duration::from_secs(5))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let ends = Arc::new([client, server]);
        let mut state = self.lock();
        if state.fault == Fault::Cut || state.is_closed {
            return Ok(());
        }
        state.open.retain(|ends| ends.strong_count() > 0);
        state.open.push(Arc::downgrade(&ends));
        drop(state);
        for from in 0..2 {
            let (shared, ends) = (self.clone(), ends.clone());
            thread::spawn(move || {
                if shared.pass(&ends[from], &ends[1 - from]).is_err() {
                    end(&ends);
                }
            });
        }
        Ok(())
    }

    /// Passes bytes of one direction until it ends. Fails if the connection has to end.
    fn pass(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let (mut piece, mut passed) = (vec![0; PIECE_BYTES], 0);
        loop {
            let mut count = from.read(&mut piece)?;
            if count == 0 {
                return to.shutdown(Shutdown::Write);
            }
            let mut fault = self.lock().fault;
            while fault == Fault::BlackHole {
                thread::sleep(INTERVAL);
                fault = self.lock().fault;
            }
            match fault {
                Fault::Slow(bytes) => {
                    thread::sleep(Duration::from_secs(1) * count as u32 / bytes.max(1) as u32);
                }
                Fault::CutAfter(bytes) => {
                    count = count.min(bytes.saturating_sub(passed));
                    passed += count;
                }
                _ => passed = 0,
            }
            to.write_all(&piece[..count])?;
            if matches!(fault, Fault::CutAfter(bytes) if passed >= bytes) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }
}

fn end(ends: &[TcpStream; 2]) {
    for stream in ends {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A proxy in front of a server that returns what it receives.
    fn echo() -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = Proxy::new(listener.local_addr().expect("an address")).expect("a proxy");
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || io::copy(&mut &stream, &mut &stream));
            }
        });
        proxy
    }

    fn client(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(proxy.address()).expect("a connection");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a limit");
        stream
    }

    /// The bytes that return until the connection ends.
    fn returned(mut stream: &TcpStream, bytes: usize) -> usize {
        let (mut all, sent) = (Vec::new(), vec![7; bytes]);
        if stream.write_all(&sent).is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut all);
        }
        all.len()
    }

    #[test]
    fn bytes_pass_and_connections_end() {
        let proxy = echo();
        assert_eq!(returned(&client(&proxy), 100_000), 100_000);
        let open = client(&proxy);
        (&open).write_all(b"x").expect("a connection");
        (&open).read_exact(&mut [0]).expect("a connection");
        proxy.set(Fault::Cut);
        assert_eq!(returned(&open, 10), 0);
        assert_eq!(returned(&client(&proxy), 10), 0);
        proxy.set(Fault::None);
        assert_eq!(returned(&client(&proxy), 10), 10);
        proxy.set(Fault::CutAfter(500));
        assert!(returned(&client(&proxy), 100_000) <= 500);
        assert_eq!(returned(&client(&proxy), 499), 499);
    }

    #[test]
    fn a_black_hole_keeps_connections() {
        let proxy = echo();
        let stream = client(&proxy);
        proxy.set(Fault::BlackHole);
        (&stream).write_all(b"x").expect("the proxy receives");
        let limit = Duration::from_millis(50);
        stream.set_read_timeout(Some(limit)).expect("a limit");
        (&stream).read(&mut [0]).expect_err("no byte passes");
        stream.set_read_timeout(None).expect("no limit");
        proxy.set(Fault::None);
        (&stream).read_exact(&mut [0]).expect("the byte");
    }

    #[test]
    fn a_slow_network_takes_time() {
        let proxy = echo();
        proxy.set(Fault::Slow(10_000));
        let begun = Instant::now();
        assert_eq!(returned(&client(&proxy), 1_000), 1_000);
        // There and back. This is the least time; there is no upper bound.
        assert!(begun.elapsed() >= Duration::from_millis(200));
    }
}
