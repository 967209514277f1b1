//! The options of a folder that can change while it is in use.

use super::again;
use super::change::ProcessLocks;
use super::staging::{Staging, Top};
use super::{FolderOptions, Inner};
use onrush_rt::fs::{Dir, File};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Options that a folder may get ([`Folder::prepare_options`](super::Folder::prepare_options)).
/// Dropping it leaves the earlier ones.
pub struct PreparedOptions {
    inner: Arc<Inner>,
    options: FolderOptions,
    /// `None`: the folder is writable already, or does not become so.
    needed: Option<NeededToWrite>,
}

impl PreparedOptions {
    pub(super) fn new(inner: &Arc<Inner>, options: &FolderOptions) -> io::Result<PreparedOptions> {
        again::look(inner);
        let becomes_writable = options.writable && inner.staging().is_err();
        Ok(PreparedOptions {
            inner: inner.clone(),
            options: options.clone(),
            needed: match becomes_writable {
                true => Some(NeededToWrite::open(&inner.root)?),
                false => None,
            },
        })
    }

    /// The folder has these options from now on. Changes that have begun may end with the earlier
    /// ones.
    pub fn apply(self) {
        if let Some(needed) = self.needed {
            self.inner.make_writable(needed);
        }
        self.inner.settings.set(&self.options);
    }
}

impl fmt::Debug for PreparedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedOptions")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What changes need. Dropping it removes the staging folder of this process.
pub(super) struct NeededToWrite {
    pub(super) staging: Staging,
    /// `None` if the file system has no locks.
    pub(super) locks: Option<File>,
}

impl NeededToWrite {
    pub(super) fn open(root: &Arc<Dir>) -> io::Result<NeededToWrite> {
        Ok(NeededToWrite {
            staging: Staging::open(Top::root(root)?)?,
            locks: ProcessLocks::open(root)?,
        })
    }
}

/// See [`FolderOptions`]. Each read stands alone, so no order between them is needed.
pub(super) struct Settings {
    pub(super) min_free_bytes: AtomicU64,
    pub(super) checksums: AtomicBool,
    pub(super) keep_properties: AtomicBool,
}

impl Settings {
    pub(super) fn new(options: &FolderOptions) -> Settings {
        Settings {
            min_free_bytes: AtomicU64::new(options.min_free_bytes),
            checksums: AtomicBool::new(options.checksums),
            keep_properties: AtomicBool::new(options.keep_properties),
        }
    }

    pub(super) fn set(&self, options: &FolderOptions) {
        self.min_free_bytes.store(options.min_free_bytes, Relaxed);
        self.checksums.store(options.checksums, Relaxed);
        self.keep_properties.store(options.keep_properties, Relaxed);
    }
}
