//! What the client of a request may do at a path, beyond what [`Access`](crate::Access) has
//! checked.

use super::http_error::HttpError;
use super::path;
use crate::rights::{Identity, Rights};
use onrush::Request;
use onrush_store::Key;

/// Checks a right of the client at the path of its request, beyond those that
/// [`Access`](crate::Access) has checked. Without access control, everyone has all rights.
pub(super) fn check_right(request: &Request, right: Rights) -> Result<(), HttpError> {
    let path = path::canonical(request.path())?;
    check_right_at(request, &path.key, right)
}

/// As [`check_right`], at the decoded path `key` without a slash at its ends.
pub(super) fn check_right_at(
    request: &Request,
    key: &[u8],
    right: Rights,
) -> Result<(), HttpError> {
    let Some(identity) = request.extension::<Identity>() else {
        return Ok(());
    };
    match identity.rights_at(key).contains(right) {
        true => Ok(()),
        false => Err(HttpError::not_permitted(identity)),
    }
}

/// Checks a right at the path of a request and everywhere beneath it.
pub(super) fn check_right_beneath(request: &Request, right: Rights) -> Result<(), HttpError> {
    let Some(identity) = request.extension::<Identity>() else {
        return Ok(());
    };
    let path = path::canonical(request.path())?;
    match identity
        .rights_everywhere_beneath(&path.key)
        .contains(right)
    {
        true => Ok(()),
        false => Err(HttpError::not_permitted(identity)),
    }
}

/// Whether the client may read the object at `key`, which is not the one that its request names.
pub(super) fn may_read(request: &Request, key: &Key) -> bool {
    if request.extension::<Identity>().is_none() {
        return true;
    }
    let whole = || {
        let mount = path::canonical(path::split(request)?.mount)?.key;
        Ok(match mount.is_empty() {
            true => key.as_bytes().to_vec(),
            false => [&mount, &b"/"[..], key.as_bytes()].concat(),
        })
    };
    let checked = whole().and_then(|whole| check_right_at(request, &whole, Rights::READ));
    checked.is_ok()
}

/// Whether the client may read the `index.html` of the folder that its request names.
pub(super) fn may_read_index(request: &Request) -> bool {
    let Some(identity) = request.extension::<Identity>() else {
        return true;
    };
    path::canonical(request.path())
        .is_ok_and(|path| identity.rights_at_index(&path.key).contains(Rights::READ))
}
