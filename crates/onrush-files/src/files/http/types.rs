//! Media types by file extension, for objects without a stored type. Content is not sniffed, and
//! responses forbid clients to sniff it.

use crate::files::http::media_type;
use onrush_proto::token;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The type of a name without a known extension.
const UNKNOWN: &str = "application/octet-stream";

/// Types that `mime_guess` lacks, assigns to another use of the extension, or has without a
/// charset. Those without `x-` are registered.
const OVERRIDES: [(&str, &str); 17] = [
    ("ts", "video/mp2t"),
    ("m3u8", "application/vnd.apple.mpegurl"),
    ("js", "text/javascript; charset=utf-8"),
    ("mjs", "text/javascript; charset=utf-8"),
    ("map", "application/json"),
    ("wasm", "application/wasm"),
    ("avif", "image/avif"),
    ("webmanifest", "application/manifest+json"),
    ("arrow", "application/vnd.apache.arrow.file"),
    ("arrows", "application/vnd.apache.arrow.stream"),
    ("deb", "application/vnd.debian.binary-package"),
    ("jsonl", "application/x-ndjson"),
    ("ndjson", "application/x-ndjson"),
    ("parquet", "application/vnd.apache.parquet"),
    ("pmtiles", "application/vnd.pmtiles"),
    ("rpm", "application/x-rpm"),
    ("zst", "application/zstd"),
];

/// Media types by extension, which take precedence over the built-in ones.
///
/// ```
/// # use onrush_files::Types;
/// let types = Types::new([("ts", "text/x-typescript; charset=utf-8")])?;
/// assert!(Types::new([("ts", "typescript")]).is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Types(Arc<HashMap<String, &'static str>>);

impl Types {
    /// Creates the table from pairs of an extension and a media type (RFC 9110 §8.3.1). An
    /// extension has no dot, and its case is ignored. The error names the invalid pair in one line.
    /// Each distinct type is kept in memory until the process ends.
    pub fn new<E, T>(pairs: impl IntoIterator<Item = (E, T)>) -> Result<Types, String>
    where
        E: AsRef<str>,
        T: AsRef<str>,
    {
        let mut types = HashMap::new();
        for (extension, content_type) in pairs {
            let (extension, content_type) = (extension.as_ref(), content_type.as_ref());
            let is_invalid = |c: char| matches!(c, '.' | '/') || c.is_control();
            if extension.is_empty() || extension.contains(is_invalid) {
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
                .insert(extension.clone(), intern(content_type))
                .is_some()
            {
                return Err(format!("{extension} occurs twice"));
            }
        }
        Ok(Types(Arc::new(types)))
    }

    /// The `Content-Type` for a name: text has a charset, and an unknown type is
    /// `application/octet-stream`.
    pub(in crate::files) fn content_type(&self, name: &[u8]) -> &'static str {
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
        let mut overrides = OVERRIDES.iter();
        if let Some((_, content_type)) =
            overrides.find(|(known, _)| known.eq_ignore_ascii_case(extension))
        {
            return content_type;
        }
        match mime_guess::from_ext(extension).first_raw() {
            None => UNKNOWN,
            Some(raw) => with_charset(raw),
        }
    }
}

/// Whether a browser that opens an object of this type as a page runs its scripts with the rights
/// of the server's origin. This holds for HTML, SVG and any other XML, because an XML document may
/// contain elements of HTML or SVG. It holds for scripts as well, because a web worker can run
/// them.
///
/// It does not hold for PDF: browsers run its scripts without an origin, and some do not show PDF
/// in a sandbox.
pub(in crate::files) fn is_scriptable(content_type: &str) -> bool {
    let essence = &token::essence(content_type).to_ascii_lowercase()[..];
    let (kind, subtype) = essence.split_once('/').unwrap_or((essence, ""));
    // It is not known how a browser parses a list or a quoted string.
    let is_ambiguous = content_type.contains(['"', ',']);
    is_ambiguous
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
        raw if raw.starts_with("text/") => intern(&format!("{raw}; charset=utf-8")),
        raw => raw,
    }
}

/// A copy of the text that lives as long as the process. Each distinct text is copied once. There
/// are only as many as `mime_guess` and the configuration have.
pub(in crate::files) fn intern(text: &str) -> &'static str {
    static INTERNED: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
    match interned.get(text) {
        Some(interned) => interned,
        None => {
            let text = Box::leak(Box::<str>::from(text));
            interned.insert(text);
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
    fn configured_types_take_precedence() {
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
    fn the_extension_determines_the_type() {
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
            ("a.rpm", "application/x-rpm"),
            ("a.deb", "application/vnd.debian.binary-package"),
            ("a.ndjson", "application/x-ndjson"),
            ("a.jsonl", "application/x-ndjson"),
            ("a.tar.zst", "application/zstd"),
            ("a.pmtiles", "application/vnd.pmtiles"),
            ("a.arrow", "application/vnd.apache.arrow.file"),
            ("a.arrows", "application/vnd.apache.arrow.stream"),
            ("a.parquet", "application/vnd.apache.parquet"),
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
    fn types_with_scripts_are_recognised() {
        let runs = [
            "html", "htm", "xhtml", "xht", "svg", "svgz", "xml", "xsl", "xslt", "rss", "atom",
            "mathml", "dtd", "xsd", "rdf", "kml", "js", "mjs", "wasm", "eml", "mht", "mhtml",
        ];
        for extension in runs {
            let content_type = content_type(format!("a.{extension}").as_bytes());
            let unknown = content_type == UNKNOWN; // Browsers download it: no sniffing.
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
