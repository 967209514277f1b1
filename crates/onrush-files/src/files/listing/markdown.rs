//! `?markdown=NAME`: a Markdown file of a folder as a web page, for the preview.
//!
//! The file may be from a client that must not act in the page. So HTML in it is shown as text, and
//! links have known schemes only. In addition the document is sandboxed: it has an origin of its
//! own, runs nothing, and loads only images of this server. Its links open in a new tab.

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::listing::html;
use crate::files::listing::list;
use crate::files::listing::list::Listings;
use crate::files::object::read;
use crate::files::path::Target;
use crate::files::path::assets;
use crate::files::shared::permitted::Permitted;
use crate::rights::Rights;
use crate::shares::{Holder, Share};
use onrush::{Bytes, Request, Response};
use onrush_store::{Key, Wanted};
use pulldown_cmark::{CowStr, Event, Options, Parser, Tag, html::write_html_fmt};
use std::fmt::{self, Write};

/// The maximum size of a file in bytes. A larger one is shown as text.
const BYTES_MAX: u64 = 256 * 1024;

/// The maximum size of the document in relation to that of the file, and in bytes beyond it. Tables
/// and references can need more; such a file is refused.
const GROWTH: usize = 4;
const EXTRA_BYTES: usize = 16 * 1024;

const TOO_LONG: HttpError = HttpError::new(413, "the file is too long to be rendered");

/// A rendered file, and the share of memory that it takes until the client has received it.
struct Rendered {
    text: String,
    _share: Share,
}

impl AsRef<[u8]> for Rendered {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Listings {
    /// The response to `?markdown=NAME` of a folder.
    pub(in crate::files) async fn markdown(
        &self,
        request: &Request,
        folder: Option<&Key>,
        depth: usize,
        name: &[u8],
    ) -> Result<Response, HttpError> {
        let permitted = Permitted::new(request, &self.objects.options)?;
        if !permitted.at(name).contains(Rights::READ) {
            return Err(HttpError::new(403, "you may not do this"));
        }
        let key = Key::of_entry(folder, name).map_err(|_| HttpError::NOT_FOUND)?;
        Target::Object(key.clone()).check_visible(&self.objects.options, Operation::Read)?;
        let failed = |error| {
            self.objects
                .store_failure(error, Operation::Read, Some(&key))
        };
        let object = self
            .objects
            .store
            .open(&key, Wanted::All)
            .await
            .map_err(failed)?;
        let size = object.meta().size;
        if size > BYTES_MAX {
            return Err(TOO_LONG);
        }
        let bytes_max = size as usize * GROWTH + EXTRA_BYTES;
        let share = (self.objects.shares.documents).take(Holder::of(request), bytes_max);
        let share = share.map_err(|full| {
            HttpError::full(
                full,
                "you read too many documents at a time; receive some of them",
                "too many documents are being sent; try again later",
            )
        })?;
        let source = read(&object, size as usize).await.map_err(failed)?;
        let nonce = list::nonce()?;
        let policy = format!(
            "sandbox allow-popups allow-popups-to-escape-sandbox; default-src 'none'; \
             img-src 'self'; style-src 'nonce-{nonce}'; form-action 'none'; frame-ancestors 'self'"
        );
        let style = format!("{}{}", "../".repeat(depth), assets::style());
        let title = String::from_utf8_lossy(name).into_owned();
        // On the pool, because a worker serves others meanwhile.
        let text = (self.pool)
            .run(move || {
                let source = String::from_utf8_lossy(&source);
                document(&title, &style, &nonce, &source, bytes_max)
            })
            .await
            .map_err(|_| HttpError::new(500, "the file cannot be rendered"))?
            .ok_or(TOO_LONG)?;
        let body = Bytes::from_owner(Rendered {
            text,
            _share: share,
        });
        Ok(Response::with_body(body)
            .content_type("text/html; charset=utf-8")
            .with_header("Content-Security-Policy", policy)
            .with_header("Cache-Control", "no-cache")
            .with_header("Referrer-Policy", "same-origin")
            .with_header("X-Content-Type-Options", "nosniff"))
    }
}

/// Text with a maximum size. Writing more fails.
struct Bounded {
    text: String,
    bytes_max: usize,
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.bytes_max {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// The whole document. `style` is the path of the page's style. `None`: it is longer than
/// `bytes_max`.
fn document(
    title: &str,
    style: &str,
    nonce: &str,
    source: &str,
    bytes_max: usize,
) -> Option<String> {
    let mut out =
        String::from("<!DOCTYPE html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n<title>");
    html::escape(&mut out, title);
    out.push_str("</title>\n<base target=\"_blank\">\n<link rel=\"stylesheet\" nonce=\"");
    out.push_str(nonce);
    out.push_str("\" href=\"./");
    out.push_str(style);
    out.push_str("\">\n</head>\n<body>\n");
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut out = Bounded {
        text: out,
        bytes_max,
    };
    let events = Parser::new_ext(source, options).map(harmless);
    write_html_fmt(&mut out, events).ok()?;
    out.write_str("</body>\n</html>\n").ok()?;
    Some(out.text)
}

/// An event of the parser without what a document of an unknown author must not have.
fn harmless(event: Event<'_>) -> Event<'_> {
    match event {
        Event::Html(text) | Event::InlineHtml(text) => Event::Text(text),
        Event::Start(Tag::Link {
            link_type,
            dest_url,
            title,
            id,
        }) => Event::Start(Tag::Link {
            link_type,
            dest_url: safe_url(dest_url),
            title,
            id,
        }),
        Event::Start(Tag::Image {
            link_type,
            dest_url,
            title,
            id,
        }) => Event::Start(Tag::Image {
            link_type,
            dest_url: safe_url(dest_url),
            title,
            id,
        }),
        event => event,
    }
}

/// The URL, or none if it has a scheme other than those of web pages and mail. Browsers remove
/// control characters and white space before they look for a scheme.
fn safe_url(url: CowStr<'_>) -> CowStr<'_> {
    let seen = url.trim_start_matches(|c: char| c <= ' ');
    let end = seen.find(['/', '?', '#']).unwrap_or(seen.len());
    let scheme = seen[..end].split_once(':').map(|(scheme, _)| scheme);
    let is_safe = scheme.is_none_or(|scheme| {
        let known = ["http", "https", "mailto"];
        known.iter().any(|known| scheme.eq_ignore_ascii_case(known))
    });
    if is_safe { url } else { CowStr::Borrowed("") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_file_is_markup_but_markdown() {
        let text = |source| document("t<", "s.css", "n", source, 10_000).expect("short");
        let page = text("# A *b*\n\n| c | d |\n| - | - |\n| e | f |\n\n[x](y.md) ![z](i.png)\n");
        for part in [
            "<title>t&lt;</title>",
            "<h1>A <em>b</em></h1>",
            "<td>e</td>",
            "<a href=\"y.md\">x</a>",
            "<img src=\"i.png\" alt=\"z\" />",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        let hostile = "<script>a()</script>\n\n<img src=x onerror=a()> b <b onclick=a()>c</b>\n\n\
             [l](javascript:a()) [l](<java\tscript:a()>) [l](  JavaScript:a()) \
             ![i](data:text/html,x) <javascript:a()> [l](&#106;avascript:a())\n\n\
             [r]\n\n[r]: vbscript:a() \"t\\\"><i>\"\n\n\
             ```\"><script>\n</code><script>\n```\n";
        let page = text(hostile);
        let rest = page.split_once("<body>").expect("a body").1;
        for part in [
            "<script",
            "<b ",
            "<i>",
            "onerror=a()>",
            "=\"java",
            "=\"data",
            "=\"vb",
        ] {
            assert!(!rest.to_ascii_lowercase().contains(part), "{part}: {rest}");
        }
        assert!(rest.contains("&lt;script&gt;a()&lt;/script&gt;"), "{rest}");
    }

    #[test]
    fn a_document_has_a_maximum_size() {
        let columns = 10_000;
        let head = format!("{}\n{}\n", "|a".repeat(columns), "|-".repeat(columns));
        let table = head + &"|b\n".repeat(columns);
        let bytes_max = table.len() * GROWTH;
        assert_eq!(document("t", "s.css", "n", &table, bytes_max), None);
        assert!(document("t", "s.css", "n", "text", 1000).is_some());
    }

    #[test]
    fn urls_have_known_schemes() {
        for good in [
            "",
            "a",
            "a/b:c",
            "?a:b",
            "#a:b",
            "//h/p",
            "https://h",
            "HTTP://h",
            "mailto:a",
        ] {
            assert_eq!(&*safe_url(good.into()), good);
        }
        for bad in [
            "javascript:a",
            " \u{1}javascript:a",
            "java\nscript:a",
            "data:a",
            "x:",
            "file:a",
        ] {
            assert_eq!(&*safe_url(bad.into()), "", "{bad:?}");
        }
    }
}
