//! Tokens, comma lists and quoted strings (RFC 9110 §5.6), for all fields alike.

/// The classes of each byte; one table lookup instead of a chain of comparisons.
static CLASS: [u8; 256] = class_table();

const TCHAR: u8 = 1;
const VALUE: u8 = 2;
const HOST: u8 = 4;

const fn class_table() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let b = byte as u8;
        let alphanumeric = b.is_ascii_alphanumeric();
        if alphanumeric || is_one_of(b, b"!#$%&'*+-.^_`|~") {
            table[byte] |= TCHAR;
        }
        if b == b'\t' || (b >= b' ' && b != 0x7f) {
            table[byte] |= VALUE;
        }
        if alphanumeric || is_one_of(b, b"-._~!$&'()*+,;=") {
            table[byte] |= HOST;
        }
        byte += 1;
    }
    table
}

const fn is_one_of(byte: u8, set: &[u8]) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}

/// Whether `byte` may occur in a token (RFC 9110 §5.6.2).
#[inline]
pub fn is_tchar(byte: u8) -> bool {
    CLASS[byte as usize] & TCHAR != 0
}

/// Whether `byte` may occur in a field value: tab, space, visible ASCII, obs-text (RFC 9110 §5.5).
#[inline]
pub fn is_value_byte(byte: u8) -> bool {
    CLASS[byte as usize] & VALUE != 0
}

/// Whether `byte` may occur unencoded in a registered name: unreserved or sub-delims
/// (RFC 3986 §3.2.2), so not `%`, `:` or brackets.
#[inline]
pub fn is_reg_name_byte(byte: u8) -> bool {
    CLASS[byte as usize] & HOST != 0
}

/// Whether `bytes` are one token: at least one byte, and [`is_tchar`] for all of them.
#[inline]
pub fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|&b| is_tchar(b))
}

/// Whether `bytes` may be a field value: no control character except tab. May be empty.
#[inline]
pub fn is_field_value(bytes: &[u8]) -> bool {
    bytes.iter().all(|&b| is_value_byte(b))
}

/// `bytes` without spaces and tabs at either end (OWS, RFC 9110 §5.6.3).
#[inline]
pub fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// The members of a comma list (RFC 9110 §5.6.1), trimmed and in order. **Includes empty members**,
/// because their meaning depends on the field. Commas in quoted strings do not separate members.
/// An empty value has one empty member.
pub fn list(value: &[u8]) -> List<'_> {
    List { rest: Some(value) }
}

/// Iterator over list members, returned by [`list`].
#[derive(Clone, Debug)]
pub struct List<'a> {
    /// The members not yet returned; `None` after the last one.
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for List<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let end = member_end(rest);
        self.rest = rest.get(end + 1..);
        Some(trim(&rest[..end]))
    }
}

/// Position of the first comma outside quoted strings, or the length.
fn member_end(bytes: &[u8]) -> usize {
    let mut quoted = false;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => quoted = !quoted,
            b'\\' if quoted => at += 1,
            b',' if !quoted => return at,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

/// Whether the comma list `value` has the member `name`. The name is case-insensitive.
#[inline]
pub fn list_contains(value: &[u8], name: &str) -> bool {
    // Nearly every such field has one member only.
    value.eq_ignore_ascii_case(name.as_bytes())
        || (value.len() > name.len()
            && list(value).any(|member| member.eq_ignore_ascii_case(name.as_bytes())))
}

/// Splits a quoted string (RFC 9110 §5.6.4) off the start of `bytes`. Returns the bytes between the
/// quotes, with unresolved escapes, and the bytes after the closing quote. `None` if `bytes` do not
/// start with a complete, well-formed quoted string.
pub fn quoted_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = bytes.strip_prefix(b"\"")?;
    let mut at = 0;
    loop {
        match *inner.get(at)? {
            b'"' => return Some((&inner[..at], &inner[at + 1..])),
            b'\\' => {
                if !is_value_byte(*inner.get(at + 1)?) {
                    return None;
                }
                at += 2;
            }
            byte if is_value_byte(byte) => at += 1,
            _ => return None,
        }
    }
}

/// What a member such as `gzip;q=0.5` of `Accept` or `Accept-Encoding` names, without its
/// parameters, and its weight in thousandths (RFC 9110 §12.4.2). A member without a valid weight
/// has 1000.
pub fn weighted(member: &[u8]) -> (&[u8], u16) {
    let mut parts = member.split(|&byte| byte == b';').map(trim);
    let named = parts.next().unwrap_or_default();
    (named, parts.find_map(weight).unwrap_or(1000))
}

/// The weight in a parameter such as `q=0.5`, in thousandths. `None` if it is another parameter or
/// malformed.
fn weight(parameter: &[u8]) -> Option<u16> {
    let (name, digits) = parameter.split_at_checked(2)?;
    if !name.eq_ignore_ascii_case(b"q=") {
        return None;
    }
    let weight: f32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    (0.0..=1.0)
        .contains(&weight)
        .then_some((weight * 1000.0) as u16)
}

/// The media type in a value of `Content-Type`, without its parameters (RFC 9110 §8.3.1). Its case
/// has no meaning. What is not a media type is returned as it is.
pub fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Parses a decimal number (`1*DIGIT`): one or more digits, no sign, no space. `None` for other
/// bytes, and if the number does not fit 64 bits.
#[inline]
pub fn decimal(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() {
        return None;
    }
    let mut number: u64 = 0;
    for &byte in bytes {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_essence_has_no_parameters() {
        assert_eq!(essence("text/html"), "text/html");
        assert_eq!(essence(" Text/HTML ; charset=utf-8; a=b"), "Text/HTML");
        assert_eq!(essence("; charset=utf-8"), "");
    }

    #[test]
    fn members_have_the_weight_that_they_state_or_1000() {
        for (member, named, expected) in [
            ("gzip", "gzip", 1000),
            ("gzip;q=0.5", "gzip", 500),
            ("text/html ; level=1 ;\tQ=0.25", "text/html", 250),
            ("*;q=0", "*", 0),
            ("gzip;q=1.5", "gzip", 1000),
            ("gzip;q=x", "gzip", 1000),
            ("gzip;q=x;q=0.1", "gzip", 100),
            ("", "", 1000),
        ] {
            assert_eq!(
                weighted(member.as_bytes()),
                (named.as_bytes(), expected),
                "{member}"
            );
        }
    }
}
