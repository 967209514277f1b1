//! The fields of a `PUT` that describe its content. They are stored with the object and sent with
//! it (RFC 9110 §8, §9.3.4). This module checks them and converts them to and from the stored
//! format.
//!
//! A field that is malformed counts as absent, because clients send such fields with content that
//! is good. `Content-Encoding` is the exception: without it, the content means something else.
//! A [`FORM_TYPE`] counts as absent, too.
//!
//! The format is one line `name: value` for each field, with the name in lower case, ended by a
//! line feed. It is checked again when it is read, because other programs may have written it.

use crate::files::http::http_error::HttpError;
use crate::files::http::media_type;
use onrush::compression::permits_coding;
use onrush::{Request, Response};
use onrush_proto::token;

/// The maximum length of a field value, in bytes.
const VALUE_BYTES_MAX: usize = 1024;

const CONTENT_TYPE: &str = "content-type";
const CONTENT_ENCODING: &str = "content-encoding";

/// The type of the fields of a form. Many clients send it with the body of any request for which no
/// other type is given: `curl --data-binary`, wget, Python's urllib, Perl's LWP and `Net::HTTP` of
/// Ruby. It says nothing about a file, so the name decides.
const FORM_TYPE: &str = "application/x-www-form-urlencoded";

const CACHE_CONTROL: &str = "cache-control";
/// The modification time that the client's file has, in seconds since 1970, as ownCloud defines it.
/// It is shown as `Last-Modified`. Preconditions compare the time of the upload.
pub(in crate::files) const CLIENT_TIME: &str = "x-oc-mtime";

/// Fields of Turborepo, which a build cache keeps: a signature, and the time that the task took.
const ARTIFACT: [&str; 2] = ["x-artifact-tag", "x-artifact-duration"];

/// The fields that are stored, and the syntax of their values.
const FIELDS: [(&str, Syntax); 8] = [
    (CONTENT_TYPE, Syntax::MediaType),
    (CONTENT_ENCODING, Syntax::Tokens),
    (CACHE_CONTROL, Syntax::List),
    ("content-language", Syntax::Tokens),
    ("content-disposition", Syntax::Single),
    (CLIENT_TIME, Syntax::Time),
    (ARTIFACT[0], Syntax::Single),
    (ARTIFACT[1], Syntax::Single),
];

/// The syntax of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    /// One media type (RFC 9110 §8.3.1).
    MediaType,
    /// A list of tokens.
    Tokens,
    /// A list of anything.
    List,
    /// One value of any syntax.
    Single,
    /// Seconds, perhaps with a fraction, which has no meaning.
    Time,
}

impl Syntax {
    fn is_list(self) -> bool {
        matches!(self, Syntax::Tokens | Syntax::List)
    }

    fn accepts(self, value: &[u8]) -> bool {
        let fits = !value.is_empty()
            && value.len() <= VALUE_BYTES_MAX
            && token::is_field_value(value)
            && token::trim(value).len() == value.len();
        fits && match self {
            Syntax::MediaType => value.is_ascii() && media_type::is_valid(value),
            Syntax::Tokens => token::list(value).all(token::is_token),
            Syntax::List | Syntax::Single => true,
            Syntax::Time => seconds(value).is_some(),
        }
    }
}

/// The fields of a `PUT` in the stored format; empty if there are none. The store keeps up to
/// `metadata_bytes_max` bytes of them. If it keeps none, a content coding is refused (415), and
/// other fields are ignored. A malformed content coding gets 400, and a long field 431.
/// `is_artifact`: the object may be one of a build cache.
pub(in crate::files) fn metadata_from_request(
    request: &Request,
    metadata_bytes_max: usize,
    is_artifact: bool,
) -> Result<Vec<u8>, HttpError> {
    let mut metadata = Vec::new();
    for (name, syntax) in FIELDS {
        if request.header(name).is_none() || (ARTIFACT.contains(&name) && !is_artifact) {
            continue; // Looking up one field is cheaper than a pass over all fields.
        }
        let lines = request.headers();
        let lines = lines.filter(|(have, _)| have.eq_ignore_ascii_case(name));
        let Some(value) = join(lines.map(|(_, value)| value), syntax) else {
            continue;
        };
        let is_identity = name == CONTENT_ENCODING && value.eq_ignore_ascii_case(b"identity");
        let is_of_request = name == CACHE_CONTROL && is_of_request(&value);
        let is_form = name == CONTENT_TYPE && media_type::parameters(&value, FORM_TYPE).is_some();
        if value.is_empty() || is_identity || is_of_request || is_form {
            continue;
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(TOO_LONG);
        }
        if !syntax.accepts(&value) {
            match name {
                CONTENT_ENCODING => return Err(BAD_CODING),
                _ => continue,
            }
        }
        if metadata_bytes_max > 0 {
            metadata.extend_from_slice(name.as_bytes());
            metadata.extend_from_slice(b": ");
            metadata.extend_from_slice(&value);
            metadata.push(b'\n');
        } else if name == CONTENT_ENCODING {
            return Err(HttpError::ENCODING_UNSUPPORTED);
        }
    }
    match metadata.len() > metadata_bytes_max {
        true => Err(TOO_LONG),
        false => Ok(metadata),
    }
}

/// Whether a request may have one of the fields, by its name.
pub(in crate::files) fn may_be_stored(name: &str) -> bool {
    match name.as_bytes() {
        [b'c' | b'C', ..] => !name.eq_ignore_ascii_case("content-length"),
        [b'x' | b'X', ..] => {
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            is(CLIENT_TIME) || ARTIFACT.into_iter().any(is)
        }
        _ => false,
    }
}

/// Whether the stored fields have the time of the client's file.
pub(in crate::files) fn has_client_time(metadata: &[u8]) -> bool {
    let mut lines = metadata.split(|&byte| byte == b'\n');
    lines.any(|line| line.starts_with(b"x-oc-mtime: "))
}

/// Whether the stored fields have a content coding.
pub(in crate::files) fn has_coding(metadata: &[u8]) -> bool {
    let mut lines = metadata.split(|&byte| byte == b'\n');
    lines.any(|line| line.starts_with(b"content-encoding: "))
}

/// The stored format of a media type alone. Empty if it is not one, or the store keeps no fields.
pub(in crate::files) fn metadata_of_type(media_type: &[u8], metadata_bytes_max: usize) -> Vec<u8> {
    let line = [CONTENT_TYPE.as_bytes(), b": ", media_type, b"\n"].concat();
    match Syntax::MediaType.accepts(media_type) && line.len() <= metadata_bytes_max {
        true => line,
        false => Vec::new(),
    }
}

const TOO_LONG: HttpError = HttpError::new(
    431,
    "a field to store with the object is longer than 1024 bytes, or all fields are too long",
);

const BAD_CODING: HttpError = HttpError::new(400, "Content-Encoding is not a list of codings");

/// Whether `Cache-Control` is about the request and not about its content (RFC 9111 §5.2.1): Maven
/// sends `no-cache, no-store` with each upload. `no-store` alone is known from those who publish,
/// and `max-age` with a time as well.
fn is_of_request(cache_control: &[u8]) -> bool {
    let of_request = |directive: &[u8]| {
        let name = directive.split(|&byte| byte == b'=').next();
        let is = |known: &str| {
            name.is_some_and(|name| token::trim(name).eq_ignore_ascii_case(known.as_bytes()))
        };
        directive.eq_ignore_ascii_case(b"max-age=0")
            || [
                "no-cache",
                "no-store",
                "max-stale",
                "min-fresh",
                "only-if-cached",
            ]
            .into_iter()
            .any(is)
    };
    let is_alone = cache_control.eq_ignore_ascii_case(b"no-store");
    let mut directives = token::list(cache_control).filter(|directive| !directive.is_empty());
    !is_alone && directives.all(of_request)
}

/// The whole seconds of a time.
fn seconds(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| {
        (1..=12).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let is_time = is_number(whole) && is_number(fraction);
    is_time.then(|| whole.parse().ok())?
}

/// The value of a field from its lines (RFC 9110 §5.3). Empty lines are skipped. `None`: a field
/// that can have only one value has several.
fn join<'r>(lines: impl Iterator<Item = &'r [u8]>, syntax: Syntax) -> Option<Vec<u8>> {
    let mut joined = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        if !joined.is_empty() {
            if !syntax.is_list() {
                return None;
            }
            joined.extend_from_slice(b", ");
        }
        joined.extend_from_slice(line);
    }
    Some(joined)
}

/// The stored fields of an object, parsed.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::files) struct StoredFields {
    /// Names and checked values.
    fields: Vec<(&'static str, Box<[u8]>)>,
}

impl StoredFields {
    /// Parses the stored format. `None` if it contains no valid field.
    pub(in crate::files) fn parse(metadata: &[u8]) -> Option<StoredFields> {
        if metadata.is_empty() {
            return None;
        }
        let mut fields: Vec<(&'static str, Box<[u8]>)> = Vec::new();
        for line in metadata.split(|&byte| byte == b'\n') {
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                continue;
            };
            let (name, value) = (&line[..colon], token::trim(&line[colon + 1..]));
            let known = FIELDS
                .iter()
                .find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name));
            let Some(&(name, syntax)) = known else {
                continue;
            };
            let is_new = fields.iter().all(|(have, _)| *have != name);
            if is_new && syntax.accepts(value) {
                fields.push((name, value.into()));
            }
        }
        (!fields.is_empty()).then_some(StoredFields { fields })
    }

    fn get(&self, name: &str) -> Option<&[u8]> {
        let mut fields = self.fields.iter();
        let found = fields.find(|(have, _)| *have == name)?;
        Some(&found.1)
    }

    pub(in crate::files) fn content_type(&self) -> Option<&str> {
        self.get(CONTENT_TYPE)
            .and_then(|value| std::str::from_utf8(value).ok())
    }

    /// The modification time of the client's file, in seconds since 1970.
    pub(in crate::files) fn modified_s(&self) -> Option<u64> {
        self.get(CLIENT_TIME).and_then(seconds)
    }

    pub(in crate::files) fn cache_control(&self) -> Option<&[u8]> {
        self.get(CACHE_CONTROL)
    }

    /// Whether the content has a coding.
    pub(in crate::files) fn has_coding(&self) -> bool {
        self.get(CONTENT_ENCODING).is_some()
    }

    /// Whether the content may be sent in another coding.
    pub(in crate::files) fn permits_coding(&self) -> bool {
        permits_coding(self.fields.iter().map(|(name, value)| (*name, &**value)))
    }

    /// The fields of the same content in a coding. `fields`: those without it.
    pub(in crate::files) fn with_coding(
        fields: Option<&StoredFields>,
        coding: &str,
    ) -> StoredFields {
        let mut fields = fields.map_or(Vec::new(), |fields| fields.fields.clone());
        fields.retain(|(name, _)| *name != CONTENT_ENCODING);
        fields.push((CONTENT_ENCODING, coding.as_bytes().into()));
        StoredFields { fields }
    }

    /// Sets the fields that describe the content, for responses that have content. It does not set
    /// `Cache-Control` and `Last-Modified`, which belong to responses without content as well
    /// (RFC 9110 §15.4.5).
    pub(in crate::files) fn add_fields(&self, response: &mut Response) {
        for (name, value) in &self.fields {
            if *name != CACHE_CONTROL && *name != CLIENT_TIME {
                // Each value was checked to be a valid field value.
                let set = response.try_set_header(canonical(name), value);
                debug_assert!(set.is_ok(), "{name} was refused");
            }
        }
    }

    /// The approximate memory of the fields, in bytes.
    pub(in crate::files) fn cost_bytes(&self) -> usize {
        let of = |(_, value): &(&'static str, Box<[u8]>)| value.len() + 48;
        self.fields.iter().map(of).sum()
    }
}

fn canonical(name: &'static str) -> &'static str {
    match name {
        CONTENT_TYPE => "Content-Type",
        CONTENT_ENCODING => "Content-Encoding",
        "content-language" => "Content-Language",
        "content-disposition" => "Content-Disposition",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_fields_are_checked_again() {
        let stored = |text: &str| StoredFields::parse(text.as_bytes());
        let all = stored("content-type: a/b\nCache-Control:max-age=1 \ncontent-encoding: gzip\n");
        let all = all.expect("three fields");
        assert_eq!(all.content_type(), Some("a/b"));
        assert_eq!(all.cache_control(), Some(&b"max-age=1"[..]));
        assert_eq!(all.get(CONTENT_ENCODING), Some(&b"gzip"[..]));
        let mut response = Response::text("x");
        all.add_fields(&mut response);
        assert_eq!(response.header("content-type"), Some(&b"a/b"[..]));
        assert_eq!(response.header("content-encoding"), Some(&b"gzip"[..]));
        assert_eq!(response.header("cache-control"), None);
        for nothing in [
            "",
            "\n",
            "content-type",
            "content-type: text",
            "content-type: text/html\r",
            "content-type: a/b, c/d",
            "content-encoding: g zip",
            "content-language: \u{1}",
            "set-cookie: a=b",
            "content-disposition: \n",
        ] {
            assert_eq!(stored(nothing), None, "{nothing:?}");
        }
        assert!(StoredFields::parse(b"content-disposition: \xff\n").is_some());
        assert_eq!(StoredFields::parse(b"content-type: a/b;c=\"\xff\"\n"), None);
        let long = format!("cache-control: {}\n", "x".repeat(VALUE_BYTES_MAX + 1));
        assert_eq!(stored(&long), None);
        let twice = stored("content-type: a/b\ncontent-type: c/d\n").expect("the first");
        assert_eq!(twice.content_type(), Some("a/b"));
    }

    #[test]
    fn lines_of_a_list_field_are_joined() {
        let of = |lines: &[&str], syntax| {
            let lines = lines.iter().map(|line| line.as_bytes());
            join(lines, syntax)
        };
        assert_eq!(of(&["a", "", "b"], Syntax::Tokens), Some(b"a, b".to_vec()));
        assert_eq!(of(&["a", "b"], Syntax::Single), None);
        assert_eq!(of(&["", "b"], Syntax::MediaType), Some(b"b".to_vec()));
    }

    #[test]
    fn directives_of_requests_are_recognised() {
        for (value, expected) in [
            ("no-cache, no-store", true),
            ("No-Store,no-cache", true),
            ("no-cache", true),
            ("max-age=0", true),
            ("no-cache, max-age=0", true),
            ("only-if-cached, max-stale=60", true),
            ("min-fresh=5", true),
            ("no-store", false),
            ("max-age=60", false),
            ("no-transform", false),
            ("no-cache, no-store, must-revalidate", false),
            ("private, no-cache", false),
            ("no-cache-at-all", false),
        ] {
            assert_eq!(is_of_request(value.as_bytes()), expected, "{value}");
        }
    }
}
