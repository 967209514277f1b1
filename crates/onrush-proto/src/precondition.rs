//! Conditional requests (RFC 9110 §13) evaluated in the order the RFC gives.
//!
//! Must not know how the resource is kept, nor how outcomes are answered. `If-Range` is
//! [`crate::range::if_range`], for it never stops a request.
//!
//! Where a field is malformed, the reading that does no harm is taken: a tag list that cannot be
//! read guards a write (412) and does not spare a read its content (200); a date that cannot be
//! read, or is given more than once, is ignored, as the RFC demands.

use crate::{
    date,
    etag::{EntityTag, Tags, tags},
};

/// What is known of the target resource's current representation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Current<'a> {
    /// Whether there is one.
    pub exists: bool,
    /// Its tag, if it has one.
    pub etag: Option<EntityTag<'a>>,
    /// When it was last modified: seconds since 1970, as `Last-Modified` would say.
    pub modified_s: Option<u64>,
}

/// What the conditions let happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Do what the method says.
    Proceed,
    /// Answer 304.
    NotModified,
    /// Answer 412; nothing must be changed.
    Failed,
}

/// Evaluates the conditions among `fields` (name, value), which may be all fields of a request;
/// names are compared without case, and each may occur several times. `reads`: the method is GET
/// or HEAD.
///
/// The order is that of RFC 9110 §13.2.2: If-Match, else If-Unmodified-Since; then If-None-Match,
/// else, for reads, If-Modified-Since.
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

/// Whether the resource was modified after the date asked for; `None` when either is not known.
fn later(modified_s: Option<u64>, asked: Dated) -> Option<bool> {
    match (modified_s, asked) {
        (Some(modified_s), Dated::Once(Some(date_s))) => Some(modified_s > date_s),
        _ => None,
    }
}

/// The conditions of one request, as far as they have passed by.
#[derive(Default)]
struct Asked {
    if_match: Option<Tagged>,
    if_none_match: Option<Tagged>,
    if_modified_since: Dated,
    if_unmodified_since: Dated,
}

/// All lines of one list of tags, against the current tag.
#[derive(Clone, Copy, Default)]
struct Tagged {
    matched: bool,
    malformed: bool,
}

#[derive(Clone, Copy, Default)]
enum Dated {
    #[default]
    Absent,
    /// Seconds since 1970; `None` when malformed.
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
