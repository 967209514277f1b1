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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::connection::evictable::Victim;
    use onrush_rt::buf::{Budget, BufferPool};
    use onrush_rt::driver::sim::{Behaviour, Net, SimDriver};
    use onrush_rt::driver::{Driver, Event, StreamId};
    use std::time::Duration;

    /// A stream of the simulated network. All connections of a test may have it.
    fn stream() -> StreamId {
        let net = Net::new(1, Behaviour::default());
        let mut driver = Driver::Sim(Box::new(SimDriver::new(net.clone(), 1 << 20)));
        let (socket, address) = net.listen();
        driver.listen(socket).expect("it listens");
        let _client = address.connect().expect("it listens");
        loop {
            driver.poll_events(Some(Duration::ZERO)).expect("events");
            while let Some(event) = driver.next() {
                if let Event::Accepted { socket, .. } = event {
                    return driver.attach(socket, 0).expect("attached");
                }
            }
        }
    }

    fn insert(table: &ConnTable, stream: StreamId) -> ConnId {
        let id = table.all().reserve();
        table.insert(id, Conn::new(stream));
        id
    }

    /// Lists a connection with `input` as a partial head.
    fn list_head(table: &ConnTable, id: ConnId, pool: &BufferPool, input: &[u8]) {
        let mut conn = table.get(id).expect("it is open");
        let mut block = pool.take_exact(input.len()).expect("memory");
        block.extend(input);
        conn.active().wire.push_input(block.into_buf());
        table.evictable.borrow_mut().list_head(id, &mut conn);
    }

    fn list_unread(table: &ConnTable, id: ConnId, unsent: usize) {
        let mut conn = table.get(id).expect("it is open");
        conn.active().wire.out = vec![0; unsent];
        table.evictable.borrow_mut().list_unread(id, &mut conn);
    }

    fn victim(table: &ConnTable) -> Option<(ConnId, bool)> {
        let victim = table.evictable.borrow_mut().take_victim()?;
        let (id, is_head) = match victim {
            Victim::Head(id) => (id, true),
            Victim::Unread(id) => (id, false),
        };
        drop(table.remove(id));
        Some((id, is_head))
    }

    #[test]
    fn large_heads_are_evicted_before_small_ones_and_the_oldest_first() {
        let (table, stream) = (ConnTable::default(), stream());
        let pool = BufferPool::new(4096, 0, Budget::new(1 << 20));
        let ids: Vec<ConnId> = (0..4).map(|_| insert(&table, stream)).collect();
        for (id, bytes) in [(0, 10), (1, 5000), (2, 10), (3, 5000)] {
            list_head(&table, ids[id], &pool, &vec![0; bytes]);
        }
        // More of a head arrives: it keeps its age, or becomes the newest large one.
        list_head(&table, ids[0], &pool, &[0; 10]);
        list_head(&table, ids[2], &pool, &[0; 5000]);
        let evicted: Vec<_> = std::iter::from_fn(|| victim(&table)).collect();
        assert_eq!(evicted, [1, 3, 2, 0].map(|at| (ids[at], true)));
        assert!(table.evictable.borrow().is_empty());
    }

    #[test]
    fn clients_that_do_not_read_come_first_if_they_hold_more() {
        let (table, stream) = (ConnTable::default(), stream());
        let pool = BufferPool::new(4096, 0, Budget::new(1 << 20));
        let ids: Vec<ConnId> = (0..3).map(|_| insert(&table, stream)).collect();
        list_head(&table, ids[0], &pool, &[0; 4000]);
        list_unread(&table, ids[1], 100);
        assert_eq!(victim(&table), Some((ids[0], true)));
        list_unread(&table, ids[2], 8000);
        assert_eq!(victim(&table), Some((ids[1], false)), "the oldest");
        // It has read: it is listed anew, and is not listed twice.
        {
            let mut conn = table.get(ids[2]).expect("it is open");
            let mut evictable = table.evictable.borrow_mut();
            evictable.list_unread_anew(ids[2], &mut conn);
            evictable.unlist(&mut conn);
            assert!(evictable.is_empty() && !conn.is_listed());
        }
        assert_eq!(victim(&table), None);
        drop(table.remove(ids[2]));
    }

    #[test]
    fn a_place_that_is_used_again_has_nothing_of_the_connection_before() {
        let (table, stream) = (ConnTable::default(), stream());
        let first = insert(&table, stream);
        assert!(table.unsent_limits.accepted(first, 8 << 20, 0).is_some());
        list_unread(&table, first, 100);
        drop(table.remove(first));
        let second = insert(&table, stream);
        assert_eq!((second.index, table.all().len()), (first.index, 1));
        assert!(table.get(first).is_none() && table.remove(first).is_none());
        assert_eq!(table.unsent_limits.get(second), UnsentLimit::default());
        assert_eq!(victim(&table), None);
    }
}
