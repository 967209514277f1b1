//! How a folder is opened.

#[cfg(doc)]
use crate::{Folder, Store, StoreError};
use onrush_rt::descriptors::Descriptors;

/// What a completed change survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A power cut: the file and its folders are synced before the change completes.
    #[default]
    Full,
    /// Only the end of the process. Replacement is still atomic for readers. After a power cut,
    /// objects of the last half minute may be missing, old, or (on some file systems) empty.
    None,
}

/// How a [`Folder`] is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FolderOptions {
    /// Whether changes are allowed. The folder `.onrush` is created only then.
    pub writable: bool,
    /// What a completed change survives.
    pub durability: Durability,
    /// Whether new objects get a checksum ([`Scrub`](crate::Scrub) verifies it), if the file system
    /// supports extended attributes.
    pub checksums: bool,
    /// Permission bits of new objects, before the umask.
    pub file_mode: u32,
    /// Permission bits of new folders, before the umask.
    pub dir_mode: u32,
    /// The free space of the file system below which no object is written, in bytes: uploads fail
    /// with [`StoreError::Full`] before the disk is full. 0 by default.
    pub min_free_bytes: u64,
    /// The budget for files that objects and uploads keep open. If it is exhausted, operations fail
    /// with [`StoreError::Busy`]. Unlimited by default.
    pub descriptors: Descriptors,
    /// Whether an object that is replaced passes its properties on
    /// ([`Store::replace_properties`]). This costs an upload some system calls.
    pub keep_properties: bool,
}

impl Default for FolderOptions {
    /// Writable, durable, and with the same modes as most other tools.
    fn default() -> FolderOptions {
        FolderOptions {
            writable: true,
            durability: Durability::Full,
            checksums: true,
            file_mode: 0o666,
            dir_mode: 0o777,
            min_free_bytes: 0,
            descriptors: Descriptors::default(),
            keep_properties: false,
        }
    }
}
