//! The connections that may be evicted when receive memory is short: those that hold a partial
//! head, and those whose client does not read its responses. The engine does not process the input
//! of the latter. Each list is in order of age. `state` says in which phases a connection is
//! listed.

use crate::connections::ConnId;
use crate::engine::connection::Conn;
use onrush_rt::buf::Buf;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A partial head of at least this size is a large one.
const LARGE_HEAD_BYTES: usize = 4096;

/// What the connections of a list hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    SmallHeads,
    LargeHeads,
    Unread,
}

/// The place of a connection in a list, and the memory that it holds: blocks of input, and
/// rendered responses.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Listing {
    list: List,
    /// Its age: the oldest has the smallest number.
    place: u64,
    input_bytes: usize,
    unsent_bytes: usize,
}

impl Conn {
    /// Whether the connection is in a list of connections that may be evicted.
    #[inline]
    pub(in crate::engine) fn is_listed(&self) -> bool {
        (self.active.as_ref()).is_some_and(|active| active.listing.is_some())
    }
}

/// The connections of one worker that may be evicted.
#[derive(Debug, Default)]
pub(in crate::engine) struct Evictable {
    /// By [`Listing::place`]; indexed by [`List`].
    lists: [BTreeMap<u64, ConnId>; 3],
    next_place: u64,
    /// Bytes of the input blocks that all of them hold, and that those in [`List::Unread`] hold.
    input_bytes: usize,
    unread_bytes: usize,
    /// Bytes of rendered responses that they hold.
    unsent_bytes: Rc<Cell<usize>>,
}

impl Evictable {
    /// Adds a connection with a partial head, or moves it to the list of large heads.
    pub(in crate::engine) fn list_head(&mut self, id: ConnId, conn: &mut Conn) {
        let is_large = conn.input_bytes() + conn.transport.received_bytes() >= LARGE_HEAD_BYTES;
        let list = if is_large {
            List::LargeHeads
        } else {
            List::SmallHeads
        };
        self.list(id, conn, list);
    }

    /// Adds a connection to the list of heads if a handler waits for its body and the connection
    /// holds a part of a record; otherwise removes it from that list. A handler that does not wait
    /// finds what has arrived, so nothing of it is evicted.
    pub(in crate::engine) fn list_awaited_record(&mut self, id: ConnId, conn: &mut Conn) {
        let Some(active) = conn.active.as_deref() else {
            return;
        };
        let is_unread = |listing: Listing| listing.list == List::Unread;
        if active.listing.is_some_and(is_unread) {
            return;
        }
        match active.exchange.reader.is_some() && conn.transport.received_bytes() > 0 {
            true => self.list_head(id, conn),
            false => self.unlist(conn),
        }
    }

    /// Adds a connection whose client does not read its responses, if it holds input or rendered
    /// responses.
    pub(in crate::engine) fn list_unread(&mut self, id: ConnId, conn: &mut Conn) {
        let active = conn.active.as_ref();
        if active.is_some_and(|active| active.wire.input_bytes > 0 || active.unsent_bytes() > 0) {
            self.list(id, conn, List::Unread);
        }
    }

    /// Called when the client has read bytes. A listed connection that still holds memory becomes
    /// the newest of those whose client does not read.
    pub(in crate::engine) fn list_unread_anew(&mut self, id: ConnId, conn: &mut Conn) {
        if conn.is_listed() {
            self.unlist(conn);
            self.list_unread(id, conn);
        }
    }

    /// Adds a connection to a list as its newest, or updates its memory if it is in that list.
    fn list(&mut self, id: ConnId, conn: &mut Conn, list: List) {
        let received_bytes = conn.transport.received_bytes();
        let Some(active) = conn.active.as_mut() else {
            return;
        };
        let input_bytes: usize = active.wire.input.iter().map(Buf::block_bytes).sum();
        let before = active.listing.take();
        if let Some(before) = before {
            self.uncount(before);
        }
        let place = match before {
            Some(before) if before.list == list => before.place,
            before => {
                if let Some(before) = before {
                    self.lists[before.list as usize].remove(&before.place);
                }
                let place = self.next_place;
                self.next_place += 1;
                self.lists[list as usize].insert(place, id);
                place
            }
        };
        let listing = Listing {
            list,
            place,
            input_bytes: input_bytes + received_bytes,
            unsent_bytes: active.unsent_bytes(),
        };
        active.listing = Some(listing);
        self.input_bytes += listing.input_bytes;
        self.unread_bytes += listing.unread_bytes();
        self.unsent_bytes
            .set(self.unsent_bytes.get() + listing.unsent_bytes);
    }

    /// Removes a connection from its list, if it is in one.
    pub(in crate::engine) fn unlist(&mut self, conn: &mut Conn) {
        let active = conn.active.as_mut();
        let Some(listing) = active.and_then(|active| active.listing.take()) else {
            return;
        };
        self.uncount(listing);
        self.lists[listing.list as usize].remove(&listing.place);
    }

    fn uncount(&mut self, listing: Listing) {
        self.input_bytes -= listing.input_bytes;
        self.unread_bytes -= listing.unread_bytes();
        self.unsent_bytes
            .set(self.unsent_bytes.get() - listing.unsent_bytes);
    }

    /// The bytes of the input blocks that listed connections hold: partial heads, and input of
    /// clients that do not read their responses.
    pub(in crate::engine) fn input_bytes(&self) -> usize {
        self.input_bytes
    }

    /// The bytes of rendered responses that listed connections hold. The cell is always up to date.
    pub(in crate::engine) fn unsent_bytes(&self) -> &Rc<Cell<usize>> {
        &self.unsent_bytes
    }

    /// Takes the connection that is evicted next out of its list; `None`: there is none. The caller
    /// unlists it.
    ///
    /// A partial head is the oldest large one, or else the oldest small one. If clients that do not
    /// read hold more memory than partial heads do, the oldest of them comes first.
    pub(in crate::engine) fn take_victim(&mut self) -> Option<Victim> {
        let heads_bytes = self.input_bytes - self.unread_bytes;
        let is_mostly_unread = self.unread_bytes + self.unsent_bytes.get() > heads_bytes;
        let mut pop = |list: List| Some(self.lists[list as usize].pop_first()?.1);
        if is_mostly_unread && let Some(id) = pop(List::Unread) {
            return Some(Victim::Unread(id));
        }
        let head = pop(List::LargeHeads).or_else(|| pop(List::SmallHeads));
        let head = head.map(Victim::Head);
        head.or_else(|| pop(List::Unread).map(Victim::Unread))
    }

    /// Whether no connection is listed.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        let bytes = self.input_bytes + self.unread_bytes + self.unsent_bytes.get();
        self.lists.iter().all(BTreeMap::is_empty) && bytes == 0
    }
}

/// A connection to evict.
pub(in crate::engine) enum Victim {
    /// It holds a partial head, or a part of a record.
    Head(ConnId),
    /// Its client does not read its responses.
    Unread(ConnId),
}

impl Listing {
    fn unread_bytes(&self) -> usize {
        match self.list {
            List::Unread => self.input_bytes,
            List::SmallHeads | List::LargeHeads => 0,
        }
    }
}
