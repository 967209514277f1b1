//! Why a request is refused before any handler sees it. Must not know how answers are written.

/// A refusal: the status to answer and a short fixed reason. The connection closes after it.
///
/// The reason is a constant of this program; it never repeats input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Status code, 400 to 599.
    pub status: u16,
    /// One short English phrase for the body and the log.
    pub reason: &'static str,
}

impl Reject {
    /// A refusal with this status (400 to 599) and this phrase.
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
