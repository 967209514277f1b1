//! Whose connections a worker has: the peers of their sockets, and the clients that trusted proxies
//! have named in a header of the PROXY protocol.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use onrush_rt::driver::StreamId;
use onrush_rt::net::Peer;
use onrush_rt::worker::WorkerContext;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;

/// The clients of the connections of one worker.
pub(in crate::engine) struct Peers {
    context: WorkerContext,
    /// Whether connections begin with a header.
    has_header: bool,
    /// A table beside the connections, so that a server without the PROXY protocol does not pay
    /// for it.
    named: RefCell<HashMap<StreamId, SocketAddr>>,
    /// The clients that requests have asked for, by the index of the connection: each costs a
    /// system call. An entry of another stream is old.
    asked: RefCell<Vec<Option<(StreamId, SocketAddr)>>>,
}

impl Peers {
    pub(in crate::engine) fn new(context: &WorkerContext, has_header: bool) -> Peers {
        Peers {
            context: context.clone(),
            has_header,
            named: RefCell::default(),
            asked: RefCell::default(),
        }
    }

    /// Stores the client that a header names.
    pub(in crate::engine) fn name(&self, stream: StreamId, client: Option<SocketAddr>) {
        if let Some(client) = client {
            self.named.borrow_mut().insert(stream, client);
        }
    }

    /// Forgets the client that a header has named, and returns it.
    pub(in crate::engine) fn forget(&self, stream: StreamId) -> Option<SocketAddr> {
        let has_header = self.has_header;
        has_header.then(|| self.named.borrow_mut().remove(&stream))?
    }

    fn named(&self, conn: &Conn) -> Option<SocketAddr> {
        let has_header = self.has_header;
        has_header.then(|| self.named.borrow().get(&conn.stream).copied())?
    }

    /// The address of the client: as its proxy has named it, otherwise that of the peer.
    pub(in crate::engine) fn client(&self, conn: &Conn) -> Option<SocketAddr> {
        self.named(conn).or_else(|| self.socket_address(conn))
    }

    /// As [`Peers::client`], for requests, of which a connection has many. Known also after the
    /// client has disconnected, if it was asked for before.
    pub(in crate::engine) fn client_of_request(
        &self,
        id: ConnId,
        conn: &Conn,
    ) -> Option<SocketAddr> {
        let (index, stream) = (id.index as usize, conn.stream);
        let known = self.asked.borrow().get(index).copied().flatten();
        if let Some((_, client)) = known.filter(|(of, _)| *of == stream) {
            return Some(client);
        }
        let client = self.client(conn)?;
        let mut asked = self.asked.borrow_mut();
        if asked.len() <= index {
            asked.resize(index + 1, None);
        }
        asked[index] = Some((stream, client));
        Some(client)
    }

    /// The address of the proxy that has named the client of a connection.
    pub(super) fn proxy(&self, conn: &Conn) -> Option<SocketAddr> {
        self.named(conn)?;
        self.socket_address(conn)
    }

    fn socket_address(&self, conn: &Conn) -> Option<SocketAddr> {
        match self.of_socket(conn) {
            Peer::Tcp(address) => Some(address),
            Peer::Local | Peer::Gone => None,
        }
    }

    /// The peer of the socket of a connection.
    pub(in crate::engine) fn of_socket(&self, conn: &Conn) -> Peer {
        self.context.driver().peer(conn.stream)
    }
}
