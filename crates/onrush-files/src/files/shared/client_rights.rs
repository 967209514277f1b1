//! What the client of a request may do at a path, beyond what [`Access`](crate::Access) has
//! checked. Each check is one by the users of its moment, who may have been replaced since the
//! request began.

use crate::files::http::http_error::HttpError;
use crate::files::path::{self, ResolvedPath};
use crate::rights::{Identity, Rights};
use onrush::Request;
use onrush_store::Key;
use std::borrow::Cow;
use std::rc::Rc;

/// The client proves nothing any more by what it has sent.
pub(in crate::files) const REVOKED: HttpError = HttpError::new(
    401,
    "the user has been removed, or has other credentials now",
);

/// The client of a request. `None`: there is no access control, and everyone has all rights. Fails
/// if it is no user any more.
pub(in crate::files) fn client(request: &Request) -> Result<Option<Cow<'_, Identity>>, HttpError> {
    let identity = request.extension::<Identity>();
    identity
        .map(|identity| identity.now().ok_or(REVOKED))
        .transpose()
}

/// The user of a request, to whom an upload belongs.
pub(in crate::files) fn owner(request: &Request) -> Option<String> {
    let identity = request.extension::<Identity>()?;
    identity.name().map(str::to_owned)
}

/// The rights by which a client began a change that may last. It needs them again when the change
/// is published.
#[derive(Clone, Debug)]
pub(in crate::files) struct Permission {
    /// `None`: there is no access control.
    identity: Option<Rc<Identity>>,
    needed: Vec<Need>,
}

/// Rights at a decoded path of the whole server.
#[derive(Clone, Debug)]
struct Need {
    whole: Vec<u8>,
    rights: Rights,
    /// At everything beneath as well.
    is_deep: bool,
}

impl Permission {
    /// That of the client of a request, without any right.
    pub(in crate::files) fn new(request: &Request) -> Permission {
        Permission {
            identity: request.shared_extension(),
            needed: Vec::new(),
        }
    }

    /// Adds rights that the client has and needs.
    pub(in crate::files) fn require(&mut self, whole: &[u8], rights: Rights, is_deep: bool) {
        if self.identity.is_some() {
            self.needed.push(Need {
                whole: whole.to_vec(),
                rights,
                is_deep,
            });
        }
    }

    /// Fails if the users have been replaced and the client lacks one of the rights now.
    pub(in crate::files) fn check(&self) -> Result<(), HttpError> {
        let Some(identity) = self.identity.as_ref().filter(|client| !client.is_current()) else {
            return Ok(());
        };
        let now = identity.now().ok_or(REVOKED)?;
        let has = |need: &Need| {
            let rights = match need.is_deep {
                true => now.rights_everywhere_beneath(&need.whole),
                false => now.rights_at(&need.whole),
            };
            rights.contains(need.rights)
        };
        match self.needed.iter().all(has) {
            true => Ok(()),
            false => Err(HttpError::not_permitted(&now)),
        }
    }
}

/// Checks a right of the client at the path of its request, beyond those that
/// [`Access`](crate::Access) has checked. Without access control, everyone has all rights.
pub(in crate::files) fn check_right(request: &Request, right: Rights) -> Result<(), HttpError> {
    check_right_at(request, &ResolvedPath::of(request)?.whole, right)
}

/// As [`check_right`], at the decoded path `key` without a slash at its ends.
pub(in crate::files) fn check_right_at(
    request: &Request,
    key: &[u8],
    right: Rights,
) -> Result<(), HttpError> {
    let Some(identity) = client(request)? else {
        return Ok(());
    };
    match identity.rights_at(key).contains(right) {
        true => Ok(()),
        false => Err(HttpError::not_permitted(&identity)),
    }
}

/// Checks a right at the path of a request and everywhere beneath it.
pub(in crate::files) fn check_right_beneath(
    request: &Request,
    right: Rights,
) -> Result<(), HttpError> {
    let Some(identity) = client(request)? else {
        return Ok(());
    };
    let path = ResolvedPath::of(request)?;
    match identity
        .rights_everywhere_beneath(&path.whole)
        .contains(right)
    {
        true => Ok(()),
        false => Err(HttpError::not_permitted(&identity)),
    }
}

/// Whether the client may read the object at `key`, which is not the one that its request names.
pub(in crate::files) fn may_read(request: &Request, key: &Key) -> bool {
    if request.extension::<Identity>().is_none() {
        return true;
    }
    let whole = path::whole(request, key.as_bytes());
    whole.is_ok_and(|whole| check_right_at(request, &whole, Rights::READ).is_ok())
}

/// Whether the client may read the `index.html` of the folder that its request names.
pub(in crate::files) fn may_read_index(request: &Request) -> bool {
    let Some(identity) = request.extension::<Identity>() else {
        return true;
    };
    ResolvedPath::of(request)
        .is_ok_and(|path| identity.rights_at_index(&path.whole).contains(Rights::READ))
}
