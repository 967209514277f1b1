//! The store: each operation of the trait as requests to the service.

use crate::conditions;
use crate::credentials;
use crate::features::features;
use crate::kept::{self, PartialAt};
use crate::kept_sweep::discard_older;
use crate::listing::{is_folder, list};
use crate::location::Location;
use crate::metrics::RemoteMetrics;
use crate::multipart::find;
use crate::properties::{FOLDER_VERSION, head, properties};
use crate::reader;
use crate::resumable::ResumableUpload;
use crate::service::{Check, OpenError, Options, Service};
use crate::upload::RemoteUpload;
use object_store::ObjectStoreExt;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;
use onrush_store::{
    Condition, Features, Key, Kind, ListHow, LocalFuture, Meta, Object, Page, PartialUpload,
    Result, ResumableUploads, Store, StoreError, Upload, Wanted,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Objects in a bucket. Clones share the connections.
#[derive(Clone, Debug)]
pub struct RemoteStore {
    service: Arc<Service>,
}

impl RemoteStore {
    /// A store with the endpoint and the credentials of the standard variables
    /// (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, …), of the
    /// credentials file (`AWS_SHARED_CREDENTIALS_FILE`, `AWS_PROFILE`), or of the instance's role
    /// or web identity. Makes no request.
    ///
    /// # Errors
    ///
    /// If a variable is invalid, or if a file or a profile that it names does not exist.
    pub fn from_env(location: Location, options: Options) -> Result<RemoteStore, OpenError> {
        let builder = credentials::add(AmazonS3Builder::from_env())?;
        RemoteStore::new(builder, location, options)
    }

    /// A store at an endpoint (`http://HOST:PORT`), with a key.
    ///
    /// # Errors
    ///
    /// If the endpoint is not a URL.
    pub fn at(
        endpoint: &str,
        (key_id, secret): (&str, &str),
        location: Location,
        options: Options,
    ) -> Result<RemoteStore, OpenError> {
        let builder = AmazonS3Builder::new()
            .with_endpoint(endpoint)
            .with_access_key_id(key_id)
            .with_secret_access_key(secret);
        RemoteStore::new(builder, location, options)
    }

    fn new(
        builder: AmazonS3Builder,
        location: Location,
        options: Options,
    ) -> Result<RemoteStore, OpenError> {
        let service = Service::open(builder, location, options)?;
        Ok(RemoteStore { service })
    }

    /// Makes a request for the bucket and waits for the response, so that a wrong endpoint, bucket
    /// or key is known before a client asks. Blocks the calling thread.
    pub fn check(&self) -> Check {
        self.service.check()
    }

    /// Whether the service evaluates the conditions of a PUT. If it does not, uploads with a
    /// condition fail with [`StoreError::Unsupported`]. Finds it out with two or three PUTs of a
    /// small object of the store's own state, unless it is known; otherwise, the first upload with
    /// a condition does. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// If the service does not respond, or does not permit PUT.
    pub fn evaluates_conditions(&self) -> Result<bool> {
        let ask = conditions::are_evaluated(&self.service, self.service.limit());
        self.service.wait_for(ask)
    }

    /// Where the objects are.
    pub fn location(&self) -> &Location {
        self.service.location()
    }

    /// The location and the address of the service, such as `s3://bucket at http://127.0.0.1:7480`.
    pub fn name(&self) -> &str {
        &self.service.name
    }

    /// The requests to the service since the store was opened.
    pub fn metrics(&self) -> Arc<RemoteMetrics> {
        self.service.recorder.metrics.clone()
    }

    /// Whether the service can be reached, as far as the requests so far have shown. While it is
    /// not, operations fail with [`StoreError::Unavailable`] at once, and one request at a
    /// time, a second after the last one, finds out when it can be.
    pub fn is_reachable(&self) -> bool {
        !self.service.recorder.breaker.is_open()
    }

    /// Whether the service refuses everything, such as after the key was revoked: several requests
    /// in a row, and the one that [`RemoteStore::check`] makes. That one is repeated every second.
    /// Requests are sent nevertheless.
    pub fn is_refused(&self) -> bool {
        self.service.recorder.breaker.is_refused()
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// The properties of an object. Fails with [`StoreError::IsDirectory`] for a folder.
    async fn object_meta(&self, until: Instant, key: &Key) -> Result<Meta> {
        match head(&self.service, until, self.service.path(key)?).await {
            Ok(found) => properties(&found),
            Err(StoreError::NotFound) => Err(self.no_object(until, key).await),
            Err(error) => Err(error),
        }
    }

    /// Why there is no object.
    async fn no_object(&self, until: Instant, key: &Key) -> StoreError {
        match is_folder(&self.service, until, key).await {
            Ok(true) => StoreError::IsDirectory,
            Ok(false) => StoreError::NotFound,
            Err(error) => error,
        }
    }

    /// The path of an upload that continues. Fails with [`StoreError::Unsupported`] if the service
    /// ignores conditions: then nothing tells which server continues it.
    async fn resumable_path(&self, key: &Key) -> Result<Path> {
        let path = self.service.path(key)?;
        match conditions::are_evaluated(&self.service, self.service.limit()).await? {
            true => Ok(path),
            false => Err(StoreError::Unsupported),
        }
    }

    async fn delete(&self, key: &Key, kind: Kind, condition: Condition) -> Result<Meta> {
        let until = self.service.limit();
        if kind == Kind::Directory {
            return match is_folder(&self.service, until, key).await? {
                true => Err(StoreError::NotEmpty),
                false => Err(StoreError::NotFound),
            };
        }
        let current = match self.object_meta(until, key).await {
            Err(StoreError::NotFound) => None,
            found => Some(found?),
        };
        condition.check(current.as_ref())?;
        let Some(current) = current else {
            return Err(StoreError::NotFound);
        };
        // Between this comparison and the request, another client may replace the object, and the
        // service deletes whatever it has.
        if matches!(condition, Condition::Versions(_)) {
            return Err(StoreError::Unsupported);
        }
        let (client, path) = (self.service.client.clone(), self.service.path(key)?);
        let delete = async move { ObjectStoreExt::delete(&client, &path).await };
        self.service.start(until, delete).await?;
        Ok(current)
    }
}

impl Store for RemoteStore {
    fn open<'a>(&'a self, key: &'a Key, wanted: Wanted) -> LocalFuture<'a, Result<Object>> {
        Box::pin(async move {
            let (path, until) = (self.service.path(key)?, self.service.limit());
            match reader::open(&self.service, until, path, wanted).await {
                Err(StoreError::NotFound) => Err(self.no_object(until, key).await),
                result => result,
            }
        })
    }

    fn meta<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(async move {
            match self.object_meta(self.service.limit(), key).await {
                Err(StoreError::IsDirectory) => Ok(Meta {
                    kind: Kind::Directory,
                    size: 0,
                    modified_ns: 0,
                    changed_ns: None,
                    version: *FOLDER_VERSION,
                }),
                result => result,
            }
        })
    }

    fn existing_object<'a>(&'a self, key: &'a Key) -> LocalFuture<'a, Result<Option<Meta>>> {
        Box::pin(async move {
            match self.object_meta(self.service.limit(), key).await {
                Err(StoreError::NotFound) => Ok(None),
                result => result.map(Some),
            }
        })
    }

    fn stage<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let (path, until) = (self.service.path(key)?, self.service.limit());
            if !condition.is_none() && !conditions::are_evaluated(&self.service, until).await? {
                return Err(StoreError::Unsupported);
            }
            let upload = RemoteUpload::begin(&self.service, path, condition, size_bytes)?;
            Ok(Box::new(upload) as Box<dyn Upload>)
        })
    }

    fn delete<'a>(
        &'a self,
        key: &'a Key,
        kind: Kind,
        condition: Condition,
    ) -> LocalFuture<'a, Result<Meta>> {
        Box::pin(self.delete(key, kind, condition))
    }

    fn list<'a>(&'a self, folder: Option<&'a Key>, how: ListHow) -> LocalFuture<'a, Result<Page>> {
        Box::pin(async move { list(&self.service, folder, &how).await })
    }

    fn uploads(&self) -> Option<&dyn ResumableUploads> {
        Some(self)
    }

    fn features(&self) -> Features {
        features(self.service.evaluates_conditions.get().copied())
    }
}

impl ResumableUploads for RemoteStore {
    fn stage_resumable<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        size_bytes: Option<u64>,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let path = self.resumable_path(key).await?;
            let upload = ResumableUpload::begin(&self.service, path, condition, size_bytes)?;
            Ok(Box::new(upload) as Box<dyn Upload>)
        })
    }

    fn resume<'a>(
        &'a self,
        key: &'a Key,
        condition: Condition,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Box<dyn Upload>>> {
        Box::pin(async move {
            let path = self.resumable_path(key).await?;
            let upload = ResumableUpload::resume(&self.service, path, condition, kept).await?;
            Ok(Box::new(upload) as Box<dyn Upload>)
        })
    }

    fn discard_replaced<'a>(
        &'a self,
        old: &'a PartialUpload,
        new: &'a PartialUpload,
    ) -> LocalFuture<'a, ()> {
        Box::pin(async move {
            let name = |kept| PartialAt::parse(kept).ok()?.name;
            if let Some(old) = name(old).filter(|old| name(new).as_ref() != Some(old)) {
                let _ = kept::remove(&self.service, self.service.limit(), &old).await;
            }
        })
    }

    fn published<'a>(
        &'a self,
        key: &'a Key,
        kept: &'a PartialUpload,
    ) -> LocalFuture<'a, Result<Option<u64>>> {
        Box::pin(async move {
            let Ok(place) = PartialAt::parse(kept) else {
                return Ok(None);
            };
            let (path, until) = (self.service.path(key)?, self.service.limit());
            let found = find(&self.service, until, &path).await?;
            let own = found.filter(|found| found.is_of(&place.mark, kept.bytes));
            Ok(own.map(|found| found.meta.size))
        })
    }

    fn is_kept<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<bool>> {
        Box::pin(async move {
            match PartialAt::parse(kept) {
                Ok(PartialAt {
                    name: Some(name), ..
                }) => kept::is_there(&self.service, self.service.limit(), &name).await,
                _ => Ok(true),
            }
        })
    }

    fn discard<'a>(&'a self, kept: &'a PartialUpload) -> LocalFuture<'a, Result<()>> {
        Box::pin(async move {
            match PartialAt::parse(kept) {
                Ok(PartialAt {
                    name: Some(name), ..
                }) => kept::discard(&self.service, self.service.limit(), &name).await,
                _ => Ok(()),
            }
        })
    }

    fn discard_older(&self, age: Duration) -> LocalFuture<'_, Result<usize>> {
        Box::pin(discard_older(&self.service, age))
    }
}
