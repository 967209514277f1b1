//! The location of a listing, for its renderers.

use super::path;
use onrush_store::{Key, Page};

/// The location of a listing.
pub(super) struct Place {
    /// The encoded path of the folder, with a slash at both ends.
    pub(super) href: String,
    /// The path to display: decoded, with U+FFFD for invalid UTF-8.
    pub(super) path: String,
    /// Whether this is the top folder, which has no parent.
    pub(super) top: bool,
    /// The encoded query of the next page, if there is one.
    pub(super) next: Option<String>,
}

impl Place {
    /// `query`: the parameters that the next page repeats, beginning with `&`.
    pub(super) fn new(mount: &str, folder: Option<&Key>, query: &str, page: &Page) -> Place {
        let key = folder.map(Key::as_bytes).unwrap_or_default();
        let mut href = path::href(mount, key);
        let mut shown = mount.to_owned();
        shown.push_str(&String::from_utf8_lossy(key));
        if folder.is_some() {
            href.push('/');
            shown.push('/');
        }
        let next = page.next.as_ref().map(|after| {
            let mut next = String::from("?after=");
            path::encode(after, &mut next);
            next.push_str(query);
            next
        });
        Place {
            href,
            path: shown,
            top: folder.is_none(),
            next,
        }
    }
}
