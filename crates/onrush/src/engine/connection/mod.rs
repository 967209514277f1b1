//! The state of each connection of a worker, in three parts:
//!
//! - [`Conn`] exists from accept to close: the socket, the protocol state machine, the deadline,
//!   and what the connection is doing. An idle connection is only this: it has no buffer, no task
//!   and no stack.
//! - [`Wire`] has the bytes of a connection that is not idle: input that was not processed, and
//!   output that the kernel has not accepted.
//! - [`Exchange`] has one request and its response: the task of the handler, the wakers and the
//!   time limits of its waits, and its measurement. HTTP/1 has at most one exchange at a time.
//!   HTTP/2 has one in each slot of [`Http2`]; that of the connection then has the time limits of
//!   its output.
//!
//! `state` has what the connection is doing, and how that may change.
//!
//! This module stores the rest; the other modules of the engine change it.
//!
//! Submodules, lowest first: `rate_meter` (transfer rates) · `unsent_limit` (what the kernel holds
//! for a client) · `promises` (windows) · `state` · `http2` (streams) · `no_tls_connection`,
//! `tls_connection` (TLS) · `transport` (plain or TLS) · `evictable` (those that may be evicted) ·
//! `table` (all connections of a worker).

pub(in crate::engine) mod evictable;
pub(in crate::engine) mod http2;
#[cfg(not(feature = "tls"))]
pub(in crate::engine) mod no_tls_connection;
pub(in crate::engine) mod promises;
mod rate_meter;
pub(in crate::engine) mod state;
pub(in crate::engine) mod table;
#[cfg(feature = "tls")]
pub(in crate::engine) mod tls_connection;
pub(in crate::engine) mod transport;
pub(in crate::engine) mod unsent_limit;

use crate::connections::RequestId;
use crate::engine::connection::evictable::Listing;
use crate::engine::connection::http2::Http2;
use crate::engine::connection::rate_meter::RateMeter;
use crate::engine::connection::state::ConnState;
use crate::engine::connection::transport::Transport;
use crate::log::LogEntries;
use crate::metrics::Measured;
#[cfg(not(feature = "tls"))]
pub(in crate::engine) use no_tls_connection as tls_connection;
use onrush_proto::connection::Connection as Machine;
use onrush_proto::reject::Reject;
use onrush_rt::buf::{Block, Buf};
use onrush_rt::driver::StreamId;
use onrush_rt::executor::TaskHandle;
use onrush_rt::timer::TimerId;
use std::collections::VecDeque;
use std::io;
use std::task::Waker;

/// The largest number of requests that one connection starts in one event-loop iteration.
pub(crate) const BURST_MAX: u8 = 64;

/// One connection.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) stream: StreamId,
    pub(in crate::engine) transport: Transport,
    pub(crate) machine: Machine,
    /// When the present wait ends, in ms; `u64::MAX` for never. It is compared when the timer
    /// fires, so moving it costs one store.
    pub(crate) deadline_ms: u64,
    /// When the timer fires, in ms, and the timer.
    pub(crate) timer_ms: u64,
    pub(crate) timer: Option<TimerId>,
    /// What the connection is doing.
    pub(crate) state: ConnState,
    /// Counts responses. A body that outlives its request is recognized by this number.
    pub(crate) response_count: u32,
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
    pub(crate) wire: Wire,
    pub(crate) exchange: Exchange,
    /// What a connection that speaks HTTP/2 has besides, until it ends.
    pub(in crate::engine) http2: Option<Box<Http2>>,
    /// The place in a list of `evictable`, while the connection is in one.
    pub(in crate::engine) listing: Option<Listing>,
}

/// The bytes of a connection that is not idle, and what is measured about them.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// Received and not processed: a partial head, body bytes, pipelined requests.
    pub(crate) input: VecDeque<Buf>,
    pub(crate) input_bytes: usize,
    /// The head or idle time limit was extended once, because unread input was present.
    pub(crate) extended: bool,
    /// Rendered responses. The kernel has not accepted the bytes from `out_sent` on.
    pub(crate) out: Vec<u8>,
    pub(crate) out_sent: usize,
    /// The last send accepted fewer bytes than it was given: the socket buffer is full.
    pub(crate) socket_full: bool,
    /// The value of `SO_RCVLOWAT` that was set on the socket; 0 when none was set.
    pub(crate) low_water: u32,
    /// The last direct receive emptied the socket. The driver reports further input.
    pub(crate) emptied: bool,
}

/// What a task sends, which decides what becomes of it when the client has ended its side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Responding {
    /// The handler has not returned.
    #[default]
    NotYet,
    /// Content that is there, in memory or in a file. It is sent to its end.
    Known,
    /// A stream. Its framing shows where it was broken off.
    Stream,
    /// A stream whose end is the end of the connection.
    UntilClose,
}

/// One request and its response.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// The task of the handler, or the one that sends its response. Dropping it cancels it.
    pub(crate) task: Option<TaskHandle>,
    /// What that task sends.
    pub(crate) responding: Responding,
    /// The waker of the task that waits for body bytes.
    pub(crate) reader: Option<Waker>,
    /// The waker of the task that waits until the socket accepts more bytes. A task may be in both
    /// waits at once.
    pub(crate) writer: Option<Waker>,
    /// When the wait for body bytes ends, in ms.
    pub(crate) body_deadline_ms: Option<u64>,
    /// The rate at which the client sends body bytes.
    pub(in crate::engine) body_rate: RateMeter,
    /// When the wait for the client to take bytes ends, in ms.
    pub(crate) write_deadline_ms: Option<u64>,
    /// The rate at which the client takes response bytes.
    pub(in crate::engine) write_rate: RateMeter,
    /// The write time limit has expired; the next send decides whether the client is too slow.
    pub(crate) last_try: bool,
    /// The client sends too slowly to wait for many bytes at a time.
    pub(crate) slow_sender: bool,
    /// The body time limit has expired; a final receive decides whether bytes arrived unnoticed.
    pub(crate) final_poll: bool,
    /// Reading the body failed with this error.
    pub(crate) broken_body: Option<io::ErrorKind>,
    /// The response to a body that broke a rule, unless the handler makes an error response of its
    /// own.
    pub(crate) reject: Option<Reject>,
    /// The body of the request with this number was dropped, and the client waits for a 100.
    pub(crate) dropped_body: Option<u32>,
    /// Rendered bytes that the task holds while it waits for the client.
    pub(crate) rendered_bytes: usize,
    /// When the total time limit of the request expires, in ms.
    pub(crate) total_deadline_ms: Option<u64>,
    /// The measurement of the request, when its response was not ready at once.
    pub(crate) measured: Option<Measured>,
    /// Its entry in the access log, behind those of earlier responses that the kernel has not
    /// accepted.
    pub(crate) log_entries: LogEntries,
}

impl Active {
    /// Memory of rendered responses that the client has not taken, in bytes.
    pub(in crate::engine) fn unsent_bytes(&self) -> usize {
        let kept = match self.wire.unsent().is_empty() {
            true => 0,
            false => self.wire.out.capacity(),
        };
        let waiting = self.http2.as_ref().map_or(0, |http2| http2.waiting_bytes());
        kept + self.exchange.rendered_bytes + waiting
    }

    /// Whether the kernel has not accepted all of [`Wire::out`].
    pub(in crate::engine) fn has_unsent(&self) -> bool {
        !self.wire.unsent().is_empty()
    }

    pub(in crate::engine) fn is_idle(&self) -> bool {
        self.wire.input.is_empty()
            && self.wire.unsent().is_empty()
            && self.exchange.task.is_none()
            && self.exchange.log_entries.is_empty()
            && self.http2.is_none()
            && self.listing.is_none()
    }
}

impl Wire {
    pub(crate) fn push_input(&mut self, data: Buf) {
        self.input_bytes += data.len();
        self.input.push_back(data);
    }

    /// [`Wire::push_input`], but copies small pieces together. A client that sends single bytes
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

    /// Adds bytes behind those that wait. What was sent is freed when it is the larger part, so a
    /// client that goes on reading slowly holds no more than twice what waits for it.
    pub(in crate::engine) fn queue_output(&mut self, bytes: &[u8]) {
        if self.out_sent > self.out.len() / 2 {
            self.out.drain(..self.out_sent);
            self.out_sent = 0;
        }
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.out[self.out_sent..]
    }
}

impl Exchange {
    /// Records that reading the body failed, and the response to send for it. Returns the error for
    /// the reader.
    pub(crate) fn fail_body(&mut self, kind: io::ErrorKind, reject: Reject) -> io::Error {
        (self.broken_body, self.reject) = (Some(kind), Some(reject));
        io::Error::new(kind, reject)
    }

    /// Records that the body broke a rule, as [`Exchange::fail_body`].
    pub(in crate::engine) fn reject_body(&mut self, reject: Reject) -> io::Error {
        let kind = match reject.status {
            413 => io::ErrorKind::FileTooLarge,
            _ => io::ErrorKind::InvalidData,
        };
        self.fail_body(kind, reject)
    }

    /// The error of each further read after [`Exchange::fail_body`].
    pub(crate) fn body_error(&self) -> Option<io::Error> {
        let kind = self.broken_body?;
        Some(match self.reject {
            Some(reject) => io::Error::new(kind, reject),
            None => kind.into(), // The response has been made.
        })
    }
}

impl Conn {
    /// Whether the client has half-closed, nothing of the present request is left to read for its
    /// handler, and what it would be sent does not exist yet: a client that does not half-close has
    /// gone. Another protocol may end each direction alone, and learns from its sends whether the
    /// client is there.
    pub(in crate::engine) fn client_has_gone(&self) -> bool {
        if !(self.state.has_ended() && self.state.is_busy()) || self.machine.is_upgraded() {
            return false;
        }
        let exchange = self.active.as_deref().map(|active| &active.exchange);
        if exchange.is_some_and(|exchange| exchange.responding == Responding::Known) {
            return false;
        }
        let present = RequestId::counted(self.response_count);
        let is_dropped = |exchange: &Exchange| exchange.dropped_body == Some(present);
        match self.machine.may_upgrade() {
            // What is queued is of the other protocol.
            true => self.input_bytes() == 0,
            false => self.machine.body_ended() || exchange.is_some_and(is_dropped),
        }
    }

    /// A connection before its first request.
    pub(crate) fn new(stream: StreamId) -> Conn {
        Conn {
            stream,
            transport: Transport::Plain,
            machine: Machine::new(),
            deadline_ms: u64::MAX,
            timer_ms: u64::MAX,
            timer: None,
            state: ConnState::new(),
            response_count: 0,
            burst: 0,
            burst_iteration: 0,
            response_count_before: 0,
            active: None,
        }
    }

    /// The state of a connection that is not idle, which this creates if there is none.
    pub(crate) fn active(&mut self) -> &mut Active {
        self.active.get_or_insert_default()
    }

    /// What a connection that speaks HTTP/2 has besides.
    #[inline]
    pub(in crate::engine) fn http2(&mut self) -> Option<&mut Http2> {
        self.active.as_mut()?.http2.as_deref_mut()
    }

    /// The number of queued bytes of requests.
    #[inline]
    pub(crate) fn input_bytes(&self) -> usize {
        (self.active.as_ref()).map_or(0, |active| active.wire.input_bytes)
    }

    /// The number of received bytes that are not processed, with those of an incomplete record.
    pub(crate) fn unprocessed_bytes(&self) -> usize {
        self.input_bytes() + self.transport.received_len()
    }

    /// Counts body bytes that the client has sent, for its minimum rate. With TLS, a record counts
    /// while it arrives (`open/records`), because a slow client takes long for one.
    pub(in crate::engine) fn count_body_bytes(&mut self, bytes: usize) {
        if !self.transport.is_tls() {
            self.active().exchange.body_rate.record_bytes(bytes);
        }
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
        self.state.is_plainly_idle() && self.transport.received_len() == 0
    }

    /// Frees the state that an idle connection does not need.
    pub(crate) fn release_active(&mut self) {
        if self.active.as_ref().is_some_and(|active| active.is_idle()) {
            self.active = None;
        }
    }

    /// The bytes of responses that the kernel has not accepted, without what TLS adds to them.
    pub(in crate::engine) fn unsent_response_bytes(&self) -> usize {
        match &self.transport {
            Transport::Plain => {
                (self.active.as_ref()).map_or(0, |active| active.wire.unsent().len())
            }
            Transport::Tls(tls) => tls.unsent_response_bytes(),
        }
    }

    /// Given that the kernel has accepted `bytes` bytes, returns how many of them are bytes of
    /// responses.
    pub(in crate::engine) fn accepted_response_bytes(&mut self, bytes: usize) -> usize {
        match &mut self.transport {
            Transport::Plain => bytes,
            Transport::Tls(tls) => tls.accepted_response_bytes(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Wire;

    /// A client that always has something to read, and always is behind.
    #[test]
    fn what_was_sent_is_freed_while_more_is_queued() {
        let mut wire = Wire::default();
        wire.queue_output(&[0; 50_000]);
        for step in 1..=1_000u32 {
            wire.out_sent += 1_000;
            wire.queue_output(&[step as u8; 1_000]);
            assert_eq!(wire.unsent().len(), 50_000);
            assert!(wire.out.len() <= 2 * 50_000 + 1_000, "{}", wire.out.len());
            assert!(wire.unsent().ends_with(&[step as u8; 1_000]));
        }
    }
}
