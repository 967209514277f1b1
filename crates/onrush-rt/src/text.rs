//! Conversion of bytes to text that is known to be ASCII.

/// Returns `bytes` as text, or `None` when one of them is not ASCII.
///
/// Most parts of a request head are ASCII and short. For them this takes a fraction of the time of
/// [`std::str::from_utf8`], which checks such bytes one by one.
///
/// ```
/// assert_eq!(onrush_rt::text::ascii(b"/a"), Some("/a"));
/// assert_eq!(onrush_rt::text::ascii("/ä".as_bytes()), None);
/// ```
#[inline]
#[allow(unsafe_code)]
pub fn ascii(bytes: &[u8]) -> Option<&str> {
    // SAFETY: bytes below 128 are UTF-8, each one character.
    (bytes.is_ascii()).then(|| unsafe { std::str::from_utf8_unchecked(bytes) })
}

#[cfg(test)]
mod tests {
    use super::ascii;

    #[test]
    fn only_what_is_ascii_is_text_at_every_length_and_place() {
        let mut bytes = [b'a'; 70];
        for length in 0..bytes.len() {
            assert_eq!(ascii(&bytes[..length]).map(str::len), Some(length));
            for at in 0..length {
                bytes[at] = 0x80;
                assert_eq!(ascii(&bytes[..length]), None, "{at} of {length}");
                bytes[at] = b'a';
            }
        }
    }
}
