//! The simulated network: connections in memory, behind the same interface as the kernel's.
//!
//! One [`Net`] may serve several workers and any number of [`Client`]s, all on one thread. A seeded
//! generator makes every choice that a kernel makes freely: how many bytes a receive returns, how
//! many a send takes, in which order streams are served, whether a pause stops at once. The same
//! seed gives the same run. Time stands still until [`Net::advance`].
//!
//! Modules, lowest first: `net` (the network) · this one (its driver). It does not depend on tasks
//! or HTTP.

mod net;

pub use net::{Address, Behaviour, Client, End, Listener, Net, Random};

use super::slots::{self, Slots};
use super::{Event, ListenSocket, ListenerId, Socket, StreamId, stale};
use crate::buf::{Budget, BufferPool};
use crate::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Generations have all bits.
const GENERATION_MASK: u32 = u32::MAX;

/// What the driver stores with a stream.
#[derive(Debug)]
struct Stream {
    token: u64,
    buffers: bool,
    stopped_event_due: bool,
    /// See `Driver::watch_end`.
    watches_end: bool,
    want_read: bool,
    /// The number of bytes that makes it readable.
    low_water: u32,
    want_write: bool,
}

type Slot = slots::Slot<End, Stream>;

#[derive(Debug)]
struct Accepting {
    listener: Option<Listener>,
    paused: bool,
    /// Accepting is stopped until `accept_again`.
    held: bool,
    /// To be closed when its queue is empty.
    closing: bool,
}

/// The driver of one simulated worker.
#[derive(Debug)]
pub struct SimDriver {
    net: Net,
    streams: Slots<End, Stream, GENERATION_MASK>,
    listeners: Vec<Accepting>,
    /// Streams still to be processed in this iteration, in seeded order.
    order: Vec<u32>,
    /// Listeners still to be processed in this iteration.
    accepting: Vec<u32>,
    pool: BufferPool,
}

impl SimDriver {
    /// A driver on `net` with `receive_bytes_max` bytes for receiving, in small blocks.
    pub fn new(net: Net, receive_bytes_max: usize) -> SimDriver {
        SimDriver {
            net,
            streams: Slots::new(),
            listeners: Vec::new(),
            order: Vec::new(),
            accepting: Vec::new(),
            pool: BufferPool::new(2048, 64, Budget::new(receive_bytes_max)),
        }
    }

    /// The network of this driver.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// The pool of receive buffers.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    pub(super) fn poll_events(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        let slots = self.streams.iter().zip(0..);
        self.order = slots
            .filter_map(|(slot, index)| slot.socket.is_some().then_some(index))
            .collect();
        let mut state = self.net.state();
        state.calls += 1;
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
        let listening = self.listeners.iter().filter(|l| !l.held || l.closing);
        let listening = listening.filter_map(|l| l.listener.as_ref());
        let closing = |l: &Accepting| l.closing && l.listener.is_some();
        let queued = |l: &Listener| {
            self.net.state().listeners[l.listener]
                .as_ref()
                .is_some_and(|q| !q.is_empty())
        };
        let due = |s: &Slot| match &s.socket {
            Some(end) => {
                s.stopped_event_due
                    || ((s.buffers || s.want_read) && end.readable(s.low_water))
                    || (s.want_write && end.writable())
            }
            None => false,
        };
        self.listeners.iter().any(closing)
            || self.streams.iter().any(due)
            || listening.into_iter().any(queued)
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
            if !delayed && let Some(event) = self.next_stream_event(index) {
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
            .filter(|_| !accepting.paused && (!accepting.held || accepting.closing))?
            .listener;
        let mut state = self.net.state();
        if state.listeners[listener].as_ref()?.is_empty() {
            drop(state);
            if accepting.closing {
                accepting.listener = None;
            }
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

    fn next_stream_event(&mut self, index: u32) -> Option<Event> {
        let Slot {
            socket,
            generation,
            state: stream,
        } = &mut self.streams[index];
        let (end, generation) = (socket.as_ref()?, *generation);
        let id = StreamId { index, generation };
        let token = stream.token;
        if stream.stopped_event_due {
            // A receive that was in progress when the stream was paused may still complete first.
            if self.net.state().random.one_in(2) {
                stream.stopped_event_due = false;
                return Some(Event::ReceiveStopped { stream: id, token });
            }
        }
        if stream.want_write && end.writable() {
            stream.want_write = false;
            return Some(Event::Writable { stream: id, token });
        }
        if stream.want_read && end.readable(stream.low_water) {
            stream.want_read = false;
            return Some(Event::Readable { stream: id, token });
        }
        if !(stream.buffers || stream.stopped_event_due) {
            if stream.watches_end && !stream.want_read {
                let end = end.find_end()?;
                stream.watches_end = false;
                return Some(Event::End {
                    stream: id,
                    token,
                    result: end,
                });
            }
            return None;
        }
        let mut block = self.pool.take()?;
        // SAFETY: `End::receive` writes initialised bytes only.
        #[allow(unsafe_code)]
        let room = unsafe { crate::sys::writable(block.spare()) };
        match end.receive(room) {
            Ok(0) => {
                (stream.buffers, stream.stopped_event_due) = (false, false);
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
                (stream.buffers, stream.stopped_event_due) = (false, false);
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
            held: false,
            closing: false,
        });
        Ok(ListenerId(self.listeners.len() as u32 - 1))
    }

    pub(super) fn hold_accepting(&mut self, listener: ListenerId) {
        if let Some(accepting) = self.listeners.get_mut(listener.0 as usize) {
            accepting.held = true;
        }
    }

    pub(super) fn accept_again(&mut self, listener: ListenerId) {
        if let Some(accepting) = self.listeners.get_mut(listener.0 as usize) {
            accepting.held = false;
        }
    }

    pub(super) fn unlisten(&mut self, listener: ListenerId) {
        if let Some(accepting) = self.listeners.get_mut(listener.0 as usize) {
            accepting.closing = true;
        }
    }

    pub(super) fn is_listening(&self) -> bool {
        self.listeners.iter().any(|l| l.listener.is_some())
    }

    pub(super) fn attach(&mut self, socket: Socket, token: u64) -> io::Result<StreamId> {
        let Socket::Sim(end) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        Ok(self.streams.insert(end, |_| Stream {
            token,
            buffers: false,
            stopped_event_due: false,
            watches_end: false,
            want_read: false,
            low_water: 1,
            want_write: false,
        }))
    }

    fn end(&self, id: StreamId) -> io::Result<&End> {
        self.streams.socket(id).ok_or_else(stale)
    }

    pub(super) fn receive(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.buffers = true;
            (stream.stopped_event_due, stream.want_read) = (false, false);
            stream.watches_end = false;
        }
    }

    pub(super) fn pause(&mut self, id: StreamId) -> bool {
        let at_once = self.net.state().random.one_in(2);
        let Some(stream) = self.streams.get_mut(id) else {
            return true;
        };
        if stream.stopped_event_due || (stream.buffers && !at_once) {
            (stream.buffers, stream.stopped_event_due) = (false, true);
            return false;
        }
        stream.buffers = false;
        true
    }

    pub(super) fn watch_end(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.watches_end = !stream.buffers;
        }
    }

    pub(super) fn recv(&mut self, id: StreamId, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        self.net.state().calls += 1;
        self.end(id)?.receive(into)
    }

    pub(super) fn want_read(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.want_read = true;
        }
    }

    pub(super) fn set_low_water(&mut self, id: StreamId, bytes: u32) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.low_water = bytes;
        }
    }

    pub(super) fn unread_bytes(&mut self, id: StreamId) -> u64 {
        self.end(id).map_or(0, |end| end.unread_bytes())
    }

    pub(super) fn send(&mut self, id: StreamId, bytes: &[u8]) -> io::Result<usize> {
        self.net.state().calls += 1;
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
        // Something, so that a full pipe fails.
        let room = self.end(id)?.room().max(1);
        let mut piece = vec![0; bytes.min(room)];
        let n = file.read_at(&mut piece, offset)?;
        if n == 0 {
            return Ok(0);
        }
        self.send(id, &piece[..n])
    }

    pub(super) fn want_write(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.want_write = true;
        }
    }

    pub(super) fn shutdown_write(&mut self, id: StreamId) {
        if let Ok(end) = self.end(id) {
            end.shutdown_write();
        }
    }

    /// Prepares the stream so that the close that follows resets it.
    pub(super) fn before_reset(&mut self, id: StreamId) {
        if let Ok(end) = self.end(id) {
            end.reset();
        }
    }

    pub(super) fn close(&mut self, id: StreamId) {
        drop(self.detach(id));
    }

    pub(super) fn detach(&mut self, id: StreamId) -> Option<Socket> {
        self.streams.remove(id).map(Socket::Sim)
    }
}
