//! What the protocols of uploads that continue have in common: the condition of an upload and its
//! result.

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::object::conditions::Conditions;
use crate::files::object::object_fields::etag;
use crate::files::put::write::EXISTS;
use crate::files::receive::upload::ReceiveError;
use crate::files::resume::upload_protocols::UploadProtocols;
use crate::files::shared::destination::Destination;
use crate::files::uploads::Session;
use onrush::{Request, Response};
use onrush_store::{Condition, StoreError};

const IN_USE: HttpError = HttpError::new(423, HttpError::UPLOAD_IN_USE.detail);

/// An Integer that is not negative (RFC 9651 §3.3.1).
pub(in crate::files) fn integer(value: &[u8]) -> Option<u64> {
    let is_integer = (1..=15).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    is_integer.then(|| std::str::from_utf8(value).ok()?.parse().ok())?
}

/// The number of bytes that a request appends, if it is announced.
pub(in crate::files) fn content_length(request: &Request) -> Option<u64> {
    match request.has_body() {
        true => request.content_length(),
        false => Some(0),
    }
}

impl UploadProtocols {
    /// `DELETE` of an unfinished upload. What another process receives stays: its client would
    /// learn at the end of its body that there is nothing any more.
    pub(in crate::files) async fn cancel(
        &self,
        request: &Request,
        session: Session,
        to: &Destination,
    ) -> Result<Response, HttpError> {
        match session.cancel().await {
            Ok(()) => Ok(Response::new(204)),
            Err(ReceiveError::Store(StoreError::InUse)) => Ok(IN_USE
                .into_response(request)
                .with_header("Retry-After", "1")),
            Err(error) => Err(self.objects.upload_failure(error, &to.key)),
        }
    }

    /// The condition of the upload that a request begins. Fails if it does not hold now.
    pub(in crate::files) async fn upload_condition(
        &self,
        request: &Request,
        to: &Destination,
    ) -> Result<Condition, HttpError> {
        let conditions = Conditions::from_request(request);
        let current = self.objects.check_conditions(&to.key, &conditions).await?;
        if !to.may_replace && current.is_some() {
            return Err(EXISTS);
        }
        let look_up = async || Ok(current);
        let condition = conditions.into_condition(look_up).await;
        let condition = condition.map_err(|error| {
            self.objects
                .store_failure(error, Operation::Write, Some(&to.key))
        })?;
        Ok(match condition {
            _ if !to.may_replace => Condition::Absent,
            // One of many versions: a record need not contain the others.
            Condition::Versions(_) => Condition::unchanged(current.as_ref()),
            condition => condition,
        })
    }

    /// Publishes the object, if the client may still do that, and returns the response of its
    /// `PUT`.
    pub(in crate::files) async fn complete(
        &self,
        session: Session,
        to: &Destination,
    ) -> Result<Response, HttpError> {
        to.permission.check()?;
        let completed = session.complete().await;
        let committed = completed.map_err(|error| self.publication_failure(error, to))?;
        let response = match committed.created {
            true => Response::new(201).with_header("Location", &to.location),
            false => Response::new(204),
        };
        Ok(response.with_header("ETag", etag(&committed.meta.version)))
    }

    /// The response to an error while an object is published.
    pub(in crate::files) fn publication_failure(
        &self,
        error: ReceiveError,
        to: &Destination,
    ) -> HttpError {
        match error {
            ReceiveError::Store(StoreError::PreconditionFailed) if !to.may_replace => EXISTS,
            error => self.objects.upload_failure(error, &to.key),
        }
    }
}
