//! How the connections of a worker end while the server drains: after the requests that had arrived
//! when the drain began.

use crate::connections::ConnId;
use crate::drain::DrainSignal;
use crate::engine::connection::Conn;
use crate::engine::connection::state::Target;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Bytes of input per connection that the engine serves after a drain has begun, in addition to the
/// input that is known to have arrived before. The driver may hold bytes that it has not reported,
/// and a request may be on its way.
const LATE_BYTES: u64 = 64 * 1024;

/// The largest number of requests in `bytes` bytes of input. The shortest one consists of `GET /
/// HTTP/1.0` and two line ends.
fn requests_within(bytes: u64) -> u64 {
    bytes / 18 + 1
}

/// The drain of one worker.
#[derive(Debug, Default)]
pub(in crate::engine) struct Shutdown {
    signal: Rc<DrainSignal>,
    /// The number of requests of each connection that are still served: the most that the input may
    /// contain that had arrived when the drain began, and [`LATE_BYTES`].
    requests_left: RefCell<HashMap<ConnId, u64>>,
}

impl Shutdown {
    /// Begins to drain, and tells handlers.
    pub(in crate::engine) fn begin(&self) {
        self.signal.begin();
    }

    #[inline]
    pub(in crate::engine) fn has_begun(&self) -> bool {
        self.signal.has_begun()
    }

    /// What tells handlers that the server drains.
    pub(in crate::engine) fn signal(&self) -> &Rc<DrainSignal> {
        &self.signal
    }

    /// Whether a connection is to end with its next response: the server drains, and does not pass
    /// it on.
    #[inline]
    pub(in crate::engine) fn ends(&self, conn: &Conn) -> bool {
        self.has_begun() && conn.state.leaving() != Some(Target::Successor)
    }

    /// Limits the number of requests of a connection that are still served. `bytes`: input that is
    /// known to have arrived.
    pub(in crate::engine) fn limit_requests(&self, id: ConnId, bytes: u64) {
        let requests = requests_within(bytes + LATE_BYTES);
        self.requests_left.borrow_mut().insert(id, requests);
    }

    /// Counts a request of a connection; `false` if it is the last one that is served.
    pub(in crate::engine) fn count_request(&self, id: ConnId) -> bool {
        let mut left = self.requests_left.borrow_mut();
        let left = left
            .entry(id)
            .or_insert_with(|| requests_within(LATE_BYTES));
        *left = left.saturating_sub(1);
        *left > 0
    }
}
