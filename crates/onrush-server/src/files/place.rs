//! Where a listing is: what its renderers are told besides the entries. Must not know how they
//! look.

use super::path;
use onrush_store::{Key, Page};

/// Where a listing is, as its renderers need it.
pub(super) struct Place {
    /// The folder's own path, encoded, with a slash at both ends.
    pub(super) href: String,
    /// The same to be read: decoded, lossily.
    pub(super) path: String,
    /// The folder everything is in: there is nothing above it.
    pub(super) top: bool,
    /// The query of the next page, encoded, when there is one.
    pub(super) next: Option<String>,
}

impl Place {
    /// `query` is what the next page's query repeats of this one's, beginning with `&`.
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
