//! The reason to refuse a request before it gets to a handler. [`crate::connection`] renders the
//! response.

/// A refusal: the response status and a short fixed reason. The connection closes after it.
///
/// The reason is a constant of this program; it never contains input.
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
