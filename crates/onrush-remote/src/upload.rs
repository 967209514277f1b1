//! Writes an object. A short one is one request, which can be repeated. A longer one of known
//! length is one request, too, and its bytes are passed on as they arrive ([`Transfer`]). Of
//! unknown length, or longer than a request can be, it is a multipart upload, which sends one part
//! while the next arrives. The memory of all parts is limited ([`PartPermit`]).
//!
//! A multipart upload is only possible without a condition: Ceph 16 completes one without looking
//! at the condition, and would replace an object silently.

use crate::error::{pause, uncertain};
use crate::features::check_metadata;
use crate::fields::with_metadata;
use crate::multipart::{Parts, with_mark};
use crate::part_buffer::{PartBuffer, check_size};
use crate::part_memory::SHORT_BYTES;
use crate::properties::{head, properties, tag_version};
use crate::service::Service;
use crate::tasks::Task;
use crate::transfer::{self, Pinned, Transfer};
use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    Attributes, ObjectMeta, ObjectStore, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion,
};
use onrush_store::{Committed, Condition, Kind, LocalFuture, Meta, Result, StoreError, Upload};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// The most bytes that are passed on at a time.
const PIECE_BYTES: usize = 256 * 1024;
/// How long a request without its last byte is open. Services end one whose bytes do not arrive,
/// some after a few seconds, with an error that looks like one of the request.
const OPEN_MAX: Duration = Duration::from_secs(2);
/// Attempts to replace the current version of an object, when others replace it at the same time.
const ATTEMPTS: usize = 5;

pub(crate) struct RemoteUpload {
    service: Arc<Service>,
    path: Path,
    condition: Condition,
    metadata: Vec<u8>,
    /// That of the multipart upload whose bytes these are.
    mark: Option<String>,
    /// If the bytes are passed on as they arrive.
    stream_bytes: Option<u64>,
    transfer: Option<Transfer>,
    /// Whether there was an object at the begin. Only if there is no condition.
    existed: Option<Task<ObjectMeta>>,
    /// What has not been passed on, and the parts if it is a multipart upload.
    buffer: PartBuffer,
    written_bytes: u64,
    failed: bool,
}

impl RemoteUpload {
    pub(crate) fn begin(
        service: &Arc<Service>,
        path: Path,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> Result<RemoteUpload> {
        if !condition.is_none() && size_bytes.is_some_and(|bytes| bytes > transfer::BYTES_MAX) {
            return Err(StoreError::Unsupported);
        }
        check_size(size_bytes.unwrap_or(0))?;
        let streams = |bytes: &u64| (SHORT_BYTES + 1..=transfer::BYTES_MAX).contains(bytes);
        // Meanwhile the body arrives.
        let existed = (condition.is_none()).then(|| head(service, service.limit(), path.clone()));
        Ok(RemoteUpload {
            service: service.clone(),
            path,
            condition,
            metadata: Vec::new(),
            mark: None,
            stream_bytes: size_bytes.filter(streams),
            transfer: None,
            existed,
            buffer: PartBuffer::default(),
            written_bytes: 0,
            failed: false,
        })
    }

    /// Gives the object the mark of the multipart upload whose bytes it has.
    pub(crate) fn set_mark(&mut self, mark: &str) {
        self.mark = Some(mark.to_owned());
    }

    fn attributes(&self) -> Attributes {
        let attributes = with_metadata(&self.metadata);
        match &self.mark {
            Some(mark) => with_mark(attributes, mark),
            None => attributes,
        }
    }

    async fn append(&mut self, mut buf: Vec<u8>) -> Result<Vec<u8>> {
        if std::mem::replace(&mut self.failed, true) {
            return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into()));
        }
        self.written_bytes += buf.len() as u64;
        if let Some(size) = self.stream_bytes {
            self.pass_on(&buf, size).await?;
            buf.clear();
            self.failed = false;
            return Ok(buf);
        }
        if self.buffer.held.is_empty()
            && self.written_bytes <= SHORT_BYTES
            && buf.len() * 2 >= buf.capacity()
        {
            self.buffer.held = std::mem::take(&mut buf); // Most uploads are one piece.
        }
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

    /// Passes bytes on, except the last one: the commit sends it.
    async fn pass_on(&mut self, bytes: &[u8], size: u64) -> Result<()> {
        if self.written_bytes > size {
            return Err(StoreError::Io(io::ErrorKind::InvalidInput.into()));
        }
        let transfer = match &mut self.transfer {
            Some(transfer) => transfer,
            None => {
                let pinned = self.pinned(self.service.limit()).await?;
                let attributes = self.attributes();
                let (service, path) = (&self.service, self.path.clone());
                let transfer = Transfer::begin(service, path, pinned, attributes, size);
                self.transfer.insert(transfer)
            }
        };
        let is_last = self.written_bytes == size && !bytes.is_empty();
        let now = bytes.len() - usize::from(is_last);
        self.buffer.held.extend_from_slice(&bytes[now..]);
        for piece in bytes[..now].chunks(PIECE_BYTES) {
            let until = self.service.silence();
            let sent = transfer.send(Bytes::copy_from_slice(piece), until).await;
            sent.map_err(|error| refused(&self.condition, error))?;
        }
        Ok(())
    }

    /// The condition as the service can evaluate it: at most one version.
    async fn pinned(&self, until: Instant) -> Result<Pinned> {
        Ok(match &self.condition {
            Condition::None => Pinned::None,
            Condition::Absent => Pinned::Absent,
            condition => {
                let current = self.current(until).await?;
                condition.check(Some(&current))?;
                Pinned::Tag(current.version.as_str().to_owned())
            }
        })
    }

    /// Sends the last byte of an upload that was passed on.
    async fn finish_transfer(
        &mut self,
        transfer: Transfer,
        until: Instant,
    ) -> Result<Option<String>> {
        if Some(self.written_bytes) != self.stream_bytes {
            return Err(StoreError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let done = transfer.finish(std::mem::take(&mut self.buffer.held).into(), until);
        done.await.map_err(|error| refused(&self.condition, error))
    }

    /// Begins the multipart upload.
    async fn begin_parts(&self, until: Instant) -> Result<Parts> {
        if !self.condition.is_none() {
            return Err(StoreError::Unsupported);
        }
        let attributes = with_metadata(&self.metadata);
        Parts::begin(&self.service, until, &self.path, attributes).await
    }

    async fn finish(mut self) -> Result<Committed> {
        let until = self.service.limit();
        if self.failed {
            return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into()));
        }
        if self.buffer.parts.is_some() {
            let mut buffer = std::mem::take(&mut self.buffer);
            let begin = async |until| self.begin_parts(until).await;
            let sent = buffer.send_part(until, begin).await;
            self.buffer = buffer;
            sent?;
        }
        let is_whole = self.buffer.parts.is_none() && self.stream_bytes.is_none();
        if is_whole
            && !self.buffer.held.is_empty()
            && let Some(existed) = self.existed.take()
        {
            let (created, tag) = self.put_meanwhile(existed, until).await?;
            let meta = new_meta(self.written_bytes, tag)?;
            return Ok(Committed {
                created,
                replaced_bytes: 0,
                meta,
            });
        }
        // Before the change: afterwards there is an object in any case.
        let created = match self.condition {
            Condition::None => match self.existed.take() {
                // If it is not known whether there was an object, it is reported as new.
                Some(existed) => existed.await.is_err(),
                None => true,
            },
            Condition::Absent => true,
            Condition::Present | Condition::Versions(_) => false,
        };
        let tag = match (self.buffer.parts.take(), self.transfer.take()) {
            (Some(parts), _) => Some(parts.complete(until, self.written_bytes).await?),
            (None, Some(transfer)) => self.finish_transfer(transfer, until).await?,
            (None, None) if self.stream_bytes.is_some() => {
                return Err(StoreError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            (None, None) => self.put_whole(until).await?.e_tag,
        };
        let meta = new_meta(self.written_bytes, tag)?;
        Ok(Committed {
            created,
            replaced_bytes: 0,
            meta,
        })
    }

    /// Sends an object without a condition by one request, whose last byte waits until it is known
    /// whether there was an object: before that byte the service changes nothing. A second request
    /// follows if the first one fails as a repeatable one does, or would be open for too long.
    /// Returns whether the object is new, and its entity tag.
    async fn put_meanwhile(
        &mut self,
        existed: Task<ObjectMeta>,
        until: Instant,
    ) -> Result<(bool, Option<String>)> {
        let content = Bytes::from(std::mem::take(&mut self.buffer.held));
        let (path, attributes) = (self.path.clone(), self.attributes());
        let (service, size) = (&self.service, content.len() as u64);
        let transfer = Transfer::begin(service, path, Pinned::None, attributes, size);
        let first = send_after(existed, transfer, content.clone(), until);
        let (created, tag) = service.spawn(async move { Ok(first.await) }).await?;
        let (was_sent, pause) = match tag {
            Err(StoreError::Throttled { retry_after }) => (false, pause(retry_after)),
            Err(StoreError::Unavailable) => (false, pause(None)),
            Err(StoreError::Interrupted) => (true, pause(None)),
            tag => return Ok((created, tag?)),
        };
        let Some(pause) = pause else {
            return Ok((created, tag?)); // The service wants a long pause.
        };
        let pause = async move {
            tokio::time::sleep(pause).await;
            Ok(())
        };
        self.service.spawn_until(until, pause).await?;
        self.service.recorder.metrics.retry();
        match self.put(content.into(), PutMode::Overwrite, until).await {
            Ok(put) => Ok((created, put.e_tag)),
            // The first request may have made the change.
            Err(error) if was_sent => Err(uncertain(error)),
            Err(error) => Err(error),
        }
    }

    /// Sends an object by one request.
    async fn put_whole(&mut self, until: Instant) -> Result<PutResult> {
        let payload = PutPayload::from(std::mem::take(&mut self.buffer.held));
        let condition = std::mem::replace(&mut self.condition, Condition::None);
        match condition {
            Condition::None => self.put(payload, PutMode::Overwrite, until).await,
            Condition::Absent => self.put(payload, PutMode::Create, until).await,
            condition => {
                // One of several versions: the service compares with one.
                for _ in 0..ATTEMPTS {
                    let current = self.current(until).await?;
                    condition.check(Some(&current))?;
                    let mode = PutMode::Update(UpdateVersion {
                        e_tag: Some(current.version.as_str().to_owned()),
                        version: None,
                    });
                    match self.put(payload.clone(), mode, until).await {
                        // Replaced at this moment, perhaps by another version that is permitted.
                        Err(StoreError::PreconditionFailed) => {}
                        result => return result,
                    }
                }
                Err(refused(&condition, StoreError::PreconditionFailed))
            }
        }
    }

    async fn put(&self, payload: PutPayload, mode: PutMode, until: Instant) -> Result<PutResult> {
        let options = PutOptions {
            mode,
            attributes: self.attributes(),
            ..PutOptions::default()
        };
        let (client, path) = (self.service.client.clone(), self.path.clone());
        let put = async move { client.put_opts(&path, payload, options).await };
        self.service.start(until, put).await
    }

    /// The object that has the key now.
    async fn current(&self, until: Instant) -> Result<Meta> {
        match head(&self.service, until, self.path.clone()).await {
            Ok(found) => properties(&found),
            Err(StoreError::NotFound) => Err(StoreError::PreconditionFailed),
            Err(error) => Err(error),
        }
    }
}

/// The properties of a new object. Its time is that of this machine, in seconds; the service tells
/// its own only on request.
pub(crate) fn new_meta(size: u64, tag: Option<String>) -> Result<Meta> {
    let version = tag.as_deref().and_then(tag_version);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs() as i64);
    Ok(Meta {
        kind: Kind::File,
        size,
        modified_ns: seconds * 1_000_000_000,
        changed_ns: None,
        version: version.ok_or(StoreError::BadResponse)?,
    })
}

/// Sends an object, the last byte when it is known whether there was one. If that takes too long,
/// ends the request without it. Returns whether the object is new, and the result of the request.
async fn send_after(
    mut existed: Task<ObjectMeta>,
    mut transfer: Transfer,
    mut content: Bytes,
    until: Instant,
) -> (bool, Result<Option<String>>) {
    let last = content.split_off(content.len() - 1);
    let sent = match content.is_empty() {
        true => Ok(()),
        false => transfer.send(content, until).await,
    };
    let Ok(known) = tokio::time::timeout(OPEN_MAX, &mut existed).await else {
        drop(transfer);
        return (existed.await.is_err(), Err(StoreError::Unavailable));
    };
    let tag = match sent {
        Ok(()) => transfer.finish(last, until).await,
        Err(error) => Err(error),
    };
    (known.is_err(), tag)
}

/// The error of an upload that was pinned to a version. If it only needs an object, the replacement
/// of that version does not make the condition false.
fn refused(condition: &Condition, error: StoreError) -> StoreError {
    match (condition, error) {
        (Condition::Present, StoreError::PreconditionFailed) => StoreError::Conflict,
        (_, error) => error,
    }
}

impl Upload for RemoteUpload {
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

    fn commit(self: Box<Self>) -> LocalFuture<'static, Result<Committed>> {
        Box::pin(self.finish())
    }
}
