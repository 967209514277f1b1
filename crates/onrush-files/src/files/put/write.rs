//! PUT and DELETE.
//!
//! Where possible, a request is refused before its body is read. The commit evaluates the
//! preconditions again, under the lock of the key. Dropping an incomplete upload removes everything
//! that it created.
//!
//! A `PUT` to a symbolic link is refused (409), whatever the link points to. The preconditions
//! would be those of another object, and the client intends to replace neither the link nor its
//! target. `DELETE` of a link to a target beneath the folder removes the link, never the target. A
//! link to a target outside the folder, or without a target, is not found (404).

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::object::conditions::Conditions;
use crate::files::object::object_fields::etag;
use crate::files::path::artifacts::RECORD_EXISTS;
use crate::files::path::{self, ResolvedPath, Target};
use crate::files::put::writes::Writes;
use crate::files::receive::upload::{self, ReceiveError, VerifiedUpload};
use crate::files::shared::client_rights::Permission;
use crate::files::shared::client_rights::check_right_beneath;
use crate::files::shared::destination::Destination;
use crate::files::shared::destination::IS_FOLDER;
use crate::files::shared::multistatus;
use crate::files::shared::stored_fields;
use crate::rights::Rights;
use crate::shares::Holder;
use onrush::{Request, Response};
use onrush_store::{Condition, Kind, METADATA_BYTES_MAX, StoreError};
use std::sync::Arc;

/// For uploads of at least this size or of unknown size, conflicts are detected before the body is
/// received.
const CHECK_FIRST_BYTES: u64 = 64 * 1024;

/// The client may only create objects. It learns that this one exists, as with `If-None-Match: *`.
pub(in crate::files) const EXISTS: HttpError =
    HttpError::new(403, "the object exists, and you may not replace it");

/// A body that the store has in memory until it is complete.
const SMALL_BYTES: u64 = 16 * 1024;

impl Writes {
    /// `PUT` of an object (RFC 9110 §9.3.4): 201 when it is new, 204 when it was replaced.
    pub(in crate::files) async fn put(&self, request: Request) -> Result<Response, HttpError> {
        let to = self.objects.put_destination(&request)?;
        if to.kind == Kind::Directory {
            return Box::pin(self.put_folder(request, to)).await;
        }
        let Destination {
            key,
            location,
            may_replace,
            permission,
            ..
        } = to;
        let state = self.state_update(&request, &key)?;
        self.check_state_lock(&key, state.as_ref()).await?;
        let conditions = Conditions::from_request(&request);
        let metadata_bytes_max = self.objects.store.features().metadata_bytes_max;
        let (metadata, mut digests) = self.objects.content_fields(&request, metadata_bytes_max)?;
        let metadata = self.objects.fields_of_name(&key, metadata)?;
        let is_record = self.objects.is_record(&key);
        let may_replace = may_replace && !is_record;
        let exists = if is_record { RECORD_EXISTS } else { EXISTS };
        let keeps_time = stored_fields::has_client_time(&metadata);
        self.objects.demand_of_name(&key, &mut digests)?;
        let length = request.content_length();
        if length.is_some_and(|bytes| bytes > self.uploads.limits().object_bytes_max) {
            return Err(self.uploads.limits().too_large());
        }
        let _place = match length {
            Some(..=SMALL_BYTES) => None, // Its file is open for a moment only.
            _ => self
                .objects
                .shares
                .files
                .hold_upload(429, || Holder::of(&request))?,
        };
        let check_first = !conditions.is_none()
            || !may_replace
            || request.header("expect").is_some()
            || length.is_none_or(|bytes| bytes >= CHECK_FIRST_BYTES);
        let mut body = request.into_body(); // Drops the head, which is not needed any more.

        let failed = |error| {
            self.objects
                .store_failure(error, Operation::Write, Some(&key))
        };
        let condition = match check_first {
            true => {
                let current = self.objects.check_conditions(&key, &conditions).await?;
                if !may_replace && current.is_some() {
                    return Err(exists);
                }
                let look_up = async || Ok(current);
                let condition = conditions.into_condition(look_up).await.map_err(failed)?;
                match may_replace {
                    true => condition,
                    false => Condition::Absent, // No other one holds for an object to create.
                }
            }
            false => Condition::None,
        };
        let staged = self.objects.store.stage(&key, condition, length).await;
        let mut upload = staged.map_err(failed)?;
        if !metadata.is_empty() {
            upload.set_metadata(metadata).map_err(failed)?;
        }
        let mut upload = VerifiedUpload::new(upload, digests, self.uploads.limits());
        let buffers = &self.upload_buffers;
        let received = upload::receive(&mut body, length, &mut upload, buffers, &|_| false);
        let received = received.await;
        received.map_err(|error| self.objects.upload_failure(error, &key))?;
        self.check_state_lock(&key, state.as_ref()).await?; // It may be another one by now.
        let committed = upload.commit(&permission).await;
        let committed = committed.map_err(|error| match error {
            ReceiveError::Store(StoreError::PreconditionFailed) if !may_replace => exists,
            error => self.objects.upload_failure(error, &key),
        })?;
        let response = if is_record {
            Response::new(200)
        } else if committed.created {
            Response::new(201).with_header("Location", location)
        } else {
            Response::new(204)
        };
        let response = response.with_header("ETag", etag(&committed.meta.version));
        Ok(match keeps_time {
            true => response.with_header("X-OC-MTime", "accepted"),
            false => response,
        })
    }

    /// `PUT` without content of a path that ends with a slash: creates the folder, and those above
    /// it. 201 when it is new, 204 when it exists. A body of unknown length may be empty, too.
    async fn put_folder(
        &self,
        mut request: Request,
        to: Destination,
    ) -> Result<Response, HttpError> {
        if request.content_length().is_some_and(|bytes| bytes > 0) {
            return Err(IS_FOLDER);
        }
        let failed = |error| {
            self.objects
                .store_failure(error, Operation::Write, Some(&to.key))
        };
        let conditions = Conditions::from_request(&request);
        if !conditions.is_none() {
            let current = self.objects.look_up(&to.key).await.map_err(failed)?;
            conditions.check(current.as_ref()).map_err(failed)?;
        }
        while let Some(piece) = request.body().next().await {
            if !piece.map_err(upload::body_failure)?.is_empty() {
                return Err(IS_FOLDER);
            }
        }
        to.permission.check()?;
        match self
            .objects
            .store
            .create_folder(&to.key)
            .await
            .map_err(failed)?
        {
            true => Ok(Response::new(201).with_header("Location", &to.location)),
            false => Ok(Response::new(204)),
        }
    }

    /// `PUT` with the option `sink`: makes the same checks as a `PUT`, then reads, counts and
    /// discards the body at full speed. Digests are not verified, because the kernel discards the
    /// body.
    pub(in crate::files) async fn put_to_sink(
        &self,
        request: Request,
    ) -> Result<Response, HttpError> {
        let to = self.objects.object_destination(&request)?;
        self.objects.content_fields(&request, METADATA_BYTES_MAX)?;
        self.objects
            .check_conditions(&to.key, &Conditions::from_request(&request))
            .await?;
        let received = upload::discard(&mut request.into_body()).await?;
        Ok(Response::new(204).with_header("Onrush-Received-Bytes", received.to_string()))
    }

    /// `DELETE` of an object or of a folder (RFC 9110 §9.3.5, RFC 4918 §9.6).
    pub(in crate::files) async fn delete(
        self: &Arc<Writes>,
        request: &Request,
    ) -> Result<Response, HttpError> {
        let split = path::split(request)?;
        let target = path::target(request, Operation::Write)?;
        let (key, mut kind) = match target.check_visible(&self.objects.options, Operation::Write)? {
            Target::Object(key) => (key, Kind::File),
            Target::Folder(Some(key)) => (key, Kind::Directory),
            Target::Folder(None) => {
                return Err(HttpError::new(403, "the top folder cannot be deleted"));
            }
        };
        let failed = |error| {
            self.objects
                .store_failure(error, Operation::Write, Some(&key))
        };
        if self.objects.options.webdav && kind == Kind::File {
            let found = self.objects.look_up(&key).await.map_err(failed)?;
            kind = found.map_or(kind, |found| found.kind);
        }
        let look_up = async || self.objects.look_up(&key).await;
        let condition = Conditions::from_request(request);
        let condition = condition.into_condition(look_up).await.map_err(failed)?;
        if kind == Kind::Directory && self.objects.options.allow.delete_folders {
            check_right_beneath(request, Rights::DELETE)?;
            let mut permission = Permission::new(request);
            permission.require(&ResolvedPath::of(request)?.whole, Rights::DELETE, true);
            let failures = self
                .delete_tree(&key, condition, Holder::of(request), permission)
                .await?;
            return Ok(match failures.is_empty() {
                true => Response::new(204),
                false => multistatus::of_failures(split.mount, &failures),
            });
        }
        let state = self.state_update(request, &key)?;
        self.check_state_lock(&key, state.as_ref()).await?;
        match self.objects.store.delete(&key, kind, condition).await {
            Ok(_) if state.is_some() => Ok(Response::new(200)), // Terraform takes no other.
            Ok(_) => Ok(Response::new(204)),
            // `a` and `a/` are different: a request to delete an object must not delete a folder.
            Err(StoreError::IsDirectory) => Err(HttpError::new(
                409,
                "this is a folder; its path ends with a slash",
            )),
            Err(error) => Err(failed(error)),
        }
    }
}
