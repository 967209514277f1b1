//! Header fields of a site by path: a line with a pattern, and beneath it, indented, lines
//! `Name: value`.
//!
//! All patterns that match a path count; a later line replaces an earlier one with the same name,
//! and what the server would send. Fields that say how a message is framed, or that the server
//! derives from the object or from other options, are refused.

use super::file::{Line, lines};
use super::patterns::{Pattern, Patterns};
use onrush::Response;

/// Fields that only the server sets, besides those that [`Response::try_set_header`] refuses, and
/// what to use instead.
const REFUSED: &[(&str, &str)] = &[
    ("accept-ranges", ""),
    ("age", ""),
    ("allow", ""),
    ("cache-status", ""),
    ("content-digest", ""),
    ("content-encoding", "; store it with the object"),
    ("content-range", ""),
    ("content-type", "; store it with the object, or use types"),
    ("digest", ""),
    ("etag", ""),
    ("last-modified", ""),
    ("location", "; use --redirects"),
    ("proxy-authenticate", ""),
    ("repr-digest", ""),
    ("retry-after", ""),
    ("strict-transport-security", "; use --hsts"),
    ("te", ""),
    ("trailer", ""),
    ("upgrade", ""),
    ("vary", ""),
    ("www-authenticate", ""),
];

/// The fields with this beginning are those of `--cors`.
const CORS: &str = "access-control-";

/// The fields that say how long a response may be used. Only objects that the path names have them.
const FRESHNESS: [&str; 2] = ["cache-control", "expires"];

/// Field lines by path.
#[derive(Debug, Default)]
pub(super) struct Headers(Patterns<Vec<(String, String)>>);

impl Headers {
    /// The paths of rules that are not for all paths; see `Pattern`.
    pub(super) fn narrow_paths(&self) -> impl Iterator<Item = Vec<u8>> {
        self.0.narrow_paths()
    }

    /// Parses a file. An error is one line, with the number of the line.
    pub(super) fn parse(text: &str) -> Result<Headers, String> {
        let mut headers = Headers::default();
        let mut block: Option<(Line<'_>, Pattern, Vec<_>)> = None;
        for line in lines(text) {
            if line.is_indented {
                let field = field(line.text).map_err(|error| line.error(&error))?;
                let (_, _, fields) = (block.as_mut())
                    .ok_or_else(|| line.error("a path, not indented, comes before its fields"))?;
                fields.push(field);
            } else {
                let pattern = Pattern::parse(line.text).map_err(|error| line.error(&error))?;
                let before = block.replace((line, pattern, Vec::new()));
                before.map_or(Ok(()), |before| headers.add(before))?;
            }
        }
        block.map_or(Ok(()), |last| headers.add(last))?;
        Ok(headers)
    }

    fn add(
        &mut self,
        (line, pattern, fields): (Line<'_>, Pattern, Vec<(String, String)>),
    ) -> Result<(), String> {
        if fields.is_empty() {
            return Err(line.error("no field, indented, follows this path"));
        }
        let added = self.0.add(pattern, fields);
        added.map_err(|error| line.error(&error))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Sets the fields for a decoded path in a response to GET or HEAD. Only content that was
    /// asked for (2xx, 304), and a page that says that there is none (404), have them.
    /// `is_stand_in`: the response is a page in place of an object that may exist soon.
    pub(super) fn apply(&self, path: &[u8], is_stand_in: bool, response: &mut Response) {
        let is_of_object = match response.status() {
            200..=299 | 304 => !is_stand_in,
            404 => false,
            _ => return,
        };
        for (position, _) in self.0.find(path) {
            for (name, value) in self.0.values().get(position).into_iter().flatten() {
                let is_freshness = FRESHNESS
                    .iter()
                    .any(|known| known.eq_ignore_ascii_case(name));
                if is_of_object || !is_freshness {
                    // It was tried when it was parsed.
                    let _ = response.try_set_header(name, value);
                }
            }
        }
    }
}

/// A line `Name: value`, checked.
fn field(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write a field as Name: value")?;
    let (name, value) = (name.trim(), value.trim());
    let lower = name.to_ascii_lowercase();
    if lower.starts_with(CORS) {
        return Err(format!("{name}: the server sets this field; use --cors"));
    }
    if let Some((_, instead)) = REFUSED.iter().find(|(known, _)| *known == lower) {
        return Err(format!("{name}: the server sets this field{instead}"));
    }
    match Response::new(200).try_set_header(name, value) {
        Ok(()) => Ok((name.to_owned(), value.to_owned())),
        Err(onrush::FieldError::Reserved) => Err(format!("{name}: the server sets this field")),
        Err(onrush::FieldError::Name) => Err(format!("{name:?} is not the name of a field")),
        Err(_) => Err(format!(
            "{name}: the value has a character that no field may have"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# all\n/*\n  X-Frame-Options: DENY\n\tCache-Control: max-age=60\n\n\
        /assets/*.css\n  cache-control: public, max-age=31536000, immutable # long\n";

    fn applied(path: &str, status: u16) -> Vec<(String, String)> {
        let headers = Headers::parse(TEXT).expect("fields");
        let mut response = Response::new(status).with_header("Cache-Control", "no-cache");
        headers.apply(path.as_bytes(), false, &mut response);
        let lines = response.headers();
        lines
            .map(|(name, value)| {
                (
                    name.to_ascii_lowercase(),
                    String::from_utf8_lossy(value).into(),
                )
            })
            .collect()
    }

    #[test]
    fn later_lines_replace_earlier_ones() {
        let has = |found: &[(String, String)], name: &str, value: &str| {
            let mut lines = found.iter().filter(|(have, _)| have == name);
            assert_eq!(
                lines.next().map(|(_, value)| &value[..]),
                Some(value),
                "{name}"
            );
            assert_eq!(lines.next(), None);
        };
        let page = applied("/a", 200);
        has(&page, "x-frame-options", "DENY");
        has(&page, "cache-control", "max-age=60");
        let style = applied("/assets/x/y.css", 304);
        has(&style, "x-frame-options", "DENY");
        has(
            &style,
            "cache-control",
            "public, max-age=31536000, immutable",
        );
        let missing = applied("/a", 404);
        has(&missing, "x-frame-options", "DENY");
        has(&missing, "cache-control", "no-cache");
        let headers = Headers::parse(TEXT).expect("fields");
        let mut page = Response::new(200).with_header("Cache-Control", "no-cache");
        headers.apply(b"/assets/new.css", true, &mut page);
        assert_eq!(page.header("cache-control"), Some(&b"no-cache"[..]));
        assert_eq!(page.header("x-frame-options"), Some(&b"DENY"[..]));
        assert_eq!(applied("/a", 503).len(), 1);
        assert_eq!(applied("/a", 301).len(), 1);
    }

    #[test]
    fn lines_that_are_wrong_are_named() {
        for (text, expected) in [
            ("  A: b", "line 1: a path, not indented"),
            ("/a\n/b\n  A: b", "line 1: no field"),
            ("/a\n  A: b\n/b", "line 3: no field"),
            ("/a\n  A", "line 2: write a field"),
            ("/a\n  A b: c", "line 2: \"A b\" is not the name"),
            ("/a\n  A: b\u{1}c", "line 2: A: the value"),
            ("a\n  A: b", "line 1: \"a\": a path begins"),
            (
                "/a\n  Content-Length: 1",
                "line 2: Content-Length: the server",
            ),
            (
                "/a\n  transfer-encoding: chunked",
                "line 2: transfer-encoding: the server",
            ),
            ("/a\n  Connection: close", "line 2: Connection: the server"),
            ("/a\n  Trailer: x", "line 2: Trailer: the server"),
            ("/a\n  Upgrade: x", "line 2: Upgrade: the server"),
            ("/a\n  ETag: x", "line 2: ETag: the server"),
            (
                "/a\n  Content-Encoding: gzip",
                "line 2: Content-Encoding: the server",
            ),
            (
                "/a\n  Access-Control-Allow-Origin: *",
                "line 2: Access-Control-Allow-Origin",
            ),
            (
                "/a\n  Strict-Transport-Security: x",
                "line 2: Strict-Transport-Security",
            ),
        ] {
            let error = Headers::parse(text).expect_err(text);
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        assert!(Headers::parse("").is_ok());
    }
}
