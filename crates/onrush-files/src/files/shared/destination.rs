//! Where a client creates or replaces something.
//!
//! Every method that does gets its key from here: nothing else makes a [`Destination`], so no
//! method can leave out a check.
//!
//! - The name may be written: it is neither hidden nor reserved, and the path is not too deep.
//! - The client may create there. Whether it may also replace is a part of the result.
//! - With precompressed siblings (`siblings`), an object with the name of a sibling is the content
//!   that others see at another name. So the client must have the right to replace what is at that
//!   name; for a folder with everything in it, the right to replace everywhere beneath, because
//!   what the folder contains is not known here.

use crate::files::http::codings;
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::path::{self, ResolvedPath, Target, beneath};
use crate::files::shared::client_rights::check_right_at;
use crate::files::shared::client_rights::{Permission, client};
use crate::files::shared::objects::Objects;
use crate::rights::Rights;
use onrush::Request;
use onrush_store::{Key, Kind};

pub(in crate::files) const IS_FOLDER: HttpError = HttpError::new(
    409,
    "a path that ends with a slash is a folder, which has no content",
);
const ELSEWHERE: HttpError = HttpError::new(
    400,
    "Destination is missing, or is not a path or URL of this server",
);
const NOT_FOLDER: HttpError = HttpError::new(409, "this is not the path of a folder");
const BAD_NAME: HttpError = HttpError::new(400, "the name of a file cannot be stored");

/// A name that a client may create something at.
pub(in crate::files) struct Destination {
    pub(in crate::files) key: Key,
    pub(in crate::files) kind: Kind,
    /// The encoded path.
    pub(in crate::files) location: String,
    /// Whether the client may also replace an object there.
    pub(in crate::files) may_replace: bool,
    /// What makes this a destination, to be checked again before the change is published.
    pub(in crate::files) permission: Permission,
    /// The decoded path of the whole server.
    whole: Vec<u8>,
    /// What the client may do there and everywhere beneath.
    beneath: Rights,
    /// What it needs to create a folder together with what is in it.
    needed_beneath: Rights,
}

impl Destination {
    /// Fails if the client may not create a folder together with everything in it.
    pub(in crate::files) fn check_tree(&self, request: &Request) -> Result<(), HttpError> {
        match client(request)? {
            Some(identity) if !self.beneath.contains(self.needed_beneath) => {
                Err(HttpError::not_permitted(&identity))
            }
            _ => Ok(()),
        }
    }

    /// The permission to create a folder together with everything in it.
    pub(in crate::files) fn permission_of_tree(&self) -> Permission {
        let mut permission = self.permission.clone();
        permission.require(&self.whole, self.needed_beneath, true);
        permission
    }

    /// Whether the client may replace a folder with everything in it.
    pub(in crate::files) fn may_replace_tree(&self) -> bool {
        self.may_replace && self.beneath.contains(Rights::DELETE)
    }
}

impl Objects {
    /// What a `PUT` names. Fails if the client cannot write there.
    pub(in crate::files) fn put_destination(
        &self,
        request: &Request,
    ) -> Result<Destination, HttpError> {
        reject_content_range(request)?;
        let to = self.own_destination(request, None)?;
        to.ok_or(IS_FOLDER)
    }

    /// As [`Objects::put_destination`]. Fails if it is a folder.
    pub(in crate::files) fn object_destination(
        &self,
        request: &Request,
    ) -> Result<Destination, HttpError> {
        let to = self.put_destination(request)?;
        match to.kind {
            Kind::File => Ok(to),
            Kind::Directory => Err(IS_FOLDER),
        }
    }

    /// The destination at an encoded path of the whole server. `kind`: what is created there;
    /// `None`: the path says, by a slash at its end. Returns `None` for the top folder.
    pub(in crate::files) fn destination(
        &self,
        request: &Request,
        path: &str,
        kind: Option<Kind>,
    ) -> Result<Option<Destination>, HttpError> {
        let found = self.destination_at(request, &ResolvedPath::parse(path)?, kind);
        found.map_err(|failure| match failure {
            path::OUTSIDE => ELSEWHERE,
            failure => failure,
        })
    }

    /// The destination that the path of a request names.
    pub(in crate::files) fn own_destination(
        &self,
        request: &Request,
        kind: Option<Kind>,
    ) -> Result<Option<Destination>, HttpError> {
        self.destination_at(request, &ResolvedPath::of(request)?, kind)
    }

    fn destination_at(
        &self,
        request: &Request,
        path: &ResolvedPath<'_>,
        kind: Option<Kind>,
    ) -> Result<Option<Destination>, HttpError> {
        let target = path.target(path::split(request)?.mount, Operation::Write)?;
        self.checked(request, target, &path.whole, kind)
    }

    /// The destination of an object with the decoded name `name` in the folder that a request
    /// names.
    pub(in crate::files) fn destination_in(
        &self,
        request: &Request,
        name: &[u8],
    ) -> Result<Destination, HttpError> {
        let path = ResolvedPath::of(request)?;
        let mount = path::split(request)?.mount;
        let Target::Folder(folder) = path.target(mount, Operation::Write)? else {
            return Err(NOT_FOLDER);
        };
        if name.contains(&b'/') {
            return Err(BAD_NAME);
        }
        let folder = folder.as_ref().map(Key::as_bytes).unwrap_or_default();
        let key = Key::parse(&beneath(folder, name)).map_err(|_| BAD_NAME)?;
        let whole = beneath(&path.whole, name);
        let to = self.checked(request, Target::Object(key), &whole, None)?;
        to.ok_or(BAD_NAME)
    }

    /// `whole`: the decoded path of the whole server, for rights.
    fn checked(
        &self,
        request: &Request,
        target: Target,
        whole: &[u8],
        kind: Option<Kind>,
    ) -> Result<Option<Destination>, HttpError> {
        let target = target.check_visible(&self.options, Operation::Write)?;
        let (key, kind_of_path) = match target.check_depth(&self.options)? {
            Target::Object(key) => (key, Kind::File),
            Target::Folder(Some(key)) => (key, Kind::Directory),
            Target::Folder(None) => return Ok(None),
        };
        let kind = kind.unwrap_or(kind_of_path);
        self.check_state_way(request, &key)?;
        check_right_at(request, whole, Rights::CREATE)?;
        let may_replace = check_right_at(request, whole, Rights::WRITE).is_ok();
        let mut permission = Permission::new(request);
        let right = if may_replace {
            Rights::WRITE
        } else {
            Rights::CREATE
        };
        permission.require(whole, right, false);
        if self.options.precompressed
            && kind == Kind::File
            && let Some((_, original)) = codings::of_sibling(whole)
        {
            check_right_at(request, original, Rights::WRITE)?;
            permission.require(original, Rights::WRITE, false);
        }
        let beneath = client(request)?.map_or(Rights::ALL, |identity| {
            identity.rights_everywhere_beneath(whole)
        });
        let mount = path::split(request)?.mount;
        let location = match kind {
            Kind::File => path::href(mount, key.as_bytes()),
            Kind::Directory => path::folder_href(mount, key.as_bytes(), None),
        };
        Ok(Some(Destination {
            may_replace,
            permission,
            whole: whole.to_vec(),
            key,
            kind,
            location,
            beneath,
            needed_beneath: match self.options.precompressed {
                true => Rights::WRITE,
                false => Rights::CREATE,
            },
        }))
    }
}

/// Refuses a `PUT` of a part of an object (RFC 9110 §14.5).
fn reject_content_range(request: &Request) -> Result<(), HttpError> {
    match request.header("content-range") {
        Some(_) => Err(HttpError::new(
            400,
            "Content-Range is not supported: PUT writes whole objects",
        )),
        None => Ok(()),
    }
}
