//! Lists a folder page by page, in the order of the bytes of the names.
//!
//! The kernel returns directory entries in no useful order, so every page reads all names. It keeps
//! only the smallest names that fit into the page, and reads the metadata of those alone. The
//! memory depends on the page, not on the folder.

use super::Inner;
use crate::error::{Result, StoreError};
use crate::key::{Key, is_reserved};
use crate::meta::{Kind, Meta};
use crate::store::{Entry, ListHow, Page};
use onrush_rt::coop;
use onrush_rt::fs::{Dir, FileKind, Metadata};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::future::poll_fn;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Entries that are copied in one step.
const COPY_STEP: usize = 64;
/// The cost of a copied entry in the cooperative budget, in bytes. A copy allocates a name.
const COPY_COST: usize = 256;

pub(super) fn list(inner: &Inner, folder: Option<&Key>, how: &ListHow) -> Result<Page> {
    let opened;
    let dir = match folder {
        None => &inner.root,
        Some(key) => {
            opened = open(inner, key)?;
            &opened
        }
    };
    let limit = how.limit.clamp(1, ListHow::LIMIT_MAX);
    // One more than the page, to find out whether there is a next page.
    let mut names = smallest(dir, folder.is_none(), how, limit + 1)?;
    let more = names.len() > limit;
    names.truncate(limit);
    let next = if more {
        names.last().map(|last| last.name.clone())
    } else {
        None
    };
    let mut entries = Vec::with_capacity(names.len());
    for name in names {
        if let Some(meta) = entry_meta(inner, folder, dir, &name)? {
            let Meta {
                kind,
                size,
                modified_ns,
                version,
            } = meta;
            entries.push(Entry {
                name: name.name,
                kind,
                size,
                modified_ns,
                version,
            });
        }
    }
    Ok(Page { entries, next })
}

/// Copies a page that other requests share. A page may have [`ListHow::LIMIT_MAX`] entries, and the
/// calling worker copies them, so it does so in steps that draw on the cooperative budget.
pub(super) async fn copy(page: Arc<Page>) -> Page {
    let page = match Arc::try_unwrap(page) {
        Ok(page) => return page, // No other request needs it.
        Err(shared) => shared,
    };
    let mut entries = Vec::with_capacity(page.entries.len());
    for step in page.entries.chunks(COPY_STEP) {
        poll_fn(coop::poll_proceed).await;
        entries.extend_from_slice(step);
        coop::spend(step.len() * COPY_COST);
    }
    Page {
        entries,
        next: page.next.clone(),
    }
}

fn open(inner: &Inner, key: &Key) -> Result<Dir> {
    inner
        .root
        .open_dir(key.as_bytes())
        .map_err(|error| match error.kind() {
            // Either the last segment or an earlier one is not a directory.
            io::ErrorKind::NotADirectory => match inner.meta(key) {
                Ok(Meta {
                    kind: Kind::File, ..
                }) => StoreError::NotDirectory,
                _ => StoreError::NotFound,
            },
            _ => StoreError::from_lookup(error),
        })
}

/// A name that may be on the page, ordered by its bytes.
struct Name {
    name: Vec<u8>,
    kind: Option<FileKind>,
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.name == other.name
    }
}

impl Eq for Name {}

/// The `count` smallest names after `how.after` that may be listed, sorted.
fn smallest(dir: &Dir, top: bool, how: &ListHow, count: usize) -> Result<Vec<Name>> {
    let after = how.after.as_deref().unwrap_or_default();
    let mut heap: BinaryHeap<Name> = BinaryHeap::new();
    let mut each = |name: &[u8], kind: Option<FileKind>| {
        let left_out = name <= after
            || (name[0] == b'.' && (!how.hidden || is_reserved(name, top)))
            || kind == Some(FileKind::Special);
        if left_out {
            return ControlFlow::Continue(());
        }
        if heap.len() < count {
            heap.push(Name {
                name: name.to_vec(),
                kind,
            });
        } else if let Some(mut greatest) = heap.peek_mut()
            && name < greatest.name.as_slice()
        {
            greatest.name.clear();
            greatest.name.extend_from_slice(name);
            greatest.kind = kind;
        }
        ControlFlow::Continue(())
    };
    dir.read_dir(&mut each).map_err(StoreError::from_lookup)?;
    Ok(heap.into_sorted_vec())
}

/// The properties of a name in `dir`; `None` if it is not an object, or does not exist any more.
fn entry_meta(inner: &Inner, folder: Option<&Key>, dir: &Dir, name: &Name) -> Result<Option<Meta>> {
    let mut found = match name.kind {
        Some(FileKind::Symlink) => None,
        _ => match absent(dir.entry_metadata(&name.name))? {
            Some(found) if found.kind != FileKind::Symlink => Some(found),
            Some(_) => None,
            None => return Ok(None),
        },
    };
    if found.is_none() {
        // The target of a link may be anywhere beneath the root, so it is resolved from the root.
        let mut path = folder
            .map(|key| key.as_bytes().to_vec())
            .unwrap_or_default();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name.name);
        found = absent(inner.root.metadata(&path))?;
    }
    Ok(found.as_ref().and_then(Meta::from_file))
}

/// `None` for an entry that cannot be reached, so it is left out. Errors of the disk are returned.
fn absent(result: io::Result<Metadata>) -> Result<Option<Metadata>> {
    match result.map_err(StoreError::from_lookup) {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NotFound | StoreError::PermissionDenied(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Version;
    use onrush_rt::driver::sim::{Behaviour, Net};
    use onrush_rt::worker::Worker;
    use std::cell::Cell;
    use std::pin::pin;
    use std::rc::Rc;

    #[test]
    fn other_tasks_run_while_a_large_page_is_copied() {
        let entry = |number: usize| Entry {
            name: number.to_string().into_bytes(),
            kind: Kind::File,
            size: 1,
            modified_ns: 0,
            version: Version::parse(b"x").unwrap(),
        };
        let page = Arc::new(Page {
            entries: (0..ListHow::LIMIT_MAX).map(entry).collect(),
            next: Some(b"next".to_vec()),
        });
        let polls = Rc::new(Cell::new(0));
        let copied = Rc::new(Cell::new(None));
        let (counted, result, shared) = (polls.clone(), copied.clone(), page.clone());
        let task = async move {
            let mut copy = pin!(copy(shared));
            let copy = poll_fn(|cx| {
                counted.set(counted.get() + 1);
                copy.as_mut().poll(cx)
            });
            result.set(Some(copy.await));
        };
        let mut worker = Worker::simulated(Net::new(1, Behaviour::default()), 0).unwrap();
        worker.context().spawn(task).detach();
        let copy = loop {
            worker.poll(&(), false).unwrap();
            if let Some(copy) = copied.take() {
                break copy;
            }
        };
        assert_eq!(copy, *page);
        let polls_min = ListHow::LIMIT_MAX * COPY_COST / coop::BYTES as usize;
        assert!(polls.get() >= polls_min, "{} polls", polls.get());
    }
}
