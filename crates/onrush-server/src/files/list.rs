//! Listings: one page of a folder, rendered piece by piece while it is sent.
//!
//! `?limit=` bounds a page (1000 entries unless given, 10,000 at most), `?after=` begins it after a
//! name, `?format=json` or `html` outranks `Accept`. In a query `+` is a space. Names that are not
//! UTF-8 are shown with U+FFFD where they are not, and linked by their very bytes.
//!
//! A page stays in memory until its client has received it. All pages together have a budget for
//! that; when slow clients have used it up, further pages end sooner than was asked for, and
//! `next` tells where the following one begins, as it always does.
//!
//! This module must not know how an entry looks: that is `html`'s and `json`'s.

use super::budget::{Budget, Lease};
use super::failure::{Failure, While};
use super::path::{self, Split};
use super::place::Place;
use super::{Inner, html, json, negotiate};
use futures_core::Stream;
use onrush::{Body, Bytes, Request, Response};
use onrush_store::{Entry, Key, ListHow, Page, Store};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::vec;

/// A page is rendered in pieces of about this size, with a turn for others between two of them.
const PIECE_BYTES: usize = 32 * 1024;

/// Bytes of all pages that are on their way to clients, at most: some ten of the largest, or a
/// hundred of the usual size.
pub(super) const PAGES_BYTES_MAX: usize = 16 << 20;

/// So much of a page every request may hold, whatever others hold.
const FREE_BYTES: usize = 16 * 1024;

/// What an entry costs beside itself and its name: the name's own allocation, about.
const OVERHEAD_BYTES: usize = 16;

/// What the query and the fields of a request want.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    after: Option<Vec<u8>>,
    limit: Option<usize>,
    json: Option<bool>,
}

impl Inner {
    /// The answer to GET or HEAD of a folder.
    pub(super) async fn list(
        &self,
        request: &Request,
        split: Split<'_>,
        folder: Option<Key>,
    ) -> Result<Response, Failure> {
        let wanted = Wanted::parse(request.query().unwrap_or_default())?;
        let how = ListHow {
            after: wanted.after.clone(),
            limit: wanted.limit.unwrap_or(ListHow::default().limit),
            hidden: self.options.hidden,
        };
        let page = self.store.list(folder.as_ref(), how).await;
        let mut page = page.map_err(|error| self.failed(error, While::Reading, folder.as_ref()))?;
        if self.options.admin_beside && folder.is_none() {
            page.entries.retain(|entry| entry.name != b"-");
        }
        let lease = fit(&mut page, &self.listings);
        let json = wanted
            .json
            .unwrap_or_else(|| negotiate::prefers_json(request));
        let place = Place::new(split.mount, folder.as_ref(), &wanted.repeated(), &page);
        let response = Response::with_body(render(place, page, lease, json))
            .with_header("Vary", "Accept")
            .with_header("Cache-Control", "no-cache")
            .with_header("X-Content-Type-Options", "nosniff");
        Ok(if json {
            response.content_type("application/json")
        } else {
            response
                .content_type("text/html; charset=utf-8")
                .with_header("Content-Security-Policy", html::POLICY)
        })
    }
}

impl Wanted {
    /// What the next page's query has to say again.
    fn repeated(&self) -> String {
        let mut query = String::new();
        if let Some(limit) = self.limit {
            query.push_str(&format!("&limit={limit}"));
        }
        if let Some(json) = self.json {
            query.push_str(if json { "&format=json" } else { "&format=html" });
        }
        query
    }

    fn parse(query: &str) -> Result<Wanted, Failure> {
        let mut wanted = Wanted::default();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "after" => wanted.after = Some(path::decode_query(value)?),
                "limit" => {
                    let digits = value.bytes().all(|b| b.is_ascii_digit());
                    let limit = value.parse().ok().filter(|_| digits);
                    let limit = limit.filter(|limit| (1..=ListHow::LIMIT_MAX).contains(limit));
                    let failure = Failure::new(400, "limit is a number from 1 to 10000");
                    wanted.limit = Some(limit.ok_or(failure)?);
                }
                "format" => {
                    wanted.json = Some(match value {
                        "json" => true,
                        "html" => false,
                        _ => return Err(Failure::new(400, "format is json or html")),
                    });
                }
                _ => {}
            }
        }
        Ok(wanted)
    }
}

/// Ends a page where the room for it does, and takes that room.
fn fit(page: &mut Page, budget: &Arc<Budget>) -> Option<Lease> {
    let cost_bytes = |entries: &[Entry]| -> usize {
        let of = |entry: &Entry| size_of::<Entry>() + entry.name.capacity() + OVERHEAD_BYTES;
        entries.iter().map(of).sum()
    };
    let mut count = page.entries.len();
    let lease = loop {
        let bytes = cost_bytes(&page.entries[..count]);
        if bytes <= FREE_BYTES {
            break None;
        }
        match budget.take(bytes) {
            None => count /= 2,
            some => break some,
        }
    };
    if count < page.entries.len() {
        page.entries.truncate(count);
        page.next = page.entries.last().map(|last| last.name.clone());
    }
    page.entries.shrink_to_fit();
    lease
}

/// A page as a body: of known length when it fits one piece.
fn render(place: Place, page: Page, lease: Option<Lease>, json: bool) -> Body {
    let mut text = String::new();
    if json {
        json::begin(&mut text, &place);
    } else {
        html::begin(&mut text, &place);
    }
    let mut rendering = Rendering {
        place,
        json,
        entries: page.entries.into_iter(),
        _lease: lease,
        first: true,
        ready: None,
        rest: true,
        yielded: false,
    };
    rendering.append(&mut text);
    if !rendering.rest {
        return Body::from(text);
    }
    rendering.ready = Some(text);
    Body::stream(rendering, None)
}

/// A page on its way.
struct Rendering {
    place: Place,
    json: bool,
    entries: vec::IntoIter<Entry>,
    /// The room that the entries take.
    _lease: Option<Lease>,
    /// No entry was rendered yet.
    first: bool,
    /// A piece to be sent before more is rendered.
    ready: Option<String>,
    /// There is more to render.
    rest: bool,
    /// Others had their turn since the last piece.
    yielded: bool,
}

impl Rendering {
    /// Renders until a piece is full, or to the end.
    fn append(&mut self, out: &mut String) {
        while out.len() < PIECE_BYTES {
            match self.entries.next() {
                Some(entry) if self.json => json::entry(out, &self.place, &entry, self.first),
                Some(entry) => html::entry(out, &entry),
                None => {
                    self.rest = false;
                    return if self.json {
                        json::end(out, &self.place);
                    } else {
                        html::end(out, &self.place);
                    };
                }
            }
            self.first = false;
        }
    }
}

impl Stream for Rendering {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if let Some(text) = this.ready.take() {
            return Poll::Ready(Some(Ok(text.into())));
        }
        if !this.rest {
            return Poll::Ready(None);
        }
        this.yielded = !this.yielded;
        if this.yielded {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut text = String::with_capacity(PIECE_BYTES + 1024);
        this.append(&mut text);
        Poll::Ready(Some(Ok(text.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onrush_store::{Kind, Version};

    /// A page of `count` entries with names of `name_bytes`.
    fn page(count: usize, name_bytes: usize) -> Page {
        let entry = |number: usize| Entry {
            name: format!("{number:0name_bytes$}").into_bytes(),
            kind: Kind::File,
            size: 1,
            modified_ns: 0,
            version: Version::parse(b"x").unwrap(),
        };
        let mut entries = Vec::with_capacity(ListHow::LIMIT_MAX);
        entries.extend((0..count).map(entry));
        Page {
            entries,
            next: None,
        }
    }

    fn held_bytes(page: &Page) -> usize {
        let names: usize = page.entries.iter().map(|entry| entry.name.capacity()).sum();
        names + page.entries.capacity() * size_of::<Entry>()
    }

    #[test]
    fn pages_of_slow_readers_keep_within_the_bound() {
        let budget = Budget::new(PAGES_BYTES_MAX);
        let mut held = Vec::new();
        let mut shortest = usize::MAX;
        for reader in 0..300 {
            let count = [ListHow::LIMIT_MAX, 1000, 20][reader % 3];
            let mut page = page(count, [5, 40, 255][reader / 3 % 3]);
            let last = page.entries.last().map(|last| last.name.clone());
            let lease = fit(&mut page, &budget);
            assert!(!page.entries.is_empty());
            if page.entries.last().map(|last| last.name.clone()) == last {
                assert_eq!((page.entries.len(), &page.next), (count, &None));
            } else {
                assert_eq!(page.next.as_ref(), page.entries.last().map(|e| &e.name));
                shortest = shortest.min(page.entries.len());
            }
            held.push((page, lease));
        }
        let bytes: usize = held.iter().map(|(page, _)| held_bytes(page)).sum();
        assert!(bytes <= PAGES_BYTES_MAX + 300 * FREE_BYTES, "{bytes}");
        assert!(
            bytes > PAGES_BYTES_MAX / 2,
            "the budget is there to be used"
        );
        assert!((20..200).contains(&shortest), "{shortest}");
        drop(held);
        assert!(budget.take(PAGES_BYTES_MAX).is_some(), "all was given back");
    }

    #[test]
    fn queries_are_read_strictly() {
        let wanted = Wanted::parse("after=a%20b+c&limit=7&format=json&other=1").unwrap();
        assert_eq!(wanted.after.as_deref(), Some(&b"a b c"[..]));
        assert_eq!((wanted.limit, wanted.json), (Some(7), Some(true)));
        assert_eq!(Wanted::parse(""), Ok(Wanted::default()));
        for bad in [
            "limit=",
            "limit=0",
            "limit=10001",
            "limit=+5",
            "limit=5x",
            "limit=-1",
            "limit",
            "format=xml",
            "after=%",
            "limit=99999999999999999999999",
        ] {
            assert_eq!(Wanted::parse(bad).unwrap_err().status, 400, "{bad}");
        }
    }
}
