//! The table of the connections of a worker.

use crate::connections::ConnId;
use crate::engine::connection::Conn;

/// The connections of one worker.
#[derive(Debug, Default)]
pub(crate) struct Conns {
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
    pub(crate) fn insert(&mut self, id: ConnId, conn: Conn) {
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

    /// Removes a connection. The caller drops it outside any borrow, because its task is user code.
    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Conn> {
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
    pub(crate) fn open(&self) -> usize {
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

    /// Counts the requests of all connections from now on.
    pub(crate) fn reset_request_counts(&mut self) {
        for (_, conn) in self.all() {
            conn.response_count_before = conn.response_count;
        }
    }

    /// The connections that sent requests, and how many. A connection with a request in progress
    /// counts one for it, however long the request takes.
    pub(crate) fn requests_counted(&mut self) -> Vec<(ConnId, u32)> {
        let counted = self.all().filter_map(|(id, conn)| {
            let response_count = conn.response_count.wrapping_sub(conn.response_count_before);
            let requests = response_count + u32::from(conn.state.is_busy());
            let is_movable = !conn.state.is_refused() && conn.state.leaving().is_none();
            (requests > 0 && is_movable).then_some((id, requests))
        });
        counted.collect()
    }

    /// The ids of all open connections.
    pub(crate) fn ids(&mut self) -> Vec<ConnId> {
        self.all().map(|(id, _)| id).collect()
    }
}
