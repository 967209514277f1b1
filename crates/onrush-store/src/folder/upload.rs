//! The asynchronous part of a put. It collects the bytes, in memory while they are few, and passes
//! each blocking step to the pool. A small put is a single job.

use super::change;
use super::commit::{CommitOutcome, Obstacle, Put, PutParts};
use super::locks::Locks;
use super::parents::{CreatedFolders, ParentState};
use super::staged::{StagedFile, StagedName};
use super::writing::{INLINE_BYTES_MAX, WRITEBACK_BYTES, spend_write, write_at, write_steps};
use super::{FolderInner, copying, kept, key_locks, mounts, parents};
use crate::checksum::Checksum;
use crate::error::{Cause, Result, StoreError};
use crate::key::Key;
use crate::meta::METADATA_BYTES_MAX;
use crate::object::LocalFuture;
use crate::store::{Committed, Condition, PartialUpload, Upload};
use onrush_rt::descriptors::FileUse;
use std::io;
use std::mem;
use std::sync::Arc;

/// The maximum size in bytes of an upload that stays in memory until its commit.
const MEMORY_BYTES_MAX: usize = 16 * 1024;

/// The number of attempts to commit. More than two are needed, for example, if the parent folder is
/// deleted meanwhile.
const ATTEMPTS: usize = 4;

/// The maximum size of a file, because offsets are signed.
const FILE_BYTES_MAX: u64 = i64::MAX as u64;

pub(super) struct StagedUpload {
    inner: Arc<FolderInner>,
    key: Key,
    condition: Condition,
    body: Body,
    /// See [`Upload::set_metadata`].
    metadata: Option<Arc<[u8]>>,
    written_bytes: u64,
}

enum Body {
    /// The announced size is too large for memory, and no byte has arrived. A client that announces
    /// an upload and sends nothing must not occupy a file.
    Announced,
    Memory(Vec<u8>),
    File(StagedFile),
    /// A write has failed, or a write in progress owns the bytes or the file.
    Unavailable,
}

impl Body {
    /// The staged file of the object `key` with the bytes so far. It stays open while the client
    /// sends.
    fn into_file(self, inner: &Arc<FolderInner>, key: &Key) -> Result<StagedFile> {
        self.into_file_with(|| StagedFile::create(inner, key, FileUse::Upload))
    }

    /// The staged file with the bytes so far. If there is none yet, `create` makes it.
    fn into_file_with(self, create: impl FnOnce() -> Result<StagedFile>) -> Result<StagedFile> {
        match self {
            Body::File(staged) => Ok(staged),
            Body::Memory(held) => write(create()?, &held, 0),
            Body::Announced => create(),
            Body::Unavailable => Err(StoreError::Io(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

impl StagedUpload {
    /// Begins an upload. If its announced size is too large for memory, fails now for every reason
    /// that can be checked before the first byte. Otherwise the commit fails for them.
    pub(super) async fn begin(
        inner: &Arc<FolderInner>,
        key: &Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> Result<StagedUpload> {
        inner.staging()?;
        if key.is_internal() {
            return Err(StoreError::Forbidden);
        }
        let size_bytes = size_bytes.unwrap_or(0);
        if size_bytes > FILE_BYTES_MAX {
            return Err(StoreError::TooLarge);
        }
        let body = if size_bytes > MEMORY_BYTES_MAX as u64 {
            let key = key.clone();
            let job = move |inner: &Arc<FolderInner>| check_early(inner, &key, size_bytes);
            inner.run(&inner.change_pool, job).await?;
            Body::Announced
        } else {
            Body::Memory(Vec::new())
        };
        Ok(StagedUpload {
            inner: inner.clone(),
            key: key.clone(),
            condition,
            body,
            metadata: None,
            written_bytes: 0,
        })
    }

    /// An upload of the bytes of a staged file.
    pub(super) fn of_file(
        inner: &Arc<FolderInner>,
        key: &Key,
        condition: Condition,
        staged: StagedFile,
        bytes: u64,
    ) -> StagedUpload {
        StagedUpload {
            inner: inner.clone(),
            key: key.clone(),
            condition,
            body: Body::File(staged),
            metadata: None,
            written_bytes: bytes,
        }
    }

    /// Continues an upload whose first bytes were kept.
    pub(super) async fn resume(
        inner: &Arc<FolderInner>,
        key: &Key,
        condition: Condition,
        kept: &PartialUpload,
    ) -> Result<StagedUpload> {
        if key.is_internal() {
            return Err(StoreError::Forbidden);
        }
        let lease = kept::lock(inner, kept).await?;
        let place = kept.clone();
        let job = move |inner: &Arc<FolderInner>| kept::reopen(inner, &place, lease);
        let mut staged = inner.run(&inner.change_pool, job).await?;
        if inner.has_checksums() && staged.checksum.is_none() {
            staged = read_checksum(inner, staged, kept.bytes).await?;
        }
        Ok(StagedUpload::of_file(
            inner, key, condition, staged, kept.bytes,
        ))
    }

    async fn keep_written(&mut self) -> Result<PartialUpload> {
        let (key, bytes) = (self.key.clone(), self.written_bytes);
        let body = mem::replace(&mut self.body, Body::Unavailable);
        let job = move |inner: &Arc<FolderInner>| {
            let mut staged = body.into_file(inner, &key)?;
            kept::keep(&mut staged, bytes).map(|kept| (staged, kept))
        };
        let (staged, kept) = self.inner.run(&self.inner.change_pool, job).await?;
        self.body = Body::File(staged);
        Ok(kept)
    }

    async fn append_file(&mut self, kept: &PartialUpload) -> Result<()> {
        let _lease = kept::lock(&self.inner, kept).await?;
        let body = mem::replace(&mut self.body, Body::Unavailable);
        let (key, from) = (self.key.clone(), kept.clone());
        let job = move |inner: &Arc<FolderInner>| {
            let mut staged = body.into_file(inner, &key)?;
            let opened = staged.drop_tail();
            match opened.and_then(|()| kept::open(inner, &from, FileUse::Download)) {
                Ok((source, ..)) => Ok((staged, source)),
                Err(error) => {
                    staged.remove_unless_kept();
                    Err(error)
                }
            }
        };
        let (staged, source) = self.inner.run(&self.inner.change_pool, job).await?;
        let (at, bytes) = (self.written_bytes, kept.bytes);
        let copied = copying::append(&self.inner, &self.key, staged, at, source, bytes);
        let (staged, _) = copied.await?;
        self.body = Body::File(staged);
        self.written_bytes += bytes;
        Ok(())
    }

    async fn append(&mut self, mut buf: Vec<u8>) -> Result<Vec<u8>> {
        let added = buf.len();
        match mem::replace(&mut self.body, Body::Unavailable) {
            Body::Memory(held) if held.is_empty() && buf.capacity() <= MEMORY_BYTES_MAX => {
                self.body = Body::Memory(mem::take(&mut buf));
            }
            Body::Memory(mut held) if held.len() + added <= MEMORY_BYTES_MAX => {
                held.extend_from_slice(&buf);
                buf.clear();
                self.body = Body::Memory(held);
            }
            Body::Announced if added == 0 => self.body = Body::Announced,
            body @ (Body::Announced | Body::Memory(_) | Body::File(_)) => {
                buf = self.write_file(body, buf).await?;
            }
            Body::Unavailable => return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into())),
        }
        self.written_bytes += added as u64;
        Ok(buf)
    }

    /// Writes `buf` to the staged file. If the upload was in memory until now, it first creates the
    /// file with the bytes from memory.
    async fn write_file(&mut self, mut body: Body, mut buf: Vec<u8>) -> Result<Vec<u8>> {
        let pool = self.inner.change_pool.clone();
        for range in write_steps(&pool, buf.len()) {
            let at = self.written_bytes + range.start as u64;
            let bytes = range.len();
            let key = self.key.clone();
            let job = move |inner: &Arc<FolderInner>| {
                let staged = body.into_file(inner, &key)?;
                inner.check_free(&key, bytes as u64)?;
                write(staged, &buf[range], at).map(|staged| (staged, buf))
            };
            let (staged, returned) = self.inner.run(&pool, job).await?;
            (body, buf) = (Body::File(staged), returned);
            spend_write(&pool, bytes);
        }
        self.body = body;
        buf.clear();
        Ok(buf)
    }
}

impl Upload for StagedUpload {
    fn write(&mut self, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(self.append(buf))
    }

    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()> {
        if metadata.len() > METADATA_BYTES_MAX {
            return Err(StoreError::TooLarge);
        }
        self.metadata = (!metadata.is_empty()).then(|| metadata.into());
        Ok(())
    }

    fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    fn keep(&mut self) -> LocalFuture<'_, Result<PartialUpload>> {
        Box::pin(self.keep_written())
    }

    fn append_partial<'a>(&'a mut self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        Box::pin(self.append_file(kept))
    }

    fn commit(self: Box<Self>) -> LocalFuture<'static, Result<Committed>> {
        let StagedUpload {
            inner,
            key,
            condition,
            body,
            metadata,
            written_bytes,
        } = *self;
        Box::pin(async move {
            let sync_failures = inner.parents.sync_failures();
            let mut pending = PendingCommit {
                body,
                condition,
                created: CreatedFolders::new(&inner),
            };
            // A kept file whose bytes were copied to the file system of the object.
            let mut copied = None;
            let mut failure = StoreError::Conflict;
            for attempts_left in (0..ATTEMPTS).rev() {
                let locks = Locks::one(key_locks::acquire(&inner, &key).await);
                let (name, metadata) = (key.clone(), metadata.clone());
                let job = move |inner: &Arc<FolderInner>, locks| {
                    try_commit(
                        inner,
                        name,
                        pending,
                        metadata.as_deref().unwrap_or_default(),
                        sync_failures,
                        locks,
                    )
                };
                let obstacle;
                (pending, obstacle) = match change::run(&inner, locks, job).await? {
                    CommitAttempt::ParentNotReady(pending) => (pending, None),
                    CommitAttempt::Made(outcome) => match outcome {
                        CommitOutcome::Committed(committed) => {
                            copied.into_iter().for_each(StagedName::remove_kept);
                            return Ok(committed);
                        }
                        CommitOutcome::NotPlaced(obstacle, parts) => {
                            let (staged, condition, created) = *parts;
                            let pending = PendingCommit {
                                body: Body::File(staged),
                                condition,
                                created,
                            };
                            (pending, Some(obstacle))
                        }
                    },
                };
                let must_copy = obstacle == Some(Obstacle::OtherFileSystem);
                if must_copy {
                    failure = StoreError::OtherFileSystem;
                }
                if attempts_left == 0 {
                    break; // Do not create a folder that stays empty.
                }
                if must_copy && let Body::File(staged) = pending.body {
                    let (nearer, name) = copy_nearer(&inner, &key, staged, written_bytes).await?;
                    copied = copied.or(name.is_kept.then_some(name));
                    pending.body = Body::File(nearer);
                }
                // Without the lock, because creating folders may take long.
                if let Some(path) = key.split().0 {
                    let created = pending.created;
                    pending.created =
                        parents::prepare(&inner, path, created, sync_failures).await?;
                }
            }
            // The disk has not failed: the folder was deleted during each attempt, or there is no
            // place on its file system from which to rename.
            Err(failure)
        })
    }
}

/// Copies a staged file of `bytes` bytes, which cannot be renamed to `key`, to where it can be.
/// Returns the copy, and the name of the original.
async fn copy_nearer(
    inner: &Arc<FolderInner>,
    key: &Key,
    staged: StagedFile,
    bytes: u64,
) -> Result<(StagedFile, StagedName)> {
    let (shared, object) = (inner.clone(), key.clone());
    let job = move || {
        let nearer = StagedFile::create_nearer(&shared, &object, &staged)?;
        Ok::<_, StoreError>((nearer, staged))
    };
    let (mut nearer, staged) = inner.change_pool.run(job).await??;
    let StagedFile {
        file,
        name,
        checksum,
        ..
    } = staged;
    nearer.checksum = None; // It is known.
    let (mut nearer, _) = copying::append(inner, key, nearer, 0, file, bytes).await?;
    nearer.checksum = checksum;
    Ok((nearer, name))
}

/// What an attempt to commit needs, and returns if the parent folder is not ready.
struct PendingCommit {
    body: Body,
    condition: Condition,
    /// The folders that were created for this change. They stay only if the change is made.
    created: CreatedFolders,
}

/// The result of an attempt to commit.
enum CommitAttempt {
    Made(CommitOutcome),
    /// The parent folder is missing or not known to be durable. Nothing was changed.
    ParentNotReady(PendingCommit),
}

/// Commits the upload if the parent folder is ready. Blocks.
fn try_commit(
    inner: &Arc<FolderInner>,
    key: Key,
    pending: PendingCommit,
    metadata: &[u8],
    sync_failures: u64,
    locks: Locks,
) -> Result<CommitAttempt> {
    let found = parents::look_up(inner, key.split().0).map_err(StoreError::from_change)?;
    let parent = match found {
        ParentState::Ready(parent) => parent,
        ParentState::NotDurable => return Ok(CommitAttempt::ParentNotReady(pending)),
        ParentState::Missing => {
            inner.check(&pending.condition, None)?; // Before any folder is created.
            return Ok(CommitAttempt::ParentNotReady(pending));
        }
    };
    let PendingCommit {
        body,
        condition,
        created,
    } = pending;
    if let Body::Memory(held) = &body {
        inner.check_free(&key, held.len() as u64)?;
    }
    let mut folder = None;
    let mut staged = body.into_file_with(|| {
        let staging = match key.split().0 {
            None => inner.staging()?, // What is next to it is on its file system.
            Some(path) => {
                let found = parent.dir().self_metadata();
                let found = found.map_err(StoreError::from_change)?;
                folder = Some(found);
                mounts::staging_of(inner, &found, path)?
            }
        };
        StagedFile::create_in(inner, staging, FileUse::Brief)
    })?;
    if let Err(error) = staged.drop_tail() {
        staged.remove_unless_kept();
        return Err(error);
    }
    let parts = PutParts {
        key,
        parent,
        folder,
        condition,
        created,
        sync_failures,
        locks,
    };
    let put = Put::prepare(inner, staged, metadata, parts)?;
    put.commit(inner).map(CommitAttempt::Made)
}

/// Computes the checksum of a file whose first `bytes` bytes were written in any order.
async fn read_checksum(
    inner: &Arc<FolderInner>,
    mut staged: StagedFile,
    bytes: u64,
) -> Result<StagedFile> {
    let pool = inner.change_pool.clone();
    let step_bytes = match pool.is_inline() {
        true => INLINE_BYTES_MAX as u64,
        false => WRITEBACK_BYTES,
    };
    let (mut checksum, mut at) = (Checksum::EMPTY, 0);
    while at < bytes {
        let end = bytes.min(at + step_bytes);
        let job = move || {
            checksum
                .add_file(&staged.file, at..end)
                .map(|()| (staged, checksum))
        };
        (staged, checksum) = pool.run(job).await?.map_err(StoreError::from_open_file)?;
        spend_write(&pool, (end - at) as usize);
        at = end;
    }
    staged.checksum = Some(checksum);
    Ok(staged)
}

/// Checks that the disk and the descriptor budget have room for a body of known size. Nothing is
/// reserved: a client that only announces bytes must not be able to exhaust either.
fn check_early(inner: &FolderInner, key: &Key, size_bytes: u64) -> Result<()> {
    inner.existing_object(key)?; // Reports a conflict now, too.
    inner.check_free(key, size_bytes)?;
    let staging = mounts::staging_for(inner, key)?; // Or a file system without a place for one.
    let free_bytes = staging.dir().free_bytes();
    if free_bytes.map_err(StoreError::from_open_file)? < size_bytes {
        return Err(StoreError::Full(Cause::from_errno(libc::ENOSPC)));
    }
    match inner.options.descriptors.has_room(FileUse::Upload) {
        true => Ok(()),
        false => Err(StoreError::Busy),
    }
}

/// Writes `bytes` at `offset`. On failure, this removes the file before it returns, unless earlier
/// bytes of it are kept.
fn write(mut staged: StagedFile, bytes: &[u8], offset: u64) -> Result<StagedFile> {
    if let Some(checksum) = &mut staged.checksum {
        checksum.add(bytes);
    }
    let written = staged
        .drop_tail()
        .and_then(|()| write_at(&staged.file, bytes, offset, staged.will_be_synced()));
    if let Err(error) = written {
        staged.remove_unless_kept();
        return Err(error);
    }
    Ok(staged)
}
