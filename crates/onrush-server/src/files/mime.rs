//! The media type of an object, by the end of its name.
//!
//! This module must not know content: nothing is sniffed, and clients are told not to either.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

/// What is said of a name that says nothing.
const UNKNOWN: &str = "application/octet-stream";

/// The `Content-Type` for a name: text with its charset, `application/octet-stream` when unknown.
pub(super) fn content_type(name: &[u8]) -> &'static str {
    let extension = match name.iter().rposition(|&b| b == b'.') {
        Some(dot) if dot > 0 => std::str::from_utf8(&name[dot + 1..]).ok(),
        _ => None,
    };
    let Some(extension) = extension else {
        return UNKNOWN;
    };
    match mime_guess::from_ext(extension).first_raw() {
        None => UNKNOWN,
        Some(raw) => with_charset(raw),
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
    let (kind, subtype) = essence.split_once('/').unwrap_or((essence, ""));
    matches!(kind, "multipart" | "message")
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
        raw if raw.starts_with("text/") => interned(raw),
        raw => raw,
    }
}

/// The rarer text types, each made once: there are only as many as `mime_guess` knows.
fn interned(raw: &'static str) -> &'static str {
    static MADE: LazyLock<Mutex<HashMap<&'static str, &'static str>>> =
        LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    made.entry(raw)
        .or_insert_with(|| Box::leak(format!("{raw}; charset=utf-8").into_boxed_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_follow_names() {
        for (name, expected) in [
            ("a.html", "text/html; charset=utf-8"),
            ("A.TXT", "text/plain; charset=utf-8"),
            ("a.csv", "text/csv; charset=utf-8"),
            ("a.tar.gz", "application/gzip"),
            ("a.png", "image/png"),
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
    }
}
