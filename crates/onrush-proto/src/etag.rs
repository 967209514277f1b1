//! Entity tags (RFC 9110 §8.8.3): parsing, strong and weak comparison, lists.
//! [`crate::precondition`] and [`crate::range`] evaluate conditions with them.

/// One entity tag. Borrowed: it points into a field value or into the resource's own record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntityTag<'a> {
    /// Sent with `W/`: equivalent representations share the tag, but their bytes may differ.
    pub weak: bool,
    /// The bytes between the quotes.
    pub opaque: &'a [u8],
}

impl<'a> EntityTag<'a> {
    /// Creates a strong tag. `None` if `opaque` has bytes that a tag cannot contain: quotes,
    /// spaces, control characters.
    pub fn strong(opaque: &'a [u8]) -> Option<Self> {
        let sound = opaque.iter().all(|&byte| is_opaque(byte));
        sound.then_some(EntityTag {
            weak: false,
            opaque,
        })
    }

    /// Creates a weak tag. Fails as [`strong`](EntityTag::strong) does.
    pub fn weak(opaque: &'a [u8]) -> Option<Self> {
        Self::strong(opaque).map(|tag| EntityTag { weak: true, ..tag })
    }

    /// Parses a value that is exactly one tag, `"x"` or `W/"x"`; otherwise `None`. `W` is
    /// case-sensitive, and quotes are required.
    pub fn parse(value: &'a [u8]) -> Option<Self> {
        match split_tag(value)? {
            (tag, []) => Some(tag),
            _ => None,
        }
    }

    /// Strong comparison: both tags are strong and have the same bytes. For If-Match and If-Range.
    pub fn matches_strongly(&self, other: &EntityTag<'_>) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// Weak comparison: both tags have the same bytes, weak or strong. For If-None-Match.
    pub fn matches_weakly(&self, other: &EntityTag<'_>) -> bool {
        self.opaque == other.opaque
    }

    /// Appends the tag as a field value: `"x"` or `W/"x"`.
    pub fn write(&self, out: &mut Vec<u8>) {
        if self.weak {
            out.extend_from_slice(b"W/");
        }
        out.push(b'"');
        out.extend_from_slice(self.opaque);
        out.push(b'"');
    }
}

/// Parses the value of If-Match or If-None-Match: `*`, or a list of tags.
///
/// ```
/// use onrush_proto::etag::{EntityTag, Tags, tags};
/// let Tags::List(mut list) = tags(br#""a", W/"b,c""#) else { panic!() };
/// assert_eq!(list.next(), Some(Ok(EntityTag::strong(b"a").unwrap())));
/// assert_eq!(list.next(), Some(Ok(EntityTag::weak(b"b,c").unwrap())));
/// assert_eq!(list.next(), None);
/// ```
pub fn tags(value: &[u8]) -> Tags<'_> {
    match crate::token::trim(value) {
        b"*" => Tags::Any,
        rest => Tags::List(TagList { rest }),
    }
}

/// The result of [`tags`].
#[derive(Clone, Debug)]
pub enum Tags<'a> {
    /// `*`: any current representation.
    Any,
    /// A list of tags. The iterator skips empty members.
    List(TagList<'a>),
}

/// The rest of the list is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Iterator over the tags of one field value. It ends after the first malformed member.
#[derive(Clone, Debug)]
pub struct TagList<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for TagList<'a> {
    type Item = Result<EntityTag<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        while let [b' ' | b'\t' | b',', rest @ ..] = self.rest {
            self.rest = rest;
        }
        if self.rest.is_empty() {
            return None;
        }
        let found = split_tag(self.rest).map(|(tag, rest)| (tag, crate::token::trim(rest)));
        match found {
            Some((tag, rest @ ([] | [b',', ..]))) => {
                self.rest = rest;
                Some(Ok(tag))
            }
            _ => {
                self.rest = &[];
                Some(Err(Malformed))
            }
        }
    }
}

/// Splits a tag off the start of `bytes`. Returns the tag and the bytes after its closing quote.
fn split_tag(bytes: &[u8]) -> Option<(EntityTag<'_>, &[u8])> {
    let (weak, quoted) = match bytes {
        [b'W', b'/', rest @ ..] => (true, rest),
        _ => (false, bytes),
    };
    let inner = quoted.strip_prefix(b"\"")?;
    let end = inner.iter().position(|&byte| !is_opaque(byte))?;
    let rest = inner[end..].strip_prefix(b"\"")?;
    Some((
        EntityTag {
            weak,
            opaque: &inner[..end],
        },
        rest,
    ))
}

/// `etagc` (RFC 9110 §8.8.3): any byte except quotes, spaces and control characters. Commas are
/// allowed.
fn is_opaque(byte: u8) -> bool {
    matches!(byte, 0x21 | 0x23..=0x7e | 0x80..)
}
