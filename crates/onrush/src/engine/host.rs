//! What requests need of the engine: [`Host`], the interface between the two.

use super::Engine;
use crate::host::{BodyId, ConnId, Host};
use crate::params::Template;
use crate::worker::WorkerHandle;
use onrush_rt::buf::Buf;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

impl Host for Engine {
    fn worker(&self) -> &WorkerHandle {
        &self.handle
    }

    fn peer(&self, connection: ConnId) -> Option<SocketAddr> {
        self.peer_of(connection)
    }

    fn limit_hit(&self) {
        self.counters().limit_hits.add(1);
    }

    fn routed(&self, template: &Rc<Template>) {
        self.context.poll_monitor().retag(template.id);
        if self.recorder.is_some()
            && let Some(measured) = self.measuring.borrow_mut().as_mut()
        {
            measured.route = Some(template.clone());
        }
    }

    fn poll_piece(&self, body: BodyId, cx: &mut Context<'_>) -> Poll<Option<io::Result<Buf>>> {
        self.poll_body_piece(body, cx)
    }

    fn poll_fill(
        &self,
        body: BodyId,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
        low_water: u32,
    ) -> Poll<io::Result<usize>> {
        self.poll_fill_from_body(body, cx, into, low_water)
    }

    fn poll_discard(&self, body: BodyId, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.poll_discard_body(body, cx)
    }

    fn body_remaining(&self, body: BodyId) -> Option<u64> {
        self.remaining_body_bytes(body)
    }

    fn limit_body(&self, body: BodyId, bytes_max: u64) -> io::Result<()> {
        self.set_body_limit(body, bytes_max)
    }

    fn take_trailers(&self, body: BodyId) -> Option<Box<[u8]>> {
        self.take_body_trailers(body)
    }
}
