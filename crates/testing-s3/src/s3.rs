//! Objects in memory behind the S3 protocol. Conditions are evaluated together with the change, as
//! AWS does, or ignored where Ceph 16 ignores them.

use super::bodies::{blob, read};
pub use super::object::{Fields, Stored};
use super::parts::{Faults, Parts, Steps, fail, hash, holds};
use bytes::Bytes;
use http::StatusCode;
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

/// The name of the only bucket.
pub const BUCKET: &str = "bucket";

/// The fields of a request or a stored object as [`Fields`], or as a response.
macro_rules! fields {
    ($from:expr => $into:ident { $($more:tt)* }) => {
        $into {
            content_type: $from.content_type,
            content_encoding: $from.content_encoding,
            content_language: $from.content_language,
            content_disposition: $from.content_disposition,
            cache_control: $from.cache_control,
            metadata: $from.metadata,
            $($more)*
        }
    };
}

/// What a bucket has.
#[derive(Debug, Default)]
pub struct Objects {
    /// The objects.
    pub by_key: BTreeMap<String, Stored>,
    /// The multipart uploads that are not complete, by identifier.
    pub uploads: BTreeMap<String, Parts>,
    /// The number of requests that were begun, by method and kind. `CUT`: PUTs that ended without
    /// all their bytes.
    pub requests: BTreeMap<&'static str, usize>,
    /// The response to a HEAD waits until there is such an entry in `requests`.
    pub head_waits_for: Option<&'static str>,
    next_upload: usize,
}

/// A service with one bucket. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryS3 {
    objects: Arc<Mutex<Objects>>,
    /// Behaves as Ceph 16 does where AWS does otherwise.
    pub is_ceph: bool,
    /// Ignores the conditions of a PUT, as Garage does.
    pub ignores_conditions: bool,
    /// The number of PUTs that are made but get 500.
    pub fails_after_put: Arc<AtomicUsize>,
    /// The number of multipart uploads that are completed but get 500.
    pub fails_after_complete: Arc<AtomicUsize>,
    /// Whether a multipart upload is completed, but gets no response.
    pub hangs_after_complete: Arc<AtomicBool>,
    /// Whether a HEAD gets SlowDown.
    pub refuses_head: Arc<AtomicBool>,
    /// Whether another client replaces the object of a multipart upload as soon as it is complete.
    pub replaces_at_once: Arc<AtomicBool>,
    /// Whether a PUT exceeds the quota of the user.
    pub is_full: Arc<AtomicBool>,
    /// Whether all requests are refused.
    pub is_revoked: Arc<AtomicBool>,
    /// Where a change hangs.
    pub steps: Steps,
    /// What fails because of its key.
    pub faults: Faults,
    /// The only prefix that may be listed, as a policy with `s3:prefix` says.
    pub lists_only: Option<String>,
}

impl MemoryS3 {
    /// What it has now.
    ///
    /// # Panics
    /// If another thread has panicked while it changed that.
    pub fn lock(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().expect("no panic")
    }

    fn begin(&self, bucket: &str, request: &'static str) -> S3Result<MutexGuard<'_, Objects>> {
        if bucket != BUCKET {
            return Err(s3_error!(NoSuchBucket));
        }
        let mut objects = self.lock();
        *objects.requests.entry(request).or_default() += 1;
        Ok(objects)
    }
}

impl MemoryS3 {
    fn complete(
        &self,
        (bucket, key, id): (&str, &str, &str),
        named: Option<CompletedMultipartUpload>,
        is_new: bool,
    ) -> S3Result<ETag> {
        let mut objects = self.begin(bucket, "COMPLETE")?;
        self.faults.check(key)?;
        if !self.is_ceph && is_new && objects.by_key.contains_key(key) {
            return Err(s3_error!(PreconditionFailed));
        }
        self.check_quota()?;
        let upload = objects.uploads.get(id);
        let upload = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
        let content = upload.content(named, self.is_ceph)?;
        let fields = upload.fields.clone();
        objects.uploads.remove(id);
        let tag = objects.put(key.to_owned(), content.into(), fields);
        if self.replaces_at_once.load(Ordering::Relaxed) {
            let other = Bytes::from_static(b"other");
            objects.put(key.to_owned(), other, Fields::default());
        }
        fail(&self.fails_after_complete)?;
        Ok(tag)
    }

    fn put(&self, input: PutObjectInput, content: Bytes) -> S3Result<ETag> {
        let mut objects = self.lock();
        self.faults.check(&input.key)?;
        let current = objects.by_key.get(&input.key);
        let holds = holds(input.if_match.as_ref(), current)
            && (input.if_none_match.is_none() || current.is_none());
        if !holds && !self.ignores_conditions {
            return Err(s3_error!(PreconditionFailed));
        }
        self.check_quota()?;
        let tag = objects.put(input.key, content, fields!(input => Fields {}));
        fail(&self.fails_after_put)?;
        Ok(tag)
    }

    fn check_quota(&self) -> S3Result<()> {
        if !self.is_full.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut error = S3Error::new(S3ErrorCode::Custom("QuotaExceeded".into()));
        error.set_status_code(StatusCode::FORBIDDEN);
        Err(error)
    }
}

impl Objects {
    fn get(&self, key: &str) -> S3Result<Stored> {
        let found = self.by_key.get(key).cloned();
        found.ok_or_else(|| s3_error!(NoSuchKey))
    }

    /// Replaces an object, and returns its tag.
    pub fn put(&mut self, key: String, content: Bytes, fields: Fields) -> ETag {
        let tag = hash(&content);
        let stored = Stored {
            content,
            tag: tag.clone(),
            fields,
            modified: SystemTime::now(),
        };
        self.by_key.insert(key, stored);
        ETag::Strong(tag)
    }
}

/// Counts a PUT that fails, or is dropped because the client leaves, before its last byte.
struct Incomplete<'a>(&'a MemoryS3);

impl Drop for Incomplete<'_> {
    fn drop(&mut self) {
        *self.0.lock().requests.entry("CUT").or_default() += 1;
    }
}

#[async_trait::async_trait]
impl S3 for MemoryS3 {
    async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let input = request.input;
        self.faults.pass(&input.key).await?;
        let found = self.begin(&input.bucket, "GET")?.get(&input.key)?;
        if !holds(input.if_match.as_ref(), Some(&found)) {
            return Err(s3_error!(PreconditionFailed));
        }
        let fields = found.fields;
        let mut output = fields!(fields => GetObjectOutput { ..Default::default() });
        let size = found.content.len() as u64;
        let content = match input.range {
            None => found.content,
            Some(range) => {
                let range = range.check(size)?;
                let shown = format!("bytes {}-{}/{size}", range.start, range.end - 1);
                output.content_range = Some(shown);
                found
                    .content
                    .slice(range.start as usize..range.end as usize)
            }
        };
        output.content_length = Some(content.len() as i64);
        output.body = Some(blob(content));
        output.e_tag = Some(ETag::Strong(found.tag));
        output.last_modified = Some(Timestamp::from(found.modified));
        Ok(S3Response::new(output))
    }

    async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = request.input;
        drop(self.begin(&input.bucket, "HEAD")?);
        if self.refuses_head.load(Ordering::Relaxed) {
            return Err(s3_error!(SlowDown));
        }
        let is_early = || {
            let objects = self.lock();
            let awaited = objects.head_waits_for;
            awaited.is_some_and(|request| !objects.requests.contains_key(request))
        };
        while is_early() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let found = self.lock().get(&input.key)?;
        let fields = found.fields;
        Ok(S3Response::new(fields!(fields => HeadObjectOutput {
            content_length: Some(found.content.len() as i64),
            e_tag: Some(ETag::Strong(found.tag)),
            last_modified: Some(Timestamp::from(found.modified)),
            ..Default::default()
        })))
    }

    async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let mut input = request.input;
        drop(self.begin(&input.bucket, "PUT")?);
        let incomplete = Incomplete(self);
        let content = read(input.body.take(), input.content_length).await?;
        std::mem::forget(incomplete);
        self.steps.pass().await;
        let tag = self.put(input, content)?;
        self.steps.pass().await;
        Ok(S3Response::new(PutObjectOutput {
            e_tag: Some(tag),
            ..Default::default()
        }))
    }

    async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let input = request.input;
        drop(self.begin(&input.bucket, "DELETE")?);
        self.steps.pass().await;
        self.lock().by_key.remove(&input.key);
        self.steps.pass().await;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let input = request.input;
        let mut objects = self.begin(&input.bucket, "DELETE")?;
        for object in input.delete.objects {
            objects.by_key.remove(&object.key);
        }
        Ok(S3Response::new(DeleteObjectsOutput::default()))
    }

    async fn list_objects_v2(
        &self,
        request: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = request.input;
        let objects = self.begin(&input.bucket, "LIST")?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let permitted = self.lists_only.as_deref().unwrap_or_default();
        if !prefix.starts_with(permitted) {
            return Err(s3_error!(AccessDenied));
        }
        let after = input
            .continuation_token
            .clone()
            .or(input.start_after.clone());
        let limit = input.max_keys.unwrap_or(1000) as usize;
        let (mut contents, mut folders, mut last) = (Vec::new(), BTreeSet::new(), None);
        let mut is_truncated = false;
        for (key, stored) in objects.by_key.range(prefix.clone()..) {
            let Some(rest) = key.strip_prefix(&prefix) else {
                break;
            };
            let folder = input
                .delimiter
                .as_deref()
                .and_then(|delimiter| rest.split_once(delimiter));
            let name = match folder {
                Some((folder, _)) => format!("{prefix}{folder}/"),
                None => key.clone(),
            };
            // Ceph omits a common prefix that contains the key after which the page begins.
            let compared = if self.is_ceph || input.continuation_token.is_some() {
                &name
            } else {
                key
            };
            let is_before = |after: &String| {
                compared <= after || after.starts_with(&name) && self.is_ceph && folder.is_some()
            };
            if after.as_ref().is_some_and(is_before) || folders.contains(&name) {
                continue;
            }
            if contents.len() + folders.len() == limit {
                is_truncated = true;
                break;
            }
            last = Some(name.clone());
            match folder {
                Some(_) => drop(folders.insert(name)),
                None => contents.push(Object {
                    key: Some(key.clone()),
                    size: Some(stored.content.len() as i64),
                    e_tag: Some(ETag::Strong(stored.tag.clone())),
                    last_modified: Some(Timestamp::from(stored.modified)),
                    ..Default::default()
                }),
            }
        }
        let folders = folders.into_iter().map(|prefix| CommonPrefix {
            prefix: Some(prefix),
        });
        Ok(S3Response::new(ListObjectsV2Output {
            key_count: Some((contents.len() + folders.len()) as i32),
            contents: Some(contents),
            common_prefixes: Some(folders.collect()),
            is_truncated: Some(is_truncated),
            next_continuation_token: last.filter(|_| is_truncated),
            name: Some(input.bucket),
            prefix: input.prefix,
            ..Default::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let input = request.input;
        drop(self.begin(&input.bucket, "MULTIPART")?);
        self.steps.pass().await;
        let upload = Parts {
            key: input.key.clone(),
            begun: SystemTime::now(),
            fields: fields!(input => Fields {}),
            parts: BTreeMap::new(),
        };
        let id = {
            let mut objects = self.lock();
            objects.next_upload += 1;
            let id = objects.next_upload.to_string();
            objects.uploads.insert(id.clone(), upload);
            id
        };
        self.steps.pass().await;
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            ..Default::default()
        }))
    }

    async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let input = request.input;
        drop(self.begin(&input.bucket, "PART")?);
        let content = read(input.body, input.content_length).await?;
        let tag = ETag::Strong(hash(&content));
        self.steps.pass().await;
        {
            let mut objects = self.lock();
            let upload = objects.uploads.get_mut(&input.upload_id);
            let upload = upload.ok_or_else(|| s3_error!(NoSuchUpload))?;
            upload.parts.insert(input.part_number, content);
        }
        self.steps.pass().await;
        Ok(S3Response::new(UploadPartOutput {
            e_tag: Some(tag),
            ..Default::default()
        }))
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = request.input;
        self.steps.pass().await;
        let tag = self.complete(
            (&input.bucket, &input.key, &input.upload_id),
            input.multipart_upload,
            input.if_none_match.is_some(),
        )?;
        self.steps.pass().await;
        if self.hangs_after_complete.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(match self.is_ceph {
                true => ETag::Strong(String::new()),
                false => tag,
            }),
            ..Default::default()
        }))
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let input = request.input;
        let objects = self.begin(&input.bucket, "UPLOADS")?;
        let prefix = input.prefix.unwrap_or_default();
        let mut uploads = objects
            .uploads
            .iter()
            .filter(|(_, upload)| upload.key.starts_with(&prefix))
            .map(|(id, upload)| ((&upload.key, id), upload.begun))
            .collect::<Vec<_>>();
        uploads.sort();
        let after = input.key_marker.unwrap_or_default();
        uploads.retain(|((key, _), _)| **key > after);
        // One per page.
        let is_truncated = uploads.len() > 1;
        uploads.truncate(1);
        let last = uploads
            .last()
            .map(|((key, id), _)| ((*key).clone(), (*id).clone()));
        let (next_key_marker, next_upload_id_marker) = last.filter(|_| is_truncated).unzip();
        let uploads = uploads
            .into_iter()
            .map(|((key, id), begun)| MultipartUpload {
                key: Some(key.clone()),
                upload_id: Some(id.clone()),
                initiated: Some(Timestamp::from(begun)),
                ..Default::default()
            });
        Ok(S3Response::new(ListMultipartUploadsOutput {
            uploads: Some(uploads.collect()),
            is_truncated: Some(is_truncated),
            next_key_marker,
            next_upload_id_marker,
            ..Default::default()
        }))
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let input = request.input;
        self.begin(&input.bucket, "ABORT")?
            .uploads
            .remove(&input.upload_id);
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}
