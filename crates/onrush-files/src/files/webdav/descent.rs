//! The entries of a folder, and with `Depth: infinity` everything beneath it that the client may
//! list, up to a number. Memory does not grow with the folder: some names and entries of each
//! folder on the way down, which the budget of listings limits.

use crate::files::listing::entries::Entries;
use crate::files::shared::objects::Objects;
use crate::files::shared::permitted::Permitted;
use crate::rights::Rights;
use crate::shares::Holder;
use onrush_store::{CursorHow, DetailedEntry, Key, Kind, StoreError, Version};
use std::sync::Arc;

/// Why the way ends early.
pub(super) enum Stopped {
    /// There are more entries than permitted.
    TooMany,
    Because(StoreError),
}

/// A folder on the way.
struct Level {
    entries: Entries,
    /// Its path beneath the top. Ends with a slash unless empty.
    below: Vec<u8>,
    /// The version that its entry had, to recognise it when a link leads back to it.
    version: Option<Version>,
}

/// The way, in the order of listings: a folder comes before what it contains.
pub(super) struct Descent {
    objects: Arc<Objects>,
    permitted: Permitted,
    /// Whose memory the entries are.
    holder: Holder,
    how: CursorHow,
    levels: Vec<Level>,
    /// The entries that may follow. `None`: those of the top folder only, however many.
    left: Option<usize>,
}

impl Descent {
    /// `how`: what is needed of each entry. `left`: the maximum number of entries; `None`: folders
    /// are not entered, and there is no maximum.
    pub(super) fn new(
        objects: &Arc<Objects>,
        holder: Holder,
        permitted: Permitted,
        how: CursorHow,
        left: Option<usize>,
    ) -> Descent {
        Descent {
            objects: objects.clone(),
            permitted,
            holder,
            how,
            levels: Vec::new(),
            left,
        }
    }

    /// Begins at `folder`, which the client may list; `version` is that of its entry.
    pub(super) async fn begin(
        mut self,
        folder: Option<Key>,
        version: Option<Version>,
    ) -> Result<Descent, StoreError> {
        let mut top = self.level(folder, Vec::new(), version);
        top.entries.begin(&self.objects).await?;
        self.levels.push(top);
        Ok(self)
    }

    fn level(&self, folder: Option<Key>, below: Vec<u8>, version: Option<Version>) -> Level {
        Level {
            entries: Entries::new(&self.objects, self.holder, folder, self.how.clone()),
            below,
            version,
        }
    }

    /// Goes all the way, to know whether there are too many.
    pub(super) async fn count(mut self) -> Result<(), Stopped> {
        while self.next().await?.is_some() {}
        Ok(())
    }

    /// The next entry, and what the client may do there. `None`: there is no more.
    pub(super) async fn next(&mut self) -> Result<Option<(Key, DetailedEntry, Rights)>, Stopped> {
        while let Some(level) = self.levels.last_mut() {
            let one = match level.entries.next(&self.objects).await {
                Ok(Some(one)) => one,
                Ok(None) => {
                    self.levels.pop();
                    continue;
                }
                Err(error) if self.levels.len() > 1 && is_passed_over(&error) => {
                    self.levels.pop();
                    continue;
                }
                Err(error) => return Err(Stopped::Because(error)),
            };
            let name = &one.entry.name[..];
            let Ok(key) = Key::of_entry(level.entries.folder(), name) else {
                continue; // Too long to be requested by itself.
            };
            let mut below = [&level.below[..], name].concat();
            let rights = self.permitted.at(&below);
            if let Some(left) = &mut self.left {
                *left = left.checked_sub(1).ok_or(Stopped::TooMany)?;
                let version = one.entry.version;
                let is_same = |level: &Level| level.version == Some(version);
                let is_loop = one.entry.modified_ns != 0 && self.levels.iter().any(is_same);
                if one.entry.kind == Kind::Directory && rights.contains(Rights::LIST) && !is_loop {
                    below.push(b'/');
                    let level = self.level(Some(key.clone()), below, Some(version));
                    self.levels.push(level);
                }
            }
            return Ok(Some((key, one, rights)));
        }
        Ok(None)
    }
}

/// Whether a folder is left out, because it is gone or the server may not read it.
fn is_passed_over(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::NotFound | StoreError::NotDirectory | StoreError::PermissionDenied(_)
    )
}
