//! A multipart upload: parts of an object that becomes visible when they are completed.

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
use std::sync::Arc;
use tokio::time::Instant;

/// The name of the mark that tells multipart uploads apart: `x-amz-meta-onrush-upload`.
const MARK: &str = "onrush-upload";

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

    /// Begins to send a part, after the one before is complete. Without a further permit, also
    /// waits until it is sent.
    pub(crate) async fn send(&mut self, part: Vec<u8>, until: Instant) -> Result<()> {
        self.wait().await?;
        let Some(upload) = &mut self.upload else {
            return Ok(());
        };
        let permit = self.service.try_permit_part();
        let is_permitted = permit.is_some();
        let sending = {
            let _entered = self.service.enter();
            upload.put_part(part.into())
        };
        self.count += 1;
        self.sending = Some(self.service.start(until, async move {
            let _until_sent = permit;
            sending.await
        }));
        match is_permitted {
            true => Ok(()),
            false => self.wait().await,
        }
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
    /// anything that no object has takes its place.
    pub(crate) async fn complete(mut self, until: Instant) -> Result<String> {
        self.wait().await?;
        let Some(mut upload) = self.upload.take() else {
            return Err(StoreError::Io(io::ErrorKind::BrokenPipe.into()));
        };
        // If it fails, the parts remain until they are swept: whether the object exists is unknown.
        let complete = async move { upload.complete().await };
        let result = self.service.start(until, complete);
        let result = match result.await {
            Ok(result) => Some(result),
            // There is no upload any more, perhaps because an earlier attempt has completed it.
            Err(StoreError::Interrupted | StoreError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let is_certain = result.is_some();
        let tag = result.and_then(|result| result.e_tag);
        if let Some(tag) = tag.filter(|tag| tag_version(tag).is_some()) {
            return Ok(tag);
        }
        match self.tag(until).await {
            Ok(Some(tag)) => Ok(tag),
            Ok(None) if is_certain => Ok(std::mem::take(&mut self.mark)),
            Err(error) if is_certain => Err(error),
            _ => Err(StoreError::Interrupted),
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
            self.service.detach(async move {
                let _ = upload.abort().await;
            });
        }
    }
}
