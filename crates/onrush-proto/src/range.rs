//! Range requests (RFC 9110 §14): byte ranges against a size, never more than the file.
//!
//! Must not know how parts are framed or sent.

use crate::{date, etag::EntityTag, token};
use std::ops::Range;

/// Members of one `Range` field that are looked at; a set with more is ignored as a whole, for
/// no reader of one file needs so many at once (RFC 9110 §14.2 allows it).
pub const MEMBERS_MAX: usize = 64;

/// What a `Range` field asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requested {
    /// Answer 200 with everything: the field is malformed, of another unit, excessive, or several
    /// ranges that together are the whole.
    Whole,
    /// Answer 206 with these.
    Satisfiable(Ranges),
    /// Answer 416 with [`write_unsatisfied`].
    Unsatisfiable,
}

/// At least one range: not empty, inside the size, apart from each other by at least one byte,
/// and in the order they were asked for. Allocates only for more than one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    first: Range<u64>,
    more: Vec<Range<u64>>,
}

impl Ranges {
    /// The only range, when there is just one: answer without `multipart/byteranges`.
    pub fn single(&self) -> Option<Range<u64>> {
        self.more.is_empty().then(|| self.first.clone())
    }

    /// All ranges, byte offsets, the end not included.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        std::iter::once(self.first.clone()).chain(self.more.iter().cloned())
    }

    /// How many ranges there are, 1 to [`MEMBERS_MAX`].
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        1 + self.more.len()
    }

    /// Bytes of content in all ranges together; less than the size when there are several.
    pub fn total_bytes(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }
}

/// Reads the value of a `Range` field against a representation of `size` bytes.
///
/// Overlapping and touching ranges become one, in the place of the earliest of them. One range
/// that is the whole stays a range (`bytes=0-` is how players ask whether ranges work). Of an
/// empty representation a suffix is the whole and anything else unsatisfiable.
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

/// What follows `bytes=`; the unit is compared without case (RFC 9110 §14.1).
fn byte_set(value: &[u8]) -> Option<&[u8]> {
    let (unit, set) = value.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(set)
}

/// Adds `range` to `ranges`, swallowing all it overlaps or touches into the earliest of those.
/// Growing may make it touch another, so it looks again; there are at most 64.
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

/// One member as written, ends inclusive. Numbers beyond 64 bits are as good as the largest.
enum Spec {
    From { first: u64, last: u64 },
    Suffix(u64),
}

enum Resolved {
    Bytes(Range<u64>),
    /// Asks for nothing that is there.
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
                // Backwards is malformed, not unsatisfiable (RFC 9110 §14.1.1).
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

/// Digits alone; what does not fit becomes the largest number.
fn saturating(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(token::decimal(digits).unwrap_or(u64::MAX))
}

/// Whether an `If-Range` value lets the `Range` field count (RFC 9110 §13.1.5): a strong tag equal
/// to the current one, or the very date of the last modification (seconds since 1970). When not,
/// the whole is to be sent.
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
/// not be empty and must lie in the size.
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
