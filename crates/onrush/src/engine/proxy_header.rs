//! The PROXY protocol: connections of trusted proxies begin with a header that names the client.
//! TLS and requests follow it.
//!
//! The peer is known before a connection is placed, so one that is not trusted costs no more than
//! its acceptance. The header of a trusted peer is at most
//! [`BYTES_MAX`](onrush_proto::proxy_header::BYTES_MAX) long. An incomplete one is queued and
//! evicted like a partial head, and has the time limit of a head.

use crate::connections::ConnId;
use crate::engine::lifecycle::{Engine, count};
use crate::engine::open::OpenConn;
use crate::metrics::{CloseReason, ProxyRefusal};
use onrush_proto::proxy_header;
use onrush_rt::buf::Buf;
use onrush_rt::diagnose;
use onrush_rt::net::Peer;
use std::rc::Rc;

/// What follows input in the phase of the header.
enum Next {
    Wait,
    /// The header is complete; this follows it.
    Continue(Buf),
    Refuse(ProxyRefusal, &'static str),
}

impl Engine {
    /// Counts a new connection of a peer that is not trusted. The caller closes it.
    #[cold]
    pub(super) fn refuse_untrusted(&self, peer: Peer) {
        count(&self.counters.placed);
        if peer == Peer::Gone {
            return self.counters.done.count(CloseReason::Broken);
        }
        self.counters.done.count(CloseReason::NotProxied);
        self.report_refusal(peer, ProxyRefusal::Untrusted, "the peer is not trusted");
    }

    /// Makes a new connection of a trusted peer begin with the header. `tls`: a handshake follows.
    pub(super) fn expect_proxy_header(&self, conn: &mut OpenConn<'_>, tls: bool) {
        if tls {
            conn.start_tls();
        }
        conn.expect_proxy_header();
        conn.set_first_timeout();
    }

    /// Handles `data` of a connection whose header is not complete.
    #[inline(never)]
    pub(super) fn receive_proxy_header(self: &Rc<Self>, id: ConnId, data: Buf) {
        let next = {
            let Some(mut conn) = self.conns.open(id) else {
                return;
            };
            let next = self.parse_proxy_header(&mut conn, data);
            match &next {
                Next::Wait => conn.list_head(),
                Next::Continue(_) => {
                    conn.unlist();
                    conn.release_active();
                }
                Next::Refuse(..) => {}
            }
            next
        };
        match next {
            Next::Wait => self.reclaim_memory(),
            Next::Continue(behind) if behind.is_empty() => self.pass_on_if_idle(id),
            Next::Continue(behind) => self.on_data(id, behind),
            Next::Refuse(why, reason) => self.refuse_proxy_header(id, why, reason),
        }
    }

    fn parse_proxy_header(&self, conn: &mut OpenConn<'_>, data: Buf) -> Next {
        conn.active().wire.push_input(data);
        let Ok(joined) = conn.join_head() else {
            return Next::Refuse(ProxyRefusal::Malformed, "the server is low on memory");
        };
        let Some(mut input) = joined else {
            return Next::Wait;
        };
        match proxy_header::parse(&input) {
            Ok(None) => {
                conn.queue_partial_head(input);
                Next::Wait
            }
            Ok(Some(header)) => {
                conn.name_client(header.client);
                self.start_transport(conn, conn.transport.is_tls());
                input.advance(header.bytes);
                Next::Continue(input)
            }
            Err(malformed) => Next::Refuse(ProxyRefusal::Malformed, malformed.reason()),
        }
    }

    /// The client has ended a connection whose header is not complete.
    pub(super) fn end_in_proxy_header(&self, id: ConnId) {
        match self.conns.has_queued_input(id) {
            // Such as a load balancer that checks whether the port is open.
            false => self.close(id, CloseReason::Client),
            true => {
                self.refuse_proxy_header(id, ProxyRefusal::Malformed, "the header is incomplete");
            }
        }
    }

    /// Called when the time limit of the header has expired.
    pub(super) fn on_proxy_header_timeout(&self, id: ConnId) {
        match self.conns.shutdown.has_begun() {
            true => self.close(id, CloseReason::Drained),
            false => {
                self.refuse_proxy_header(id, ProxyRefusal::TimedOut, "no complete header in time")
            }
        }
    }

    #[cold]
    fn refuse_proxy_header(&self, id: ConnId, why: ProxyRefusal, reason: &'static str) {
        self.report_refusal(self.conns.socket_peer(id), why, reason);
        self.abort(id, CloseReason::NotProxied);
    }

    fn report_refusal(&self, peer: Peer, why: ProxyRefusal, reason: &'static str) {
        self.counters.not_proxied.count(why);
        let mut window = self.proxy_refusals.get();
        let admitted = window.admit(self.context.clock_ns());
        self.proxy_refusals.set(window);
        let Some(suppressed) = admitted else { return };
        let address = match peer {
            Peer::Tcp(address) => Some(address),
            Peer::Local | Peer::Gone => None,
        };
        diagnose!(WARN, peer = address.map(tracing::field::display), reason = reason,
            suppressed = (suppressed > 0).then_some(suppressed);
            "a connection was closed: the PROXY protocol is required, from trusted proxies");
    }
}
