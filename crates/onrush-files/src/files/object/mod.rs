//! An object that is ready to be served: rendered field lines, and content in memory or an open
//! file.

pub(super) mod cache;
pub(super) mod conditions;
pub(super) mod object_fields;
pub(super) mod wanted_digest;

use crate::files::http::digest::Algorithm;
use crate::files::http::types::{self, Types};
use crate::files::object::object_fields::{
    CACHE_STATUS, NO_CACHE, SANDBOX, append, cache_status, fields, set,
};
use crate::files::shared::budget::{Budget, Lease};
use crate::files::shared::pieces;
use crate::files::shared::stored_fields::StoredFields;
use onrush::compression::Coding;
use onrush::selection::{Piece, Representation};
use onrush::{Body, Bytes, Part, Response};
use onrush_proto::etag::EntityTag;
use onrush_proto::precondition::Current;
use onrush_proto::response::FieldLines;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::{File, Metadata};
use onrush_store::{
    ByteStream, CacheUse, Key, Kind, LocalFile, Meta, Object, ReadAt, Result, StoreError, Version,
};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Objects up to this size are read into memory. Larger ones are sent from their file.
pub(in crate::files) const SMALL_BYTES_MAX: u64 = 64 * 1024;

/// Responses copy objects up to this size into the buffer of the response head, so their memory is
/// not held while a client reads. Larger objects in memory are held until the client has received
/// them, which needs a budget.
const COPIED_BYTES_MAX: u64 = 16 * 1024;

/// An object that is ready to be served.
#[derive(Clone)]
pub(in crate::files) struct LoadedObject {
    pub(in crate::files) size: u64,
    version: Version,
    /// Seconds since 1970; `None` before that.
    modified_s: Option<u64>,
    /// Nanoseconds since 1970, as the store has it.
    modified_ns: i64,
    /// The same, of the last change of any kind, if the store knows it.
    changed_ns: Option<i64>,
    /// The type of the object's name. A stored type takes precedence.
    content_type: &'static str,
    /// The fields of every response about the object, except `Content-Type`.
    pub(in crate::files) fields: FieldLines,
    /// How the store has found it, if the store is a cache. It is in `fields`, too.
    cached: Option<CacheUse>,
    /// The fields that its `PUT` stored.
    stored: Option<Arc<StoredFields>>,
    content: Content,
}

/// Whether the content will be sent from an open file, as [`LoadedObject::load`] decides.
pub(in crate::files) fn stays_open(
    object: &mut Object,
    reads_all: bool,
    budget: &Arc<Budget>,
) -> bool {
    let is_read = reads_all || object.local().is_some();
    let size = object.meta().size;
    let fits = || !matches!(Reservation::new(size, budget), Reservation::Unavailable);
    object.file_mut().is_some() && !(is_read && fits())
}

/// The bytes that are read at a time to compute a digest.
const HASH_STEP_BYTES: usize = 64 * 1024;

#[derive(Clone)]
enum Content {
    Memory(Bytes),
    File(Arc<File>),
    /// A file that is a copy and never changes.
    Copy(Arc<File>),
    /// An object of a store that is not local. It is read while it is sent, and never cached.
    Reader(Arc<dyn ReadAt>),
}

impl LoadedObject {
    /// Loads an object without waiting for a disk. `None` if that is impossible, if the file has
    /// become shorter, or if the budget of descriptors does not let the file stay open.
    pub(in crate::files) fn try_load(
        object: &Object,
        key: &Key,
        now_s: u64,
        budget: &Arc<Budget>,
        types: &Types,
    ) -> Option<LoadedObject> {
        let meta = object.meta();
        let local = object.local()?;
        let file = local.file();
        let content = match Reservation::new(meta.size, budget) {
            Reservation::Unavailable if !file.may_stay_open(FileUse::Download) => return None,
            // If the first byte is in the page cache, the attributes most likely are in memory too.
            Reservation::Unavailable if !file.is_resident(0, 1) => return None,
            Reservation::Unavailable => Content::of_file(local),
            reservation => {
                let size = meta.size as usize;
                let mut bytes = Vec::with_capacity(size);
                if size > 0 {
                    file.try_read_to_vec(&mut bytes, size, 0).ok()?;
                }
                if bytes.len() < size {
                    return None;
                }
                Content::Memory(reservation.into_bytes(bytes))
            }
        };
        let stored = StoredFields::parse(&local.metadata_blocking().ok()?);
        let loaded = LoadedObject::new(meta, key, now_s, content, stored, types);
        Some(loaded.with_cached(object))
    }

    /// Loads an object and waits for the disk if necessary. The bytes of an object that is not a
    /// local file are loaded only if `reads_all` is set. It is an error if the file became shorter
    /// meanwhile. [`StoreError::Busy`]: the budget of descriptors does not let the file
    /// stay open.
    pub(in crate::files) async fn load(
        object: &Object,
        key: &Key,
        now_s: u64,
        reads_all: bool,
        budget: &Arc<Budget>,
        types: &Types,
    ) -> Result<LoadedObject> {
        let meta = object.meta();
        let content = match (Reservation::new(meta.size, budget), object.reader()) {
            (_, Some(reader)) if !reads_all => Content::Reader(reader.clone()),
            (Reservation::Unavailable, Some(reader)) => Content::Reader(reader.clone()),
            (Reservation::Unavailable, None) => {
                let local = object.local();
                let local = local.filter(|local| local.file().may_stay_open(FileUse::Download));
                Content::of_file(local.ok_or(StoreError::Busy)?)
            }
            (reservation, _) => {
                let size = meta.size as usize;
                let bytes = read(object, size).await?;
                if bytes.len() < size {
                    return Err(StoreError::Io(io::ErrorKind::UnexpectedEof.into()));
                }
                Content::Memory(reservation.into_bytes(bytes))
            }
        };
        let stored = StoredFields::parse(&object.metadata().await?);
        let loaded = LoadedObject::new(meta, key, now_s, content, stored, types);
        Ok(loaded.with_cached(object))
    }

    fn new(
        meta: &Meta,
        key: &Key,
        now_s: u64,
        content: Content,
        stored: Option<StoredFields>,
        types: &Types,
    ) -> LoadedObject {
        let modified_s = u64::try_from(meta.modified_ns)
            .ok()
            .map(|ns| ns / 1_000_000_000);
        // An origin must not claim a time in the future (RFC 9110 §8.8.2.1).
        let modified_s = modified_s.map(|modified_s| modified_s.min(now_s));
        // Preconditions do not use the client's time: it may stay the same when the bytes change.
        let shown_s = stored.as_ref().and_then(StoredFields::modified_s);
        // A time before 1970 is shown as 1970, as in listings, but is no validator.
        let shown_s = shown_s.map(|shown_s| shown_s.min(now_s));
        let shown_s = shown_s.or(Some(modified_s.unwrap_or(0)));
        let mut fields = fields(&meta.version, shown_s);
        if let Some(value) = stored.as_ref().and_then(StoredFields::cache_control) {
            set(&mut fields, "Cache-Control", value); // The value was checked.
        }
        LoadedObject {
            size: meta.size,
            version: meta.version,
            modified_s,
            modified_ns: meta.modified_ns,
            changed_ns: meta.changed_ns,
            content_type: types.content_type(key.name()),
            fields,
            cached: None,
            stored: stored.map(Arc::new),
            content,
        }
    }

    /// Adds `Cache-Status` (RFC 9211) if the store is a cache.
    fn with_cached(mut self, object: &Object) -> LoadedObject {
        self.cached = object.cached().map(|cached| cached.how);
        if let Some(how) = self.cached {
            append(&mut self.fields, CACHE_STATUS, cache_status(how).as_bytes());
        }
        self
    }

    /// The object as later responses have it that do not ask the store again.
    pub(in crate::files) fn for_later(&self) -> LoadedObject {
        let mut later = self.clone();
        if !matches!(later.cached, None | Some(CacheUse::Hit | CacheUse::Stale)) {
            later.cached = Some(CacheUse::Hit);
            let value = cache_status(CacheUse::Hit);
            set(&mut later.fields, CACHE_STATUS, value.as_bytes());
        }
        later
    }

    /// Adds [`SANDBOX`] if the type of the object requires it.
    pub(in crate::files) fn sandboxed(mut self) -> LoadedObject {
        if types::is_scriptable(self.content_type()) {
            set(&mut self.fields, "Content-Security-Policy", SANDBOX);
        }
        self
    }

    /// Adds `Vary`: the response depends on the codings that the client accepts.
    pub(in crate::files) fn varying(mut self) -> LoadedObject {
        set(&mut self.fields, "Vary", b"Accept-Encoding");
        self
    }

    /// This object as a representation of another one with the same content: `content_type` is the
    /// type of the name of that one, `stored` its stored fields.
    pub(in crate::files) fn representing(
        mut self,
        content_type: &'static str,
        stored: &Arc<StoredFields>,
    ) -> LoadedObject {
        let cache_control = stored.cache_control().unwrap_or(NO_CACHE);
        set(&mut self.fields, "Cache-Control", cache_control);
        self.content_type = content_type;
        self.stored = Some(stored.clone());
        self
    }

    /// The stored fields of this object in a coding.
    pub(in crate::files) fn fields_with(&self, coding: Coding) -> Arc<StoredFields> {
        Arc::new(StoredFields::with_coding(
            self.stored.as_deref(),
            coding.name(),
        ))
    }

    /// The content as a stream. `None` if it is in memory. `pool` runs reads that may wait.
    pub(in crate::files) fn stream(&self, pool: &BlockingPool) -> Option<ByteStream> {
        match &self.content {
            Content::Memory(_) => None,
            Content::File(file) | Content::Copy(file) => {
                let meta = Meta {
                    kind: Kind::File,
                    size: self.size,
                    modified_ns: self.modified_ns,
                    changed_ns: self.changed_ns,
                    version: self.version,
                };
                let file = LocalFile::new(file.clone(), pool.clone());
                Some(Object::from_local(meta, file).stream(0..self.size))
            }
            Content::Reader(reader) => Some(reader.stream(0..self.size)),
        }
    }

    /// Whether the content may be sent in a coding.
    pub(in crate::files) fn permits_coding(&self) -> bool {
        (self.stored.as_ref()).is_none_or(|stored| stored.permits_coding())
    }

    /// Whether the stored content has a coding.
    pub(in crate::files) fn has_coding(&self) -> bool {
        self.stored.as_ref().is_some_and(|it| it.has_coding())
    }

    /// Whether the object still has the version in its fields. Other programs may write to a file
    /// that is kept open. For a file this calls `statx(2)` on the descriptor, which needs no disk.
    pub(in crate::files) fn is_unchanged(&self) -> bool {
        match &self.content {
            Content::Memory(_) | Content::Copy(_) | Content::Reader(_) => true,
            Content::File(file) => file.metadata().is_ok_and(|found| {
                let now = Meta::from_file(&found);
                now.is_some_and(|now| now.version == self.version)
                    && Some(found.changed_ns) == self.changed_ns
            }),
        }
    }

    /// The value of `Content-Type`.
    pub(in crate::files) fn content_type(&self) -> &str {
        let stored = self.stored.as_ref();
        let stored = stored.and_then(|stored| stored.content_type());
        stored.unwrap_or(self.content_type)
    }

    /// Adds all fields of this object to `response`. Always inlined, because it is on the path of
    /// frequent requests and both structures are large to move.
    #[inline(always)]
    pub(in crate::files) fn add_fields(self, response: Response) -> Response {
        let response = response
            .content_type(self.content_type)
            .with_fields(self.fields);
        match self.stored {
            None => response,
            Some(stored) => add_stored_fields(&stored, response),
        }
    }

    /// The approximate memory of its stored fields, in bytes.
    pub(in crate::files) fn stored_bytes(&self) -> usize {
        let stored = self.stored.as_ref();
        stored.map_or(0, |stored| stored.cost_bytes())
    }

    /// The time of the last change of the content, in nanoseconds since 1970.
    pub(in crate::files) fn modified_ns(&self) -> i64 {
        self.modified_ns
    }

    /// The time of the last change of any kind; see [`Meta::changed_ns`].
    pub(in crate::files) fn changed_ns(&self) -> Option<i64> {
        self.changed_ns
    }

    /// The type of the object's name, whatever type is stored.
    pub(in crate::files) fn content_type_of_name(&self) -> &'static str {
        self.content_type
    }

    /// The version of the object.
    pub(in crate::files) fn version(&self) -> &Version {
        &self.version
    }

    /// Whether this is what `object`, which was opened just now, has: its version, and the time of
    /// its last change of any kind. A program may give another file an earlier time, and inodes are
    /// used again, but no program sets the time of a change.
    pub(in crate::files) fn is_of(&self, object: &Object) -> bool {
        let now = object.meta();
        self.version == now.version && self.changed_ns == now.changed_ns
    }

    /// Whether the next change is certain to change what [`LoadedObject::is_of`] compares.
    pub(in crate::files) fn has_reliable_version(&self, now_s: u64) -> bool {
        let changed_s = u64::try_from(self.changed_ns.unwrap_or(0) / 1_000_000_000).unwrap_or(0);
        let latest_s = self.modified_s.unwrap_or(0).max(changed_s.min(now_s));
        latest_s + Metadata::RELIABLE_AFTER.as_secs() <= now_s
    }

    /// Whether it is an open file that no response refers to.
    pub(in crate::files) fn is_idle_file(&self) -> bool {
        match &self.content {
            Content::Memory(_) | Content::Reader(_) => false,
            Content::File(file) | Content::Copy(file) => Arc::strong_count(file) == 1,
        }
    }

    /// The content, if it is in memory.
    pub(in crate::files) fn bytes_in_memory(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Memory(bytes) => Some(bytes),
            Content::File(_) | Content::Copy(_) | Content::Reader(_) => None,
        }
    }

    /// Whether the cache may keep it: it is in memory or an open file.
    pub(in crate::files) fn is_cacheable(&self) -> bool {
        !matches!(self.content, Content::Reader(_))
    }

    /// The size of the content in bytes.
    pub(in crate::files) fn size(&self) -> u64 {
        self.size
    }

    /// The digest of the content. `None` if it is not on this machine, or cannot be read. Blocks.
    pub(in crate::files) fn hash_blocking(&self, algorithm: Algorithm) -> Option<Vec<u8>> {
        let mut hasher = algorithm.start();
        match &self.content {
            Content::Memory(bytes) => hasher.update(bytes),
            Content::File(file) | Content::Copy(file) => {
                let mut step = vec![0; HASH_STEP_BYTES];
                let mut at = 0;
                while at < self.size {
                    let want = (self.size - at).min(HASH_STEP_BYTES as u64) as usize;
                    let read = file
                        .read_at(&mut step[..want], at)
                        .ok()
                        .filter(|&read| read > 0)?;
                    hasher.update(&step[..read]);
                    at += read as u64;
                }
            }
            Content::Reader(_) => return None,
        }
        Some(hasher.finish())
    }

    /// The state that preconditions are compared with.
    pub(in crate::files) fn current(&self) -> Current<'_> {
        current(&self.version, self.modified_s)
    }

    /// What a request for the object selects from.
    pub(in crate::files) fn representation(&self) -> Representation<'_> {
        let Current {
            etag, modified_s, ..
        } = self.current();
        Representation {
            etag,
            modified_s,
            size: self.size,
            content_type: self.content_type(),
        }
    }

    /// The whole content.
    pub(in crate::files) fn body(&self) -> Body {
        self.slice(0..self.size)
    }

    /// A range of the content as a body. `range` lies within the size.
    pub(in crate::files) fn slice(&self, range: Range<u64>) -> Body {
        match &self.content {
            Content::Memory(bytes) => slice_bytes(bytes, range).into(),
            Content::File(file) | Content::Copy(file) => Body::parts([file_part(file, range)]),
            Content::Reader(reader) => match reader.local_parts(range.clone()) {
                Some(parts) => Body::parts(parts.into_iter().map(|part| Part::File {
                    file: part.file,
                    offset: part.offset,
                    length: part.len,
                })),
                None => pieces::body(reader, vec![Piece::Range(range)]),
            },
        }
    }

    /// A body of `pieces`. Their ranges lie within the size.
    pub(in crate::files) fn body_of(&self, pieces: Vec<Piece>) -> Body {
        let parts = |part: &dyn Fn(Range<u64>) -> Part| {
            let parts = pieces.iter().map(|piece| match piece {
                Piece::Bytes(bytes) => Part::Bytes(bytes.clone()),
                Piece::Range(range) => part(range.clone()),
            });
            Body::parts(parts)
        };
        match &self.content {
            Content::Memory(bytes) => parts(&|range| Part::Bytes(slice_bytes(bytes, range))),
            Content::File(file) | Content::Copy(file) => parts(&|range| file_part(file, range)),
            Content::Reader(reader) => pieces::body(reader, pieces),
        }
    }
}

impl Content {
    fn of_file(local: &LocalFile) -> Content {
        let file = local.file().clone();
        match local.is_copy() {
            true => Content::Copy(file),
            false => Content::File(file),
        }
    }
}

impl fmt::Debug for LoadedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedObject")
            .field("size", &self.size)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

fn slice_bytes(bytes: &Bytes, range: Range<u64>) -> Bytes {
    bytes.slice(range.start as usize..range.end as usize)
}

fn file_part(file: &Arc<File>, range: Range<u64>) -> Part {
    Part::File {
        file: file.clone(),
        offset: range.start,
        length: range.end - range.start,
    }
}

#[cold]
fn add_stored_fields(stored: &StoredFields, mut response: Response) -> Response {
    stored.add_fields(&mut response);
    response
}

/// Memory for the content of an object.
enum Reservation {
    /// The content is small and needs no budget.
    NotNeeded,
    Leased(Lease),
    /// The object is too large or the budget is used up: it is sent from its file.
    Unavailable,
}

impl Reservation {
    fn new(size: u64, budget: &Arc<Budget>) -> Reservation {
        if size <= COPIED_BYTES_MAX {
            return Reservation::NotNeeded;
        }
        let lease = (size <= SMALL_BYTES_MAX)
            .then(|| budget.take(size as usize))
            .flatten();
        lease.map_or(Reservation::Unavailable, Reservation::Leased)
    }

    /// Converts the content to shared bytes. The lease is returned when the last reference to the
    /// content is dropped.
    fn into_bytes(self, bytes: Vec<u8>) -> Bytes {
        struct LeasedBytes {
            bytes: Vec<u8>,
            _lease: Lease,
        }
        impl AsRef<[u8]> for LeasedBytes {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        match self {
            Reservation::Leased(lease) => Bytes::from_owner(LeasedBytes {
                bytes,
                _lease: lease,
            }),
            Reservation::NotNeeded | Reservation::Unavailable => bytes.into(),
        }
    }
}

/// The state that preconditions are compared with, for an object that is not opened.
pub(in crate::files) fn current_of(meta: &Meta) -> Current<'_> {
    let modified_s = u64::try_from(meta.modified_ns)
        .ok()
        .map(|ns| ns / 1_000_000_000);
    current(&meta.version, modified_s)
}

fn current(version: &Version, modified_s: Option<u64>) -> Current<'_> {
    Current {
        exists: true,
        etag: EntityTag::strong(version.as_bytes()),
        modified_s,
    }
}

/// The first `size` bytes of an object. They are fewer if another program has truncated the file.
pub(in crate::files) async fn read(object: &Object, size: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        let had = bytes.len();
        bytes = object.read(had as u64, size - had, bytes).await?;
        if bytes.len() == had {
            break;
        }
    }
    Ok(bytes)
}
