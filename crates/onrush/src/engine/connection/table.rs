//! The connections of one worker: the table of all of them, and the lists of those that may be
//! evicted when receive memory is short.

use crate::connections::ConnId;
use crate::engine::connection::unsent_limit::UnsentLimit;
use crate::engine::connection::{Conn, Links};
use onrush_rt::buf::Buf;
use std::cell::Cell;
use std::rc::Rc;

/// The connections of one worker.
#[derive(Debug, Default)]
pub(crate) struct Conns {
    entries: Vec<TableEntry>,
    free: Vec<u32>,
    open: usize,
    evictable: EvictionLists,
    /// Bytes of rendered responses that listed connections hold.
    unsent_bytes: Rc<Cell<usize>>,
}

/// Aligned to a cache line, so that an entry occupies exactly two. Without the alignment it would
/// touch three, and with thousands of connections each of them is a cache miss.
#[derive(Debug)]
#[repr(align(64))]
struct TableEntry {
    generation: u32,
    /// Of the connection; here, because a [`Conn`] has no room for one more byte.
    unsent_limit: UnsentLimit,
    conn: Option<Conn>,
}

const _: () = assert!(size_of::<TableEntry>() == 128);

impl Conns {
    /// Reserves an entry and returns its id, which the driver needs to attach the connection.
    pub(crate) fn reserve(&mut self) -> ConnId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(TableEntry {
                generation: 0,
                unsent_limit: UnsentLimit::default(),
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
        let entry = &mut self.entries[id.index as usize];
        entry.unsent_limit = UnsentLimit::default();
        entry.conn = Some(conn);
        self.open += 1;
    }

    /// What the kernel may hold unsent for an open connection.
    pub(crate) fn unsent_limit(&mut self, id: ConnId) -> &mut UnsentLimit {
        &mut self.entries[id.index as usize].unsent_limit
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
        self.unlist(id);
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

    /// The ids of all open connections.
    pub(crate) fn ids(&self) -> Vec<ConnId> {
        let id = |(index, entry): (usize, &TableEntry)| {
            entry.conn.as_ref()?;
            Some(ConnId {
                index: index as u32,
                generation: entry.generation,
            })
        };
        self.entries.iter().enumerate().filter_map(id).collect()
    }
}

/// A partial head of at least this size is a large one.
const LARGE_HEAD_BYTES: usize = 4096;

/// A list in order of age. The entries are linked by [`Links`].
#[derive(Clone, Copy, Debug, Default)]
struct List {
    oldest: Option<ConnId>,
    newest: Option<ConnId>,
}

/// The lists of small and of large partial heads, and of clients that do not read responses.
const SMALL: usize = 0;
const LARGE: usize = 1;
const UNREAD: usize = 2;

/// The connections that may be evicted: those that hold a partial head, and those whose client does
/// not read its responses. The engine does not process the input of the latter.
#[derive(Debug, Default)]
struct EvictionLists {
    /// Indexed by [`SMALL`], [`LARGE`] and [`UNREAD`].
    lists: [List; 3],
    /// Bytes of the input blocks that all listed connections hold, and that those in the list
    /// [`UNREAD`] hold.
    bytes: usize,
    unread_bytes: usize,
}

impl Conns {
    /// Adds a connection with a partial head to its list, or moves it to the list of large heads.
    pub(crate) fn list_head(&mut self, id: ConnId) {
        let Some(conn) = self.get(id) else { return };
        let is_large = conn.input_bytes() + conn.transport.received_bytes() >= LARGE_HEAD_BYTES;
        self.list(id, if is_large { LARGE } else { SMALL });
    }

    /// Adds a connection to the list of heads if a handler waits for its body and the connection
    /// holds a part of a record; otherwise removes it from that list. A handler that does not wait
    /// finds what has arrived, so nothing of it is evicted.
    pub(crate) fn list_awaited_record(&mut self, id: ConnId) {
        let Some(conn) = self.get(id) else { return };
        let Some(active) = conn.active.as_deref() else {
            return;
        };
        if active.links.is_some_and(|links| links.list == UNREAD) {
            return;
        }
        match active.exchange.reader.is_some() && conn.transport.received_bytes() > 0 {
            true => self.list_head(id),
            false => self.unlist(id),
        }
    }

    /// Adds a connection whose client does not read its responses to the list [`UNREAD`], if it
    /// holds input or rendered responses.
    pub(crate) fn list_unread(&mut self, id: ConnId) {
        let active = self.get(id).and_then(|conn| conn.active.as_ref());
        if active.is_some_and(|active| active.wire.input_bytes > 0 || active.unsent_bytes() > 0) {
            self.list(id, UNREAD);
        }
    }

    /// Called when the client has read bytes. A listed connection that still holds memory becomes
    /// the newest of the list [`UNREAD`].
    pub(crate) fn list_unread_anew(&mut self, id: ConnId) {
        if self.get(id).is_some_and(|conn| conn.is_listed()) {
            self.unlist(id);
            self.list_unread(id);
        }
    }

    /// Adds a connection to a list as its newest, or updates its memory if it is in that list.
    fn list(&mut self, id: ConnId, list: usize) {
        let Some(conn) = self.get(id) else { return };
        let Some(active) = conn.active.as_ref() else {
            return;
        };
        let input_bytes: usize = active.wire.input.iter().map(Buf::block_bytes).sum();
        let bytes = input_bytes + conn.transport.received_bytes();
        let unsent_bytes = active.unsent_bytes();
        match active.links {
            Some(links) if links.list == list => {
                self.uncount(links);
                self.count(list, bytes, unsent_bytes);
                return self.with_links(id, |links| {
                    (links.bytes, links.unsent_bytes) = (bytes, unsent_bytes);
                });
            }
            Some(_) => self.unlist(id),
            None => {}
        }
        self.count(list, bytes, unsent_bytes);
        let previous = self.evictable.lists[list].newest.replace(id);
        match previous {
            Some(previous) => self.with_links(previous, |links| links.next = Some(id)),
            None => self.evictable.lists[list].oldest = Some(id),
        }
        let links = Links {
            list,
            bytes,
            unsent_bytes,
            previous,
            next: None,
        };
        if let Some(conn) = self.get(id) {
            conn.active().links = Some(links);
        }
    }

    /// Removes a connection from its list, if it is in one.
    pub(crate) fn unlist(&mut self, id: ConnId) {
        let active = self.get(id).and_then(|conn| conn.active.as_mut());
        let Some(links) = active.and_then(|active| active.links.take()) else {
            return;
        };
        self.uncount(links);
        match links.previous {
            Some(previous) => self.with_links(previous, |other| other.next = links.next),
            None => self.evictable.lists[links.list].oldest = links.next,
        }
        match links.next {
            Some(next) => self.with_links(next, |other| other.previous = links.previous),
            None => self.evictable.lists[links.list].newest = links.previous,
        }
    }

    fn count(&mut self, list: usize, bytes: usize, unsent_bytes: usize) {
        self.evictable.bytes += bytes;
        self.evictable.unread_bytes += if list == UNREAD { bytes } else { 0 };
        self.unsent_bytes
            .set(self.unsent_bytes.get() + unsent_bytes);
    }

    fn uncount(&mut self, links: Links) {
        self.evictable.bytes -= links.bytes;
        self.evictable.unread_bytes -= if links.list == UNREAD { links.bytes } else { 0 };
        self.unsent_bytes
            .set(self.unsent_bytes.get() - links.unsent_bytes);
    }

    fn with_links(&mut self, id: ConnId, change: impl FnOnce(&mut Links)) {
        let active = self.get(id).and_then(|conn| conn.active.as_mut());
        if let Some(links) = active.and_then(|active| active.links.as_mut()) {
            change(links);
        }
    }

    /// The bytes of the input blocks that listed connections hold: partial heads, and input of
    /// clients that do not read their responses.
    pub(crate) fn listed_input_bytes(&self) -> usize {
        self.evictable.bytes
    }

    /// The bytes of rendered responses that listed connections hold. The cell is always up to date.
    pub(crate) fn unsent_bytes(&self) -> &Rc<Cell<usize>> {
        &self.unsent_bytes
    }

    /// Whether connections whose clients do not read their responses hold more memory than partial
    /// heads do.
    pub(crate) fn is_mostly_unread(&self) -> bool {
        let unread = self.evictable.unread_bytes;
        unread + self.unsent_bytes.get() > self.evictable.bytes - unread
    }

    /// The partial head to evict next: the oldest large one, or else the oldest small one.
    pub(crate) fn head_to_evict(&self) -> Option<ConnId> {
        self.evictable.lists[LARGE]
            .oldest
            .or(self.evictable.lists[SMALL].oldest)
    }

    /// The connection to reset next among those whose client does not read its responses.
    pub(crate) fn unread_to_evict(&self) -> Option<ConnId> {
        self.evictable.lists[UNREAD].oldest
    }
}
