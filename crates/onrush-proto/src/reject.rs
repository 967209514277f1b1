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
