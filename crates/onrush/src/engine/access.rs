//! The access log's view of a connection: which exchanges it has begun, and which of their bytes
//! the kernel has accepted.
//!
//! Every request is noted when its head has been parsed or rejected, every response when it is
//! rendered, and every successful send. An exchange ends when the last byte of its response has
//! been accepted, or with its connection; nothing else ends one. Each function here is called only
//! where a log is configured. Must not know how bytes are sent.

use super::Engine;
use super::connection::Conn;
use crate::host::ConnId;
use crate::log::{Exchange, Outcome, RequestLine};
use crate::metrics::CloseReason;
use onrush_proto::head::{Head, Version};
use onrush_proto::reject::Reject;

/// A rejected request line is logged up to this length, in bytes.
const RAW_LINE_BYTES_MAX: usize = 2048;

impl CloseReason {
    /// How an exchange ends that a connection did not outlive.
    fn outcome(self) -> Outcome {
        match self {
            CloseReason::Answered | CloseReason::Client | CloseReason::Broken => {
                Outcome::ClientGone
            }
            CloseReason::TimedOut | CloseReason::Idle => Outcome::TimedOut,
            CloseReason::Cut => Outcome::CutOff,
            CloseReason::Exhausted | CloseReason::Displaced | CloseReason::Refused => {
                Outcome::Evicted
            }
            CloseReason::Drained | CloseReason::Stopped => Outcome::Stopped,
        }
    }
}

impl Engine {
    /// A request has begun, whose head is `bytes`.
    #[inline(never)]
    pub(super) fn log_request(&self, id: ConnId, head: &Head, bytes: &[u8]) {
        let field = |name| head.header(bytes, name).map(<[u8]>::to_vec);
        let line = RequestLine::Parsed {
            method: head.method(bytes).to_owned(),
            // The parser accepts no control characters and nothing outside ASCII in a target.
            target: String::from_utf8_lossy(head.target(bytes)).into_owned(),
            version: match head.version() {
                Version::Http10 => "HTTP/1.0",
                Version::Http11 => "HTTP/1.1",
            },
        };
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = conns.get(id) else { return };
        let exchange = Exchange {
            user_agent: field("user-agent"),
            referer: field("referer"),
            ..self.exchange(conn, line, bytes.len())
        };
        conn.active().exchanges.begin(exchange);
    }

    fn exchange(&self, conn: &Conn, line: RequestLine, received_bytes: usize) -> Exchange {
        Exchange {
            line,
            peer: self.peer_of_conn(conn),
            user_agent: None,
            referer: None,
            begun_ns: self.context.clock_ns(),
            received_bytes: received_bytes as u64,
            response: None,
            outcome: Outcome::Complete,
        }
    }

    /// A head was rejected, of which `received` is what is known. The response to it is rendered
    /// behind `rendered_before` bytes of `out`.
    #[inline(never)]
    pub(super) fn log_reject(
        &self,
        conn: &mut Conn,
        reject: Reject,
        outcome: Outcome,
        received: &[u8],
        rendered_before: usize,
        out: &[u8],
    ) {
        if out.len() == rendered_before {
            return; // A response had begun, and no other could be sent.
        }
        // Empty lines before a request line are skipped (RFC 9112 §2.2).
        let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let begin = received.iter().take_while(|&byte| is_end(byte)).count();
        let line = received[begin..].split(is_end).next().unwrap_or_default();
        let line = &line[..line.len().min(RAW_LINE_BYTES_MAX)];
        let line = (!line.is_empty()).then(|| line.to_vec());
        let exchange = Exchange {
            outcome,
            ..self.exchange(conn, RequestLine::Raw(line), received.len())
        };
        conn.active().exchanges.begin(exchange);
        self.log_short_response(conn, reject.status, rendered_before, out);
    }

    /// The response to the last request is rendered, all of it, behind `rendered_before` bytes of
    /// `out`.
    pub(super) fn log_short_response(
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
        self.log_response(conn, status, rendered_before, head_bytes, bytes);
    }

    /// The response to the last request is rendered behind `rendered_before` bytes that were not
    /// passed on yet. `bytes`: of all of it; `None` when more is to come.
    #[inline(never)]
    pub(super) fn log_response(
        &self,
        conn: &mut Conn,
        status: u16,
        rendered_before: usize,
        head_bytes: usize,
        bytes: Option<usize>,
    ) {
        let active = conn.active();
        let unsent = active.unsent().len() + rendered_before;
        active.exchanges.respond(status, unsent, head_bytes, bytes);
    }

    /// The kernel has accepted so many bytes for a connection.
    #[inline(never)]
    pub(super) fn log_accepted(&self, conn: &mut Conn, bytes: usize) {
        if let Some(active) = conn.active.as_mut() {
            active.exchanges.accept(bytes);
            self.end_exchanges(conn);
        }
    }

    /// All of a response that was sent by a task has been accepted.
    #[inline(never)]
    pub(super) fn log_sent(&self, conn: &mut Conn) {
        conn.active().exchanges.complete_last();
        self.end_exchanges(conn);
    }

    fn end_exchanges(&self, conn: &mut Conn) {
        let (Some(log), Some(active)) = (&self.log, conn.active.as_mut()) else {
            return;
        };
        let mut now_ns = None;
        while let Some(mut ended) = active.exchanges.pop_ended() {
            // Responses that were accepted together ended together.
            ended.ended_ns = *now_ns.get_or_insert_with(|| self.context.clock_ns());
            log.push(ended);
        }
    }

    /// A connection has ended, and with it all of its exchanges.
    pub(super) fn log_closed(&self, conn: &mut Conn, ending: CloseReason) {
        let (Some(log), Some(active)) = (&self.log, conn.active.as_mut()) else {
            return;
        };
        while let Some(mut ended) = active.exchanges.pop_aborted(ending.outcome()) {
            ended.ended_ns = self.context.clock_ns();
            log.push(ended);
        }
    }
}
