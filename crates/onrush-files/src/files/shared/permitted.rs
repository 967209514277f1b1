//! What the client of a listing may do with the folder and its entries. The page offers only that.

use crate::files::http::http_error::HttpError;
use crate::files::options::{Allow, FilesOptions};
use crate::files::path::ResolvedPath;
use crate::files::shared::client_rights::client;
use crate::rights::{Identity, Rights};
use onrush::Request;
use onrush_store::{Entry, Features, Kind};
use std::borrow::Cow;

/// The rights of a client beneath a folder. Without access control, they are those that the options
/// open for everyone.
#[derive(Clone, Debug)]
pub(in crate::files) struct Permitted {
    /// `None`: there is no access control.
    identity: Option<Identity>,
    /// The rights that the options open at all.
    opened: Rights,
    /// The decoded path of the folder in the request, for rules. Ends with a slash unless empty.
    folder: Vec<u8>,
}

impl Permitted {
    /// The rights of the client of a request for a folder.
    pub(in crate::files) fn new(
        request: &Request,
        options: &FilesOptions,
    ) -> Result<Permitted, HttpError> {
        let identity = client(request)?.map(Cow::into_owned);
        let mut folder = ResolvedPath::of(request)?.whole.into_owned();
        if !folder.is_empty() {
            folder.push(b'/');
        }
        let Allow { put, delete, .. } = options.allow;
        let mut opened = Rights::READ.union(Rights::LIST);
        if put || options.sink {
            opened = opened.union(Rights::WRITE);
        }
        if delete {
            opened = opened.union(Rights::DELETE);
        }
        Ok(Permitted {
            identity,
            opened,
            folder,
        })
    }

    /// The rights at the folder, which are also those at its entries without a rule of their own.
    pub(in crate::files) fn here(&self) -> Rights {
        self.at(b"")
    }

    /// The rights at a path beneath the folder.
    pub(in crate::files) fn at(&self, below: &[u8]) -> Rights {
        self.rights(below, Identity::rights_at)
    }

    /// What `of` says about a path beneath the folder.
    fn rights(&self, below: &[u8], of: impl Fn(&Identity, &[u8]) -> Rights) -> Rights {
        let Some(identity) = &self.identity else {
            return self.opened;
        };
        let key = [&self.folder[..], below].concat();
        let key = key.strip_suffix(b"/").unwrap_or(&key);
        of(identity, key).intersection(self.opened)
    }

    /// Whether the client may give an entry another name in this folder, if the store can.
    pub(in crate::files) fn may_move(&self, entry: &Entry, features: &Features) -> bool {
        let (is_possible, rights) = match entry.kind {
            Kind::File => (features.renames_objects, self.at(&entry.name)),
            Kind::Directory => (
                features.renames_folders,
                self.rights(&entry.name, Identity::rights_everywhere_beneath),
            ),
        };
        let of_source = Rights::READ.union(Rights::DELETE);
        is_possible && rights.contains(of_source) && self.here().contains(Rights::CREATE)
    }

    /// The name of the user.
    pub(in crate::files) fn user(&self) -> Option<&str> {
        self.identity.as_ref().and_then(Identity::name)
    }

    /// Whether the client has not logged in and could.
    pub(in crate::files) fn may_log_in(&self) -> bool {
        let identity = self.identity.as_ref();
        identity.is_some_and(|identity| identity.can_log_in && identity.name().is_none())
    }
}
