//! The simulated network: connections as pairs of pipes, listeners and clients, driven by a seed.
//!
//! Does not depend on drivers and events.

use crate::driver::ListenSocket;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard};

/// A small seeded generator (xorshift64*): good enough for choices, useless for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with the sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    /// `true` once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// How the simulated network behaves.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Bytes one direction holds before sends block, as a socket buffer does.
    pub pipe_bytes: usize,
    /// Whether sends and receives are cut short at random.
    pub split: bool,
    /// Whether ready streams are skipped at random, to be served in a later iteration.
    pub delay: bool,
}

impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            pipe_bytes: 64 * 1024,
            split: true,
            delay: true,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) bytes: VecDeque<u8>,
    /// The sender has ended it.
    pub(super) ended: bool,
}

#[derive(Debug, Default)]
pub(super) struct Connection {
    /// `pipes[side]` carries what that side sends.
    pub(super) pipes: [Pipe; 2],
    /// Which sides have closed their socket.
    pub(super) closed: [bool; 2],
    pub(super) reset: bool,
}

#[derive(Debug)]
pub(super) struct NetState {
    pub(super) random: Random,
    pub(super) behaviour: Behaviour,
    pub(super) now_ms: u64,
    pub(super) connections: Vec<Connection>,
    pub(super) listeners: Vec<Option<VecDeque<End>>>,
    /// Errors of the next accepts.
    pub(super) accept_errors: VecDeque<i32>,
    /// Calls of the drivers that would enter a kernel.
    pub(super) calls: u64,
    /// A digest of everything that happened, to compare two runs.
    pub(super) trace: u64,
}

impl NetState {
    pub(super) fn record(&mut self, what: u64, how_much: u64) {
        for word in [what, how_much] {
            self.trace = (self.trace ^ word)
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(17);
        }
    }

    pub(super) fn part(&mut self, bytes: usize) -> usize {
        if bytes > 1 && self.behaviour.split && !self.random.one_in(3) {
            1 + self.random.below(bytes as u64) as usize
        } else {
            bytes
        }
    }
}

/// The network. Clones share it.
#[derive(Clone, Debug)]
pub struct Net(Arc<Mutex<NetState>>);

impl Net {
    /// An empty network at time 0.
    pub fn new(seed: u64, behaviour: Behaviour) -> Net {
        Net(Arc::new(Mutex::new(NetState {
            random: Random::new(seed),
            behaviour,
            now_ms: 0,
            connections: Vec::new(),
            listeners: Vec::new(),
            accept_errors: VecDeque::new(),
            calls: 0,
            trace: seed,
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, NetState> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A listener, and the address that clients connect to.
    pub fn listen(&self) -> (ListenSocket, Address) {
        let mut state = self.state();
        state.listeners.push(Some(VecDeque::new()));
        let address = Address {
            net: self.clone(),
            listener: state.listeners.len() - 1,
        };
        (
            ListenSocket::Sim(Listener {
                net: self.clone(),
                listener: address.listener,
            }),
            address,
        )
    }

    /// Two connected ends.
    pub fn pair(&self) -> (End, End) {
        let mut state = self.state();
        state.connections.push(Connection::default());
        let connection = state.connections.len() - 1;
        let end = |side| End {
            net: self.clone(),
            connection,
            side,
        };
        (end(0), end(1))
    }

    /// Milliseconds since the network was made.
    pub fn now_ms(&self) -> u64 {
        self.state().now_ms
    }

    /// Advances the clock.
    pub fn advance(&self, ms: u64) {
        self.state().now_ms += ms;
    }

    /// Makes the next accept fail with this errno.
    pub fn fail_accept(&self, errno: i32) {
        self.state().accept_errors.push_back(errno);
    }

    /// How often drivers would have entered a kernel: to wait for events, to send, and to receive
    /// directly.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// A digest of everything that happened so far: equal for two runs of the same seed.
    pub fn trace(&self) -> u64 {
        self.state().trace
    }
}

/// The address of a listener.
#[derive(Clone, Debug)]
pub struct Address {
    net: Net,
    listener: usize,
}

impl Address {
    /// Connects; fails with `ConnectionRefused` when the listener is closed.
    pub fn connect(&self) -> io::Result<Client> {
        let (ours, theirs) = self.net.pair();
        match self.net.state().listeners[self.listener].as_mut() {
            Some(queue) => queue.push_back(theirs),
            None => return Err(io::ErrorKind::ConnectionRefused.into()),
        }
        Ok(Client(ours))
    }
}

/// A listening end, to be given to a driver.
#[derive(Debug)]
pub struct Listener {
    pub(super) net: Net,
    pub(super) listener: usize,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let queue = self.net.state().listeners[self.listener].take();
        drop(queue); // Outside the lock: dropping an end takes it.
    }
}

/// One end of a simulated connection. Dropping it closes it.
#[derive(Debug)]
pub struct End {
    pub(super) net: Net,
    pub(super) connection: usize,
    pub(super) side: usize,
}

impl End {
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut NetState, usize, usize) -> T) -> T {
        act(&mut self.net.state(), self.connection, self.side)
    }

    /// Whether `low_water` bytes have arrived, or as many as can before some are read.
    pub(super) fn readable(&self, low_water: u32) -> bool {
        self.with(|state, connection, side| {
            let enough = (low_water as usize).clamp(1, state.behaviour.pipe_bytes.max(1));
            let connection = &state.connections[connection];
            let pipe = &connection.pipes[1 - side];
            connection.reset || pipe.bytes.len() >= enough || pipe.ended
        })
    }

    pub(super) fn unread_bytes(&self) -> u64 {
        self.with(|state, connection, side| {
            let pipe = &state.connections[connection].pipes[1 - side];
            pipe.bytes.len() as u64
        })
    }

    /// How the connection ended, for a stream that is not received from. `None` while it has not
    /// ended, or holds bytes.
    pub(super) fn find_end(&self) -> Option<io::Result<()>> {
        self.with(|state, connection, side| {
            let connection = &state.connections[connection];
            let pipe = &connection.pipes[1 - side];
            match connection.reset {
                true => Some(Err(io::ErrorKind::ConnectionReset.into())),
                false => (pipe.ended && pipe.bytes.is_empty()).then_some(Ok(())),
            }
        })
    }

    /// Bytes that a send would accept.
    pub(super) fn room(&self) -> usize {
        self.with(|state, connection, side| {
            let queued = state.connections[connection].pipes[side].bytes.len();
            state.behaviour.pipe_bytes.saturating_sub(queued)
        })
    }

    pub(super) fn writable(&self) -> bool {
        self.with(|state, connection, side| {
            let room = state.behaviour.pipe_bytes;
            let connection = &state.connections[connection];
            connection.reset || connection.pipes[side].bytes.len() < room
        })
    }

    pub(super) fn receive(&self, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        self.with(|state, index, side| {
            let connection = &state.connections[index];
            let (held, reset) = (connection.pipes[1 - side].bytes.len(), connection.reset);
            if reset {
                return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
            }
            if held == 0 {
                let ended = connection.pipes[1 - side].ended;
                return if ended {
                    Ok(0)
                } else {
                    Err(io::ErrorKind::WouldBlock.into())
                };
            }
            let n = state.part(held.min(into.len()));
            let pipe = &mut state.connections[index].pipes[1 - side];
            for (place, byte) in into.iter_mut().zip(pipe.bytes.drain(..n)) {
                place.write(byte);
            }
            state.record(1 << 32 | index as u64, n as u64);
            Ok(n)
        })
    }

    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.with(|state, index, side| {
            let connection = &state.connections[index];
            if connection.reset {
                return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
            }
            if connection.pipes[side].ended || connection.closed[1 - side] {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let room = state
                .behaviour
                .pipe_bytes
                .saturating_sub(connection.pipes[side].bytes.len());
            if room == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let n = state.part(room.min(bytes.len()));
            state.connections[index].pipes[side]
                .bytes
                .extend(&bytes[..n]);
            state.record(2 << 32 | index as u64, n as u64);
            Ok(n)
        })
    }

    pub(super) fn shutdown_write(&self) {
        self.with(|state, index, side| state.connections[index].pipes[side].ended = true);
    }

    pub(super) fn reset(&self) {
        self.with(|state, index, _| state.connections[index].reset = true);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.with(|state, index, side| {
            let connection = &mut state.connections[index];
            connection.closed[side] = true;
            connection.pipes[side].ended = true;
            // As the kernel does: closing with bytes unread resets the connection.
            if !connection.pipes[1 - side].bytes.is_empty() {
                connection.reset = true;
            }
        });
    }
}

/// The test's side of a connection; every call is immediate.
#[derive(Debug)]
pub struct Client(End);

impl Client {
    /// Sends as much as fits; returns the number of bytes taken.
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.send(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            result => result,
        }
    }

    /// Everything that has arrived; an error when the connection was reset.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut piece = [0; 4096];
        loop {
            // SAFETY: `End::receive` writes initialised bytes only.
            #[allow(unsafe_code)]
            let room = unsafe { crate::sys::writable(&mut piece) };
            match self.0.receive(room) {
                Ok(0) => return Ok(all),
                Ok(n) => all.extend_from_slice(&piece[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(all),
                Err(_) if !all.is_empty() => return Ok(all),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the peer has half-closed (EOF) and all its bytes were received.
    pub fn at_end(&self) -> bool {
        self.0.with(|state, index, side| {
            let connection = &state.connections[index];
            let pipe = &connection.pipes[1 - side];
            connection.reset || (pipe.ended && pipe.bytes.is_empty())
        })
    }

    /// Ends this direction: a half-close.
    pub fn shutdown_write(&self) {
        self.0.shutdown_write();
    }

    /// Resets the connection.
    pub fn reset(&self) {
        self.0.reset();
    }
}
