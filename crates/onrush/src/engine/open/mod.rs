//! An open connection, with what it shares with the others of its worker.
//!
//! [`OpenConn`] is the way to one connection: it borrows the connection, and has the operations
//! that need no other one and call no user code. [`Shared`] has what these operations use; those
//! that borrow the connection several times, because user code may run in between, are its own.
//! Neither can close a connection or start a request. The engine does.
//!
//! Submodules, lowest first: `deadlines` (time limits) · `receiving` (input, and when the driver
//! receives) · `bodies` (request bodies) · `sending` (rendered responses, and what is queued) ·
//! `poll_send` (sends of tasks) · `rejecting` (responses without a handler) · `records` (TLS).

pub(in crate::engine) mod bodies;
pub(in crate::engine) mod deadlines;
pub(in crate::engine) mod poll_send;
pub(in crate::engine) mod receiving;
#[cfg(feature = "tls")]
pub(in crate::engine) mod records;
mod rejecting;
mod sending;

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::evictable::Evictable;
use crate::engine::connection::table::Conns;
use crate::engine::connection::unsent_limit::{UnsentLimit, UnsentLimits};
use crate::engine::shared::exchange_log::ExchangeLog;
use crate::engine::shared::measurements::Measurements;
use crate::engine::shared::peers::Peers;
use crate::engine::shared::receive_memory::ReceiveMemory;
use crate::engine::shared::rendering::Rendering;
use crate::engine::shared::shutdown::Shutdown;
use crate::engine::shared::socket_io::SocketIo;
use crate::metrics::Counters;
use crate::metrics::Recorder;
use onrush_proto::limits::Limits;
use onrush_rt::worker::WorkerContext;
use std::cell::{Cell, RefCell, RefMut};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

/// The connections of one worker, and what the operations on one of them use.
pub(in crate::engine) struct Shared {
    pub(in crate::engine) context: WorkerContext,
    pub(in crate::engine) limits: Cell<Limits>,
    pub(in crate::engine) memory: ReceiveMemory,
    pub(in crate::engine) io: SocketIo,
    pub(in crate::engine) rendering: Rendering,
    pub(in crate::engine) counters: Arc<Counters>,
    pub(in crate::engine) shutdown: Shutdown,
    pub(in crate::engine) peers: Rc<Peers>,
    pub(in crate::engine) unsent_limits: UnsentLimits,
    conns: RefCell<Conns>,
    evictable: RefCell<Evictable>,
    /// Receives discarded bytes that the kernel cannot drop by itself.
    discard_buffer: RefCell<Vec<u8>>,
}

impl Shared {
    pub(in crate::engine) fn new(
        context: &WorkerContext,
        limits: Limits,
        counters: &Arc<Counters>,
        recorder: Option<Recorder>,
        peers: Peers,
    ) -> Shared {
        let (evictable, peers) = (Evictable::default(), Rc::new(peers));
        Shared {
            context: context.clone(),
            limits: Cell::new(limits),
            memory: ReceiveMemory::new(context, evictable.unsent_bytes()),
            io: SocketIo::new(
                context,
                ExchangeLog::new(context, &peers),
                Measurements::new(recorder),
            ),
            rendering: Rendering::new(context),
            counters: counters.clone(),
            shutdown: Shutdown::default(),
            peers,
            unsent_limits: UnsentLimits::default(),
            conns: RefCell::default(),
            evictable: RefCell::new(evictable),
            discard_buffer: RefCell::default(),
        }
    }

    /// Borrows a connection, if it is open.
    #[inline]
    pub(in crate::engine) fn open(&self, id: ConnId) -> Option<OpenConn<'_>> {
        let conns = self.conns.borrow_mut();
        let conn = RefMut::filter_map(conns, |conns| conns.get(id)).ok()?;
        Some(OpenConn {
            shared: self,
            conn,
            id,
        })
    }

    /// Whether a connection is in its TLS handshake.
    pub(in crate::engine) fn is_handshaking(&self, id: ConnId) -> bool {
        let conn = self.open(id);
        conn.is_some_and(|conn| conn.state.is_handshaking())
    }

    /// Borrows all connections.
    #[inline(always)]
    pub(in crate::engine) fn table(&self) -> RefMut<'_, Conns> {
        self.conns.borrow_mut()
    }

    /// Whether nothing borrows a connection, so that user code may run.
    pub(in crate::engine) fn is_free(&self) -> bool {
        self.conns.try_borrow_mut().is_ok() && self.evictable.try_borrow_mut().is_ok()
    }

    /// The ids of all open connections.
    pub(in crate::engine) fn ids(&self) -> Vec<ConnId> {
        self.conns.borrow_mut().ids()
    }

    /// Adds a connection in a reserved place of the table.
    pub(in crate::engine) fn insert(&self, id: ConnId, conn: Conn) {
        self.unsent_limits.set(id, UnsentLimit::default());
        self.conns.borrow_mut().insert(id, conn);
    }

    /// Removes a connection. The caller drops it outside any borrow, because its task is user code.
    pub(in crate::engine) fn remove(&self, id: ConnId) -> Option<Conn> {
        let mut conn = self.conns.borrow_mut().remove(id)?;
        if conn.is_listed() {
            self.evictable.borrow_mut().unlist(&mut conn);
        }
        Some(conn)
    }

    /// The connections that may be evicted.
    pub(in crate::engine) fn evictable(&self) -> &RefCell<Evictable> {
        &self.evictable
    }
}

/// An open connection, which it borrows. No user code may run meanwhile.
pub(in crate::engine) struct OpenConn<'s> {
    shared: &'s Shared,
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
    /// Lists the connection as one with a partial head, which may be evicted.
    pub(in crate::engine) fn list_head(&mut self) {
        let mut evictable = self.shared.evictable.borrow_mut();
        evictable.list_head(self.id, &mut self.conn);
    }

    /// Lists the connection as [`Evictable::list_awaited_record`] says.
    pub(in crate::engine) fn list_awaited_record(&mut self) {
        let mut evictable = self.shared.evictable.borrow_mut();
        evictable.list_awaited_record(self.id, &mut self.conn);
    }

    /// Lists the connection as one whose client does not read its responses, if it holds memory.
    pub(in crate::engine) fn list_unread(&mut self) {
        let mut evictable = self.shared.evictable.borrow_mut();
        evictable.list_unread(self.id, &mut self.conn);
    }

    /// Makes the connection the newest of those whose client does not read: it has read bytes.
    pub(in crate::engine) fn list_unread_anew(&mut self) {
        if self.is_listed() {
            let mut evictable = self.shared.evictable.borrow_mut();
            evictable.list_unread_anew(self.id, &mut self.conn);
        }
    }

    /// Removes the connection from those that may be evicted.
    #[inline]
    pub(in crate::engine) fn unlist(&mut self) {
        if self.is_listed() {
            self.shared.evictable.borrow_mut().unlist(&mut self.conn);
        }
    }
}
