//! How two names lie to each other, by the devices and inodes that they lead to. Other programs may
//! move folders meanwhile; `rename(2)` itself never moves a folder beneath itself.

use super::FolderInner;
use super::parents::{self, Parent};
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::store::Overlap;
use onrush_rt::fs::{Dir, FileKind};

/// The number of links to an object that are followed, as by the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Symbolic links are followed, also the last segment of a name: an object behind a link lies where
/// its content is, and is lost with that.
pub(super) fn find(inner: &FolderInner, from: &Key, to: &Key) -> Result<Overlap> {
    if from == to {
        return Ok(Overlap::Same);
    }
    let mut one = Location::of(inner, from);
    let mut name = from.name().to_vec();
    if !one.is_folder
        && let Some((parent, target)) = behind_links(inner, from)
    {
        (one.parent, name) = (parent, target);
    }
    let other = Location::of(inner, to);
    match (one.is_folder, other.is_folder) {
        (true, true) if is_same(one.dir(), other.dir()) => Ok(Overlap::Same),
        (true, _) if is_within(&other, &one)? => Ok(Overlap::Beneath),
        (_, true) if is_within(&one, &other)? => Ok(Overlap::Contains),
        (false, false) if name == to.name() && is_same(one.dir(), other.dir()) => Ok(Overlap::Same),
        _ => Ok(Overlap::None),
    }
}

/// The folder at a name, or the innermost one above it that exists.
struct Location {
    parent: Parent,
    is_folder: bool,
}

impl Location {
    fn of(inner: &FolderInner, key: &Key) -> Location {
        let mut path = Some(key.clone());
        let mut is_folder = true;
        while let Some(key) = path {
            // What cannot be opened is not changed either.
            if let Ok(parent) = parents::open(inner, Some(key.as_bytes())) {
                return Location { parent, is_folder };
            }
            is_folder = false;
            path = key.parent();
        }
        Location {
            parent: Parent::Root(inner.root.clone()),
            is_folder: false,
        }
    }

    fn dir(&self) -> &Dir {
        self.parent.dir()
    }
}

/// The folder and the name of the object that the links at `key` lead to. `None`: there is none, or
/// no link.
fn behind_links(inner: &FolderInner, key: &Key) -> Option<(Parent, Vec<u8>)> {
    let mut path = key.as_bytes().to_vec();
    for links in 0..=LINKS_MAX {
        let (folder, name) = parents::split(&path);
        let parent = parents::open(inner, folder).ok()?;
        match parent.dir().entry_metadata(name).ok()?.kind {
            FileKind::Symlink => {}
            _ => return (links > 0).then(|| (parent, name.to_vec())),
        }
        let target = parent.dir().read_link(name).ok()?;
        if target.first() == Some(&b'/') {
            return None; // It leaves the folder.
        }
        path = parents::join(folder.unwrap_or_default(), &target);
    }
    None
}

fn is_within(place: &Location, folder: &Location) -> Result<bool> {
    let found = place.dir().is_within(folder.dir());
    found.map_err(StoreError::from_open_file)
}

fn is_same(one: &Dir, other: &Dir) -> bool {
    match (one.self_metadata(), other.self_metadata()) {
        (Ok(one), Ok(other)) => one.identity() == other.identity(),
        _ => false,
    }
}
