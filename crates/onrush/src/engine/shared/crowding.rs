//! Which connection makes room for a new one when all are in use and none is idle: one of the
//! client that has the most.
//!
//! A client is an address, or a network of 64 bits of IPv6. One that has two connections more than
//! the client of the new connection loses one. So a client that keeps its connections busy with a
//! few bytes does not keep the others out. What has many clients loses none: a trusted proxy, and a
//! Unix socket. Nor does a connection whose response does not wait for its client.
//!
//! A client with a large part of the connections makes room for its own new ones only with its own
//! idle ones. Otherwise one that keeps most connections busy and opens more would displace the few
//! of others between two requests, because only those look idle. Connections whose clients have
//! gone, which the driver has not reported yet, are closed before any other.
//!
//! One pass counts the connections of each client. Its result is used for a while, because a pass
//! asks the kernel for the peer of each connection.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::http2::Slot;
use crate::engine::connection::state::Phase;
use crate::engine::connection::table::Conns;
use crate::engine::shared::peers::Peers;
use crate::trusted_peers::TrustedPeers;
use onrush_rt::net::{Peer, client_network};
use onrush_rt::worker::WorkerContext;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;

/// The time between two passes for each connection that they examine, in µs. So they take a few
/// per cent of the worker's time.
const PAUSE_US_PER_CONNECTION: u64 = 20;
/// A client with more connections than this, and more than a fourth of all, displaces only its own.
/// A browser has fewer.
const DISPLACING_MAX: usize = 8;

/// The clients of one worker's connections.
pub(in crate::engine) struct Crowd {
    context: WorkerContext,
    peers: Rc<Peers>,
    counted: RefCell<Counted>,
}

/// The result of a pass, and what has changed since then.
#[derive(Debug, Default)]
struct Counted {
    connections: HashMap<IpAddr, usize>,
    /// All of them, also those of peers that have many clients.
    total: usize,
    /// The client with the most connections.
    largest: Option<IpAddr>,
    /// Its connections that wait for it. Those that have waited the longest come first.
    waiting: VecDeque<ConnId>,
    /// Those whose clients have gone.
    gone: Vec<ConnId>,
    /// When the result is used no longer, in ms of the worker's clock.
    next_pass_ms: u64,
    /// When the idle connections may be searched for those of one client, in the same.
    next_search_ms: u64,
}

/// Whose idle connections may be closed for a new one.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) enum MakesRoom {
    Anybody,
    /// The client of the new one has gone.
    Nobody,
    /// A client that has a large part of the connections.
    Only(IpAddr),
}

/// The client that a peer is alone, `None` for a Unix socket.
fn newcomer(peer: Peer) -> Option<IpAddr> {
    match peer {
        Peer::Tcp(address) => Some(client_network(address.ip())),
        Peer::Local | Peer::Gone => None,
    }
}

impl Crowd {
    pub(in crate::engine) fn new(context: &WorkerContext, peers: &Rc<Peers>) -> Crowd {
        Crowd {
            context: context.clone(),
            peers: peers.clone(),
            counted: RefCell::default(),
        }
    }

    /// Whether a connection goes on only when its client sends or takes bytes.
    fn waits_for_client(&self, conn: &Conn) -> bool {
        match conn.state.phase() {
            Phase::ProxyHeader | Phase::Flushing(_) | Phase::Lingering => true,
            // The kernel may hold a request that the driver has not fetched.
            Phase::Ready => !self.context.driver().has_unread(conn.stream),
            Phase::Busy => conn.active.as_ref().is_some_and(|active| {
                let exchange = &active.exchange;
                exchange.reader.is_some() || exchange.writer.is_some() || active.has_unsent()
            }),
            Phase::Streams => conn.active.as_ref().is_some_and(|active| {
                let http2 = active.http2.as_ref();
                http2.is_some_and(|http2| http2.slots.iter().all(Slot::waits_for_client))
            }),
            Phase::Leaving => false,
        }
    }

    /// The connection to close for a new one of `peer`: one of the client that has the most. `None`
    /// if the client of `peer` has as many, or nothing of the other one waits for it. `shared`: the
    /// peers that have many clients.
    #[cold]
    pub(in crate::engine) fn next(
        &self,
        conns: &mut Conns,
        shared: &TrustedPeers,
        peer: Peer,
    ) -> Option<ConnId> {
        if matches!(peer, Peer::Gone) {
            return None;
        }
        let newcomer = newcomer(peer);
        self.count_if_outdated(conns, shared);
        loop {
            let mut crowd = self.counted.borrow_mut();
            let largest = (crowd.largest).filter(|&largest| Some(largest) != newcomer)?;
            let of = |client: &IpAddr| crowd.connections.get(client).copied().unwrap_or(0);
            let own = newcomer.as_ref().map_or(0, of);
            if of(&largest) < own + 2 {
                return None;
            }
            let id = crowd.waiting.pop_front()?;
            let open = conns.get(id);
            let is_gone = open.is_none();
            let waits = open.is_some_and(|conn| self.waits_for_client(conn));
            if is_gone || waits {
                crowd.connections.entry(largest).and_modify(|n| *n -= 1);
            }
            if waits {
                if let Some(newcomer) = newcomer {
                    *crowd.connections.entry(newcomer).or_default() += 1;
                }
                return Some(id);
            }
        }
    }

    /// Whose idle connections make room for a new one of `peer`.
    #[cold]
    pub(in crate::engine) fn idle_for(
        &self,
        conns: &mut Conns,
        shared: &TrustedPeers,
        peer: Peer,
    ) -> MakesRoom {
        if peer == Peer::Gone {
            return MakesRoom::Nobody;
        }
        self.count_if_outdated(conns, shared);
        let Some(client) = newcomer(peer).filter(|_| !shared.trusts(peer)) else {
            return MakesRoom::Anybody;
        };
        let crowd = self.counted.borrow();
        let own = crowd.connections.get(&client).copied().unwrap_or(0);
        match own > DISPLACING_MAX.max(crowd.total / 4) {
            true => MakesRoom::Only(client),
            false => MakesRoom::Anybody,
        }
    }

    /// A connection whose client has gone.
    #[cold]
    pub(in crate::engine) fn next_gone(&self, conns: &mut Conns) -> Option<ConnId> {
        let has_gone = |conn: &mut Conn| self.peers.of_socket(conn) == Peer::Gone;
        let gone = &mut self.counted.borrow_mut().gone;
        std::iter::from_fn(|| gone.pop()).find(|&id| conns.get(id).is_some_and(has_gone))
    }

    /// Counts a new connection of `peer`, for which an idle one was closed.
    pub(in crate::engine) fn add(&self, peer: Peer) {
        if let Some(client) = newcomer(peer) {
            let mut crowd = self.counted.borrow_mut();
            *crowd.connections.entry(client).or_default() += 1;
        }
    }

    /// Whether the idle connections may be searched for those of one client: not too soon after a
    /// search that found none, because it asks the kernel for their peers.
    pub(in crate::engine) fn may_search(&self) -> bool {
        self.context.now_ms() >= self.counted.borrow().next_search_ms
    }

    /// A search has found none.
    pub(in crate::engine) fn end_search(&self) {
        let mut crowd = self.counted.borrow_mut();
        crowd.next_search_ms = self.context.now_ms() + pause_ms(crowd.total);
    }

    /// Whether a connection is one of `client`.
    pub(in crate::engine) fn is_of(&self, conn: &Conn, client: IpAddr) -> bool {
        let address = self.peers.client(conn);
        address.is_some_and(|address| client_network(address.ip()) == client)
    }

    fn count_if_outdated(&self, conns: &mut Conns, shared: &TrustedPeers) {
        if self.context.now_ms() >= self.counted.borrow().next_pass_ms {
            self.count(conns, shared);
        }
    }

    /// Counts the connections of each client.
    fn count(&self, conns: &mut Conns, shared: &TrustedPeers) {
        let now_ms = self.context.now_ms();
        let ids = conns.ids();
        let mut by_client = HashMap::<IpAddr, Vec<ConnId>>::new();
        let (mut total, mut gone) = (0, Vec::new());
        for &id in &ids {
            let Some(conn) = conns.get(id).filter(|conn| !conn.state.is_refused()) else {
                continue;
            };
            let client = self.peers.client(conn);
            if client.is_none() && self.peers.of_socket(conn) == Peer::Gone {
                gone.push(id);
                continue;
            }
            total += 1;
            let Some(address) = client else {
                continue;
            };
            if !shared.trusts(Peer::Tcp(address)) {
                let client = client_network(address.ip());
                by_client.entry(client).or_default().push(id);
            }
        }
        let largest = by_client.iter().max_by_key(|(_, ids)| ids.len());
        let largest = largest.map(|(&client, _)| client);
        let mut waiting = Vec::new();
        for &id in largest.iter().flat_map(|client| &by_client[client]) {
            if let Some(conn) = conns.get(id).filter(|conn| self.waits_for_client(conn)) {
                waiting.push((conn.deadline_ms, id));
            }
        }
        waiting.sort_unstable_by_key(|&(deadline_ms, _)| deadline_ms);
        let count = |(client, ids): (IpAddr, Vec<ConnId>)| (client, ids.len());
        let mut counted = self.counted.borrow_mut();
        *counted = Counted {
            connections: by_client.into_iter().map(count).collect(),
            total,
            largest,
            gone,
            waiting: waiting.into_iter().map(|(_, id)| id).collect(),
            next_pass_ms: now_ms + pause_ms(ids.len()),
            next_search_ms: counted.next_search_ms,
        };
    }
}

/// The pause after a pass over `connections` connections.
fn pause_ms(connections: usize) -> u64 {
    1 + connections as u64 * PAUSE_US_PER_CONNECTION / 1_000
}
