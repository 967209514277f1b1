//! What build tools expect of a build cache beyond GET and PUT of objects: nx at `v1/cache/`, and
//! Turborepo at `v8/artifacts/`, in any folder.
//!
//! - nx stores a record once: 200, or 409 if it exists. It takes every other success for a failure.
//! - Turborepo asks `v8/artifacts/status` whether the cache is on. It compares the fields
//!   `x-artifact-tag` (a signature) and `x-artifact-duration` of a PUT, which `stored_fields`
//!   keeps, when it gets the artifact.

use crate::files::http::http_error::HttpError;
use crate::files::options::FilesOptions;
use onrush::Response;

/// A record of nx is never replaced.
pub(in crate::files) const RECORD_EXISTS: HttpError =
    HttpError::new(409, "the record exists, and records are not replaced");

const STATUS: &str = "v8/artifacts/status";

pub(in crate::files) fn is_record(key: &[u8]) -> bool {
    let mut segments = key.rsplit(|&byte| byte == b'/');
    let name = segments.next().unwrap_or_default();
    !name.is_empty() && segments.next() == Some(b"cache") && segments.next() == Some(b"v1")
}

/// The response to GET and HEAD of the status of a cache of Turborepo; `None` for other keys.
#[inline]
pub(in crate::files) fn status(options: &FilesOptions, key: &[u8]) -> Option<Response> {
    if !options.content_addressed {
        return None;
    }
    let before = key.strip_suffix(STATUS.as_bytes())?;
    let is_segment = before.is_empty() || before.ends_with(b"/");
    is_segment.then(|| {
        Response::with_body("{\"status\":\"enabled\"}\n")
            .content_type("application/json")
            .with_header("Cache-Control", "no-cache")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_in_their_folder() {
        for (key, expected) in [
            ("v1/cache/12", true),
            ("team/v1/cache/12", true),
            ("v1/cache", false),
            ("v1/cache/a/12", false),
            ("xv1/cache/12", false),
            ("cache/12", false),
        ] {
            assert_eq!(is_record(key.as_bytes()), expected, "{key}");
        }
    }
}
