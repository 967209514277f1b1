//! Shared by the tests: backends (a real directory or a simulated disk), a minimal `block_on`, and
//! short forms of the operations.

pub(crate) use crate::abilities::{self, Ability, temp_lacks};
pub(crate) use ::testing::{TempDir, body};

use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_rt::fs::{Dir, FileKind};
pub(crate) use onrush_store::testing::block_on;
use onrush_store::*;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Runs each test on all backends.
macro_rules! on_all {
    ($($name:ident)*) => {
        mod real { $(#[test] fn $name() { super::$name(&super::Backend::real()); })* }
        mod memory { $(#[test] fn $name() { super::$name(&super::Backend::memory()); })* }
        mod sim { $(#[test] fn $name() { super::$name(&super::Backend::sim()); })* }
        mod plain { $(#[test] fn $name() { super::$name(&super::Backend::plain()); })* }
    };
}

/// The disk that a test uses.
pub(crate) enum Backend {
    Real(TempDir),
    Sim(SimFs),
}

impl Backend {
    pub(crate) fn real() -> Backend {
        Backend::Real(TempDir::new())
    }

    /// A directory on tmpfs (shm_overview(7)).
    pub(crate) fn memory() -> Backend {
        Backend::Real(TempDir::beneath(Path::new("/dev/shm")))
    }

    pub(crate) fn sim() -> Backend {
        Backend::Sim(SimFs::new(1))
    }

    /// A simulated disk whose file system supports only plain renames.
    pub(crate) fn plain() -> Backend {
        let disk = SimFs::new(1);
        disk.set_plain_renames(true);
        Backend::Sim(disk)
    }

    pub(crate) fn root(&self) -> Dir {
        match self {
            Backend::Real(dir) => Dir::open_root(dir.path()).unwrap(),
            Backend::Sim(disk) => disk.root().unwrap(),
        }
    }

    pub(crate) fn folder(&self) -> Folder {
        self.folder_with(FolderOptions::default())
    }

    pub(crate) fn folder_with(&self, options: FolderOptions) -> Folder {
        let pool = match self {
            Backend::Real(_) => BlockingPool::threads(1, 16),
            Backend::Sim(_) => BlockingPool::inline(),
        };
        Folder::on(self.root(), pool, options).unwrap()
    }

    pub(crate) fn symlink(&self, path: &str, target: &str) {
        match self {
            Backend::Real(dir) => {
                std::os::unix::fs::symlink(target, dir.path().join(path)).unwrap();
            }
            Backend::Sim(disk) => disk
                .add_symlink(path.as_bytes(), target.as_bytes())
                .unwrap(),
        }
    }

    pub(crate) fn fifo(&self, path: &str) {
        match self {
            Backend::Real(dir) => {
                let path = dir.path().join(path);
                mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            }
            Backend::Sim(disk) => disk.add_fifo(path.as_bytes()).unwrap(),
        }
    }

    /// As [`abilities::lacks`]. A simulated disk has all.
    pub(crate) fn lacks(&self, wanted: &[Ability]) -> bool {
        match self {
            Backend::Real(dir) => abilities::lacks(dir.path().parent().unwrap(), wanted),
            Backend::Sim(_) => false,
        }
    }

    /// A path on the real disk.
    pub(crate) fn path(&self, name: &[u8]) -> Option<PathBuf> {
        match self {
            Backend::Real(dir) => Some(dir.path().join(OsStr::from_bytes(name))),
            Backend::Sim(_) => None,
        }
    }
}

pub(crate) fn key(text: impl AsRef<[u8]>) -> Key {
    Key::parse(text.as_ref()).unwrap()
}

/// A copy or a rename without conditions.
pub(crate) fn relocation(from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> Relocation {
    Relocation {
        from: key(from),
        from_condition: Condition::None,
        to: key(to),
        to_condition: Condition::None,
    }
}

pub(crate) fn put(folder: &Folder, at: &str, body: &[u8]) -> Result<Committed> {
    put_if(folder, at, body, Condition::None)
}

/// The metadata of every object that the tests put, where objects can have any. It identifies the
/// content.
pub(crate) fn metadata_of(body: &[u8]) -> Vec<u8> {
    match body.first() {
        Some(first) => format!("{first} {}", body.len()).into_bytes(),
        None => Vec::new(),
    }
}

/// A put in pieces with an announced size.
pub(crate) fn put_if(
    folder: &Folder,
    at: &str,
    body: &[u8],
    condition: Condition,
) -> Result<Committed> {
    block_on(async {
        let mut upload = folder
            .stage(&key(at), condition, Some(body.len() as u64))
            .await?;
        if folder.keeps_metadata() {
            upload.set_metadata(metadata_of(body))?;
        }
        for piece in body.chunks(7000) {
            upload.write(piece.to_vec()).await?;
        }
        upload.commit().await
    })
}

/// Reads the content. The object has its own metadata, or none if another program made it.
pub(crate) fn get(folder: &Folder, at: &str) -> Result<Vec<u8>> {
    let (content, metadata) = get_both(folder, at)?;
    assert!(metadata.is_empty() || metadata == metadata_of(&content));
    Ok(content)
}

/// Reads content and metadata.
pub(crate) fn get_both(folder: &Folder, at: &str) -> Result<(Vec<u8>, Vec<u8>)> {
    block_on(async {
        let object = folder.get(&key(at)).await?;
        let mut all = Vec::new();
        loop {
            let piece = object
                .read(all.len() as u64, usize::MAX, Vec::with_capacity(5000))
                .await?;
            if piece.is_empty() {
                assert_eq!(all.len() as u64, object.meta().size);
                let metadata = object.metadata().await?;
                if let Some(local) = object.local() {
                    assert_eq!(local.metadata_blocking()?, metadata);
                }
                return Ok((all, metadata));
            }
            all.extend_from_slice(&piece);
        }
    })
}

pub(crate) fn delete(folder: &Folder, at: &str) -> Result<Meta> {
    delete_if(folder, at, Condition::None)
}

/// Deletes an object or a folder.
pub(crate) fn delete_if(folder: &Folder, at: &str, condition: Condition) -> Result<Meta> {
    let at = key(at);
    match block_on(folder.delete(&at, Kind::File, condition.clone())) {
        Err(StoreError::IsDirectory) => block_on(folder.delete(&at, Kind::Directory, condition)),
        result => result,
    }
}

pub(crate) fn list(folder: &Folder, at: Option<&str>, how: ListHow) -> Result<Page> {
    let at = at.map(key);
    block_on(folder.list(at.as_ref(), how))
}

pub(crate) fn names(page: &Page) -> Vec<String> {
    page.entries
        .iter()
        .map(|e| String::from_utf8_lossy(&e.name).into_owned())
        .collect()
}

/// The number of files in staging, after all jobs queued so far. Without those that FUSE programs
/// keep because they are open: a file is closed there some time after `close(2)`.
pub(crate) fn staged(folder: &Folder, backend: &Backend) -> usize {
    block_on(folder.pool().run(|| ())).unwrap();
    let staging = backend.root().open_dir(b".onrush/staging").unwrap();
    entries(&staging)
        .iter()
        .flat_map(|(name, _)| entries(&staging.open_dir(name).unwrap()))
        .filter(|(name, _)| !name.starts_with(b".fuse_hidden") && !name.starts_with(b".ghost"))
        .count()
}

pub(crate) fn entries(dir: &Dir) -> Vec<(Vec<u8>, Option<FileKind>)> {
    let mut all = Vec::new();
    dir.read_dir(&mut |name, kind| {
        all.push((name.to_vec(), kind));
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}
