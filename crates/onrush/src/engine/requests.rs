//! What requests need of the engine: [`Connections`], the interface between the two.

use crate::connections::{BodyId, ConnId, Connections};
use crate::drain::Draining;
use crate::engine::connection::transport::BodyTarget;
use crate::engine::lifecycle::Engine;
use crate::engine::shared::bodies::{DISCARD_BYTES, DISCARD_LOW_WATER, NextPiece};
use crate::engine::shared::bodies::{next_piece, present, reject_body, request_gone};
use crate::engine::shared::deadlines::Wait;
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
        self.shutdown.signal().draining()
    }

    fn peer(&self, connection: ConnId) -> Option<SocketAddr> {
        let mut conns = self.conns.borrow_mut();
        self.peers
            .client_of_request(connection, conns.get(connection)?)
    }

    fn socket_peer(&self, connection: ConnId) -> Peer {
        self.socket_peer_of(connection)
    }

    fn local_address(&self, connection: ConnId) -> Option<Address> {
        let stream = self.conns.borrow_mut().get(connection)?.stream;
        net::local_address(self.context.driver().descriptor(stream)?)
    }

    #[cfg(feature = "tls")]
    fn tls(&self, connection: ConnId) -> Option<std::sync::Arc<crate::tls::TlsInfo>> {
        self.tls_info(connection)
    }

    fn limit_hit(&self) {
        self.counters().limit_hits.add(1);
    }

    fn routed(&self, template: &Rc<Template>) {
        self.context.poll_monitor().retag(template.id);
        self.io.measurements.set_route(template);
    }

    fn set_user(&self, connection: ConnId, user: &str) {
        if self.io.log.is_on()
            && let Some(conn) = self.conns.borrow_mut().get(connection)
            && let Some(active) = conn.active.as_mut()
        {
            active.wire.log_entries.set_user(user);
        }
    }

    fn set_client_address(&self, connection: ConnId, address: IpAddr) {
        if self.io.log.is_on()
            && let Some(conn) = self.conns.borrow_mut().get(connection)
            && let Some(active) = conn.active.as_mut()
        {
            active.wire.log_entries.set_client_address(address);
        }
    }

    fn poll_piece(&self, body: BodyId, cx: &mut Context<'_>) -> Poll<Option<io::Result<Buf>>> {
        ready!(coop::poll_operation(cx)); // Also at the end: some callers poll again.
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = present(&mut conns, body) else {
            return Poll::Ready(Some(Err(request_gone())));
        };
        match next_piece(conn, &self.limits(), usize::MAX) {
            NextPiece::Piece(piece) => {
                coop::spend(piece.len());
                self.deadlines()
                    .set_wait_timeout(body.connection, conn, Wait::Body, 0);
                Poll::Ready(Some(Ok(piece)))
            }
            NextPiece::End => Poll::Ready(None),
            NextPiece::Failed(error) => Poll::Ready(Some(Err(error))),
            NextPiece::Empty => {
                drop(conns);
                match self.bodies().wait_for_body(&self.conns, body, cx, true) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Some(Err(error))),
                }
            }
        }
    }

    fn poll_fill(
        &self,
        body: BodyId,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        low_water: u32,
    ) -> Poll<io::Result<usize>> {
        ready!(coop::poll_operation(cx)); // Also at the end: some callers poll again.
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = present(&mut conns, body) else {
            return Poll::Ready(Err(request_gone()));
        };
        let mut filled = 0;
        loop {
            let room = into.capacity() - into.len();
            if room == 0 {
                break;
            }
            match next_piece(conn, &self.limits(), room) {
                NextPiece::Piece(piece) => {
                    into.extend_from_slice(&piece);
                    filled += piece.len();
                }
                NextPiece::Empty | NextPiece::End if filled > 0 => break,
                NextPiece::End => return Poll::Ready(Ok(0)),
                NextPiece::Failed(error) => return Poll::Ready(Err(error)),
                NextPiece::Empty => {
                    let id = body.connection;
                    let target = BodyTarget::Append(into);
                    let attempt = self.bodies().try_direct(id, conn, low_water, target);
                    drop(conns);
                    return self.bodies().finish_attempt(&self.conns, body, cx, attempt);
                }
            }
        }
        coop::spend(filled);
        self.deadlines()
            .set_wait_timeout(body.connection, conn, Wait::Body, 0);
        Poll::Ready(Ok(filled))
    }

    fn poll_discard(&self, body: BodyId, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        ready!(coop::poll_operation(cx)); // Also at the end: some callers poll again.
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = present(&mut conns, body) else {
            return Poll::Ready(Err(request_gone()));
        };
        match next_piece(conn, &self.limits(), usize::MAX) {
            NextPiece::Piece(piece) => {
                coop::spend(piece.len());
                self.deadlines()
                    .set_wait_timeout(body.connection, conn, Wait::Body, 0);
                Poll::Ready(Ok(piece.len()))
            }
            NextPiece::End => Poll::Ready(Ok(0)),
            NextPiece::Failed(error) => Poll::Ready(Err(error)),
            NextPiece::Empty => {
                let mut discard_buffer = self.discard_buffer.borrow_mut();
                if discard_buffer.is_empty() {
                    *discard_buffer = vec![0; DISCARD_BYTES];
                }
                let (id, low_water) = (body.connection, DISCARD_LOW_WATER);
                let target = BodyTarget::Discard(&mut discard_buffer);
                let attempt = self.bodies().try_direct(id, conn, low_water, target);
                drop((discard_buffer, conns));
                self.bodies().finish_attempt(&self.conns, body, cx, attempt)
            }
        }
    }

    fn body_remaining(&self, body: BodyId) -> Option<u64> {
        let mut conns = self.conns.borrow_mut();
        let conn = present(&mut conns, body)?;
        conn.machine.body_remaining()
    }

    fn limit_body(&self, body: BodyId, bytes_max: u64) -> io::Result<()> {
        let mut conns = self.conns.borrow_mut();
        let conn = present(&mut conns, body).ok_or_else(request_gone)?;
        conn.machine
            .set_body_limit(bytes_max)
            .map_err(|reject| reject_body(conn, reject))
    }

    fn take_trailers(&self, body: BodyId) -> Option<Box<[u8]>> {
        let mut conns = self.conns.borrow_mut();
        present(&mut conns, body)?.machine.take_trailers()
    }

    fn begin_upgrade(&self, connection: ConnId) -> Option<BodyId> {
        let mut conns = self.conns.borrow_mut();
        let conn = conns.get(connection)?;
        conn.machine.begin_upgrade().then_some(BodyId {
            connection,
            response_count: conn.response_count,
        })
    }

    fn body_dropped(&self, body: BodyId) {
        let mut conns = self.conns.borrow_mut();
        if let Some(conn) = present(&mut conns, body)
            && (conn.machine.continue_due() || !self.settings.half_close)
        {
            conn.active().exchange.dropped_body = Some(body.response_count);
        }
    }

    fn send_interim(&self, body: BodyId, status: u16, fields: &[u8]) -> bool {
        let mut conns = self.conns.borrow_mut();
        let Some(conn) = present(&mut conns, body) else {
            return false;
        };
        // A client that does not read must not fill the memory.
        if !conn.active().wire.unsent().is_empty() {
            return false;
        }
        let mut out = Vec::new();
        conn.machine.send_informational(status, fields, &mut out);
        // A connection that fails here fails again when the body is read.
        !out.is_empty() && self.io.send_or_queue(conn, &out).is_ok()
    }
}
