//! The idle connections of a worker, in the order of idleness.
//!
//! The order costs nothing per request. One pass over the connections finds it when it is needed,
//! and it is used until its last entry. A connection that becomes idle after the pass has been idle
//! for a shorter time than each entry.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::state::Expects;
use crate::engine::connection::table::Conns;
use onrush_proto::limits::Limits;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// After a pass that found too few idle connections, the next pass waits one millisecond for each
/// this many connections, because a pass examines all of them.
const CONNECTIONS_PER_PAUSE_MS: usize = 2048;

/// The idle connections of one worker, in order of idleness.
#[derive(Debug, Default)]
pub(in crate::engine) struct IdleOrder {
    /// The result of the last pass, longest idle first.
    pub(in crate::engine) longest_first: RefCell<VecDeque<(ConnId, Idleness)>>,
    /// When the next pass may take place, in ms of the worker's clock.
    pub(in crate::engine) next_pass_ms: Cell<u64>,
    /// When an idle TLS connection may be searched for, in ms of the worker's clock.
    #[cfg(feature = "tls")]
    pub(in crate::engine) next_session_pass_ms: Cell<u64>,
}

impl IdleOrder {
    /// Sorts the idle connections by idleness. Returns `false` when there are none, or when the
    /// next pass is not due: passes are rate limited when few connections are idle.
    pub(in crate::engine) fn find(&self, conns: &mut Conns, limits: &Limits, now_ms: u64) -> bool {
        if now_ms < self.next_pass_ms.get() {
            return false;
        }
        let ids = conns.ids();
        let idleness = |&id| Some((id, conns.get(id)?.idleness(limits)?));
        let mut idle: Vec<(ConnId, Idleness)> = ids.iter().filter_map(idleness).collect();
        idle.sort_unstable_by_key(|&(_, idleness)| idleness);
        if idle.len() < ids.len() / 16 {
            let pause_ms = (ids.len() / CONNECTIONS_PER_PAUSE_MS) as u64;
            self.next_pass_ms.set(now_ms + pause_ms);
        }
        let any = !idle.is_empty();
        *self.longest_first.borrow_mut() = idle.into();
        any
    }
}

/// The pause after a pass over `connections` connections that found too few to close.
pub(in crate::engine) fn pass_pause_ms(connections: usize) -> u64 {
    1 + (connections / CONNECTIONS_PER_PAUSE_MS) as u64
}

/// A key that sorts connections by idleness, longest idle first: when the connection became idle,
/// in ms of the worker's clock, and its number of responses by then. Without an idle time limit the
/// former is unknown; then connections that never sent a request come first.
pub(in crate::engine) type Idleness = (u64, u32);

impl Conn {
    /// `None` when the connection is not idle. An idle connection is between two requests or before
    /// the first one, with nothing received and nothing unsent. The start of the idle time follows
    /// from the deadline.
    pub(in crate::engine) fn idleness(&self, limits: &Limits) -> Option<Idleness> {
        if self.state.has_streams() {
            let http2 = self.active.as_ref()?.http2.as_ref()?;
            let deadline_ms = http2.idle_deadline_ms.filter(|_| http2.is_idle())?;
            let began_ms = deadline_ms.saturating_sub(u64::from(limits.idle_timeout_ms));
            return Some((began_ms, self.response_count));
        }
        let is_between = self.state.is_ready() || self.state.is_in_proxy_header();
        let is_idle = is_between
            && !self.state.has_ended()
            && self.state.leaving().is_none()
            && self.active.as_ref().is_none_or(|active| active.is_idle());
        let limit_ms = match self.state.expects() {
            Expects::Head => limits.head_timeout_ms, // The first head: no input was received.
            Expects::Request => limits.idle_timeout_ms,
            // The client has sent nothing, or a part of a handshake and waits.
            Expects::Handshake if self.transport.received_len() == 0 => limits.handshake_timeout_ms,
            Expects::Handshake | Expects::RestOfBody | Expects::Nothing => return None,
        };
        let began_ms = self.deadline_ms.saturating_sub(u64::from(limit_ms));
        is_idle.then_some((began_ms, self.response_count))
    }
}
