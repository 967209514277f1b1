//! The connections of a worker, and what is kept beside them: which may be evicted, and their
//! limits on unsent bytes. A connection can be borrowed alone. What is beside one begins and ends
//! with it.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use crate::engine::connection::evictable::Evictable;
use crate::engine::connection::unsent_limit::{UnsentLimit, UnsentLimits};
use std::cell::{RefCell, RefMut};

/// The connections of one worker.
#[derive(Debug, Default)]
pub(in crate::engine) struct ConnTable {
    conns: RefCell<Conns>,
    pub(in crate::engine) evictable: RefCell<Evictable>,
    pub(in crate::engine) unsent_limits: UnsentLimits,
}

impl ConnTable {
    /// Borrows all connections.
    #[inline(always)]
    pub(in crate::engine) fn all(&self) -> RefMut<'_, Conns> {
        self.conns.borrow_mut()
    }

    /// Borrows a connection, if it is open.
    #[inline]
    pub(in crate::engine) fn get(&self, id: ConnId) -> Option<RefMut<'_, Conn>> {
        RefMut::filter_map(self.conns.borrow_mut(), |conns| conns.get(id)).ok()
    }

    /// Adds a connection in a reserved place.
    pub(in crate::engine) fn insert(&self, id: ConnId, conn: Conn) {
        self.unsent_limits.set(id, UnsentLimit::default());
        self.conns.borrow_mut().insert(id, conn);
    }

    /// Removes a connection. The caller drops it outside any borrow, because its task is user code.
    pub(in crate::engine) fn remove(&self, id: ConnId) -> Option<Conn> {
        let mut conns = self.conns.borrow_mut();
        let mut conn = conns.remove(id)?;
        let mut evictable = self.evictable.borrow_mut();
        evictable.unlist(&mut conn);
        debug_assert!(conns.len() > 0 || evictable.is_empty());
        Some(conn)
    }

    /// Whether nothing is borrowed, so that user code may run.
    pub(in crate::engine) fn is_free(&self) -> bool {
        self.conns.try_borrow_mut().is_ok() && self.evictable.try_borrow_mut().is_ok()
    }
}

/// The open connections.
#[derive(Debug, Default)]
pub(in crate::engine) struct Conns {
    entries: Vec<TableEntry>,
    free: Vec<u32>,
    open: usize,
}

/// Aligned to a cache line, so that an entry occupies exactly two. Without the alignment it would
/// touch three, and with thousands of connections each of them is a cache miss.
#[derive(Debug)]
#[repr(align(64))]
struct TableEntry {
    generation: u32,
    conn: Option<Conn>,
}

const _: () = assert!(size_of::<TableEntry>() == 128);

impl Conns {
    /// Reserves an entry and returns its id, which the driver needs to attach the connection.
    pub(crate) fn reserve(&mut self) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(TableEntry {
                generation: 0,
                conn: None,
            });
            self.entries.len() as u32 - 1
        });
        ConnId {
            index,
            generation: self.entries[index as usize].generation,
        }
    }

    /// Cancels a reservation.
    pub(crate) fn release(&mut self, id: ConnId) {
        self.free.push(id.index);
    }

    /// Fills a reserved entry.
    fn insert(&mut self, id: ConnId, conn: Conn) {
        self.entries[id.index as usize].conn = Some(conn);
        self.open += 1;
    }

    /// The connection with this id, if it is open.
    #[inline]
    pub(crate) fn get(&mut self, id: ConnId) -> Option<&mut Conn> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation == id.generation {
            entry.conn.as_mut()
        } else {
            None
        }
    }

    fn remove(&mut self, id: ConnId) -> Option<Conn> {
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        let conn = entry.conn.take()?;
        entry.generation = (entry.generation + 1) & 0x7fff_ffff;
        self.free.push(id.index);
        self.open -= 1;
        Some(conn)
    }

    /// The number of open connections.
    pub(crate) fn len(&self) -> usize {
        self.open
    }

    /// All open connections.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (ConnId, &mut Conn)> {
        let entries = self.entries.iter_mut().enumerate();
        entries.filter_map(|(index, entry)| {
            let id = ConnId {
                index: index as u32,
                generation: entry.generation,
            };
            Some((id, entry.conn.as_mut()?))
        })
    }

    /// The ids of all open connections.
    pub(crate) fn ids(&mut self) -> Vec<ConnId> {
        self.all().map(|(id, _)| id).collect()
    }
}
