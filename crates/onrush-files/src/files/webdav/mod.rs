//! WebDAV, classes 1 and 2 (RFC 4918): the methods besides those of HTTP, and what `If` and locks
//! mean for all methods that change something.
//!
//! A change passes through here to the code that serves it without WebDAV. Before that, `If` is
//! evaluated, and the change begins in the table of locks (`locks`), where it stays to its end.
//!
//! The path of a folder may lack the slash at its end (§5.2). `PUT` creates missing folders, as
//! without WebDAV; §9.7.1 asks for 409 there.
//!
//! Submodules, lowest first: `xml` · `dead` (properties of clients) ·
//! `lock` (LOCK, UNLOCK) · `descent` (a folder with everything beneath) · `propfind` ·
//! `proppatch` · `received` (for fuzzing).

mod dead;
mod descent;
mod lock;
mod propfind;
mod proppatch;
#[cfg(feature = "testing")]
mod received;
mod xml;

#[cfg(feature = "testing")]
pub(in crate::files) use received::received;

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::locks::if_header::{self, List, Test};
use crate::files::locks::table::{self, Change, Token, Touched};
use crate::files::locks::{Locking, Refusal};
use crate::files::object::object_fields::etag;
use crate::files::path::{self, ResolvedPath, Target};
use crate::files::put::relocate::{check_rights, path_of_url};
use crate::files::put::writes::Writes;
use crate::files::receive::upload;
use crate::files::resume::tus;
use crate::files::resume::upload_protocols::UploadProtocols;
use crate::files::shared::client_rights::{check_right_at, check_right_beneath};
use crate::files::shared::destination::Destination;
use crate::files::shared::objects::Objects;
use crate::files::uploads::UploadId;
use crate::rights::Rights;
use onrush::{Request, Response};
use onrush_store::{Key, Kind, Meta, StoreError};
use std::io;
use std::sync::Arc;

const BAD_IF: HttpError = HttpError::new(
    400,
    "the field If is malformed, or has more than 64 conditions",
);
const NO_PARENT: HttpError = HttpError::new(409, "the folder above does not exist");

/// What a request names.
pub(in crate::files) struct Resource {
    /// `None`: the top folder.
    key: Option<Key>,
    /// The path ends with a slash.
    has_slash: bool,
}

impl Resource {
    pub(in crate::files) fn bytes(&self) -> &[u8] {
        self.key.as_ref().map(Key::as_bytes).unwrap_or_default()
    }
}

/// The methods of WebDAV, and what changes have to observe.
pub(in crate::files) struct WebDav {
    pub(in crate::files) objects: Arc<Objects>,
    pub(in crate::files) locking: Arc<Locking>,
    pub(in crate::files) writes: Arc<Writes>,
    pub(in crate::files) protocols: Arc<UploadProtocols>,
}

impl WebDav {
    /// The object or folder of a request, if its name may be used.
    pub(in crate::files) fn resource(
        &self,
        request: &Request,
        operation: Operation,
    ) -> Result<Resource, HttpError> {
        self.resource_at(request, &ResolvedPath::of(request)?, operation)
    }

    fn resource_at(
        &self,
        request: &Request,
        path: &ResolvedPath<'_>,
        operation: Operation,
    ) -> Result<Resource, HttpError> {
        let target = path.target(path::split(request)?.mount, operation)?;
        let target = target.check_visible(&self.objects.options, operation)?;
        Ok(match target {
            Target::Object(key) => Resource {
                key: Some(key),
                has_slash: false,
            },
            Target::Folder(key) => Resource {
                key,
                has_slash: true,
            },
        })
    }

    /// The properties of a resource; `None` if it does not exist.
    async fn find(&self, resource: &Resource) -> Result<Option<Meta>, HttpError> {
        let Some(key) = &resource.key else {
            return Ok(None);
        };
        let found = self.objects.look_up(key).await;
        let found = found.map_err(|error| {
            self.objects
                .store_failure(error, Operation::Read, Some(key))
        })?;
        let is_named = |found: &Meta| found.kind == Kind::Directory || !resource.has_slash;
        Ok(found.filter(is_named))
    }

    /// Fails with 409 if the folder above does not exist.
    async fn check_parent(&self, key: &Key) -> Result<(), HttpError> {
        let Some(parent) = key.parent() else {
            return Ok(());
        };
        match self.objects.store.meta(&parent).await {
            Ok(found) if found.kind == Kind::Directory => Ok(()),
            Ok(_) | Err(StoreError::NotFound) => Err(NO_PARENT),
            Err(error) => Err(self
                .objects
                .store_failure(error, Operation::Write, Some(&parent))),
        }
    }

    /// Evaluates `If` and begins the change of a request. Fails with 423 if a token is missing.
    pub(in crate::files) async fn begin_change(
        &self,
        request: &Request,
    ) -> Result<Change, Refusal> {
        let tokens = self.check_if(request).await?;
        let touched = self.touched(request).await?;
        self.locking.begin(request, touched, &tokens)
    }

    /// The resources that a request changes. A new or removed member changes its folder, too
    /// (§7.4). Fails if the client may not change everything beneath: what is locked there is not
    /// for others.
    async fn touched(&self, request: &Request) -> Result<Vec<Touched>, HttpError> {
        match request.method() {
            _ if UploadId::is_named_by(request) && request.method() != "PATCH" => Ok(Vec::new()),
            "POST"
                if tus::is_tus(request) && self.protocols.uploads.serves(&self.objects.options) =>
            {
                let Ok(key) = self.protocols.tus_key(request) else {
                    return Ok(Vec::new()); // It will be refused.
                };
                let resource = Resource {
                    key: Some(key),
                    has_slash: false,
                };
                self.touched_by_one(&resource).await
            }
            "PUT" | "POST" | "PATCH" | "PROPPATCH" | "MKCOL" => {
                let resource = self.resource(request, Operation::Write)?;
                self.touched_by_one(&resource).await
            }
            "DELETE" => {
                let resource = self.resource(request, Operation::Write)?;
                let found = self.find(&resource).await?;
                let is_folder = found.is_some_and(|found| found.kind == Kind::Directory);
                if is_folder && self.objects.options.allow.delete_folders {
                    check_right_beneath(request, Rights::DELETE)?;
                }
                Ok(with_members(resource.bytes()))
            }
            "COPY" | "MOVE" => {
                let (from, to) = self.writes.places(request).await?;
                check_rights(request, &from, &to)?;
                let mut touched = with_members(to.key.as_bytes());
                if request.method() == "MOVE" {
                    touched.extend(with_members(from.key.as_bytes()));
                }
                Ok(touched)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// What the creation or change of one resource changes. With a new one, the missing folders
    /// above it are created, and the first that exists has a new member.
    async fn touched_by_one(&self, resource: &Resource) -> Result<Vec<Touched>, HttpError> {
        let mut touched = vec![Touched::alone(resource.bytes())];
        if self.find(resource).await?.is_some() {
            return Ok(touched);
        }
        let mut key = resource.key.clone();
        while let Some(missing) = key {
            let folder = Resource {
                key: missing.parent(),
                has_slash: false,
            };
            touched.push(Touched::alone(folder.bytes()));
            if self.find(&folder).await?.is_some() {
                break;
            }
            key = folder.key;
        }
        Ok(touched)
    }

    /// Evaluates the field `If`. Returns the tokens in it. Fails with 412 if no list holds.
    async fn check_if(&self, request: &Request) -> Result<Vec<Token>, HttpError> {
        let mut values = request.header_values("if");
        let Some(value) = values.next() else {
            return Ok(Vec::new());
        };
        let value = std::str::from_utf8(value).ok();
        let lists = value.and_then(if_header::parse);
        let lists = lists.filter(|_| values.next().is_none()).ok_or(BAD_IF)?;
        for list in &lists {
            if self.holds(request, list).await? {
                return Ok(if_header::tokens(&lists));
            }
        }
        Err(HttpError::PRECONDITION_FAILED)
    }

    async fn holds(&self, request: &Request, list: &List) -> Result<bool, HttpError> {
        let url = list.resource.as_ref();
        let named = match url.map(|url| path_of_url(request, url)).transpose() {
            Ok(named) => named,
            Err(_) => return Ok(false), // Of another server.
        };
        let path = match &named {
            None => ResolvedPath::of(request),
            Some(path) => ResolvedPath::parse(path),
        };
        let resource = path.and_then(|path| {
            let resource = self.resource_at(request, &path, Operation::Read)?;
            Ok((resource, path.whole))
        });
        let Ok((resource, whole)) = resource else {
            return Ok(false);
        };
        // The version of an object is known to clients that may read it.
        let may_read = check_right_at(request, &whole, Rights::READ).is_ok();
        let tag = match self.find(&resource).await? {
            Some(found) if found.kind == Kind::File && may_read => Some(etag(&found.version)),
            _ => None,
        };
        let now_ms = request.worker().now_ms();
        let is_covered =
            |token| (self.locking.locks).is_covered_by(resource.bytes(), token, now_ms);
        Ok(list.conditions.iter().all(|(is_wanted, test)| {
            let holds = match test {
                Test::Token(token) => token.is_some_and(is_covered),
                Test::Tag(wanted) => tag.as_deref() == Some(wanted.as_bytes()),
            };
            holds == *is_wanted
        }))
    }

    /// `MKCOL` (§9.3). `None`: there is something at the path.
    pub(in crate::files) async fn mkcol(
        &self,
        request: &Request,
    ) -> Result<Option<Response>, HttpError> {
        if request.has_body() && request.content_length() != Some(0) {
            return Err(HttpError::new(415, "MKCOL has no content here"));
        }
        let to = self
            .objects
            .own_destination(request, Some(Kind::Directory))?;
        let Some(Destination { key, location, .. }) = to else {
            return Ok(None);
        };
        let failed = |error| {
            self.objects
                .store_failure(error, Operation::Write, Some(&key))
        };
        if self.objects.look_up(&key).await.map_err(failed)?.is_some() {
            return Ok(None);
        }
        self.check_parent(&key).await?;
        match self.objects.store.create_folder(&key).await {
            Ok(true) => Ok(Some(Response::new(201).with_header("Location", location))),
            // Another client was faster.
            Ok(false) | Err(StoreError::NotDirectory) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

/// A resource with everything beneath, and its folder.
fn with_members(key: &[u8]) -> Vec<Touched> {
    let whole = Touched {
        key: key.to_vec(),
        is_deep: true,
    };
    let folder = table::parent(key).map(Touched::alone);
    [whole].into_iter().chain(folder).collect()
}

/// The body of a request, which is short XML or empty.
async fn read_body(request: &mut Request) -> Result<Vec<u8>, HttpError> {
    let read = request.body().read_all(xml::BYTES_MAX).await;
    read.map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => HttpError::new(413, "the XML is longer than 64 KiB"),
        _ => upload::body_failure(error),
    })
}
