//! The media type of an object, by the end of its name.
//!
//! This module must not know content: nothing is sniffed, and clients are told not to either.

use super::media_type;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// What is said of a name that says nothing.
const UNKNOWN: &str = "application/octet-stream";

/// Types that the general table lacks, or has for another use of the extension, or without their
/// charset.
const OWN: [(&str, &str); 8] = [
    ("ts", "video/mp2t"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("js", "text/javascript; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("map", "application/json"),
    ("wasm", "application/wasm"),
    ("avif", "image/avif"),
    ("webmanifest", "application/manifest+json"),
];

/// Media types by extension that come before the built-in ones.
///
/// ```
/// # use onrush_server::Types;
/// let types = Types::new([("ts", "text/x-typescript; charset=utf-8")])?;
/// assert!(Types::new([("ts", "typescript")]).is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Types(Arc<HashMap<String, &'static str>>);

impl Types {
    /// From pairs of an extension, without its dot and in any case, and a media type (RFC 9110
    /// §8.3.1). The error says in one line which pair is wrong. Types are kept until the process
    /// ends, each once.
    pub fn new<E, T>(pairs: impl IntoIterator<Item = (E, T)>) -> Result<Types, String>
    where
        E: AsRef<str>,
        T: AsRef<str>,
    {
        let mut types = HashMap::new();
        for (extension, content_type) in pairs {
            let (extension, content_type) = (extension.as_ref(), content_type.as_ref());
            let is_wrong = |c: char| matches!(c, '.' | '/') || c.is_control();
            if extension.is_empty() || extension.contains(is_wrong) {
                return Err(format!(
                    "{extension:?} is not an extension; write it without a dot, as in ts"
                ));
            }
            if !content_type.is_ascii() || !media_type::is_valid(content_type.as_bytes()) {
                return Err(format!(
                    "{extension}: {content_type:?} is not a media type such as text/plain"
                ));
            }
            let extension = extension.to_ascii_lowercase();
            if types
                .insert(extension.clone(), interned(content_type))
                .is_some()
            {
                return Err(format!("{extension} is there twice"));
            }
        }
        Ok(Types(Arc::new(types)))
    }

    /// The `Content-Type` for a name: text with its charset, `application/octet-stream` when
    /// unknown.
    pub(super) fn content_type(&self, name: &[u8]) -> &'static str {
        let extension = match name.iter().rposition(|&b| b == b'.') {
            Some(dot) if dot > 0 => std::str::from_utf8(&name[dot + 1..]).ok(),
            _ => None,
        };
        let Some(extension) = extension else {
            return UNKNOWN;
        };
        if !self.0.is_empty()
            && let Some(content_type) = self.0.get(&extension.to_ascii_lowercase())
        {
            return content_type;
        }
        let mut own = OWN.iter();
        if let Some((_, own)) = own.find(|(own, _)| own.eq_ignore_ascii_case(extension)) {
            return own;
        }
        match mime_guess::from_ext(extension).first_raw() {
            None => UNKNOWN,
            Some(raw) => with_charset(raw),
        }
    }
}

/// Whether a browser that opens an object of this type as a page runs scripts in it, with the
/// rights of the server's origin: HTML, SVG, and every other XML, since any XML document may hold
/// elements of HTML or SVG. Scripts themselves count too: a worker runs them.
///
/// PDF does not count: browsers run its scripts without an origin, and some show no PDF in a
/// sandbox.
pub(super) fn is_scriptable(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let essence = &essence.to_ascii_lowercase()[..];
    let (kind, subtype) = essence.split_once('/').unwrap_or((essence, ""));
    // What a browser would read in a list or a quoted string is not known.
    let is_odd = content_type.contains(['"', ',']);
    is_odd
        || matches!(kind, "multipart" | "message")
        || [
            "html",
            "xml",
            "xsl",
            "xslt",
            "javascript",
            "ecmascript",
            "wasm",
        ]
        .contains(&subtype)
        || subtype.ends_with("+xml")
        || subtype.starts_with("xml-")
        || subtype.starts_with("x-javascript")
        || subtype == "x-mimearchive"
}

fn with_charset(raw: &'static str) -> &'static str {
    match raw {
        "text/html" => "text/html; charset=utf-8",
        "text/plain" => "text/plain; charset=utf-8",
        "text/css" => "text/css; charset=utf-8",
        "text/javascript" => "text/javascript; charset=utf-8",
        "text/x-rust" => "text/x-rust; charset=utf-8",
        raw if raw.starts_with("text/") => interned(&format!("{raw}; charset=utf-8")),
        raw => raw,
    }
}

/// The same text for as long as the process runs, made once. There are only as many as `mime_guess`
/// and the configuration know.
fn interned(text: &str) -> &'static str {
    static MADE: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    match made.get(text) {
        Some(made) => made,
        None => {
            let text = Box::leak(Box::<str>::from(text));
            made.insert(text);
            text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content_type(name: &[u8]) -> &'static str {
        Types::default().content_type(name)
    }

    #[test]
    fn types_can_be_given() {
        let pairs = [("TS", "text/x-typescript"), ("log", "text/plain")];
        let types = Types::new(pairs).expect("good ones");
        for (name, expected) in [
            ("a.ts", "text/x-typescript"),
            ("a.Ts", "text/x-typescript"),
            ("a.log", "text/plain"),
            ("a.m3u8", "application/vnd.apple.mpegurl"),
            ("ts", UNKNOWN),
        ] {
            assert_eq!(types.content_type(name.as_bytes()), expected, "{name}");
        }
        for (extension, content_type) in [
            (".ts", "a/b"),
            ("", "a/b"),
            ("tar.gz", "a/b"),
            ("ts", "video"),
            ("ts", "a/b, c/d"),
            ("ts", "a/b\r\nx: y"),
            ("ts", ""),
        ] {
            let refused = Types::new([(extension, content_type)]).expect_err("wrong");
            assert!(!refused.contains(['\r', '\n']), "{refused}");
        }
        assert!(Types::new([("ts", "a/b"), ("TS", "c/d")]).is_err());
    }

    #[test]
    fn types_follow_names() {
        for (name, expected) in [
            ("a.html", "text/html; charset=utf-8"),
            ("A.TXT", "text/plain; charset=utf-8"),
            ("a.csv", "text/csv; charset=utf-8"),
            ("a.tar.gz", "application/gzip"),
            ("a.png", "image/png"),
            ("a.ts", "video/mp2t"),
            ("A.M3U8", "application/vnd.apple.mpegurl"),
            ("a.js", "text/javascript; charset=utf-8"),
            ("a.mjs", "text/javascript; charset=utf-8"),
            ("a.js.map", "application/json"),
            ("a.wasm", "application/wasm"),
            ("a.avif", "image/avif"),
            ("a.webmanifest", "application/manifest+json"),
            ("a.json", "application/json"),
            ("a.whatever", UNKNOWN),
            ("Makefile", UNKNOWN),
            (".html", UNKNOWN),
            ("a.", UNKNOWN),
        ] {
            assert_eq!(content_type(name.as_bytes()), expected, "{name}");
        }
        assert_eq!(content_type(b"a.\xff"), UNKNOWN);
    }

    #[test]
    fn what_runs_in_a_browser_is_known_by_its_type() {
        let runs = [
            "html", "htm", "xhtml", "xht", "svg", "svgz", "xml", "xsl", "xslt", "rss", "atom",
            "mathml", "dtd", "xsd", "rdf", "kml", "js", "mjs", "wasm", "eml", "mht", "mhtml",
        ];
        for extension in runs {
            let content_type = content_type(format!("a.{extension}").as_bytes());
            let unknown = content_type == UNKNOWN; // Downloaded, since sniffing is forbidden.
            assert!(
                unknown || is_scriptable(content_type),
                "{extension}: {content_type}"
            );
        }
        for extension in [
            "txt", "css", "json", "png", "jpg", "pdf", "mp4", "zip", "md", "csv",
        ] {
            let content_type = content_type(format!("a.{extension}").as_bytes());
            assert!(!is_scriptable(content_type), "{extension}: {content_type}");
        }
        assert!(!is_scriptable(UNKNOWN));
        for stored in [
            "Text/HTML",
            "TEXT/html ; charset=utf-8",
            "image/SVG+xml;",
            "application/xhtml+XML",
            "text/plain; x=\", text/html\"",
        ] {
            assert!(is_scriptable(stored), "{stored}");
        }
    }
}
