//! Elements of DER (ITU-T X.690), for the few structures that `x509-parser` does not cover: private
//! keys, OCSP responses, and the exact bytes of algorithm identifiers.

use x509_parser::asn1_rs::Any;
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

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

    /// The tag and the content of the next element. `None` if the input ends, or is not DER with
    /// tags and lengths of usual sizes.
    pub(super) fn any(&mut self) -> Option<(u8, &'a [u8])> {
        let (rest, element) = Any::from_der(self.rest).ok()?;
        // A tag with further bytes does not occur in these structures, nor does a length of 4 GiB.
        let head_bytes = self.rest.len() - rest.len() - element.data.len();
        match element.header.raw_tag() {
            Some([tag]) if head_bytes <= 6 => {
                self.rest = rest;
                Some((*tag, element.data))
            }
            _ => None,
        }
    }

    /// The next element, which must be a time.
    pub(super) fn time(&mut self) -> Option<ASN1Time> {
        let (rest, time) = ASN1Time::from_der(self.rest).ok()?;
        self.rest = rest;
        Some(time)
    }

    /// The content of the next element, which must have this tag.
    pub(super) fn content(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (found, content) = self.any()?;
        (found == tag).then_some(content)
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
        assert_eq!(reader.any(), Some((tag::ENUMERATED, &[9][..])));
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
