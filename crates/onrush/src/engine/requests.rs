//! What requests need of the engine: [`Connections`], the interface between the two.

use crate::connections::{ConnId, Connections, RequestId};
use crate::drain::Draining;
use crate::engine::connection::transport::BodyTarget;
use crate::engine::lifecycle::Engine;
use crate::engine::open::bodies::{NextPiece, request_gone};
use crate::log::LogEntries;
use crate::params::Template;
use crate::worker::WorkerHandle;
use onrush_rt::buf::Buf;
use onrush_rt::coop;
use onrush_rt::net::{self, Address, Peer};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

impl Connections for Engine {
    fn worker(&self) -> &WorkerHandle {
        &self.handle
    }

    fn draining(&self) -> Draining {
        self.conns.shutdown.signal().draining()
    }

    fn peer(&self, connection: ConnId) -> Option<SocketAddr> {
        let conn = self.conns.open(connection)?;
        self.conns.peers.client_of_request(connection, &conn)
    }

    fn socket_peer(&self, connection: ConnId) -> Peer {
        self.conns.socket_peer(connection)
    }

    fn local_address(&self, connection: ConnId) -> Option<Address> {
        let stream = self.conns.open(connection)?.stream;
        net::local_address(self.context.driver().descriptor(stream)?)
    }

    #[cfg(feature = "tls")]
    fn tls(&self, connection: ConnId) -> Option<std::sync::Arc<crate::tls::TlsInfo>> {
        self.conns.open(connection)?.tls_info()
    }

    fn limit_hit(&self) {
        self.counters().limit_hits.add(1);
    }

    fn routed(&self, template: &Rc<Template>) {
        self.context.poll_monitor().retag(template.id);
        self.conns.io.measurements.set_route(template);
    }

    fn set_user(&self, request: RequestId, user: &str) {
        self.with_log_entries(request, |entries| entries.set_user(user));
    }

    fn set_client_address(&self, request: RequestId, address: IpAddr) {
        self.with_log_entries(request, |entries| entries.set_client_address(address));
    }

    fn poll_piece(
        &self,
        request: RequestId,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Buf>>> {
        ready!(coop::poll_operation(cx)); // Also at the end: some callers poll again.
        match self.conns.next_piece(request, usize::MAX) {
            NextPiece::Piece(piece) => {
                coop::spend(piece.len());
                Poll::Ready(Some(Ok(piece)))
            }
            NextPiece::End => Poll::Ready(None),
            NextPiece::Failed(error) => Poll::Ready(Some(Err(error))),
            NextPiece::Empty => match self.conns.wait_for_body(request, cx, true) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Some(Err(error))),
            },
        }
    }

    fn poll_fill(
        &self,
        request: RequestId,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        low_water: u32,
    ) -> Poll<io::Result<usize>> {
        ready!(coop::poll_operation(cx)); // Also at the end: some callers poll again.
        let mut filled = 0;
        loop {
            let room = into.capacity() - into.len();
            if room == 0 {
                break;
            }
            match self.conns.next_piece(request, room) {
                NextPiece::Piece(piece) => {
                    into.extend_from_slice(&piece);
                    filled += piece.len();
                }
                NextPiece::Empty | NextPiece::End if filled > 0 => break,
                NextPiece::End => return Poll::Ready(Ok(0)),
                NextPiece::Failed(error) => return Poll::Ready(Err(error)),
                NextPiece::Empty => {
                    let target = BodyTarget::Append(into);
                    let attempt = self.conns.try_direct(request, low_water, target);
                    return self.conns.finish_attempt(request, cx, attempt);
                }
            }
        }
        coop::spend(filled);
        Poll::Ready(Ok(filled))
    }

    fn poll_discard(&self, request: RequestId, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(coop::poll_operation(cx)); // Also at the end: some callers poll again.
        match self.conns.next_piece(request, usize::MAX) {
            NextPiece::Piece(piece) => {
                coop::spend(piece.len());
                Poll::Ready(Ok(piece.len()))
            }
            NextPiece::End => Poll::Ready(Ok(0)),
            NextPiece::Failed(error) => Poll::Ready(Err(error)),
            NextPiece::Empty => {
                let attempt = self.conns.try_discard(request);
                self.conns.finish_attempt(request, cx, attempt)
            }
        }
    }

    fn body_remaining(&self, request: RequestId) -> Option<u64> {
        match self.conns.present(request) {
            Some(conn) => conn.machine.body_remaining(),
            None => self.conns.stream(request)?.body_remaining(),
        }
    }

    fn limit_body(&self, request: RequestId, bytes_max: u64) -> io::Result<()> {
        let Some(mut conn) = self.conns.present(request) else {
            let stream = self.conns.stream(request);
            return stream.ok_or_else(request_gone)?.limit_body(bytes_max);
        };
        let limited = conn.machine.set_body_limit(bytes_max);
        limited.map_err(|reject| conn.active().exchange.reject_body(reject))
    }

    fn take_trailers(&self, request: RequestId) -> Option<Box<[u8]>> {
        match self.conns.present(request) {
            Some(mut conn) => conn.machine.take_trailers(),
            None => self.conns.stream(request)?.take_trailers(),
        }
    }

    fn begin_upgrade(&self, request: RequestId) -> bool {
        if let Some(mut conn) = self.conns.present(request) {
            return conn.machine.begin_upgrade();
        }
        self.begin_stream_upgrade(request)
    }

    fn body_dropped(&self, request: RequestId) {
        if let Some(mut conn) = self.conns.present(request) {
            if conn.machine.continue_due() || !self.settings.half_close {
                conn.active().exchange.dropped_body = Some(request.number);
            }
        } else {
            self.drop_stream_reader(request);
        }
    }

    fn send_interim(&self, request: RequestId, status: u16, fields: &[u8]) -> bool {
        let Some(mut conn) = self.conns.present(request) else {
            let conn = self.conns.open(request.connection);
            return conn.is_some_and(|mut conn| conn.send_interim(request.number, status, fields));
        };
        // A client that does not read must not fill the memory.
        if !conn.active().wire.unsent().is_empty() {
            return false;
        }
        let mut out = Vec::new();
        conn.machine.send_informational(status, fields, &mut out);
        // A connection that fails here fails again when the body is read.
        !out.is_empty() && self.conns.io.send_or_queue(&mut conn, &out).is_ok()
    }
}

impl Engine {
    /// Calls `change` with the entries of a request in the access log, if there is one.
    fn with_log_entries(&self, request: RequestId, change: impl FnOnce(&mut LogEntries)) {
        if !self.conns.io.log.is_on() {
            return;
        }
        if let Some(mut conn) = self.conns.present(request) {
            if let Some(active) = conn.active.as_mut() {
                change(&mut active.exchange.log_entries);
            }
        } else if let Some(mut stream) = self.conns.stream(request) {
            change(&mut stream.slot().exchange.log_entries);
        }
    }
}
