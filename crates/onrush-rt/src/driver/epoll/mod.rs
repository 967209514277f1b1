//! The epoll driver: edge-triggered, one registration per stream, as cheap as a plain epoll loop.
//!
//! A stream is registered for reading before the first `epoll_wait` after it was attached. A
//! connection that has sent its request before it is accepted is received from at once; if it is
//! closed in the same iteration, it is never registered. Interest in writing is added the first
//! time a send does not fit and stays, because an edge costs nothing until it happens. A receive
//! that did not fill its buffer has emptied the socket (epoll(7)), so the common request costs one
//! `recv`.
//!
//! Modules: `accept`. It does not depend on the other drivers.

mod accept;

use super::{Config, Event, Socket, StreamId, direct, stale};
use crate::buf::{Block, Budget, BufferPool};
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

#[derive(Debug)]
struct Stream {
    socket: Option<OwnedFd>,
    generation: u32,
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
    streams: Vec<Stream>,
    free: Vec<u32>,
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
            streams: Vec::new(),
            free: Vec::new(),
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
                self.accepting.push((data as u32, accept::BATCH));
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
        let stream = self.streams.get_mut(index as usize)?;
        if stream.generation != generation || stream.socket.is_none() {
            return None; // Closed earlier in this iteration.
        }
        let over = EventFlags::HUP | EventFlags::ERR;
        if flags.intersects(EventFlags::OUT | over) {
            if stream.flags & flag::WANT_WRITE != 0 {
                self.writable = Some(StreamId { index, generation });
            } else {
                // A later `want_write` must ask the kernel again.
                stream.flags &= !flag::WATCHES_WRITE;
            }
        }
        let stream = &mut self.streams[index as usize];
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

    /// The end of a stream that is not received from, because its owner has paused it or because
    /// the receive memory is used up.
    #[cold]
    fn give_end(&mut self, index: u32) -> Option<Event> {
        let stream = &mut self.streams[index as usize];
        // A stream in *buffers* that is still queued waits for memory.
        let waits_for_memory = flag::BUFFERS | flag::QUEUED;
        let is_due = stream.flags & flag::WATCHES_END != 0
            || stream.flags & waits_for_memory == waits_for_memory;
        let end = direct::find_end(stream.socket.as_ref().filter(|_| is_due)?.as_fd())?;
        stream.flags &= !(flag::BUFFERS | flag::READABLE | flag::WATCHES_END);
        Some(Event::End {
            stream: StreamId {
                index,
                generation: stream.generation,
            },
            token: stream.token,
            result: end,
        })
    }

    /// Turns known readability into the event that the owner requested.
    #[inline]
    fn report_readable(&mut self, index: u32) -> Option<Event> {
        let stream = &mut self.streams[index as usize];
        if stream.flags & flag::BUFFERS != 0 {
            return self.receive_now(index);
        }
        if stream.flags & flag::WANT_READ != 0 {
            stream.flags &= !flag::WANT_READ;
            let (token, generation) = (stream.token, stream.generation);
            return Some(Event::Readable {
                stream: StreamId { index, generation },
                token,
            });
        }
        None
    }

    #[inline]
    fn receive_now(&mut self, index: u32) -> Option<Event> {
        let Some(mut block) = self.pool.take().or_else(|| self.take_last_block(index)) else {
            self.queue(index);
            return None;
        };
        let stream = &mut self.streams[index as usize];
        let (token, generation) = (stream.token, stream.generation);
        let id = StreamId { index, generation };
        let fd = stream.socket.as_ref()?.as_fd();
        // SAFETY: recv(2) writes initialised bytes only.
        #[allow(unsafe_code)]
        let room = unsafe { crate::sys::writable(block.spare()) };
        match direct::recv(fd, room) {
            Ok(0) => {
                stream.flags &= !(flag::BUFFERS | flag::READABLE);
                Some(Event::End {
                    stream: id,
                    token,
                    result: Ok(()),
                })
            }
            Ok(n) => {
                let more = n == block.capacity() || stream.flags & flag::PEER_ENDED != 0;
                if more {
                    self.queue(index);
                } else {
                    stream.flags &= !flag::READABLE;
                }
                block.advance(n);
                Some(Event::Data {
                    stream: id,
                    token,
                    data: Block::into_buf(block),
                })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.flags &= !flag::READABLE;
                None
            }
            Err(error) => {
                stream.flags &= !(flag::BUFFERS | flag::READABLE);
                Some(Event::End {
                    stream: id,
                    token,
                    result: Err(error),
                })
            }
        }
    }

    /// A block for a stream when the budget is used up. `None`: the stream has to wait. A stream
    /// whose peer has gone does not wait, so that its end is noticed: the one block that may exceed
    /// the budget takes its last bytes, and then its end.
    #[cold]
    fn take_last_block(&mut self, index: u32) -> Option<Block> {
        let ended = self.streams[index as usize].flags & flag::PEER_ENDED != 0;
        let block = ended.then(|| self.pool.take_last()).flatten();
        if block.is_none() && !self.starved {
            crate::diagnose!(DEBUG, stream = index; "receive memory is used up, streams wait");
        }
        self.starved |= block.is_none();
        block
    }

    fn report_writable(&mut self, id: StreamId) -> Option<Event> {
        let stream = self.stream(id)?;
        if stream.flags & flag::WANT_WRITE == 0 {
            return None;
        }
        stream.flags &= !flag::WANT_WRITE;
        Some(Event::Writable {
            stream: id,
            token: stream.token,
        })
    }

    fn queue(&mut self, index: u32) {
        let stream = &mut self.streams[index as usize];
        if stream.flags & flag::QUEUED == 0 {
            stream.flags |= flag::QUEUED;
            self.ready.push_back(index);
        }
    }

    /// [`Epoll::queue`], if the stream may be readable and is not in the list of fresh streams.
    fn queue_known(&mut self, index: u32) {
        let flags = self.streams[index as usize].flags;
        if flags & flag::READABLE != 0 && flags & flag::FRESH == 0 {
            self.queue(index);
        }
    }

    /// Yields events of streams known to be readable, after the kernel's events, round robin. At
    /// most one pass per iteration, so that a busy stream cannot keep the worker from the kernel.
    fn next_ready(&mut self) -> Option<Event> {
        while self.ready_left > 0 {
            self.ready_left -= 1;
            let index = self.ready.pop_front()?;
            let stream = &mut self.streams[index as usize];
            if self.starved && stream.flags & flag::PEER_ENDED == 0 {
                self.ready.push_back(index); // It keeps its place in the queue.
                continue;
            }
            stream.flags &= !flag::QUEUED;
            if stream.socket.is_none() || stream.flags & flag::READABLE == 0 {
                continue;
            }
            if stream.is_lost() && stream.flags & flag::WANT_WRITE != 0 {
                let generation = stream.generation;
                self.queue(index);
                return self.report_writable(StreamId { index, generation });
            }
            let watches_end = stream.flags & flag::WATCHES_END != 0;
            let mut event = self.report_readable(index);
            if watches_end && event.is_none() {
                event = self.give_end(index);
            }
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Processes streams attached in this iteration, most of which have sent something already.
    fn next_fresh(&mut self) -> Option<Event> {
        while self.fresh_taken < self.fresh.len() {
            let index = self.fresh[self.fresh_taken];
            self.fresh_taken += 1;
            let stream = &mut self.streams[index as usize];
            let is_fresh = stream.flags & flag::FRESH != 0;
            stream.flags &= !flag::FRESH;
            if stream.socket.is_some()
                && is_fresh
                && let Some(event) = self.report_readable(index)
            {
                return Some(event);
            }
        }
        None
    }

    /// Registers the streams attached since the last wait that are still open.
    fn watch_fresh(&mut self) {
        self.fresh_taken = 0;
        while let Some(index) = self.fresh.pop() {
            let stream = &mut self.streams[index as usize];
            stream.flags &= !flag::FRESH;
            let (Some(socket), 0) = (&stream.socket, stream.flags & flag::WATCHED) else {
                continue;
            };
            let writes = stream.flags & flag::WATCHES_WRITE != 0;
            let flags = if writes { READ | EventFlags::OUT } else { READ };
            // Bytes that came meanwhile are reported at once, so no edge is missed.
            if epoll::add(
                &self.epoll,
                socket,
                event_data(index, stream.generation),
                flags,
            )
            .is_ok()
            {
                stream.flags |= flag::WATCHED;
            } else {
                // No memory, or too many watched files (epoll(7)): end the stream and report it.
                crate::diagnose!(DEBUG, stream = index; "epoll_ctl failed, the stream is ended");
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
                stream.flags |= flag::READABLE | flag::PEER_ENDED;
                self.queue(index);
            }
        }
    }

    pub(super) fn attach(&mut self, socket: Socket, token: u64) -> io::Result<StreamId> {
        let Socket::Os(socket) = socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let index = self
            .free
            .last()
            .copied()
            .unwrap_or(self.streams.len() as u32);
        let generation = self.streams.get(index as usize).map_or(0, |s| s.generation);
        let stream = Stream {
            socket: Some(socket),
            generation,
            // Readable until a receive finds that it is not.
            flags: flag::FRESH | flag::READABLE,
            token,
        };
        self.fresh.push(index);
        if self.free.pop().is_some() {
            // Keep the `QUEUED` flag of the slot across reuse, or it would be listed twice.
            let queued = self.streams[index as usize].flags & flag::QUEUED;
            self.streams[index as usize] = Stream {
                flags: stream.flags | queued,
                ..stream
            };
        } else {
            self.streams.push(stream);
        }
        Ok(StreamId { index, generation })
    }

    #[inline]
    fn stream(&mut self, id: StreamId) -> Option<&mut Stream> {
        let stream = self.streams.get_mut(id.index as usize)?;
        (stream.generation == id.generation && stream.socket.is_some()).then_some(stream)
    }

    #[inline]
    pub(super) fn descriptor(&self, id: StreamId) -> Option<BorrowedFd<'_>> {
        let stream = self.streams.get(id.index as usize)?;
        let fits = stream.generation == id.generation;
        stream.socket.as_ref().filter(|_| fits).map(AsFd::as_fd)
    }

    #[inline]
    pub(super) fn receive(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            let not_wanted = flag::WANT_READ | flag::WATCHES_END;
            stream.flags = (stream.flags | flag::BUFFERS) & !not_wanted;
            self.queue_known(id.index);
        }
    }

    pub(super) fn pause(&mut self, id: StreamId) -> bool {
        if let Some(stream) = self.stream(id) {
            stream.flags &= !flag::BUFFERS;
        }
        true
    }

    pub(super) fn watch_end(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id)
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
        let stream = self.stream(id).ok_or_else(stale)?;
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
        if let Some(stream) = self.stream(id) {
            stream.flags |= flag::WANT_READ;
            self.queue_known(id.index);
        }
    }

    pub(super) fn want_write(&mut self, id: StreamId) {
        let Some(stream) = self.stream(id) else {
            return;
        };
        let watches = stream.flags & flag::WATCHES_WRITE != 0;
        stream.flags |= flag::WANT_WRITE | flag::WATCHES_WRITE;
        if stream.is_lost() {
            return self.queue(id.index);
        }
        if !watches && stream.flags & flag::WATCHED != 0 {
            let data = event_data(id.index, id.generation);
            let socket = self.streams[id.index as usize].socket.as_ref();
            let socket = socket.expect("the stream is open");
            // Modifying reports a writable socket at once, so no edge is missed. It fails only if
            // the kernel has no memory; the write timeout ends such a connection.
            let _ = epoll::modify(&self.epoll, socket, data, READ | EventFlags::OUT);
        }
    }

    /// Makes the next [`Epoll::want_write`] ask the kernel whether there is room, instead of
    /// waiting for the edge that follows a full socket.
    pub(super) fn forget_write_watch(&mut self, id: StreamId) {
        if let Some(stream) = self.stream(id) {
            stream.flags &= !flag::WATCHES_WRITE;
        }
    }

    pub(super) fn close(&mut self, id: StreamId) {
        drop(self.remove(id));
        for index in 0..self.listeners.len() {
            if self.listeners[index].paused_until.is_some() {
                self.resume_listener(index); // A descriptor is free again.
            }
        }
    }

    pub(super) fn detach(&mut self, id: StreamId) -> Option<Socket> {
        let watched = self.stream(id)?.flags & flag::WATCHED != 0;
        let socket = self.remove(id)?;
        if watched {
            let _ = epoll::delete(&self.epoll, &socket);
        }
        Some(Socket::Os(socket))
    }

    fn remove(&mut self, id: StreamId) -> Option<OwnedFd> {
        let stream = self.stream(id)?;
        stream.generation = (stream.generation + 1) & GENERATION_MASK;
        stream.flags &= flag::QUEUED;
        let socket = stream.socket.take();
        self.free.push(id.index);
        socket
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// A server that opens and closes 50,000 connections a second gets here within a day.
    #[test]
    fn a_place_used_two_thousand_million_times_is_no_listener() {
        let mut driver = Epoll::new(&Config::default()).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let first = driver.attach(Socket::Os(pair().0), 1).unwrap();
        driver.close(first);
        for generation in [GENERATION_MASK - 1, GENERATION_MASK, 0] {
            if generation > 0 {
                driver.streams[0].generation = generation;
            }
            let (ours, theirs) = pair();
            let stream = driver.attach(Socket::Os(ours), 2).unwrap();
            assert_eq!(
                stream,
                StreamId {
                    index: 0,
                    generation
                }
            );
            driver.receive(stream);
            direct::send(theirs.as_fd(), b"x").unwrap();
            driver.poll_events(Some(Duration::from_secs(10))).unwrap();
            let event = driver.next();
            assert!(matches!(event, Some(Event::Data { .. })), "{event:?}");
            driver.close(stream);
        }
    }

    /// The kernel may refuse to watch a stream when it has no memory, as it refuses a file.
    #[test]
    fn who_waits_on_a_stream_that_cannot_be_watched_is_woken() {
        let mut driver = Epoll::new(&Config::default()).unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let stream = driver.attach(Socket::Os(file.into()), 1).unwrap();
        let events = |driver: &mut Epoll| {
            driver.poll_events(Some(Duration::ZERO)).unwrap();
            (0..4).find_map(|_| driver.next())
        };
        driver.want_write(stream);
        let mut event = events(&mut driver);
        event = event.or_else(|| events(&mut driver));
        assert!(matches!(event, Some(Event::Writable { .. })), "{event:?}");
        driver.want_write(stream);
        let event = events(&mut driver);
        assert!(matches!(event, Some(Event::Writable { .. })), "{event:?}");
        driver.want_read(stream);
        let event = events(&mut driver);
        assert!(matches!(event, Some(Event::Readable { .. })), "{event:?}");
    }
}
