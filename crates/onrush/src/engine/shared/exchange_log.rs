//! Tracks the exchanges of a connection for the access log, and the bytes of them that the kernel
//! has accepted.
//!
//! A request is recorded when its head has been parsed or rejected, a response when it is rendered.
//! A connection over the limit is recorded as one entry, whose request is not known. The number
//! of these per second is limited.
//! Each successful send is recorded as well. An exchange ends when the last byte of its response
//! has been accepted, or when its connection closes. The functions here are called only while there
//! is an access log.

use crate::engine::connection::Conn;
use crate::engine::shared::peers::Peers;
use crate::log::{AccessLog, LogEntries, LogEntry, LogQueue, Outcome, RequestLine};
use crate::metrics::CloseReason;
use onrush_proto::head::{Head, Parsed, Version};
use onrush_proto::limits::Limits;
use onrush_proto::traceparent;
use onrush_rt::worker::WorkerContext;
use std::cell::{Cell, OnceCell};
use std::rc::Rc;

/// The longest part of a rejected request line that is logged, in bytes.
const RAW_LINE_BYTES_MAX: usize = 2048;

/// What was received of a head that is rejected.
pub(in crate::engine) struct Received<'r> {
    pub(in crate::engine) bytes: &'r [u8],
    /// Those of the time.
    pub(in crate::engine) limits: &'r Limits,
}

/// The exchanges of one worker's connections.
pub(in crate::engine) struct ExchangeLog {
    context: WorkerContext,
    peers: Rc<Peers>,
    /// Whether exchanges are recorded.
    is_on: Cell<bool>,
    /// Finished exchanges, since there is an access log for the first time.
    queue: OnceCell<Rc<LogQueue>>,
}

impl ExchangeLog {
    pub(in crate::engine) fn new(context: &WorkerContext, peers: &Rc<Peers>) -> ExchangeLog {
        ExchangeLog {
            context: context.clone(),
            peers: peers.clone(),
            is_on: Cell::new(false),
            queue: OnceCell::new(),
        }
    }

    /// Whether exchanges are recorded.
    #[inline]
    pub(in crate::engine) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Begins or ends to record exchanges. `true` if that is new: then those in progress have to be
    /// forgotten ([`ExchangeLog::forget`]).
    pub(in crate::engine) fn set(&self, access_log: AccessLog) -> bool {
        let is_on = access_log == AccessLog::On;
        if self.is_on.replace(is_on) == is_on {
            return false;
        }
        self.queue.get_or_init(|| {
            let queue = Rc::<LogQueue>::default();
            self.context.spawn(queue.clone().run()).detach();
            queue
        });
        true
    }

    /// Forgets the exchanges of a connection: the bytes that the kernel accepts for them are
    /// counted only while exchanges are recorded.
    pub(in crate::engine) fn forget(conn: &mut Conn) {
        conn.transport.forget_unsent();
        if let Some(active) = conn.active.as_mut() {
            active.exchange.log_entries = LogEntries::default();
        }
    }

    /// Writes what has ended, when tasks do not run any more.
    pub(in crate::engine) fn write(&self) {
        if let Some(queue) = self.queue.get() {
            queue.write();
        }
    }

    /// Records the start of a request with the head `bytes`.
    #[inline(never)]
    pub(in crate::engine) fn begin(&self, conn: &mut Conn, head: &Head, bytes: &[u8]) {
        let entry = self.parsed_entry(conn, head, bytes);
        conn.active().exchange.log_entries.begin(entry);
    }

    /// An exchange whose request has the head `bytes`.
    pub(in crate::engine) fn parsed_entry(
        &self,
        conn: &Conn,
        head: &Head,
        bytes: &[u8],
    ) -> LogEntry {
        let field = |name| head.header(bytes, name).map(<[u8]>::to_vec);
        let line = RequestLine::Parsed {
            method: head.method(bytes).to_owned(),
            // The parser accepts no control characters and nothing outside ASCII in a target.
            target: String::from_utf8_lossy(head.target(bytes)).into_owned(),
            version: match head.version() {
                Version::Http10 => "HTTP/1.0",
                Version::Http11 => "HTTP/1.1",
                Version::Http2 => "HTTP/2.0",
            },
        };
        LogEntry {
            user_agent: field("user-agent"),
            referer: field("referer"),
            trace: trace(head, bytes).map(<[u8]>::to_vec),
            ..self.entry(conn, line, bytes.len())
        }
    }

    /// An exchange whose request was rejected. `received` is the known part of the head, and
    /// perhaps bytes after it.
    pub(in crate::engine) fn rejected_entry(
        &self,
        conn: &Conn,
        received: Received<'_>,
    ) -> LogEntry {
        let Received { bytes, limits } = received;
        // A valid head was rejected because of the length of its body.
        let mut head = Head::default();
        if let Ok(Parsed::Complete(head_bytes)) = head.parse(bytes, limits) {
            return self.parsed_entry(conn, &head, &bytes[..head_bytes]);
        }
        // Empty lines before a request line are skipped (RFC 9112 §2.2).
        let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let begin = bytes.iter().take_while(|&byte| is_end(byte)).count();
        let line = bytes[begin..].split(is_end).next().unwrap_or_default();
        let line = &line[..line.len().min(RAW_LINE_BYTES_MAX)];
        let line = (!line.is_empty()).then(|| line.to_vec());
        self.entry(conn, RequestLine::Raw(line), bytes.len())
    }

    fn entry(&self, conn: &Conn, line: RequestLine, received_bytes: usize) -> LogEntry {
        LogEntry {
            line,
            peer: self.peers.client(conn),
            proxy: self.peers.proxy(conn),
            client_address: None,
            tls: conn.transport.tls_version(),
            client: conn.transport.client_subject(),
            user: None,
            user_agent: None,
            referer: None,
            trace: None,
            begun_ns: self.context.clock_ns(),
            received_bytes: received_bytes as u64,
            response: None,
            outcome: Outcome::Complete,
        }
    }

    /// Records a rejection with `status`: of a head, of which `received` is the known part, or of a
    /// connection. The response is in `out`, behind the first `rendered_before` bytes.
    #[inline(never)]
    pub(in crate::engine) fn reject(
        &self,
        conn: &mut Conn,
        status: u16,
        outcome: Outcome,
        received: Received<'_>,
        rendered_before: usize,
        out: &[u8],
    ) {
        let Some(queue) = self.queue.get() else {
            return;
        };
        if out.len() == rendered_before {
            return; // A response had begun, so no other was sent.
        }
        let entry = if conn.state.is_refused() {
            let Some(suppressed) = queue.admit_over_limit(self.context.clock_ns()) else {
                return;
            };
            self.entry(conn, RequestLine::OverLimit { suppressed }, 0)
        } else {
            self.rejected_entry(conn, received)
        };
        let entry = LogEntry { outcome, ..entry };
        conn.active().exchange.log_entries.begin(entry);
        self.respond_whole(conn, status, rendered_before, out);
    }

    /// Records the complete response to the last request. It is in `out`, behind the first
    /// `rendered_before` bytes.
    pub(in crate::engine) fn respond_whole(
        &self,
        conn: &mut Conn,
        status: u16,
        rendered_before: usize,
        out: &[u8],
    ) {
        let rendered = &out[rendered_before.min(out.len())..];
        let head_bytes = rendered.windows(4).position(|four| four == b"\r\n\r\n");
        let head_bytes = head_bytes.map_or(rendered.len(), |at| at + 4);
        let bytes = Some(rendered.len());
        self.respond(conn, status, rendered_before, head_bytes, bytes);
    }

    /// Records the response to the last request. `rendered_before`: bytes that were rendered before
    /// it and not passed to the connection yet. `bytes`: the size of the whole response; `None`
    /// when more of it follows.
    #[inline(never)]
    pub(in crate::engine) fn respond(
        &self,
        conn: &mut Conn,
        status: u16,
        rendered_before: usize,
        head_bytes: usize,
        bytes: Option<usize>,
    ) {
        let unsent = conn.unsent_response_bytes() + rendered_before;
        let active = conn.active();
        active
            .exchange
            .log_entries
            .respond(status, unsent, head_bytes, bytes);
    }

    /// Records that the kernel has accepted `bytes` bytes for a connection.
    #[inline(never)]
    pub(in crate::engine) fn accepted(&self, conn: &mut Conn, bytes: usize) {
        let bytes = conn.accepted_response_bytes(bytes);
        if let Some(active) = conn.active.as_mut() {
            active.exchange.log_entries.accept(bytes);
            self.end_entries(conn);
        }
    }

    /// Records that the kernel has accepted a whole response that a task sent.
    #[inline(never)]
    pub(in crate::engine) fn sent(&self, conn: &mut Conn) {
        conn.active().exchange.log_entries.complete_last();
        self.end_entries(conn);
    }

    fn end_entries(&self, conn: &mut Conn) {
        if let Some(active) = conn.active.as_mut() {
            self.end_accepted(&mut active.exchange.log_entries);
        }
    }

    /// Ends the exchanges whose responses were accepted.
    pub(in crate::engine) fn end_accepted(&self, entries: &mut LogEntries) {
        let Some(queue) = self.queue.get() else {
            return;
        };
        let mut now_ns = None;
        while let Some(mut ended) = entries.pop_ended() {
            // Responses that were accepted together ended together.
            ended.ended_ns = *now_ns.get_or_insert_with(|| self.context.clock_ns());
            queue.push(ended);
        }
    }

    /// Ends all exchanges of a closed connection.
    pub(in crate::engine) fn closed(&self, conn: &mut Conn, reason: CloseReason) {
        if let Some(active) = conn.active.as_mut() {
            self.end_aborted(&mut active.exchange.log_entries, reason);
        }
    }

    /// Ends exchanges whose responses are not complete.
    pub(in crate::engine) fn end_aborted(&self, entries: &mut LogEntries, reason: CloseReason) {
        let Some(queue) = self.queue.get() else {
            return;
        };
        while let Some(mut ended) = entries.pop_aborted(reason.outcome()) {
            ended.ended_ns = self.context.clock_ns();
            queue.push(ended);
        }
    }
}

/// The value of a valid `traceparent` that occurs once (W3C Trace Context, §3.2).
fn trace<'b>(head: &Head, bytes: &'b [u8]) -> Option<&'b [u8]> {
    let value = head.header(bytes, "traceparent")?;
    let names = head.headers(bytes).map(|(name, _)| name);
    let lines = names.filter(|name| name.eq_ignore_ascii_case("traceparent"));
    (lines.count() == 1 && traceparent::parse(value).is_some()).then_some(value)
}
