//! The interface of a store: the trait [`Store`] and its types.
//!
//! It contains no directories and no descriptors, with one exception: an object that is a local
//! file gives access to it ([`Object::local_file`]).

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

/// The maximum size of an object's metadata in bytes. Few file systems have room for more than
/// 4 KiB of extended attributes.
pub const METADATA_BYTES_MAX: usize = 2048;

/// The extended attribute that holds an object's metadata.
pub(crate) const METADATA: &CStr = c"user.onrush.headers";

/// A boxed future that stays on the worker that polls it.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A condition defined by the caller. Its argument is the current object (`None`: there is none).
/// The store calls it just before the change, while it holds the lock of the key, and again if it
/// retries the change. An error ends the operation, and nothing changes. It must not block.
pub type Check = Box<dyn Fn(Option<&Meta>) -> Result<()> + Send>;

/// The condition under which a change is made.
pub enum Condition {
    /// Always.
    None,
    /// If there is no object.
    Absent,
    /// If there is an object.
    Present,
    /// If the current object has one of these versions.
    Versions(Vec<Version>),
    /// If this function returns `Ok`.
    Check(Check),
}

impl Condition {
    /// Checks whether the change may be made. Fails with [`StoreError::PreconditionFailed`], or the
    /// error of [`Condition::Check`], if not.
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

/// Objects by key. Every future may be dropped at any time. A change whose future is dropped is
/// made completely or not at all.
pub trait Store {
    /// Opens an object for reading. Fails with [`StoreError::IsDirectory`] for a folder.
    fn get<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Object>>;

    /// The properties of the object or folder at `key`. Does not open it.
    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>>;

    /// The object that an upload to `key` would replace; `None` if there is none. Fails as the
    /// commit would if another entry (such as a folder) is in the way.
    fn existing_object<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>>;

    /// Begins an upload that becomes the object `key` when it is committed. If `size_bytes` is
    /// known, a full disk is reported now. Nothing is visible before the commit.
    fn stage<'a>(
        &'a self,
        key: &'a Key,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>>;

    /// Deletes an object, or a folder if it is empty ([`StoreError::NotEmpty`] otherwise), and
    /// returns its properties. Parent folders stay. If the key is a symbolic link, only the link is
    /// deleted, even if it names a folder that is not empty.
    fn delete<'a>(&'a self, key: &'a Key, condition: Condition) -> LocalFuture<'a, Result<Meta>>;

    /// One page of the entries of `folder` (`None`: the root folder), ordered by the bytes of their
    /// names. It includes every change that completed before this future was first polled.
    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>>;

    /// A number that changes with every change of this key through this store, before that change
    /// completes. Changes of other keys may change it, too. A cache reads the number before it
    /// opens the object. While the number stays the same, the cached bytes are current, except for
    /// changes that other programs make.
    fn generation(&self, key: &Key) -> u64;
}

/// An upload in progress. Dropping it aborts the upload and removes the staged bytes.
pub trait Upload {
    /// Appends the bytes of `buf` and returns an empty buffer: the same one with its capacity, or
    /// one without capacity if the upload keeps `buf` because its bytes are the first and few.
    /// Memory use does not grow with the upload. After an error, or if the future was dropped
    /// before it completed, the upload can only be dropped.
    fn write(&mut self, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>>;

    /// Sets the metadata: bytes that the store keeps with the content and does not interpret. Fails
    /// with [`StoreError::TooLarge`] if there are more than [`METADATA_BYTES_MAX`]. The commit
    /// makes them visible together with the content, and they replace the metadata of the old
    /// object. By default there is no metadata. The commit fails with [`StoreError::NoMetadata`] if
    /// the store does not support it.
    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()>;

    /// The number of bytes written so far.
    fn written_bytes(&self) -> u64;

    /// Publishes the upload as the object, atomically, if `condition` holds: readers see the old
    /// object or the new one. Success means that the object is durable, as far as the store
    /// promises that.
    fn commit(self: Box<Self>, condition: Condition) -> LocalFuture<'static, Result<Committed>>;
}

/// The result of a successful commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Whether the key had no object before.
    pub created: bool,
    /// The properties of the new object.
    pub meta: Meta,
}

/// Which part of a folder to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListHow {
    /// Only names that sort after this one.
    pub after: Option<Vec<u8>>,
    /// The maximum number of entries, clamped to 1 to [`ListHow::LIMIT_MAX`].
    pub limit: usize,
    /// Whether to include names that begin with a dot (never the store's own folder).
    pub hidden: bool,
}

impl ListHow {
    /// The maximum number of entries in a page. It bounds the memory of a listing.
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

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Ordered by name. Fewer than the limit if some names are not objects.
    pub entries: Vec<Entry>,
    /// The value of `after` for the next page; `None` if this is the last one.
    pub next: Option<Vec<u8>>,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The last segment of its key.
    pub name: Vec<u8>,
    /// Object or folder.
    pub kind: Kind,
    /// Size of the content in bytes; 0 for a folder.
    pub size: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Changes whenever the bytes may have changed.
    pub version: Version,
}

/// The bytes of an object that is not a local file.
pub trait ReadAt {
    /// Appends at most `len_max` bytes, starting at `offset`, to `buf`, but no more than its spare
    /// capacity. No bytes means the end.
    fn read(&self, offset: u64, len_max: usize, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>>;
}

/// An object opened for reading. It keeps its content if the key gets a new object.
pub struct Object {
    meta: Meta,
    source: Source,
}

enum Source {
    File(Arc<File>, BlockingPool),
    Other(Box<dyn ReadAt>),
}

impl Object {
    /// An object that is a local file. Bytes that are not in the page cache are read on `pool`.
    pub fn from_file(meta: Meta, file: Arc<File>, pool: BlockingPool) -> Object {
        Object {
            meta,
            source: Source::File(file, pool),
        }
    }

    /// An object that `reader` reads.
    pub fn from_reader(meta: Meta, reader: Box<dyn ReadAt>) -> Object {
        Object {
            meta,
            source: Source::Other(reader),
        }
    }

    /// Its properties at the time of opening.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The file, for `sendfile(2)`, if the object is a local file. A file of the simulator has no
    /// descriptor, but can be read.
    pub fn local_file(&self) -> Option<&Arc<File>> {
        match &self.source {
            Source::File(file, _) => Some(file),
            Source::Other(_) => None,
        }
    }

    /// Its metadata ([`Upload::set_metadata`]), read on the calling thread. Empty if there is none.
    /// It may wait for a disk. Right after the content was read from the page cache, the kernel
    /// most likely has the metadata in memory, too, and does not wait.
    pub fn metadata_blocking(&self) -> Result<Vec<u8>> {
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

    /// Reads bytes from the page cache into `buf`, without waiting. Returns the number of bytes,
    /// which may be less than requested and is 0 at the end, or `None` if the read would wait.
    pub fn try_read(&self, offset: u64, buf: &mut [u8]) -> Option<Result<usize>> {
        match &self.source {
            Source::File(file, _) => unless_would_block(file.try_read_at(buf, offset)),
            Source::Other(_) => None,
        }
    }

    /// Appends at most `len_max` bytes, starting at `offset`, to `buf`, but no more than its spare
    /// capacity, and perhaps fewer. No bytes means the end, which comes early if another program
    /// has truncated the file. It first tries the page cache on the calling worker, then the pool.
    pub async fn read(&self, offset: u64, len_max: usize, mut buf: Vec<u8>) -> Result<Vec<u8>> {
        match &self.source {
            Source::File(file, pool) => {
                if let Some(result) =
                    unless_would_block(file.try_read_to_vec(&mut buf, len_max, offset))
                {
                    return result.map(|_| buf);
                }
                let file = file.clone();
                pool.run(move || match file.read_to_vec(&mut buf, len_max, offset) {
                    Ok(_) => Ok(buf),
                    Err(error) => Err(StoreError::from_lookup(error)),
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

/// An attribute larger than the maximum was not written by this store and is ignored.
fn read_metadata(file: &File) -> Result<Vec<u8>> {
    match file.attribute(METADATA, METADATA_BYTES_MAX) {
        Ok(metadata) => Ok(metadata.unwrap_or_default()),
        Err(error) if error.raw_os_error() == Some(libc::ERANGE) => Ok(Vec::new()),
        Err(error) => Err(StoreError::from_open_file(error)),
    }
}

/// `None` if the operation would block.
pub(crate) fn unless_would_block<T>(result: io::Result<T>) -> Option<Result<T>> {
    match result {
        Ok(value) => Some(Ok(value)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        Err(error) => Some(Err(StoreError::from_lookup(error))),
    }
}
