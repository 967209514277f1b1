//! PUT and DELETE.
//!
//! What can be refused is refused before the body is read, and what matters is looked at again at
//! the commit, under the lock of the key. An upload that does not end well leaves no trace: that
//! is what dropping it means.
//!
//! Nothing is put over a symbolic link, wherever it leads (409): the conditions would be those of
//! another object, and neither the link nor what it leads to is what the client means to replace.
//! `DELETE` of a link that leads to something beneath the folder removes the link, and never what
//! it leads to; one that leads out, or nowhere, is not there (404).
//!
//! This module must not know how the store makes a change durable.

use super::digest::Digests;
use super::failure::{Failure, While};
use super::object::{current_of, etag};
use super::path::{self, Target};
use super::upload::{self, Broken};
use super::{Inner, stored};
use onrush::{Request, Response};
use onrush_proto::precondition::{Current, Outcome, evaluate};
use onrush_store::{Condition, Key, Kind, Meta, Store, StoreError};

/// Uploads that are not known to be smaller than this are worth a look at what is there before
/// they are received.
const LOOK_FIRST_BYTES: u64 = 64 * 1024;

impl Inner {
    /// `PUT` of an object (RFC 9110 §9.3.4): 201 when it is new, 204 when it was replaced.
    pub(super) async fn put(&self, request: Request) -> Result<Response, Failure> {
        let key = self.key_to_put(&request)?;
        let location = path::href(path::split(&request)?.mount, key.as_bytes());
        let conditions = Conditions::of(&request);
        let keeps_metadata = self.store.keeps_metadata();
        let (metadata, mut digests) = described(&request, keeps_metadata)?;
        let length = request.content_length();
        let look_first = !conditions.is_empty()
            || request.header("expect").is_some()
            || length.is_none_or(|bytes| bytes >= LOOK_FIRST_BYTES);
        let mut receive = request.into_body(); // The head is not needed while the body comes.

        if look_first {
            self.check_conditions(&key, &conditions).await?;
        }
        let failed = |error| self.failed(error, While::Writing, Some(&key));
        let mut upload = self.store.stage(&key, length).await.map_err(failed)?;
        if !metadata.is_empty() {
            upload.set_metadata(metadata).map_err(failed)?;
        }
        let received = upload::store(&mut receive, length, upload, &mut digests, &self.uploads);
        let upload = received.await.map_err(|broken| match broken {
            Broken::Body(failure) => failure,
            Broken::Store(error) => failed(error),
        })?;
        digests.check()?; // Dropped, the upload leaves nothing.
        let committed = upload
            .commit(conditions.at_commit())
            .await
            .map_err(failed)?;
        let response = if committed.created {
            Response::new(201).with_header("Location", location)
        } else {
            Response::new(204)
        };
        Ok(response.with_header("ETag", etag(&committed.meta.version)))
    }

    /// The key that a request would put a whole object at.
    fn key_to_put(&self, request: &Request) -> Result<Key, Failure> {
        refuse_part(request)?;
        let split = path::split(request)?;
        let target = path::target(split.rest, While::Writing)?;
        let target = target.visible(&self.options, While::Writing)?;
        match target.shallow(&self.options)? {
            Target::Object(key) => Ok(key),
            Target::Folder(_) => Err(Failure::new(409, "a name that ends in a slash is a folder")),
        }
    }

    /// Refuses what the present object makes impossible already.
    async fn check_conditions(&self, key: &Key, conditions: &Conditions) -> Result<(), Failure> {
        let current = self.store.replaced(key).await;
        current
            .and_then(|current| conditions.check(current.as_ref()))
            .map_err(|error| self.failed(error, While::Writing, Some(key)))
    }

    /// `PUT` into the void: what a `PUT` would refuse is refused; otherwise the body is read at
    /// full speed, counted and forgotten. Digests are not checked: the body is dropped inside the
    /// kernel.
    pub(super) async fn sink(&self, request: Request) -> Result<Response, Failure> {
        let key = self.key_to_put(&request)?;
        described(&request, true)?;
        self.check_conditions(&key, &Conditions::of(&request))
            .await?;
        let received = upload::discard(&mut request.into_body()).await?;
        Ok(Response::new(204).with_header("Onrush-Received-Bytes", received.to_string()))
    }

    /// `DELETE` of an object, or of a folder when it is empty (RFC 9110 §9.3.5).
    pub(super) async fn delete(&self, request: &Request) -> Result<Response, Failure> {
        let split = path::split(request)?;
        let target = path::target(split.rest, While::Writing)?;
        let (key, kind) = match target.visible(&self.options, While::Writing)? {
            Target::Object(key) => (key, Kind::File),
            Target::Folder(Some(key)) => (key, Kind::Directory),
            Target::Folder(None) => {
                return Err(Failure::new(403, "the top folder cannot be deleted"));
            }
        };
        let conditions = Conditions::of(request);
        let check = move |current: Option<&Meta>| match current {
            Some(meta) if meta.kind != kind => Err(match kind {
                Kind::File => StoreError::IsDirectory,
                Kind::Directory => StoreError::NotFound,
            }),
            current => conditions.check(current),
        };
        let condition = Condition::Check(Box::new(check));
        match self.store.delete(&key, condition).await {
            Ok(_) => Ok(Response::new(204)),
            // `a` is not `a/`, and whoever deletes an object must not hit a folder.
            Err(StoreError::IsDirectory) => Err(Failure::new(
                409,
                "this is a folder, its name ends in a slash",
            )),
            Err(error) => Err(self.failed(error, While::Writing, Some(&key))),
        }
    }
}

/// What the fields of a request say of its content: what is to be stored with the object, and the
/// digests.
fn described(request: &Request, keeps_metadata: bool) -> Result<(Vec<u8>, Digests), Failure> {
    // Most requests have none of these fields: one walk by the first letter tells.
    let may_describe = |name: &str| match name.as_bytes() {
        [b'c' | b'C' | b'r' | b'R', ..] => !name.eq_ignore_ascii_case("content-length"),
        _ => false,
    };
    if !request.headers().any(|(name, _)| may_describe(name)) {
        return Ok((Vec::new(), Digests::default()));
    }
    let metadata = stored::of_request(request, keeps_metadata)?;
    Ok((metadata, Digests::of(request)?))
}

/// A part of an object cannot be put (RFC 9110 §14.5).
fn refuse_part(request: &Request) -> Result<(), Failure> {
    match request.header("content-range") {
        Some(_) => Err(Failure::new(400, "only whole objects can be put")),
        None => Ok(()),
    }
}

/// The conditional fields of a request, kept beyond its head.
struct Conditions(Vec<(String, Vec<u8>)>);

impl Conditions {
    fn of(request: &Request) -> Conditions {
        let conditional = |name: &str| {
            name.get(..3)
                .is_some_and(|start| start.eq_ignore_ascii_case("if-"))
        };
        let fields = request.headers().filter(|(name, _)| conditional(name));
        Conditions(
            fields
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn check(&self, current: Option<&Meta>) -> onrush_store::Result<()> {
        let current = current.map_or(Current::default(), current_of);
        let fields = self.0.iter().map(|(name, value)| (&name[..], &value[..]));
        match evaluate(false, &current, fields) {
            Outcome::Proceed => Ok(()),
            Outcome::NotModified | Outcome::Failed => Err(StoreError::PreconditionFailed),
        }
    }

    fn at_commit(self) -> Condition {
        if self.is_empty() {
            return Condition::None;
        }
        Condition::Check(Box::new(move |current| self.check(current)))
    }
}
