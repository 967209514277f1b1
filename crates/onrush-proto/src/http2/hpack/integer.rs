//! Integers with a prefix of 1 to 8 bits (RFC 7541 §5.1).

use super::Malformed;

/// A value that needs more than this many bytes after its prefix is refused: 28 bits are more than
/// any length or table size that is accepted.
const BYTES_MAX: u32 = 4;

/// Takes an integer from the front of `block`, whose first byte has `prefix_bits` bits of it.
pub(super) fn take(block: &mut &[u8], prefix_bits: u32) -> Result<usize, Malformed> {
    let (&first, mut rest) = block
        .split_first()
        .ok_or(Malformed("the block ends early"))?;
    let mask = prefix_mask(prefix_bits);
    let mut value = usize::from(first & mask);
    if first & mask == mask {
        let mut shift = 0;
        loop {
            let (&byte, after) = rest
                .split_first()
                .ok_or(Malformed("the block ends early"))?;
            rest = after;
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
            if shift == 7 * BYTES_MAX {
                return Err(Malformed("an integer is too large"));
            }
        }
    }
    *block = rest;
    Ok(value)
}

/// Appends `value`. The bits of the first byte above the prefix are those of `first`.
pub(super) fn put(value: usize, prefix_bits: u32, first: u8, out: &mut Vec<u8>) {
    let mask = prefix_mask(prefix_bits);
    if value < usize::from(mask) {
        return out.push(first | value as u8);
    }
    out.push(first | mask);
    let mut rest = value - usize::from(mask);
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn prefix_mask(prefix_bits: u32) -> u8 {
    (0xffu32 >> (8 - prefix_bits)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: usize, prefix_bits: u32) -> Vec<u8> {
        let mut out = Vec::new();
        put(value, prefix_bits, 0, &mut out);
        out
    }

    #[test]
    fn the_examples_of_the_rfc_hold() {
        assert_eq!(encoded(10, 5), [10]);
        assert_eq!(encoded(1337, 5), [31, 154, 10]);
        assert_eq!(encoded(42, 8), [42]);
    }

    #[test]
    fn each_value_is_read_as_written() {
        for prefix_bits in 1..=8 {
            for value in (0..2000).chain([1 << 20, (1 << 28) - 1]) {
                let mut bytes = encoded(value, prefix_bits);
                bytes.push(0xaa);
                let mut block = &bytes[..];
                assert_eq!(take(&mut block, prefix_bits), Ok(value));
                assert_eq!(block, [0xaa]);
                for end in 0..bytes.len() - 1 {
                    assert!(take(&mut &bytes[..end], prefix_bits).is_err());
                }
            }
        }
    }

    #[test]
    fn a_prefix_ignores_the_bits_above_it() {
        assert_eq!(take(&mut &[0b1110_1010][..], 5), Ok(10));
    }

    #[test]
    fn an_integer_without_end_is_refused() {
        let zeros = [[0x1f].as_slice(), &[0x80; 64], &[0]].concat();
        assert!(take(&mut &zeros[..], 5).is_err());
        assert!(take(&mut &[0x1f, 0xff, 0xff, 0xff, 0xff, 0x0f][..], 5).is_err());
    }
}
