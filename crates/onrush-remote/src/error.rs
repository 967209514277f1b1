//! What a failure of the service means for the caller.

use http::StatusCode;
use http::header::{HeaderMap, RETRY_AFTER};
use object_store::Error;
use object_store::client::{HttpError, HttpErrorKind};
use onrush_store::StoreError;
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

/// What the body of a 503 of the service contains.
const NOT_MADE: [&[u8]; 2] = [b"<Code>SlowDown</Code>", b"<Code>ServiceUnavailable</Code>"];

/// If the service wants a longer pause before a repetition, the client gets its response.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How a request to the service failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The service responded with an error.
    Status {
        status: u16,
        retry_after: Option<Duration>,
    },
    /// No connection, or it ended before the response.
    Connection,
    /// The service did not respond in time.
    Timeout,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Status { status, .. } => write!(f, "status {status}"),
            Failure::Connection => f.write_str("no connection"),
            Failure::Timeout => f.write_str("no response in time"),
        }
    }
}

impl Failure {
    /// The failure of a response with an error status.
    pub(crate) fn of_response(status: StatusCode, headers: &HeaderMap) -> Failure {
        let field = headers.get(RETRY_AFTER);
        let seconds = field.and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Failure::Status {
            status: status.as_u16(),
            retry_after: seconds.map(Duration::from_secs),
        }
    }

    /// Whether the client repeats such a request: there was no response, or it reports a failure of
    /// the service.
    pub(crate) fn may_be_repeated(self) -> bool {
        match self {
            Failure::Status { status, .. } => status >= 500 || status == 429,
            Failure::Connection | Failure::Timeout => true,
        }
    }

    /// How long to wait before a repetition at least, as [`pause`] says.
    pub(crate) fn pause(self) -> Option<Duration> {
        match self {
            Failure::Status { retry_after, .. } if self.may_be_repeated() => pause(retry_after),
            _ => Some(Duration::ZERO),
        }
    }

    /// Whether a change whose request failed so may have been made. `body`: the beginning of that
    /// of a 503, as far as it arrived.
    ///
    /// A service that has too many requests says so before it makes the change, and says it in its
    /// own words or tells when to come back. The 503 of a proxy may mean that it has passed the
    /// request on and lost the connection to the service.
    pub(crate) fn is_uncertain(self, body: &[u8]) -> bool {
        match self {
            Failure::Status {
                status: 503,
                retry_after,
            } => {
                let says = |code: &[u8]| body.windows(code.len()).any(|window| window == code);
                retry_after.is_none() && !NOT_MADE.iter().any(|code| says(code))
            }
            Failure::Status {
                status: 501 | 507, ..
            } => false,
            Failure::Status { status, .. } => status >= 500,
            Failure::Connection | Failure::Timeout => true,
        }
    }

    /// Whether the service does not accept the key of the request, or what it asks for.
    pub(crate) fn is_refusal(self) -> bool {
        // An expired token is a 400.
        matches!(
            self,
            Failure::Status {
                status: 400 | 401 | 403,
                ..
            }
        )
    }

    pub(crate) fn to_store_error(self) -> StoreError {
        match self {
            // SlowDown of S3 is a 503; Ceph may use 429 as well.
            Failure::Status {
                status: 429 | 503,
                retry_after,
            } => StoreError::Throttled { retry_after },
            Failure::Status {
                status: 401 | 403, ..
            } => StoreError::PermissionDenied(io::ErrorKind::PermissionDenied.into()),
            Failure::Status { status: 404, .. } => StoreError::NotFound,
            Failure::Status { status: 501, .. } => StoreError::Unsupported,
            Failure::Status { status: 507, .. } => {
                StoreError::Full(io::ErrorKind::StorageFull.into())
            }
            Failure::Status {
                status: 500..=599, ..
            }
            | Failure::Connection => StoreError::Unavailable,
            Failure::Timeout | Failure::Status { status: 408, .. } => StoreError::Timeout,
            // The range of a request lies beyond the end: the reader knows what that means.
            Failure::Status { status: 416, .. } => {
                StoreError::Io(io::ErrorKind::InvalidInput.into())
            }
            Failure::Status { .. } => StoreError::BadResponse,
        }
    }
}

/// How long to wait before a repetition at least, if the service has said `retry_after`. `None` if
/// that is too long for a client that waits.
pub(crate) fn pause(retry_after: Option<Duration>) -> Option<Duration> {
    let pause = retry_after.unwrap_or_default();
    (pause <= LONGEST_WAIT).then_some(pause)
}

/// The error of a change that may have been made. Its last request has failed with `error`, which
/// may only mean that it was not made again.
pub(crate) fn uncertain(error: StoreError) -> StoreError {
    match error {
        StoreError::Timeout | StoreError::BadResponse => error, // They say so themselves.
        _ => StoreError::Interrupted,
    }
}

/// Translates a refusal (403) with the beginning of its body: a quota of Ceph is reported so.
pub(crate) fn refusal(body: &str) -> StoreError {
    match body.contains("<Code>QuotaExceeded</Code>") {
        true => StoreError::Full(io::ErrorKind::QuotaExceeded.into()),
        false => StoreError::PermissionDenied(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Translates an error of `object_store`. `last`: how the last request failed.
pub(crate) fn store_error(error: &Error, last: Option<Failure>) -> StoreError {
    match error {
        Error::NotFound { .. } => StoreError::NotFound,
        Error::AlreadyExists { .. } | Error::Precondition { .. } => StoreError::PreconditionFailed,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => StoreError::Unsupported,
        Error::PermissionDenied { source, .. } | Error::Unauthenticated { source, .. } => {
            refusal(&source.to_string())
        }
        Error::InvalidPath { .. } => StoreError::InvalidKey,
        error => match (last, cause(error)) {
            (Some(last), _) if last.may_be_repeated() => last.to_store_error(),
            (_, Some(HttpErrorKind::Timeout)) => StoreError::Timeout,
            (_, Some(HttpErrorKind::Connect)) => StoreError::Unavailable,
            // A body ended early. If it is that of an error, its status is not what has failed.
            (_, Some(_)) => StoreError::BadResponse,
            (Some(last), None) => last.to_store_error(),
            (None, None) => StoreError::BadResponse,
        },
    }
}

/// How the transfer of a response failed, if the error is no other one.
fn cause(error: &Error) -> Option<HttpErrorKind> {
    let mut source: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<HttpError>() {
            return Some(error.kind());
        }
        // A body that has fewer bytes than announced.
        if error.is::<io::Error>() {
            return Some(HttpErrorKind::Interrupted);
        }
        source = error.source();
    }
    None
}

/// An error and its causes on one line.
pub(crate) fn causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let shown = cause.to_string();
        if !text.contains(&shown) {
            text += ": ";
            text += &shown;
        }
        source = cause.source();
    }
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_the_meaning_of_the_service() {
        let of = |status, retry_after| {
            let failure = Failure::Status {
                status,
                retry_after,
            };
            failure.to_store_error()
        };
        let retry_after = Some(Duration::from_secs(7));
        assert_eq!(of(503, retry_after), StoreError::Throttled { retry_after });
        assert_eq!(of(500, None), StoreError::Unavailable);
        assert_eq!(of(501, None), StoreError::Unsupported);
        assert_eq!(of(408, None), StoreError::Timeout);
        assert!(matches!(of(416, None), StoreError::Io(_)));
        for status in [301, 400, 405] {
            assert_eq!(of(status, None), StoreError::BadResponse);
        }
        assert!(matches!(
            refusal("<Code>AccessDenied</Code>"),
            StoreError::PermissionDenied(_)
        ));
        assert!(matches!(
            refusal("<Code>QuotaExceeded</Code>"),
            StoreError::Full(_)
        ));
        assert_eq!(Failure::Timeout.to_store_error(), StoreError::Timeout);
    }
}
