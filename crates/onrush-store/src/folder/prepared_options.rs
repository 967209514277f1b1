//! Other options of a folder, before they apply.

use super::needed::NeededToWrite;
use super::{FolderInner, FolderOptions, again};
use std::fmt;
use std::io;
use std::sync::Arc;

/// Options that a folder may get ([`Folder::prepare_options`](super::Folder::prepare_options)).
/// Dropping it leaves the earlier ones.
pub struct PreparedOptions {
    inner: Arc<FolderInner>,
    options: FolderOptions,
    /// `None`: the folder is writable already, or does not become so.
    needed: Option<NeededToWrite>,
}

impl PreparedOptions {
    pub(super) fn new(
        inner: &Arc<FolderInner>,
        options: &FolderOptions,
    ) -> io::Result<PreparedOptions> {
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
