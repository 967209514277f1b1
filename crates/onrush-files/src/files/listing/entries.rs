//! Reads a folder from one end to the other, for responses and changes that need all of it.
//!
//! The memory for names and entries is from the budget of listings, of which each client has a
//! share. With less of it a folder is read in smaller steps, but always whole.

use crate::files::path::shown::is_listed;
use crate::files::shared::objects::Objects;
use crate::shares::{Holder, Share, Shares};
use onrush_store::{Cursor, CursorHow, DetailedEntry, Entry, Key, NamesMemory, Result};
use std::sync::Arc;
use std::vec;

/// The entries that are read at a time.
pub(in crate::files) const BATCH: usize = 1000;
/// The same without memory from the budget.
const BATCH_MIN: usize = 64;

/// The memory of an entry in bytes, roughly, apart from the bytes of its name.
const ENTRY_BYTES: usize = size_of::<DetailedEntry>() + 16;
/// The length of a name for which memory is taken in advance.
const NAME_BYTES: usize = 48;

/// The entries of a folder that a listing shows, in order.
pub(in crate::files) struct Entries {
    cursor: Cursor,
    holder: Holder,
    batch: vec::IntoIter<DetailedEntry>,
    /// The memory of the batch.
    lease: Option<Share>,
}

/// Some entries, and their memory.
#[derive(Default)]
pub(in crate::files) struct Part {
    pub(in crate::files) entries: Vec<Entry>,
    /// No entries follow.
    pub(in crate::files) is_last: bool,
    leases: Vec<Share>,
}

impl Entries {
    /// `how`: what is needed; the rest is set here.
    pub(in crate::files) fn new(
        objects: &Objects,
        holder: Holder,
        folder: Option<Key>,
        how: CursorHow,
    ) -> Entries {
        let how = CursorHow {
            hidden: objects.options.lists_hidden(),
            client: holder.number(),
            ..how
        };
        let memory = NamesShare {
            shares: objects.shares.listings.clone(),
            holder,
            share: None,
        };
        Entries {
            cursor: Cursor::new(folder, how, Box::new(memory)),
            holder,
            batch: Vec::new().into_iter(),
            lease: None,
        }
    }

    /// The folder.
    pub(in crate::files) fn folder(&self) -> Option<&Key> {
        self.cursor.folder()
    }

    /// Reads the first entries, so that an error is known before the head of a response is sent.
    pub(in crate::files) async fn begin(&mut self, objects: &Objects) -> Result<()> {
        self.read(objects).await.map(drop)
    }

    /// The next entry. `None` at the end. After an error there are no more.
    pub(in crate::files) async fn next(
        &mut self,
        objects: &Objects,
    ) -> Result<Option<DetailedEntry>> {
        loop {
            for one in self.batch.by_ref() {
                if is_listed(&objects.options, self.cursor.folder(), &one.entry.name) {
                    return Ok(Some(one));
                }
            }
            self.read(objects).await?;
            if self.batch.len() == 0 {
                return Ok(None);
            }
        }
    }

    /// The next entries, up to `count` and one batch more, as far as there is memory for them.
    pub(in crate::files) async fn part(&mut self, objects: &Objects, count: usize) -> Result<Part> {
        let mut part = Part::default();
        loop {
            let is_whole = self.read(objects).await?;
            let folder = self.cursor.folder();
            part.is_last = self.batch.len() == 0;
            let batch = std::mem::take(&mut self.batch).map(|one| one.entry);
            let listed = batch.filter(|one| is_listed(&objects.options, folder, &one.name));
            part.entries.extend(listed);
            part.leases.extend(self.lease.take());
            if part.is_last || part.entries.len() >= count || !is_whole {
                return Ok(part);
            }
        }
    }

    /// Reads the next batch. Returns whether there was memory for a large one.
    async fn read(&mut self, objects: &Objects) -> Result<bool> {
        (self.batch, self.lease) = (Vec::new().into_iter(), None);
        let shares = &objects.shares.listings;
        let mut limit = BATCH;
        while limit > BATCH_MIN && self.lease.is_none() {
            // A store may read the next ones ahead.
            let bytes = 2 * limit * (ENTRY_BYTES + NAME_BYTES);
            match shares.take(self.holder, bytes) {
                Ok(lease) => self.lease = Some(lease),
                Err(_) => limit /= 2,
            }
        }
        let limit = limit.max(BATCH_MIN);
        let batch = objects.store.next_entries(&mut self.cursor, limit).await?;
        let len = |details: &Option<Vec<u8>>| details.as_ref().map_or(0, Vec::len);
        let bytes = |one: &DetailedEntry| {
            ENTRY_BYTES + one.entry.name.len() + len(&one.metadata) + len(&one.properties)
        };
        let bytes: usize = batch.iter().map(bytes).sum::<usize>() * 2;
        self.batch = batch.into_iter();
        if bytes <= Cursor::NAMES_BYTES_MIN {
            self.lease = None;
        } else if let Some(lease) = &mut self.lease {
            lease.resize(bytes); // If there is not enough, it is little that is missing.
        }
        Ok(limit == BATCH)
    }
}

/// Memory for the names of a folder: at most half of what the client can have, because what it
/// begins next would be read in very small steps otherwise.
struct NamesShare {
    shares: Arc<Shares>,
    holder: Holder,
    share: Option<Share>,
}

impl NamesMemory for NamesShare {
    fn resize(&mut self, bytes: usize) -> bool {
        match (&mut self.share, bytes) {
            (_, 0) => self.share = None,
            (Some(share), bytes) => {
                let is_granted = bytes <= share.units() || share.resize(2 * bytes);
                return is_granted && share.resize(bytes);
            }
            (None, bytes) => match self.shares.take(self.holder, 2 * bytes) {
                Ok(mut share) => {
                    share.resize(bytes);
                    self.share = Some(share);
                }
                Err(_) => return false,
            },
        }
        true
    }
}
