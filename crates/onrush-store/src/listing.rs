//! What a folder contains: pages ([`Store::list`](crate::Store::list)), or all of it from one end
//! to the other. Then a [`Cursor`] is the place in it, and
//! [`Store::next_entries`](crate::Store::next_entries) goes on from there.
//!
//! Pages of a listing are independent of each other, so each shows what exists when it is read, and
//! a store may have to look for its beginning. A cursor keeps what the store needs for the next
//! step, so a store reads a large folder once, or a few times if memory is short.

use crate::key::Key;
use crate::meta::{Kind, Version};
use std::any::Any;
use std::fmt;

/// Which part of a folder to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListHow {
    /// Only names that sort after this one, or after this
    /// [`Features::position`](crate::Features::position).
    pub after: Option<Vec<u8>>,
    /// The maximum number of entries, clamped to 1 to [`ListHow::LIMIT_MAX`].
    pub limit: usize,
    /// Whether to include names that begin with a dot (never the store's own folder).
    pub hidden: bool,
    /// For whom the folder is listed. Clients take turns.
    pub client: u64,
}

impl ListHow {
    /// The maximum number of entries in a page. It bounds the memory of a listing.
    pub const LIMIT_MAX: usize = 10_000;
}

impl Default for ListHow {
    fn default() -> ListHow {
        ListHow {
            after: None,
            limit: 1000,
            hidden: false,
            client: 0,
        }
    }
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Ordered by name. Fewer than the limit, even none, if some names are hidden or not objects.
    pub entries: Vec<Entry>,
    /// The value of `after` for the next page; `None` if this is the last one.
    pub next: Option<Vec<u8>>,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last segment of its key.
    pub name: Vec<u8>,
    /// Object or folder.
    pub kind: Kind,
    /// Size of the content in bytes; 0 for a folder.
    pub size: u64,
    /// Time of the last change, in nanoseconds since 1970; 0 for a folder if it is not known.
    pub modified_ns: i64,
    /// Changes whenever the bytes may have changed.
    pub version: Version,
}

/// The memory that a [`Cursor`] may use for names it has read and not returned yet. A store needs
/// a little in any case ([`Cursor::NAMES_BYTES_MIN`]), which is not asked for. With less memory it
/// reads the folder more often.
pub trait NamesMemory: Send + Sync {
    /// Changes what the cursor has to `bytes`, or returns false and changes nothing. Giving back
    /// always succeeds. Dropping this gives back all.
    fn resize(&mut self, bytes: usize) -> bool;
}

/// What a [`Cursor`] returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CursorHow {
    /// Only names that sort after this one, as in [`ListHow`].
    pub after: Option<Vec<u8>>,
    /// Whether to include names that begin with a dot (never the store's own folder).
    pub hidden: bool,
    /// For whom the folder is read. Clients take turns.
    pub client: u64,
    /// Whether to return the metadata of objects, if that takes no request to another machine.
    pub metadata: bool,
    /// The same, for the properties of objects and folders
    /// ([`Store::properties`](crate::Store::properties)).
    pub properties: bool,
}

/// An entry, with what [`CursorHow`] asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetailedEntry {
    /// The entry.
    pub entry: Entry,
    /// The metadata of an object; empty if it has none or it cannot be read. `None`: it was not
    /// looked for.
    pub metadata: Option<Vec<u8>>,
    /// The properties of clients, in the same way.
    pub properties: Option<Vec<u8>>,
}

impl From<Entry> for DetailedEntry {
    fn from(entry: Entry) -> DetailedEntry {
        DetailedEntry {
            entry,
            metadata: None,
            properties: None,
        }
    }
}

/// A place in a folder. It holds no descriptor, and may stay where it is for as long as its owner
/// likes.
pub struct Cursor {
    pub(crate) folder: Option<Key>,
    pub(crate) how: CursorHow,
    pub(crate) state: ListingState,
}

pub(crate) enum ListingState {
    /// Nothing was read.
    Begin(Box<dyn NamesMemory>),
    /// What the store needs to go on.
    Place(Box<dyn Any>),
    /// The next page, for a store that goes by pages.
    Page(Option<Vec<u8>>),
    End,
}

impl Cursor {
    /// The bytes of names that are kept without asking for them.
    pub const NAMES_BYTES_MIN: usize = 16 << 10;
    /// The bytes of names that are kept at most: those of about 400,000.
    pub const NAMES_BYTES_MAX: usize = 8 << 20;

    /// The beginning of `folder` (`None`: the root folder). Nothing is read yet.
    pub fn new(folder: Option<Key>, how: CursorHow, memory: Box<dyn NamesMemory>) -> Cursor {
        Cursor {
            folder,
            how,
            state: ListingState::Begin(memory),
        }
    }

    /// The folder that is read.
    pub fn folder(&self) -> Option<&Key> {
        self.folder.as_ref()
    }

    /// The page that a store without cursors of its own lists next. `None` at the end.
    pub(crate) fn page(&mut self, limit: usize) -> Option<ListHow> {
        let after = match std::mem::replace(&mut self.state, ListingState::End) {
            ListingState::Begin(_) => self.how.after.clone(),
            ListingState::Page(after) => after,
            ListingState::Place(_) | ListingState::End => return None,
        };
        Some(ListHow {
            after,
            limit,
            hidden: self.how.hidden,
            client: self.how.client,
        })
    }
}

impl fmt::Debug for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("folder", &self.folder)
            .field("how", &self.how)
            .finish_non_exhaustive()
    }
}
