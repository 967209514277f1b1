//! Uploads that are continued after an interruption: one mechanism for each protocol that has them.
//!
//! An *unfinished upload* has an id, a key, an owner, the bytes so far, and what its first request
//! asked for: length, precondition, fields of the object, digests. The object appears when the
//! upload is completed, in one step, if the precondition holds then.
//!
//! - The bytes are kept by the store ([`Upload::keep`](onrush_store::Upload::keep)). A record of
//!   everything else (`record`) is an object with a key of [`Key::state`], which each store makes
//!   durable and replaces atomically. The record contains the offset, and is written after the
//!   bytes are kept: what it says has been kept.
//! - A [`Session`] is the use of an upload by one request. Only one exists at a time. A
//!   later request ends an earlier one, which keeps what has arrived: it is most likely the same
//!   client after its connection was lost.
//! - An upload with `parts` gets them in any order, from several requests at a time (`part`). They
//!   write to the kept bytes and use the upload only briefly, before and after. Of a part there is
//!   one request at a time, and none once it has arrived. The record says which parts have arrived:
//!   it is written after a part is verified and synced.
//! - A *partial* upload is never completed. A request joins the bytes of several to an object
//!   (`joining`), by a copy in the store, so that they are what they were if it fails. The request
//!   may be sent again, as if it were one of an upload with a URL that the client knows.
//! - The end of the connection does not interrupt a request that uses an upload
//!   (`run_to_end`): it sees the end of the body and keeps what has arrived.
//! - A session keeps its bytes when it ends, and every [`CHECKPOINT_BYTES`], so `kill -9` costs no
//!   more than that. An upload that is complete after its first request has no record.
//! - Several servers of one bucket have the same uploads. Before a session writes or completes, it
//!   claims the upload: it replaces the record by one with another place, if it is still the same.
//!   So of several servers that use an upload one continues, and the others get 409.
//! - The id has 128 random bits and is part of the URL, at the path of the object. So the rights of
//!   a path hold for it as well. Beyond them, only the user who has begun an upload may continue
//!   it; for anonymous clients the id is the secret.
//! - The number of unfinished uploads, their bytes and their age are limited (`index`). If the
//!   store becomes another one, those that it has are read again.
//!
//! A completed upload is remembered in memory, so that a client that has lost the response learns
//! that its upload is complete. If the process was killed before the record was removed, the object
//! itself says so ([`ResumableUploads::published`]).
//!
//! Submodules, lowest first: `id` · `in_base64` · `parts` · `record` · `index` ·
//! `records` · `removed` · `session` · `part` · `joining`.

mod id;
mod in_base64;
mod index;
mod joining;
mod part;
mod parts;
mod record;
mod records;
mod removed;
mod session;

pub use id::UPLOAD_RECORDS;
pub(crate) use id::UploadId;
pub(in crate::files) use index::{Completed, Progress};
pub(in crate::files) use joining::{Before, Joining};
pub(in crate::files) use part::PartPlan;
pub(in crate::files) use parts::Parts;
pub(in crate::files) use session::{Session, TOO_LONG};

use crate::files::http::digest::Digests;
use crate::files::http::http_error::HttpError;
use crate::files::options::FilesOptions;
use crate::files::receive::upload::ReceiveError;
use crate::files::shared::open_files::OpenFiles;
use crate::files::shared::run_to_end::run_to_end;
use crate::files::upload_limits::{SharedLimits, UploadLimits};
use crate::shares::{self, Holder};
use index::Index;
use onrush::WorkerHandle;
use onrush_rt::blocking::block_on;
use onrush_rt::descriptors::Descriptors;
use onrush_store::sync::Exclusive;
use onrush_store::{
    Condition, Key, PartialUpload, RecordedUpload, ResumableUploads, Store, StoreError,
};
use record::{Record, Used};
use records::{Known, Summary};
use removed::RemovedUsers;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// A session keeps its bytes each time that this many have arrived.
const CHECKPOINT_BYTES: u64 = 64 << 20;

/// The maximum time between two searches for uploads that are too old.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

pub(in crate::files) const NO_UPLOAD: HttpError =
    HttpError::new(404, "there is no such upload, or it has expired");
const TOO_MANY: HttpError = HttpError::new(503, "there are too many unfinished uploads");
const TOO_MANY_OWN: HttpError = HttpError::new(
    429,
    "you have too many unfinished uploads; complete or cancel some of them",
);
const NO_SPACE: HttpError = HttpError::new(507, "unfinished uploads use all space that they may");
const NO_SPACE_OWN: HttpError = HttpError::new(
    507,
    "your unfinished uploads use all space that those of one client may",
);
const NO_RANDOM: HttpError = HttpError::new(500, "the system has no random numbers");

/// What the first request of an upload asks for.
pub(in crate::files) struct NewUpload {
    pub(in crate::files) key: Key,
    /// The name of the user; `None` for an anonymous client.
    pub(in crate::files) owner: Option<String>,
    /// Whose share of unfinished uploads it uses.
    pub(in crate::files) holder: Holder,
    /// The length of the object in bytes, if it is known.
    pub(in crate::files) length: Option<u64>,
    /// If its parts may arrive in any order.
    pub(in crate::files) parts: Option<Parts>,
    /// It does not become an object by itself.
    pub(in crate::files) is_partial: bool,
    pub(in crate::files) condition: Condition,
    /// The fields to store with the object.
    pub(in crate::files) metadata: Vec<u8>,
    /// The digests of the whole object.
    pub(in crate::files) digests: Digests,
    /// `Upload-Metadata` of a tus client, which gets it back.
    pub(in crate::files) tus_metadata: Option<String>,
}

/// An upload that a request names.
pub(in crate::files) enum FoundUpload {
    Unfinished(Box<Session>),
    Completed(Completed),
}

/// The unfinished uploads of a store.
pub(in crate::files) struct Uploads {
    store: Arc<dyn Store>,
    open_files: Arc<OpenFiles>,
    limits: SharedLimits,
    active: Exclusive<UploadId>,
    /// By the position of the part.
    active_parts: Exclusive<(UploadId, u64)>,
    index: Index,
    /// [`Store::swaps`] of what the index has.
    swaps: AtomicU64,
    known: Known,
    removed_users: RemovedUsers,
    /// Used by the request that reads the index.
    loading: Exclusive<()>,
    /// Whether a task removes uploads that are too old.
    is_swept: AtomicBool,
}

/// The uploads of `store` that are recorded: those that clients can continue. Blocks, and needs no
/// worker.
pub fn recorded_uploads(store: Arc<dyn Store>) -> onrush_store::Result<Vec<RecordedUpload>> {
    let files = OpenFiles::new(&Descriptors::default());
    let uploads = Uploads::new(store, UploadLimits::default(), files);
    block_on(uploads.all())
}

impl Uploads {
    pub(in crate::files) fn new(
        store: Arc<dyn Store>,
        limits: UploadLimits,
        open_files: Arc<OpenFiles>,
    ) -> Arc<Uploads> {
        Arc::new(Uploads {
            store,
            open_files,
            limits: SharedLimits::new(limits),
            active: Exclusive::default(),
            active_parts: Exclusive::default(),
            index: Index::default(),
            swaps: AtomicU64::new(0),
            known: Known::default(),
            removed_users: RemovedUsers::default(),
            loading: Exclusive::default(),
            is_swept: AtomicBool::new(false),
        })
    }

    /// The limits of this moment.
    pub(in crate::files) fn limits(&self) -> UploadLimits {
        self.limits.get()
    }

    /// Replaces the limits. They hold for unfinished uploads as well.
    pub(in crate::files) fn set_limits(&self, limits: UploadLimits) {
        self.limits.set(limits);
    }

    /// What clients have of the limits, for the metrics.
    pub(in crate::files) fn shares(&self) -> [shares::SharesState<'_>; 2] {
        self.index.shares(&self.limits())
    }

    /// The operations of the store for uploads that continue.
    fn resumable(&self) -> onrush_store::Result<&dyn ResumableUploads> {
        self.store.uploads().ok_or(StoreError::Unsupported)
    }

    /// Removes the bytes of an upload that is not going to be continued.
    async fn discard(&self, kept: &PartialUpload) -> onrush_store::Result<()> {
        self.resumable()?.discard(kept).await
    }

    /// Removes what only `old` needs; see [`ResumableUploads::discard_replaced`].
    async fn discard_replaced(&self, old: &PartialUpload, new: &PartialUpload) {
        if let Ok(uploads) = self.resumable() {
            uploads.discard_replaced(old, new).await;
        }
    }

    /// Whether uploads can be continued: by the store and the settings.
    pub(in crate::files) fn are_offered(&self) -> bool {
        self.store.features().resumable_uploads && self.limits().count_max > 0
    }

    /// Whether requests to a server with these options can continue uploads.
    pub(in crate::files) fn serves(&self, options: &FilesOptions) -> bool {
        options.allow.put && !options.sink && self.are_offered()
    }

    /// Whether their parts may arrive in any order.
    pub(in crate::files) fn take_parts(&self) -> bool {
        self.store.features().uploads_in_any_order
    }

    /// Whether several of them can be joined.
    pub(in crate::files) fn can_be_joined(&self) -> bool {
        self.store.features().joins_uploads
    }

    /// Begins an upload. Nothing is stored before the session keeps it.
    pub(in crate::files) async fn create(
        self: &Arc<Self>,
        plan: NewUpload,
        worker: &WorkerHandle,
    ) -> Result<Session, ReceiveError> {
        self.sweep_from_now_on(worker);
        if plan.length.unwrap_or(0) > self.limits().object_bytes_max {
            return Err(ReceiveError::Body(self.limits().too_large()));
        }
        self.load_index(worker).await?;
        let id = UploadId::random().ok_or(ReceiveError::Body(NO_RANDOM))?;
        let guard = self.active.acquire(id).await;
        let (holder, announced) = (plan.holder, plan.length.unwrap_or(0));
        // From here on, dropping the session releases what was reserved.
        let session = Session::new(self, id, guard, plan, worker);
        (self.index).begin(id, holder, announced, &self.limits())?;
        session.begin(holder).await
    }

    /// Finds the upload `id` of `owner` at `key`, and ends another request that uses it.
    pub(in crate::files) async fn open(
        self: &Arc<Self>,
        id: UploadId,
        key: &Key,
        owner: Option<&str>,
        worker: &WorkerHandle,
    ) -> Result<FoundUpload, ReceiveError> {
        self.sweep_from_now_on(worker);
        self.load_index(worker).await?;
        let guard = self.active.acquire(id).await;
        if let Some(completed) = self.index.completed(id, key, owner) {
            return Ok(FoundUpload::Completed(completed));
        }
        let (record, version) = self.read(id).await?;
        let is_theirs = record.key == key.as_bytes() && record.owner.as_deref() == owner;
        let is_gone = record.is_removed || self.is_expired(record.used, worker.unix_seconds());
        if !is_theirs || is_gone {
            return Err(ReceiveError::Body(NO_UPLOAD));
        }
        if let Some(length) = self.find_published(id, key, &record, worker).await? {
            return Ok(FoundUpload::Completed(Completed {
                length,
                tus_concat: None,
            }));
        }
        let (holder, bytes) = (record.holder(), record.kept_bytes());
        let session = Session::saved(self, id, guard, key, record, version, worker)?;
        self.index.find(id, holder, bytes);
        Ok(FoundUpload::Unfinished(Box::new(session)))
    }

    /// A request does not use an upload any more. `swaps`: [`Store::swaps`] of before the upload
    /// was counted. If the store is another one by now, the request may have counted it there.
    fn end_use(&self, id: UploadId, swaps: u64) {
        if self.store.swaps() != swaps {
            self.index.remove(id);
        }
    }

    /// The length of the object if it is this upload: an earlier process, or another server, has
    /// ended between the commit and the removal of the record.
    async fn find_published(
        &self,
        id: UploadId,
        key: &Key,
        record: &Record,
        worker: &WorkerHandle,
    ) -> Result<Option<u64>, ReceiveError> {
        let is_shared = self.store.features().shared_uploads;
        // All bytes are recorded before a bucket publishes them: it need not be asked.
        let has_all = record.length.is_none_or(|length| length == record.offset);
        if record.is_partial || is_shared && !has_all {
            return Ok(None);
        }
        let kept = record.kept();
        let uploads = self.resumable().map_err(ReceiveError::Store)?;
        let published = uploads.published(key, &kept).await;
        let published = published.map_err(ReceiveError::Store)?;
        if published.is_some() {
            self.index.remove(id);
            if is_shared {
                let store = self.store.clone();
                let discard = async move {
                    if let Some(uploads) = store.uploads() {
                        let _ = uploads.discard(&kept).await;
                    }
                };
                worker.spawn(discard).detach();
            }
        }
        Ok(published)
    }

    /// `used`: that of its record.
    fn is_expired(&self, used: Used, now_s: u64) -> bool {
        used.expires_s(self.limits().age_max_s) <= now_s
    }

    /// Reads which uploads an earlier process has left, once: other requests wait for the one that
    /// reads. It reads to the end, also if its client disconnects.
    async fn load_index(self: &Arc<Self>, worker: &WorkerHandle) -> Result<(), ReceiveError> {
        let swaps = self.store.swaps();
        if self.swaps.swap(swaps, AcqRel) != swaps {
            self.index.forget(); // They are those of another folder.
        }
        if self.index.is_loaded() {
            return Ok(());
        }
        let guard = self.loading.acquire(()).await;
        if self.index.is_loaded() {
            return Ok(());
        }
        let uploads = self.clone();
        let load = async move {
            let _guard = guard;
            let Some(reading) = uploads.index.begin_reading() else {
                return Err(StoreError::Busy); // Another worker does, for the first time as well.
            };
            let add = async |id, found: Summary| {
                if found.is_kept {
                    reading.add(id, found.holder, found.bytes);
                }
            };
            uploads.each_record(add).await?;
            reading.complete();
            Ok(())
        };
        let loaded = run_to_end(worker, None, Box::pin(load));
        loaded.await.map_err(ReceiveError::Store)
    }

    /// The age from which on bytes without a record are removed. The clock of the store may be
    /// another one than that of this process.
    fn orphan_age_s(&self) -> u64 {
        self.limits().age_max_s.saturating_mul(2)
    }

    /// Removes uploads that are too old from now on, as long as there may be any.
    pub(in crate::files) fn sweep_from_now_on(self: &Arc<Self>, worker: &WorkerHandle) {
        if self.is_swept.swap(true, Relaxed) {
            return;
        }
        let (uploads, handle) = (self.clone(), worker.clone());
        let task = worker.spawn(async move {
            let mut seen_s = handle.unix_seconds();
            if uploads.store.features().shared_uploads {
                // Servers that start together search at different times.
                let part = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
                let age = Duration::from_secs(uploads.limits().age_max_s.max(1));
                handle.sleep(SWEEP_INTERVAL.min(age).mul_f64(part)).await;
            }
            loop {
                let age = Duration::from_secs(uploads.limits().age_max_s.max(1));
                // Bytes without a record are not seen. After this time they are removed.
                let quiet_s = uploads
                    .orphan_age_s()
                    .saturating_add(SWEEP_INTERVAL.as_secs());
                let now_s = handle.unix_seconds();
                if uploads.sweep(now_s).await {
                    seen_s = now_s;
                } else if now_s.saturating_sub(seen_s) > quiet_s {
                    break;
                }
                handle.sleep(SWEEP_INTERVAL.min(age)).await;
            }
            uploads.is_swept.store(false, Relaxed);
            if uploads.active.any() {
                uploads.sweep_from_now_on(&handle); // It began after the last look.
            }
        });
        task.detach();
    }

    /// Removes uploads that are too old. Returns whether unfinished ones are left, or an error
    /// prevents a decision.
    async fn sweep(&self, now_s: u64) -> bool {
        let mut left = self.active.any();
        // Other servers change the uploads as well. Before the first request, they are not counted.
        let is_counted = self.store.features().shared_uploads && self.index.is_loaded();
        let reading = is_counted.then(|| self.index.begin_reading()).flatten();
        let visited = self.each_record(async |id, found| {
            if !self.is_expired(found.used, now_s) {
                left = true;
                if let Some(reading) = reading.as_ref().filter(|_| found.is_kept) {
                    reading.add(id, found.holder, found.bytes);
                }
                return;
            }
            let _guard = self.active.acquire(id).await;
            // It may have been continued at the last moment.
            match self.read(id).await {
                Ok((record, version)) if self.is_expired(record.used, now_s) => {
                    left |= self.remove(id, &record, version).await.is_err();
                }
                _ => left = true,
            }
        });
        let is_unknown = visited.await.is_err();
        if let Some(reading) = reading.filter(|_| !is_unknown) {
            reading.complete();
        }
        // Bytes without a record, after a crash of one of several processes.
        let age = Duration::from_secs(self.orphan_age_s());
        if let Ok(uploads) = self.resumable() {
            let _ = uploads.discard_older(age).await;
        }
        left || is_unknown
    }
}
