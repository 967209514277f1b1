//! The paths of a listing, as `json` and `html` render them.

use super::path;
use onrush_store::{Key, Page};

/// The paths of a listing and of its next page.
pub(super) struct Location {
    /// The encoded path of the folder, with a slash at both ends.
    pub(super) href: String,
    /// The path to display: decoded, with U+FFFD for invalid UTF-8.
    pub(super) path: String,
    /// Whether this is the top folder, which has no parent.
    pub(super) is_top: bool,
    /// The encoded query of the next page, if there is one.
    pub(super) next: Option<String>,
}

impl Location {
    /// `query`: the parameters that the next page repeats, beginning with `&`.
    pub(super) fn new(mount: &str, folder: Option<&Key>, query: &str, page: &Page) -> Location {
        let key = folder.map(Key::as_bytes).unwrap_or_default();
        let mut href = path::href(mount, key);
        let mut path = mount.to_owned();
        path.push_str(&String::from_utf8_lossy(key));
        if folder.is_some() {
            href.push('/');
            path.push('/');
        }
        let next = page.next.as_ref().map(|after| {
            let mut next = String::from("?after=");
            path::encode(after, &mut next);
            next.push_str(query);
            next
        });
        Location {
            href,
            path,
            is_top: folder.is_none(),
            next,
        }
    }
}
