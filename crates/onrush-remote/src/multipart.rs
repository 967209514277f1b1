//! A multipart upload: parts of an object that becomes visible when they are completed.
//!
//! It is identified by its path and the id that the service has given it. So another process can
//! continue it, if it knows the tags of the parts as well ([`SavedParts`]). The service compares
//! the tags when the upload is completed: a part that was replaced is an error, not a torn object.

use crate::error::{causes, uncertain};
use crate::part_memory::PartPermit;
use crate::properties::tag_version;
use crate::service::Service;
use crate::tasks::Task;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, Attributes, GetOptions, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutPayload,
};
use onrush_store::{Result, StoreError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::time::Instant;

/// The name of the mark that tells multipart uploads apart: `x-amz-meta-onrush-upload`.
const MARK: &str = "onrush-upload";
/// This part of the time of a call is for the question whether an upload was completed.
const LOOKS_FOR: u32 = 6;
/// What the service says if a part is not the one with the tag. Ceph says it as well if it has a
/// part that the request does not name.
const INVALID_PART: &str = "<Code>InvalidPart</Code>";

/// A text that no other one is equal to.
pub(crate) fn unique() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// What another process needs to continue a multipart upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedParts {
    /// Where the object appears.
    pub(crate) path: Path,
    /// That of the service.
    pub(crate) id: String,
    /// Stored with the object. No other upload has it.
    pub(crate) mark: String,
    /// The tags of the parts, from the first one.
    pub(crate) tags: Vec<String>,
}

/// An object, and what tells which multipart upload it was.
pub(crate) struct FoundMultipart {
    pub(crate) meta: ObjectMeta,
    mark: Option<String>,
}

impl FoundMultipart {
    /// Whether this was the upload with the mark, of `size` bytes. A client can give any object any
    /// mark.
    pub(crate) fn is_of(&self, mark: &str, size: u64) -> bool {
        self.mark.as_deref() == Some(mark) && self.meta.size == size
    }
}

/// The object at a path; `None` if there is none.
pub(crate) async fn find(
    service: &Service,
    until: Instant,
    path: &Path,
) -> Result<Option<FoundMultipart>> {
    let options = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    let (client, path) = (service.client.clone(), path.clone());
    let head = async move { client.get_opts(&path, options).await };
    let found = match service.start(until, head).await {
        Err(StoreError::NotFound) => return Ok(None),
        found => found?,
    };
    let mark = found.attributes.get(&Attribute::Metadata(MARK.into()));
    Ok(Some(FoundMultipart {
        mark: mark.map(|mark| mark.as_ref().to_owned()),
        meta: found.meta,
    }))
}

/// A multipart upload in progress. Dropping it aborts it, unless it was kept.
pub(crate) struct Parts {
    service: Arc<Service>,
    /// The tags are those of the parts that are stored.
    saved: SavedParts,
    sending: Option<Task<PartId>>,
    /// Whether dropping it aborts it.
    is_aborted: bool,
}

impl Parts {
    pub(crate) async fn begin(
        service: &Arc<Service>,
        until: Instant,
        path: &Path,
        attributes: Attributes,
    ) -> Result<Parts> {
        let mark = unique();
        let options = PutMultipartOptions {
            attributes: with_mark(attributes, &mark),
            ..PutMultipartOptions::default()
        };
        let (client, at) = (service.client.clone(), path.clone());
        let begin = async move { client.create_multipart_opts(&at, options).await };
        let saved = SavedParts {
            path: path.clone(),
            id: service.start(until, begin).await?,
            mark,
            tags: Vec::new(),
        };
        let mut parts = Parts::restore(service, saved);
        parts.is_aborted = true;
        Ok(parts)
    }

    /// One that was kept.
    pub(crate) fn restore(service: &Arc<Service>, saved: SavedParts) -> Parts {
        service.recorder.metrics.upload_begins();
        Parts {
            service: service.clone(),
            saved,
            sending: None,
            is_aborted: false,
        }
    }

    /// Where the object appears.
    pub(crate) fn path(&self) -> &Path {
        &self.saved.path
    }

    /// What the object is known by.
    pub(crate) fn mark(&self) -> &str {
        &self.saved.mark
    }

    /// What is needed to continue. Waits until all parts are stored.
    pub(crate) async fn save(&mut self) -> Result<&SavedParts> {
        self.wait().await?;
        Ok(&self.saved)
    }

    /// From now on, dropping it does not abort it.
    pub(crate) fn keep(&mut self) {
        self.is_aborted = false;
    }

    /// The number of parts so far.
    pub(crate) fn count(&self) -> usize {
        self.saved.tags.len() + usize::from(self.sending.is_some())
    }

    /// Begins to send a part, after the one before is complete.
    pub(crate) async fn send(
        &mut self,
        part: Vec<u8>,
        permit: Option<PartPermit>,
        until: Instant,
    ) -> Result<()> {
        if let Some(permit) = &permit {
            permit.complete();
        }
        self.wait().await?;
        let (client, path) = (self.service.client.clone(), self.saved.path.clone());
        let (id, number) = (self.saved.id.clone(), self.count());
        self.sending = Some(self.service.start(until, async move {
            let _until_sent = permit;
            let part = PutPayload::from(part);
            client.put_part(&path, &id, number, part).await
        }));
        Ok(())
    }

    async fn wait(&mut self) -> Result<()> {
        if let Some(sending) = &mut self.sending {
            let stored = sending.await;
            self.sending = None;
            self.saved.tags.push(stored?.content_id);
        }
        Ok(())
    }

    /// Completes the upload of `size` bytes. Returns the entity tag of the object. Fails with
    /// [`StoreError::Conflict`] if another process has replaced a part.
    ///
    /// Ceph 16 does not tell the tag. Then the object is requested, but another client may have
    /// replaced it: its tag must not appear as the one of this upload. That one is not visible any
    /// more, so anything that no object has takes its place; also if the request fails, because the
    /// upload is complete in any case.
    pub(crate) async fn complete(mut self, until: Instant, size: u64) -> Result<String> {
        self.wait().await?;
        let client = self.service.client.clone();
        let (path, id) = (self.saved.path.clone(), self.saved.id.clone());
        let tags = self.saved.tags.iter().cloned();
        let parts = tags.map(|content_id| PartId { content_id }).collect();
        let is_replaced = Arc::new(AtomicBool::new(false));
        let replaced = is_replaced.clone();
        let complete = async move {
            let result = client.complete_multipart(&path, &id, parts).await;
            if let Err(error) = &result {
                replaced.store(causes(error).contains(INVALID_PART), Ordering::Relaxed);
            }
            result
        };
        let time = self.service.options.operation_timeout / LOOKS_FOR;
        let completed = until.checked_sub(time).unwrap_or(until);
        let aborts = std::mem::replace(&mut self.is_aborted, false);
        match self.service.start(completed, complete).await {
            Ok(result) => match result.e_tag.filter(|tag| tag_version(tag).is_some()) {
                Some(tag) => Ok(tag),
                None => match self.tag(until, size).await {
                    Ok(Some(tag)) => Ok(tag),
                    _ => Ok(std::mem::take(&mut self.saved.mark)),
                },
            },
            Err(_) if is_replaced.load(Ordering::Relaxed) => {
                self.is_aborted = aborts;
                Err(StoreError::Conflict)
            }
            // It may be complete. `NotFound`: there is no upload any more, perhaps because an
            // earlier attempt has completed it. If the object is not there, the parts are left to
            // the sweep: to abort an upload that is being completed may damage the object.
            Err(
                error @ (StoreError::Interrupted
                | StoreError::NotFound
                | StoreError::Timeout
                | StoreError::BadResponse),
            ) => match self.tag(until, size).await {
                Ok(Some(tag)) => Ok(tag),
                _ => Err(uncertain(error)),
            },
            // It is not, and its parts are of no use.
            Err(error) => {
                self.is_aborted = aborts;
                Err(error)
            }
        }
    }
}

impl Parts {
    /// Requests the entity tag of the object, if it is that of this upload, of `size` bytes.
    pub(crate) async fn tag(&self, until: Instant, size: u64) -> Result<Option<String>> {
        let found = find(&self.service, until, &self.saved.path).await?;
        let own = found.filter(|found| found.is_of(&self.saved.mark, size));
        Ok(own.and_then(|found| found.meta.e_tag))
    }
}

/// Adds the mark of a multipart upload.
pub(crate) fn with_mark(mut attributes: Attributes, mark: &str) -> Attributes {
    let mark = AttributeValue::from(mark.to_owned());
    attributes.insert(Attribute::Metadata(MARK.into()), mark);
    attributes
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.service.recorder.metrics.upload_ends();
        drop(self.sending.take());
        if !self.is_aborted {
            return;
        }
        let (client, store) = (self.service.client.clone(), self.service.name.clone());
        let (path, id) = (self.saved.path.clone(), std::mem::take(&mut self.saved.id));
        self.service.detach(async move {
            match client.abort_multipart(&path, &id).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => tracing::warn!(
                    store,
                    error = causes(&error),
                    "an upload was not aborted; onrush sweep removes its parts"
                ),
            }
        });
    }
}
