//! COPY and MOVE of objects and folders (RFC 4918 §9.8, §9.9).
//!
//! `Destination` is a path, or a URL of this host. `Overwrite: F` keeps what exists. The folder
//! of the destination must exist. Preconditions of the request are those of the source. A store
//! without a copy operation gets the bytes through this server, as by a GET and a PUT; MOVE needs
//! a store that renames atomically.
//!
//! A folder is copied object by object (`tree`), with `Depth: 0` without what it contains. A
//! folder at the destination that is not empty is replaced only if clients may delete folders
//! ([`Allow::delete_folders`](crate::files::Allow::delete_folders)). Such a destination stays as it
//! is until it is replaced in one step ([`Store::replace`](onrush_store::Store::replace)), and if
//! anything fails: a copy that replaces it is made elsewhere
//! ([`StagedCopy`](onrush_store::StagedCopy)), and removed if it is not complete. A store that
//! cannot do this refuses it.
//!
//! Whether both names are one object, or one contains the other, is decided by what the store finds
//! there ([`Overlap`]), because symbolic links give one folder several names.
//!
//! COPY needs the right to read the source, MOVE also to delete it, and both to create or to
//! replace the destination (`destination`). Rights may differ beneath a folder, so a folder needs
//! the rights of everything beneath both names.

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::object::conditions::Conditions;
use crate::files::object::object_fields::etag;
use crate::files::path::{self, ResolvedPath, Target};
use crate::files::put::tree::{CONTAINS, FAILURES_MAX, SAME};
use crate::files::put::writes::Writes;
use crate::files::shared::client_rights::Permission;
use crate::files::shared::client_rights::{check_right_at, check_right_beneath};
use crate::files::shared::destination::Destination;
use crate::files::shared::multistatus;
use crate::files::shared::multistatus::Failures;
use crate::rights::Rights;
use crate::shares::Holder;
use onrush::{Request, Response};
use onrush_store::{Committed, Condition, Key, Kind, Meta, Overlap, Relocation, StoreError};
use std::sync::Arc;

const NO_DESTINATION: HttpError = HttpError::new(
    400,
    "Destination is missing, or is not a path or URL of this server",
);
const OTHER_SERVER: HttpError = HttpError::new(502, "Destination is on another server");
const BAD_OVERWRITE: HttpError = HttpError::new(400, "Overwrite is T or F");
const BAD_DEPTH: HttpError = HttpError::new(400, "Depth is infinity, or, for COPY, 0");
const NO_FOLDER: HttpError = HttpError::new(409, "the folder of the destination does not exist");
const KINDS_DIFFER: HttpError = HttpError::new(
    409,
    "the path of a folder ends with a slash, and that of an object does not",
);
const NOT_EMPTIED: HttpError = HttpError::new(
    409,
    "the destination exists, and folders are replaced only with --allow delete-folders",
);
const NOT_SHOWN: HttpError = HttpError::new(
    409,
    "the destination contains hidden names, or files that are no objects",
);
const NOT_IN_TOP: HttpError = HttpError::new(403, "the top folder cannot be moved");
const TARGET_EXISTS: HttpError =
    HttpError::new(403, "the destination exists, and you may not replace it");

/// What is copied or moved.
pub(in crate::files) struct Source {
    pub(in crate::files) key: Key,
    pub(in crate::files) kind: Kind,
    /// The decoded path of the whole server, for rights.
    whole: Vec<u8>,
}

impl Writes {
    /// `COPY` and `MOVE`: 201 if the destination is new, 204 if it was replaced, 207 if a part of a
    /// folder was not copied; then the destination was not replaced.
    pub(in crate::files) async fn relocate(
        self: &Arc<Writes>,
        request: &Request,
    ) -> Result<Response, HttpError> {
        let is_move = request.method() == "MOVE";
        let mount = path::split(request)?.mount;
        let (from, to) = self.places(request).await?;
        let replaces = match request.header("overwrite") {
            None | Some(b"T") => true,
            Some(b"F") => false,
            Some(_) => return Err(BAD_OVERWRITE),
        };
        let is_deep = match request.header("depth") {
            Some(b"0") if !is_move => false,
            None => true,
            Some(depth) if depth.eq_ignore_ascii_case(b"infinity") => true,
            Some(_) => return Err(BAD_DEPTH),
        };
        if from.kind != to.kind {
            return Err(KINDS_DIFFER);
        }
        let mut overlap = Overlap::of_keys(&from.key, &to.key);
        if matches!(overlap, Overlap::Same | Overlap::Beneath) {
            return Err(SAME);
        }
        check_rights(request, &from, &to)?;
        if is_move {
            self.objects.check_no_state(&from.key)?;
        }
        let permission = permission(request, &from, &to);
        self.objects.check_copied_name(&to.key, to.kind)?;
        let failed = |error, key: &Key| {
            self.objects
                .store_failure(error, Operation::Write, Some(key))
        };
        if let Some(parent) = to.key.parent()
            && !self.objects.options.content_addressed
        // The folders of a cache are implied.
        {
            let found = self.objects.look_up(&parent).await;
            let found = found.map_err(|error| failed(error, &parent))?;
            if found.is_none_or(|found| found.kind != Kind::Directory) {
                return Err(NO_FOLDER);
            }
        }
        if overlap == Overlap::None {
            let found = self.objects.store.overlap(&from.key, &to.key).await;
            overlap = found.map_err(|error| failed(error, &to.key))?;
            if matches!(overlap, Overlap::Same | Overlap::Beneath) {
                return Err(SAME);
            }
        }
        if !is_move {
            self.check_size(&from.key).await?;
        }
        let look_up = async || self.objects.look_up(&from.key).await;
        let conditions = Conditions::from_request(request);
        let from_condition = conditions.into_condition(look_up).await;
        let how = Relocation {
            from_condition: from_condition.map_err(|error| failed(error, &from.key))?,
            to_condition: match replaces && to.may_replace {
                true => Condition::None,
                false => Condition::Absent,
            },
            from: from.key.clone(),
            to: to.key.clone(),
        };
        let client = (Holder::of(request), &permission);
        if is_move && from.kind == Kind::Directory {
            self.check_no_states(&from.key, client).await?;
        }
        let replaced = self.objects.look_up(&to.key).await;
        let replaced = replaced.map_err(|error| failed(error, &to.key))?;
        if let Some(found) = &replaced
            && self.is_replaced_whole(found, from.kind)
        {
            if !replaces {
                return Err(HttpError::PRECONDITION_FAILED);
            }
            self.check_source(&how, from.kind).await?;
            if overlap == Overlap::Contains {
                return Err(CONTAINS);
            }
            if !to.may_replace_tree() {
                return Err(TARGET_EXISTS);
            }
            if found.kind == Kind::Directory {
                self.check_no_states(&to.key, client).await?;
            }
            permission.check()?;
            let done = match is_move {
                true => self.replace(how, from.kind).await.map(Ok),
                false => self.replace_by_copy(how, from.kind, is_deep, client).await,
            };
            return Ok(match done? {
                Ok(committed) => with_etag(Response::new(204), from.kind, &committed),
                Err(failures) => multistatus::of_failures(mount, &failures),
            });
        }
        // Whether it is the condition of the destination that fails: the client did not ask for it.
        let is_hidden_condition = replaces && !to.may_replace && how.from_condition.is_none();
        let response = |is_new| match is_new {
            true => Response::new(201).with_header("Location", to.location.clone()),
            false => Response::new(204),
        };
        if from.kind == Kind::Directory && !is_move {
            if replaced.is_some() {
                return Err(match replaces {
                    true => NOT_EMPTIED,
                    false => HttpError::PRECONDITION_FAILED,
                });
            }
            self.check_source(&how, from.kind).await?;
            // A folder that has appeared since must not get a mixture.
            let copied = self.copy_folder(&from.key, &to.key, &Condition::Absent);
            copied.await.map_err(|error| match error {
                StoreError::PreconditionFailed if is_hidden_condition => TARGET_EXISTS,
                StoreError::PreconditionFailed if replaces => failed(StoreError::Conflict, &to.key),
                error => failed(error, &to.key),
            })?;
            let failures = match is_deep {
                true => self.copy_tree(&how, &how.to, FAILURES_MAX, client).await,
                false => Failures::new(),
            };
            return Ok(match failures.is_empty() {
                true => response(true),
                false => multistatus::of_failures(mount, &failures),
            });
        }
        permission.check()?;
        let done = match is_move {
            true => self.objects.store.rename(how, from.kind).await,
            false => self.copy(how).await,
        };
        let committed = done.map_err(|error| match error {
            StoreError::PreconditionFailed if is_hidden_condition => TARGET_EXISTS,
            StoreError::NotFound => HttpError::NOT_FOUND,
            error => failed(error, &from.key),
        })?;
        let response = response(committed.created);
        Ok(with_etag(response, from.kind, &committed))
    }

    /// The source and the destination of a request. With WebDAV, the source says whether both are
    /// folders, and a slash at the end does not.
    pub(in crate::files) async fn places(
        &self,
        request: &Request,
    ) -> Result<(Source, Destination), HttpError> {
        let mut from = self.source(request)?;
        let path = destination(request)?;
        let mut kind_of_both = None;
        if self.objects.options.webdav {
            let found = self.objects.look_up(&from.key).await;
            let found = found.map_err(|error| {
                self.objects
                    .store_failure(error, Operation::Write, Some(&from.key))
            })?;
            if let Some(found) = found
                && found.kind == Kind::Directory
            {
                from.kind = Kind::Directory;
            }
            kind_of_both = Some(from.kind);
        }
        let to = self.objects.destination(request, &path, kind_of_both)?;
        Ok((from, to.ok_or(NOT_IN_TOP)?))
    }

    /// Whether what is at the destination is replaced by something of this kind as a whole, with
    /// everything in it.
    fn is_replaced_whole(&self, replaced: &Meta, kind: Kind) -> bool {
        let may_delete = match replaced.kind {
            Kind::Directory => self.objects.options.allow.delete_folders,
            Kind::File => self.objects.options.webdav && self.objects.options.allow.delete,
        };
        let is_meant = replaced.kind == kind || self.objects.options.webdav;
        // One operation of the store replaces an object.
        may_delete && is_meant && !(replaced.kind == Kind::File && kind == Kind::File)
    }

    /// Renames to a name whose object or folder is replaced as a whole.
    async fn replace(&self, how: Relocation, kind: Kind) -> Result<Committed, HttpError> {
        let to = how.to.clone();
        let replaced = self
            .objects
            .store
            .replace(how, kind, self.objects.options.shown())
            .await;
        replaced.map_err(|error| match error {
            StoreError::NotEmpty => NOT_SHOWN,
            StoreError::NotFound => HttpError::NOT_FOUND,
            error => self
                .objects
                .store_failure(error, Operation::Write, Some(&to)),
        })
    }

    /// Copies, and replaces what is at the destination as a whole if nothing has failed. Returns
    /// what has failed otherwise.
    async fn replace_by_copy(
        self: &Arc<Writes>,
        how: Relocation,
        kind: Kind,
        is_deep: bool,
        client: (Holder, &Permission),
    ) -> Result<Result<Committed, Failures>, HttpError> {
        let failed = |error| {
            self.objects
                .store_failure(error, Operation::Write, Some(&how.to))
        };
        let mut staged =
            (self.objects.store.stage_copy(&how.from, &how.to).await).map_err(failed)?;
        let at = staged.key().clone();
        let copied = match kind {
            Kind::Directory => self.copy_folder(&how.from, &at, &Condition::Absent).await,
            Kind::File => {
                let copy = Relocation {
                    to: at.clone(),
                    ..how.clone()
                };
                self.copy(copy).await.map(drop)
            }
        };
        copied.map_err(failed)?;
        (self.objects.store.take_rights(&staged, &how.to).await).map_err(failed)?;
        if kind == Kind::Directory && is_deep {
            let failures = self.copy_tree(&how, &at, 1, client).await;
            if !failures.is_empty() {
                return Ok(Err(failures));
            }
        }
        client.1.check()?;
        staged.free_room();
        let publish = Relocation {
            from: at,
            from_condition: Condition::None,
            ..how
        };
        self.replace(publish, kind).await.map(Ok)
    }

    /// Checks that the source exists and meets the condition, before something else is changed.
    async fn check_source(&self, how: &Relocation, kind: Kind) -> Result<(), HttpError> {
        let current = self.objects.look_up(&how.from).await.and_then(|current| {
            let current = current.filter(|current| current.kind == kind);
            how.from_condition.check(current.as_ref())?;
            current.map(drop).ok_or(StoreError::NotFound)
        });
        current.map_err(|error| match error {
            StoreError::NotFound => HttpError::NOT_FOUND,
            error => self
                .objects
                .store_failure(error, Operation::Write, Some(&how.from)),
        })
    }

    /// Refuses to copy an object that is larger than objects may be. Those in a folder are
    /// checked one by one.
    async fn check_size(&self, from: &Key) -> Result<(), HttpError> {
        let limits = self.uploads.limits();
        if limits.object_bytes_max == u64::MAX {
            return Ok(());
        }
        let found = self.objects.look_up(from).await;
        let found = found.map_err(|error| {
            self.objects
                .store_failure(error, Operation::Write, Some(from))
        });
        let is_larger = |meta: Meta| meta.kind == Kind::File && meta.size > limits.object_bytes_max;
        match found?.is_some_and(is_larger) {
            true => Err(limits.too_large()),
            false => Ok(()),
        }
    }

    /// What the path of a request names.
    fn source(&self, request: &Request) -> Result<Source, HttpError> {
        let target = path::target(request, Operation::Write)?;
        let (key, kind) = match target.check_visible(&self.objects.options, Operation::Write)? {
            Target::Object(key) => (key, Kind::File),
            Target::Folder(Some(key)) => (key, Kind::Directory),
            Target::Folder(None) => return Err(NOT_IN_TOP),
        };
        Ok(Source {
            whole: ResolvedPath::of(request)?.whole.into_owned(),
            key,
            kind,
        })
    }
}

/// Checks the rights of the client, besides those that every [`Destination`] needs.
pub(in crate::files) fn check_rights(
    request: &Request,
    from: &Source,
    to: &Destination,
) -> Result<(), HttpError> {
    let needed = needed_of_source(request, from);
    match from.kind {
        Kind::File => check_right_at(request, &from.whole, needed),
        Kind::Directory => {
            check_right_beneath(request, needed)?;
            to.check_tree(request)
        }
    }
}

fn needed_of_source(request: &Request, from: &Source) -> Rights {
    match (request.method(), from.kind) {
        ("MOVE", _) => Rights::READ.union(Rights::DELETE),
        (_, Kind::File) => Rights::READ,
        (_, Kind::Directory) => Rights::READ.union(Rights::LIST),
    }
}

/// The rights that [`check_rights`] has checked, and those of the destination.
fn permission(request: &Request, from: &Source, to: &Destination) -> Permission {
    let is_folder = from.kind == Kind::Directory;
    let mut permission = match is_folder {
        true => to.permission_of_tree(),
        false => to.permission.clone(),
    };
    permission.require(&from.whole, needed_of_source(request, from), is_folder);
    permission
}

/// A response with the tag of the object at the destination.
fn with_etag(response: Response, kind: Kind, committed: &Committed) -> Response {
    match kind {
        Kind::File => response.with_header("ETag", etag(&committed.meta.version)),
        Kind::Directory => response,
    }
}

/// The encoded path that `Destination` names (RFC 4918 §10.3).
pub(in crate::files) fn destination(request: &Request) -> Result<String, HttpError> {
    let mut values = request.header_values("destination");
    let value = values
        .next()
        .and_then(|value| std::str::from_utf8(value).ok());
    let value = value.filter(|_| values.next().is_none());
    path_of_url(request, value.ok_or(NO_DESTINATION)?)
}

/// The path of a `Simple-ref` (RFC 4918 §8.3): a path, or a URL of the host of the request.
pub(in crate::files) fn path_of_url(request: &Request, value: &str) -> Result<String, HttpError> {
    if value.contains(['?', '#']) {
        return Err(NO_DESTINATION);
    }
    if value.starts_with('/') && !value.starts_with("//") {
        return Ok(value.to_owned());
    }
    let (scheme, rest) = value.split_once("://").ok_or(NO_DESTINATION)?;
    if !["http", "https"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known))
    {
        return Err(OTHER_SERVER);
    }
    let slash = rest.find('/').ok_or(NO_DESTINATION)?;
    let (authority, path) = rest.split_at(slash);
    // Some clients send the user with the password, which do not name the server (RFC 3986 §3.2.1).
    let host = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    match request
        .host()
        .is_some_and(|own| own.eq_ignore_ascii_case(host))
    {
        true => Ok(path.to_owned()),
        false => Err(OTHER_SERVER),
    }
}
