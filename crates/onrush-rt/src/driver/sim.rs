//! The simulated network: connections in memory, behind the same interface as the kernel's.
//!
//! One [`Net`] may serve several workers and any number of [`Client`]s, all on one thread. Every
//! choice that a kernel makes freely (how many bytes a receive gives, how many a send takes, in
//! which order streams are served, whether a pause is quiet at once) is made by a seeded generator,
//! so the same seed gives the same run. Time stands still until [`Net::advance`].
//!
//! Must not know about tasks or HTTP.

use super::{Event, ListenSocket, ListenerId, Socket, StreamId, stale};
use crate::buf::{Budget, Pool};
use crate::fs::File;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// A small seeded generator (xorshift64*): plenty for choosing, useless for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence that belongs to `seed`.
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
    /// Whether ready streams are passed over at random, to be served in a later turn.
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
struct Pipe {
    bytes: VecDeque<u8>,
    /// The sender ended it.
    ended: bool,
}

#[derive(Debug, Default)]
struct Connection {
    /// `pipes[side]` carries what that side sends.
    pipes: [Pipe; 2],
    /// Which sides have closed their socket.
    closed: [bool; 2],
    reset: bool,
}

#[derive(Debug)]
struct State {
    random: Random,
    behaviour: Behaviour,
    now_ms: u64,
    connections: Vec<Connection>,
    listeners: Vec<Option<VecDeque<End>>>,
    /// Errors that the next accepts give.
    accept_errors: VecDeque<i32>,
    /// Everything that happened, for comparing two runs.
    trace: u64,
}

impl State {
    fn record(&mut self, what: u64, how_much: u64) {
        for word in [what, how_much] {
            self.trace = (self.trace ^ word)
                .wrapping_mul(0x0100_0000_01b3)
                .rotate_left(17);
        }
    }

    fn part(&mut self, bytes: usize) -> usize {
        if bytes > 1 && self.behaviour.split && !self.random.one_in(3) {
            1 + self.random.below(bytes as u64) as usize
        } else {
            bytes
        }
    }
}

/// The network. Cloning gives another handle to the same one.
#[derive(Clone, Debug)]
pub struct Net(Arc<Mutex<State>>);

impl Net {
    /// An empty network at time 0.
    pub fn new(seed: u64, behaviour: Behaviour) -> Net {
        Net(Arc::new(Mutex::new(State {
            random: Random::new(seed),
            behaviour,
            now_ms: 0,
            connections: Vec::new(),
            listeners: Vec::new(),
            accept_errors: VecDeque::new(),
            trace: seed,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// A listener, and what clients reach it by.
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

    /// Lets time pass.
    pub fn advance(&self, ms: u64) {
        self.state().now_ms += ms;
    }

    /// Makes the next accept fail with this errno.
    pub fn fail_accept(&self, errno: i32) {
        self.state().accept_errors.push_back(errno);
    }

    /// A digest of everything that happened so far: equal for two runs of the same seed.
    pub fn trace(&self) -> u64 {
        self.state().trace
    }
}

/// Where clients connect to.
#[derive(Clone, Debug)]
pub struct Address {
    net: Net,
    listener: usize,
}

impl Address {
    /// Connects; fails with `ConnectionRefused` when nobody listens any more.
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
    net: Net,
    listener: usize,
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
    net: Net,
    connection: usize,
    side: usize,
}

impl End {
    fn with<T>(&self, act: impl FnOnce(&mut State, usize, usize) -> T) -> T {
        act(&mut self.net.state(), self.connection, self.side)
    }

    fn readable(&self) -> bool {
        self.with(|state, connection, side| {
            let connection = &state.connections[connection];
            let pipe = &connection.pipes[1 - side];
            connection.reset || !pipe.bytes.is_empty() || pipe.ended
        })
    }

    fn writable(&self) -> bool {
        self.with(|state, connection, side| {
            let room = state.behaviour.pipe_bytes;
            let connection = &state.connections[connection];
            connection.reset || connection.pipes[side].bytes.len() < room
        })
    }

    fn receive(&self, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
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

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
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

    fn shutdown_write(&self) {
        self.with(|state, index, side| state.connections[index].pipes[side].ended = true);
    }

    fn reset(&self) {
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
    /// Sends as much as there is room for; gives the bytes taken.
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

    /// Whether the peer has ended its direction and all its bytes were received.
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

#[derive(Debug)]
struct Stream {
    end: Option<End>,
    generation: u32,
    token: u64,
    buffers: bool,
    quiet_due: bool,
    want_read: bool,
    want_write: bool,
}

#[derive(Debug)]
struct Accepting {
    listener: Option<Listener>,
    paused: bool,
}

/// The driver of one simulated worker.
#[derive(Debug)]
pub struct SimDriver {
    net: Net,
    streams: Vec<Stream>,
    free: Vec<u32>,
    listeners: Vec<Accepting>,
    /// Streams still to be looked at in this turn, in seeded order.
    order: Vec<u32>,
    /// Listeners still to be looked at in this turn.
    accepting: Vec<u32>,
    pool: Pool,
}

impl SimDriver {
    /// A driver on `net` with `receive_bytes_max` bytes for receiving, in small blocks.
    pub fn new(net: Net, receive_bytes_max: usize) -> SimDriver {
        SimDriver {
            net,
            streams: Vec::new(),
            free: Vec::new(),
            listeners: Vec::new(),
            order: Vec::new(),
            accepting: Vec::new(),
            pool: Pool::new(2048, 64, Budget::new(receive_bytes_max)),
        }
    }

    /// The network this driver is on.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// The pool that receives go to.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn turn(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        let open = |s: &Stream| s.end.is_some();
        self.order = (0..self.streams.len() as u32)
            .filter(|&i| open(&self.streams[i as usize]))
            .collect();
        let mut state = self.net.state();
        for i in (1..self.order.len()).rev() {
            let j = state.random.below(i as u64 + 1) as usize;
            self.order.swap(i, j);
        }
        drop(state);
        self.accepting = (0..self.listeners.len() as u32).collect();
        for accepting in &mut self.listeners {
            accepting.paused = false;
        }
        Ok(())
    }

    pub(super) fn has_ready(&self) -> bool {
        let listening = self.listeners.iter().filter_map(|l| l.listener.as_ref());
        let queued = |l: &Listener| {
            self.net.state().listeners[l.listener]
                .as_ref()
                .is_some_and(|q| !q.is_empty())
        };
        let due = |s: &Stream| match &s.end {
            Some(end) => {
                s.quiet_due
                    || ((s.buffers || s.want_read) && end.readable())
                    || (s.want_write && end.writable())
            }
            None => false,
        };
        self.streams.iter().any(due) || listening.into_iter().any(queued)
    }

    pub(super) fn next(&mut self) -> Option<Event> {
        while let Some(&index) = self.accepting.last() {
            match self.accept(index) {
                Some(event) => return Some(event),
                None => {
                    self.accepting.pop();
                }
            }
        }
        while let Some(index) = self.order.pop() {
            let delayed = {
                let mut state = self.net.state();
                state.behaviour.delay && state.random.one_in(4)
            };
            if !delayed && let Some(event) = self.look(index) {
                return Some(event);
            }
        }
        None
    }

    fn accept(&mut self, index: u32) -> Option<Event> {
        let accepting = &mut self.listeners[index as usize];
        let listener = accepting
            .listener
            .as_ref()
            .filter(|_| !accepting.paused)?
            .listener;
        let mut state = self.net.state();
        if state.listeners[listener].as_ref()?.is_empty() {
            return None;
        }
        if let Some(errno) = state.accept_errors.pop_front() {
            accepting.paused = true;
            let error = io::Error::from_raw_os_error(errno);
            return Some(Event::AcceptPaused {
                listener: ListenerId(index),
                error,
            });
        }
        let end = state.listeners[listener].as_mut()?.pop_front()?;
        state.record(3 << 32, end.connection as u64);
        Some(Event::Accepted {
            listener: ListenerId(index),
            socket: Socket::Sim(end),
        })
    }

    fn look(&mut self, index: u32) -> Option<Event> {
        let stream = &mut self.streams[index as usize];
        let end = stream.end.as_ref()?;
        let id = StreamId {
            index,
            generation: stream.generation,
        };
        let token = stream.token;
        if stream.quiet_due {
            // What was under way when the pause was asked for may still come first.
            if self.net.state().random.one_in(2) {
                stream.quiet_due = false;
                return Some(Event::Quiet { stream: id, token });
            }
        }
        if stream.want_write && end.writable() {
            stream.want_write = false;
            return Some(Event::Writable { stream: id, token });
        }
        if stream.want_read && end.readable() {
            stream.want_read = false;
            return Some(Event::Readable { stream: id, token });
        }
        if !(stream.buffers || stream.quiet_due) {
            return None;
        }
        let mut block = self.pool.take()?;
        // SAFETY: `End::receive` writes initialised bytes only.
        #[allow(unsafe_code)]
        let room = unsafe { crate::sys::writable(block.spare()) };
        match end.receive(room) {
            Ok(0) => {
                (stream.buffers, stream.quiet_due) = (false, false);
                Some(Event::End {
                    stream: id,
                    token,
                    result: Ok(()),
                })
            }
            Ok(n) => {
                block.advance(n);
                Some(Event::Data {
                    stream: id,
                    token,
                    data: block.into_buf(),
                })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(error) => {
                (stream.buffers, stream.quiet_due) = (false, false);
                Some(Event::End {
                    stream: id,
                    token,
                    result: Err(error),
                })
            }
        }
    }

    pub(super) fn listen(&mut self, socket: ListenSocket) -> io::Result<ListenerId> {
        let ListenSocket::Sim(listener) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        self.listeners.push(Accepting {
            listener: Some(listener),
            paused: false,
        });
        Ok(ListenerId(self.listeners.len() as u32 - 1))
    }

    pub(super) fn unlisten(&mut self, listener: ListenerId) {
        if let Some(accepting) = self.listeners.get_mut(listener.0 as usize) {
            accepting.listener = None;
        }
    }

    pub(super) fn attach(&mut self, socket: Socket, token: u64) -> io::Result<StreamId> {
        let Socket::Sim(end) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let stream = |generation| Stream {
            end: Some(end),
            generation,
            token,
            buffers: false,
            quiet_due: false,
            want_read: false,
            want_write: false,
        };
        let index = match self.free.pop() {
            Some(index) => {
                let generation = self.streams[index as usize].generation;
                self.streams[index as usize] = stream(generation);
                index
            }
            None => {
                self.streams.push(stream(0));
                self.streams.len() as u32 - 1
            }
        };
        Ok(StreamId {
            index,
            generation: self.streams[index as usize].generation,
        })
    }

    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        let stream = self.streams.get_mut(id.index as usize)?;
        (stream.generation == id.generation && stream.end.is_some()).then_some(stream)
    }

    fn end(&self, id: StreamId) -> io::Result<&End> {
        let stream = self
            .streams
            .get(id.index as usize)
            .filter(|s| s.generation == id.generation);
        stream.and_then(|s| s.end.as_ref()).ok_or_else(stale)
    }

    pub(super) fn receive(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.buffers = true;
            (stream.quiet_due, stream.want_read) = (false, false);
        }
    }

    pub(super) fn pause(&mut self, id: StreamId) -> bool {
        let at_once = self.net.state().random.one_in(2);
        let Some(stream) = self.stream(id) else {
            return true;
        };
        if stream.quiet_due || (stream.buffers && !at_once) {
            (stream.buffers, stream.quiet_due) = (false, true);
            return false;
        }
        stream.buffers = false;
        true
    }

    pub(super) fn recv(&mut self, id: StreamId, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        self.end(id)?.receive(into)
    }

    pub(super) fn want_read(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.want_read = true;
        }
    }

    pub(super) fn send(&mut self, id: StreamId, bytes: &[u8]) -> io::Result<usize> {
        self.end(id)?.send(bytes)
    }

    pub(super) fn send_vectored(
        &mut self,
        id: StreamId,
        parts: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.send(id, &all)
    }

    pub(super) fn send_file(
        &mut self,
        id: StreamId,
        file: &File,
        offset: u64,
        bytes: usize,
    ) -> io::Result<usize> {
        let mut piece = vec![0; bytes.min(64 * 1024)];
        let n = file.read_at(&mut piece, offset)?;
        if n == 0 {
            return Ok(0);
        }
        self.send(id, &piece[..n])
    }

    pub(super) fn want_write(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.want_write = true;
        }
    }

    pub(super) fn shutdown_write(&mut self, id: StreamId) {
        if let Ok(end) = self.end(id) {
            end.shutdown_write();
        }
    }

    /// Makes the close that follows a reset.
    pub(super) fn before_reset(&mut self, id: StreamId) {
        if let Ok(end) = self.end(id) {
            end.reset();
        }
    }

    pub(super) fn close(&mut self, id: StreamId) {
        drop(self.detach(id));
    }

    pub(super) fn detach(&mut self, id: StreamId) -> Option<Socket> {
        let stream = self.stream(id)?;
        stream.generation = stream.generation.wrapping_add(1);
        let end = stream.end.take();
        self.free.push(id.index);
        end.map(Socket::Sim)
    }
}
