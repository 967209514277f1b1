//! A listing as an HTML page. `assets/page.html` is its template, and this module fills it.
//!
//! The page is complete without its script: links, and buttons of a form that sort, download the
//! folder and log in. They are buttons because programs that mirror a folder follow links. For the
//! same reason the style and the script are linked only if `Accept` names `text/html`, as that of
//! every browser does. Links are relative, so they work behind a proxy that changes paths.
//!
//! The script finds what the client may do in `data-rights`, whether changes are reported in
//! `data-watch`, and the entity tag of an entry that may be deleted in `data-etag`. An entry that
//! may be moved has `data-movable`.

use crate::files::listing::archive_format::Format;
use crate::files::listing::json::{is_modified_known, rfc3339};
use crate::files::listing::sorting::{Column, Sorting};
use crate::files::path;
use crate::files::path::assets;
use crate::files::path::location::Location;
use crate::files::shared::permitted::Permitted;
use crate::rights::Rights;
use onrush_store::{Entry, Features, Kind};
use std::fmt::Write;

const TEMPLATE: &str = include_str!("../../../assets/page.html");

/// What the page shows, besides the entries.
pub(in crate::files) struct Page {
    pub(in crate::files) location: Location,
    pub(in crate::files) permitted: Permitted,
    pub(in crate::files) sorting: Sorting,
    /// The value that lets the browser load this page's style and script, and no others; `None`
    /// for a program, which gets a page without them.
    pub(in crate::files) nonce: Option<String>,
    /// What the store can do.
    pub(in crate::files) features: Features,
    /// Whether the parts of an upload may arrive in any order: the page sends them so.
    pub(in crate::files) continues_uploads: bool,
}

/// The policy of a page: it loads the style and the script with the nonce, and media and data from
/// this server. It runs nothing else, sends forms to this server only, and is in no frame. A script
/// among the objects does not have the nonce.
pub(crate) fn policy(nonce: Option<&str>) -> String {
    let own = match nonce {
        Some(nonce) => format!(
            "script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self'; \
             media-src 'self'; frame-src 'self'; connect-src 'self'; "
        ),
        None => String::new(),
    };
    format!("default-src 'none'; {own}base-uri 'none'; form-action 'self'; frame-ancestors 'none'")
}

impl Page {
    /// Everything before the first entry.
    pub(in crate::files) fn begin(&self, out: &mut String) {
        self.fill(out, halves().0);
    }

    /// Everything after the last entry.
    pub(in crate::files) fn end(&self, out: &mut String) {
        self.fill(out, halves().1);
    }

    /// The page for clients that may upload to the folder and not list it. It has no entries.
    pub(in crate::files) fn upload_form(&self) -> String {
        let (before, table) = TEMPLATE.split_once("<table>\n").unwrap_or((TEMPLATE, ""));
        let (_, after) = table.split_once("</table>\n").unwrap_or_default();
        let mut out = String::new();
        self.fill(&mut out, before);
        self.fill(&mut out, after);
        out
    }

    fn fill(&self, out: &mut String, template: &str) {
        let mut parts = template.split("{{");
        out.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let (name, text) = part.split_once("}}").unwrap_or((part, ""));
            self.value(out, name);
            out.push_str(text);
        }
    }

    /// Appends the value of a placeholder of the template.
    fn value(&self, out: &mut String, name: &str) {
        match name {
            "title" => escape(out, &self.location.path),
            "assets" => self.assets(out),
            "path" => self.path(out),
            "user" => self.user(out),
            "rights" => self.rights(out),
            "watch" => {
                if self.features.watch && self.permitted.here().contains(Rights::LIST) {
                    out.push_str(" data-watch");
                }
            }
            "name" => escape(out, self.location.names().last().unwrap_or("All files")),
            "uploads" => out.push_str(match self.continues_uploads {
                true => "continue",
                false => "whole",
            }),
            "limits" => self.limits(out),
            "tools" => self.tools(out),
            "columns" => self.columns(out),
            "next" => self.next(out),
            name => debug_assert!(false, "the template names {name}"),
        }
    }

    fn assets(&self, out: &mut String) {
        let Some(nonce) = &self.nonce else { return };
        let top = "../".repeat(self.location.depth);
        let (style, script) = (assets::style(), assets::script());
        // Writing to a String does not fail.
        let _ = writeln!(
            out,
            "<link rel=\"stylesheet\" nonce=\"{nonce}\" href=\"./{top}{style}\">\n\
             <script type=\"module\" nonce=\"{nonce}\" src=\"./{top}{script}\"></script>"
        );
    }

    fn path(&self, out: &mut String) {
        let names = || std::iter::once("All files").chain(self.location.names());
        let last = names().count() - 1;
        let is_browser = self.nonce.is_some();
        for (at, name) in names().enumerate() {
            // A program that follows links (fsspec, wget) is to find only what is in the folder.
            // The link `../` is known to be the folder above.
            if !is_browser && at + 1 != last {
                out.push_str("<li>");
                escape(out, name);
                out.push_str("</li>\n");
                continue;
            }
            out.push_str(match is_browser {
                true => "<li><a href=\"./",
                false => "<li><a href=\"",
            });
            out.push_str(&"../".repeat(match at {
                0 => self.location.depth,
                at => last - at,
            }));
            out.push_str(match at == last {
                true => "\" aria-current=\"page\">",
                false => "\">",
            });
            escape(out, name);
            out.push_str("</a></li>\n");
        }
    }

    fn user(&self, out: &mut String) {
        if let Some(name) = self.permitted.user() {
            out.push_str("<p class=\"user\">Logged in as <b>");
            escape(out, name);
            out.push_str("</b></p>\n");
        } else if self.permitted.may_log_in() {
            out.push_str(
                "<p class=\"user\"><button form=\"view\" name=\"login\" value=\"1\">Log in\
                 </button></p>\n",
            );
        }
    }

    fn rights(&self, out: &mut String) {
        let rights = self.permitted.here();
        let names = [
            ("create ", Rights::CREATE),
            ("replace ", Rights::WRITE),
            ("delete ", Rights::DELETE),
        ];
        for (name, _) in names.iter().filter(|(_, right)| rights.contains(*right)) {
            out.push_str(name);
        }
    }

    /// What a client without the right to list should know.
    fn limits(&self, out: &mut String) {
        if !self.permitted.here().contains(Rights::LIST) {
            out.push_str(
                "<p>You can upload files to this folder. You may not see what is in it.</p>\n\
                 <noscript><p>The buttons need JavaScript. Programs upload a file with PUT.</p>\
                 </noscript>\n",
            );
        }
    }

    fn tools(&self, out: &mut String) {
        let rights = self.permitted.here();
        let may_list = rights.contains(Rights::LIST);
        if rights.contains(Rights::CREATE) {
            out.push_str(
                "<button type=\"button\" id=\"upload-files\" hidden>Upload files</button>\n\
                 <button type=\"button\" id=\"upload-folder\" hidden>Upload a folder</button>\n",
            );
            if self.features.empty_folders && may_list {
                out.push_str(
                    "<button type=\"button\" id=\"new-folder\" hidden>New folder</button>\n",
                );
            }
        }
        if !may_list {
            return;
        }
        if rights.contains(Rights::READ) {
            out.push_str(
                "<form method=\"get\"><button>Download all</button> <select name=\"archive\" \
                 aria-label=\"Format of the archive\">",
            );
            for name in Format::ALL.map(Format::extension) {
                let _ = write!(out, "<option>{name}</option>");
            }
            out.push_str("</select></form>\n");
        }
        out.push_str(
            "<label id=\"filter\" hidden>Filter <input type=\"search\" autocomplete=\"off\" \
             spellcheck=\"false\"></label>\n",
        );
    }

    fn columns(&self, out: &mut String) {
        for column in [Column::Name, Column::Size, Column::Time] {
            let is_sorted = self.sorting.column == column;
            let next = Sorting {
                column,
                descending: is_sorted && !self.sorting.descending,
            };
            let class = if column == Column::Size {
                " class=\"n\""
            } else {
                ""
            };
            let sorted = match (is_sorted, self.sorting.descending) {
                (false, _) => "",
                (true, false) => " aria-sort=\"ascending\"",
                (true, true) => " aria-sort=\"descending\"",
            };
            let label = match column {
                Column::Name => "Name",
                Column::Size => "Size",
                Column::Time => "Modified (UTC)",
            };
            let _ = write!(
                out,
                "<th scope=\"col\"{class}{sorted}><button form=\"view\" name=\"sort\" \
                 value=\"{next}\">{label}</button></th>"
            );
        }
    }

    /// One row.
    pub(in crate::files) fn entry(&self, out: &mut String, entry: &Entry) {
        let slash = match entry.kind {
            Kind::File => "",
            Kind::Directory => "/",
        };
        out.push_str("<tr");
        if self.permitted.at(&entry.name).contains(Rights::DELETE) {
            out.push_str(" data-etag=\"");
            if entry.kind == Kind::File {
                escape(out, entry.version.as_str());
            }
            out.push('"');
        }
        if self.permitted.may_move(entry, &self.features) {
            out.push_str(" data-movable");
        }
        // Colons are encoded, so no name is parsed as a scheme. Without `./` in front, programs
        // that join paths as text (fsspec) have the URL of the object.
        out.push_str("><td><a href=\"");
        path::encode(&entry.name, out);
        out.push_str(slash);
        out.push_str("\"><bdi>");
        match String::from_utf8_lossy(&entry.name) {
            // A link needs something to see, and to click on.
            blank if blank.trim().is_empty() => out.extend(blank.chars().map(|_| '\u{2423}')),
            name => escape(out, &name),
        }
        out.push_str("</bdi>");
        out.push_str(slash);
        out.push_str("</a></td><td class=\"n\">");
        if entry.kind == Kind::File {
            write_size(out, entry.size);
        }
        out.push_str("</td><td>");
        if is_modified_known(entry) {
            let modified = rfc3339(entry.modified_ns);
            let (day, time) = (&modified[..10], &modified[11..16]);
            let parts = [
                "<time datetime=\"",
                &modified,
                "\">",
                day,
                " ",
                time,
                "</time>",
            ];
            out.extend(parts);
        }
        out.push_str("</td></tr>\n");
    }

    fn next(&self, out: &mut String) {
        if let Some(next) = &self.location.next {
            out.push_str(
                "<p class=\"next\">This folder has more entries than one page. Sorting and \
                 filtering apply to each page. <a rel=\"next\" href=\"",
            );
            escape(out, next);
            out.push_str("\">Next page</a></p>\n");
        }
    }
}

/// The template before and after the rows.
fn halves() -> (&'static str, &'static str) {
    TEMPLATE.split_once("{{rows}}\n").unwrap_or((TEMPLATE, ""))
}

fn write_size(out: &mut String, bytes: u64) {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        let bytes = bytes.to_string();
        out.extend(["<data value=\"", &bytes, "\">", &bytes, " B</data>"]);
        return;
    }
    let unit = ((bytes.ilog2() / 10) as usize).min(UNITS.len());
    let tenths = (u128::from(bytes) * 10) >> (10 * unit);
    let _ = write!(
        out,
        "<data value=\"{bytes}\" title=\"{bytes} bytes\">{}.{} {}</data>",
        tenths / 10,
        tenths % 10,
        UNITS[unit - 1]
    );
}

/// Appends text, escaped for content and quoted attributes. Control characters and characters that
/// change the direction of text become U+FFFD.
pub(in crate::files) fn escape(out: &mut String, text: &str) {
    let is_plain = |b: u8| (b' '..0x7f).contains(&b) && !b"&<>\"'".contains(&b);
    if text.bytes().all(is_plain) {
        return out.push_str(text); // Most names.
    }
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
            (0, "<data value=\"0\">0 B</data>"),
            (1023, "<data value=\"1023\">1023 B</data>"),
            (
                1_900_000,
                "<data value=\"1900000\" title=\"1900000 bytes\">1.8 MiB</data>",
            ),
        ] {
            let mut out = String::new();
            write_size(&mut out, bytes);
            assert_eq!(out, expected);
        }
        let mut out = String::new();
        write_size(&mut out, u64::MAX);
        assert!(out.ends_with(">15.9 EiB</data>"), "{out}");
    }

    #[test]
    fn text_is_escaped() {
        let mut out = String::new();
        escape(&mut out, "<a href='x' \"&\u{1b}\u{202e}\n>");
        let expected = "&lt;a href=&#39;x&#39; &quot;&amp;\u{fffd}\u{fffd}\u{fffd}&gt;";
        assert_eq!(out, expected);
    }

    #[test]
    fn a_program_gets_a_page_that_loads_nothing() {
        let of_program = policy(None);
        assert!(of_program.starts_with("default-src 'none'; base-uri 'none'; form-action"));
        assert!(policy(Some("abc")).contains("script-src 'nonce-abc'; style-src 'nonce-abc';"));
    }
}
