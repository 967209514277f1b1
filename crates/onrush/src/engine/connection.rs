//! The state of each connection of a worker. An idle connection is one entry here: a protocol state
//! machine, a deadline and a few flags. It has no buffer, no task and no stack.
//!
//! Legal states between two events, by [`Phase`]. `task`, `out` and `after_flush` are fields of
//! [`Active`]; without `active` they count as empty.
//!
//! | phase | `task` | `out` | `after_flush` | `leaving` | `paused` | deadline |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | `Ready` | none | empty | none | none | while much input is queued | head, idle, rest of a body |
//! | `Busy` | a handler or a sender | any | none | any | any | body, write, total |
//! | `Flushing` | none | not empty | set | any | any | write |
//! | `Lingering` | none | empty | none | any | no | linger |
//! | `Leaving` | none | empty | none | set | yes | as in `Ready` |
//!
//! - `in_head` and `draining_body` exclude each other. Both occur in `Ready` and `Leaving` only.
//! - `ended` (the client has ended its direction) occurs in `Busy` and `Flushing`. In `Ready` and
//!   `Lingering` the connection is closed instead; `Leaving` becomes `Ready` first.
//! - `reader` is set in `Busy` only, while a handler waits for its request's body.
//! - `over_limit` occurs in `Flushing` and `Lingering` only.
//! - `links` (the entry is in a list of [`Conns`]): in `Ready` with a partial head, and in `Busy`
//!   and `Flushing` while the client does not take responses.
//!
//! This module stores the state and the lists of connections; the other modules of the engine
//! change it.

use super::rate_meter::RateMeter;
use crate::host::ConnId;
use crate::log::Exchanges;
use crate::metrics::Measured;
use onrush_proto::connection::{After, Connection as Machine};
use onrush_rt::buf::{Block, Buf};
use onrush_rt::driver::StreamId;
use onrush_rt::executor::TaskHandle;
use onrush_rt::timer::TimerId;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::task::Waker;

/// What a connection is doing, which decides how events are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Between requests, or inside a request head.
    Ready,
    /// A handler is pending, or a task sends its response.
    Busy,
    /// Responses in `out` wait until the client takes them; `after_flush` follows.
    Flushing,
    /// Our direction is shut down. Input is discarded until the client ends its direction or the
    /// time limit expires.
    Lingering,
    /// Between requests. The connection moves to another worker when the driver is quiet.
    Leaving,
}

impl Phase {
    /// The name in diagnostic events.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Ready => "ready",
            Phase::Busy => "busy",
            Phase::Flushing => "flushing",
            Phase::Lingering => "lingering",
            Phase::Leaving => "leaving",
        }
    }
}

/// What follows when all of `out` has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Continue,
    Close,
    Linger,
}

impl Then {
    /// What follows a response. `surplus`: the client has sent more after the request that it
    /// declared to be its last, and may send even more.
    pub(crate) fn following(after: After, surplus: bool) -> Then {
        match after {
            After::KeepAlive | After::DrainThenKeepAlive => Then::Continue,
            After::Close if !surplus => Then::Close,
            After::Close | After::LingeringClose => Then::Linger,
        }
    }
}

/// The largest number of requests that one connection starts in one event-loop iteration.
pub(crate) const BURST_MAX: u8 = 64;

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) stream: StreamId,
    pub(crate) machine: Machine,
    /// When the present wait ends, in ms; `u64::MAX` for never. It is compared when the timer
    /// fires, so moving it costs one store.
    pub(crate) deadline_ms: u64,
    /// When the timer fires, in ms, and the timer.
    pub(crate) timer_ms: u64,
    pub(crate) timer: Option<TimerId>,
    pub(crate) phase: Phase,
    /// The client has ended its direction.
    pub(crate) ended: bool,
    /// The driver is paused, so it has to be resumed before the next receive.
    pub(crate) paused: bool,
    /// Counts responses. A body that outlives its request is recognized by this number.
    pub(crate) response_count: u32,
    /// A head has begun and is incomplete; its time limit is running.
    pub(crate) in_head: bool,
    /// The connection is over the limit: it only receives a 503.
    pub(crate) over_limit: bool,
    /// The rest of a request body has to be discarded before the next head.
    pub(crate) draining_body: bool,
    /// The worker to which the connection moves.
    pub(crate) leaving: Option<u16>,
    /// Requests started in one event-loop iteration, and the low bits of that iteration's number.
    /// See [`Conn::may_start`].
    pub(crate) burst: u8,
    pub(crate) burst_iteration: u8,
    /// `response_count` when requests were last counted.
    pub(crate) response_count_before: u32,
    /// The state that an idle connection does not need.
    pub(crate) active: Option<Box<Active>>,
}

/// The state of a connection that is not idle.
#[derive(Debug, Default)]
pub(crate) struct Active {
    /// Received and not processed: a partial head, body bytes, pipelined requests.
    pub(crate) input: VecDeque<Buf>,
    pub(crate) input_bytes: usize,
    /// The position in a list of [`Conns`], while the connection is in one.
    pub(crate) links: Option<Links>,
    /// The head or idle time limit was extended once, because unread input was present.
    pub(crate) extended: bool,
    /// Rendered responses. The kernel has not accepted the bytes from `out_sent` on.
    pub(crate) out: Vec<u8>,
    pub(crate) out_sent: usize,
    /// Rendered bytes that a task holds while it waits for the client.
    pub(crate) rendered_bytes: usize,
    pub(crate) after_flush: Option<Then>,
    /// The task of the handler, or the one that sends its response. Dropping it cancels it.
    pub(crate) task: Option<TaskHandle>,
    /// The waker of the task that waits for body bytes.
    pub(crate) reader: Option<Waker>,
    /// The waker of the task that waits until the socket accepts more bytes.
    pub(crate) writer: Option<Waker>,
    /// When the wait for body bytes and the wait for the client to take bytes end, in ms. A task
    /// may be in both waits at once.
    pub(crate) body_deadline_ms: Option<u64>,
    pub(crate) write_deadline_ms: Option<u64>,
    /// The last send accepted fewer bytes than it was given: the socket buffer is full.
    pub(crate) is_full: bool,
    /// Bytes that the kernel has accepted of responses that tasks send, up to [`u32::MAX`].
    pub(crate) taken_bytes: u32,
    /// The rates at which the client sends body bytes and takes response bytes.
    pub(super) body_rate: RateMeter,
    pub(super) write_rate: RateMeter,
    /// The write time limit has expired; the next send decides whether the client is too slow.
    pub(crate) last_try: bool,
    /// The driver is paused and quiet, so body bytes may be received directly.
    pub(crate) quiet: bool,
    /// The value of `SO_RCVLOWAT` that was set on the socket; 0 when none was set.
    pub(crate) low_water: u32,
    /// The last receive emptied the socket. The driver reports further input.
    pub(crate) emptied: bool,
    /// The client sends too slowly to wait for many bytes at a time.
    pub(crate) slow_sender: bool,
    /// The body time limit has expired; a final receive decides whether bytes arrived unnoticed.
    pub(crate) final_poll: bool,
    /// Reading the body failed with this error.
    pub(crate) broken_body: Option<io::ErrorKind>,
    /// The response to a body that broke a rule, unless the handler makes an error response of its
    /// own.
    pub(crate) reject: Option<onrush_proto::reject::Reject>,
    /// When the total time limit of the present request expires, in ms.
    pub(crate) total_deadline_ms: Option<u64>,
    /// The exchanges that have not ended; empty without an access log.
    pub(crate) exchanges: Exchanges,
    /// The measurement of the present request, when its response was not ready at once.
    pub(crate) measured: Option<Measured>,
}

impl Active {
    pub(crate) fn push_input(&mut self, data: Buf) {
        self.input_bytes += data.len();
        self.input.push_back(data);
    }

    /// [`Active::push_input`], but copies small pieces together. A client that sends single bytes
    /// must not occupy a whole block with each of them.
    pub(crate) fn gather_input(&mut self, data: Buf, block_bytes: usize) {
        if data.len() * 4 >= block_bytes {
            return self.push_input(data);
        }
        match self.input.pop_back().map(Buf::try_into_block) {
            Some(Ok(mut block)) if block.capacity() - block.len() >= data.len() => {
                self.input_bytes += block.extend(&data);
                self.input.push_back(block.into_buf());
            }
            last => {
                let last = last.map(|last| last.map_or_else(|shared| shared, Block::into_buf));
                self.input.extend(last);
                self.push_input(data);
            }
        }
    }

    pub(crate) fn pop_input(&mut self) -> Option<Buf> {
        let data = self.input.pop_front()?;
        self.input_bytes -= data.len();
        Some(data)
    }

    /// Puts unprocessed input back to the front of the queue.
    pub(crate) fn unpop_input(&mut self, data: Buf) {
        if !data.is_empty() {
            self.input_bytes += data.len();
            self.input.push_front(data);
        }
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.out[self.out_sent..]
    }

    /// Memory of rendered responses that the client has not taken, in bytes.
    fn unsent_bytes(&self) -> usize {
        let kept = match self.unsent().is_empty() {
            true => 0,
            false => self.out.capacity(),
        };
        kept + self.rendered_bytes
    }

    pub(super) fn is_idle(&self) -> bool {
        self.input.is_empty()
            && self.unsent().is_empty()
            && self.task.is_none()
            && self.exchanges.is_empty()
    }
}

impl Conn {
    /// A connection before its first request.
    pub(crate) fn new(stream: StreamId) -> Conn {
        Conn {
            stream,
            machine: Machine::new(),
            deadline_ms: u64::MAX,
            timer_ms: u64::MAX,
            timer: None,
            phase: Phase::Ready,
            ended: false,
            paused: false,
            response_count: 0,
            in_head: false,
            over_limit: false,
            draining_body: false,
            leaving: None,
            burst: 0,
            burst_iteration: 0,
            response_count_before: 0,
            active: None,
        }
    }

    pub(crate) fn active(&mut self) -> &mut Active {
        self.active.get_or_insert_default()
    }

    /// Whether the connection is in a list of connections that may be evicted.
    #[inline]
    pub(crate) fn is_listed(&self) -> bool {
        (self.active.as_ref()).is_some_and(|active| active.links.is_some())
    }

    /// How many more requests the connection may start in the iteration with this number. The limit
    /// keeps a connection that pipelines without end from delaying the others.
    #[inline]
    pub(crate) fn may_start(&self, iteration: u64) -> u8 {
        match self.burst_iteration == iteration as u8 {
            true => BURST_MAX.saturating_sub(self.burst),
            false => BURST_MAX,
        }
    }

    /// Counts requests started in the iteration with this number.
    pub(crate) fn note_started(&mut self, iteration: u64, requests: u8) {
        let before = BURST_MAX - self.may_start(iteration);
        self.burst = before.saturating_add(requests);
        self.burst_iteration = iteration as u8;
    }

    /// Whether nothing has to be done before the connection waits for its next request.
    #[inline]
    pub(crate) fn needs_no_work(&self) -> bool {
        !self.paused && !self.in_head && !self.draining_body && !self.ended
    }

    /// Frees the state that an idle connection does not need.
    pub(crate) fn release_active(&mut self) {
        if self.active.as_ref().is_some_and(|active| active.is_idle()) {
            self.active = None;
        }
    }
}

/// The connections of one worker.
#[derive(Debug, Default)]
pub(crate) struct Conns {
    entries: Vec<Entry>,
    free: Vec<u32>,
    open: usize,
    heads: Heads,
    /// Bytes of rendered responses that listed connections hold.
    unsent_bytes: Rc<Cell<usize>>,
}

/// Aligned to two cache lines. Without the alignment an entry touches three, and with thousands of
/// connections each of them is a cache miss.
#[derive(Debug)]
#[repr(align(64))]
struct Entry {
    generation: u32,
    conn: Option<Conn>,
}

const _: () = assert!(size_of::<Entry>() == 128);

impl Conns {
    /// Reserves an entry and returns its id, before the driver knows the connection.
    pub(crate) fn reserve(&mut self) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: 0,
                conn: None,
            });
            self.entries.len() as u32 - 1
        });
        ConnId {
            index,
            generation: self.entries[index as usize].generation,
        }
    }

    /// Cancels a reservation.
    pub(crate) fn release(&mut self, id: ConnId) {
        self.free.push(id.index);
    }

    pub(crate) fn insert(&mut self, id: ConnId, conn: Conn) {
        self.entries[id.index as usize].conn = Some(conn);
        self.open += 1;
    }

    #[inline]
    pub(crate) fn get(&mut self, id: ConnId) -> Option<&mut Conn> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation == id.generation {
            entry.conn.as_mut()
        } else {
            None
        }
    }

    /// Removes a connection. The caller drops it outside any borrow, because its task is user code.
    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Conn> {
        self.unlist(id);
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        let conn = entry.conn.take()?;
        entry.generation = (entry.generation + 1) & 0x7fff_ffff;
        self.free.push(id.index);
        self.open -= 1;
        Some(conn)
    }

    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// The ids of all open connections.
    pub(crate) fn ids(&self) -> Vec<ConnId> {
        let id = |(index, entry): (usize, &Entry)| {
            entry.conn.as_ref()?;
            Some(ConnId {
                index: index as u32,
                generation: entry.generation,
            })
        };
        self.entries.iter().enumerate().filter_map(id).collect()
    }
}

/// A partial head of at least this size is a large one.
const LARGE_HEAD_BYTES: usize = 4096;

/// The position of a connection in its list, and the memory that it holds: blocks of input, and
/// rendered responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    list: usize,
    bytes: usize,
    unsent_bytes: usize,
    previous: Option<ConnId>,
    next: Option<ConnId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct List {
    oldest: Option<ConnId>,
    newest: Option<ConnId>,
}

const SMALL: usize = 0;
const LARGE: usize = 1;
const UNREAD: usize = 2;

/// The connections that may be evicted: those that hold a partial head, and those whose client does
/// not take its responses. The engine does not process the input of the latter.
#[derive(Debug, Default)]
struct Heads {
    lists: [List; 3],
    /// Bytes of input that all listed connections hold, and those in the list [`UNREAD`].
    bytes: usize,
    unread_bytes: usize,
}

impl Conns {
    /// Adds a connection with a partial head to its list, or moves it to the list of large heads.
    pub(crate) fn list_head(&mut self, id: ConnId) {
        let active = self.get(id).and_then(|conn| conn.active.as_ref());
        let is_large = active.is_some_and(|active| active.input_bytes >= LARGE_HEAD_BYTES);
        self.list(id, if is_large { LARGE } else { SMALL });
    }

    /// Adds a connection whose client does not take its responses to the list [`UNREAD`], if it
    /// holds input or rendered responses.
    pub(crate) fn list_unread(&mut self, id: ConnId) {
        let active = self.get(id).and_then(|conn| conn.active.as_ref());
        if active.is_some_and(|active| active.input_bytes > 0 || active.unsent_bytes() > 0) {
            self.list(id, UNREAD);
        }
    }

    /// Called when the client has taken bytes. A listed connection that still holds memory becomes
    /// the newest of its list.
    pub(crate) fn list_unread_anew(&mut self, id: ConnId) {
        if self.get(id).is_some_and(|conn| conn.is_listed()) {
            self.unlist(id);
            self.list_unread(id);
        }
    }

    fn list(&mut self, id: ConnId, list: usize) {
        let Some(active) = self.get(id).and_then(|conn| conn.active.as_ref()) else {
            return;
        };
        let bytes: usize = active.input.iter().map(Buf::block_bytes).sum();
        let unsent_bytes = active.unsent_bytes();
        match active.links {
            Some(links) if links.list == list => {
                self.uncount(links);
                self.count(list, bytes, unsent_bytes);
                return self.with_links(id, |links| {
                    (links.bytes, links.unsent_bytes) = (bytes, unsent_bytes);
                });
            }
            Some(_) => self.unlist(id),
            None => {}
        }
        self.count(list, bytes, unsent_bytes);
        let previous = self.heads.lists[list].newest.replace(id);
        match previous {
            Some(previous) => self.with_links(previous, |links| links.next = Some(id)),
            None => self.heads.lists[list].oldest = Some(id),
        }
        let links = Links {
            list,
            bytes,
            unsent_bytes,
            previous,
            next: None,
        };
        if let Some(conn) = self.get(id) {
            conn.active().links = Some(links);
        }
    }

    /// Removes a connection from its list, if it is in one.
    pub(crate) fn unlist(&mut self, id: ConnId) {
        let active = self.get(id).and_then(|conn| conn.active.as_mut());
        let Some(links) = active.and_then(|active| active.links.take()) else {
            return;
        };
        self.uncount(links);
        match links.previous {
            Some(previous) => self.with_links(previous, |other| other.next = links.next),
            None => self.heads.lists[links.list].oldest = links.next,
        }
        match links.next {
            Some(next) => self.with_links(next, |other| other.previous = links.previous),
            None => self.heads.lists[links.list].newest = links.previous,
        }
    }

    fn count(&mut self, list: usize, bytes: usize, unsent_bytes: usize) {
        self.heads.bytes += bytes;
        self.heads.unread_bytes += if list == UNREAD { bytes } else { 0 };
        self.unsent_bytes
            .set(self.unsent_bytes.get() + unsent_bytes);
    }

    fn uncount(&mut self, links: Links) {
        self.heads.bytes -= links.bytes;
        self.heads.unread_bytes -= if links.list == UNREAD { links.bytes } else { 0 };
        self.unsent_bytes
            .set(self.unsent_bytes.get() - links.unsent_bytes);
    }

    fn with_links(&mut self, id: ConnId, change: impl FnOnce(&mut Links)) {
        let active = self.get(id).and_then(|conn| conn.active.as_mut());
        if let Some(links) = active.and_then(|active| active.links.as_mut()) {
            change(links);
        }
    }

    /// Input that listed connections hold, in bytes.
    pub(crate) fn head_bytes(&self) -> usize {
        self.heads.bytes
    }

    /// A cell with the bytes of rendered responses that listed connections hold. It is always
    /// current.
    pub(crate) fn unsent_bytes(&self) -> &Rc<Cell<usize>> {
        &self.unsent_bytes
    }

    /// Whether connections whose clients do not take their responses hold more memory than partial
    /// heads do.
    pub(crate) fn is_mostly_unread(&self) -> bool {
        let unread = self.heads.unread_bytes;
        unread + self.unsent_bytes.get() > self.heads.bytes - unread
    }

    /// The partial head to evict next: the oldest large one, or else the oldest small one.
    pub(crate) fn head_to_evict(&self) -> Option<ConnId> {
        self.heads.lists[LARGE]
            .oldest
            .or(self.heads.lists[SMALL].oldest)
    }

    /// The connection to reset next among those whose client does not take its responses.
    pub(crate) fn unread_to_evict(&self) -> Option<ConnId> {
        self.heads.lists[UNREAD].oldest
    }
}
