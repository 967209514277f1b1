//! An upload that outlives its request. It is a multipart upload as soon as its bytes fill a part,
//! and without a condition as soon as it is kept; what does not fill a part is kept beside the list
//! of parts ([`KeptState`]).
//!
//! The service ignores conditions when a multipart upload is completed. So one with a condition is
//! completed at a path that no client has, and then sent to its own by one request with the
//! condition, which has at most 5 GiB. That takes as long as a PUT of the object.

use crate::features::check_metadata;
use crate::fields::with_metadata;
use crate::kept::{self, KeptState, PartialAt};
use crate::multipart::{FoundMultipart, Parts, find};
use crate::part_buffer::{PartBuffer, check_size, part_bytes_at};
use crate::properties::properties;
use crate::reader;
use crate::service::Service;
use crate::transfer;
use crate::upload::{RemoteUpload, new_meta};
use bytes::Bytes;
use object_store::path::Path;
use onrush_store::{
    Committed, Condition, LocalFuture, PartialUpload, Result, StoreError, Upload, Wanted,
};
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use tokio::time::Instant;

pub(crate) struct ResumableUpload {
    service: Arc<Service>,
    path: Path,
    condition: Condition,
    metadata: Vec<u8>,
    written_bytes: u64,
    buffer: PartBuffer,
    /// What was kept, and how many bytes that are.
    kept: Option<(PartialAt, u64)>,
    /// Whether what was kept has a multipart upload without a part, which this one does not use.
    has_unused_parts: bool,
    failed: bool,
}

impl ResumableUpload {
    /// The service evaluates conditions: a caller needs them for its record, too.
    pub(crate) fn begin(
        service: &Arc<Service>,
        path: Path,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> Result<ResumableUpload> {
        let upload = ResumableUpload {
            service: service.clone(),
            path,
            condition,
            metadata: Vec::new(),
            written_bytes: 0,
            buffer: PartBuffer::default(),
            kept: None,
            has_unused_parts: false,
            failed: false,
        };
        upload.check_size(size_bytes.unwrap_or(0))?;
        Ok(upload)
    }

    /// Continues one that was kept.
    pub(crate) async fn resume(
        service: &Arc<Service>,
        path: Path,
        condition: Condition,
        kept: &PartialUpload,
    ) -> Result<ResumableUpload> {
        let mut place = PartialAt::parse(kept)?;
        let mut upload = ResumableUpload::begin(service, path, condition, Some(kept.bytes))?;
        upload.written_bytes = kept.bytes;
        if let Some(name) = &place.name {
            let until = service.limit();
            let rest = usize::try_from(place.rest).map_err(|_| StoreError::NotFound)?;
            let whole = part_bytes_at(kept.bytes);
            let reserved = upload.buffer.reserve(service, kept.bytes, rest, whole);
            reserved.await?;
            let (state, rest) = KeptState::load(service, until, name, place.rest).await?;
            if state.path != upload.path || state.bytes != kept.bytes {
                return Err(StoreError::NotFound);
            }
            if let Some(saved) = state.parts {
                // It would be completed in the place of the object.
                upload.has_unused_parts = saved.path == upload.path && !upload.condition.is_none();
                match upload.has_unused_parts {
                    false => upload.buffer.parts = Some(Parts::restore(service, saved)),
                    true if saved.tags.is_empty() => place.mark = saved.mark,
                    true => return Err(StoreError::Unsupported),
                }
            }
            upload.buffer.held = rest.into();
        } else if kept.bytes > 0 {
            return Err(StoreError::NotFound);
        }
        upload.kept = Some((place, kept.bytes));
        Ok(upload)
    }

    /// Fails if an object of this size cannot be published under the condition.
    fn check_size(&self, bytes: u64) -> Result<()> {
        match !self.condition.is_none() && bytes > transfer::BYTES_MAX {
            true => Err(StoreError::Unsupported),
            false => check_size(bytes),
        }
    }

    async fn append(&mut self, mut buf: Vec<u8>) -> Result<Vec<u8>> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into()));
        }
        self.written_bytes += buf.len() as u64;
        self.check_size(self.written_bytes)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let begin = async |until| self.begin_parts(until).await;
        let appended = buffer.append(&self.service, self.written_bytes, &buf, begin);
        let appended = appended.await;
        self.buffer = buffer;
        appended?;
        buf.clear();
        self.failed = false;
        Ok(buf)
    }

    async fn keep_now(&mut self) -> Result<PartialUpload> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into()));
        }
        let is_kept = |kept: &(PartialAt, u64)| kept.1 == self.written_bytes;
        if !self.kept.as_ref().is_some_and(is_kept) {
            let place = match self.written_bytes {
                0 => PartialAt::new(None, 0),
                _ => self.store_state().await?,
            };
            self.kept = Some((place, self.written_bytes));
        }
        self.failed = false;
        self.kept().ok_or(StoreError::NotFound)
    }

    /// Stores the bytes that are no part yet, and what is needed to continue.
    ///
    /// Without a condition, the multipart upload begins here at the latest, also for few bytes. The
    /// service completes it once: an attempt after one whose response was lost cannot replace what
    /// another client has stored meanwhile. A PUT that is repeated could.
    async fn store_state(&mut self) -> Result<PartialAt> {
        let until = self.service.limit();
        if self.condition.is_none() && self.buffer.parts.is_none() {
            self.buffer.parts = Some(self.begin_parts(until).await?);
        }
        if self.buffer.is_full() {
            let mut buffer = std::mem::take(&mut self.buffer);
            let begin = async |until| self.begin_parts(until).await;
            let sent = buffer.send_part(until, begin).await;
            self.buffer = buffer;
            sent?;
        }
        let parts = match &mut self.buffer.parts {
            Some(parts) => Some(parts.save().await?.clone()),
            None => None,
        };
        let state = KeptState {
            path: self.path.clone(),
            bytes: self.written_bytes,
            parts,
        };
        let rest = Bytes::from(std::mem::take(&mut self.buffer.held));
        let stored = state.store(&self.service, until, rest.clone()).await;
        self.buffer.held = rest.into(); // Without a copy: the request has ended.
        let place = stored?;
        if let Some(parts) = &mut self.buffer.parts {
            parts.keep();
        }
        Ok(place)
    }

    fn kept(&self) -> Option<PartialUpload> {
        let (place, bytes) = self.kept.as_ref()?;
        Some(PartialUpload {
            bytes: *bytes,
            place: place.to_bytes(),
        })
    }

    /// Begins the multipart upload.
    async fn begin_parts(&self, until: Instant) -> Result<Parts> {
        let (path, metadata) = match self.condition.is_none() {
            true => (self.path.clone(), with_metadata(&self.metadata)),
            false => (kept::unpublished_path(&self.service)?, with_metadata(b"")),
        };
        Parts::begin(&self.service, until, &path, metadata).await
    }

    async fn finish(mut self) -> Result<Committed> {
        if self.failed {
            return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into()));
        }
        let committed = match self.buffer.parts.is_some() {
            true => self.complete().await?,
            false => self.put().await?,
        };
        if let Some((PartialAt { name, .. }, _)) = &self.kept
            && let Some(name) = name
        {
            // What is left is removed by its age.
            let (service, until) = (&self.service, self.service.limit());
            let _ = match self.has_unused_parts {
                true => kept::discard(service, until, name).await,
                false => kept::remove(service, until, name).await,
            };
        }
        Ok(committed)
    }

    /// Publishes an object without parts. If it was kept, an earlier attempt may have done it, and
    /// failed before it was known.
    async fn put(&mut self) -> Result<Committed> {
        let Some(mark) = self.kept.as_ref().map(|(place, _)| place.mark.clone()) else {
            return self.put_held(None).await;
        };
        if let Some(found) = self.find_published(&mark).await? {
            return self.committed_before(&found);
        }
        let published = self.put_held(Some(&mark)).await;
        self.unless_before(published, &mark).await
    }

    /// Sends what is held, which is the whole object.
    async fn put_held(&mut self, mark: Option<&str>) -> Result<Committed> {
        let (path, size) = (self.path.clone(), Some(self.buffer.held.len() as u64));
        let mut upload = RemoteUpload::begin(&self.service, path, self.condition.clone(), size)?;
        if let Some(mark) = mark {
            upload.set_mark(mark); // So that a later attempt finds it.
        }
        upload.set_metadata(std::mem::take(&mut self.metadata))?;
        upload.write(std::mem::take(&mut self.buffer.held)).await?;
        Box::new(upload).commit().await
    }

    /// The object, if it is this upload.
    async fn find_published(&self, mark: &str) -> Result<Option<FoundMultipart>> {
        let found = find(&self.service, self.service.limit(), &self.path).await?;
        Ok(found.filter(|found| found.is_of(mark, self.written_bytes)))
    }

    /// The result of publishing: if the condition did not hold because another server has published
    /// the upload at the same time, that of this server.
    async fn unless_before(&self, published: Result<Committed>, mark: &str) -> Result<Committed> {
        match published {
            Err(StoreError::PreconditionFailed) => match self.find_published(mark).await? {
                Some(found) => self.committed_before(&found),
                None => published,
            },
            published => published,
        }
    }

    /// Completes the parts, and publishes the object. An earlier attempt may have done either, and
    /// failed before it was known.
    async fn complete(&mut self) -> Result<Committed> {
        let (until, size) = (self.service.limit(), self.written_bytes);
        let Some(mut parts) = self.buffer.parts.take() else {
            return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into()));
        };
        let (at, mark) = (parts.path().clone(), parts.mark().to_owned());
        let current = find(&self.service, until, &self.path).await?;
        if let Some(found) = current.as_ref().filter(|found| found.is_of(&mark, size)) {
            parts.keep();
            if at != self.path {
                let _ = kept::remove_object(&self.service, until, at).await;
            }
            return self.committed_before(found);
        }
        let current = current.map(|found| properties(&found.meta)).transpose()?;
        self.condition.check(current.as_ref())?; // Before the bytes are sent.
        let tag = match self.send_rest(&mut parts, until).await {
            Ok(()) => parts.complete(until, size).await?,
            // There is no such upload any more, perhaps because it is complete.
            Err(StoreError::NotFound) => {
                let tag = parts.tag(until, size).await?;
                tag.ok_or(StoreError::NotFound)?
            }
            Err(error) => return Err(error),
        };
        if at == self.path {
            return Ok(Committed {
                created: current.is_none(),
                replaced_bytes: 0,
                meta: new_meta(size, Some(tag))?,
            });
        }
        let published = self.publish(&at, &mark).await;
        let published = self.unless_before(published, &mark).await;
        // Otherwise a later attempt continues with it.
        if !published.as_ref().is_err_and(StoreError::is_temporary) {
            let _ = kept::remove_object(&self.service, self.service.limit(), at).await;
        }
        published
    }

    /// What an earlier attempt has published.
    fn committed_before(&self, found: &FoundMultipart) -> Result<Committed> {
        Ok(Committed {
            // Without a condition, this is not known any more.
            created: matches!(self.condition, Condition::None | Condition::Absent),
            replaced_bytes: 0,
            meta: new_meta(self.written_bytes, found.meta.e_tag.clone())?,
        })
    }

    /// Sends what is held as the last part, and waits until all are stored.
    async fn send_rest(&mut self, parts: &mut Parts, until: Instant) -> Result<()> {
        if !self.buffer.held.is_empty() {
            let (part, permit) = self.buffer.take();
            parts.send(part, permit, until).await?;
        }
        parts.save().await.map(drop)
    }

    /// Sends the object at `from` to its own path.
    async fn publish(&mut self, from: &Path, mark: &str) -> Result<Committed> {
        let (service, until) = (&self.service, self.service.limit());
        let object = reader::open(service, until, from.clone(), Wanted::All).await?;
        let size = object.meta().size;
        if size != self.written_bytes {
            return Err(StoreError::BadResponse);
        }
        let (path, condition) = (self.path.clone(), self.condition.clone());
        let mut upload = RemoteUpload::begin(service, path, condition, Some(size))?;
        upload.set_mark(mark); // So that a later attempt finds it.
        upload.set_metadata(std::mem::take(&mut self.metadata))?;
        let mut stream = object.stream(0..size);
        while let Some(piece) = poll_fn(|cx| stream.as_mut().poll_next(cx)).await {
            upload.write(piece?.to_vec()).await?;
        }
        Box::new(upload).commit().await
    }
}

impl Upload for ResumableUpload {
    fn write(&mut self, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(self.append(buf))
    }

    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()> {
        check_metadata(&metadata)?;
        self.metadata = metadata;
        Ok(())
    }

    fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    fn keep(&mut self) -> LocalFuture<'_, Result<PartialUpload>> {
        Box::pin(self.keep_now())
    }

    fn take_over(&mut self) -> Option<PartialUpload> {
        self.kept.as_mut()?.0.take_over();
        self.kept()
    }

    fn commit(self: Box<Self>) -> LocalFuture<'static, Result<Committed>> {
        Box::pin(self.finish())
    }
}
