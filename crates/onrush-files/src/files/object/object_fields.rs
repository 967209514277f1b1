//! The field lines of an object, rendered once and used for all responses about it.

use onrush_proto::date;
use onrush_proto::etag::EntityTag;
use onrush_proto::response::FieldLines;
use onrush_store::{CacheUse, Version};
use std::sync::LazyLock;

/// The policy of stored objects that a browser would run (Content Security Policy Level 3, §6.3.2).
/// Without `allow-scripts` and `allow-same-origin`, the page runs no script, sends no form, and has
/// an origin of its own. So it cannot send requests to the server with the rights of the reader.
/// The page's images and style sheets are still loaded.
pub(in crate::files) const SANDBOX: &[u8] = b"sandbox";

pub(in crate::files) const CACHE_STATUS: &str = "Cache-Status";

/// The value of `Cache-Control` of an object without a stored one.
pub(in crate::files) const NO_CACHE: &[u8] = b"no-cache";

/// A version as the value of `ETag`.
pub(in crate::files) fn etag(version: &Version) -> Vec<u8> {
    let mut value = Vec::with_capacity(Version::BYTES_MAX + 2);
    if let Some(tag) = EntityTag::strong(version.as_bytes()) {
        tag.write(&mut value);
    }
    value
}

/// The fields of every response about an object of this version.
pub(in crate::files) fn fields(version: &Version, modified_s: Option<u64>) -> FieldLines {
    static COMMON: LazyLock<FieldLines> = LazyLock::new(|| {
        let mut lines = FieldLines::new();
        for (name, value) in [
            ("Accept-Ranges", &b"bytes"[..]),
            ("Cache-Control", NO_CACHE),
            ("X-Content-Type-Options", b"nosniff"),
        ] {
            append(&mut lines, name, value);
        }
        lines
    });
    let mut lines = COMMON.clone();
    append(&mut lines, "ETag", &etag(version));
    if let Some(modified_s) = modified_s {
        append(&mut lines, "Last-Modified", &date::format(modified_s));
    }
    lines
}

/// The value of `Cache-Status` (RFC 9211 §2).
pub(in crate::files) fn cache_status(how: CacheUse) -> &'static str {
    match how {
        CacheUse::Hit => "onrush; hit",
        CacheUse::Stale => "onrush; hit; detail=stale",
        CacheUse::Revalidated => "onrush; fwd=stale",
        CacheUse::Partial => "onrush; fwd=partial; stored",
        CacheUse::Miss {
            is_stored,
            is_collapsed,
        } => match (is_stored, is_collapsed) {
            (false, _) => "onrush; fwd=uri-miss",
            (true, false) => "onrush; fwd=uri-miss; stored",
            (true, true) => "onrush; fwd=uri-miss; stored; collapsed",
        },
    }
}

pub(in crate::files) fn append(lines: &mut FieldLines, name: &str, value: &[u8]) {
    let appended = lines.append(name, value);
    debug_assert!(appended.is_ok(), "{name} was refused");
}

/// Sets a field and replaces its earlier lines.
pub(in crate::files) fn set(lines: &mut FieldLines, name: &str, value: &[u8]) {
    let set = lines.set(name, value);
    debug_assert!(set.is_ok(), "{name} was refused");
}
