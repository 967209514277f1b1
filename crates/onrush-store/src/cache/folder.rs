//! The folder of a cache: which folders are accepted, the lock, and where files are.
//!
//! ```text
//! DIR/onrush-cache      says that the folder is a cache, and of what
//! DIR/onrush-files      the list of files, while no process uses the folder: see `list`
//! DIR/onrush-space      an upper bound of the space of the files: see `bound`
//! DIR/new/NUMBER        files that are being filled
//! DIR/ab/abcd…          the files, by the first two digits of their name
//! ```

use super::list::{self, Listed};
use super::name::Name;
use crate::key::RESERVED;
use onrush_rt::fs::{Create, Dir, File, FileKind, OpenHow};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

const MARK: &[u8] = b"onrush-cache";
const MARK_TEXT: &[u8] = b"This folder is a cache of onrush. Its files may be deleted.\n";
const MARK_BYTES_MAX: usize = 8192;
const NEW: &[u8] = b"new";
const BOUND: &[u8] = b"onrush-space";
const BOUND_BYTES_MAX: usize = 64;
/// The folder that some file systems have at their top.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Only the owner may read what is cached.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;
const MAY_EXIST: OpenHow = OpenHow {
    create: Create::IfMissing,
    ..OpenHow::create_new(FILE_MODE)
};

/// The folder. While it is open, no other process can open it as a cache.
#[derive(Debug)]
pub(super) struct Folder {
    /// Replaced if it was removed.
    root: RwLock<Dir>,
    /// Where it is created again; `None` if it is simulated.
    path: Option<PathBuf>,
    origin: String,
}

/// What was missing in a folder.
pub(super) enum Restored {
    /// A part at most. What others have removed besides is noticed when it is opened.
    Part,
    /// Everything: it is a new folder.
    Whole,
}

/// Creates the folder at `path` if it is missing, and opens it. Blocks.
pub(super) fn create(path: &Path) -> io::Result<Dir> {
    use std::os::unix::fs::DirBuilderExt;
    if let Some(parent) = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        std::fs::create_dir_all(parent)?;
    }
    match std::fs::DirBuilder::new().mode(DIR_MODE).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    check_owner(path)?;
    Dir::open_root(path)
}

/// Files of other users would be served as objects.
fn check_owner(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path)?;
    let is_foreign = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() != found.uid());
    match found.is_dir() && (is_foreign || found.mode() & 0o022 != 0) {
        true => Err(other(
            "can be changed by other users: chown and chmod 700 it",
        )),
        false => Ok(()),
    }
}

impl Folder {
    /// Locks the folder, checks that it is empty or a cache of `origin`, and removes what was being
    /// filled when the last process ended. `path`: where it is.
    pub(super) fn open(root: Dir, path: Option<PathBuf>, origin: &str) -> io::Result<Folder> {
        let origin = origin.replace('\n', " ");
        lock(&root, &origin)?;
        let new = root.open_dir(NEW)?;
        let mut left = Vec::new();
        new.read_dir(&mut |name, _| {
            left.push(name.to_vec());
            ControlFlow::Continue(())
        })?;
        for name in left {
            new.unlink(&name)?;
        }
        Ok(Folder {
            root: RwLock::new(root),
            path,
            origin,
        })
    }

    /// Creates the folder again if it was removed, or what is missing in it.
    pub(super) fn restore(&self) -> io::Result<Restored> {
        let mut root = self.root.write().unwrap_or_else(PoisonError::into_inner);
        match (prepare(&root, &self.origin), &self.path) {
            (Err(error), Some(path)) if error.kind() == io::ErrorKind::NotFound => {
                let created = create(path)?;
                lock(&created, &self.origin)?;
                *root = created;
                Ok(Restored::Whole)
            }
            (prepared, _) => prepared.map(|()| Restored::Part),
        }
    }

    fn root(&self) -> RwLockReadGuard<'_, Dir> {
        self.root.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn now_ms(&self) -> i64 {
        self.root().now_ns() / 1_000_000
    }

    pub(super) fn is_in_memory(&self) -> bool {
        self.root().is_in_memory()
    }

    /// Opens a file if that needs no disk.
    pub(super) fn open_cached(&self, name: &Name) -> io::Result<File> {
        self.root().open_cached(&name.path())
    }

    pub(super) fn open_file(&self, name: &Name) -> io::Result<File> {
        self.root().open(&name.path(), OpenHow::READ)
    }

    /// Creates a file without a name of its own.
    pub(super) fn create_new(&self, number: u64) -> io::Result<File> {
        let path = [NEW, b"/", number.to_string().as_bytes()].concat();
        self.root().open(&path, OpenHow::create_new(FILE_MODE))
    }

    /// Gives a new file its name. It replaces an old file of that name.
    pub(super) fn publish(&self, number: u64, name: &Name) -> io::Result<()> {
        let path = name.path();
        let (folder, file) = Name::split(&path);
        let root = self.root();
        let to = match root.open_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_dir(&root, folder)?;
                root.open_dir(folder)?
            }
            opened => opened?,
        };
        let from = root.open_dir(NEW)?;
        from.rename(number.to_string().as_bytes(), &to, file, false)
    }

    pub(super) fn unlink_new(&self, number: u64) -> io::Result<()> {
        let new = self.root().open_dir(NEW)?;
        new.unlink(number.to_string().as_bytes())
    }

    /// Removes a file, if it exists.
    pub(super) fn unlink(&self, name: &Name) -> io::Result<()> {
        let path = name.path();
        let (folder, file) = Name::split(&path);
        let removed = self
            .root()
            .open_dir(folder)
            .and_then(|dir| dir.unlink(file));
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Sets the time of the last use.
    pub(super) fn stamp(&self, name: &Name, used_ms: i64) -> io::Result<()> {
        self.open_file(name)?.set_modified(used_ms * 1_000_000)
    }

    /// Leaves a list of the files for the next process.
    pub(super) fn save_list(&self, files: &[Listed]) -> io::Result<()> {
        list::save(&self.root(), files)
    }

    /// The list that the last process has left, if it is valid.
    pub(super) fn take_list(&self) -> io::Result<Option<Vec<Listed>>> {
        list::take(&self.root())
    }

    /// The bound of the space that a process has left; `None` if there is none.
    pub(super) fn bound(&self) -> io::Result<Option<String>> {
        match read_text(&self.root(), BOUND, BOUND_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Replaces the bound of the space, by a text of the same length.
    pub(super) fn set_bound(&self, text: &str) -> io::Result<()> {
        let file = self.root().open(BOUND, MAY_EXIST)?;
        file.write_all_at(text.as_bytes(), 0)
    }

    pub(super) fn remove_bound(&self) -> io::Result<()> {
        self.root().unlink(BOUND)
    }

    /// See [`Dir::boot_id`].
    pub(super) fn boot_id(&self) -> io::Result<String> {
        self.root().boot_id()
    }

    /// Calls `each` with the files of each folder.
    pub(super) fn scan(&self, each: &mut dyn FnMut(Vec<Listed>)) -> io::Result<()> {
        let mut folders = Vec::new();
        self.root().read_dir(&mut |name, kind| {
            if name.len() == 2 && kind.is_none_or(|kind| kind == FileKind::Directory) {
                folders.push(name.to_vec());
            }
            ControlFlow::Continue(())
        })?;
        for folder in folders {
            let dir = self.root().open_dir(&folder)?;
            let mut names = Vec::new();
            dir.read_dir(&mut |file, _| {
                names.extend(Name::parse(file).map(|name| (name, file.to_vec())));
                ControlFlow::Continue(())
            })?;
            let mut files = Vec::with_capacity(names.len());
            for (name, file) in names {
                match dir.entry_metadata(&file) {
                    Ok(found) => {
                        let used_ms = found.modified_ns / 1_000_000;
                        files.push((name, used_ms, found.allocated_bytes));
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            each(files);
        }
        Ok(())
    }
}

/// Locks a folder and makes it a cache of `origin`, which is one line.
fn lock(root: &Dir, origin: &str) -> io::Result<()> {
    root.lock_exclusive().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => other("is in use by another process"),
        _ => error,
    })?;
    if exists(root, MARK)? {
        let mark = read_text(root, MARK, MARK_BYTES_MAX)?;
        let found = mark.lines().nth(1).unwrap_or_default();
        if found != origin {
            return Err(other(&format!(
                "has copies of {found}: choose another folder, or empty it"
            )));
        }
    } else if !is_empty(root)? {
        return Err(other("is not empty and is no cache of onrush"));
    }
    prepare(root, origin)
}

/// Creates what a cache needs and the folder has not.
fn prepare(root: &Dir, origin: &str) -> io::Result<()> {
    if !exists(root, MARK)? {
        let mark = root.open(MARK, MAY_EXIST)?;
        mark.write_all_at(&[MARK_TEXT, origin.as_bytes(), b"\n"].concat(), 0)?;
        // Otherwise the folder would not be accepted after a power cut.
        mark.sync()?;
        root.sync()?;
    }
    create_dir(root, NEW)
}

/// Whether a folder is a cache. `false` if that cannot be determined. Blocks.
pub(super) fn is_cache(root: &Dir) -> bool {
    // Clients of a folder that is served may write a file with the name of the mark and its text,
    // but such a folder has one that clients cannot make.
    let is_served = exists(root, RESERVED).unwrap_or(true);
    let text = read_text(root, MARK, MARK_BYTES_MAX);
    !is_served && text.is_ok_and(|text| text.as_bytes().starts_with(MARK_TEXT))
}

fn read_text(root: &Dir, name: &[u8], bytes_max: usize) -> io::Result<String> {
    let file = root.open(name, OpenHow::READ)?;
    let mut text = Vec::with_capacity(bytes_max);
    file.read_to_vec(&mut text, bytes_max, 0)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn other(reason: &str) -> io::Error {
    io::Error::other(reason)
}

fn exists(root: &Dir, name: &[u8]) -> io::Result<bool> {
    match root.entry_metadata(name) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_empty(root: &Dir) -> io::Result<bool> {
    let mut is_empty = true;
    root.read_dir(&mut |name, _| {
        is_empty &= name == LOST_AND_FOUND;
        ControlFlow::Continue(())
    })?;
    Ok(is_empty)
}

fn create_dir(root: &Dir, name: &[u8]) -> io::Result<()> {
    match root.create_dir(name, DIR_MODE) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
