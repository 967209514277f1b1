//! The store as its users see it.
//!
//! This module must not know directories or descriptors, except for the one shortcut: an object
//! that *is* a local file may say so.

use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::meta::{Kind, Meta, Version};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::File;
use std::ffi::CStr;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

/// Bytes of metadata that an object may have at most. Few file systems have room for more than
/// 4 KiB of extended attributes.
pub const METADATA_BYTES_MAX: usize = 2048;

/// The extended attribute that holds an object's metadata.
pub(crate) const METADATA: &CStr = c"user.onrush.headers";

/// A boxed future that stays on the worker that polls it.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A caller's own condition: is given what is there (`None`: nothing), under the lock of the key,
/// just before the change; again if the change has to be tried again. Its error ends the operation
/// with nothing changed. Must not block.
pub type Check = Box<dyn Fn(Option<&Meta>) -> Result<()> + Send>;

/// When a change is to be made.
pub enum Condition {
    /// Always.
    None,
    /// If there is nothing yet.
    Absent,
    /// If there is something.
    Present,
    /// If what is there has one of these versions.
    Versions(Vec<Version>),
    /// If this says so.
    Check(Check),
}

impl Condition {
    /// Whether the change may be made; [`StoreError::PreconditionFailed`], or the error of
    /// [`Condition::Check`], if not.
    pub fn check(&self, current: Option<&Meta>) -> Result<()> {
        let holds = match self {
            Condition::None => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::Versions(good) => current.is_some_and(|meta| good.contains(&meta.version)),
            Condition::Check(check) => return check(current),
        };
        if holds {
            Ok(())
        } else {
            Err(StoreError::PreconditionFailed)
        }
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::None => f.write_str("None"),
            Condition::Absent => f.write_str("Absent"),
            Condition::Present => f.write_str("Present"),
            Condition::Versions(good) => f.debug_tuple("Versions").field(good).finish(),
            Condition::Check(_) => f.write_str("Check"),
        }
    }
}

/// Objects by key. Every future may be dropped at any time; a change whose future is dropped is
/// made whole or not at all.
pub trait Store {
    /// Opens an object for reading. A folder gives [`StoreError::IsDirectory`].
    fn get<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Object>>;

    /// What is at `key`, object or folder, without opening it.
    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>>;

    /// The object that an upload to `key` would replace, `None` if there is nothing; fails as the
    /// commit would if something is in the way.
    fn replaced<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>>;

    /// Begins an upload that becomes the object `key` when committed. `size_bytes`, if known,
    /// lets a full disk be told now. Nothing is visible before the commit.
    fn stage<'a>(
        &'a self,
        key: &'a Key,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>>;

    /// Deletes an object, or a folder if it is empty ([`StoreError::NotEmpty`] otherwise), and
    /// gives what it was. The folders it was in stay. Where the key is a second name of something
    /// else (a symbolic link), only that name goes, whatever is in a folder it names.
    fn delete<'a>(&'a self, key: &'a Key, condition: Condition) -> LocalFuture<'a, Result<Meta>>;

    /// One page of a folder's entries (`None`: the top), ordered by the bytes of their names.
    /// Every change that was answered before this was first polled is seen.
    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>>;

    /// A number that has changed after any change made through this store to this key, before the
    /// change was answered (it may change for other keys' sake too). A cache that has seen the
    /// same number before opening the object, and sees it now, has the present bytes, but for
    /// changes made behind the store's back.
    fn generation(&self, key: &Key) -> u64;
}

/// Bytes on their way to becoming an object. Dropping it aborts and removes what was staged.
pub trait Upload {
    /// Adds the bytes of `buf` and gives a buffer back, empty: the same with its capacity, or none
    /// when the first bytes, being few, are kept as they are. Memory use does not grow with the
    /// upload. After an error, or if the future was dropped before its end, the upload can only be
    /// dropped.
    fn write(&mut self, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>>;

    /// Sets the bytes that are kept beside the content, which mean nothing to the store: at most
    /// [`METADATA_BYTES_MAX`], [`StoreError::TooLarge`] otherwise. They become visible with the
    /// object, in the same step, and replace those of the object before. Without a call there are
    /// none. The commit fails with [`StoreError::NoMetadata`] where the store cannot keep them.
    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()>;

    /// How many bytes were added.
    fn written_bytes(&self) -> u64;

    /// Makes it the object, if `condition` still holds, atomically: readers see the old object
    /// or the new one. Success means that it is on the disk to stay, as far as the store
    /// promises that.
    fn commit(self: Box<Self>, condition: Condition) -> LocalFuture<'static, Result<Committed>>;
}

/// A commit that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// There was nothing at the key before.
    pub created: bool,
    /// The new object.
    pub meta: Meta,
}

/// Which part of a folder to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListHow {
    /// Only names greater than this.
    pub after: Option<Vec<u8>>,
    /// At most so many entries; brought between 1 and [`ListHow::LIMIT_MAX`].
    pub limit: usize,
    /// Names that begin with a dot, too (but never the store's own).
    pub hidden: bool,
}

impl ListHow {
    /// Entries of one page at most, which bounds the memory of a listing.
    pub const LIMIT_MAX: usize = 10_000;
}

impl Default for ListHow {
    fn default() -> ListHow {
        ListHow {
            after: None,
            limit: 1000,
            hidden: false,
        }
    }
}

/// A part of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Ordered by name; fewer than the limit where names turned out not to be objects.
    pub entries: Vec<Entry>,
    /// The `after` of the next page; `None` if this is the last.
    pub next: Option<Vec<u8>>,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last segment of its key.
    pub name: Vec<u8>,
    /// Object or folder.
    pub kind: Kind,
    /// Bytes of content; 0 for a folder.
    pub size: u64,
    /// When it was last changed, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Changes whenever the bytes may have changed.
    pub version: Version,
}

/// The bytes of an object that is no local file.
pub trait ReadAt {
    /// Appends to `buf` at most `len_max` bytes from `offset` on, and no more than its spare
    /// capacity; none means the end.
    fn read(&self, offset: u64, len_max: usize, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>>;
}

/// An object opened for reading; it stays as it was opened when it is replaced meanwhile.
pub struct Object {
    meta: Meta,
    source: Source,
}

enum Source {
    File(Arc<File>, BlockingPool),
    Other(Box<dyn ReadAt>),
}

impl Object {
    /// An object that is a file on this machine; what is not cached is read on `pool`.
    pub fn from_file(meta: Meta, file: Arc<File>, pool: BlockingPool) -> Object {
        Object {
            meta,
            source: Source::File(file, pool),
        }
    }

    /// An object read by other means.
    pub fn from_reader(meta: Meta, reader: Box<dyn ReadAt>) -> Object {
        Object {
            meta,
            source: Source::Other(reader),
        }
    }

    /// What was known of it when it was opened.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The file, if it is one: for `sendfile(2)`. Where it has no descriptor (the simulator), it
    /// can still be read.
    pub fn local_file(&self) -> Option<&Arc<File>> {
        match &self.source {
            Source::File(file, _) => Some(file),
            Source::Other(_) => None,
        }
    }

    /// Its metadata ([`Upload::set_metadata`]), read on the calling thread. Empty if there is none.
    /// For callers that have just read content from memory: whoever brought the content there read
    /// the metadata too, so that the kernel most likely does not wait for a disk.
    pub fn metadata_now(&self) -> Result<Vec<u8>> {
        match &self.source {
            Source::File(file, _) => read_metadata(file),
            Source::Other(_) => Ok(Vec::new()),
        }
    }

    /// Its metadata, read on the pool. Empty if there is none.
    pub async fn metadata(&self) -> Result<Vec<u8>> {
        match &self.source {
            Source::File(file, pool) => {
                let file = file.clone();
                pool.run(move || read_metadata(&file)).await?
            }
            Source::Other(_) => Ok(Vec::new()),
        }
    }

    /// Reads into `buf` at once what is cached, or gives `None` if it would have to wait. The
    /// bytes read, 0 at the end; perhaps fewer than asked for.
    pub fn read_now(&self, offset: u64, buf: &mut [u8]) -> Option<Result<usize>> {
        match &self.source {
            Source::File(file, _) => now(file.try_read_at(buf, offset)),
            Source::Other(_) => None,
        }
    }

    /// Appends to `buf` at most `len_max` bytes from `offset` on, and no more than its spare
    /// capacity, perhaps fewer; none means the end, which comes early if the file was cut short
    /// by someone else. First from the cache without leaving the worker, then on the pool.
    pub async fn read(&self, offset: u64, len_max: usize, mut buf: Vec<u8>) -> Result<Vec<u8>> {
        match &self.source {
            Source::File(file, pool) => {
                if let Some(result) = now(file.try_read_to_vec(&mut buf, len_max, offset)) {
                    return result.map(|_| buf);
                }
                let file = file.clone();
                pool.run(move || match file.read_to_vec(&mut buf, len_max, offset) {
                    Ok(_) => Ok(buf),
                    Err(error) => Err(StoreError::of_read(error)),
                })
                .await?
            }
            Source::Other(reader) => reader.read(offset, len_max, buf).await,
        }
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("meta", &self.meta)
            .finish_non_exhaustive()
    }
}

/// An attribute that this store would not have written counts as none.
fn read_metadata(file: &File) -> Result<Vec<u8>> {
    match file.attribute(METADATA, METADATA_BYTES_MAX) {
        Ok(metadata) => Ok(metadata.unwrap_or_default()),
        Err(error) if error.raw_os_error() == Some(libc::ERANGE) => Ok(Vec::new()),
        Err(error) => Err(StoreError::of_any(error)),
    }
}

/// `None` if it would have blocked.
pub(crate) fn now<T>(result: io::Result<T>) -> Option<Result<T>> {
    match result {
        Ok(value) => Some(Ok(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => Some(Err(StoreError::of_read(error))),
    }
}
