//! What a connection is doing, and every transition between these states. Other modules read a
//! [`ConnState`]; only its methods change it.
//!
//! ```text
//!            ┌──────────────────────────────┐
//!            ▼                              │
//!          Ready ──► Busy ──► Flushing ─────┤
//!            │ ▲      │ ▲        │          │
//!            │ │      └─┘        └─► Lingering ─► closed
//!            ▼ │
//!          Leaving ─► on another worker, or in another process
//! ```
//!
//! With the PROXY protocol, a connection begins in `ProxyHeader`, which `Ready` follows. One that
//! begins with HTTP/2 goes from `Ready` to `Streams`, and from there to its end. A connection may
//! linger from every other phase, and be closed in every phase. Legal states between
//! two events, by [`Phase`]; `out` and `task` are in [`Wire`](crate::engine::connection::Wire) and
//! [`Exchange`](crate::engine::connection::Exchange):
//!
//! | phase | `task` | `out` | `expects` | `leaving` | `receiving` | deadline |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | `ProxyHeader` | none | empty | `Head` | none | on | head |
//! | `Ready` | none | empty; records of TLS itself | any but `Nothing` | none | off while much input is queued | handshake, head, idle, rest of a body |
//! | `Busy` | a handler or a sender | any | `Request` | any | any | body, write, total |
//! | `Flushing` | none | not empty | any but `Head` | any | any | write |
//! | `Streams` | none; in the slots of [`Http2`](crate::engine::connection::http2::Http2) | any | `Request` | none | off while much output is queued | the first of all waits |
//! | `Lingering` | none | empty | any | any | on | linger |
//! | `Leaving` | none | as in `Ready` | as in `Ready` | set | stopping | as in `Ready` |
//!
//! - The client may have half-closed (EOF) in `Busy` and `Flushing`, and in `Ready` while its
//!   handshake waits for its turn. Otherwise the connection is closed instead; `Leaving` becomes
//!   `Ready` first.
//! - A handler waits for the body of its request in `Busy` only.
//! - A connection is in a list of `evictable` in `ProxyHeader` and `Ready` with a partial
//!   head, and in `Busy` and `Flushing` while the client does not take responses or has sent a
//!   part of a record.

use crate::connections::ConnId;
use onrush_proto::connection::After;
use onrush_rt::diagnose;
use std::num::NonZeroU16;

/// What a connection is doing, which decides how events are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before or inside the header of the PROXY protocol.
    ProxyHeader,
    /// Between requests, or inside a handshake or a request head.
    Ready,
    /// A handler is pending, or a task sends its response.
    Busy,
    /// The connection speaks HTTP/2, with any number of requests in progress.
    Streams,
    /// Responses wait until the client takes them. Then this follows.
    Flushing(AfterFlush),
    /// The sending side is shut down (`SHUT_WR`). Input is discarded until the client closes or the
    /// time limit expires.
    Lingering,
    /// Between requests. The connection moves to another worker, or to another process, when the
    /// driver has stopped receiving.
    Leaving,
}

impl Phase {
    /// The name in diagnostic events.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::ProxyHeader => "proxy_header",
            Phase::Ready => "ready",
            Phase::Busy => "busy",
            Phase::Streams => "streams",
            Phase::Flushing(_) => "flushing",
            Phase::Lingering => "lingering",
            Phase::Leaving => "leaving",
        }
    }

    /// Whether a request is in progress: its response was not sent completely.
    pub(in crate::engine) fn has_request(self) -> bool {
        matches!(self, Phase::Busy | Phase::Flushing(_))
    }

    fn may_become(self, next: Phase) -> bool {
        match (self, next) {
            (Phase::Lingering, next) => next == Phase::Lingering,
            (from, Phase::ProxyHeader) => from == Phase::Ready,
            (Phase::ProxyHeader, next) => next == Phase::Ready,
            (from, Phase::Leaving | Phase::Streams) => from == Phase::Ready,
            (Phase::Streams, next) => matches!(next, Phase::Flushing(_) | Phase::Lingering),
            (from, Phase::Busy) => matches!(from, Phase::Ready | Phase::Busy),
            _ => true,
        }
    }
}

/// What follows when all queued output has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFlush {
    Continue,
    Close,
    Linger,
}

impl AfterFlush {
    /// What follows a response. `surplus`: the client has sent more after the request that it
    /// declared to be its last, and may send even more.
    pub(crate) fn following(after: After, surplus: bool) -> AfterFlush {
        match after {
            After::KeepAlive | After::DrainThenKeepAlive => AfterFlush::Continue,
            After::Close if !surplus => AfterFlush::Close,
            After::Close | After::LingeringClose => AfterFlush::Linger,
        }
    }
}

/// What a connection expects to receive while no request is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expects {
    /// The rest of a TLS handshake, which has its own time limit.
    Handshake,
    /// A request. The idle time limit applies.
    Request,
    /// The first head of the connection, or the rest of a head. The head time limit applies. Before
    /// it, the header of the PROXY protocol, in its phase.
    Head,
    /// The rest of a body that its request did not read. It is discarded.
    RestOfBody,
    /// The connection is over the limit: it only receives a 503.
    Nothing,
}

/// Whether the driver receives into its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    On,
    /// The driver was asked to stop, and may still deliver data.
    Stopping,
    /// The driver has stopped, so body bytes may be received directly.
    Off,
}

/// Where a connection moves to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Target {
    /// The worker with this index.
    Worker(usize),
    /// Another process.
    Successor,
}

/// A [`Target`]: the index of a worker plus one, or [`PackedTarget::SUCCESSOR`]. An `Option` of it
/// takes no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedTarget(NonZeroU16);

impl PackedTarget {
    const SUCCESSOR: PackedTarget = PackedTarget(NonZeroU16::MAX);

    /// `None` if the index is too large, which no server reaches.
    fn new(target: Target) -> Option<PackedTarget> {
        let index = match target {
            Target::Worker(index) => index,
            Target::Successor => return Some(PackedTarget::SUCCESSOR),
        };
        let plus_one = u16::try_from(index).ok()?.checked_add(1)?;
        let packed = NonZeroU16::new(plus_one).map(PackedTarget);
        packed.filter(|packed| *packed != PackedTarget::SUCCESSOR)
    }

    fn get(self) -> Target {
        match self {
            PackedTarget::SUCCESSOR => Target::Successor,
            PackedTarget(plus_one) => Target::Worker(usize::from(plus_one.get()) - 1),
        }
    }
}

/// What a connection is doing.
#[derive(Debug)]
pub(crate) struct ConnState {
    phase: Phase,
    expects: Expects,
    receiving: Receiving,
    /// The client has half-closed (EOF).
    has_ended: bool,
    /// Where the connection moves to.
    leaving: Option<PackedTarget>,
}

impl ConnState {
    /// The state of a connection before its first request.
    pub(in crate::engine) fn new() -> ConnState {
        ConnState {
            phase: Phase::Ready,
            expects: Expects::Request,
            receiving: Receiving::On,
            has_ended: false,
            leaving: None,
        }
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.phase == Phase::Busy
    }

    /// Whether the connection speaks HTTP/2.
    #[inline]
    pub(in crate::engine) fn has_streams(&self) -> bool {
        self.phase == Phase::Streams
    }

    #[inline]
    pub(crate) fn expects(&self) -> Expects {
        self.expects
    }

    /// Whether the connection is in its TLS handshake.
    pub(in crate::engine) fn is_handshaking(&self) -> bool {
        self.expects == Expects::Handshake
    }

    /// Whether the connection has not said yet who its client is.
    #[inline]
    pub(in crate::engine) fn is_in_proxy_header(&self) -> bool {
        self.phase == Phase::ProxyHeader
    }

    /// Whether the connection is over the limit.
    pub(in crate::engine) fn is_refused(&self) -> bool {
        self.expects == Expects::Nothing
    }

    /// Whether the client has half-closed (EOF).
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Where the connection moves to, now or after its present request.
    #[inline]
    pub(in crate::engine) fn leaving(&self) -> Option<Target> {
        self.leaving.map(PackedTarget::get)
    }

    #[inline]
    pub(in crate::engine) fn receiving(&self) -> Receiving {
        self.receiving
    }

    /// Whether the driver was asked to stop receiving. It is resumed before the next receive.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.receiving != Receiving::On
    }

    /// Whether the connection only waits for its next request.
    #[inline]
    pub(super) fn is_plainly_idle(&self) -> bool {
        self.receiving == Receiving::On && self.expects == Expects::Request && !self.has_ended
    }

    /// The connection speaks HTTP/2 from now on.
    pub(in crate::engine) fn begin_streams(&mut self, id: ConnId) {
        self.enter(id, Phase::Streams);
        self.expects = Expects::Request;
        self.leaving = None;
    }

    /// A task continues the connection.
    pub(in crate::engine) fn begin_task(&mut self, id: ConnId) {
        self.enter(id, Phase::Busy);
    }

    /// Output is queued, and `then` follows it. A partial head behind it has its time limit when
    /// the output is sent.
    pub(in crate::engine) fn begin_flush(&mut self, id: ConnId, then: AfterFlush) {
        self.enter(id, Phase::Flushing(then));
        self.restart_head();
    }

    /// All responses were sent, or the connection does not move any more.
    pub(in crate::engine) fn become_ready(&mut self, id: ConnId) {
        self.enter(id, Phase::Ready);
    }

    /// The sending side is shut down.
    pub(in crate::engine) fn begin_linger(&mut self, id: ConnId) {
        self.enter(id, Phase::Lingering);
    }

    /// A new connection begins with a header of the PROXY protocol.
    pub(in crate::engine) fn expect_proxy_header(&mut self, id: ConnId) {
        self.enter(id, Phase::ProxyHeader);
        self.expects = Expects::Head;
    }

    /// A handshake begins.
    #[cfg(feature = "tls")]
    pub(in crate::engine) fn expect_handshake(&mut self) {
        self.expects = Expects::Handshake;
    }

    /// The next request may begin. Ends a handshake, a head, or the rest of a body.
    pub(in crate::engine) fn expect_request(&mut self) {
        self.expects = Expects::Request;
    }

    /// The first head of the connection is due, or a head has begun to arrive.
    pub(in crate::engine) fn expect_head(&mut self) {
        self.expects = Expects::Head;
    }

    /// Gives the next head the full time limit.
    pub(in crate::engine) fn restart_head(&mut self) {
        if self.expects == Expects::Head {
            self.expects = Expects::Request;
        }
    }

    /// A response was made before the body of its request has arrived.
    pub(in crate::engine) fn expect_rest_of_body(&mut self) {
        self.expects = Expects::RestOfBody;
    }

    /// The connection is over the limit.
    pub(in crate::engine) fn refuse(&mut self) {
        self.expects = Expects::Nothing;
    }

    /// The client has half-closed (EOF).
    pub(in crate::engine) fn end(&mut self) {
        self.has_ended = true;
    }

    /// The driver receives into its buffers.
    pub(in crate::engine) fn resume_receiving(&mut self) {
        self.receiving = Receiving::On;
    }

    /// The driver was asked to stop receiving, and `has_stopped` already
    /// ([`Driver::pause`](onrush_rt::driver::Driver::pause)).
    pub(in crate::engine) fn pause_receiving(&mut self, has_stopped: bool) {
        self.receiving = match has_stopped {
            true => Receiving::Off,
            false => Receiving::Stopping,
        };
    }

    /// The driver has stopped receiving.
    pub(in crate::engine) fn receiving_stopped(&mut self) {
        if self.receiving == Receiving::Stopping {
            self.receiving = Receiving::Off;
        }
    }

    /// The connection moves when it is between two requests.
    pub(in crate::engine) fn plan_move(&mut self, to: Target) {
        self.leaving = PackedTarget::new(to);
    }

    /// The connection stays on its worker.
    pub(in crate::engine) fn cancel_move(&mut self) {
        self.leaving = None;
    }

    /// The connection moves now, as soon as the driver has stopped receiving.
    pub(in crate::engine) fn begin_move(&mut self, id: ConnId) {
        self.enter(id, Phase::Leaving);
        self.receiving = Receiving::Stopping;
    }

    /// The connection has moved here, and expects what it expected before.
    pub(in crate::engine) fn end_move(&mut self, expects: Expects) {
        self.expects = expects;
    }

    fn enter(&mut self, id: ConnId, next: Phase) {
        let before = std::mem::replace(&mut self.phase, next);
        debug_assert!(before.may_become(next), "{before:?} became {next:?}");
        if before.name() != next.name() {
            diagnose!(TRACE, connection = id.token(), from = before.name(), to = next.name();
                "connection state changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_packed() {
        let most = usize::from(u16::MAX) - 2;
        for target in [Target::Worker(0), Target::Worker(most), Target::Successor] {
            assert_eq!(
                PackedTarget::new(target).map(PackedTarget::get),
                Some(target)
            );
        }
        for index in [most + 1, most + 2, usize::MAX] {
            assert_eq!(PackedTarget::new(Target::Worker(index)), None, "{index}");
        }
        assert_eq!(size_of::<Option<PackedTarget>>(), 2);
    }
}
