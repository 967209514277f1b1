//! What every method needs: the store, the options, and what all requests share.

use crate::files::http::digest::Digests;
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::options::FilesOptions;
use crate::files::path::artifacts;
use crate::files::shared::client_shares::ClientShares;
use crate::files::shared::storage_log::StorageLog;
use crate::files::shared::stored_fields;
use onrush::Request;
use onrush_store::{Key, Meta, Store, StoreError};
use std::sync::Arc;

const NAMES_FOLD: HttpError = HttpError::new(
    501,
    "this file system does not distinguish upper and lower case, so a lock of one spelling of a \
     path protects nothing",
);

/// The objects that are served.
pub(in crate::files) struct Objects {
    pub(in crate::files) store: Arc<dyn Store>,
    pub(in crate::files) options: FilesOptions,
    /// The budgets of which each client has a share.
    pub(in crate::files) shares: Arc<ClientShares>,
    pub(in crate::files) storage_log: Arc<StorageLog>,
}

impl Objects {
    /// Fails with 501 where another spelling of a path leads to the same object, which a lock does
    /// not protect then.
    pub(in crate::files) async fn check_distinct_names(&self, key: &Key) -> Result<(), HttpError> {
        match self.store.folds_names(key).await {
            Ok(true) => Err(NAMES_FOLD),
            Ok(false) => Ok(()),
            Err(error) => Err(self.store_failure(error, Operation::Read, Some(key))),
        }
    }

    /// Maps an error of the store about `key` (`None`: the top folder) to a response, and logs it
    /// if the storage is the cause.
    pub(in crate::files) fn store_failure(
        &self,
        error: StoreError,
        operation: Operation,
        key: Option<&Key>,
    ) -> HttpError {
        self.storage_log.record(error, key);
        HttpError::from_store(error, operation)
    }

    /// Whether `key` is a record of nx.
    pub(in crate::files) fn is_record(&self, key: &Key) -> bool {
        self.options.content_addressed && artifacts::is_record(key.as_bytes())
    }

    /// The fields that describe the content of a request: the metadata to store with the object,
    /// and the digests.
    pub(in crate::files) fn content_fields(
        &self,
        request: &Request,
        metadata_bytes_max: usize,
    ) -> Result<(Vec<u8>, Digests), HttpError> {
        // Most requests have none of these fields. One pass that compares first letters finds out.
        let may_describe = |name: &str| match name.as_bytes() {
            [b'r' | b'R', ..] => true,
            _ => stored_fields::may_be_stored(name),
        };
        if !request.headers().any(|(name, _)| may_describe(name)) {
            return Ok((Vec::new(), Digests::default()));
        }
        let is_artifact = self.options.content_addressed;
        let metadata =
            stored_fields::metadata_from_request(request, metadata_bytes_max, is_artifact)?;
        Ok((metadata, Digests::from_request(request)?))
    }

    /// The properties of what has the key now.
    pub(in crate::files) async fn look_up(&self, key: &Key) -> Result<Option<Meta>, StoreError> {
        match self.store.meta(key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(StoreError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
