//! Secrets of URLs in the log: who reads it must not be able to use them. They are the values of
//! parameters that make a URL valid, of this server (signed URLs, unfinished uploads) and of
//! others, which are in `Referer` and in targets that clients send here by mistake, and the user
//! and password in front of a host.
//!
//! A name is found in each spelling: in capitals, percent-encoded, and encoded several times, as in
//! a URL that is the parameter of another one. A value ends where the URL or its parameter does, so
//! its own spelling does not matter.

use std::borrow::Cow;

/// Parameters of this server, which are found anywhere.
const OWN: [&str; 2] = ["onrush-signature", "upload-id"];
/// Names whose value is a secret.
const NAMES: [&str; 14] = [
    "sig",
    "auth",
    "key",
    "pwd",
    "pass",
    "jwt",
    "code",
    "sid",
    "session",
    "sessionid",
    "otp",
    "pin",
    "hmac",
    "authorization",
];
/// What the name of a parameter contains if its value is a secret, as in `access_token` and
/// `X-Amz-Signature`.
const PARTS: [&str; 10] = [
    "token",
    "signature",
    "secret",
    "passw",
    "credential",
    "apikey",
    "api_key",
    "api-key",
    "accesskey",
    "access_key",
];
const REPLACEMENT: &str = "REDACTED";

/// Replaces the secrets of each URL in a line of the log. The line may be text, in which a
/// character is itself or has a backslash in front, or contain values as lists of the numbers of
/// their bytes.
pub(crate) fn redact(line: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(line);
    for replaced in [redact_lists, redact_parameters, redact_users] {
        if let Some(redacted) = replaced(&text) {
            text = Cow::Owned(redacted);
        }
    }
    text
}

/// A byte of a text after decoding, and where its spelling ends.
struct Decoded {
    byte: u8,
    end: usize,
}

/// The bytes of a text, in lower case and without percent-encoding.
fn decode(text: &[u8]) -> Vec<Decoded> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let (byte, end) = escape(text, at).unwrap_or((text[at], at + 1));
        let byte = byte.to_ascii_lowercase();
        decoded.push(Decoded { byte, end });
        at = end;
    }
    decoded
}

/// The byte that is encoded at a position, once or several times, as in `%41` and `%2541`.
fn escape(text: &[u8], at: usize) -> Option<(u8, usize)> {
    if text[at] != b'%' {
        return None;
    }
    let mut digits = at + 1;
    loop {
        let pair = text.get(digits..digits + 2)?;
        let value = |digit: u8| char::from(digit).to_digit(16);
        let byte = (value(pair[0])? << 4 | value(pair[1])?) as u8;
        digits += 2;
        let is_escape = |pair: &[u8]| pair.iter().all(u8::is_ascii_hexdigit);
        if byte != b'%' || !text.get(digits..digits + 2).is_some_and(is_escape) {
            return Some((byte, digits));
        }
    }
}

/// Where the values of secret parameters begin in a text.
fn values(text: &[u8]) -> Vec<usize> {
    let decoded = decode(text);
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.[]".contains(&byte);
    let mut values = Vec::new();
    // The first byte of what may be a name, and whether it follows what begins a parameter.
    let (mut start, mut is_parameter) = (0, false);
    let mut name = String::new();
    for (at, Decoded { byte, end }) in decoded.iter().enumerate() {
        if is_name(*byte) {
            continue;
        }
        if *byte == b'=' {
            name.clear();
            name.extend(decoded[start..at].iter().map(|one| char::from(one.byte)));
            let is_own = OWN.iter().any(|own| name.ends_with(own));
            let is_other = NAMES.contains(&&*name) || PARTS.iter().any(|part| name.contains(part));
            if is_own || (is_parameter && is_other) {
                values.push(*end);
            }
        }
        (start, is_parameter) = (at + 1, b"?&;#".contains(byte));
    }
    values
}

fn redact_parameters(line: &str) -> Option<String> {
    if !line.contains(['?', '%', '&', '#', ';']) && !OWN.iter().any(|own| line.contains(own)) {
        return None;
    }
    let mut redacted = String::with_capacity(line.len());
    let mut done = 0;
    for value in values(line.as_bytes()) {
        if value < done {
            continue; // It is a part of another secret.
        }
        redacted.push_str(line.get(done..value)?);
        redacted.push_str(REPLACEMENT);
        done = value + value_bytes(&line[value..]);
    }
    redacted.push_str(&line[done..]);
    (done > 0).then_some(redacted)
}

/// The length of a value that a text begins with. It is not decoded: an encoded `&` belongs to it.
fn value_bytes(text: &str) -> usize {
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => drop(characters.next()), // The next one ends nothing.
            '&' | '"' | '#' => return at,
            character if character.is_whitespace() => return at,
            _ => {}
        }
    }
    text.len()
}

/// Removes the user, and the password, in front of the host of a URL.
fn redact_users(line: &str) -> Option<String> {
    const MARK: &str = "://";
    let is_end = |c: char| "/?#\"".contains(c) || c.is_whitespace();
    let mut parts = line.split(MARK);
    let mut redacted = parts.next()?.to_owned();
    let mut has_users = false;
    for part in parts {
        let authority = &part[..part.find(is_end).unwrap_or(part.len())];
        redacted.push_str(MARK);
        match authority.rfind('@') {
            Some(at) => {
                redacted.push_str(REPLACEMENT);
                redacted.push_str(&part[at..]);
                has_users = true;
            }
            None => redacted.push_str(part),
        }
    }
    has_users.then_some(redacted)
}

/// A list of bytes ends with the first secret in it: what follows is of no use in such a rare
/// entry.
fn redact_lists(line: &str) -> Option<String> {
    let mut redacted = String::new();
    let mut rest = line;
    while let Some(start) = rest.find('[') {
        let (before, list) = rest.split_at(start + 1);
        redacted.push_str(before);
        let end = list.find(|c: char| !c.is_ascii_digit() && c != ',' && c != ' ');
        let (list, after) = list.split_at(end.unwrap_or(list.len()));
        let separator = if list.contains(", ") { ", " } else { "," };
        let numbers: Vec<&str> = list.split(separator).collect();
        let bytes: Option<Vec<u8>> = numbers.iter().map(|number| number.parse().ok()).collect();
        let first = bytes.and_then(|bytes| values(&bytes).first().copied());
        match first {
            Some(first) => {
                redacted.push_str(&numbers[..first].join(separator));
                redacted.push_str(separator);
                redacted.push_str("88"); // An X, so that it stays a list.
            }
            None => redacted.push_str(list),
        }
        rest = after;
    }
    redacted.push_str(rest);
    (redacted != line).then_some(redacted)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The target of a signed URL, twice.
    pub(crate) const SIGNED: &str =
        "/a?onrush-user=ann&onrush-expires=1&onrush-signature=c2VjcmV0-_&onrush-signature=c2VjcmV0";

    #[test]
    fn only_signatures_are_replaced() {
        assert_eq!(
            redact(SIGNED),
            "/a?onrush-user=ann&onrush-expires=1&onrush-signature=REDACTED&\
             onrush-signature=REDACTED"
        );
        assert_eq!(redact("/a?upload-id=0f&x=1"), "/a?upload-id=REDACTED&x=1");
        assert!(matches!(redact("/a?x=1"), Cow::Borrowed("/a?x=1")));
        let bytes = format!("{:?} x", b"\xffonrush-signature=c2&x");
        let expected = format!("{:?} x", b"\xffonrush-signature=X");
        assert_eq!(redact(&bytes), expected);
        assert_eq!(
            redact(&bytes.replace(", ", ",")),
            expected.replace(", ", ",")
        );
    }

    #[test]
    fn each_spelling_of_a_name_is_found() {
        for (text, expected) in [
            ("/a?%73ig=s3", "/a?%73ig=REDACTED"),
            ("/a?x=1&to%6ben=s3&y=2", "/a?x=1&to%6ben=REDACTED&y=2"),
            ("/a?TOKEN=s3", "/a?TOKEN=REDACTED"),
            ("/a?%54%4F%4b%45%4E%3Ds3", "/a?%54%4F%4b%45%4E%3DREDACTED"),
            ("/a?X-Amz-Signature=s3#f", "/a?X-Amz-Signature=REDACTED#f"),
            (
                "/a?access_token=a.b~c:d!e,f;g@h",
                "/a?access_token=REDACTED",
            ),
            ("/a?token=%73%33%26x=1&y=2", "/a?token=REDACTED&y=2"),
            (
                "/a?%6fnrush-%73ignature=s3",
                "/a?%6fnrush-%73ignature=REDACTED",
            ),
            ("/a?upload%2Did=s3", "/a?upload%2Did=REDACTED"),
            (
                "/login?next=%2Fb%3Ftoken%3Ds3%26y%3D2&z=3",
                "/login?next=%2Fb%3Ftoken%3DREDACTED&z=3",
            ),
            (
                "/login?next=%252Fb%253Fto%25256ben%253Ds3&z=3",
                "/login?next=%252Fb%253Fto%25256ben%253DREDACTED&z=3",
            ),
            ("/a#access_token=s3", "/a#access_token=REDACTED"),
            (
                "target=\"/a?token=s\\\"3\\\\\" peer=::1",
                "target=\"/a?token=REDACTED\" peer=::1",
            ),
            (
                "{\"target\":\"/a?token=s\\\"3\",\"peer\":1}",
                "{\"target\":\"/a?token=REDACTED\",\"peer\":1}",
            ),
            (
                "\"http://ann:s3@h/a?b\" https://s3@h x@y",
                "\"http://REDACTED@h/a?b\" https://REDACTED@h x@y",
            ),
            ("/a?password=s3 HTTP/1.1", "/a?password=REDACTED HTTP/1.1"),
        ] {
            assert_eq!(redact(text), expected, "{text}");
            let bytes = text.as_bytes();
            if text.starts_with('/') {
                let list = format!("[{:?}", bytes);
                assert!(!redact(&list).contains("115, 51"), "{text}");
            }
        }
    }

    #[test]
    fn everything_else_stays() {
        for text in [
            "/a?limit=10&after=b&sort=name",
            "/token=a/b",
            "/monkey?monkey=1&design=2&assign=3&keyboard=4",
            "/a%20b%?%zz=%4&%=%25",
            "GET /100%25 [1, 2, 3] [x] [",
            "message: token=visible, without a URL",
            "Ünïcode %C3%9C?x=ü",
        ] {
            assert!(matches!(redact(text), Cow::Borrowed(_)), "{text}");
        }
    }
}
