//! Which names are served: the one decision about hidden names.

use crate::files::options::FilesOptions;
use onrush_store::{Key, ShownNames};

impl FilesOptions {
    /// Whether a name of a folder is hidden. This is the only place that decides it, besides the
    /// store, which gets [`FilesOptions::shown`].
    pub(in crate::files) fn hides(&self, name: &[u8]) -> bool {
        !self.hidden && self.show.hide(name)
    }

    /// Whether listings of the store are to include names that begin with a dot, of which
    /// [`is_listed`] leaves out those that are hidden.
    pub(in crate::files) fn lists_hidden(&self) -> bool {
        self.hidden || !self.show.are_none()
    }

    /// The names that begin with a dot and are not hidden.
    pub fn shown(&self) -> ShownNames {
        match self.hidden {
            true => ShownNames::all(),
            false => self.show.clone(),
        }
    }
}

/// Whether the entry `name` of a folder appears in listings: not hidden names, those of the store,
/// and the name of the admin pages.
pub(in crate::files) fn is_listed(
    options: &FilesOptions,
    folder: Option<&Key>,
    name: &[u8],
) -> bool {
    let is_own = match name {
        b"-" => options.reserve_admin_paths && folder.is_none(),
        [b'.', ..] if options.lists_hidden() => {
            Key::of_entry(folder, name).is_ok_and(|key| key.reserved())
        }
        _ => false,
    };
    !(is_own || options.hides(name))
}
