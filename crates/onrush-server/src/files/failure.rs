//! What is told when a request cannot be done: a status and one plain sentence.
//!
//! The sentences are constants, so that neither a path of this machine nor anything a client sent
//! can be in them. This module must not know paths or bodies.

use super::negotiate::prefers_json;
use onrush::{Request, Response};
use onrush_proto::response::reason_phrase;
use onrush_store::StoreError;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: u16,
    pub(super) detail: &'static str,
}

/// Which half of a request failed: what cannot be read is missing, what cannot be written is the
/// request's mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum While {
    Reading,
    Writing,
}

impl Failure {
    pub(crate) const fn new(status: u16, detail: &'static str) -> Failure {
        Failure { status, detail }
    }

    pub(super) const NOT_FOUND: Failure = Failure::new(404, "there is no such object");
    pub(super) const HIDDEN: Failure = Failure::new(403, "names like this are not for writing");
    pub(super) const TOO_DEEP: Failure = Failure::new(400, "too many folders in the path");
    pub(super) const NO_CODINGS: Failure = Failure::new(
        415,
        "this disk has no extended attributes, so Content-Encoding cannot be stored",
    );
    pub(super) const CHANGED: Failure = Failure::new(412, "the object is not as expected");

    /// The answer to a failure of the store.
    pub(super) fn of(error: StoreError, at: While) -> Failure {
        let (status, detail) = match (error, at) {
            (StoreError::NotFound, _) => return Failure::NOT_FOUND,
            (StoreError::InvalidKey, While::Reading) => return Failure::NOT_FOUND,
            (StoreError::InvalidKey, While::Writing) => (400, "this name cannot be stored"),
            (StoreError::NotDirectory, While::Reading) => return Failure::NOT_FOUND,
            (StoreError::NotDirectory, While::Writing) => (409, "an object is in the way"),
            (StoreError::IsDirectory, _) => (409, "this is a folder"),
            (StoreError::Conflict, _) => (409, "a folder, a link or an object is in the way"),
            (StoreError::NotEmpty, _) => (409, "the folder is not empty"),
            (StoreError::PreconditionFailed, _) => return Failure::CHANGED,
            (StoreError::Full(_), _) => (507, "the disk is full"),
            (StoreError::ReadOnly, _) => (503, "the disk is read-only at the moment"),
            (StoreError::TooLarge, _) => (413, "the object is too large for the disk"),
            (StoreError::Forbidden, _) => (403, "access is refused"),
            (StoreError::NoMetadata, _) => return Failure::NO_CODINGS,
            (StoreError::Busy, _) => (503, "the server is out of files or memory, try again"),
            (_, _) => (500, "the disk failed"),
        };
        Failure { status, detail }
    }

    /// The answer: a line of text, or a problem document (RFC 9457) where JSON is preferred.
    pub(crate) fn into_response(self, request: &Request) -> Response {
        self.render(prefers_json(request))
    }

    /// As [`Failure::into_response`], for when the request's head is gone by then.
    pub(super) fn render(self, json: bool) -> Response {
        let Failure { status, detail } = self;
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
            503 => response.with_header("Retry-After", "1"),
            // Which codings would be accepted (RFC 9110 §12.5.3, §15.5.16).
            415 => response.with_header("Accept-Encoding", "identity"),
            _ => response,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn full() -> StoreError {
        // The only public way to a cause; the status depends on the variant.
        StoreError::Full(io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn failures_are_text_or_problem_documents() {
        let failure = Failure::of(full(), While::Writing);
        let response = failure.render(true);
        assert_eq!(response.status(), 507);
        assert_eq!(
            response.header("content-type"),
            Some(&b"application/problem+json"[..])
        );
        assert_eq!(failure.render(false).body().length(), Some(17));
        assert_eq!(
            Failure::of(StoreError::InvalidKey, While::Reading),
            Failure::NOT_FOUND
        );
    }
}
