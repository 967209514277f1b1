//! The epoll driver: edge-triggered, one registration per stream, as cheap as a plain epoll loop.
//!
//! A stream is registered for reading before the first `epoll_wait` after it was attached. A
//! connection that has sent its request before it is accepted is received from at once; if it is
//! closed in the same iteration, it is never registered. Interest in writing is added the first
//! time a send does not fit and stays, because an edge costs nothing until it happens. A receive
//! that did not fill its buffer has emptied the socket (epoll(7)), so the common request costs one
//! `recv`.
//!
//! Modules: `accept` (listeners) and `ready` (streams). They do not depend on the other drivers.

mod accept;
mod ready;
#[cfg(test)]
mod tests;

use super::slots::Slots;
use super::{ACCEPT_BATCH, Config, Event, Socket, StreamId, direct, stale};
use crate::buf::{Budget, BufferPool};
use accept::Listener;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Events fetched by one `epoll_wait`.
const BATCH: usize = 512;
/// Set in the data of listeners. Generations are in the same half, so they have 31 bits.
const LISTENER: u64 = 1 << 63;
const GENERATION_MASK: u32 = u32::MAX >> 1;
const WAKE: u64 = u64::MAX;

const READ: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// State of a stream; one bit each.
mod flag {
    /// The driver receives into pooled buffers.
    pub(super) const BUFFERS: u16 = 1;
    /// The owner requested one `Readable`.
    pub(super) const WANT_READ: u16 = 2;
    /// The owner requested one `Writable`.
    pub(super) const WANT_WRITE: u16 = 4;
    /// The socket may hold unread bytes, or its end.
    pub(super) const READABLE: u16 = 8;
    /// The kernel reported that the peer will send nothing more.
    pub(super) const PEER_ENDED: u16 = 16;
    /// Registered for writing too, and no writable edge has been ignored since.
    pub(super) const WATCHES_WRITE: u16 = 32;
    /// In the list of streams to process without the kernel.
    pub(super) const QUEUED: u16 = 64;
    /// Registered with the kernel.
    pub(super) const WATCHED: u16 = 128;
    /// In the list of streams that were attached since the last wait, and not processed yet.
    pub(super) const FRESH: u16 = 256;
    /// The owner has paused the stream and asked for its end: see `Driver::watch_end`.
    pub(super) const WATCHES_END: u16 = 512;
}

/// What the driver stores with a stream.
#[derive(Debug)]
struct Stream {
    flags: u16,
    token: u64,
}

impl Stream {
    /// The kernel refused to watch it (see [`Epoll::watch_fresh`]): both its directions have ended.
    fn is_lost(&self) -> bool {
        self.flags & (flag::WATCHED | flag::PEER_ENDED) == flag::PEER_ENDED
    }
}

/// The driver; see the module's documentation.
pub struct Epoll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    /// How many of `events` have been taken.
    taken: usize,
    streams: Slots<OwnedFd, Stream, GENERATION_MASK>,
    listeners: Vec<Listener>,
    /// Listeners with connections to accept in this iteration, and how many each may still yield.
    accepting: Vec<(u32, u32)>,
    /// Streams that may be readable and were not drained.
    ready: VecDeque<u32>,
    /// Streams that were attached since the last wait, and how many of them have been processed.
    fresh: Vec<u32>,
    fresh_taken: usize,
    /// How many of `ready` may still be processed before the kernel is polled again.
    ready_left: usize,
    /// A `Writable` found together with a readable event, to be yielded next.
    writable: Option<StreamId>,
    pool: BufferPool,
    /// The budget is used up: wait a moment instead of spinning on readable streams.
    starved: bool,
}

impl Epoll {
    /// A driver with nothing attached (`epoll_create1(2)`).
    pub fn new(config: &Config) -> io::Result<Epoll> {
        let budget = Budget::new(config.receive_bytes_max);
        Ok(Epoll {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(BATCH),
            taken: 0,
            streams: Slots::new(),
            listeners: Vec::new(),
            accepting: Vec::new(),
            ready: VecDeque::new(),
            fresh: Vec::new(),
            fresh_taken: 0,
            ready_left: 0,
            writable: None,
            pool: BufferPool::new(config.epoll_buffer_bytes, 16, budget),
            starved: false,
        })
    }

    /// The pool of receive buffers.
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    pub(super) fn watch_wakes(&mut self, eventfd: &OwnedFd) -> io::Result<()> {
        // Edge-triggered: each write to the eventfd is an event, and nothing needs to read it.
        let flags = EventFlags::IN | EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            eventfd,
            EventData::new_u64(WAKE),
            flags,
        )?)
    }

    pub(super) fn poll_events(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = self.resume_listeners(timeout);
        self.empty_closing();
        self.watch_fresh();
        let moment = Duration::from_millis(1);
        let timeout = match timeout {
            _ if self.has_ready() => Some(Duration::ZERO),
            // Buffers may be freed at any time, without a notification.
            other if self.starved => Some(other.map_or(moment, |t| t.min(moment))),
            other => other,
        };
        self.starved = false;
        let timeout = timeout.map(|t| rustix::event::Timespec {
            tv_sec: t.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        self.ready_left = self.ready.len();
        self.taken = 0;
        self.events.clear();
        let room = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, room, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        self.taken < self.events.len()
            || (!self.ready.is_empty() && !self.starved)
            || !self.accepting.is_empty()
            || self.has_closing()
            || self.writable.is_some()
    }

    #[inline]
    pub(super) fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(id) = self.writable.take()
                && let Some(event) = self.report_writable(id)
            {
                return Some(event);
            }
            let event = match self.is_emptying() {
                // A client that waits for a response does not connect again, so the queue has an
                // end.
                true => self.accept().or_else(|| self.next_fresh()),
                // The kernel's state of a connection is used while it is in the cache, before the
                // next accept.
                false => self.next_fresh().or_else(|| self.accept()),
            };
            if event.is_some() {
                return event;
            }
            if self.taken == self.events.len() {
                return self.next_ready();
            }
            let (data, flags) = self.take_fetched();
            if data == WAKE {
                continue;
            }
            if data & LISTENER != 0 {
                // Level-triggered: the rest is reported again.
                self.accepting.push((data as u32, ACCEPT_BATCH));
                continue;
            }
            if let Some(event) = self.handle_kernel_event(data, flags) {
                return Some(event);
            }
        }
    }

    #[inline]
    fn take_fetched(&mut self) -> (u64, EventFlags) {
        let event = self.events[self.taken];
        self.taken += 1;
        (event.data.u64(), event.flags)
    }

    /// One event of the kernel for a stream.
    #[inline]
    fn handle_kernel_event(&mut self, data: u64, flags: EventFlags) -> Option<Event> {
        let (index, generation) = (data as u32, (data >> 32) as u32);
        let id = StreamId { index, generation };
        let stream = self.streams.get_mut(id)?; // Stale: closed earlier in this iteration.
        let over = EventFlags::HUP | EventFlags::ERR;
        if flags.intersects(EventFlags::OUT | over) {
            if stream.flags & flag::WANT_WRITE != 0 {
                self.writable = Some(id);
            } else {
                // A later `want_write` must ask the kernel again.
                stream.flags &= !flag::WATCHES_WRITE;
            }
        }
        if flags.intersects(EventFlags::RDHUP | over) {
            stream.flags |= flag::PEER_ENDED;
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | over) {
            stream.flags |= flag::READABLE;
            let event = self.report_readable(index);
            if event.is_none() && flags.intersects(EventFlags::RDHUP | over) {
                return self.give_end(index);
            }
            return event;
        }
        None
    }

    pub(super) fn attach(&mut self, socket: Socket, token: u64) -> io::Result<StreamId> {
        let Socket::Os(socket) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        // Readable until a receive finds that it is not. The list of streams to process may hold
        // the slot already, because its previous stream was closed after it was queued.
        let flags = flag::FRESH | flag::READABLE;
        let id = self.streams.insert(socket, |before| Stream {
            flags: flags | before.map_or(0, |before| before.flags & flag::QUEUED),
            token,
        });
        self.fresh.push(id.index);
        Ok(id)
    }

    #[inline]
    pub(super) fn descriptor(&self, id: StreamId) -> Option<BorrowedFd<'_>> {
        self.streams.descriptor(id)
    }

    #[inline]
    pub(super) fn receive(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id) {
            let not_wanted = flag::WANT_READ | flag::WATCHES_END;
            stream.flags = (stream.flags | flag::BUFFERS) & !not_wanted;
            self.queue_known(id.index);
        }
    }

    pub(super) fn pause(&mut self, id: StreamId) -> bool {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.flags &= !flag::BUFFERS;
        }
        true
    }

    pub(super) fn watch_end(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id)
            && stream.flags & flag::BUFFERS == 0
        {
            stream.flags |= flag::WATCHES_END;
            if stream.flags & flag::PEER_ENDED != 0 {
                self.queue_known(id.index); // The kernel does not report it again.
            }
        }
    }

    pub(super) fn recv(&mut self, id: StreamId, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        let room = into.len();
        self.fetch(id, room, |fd| direct::recv(fd, into))
    }

    pub(super) fn discard(&mut self, id: StreamId, discard_buffer: &mut [u8]) -> io::Result<usize> {
        let room = discard_buffer.len();
        self.fetch(id, room, |fd| direct::discard(fd, discard_buffer))
    }

    /// A receive for the owner into `room` bytes; updates what is known of the socket.
    fn fetch(
        &mut self,
        id: StreamId,
        room: usize,
        receive: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let stream = self.streams.get_mut(id).ok_or_else(stale)?;
        let result = receive(stream.socket.as_ref().ok_or_else(stale)?.as_fd());
        match &result {
            // A short receive has emptied the socket: nothing is readable before the next edge.
            Ok(n) if *n < room && *n > 0 && stream.flags & flag::PEER_ENDED == 0 => {
                stream.flags &= !flag::READABLE;
            }
            Ok(_) => stream.flags |= flag::READABLE,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.flags &= !flag::READABLE;
            }
            Err(_) => {}
        }
        result
    }

    pub(super) fn want_read(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.flags |= flag::WANT_READ;
            self.queue_known(id.index);
        }
    }

    pub(super) fn want_write(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id) else {
            return;
        };
        let watches = stream.flags & flag::WATCHES_WRITE != 0;
        stream.flags |= flag::WANT_WRITE | flag::WATCHES_WRITE;
        if stream.is_lost() {
            return self.queue(id.index);
        }
        if !watches && stream.flags & flag::WATCHED != 0 {
            let data = event_data(id.index, id.generation);
            let socket = self.streams[id.index].socket.as_ref();
            let socket = socket.expect("the stream is open");
            // Modifying reports a writable socket at once, so no edge is missed. It fails only if
            // the kernel has no memory; the write timeout ends such a connection.
            let _ = epoll::modify(&self.epoll, socket, data, READ | EventFlags::OUT);
        }
    }

    /// Makes the next [`Epoll::want_write`] ask the kernel whether there is room, instead of
    /// waiting for the edge that follows a full socket.
    pub(super) fn forget_write_watch(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.flags &= !flag::WATCHES_WRITE;
        }
    }

    pub(super) fn close(&mut self, id: StreamId) {
        drop(self.streams.remove(id));
        for index in 0..self.listeners.len() {
            if self.listeners[index].paused_until.is_some() {
                self.resume_listener(index); // A descriptor is free again.
            }
        }
    }

    pub(super) fn detach(&mut self, id: StreamId) -> Option<Socket> {
        let watched = self.streams.get_mut(id)?.flags & flag::WATCHED != 0;
        let socket = self.streams.remove(id)?;
        if watched {
            let _ = epoll::delete(&self.epoll, &socket);
        }
        Some(Socket::Os(socket))
    }
}

impl std::fmt::Debug for Epoll {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoll")
            .field("streams", &self.streams.len())
            .finish_non_exhaustive()
    }
}

fn event_data(index: u32, generation: u32) -> EventData {
    EventData::new_u64(u64::from(generation) << 32 | u64::from(index))
}
