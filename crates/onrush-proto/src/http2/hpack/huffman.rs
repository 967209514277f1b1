//! The Huffman code of header strings (RFC 7541 §5.2, Appendix B).
//!
//! The code is canonical: codes of one length ascend with their symbols, and a longer code follows
//! the shorter ones. So the lengths define it, and the tables are computed from them.

use super::Malformed;

/// The lengths of the codes of all bytes, in bits.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
     6, 10, 10, 12, 13,  6,  8, 11, 10, 10,  8, 11,  8,  6,  6,  6,
     5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8, 15,  6, 12, 10,
    13,  6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
     7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8, 13, 19, 13, 14,  6,
    15,  5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,
     6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// The length of the longest code, and of the one that ends a string (EOS), which no string has.
const LENGTH_MAX: usize = 30;

/// Codes of up to this length are found by one look into a table.
const SHORT_BITS: u32 = 9;

const WRONG_END: Malformed = Malformed("a string has a wrong end");

/// The code of each byte, in the low bits.
static CODES: [u32; 256] = codes();

/// By the next [`SHORT_BITS`] bits: the byte and the length of its code; a length of 0 for a code
/// that is longer.
static SHORT: [(u8, u8); 1 << SHORT_BITS] = short();

/// The bytes, ordered by their codes.
static ORDERED: [u8; 256] = ordered();

/// For each length: the first code of a greater length, aligned to [`LENGTH_MAX`] bits; and what is
/// subtracted from a code of this length to find its place in [`ORDERED`].
static LONG: [(u32, u32); LENGTH_MAX + 1] = long();

const fn ordered() -> [u8; 256] {
    let (mut ordered, mut count, mut length) = ([0; 256], 0, 1);
    while length <= LENGTH_MAX {
        let mut byte = 0;
        while byte < 256 {
            if LENGTHS[byte] as usize == length {
                ordered[count] = byte as u8;
                count += 1;
            }
            byte += 1;
        }
        length += 1;
    }
    ordered
}

const fn codes() -> [u32; 256] {
    let ordered = ordered();
    let (mut codes, mut place, mut next, mut bits) = ([0; 256], 0, 0u32, 0);
    while place < 256 {
        let byte = ordered[place] as usize;
        next <<= LENGTHS[byte] - bits;
        bits = LENGTHS[byte];
        codes[byte] = next;
        next += 1;
        place += 1;
    }
    codes
}

const fn short() -> [(u8, u8); 1 << SHORT_BITS] {
    let codes = codes();
    let (mut short, mut byte) = ([(0, 0); 1 << SHORT_BITS], 0);
    while byte < 256 {
        let length = LENGTHS[byte];
        if length as u32 <= SHORT_BITS {
            let free = SHORT_BITS - length as u32;
            let mut rest = 0;
            while rest < 1 << free {
                short[((codes[byte] as usize) << free) | rest] = (byte as u8, length);
                rest += 1;
            }
        }
        byte += 1;
    }
    short
}

const fn long() -> [(u32, u32); LENGTH_MAX + 1] {
    let (codes, ordered) = (codes(), ordered());
    let (mut long, mut place, mut length) = ([(0, 0); LENGTH_MAX + 1], 0, 1);
    while length <= LENGTH_MAX {
        let first = place;
        while place < 256 && LENGTHS[ordered[place] as usize] as usize == length {
            place += 1;
        }
        let mut end = long[length - 1].0;
        let mut offset = 0;
        if place > first {
            end = (codes[ordered[place - 1] as usize] + 1) << (LENGTH_MAX - length);
            offset = codes[ordered[first] as usize].wrapping_sub(first as u32);
        }
        long[length] = (end, offset);
        length += 1;
    }
    long
}

/// The number of bytes that `text` has as a code.
pub(super) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = (text
        .iter()
        .map(|&byte| usize::from(LENGTHS[usize::from(byte)])))
    .sum();
    bits.div_ceil(8)
}

/// Appends the code of `text`, padded with the first bits of EOS.
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let (mut bits, mut count) = (0u64, 0u32);
    for &byte in text {
        let length = u32::from(LENGTHS[usize::from(byte)]);
        bits = (bits << length) | u64::from(CODES[usize::from(byte)]);
        count += length;
        if count >= 32 {
            count -= 32;
            out.extend_from_slice(&((bits >> count) as u32).to_be_bytes());
        }
    }
    let padding = count.next_multiple_of(8) - count;
    bits = (bits << padding) | ((1 << padding) - 1);
    let bytes = ((count + padding) / 8) as usize;
    out.extend_from_slice(&bits.to_be_bytes()[8 - bytes..]);
}

/// Appends the text of a code. Fails if it contains EOS, or is not padded with up to seven bits of
/// it.
pub(super) fn decode(code: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    // `count` bits of the code are in the high bits of `bits`; ones follow, as in the padding.
    let (mut bits, mut count) = (u64::MAX, 0u32);
    let mut rest = code;
    out.reserve(code.len() + code.len() / 2);
    loop {
        while count <= 56 {
            let Some((&byte, after)) = rest.split_first() else {
                break;
            };
            bits &= !(0xff << (56 - count)) | (u64::from(byte) << (56 - count));
            count += 8;
            rest = after;
        }
        let (byte, length) = match SHORT[(bits >> (64 - SHORT_BITS)) as usize] {
            (_, 0) => {
                let code = (bits >> (64 - LENGTH_MAX)) as u32;
                let Some(length) =
                    (SHORT_BITS as usize + 1..=LENGTH_MAX).find(|&length| code < LONG[length].0)
                else {
                    // Only ones: the padding, or EOS.
                    return if count < 8 { Ok(()) } else { Err(WRONG_END) };
                };
                let place = (code >> (LENGTH_MAX - length)).wrapping_sub(LONG[length].1);
                (ORDERED[place as usize], length as u32)
            }
            (byte, length) => (byte, u32::from(length)),
        };
        if length > count {
            return Err(WRONG_END); // The padding has a zero.
        }
        out.push(byte);
        bits = (bits << length) | ((1 << length) - 1);
        count -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(text, &mut out);
        assert_eq!(out.len(), encoded_len(text));
        out
    }

    fn decoded(code: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut out = Vec::new();
        decode(code, &mut out).map(|()| out)
    }

    #[test]
    fn the_examples_of_the_rfc_hold() {
        let examples: [(&str, &[u8]); 3] = [
            (
                "www.example.com",
                b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
            ),
            ("no-cache", b"\xa8\xeb\x10\x64\x9c\xbf"),
            ("302", b"\x64\x02"),
        ];
        for (text, code) in examples {
            assert_eq!(encoded(text.as_bytes()), code);
            assert_eq!(decoded(code).as_deref(), Ok(text.as_bytes()));
        }
    }

    #[test]
    fn the_codes_are_complete() {
        // The sum over all codes, with EOS, of the space that each takes (Kraft).
        let space: u64 = LENGTHS.iter().map(|&length| 1 << (30 - length)).sum();
        assert_eq!(space + 1, 1 << 30);
        assert_eq!(CODES[usize::from(b'0')], 0);
        assert_eq!((CODES[22], LENGTHS[22]), (0x3fff_fffe, 30));
        assert_eq!((CODES[256 - 1], LENGTHS[256 - 1]), (0x3ff_ffee, 26));
    }

    #[test]
    fn each_text_is_read_as_written() {
        let all: Vec<u8> = (0..=255).collect();
        for first in 0..=255 {
            for length in 0..40 {
                let text: Vec<u8> = (all.iter().cycle().skip(first).step_by(7))
                    .take(length)
                    .copied()
                    .collect();
                assert_eq!(decoded(&encoded(&text)).as_deref(), Ok(&text[..]));
            }
        }
    }

    #[test]
    fn a_wrong_end_is_refused() {
        assert_eq!(decoded(b"").as_deref(), Ok(&b""[..]));
        // Eight bits of padding; EOS; a zero within the padding; a code that ends early.
        let wrong: [&[u8]; 4] = [b"\xff", b"\xff\xff\xff\xff", b"\x06", b"\xff\xfe"];
        for code in wrong {
            assert_eq!(decoded(code), Err(WRONG_END), "{code:?}");
        }
        let whole = encoded(b"0");
        assert_eq!(whole, [0b0000_0111]);
        assert_eq!(
            decoded(&[0b0000_0111, 0xff]),
            Err(WRONG_END),
            "15 bits of padding"
        );
    }
}
