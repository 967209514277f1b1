//! The counterpart of `std::fs`: files with blocking calls that do not block the worker.
//!
//! Each call is one job of the worker's blocking pool. The job owns its memory, so it may continue
//! when the coroutine is dropped.

use super::address::on_pool;
use std::cell::Cell;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use std::fs::{FileType, Metadata, Permissions};

/// Bytes that one read or write moves, at most.
const STEP_BYTES: usize = 256 << 10;

/// An open file, as `std::fs::File`.
///
/// # Examples
/// ```
/// use onrush_coroutine::{self as coroutine, Config, Contract, fs, fs::File};
/// use std::io::Write;
///
/// let program = || {
///     let name = format!("onrush-doc-coroutine-{}", std::process::id());
///     let path = std::env::temp_dir().join(name);
///     File::create(&path)?.write_all(b"hello")?;
///     assert_eq!(fs::read_to_string(&path)?, "hello");
///     fs::remove_file(&path)
/// };
/// // SAFETY: the program uses no thread-local, and no scope.
/// let contract = unsafe { Contract::accept() };
/// coroutine::run(contract, Config::default(), program)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct File {
    file: Arc<std::fs::File>,
    /// Memory for reuse by the next call.
    spare: Cell<Vec<u8>>,
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> File {
        File {
            file: Arc::new(file),
            spare: Cell::default(),
        }
    }
}

impl File {
    /// Opens a file for reading.
    ///
    /// # Panics
    /// Outside a coroutine, like every function here that waits.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file for writing and truncates it; creates it if necessary.
    #[track_caller]
    pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).open(path)
    }

    /// Options for opening a file.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    #[track_caller]
    fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&std::fs::File) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let file = self.file.clone();
        on_pool(move || job(&file))
    }

    /// Size, times and permissions (`statx(2)`).
    #[track_caller]
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.run(std::fs::File::metadata)
    }

    /// Waits until content and metadata are on the disk (`fsync(2)`).
    #[track_caller]
    pub fn sync_all(&self) -> io::Result<()> {
        self.run(std::fs::File::sync_all)
    }

    /// Waits until the content is on the disk (`fdatasync(2)`).
    #[track_caller]
    pub fn sync_data(&self) -> io::Result<()> {
        self.run(std::fs::File::sync_data)
    }

    /// Truncates the file, or extends it with zeros (`ftruncate(2)`).
    #[track_caller]
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.run(move |file| file.set_len(bytes))
    }

    /// Another handle to the same open file, with the same position.
    pub fn try_clone(&self) -> io::Result<File> {
        Ok(File {
            file: self.file.clone(),
            spare: Cell::default(),
        })
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

impl Read for &File {
    #[track_caller]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut memory = self.spare.take();
        let bytes = into.len().min(STEP_BYTES);
        let (memory, read) = self.run(move |mut file| {
            memory.resize(bytes, 0);
            let read = file.read(&mut memory);
            Ok((memory, read))
        })?;
        if let Ok(bytes) = read {
            into[..bytes].copy_from_slice(&memory[..bytes]);
        }
        self.spare.set(memory);
        read
    }
}

impl Write for &File {
    #[track_caller]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut memory = self.spare.take();
        memory.clear();
        memory.extend_from_slice(&bytes[..bytes.len().min(STEP_BYTES)]);
        let (memory, written) = self.run(move |mut file| {
            let written = file.write(&memory);
            Ok((memory, written))
        })?;
        self.spare.set(memory);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    #[track_caller]
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.run(move |mut file| file.seek(to))
    }
}

impl Read for File {
    #[track_caller]
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(into)
    }
}

impl Write for File {
    #[track_caller]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&mut &*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    #[track_caller]
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&mut &*self).seek(to)
    }
}

/// Options for opening a file, as `std::fs::OpenOptions`.
#[derive(Clone, Debug)]
pub struct OpenOptions(std::fs::OpenOptions);

macro_rules! option {
    ($($(#[$about:meta])* $name:ident)*) => {$(
        $(#[$about])*
        pub fn $name(&mut self, $name: bool) -> &mut OpenOptions {
            self.0.$name($name);
            self
        }
    )*};
}

impl OpenOptions {
    /// No option is set.
    #[allow(clippy::new_without_default, reason = "as in std")]
    pub fn new() -> OpenOptions {
        OpenOptions(std::fs::OpenOptions::new())
    }

    option! {
        /// Opens for reading.
        read
        /// Opens for writing.
        write
        /// Opens for appending.
        append
        /// Truncates the file.
        truncate
        /// Creates the file if it does not exist.
        create
        /// Creates the file; fails if it exists.
        create_new
    }

    /// Opens the file (`openat(2)`).
    #[track_caller]
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let (options, path) = (self.0.clone(), path.as_ref().to_owned());
        on_pool(move || options.open(path)).map(File::from)
    }
}

#[track_caller]
fn at<T: Send + 'static>(
    path: impl AsRef<Path>,
    job: impl FnOnce(PathBuf) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let path = path.as_ref().to_owned();
    on_pool(move || job(path))
}

/// The whole content of a file.
#[track_caller]
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    at(path, std::fs::read)
}

/// The whole content of a file; it must be UTF-8.
#[track_caller]
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    at(path, std::fs::read_to_string)
}

/// Creates a file with `content`, or replaces its content.
#[track_caller]
pub fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
    let content = content.as_ref().to_owned();
    at(path, move |path| std::fs::write(path, content))
}

/// The metadata of the file at `path` (`statx(2)`).
#[track_caller]
pub fn metadata(path: impl AsRef<Path>) -> io::Result<Metadata> {
    at(path, std::fs::metadata)
}

/// Removes a file (`unlink(2)`).
#[track_caller]
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    at(path, std::fs::remove_file)
}

/// Creates a directory and its missing parents.
#[track_caller]
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    at(path, std::fs::create_dir_all)
}

/// Renames a file or directory (`rename(2)`).
#[track_caller]
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let to = to.as_ref().to_owned();
    at(from, move |from| std::fs::rename(from, to))
}
