//! Whether a folder distinguishes names that differ in case, or in the Unicode form of a letter.
//! Rules and locks are for paths: where it does not, a client reaches an object by another path,
//! for which there is no rule and no lock.
//!
//! That is a property of each folder: of its file system, its mount, or of itself (ext4 and f2fs
//! with `casefold`). It is found out by a lookup of a name that exists in another spelling.

use super::FolderInner;
use crate::error::{Result, StoreError};
use crate::key::Key;
use onrush_rt::fs::{Dir, OpenHow};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

/// The maximum number of names that are looked at.
const NAMES_MAX: usize = 64;

/// A file that is made where no name says enough: reserved in every folder, with a letter that has
/// two forms in Unicode.
const PROBE: &str = ".onrush-staging.probe-\u{e9}";
/// The same in the other form, and in other cases.
const OTHERS: [&str; 3] = [
    ".onrush-staging.probe-e\u{301}",
    ".ONRUSH-STAGING.PROBE-\u{c9}",
    ".ONRUSH-STAGING.PROBE-\u{e9}",
];
/// Where a file system knows only some letters.
const PLAIN_PROBE: &str = ".onrush-staging.probe";
const PLAIN_OTHER: &str = ".ONRUSH-STAGING.PROBE";

/// What is asked of a folder.
trait Names {
    /// Whether its file system is of a kind that never distinguishes names by case, or the folder
    /// is marked so.
    fn is_known_to_fold(&self) -> bool;

    /// Some of its names.
    fn some(&self) -> io::Result<Vec<Vec<u8>>>;

    /// What a name leads to, without following links: device and inode. `None`: it is not there.
    fn find(&self, name: &[u8]) -> io::Result<Option<(u64, u64)>>;

    /// Makes an empty file, which must not exist.
    fn create(&self, name: &[u8]) -> io::Result<()>;

    fn remove(&self, name: &[u8]);
}

impl Names for Dir {
    fn is_known_to_fold(&self) -> bool {
        self.folds_names()
    }

    fn some(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.read_dir(&mut |name, _| {
            names.push(name.to_vec());
            match names.len() < NAMES_MAX {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        Ok(names)
    }

    fn find(&self, name: &[u8]) -> io::Result<Option<(u64, u64)>> {
        match self.entry_metadata(name) {
            Ok(found) => Ok(Some((found.device, found.inode))),
            Err(error) if is_no_name(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn create(&self, name: &[u8]) -> io::Result<()> {
        self.open(name, OpenHow::create_new(0o600)).map(drop)
    }

    fn remove(&self, name: &[u8]) {
        let _ = self.unlink(name);
    }
}

/// Also one that the file system cannot have.
fn is_no_name(error: &io::Error) -> bool {
    let is_unknown = error.raw_os_error() == Some(libc::EILSEQ);
    is_unknown
        || matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
        )
}

/// The name with each ASCII letter in the other case. `None`: it has none.
fn in_other_case(name: &[u8]) -> Option<Vec<u8>> {
    let swap = |byte: &u8| match byte.is_ascii_lowercase() {
        true => byte.to_ascii_uppercase(),
        false => byte.to_ascii_lowercase(),
    };
    let other: Vec<u8> = name.iter().map(swap).collect();
    (other != name).then_some(other)
}

/// Whether two spellings lead to the same in a folder. `None`: the first one is not there.
fn are_one(folder: &impl Names, name: &[u8], other: &[u8]) -> io::Result<Option<bool>> {
    let Some(found) = folder.find(name)? else {
        return Ok(None);
    };
    let is_one = folder.find(other)? == Some(found);
    // Otherwise it was removed or replaced meanwhile, and the lookup says nothing.
    Ok((folder.find(name)? == Some(found)).then_some(is_one))
}

/// Whether a folder does not distinguish names such as `name`. `may_write`: a file may be made to
/// find out; otherwise a folder without names counts as one that distinguishes them.
fn folds(folder: &impl Names, name: &[u8], may_write: bool) -> io::Result<bool> {
    if folder.is_known_to_fold() {
        return Ok(true);
    }
    let mut names = vec![name.to_vec()];
    names.extend(folder.some()?);
    let mut is_decided = false;
    for name in &names {
        let Some(other) = in_other_case(name) else {
            continue;
        };
        match are_one(folder, name, &other)? {
            Some(true) => return Ok(true),
            Some(false) => is_decided = true,
            None => {}
        }
        if is_decided {
            break;
        }
    }
    // Names in ASCII say nothing about other letters.
    match may_write && !(is_decided && name.is_ascii()) {
        true => probe(folder),
        false => Ok(false),
    }
}

fn probe(folder: &impl Names) -> io::Result<bool> {
    let (mut name, mut others) = (PROBE, &OTHERS[..]);
    let mut made = folder.create(name.as_bytes());
    if made.as_ref().is_err_and(is_no_name) {
        (name, others) = (PLAIN_PROBE, &[PLAIN_OTHER][..]);
        made = folder.create(name.as_bytes());
    }
    match made {
        Ok(()) => {}
        // That of a process that has ended.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        // The folder cannot be written: what is in it was looked at.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => return Ok(false),
        Err(error) => return Err(error),
    }
    let mut folds = Ok(Some(false));
    for other in others {
        folds = are_one(folder, name.as_bytes(), other.as_bytes());
        if !matches!(folds, Ok(Some(false))) {
            break;
        }
    }
    folder.remove(name.as_bytes());
    folds.map(Option::unwrap_or_default)
}

/// Whether a folder on the way to `path` (empty: the top folder) does not distinguish names.
fn folds_on_the_way(root: &Dir, path: &[u8], may_write: bool) -> io::Result<bool> {
    let mut open = None;
    let segments = path.split(|&byte| byte == b'/');
    for segment in segments {
        let dir = open.as_ref().unwrap_or(root);
        if folds(dir, segment, may_write)? {
            return Ok(true);
        }
        if segment.is_empty() {
            break;
        }
        match dir.open_dir(segment) {
            Ok(next) => open = Some(next),
            // A folder that is made later has the properties of the one above it.
            Err(error) if is_no_name(&error) => break,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => break,
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Whether a folder on the way to `path` beneath the folder `dir` does not distinguish names by
/// case, or by the form of a letter. `path` is decoded; an empty one is `dir` itself. With
/// `may_write`, a file is made for a moment where the names that exist do not tell. Blocks.
pub fn folds_names(dir: &Path, path: &[u8], may_write: bool) -> io::Result<bool> {
    folds_on_the_way(&Dir::open_root(dir)?, path, may_write)
}

/// As [`folds_names`], without writing, and of the folder of a store. Blocks.
pub(super) fn folds_at(inner: &FolderInner, key: &Key) -> Result<bool> {
    folds_on_the_way(&inner.root, key.as_bytes(), false).map_err(StoreError::from_lookup)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A folder that folds names in its own way.
    struct Fake {
        names: RefCell<Vec<String>>,
        fold: fn(&str) -> String,
        is_known: bool,
        is_read_only: bool,
        only_ascii: bool,
    }

    impl Fake {
        fn new(names: &[&str], fold: fn(&str) -> String) -> Fake {
            Fake {
                names: RefCell::new(names.iter().map(|&name| name.to_owned()).collect()),
                fold,
                is_known: false,
                is_read_only: false,
                only_ascii: false,
            }
        }
    }

    impl Names for Fake {
        fn is_known_to_fold(&self) -> bool {
            self.is_known
        }

        fn some(&self) -> io::Result<Vec<Vec<u8>>> {
            let names = self.names.borrow();
            Ok(names.iter().map(|name| name.clone().into_bytes()).collect())
        }

        fn find(&self, name: &[u8]) -> io::Result<Option<(u64, u64)>> {
            let wanted = (self.fold)(std::str::from_utf8(name).expect("UTF-8"));
            let names = self.names.borrow();
            let at = names.iter().position(|name| (self.fold)(name) == wanted);
            Ok(at.map(|at| (1, at as u64)))
        }

        fn create(&self, name: &[u8]) -> io::Result<()> {
            if self.is_read_only {
                return Err(io::ErrorKind::ReadOnlyFilesystem.into());
            }
            if self.only_ascii && !name.is_ascii() {
                return Err(io::Error::from_raw_os_error(libc::EILSEQ));
            }
            let name = std::str::from_utf8(name).expect("UTF-8").to_owned();
            self.names.borrow_mut().push(name);
            Ok(())
        }

        fn remove(&self, name: &[u8]) {
            let name = std::str::from_utf8(name).expect("UTF-8");
            self.names.borrow_mut().retain(|other| other != name);
        }
    }

    fn exact(name: &str) -> String {
        name.to_owned()
    }

    fn case(name: &str) -> String {
        name.to_lowercase()
    }

    fn form(name: &str) -> String {
        name.replace("e\u{301}", "\u{e9}")
    }

    #[test]
    fn a_lookup_in_another_spelling_decides() {
        let all: &[&str] = &["1", "Readme", "a"];
        for (names, fold, name, may_write, expected) in [
            (all, exact as fn(&str) -> String, "a", false, false),
            (all, case, "a", false, true),
            (all, case, "new", false, true),
            (all, case, "7", false, true),
            (&["A", "a"], exact, "a", false, false),
            (&["1", "2"], case, "b", false, false), // No name tells.
            (&["1", "2"], case, "b", true, true),
            (&[], case, "", true, true),
            (&[], exact, "b", true, false),
            (all, form, "caf\u{e9}", true, true),
            (all, form, "cafe", true, false),
            (all, exact, "caf\u{e9}", true, false),
        ] {
            let folder = Fake::new(names, fold);
            let found = folds(&folder, name.as_bytes(), may_write).expect("no failure");
            assert_eq!(found, expected, "{names:?} {name} {may_write}");
            assert_eq!(*folder.names.borrow(), names, "nothing is left");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_judged_by_what_is_known() {
        let mut folder = Fake::new(&["1"], case);
        folder.is_read_only = true;
        assert!(!folds(&folder, b"a", true).expect("no failure"));
        folder.is_known = true;
        assert!(folds(&folder, b"a", true).expect("no failure"));
        let mut folder = Fake::new(&[], case);
        folder.only_ascii = true;
        assert!(folds(&folder, b"a", true).expect("no failure"));
        assert!(folder.names.borrow().is_empty());
    }
}
