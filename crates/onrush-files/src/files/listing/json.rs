//! A listing as JSON:
//!
//! ```json
//! {"path":"/a/","entries":[
//!   {"name":"sub","href":"/a/sub/","type":"directory","size":null,"modified":"…","etag":null},
//!   {"name":"x","href":"/a/x","type":"file","size":1,"modified":"…","etag":"\"…\""}],
//!  "next":"/a/?after=x"}
//! ```
//!
//! `href` and `next` are encoded paths of this server, which a client can request as they are.
//! `next` is `null` on the last page. Times are in UTC in the form of RFC 3339.

use crate::files::path;
use crate::files::path::location::Location;
use onrush_proto::date;
use onrush_store::{Entry, Kind};
use std::fmt::Write;

/// Everything before the first entry.
pub(in crate::files) fn begin(out: &mut String, location: &Location) {
    out.push_str("{\"path\":");
    write_string(out, &location.path);
    out.push_str(",\"entries\":[");
}

/// One entry of the listing.
pub(in crate::files) fn entry(out: &mut String, location: &Location, entry: &Entry, first: bool) {
    out.push_str(if first { "\n" } else { ",\n" });
    object(out, &location.href, entry);
}

/// The beginning of the description of an entry, up to its encoded path without the end of the
/// string. `href` is the encoded path of its folder.
pub(in crate::files) fn name(out: &mut String, href: &str, name: &[u8]) {
    out.push_str("{\"name\":");
    write_string(out, &String::from_utf8_lossy(name));
    out.push_str(",\"href\":\"");
    out.push_str(href);
    path::encode(name, out);
}

/// The description of an entry, in one line.
pub(in crate::files) fn object(out: &mut String, href: &str, entry: &Entry) {
    name(out, href, &entry.name);
    // Writing to a String does not fail.
    let _ = match entry.kind {
        Kind::File => write!(out, "\",\"type\":\"file\",\"size\":{}", entry.size),
        Kind::Directory => write!(out, "/\",\"type\":\"directory\",\"size\":null"),
    };
    let _ = match is_modified_known(entry) {
        true => write!(out, ",\"modified\":\"{}\"", rfc3339(entry.modified_ns)),
        false => write!(out, ",\"modified\":null"),
    };
    let _ = match entry.kind {
        Kind::File => write!(out, ",\"etag\":\"\\\"{}\\\"\"}}", entry.version),
        Kind::Directory => write!(out, ",\"etag\":null}}"),
    };
}

/// Whether the store knows when an entry was modified. A bucket does not know it for folders.
pub(in crate::files) fn is_modified_known(entry: &Entry) -> bool {
    entry.kind == Kind::File || entry.modified_ns != 0
}

/// Everything after the last entry.
pub(in crate::files) fn end(out: &mut String, location: &Location) {
    out.push_str("],\"next\":");
    match &location.next {
        Some(next) => {
            // Both are encoded and need no escaping.
            out.push('"');
            out.push_str(&location.href);
            out.push_str(next);
            out.push('"');
        }
        None => out.push_str("null"),
    }
    out.push_str("}\n");
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            // Also DEL and the C1 controls, for output to a terminal, and `<`, for use in a page.
            '\0'..='\x1f' | '\x7f'..='\u{9f}' | '<' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `2026-11-20T19:04:00Z`. A time before 1970 is shown as 1970-01-01T00:00:00Z.
pub(in crate::files) fn rfc3339(modified_ns: i64) -> String {
    date::rfc3339(u64::try_from(modified_ns).unwrap_or(0) / 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_strings_are_formatted() {
        assert_eq!(rfc3339(784_111_777_999_999_999), "1994-11-06T08:49:37Z");
        assert_eq!(rfc3339(-1), "1970-01-01T00:00:00Z");
        for text in [
            "plain",
            "q\"u\\o\n</script>\u{7f}\u{85}\u{2028}",
            "ü\u{10ffff}\0",
        ] {
            let mut out = String::new();
            write_string(&mut out, text);
            assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
            assert!(out.chars().all(|c| !c.is_control() && c != '<'), "{out}");
        }
    }
}
