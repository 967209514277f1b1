//! An object that is open for reading: its properties, its metadata, and its bytes by position or
//! as a stream.

use crate::error::{Result, StoreError};
use crate::local::LocalFile;
use crate::meta::Meta;
use bytes::Bytes;
use futures_core::Stream;
use onrush_rt::fs::File;
use std::fmt;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A boxed future that stays on the worker that polls it.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Bytes of an object in order, in pieces of any size but 0. It stays on the worker that polls it.
/// Dropping it ends the transfer. After an error it must not be polled again.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes>>>>;

/// The size in bytes of a piece of the stream of a local file.
const PIECE_BYTES: u64 = 64 * 1024;

/// The bytes of an object that is not a local file.
///
/// All bytes belong to the version in the object's properties. If the store has replaced the object
/// and cannot read the old bytes any more, a read fails with [`StoreError::Changed`].
pub trait ReadAt: Send + Sync {
    /// Appends at most `len_max` bytes, starting at `offset`, to `buf`, but no more than its spare
    /// capacity. No bytes means the end.
    fn read(&self, offset: u64, len_max: usize, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>>;

    /// The bytes of `range`, which lies within the size. One request of a remote store serves the
    /// whole stream. Nothing is transferred before the first poll, and memory use does not grow
    /// with the range: the reader sets the pace.
    fn stream(&self, range: Range<u64>) -> ByteStream;

    /// The bytes of `range` as parts of local files that never change, for `sendfile(2)`. `None`
    /// if they are not all at hand without waiting, or are in too many files; [`ReadAt::stream`]
    /// has them then.
    fn local_parts(&self, _range: Range<u64>) -> Option<Vec<FilePart>> {
        None
    }

    /// See [`Object::file_mut`].
    fn file_mut(&mut self) -> Option<&mut File> {
        None
    }
}

/// A part of a local file.
#[derive(Clone, Debug)]
pub struct FilePart {
    /// The file.
    pub file: Arc<File>,
    /// Where the part begins.
    pub offset: u64,
    /// The bytes of the part.
    pub len: u64,
}

/// An object opened for reading. It keeps its content if the key gets a new object, or reports
/// [`StoreError::Changed`].
pub struct Object {
    meta: Meta,
    source: Source,
    cached: Option<Cached>,
}

/// What a store that is a cache says about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// How it was found.
    pub how: CacheUse,
    /// The milliseconds for which the object may be served without asking the store again.
    pub fresh_ms: u64,
}

/// How a cache has found an object. Of a large object it says how the wanted bytes were found, as
/// far as that is known when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    /// In the cache, not older than the fresh time.
    Hit,
    /// In the cache, older than the fresh time: the other store does not respond.
    Stale,
    /// In the cache, after the other store has confirmed that it is current.
    Revalidated,
    /// In the other store.
    Miss {
        /// It is in the cache now, or will be when it is complete.
        is_stored: bool,
        /// The bytes are those that another request has asked for.
        is_collapsed: bool,
    },
    /// The properties were in the cache, and some of the wanted bytes were not.
    Partial,
}

enum Source {
    /// Without a box, so that opening a file allocates no more than the file.
    Local(LocalFile),
    Other(Box<Other>),
}

struct Other {
    metadata: Vec<u8>,
    reader: Arc<dyn ReadAt>,
}

impl Object {
    /// An object that is a local file.
    pub fn from_local(meta: Meta, file: LocalFile) -> Object {
        Object {
            meta,
            source: Source::Local(file),
            cached: None,
        }
    }

    /// An object with the given metadata that `reader` reads.
    pub fn from_reader(meta: Meta, metadata: Vec<u8>, reader: Arc<dyn ReadAt>) -> Object {
        Object {
            meta,
            source: Source::Other(Box::new(Other { metadata, reader })),
            cached: None,
        }
    }

    /// The same object with what a cache says about it.
    pub fn with_cached(mut self, cached: Cached) -> Object {
        self.cached = Some(cached);
        self
    }

    /// The file that is open as long as the object, its streams, or what they are sent from. `None`
    /// if the content is not one file of this machine, or others have the file as well.
    pub fn file_mut(&mut self) -> Option<&mut File> {
        match &mut self.source {
            Source::Local(file) => file.file_mut(),
            Source::Other(other) => Arc::get_mut(&mut other.reader)?.file_mut(),
        }
    }

    /// What the store says about it if it is a cache.
    pub fn cached(&self) -> Option<Cached> {
        self.cached
    }

    /// Its properties at the time of opening.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The local file, if the object is one.
    pub fn local(&self) -> Option<&LocalFile> {
        match &self.source {
            Source::Local(file) => Some(file),
            Source::Other(_) => None,
        }
    }

    /// The reader, if the object is not a local file.
    pub fn reader(&self) -> Option<&Arc<dyn ReadAt>> {
        match &self.source {
            Source::Local(_) => None,
            Source::Other(other) => Some(&other.reader),
        }
    }

    /// Its metadata ([`Upload::set_metadata`](crate::Upload::set_metadata)). Empty if there is
    /// none.
    pub async fn metadata(&self) -> Result<Vec<u8>> {
        match &self.source {
            Source::Local(file) => file.metadata().await,
            Source::Other(other) => Ok(other.metadata.clone()),
        }
    }

    /// Appends at most `len_max` bytes, starting at `offset`, to `buf`, but no more than its spare
    /// capacity, and perhaps fewer. No bytes means the end, which comes early if another program
    /// has truncated the file. A local file is first read from the page cache on the calling
    /// worker, then on the pool.
    pub async fn read(&self, offset: u64, len_max: usize, buf: Vec<u8>) -> Result<Vec<u8>> {
        match &self.source {
            Source::Local(file) if file.is_copy() => {
                let left = usize::try_from(self.meta.size.saturating_sub(offset));
                file.read(offset, len_max.min(left.unwrap_or(usize::MAX)), buf)
                    .await
            }
            Source::Local(file) => file.read(offset, len_max, buf).await,
            Source::Other(other) => other.reader.read(offset, len_max, buf).await,
        }
    }

    /// The bytes of `range` as a stream that outlives this object. A range beyond the size ends
    /// with it. Fails with `UnexpectedEof` if another program has truncated the file.
    pub fn stream(&self, range: Range<u64>) -> ByteStream {
        let end = range.end.min(self.meta.size);
        let range = range.start.min(end)..end;
        match &self.source {
            Source::Local(file) => {
                let file = file.clone();
                pieces(range, move |offset, len| {
                    let file = file.clone();
                    Box::pin(async move { file.read(offset, len, Vec::with_capacity(len)).await })
                })
            }
            Source::Other(other) => other.reader.stream(range),
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

/// The bytes of `range` of a file as a stream: one read at a time, by `read`, which gets the
/// position and the length.
pub(crate) fn pieces<F>(range: Range<u64>, read: F) -> ByteStream
where
    F: Fn(u64, usize) -> LocalFuture<'static, Result<Vec<u8>>> + Unpin + 'static,
{
    Box::pin(Pieces {
        read,
        range,
        reading: None,
    })
}

struct Pieces<F> {
    read: F,
    /// What has not been returned yet.
    range: Range<u64>,
    reading: Option<LocalFuture<'static, Result<Vec<u8>>>>,
}

impl<F> Stream for Pieces<F>
where
    F: Fn(u64, usize) -> LocalFuture<'static, Result<Vec<u8>>> + Unpin,
{
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Pieces {
            read,
            range,
            reading,
        } = &mut *self;
        if range.is_empty() {
            return Poll::Ready(None);
        }
        let len = (range.end - range.start).min(PIECE_BYTES) as usize;
        let next = reading.get_or_insert_with(|| read(range.start, len));
        let read = ready!(next.as_mut().poll(cx));
        *reading = None;
        Poll::Ready(Some(match read {
            Ok(bytes) if bytes.is_empty() => {
                Err(StoreError::Io(io::ErrorKind::UnexpectedEof.into()))
            }
            Ok(bytes) => {
                range.start += bytes.len() as u64;
                Ok(bytes.into())
            }
            Err(error) => Err(error),
        }))
    }
}
