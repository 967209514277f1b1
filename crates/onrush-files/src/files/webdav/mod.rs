//! WebDAV, classes 1 and 2 (RFC 4918): the methods besides those of HTTP, and what `If` and locks
//! mean for all methods that change something.
//!
//! A change passes through here to the code that serves it without WebDAV. Before that, `If` is
//! evaluated, and the change begins in the table of locks ([`Locks`]), where it stays to its end.
//!
//! The path of a folder may lack the slash at its end (§5.2). `PUT` creates missing folders, as
//! without WebDAV; §9.7.1 asks for 409 there.
//!
//! Submodules, lowest first: `xml` · `dead` (properties of clients) · `locks` · `if_header` ·
//! `lock` (LOCK, UNLOCK) · `descent` (a folder with everything beneath) · `propfind` ·
//! `proppatch` · `received` (for fuzzing).

mod dead;
mod descent;
mod if_header;
mod lock;
mod locks;
mod propfind;
mod proppatch;
#[cfg(feature = "testing")]
mod received;
mod xml;

pub(in crate::files) use locks::{Change, Locks};
#[cfg(feature = "testing")]
pub use received::received;

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::http::negotiate::prefers_json;
use crate::files::object::object_fields::etag;
use crate::files::path::{self, ResolvedPath, Target};
use crate::files::put::multistatus;
use crate::files::put::relocate::{check_rights, path_of_url};
use crate::files::receive::upload;
use crate::files::resume::tus;
use crate::files::resume::upload_target::owner;
use crate::files::shared::destination::Destination;
use crate::files::uploads::UploadId;
use crate::files::{Inner, check_right_at, check_right_beneath};
use crate::rights::Rights;
use if_header::{List, Test};
use locks::{Holder, Token, Touched};
use onrush::{Request, Response};
use onrush_store::{Key, Kind, Meta, StoreError};
use std::fmt::Write;
use std::io;
use std::sync::Arc;

const BAD_IF: HttpError = HttpError::new(
    400,
    "the field If is malformed, or has more than 64 conditions",
);
const EXISTS: HttpError = HttpError::new(405, "there is an object or a folder at this path");
const IS_LOCKED: HttpError = HttpError::new(423, "this is locked, and If has no token of the lock");
const NO_PARENT: HttpError = HttpError::new(409, "the folder above does not exist");

/// A response that is an error.
enum Refusal {
    Http(HttpError),
    /// A precondition or postcondition (§16) that does not hold, and the path that it concerns.
    Condition {
        status: u16,
        name: &'static str,
        href: Option<String>,
    },
}

impl From<HttpError> for Refusal {
    fn from(failure: HttpError) -> Refusal {
        Refusal::Http(failure)
    }
}

impl Refusal {
    fn into_response(self, json: bool) -> Response {
        let (status, name, href) = match self {
            Refusal::Http(failure) => return failure.render(json),
            Refusal::Condition { status, name, href } => (status, name, href),
        };
        let mut text =
            "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:error xmlns:D=\"DAV:\">".to_owned();
        // Writing to a String does not fail.
        let _ = match href {
            Some(href) => write!(text, "<D:{name}><D:href>{href}</D:href></D:{name}>"),
            None => write!(text, "<D:{name}/>"),
        };
        text.push_str("</D:error>\n");
        multistatus::xml_response(status, text)
    }
}

/// What a request names.
struct Resource {
    /// `None`: the top folder.
    key: Option<Key>,
    /// The path ends with a slash.
    has_slash: bool,
}

impl Resource {
    fn bytes(&self) -> &[u8] {
        self.key.as_ref().map(Key::as_bytes).unwrap_or_default()
    }
}

impl Inner {
    /// The response to a method other than GET and HEAD.
    pub(in crate::files) async fn webdav(
        self: Arc<Inner>,
        request: Request,
    ) -> Result<Response, HttpError> {
        let json = prefers_json(&request);
        let response = self.webdav_method(request).await;
        Ok(response.unwrap_or_else(|refusal| refusal.into_response(json)))
    }

    async fn webdav_method(self: Arc<Inner>, request: Request) -> Result<Response, Refusal> {
        let may_write = self.options.allow.put && !self.options.sink;
        match request.method() {
            "OPTIONS" => return Ok(self.dispatch(request).await?),
            "PROPFIND" => return self.propfind(request).await,
            _ if self.is_state_lock(&request) => return Ok(self.dispatch(request).await?),
            "LOCK" if may_write => return self.lock(request).await,
            "UNLOCK" if may_write => return self.unlock(&request),
            _ => {}
        }
        let change = self.begin_change(&request).await?;
        let method = request.method();
        let moves = matches!(method, "MOVE" | "DELETE") && !UploadId::is_named_by(&request);
        let gone = match moves {
            true => Some(self.resource(&request, Operation::Write)?),
            false => None,
        };
        let response = match method {
            "MKCOL" if may_write => self.mkcol(&request).await?,
            "PROPPATCH" if may_write => self.proppatch(request).await?,
            _ => self.clone().dispatch(request).await?,
        };
        if let Some(gone) = gone
            && matches!(response.status(), 201 | 204)
        {
            change.forget(gone.bytes());
        }
        Ok(response)
    }

    /// The object or folder of a request, if its name may be used.
    fn resource(&self, request: &Request, operation: Operation) -> Result<Resource, HttpError> {
        self.resource_at(request, &ResolvedPath::of(request)?, operation)
    }

    fn resource_at(
        &self,
        request: &Request,
        path: &ResolvedPath<'_>,
        operation: Operation,
    ) -> Result<Resource, HttpError> {
        let target = path.target(path::split(request)?.mount, operation)?;
        let target = target.check_visible(&self.options, operation)?;
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
        let found = self.look_up(key).await;
        let found = found.map_err(|error| self.store_failure(error, Operation::Read, Some(key)))?;
        let is_named = |found: &Meta| found.kind == Kind::Directory || !resource.has_slash;
        Ok(found.filter(is_named))
    }

    /// Fails with 409 if the folder above does not exist.
    async fn check_parent(&self, key: &Key) -> Result<(), HttpError> {
        let Some(parent) = key.parent() else {
            return Ok(());
        };
        match self.store.meta(&parent).await {
            Ok(found) if found.kind == Kind::Directory => Ok(()),
            Ok(_) | Err(StoreError::NotFound) => Err(NO_PARENT),
            Err(error) => Err(self.store_failure(error, Operation::Write, Some(&parent))),
        }
    }

    /// Evaluates `If` and begins the change of a request. Fails with 423 if a token is missing.
    async fn begin_change(&self, request: &Request) -> Result<Change, Refusal> {
        let tokens = self.check_if(request).await?;
        let touched = self.touched(request).await?;
        self.begin(request, touched, &tokens)
    }

    fn begin(
        &self,
        request: &Request,
        touched: Vec<Touched>,
        tokens: &[Token],
    ) -> Result<Change, Refusal> {
        let user = owner(request);
        let holder = Holder {
            user: user.as_deref(),
            tokens,
        };
        let begun = self
            .locks
            .begin_change(touched, holder, request.worker().now_ms());
        begun.map_err(|key| Refusal::Condition {
            status: 423,
            name: "lock-token-submitted",
            href: self.shown_lock_root(request, &key),
        })
    }

    /// Begins the change of an object that a request creates beneath its path, which it has begun
    /// to change. `None`: there are no locks.
    pub(in crate::files) fn begin_member(
        &self,
        request: &Request,
        key: &Key,
    ) -> Result<Option<Change>, HttpError> {
        if !self.options.webdav {
            return Ok(None);
        }
        let field = request.header_str("if").and_then(if_header::parse);
        let tokens = field.map_or(Vec::new(), |lists| if_header::tokens(&lists));
        let touched = vec![Touched::alone(key.as_bytes())];
        let begun = self.begin(request, touched, &tokens);
        begun.map(Some).map_err(|_| IS_LOCKED)
    }

    /// The encoded path of a key that has a lock of anyone. `None`: the client may neither read nor
    /// list it.
    fn shown_lock_root(&self, request: &Request, key: &[u8]) -> Option<String> {
        let whole = path::whole(request, key).ok()?;
        let has = |right| check_right_at(request, &whole, right).is_ok();
        let is_known = has(Rights::READ) || has(Rights::LIST);
        is_known.then(|| self.lock_root(request, key).ok())?
    }

    /// The encoded path of a key that has a lock.
    fn lock_root(&self, request: &Request, key: &[u8]) -> Result<String, HttpError> {
        Ok(path::href(path::split(request)?.mount, key))
    }

    /// The resources that a request changes. A new or removed member changes its folder, too
    /// (§7.4). Fails if the client may not change everything beneath: what is locked there is not
    /// for others.
    async fn touched(&self, request: &Request) -> Result<Vec<Touched>, HttpError> {
        match request.method() {
            _ if UploadId::is_named_by(request) && request.method() != "PATCH" => Ok(Vec::new()),
            "POST" if tus::is_tus(request) && self.offers_uploads() => {
                let Ok(key) = self.tus_key(request) else {
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
                if is_folder && self.options.allow.delete_folders {
                    check_right_beneath(request, Rights::DELETE)?;
                }
                Ok(with_members(resource.bytes()))
            }
            "COPY" | "MOVE" => {
                let (from, to) = self.places(request).await?;
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
        let is_covered = |token| (self.locks).is_covered_by(resource.bytes(), token, now_ms);
        Ok(list.conditions.iter().all(|(is_wanted, test)| {
            let holds = match test {
                Test::Token(token) => token.is_some_and(is_covered),
                Test::Tag(wanted) => tag.as_deref() == Some(wanted.as_bytes()),
            };
            holds == *is_wanted
        }))
    }

    /// `MKCOL` (§9.3).
    async fn mkcol(&self, request: &Request) -> Result<Response, HttpError> {
        if request.has_body() && request.content_length() != Some(0) {
            return Err(HttpError::new(415, "MKCOL has no content here"));
        }
        let to = self.own_destination(request, Some(Kind::Directory))?;
        let Some(Destination { key, location, .. }) = to else {
            return Ok(self.method_not_allowed(request, EXISTS));
        };
        let failed = |error| self.store_failure(error, Operation::Write, Some(&key));
        if self.look_up(&key).await.map_err(failed)?.is_some() {
            return Ok(self.method_not_allowed(request, EXISTS));
        }
        self.check_parent(&key).await?;
        match self.store.create_folder(&key).await {
            Ok(true) => Ok(Response::new(201).with_header("Location", location)),
            // Another client was faster.
            Ok(false) | Err(StoreError::NotDirectory) => {
                Ok(self.method_not_allowed(request, EXISTS))
            }
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
    let folder = locks::parent(key).map(Touched::alone);
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
