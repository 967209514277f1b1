//! Error responses: a status and one plain sentence.
//!
//! The sentences are constants, so they cannot contain a path of this machine or input of a client.

use crate::files::http::negotiate::prefers_json;
use crate::rights::Identity;
use crate::shares::Full;
use onrush::{Request, Response};
use onrush_proto::response::reason_phrase;
use onrush_store::StoreError;
use std::time::Duration;

/// An error response: its status and the sentence of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HttpError {
    pub(crate) status: u16,
    pub(in crate::files) detail: &'static str,
    /// For 502 to 504: when the client may try again.
    retry_after_s: u64,
}

/// Whether a request reads or writes. An invalid name is not found when it is read, and an error of
/// the request when it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::files) enum Operation {
    Read,
    Write,
}

impl HttpError {
    pub(crate) const fn new(status: u16, detail: &'static str) -> HttpError {
        HttpError {
            status,
            detail,
            retry_after_s: 1,
        }
    }

    /// Counting a large folder takes seconds to minutes.
    const NOT_COUNTED: HttpError = HttpError {
        retry_after_s: 5,
        ..HttpError::new(
            503,
            "the objects are being counted for the quota of this path; try again later",
        )
    };
    /// For as long as the client of that process sends.
    pub(in crate::files) const UPLOAD_IN_USE: HttpError = HttpError::new(
        503,
        "another server process receives this upload at the moment; try again later",
    );
    pub(in crate::files) const NOT_FOUND: HttpError =
        HttpError::new(404, "there is no such object");
    pub(in crate::files) const METHOD_NOT_ALLOWED: HttpError =
        HttpError::new(405, "the method is not allowed here");
    pub(in crate::files) const READ_ONLY: HttpError = HttpError::new(
        405,
        "the method is not allowed here; the server permits no changes (--allow)",
    );
    pub(in crate::files) const CHANGE_NOT_ALLOWED: HttpError = HttpError::new(
        405,
        "the method is not allowed here; the server permits only some changes (--allow)",
    );
    pub(in crate::files) const NOT_WRITABLE: HttpError =
        HttpError::new(403, "this name is hidden or reserved and cannot be written");
    pub(in crate::files) const TOO_DEEP: HttpError =
        HttpError::new(400, "the path has too many segments");
    pub(in crate::files) const ENCODING_UNSUPPORTED: HttpError = HttpError::new(
        415,
        "the file system has no extended attributes, so Content-Encoding cannot be stored",
    );
    pub(in crate::files) const PRECONDITION_FAILED: HttpError =
        HttpError::new(412, "a precondition of the request does not hold");

    /// The response to an error of the store.
    pub(in crate::files) fn from_store(error: StoreError, operation: Operation) -> HttpError {
        let (status, detail) = match (error, operation) {
            (StoreError::NotFound, _) => return HttpError::NOT_FOUND,
            (StoreError::InvalidKey, Operation::Read) => return HttpError::NOT_FOUND,
            (StoreError::InvalidKey, Operation::Write) => (400, "this name cannot be stored"),
            (StoreError::NotDirectory, Operation::Read) => return HttpError::NOT_FOUND,
            (StoreError::NotDirectory, Operation::Write) => {
                (409, "a folder of the path is an object")
            }
            (StoreError::IsDirectory, _) => (409, "this is a folder"),
            (StoreError::Conflict, _) => (
                409,
                "a link or a special file is in the way, or the path changed meanwhile",
            ),
            (StoreError::OtherFileSystem, _) => (
                409,
                "both names are not on one file system of the server, so this cannot be one step; \
                 copy and delete instead",
            ),
            (StoreError::MountPoint, _) => (
                409,
                "something is mounted at this path of the server, so it can be neither replaced \
                 nor deleted",
            ),
            (StoreError::NotEmpty, _) => (409, "the folder is not empty"),
            (StoreError::LeadsOutside, _) => (
                409,
                "the folder contains a relative symbolic link that leads out of it",
            ),
            (StoreError::PreconditionFailed, _) => return HttpError::PRECONDITION_FAILED,
            (StoreError::Full(cause), _) if cause.errno().is_none() => (
                507,
                "the store is full, or its space is kept free (--min-free)",
            ),
            (StoreError::Full(_), _) => (507, "the disk is full"),
            (StoreError::OverQuota, _) => (
                507,
                "the object does not fit into what is left of the quota of this path",
            ),
            (StoreError::NotCounted, _) => return HttpError::NOT_COUNTED,
            (StoreError::ReadOnly, _) => (503, "the disk is read-only"),
            (StoreError::TooLarge, _) => (413, "the object is too large for the store"),
            (StoreError::Forbidden | StoreError::PermissionDenied(_), _) => {
                (403, "permission denied")
            }
            (StoreError::NoMetadata, _) => return HttpError::ENCODING_UNSUPPORTED,
            (StoreError::Busy, _) => (
                503,
                "the server is short of file descriptors or memory; try again later",
            ),
            (StoreError::InUse, _) => return HttpError::UPLOAD_IN_USE,
            (StoreError::Changed, _) => (503, "the object changed while it was read"),
            (StoreError::Unsupported, _) => (501, "the store does not support this request"),
            (StoreError::Throttled { retry_after }, _) => return HttpError::throttled(retry_after),
            (StoreError::Unavailable, _) => (503, "the store is unavailable; try again later"),
            (StoreError::Interrupted, _) => (
                503,
                "the store failed during the change, which may have been made",
            ),
            (StoreError::Timeout, Operation::Read) => (504, "the store did not respond in time"),
            (StoreError::Timeout, Operation::Write) => (
                504,
                "the store did not respond in time; the change may have been made",
            ),
            (StoreError::BadResponse, Operation::Read) => {
                (502, "the store sent a malformed response")
            }
            (StoreError::BadResponse, Operation::Write) => (
                502,
                "the store sent a malformed response; the change may have been made",
            ),
            (StoreError::Io(cause), _) if cause.errno().is_none() => (500, "the store failed"),
            (_, _) => (500, "the disk failed"),
        };
        HttpError::new(status, detail)
    }

    /// The response if a budget of clients has nothing left: 429 if this client has its share, 503
    /// if all is in use, with these texts.
    pub(crate) const fn full(full: Full, own: &'static str, all: &'static str) -> HttpError {
        match full {
            Full::Own => HttpError::new(429, own),
            Full::All => HttpError::new(503, all),
        }
    }

    /// 503 with `Retry-After`, by default one second.
    fn throttled(retry_after: Option<Duration>) -> HttpError {
        let retry_after = retry_after.unwrap_or(Duration::from_secs(1));
        HttpError {
            // Rounded up, so that a client does not come too early.
            retry_after_s: retry_after.as_millis().div_ceil(1000).clamp(1, 86_400) as u64,
            ..HttpError::new(503, "the store has too many requests; try again later")
        }
    }

    /// The sentence of the body.
    pub(crate) fn detail(&self) -> &'static str {
        self.detail
    }

    /// The response to a client that may not do what it asks for: 401 if it can log in, otherwise
    /// 403 (RFC 9110 §15.5.2, §15.5.4).
    pub(crate) fn not_permitted(identity: &Identity) -> HttpError {
        match identity.can_log_in && identity.name().is_none() {
            true => HttpError::new(401, "log in to do this"),
            false => HttpError::new(403, "you may not do this"),
        }
    }

    /// 429 with `Retry-After` (RFC 6585 §4).
    pub(crate) const fn too_many_logins(retry_after_s: u64) -> HttpError {
        HttpError {
            retry_after_s,
            ..HttpError::new(429, "too many failed logins; try again later")
        }
    }

    /// The response: a line of text, or a problem document (RFC 9457) if the client prefers JSON.
    pub(crate) fn into_response(self, request: &Request) -> Response {
        self.render(prefers_json(request))
    }

    /// The same as [`HttpError::into_response`], for use after the request's head was dropped.
    pub(in crate::files) fn render(self, json: bool) -> Response {
        let HttpError {
            status,
            detail,
            retry_after_s,
        } = self;
        let title = reason_phrase(status);
        let response = if json {
            let text = format!(
                "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{status},\
                 \"detail\":\"{detail}\"}}\n"
            );
            Response::with_body(text).content_type("application/problem+json")
        } else {
            Response::text(format!("{detail}\n"))
        };
        let response = response
            .with_status(status)
            .with_header("Vary", "Accept")
            .with_header("Cache-Control", "no-cache")
            .with_header("X-Content-Type-Options", "nosniff");
        match status {
            401 => with_challenges(response),
            429 | 502..=504 => response.with_header("Retry-After", retry_after_s.to_string()),
            // The codings that would be accepted (RFC 9110 §12.5.3, §15.5.16).
            415 => response.with_header("Accept-Encoding", "identity"),
            _ => response,
        }
    }
}

/// The ways to log in (RFC 7617 §2, RFC 6750 §3), one on each line: some clients read only the
/// first challenge of a line, and some only the first line. So `Basic` is first, which browsers and
/// clients of WebDAV support. curl and Git choose among all, and a client that has a token sends it
/// without a challenge.
fn with_challenges(response: Response) -> Response {
    let basic = "Basic realm=\"onrush\", charset=\"UTF-8\"";
    let mut response = response.with_header("WWW-Authenticate", basic);
    // A constant value is valid.
    let _ = response.append_header("WWW-Authenticate", "Bearer realm=\"onrush\"");
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn full() -> StoreError {
        // A public way to create a cause. The status depends only on the variant.
        StoreError::Full(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn failures_are_text_or_problem_documents() {
        let failure = HttpError::from_store(full(), Operation::Write);
        let response = failure.render(true);
        assert_eq!(response.status(), 507);
        assert_eq!(
            response.header("content-type"),
            Some(&b"application/problem+json"[..])
        );
        let line = failure.detail.len() as u64 + 1;
        assert_eq!(failure.render(false).body().length(), Some(line));
        for (retry_after, seconds) in [(None, "1"), (Some(1), "1"), (Some(2001), "3")] {
            let retry_after = retry_after.map(Duration::from_millis);
            let throttled = StoreError::Throttled { retry_after };
            let response = HttpError::from_store(throttled, Operation::Read).render(false);
            assert_eq!(response.status(), 503);
            assert_eq!(response.header("retry-after"), Some(seconds.as_bytes()));
        }
        for (error, status) in [
            (StoreError::Unsupported, 501),
            (StoreError::Unavailable, 503),
            (StoreError::Interrupted, 503),
            (StoreError::Timeout, 504),
            (StoreError::BadResponse, 502),
        ] {
            let response = HttpError::from_store(error, Operation::Write).render(false);
            assert_eq!(response.status(), status);
            assert_eq!(response.header("retry-after").is_some(), status != 501);
        }
        assert_eq!(
            HttpError::from_store(StoreError::InvalidKey, Operation::Read),
            HttpError::NOT_FOUND
        );
    }
}
