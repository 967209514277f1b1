//! COPY of objects, and MOVE of objects and folders (RFC 4918 §9.8, §9.9).
//!
//! `Destination` is a path, or a URL of this host. `Overwrite: F` keeps an object there. The folder
//! of the destination must exist. Preconditions of the request are those of the source. A store
//! without a copy operation gets the bytes through this server, as by a GET and a PUT; MOVE needs
//! a store that renames atomically.
//!
//! COPY needs the right to read the source, MOVE also to delete it, and both to create or to
//! replace the destination. Rights may differ beneath a folder, so MOVE of a folder needs the
//! rights of everything beneath both names.

use super::conditions::Conditions;
use super::http_error::{HttpError, Operation};
use super::object_fields::etag;
use super::path::{self, Target};
use super::{Inner, check_right_at};
use crate::rights::{Identity, Rights};
use futures_core::Stream;
use onrush::{Request, Response};
use onrush_store::{Committed, Condition, Key, Kind, Relocation, StoreError, Wanted};
use std::future::poll_fn;
use std::pin::Pin;

const NO_DESTINATION: HttpError = HttpError::new(
    400,
    "Destination is missing, or is not a path or URL of this server",
);
const OTHER_SERVER: HttpError = HttpError::new(502, "Destination is on another server");
const BAD_OVERWRITE: HttpError = HttpError::new(400, "Overwrite is T or F");
const SAME: HttpError = HttpError::new(403, "the destination is the source, or lies beneath it");
const NO_FOLDER: HttpError = HttpError::new(409, "the folder of the destination does not exist");
const KINDS_DIFFER: HttpError = HttpError::new(
    409,
    "the path of a folder ends with a slash, and that of an object does not",
);
const NO_FOLDER_COPY: HttpError = HttpError::new(501, "COPY copies objects, not folders");
const NOT_IN_TOP: HttpError = HttpError::new(403, "the top folder cannot be moved");
const TARGET_EXISTS: HttpError =
    HttpError::new(403, "the destination exists, and you may not replace it");

/// A source or a destination.
struct Place {
    key: Key,
    kind: Kind,
    /// The decoded path of the whole request, for rights.
    whole: Vec<u8>,
    /// The encoded path.
    location: String,
}

impl Inner {
    /// `COPY` and `MOVE`: 201 if the destination is new, 204 if it was replaced.
    pub(super) async fn relocate(&self, request: &Request) -> Result<Response, HttpError> {
        let is_move = request.method() == "MOVE";
        let mount = path::split(request)?.mount;
        let from = self.place(request.path(), mount, false)?;
        let to = self.place(&destination(request)?, mount, true)?;
        let replaces = match request.header("overwrite") {
            None | Some(b"T") => true,
            Some(b"F") => false,
            Some(_) => return Err(BAD_OVERWRITE),
        };
        if from.kind != to.kind {
            return Err(KINDS_DIFFER);
        }
        if from.kind == Kind::Directory && !is_move {
            return Err(NO_FOLDER_COPY);
        }
        let is_beneath = (to.key.as_bytes())
            .strip_prefix(from.key.as_bytes())
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        if is_beneath {
            return Err(SAME);
        }
        let may_replace = check_rights(request, &from, &to, is_move)?;
        self.check_sibling_right(request, &to.whole)?;
        let failed = |error, key: &Key| self.store_failure(error, Operation::Write, Some(key));
        if let Some(parent) = to.key.parent() {
            let found = self.look_up(&parent).await;
            let found = found.map_err(|error| failed(error, &parent))?;
            if found.is_none_or(|found| found.kind != Kind::Directory) {
                return Err(NO_FOLDER);
            }
        }
        if !is_move {
            self.check_size(&from.key).await?;
        }
        let look_up = async || self.look_up(&from.key).await;
        let conditions = Conditions::from_request(request);
        let from_condition = conditions.into_condition(look_up).await;
        let how = Relocation {
            from_condition: from_condition.map_err(|error| failed(error, &from.key))?,
            to_condition: match replaces && may_replace {
                true => Condition::None,
                false => Condition::Absent,
            },
            from: from.key.clone(),
            to: to.key.clone(),
        };
        // Whether it is the condition of the destination that fails: the client did not ask for it.
        let is_hidden_condition = replaces && !may_replace && how.from_condition.is_none();
        let done = match is_move {
            true => self.store.rename(how, from.kind).await,
            false => match self.store.copy(how.clone()).await {
                Err(StoreError::Unsupported) => self.copy_bytes(how).await,
                copied => copied,
            },
        };
        let committed = done.map_err(|error| match error {
            StoreError::PreconditionFailed if is_hidden_condition => TARGET_EXISTS,
            StoreError::NotFound => HttpError::NOT_FOUND,
            error => failed(error, &from.key),
        })?;
        let response = match committed.created {
            true => Response::new(201).with_header("Location", to.location),
            false => Response::new(204),
        };
        Ok(match from.kind {
            Kind::File => response.with_header("ETag", etag(&committed.meta.version)),
            Kind::Directory => response,
        })
    }

    /// Refuses to copy an object that is larger than objects may be.
    async fn check_size(&self, from: &Key) -> Result<(), HttpError> {
        let limits = &self.uploads.limits;
        if limits.object_bytes_max == u64::MAX {
            return Ok(());
        }
        let found = self.look_up(from).await;
        let found = found.map_err(|error| self.store_failure(error, Operation::Write, Some(from)));
        match found?.is_some_and(|meta| meta.size > limits.object_bytes_max) {
            true => Err(limits.too_large()),
            false => Ok(()),
        }
    }

    /// Copies through this server.
    async fn copy_bytes(&self, how: Relocation) -> Result<Committed, StoreError> {
        let source = self.store.open(&how.from, Wanted::All).await?;
        how.from_condition.check(Some(source.meta()))?;
        let size = source.meta().size;
        let staged = (self.store).stage(&how.to, how.to_condition, Some(size));
        let mut upload = staged.await?;
        upload.set_metadata(source.metadata().await?)?;
        let mut bytes = source.stream(0..size);
        while let Some(piece) = poll_fn(|cx| Pin::new(&mut bytes).poll_next(cx)).await {
            upload.write(piece?.to_vec()).await?;
        }
        match upload.written_bytes() == size {
            true => upload.commit().await,
            false => Err(StoreError::Changed),
        }
    }

    /// What an encoded path names. `is_new`: it is going to be created.
    fn place(&self, whole: &str, mount: &str, is_new: bool) -> Result<Place, HttpError> {
        let subpath = whole.strip_prefix(mount).ok_or(NO_DESTINATION)?;
        let target = path::target(subpath, Operation::Write)?;
        let target = target.check_visible(&self.options, Operation::Write)?;
        let target = match is_new {
            true => target.check_depth(&self.options)?,
            false => target,
        };
        let (key, kind) = match target {
            Target::Object(key) => (key, Kind::File),
            Target::Folder(Some(key)) => (key, Kind::Directory),
            Target::Folder(None) => return Err(NOT_IN_TOP),
        };
        let location = match kind {
            Kind::File => path::href(mount, key.as_bytes()),
            Kind::Directory => path::folder_href(mount, key.as_bytes(), None),
        };
        Ok(Place {
            whole: path::canonical(whole)?.key.into_owned(),
            key,
            kind,
            location,
        })
    }
}

/// Checks the rights of the client. Returns whether it may replace the destination.
fn check_rights(
    request: &Request,
    from: &Place,
    to: &Place,
    is_move: bool,
) -> Result<bool, HttpError> {
    let of_source = match is_move {
        true => Rights::READ.union(Rights::DELETE),
        false => Rights::READ,
    };
    check_right_at(request, &from.whole, of_source)?;
    check_right_at(request, &to.whole, Rights::CREATE)?;
    if let (Kind::Directory, Some(identity)) = (from.kind, request.extension::<Identity>()) {
        let has = |place: &Place, rights| {
            let beneath = identity.rights_everywhere_beneath(&place.whole);
            beneath.contains(rights)
        };
        if !has(from, of_source) || !has(to, Rights::CREATE) {
            return Err(HttpError::not_permitted(identity));
        }
    }
    Ok(check_right_at(request, &to.whole, Rights::WRITE).is_ok())
}

/// The encoded path that `Destination` names (RFC 4918 §10.3).
fn destination(request: &Request) -> Result<String, HttpError> {
    let mut values = request.header_values("destination");
    let value = values
        .next()
        .and_then(|value| std::str::from_utf8(value).ok());
    let value = value.filter(|_| values.next().is_none());
    let value = value.filter(|value| !value.contains(['?', '#']));
    let value = value.ok_or(NO_DESTINATION)?;
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
    let (host, path) = rest.split_at(slash);
    match request
        .host()
        .is_some_and(|own| own.eq_ignore_ascii_case(host))
    {
        true => Ok(path.to_owned()),
        false => Err(OTHER_SERVER),
    }
}
