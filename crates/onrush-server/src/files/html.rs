//! A listing as an HTML page: a table of links with a light and a dark style, without scripts.
//! Links are relative, so they work behind a proxy that changes paths.

use super::json::{is_modified_known, rfc3339};
use super::location::Location;
use super::path;
use onrush_store::{Entry, Kind};
use std::fmt::Write;

/// The page may load and run nothing except its own style.
pub(super) const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.25rem;overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.15rem .75rem .15rem 0;border-bottom:1px solid #8884}\
td:first-child{overflow-wrap:anywhere}\
td+td{white-space:nowrap;font-variant-numeric:tabular-nums}\
.n{text-align:right}";

/// Everything before the first entry.
pub(super) fn begin(out: &mut String, location: &Location) {
    out.push_str("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    out.push_str("<title>");
    escape(out, &location.path);
    out.push_str("</title>\n<style>");
    out.push_str(STYLE);
    out.push_str("</style>\n</head>\n<body>\n<h1>");
    escape(out, &location.path);
    out.push_str("</h1>\n<table>\n<thead><tr><th>Name</th><th class=\"n\">Size</th>");
    out.push_str("<th>Modified (UTC)</th></tr></thead>\n<tbody>\n");
    if !location.is_top {
        out.push_str("<tr><td><a href=\"../\">../</a></td><td></td><td></td></tr>\n");
    }
}

/// One row.
pub(super) fn entry(out: &mut String, entry: &Entry) {
    let slash = match entry.kind {
        Kind::File => "",
        Kind::Directory => "/",
    };
    // With `./` in front, no name is parsed as a scheme.
    out.push_str("<tr><td><a href=\"./");
    path::encode(&entry.name, out);
    out.push_str(slash);
    out.push_str("\">");
    escape(out, &String::from_utf8_lossy(&entry.name));
    out.push_str(slash);
    out.push_str("</a></td><td class=\"n\">");
    if entry.kind == Kind::File {
        write_size(out, entry.size);
    }
    out.push_str("</td><td>");
    if is_modified_known(entry) {
        let modified = rfc3339(entry.modified_ns);
        let (day, time) = (&modified[..10], &modified[11..16]);
        // Writing to a String does not fail.
        let _ = write!(out, "<time datetime=\"{modified}\">{day} {time}</time>");
    }
    out.push_str("</td></tr>\n");
}

/// Everything after the last row.
pub(super) fn end(out: &mut String, location: &Location) {
    out.push_str("</tbody>\n</table>\n");
    if let Some(next) = &location.next {
        out.push_str("<p><a rel=\"next\" href=\"");
        escape(out, next);
        out.push_str("\">Next page</a></p>\n");
    }
    out.push_str("</body>\n</html>\n");
}

fn write_size(out: &mut String, bytes: u64) {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let _ = write!(out, "<data value=\"{bytes}\">");
    if bytes < 1024 {
        let _ = write!(out, "{bytes} B");
    } else {
        let unit = ((bytes.ilog2() / 10) as usize).min(UNITS.len());
        let tenths = (u128::from(bytes) * 10) >> (10 * unit);
        let _ = write!(out, "{}.{} {}", tenths / 10, tenths % 10, UNITS[unit - 1]);
    }
    out.push_str("</data>");
}

/// Appends text, escaped for content and quoted attributes. Control characters and characters that
/// change the direction of text become U+FFFD.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        for (bytes, expected) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_900_000, "1.8 MiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            let mut out = String::new();
            write_size(&mut out, bytes);
            assert_eq!(out, format!("<data value=\"{bytes}\">{expected}</data>"));
        }
    }

    #[test]
    fn text_is_escaped() {
        let mut out = String::new();
        escape(&mut out, "<a href='x' \"&\u{1b}\u{202e}\n>");
        let expected = "&lt;a href=&#39;x&#39; &quot;&amp;\u{fffd}\u{fffd}\u{fffd}&gt;";
        assert_eq!(out, expected);
    }
}
