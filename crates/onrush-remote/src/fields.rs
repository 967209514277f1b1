//! The metadata of an object as fields of the service.
//!
//! Metadata is lines `name: value`. The service has fields of its own for five names: other clients
//! see them, and may have set them. Everything else is in `x-amz-meta-onrush`, in base64: other
//! lines, and values that such a field cannot transport. A name that is there precedes the field of
//! the service, because older versions of Onrush wrote nothing else, and the service then has a
//! field with its default.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use object_store::{Attribute, AttributeValue, Attributes};
use onrush_store::{METADATA_BYTES_MAX, Result, StoreError};

/// The name of the metadata without a field of the service: `x-amz-meta-onrush`.
const METADATA: &str = "onrush";
/// What precedes the names of metadata.
const PREFIX: &str = "x-amz-meta-";
/// The type of an object that was stored without one.
const DEFAULT_TYPE: &str = "binary/octet-stream";

/// The names of lines with a field of the service.
const NAMES: [(&str, Attribute); 5] = [
    ("content-type", Attribute::ContentType),
    ("content-encoding", Attribute::ContentEncoding),
    ("cache-control", Attribute::CacheControl),
    ("content-language", Attribute::ContentLanguage),
    ("content-disposition", Attribute::ContentDisposition),
];

/// The attributes with the metadata of an upload.
pub(crate) fn with_metadata(metadata: &[u8]) -> Attributes {
    let (mut attributes, mut rest) = (Attributes::new(), Vec::new());
    for line in metadata.split_inclusive(|&byte| byte == b'\n') {
        match transportable(line) {
            Some((attribute, value)) if attributes.get(&attribute).is_none() => {
                attributes.insert(attribute, AttributeValue::from(value.to_owned()));
            }
            _ => rest.extend_from_slice(line),
        }
    }
    if !rest.is_empty() {
        let value = AttributeValue::from(STANDARD_NO_PAD.encode(rest));
        attributes.insert(Attribute::Metadata(METADATA.into()), value);
    }
    attributes
}

/// The field of a line, if the service has one and returns the value as it is.
fn transportable(line: &[u8]) -> Option<(Attribute, &str)> {
    let line = std::str::from_utf8(line).ok()?;
    let (name, value) = line.strip_suffix('\n')?.split_once(": ")?;
    let (_, attribute) = NAMES.into_iter().find(|(known, _)| *known == name)?;
    let is_visible = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    // A signature treats several spaces as one.
    let is_plain = value.bytes().all(is_visible) && value.trim() == value && !value.contains("  ");
    (is_plain && !value.is_empty() && value != DEFAULT_TYPE).then_some((attribute, value))
}

/// The metadata in the attributes of an object. What other clients have set is omitted if it is
/// longer than metadata can be.
pub(crate) fn metadata_of(attributes: &Attributes) -> Vec<u8> {
    let rest = attributes.get(&Attribute::Metadata(METADATA.into()));
    let rest = rest.and_then(|value| STANDARD_NO_PAD.decode(value.as_ref()).ok());
    let rest = rest.unwrap_or_default(); // Another program wrote something else.
    let mut all = Vec::new();
    for (name, attribute) in NAMES {
        let value = attributes.get(&attribute).map(AsRef::<str>::as_ref);
        let Some(value) = value.filter(|value| *value != DEFAULT_TYPE) else {
            continue;
        };
        let line = format!("{name}: {value}\n");
        let fits = all.len() + line.len() + rest.len() <= METADATA_BYTES_MAX;
        if fits && !has_line(&rest, name) {
            all.extend_from_slice(line.as_bytes());
        }
    }
    all.extend_from_slice(&rest);
    all
}

/// Moves fields of an object whose values are not ASCII to where [`metadata_of`] finds them as
/// bytes: other clients set such fields, and services return the raw bytes. `object_store` would
/// refuse the whole response, because it reads fields as text. Metadata of other clients is not
/// served, so it is removed.
pub(crate) fn make_readable(headers: &mut HeaderMap) {
    let is_raw = |value: &&HeaderValue| value.to_str().is_err();
    if !headers.values().any(|value| is_raw(&value)) {
        return;
    }
    let own = HeaderName::try_from(format!("{PREFIX}{METADATA}")).expect("a name");
    let rest = headers.get(&own).map(|value| STANDARD_NO_PAD.decode(value));
    let mut rest = rest.and_then(std::result::Result::ok).unwrap_or_default();
    for (name, _) in NAMES {
        let Some(value) = headers.get(name).filter(is_raw) else {
            continue;
        };
        let line = [name.as_bytes(), b": ", value.as_bytes(), b"\n"].concat();
        if rest.len() + line.len() <= METADATA_BYTES_MAX && !has_line(&rest, name) {
            rest.extend_from_slice(&line);
        }
        headers.remove(name);
    }
    let is_foreign = |name: &HeaderName| name.as_str().starts_with(PREFIX);
    let foreign = headers
        .iter()
        .filter(|(name, value)| is_foreign(name) && is_raw(value));
    let foreign: Vec<_> = foreign.map(|(name, _)| name.clone()).collect();
    for name in foreign {
        headers.remove(name);
    }
    if !rest.is_empty() {
        let value = STANDARD_NO_PAD.encode(rest);
        headers.insert(own, HeaderValue::try_from(value).expect("base64"));
    }
}

/// Whether a line has this name.
fn has_line(metadata: &[u8], name: &str) -> bool {
    let mut lines = metadata.split(|&byte| byte == b'\n');
    lines.any(|line| {
        let value = line.get(name.len()..);
        let is_name = |have: &[u8]| have.eq_ignore_ascii_case(name.as_bytes());
        line.get(..name.len()).is_some_and(is_name) && value.is_some_and(|v| v.starts_with(b":"))
    })
}

/// Attributes as the fields of a request.
pub(crate) fn headers(attributes: &Attributes) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (attribute, value) in attributes {
        let name = match attribute {
            Attribute::ContentType => CONTENT_TYPE,
            Attribute::ContentEncoding => CONTENT_ENCODING,
            Attribute::CacheControl => CACHE_CONTROL,
            Attribute::ContentLanguage => CONTENT_LANGUAGE,
            Attribute::ContentDisposition => CONTENT_DISPOSITION,
            Attribute::Metadata(name) => HeaderName::try_from(format!("{PREFIX}{name}"))
                .map_err(|_| StoreError::Unsupported)?,
            _ => return Err(StoreError::Unsupported),
        };
        let value = HeaderValue::try_from(value.as_ref()).map_err(|_| StoreError::Unsupported)?;
        headers.insert(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(attributes: &Attributes) -> Option<Vec<u8>> {
        let rest = attributes.get(&Attribute::Metadata(METADATA.into()))?;
        STANDARD_NO_PAD.decode(rest.as_ref()).ok()
    }

    #[test]
    fn metadata_is_what_it_was() {
        let all = "content-type: text/x; a=b\ncontent-encoding: gzip\ncache-control: max-age=1\n\
            content-language: de, en\ncontent-disposition: attachment\n";
        let attributes = with_metadata(all.as_bytes());
        assert_eq!((attributes.len(), rest(&attributes)), (5, None));
        assert_eq!(metadata_of(&attributes), all.as_bytes());
        // What the service would not return so is not its field.
        for line in [
            "content-type: binary/octet-stream\n",
            "content-disposition: a  b\n",
            "content-disposition: \u{e4}\n",
            "content-disposition: a ",
            "content-disposition: \n",
            "content-disposition: a\tb\n",
            "Content-Type: a/b\n",
            "other: a\n",
            "content-type",
            "\0",
        ] {
            let attributes = with_metadata(line.as_bytes());
            assert_eq!(rest(&attributes).as_deref(), Some(line.as_bytes()));
            assert_eq!(metadata_of(&attributes), line.as_bytes());
        }
        let mixed = "content-language: de\ncontent-disposition: \u{e4}\n";
        let attributes = with_metadata(mixed.as_bytes());
        assert_eq!(attributes.len(), 2);
        assert_eq!(metadata_of(&attributes), mixed.as_bytes());
        assert!(with_metadata(b"").is_empty());
    }

    #[test]
    fn fields_that_are_not_ascii_become_metadata() {
        let of = |pairs: &[(&str, &[u8])]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                let name = HeaderName::try_from(*name).expect("a name");
                headers.insert(name, HeaderValue::from_bytes(value).expect("a value"));
            }
            make_readable(&mut headers);
            assert!(headers.values().all(|value| value.to_str().is_ok()));
            let own = headers.get("x-amz-meta-onrush");
            let own = own.map(|own| STANDARD_NO_PAD.decode(own).expect("base64"));
            (headers.len(), own.unwrap_or_default())
        };
        let utf8 = ("content-disposition", "a=\u{e4}".as_bytes());
        let latin1 = ("content-language", &b"\xe4"[..]);
        let ascii = ("content-type", &b"a/b"[..]);
        assert_eq!(of(&[ascii]), (1, Vec::new()));
        let lines = b"content-language: \xe4\ncontent-disposition: a=\xc3\xa4\n";
        assert_eq!(of(&[utf8, ascii, latin1]), (2, lines.to_vec()));
        // What Onrush has stored precedes the field.
        let own = STANDARD_NO_PAD.encode("content-disposition: b\nother: c\n");
        let own = ("x-amz-meta-onrush", own.as_bytes());
        let both = b"content-disposition: b\nother: c\ncontent-language: \xe4\n";
        assert_eq!(of(&[own, utf8, latin1]), (1, both.to_vec()));
        // Fields of which the client learns nothing.
        assert_eq!(
            of(&[("x-amz-meta-b", b"\xe4"), ("x-amz-meta-c", b"c")]).0,
            1
        );
        let long = vec![0xe4; METADATA_BYTES_MAX];
        assert_eq!(of(&[("content-disposition", &long)]), (0, Vec::new()));
    }

    #[test]
    fn fields_of_other_clients_are_metadata_and_defaults_are_not() {
        let of = |pairs: &[(Attribute, &str)]| {
            let mut attributes = Attributes::new();
            for (name, value) in pairs {
                attributes.insert(name.clone(), (*value).to_owned().into());
            }
            String::from_utf8(metadata_of(&attributes)).expect("text")
        };
        let content_type = |value| (Attribute::ContentType, value);
        assert_eq!(of(&[content_type("a/b")]), "content-type: a/b\n");
        assert_eq!(of(&[content_type(DEFAULT_TYPE)]), "");
        let long = "x".repeat(METADATA_BYTES_MAX);
        assert_eq!(of(&[(Attribute::ContentType, &long)]), "");
        // What older versions stored.
        let own = STANDARD_NO_PAD.encode("content-type: c/d\n");
        let own = (Attribute::Metadata(METADATA.into()), &own[..]);
        let default = content_type("application/octet-stream");
        assert_eq!(of(&[default, own.clone()]), "content-type: c/d\n");
        let language = (Attribute::ContentLanguage, "de");
        let both = "content-language: de\ncontent-type: c/d\n";
        assert_eq!(of(&[language, own]), both);
        let foreign = (Attribute::Metadata(METADATA.into()), "?");
        assert_eq!(of(&[foreign]), "");
    }
}
