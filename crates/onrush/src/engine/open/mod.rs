//! The open connections of a worker, and operations on one of them.
//!
//! [`OpenConn`] is the way to one connection: it borrows the connection, and has the operations
//! that need no other one and call no user code. [`OpenConns`] has all of them with what these
//! operations use, and the same operations by the id of a connection, where that is all a caller
//! has, or where user code runs between two borrows of it (wakers). Nothing here decides what
//! follows: whether a connection is closed or moves, and when its next request starts, is the
//! engine's.
//!
//! Submodules, lowest first: `deadlines` (time limits) · `receiving` (input, and when the driver
//! receives) · `bodies` (request bodies) · `sending` (rendered responses, and what is queued) ·
//! `poll_send` (sends of tasks) · `exchange` (the begin and the end of a request) · `rejecting`
//! (responses without a handler) · `records` (TLS) · `streams`, `frames`
//! (HTTP/2).

pub(in crate::engine) mod bodies;
pub(in crate::engine) mod deadlines;
mod exchange;
pub(in crate::engine) mod frames;
mod poll_send;
mod receiving;
#[cfg(feature = "tls")]
mod records;
mod rejecting;
mod sending;
pub(in crate::engine) mod streams;

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::evictable::Victim;
use crate::engine::connection::table::{ConnTable, Conns};
use crate::engine::connection::unsent_limit::UnsentLimits;
use crate::engine::open::streams::DueList;
use crate::engine::shared::exchange_log::ExchangeLog;
use crate::engine::shared::measurements::Measurements;
use crate::engine::shared::peers::Peers;
use crate::engine::shared::receive_memory::ReceiveMemory;
use crate::engine::shared::rendering::Rendering;
use crate::engine::shared::shutdown::Shutdown;
use crate::engine::shared::socket_io::SocketIo;
use crate::log::AccessLog;
use crate::metrics::{Counters, Recorder};
use onrush_proto::limits::Limits;
use onrush_rt::net::Peer;
use onrush_rt::worker::WorkerContext;
use std::cell::{Cell, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

/// The open connections of one worker, and what the operations on one of them use.
pub(in crate::engine) struct OpenConns {
    pub(in crate::engine) context: WorkerContext,
    pub(in crate::engine) limits: Cell<Limits>,
    pub(in crate::engine) memory: ReceiveMemory,
    pub(in crate::engine) io: SocketIo,
    pub(in crate::engine) rendering: Rendering,
    pub(in crate::engine) counters: Arc<Counters>,
    pub(in crate::engine) shutdown: Shutdown,
    pub(in crate::engine) peers: Rc<Peers>,
    /// Connections with frames of HTTP/2 to send.
    pub(in crate::engine) due: Rc<DueList>,
    table: ConnTable,
    /// Receives discarded bytes that the kernel cannot drop by itself.
    discard_buffer: RefCell<Vec<u8>>,
}

impl OpenConns {
    pub(in crate::engine) fn new(
        context: &WorkerContext,
        limits: Limits,
        counters: &Arc<Counters>,
        recorder: Option<Recorder>,
        peers: Peers,
    ) -> OpenConns {
        let (table, peers) = (ConnTable::default(), Rc::new(peers));
        let unsent_bytes = table.evictable.borrow().unsent_bytes().clone();
        OpenConns {
            context: context.clone(),
            limits: Cell::new(limits),
            memory: ReceiveMemory::new(context, unsent_bytes),
            io: SocketIo::new(
                context,
                ExchangeLog::new(context, &peers),
                Measurements::new(recorder),
            ),
            rendering: Rendering::new(context),
            counters: counters.clone(),
            shutdown: Shutdown::default(),
            peers,
            due: Rc::default(),
            table,
            discard_buffer: RefCell::default(),
        }
    }

    /// Borrows a connection, if it is open.
    #[inline]
    pub(in crate::engine) fn open(&self, id: ConnId) -> Option<OpenConn<'_>> {
        let conn = self.table.get(id)?;
        Some(OpenConn {
            all: self,
            conn,
            id,
        })
    }

    /// Borrows all connections: for a pass over them, and for the steps of each request, which
    /// would have to save the four words of an [`OpenConn`].
    #[inline(always)]
    pub(in crate::engine) fn all(&self) -> RefMut<'_, Conns> {
        self.table.all()
    }

    /// The ids of all open connections.
    pub(in crate::engine) fn ids(&self) -> Vec<ConnId> {
        self.table.all().ids()
    }

    /// Whether nothing borrows a connection, so that user code may run.
    pub(in crate::engine) fn is_free(&self) -> bool {
        self.table.is_free()
    }

    /// The peer of the socket of a connection.
    pub(in crate::engine) fn socket_peer(&self, id: ConnId) -> Peer {
        let peer = |conn: OpenConn<'_>| self.peers.of_socket(&conn);
        self.open(id).map_or(Peer::Gone, peer)
    }

    /// Switches the access log on or off.
    pub(in crate::engine) fn set_logging(&self, access_log: AccessLog) {
        if self.io.log.set(access_log) {
            for (_, conn) in self.all().all() {
                ExchangeLog::forget(conn);
            }
        }
    }

    /// Ends a connection after the requests that have arrived. One that looks idle stays open a
    /// little longer, because a request may be on its way.
    pub(in crate::engine) fn drain(&self, id: ConnId) {
        let Some(mut conn) = self.open(id) else {
            return;
        };
        if conn.state.has_streams() {
            return conn.begin_drain(self.context.now_ms());
        }
        let queued = conn.unprocessed_bytes();
        let arrived = queued as u64 + self.context.driver().unread_bytes(conn.stream);
        self.shutdown.limit_requests(id, arrived);
        if arrived == 0 && conn.state.phase().has_request() {
            conn.machine.close_after_next(); // Its response may have started.
        }
        let is_between = conn.state.is_ready() && !conn.state.is_handshaking();
        if (is_between || conn.state.is_in_proxy_header()) && queued == 0 {
            let deadline_ms = conn.drain_deadline_ms(conn.deadline_ms);
            conn.state.restart_head(); // A new head gets the full time limit.
            conn.set_deadline(deadline_ms);
        }
    }

    /// Whether a connection is in its TLS handshake.
    pub(in crate::engine) fn is_handshaking(&self, id: ConnId) -> bool {
        let conn = self.open(id);
        conn.is_some_and(|conn| conn.state.is_handshaking())
    }

    /// Adds a connection in a reserved place of the table.
    pub(in crate::engine) fn insert(&self, id: ConnId, conn: Conn) {
        self.table.insert(id, conn);
    }

    /// Removes a connection. The caller drops it outside any borrow, because its task is user code.
    pub(in crate::engine) fn remove(&self, id: ConnId) -> Option<Conn> {
        self.table.remove(id)
    }

    /// Takes the connection that is evicted next out of its list. The caller unlists it.
    pub(in crate::engine) fn take_victim(&self) -> Option<Victim> {
        self.table.evictable.borrow_mut().take_victim()
    }

    /// Removes a connection, which the caller has borrowed with all, from those that may be
    /// evicted.
    pub(in crate::engine) fn unlist(&self, conn: &mut Conn) {
        self.table.evictable.borrow_mut().unlist(conn);
    }

    /// Whether new bodies would use the memory that is left for complete requests and partial
    /// heads.
    pub(in crate::engine) fn is_short_for_bodies(&self) -> bool {
        let listed_bytes = || self.table.evictable.borrow().input_bytes();
        self.memory.is_short_for_bodies(listed_bytes)
    }

    /// The limits on what the kernel holds unsent.
    pub(in crate::engine) fn unsent_limits(&self) -> &UnsentLimits {
        &self.table.unsent_limits
    }
}

/// An open connection, which it borrows. No user code may run meanwhile.
pub(in crate::engine) struct OpenConn<'s> {
    all: &'s OpenConns,
    conn: RefMut<'s, Conn>,
    id: ConnId,
}

impl Deref for OpenConn<'_> {
    type Target = Conn;

    #[inline]
    fn deref(&self) -> &Conn {
        &self.conn
    }
}

impl DerefMut for OpenConn<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Conn {
        &mut self.conn
    }
}

impl OpenConn<'_> {
    pub(in crate::engine) fn id(&self) -> ConnId {
        self.id
    }

    /// Lists the connection as one with a partial head, which may be evicted.
    pub(in crate::engine) fn list_head(&mut self) {
        let mut evictable = self.all.table.evictable.borrow_mut();
        evictable.list_head(self.id, &mut self.conn);
    }

    /// Lists the connection as `Evictable::list_awaited_record` says.
    pub(in crate::engine) fn list_awaited_record(&mut self) {
        let mut evictable = self.all.table.evictable.borrow_mut();
        evictable.list_awaited_record(self.id, &mut self.conn);
    }

    /// Lists the connection as one whose client does not read its responses, if it holds memory.
    pub(in crate::engine) fn list_unread(&mut self) {
        let mut evictable = self.all.table.evictable.borrow_mut();
        evictable.list_unread(self.id, &mut self.conn);
    }

    /// The client has taken all frames. Lists the connection anew while content in memory waits to
    /// be put into some.
    pub(in crate::engine) fn list_waiting(&mut self) {
        self.unlist();
        if self.http2().is_some_and(|http2| http2.waiting_bytes() > 0) {
            self.list_unread();
        }
    }

    /// Makes the connection the newest of those whose client does not read: it has read bytes.
    pub(in crate::engine) fn list_unread_anew(&mut self) {
        let mut evictable = self.all.table.evictable.borrow_mut();
        evictable.list_unread_anew(self.id, &mut self.conn);
    }

    /// Removes the connection from those that may be evicted.
    #[inline]
    pub(in crate::engine) fn unlist(&mut self) {
        if self.is_listed() {
            self.all.table.evictable.borrow_mut().unlist(&mut self.conn);
        }
    }
}
