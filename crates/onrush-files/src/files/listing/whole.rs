//! A folder as one HTML page for programs, however large it is: they follow the links of a page,
//! but not the one to a next page.
//!
//! The first 10,000 entries are sorted, as those of a page for browsers. Those of a larger folder
//! follow in the order of the store, sorted in parts. They are rendered while they are sent, by a
//! task whose pace is that of the client. An error ends the connection, so that the client does not
//! take a part for the whole.

use crate::files::http::http_error::HttpError;
use crate::files::listing::entries::{BATCH, Entries, Part};
use crate::files::listing::html;
use crate::files::listing::list::Listings;
use crate::files::listing::list::{ListQuery, PIECE_BYTES, with_listing_fields};
use crate::files::path::Split;
use crate::files::path::location::Location;
use crate::shares::Holder;
use onrush::body::BodySender;
use onrush::{Body, Request, Response};
use onrush_store::{CursorHow, Entry, Key, ListHow};
use std::io;
use std::mem;
use std::sync::Arc;
use std::vec;

/// The bytes that may wait for the client, and one piece more.
const QUEUE_BYTES: usize = 64 << 10;

impl Listings {
    /// The response to GET of a folder by a program that wants HTML and sets no limit.
    pub(in crate::files) async fn whole(
        self: &Arc<Self>,
        request: &Request,
        split: Split<'_>,
        folder: Option<Key>,
        query: &ListQuery,
    ) -> Result<Response, HttpError> {
        let how = CursorHow {
            after: query.after.clone(),
            ..CursorHow::default()
        };
        let mut entries = Entries::new(&self.objects, Holder::of(request), folder.clone(), how);
        let first = entries.part(&self.objects, ListHow::LIMIT_MAX).await;
        let first = first.map_err(|error| self.listing_failure(error, folder.as_ref()))?;
        let location = Location::new(split, folder.as_ref(), "", None);
        let page = self.html_page(request, location, query.sort.unwrap_or_default())?;
        let policy = html::policy(page.nonce.as_deref());
        let mut whole = Whole {
            listings: self.clone(),
            page,
            rows: Vec::new().into_iter(),
            part: Part::default(),
            entries,
        };
        let mut text = String::new();
        whole.page.begin(&mut text);
        whole.show(first);
        let body = match whole.render(&mut text) {
            true => Body::from(text),
            false => {
                let (sender, body) = Body::channel(QUEUE_BYTES);
                request.worker().spawn(whole.send(sender, text)).detach();
                body
            }
        };
        Ok(with_listing_fields(Response::with_body(body), Some(policy)))
    }
}

/// A page that is being sent.
struct Whole {
    listings: Arc<Listings>,
    page: html::Page,
    /// The entries of `part` that are not rendered yet.
    rows: vec::IntoIter<Entry>,
    part: Part,
    entries: Entries,
}

impl Whole {
    /// Goes on with these entries.
    fn show(&mut self, mut part: Part) {
        let mut rows = mem::take(&mut part.entries);
        self.page.sorting.sort(&mut rows);
        (self.rows, self.part) = (rows.into_iter(), part);
    }

    /// Renders until a piece is full or the part ends, and the end of the page after the last part.
    /// Returns whether the page is complete.
    fn render(&mut self, text: &mut String) -> bool {
        while text.len() < PIECE_BYTES {
            match self.rows.next() {
                Some(entry) => self.page.entry(text, &entry),
                None if self.part.is_last => {
                    self.page.end(text);
                    return true;
                }
                None => return false,
            }
        }
        false
    }

    async fn send(mut self, mut sender: BodySender, text: String) {
        match self.send_all(&mut sender, text).await {
            Ok(()) => sender.finish(),
            Err(error) => sender.abort(error),
        }
    }

    async fn send_all(&mut self, sender: &mut BodySender, mut text: String) -> io::Result<()> {
        loop {
            if text.len() >= PIECE_BYTES {
                sender.send(mem::take(&mut text)).await?;
            }
            if self.rows.len() == 0 && !self.part.is_last {
                self.part = Part::default(); // Its memory is for the next one.
                let part = self.entries.part(&self.listings.objects, BATCH).await;
                let failed = |_| io::Error::other("the folder cannot be listed any more");
                self.show(part.map_err(failed)?);
            }
            if self.render(&mut text) {
                return sender.send(text).await;
            }
        }
    }
}
