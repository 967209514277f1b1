//! Range requests (RFC 9110 §14): resolves byte ranges against a size.
//!
//! The ranges never cover more bytes than the file. The caller frames and sends the parts.

use crate::{date, etag::EntityTag, token};
use std::ops::Range;

/// Most members of one `Range` field. A field with more is ignored, as RFC 9110 §14.2 allows,
/// because no reader of one file needs so many at once: zchunk (of dnf) asks for up to 256.
pub const MEMBERS_MAX: usize = 256;

/// What a `Range` field requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requested {
    /// Respond with 200 and the whole representation: the field is malformed, has another unit or
    /// too many members, or its ranges together cover the whole.
    Whole,
    /// Respond with 206 and these ranges.
    Satisfiable(Ranges),
    /// Respond with 416 and [`write_unsatisfied`].
    Unsatisfiable,
}

/// One or more non-empty ranges inside the size, in the requested order, with at least one byte
/// between any two of them. Allocates only for more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    first: Range<u64>,
    more: Vec<Range<u64>>,
}

impl Ranges {
    /// The range, if there is only one. Its response does not need `multipart/byteranges`.
    pub fn single(&self) -> Option<Range<u64>> {
        self.more.is_empty().then(|| self.first.clone())
    }

    /// All ranges as byte offsets. The end is exclusive.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        std::iter::once(self.first.clone()).chain(self.more.iter().cloned())
    }

    /// Number of ranges, 1 to [`MEMBERS_MAX`].
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        1 + self.more.len()
    }

    /// Total bytes of all ranges. Less than the size if there are several ranges.
    pub fn total_bytes(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }
}

/// Parses the value of a `Range` field for a representation of `size` bytes.
///
/// Overlapping and adjacent ranges become one, in the place of the earliest of them. A single range
/// that covers the whole stays a range, because players send `bytes=0-` to detect range support. In
/// an empty representation, a suffix means the whole, and any other range is unsatisfiable.
///
/// ```
/// use onrush_proto::range::{Requested, parse};
/// let Requested::Satisfiable(ranges) = parse(b"bytes=-500", 10_000) else { panic!() };
/// assert_eq!(ranges.single(), Some(9_500..10_000));
/// assert_eq!(parse(b"bytes=10000-", 10_000), Requested::Unsatisfiable);
/// assert_eq!(parse(b"lines=1-2", 10_000), Requested::Whole);
/// ```
pub fn parse(value: &[u8], size: u64) -> Requested {
    let Some(set) = byte_set(value) else {
        return Requested::Whole;
    };
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut first: Option<Range<u64>> = None;
    let mut members = 0;
    for member in token::list(set).filter(|member| !member.is_empty()) {
        members += 1;
        let Some(spec) = Spec::parse(member).filter(|_| members <= MEMBERS_MAX) else {
            return Requested::Whole;
        };
        match spec.resolve(size) {
            Resolved::Nothing => {}
            Resolved::Everything => return Requested::Whole,
            Resolved::Bytes(range) => match first.take() {
                // One range needs no list.
                None if found.is_empty() => first = Some(range),
                earlier => {
                    found.extend(earlier);
                    coalesce(&mut found, range);
                }
            },
        }
    }
    if members == 0 {
        return Requested::Whole;
    }
    if let Some(first) = first {
        return Requested::Satisfiable(Ranges {
            first,
            more: Vec::new(),
        });
    }
    match found.first() {
        None => Requested::Unsatisfiable,
        Some(whole) if *whole == (0..size) => Requested::Whole,
        Some(_) => {
            let first = found.remove(0);
            Requested::Satisfiable(Ranges { first, more: found })
        }
    }
}

/// The bytes that a field with one member requests, as far as that is known without the size: the
/// end may lie beyond it, and is `u64::MAX` if the field has none. `None` for a suffix, several
/// members, or a malformed field.
///
/// ```
/// use onrush_proto::range::requested_bytes;
/// assert_eq!(requested_bytes(b"bytes=10-19"), Some(10..20));
/// assert_eq!(requested_bytes(b"bytes=10-"), Some(10..u64::MAX));
/// assert_eq!(requested_bytes(b"bytes=-10"), None);
/// ```
pub fn requested_bytes(value: &[u8]) -> Option<Range<u64>> {
    let mut members = token::list(byte_set(value)?).filter(|member| !member.is_empty());
    match (Spec::parse(members.next()?)?, members.next()) {
        (Spec::From { first, last }, None) => Some(first..last.saturating_add(1)),
        _ => None,
    }
}

/// The value after `bytes=`. The unit is case-insensitive (RFC 9110 §14.1).
fn byte_set(value: &[u8]) -> Option<&[u8]> {
    let (unit, set) = value.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

/// Adds `range` to `ranges`. Merges it with all ranges that it overlaps or touches, in the place of
/// the earliest of them. The loop repeats because a merged range may touch another one; there are
/// at most [`MEMBERS_MAX`].
fn coalesce(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    let mut merged = range;
    let mut place = ranges.len();
    while let Some(at) = ranges
        .iter()
        .position(|have| have.start <= merged.end && merged.start <= have.end)
    {
        let have = ranges.remove(at);
        merged = merged.start.min(have.start)..merged.end.max(have.end);
        place = place.min(at);
    }
    ranges.insert(place.min(ranges.len()), merged);
}

/// One member as written, with inclusive ends. Numbers beyond 64 bits become `u64::MAX`.
enum Spec {
    From { first: u64, last: u64 },
    Suffix(u64),
}

enum Resolved {
    Bytes(Range<u64>),
    /// Covers no existing byte.
    Nothing,
    /// The whole of an empty representation, which no range can express.
    Everything,
}

impl Spec {
    fn parse(member: &[u8]) -> Option<Spec> {
        let dash = member.iter().position(|&b| b == b'-')?;
        let (first, last) = (&member[..dash], &member[dash + 1..]);
        match (first, last) {
            ([], last) => Some(Spec::Suffix(saturating(last)?)),
            (first, []) => Some(Spec::From {
                first: saturating(first)?,
                last: u64::MAX,
            }),
            (first, last) => {
                let (first_byte, last_byte) = (saturating(first)?, saturating(last)?);
                // A range with last < first is malformed, not unsatisfiable (RFC 9110 §14.1.1).
                (first_byte <= last_byte).then_some(Spec::From {
                    first: first_byte,
                    last: last_byte,
                })
            }
        }
    }

    fn resolve(&self, size: u64) -> Resolved {
        match *self {
            Spec::Suffix(0) => Resolved::Nothing,
            Spec::Suffix(_) if size == 0 => Resolved::Everything,
            Spec::Suffix(count) => Resolved::Bytes(size.saturating_sub(count)..size),
            Spec::From { first, .. } if first >= size => Resolved::Nothing,
            Spec::From { first, last } => Resolved::Bytes(first..last.saturating_add(1).min(size)),
        }
    }
}

/// Parses a decimal number; numbers beyond 64 bits become `u64::MAX`.
fn saturating(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(token::decimal(digits).unwrap_or(u64::MAX))
}

/// Whether the `Range` field applies despite this `If-Range` value (RFC 9110 §13.1.5). The value
/// must be a strong tag equal to the current one, or the exact date of the last modification
/// (seconds since 1970). Otherwise send the whole representation.
pub fn if_range(value: &[u8], etag: Option<EntityTag<'_>>, modified_s: Option<u64>) -> bool {
    if value.starts_with(b"\"") || value.starts_with(b"W/") {
        let asked = EntityTag::parse(value);
        return asked
            .zip(etag)
            .is_some_and(|(asked, etag)| asked.matches_strongly(&etag));
    }
    date::parse(value)
        .zip(modified_s)
        .is_some_and(|(asked, modified)| asked == modified)
}

/// Appends the `Content-Range` value of a part: `bytes 0-499/1234` (RFC 9110 §14.4). `range` must
/// not be empty and must end within `size`.
pub fn write_content_range(range: &Range<u64>, size: u64, out: &mut Vec<u8>) {
    debug_assert!(range.start < range.end && range.end <= size);
    let mut number = itoa::Buffer::new();
    out.extend_from_slice(b"bytes ");
    out.extend_from_slice(number.format(range.start).as_bytes());
    out.push(b'-');
    out.extend_from_slice(number.format(range.end - 1).as_bytes());
    out.push(b'/');
    out.extend_from_slice(number.format(size).as_bytes());
}

/// Appends the `Content-Range` value of a 416: `bytes */1234`.
pub fn write_unsatisfied(size: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(b"bytes */");
    out.extend_from_slice(itoa::Buffer::new().format(size).as_bytes());
}
