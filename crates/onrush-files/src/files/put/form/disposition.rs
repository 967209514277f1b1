//! The parameters of `Content-Disposition` and `Content-Type`, and the name of a file in a form
//! (RFC 7578 §4.2).
//!
//! Clients write names in four ways, and all are read: quoted with backslashes (RFC 9110 §5.6.4),
//! with the percent escapes of browsers (HTML Standard, "multipart/form-data encoding algorithm"),
//! as `filename*` (RFC 8187), and as encoded words (RFC 2047).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use onrush_proto::token;
use percent_encoding::percent_decode;

/// The name of a file, as the client has written it and as it is stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FileName {
    /// For messages.
    pub(super) written: Vec<u8>,
    /// Without folders and control characters. Empty: there is no usable name.
    pub(super) name: Vec<u8>,
}

/// The file name of a `Content-Disposition`: the inner `None` if it has none, the outer one if the
/// value is malformed. `filename*` takes precedence (RFC 6266 §4.3), unless it is malformed.
pub(super) fn file_name(disposition: &[u8]) -> Option<Option<FileName>> {
    let parameters = parameters(disposition)?;
    let plain = single(&parameters, b"filename")?;
    let extended = single(&parameters, b"filename*")?;
    let decoded = extended.and_then(extended_value);
    let (written, decoded) = match (decoded, plain, extended) {
        (Some(decoded), _, _) => (decoded.clone(), Some(decoded)),
        (None, Some(plain), _) => (plain.to_vec(), plain_value(plain)),
        (None, None, Some(extended)) => (extended.to_vec(), None),
        (None, None, None) => return Some(None),
    };
    let name = decoded.map(|name| base_name(&name)).unwrap_or_default();
    Some(Some(FileName { written, name }))
}

/// The value of the only parameter with this name: the inner `None` if there is none, the outer one
/// if there are several.
fn single<'p>(parameters: &'p [(&[u8], Vec<u8>)], wanted: &[u8]) -> Option<Option<&'p [u8]>> {
    let mut found = parameters
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
    let first = found.next().map(|(_, value)| &value[..]);
    found.next().is_none().then_some(first)
}

/// The value of the only parameter with this name.
pub(super) fn parameter(value: &[u8], wanted: &[u8]) -> Option<Vec<u8>> {
    single(&parameters(value)?, wanted)?.map(<[u8]>::to_vec)
}

/// The parameters of a value, `; name=value` or `; name="value"`. `None` if a quote does not end,
/// or if something follows it.
fn parameters(value: &[u8]) -> Option<Vec<(&[u8], Vec<u8>)>> {
    let mut parameters = Vec::new();
    let start = value.iter().position(|&byte| byte == b';');
    let mut rest = &value[start.unwrap_or(value.len())..];
    while let [b';', after @ ..] = rest {
        let end = after.iter().position(|byte| matches!(byte, b'=' | b';'));
        let (name, after) = after.split_at(end.unwrap_or(after.len()));
        let (value, after) = match after {
            [b'=', after @ ..] => match token::trim(after) {
                [b'"', quoted @ ..] => unquote(quoted)?,
                plain => {
                    let end = plain.iter().position(|&byte| byte == b';');
                    let (value, after) = plain.split_at(end.unwrap_or(plain.len()));
                    (token::trim(value).to_vec(), after)
                }
            },
            after => (Vec::new(), after),
        };
        parameters.push((token::trim(name), value));
        rest = token::trim(after);
    }
    rest.is_empty().then_some(parameters)
}

/// The content of a quoted value, and what follows the quote. Browsers do not escape a backslash,
/// and old ones send whole paths of Windows. So a backslash is an escape only before a quote and
/// before a backslash.
fn unquote(mut quoted: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut value = Vec::with_capacity(quoted.len());
    loop {
        (value, quoted) = match quoted {
            [b'"', after @ ..] => return Some((value, after)),
            [b'\\', escaped @ (b'"' | b'\\'), rest @ ..] | [escaped, rest @ ..] => {
                value.push(*escaped);
                (value, rest)
            }
            [] => return None,
        };
    }
}

/// A value with a character set, `UTF-8'en'%e2%82%ac` (RFC 8187 §3.2).
fn extended_value(value: &[u8]) -> Option<Vec<u8>> {
    let mut fields = value.splitn(3, |&byte| byte == b'\'');
    let (charset, _language, text) = (fields.next()?, fields.next()?, fields.next()?);
    let is_escape = |at: usize| {
        let digits = text.get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let mut bytes = text.iter().enumerate();
    if bytes.any(|(at, &byte)| byte == b'%' && !is_escape(at)) {
        return None;
    }
    in_utf8(charset, percent_decode(text).collect())
}

/// A value of `filename`. `None` if it has encoded words that cannot be decoded: their text is not
/// the name.
fn plain_value(value: &[u8]) -> Option<Vec<u8>> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let mut decoded = Vec::with_capacity(value.len());
    // Whether the last word was an encoded one, and the white space that follows it.
    let (mut after_word, mut space): (bool, &[u8]) = (false, b"");
    for piece in value.chunk_by(|a, b| is_space(a) == is_space(b)) {
        if is_space(&piece[0]) {
            space = piece;
            continue;
        }
        let word = encoded_word(piece);
        // White space between two encoded words is no part of the text (RFC 2047 §6.2).
        if !(after_word && word.is_some()) {
            decoded.extend_from_slice(space);
        }
        (after_word, space) = (word.is_some(), b"");
        match word {
            Some(word) => decoded.extend(word?),
            None => decoded.extend(without_escapes(piece)),
        }
    }
    decoded.extend_from_slice(space);
    Some(decoded)
}

/// An encoded word, `=?charset?encoding?text?=` (RFC 2047 §2). The outer `None`: it is another
/// word. The inner one: it cannot be decoded.
fn encoded_word(word: &[u8]) -> Option<Option<Vec<u8>>> {
    let inner = word.strip_prefix(b"=?")?.strip_suffix(b"?=")?;
    let fields: Vec<&[u8]> = inner.split(|&byte| byte == b'?').collect();
    let [charset, encoding, text] = fields[..] else {
        return None;
    };
    // A language may follow the character set (RFC 2231 §5).
    let charset = charset.split(|&byte| byte == b'*').next()?;
    let bytes = match encoding {
        b"B" | b"b" => STANDARD.decode(text).ok(),
        b"Q" | b"q" => decode_q(text),
        _ => None,
    };
    Some(bytes.and_then(|bytes| in_utf8(charset, bytes)))
}

/// Decodes the encoding "Q" (RFC 2047 §4.2).
fn decode_q(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    loop {
        (decoded, text) = match text {
            [] => return Some(decoded),
            [b'=', rest @ ..] => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                decoded.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
                (decoded, &rest[2..])
            }
            [byte, rest @ ..] => {
                decoded.push(if *byte == b'_' { b' ' } else { *byte });
                (decoded, rest)
            }
        };
    }
}

/// Converts text from a character set that clients use for names.
fn in_utf8(charset: &[u8], bytes: Vec<u8>) -> Option<Vec<u8>> {
    match &charset.to_ascii_lowercase()[..] {
        b"utf-8" | b"utf8" => std::str::from_utf8(&bytes).is_ok().then_some(bytes),
        b"us-ascii" => bytes.is_ascii().then_some(bytes),
        b"iso-8859-1" => {
            let text: String = bytes.into_iter().map(char::from).collect();
            Some(text.into_bytes())
        }
        _ => None,
    }
}

/// Undoes the escapes of browsers. A line end is left out.
fn without_escapes(mut text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    while let Some((&byte, rest)) = text.split_first() {
        text = match text {
            [b'%', b'2', b'2', rest @ ..] => {
                decoded.push(b'"');
                rest
            }
            [b'%', b'0', b'D' | b'A', rest @ ..] => rest,
            _ => {
                decoded.push(byte);
                rest
            }
        };
    }
    decoded
}

/// A name without folders of the client, whose separator may be a backslash, and without control
/// characters. Empty if nothing usable is left.
fn base_name(name: &[u8]) -> Vec<u8> {
    let name = name.rsplit(|&byte| matches!(byte, b'/' | b'\\')).next();
    let mut name = name.unwrap_or_default().to_vec();
    name.retain(|byte| !byte.is_ascii_control());
    match &name[..] {
        b"." | b".." => Vec::new(),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_each_form() {
        for (parameters, name) in [
            ("filename=a.txt", "a.txt"),
            ("filename = \"a.txt\" ; x=y", "a.txt"),
            ("filename=\"C:\\Users\\a b.txt\"", "a b.txt"),
            ("filename=\"\\\\server\\share\\a.txt\"", "a.txt"),
            ("filename=\"../../etc/passwd\"", "passwd"),
            ("filename=\"%22q%22%0D%0A.txt\"", "\"q\".txt"),
            ("filename=\"a\\\"b.txt\"", "a\"b.txt"),
            ("filename=\"\\\"; filename=\\\"x\"", "\"; filename=\"x"),
            ("filename=\"a\tb\u{7f}\"", "ab"),
            ("filename=\"100%.txt\"", "100%.txt"),
            ("filename=\"ü\"", "ü"),
            ("filename*=UTF-8''%e2%82%ac%20rates", "€ rates"),
            ("filename*=utf-8'en'a%2Fb%22c", "b\"c"),
            ("filename*=iso-8859-1''%A3", "£"),
            ("filename=\"EURO\"; filename*=UTF-8''%e2%82%ac", "€"),
            ("filename*=UTF-8''%e2%82%ac; filename=\"EURO\"", "€"),
            ("filename=\"a\"; filename*=UTF-8''%f", "a"),
            ("filename=\"a\"; filename*=UTF-8''%ff", "a"),
            ("filename=\"a\"; filename*=x-unknown''b", "a"),
            ("filename=\"=?UTF-8?B?xI1hai50eHQ=?=\"", "čaj.txt"),
            ("filename=\"=?utf-8?q?a=20b=5Fc_d?=\"", "a b_c d"),
            ("filename==?iso-8859-1*en?Q?=FC?=", "ü"),
            ("filename=\"=?utf-8?Q?a?= =?utf-8?Q?b?= c.txt\"", "ab c.txt"),
            ("filename=\"=?x?= =?= ?\"", "=?x?= =?= ?"),
            ("filename=\"a  b \"", "a  b "),
        ] {
            let value = format!("form-data; name=\"f;filename=z\"; {parameters}");
            let found = file_name(value.as_bytes()).expect("well-formed");
            let found = found.expect("a file").name;
            assert_eq!(String::from_utf8_lossy(&found), name, "{parameters}");
        }
    }

    #[test]
    fn a_name_that_cannot_be_used_is_empty() {
        for parameters in [
            "filename=\"\"",
            "filename=",
            "filename",
            "filename=\"..\"",
            "filename=\".\"",
            "filename=\"a/\"",
            "filename=\"a\\\\\"",
            "filename=\"=?x-unknown?B?YQ==?=\"",
            "filename=\"=?utf-8?B?Y?=\"",
            "filename=\"=?utf-8?Q?=+1?=\"",
            "filename=\"=?utf-8?X?a?=\"",
            "filename=\"=?utf-8?Q?=FF?=\"",
            "filename*=\"x\"",
            "filename*=UTF-8''%2e%2e",
            "filename*=UTF-8''",
        ] {
            let value = format!("form-data; name=f; {parameters}");
            let found = file_name(value.as_bytes()).expect("well-formed");
            assert_eq!(found.expect("a file").name, b"", "{parameters}");
        }
    }

    #[test]
    fn parameters_are_found() {
        let of = |value: &str, name: &str| {
            let found = parameter(value.as_bytes(), name.as_bytes());
            found.map(|value| String::from_utf8(value).expect("text"))
        };
        let disposition = "form-data; name=\"a;filename=\"; FileName=\"x; y.txt\"";
        assert_eq!(of(disposition, "filename").as_deref(), Some("x; y.txt"));
        assert_eq!(of(disposition, "name").as_deref(), Some("a;filename="));
        assert_eq!(of("; boundary=x ; a=b", "boundary").as_deref(), Some("x"));
        assert_eq!(
            of("; flag; boundary=\"x y\"", "boundary").as_deref(),
            Some("x y")
        );
        for none in [
            "",
            "; a",
            "; boundary=\"x",
            "boundary=x",
            "; boundary=\"x\"y",
        ] {
            assert_eq!(of(none, "boundary"), None, "{none}");
        }
        for malformed in [
            "; filename=\"a\\\"",
            "; filename=a; filename=b",
            "; a=\"b\"c",
        ] {
            assert_eq!(file_name(malformed.as_bytes()), None, "{malformed}");
        }
        assert_eq!(file_name(b"form-data; name=f"), Some(None));
    }
}
