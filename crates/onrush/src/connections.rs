//! The interface through which a request accesses its worker, its client's address, and its body.
//! The engine implements [`Connections`].

use crate::drain::Draining;
use crate::params::Template;
use crate::worker::WorkerHandle;
use onrush_rt::buf::Buf;
use onrush_rt::net::{Address, Peer};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll};

/// Identifies a connection of one worker. The id is stale after the connection has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// The id as a driver token and a timer payload. The top bit stays clear, because the runtime
    /// uses it.
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

/// Identifies a request on one worker. The id is stale after its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    pub(crate) connection: ConnId,
    /// For HTTP/2, the number of its stream, which has 31 bits (RFC 9113 §4.1). For HTTP/1, that of
    /// [`RequestId::counted`]. So no id of one version is ever one of the other, whatever happens
    /// to the connection.
    pub(crate) number: u32,
}

impl RequestId {
    /// The request of HTTP/2 on this stream.
    #[inline]
    pub(crate) fn of_stream(connection: ConnId, stream: u32) -> RequestId {
        RequestId {
            connection,
            number: stream,
        }
    }

    /// The number of the request of HTTP/1 that has this many responses before it.
    #[inline]
    pub(crate) fn counted(response_count: u32) -> u32 {
        response_count | 1 << 31
    }
}

/// Serves requests. The errors are those of [`RequestBody`](crate::RequestBody).
pub(crate) trait Connections {
    fn worker(&self) -> &WorkerHandle;
    /// Ready when the worker begins to drain.
    fn draining(&self) -> Draining;
    /// The address of the client: as its proxy has named it, otherwise that of the socket's peer.
    fn peer(&self, connection: ConnId) -> Option<SocketAddr>;
    fn socket_peer(&self, connection: ConnId) -> Peer;
    fn local_address(&self, connection: ConnId) -> Option<Address>;
    #[cfg(feature = "tls")]
    fn tls(&self, connection: ConnId) -> Option<std::sync::Arc<crate::tls::TlsInfo>>;
    /// Counts a request that was refused because of a [`limited`](crate::limited()) handler.
    fn limit_hit(&self);
    /// Records the route that a router has chosen for the request that is being started.
    fn routed(&self, template: &Rc<Template>);
    /// Records who sent a request, for the access log.
    fn set_user(&self, request: RequestId, user: &str);
    /// Records the address of the client of a request, for the access log.
    fn set_client_address(&self, request: RequestId, address: IpAddr);
    /// The next piece of a body; `None` at the end.
    fn poll_piece(&self, request: RequestId, cx: &mut Context<'_>)
    -> Poll<Option<io::Result<Buf>>>;
    /// Appends body bytes within the spare capacity of `into`; 0 at the end. A wake-up for fewer
    /// than `low_water` bytes is not useful, unless the client is slow or the body ends.
    fn poll_fill(
        &self,
        request: RequestId,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        low_water: u32,
    ) -> Poll<io::Result<usize>>;
    /// Discards body bytes; returns their number, 0 at the end.
    fn poll_discard(&self, request: RequestId, cx: &mut Context<'_>) -> Poll<io::Result<usize>>;
    fn body_remaining(&self, request: RequestId) -> Option<u64>;
    fn limit_body(&self, request: RequestId, bytes_max: u64) -> io::Result<()>;
    fn take_trailers(&self, request: RequestId) -> Option<Box<[u8]>>;
    /// Permits the response to a request to be 101. Its "body" is then what the client sends
    /// afterwards. `false` if the request has a body, or its version has no upgrades. `true` counts
    /// a reader, which [`Connections::body_dropped`] ends.
    fn begin_upgrade(&self, request: RequestId) -> bool;
    /// The reader of the body has dropped it.
    fn body_dropped(&self, request: RequestId);
    /// Sends an interim response with rendered fields, if earlier output has left. Whether it has.
    fn send_interim(&self, request: RequestId, status: u16, fields: &[u8]) -> bool;
}
