//! The paths of a listing, as `json` and `html` render them.

use crate::files::path::{self, Split};
use onrush_store::Key;

/// The paths of a listing and of its next page.
pub(in crate::files) struct Location {
    /// The encoded path of the folder, with a slash at both ends.
    pub(in crate::files) href: String,
    /// The path to display: decoded, with U+FFFD for invalid UTF-8.
    pub(in crate::files) path: String,
    /// How many folders the request path is below the mount point, as the client resolves it: empty
    /// segments count.
    pub(in crate::files) depth: usize,
    /// The bytes of `path` that are the mount point.
    mount_bytes: usize,
    /// The encoded query of the next page, if there is one.
    pub(in crate::files) next: Option<String>,
}

impl Location {
    /// `query`: the parameters that the next page repeats, beginning with `&`. `next`: the name
    /// after which that begins, if there is one.
    pub(in crate::files) fn new(
        split: Split<'_>,
        folder: Option<&Key>,
        query: &str,
        next: Option<&[u8]>,
    ) -> Location {
        let mount = split.mount;
        let key = folder.map(Key::as_bytes).unwrap_or_default();
        let mut href = path::href(mount, key);
        let mut path = mount.to_owned();
        path.push_str(&String::from_utf8_lossy(key));
        if folder.is_some() {
            href.push('/');
            path.push('/');
        }
        let next = next.map(|after| {
            let mut next = String::from("?after=");
            path::encode(after, &mut next);
            next.push_str(query);
            next
        });
        Location {
            href,
            path,
            depth: split.subpath.matches('/').count(),
            mount_bytes: mount.len(),
            next,
        }
    }

    /// The names of the folders from the mount point to this folder, to display.
    pub(in crate::files) fn names(&self) -> impl Iterator<Item = &str> {
        let below = &self.path[self.mount_bytes..];
        below.split_terminator('/')
    }
}
