//! The changes of the entries of a folder, as they happen: [`Store::watch`](crate::Store::watch).

use crate::error::Result;
use crate::object::LocalFuture;

/// Collects the changes of the entries of one folder, from its creation until it is dropped.
///
/// Changes of the same name are one change, and the number of names is limited. So the memory is
/// bounded, however rarely the changes are taken.
pub trait FolderChanges {
    /// Waits until there are changes to take.
    fn changed(&mut self) -> LocalFuture<'_, ()>;

    /// Takes the changes so far.
    fn take(&mut self) -> Changes;

    /// Whether the key of the folder still names the folder that is watched. A folder above it may
    /// have been moved.
    fn is_current(&self) -> LocalFuture<'_, Result<bool>>;
}

/// What has changed in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// These names, in the order of their first change.
    Names(Vec<ChangedName>),
    /// More than could be kept: only a listing tells.
    Missed,
    /// The folder was deleted or moved. No more changes are reported.
    Ended,
}

/// A name of which something has changed. The object that it names now tells the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedName {
    /// The last segment of the key. It may be hidden, or that of something that is not an object.
    pub name: Vec<u8>,
    /// Something got this name.
    pub appeared: bool,
    /// Something lost this name. If something got it as well, one was replaced by the other, in
    /// any order.
    pub left: bool,
}
