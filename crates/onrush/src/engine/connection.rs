//! What a worker keeps of each connection. An idle one is an entry here: a protocol machine, a
//! deadline and a few flags; no buffer, no task, no stack.
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
//! Must not know how the entry is driven.

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

/// What a connection is doing, as far as events are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Between requests, or in a head.
    Ready,
    /// A handler runs, or a task sends its answer.
    Busy,
    /// Answers wait in `out` for the peer to take them; then `after_flush`.
    Flushing,
    /// Our direction is shut down; what comes is thrown away until the peer ends or time is up.
    Lingering,
    /// Between requests, and about to go to another worker as soon as the driver is quiet.
    Leaving,
}

impl Phase {
    /// Its name in diagnostic events.
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

/// What follows when `out` has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Continue,
    Close,
    Linger,
}

impl Then {
    /// What follows an answer. `surplus`: the peer has sent more after the request that it said
    /// was its last, and may go on.
    pub(crate) fn following(after: After, surplus: bool) -> Then {
        match after {
            After::KeepAlive | After::DrainThenKeepAlive => Then::Continue,
            After::Close if !surplus => Then::Close,
            After::Close | After::LingeringClose => Then::Linger,
        }
    }
}

/// Requests of one connection that are started in one iteration of the event loop, at most.
pub(crate) const BURST_MAX: u8 = 64;

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) stream: StreamId,
    pub(crate) machine: Machine,
    /// When the present wait is over, in ms; `u64::MAX` for never. Checked when the timer fires,
    /// so that moving it costs a store.
    pub(crate) deadline_ms: u64,
    /// When the timer fires, and the timer.
    pub(crate) timer_ms: u64,
    pub(crate) timer: Option<TimerId>,
    pub(crate) phase: Phase,
    /// The peer will send nothing more.
    pub(crate) ended: bool,
    /// The driver was told to pause, so it must be told to receive again.
    pub(crate) paused: bool,
    /// Counts answers, so that a body that outlives its request is not taken for the next one's.
    pub(crate) response_count: u32,
    /// A head has begun and not ended; its time is running.
    pub(crate) in_head: bool,
    /// Over the cap: it only gets to read that.
    pub(crate) over_limit: bool,
    /// A rest of a request body is to be thrown away before the next head.
    pub(crate) draining_body: bool,
    /// The worker it is to go to.
    pub(crate) leaving: Option<u16>,
    /// Requests that were started in one iteration of the event loop, and the low bits of that
    /// iteration's number: see [`Conn::may_start`].
    pub(crate) burst: u8,
    pub(crate) burst_iteration: u8,
    /// `response_count` when requests were last counted.
    pub(crate) response_count_before: u32,
    /// Everything that only a connection at work needs.
    pub(crate) active: Option<Box<Active>>,
}

/// What a connection holds while it is at work.
#[derive(Debug, Default)]
pub(crate) struct Active {
    /// Received and not used up: a partial head, body bytes, pipelined requests.
    pub(crate) input: VecDeque<Buf>,
    pub(crate) input_bytes: usize,
    /// The place among the partial heads, while `input` is one.
    pub(crate) links: Option<Links>,
    /// The time for a head, or for silence, has been extended once, because unread input was there.
    pub(crate) extended: bool,
    /// Rendered and not yet taken by the kernel, from `out_sent` on.
    pub(crate) out: Vec<u8>,
    pub(crate) out_sent: usize,
    /// Rendered as well, and held by the task that waits for the peer to take it.
    pub(crate) rendered_bytes: usize,
    pub(crate) after_flush: Option<Then>,
    /// The handler's task, or the one that sends the answer. Dropping it cancels it.
    pub(crate) task: Option<TaskHandle>,
    /// Who waits for body bytes.
    pub(crate) reader: Option<Waker>,
    /// Who waits for the peer to take bytes.
    pub(crate) writer: Option<Waker>,
    /// When the wait for body bytes, and the wait for the peer to take bytes, are over, in ms; for
    /// tasks, which may do both at a time.
    pub(crate) body_deadline_ms: Option<u64>,
    pub(crate) write_deadline_ms: Option<u64>,
    /// The last send took fewer bytes than it was given: there is no room for now.
    pub(crate) is_full: bool,
    /// Bytes that the kernel has taken of responses of tasks, up to [`u32::MAX`].
    pub(crate) taken_bytes: u32,
    /// How fast body bytes come, and how fast the peer takes bytes.
    pub(super) body_rate: RateMeter,
    pub(super) write_rate: RateMeter,
    /// The time to take bytes is over; the next try decides.
    pub(crate) last_try: bool,
    /// The driver is paused and quiet: body bytes may be received directly.
    pub(crate) quiet: bool,
    /// The socket was told to be readable only from so many bytes on; 0 when it was told nothing.
    pub(crate) low_water: u32,
    /// The last receive took all there was; whatever comes now, the driver tells.
    pub(crate) emptied: bool,
    /// The body comes too slowly to wait for many bytes at a time.
    pub(crate) slow_sender: bool,
    /// The time for body bytes is over unless some have come unnoticed.
    pub(crate) final_poll: bool,
    /// The body could not be read on.
    pub(crate) broken_body: Option<io::ErrorKind>,
    /// The answer owed for a body that broke the rules, when the handler gives none of its own.
    pub(crate) reject: Option<onrush_proto::reject::Reject>,
    /// When the present request must be done with, in ms.
    pub(crate) total_deadline_ms: Option<u64>,
    /// What is to be logged when it has ended; empty without an access log.
    pub(crate) exchanges: Exchanges,
    /// The present request, when it was not answered at once.
    pub(crate) measured: Option<Measured>,
}

impl Active {
    pub(crate) fn push_input(&mut self, data: Buf) {
        self.input_bytes += data.len();
        self.input.push_back(data);
    }

    /// [`Active::push_input`], which gathers small pieces: a peer that sends a byte at a time must
    /// not make a whole block be held for each of them.
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

    /// Puts back what was not used up, to be the next input.
    pub(crate) fn unpop_input(&mut self, data: Buf) {
        if !data.is_empty() {
            self.input_bytes += data.len();
            self.input.push_front(data);
        }
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.out[self.out_sent..]
    }

    /// Memory of rendered responses that wait for the peer, in bytes.
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

    /// Whether it is in a list of connections whose input may be given up.
    #[inline]
    pub(crate) fn is_listed(&self) -> bool {
        (self.active.as_ref()).is_some_and(|active| active.links.is_some())
    }

    /// How many more requests may be started in the iteration with this number: one connection
    /// that pipelines without end must not keep the others waiting.
    #[inline]
    pub(crate) fn may_start(&self, iteration: u64) -> u8 {
        match self.burst_iteration == iteration as u8 {
            true => BURST_MAX.saturating_sub(self.burst),
            false => BURST_MAX,
        }
    }

    /// Counts requests that were started in the iteration with this number.
    pub(crate) fn note_started(&mut self, iteration: u64, requests: u8) {
        let before = BURST_MAX - self.may_start(iteration);
        self.burst = before.saturating_add(requests);
        self.burst_iteration = iteration as u8;
    }

    /// Whether it needs nothing before it waits for its next request, and has to.
    #[inline]
    pub(crate) fn needs_no_work(&self) -> bool {
        !self.paused && !self.in_head && !self.draining_body && !self.ended
    }

    /// Gives back what an idle connection does not need.
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

/// Two lines of the cache, and not parts of three: with thousands of connections each is cold when
/// its turn comes.
#[derive(Debug)]
#[repr(align(64))]
struct Entry {
    generation: u32,
    conn: Option<Conn>,
}

const _: () = assert!(size_of::<Entry>() == 128);

impl Conns {
    /// Makes room for a connection: its id, before the driver knows it.
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

    /// Gives up a reservation.
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

    /// Takes a connection out. The caller drops it outside any borrow: its task is user code.
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

/// A partial head of so many bytes is a large one.
const LARGE_HEAD_BYTES: usize = 4096;

/// The place of a connection in its list, and the bytes of memory it holds: in blocks of input, and
/// in rendered responses.
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

/// The connections whose input may be given up: those that hold a partial head, and those whose
/// peer does not take its responses, so that what it has sent behind them is not looked at.
#[derive(Debug, Default)]
struct Heads {
    lists: [List; 3],
    /// Input that all of them hold, and those of the list [`UNREAD`].
    bytes: usize,
    unread_bytes: usize,
}

impl Conns {
    /// Lists a connection that keeps a partial head, or moves it to the large ones.
    pub(crate) fn list_head(&mut self, id: ConnId) {
        let active = self.get(id).and_then(|conn| conn.active.as_ref());
        let is_large = active.is_some_and(|active| active.input_bytes >= LARGE_HEAD_BYTES);
        self.list(id, if is_large { LARGE } else { SMALL });
    }

    /// Lists a connection whose peer does not take its responses, if it keeps input or rendered
    /// responses.
    pub(crate) fn list_unread(&mut self, id: ConnId) {
        let active = self.get(id).and_then(|conn| conn.active.as_ref());
        if active.is_some_and(|active| active.input_bytes > 0 || active.unsent_bytes() > 0) {
            self.list(id, UNREAD);
        }
    }

    /// The peer has taken some: a listed connection, if it still keeps something, becomes the
    /// newest of its list.
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

    /// Takes a connection out of its list, if it is in one.
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

    /// Bytes of rendered responses that listed connections hold; the cell follows them.
    pub(crate) fn unsent_bytes(&self) -> &Rc<Cell<usize>> {
        &self.unsent_bytes
    }

    /// Whether connections whose peers do not take their responses hold more memory than partial
    /// heads do.
    pub(crate) fn is_mostly_unread(&self) -> bool {
        let unread = self.heads.unread_bytes;
        unread + self.unsent_bytes.get() > self.heads.bytes - unread
    }

    /// The partial head to be evicted first: the oldest of the large ones, or of the small ones.
    pub(crate) fn head_to_evict(&self) -> Option<ConnId> {
        self.heads.lists[LARGE]
            .oldest
            .or(self.heads.lists[SMALL].oldest)
    }

    /// The connection to be reset first of those whose peer does not take its responses.
    pub(crate) fn unread_to_evict(&self) -> Option<ConnId> {
        self.heads.lists[UNREAD].oldest
    }
}
