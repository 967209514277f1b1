//! The access log: one event for each exchange, under the target `onrush::access`, when it ends.
//! The subscriber decides where the event goes and in which form. Must not know about connections.

use crate::panic_guard;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Whether requests are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// No event is made.
    #[default]
    Off,
    /// One `tracing` event at level INFO for each exchange, with the target `onrush::access`.
    ///
    /// The event is made when the kernel has accepted the last byte of the response, or when the
    /// connection ends before that. Its fields are:
    ///
    /// - `method`, `target`, `version`: the request line. A request head that is rejected has the
    ///   field `request` instead, which is its first line as received.
    /// - `peer`: the address of the client; absent for a Unix socket.
    /// - `status`: of the response; absent when no response was begun.
    /// - `end`: how the exchange ended: `complete`; `rejected` (the response was sent, but the
    ///   request head broke a rule or came too slowly); `client_gone`; `timed_out`; `cut_off` (the
    ///   response could not be finished); `evicted` (memory or descriptors were short); `stopped`
    ///   (the server ended).
    /// - `received_bytes`: of the request: its head, and what was read of its body.
    /// - `sent_bytes`: of the response: what the kernel accepted.
    /// - `body_bytes`: the part of `sent_bytes` that follows the head, with the framing of chunks.
    ///   0 for HEAD.
    /// - `duration_us`: from the whole request head to the end, in microseconds.
    /// - `user_agent`, `referer`: as sent (RFC 9110 §10.1.3, §10.1.5), where present. Bytes that
    ///   are not UTF-8 are replaced by U+FFFD.
    /// - `request_bytes`, `user_agent_bytes`, `referer_bytes`: the exact bytes of the field without
    ///   `_bytes` ([`Visit::record_bytes`](tracing::field::Visit::record_bytes)), only if they are
    ///   not UTF-8.
    On,
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Complete,
    Rejected,
    ClientGone,
    TimedOut,
    CutOff,
    Evicted,
    Stopped,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Complete => "complete",
            Outcome::Rejected => "rejected",
            Outcome::ClientGone => "client_gone",
            Outcome::TimedOut => "timed_out",
            Outcome::CutOff => "cut_off",
            Outcome::Evicted => "evicted",
            Outcome::Stopped => "stopped",
        }
    }
}

/// What the client asked for.
#[derive(Debug)]
pub(crate) enum RequestLine {
    Parsed {
        method: String,
        target: String,
        version: &'static str,
    },
    /// The first line of a head that was rejected, as far as it is known.
    Raw(Option<Vec<u8>>),
}

/// A request and the response to it, until the last byte of the response has been accepted.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) line: RequestLine,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) user_agent: Option<Vec<u8>>,
    pub(crate) referer: Option<Vec<u8>>,
    /// By the worker's clock.
    pub(crate) begun_ns: u64,
    pub(crate) received_bytes: u64,
    pub(crate) response: Option<ResponseSpan>,
    /// How it ends when all of the response is accepted.
    pub(crate) outcome: Outcome,
}

/// Where a response lies among the bytes that its connection sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseSpan {
    pub(crate) status: u16,
    pub(crate) start: u64,
    pub(crate) head_end: u64,
    /// `None`: more of it is to come.
    pub(crate) end: Option<u64>,
}

/// The exchanges of one connection that have not ended, in order.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    open: VecDeque<Exchange>,
    /// Bytes that the kernel has accepted for this connection.
    accepted: u64,
}

impl Exchanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn begin(&mut self, exchange: Exchange) {
        self.open.push_back(exchange);
    }

    /// The response to the last request is rendered, with its first byte `unsent` bytes behind what
    /// the kernel has accepted. `head_bytes`: of its head. `bytes`: of all of it; `None` when more
    /// is to come.
    pub(crate) fn respond(
        &mut self,
        status: u16,
        unsent: usize,
        head_bytes: usize,
        bytes: Option<usize>,
    ) {
        let start = self.accepted + unsent as u64;
        if let Some(exchange) = self.open.back_mut() {
            exchange.response = Some(ResponseSpan {
                status,
                start,
                head_end: start + head_bytes as u64,
                end: bytes.map(|bytes| start + bytes as u64),
            });
        }
    }

    /// More of the present request's body has been read.
    #[inline]
    pub(crate) fn receive(&mut self, bytes: usize) {
        if let Some(exchange) = self.open.back_mut() {
            exchange.received_bytes += bytes as u64;
        }
    }

    /// The kernel has accepted so many bytes more.
    pub(crate) fn accept(&mut self, bytes: usize) {
        self.accepted += bytes as u64;
    }

    /// All of the last response has been accepted.
    pub(crate) fn complete_last(&mut self) {
        let last = self.open.back_mut();
        if let Some(response) = last.and_then(|exchange| exchange.response.as_mut()) {
            response.end = Some(self.accepted);
        }
    }

    /// Takes the first exchange if all of its response has been accepted.
    pub(crate) fn pop_ended(&mut self) -> Option<Ended> {
        let end = self.open.front()?.response?.end?;
        if end > self.accepted {
            return None;
        }
        let exchange = self.open.pop_front()?;
        let outcome = exchange.outcome;
        Some(exchange.end(self.accepted, outcome))
    }

    /// Takes the first exchange, whose connection has ended.
    pub(crate) fn pop_aborted(&mut self, outcome: Outcome) -> Option<Ended> {
        let exchange = self.open.pop_front()?;
        Some(exchange.end(self.accepted, outcome))
    }
}

impl Exchange {
    fn end(self, accepted: u64, outcome: Outcome) -> Ended {
        let (mut sent_bytes, mut body_bytes) = (0, 0);
        if let Some(response) = self.response {
            let until = response.end.map_or(accepted, |end| end.min(accepted));
            sent_bytes = until.saturating_sub(response.start);
            body_bytes = until.saturating_sub(response.head_end);
        }
        Ended {
            exchange: self,
            outcome,
            sent_bytes,
            body_bytes,
            ended_ns: 0,
        }
    }
}

/// An exchange that has ended and is not logged yet.
#[derive(Debug)]
pub(crate) struct Ended {
    exchange: Exchange,
    outcome: Outcome,
    sent_bytes: u64,
    body_bytes: u64,
    /// By the worker's clock.
    pub(crate) ended_ns: u64,
}

impl Ended {
    fn log(&self) {
        let (mut raw, mut method, mut target, mut version) = (None, None, None, None);
        match &self.exchange.line {
            RequestLine::Raw(line) => raw = line.as_deref(),
            RequestLine::Parsed {
                method: of,
                target: to,
                version: in_version,
            } => {
                (method, target) = (Some(of.as_str()), Some(to.as_str()));
                version = Some(*in_version);
            }
        }
        let exchange = &self.exchange;
        let (agent, referer) = (exchange.user_agent.as_deref(), exchange.referer.as_deref());
        panic_guard::log(|| {
            tracing::info!(
                target: "onrush::access",
                request = raw.map(String::from_utf8_lossy).as_deref(),
                method,
                target,
                peer = exchange.peer.map(tracing::field::display),
                status = exchange.response.map(|response| response.status),
                end = self.outcome.name(),
                received_bytes = exchange.received_bytes,
                sent_bytes = self.sent_bytes,
                body_bytes = self.body_bytes,
                duration_us = self.ended_ns.saturating_sub(exchange.begun_ns) / 1000,
                version,
                user_agent = agent.map(String::from_utf8_lossy).as_deref(),
                referer = referer.map(String::from_utf8_lossy).as_deref(),
                request_bytes = raw.filter(is_not_utf8),
                user_agent_bytes = agent.filter(is_not_utf8),
                referer_bytes = referer.filter(is_not_utf8),
            )
        });
    }
}

fn is_not_utf8(bytes: &&[u8]) -> bool {
    std::str::from_utf8(bytes).is_err()
}

/// Exchanges of one worker that have ended and are not logged yet: a subscriber is user code, which
/// must not run while the engine's cells are borrowed. A task logs them in the same iteration of
/// the event loop.
#[derive(Debug, Default)]
pub(crate) struct LogQueue {
    ended: RefCell<VecDeque<Ended>>,
    /// Wakes the task that logs, while it waits.
    writer: RefCell<Option<Waker>>,
}

impl LogQueue {
    pub(crate) fn push(&self, ended: Ended) {
        self.ended.borrow_mut().push_back(ended);
        if let Some(writer) = &*self.writer.borrow() {
            writer.wake_by_ref();
        }
    }

    /// Makes an event of each exchange.
    pub(crate) fn write(&self) {
        // Not taken one by one: what a subscriber does may end further exchanges.
        let ended = self.ended.take();
        ended.iter().for_each(Ended::log);
    }

    /// The task that logs. It ends with its worker.
    pub(crate) async fn run(self: Rc<Self>) {
        poll_fn::<(), _>(|cx| {
            self.write();
            if self.writer.borrow().is_none() {
                *self.writer.borrow_mut() = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for LogQueue {
    fn drop(&mut self) {
        self.write();
    }
}
