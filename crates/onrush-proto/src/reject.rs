//! The reason to refuse a request, because of its head or its body. [`crate::connection`] renders
//! the response.

/// A refusal: the response status and a short fixed reason. The connection closes after it. The
/// error of a read from an invalid body contains one.
///
/// The reason is a constant of this program; it never contains input.
///
/// # Examples
/// ```
/// use onrush_proto::reject::Reject;
/// use std::io;
///
/// fn status_of(error: &io::Error) -> u16 {
///     let reject = error.get_ref().and_then(|inner| inner.downcast_ref::<Reject>());
///     reject.map_or(400, |reject| reject.status)
/// }
/// let error = io::Error::new(io::ErrorKind::InvalidData, Reject::new(431, "too many fields"));
/// assert_eq!(status_of(&error), 431);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Status code, 400 to 599.
    pub status: u16,
    /// One short English phrase for the body and the log.
    pub reason: &'static str,
}

impl Reject {
    /// Creates a refusal with a status (400 to 599) and a phrase.
    pub const fn new(status: u16, reason: &'static str) -> Reject {
        Reject { status, reason }
    }
}

impl std::fmt::Display for Reject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.status, self.reason)
    }
}

impl std::error::Error for Reject {}
