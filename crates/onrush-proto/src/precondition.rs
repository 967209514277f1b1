//! Evaluates conditional requests (RFC 9110 §13) in the order of the RFC.
//!
//! The caller describes the resource and sends the response. [`crate::range::if_range`] evaluates
//! `If-Range`, because it never stops a request.
//!
//! A malformed field has the safer effect: a malformed tag list stops a write (412), and a read
//! returns the full content (200). A date that is malformed or occurs more than once is ignored, as
//! the RFC requires.

use crate::{
    date,
    etag::{EntityTag, Tags, tags},
};

/// Describes the target resource's current representation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Current<'a> {
    /// Whether a representation exists.
    pub exists: bool,
    /// Its tag, if it has one.
    pub etag: Option<EntityTag<'a>>,
    /// Time of the last modification in seconds since 1970, as in `Last-Modified`.
    pub modified_s: Option<u64>,
}

/// The result of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Perform the method.
    Proceed,
    /// Respond with 304.
    NotModified,
    /// Respond with 412 and change nothing.
    Failed,
}

/// Evaluates the conditions among `fields` (name, value), which may be all fields of a request.
/// Names are case-insensitive and may occur several times. `reads` is true for GET and HEAD.
///
/// The order is that of RFC 9110 §13.2.2: first If-Match or, without it, If-Unmodified-Since; then
/// If-None-Match or, without it and for reads only, If-Modified-Since.
///
/// ```
/// use onrush_proto::precondition::{Current, Outcome, evaluate};
/// let missing = Current::default();
/// let fields = [("If-None-Match", &b"*"[..])];
/// assert_eq!(evaluate(false, &missing, fields), Outcome::Proceed);
/// let there = Current { exists: true, ..missing };
/// assert_eq!(evaluate(false, &there, fields), Outcome::Failed);
/// ```
pub fn evaluate<'f>(
    reads: bool,
    current: &Current<'_>,
    fields: impl IntoIterator<Item = (&'f str, &'f [u8])>,
) -> Outcome {
    let mut asked = Asked::default();
    for (name, value) in fields {
        asked.scan_field(name, value, current);
    }
    let modified = current.modified_s.filter(|_| current.exists);
    let stopped = match asked.if_match {
        Some(tags) => !tags.matched,
        None => later(modified, asked.if_unmodified_since) == Some(true),
    };
    if stopped {
        return Outcome::Failed;
    }
    match asked.if_none_match {
        Some(tags) if tags.malformed && !reads => Outcome::Failed,
        Some(tags) if tags.matched && reads => Outcome::NotModified,
        Some(tags) if tags.matched => Outcome::Failed,
        Some(_) => Outcome::Proceed,
        None if reads && later(modified, asked.if_modified_since) == Some(false) => {
            Outcome::NotModified
        }
        None => Outcome::Proceed,
    }
}

/// Whether the resource was modified after the date of the field; `None` if either is not known.
fn later(modified_s: Option<u64>, asked: Dated) -> Option<bool> {
    match (modified_s, asked) {
        (Some(modified_s), Dated::Once(Some(date_s))) => Some(modified_s > date_s),
        _ => None,
    }
}

/// The conditions of one request that have been scanned.
#[derive(Default)]
struct Asked {
    if_match: Option<Tagged>,
    if_none_match: Option<Tagged>,
    if_modified_since: Dated,
    if_unmodified_since: Dated,
}

/// Result of comparing all lines of one tag list with the current tag.
#[derive(Clone, Copy, Default)]
struct Tagged {
    matched: bool,
    malformed: bool,
}

#[derive(Clone, Copy, Default)]
enum Dated {
    #[default]
    Absent,
    /// Seconds since 1970; `None` if malformed.
    Once(Option<u64>),
    Repeated,
}

impl Asked {
    fn scan_field(&mut self, name: &str, value: &[u8], current: &Current<'_>) {
        // The length rules out nearly every field of an unconditional request.
        match name.len() {
            8 if name.eq_ignore_ascii_case("if-match") => {
                let tagged = self.if_match.get_or_insert_default();
                tagged.scan_field(value, current, EntityTag::matches_strongly);
            }
            13 if name.eq_ignore_ascii_case("if-none-match") => {
                let tagged = self.if_none_match.get_or_insert_default();
                tagged.scan_field(value, current, EntityTag::matches_weakly);
            }
            17 if name.eq_ignore_ascii_case("if-modified-since") => {
                self.if_modified_since.scan_field(value);
            }
            19 if name.eq_ignore_ascii_case("if-unmodified-since") => {
                self.if_unmodified_since.scan_field(value);
            }
            _ => {}
        }
    }
}

impl Tagged {
    fn scan_field<'a>(
        &mut self,
        value: &'a [u8],
        current: &Current<'a>,
        same: impl Fn(&EntityTag<'a>, &EntityTag<'a>) -> bool,
    ) {
        let list = match tags(value) {
            Tags::Any => {
                self.matched |= current.exists;
                return;
            }
            Tags::List(list) => list,
        };
        let mut empty = true;
        for tag in list {
            empty = false;
            match (tag, current.etag) {
                (Ok(tag), Some(have)) => self.matched |= current.exists && same(&tag, &have),
                (Ok(_), None) => {}
                (Err(_), _) => self.malformed = true,
            }
        }
        self.malformed |= empty;
    }
}

impl Dated {
    fn scan_field(&mut self, value: &[u8]) {
        *self = match self {
            Dated::Absent => Dated::Once(date::parse(value)),
            _ => Dated::Repeated,
        };
    }
}
