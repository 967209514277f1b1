//! HTTP/2 on one connection: the protocol machine, the frames that were made and not passed to the
//! socket, and a [`Slot`] for each stream whose request or response has not ended.
//!
//! Whoever has content to send asks for room ([`Http2::room`]). What waits for the client is
//! bounded by [`OUT_BYTES_MAX`], so a response of any length leaves place for the others. When
//! there is place again, those that wait get their turn by priority (RFC 9218): the most urgent
//! first; of the same urgency, those that can be used in parts [`TURN_BYTES`] each, the others one
//! after the other. Heads, and content that fits at once, do not wait for a turn.

use crate::engine::connection::Exchange;
use crate::engine::connection::promises::{Promise, Promises};
use crate::engine::connection::rate_meter::RateMeter;
use crate::metrics::CloseReason;
use onrush_proto::http2::connection::Connection as Machine;
use onrush_proto::http2::frame::{PAYLOAD_BYTES_MAX, PREFACE};
use onrush_proto::http2::priority::Priority;
use onrush_rt::buf::{Buf, Reservation};
use std::collections::VecDeque;
use std::task::Waker;

/// No content is added while this many bytes of frames wait for the client.
pub(in crate::engine) const OUT_BYTES_MAX: usize = 128 * 1024;

/// What a response sends before the next one of its priority has its turn: a wake-up pays for
/// more than one frame.
const TURN_BYTES: usize = 32 * 1024;

/// Bytes of bodies of one connection that may wait for their handlers before the client has to wait
/// for them.
const UNREAD_BYTES_MAX: usize = 1024 * 1024;

/// At most this many of those that wait for a turn are woken at a time.
const TURNS_MAX: usize = 8;

/// Whether the first bytes of a connection are those of HTTP/2 (RFC 9113 §3.4), as far as they are
/// there.
pub(in crate::engine) fn is_preface(bytes: &[u8]) -> bool {
    let known = bytes.len().min(PREFACE.len());
    known >= b"PRI ".len() && bytes[..known] == PREFACE[..known]
}

/// A connection that speaks HTTP/2.
#[derive(Debug, Default)]
pub(in crate::engine) struct Http2 {
    pub(in crate::engine) machine: Machine,
    /// Frames that were not passed to the socket.
    pub(in crate::engine) out: Vec<u8>,
    pub(in crate::engine) slots: Vec<Slot>,
    /// The streams of the slots, in the same order: looking through them costs less.
    streams: Vec<u32>,
    /// The frames will be sent soon: the connection is in the list of those.
    pub(in crate::engine) is_due: bool,
    /// Received bytes wait until the client takes what was sent.
    pub(in crate::engine) is_held_up: bool,
    /// A task goes on with received bytes.
    pub(in crate::engine) has_input_task: bool,
    /// Requests started in the iteration with this number.
    pub(in crate::engine) started: (u64, u32),
    /// The connection ends when all responses have been sent.
    pub(in crate::engine) ends: bool,
    /// Why it has failed: a GOAWAY with an error says so.
    pub(in crate::engine) failed: Option<CloseReason>,
    /// When the rest of a frame, of a header block or of the preface is due, in ms.
    pub(in crate::engine) input_deadline_ms: Option<u64>,
    /// When the client must have acknowledged the settings, in ms.
    pub(in crate::engine) settings_deadline_ms: Option<u64>,
    /// When the connection ends because no stream is open, in ms.
    pub(in crate::engine) idle_deadline_ms: Option<u64>,
    /// How far the connection has come to its end, because the server drains.
    pub(in crate::engine) drain: Drain,
    /// When its next step is due, in ms.
    pub(in crate::engine) drain_deadline_ms: Option<u64>,
    /// The first part of a frame.
    pub(in crate::engine) partial: Option<Buf>,
    /// The head of the last request, for the next one if that is the same.
    pub(in crate::engine) last_head: Option<Buf>,
    /// Content in memory that waits to be sent, of all slots.
    waiting_bytes: usize,
    /// What the windows of streams have grown by.
    promised: Option<Promise>,
    /// The memory of a header block of which a part has arrived.
    pub(in crate::engine) block: Option<Reservation>,
    /// When content was sent last, in ms.
    pub(in crate::engine) sent_ms: u64,
    /// The rate at which the client opens the window of the connection.
    pub(in crate::engine) window_rate: RateMeter,
    /// Counts turns.
    turn: u64,
    /// Of the streams that are sent one after the other.
    in_order: Standing,
    /// The slots that wait for a turn, or were woken for one.
    wanting: usize,
}

/// How far a connection has come to its end while the server drains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) enum Drain {
    /// The server does not drain.
    #[default]
    No,
    /// The client does not know yet. It is told when no stream is open, and after this time, in ms,
    /// at the next request.
    Quiet(u64),
    /// The client was told that the connection ends soon.
    Announced,
}

/// A stream whose request or response has not ended.
#[derive(Debug)]
pub(in crate::engine) struct Slot {
    pub(in crate::engine) stream: u32,
    pub(in crate::engine) exchange: Exchange,
    /// Received and not read.
    pub(in crate::engine) input: VecDeque<Buf>,
    pub(in crate::engine) input_bytes: usize,
    /// The client has ended its side.
    pub(in crate::engine) has_ended: bool,
    pub(in crate::engine) trailers: Option<Box<[u8]>>,
    /// What is left to read by `content-length`, in bytes.
    pub(in crate::engine) remaining: Option<u64>,
    /// What may be read, in bytes.
    pub(in crate::engine) allowed: u64,
    /// The client waits for a 100.
    pub(in crate::engine) expects: bool,
    /// Nobody reads what the client sends.
    pub(in crate::engine) is_discarded: bool,
    /// The response is complete, and the client still sends its body.
    pub(in crate::engine) rest: Option<Rest>,
    /// Those who read another protocol, or will do so if the response begins it.
    pub(in crate::engine) tunnel_readers: u32,
    /// The response has begun another protocol.
    pub(in crate::engine) is_upgraded: bool,
    priority: Priority,
    /// If it can be used in parts.
    standing: Standing,
    wants_turn: bool,
}

/// What tells whose turn is next.
#[derive(Debug, Default)]
struct Standing {
    /// When the last turn ended, by [`Http2::turn`].
    turn: u64,
    /// What was sent since then, in bytes.
    bytes: usize,
}

/// How long a body is discarded whose response is complete.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Rest {
    /// In ms.
    pub(in crate::engine) deadline_ms: u64,
    /// How much of it may still arrive, in bytes.
    pub(in crate::engine) bytes: u64,
}

impl Rest {
    /// This many bytes per time limit are enough to get another one.
    const STEP_BYTES: u64 = 64 * 1024;

    /// Counts discarded bytes. `deadline_ms`: the next time limit.
    pub(in crate::engine) fn receive(&mut self, bytes: u64, deadline_ms: u64) {
        let before = self.bytes;
        self.bytes = before.saturating_sub(bytes);
        if self.bytes / Rest::STEP_BYTES != before / Rest::STEP_BYTES {
            self.deadline_ms = deadline_ms;
        }
    }
}

impl Slot {
    /// The slot of a new stream.
    pub(in crate::engine) fn new(stream: u32, priority: Priority) -> Slot {
        Slot {
            stream,
            exchange: Exchange::default(),
            input: VecDeque::new(),
            input_bytes: 0,
            has_ended: false,
            trailers: None,
            remaining: None,
            allowed: u64::MAX,
            expects: false,
            is_discarded: false,
            rest: None,
            tunnel_readers: 0,
            is_upgraded: false,
            priority,
            standing: Standing::default(),
            wants_turn: false,
        }
    }

    /// Whether what the client sends is of another protocol that nobody may read yet.
    pub(in crate::engine) fn may_upgrade(&self) -> bool {
        self.tunnel_readers > 0 && !self.is_upgraded
    }

    /// Drops what was received and not read. Returns the number of bytes.
    pub(in crate::engine) fn drop_input(&mut self) -> usize {
        self.input = VecDeque::new();
        std::mem::take(&mut self.input_bytes)
    }

    /// Whether the stream goes on only when its client sends or takes bytes.
    pub(in crate::engine) fn waits_for_client(&self) -> bool {
        self.rest.is_some() || self.exchange.reader.is_some() || self.exchange.writer.is_some()
    }
}

impl Http2 {
    /// The place of a stream among the slots.
    #[inline]
    pub(in crate::engine) fn place(&self, stream: u32) -> Option<usize> {
        self.streams.iter().position(|&known| known == stream)
    }

    #[inline]
    pub(in crate::engine) fn slot(&mut self, stream: u32) -> Option<&mut Slot> {
        let at = self.place(stream)?;
        self.slots.get_mut(at)
    }

    /// Adds a slot.
    pub(in crate::engine) fn add_slot(&mut self, slot: Slot) {
        self.streams.push(slot.stream);
        self.slots.push(slot);
    }

    /// Removes the slot of a stream. The caller drops it outside any borrow, because its task is
    /// user code.
    pub(in crate::engine) fn take_slot(&mut self, stream: u32) -> Option<Slot> {
        let at = self.place(stream)?;
        self.streams.swap_remove(at);
        let slot = self.slots.swap_remove(at);
        self.wanting -= usize::from(slot.wants_turn);
        self.waiting_bytes -= slot.exchange.rendered_bytes;
        if self.slots.is_empty() {
            self.slots.shrink_to(1);
            self.streams.shrink_to(1);
        }
        Some(slot)
    }

    /// Removes all slots, as [`Http2::take_slot`] one.
    pub(in crate::engine) fn take_slots(&mut self) -> Vec<Slot> {
        (self.wanting, self.waiting_bytes) = (0, 0);
        self.streams = Vec::new();
        std::mem::take(&mut self.slots)
    }

    /// Content in memory that waits for the client, in bytes.
    pub(in crate::engine) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// The stream with the most of it.
    pub(in crate::engine) fn most_waiting(&self) -> Option<u32> {
        let waiting = (self.slots.iter()).filter(|slot| slot.exchange.rendered_bytes > 0);
        let most = waiting.max_by_key(|slot| slot.exchange.rendered_bytes)?;
        Some(most.stream)
    }

    /// A stream waits to send this much of content in memory.
    pub(in crate::engine) fn note_waiting(&mut self, stream: u32, bytes: usize) {
        if let Some(at) = self.place(stream) {
            self.set_waiting(at, bytes);
        }
    }

    fn set_waiting(&mut self, at: usize, bytes: usize) {
        let before = std::mem::replace(&mut self.slots[at].exchange.rendered_bytes, bytes);
        self.waiting_bytes = self.waiting_bytes + bytes - before;
    }

    /// Counts what the windows of the streams have grown by.
    pub(in crate::engine) fn promise(&mut self, promises: &Promises) {
        let grown = self.machine.grown_bytes();
        if self.promised.as_ref().map_or(0, Promise::bytes) != grown {
            self.promised = None;
            self.promised = (grown > 0).then(|| promises.make(grown));
        }
    }

    /// Whether the client may send as many bytes as it has sent, though they were not read: up to
    /// [`UNREAD_BYTES_MAX`], and what the windows of streams have grown by.
    pub(in crate::engine) fn may_receive_more(&self) -> bool {
        let unread: usize = self.slots.iter().map(|slot| slot.input_bytes).sum();
        unread <= UNREAD_BYTES_MAX + self.machine.grown_bytes()
    }

    /// Whether no stream is open and nothing waits to be sent.
    pub(in crate::engine) fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.out.is_empty()
    }

    /// How many bytes of content a stream may send now. `unsent`: bytes that wait behind the socket
    /// already. If it may send none because others have their turn first, its waker is called when
    /// it has one.
    pub(in crate::engine) fn room(&mut self, stream: u32, unsent: usize) -> usize {
        let room = self.machine.room(stream).min(PAYLOAD_BYTES_MAX);
        let is_full = self.out.len() + unsent >= OUT_BYTES_MAX;
        let Some(at) = self.place(stream) else {
            return 0;
        };
        let waits = room > 0 && (is_full || self.is_behind(at));
        self.want_turn(at, waits);
        match waits {
            true => 0,
            false => room,
        }
    }

    /// A stream has sent this much content, and does not wait.
    pub(in crate::engine) fn note_turn(&mut self, stream: u32, bytes: usize) {
        let Some(at) = self.place(stream) else {
            return;
        };
        self.set_waiting(at, 0);
        let slot = &mut self.slots[at];
        let standing = match slot.priority.is_incremental {
            true => &mut slot.standing,
            false => &mut self.in_order,
        };
        standing.bytes += bytes;
        if standing.bytes >= TURN_BYTES {
            self.turn += 1;
            *standing = Standing {
                turn: self.turn,
                bytes: 0,
            };
        }
    }

    /// A stream is going to send content at once, so others do not use up the room before it.
    pub(in crate::engine) fn expect_content(&mut self, stream: u32) {
        if let Some(at) = self.place(stream) {
            self.want_turn(at, true);
        }
    }

    fn want_turn(&mut self, at: usize, wants: bool) {
        let before = std::mem::replace(&mut self.slots[at].wants_turn, wants);
        self.wanting = self.wanting + usize::from(wants) - usize::from(before);
    }

    /// Where the stream at `at` stands in the order of turns. No two are equal, so of those that
    /// wait exactly one is first.
    fn rank(&self, at: usize) -> (u8, u64, u32) {
        let slot = &self.slots[at];
        (slot.priority.urgency, self.standing(slot).turn, slot.stream)
    }

    /// Those that are sent one after the other have their turns together.
    fn standing<'a>(&'a self, slot: &'a Slot) -> &'a Standing {
        match slot.priority.is_incremental {
            true => &slot.standing,
            false => &self.in_order,
        }
    }

    /// Whether another stream has its turn before the one at `at`.
    fn is_behind(&self, at: usize) -> bool {
        let others = self.wanting - usize::from(self.slots[at].wants_turn);
        if others == 0 {
            return false;
        }
        let own = self.rank(at);
        let mut slots = self.slots.iter().enumerate();
        slots.any(|(other, slot)| slot.wants_turn && self.rank(other) < own)
    }

    /// The wakers of those that have their turn now, in its order.
    pub(in crate::engine) fn take_turns(&mut self) -> Vec<Waker> {
        let mut free = OUT_BYTES_MAX.saturating_sub(self.out.len());
        let mut turns = Vec::new();
        for at in 0..self.slots.len() {
            if self.slots[at].exchange.writer.is_none() {
                continue;
            }
            let stream = self.slots[at].stream;
            let room = self.machine.room(stream);
            self.want_turn(at, room > 0);
            if room > 0 {
                self.slots[at].priority = self.machine.priority(stream);
                turns.push((self.rank(at), room, at));
            }
        }
        turns.sort_unstable();
        let mut wakers = Vec::new();
        for (_, room, at) in turns.into_iter().take(TURNS_MAX) {
            if free == 0 {
                break;
            }
            let slot = &self.slots[at];
            let of_turn = match slot.priority.is_incremental {
                true => TURN_BYTES - slot.standing.bytes,
                false => OUT_BYTES_MAX,
            };
            free = free.saturating_sub(room.min(of_turn));
            wakers.extend(self.slots[at].exchange.writer.take());
        }
        wakers
    }

    /// When something of the connection or of a stream is due next, in ms.
    pub(in crate::engine) fn next_deadline_ms(&self) -> Option<u64> {
        let own = [
            self.input_deadline_ms,
            self.settings_deadline_ms,
            self.idle_deadline_ms,
            self.drain_deadline_ms,
        ];
        let of_slots = self.slots.iter().flat_map(|slot| {
            let exchange = &slot.exchange;
            [
                exchange.body_deadline_ms,
                exchange.write_deadline_ms,
                exchange.total_deadline_ms,
                slot.rest.map(|rest| rest.deadline_ms),
            ]
        });
        own.into_iter().chain(of_slots).flatten().min()
    }
}
