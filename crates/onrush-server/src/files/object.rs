//! An object as it is answered: its field lines rendered, its content at hand or open.
//!
//! This module must not know requests.

use super::budget::{Budget, Lease};
use super::mime::{self, Types};
use super::stored::Stored;
use onrush::{Body, Bytes, Part, Response};
use onrush_proto::date;
use onrush_proto::etag::EntityTag;
use onrush_proto::precondition::Current;
use onrush_proto::response::FieldLines;
use onrush_rt::descriptors::FileUse;
use onrush_rt::fs::File;
use onrush_store::{Key, Meta, Object, Result, StoreError, Version};
use std::io;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// Objects up to this size are read into memory; larger ones are sent from their file.
const SMALL_BYTES_MAX: u64 = 64 * 1024;

/// Objects up to this size are copied behind the head of their answer, and held nowhere else;
/// those between the two sizes are held in memory as long as a client takes to receive them, which
/// needs a budget.
const COPIED_BYTES_MAX: u64 = 16 * 1024;

/// An object changed so recently could change again within the same tick of its file system's
/// clock, and nobody could tell; it is not to be kept.
const SETTLED_AFTER_S: u64 = 2;

/// The policy of stored objects that a browser would run (Content Security Policy Level 3, §6.3.2).
/// Without `allow-scripts` and `allow-same-origin` no script of the page runs, no form is sent, and
/// the page has an origin of its own, so that it cannot act on the server in the reader's name.
/// Images and style sheets of the page are still loaded.
const SANDBOX: &[u8] = b"sandbox";

/// An object ready to be answered.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) size: u64,
    version: Version,
    /// Seconds since 1970; `None` before that.
    modified_s: Option<u64>,
    /// By its name; a type that is stored with it comes first.
    content_type: &'static str,
    /// All that every answer about it says, but for `Content-Type`.
    pub(super) fields: FieldLines,
    /// What its `PUT` said of it.
    stored: Option<Arc<Stored>>,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Memory(Bytes),
    File(Arc<File>),
}

impl Found {
    /// Reads or keeps open an object without waiting for a disk; `None` when that cannot be done,
    /// when the file is shorter than it was a moment ago, or when the budget of descriptors does
    /// not let it stay open.
    pub(super) fn now(
        object: &Object,
        key: &Key,
        now_s: u64,
        memory: &Arc<Budget>,
        types: &Types,
    ) -> Option<Found> {
        let meta = object.meta();
        let file = object.local_file()?;
        let content = match Room::of(meta.size, memory) {
            Room::None if !file.may_stay_open(FileUse::Download) => return None,
            // The kernel most likely has its attributes in memory when it has the first byte.
            Room::None if !file.is_resident(0, 1) => return None,
            Room::None => Content::File(file.clone()),
            room => {
                let size = meta.size as usize;
                let mut bytes = Vec::with_capacity(size);
                if size > 0 {
                    file.try_read_to_vec(&mut bytes, size, 0).ok()?;
                }
                if bytes.len() < size {
                    return None;
                }
                Content::Memory(room.hold(bytes))
            }
        };
        let stored = Stored::parse(&object.metadata_now().ok()?);
        Some(Found::new(meta, key, now_s, content, stored, types))
    }

    /// The same, waiting where it must. A file that became shorter meanwhile is an error;
    /// [`StoreError::Busy`]: the budget of descriptors does not let it stay open.
    pub(super) async fn load(
        object: &Object,
        key: &Key,
        now_s: u64,
        memory: &Arc<Budget>,
        types: &Types,
    ) -> Result<Found> {
        let meta = object.meta();
        let content = match (Room::of(meta.size, memory), object.local_file()) {
            (Room::None, Some(file)) => match file.may_stay_open(FileUse::Download) {
                true => Content::File(file.clone()),
                false => return Err(StoreError::Busy),
            },
            (Room::None, None) => return Err(StoreError::Io(io::ErrorKind::Unsupported.into())),
            (room, _) => {
                let size = meta.size as usize;
                let mut bytes = Vec::with_capacity(size);
                while bytes.len() < size {
                    let had = bytes.len();
                    bytes = object.read(had as u64, size - had, bytes).await?;
                    if bytes.len() == had {
                        return Err(StoreError::Io(io::ErrorKind::UnexpectedEof.into()));
                    }
                }
                Content::Memory(room.hold(bytes))
            }
        };
        let stored = Stored::parse(&object.metadata().await?);
        Ok(Found::new(meta, key, now_s, content, stored, types))
    }

    fn new(
        meta: &Meta,
        key: &Key,
        now_s: u64,
        content: Content,
        stored: Option<Stored>,
        types: &Types,
    ) -> Found {
        let modified_s = u64::try_from(meta.modified_ns)
            .ok()
            .map(|ns| ns / 1_000_000_000);
        // An origin must not claim a time in the future (RFC 9110 §8.8.2.1).
        let modified_s = modified_s.map(|modified_s| modified_s.min(now_s));
        let mut fields = fields(&meta.version, modified_s);
        if let Some(value) = stored.as_ref().and_then(Stored::cache_control) {
            let set = fields.set("Cache-Control", value);
            debug_assert!(set.is_ok(), "it was checked");
        }
        Found {
            size: meta.size,
            version: meta.version,
            modified_s,
            content_type: types.content_type(key.name()),
            fields,
            stored: stored.map(Arc::new),
            content,
        }
    }

    /// The same, with the sandbox that its type asks for: see [`SANDBOX`].
    pub(super) fn sandboxed(mut self) -> Found {
        if mime::is_scriptable(self.content_type()) {
            append(&mut self.fields, "Content-Security-Policy", SANDBOX);
        }
        self
    }

    /// Whether it still is what its fields say: a file that is kept open may be written into by
    /// others. Asks the kernel then, but no disk (`statx(2)` of the descriptor).
    pub(super) fn is_unchanged(&self) -> bool {
        match &self.content {
            Content::Memory(_) => true,
            Content::File(file) => {
                let now = file.metadata().ok().and_then(|found| Meta::of_file(&found));
                now.is_some_and(|now| now.version == self.version)
            }
        }
    }

    /// The value of `Content-Type`.
    pub(super) fn content_type(&self) -> &str {
        let stored = self.stored.as_ref();
        let stored = stored.and_then(|stored| stored.content_type());
        stored.unwrap_or(self.content_type)
    }

    /// `response`, with all fields of this object. Always inlined, because hot objects are answered
    /// by it and both structures are large to move.
    #[inline(always)]
    pub(super) fn describe(self, response: Response) -> Response {
        let response = response
            .content_type(self.content_type)
            .with_fields(self.fields);
        match self.stored {
            None => response,
            Some(stored) => describe_stored(&stored, response),
        }
    }

    /// Bytes of memory that its stored fields take, about.
    pub(super) fn stored_bytes(&self) -> usize {
        let stored = self.stored.as_ref();
        stored.map_or(0, |stored| stored.cost_bytes())
    }

    /// Which version it is.
    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    /// Whether its version can be relied upon to change when it changes next.
    pub(super) fn settled(&self, now_s: u64) -> bool {
        self.modified_s
            .is_none_or(|modified_s| modified_s + SETTLED_AFTER_S <= now_s)
    }

    /// Whether it is an open file that nobody else refers to.
    pub(super) fn is_idle_file(&self) -> bool {
        match &self.content {
            Content::Memory(_) => false,
            Content::File(file) => Arc::strong_count(file) == 1,
        }
    }

    /// Its content, when that is in memory.
    pub(super) fn memory(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Memory(bytes) => Some(bytes),
            Content::File(_) => None,
        }
    }

    /// What preconditions are compared with.
    pub(super) fn current(&self) -> Current<'_> {
        current(&self.version, self.modified_s)
    }

    /// The whole content.
    pub(super) fn body(&self) -> Body {
        self.slice(0..self.size)
    }

    /// Some of the content, as a body of its own.
    pub(super) fn slice(&self, range: Range<u64>) -> Body {
        match self.part(range) {
            Part::Bytes(bytes) => bytes.into(),
            part => Body::parts([part]),
        }
    }

    /// Some of the content, as a part of a body. `range` lies within the size.
    pub(super) fn part(&self, range: Range<u64>) -> Part {
        match &self.content {
            Content::Memory(bytes) => {
                Part::Bytes(bytes.slice(range.start as usize..range.end as usize))
            }
            Content::File(file) => Part::File {
                file: file.clone(),
                offset: range.start,
                length: range.end - range.start,
            },
        }
    }
}

#[cold]
fn describe_stored(stored: &Stored, mut response: Response) -> Response {
    stored.describe(&mut response);
    response
}

/// Whether there is memory for an object's content.
enum Room {
    /// It is small enough not to matter.
    Free,
    Leased(Lease),
    /// It is to be sent from its file.
    None,
}

impl Room {
    fn of(size: u64, memory: &Arc<Budget>) -> Room {
        if size <= COPIED_BYTES_MAX {
            return Room::Free;
        }
        let lease = (size <= SMALL_BYTES_MAX)
            .then(|| memory.take(size as usize))
            .flatten();
        lease.map_or(Room::None, Room::Leased)
    }

    /// The content; what was leased for it is given back when the last reference goes.
    fn hold(self, bytes: Vec<u8>) -> Bytes {
        struct Held {
            bytes: Vec<u8>,
            _lease: Lease,
        }
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                &self.bytes
            }
        }
        match self {
            Room::Leased(lease) => Bytes::from_owner(Held {
                bytes,
                _lease: lease,
            }),
            Room::Free | Room::None => bytes.into(),
        }
    }
}

/// What preconditions are compared with, for an object that is not opened.
pub(super) fn current_of(meta: &Meta) -> Current<'_> {
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

/// A version as the value of `ETag`.
pub(super) fn etag(version: &Version) -> Vec<u8> {
    let mut value = Vec::with_capacity(Version::BYTES_MAX + 2);
    if let Some(tag) = EntityTag::strong(version.as_bytes()) {
        tag.write(&mut value);
    }
    value
}

fn fields(version: &Version, modified_s: Option<u64>) -> FieldLines {
    static SAME: LazyLock<FieldLines> = LazyLock::new(|| {
        let mut lines = FieldLines::new();
        for (name, value) in [
            ("Accept-Ranges", "bytes"),
            ("Cache-Control", "no-cache"),
            ("X-Content-Type-Options", "nosniff"),
        ] {
            append(&mut lines, name, value.as_bytes());
        }
        lines
    });
    let mut lines = SAME.clone();
    append(&mut lines, "ETag", &etag(version));
    if let Some(modified_s) = modified_s {
        append(&mut lines, "Last-Modified", &date::format(modified_s));
    }
    lines
}

fn append(lines: &mut FieldLines, name: &str, value: &[u8]) {
    let appended = lines.append(name, value);
    debug_assert!(appended.is_ok(), "{name} was refused");
}
