//! The access log: one event for each exchange when it ends, with the target `onrush::access`. The
//! subscriber decides where the event is written, and in which format.

use crate::panic_guard;
use onrush_proto::traceparent;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Whether requests are logged.
///
/// # Examples
/// ```no_run
/// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
/// use onrush::{AccessLog, Server};
///
/// // The program installs a `tracing` subscriber before.
/// Server::bind("127.0.0.1:8080").access_log(AccessLog::On).serve(hello)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessLog {
    /// No events.
    #[default]
    Off,
    /// One `tracing` event at level INFO for each exchange, with the target `onrush::access`.
    ///
    /// The event is emitted when the kernel has accepted the last byte of the response, or when the
    /// connection ends before that. Its fields are:
    ///
    /// - `method`, `target`, `version`: the request line. A rejected request head has the field
    ///   `request` instead: its first line as received. A connection over the limit has neither. A
    ///   request that was rejected because of the length of its body has a valid head.
    /// - `peer`: the address of the client; absent for a Unix socket. Without a port if
    ///   [`Request::set_client_address`](crate::Request::set_client_address) has set it.
    /// - `proxy`: the peer of the connection, if it is not the client but has named it.
    /// - `tls`: the version of TLS, `TLSv1.3` or `TLSv1.2`; absent without TLS.
    /// - `client`: the subject of the client's verified certificate, if it has presented one.
    /// - `user`: the name that [`Request::set_user`](crate::Request::set_user) has set, if any.
    /// - `status`: the status of the response; absent when no response was started.
    /// - `end`: how the exchange ended: `complete`; `rejected` (the response was sent, but the
    ///   request head broke a rule, arrived too slowly or announced a body over the limit, or the
    ///   connection was over the limit);
    ///   `client_gone`; `timed_out`; `cut_off` (the response could not be finished); `evicted`
    ///   (memory or descriptors were short); `stopped` (the server ended).
    /// - `received_bytes`: the size of the request head and of the body bytes that were read.
    /// - `sent_bytes`: the bytes of the response that the kernel accepted.
    /// - `body_bytes`: the part of `sent_bytes` that follows the head, with the framing of chunks.
    ///   0 for HEAD.
    /// - `duration_us`: the time from the complete request head, or from the rejection, to the end,
    ///   in microseconds.
    /// - `user_agent`, `referer`: the fields as sent (RFC 9110 §10.1.3, §10.1.5), if present. Bytes
    ///   that are not UTF-8 are replaced by U+FFFD.
    /// - `request_bytes`, `user_agent_bytes`, `referer_bytes`: the exact bytes of the field without
    ///   `_bytes` ([`Visit::record_bytes`](tracing::field::Visit::record_bytes)), only if they are
    ///   not UTF-8.
    /// - `trace_id`, `parent_id`: the trace that the request belongs to, and its id there, from a
    ///   valid `traceparent` (W3C Trace Context).
    /// - `suppressed`: on the entry of a connection over the limit, the number of such connections
    ///   without an entry since the last one of this worker, if any. A worker writes at most ten of
    ///   these entries per second.
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

/// The request line.
#[derive(Debug)]
pub(crate) enum RequestLine {
    Parsed {
        method: String,
        target: String,
        version: &'static str,
    },
    /// The first line of a rejected head, as far as it is known.
    Raw(Option<Vec<u8>>),
    /// A connection over the limit. No request was read.
    OverLimit {
        /// The number of such connections before it that have no entry.
        suppressed: u64,
    },
}

/// A request and its response, until the last byte of the response has been accepted.
#[derive(Debug)]
pub(crate) struct LogEntry {
    pub(crate) line: RequestLine,
    /// The address of the client, as far as the connection says.
    pub(crate) peer: Option<SocketAddr>,
    /// The peer of the socket, if it has named the client by the PROXY protocol.
    pub(crate) proxy: Option<SocketAddr>,
    /// The address of the client, if the request says.
    pub(crate) client_address: Option<IpAddr>,
    /// The version of TLS.
    pub(crate) tls: Option<&'static str>,
    /// The subject of the client's certificate.
    pub(crate) client: Option<String>,
    /// The user that has logged in.
    pub(crate) user: Option<Box<str>>,
    pub(crate) user_agent: Option<Vec<u8>>,
    pub(crate) referer: Option<Vec<u8>>,
    /// A valid `traceparent`.
    pub(crate) trace: Option<Vec<u8>>,
    /// By the worker's clock.
    pub(crate) begun_ns: u64,
    pub(crate) received_bytes: u64,
    pub(crate) response: Option<ResponseSpan>,
    /// The outcome, if the kernel accepts all of the response.
    pub(crate) outcome: Outcome,
}

/// The position of a response within the bytes that its connection sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseSpan {
    pub(crate) status: u16,
    pub(crate) start: u64,
    pub(crate) head_end: u64,
    /// `None` while more of the response follows.
    pub(crate) end: Option<u64>,
}

/// The exchanges of one connection that have not ended, in order.
#[derive(Debug, Default)]
pub(crate) struct LogEntries {
    open: VecDeque<LogEntry>,
    /// Bytes that the kernel has accepted for this connection.
    accepted: u64,
}

impl LogEntries {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn begin(&mut self, entry: LogEntry) {
        self.open.push_back(entry);
    }

    /// Records the response to the last request. Its first byte is `unsent` bytes behind those that
    /// the kernel has accepted. `head_bytes`: the size of its head. `bytes`: the size of all of it;
    /// `None` when more follows.
    pub(crate) fn respond(
        &mut self,
        status: u16,
        unsent: usize,
        head_bytes: usize,
        bytes: Option<usize>,
    ) {
        let start = self.accepted + unsent as u64;
        if let Some(entry) = self.open.back_mut() {
            entry.response = Some(ResponseSpan {
                status,
                start,
                head_end: start + head_bytes as u64,
                end: bytes.map(|bytes| start + bytes as u64),
            });
        }
    }

    /// Records who sent the present request.
    pub(crate) fn set_user(&mut self, user: &str) {
        if let Some(exchange) = self.open.back_mut() {
            exchange.user = Some(user.into());
        }
    }

    /// Records the address of the client that the present request names.
    pub(crate) fn set_client_address(&mut self, address: IpAddr) {
        if let Some(exchange) = self.open.back_mut() {
            exchange.client_address = Some(address);
        }
    }

    /// Counts body bytes of the present request that were read.
    #[inline]
    pub(crate) fn receive(&mut self, bytes: usize) {
        if let Some(entry) = self.open.back_mut() {
            entry.received_bytes += bytes as u64;
        }
    }

    /// Counts bytes that the kernel has accepted.
    pub(crate) fn accept(&mut self, bytes: usize) {
        self.accepted += bytes as u64;
    }

    /// Records that the kernel has accepted all of the last response.
    pub(crate) fn complete_last(&mut self) {
        let last = self.open.back_mut();
        if let Some(response) = last.and_then(|entry| entry.response.as_mut()) {
            response.end = Some(self.accepted);
        }
    }

    /// Removes the first exchange if the kernel has accepted all of its response.
    pub(crate) fn pop_ended(&mut self) -> Option<Ended> {
        let end = self.open.front()?.response?.end?;
        if end > self.accepted {
            return None;
        }
        let entry = self.open.pop_front()?;
        let outcome = entry.outcome;
        Some(entry.end(self.accepted, outcome))
    }

    /// Removes the first exchange of a closed connection.
    pub(crate) fn pop_aborted(&mut self, outcome: Outcome) -> Option<Ended> {
        let entry = self.open.pop_front()?;
        Some(entry.end(self.accepted, outcome))
    }
}

impl LogEntry {
    fn end(self, accepted: u64, outcome: Outcome) -> Ended {
        let (mut sent_bytes, mut body_bytes) = (0, 0);
        if let Some(response) = self.response {
            let until = response.end.map_or(accepted, |end| end.min(accepted));
            sent_bytes = until.saturating_sub(response.start);
            body_bytes = until.saturating_sub(response.head_end);
        }
        Ended {
            entry: self,
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
    entry: LogEntry,
    outcome: Outcome,
    sent_bytes: u64,
    body_bytes: u64,
    /// By the worker's clock.
    pub(crate) ended_ns: u64,
}

impl Ended {
    fn log(&self) {
        let (mut raw, mut method, mut target, mut version) = (None, None, None, None);
        let mut suppressed = None;
        match &self.entry.line {
            RequestLine::Raw(line) => raw = line.as_deref(),
            RequestLine::OverLimit { suppressed: count } => {
                suppressed = (*count > 0).then_some(*count);
            }
            RequestLine::Parsed {
                method: of,
                target: to,
                version: in_version,
            } => {
                (method, target) = (Some(of.as_str()), Some(to.as_str()));
                version = Some(*in_version);
            }
        }
        let entry = &self.entry;
        let (peer, proxy): (Option<&dyn fmt::Display>, _) = match &entry.client_address {
            Some(address) => (Some(address), entry.proxy.or(entry.peer)),
            None => (
                entry.peer.as_ref().map(|peer| peer as &dyn fmt::Display),
                entry.proxy,
            ),
        };
        let (agent, referer) = (entry.user_agent.as_deref(), entry.referer.as_deref());
        let trace = entry.trace.as_deref().and_then(traceparent::parse);
        panic_guard::log(|| {
            tracing::info!(
                target: "onrush::access",
                request = raw.map(String::from_utf8_lossy).as_deref(),
                method,
                target,
                peer = peer.map(tracing::field::display),
                proxy = proxy.map(tracing::field::display),
                tls = entry.tls,
                client = entry.client.as_deref(),
                user = entry.user.as_deref(),
                status = entry.response.map(|response| response.status),
                end = self.outcome.name(),
                received_bytes = entry.received_bytes,
                sent_bytes = self.sent_bytes,
                body_bytes = self.body_bytes,
                duration_us = self.ended_ns.saturating_sub(entry.begun_ns) / 1000,
                version,
                user_agent = agent.map(String::from_utf8_lossy).as_deref(),
                referer = referer.map(String::from_utf8_lossy).as_deref(),
                request_bytes = raw.filter(is_not_utf8),
                user_agent_bytes = agent.filter(is_not_utf8),
                referer_bytes = referer.filter(is_not_utf8),
                trace_id = trace.map(|trace| trace.trace_id),
                parent_id = trace.map(|trace| trace.parent_id),
                suppressed,
            )
        });
    }
}

fn is_not_utf8(bytes: &&[u8]) -> bool {
    std::str::from_utf8(bytes).is_err()
}

/// The maximum number of entries of one kind that a worker writes per second. Clients cause a
/// connection over the limit, or a failed handshake, at less cost than a request, so many of them
/// would fill the log.
const ENTRIES_PER_S: u32 = 10;

/// Limits the entries of one kind that clients can cause at little cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EntryWindow {
    /// The start of the second in which entries are counted, by the worker's clock.
    start_ns: Option<u64>,
    entries: u32,
    /// Events since the last entry that have none.
    suppressed: u64,
}

impl EntryWindow {
    /// Whether an event gets an entry. `Some(n)`: yes, and `n` events before it got none.
    pub(crate) fn admit(&mut self, now_ns: u64) -> Option<u64> {
        let is_over = |start_ns| now_ns.saturating_sub(start_ns) >= 1_000_000_000;
        if self.start_ns.is_none_or(is_over) {
            self.start_ns = Some(now_ns);
            self.entries = 0;
        }
        if self.entries == ENTRIES_PER_S {
            self.suppressed += 1;
            return None;
        }
        self.entries += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// The ended exchanges of one worker that are not logged yet. A subscriber is user code, which must
/// not run while cells of the engine are borrowed. A task logs them in the same event-loop
/// iteration.
#[derive(Debug, Default)]
pub(crate) struct LogQueue {
    ended: RefCell<VecDeque<Ended>>,
    /// The waker of the logging task.
    writer: RefCell<Option<Waker>>,
    over_limit: Cell<EntryWindow>,
}

impl LogQueue {
    /// Whether a connection over the limit gets an entry now, by the worker's clock. `Some(n)`:
    /// yes, and `n` such connections since the last entry got none.
    pub(crate) fn admit_over_limit(&self, now_ns: u64) -> Option<u64> {
        let mut window = self.over_limit.get();
        let admitted = window.admit(now_ns);
        self.over_limit.set(window);
        admitted
    }

    pub(crate) fn push(&self, ended: Ended) {
        self.ended.borrow_mut().push_back(ended);
        if let Some(writer) = &*self.writer.borrow() {
            writer.wake_by_ref();
        }
    }

    /// Emits an event for each entry.
    pub(crate) fn write(&self) {
        // Takes all at once, because a subscriber may cause further exchanges to end.
        let ended = self.ended.take();
        ended.iter().for_each(Ended::log);
    }

    /// The logging task. It ends with its worker.
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
