//! Elements of DER (ITU-T X.690), for the few structures that `x509-parser` does not cover: private
//! keys, OCSP responses, and the exact bytes of algorithm identifiers.

/// Tags of the elements that are read here.
pub(super) mod tag {
    pub(in crate::tls) const INTEGER: u8 = 0x02;
    pub(in crate::tls) const BIT_STRING: u8 = 0x03;
    pub(in crate::tls) const OCTET_STRING: u8 = 0x04;
    pub(in crate::tls) const OBJECT_IDENTIFIER: u8 = 0x06;
    pub(in crate::tls) const ENUMERATED: u8 = 0x0a;
    pub(in crate::tls) const SEQUENCE: u8 = 0x30;
    /// `[0]` around another element.
    pub(in crate::tls) const EXPLICIT_0: u8 = 0xa0;
}

/// An element of DER.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    /// The element with its tag and length.
    pub(super) whole: &'a [u8],
}

/// The elements of a content, one after the other.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(content: &'a [u8]) -> Reader<'a> {
        Reader { rest: content }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next element. `None` if the input ends, or is not DER with tags and lengths of usual
    /// sizes.
    pub(super) fn any(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.rest.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                let length = digits
                    .iter()
                    .fold(0_u32, |sum, &digit| (sum << 8) | u32::from(digit));
                (usize::try_from(length).ok()?, rest)
            }
            _ => return None,
        };
        // A tag with further bytes does not occur in these structures.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (content, rest) = rest.split_at_checked(length)?;
        let whole = &self.rest[..self.rest.len() - rest.len()];
        self.rest = rest;
        Some(Element {
            tag,
            content,
            whole,
        })
    }

    /// The content of the next element, which must have this tag.
    pub(super) fn content(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.any()
            .filter(|element| element.tag == tag)
            .map(|element| element.content)
    }

    /// The elements inside the next element, which must have this tag.
    pub(super) fn inside(&mut self, tag: u8) -> Option<Reader<'a>> {
        self.content(tag).map(Reader::new)
    }

    /// The content of the next element if it has this tag. Another element is not consumed.
    pub(super) fn optional(&mut self, tag: u8) -> Option<&'a [u8]> {
        match self.rest.first() == Some(&tag) {
            true => self.content(tag),
            false => None,
        }
    }
}

/// The elements of the sequence that is all of `der`.
pub(super) fn sequence(der: &[u8]) -> Option<Reader<'_>> {
    let mut reader = Reader::new(der);
    let inside = reader.inside(tag::SEQUENCE)?;
    reader.is_empty().then_some(inside)
}

/// The bytes of a BIT STRING's content that has no unused bits.
pub(super) fn whole_bytes(bit_string: &[u8]) -> Option<&[u8]> {
    match bit_string.split_first() {
        Some((0, bytes)) => Some(bytes),
        _ => None,
    }
}

/// The number of bits of a positive INTEGER's content.
pub(super) fn bits(integer: &[u8]) -> usize {
    let zeros = integer.iter().take_while(|&&byte| byte == 0).count();
    match integer.get(zeros) {
        Some(first) => 8 * (integer.len() - zeros) - first.leading_zeros() as usize,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_one_by_one() {
        let mut reader = sequence(&[0x30, 7, 0x02, 1, 5, 0x0a, 0x81, 1, 9]).unwrap();
        assert_eq!(reader.optional(tag::ENUMERATED), None);
        assert_eq!(reader.content(tag::INTEGER), Some(&[5][..]));
        let last = reader.any().unwrap();
        assert_eq!(
            (last.tag, last.content, last.whole),
            (0x0a, &[9][..], &[0x0a, 0x81, 1, 9][..])
        );
        assert!(reader.is_empty());
        assert_eq!(reader.any(), None);
    }

    #[test]
    fn malformed_input_is_refused() {
        for input in [
            &[][..],
            &[0x30],
            &[0x30, 1],
            &[0x30, 0x80, 0, 0],
            &[0x30, 0x82, 1],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x30, 0x85, 0, 0, 0, 0, 0],
            &[0x3f, 0x22, 0],
        ] {
            assert_eq!(Reader::new(input).any(), None, "{input:?}");
        }
        assert!(sequence(&[0x30, 0, 0]).is_none(), "bytes follow");
        assert!(sequence(&[0x31, 0]).is_none(), "not a sequence");
    }

    #[test]
    fn bits_are_counted_without_leading_zeros() {
        assert_eq!(bits(&[]), 0);
        assert_eq!(bits(&[0]), 0);
        assert_eq!(bits(&[1]), 1);
        assert_eq!(bits(&[0, 0x80, 0]), 16);
        assert_eq!(whole_bytes(&[0, 7]), Some(&[7][..]));
        assert_eq!(whole_bytes(&[1, 7]), None);
    }
}
