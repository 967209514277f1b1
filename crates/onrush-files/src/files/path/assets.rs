//! The style and the script of the page. Both are in the program. Their names contain a hash of
//! their content, so a browser keeps them for a year and still gets new ones from a new server.
//!
//! Nothing in them is secret, so [`Access`](crate::Access) lets everyone read them
//! ([`PATHS`]). No object is served or written at their names.

use onrush::{Request, Response};
use onrush_proto::etag::EntityTag;
use onrush_proto::precondition::{Current, Outcome, evaluate};

const STYLE: &str = include_str!("../../../assets/page.css");

/// The parts share one scope, so they need no further requests.
const SCRIPT: &str = concat!(
    include_str!("../../../assets/page.js"),
    include_str!("../../../assets/entries.js"),
    include_str!("../../../assets/preview.js"),
    include_str!("../../../assets/digest.js"),
    include_str!("../../../assets/transfer.js"),
    include_str!("../../../assets/unfinished.js"),
    include_str!("../../../assets/uploads.js"),
    include_str!("../../../assets/watch.js"),
);

const NAME_BYTES: usize = "-/page-0123456789abcdef.css".len();
const STYLE_BYTES: [u8; NAME_BYTES + 1] = path(STYLE, b"css");
const SCRIPT_BYTES: [u8; NAME_BYTES + 1] = path(SCRIPT, b"mjs");

/// The request paths of the style and the script if the folder is mounted at `/`.
pub const PATHS: &[&str] = &[text(&STYLE_BYTES), text(&SCRIPT_BYTES)];

/// A slash, and the name of a file with this content.
const fn path(content: &str, extension: &[u8; 3]) -> [u8; NAME_BYTES + 1] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut path = *b"/-/page-0123456789abcdef.css";
    let mut hash = hash(content.as_bytes());
    let mut at = path.len() - 4;
    while at > path.len() - 4 - 16 {
        at -= 1;
        path[at] = DIGITS[(hash & 15) as usize];
        hash >>= 4;
    }
    let mut at = 0;
    while at < 3 {
        path[NAME_BYTES + 1 - 3 + at] = extension[at];
        at += 1;
    }
    path
}

/// FNV-1a with 64 bits. It tells versions of a file of this program apart, no more.
const fn hash(content: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < content.len() {
        hash = (hash ^ content[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

const fn text(path: &'static [u8]) -> &'static str {
    match std::str::from_utf8(path) {
        Ok(text) => text,
        Err(_) => panic!("a path is ASCII"),
    }
}

/// The name of the style within the folder.
pub(in crate::files) fn style() -> &'static str {
    &PATHS[0][1..]
}

/// The name of the script within the folder.
pub(in crate::files) fn script() -> &'static str {
    &PATHS[1][1..]
}

/// Whether this is one of the two names.
#[inline]
pub(in crate::files) fn is_name(key: &[u8]) -> bool {
    key.starts_with(b"-/page-") && PATHS.iter().any(|path| path.as_bytes()[1..] == *key)
}

/// The response to GET and HEAD of one of the two names within the folder; `None` for others.
#[inline]
pub(in crate::files) fn respond(request: &Request, subpath: &str) -> Option<Response> {
    match is_name(subpath.as_bytes()) {
        true => Some(respond_with(request, subpath == style())),
        false => None,
    }
}

#[cold]
fn respond_with(request: &Request, is_style: bool) -> Response {
    let (path, content, content_type) = match is_style {
        true => (PATHS[0], STYLE, "text/css; charset=utf-8"),
        false => (PATHS[1], SCRIPT, "text/javascript; charset=utf-8"),
    };
    let current = Current {
        exists: true,
        etag: EntityTag::strong(path.as_bytes()),
        modified_s: None,
    };
    let response = match evaluate(true, &current, request.headers()) {
        Outcome::Proceed => Response::with_body(content).content_type(content_type),
        Outcome::NotModified => Response::new(304),
        Outcome::Failed => Response::new(412),
    };
    response
        .with_header("ETag", format!("\"{path}\""))
        .with_header("Cache-Control", "public, max-age=31536000, immutable")
        .with_header("X-Content-Type-Options", "nosniff")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_the_content() {
        let name = |content| String::from_utf8(path(content, b"css").to_vec()).expect("ASCII");
        // The published test vector of FNV-1a for "a".
        assert_eq!(name("a"), "/-/page-af63dc4c8601ec8c.css");
        assert_ne!(name("a"), name("b"));
        assert!(PATHS[0].ends_with(".css") && PATHS[1].ends_with(".mjs"));
        assert!(is_name(style().as_bytes()) && is_name(script().as_bytes()));
        assert!(!is_name(b"-/page-af63dc4c8601ec8c.css") && !is_name(b"-/page-"));
    }
}
