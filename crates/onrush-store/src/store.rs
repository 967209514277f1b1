//! The interface of a store: the trait [`Store`] and its types.
//!
//! Conditions, versions and pages are data that can be sent to another machine. The trait contains
//! no file, descriptor, path or thread pool. What only some stores have is a method with a default,
//! or a trait of its own ([`Store::uploads`]).

use crate::changes::FolderChanges;
use crate::error::{Result, StoreError};
use crate::key::Key;
use crate::listing::ListingState;
pub(crate) use crate::listing::{
    Cursor, CursorHow, DetailedEntry, Entry, ListHow, NamesMemory, Page,
};
use crate::meta::{Kind, Meta, Version};
use crate::object::{LocalFuture, Object};
use crate::shown::ShownNames;
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// The condition under which a change is made. It is data, so a store can send it to another
/// machine. The store evaluates it together with the change: no other change comes between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Always.
    None,
    /// If there is no object.
    Absent,
    /// If there is an object.
    Present,
    /// If the current object has one of these versions.
    Versions(Vec<Version>),
}

impl Condition {
    /// The condition that the object is still the one that the caller has seen: `current`, or none.
    /// With it, a caller evaluates any other condition itself.
    pub fn unchanged(current: Option<&Meta>) -> Condition {
        match current {
            Some(meta) => Condition::Versions(vec![meta.version]),
            None => Condition::Absent,
        }
    }

    /// Whether the condition is [`Condition::None`].
    pub fn is_none(&self) -> bool {
        matches!(self, Condition::None)
    }

    /// Checks whether the change may be made. Fails with [`StoreError::PreconditionFailed`] if not.
    pub fn check(&self, current: Option<&Meta>) -> Result<()> {
        let holds = match self {
            Condition::None => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::Versions(good) => current.is_some_and(|meta| good.contains(&meta.version)),
        };
        if holds {
            Ok(())
        } else {
            Err(StoreError::PreconditionFailed)
        }
    }
}

/// What the caller of [`Store::open`] is going to read. It is a hint: all bytes of the object can
/// be read in any case, perhaps at the cost of another request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All bytes, in order.
    All,
    /// The properties and the metadata, but most likely no bytes.
    Properties,
    /// These bytes. The end may lie beyond that of the object.
    Range(Range<u64>),
}

/// Objects by key. Every future may be dropped at any time. A change whose future is dropped is
/// made completely or not at all, perhaps later; neither the caller nor a store in front that
/// counts changes ([`QuotaStore`](crate::QuotaStore), until it counts again) learns which. A caller
/// for whom that matters polls a change to its end, as the object server does. A future may be
/// polled by another task than before. All workers share one store; a future stays on its worker.
pub trait Store: fmt::Debug + Send + Sync {
    /// Opens an object for reading. `wanted` is what the caller is going to read: a store that
    /// transfers bytes may begin with these. Fails with [`StoreError::IsDirectory`] for a folder.
    fn open<'a>(&'a self, key: &'a Key, wanted: Wanted) -> LocalFuture<'a, Result<Object>>;

    /// Opens an object for reading the whole of it; see [`Store::open`].
    fn get<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Object>> {
        self.open(key, Wanted::All)
    }

    /// The properties of the object or folder at `key`. Does not open it.
    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>>;

    /// The object that an upload to `key` would replace; `None` if there is none. Fails as the
    /// commit would if another entry (such as a folder) is in the way.
    fn existing_object<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>>;

    /// Begins an upload that becomes the object `key` when it is committed, if `condition` holds
    /// at that time. If `size_bytes` is known, a full disk is reported now. Nothing is visible
    /// before the commit. Fails with [`StoreError::Unsupported`] if the store cannot evaluate the
    /// condition together with the change.
    fn stage<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>>;

    /// Deletes an object, or a folder if it is empty ([`StoreError::NotEmpty`] otherwise), and
    /// returns its properties. Parent folders stay if the store has empty folders. `kind` says
    /// which of both the caller means: a folder in the place of the object is
    /// [`StoreError::IsDirectory`], an object in the place of the folder is
    /// [`StoreError::NotFound`]. If the key is a symbolic link, only the link is deleted, even if
    /// it names a folder that is not empty.
    fn delete<'a>(
        &'a self,
        key: &'a Key,
        kind: Kind,
        condition: Condition,
    ) -> LocalFuture<'a, Result<Meta>>;

    /// Creates an empty folder, and those above it that are missing. Success means that it is
    /// durable, as far as the store promises that. Returns whether it was created: false if it
    /// exists. Fails with [`StoreError::Conflict`] or [`StoreError::NotDirectory`] if an object is
    /// in the way. By default fails with [`StoreError::Unsupported`]: a store without folders of
    /// their own shows those that objects have in their keys ([`Features::empty_folders`]).
    fn create_folder<'a>(&'a self, _key: &'a Key) -> LocalFuture<'a, Result<bool>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// Makes the object `to` a copy of the object `from`, with its metadata, as atomically as a
    /// commit. Fails with [`StoreError::Unsupported`] if the store has no operation for it: the
    /// caller can read the object and stage it.
    fn copy(&self, _how: Relocation) -> LocalFuture<'_, Result<Committed>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// Gives the object or the folder `from` the key `to`, atomically: readers find it at exactly
    /// one of both. `kind` says which of both it is, as in [`Store::delete`]. An object replaces an
    /// object, if the condition permits it; a folder replaces an empty folder. A symbolic link is a
    /// conflict. The same name through a symbolic link is [`StoreError::Forbidden`], as the same
    /// key is. The version stays the same. Fails with [`StoreError::Unsupported`] if the store
    /// cannot do this atomically.
    fn rename(&self, _how: Relocation, _kind: Kind) -> LocalFuture<'_, Result<Committed>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// As [`Store::rename`], but replaces whatever is at the new key: an object, a symbolic link
    /// itself, or a folder with everything in it. Readers find the old one or the new one, and so
    /// does the next start after a crash; the old one is removed when the new one is durable, and
    /// stays if anything fails. A folder in which a name is hidden, or with a file that is no
    /// object, is not replaced ([`StoreError::NotEmpty`]); `shown` are the others with a dot.
    /// Fails with [`StoreError::Conflict`] if the old one contains the new one. By default, and on
    /// file systems that cannot exchange two names, fails with [`StoreError::Unsupported`].
    fn replace(
        &self,
        _how: Relocation,
        _kind: Kind,
        _shown: ShownNames,
    ) -> LocalFuture<'_, Result<Committed>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// A place for a copy of `from` that will replace what is at `to` ([`Store::replace`]). Fails
    /// if what is known of the copy says that it will not succeed, such as
    /// [`StoreError::OverQuota`]. By default fails with [`StoreError::Unsupported`].
    fn stage_copy<'a>(
        &'a self,
        _from: &'a Key,
        _to: &'a Key,
    ) -> LocalFuture<'a, Result<StagedCopy>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// Gives the object or the folder at the place of a copy the owner, group and mode that it
    /// needs to replace what is at `to`: before a folder gets its content, which inherits from it.
    /// By default does nothing.
    fn take_rights<'a>(
        &'a self,
        _copy: &'a StagedCopy,
        _to: &'a Key,
    ) -> LocalFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// How what `from` names and what `to` names lie to each other. Two keys may name one object
    /// or folder, through symbolic links. By default compares the keys.
    fn overlap<'a>(&'a self, from: &'a Key, to: &'a Key) -> LocalFuture<'a, Result<Overlap>> {
        Box::pin(async { Ok(Overlap::of_keys(from, to)) })
    }

    /// Whether another path may lead to what `key` names because names differ in case, or in the
    /// form of a letter, and the store does not distinguish them. So a lock of a path is none of
    /// the object. By default `false`.
    fn folds_names<'a>(&'a self, _key: &'a Key) -> LocalFuture<'a, Result<bool>> {
        Box::pin(async { Ok(false) })
    }

    /// The properties of the root folder. By default `None`: they are not known.
    fn root_meta(&self) -> LocalFuture<'_, Result<Option<Meta>>> {
        Box::pin(async { Ok(None) })
    }

    /// The space for objects in `folder` (`None`: the root folder). By default `None`: it is not
    /// known, or there is no limit.
    fn space<'a>(&'a self, _folder: Option<&'a Key>) -> LocalFuture<'a, Result<Option<Space>>> {
        Box::pin(async { Ok(None) })
    }

    /// The properties that clients have set on an object or a folder; empty if there are none.
    fn properties<'a>(&'a self, _key: &'a Key) -> LocalFuture<'a, Result<Vec<u8>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Replaces the properties `old` of an object or a folder by `new`. They are bytes that the
    /// store does not interpret and that are not part of the content: version and time stay the
    /// same. Copies and renamed objects have them as well. Fails with
    /// [`StoreError::PreconditionFailed`] if the properties are not `old` any more, and with
    /// [`StoreError::TooLarge`] if there are more than [`Features::properties_bytes_max`].
    fn replace_properties<'a>(
        &'a self,
        _key: &'a Key,
        _old: &'a [u8],
        _new: &'a [u8],
    ) -> LocalFuture<'a, Result<()>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// One page of the entries of `folder` (`None`: the root folder), in the order of
    /// [`Features::position`]. It includes every change that completed before this future was first
    /// polled.
    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>>;

    /// Fails as [`Store::list`] of this folder would, without reading its names if the store can.
    fn check_folder<'a>(&'a self, folder: Option<&'a Key>) -> LocalFuture<'a, Result<()>> {
        let how = ListHow {
            limit: 1,
            ..ListHow::default()
        };
        Box::pin(async move { self.list(folder, how).await.map(drop) })
    }

    /// The next entries of a folder that is read from one end to the other, in the order of
    /// [`Features::position`]: at most `limit` (1 to [`ListHow::LIMIT_MAX`]), perhaps fewer, and
    /// none only at the end. What exists the whole time is returned once; what is created, removed
    /// or renamed meanwhile, perhaps. After an error, or if the future was dropped before it
    /// completed, the cursor can only be dropped.
    fn next_entries<'a>(
        &'a self,
        cursor: &'a mut Cursor,
        limit: usize,
    ) -> LocalFuture<'a, Result<Vec<DetailedEntry>>> {
        Box::pin(async move {
            while let Some(how) = cursor.page(limit) {
                let page = self.list(cursor.folder.as_ref(), how).await?;
                if let Some(next) = page.next {
                    cursor.state = ListingState::Page(Some(next));
                }
                if !page.entries.is_empty() {
                    return Ok(page.entries.into_iter().map(DetailedEntry::from).collect());
                }
            }
            Ok(Vec::new())
        })
    }

    /// Collects the changes of the entries of `folder` (`None`: the root folder) from now on, by
    /// whatever program. It does not include those of folders beneath it. By default fails with
    /// [`StoreError::Unsupported`] ([`Features::watch`]).
    fn watch<'a>(
        &'a self,
        _folder: Option<&'a Key>,
    ) -> LocalFuture<'a, Result<Box<dyn FolderChanges>>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// As [`Store::open`], but without waiting. `None`: this would wait, or the store always waits.
    fn try_get(&self, _key: &Key) -> Option<Result<Object>> {
        None
    }

    /// A number that changes with every change of this key through this store, before that change
    /// completes. Changes of other keys may change it, too. A cache reads the number before it
    /// opens the object. While the number stays the same, the cached bytes are current, except for
    /// changes that other programs make. `None`: other machines change the objects, or a change of
    /// the key is in progress, so a cache has to ask the store whether its [`Version`] is current.
    fn generation(&self, _key: &Key) -> Option<u64> {
        None
    }

    /// How many times the store has become another one, because the path of a folder leads to
    /// another one. What a caller has counted before is not that of this one.
    fn swaps(&self) -> u64 {
        0
    }

    /// Uploads that continue after an interruption, if the store can keep them. By default `None`.
    fn uploads(&self) -> Option<&dyn ResumableUploads> {
        None
    }

    /// What the store can do beyond the required methods.
    fn features(&self) -> Features {
        Features::default()
    }
}

/// Uploads that outlive the requests and the process that send them: a store keeps their bytes
/// ([`Upload::keep`]), and they become an object later.
pub trait ResumableUploads: Store {
    /// As [`Store::stage`], for an upload that may be kept ([`Upload::keep`]). A store that passes
    /// bytes on to a service sends them in a form that outlives the request. By default the same.
    fn stage_resumable<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        self.stage(key, condition, size_bytes)
    }

    /// Continues an upload of which `kept` bytes were kept ([`Upload::keep`]), perhaps by another
    /// process. Bytes that were written after that are dropped. The key is that of the
    /// [`ResumableUploads::stage_resumable`] before; the condition is that of the commit. The
    /// metadata has to be set again. The caller ensures that no two uploads of this process
    /// continue the same bytes; [`Upload::take_over`] excludes other machines. A write or a commit
    /// of a dropped upload may go on: this waits for its end. Fails with [`StoreError::NotFound`]
    /// if the bytes are gone, for example because that commit has published them.
    fn resume<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>>;

    /// Writes the bytes of `buf` at any position of a kept upload, and returns `buf`, empty. While
    /// the upload is resumed, this waits. The bytes are kept after
    /// [`ResumableUploads::sync_partial`]; a caller that has written all of them continues with
    /// their number as [`PartialUpload::bytes`]. Fails with [`StoreError::NotFound`] if the upload
    /// is gone: a write never changes an object that was published. By default fails with
    /// [`StoreError::Unsupported`] ([`Features::uploads_in_any_order`]).
    fn write_partial<'a>(
        &'a self,
        _kept: &'a PartialUpload,
        _position: u64,
        _buf: Vec<u8>,
    ) -> LocalFuture<'a, Result<Vec<u8>>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// Makes everything that [`ResumableUploads::write_partial`] has written as durable as objects
    /// are. If this fails, it is not known which bytes the disk has, and the upload is removed:
    /// except with [`StoreError::Unavailable`] and [`StoreError::Busy`], with which nothing was
    /// tried.
    fn sync_partial<'a>(&'a self, _kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// Removes what only `old` needs, two results of [`Upload::keep`] of the same upload. The
    /// caller has recorded `new` in its place. This need not be complete when the future is, and
    /// what is left is removed by its age. By default does nothing: most stores keep both in the
    /// same place.
    fn discard_replaced<'a>(
        &'a self,
        _old: &'a PartialUpload,
        _new: &'a PartialUpload,
    ) -> LocalFuture<'a, ()> {
        Box::pin(async {})
    }

    /// The size of the object at `key` if it has been made from the kept bytes: the upload was
    /// committed, and the process ended before the caller could record that.
    fn published<'a>(
        &'a self,
        key: &'a Key,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Option<u64>>>;

    /// Whether kept bytes are still there. Not if they have become an object, or were discarded.
    fn is_kept<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<bool>>;

    /// Removes the bytes of an upload that is not going to be continued. If they are gone already,
    /// nothing happens. A commit that goes on after the upload was dropped may still succeed. Fails
    /// with [`StoreError::InUse`] while another process uses the upload.
    fn discard<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>>;

    /// Removes the kept bytes of all uploads that were not written to for longer than `age`,
    /// whether a caller knows of them or not. Returns the number of uploads.
    fn discard_older(&self, age: Duration) -> LocalFuture<'_, Result<usize>>;
}

/// What a store can do beyond the required methods of [`Store`]. Nothing by default. A store in
/// front of another one decides about each feature by itself: it must not promise what it does not
/// pass on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// The maximum size in bytes of the metadata of an upload ([`Upload::set_metadata`]); 0 if
    /// uploads cannot have metadata.
    pub metadata_bytes_max: usize,
    /// The same bytes have the same version. Without it, no version is used twice.
    pub versions_by_content: bool,
    /// Uploads can be continued after an interruption ([`Upload::keep`],
    /// [`ResumableUploads::resume`]).
    pub resumable_uploads: bool,
    /// Such uploads are continued by other servers of the store as well ([`Upload::take_over`]).
    pub shared_uploads: bool,
    /// Such uploads can be written at any position ([`ResumableUploads::write_partial`]).
    pub uploads_in_any_order: bool,
    /// Such uploads can be joined ([`Upload::append_partial`]).
    pub joins_uploads: bool,
    /// [`Upload::write`] completes on the calling worker. Receiving bytes while others are written
    /// then gains nothing.
    pub inline_writes: bool,
    /// A folder can exist without objects ([`Store::create_folder`]).
    pub empty_folders: bool,
    /// [`Store::rename`] supports objects.
    pub renames_objects: bool,
    /// [`Store::rename`] supports folders.
    pub renames_folders: bool,
    /// Changes of a folder are reported ([`Store::watch`]).
    pub watch: bool,
    /// Opening an object for its metadata takes no request to another machine, so a listing may
    /// open every object.
    pub local_metadata: bool,
    /// The maximum size in bytes of the properties of an object ([`Store::replace_properties`]); 0
    /// if there are none.
    pub properties_bytes_max: usize,
    /// Listings are ordered as if the names of folders ended with a slash: see
    /// [`Features::position`].
    pub folders_end_with_slash: bool,
}

impl Features {
    /// The position of an entry in the order of the store's listings, and the value of
    /// [`ListHow::after`] for what follows it: its name, or, with
    /// [`Features::folders_end_with_slash`], for a folder its name and a slash.
    pub fn position(&self, entry: &Entry) -> Vec<u8> {
        let mut position = entry.name.clone();
        if self.folders_end_with_slash && entry.kind == Kind::Directory {
            position.push(b'/');
        }
        position
    }

    /// The same, for a store in front of another one. A new feature does not compile until all
    /// stores in front pass it on or refuse it.
    pub(crate) fn passed_on(self) -> Features {
        let Features {
            metadata_bytes_max: _,
            versions_by_content: _,
            resumable_uploads: _,
            shared_uploads: _,
            uploads_in_any_order: _,
            joins_uploads: _,
            inline_writes: _,
            empty_folders: _,
            renames_objects: _,
            renames_folders: _,
            watch: _,
            local_metadata: _,
            properties_bytes_max: _,
            folders_end_with_slash: _,
        } = self;
        self
    }
}

/// An upload in progress. Dropping it aborts the upload and removes the staged bytes that were not
/// kept.
pub trait Upload {
    /// Appends the bytes of `buf` and returns an empty buffer: the same one with its capacity, or
    /// one without capacity if the upload keeps `buf` because its bytes are the first and few.
    /// Memory use does not grow with the upload. After an error, or if the future was dropped
    /// before it completed, the upload can only be dropped.
    fn write(&mut self, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>>;

    /// Sets the metadata: bytes that the store keeps with the content. Lines `name: value` with the
    /// names of HTTP fields that describe content may be kept as such fields, which other programs
    /// see and set, and their order may change; other bytes are not interpreted. Fails with
    /// [`StoreError::TooLarge`] if there are more than [`Features::metadata_bytes_max`]. Must
    /// precede the first write. The commit makes them visible together with the content, and they
    /// replace the metadata of the old object. By default there is no metadata. The commit fails
    /// with [`StoreError::NoMetadata`] if the store does not support it.
    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()>;

    /// The number of bytes written so far.
    fn written_bytes(&self) -> u64;

    /// Keeps the bytes written so far when this upload is dropped, or the process ends, or, as far
    /// as the store promises that for objects, the power fails. [`ResumableUploads::resume`]
    /// continues with what this returns. The bytes occupy the store until the commit or
    /// [`ResumableUploads::discard`]. A commit that fails leaves them: the caller discards them if
    /// the failure is final.
    fn keep(&mut self) -> LocalFuture<'_, Result<PartialUpload>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// What the caller of [`ResumableUploads::resume`] has to record, in the place of what it has
    /// resumed and only if that is still recorded, before it writes or commits. It differs each
    /// time, so of several machines that resume the same bytes one succeeds; the others drop their
    /// uploads.
    /// `None`: the store excludes other machines by itself.
    fn take_over(&mut self) -> Option<PartialUpload> {
        None
    }

    /// Appends the kept bytes of another upload, which stay kept, as [`Upload::write`] would. The
    /// caller ensures that no one continues that upload meanwhile. A write of one that was dropped
    /// may go on: this waits for its end. Fails with [`StoreError::NotFound`] if the bytes are
    /// gone.
    fn append_partial<'a>(&'a mut self, _kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        Box::pin(async { Err(StoreError::Unsupported) })
    }

    /// Publishes the upload as the object, atomically, if its condition holds: readers see the old
    /// object or the new one. Success means that the object is durable, as far as the store
    /// promises that.
    fn commit(self: Box<Self>) -> LocalFuture<'static, Result<Committed>>;
}

/// What to copy or rename.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// The present key.
    pub from: Key,
    /// The condition of the object there.
    pub from_condition: Condition,
    /// The new key, which differs.
    pub to: Key,
    /// The condition of the object there.
    pub to_condition: Condition,
}

/// How two names lie to each other: [`Store::overlap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// Neither contains the other.
    None,
    /// Both name the same.
    Same,
    /// The new name is beneath the folder of the present one.
    Beneath,
    /// The folder at the new name contains the present one.
    Contains,
}

impl Overlap {
    /// Where the keys alone say it.
    pub fn of_keys(from: &Key, to: &Key) -> Overlap {
        match (from == to, to.is_beneath(from), from.is_beneath(to)) {
            (true, _, _) => Overlap::Same,
            (_, true, _) => Overlap::Beneath,
            (_, _, true) => Overlap::Contains,
            _ => Overlap::None,
        }
    }
}

/// The place of a copy that is not complete: [`Store::stage_copy`]. Dropping it removes what
/// has been copied; so does the next start of the store.
pub struct StagedCopy {
    key: Key,
    /// The room that a quota has reserved.
    room: Option<Box<dyn Any>>,
    /// Removes the copy when it is dropped.
    _guard: Box<dyn Any>,
}

impl StagedCopy {
    pub(crate) fn new(key: Key, guard: Box<dyn Any>) -> StagedCopy {
        StagedCopy {
            key,
            room: None,
            _guard: guard,
        }
    }

    pub(crate) fn with_room(mut self, room: Box<dyn Any>) -> StagedCopy {
        self.room = Some(room);
        self
    }

    /// Where to copy to: the key of the object or the folder itself. Only copies are made there.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// To be called before [`Store::replace`], which reserves the room that the copy needs.
    pub fn free_room(&mut self) {
        self.room = None;
    }
}

impl fmt::Debug for StagedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagedCopy")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// The bytes of an upload that outlive it: [`Upload::keep`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartialUpload {
    /// The number of bytes that are kept, from the first one.
    pub bytes: u64,
    /// Where the store finds them. Only the store interprets it.
    pub place: Vec<u8>,
}

/// The space of a folder, for the objects of all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The bytes that objects may have in addition.
    pub available_bytes: u64,
    /// The bytes that are in use.
    pub used_bytes: u64,
}

/// The result of a successful commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Whether the key had no object before.
    pub created: bool,
    /// What a [`Quota`](crate::Quota) counts no longer, in bytes: the object or the folder that was
    /// replaced, with everything in it; 0 if there was none, or if the store does not know it.
    pub replaced_bytes: u64,
    /// The properties of the new object.
    pub meta: Meta,
}
