//! The folders that servers serve and write to, on disk and in memory.

use crate::uploads::NAME_PREFIX;
use rustix::fs::{Advice, fadvise};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};
use xtask::shell::Outcome;

/// The place of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Disk,
    /// tmpfs.
    Memory,
}

/// The tmpfs of every Linux system.
const MEMORY: &str = "/dev/shm";

/// Files to serve. A single file is named `file`; several files have names of seven digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) count: u32,
    pub(crate) bytes: u64,
}

impl Files {
    fn name(self, at: u32) -> String {
        match self.count {
            1 => "file".to_owned(),
            _ => format!("{at:07}"),
        }
    }
}

/// All folders of this run. They are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Work {
    disk: PathBuf,
    memory: PathBuf,
    made: u32,
}

impl Work {
    /// Creates the folders for this run, below `target` and in memory.
    pub(crate) fn new(target: &Path) -> Outcome<Work> {
        let name = format!("onrush-bench-{}", std::process::id());
        let work = Work {
            disk: target.join("bench").join(&name),
            memory: Path::new(MEMORY).join(&name),
            made: 0,
        };
        for base in [&work.disk, &work.memory] {
            make(base)?;
        }
        Ok(work)
    }

    /// Creates an empty folder.
    pub(crate) fn empty(&mut self, place: Place) -> Outcome<PathBuf> {
        self.made += 1;
        let base = match place {
            Place::Disk => &self.disk,
            Place::Memory => &self.memory,
        };
        let folder = base.join(self.made.to_string());
        make(&folder)?;
        Ok(folder)
    }

    /// Creates a folder in memory with the files `small` (1 KiB), `large` (`large_bytes`) and
    /// `stream` (sparse, `stream_bytes`). All folders share one `large`.
    pub(crate) fn mixed(&mut self, large_bytes: u64, stream_bytes: u64) -> Outcome<PathBuf> {
        let shared = self.memory.join(format!("large-{large_bytes}"));
        let folder = self.empty(Place::Memory)?;
        let write = || {
            if !shared.is_file() {
                let mut large = File::create(&shared)?;
                io::copy(&mut io::repeat(b'l').take(large_bytes), &mut large)?;
            }
            fs::hard_link(&shared, folder.join("large"))?;
            fs::write(folder.join("small"), [b's'; 1024])?;
            File::create(folder.join("stream"))?.set_len(stream_bytes)
        };
        write().map_err(|error| cannot(&folder, &error))?;
        Ok(folder)
    }

    /// A folder on disk with synced `files`. Each `copy` has its own folder; calls with the same
    /// arguments return the same folder.
    pub(crate) fn files(&mut self, files: Files, copy: &str) -> Outcome<PathBuf> {
        let folder = self
            .disk
            .join(format!("files-{}-{}-{copy}", files.count, files.bytes));
        if folder.is_dir() {
            return Ok(folder);
        }
        make(&folder)?;
        let content: Vec<u8> = (0..files.bytes).map(|at| b'a' + (at % 23) as u8).collect();
        for at in 0..files.count {
            let path = folder.join(files.name(at));
            let write = || {
                let mut file = File::create(&path)?;
                file.write_all(&content)?;
                // Only clean pages can be dropped from the cache. A sync per file is slow, so
                // small files are synced together at the end.
                if files.bytes >= 1 << 20 {
                    file.sync_data()
                } else {
                    Ok(())
                }
            };
            write().map_err(|error| cannot(&path, &error))?;
        }
        sync(&folder)?;
        Ok(folder)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        for base in [&self.disk, &self.memory] {
            let _ = fs::remove_dir_all(base);
        }
    }
}

fn cannot(path: &Path, error: &io::Error) -> String {
    format!("{}: {error}", path.display())
}

fn make(folder: &Path) -> Outcome {
    fs::create_dir_all(folder).map_err(|error| cannot(folder, &error))
}

/// Syncs the file system of `folder`.
fn sync(folder: &Path) -> Outcome {
    let sync = || rustix::fs::syncfs(File::open(folder)?).map_err(io::Error::from);
    sync().map_err(|error| cannot(folder, &error))
}

/// Drops the pages of all files in `folder` from the page cache.
pub(crate) fn evict(folder: &Path) -> Outcome {
    sync(folder)?;
    each_file(folder, |path| {
        fadvise(File::open(path)?, 0, None, Advice::DontNeed).map_err(io::Error::from)
    })
}

/// Removes the uploaded objects from `folder`, but no file that the server created for itself.
pub(crate) fn remove_uploads(folder: &Path) -> Outcome {
    each_file(folder, |path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        match name.starts_with(NAME_PREFIX) {
            true => fs::remove_file(path),
            false => Ok(()),
        }
    })
}

fn each_file(folder: &Path, act: impl Fn(&Path) -> io::Result<()>) -> Outcome {
    let entries = fs::read_dir(folder).map_err(|error| cannot(folder, &error))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_file() {
            act(&path).map_err(|error| cannot(&path, &error))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_filled_once_and_removed() {
        let target = std::env::temp_dir().join(format!("work-{}", std::process::id()));
        let mut work = Work::new(&target).expect("made");
        let two = Files { count: 2, bytes: 5 };
        let folder = work.files(two, "a").expect("filled");
        assert_eq!(fs::read(folder.join("0000001")).unwrap(), b"abcde");
        assert_eq!(work.files(two, "a").as_ref(), Ok(&folder));
        assert_ne!(work.files(two, "b").as_ref(), Ok(&folder));
        evict(&folder).expect("evicted");
        let one = work
            .files(Files { count: 1, bytes: 1 }, "")
            .expect("filled");
        assert!(one.join("file").is_file());

        let folder = work.empty(Place::Memory).expect("made");
        fs::write(folder.join("object-00-0000000"), "x").unwrap();
        fs::write(folder.join(".kept"), "x").unwrap();
        remove_uploads(&folder).expect("removed");
        assert!(!folder.join("object-00-0000000").exists());
        assert!(folder.join(".kept").exists());
        for _ in 0..2 {
            let folder = work.mixed(5, 1 << 40).expect("filled");
            let length = |name: &str| fs::metadata(folder.join(name)).unwrap().len();
            assert_eq!(["small", "large", "stream"].map(length), [1024, 5, 1 << 40]);
            fs::remove_dir_all(folder).unwrap();
        }
        drop(work);
        assert!(!folder.exists());
        let _ = fs::remove_dir_all(target);
    }
}
