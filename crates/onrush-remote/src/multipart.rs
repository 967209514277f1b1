//! A multipart upload: parts of an object that becomes visible when they are completed.

use crate::error::{causes, uncertain};
use crate::part_memory::PartPermit;
use crate::properties::tag_version;
use crate::service::Service;
use crate::tasks::Task;
use object_store::path::Path;
use object_store::{
    Attribute, AttributeValue, Attributes, GetOptions, MultipartUpload, ObjectStore,
    PutMultipartOptions,
};
use onrush_store::{Result, StoreError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// The name of the mark that tells multipart uploads apart: `x-amz-meta-onrush-upload`.
const MARK: &str = "onrush-upload";
/// This part of the time of a call is for the question whether an upload was completed.
const LOOKS_FOR: u32 = 6;

/// A multipart upload in progress. Dropping it aborts it.
pub(crate) struct Parts {
    service: Arc<Service>,
    path: Path,
    /// Stored with the object. No other upload has it.
    mark: String,
    /// `None` after it is complete.
    upload: Option<Box<dyn MultipartUpload>>,
    sending: Option<Task<()>>,
    count: usize,
}

impl Parts {
    pub(crate) async fn begin(
        service: &Arc<Service>,
        until: Instant,
        path: &Path,
        attributes: Attributes,
    ) -> Result<Parts> {
        let mark = format!("{:016x}", RandomState::new().build_hasher().finish());
        let options = PutMultipartOptions {
            attributes: with_mark(attributes, &mark),
            ..PutMultipartOptions::default()
        };
        let (client, at) = (service.client.clone(), path.clone());
        let begin = async move { client.put_multipart_opts(&at, options).await };
        let upload = service.start(until, begin).await?;
        service.recorder.metrics.upload_begins();
        Ok(Parts {
            service: service.clone(),
            path: path.clone(),
            mark,
            upload: Some(upload),
            sending: None,
            count: 0,
        })
    }

    /// The number of parts so far.
    pub(crate) fn count(&self) -> usize {
        self.count
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
        let Some(upload) = &mut self.upload else {
            return Ok(());
        };
        let sending = {
            let _entered = self.service.enter();
            upload.put_part(part.into())
        };
        self.count += 1;
        self.sending = Some(self.service.start(until, async move {
            let _until_sent = permit;
            sending.await
        }));
        Ok(())
    }

    async fn wait(&mut self) -> Result<()> {
        match &mut self.sending {
            Some(sending) => sending.await?,
            None => return Ok(()),
        }
        self.sending = None;
        Ok(())
    }

    /// Completes the upload. Returns the entity tag of the object.
    ///
    /// Ceph 16 does not tell it. Then the object is requested, but another client may have replaced
    /// it: its tag must not appear as the one of this upload. That one is not visible any more, so
    /// anything that no object has takes its place; also if the request fails, because the upload
    /// is complete in any case.
    pub(crate) async fn complete(mut self, until: Instant) -> Result<String> {
        self.wait().await?;
        let Some(mut upload) = self.upload.take() else {
            return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into()));
        };
        let failed = Arc::new(Mutex::new(None));
        let own = failed.clone();
        let complete = async move {
            let result = upload.complete().await;
            if result.is_err() {
                *own.lock().unwrap_or_else(PoisonError::into_inner) = Some(upload);
            }
            result
        };
        let time = self.service.options.operation_timeout / LOOKS_FOR;
        let completed = until.checked_sub(time).unwrap_or(until);
        match self.service.start(completed, complete).await {
            Ok(result) => match result.e_tag.filter(|tag| tag_version(tag).is_some()) {
                Some(tag) => Ok(tag),
                None => match self.tag(until).await {
                    Ok(Some(tag)) => Ok(tag),
                    _ => Ok(std::mem::take(&mut self.mark)),
                },
            },
            // It may be complete. `NotFound`: there is no upload any more, perhaps because an
            // earlier attempt has completed it. If the object is not there, the parts are left to
            // the sweep: to abort an upload that is being completed may damage the object.
            Err(
                error @ (StoreError::Interrupted
                | StoreError::NotFound
                | StoreError::Timeout
                | StoreError::BadResponse),
            ) => match self.tag(until).await {
                Ok(Some(tag)) => Ok(tag),
                _ => Err(uncertain(error)),
            },
            // It is not, and its parts are of no use.
            Err(error) => {
                self.upload = failed.lock().unwrap_or_else(PoisonError::into_inner).take();
                Err(error)
            }
        }
    }
}

impl Parts {
    /// Requests the entity tag of the object, if it is that of this upload.
    async fn tag(&self, until: Instant) -> Result<Option<String>> {
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let (client, path) = (self.service.client.clone(), self.path.clone());
        let head = async move { client.get_opts(&path, options).await };
        let found = match self.service.start(until, head).await {
            Err(StoreError::NotFound) => return Ok(None), // Deleted since then.
            found => found?,
        };
        let own = found.attributes.get(&Attribute::Metadata(MARK.into()));
        let is_own = own.is_some_and(|own| own.as_ref() == self.mark);
        Ok(found.meta.e_tag.filter(|_| is_own))
    }
}

/// Adds the mark of a multipart upload.
fn with_mark(mut attributes: Attributes, mark: &str) -> Attributes {
    let mark = AttributeValue::from(mark.to_owned());
    attributes.insert(Attribute::Metadata(MARK.into()), mark);
    attributes
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.service.recorder.metrics.upload_ends();
        drop(self.sending.take());
        if let Some(mut upload) = self.upload.take() {
            let store = self.service.name.clone();
            self.service.detach(async move {
                match upload.abort().await {
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
}
