//! The input that the loop of a connection parses next.

use crate::connections::ConnId;
use crate::engine::connection::state::Expects;
use crate::engine::lifecycle::Engine;
use crate::log::Outcome;
use onrush_proto::reject::Reject;
use onrush_rt::buf::Buf;
use std::rc::Rc;

/// The result of [`Engine::next_input`].
pub(super) enum NextInput {
    Data(Buf),
    /// Nothing was received that is not processed.
    Empty,
    /// The connection has ended.
    Gone,
}

impl From<Option<Buf>> for NextInput {
    fn from(data: Option<Buf>) -> NextInput {
        data.map_or(NextInput::Empty, NextInput::Data)
    }
}

impl Engine {
    /// Returns the input to parse next. Inside a head, `data` is queued and joined to the head.
    /// Otherwise nothing is queued when `data` arrives, so `data` is returned as it is.
    #[inline(never)]
    pub(super) fn next_input(self: &Rc<Self>, id: ConnId, data: Option<Buf>) -> NextInput {
        let data = data.filter(|data| !data.is_empty());
        let Some(mut conn) = self.conns.open(id) else {
            return NextInput::Gone;
        };
        if conn.active.is_none() {
            return data.into();
        }
        if conn.state.expects() == Expects::Head {
            if let Some(data) = data {
                conn.active().wire.push_input(data);
            }
            if let Ok(joined) = conn.join_head() {
                return joined.into();
            }
            drop(conn);
            return self.join_head_after_reclaim(id);
        }
        match data {
            Some(data) => NextInput::Data(data),
            None => conn.active().wire.pop_input().into(),
        }
    }

    /// Calls `join_head` again after older heads have been evicted. The eviction may
    /// close this connection, too.
    #[cold]
    fn join_head_after_reclaim(self: &Rc<Self>, id: ConnId) -> NextInput {
        self.reclaim_memory();
        let joined = {
            let conn = self.conns.open(id).filter(|conn| conn.state.is_ready());
            let Some(mut conn) = conn else {
                return NextInput::Gone;
            };
            conn.join_head()
        };
        let Ok(joined) = joined else {
            let reject = Reject::new(503, "server is low on memory");
            self.reject_request(id, reject, Outcome::Evicted);
            return NextInput::Gone;
        };
        joined.into()
    }
}
