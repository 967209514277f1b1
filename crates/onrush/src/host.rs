//! What a request needs of whoever serves it: its worker, its peer, and its body.
//!
//! Must not know how connections are kept or driven; the engine above implements [`Host`].

use crate::params::Template;
use crate::worker::WorkerHandle;
use onrush_rt::buf::Buf;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Names a connection of one worker; stale after it was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// As a driver token and a timer payload: the top bit stays clear for the runtime's own.
    pub(crate) fn token(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_token(token: u64) -> ConnId {
        ConnId {
            index: token as u32,
            generation: (token >> 32) as u32,
        }
    }
}

/// Names the body of one request: the connection, and how many answers it had given by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BodyId {
    pub(crate) connection: ConnId,
    pub(crate) response_count: u32,
}

/// Serves requests; errors are those of [`RequestBody`](crate::RequestBody).
pub(crate) trait Host {
    fn worker(&self) -> &WorkerHandle;
    fn peer(&self, connection: ConnId) -> Option<SocketAddr>;
    /// A request was refused because its handler is at work on as many as it may.
    fn limit_hit(&self);
    /// A router has chosen the route of the request that is being started.
    fn routed(&self, template: &Rc<Template>);
    /// The next piece of a body; `None` at its end.
    fn poll_piece(&self, body: BodyId, cx: &mut Context<'_>) -> Poll<Option<io::Result<Buf>>>;
    /// Appends what comes next within the spare capacity; 0 at the end. Fewer than `low_water`
    /// bytes are not worth being woken for, unless the body comes slowly or ends.
    fn poll_fill(
        &self,
        body: BodyId,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        low_water: u32,
    ) -> Poll<io::Result<usize>>;
    /// Drops what comes next; gives how many bytes that were, 0 at the end.
    fn poll_discard(&self, body: BodyId, cx: &mut Context<'_>) -> Poll<io::Result<usize>>;
    fn body_remaining(&self, body: BodyId) -> Option<u64>;
    fn limit_body(&self, body: BodyId, bytes_max: u64) -> io::Result<()>;
    fn take_trailers(&self, body: BodyId) -> Option<Box<[u8]>>;
}
