//! Reads that a page of another site causes, with credentials that the browser adds by itself: a
//! password of HTTP authentication or a certificate of the client.
//!
//! - Such a request counts as one without credentials ([`ForeignRead`]): it gets what everyone may
//!   read, so public images, scripts and downloads work on each page, also for users who are logged
//!   in. What only users may read gets 403.
//! - A user who follows a link (`Sec-Fetch-Mode: navigate`, except in `object` and `embed`) reads
//!   with all rights, and so does a page that `--cors` lists.
//! - A response to a request with credentials has `Cross-Origin-Resource-Policy: same-origin`, or
//!   `cross-origin` for a page that `--cors` lists. The browser then keeps its bytes away from the
//!   process of another page, also where it does not send `Sec-Fetch-Site`. A response to a request
//!   without credentials has no such field: it is the same for everyone. With `--cors '*'`, it has
//!   `cross-origin`.
//!
//! A signed URL is no credential of the browser: every client that has the URL may use it anywhere.

use super::cors::{Cors, Grant};
use onrush::{Request, Response};

/// Of the request's extensions: the credentials of the browser must not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignRead;

/// What the fields of a request say about a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    /// The browser has added credentials.
    has_credentials: bool,
    /// A page of another site has caused it, which is no link that the user follows.
    is_foreign: bool,
    /// `--cors` lists the page.
    is_listed: bool,
    /// Every page may read what has no credentials.
    is_open: bool,
}

impl Read {
    pub(super) fn of(request: &Request, cors: &Cors, grant: Option<&Grant>) -> Read {
        let mut read = Read::of_fields(request.headers());
        if !read.has_credentials {
            let tls = request.tls();
            read.has_credentials = tls.is_some_and(|tls| !tls.peer_certificates().is_empty());
        }
        read.is_open = matches!(grant, Some(Grant::Read));
        read.is_listed = matches!(grant, Some(Grant::Full(_))) || cors.lists_page_of(request);
        read
    }

    fn of_fields<'r>(fields: impl Iterator<Item = (&'r str, &'r [u8])>) -> Read {
        let mut read = Read::default();
        let (mut is_cross_site, mut navigates, mut is_embedded) = (false, false, false);
        for (name, value) in fields {
            match name.len() {
                13 if name.eq_ignore_ascii_case("authorization") => read.has_credentials = true,
                14 if name.eq_ignore_ascii_case("sec-fetch-site") => {
                    is_cross_site |= value == b"cross-site";
                }
                14 if name.eq_ignore_ascii_case("sec-fetch-mode") => {
                    navigates = value == b"navigate";
                }
                14 if name.eq_ignore_ascii_case("sec-fetch-dest") => {
                    is_embedded |= matches!(value, b"object" | b"embed");
                }
                _ => {}
            }
        }
        read.is_foreign = is_cross_site && (is_embedded || !navigates);
        read
    }

    /// Whether the credentials of the browser must not count.
    pub(super) fn is_foreign(self) -> bool {
        self.is_foreign && !self.is_listed
    }

    /// Whether [`Read::add_field`] does anything.
    pub(super) fn has_field(self) -> bool {
        self.has_credentials || self.is_open || self.is_listed
    }

    /// Adds `Cross-Origin-Resource-Policy` (Fetch Standard §3.7), unless the application has.
    pub(super) fn add_field(self, response: &mut Response) {
        const NAME: &str = "Cross-Origin-Resource-Policy";
        let has_rights = self.has_credentials && !self.is_foreign();
        let value = match () {
            () if self.is_listed => "cross-origin",
            () if has_rights => "same-origin",
            () if self.is_open => "cross-origin",
            () => return,
        };
        if response.header(NAME).is_none() {
            response.set_header(NAME, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_no_foreign_reads() {
        let cross = ("Sec-Fetch-Site", "cross-site");
        let mode = |value| ("Sec-Fetch-Mode", value);
        let dest = |value| ("Sec-Fetch-Dest", value);
        for (fields, expected) in [
            (&[][..], false),
            (&[cross][..], true),
            (&[cross, mode("no-cors"), dest("image")][..], true),
            (&[cross, mode("cors"), dest("empty")][..], true),
            (&[cross, mode("navigate"), dest("document")][..], false),
            (&[cross, mode("navigate"), dest("iframe")][..], false),
            (&[cross, mode("navigate")][..], false),
            (&[cross, mode("navigate"), dest("object")][..], true),
            (&[mode("navigate"), dest("embed"), cross][..], true),
            (&[("sec-fetch-site", "same-origin")][..], false),
            (&[("sec-fetch-site", "same-site")][..], false),
            (&[("sec-fetch-site", "none"), mode("no-cors")][..], false),
        ] {
            let fields_of = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
            assert_eq!(
                Read::of_fields(fields_of).is_foreign(),
                expected,
                "{fields:?}"
            );
        }
    }
}
