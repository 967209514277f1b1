//! How two names lie to each other, by the devices and inodes that they lead to. Other programs may
//! move folders meanwhile; `rename(2)` itself never moves a folder beneath itself.

use super::FolderInner;
use super::parents::{self, Parent};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::store::Overlap;
use onrush_rt::fs::Dir;

/// Symbolic links are followed, also the last segment of a name.
pub(super) fn find(inner: &FolderInner, from: &Key, to: &Key) -> Result<Overlap> {
    if from == to {
        return Ok(Overlap::Same);
    }
    let (one, other) = (Place::of(inner, from), Place::of(inner, to));
    match (one.is_folder, other.is_folder) {
        (true, true) if is_same(one.dir(), other.dir()) => Ok(Overlap::Same),
        (true, _) if is_within(&other, &one)? => Ok(Overlap::Beneath),
        (_, true) if is_within(&one, &other)? => Ok(Overlap::Contains),
        (false, false) if from.name() == to.name() && is_same(one.dir(), other.dir()) => {
            Ok(Overlap::Same)
        }
        _ => Ok(Overlap::None),
    }
}

/// The folder at a name, or the innermost one above it that exists.
struct Place {
    parent: Parent,
    is_folder: bool,
}

impl Place {
    fn of(inner: &FolderInner, key: &Key) -> Place {
        let mut path = Some(key.clone());
        let mut is_folder = true;
        while let Some(key) = path {
            // What cannot be opened is not changed either.
            if let Ok(parent) = parents::open(inner, Some(key.as_bytes())) {
                return Place { parent, is_folder };
            }
            is_folder = false;
            path = key.parent();
        }
        Place {
            parent: Parent::Root(inner.root.clone()),
            is_folder: false,
        }
    }

    fn dir(&self) -> &Dir {
        self.parent.dir()
    }
}

fn is_within(place: &Place, folder: &Place) -> Result<bool> {
    let found = place.dir().is_within(folder.dir());
    found.map_err(StoreError::from_open_file)
}

fn is_same(one: &Dir, other: &Dir) -> bool {
    match (one.self_metadata(), other.self_metadata()) {
        (Ok(one), Ok(other)) => one.identity() == other.identity(),
        _ => false,
    }
}
