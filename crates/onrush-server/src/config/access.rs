//! The settings for access control.

use crate::options::Options;
use crate::options::access_values::AuthUser;
use crate::options::values::Change;
use crate::process::failure::Failure;
use onrush_files::{Allow, Cors};
use std::path::PathBuf;

/// Where users and their rights come from. Without it, everyone may read, and do what `--allow`
/// permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessSettings {
    pub(crate) user: Option<AuthUser>,
    pub(crate) file: Option<PathBuf>,
    pub(crate) public_read: bool,
    pub(crate) upload_only: bool,
}

impl AccessSettings {
    /// `None` if no option asks for access control.
    pub(super) fn new(options: &Options) -> Result<Option<AccessSettings>, Failure> {
        let access = AccessSettings {
            user: options.auth.clone(),
            file: options.auth_file.clone().map(|path| path.0),
            public_read: options.public_read == Some(true),
            upload_only: options.upload_only == Some(true),
        };
        match (
            access.public_read,
            access.upload_only,
            access.may_have_users(),
        ) {
            (true, true, _) => Err(Failure::usage(
                "public-read and upload-only exclude each other; use one of them",
            )),
            (true, false, false) => Err(Failure::usage(
                "public-read lets only users make changes: add --auth-file FILE; without users, \
                 everyone may read anyway",
            )),
            (false, false, false) => Ok(None),
            _ => Ok(Some(access)),
        }
    }

    fn may_have_users(&self) -> bool {
        self.user.is_some() || self.file.is_some()
    }
}

/// The changes that the server permits at all. Without `--allow`, users and `--upload-only` open
/// what they need, and access control decides. Clients of WebDAV delete folders.
pub(super) fn allow(
    given: Option<&[Change]>,
    access: Option<&AccessSettings>,
    webdav: bool,
) -> Result<Allow, Failure> {
    let Some(given) = given else {
        let has_users = access.is_some_and(AccessSettings::may_have_users);
        return Ok(Allow {
            put: access.is_some(),
            delete: has_users,
            delete_folders: has_users && webdav,
        });
    };
    if given.contains(&Change::None) && given.len() > 1 {
        return Err(Failure::usage(
            "allow: none cannot be combined; write put, delete, both, or none",
        ));
    }
    Ok(Allow {
        put: given.contains(&Change::Put),
        delete: given.contains(&Change::Delete) || given.contains(&Change::DeleteFolders),
        delete_folders: given.contains(&Change::DeleteFolders),
    })
}

/// The origins of `--cors`.
pub(super) fn cors(options: &Options) -> Result<Cors, Failure> {
    let origins = options.cors.iter().flatten();
    let cors = Cors::new(origins.map(|origin| origin.0.as_str()));
    cors.map_err(|error| Failure::usage(format!("cors: {error}")))
}
