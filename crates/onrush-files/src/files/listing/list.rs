//! Listings: one page of a folder, rendered in pieces while it is sent.
//!
//! `?limit=` limits the entries of a page. The maximum is 10,000. This is also the default of
//! HTML for browsers. Programs that mirror a folder follow no link to a next page, so HTML for them
//! is the whole folder (`whole`). The default of JSON is 1000. `?after=` begins the page after a
//! name. `?format=json` and `?format=html` take precedence over `Accept`. In a query, `+` is a
//! space. Bytes of a name that are not UTF-8 are shown as U+FFFD; the link contains the exact
//! bytes.
//!
//! A page stays in memory until its client has received it. All pages share a budget, of which each
//! client has a share. When slow
//! clients have used it up, further pages have fewer entries than requested. `next` always points
//! to the following page.
//!
//! `?sort=` sorts an HTML page, and `?login` asks a client that has not logged in to do so.
//! `?archive=` is a download of the folder (`archive`), `?watch` a stream of its changes (`watch`),
//! and `?markdown=` a file of it, rendered.
//!
//! HEAD has the fields of a listing, without its length: it reads no names.
//!
//! `html` and `json` render entries.

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::http::negotiate;
use crate::files::listing::archive_format::Format;
use crate::files::listing::html;
use crate::files::listing::json;
use crate::files::listing::sorting::Sorting;
use crate::files::object::cache::Cache;
use crate::files::path::location::Location;
use crate::files::path::shown::is_listed;
use crate::files::path::{self, Split};
use crate::files::shared::objects::Objects;
use crate::files::shared::permitted::Permitted;
use crate::files::uploads::Uploads;
use crate::rights::Rights;
use crate::shares::{Full, Holder, Share};
use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine};
use futures_core::Stream;
use onrush::{Body, Bytes, Request, Response};
use onrush_rt::blocking::BlockingPool;
use onrush_store::{Entry, Features, Key, ListHow, Page, StoreError};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll};
use std::vec;

/// The approximate size of a piece. Other tasks run between two pieces.
pub(in crate::files) const PIECE_BYTES: usize = 32 * 1024;

/// The memory that a page may use without the budget.
const UNBUDGETED_BYTES: usize = 16 * 1024;

/// The approximate overhead of an entry: the allocation of its name.
const OVERHEAD_BYTES: usize = 16;

/// The parameters of the query.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::files) struct ListQuery {
    pub(in crate::files) after: Option<Vec<u8>>,
    pub(in crate::files) limit: Option<usize>,
    pub(in crate::files) json: Option<bool>,
    pub(in crate::files) sort: Option<Sorting>,
    pub(in crate::files) login: bool,
    pub(in crate::files) archive: Option<Format>,
    pub(in crate::files) watch: bool,
    pub(in crate::files) markdown: Option<Vec<u8>>,
}

/// Folders: listings, archives, and changes that clients watch.
pub(in crate::files) struct Listings {
    pub(in crate::files) objects: Arc<Objects>,
    pub(in crate::files) pool: BlockingPool,
    /// Archives make room in it for the files that they open.
    pub(in crate::files) cache: Arc<Cache>,
    /// The page offers uploads that continue.
    pub(in crate::files) uploads: Arc<Uploads>,
    /// Increases when clients that watch have to connect again.
    pub(in crate::files) watch_epoch: Arc<AtomicU64>,
}

impl Listings {
    /// One page of a folder.
    pub(in crate::files) async fn page(
        self: &Arc<Self>,
        request: &Request,
        split: Split<'_>,
        folder: Option<Key>,
        query: &ListQuery,
        json: bool,
    ) -> Result<Response, HttpError> {
        let holder = Holder::of(request);
        let default_limit = match json {
            true => ListHow::default().limit,
            false => ListHow::LIMIT_MAX,
        };
        let how = ListHow {
            after: query.after.clone(),
            limit: query.limit.unwrap_or(default_limit),
            hidden: self.objects.options.lists_hidden(),
            client: holder.number(),
        };
        let page = self.objects.store.list(folder.as_ref(), how).await;
        let mut page = page.map_err(|error| self.listing_failure(error, folder.as_ref()))?;
        page.entries
            .retain(|entry| is_listed(&self.objects.options, folder.as_ref(), &entry.name));
        let entries = page.entries.len();
        let lease = self.shorten(&mut page, holder);
        if page.entries.len() < entries && !json && query.limit.is_none() {
            // What mirrors a folder may not follow `rel="next"`, and must not take a shortened page
            // for the whole folder.
            return Err(HttpError::new(
                503,
                "too many long listings are being read; try again later, or with ?limit=100",
            ));
        }
        let (next_query, next) = (query.next_page_query(), page.next.as_deref());
        let location = Location::new(split, folder.as_ref(), &next_query, next);
        let (form, policy) = match json {
            true => (Form::Json(location), None),
            false => {
                let page_of = self.html_page(request, location, query.sort.unwrap_or_default())?;
                page_of.sorting.sort(&mut page.entries);
                let policy = html::policy(page_of.nonce.as_deref());
                (Form::Html(Box::new(page_of)), Some(policy))
            }
        };
        Ok(with_listing_fields(
            Response::with_body(render(form, page, lease)),
            policy,
        ))
    }

    /// The response to HEAD of a folder. It has no length, because that takes all names.
    pub(in crate::files) async fn head_of_folder(
        &self,
        request: &Request,
        folder: Option<&Key>,
        json: bool,
    ) -> Result<Response, HttpError> {
        let found = self.objects.store.check_folder(folder).await;
        found.map_err(|error| self.listing_failure(error, folder))?;
        let policy = match json {
            true => None,
            false => {
                let nonce = negotiate::names_html(request).then(nonce).transpose()?;
                Some(html::policy(nonce.as_deref()))
            }
        };
        let (_, body) = Body::channel(0);
        Ok(with_listing_fields(Response::with_body(body), policy))
    }

    /// The response if a folder cannot be listed.
    pub(in crate::files) fn listing_failure(
        &self,
        error: StoreError,
        folder: Option<&Key>,
    ) -> HttpError {
        match error {
            StoreError::Unsupported => HttpError::new(501, "the store has no listings"),
            error => self.objects.store_failure(error, Operation::Read, folder),
        }
    }

    /// Shortens a page of a listing to the memory that the budget of listings has for `holder`, and
    /// takes that memory.
    fn shorten(&self, page: &mut Page, holder: Holder) -> Option<Share> {
        let take = |bytes| self.objects.shares.listings.take(holder, bytes);
        truncate_to_budget(page, take, self.objects.store.features())
    }

    /// The parts of an HTML page that do not depend on the entries.
    pub(in crate::files) fn html_page(
        &self,
        request: &Request,
        location: Location,
        sorting: Sorting,
    ) -> Result<html::Page, HttpError> {
        Ok(html::Page {
            location,
            permitted: Permitted::new(request, &self.objects.options)?,
            sorting,
            nonce: negotiate::names_html(request).then(nonce).transpose()?,
            features: match self.objects.options.sink {
                true => Features::default(), // It stores nothing.
                false => self.objects.store.features(),
            },
            continues_uploads: self.uploads.serves(&self.objects.options)
                && self.uploads.take_parts(),
        })
    }

    /// The page for a browser whose user may upload to the folder and not list it. `None` for other
    /// requests. The folder is not looked up, so the page does not tell whether it exists.
    pub(in crate::files) fn upload_form(
        &self,
        request: &Request,
        split: Split<'_>,
        folder: Option<&Key>,
        query: &ListQuery,
    ) -> Result<Option<Response>, HttpError> {
        let is_listing = query.archive.is_none()
            && query.markdown.is_none()
            && query.json.is_none()
            && !query.watch;
        if !is_listing || !negotiate::names_html(request) {
            return Ok(None);
        }
        let location = Location::new(split, folder, "", None);
        let page = self.html_page(request, location, Sorting::default())?;
        if !page.permitted.here().contains(Rights::CREATE) {
            return Ok(None);
        }
        let policy = html::policy(page.nonce.as_deref());
        let response = Response::with_body(page.upload_form());
        Ok(Some(with_listing_fields(response, Some(policy))))
    }
}

/// Adds the fields of a listing. `policy`: that of an HTML page; `None` for JSON.
pub(in crate::files) fn with_listing_fields(
    response: Response,
    policy: Option<String>,
) -> Response {
    let response = response
        .with_header("Vary", "Accept")
        .with_header("Cache-Control", "no-cache")
        .with_header("X-Content-Type-Options", "nosniff");
    match policy {
        None => response.content_type("application/json"),
        Some(policy) => response
            .content_type("text/html; charset=utf-8")
            .with_header("Content-Security-Policy", policy)
            // Not `no-referrer`: some browsers would send `Origin: null` with a PUT.
            .with_header("Referrer-Policy", "same-origin"),
    }
}

/// A value for one response that no client can guess.
pub(crate) fn nonce() -> Result<String, HttpError> {
    let mut bytes = [0; 16];
    let failed = |_| HttpError::new(500, "the system has no random numbers");
    aws_lc_rs::rand::fill(&mut bytes).map_err(failed)?;
    Ok(BASE64_URL_SAFE_NO_PAD.encode(bytes))
}

impl ListQuery {
    /// The parameters that the query of the next page repeats.
    fn next_page_query(&self) -> String {
        let mut query = String::new();
        if let Some(limit) = self.limit {
            query.push_str(&format!("&limit={limit}"));
        }
        if let Some(json) = self.json {
            query.push_str(if json { "&format=json" } else { "&format=html" });
        }
        if let Some(sort) = self.sort {
            query.push_str(&format!("&sort={sort}"));
        }
        query
    }

    pub(in crate::files) fn parse(text: &str) -> Result<ListQuery, HttpError> {
        let mut query = ListQuery::default();
        for pair in text.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "after" => query.after = Some(path::decode_query(value)?),
                "limit" => {
                    let digits = value.bytes().all(|b| b.is_ascii_digit());
                    let limit = value.parse().ok().filter(|_| digits);
                    let limit = limit.filter(|limit| (1..=ListHow::LIMIT_MAX).contains(limit));
                    let failure = HttpError::new(400, "limit must be a number from 1 to 10000");
                    query.limit = Some(limit.ok_or(failure)?);
                }
                "format" => {
                    query.json = Some(match value {
                        "json" => true,
                        "html" => false,
                        _ => return Err(HttpError::new(400, "format must be json or html")),
                    });
                }
                "sort" => {
                    let failure =
                        HttpError::new(400, "sort must be name, size or time, or one with a minus");
                    query.sort = Some(Sorting::parse(value).ok_or(failure)?);
                }
                "login" => query.login = true,
                "watch" => query.watch = true,
                "markdown" => query.markdown = Some(path::decode_query(value)?),
                "archive" => {
                    let failure = HttpError::new(400, "archive must be zip, tar or tar.zst");
                    query.archive = Some(Format::parse(value).ok_or(failure)?);
                }
                _ => {}
            }
        }
        Ok(query)
    }
}

/// Shortens a page to the memory that can be taken, and takes it. `features`: those of the store.
fn truncate_to_budget(
    page: &mut Page,
    take: impl Fn(usize) -> Result<Share, Full>,
    features: Features,
) -> Option<Share> {
    let cost_bytes = |entries: &[Entry]| -> usize {
        let of = |entry: &Entry| size_of::<Entry>() + entry.name.capacity() + OVERHEAD_BYTES;
        entries.iter().map(of).sum()
    };
    let mut count = page.entries.len();
    let lease = loop {
        let bytes = cost_bytes(&page.entries[..count]);
        if bytes <= UNBUDGETED_BYTES {
            break None;
        }
        match take(bytes) {
            Err(_) => count /= 2,
            Ok(share) => break Some(share),
        }
    };
    if count < page.entries.len() {
        page.entries.truncate(count);
        page.next = page.entries.last().map(|last| features.position(last));
    }
    page.entries.shrink_to_fit();
    lease
}

/// Renders a page as a body. Its length is known if the page fits into one piece.
fn render(form: Form, page: Page, lease: Option<Share>) -> Body {
    let mut text = String::new();
    match &form {
        Form::Json(location) => json::begin(&mut text, location),
        Form::Html(page) => page.begin(&mut text),
    }
    let mut rendering = Rendering {
        form,
        entries: page.entries.into_iter(),
        _lease: lease,
        first: true,
        ready: None,
        has_more: true,
        yielded: false,
    };
    rendering.append(&mut text);
    if !rendering.has_more {
        return Body::from(text);
    }
    rendering.ready = Some(text);
    Body::stream(rendering, None)
}

/// The form of a listing, and what it shows besides the entries.
enum Form {
    Json(Location),
    Html(Box<html::Page>),
}

/// A page that is being rendered and sent.
struct Rendering {
    form: Form,
    entries: vec::IntoIter<Entry>,
    /// The memory of the entries.
    _lease: Option<Share>,
    /// No entry has been rendered yet.
    first: bool,
    /// A rendered piece that is sent before more is rendered.
    ready: Option<String>,
    /// There is more to render.
    has_more: bool,
    /// The stream has yielded since the last piece.
    yielded: bool,
}

impl Rendering {
    /// Renders until a piece is full or the page ends.
    fn append(&mut self, out: &mut String) {
        while out.len() < PIECE_BYTES {
            match (self.entries.next(), &self.form) {
                (Some(entry), Form::Json(location)) => {
                    json::entry(out, location, &entry, self.first);
                }
                (Some(entry), Form::Html(page)) => page.entry(out, &entry),
                (None, form) => {
                    self.has_more = false;
                    return match form {
                        Form::Json(location) => json::end(out, location),
                        Form::Html(page) => page.end(out),
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
        if !this.has_more {
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
    use crate::files::shared::client_shares::PAGES_BYTES_MAX;
    use crate::shares::Shares;
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
    fn pages_of_slow_clients_keep_within_the_limit() {
        let shares = Shares::new("listings", PAGES_BYTES_MAX);
        let mut held = Vec::new();
        let mut shortest = usize::MAX;
        for reader in 0..300 {
            let count = [ListHow::LIMIT_MAX, 1000, 20][reader % 3];
            let mut page = page(count, [5, 40, 255][reader / 3 % 3]);
            let last = page.entries.last().map(|last| last.name.clone());
            let holder = Holder::user(&(reader % 10).to_string());
            let take = |bytes| shares.take(holder, bytes);
            let lease = truncate_to_budget(&mut page, take, Features::default());
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
        assert!(bytes <= PAGES_BYTES_MAX + 300 * UNBUDGETED_BYTES, "{bytes}");
        assert!(bytes > PAGES_BYTES_MAX / 2, "most of the budget is used");
        assert!((20..200).contains(&shortest), "{shortest}");
        drop(held);
        assert_eq!(shares.state().used, 0, "all is returned");
    }

    /// A bucket orders a folder as if its name ended with a slash.
    #[test]
    fn a_shortened_page_continues_after_its_last_entry() {
        for folders_end_with_slash in [false, true] {
            let mut features = Features::default();
            features.folders_end_with_slash = folders_end_with_slash;
            let mut page = page(1000, 40);
            for entry in &mut page.entries {
                entry.kind = Kind::Directory;
            }
            let shares = Shares::new("listings", UNBUDGETED_BYTES);
            let take = |bytes| shares.take(Holder::user("a"), bytes);
            assert!(truncate_to_budget(&mut page, take, features).is_none());
            let mut expected = page.entries.last().expect("an entry").name.clone();
            if folders_end_with_slash {
                expected.push(b'/');
            }
            assert!(page.entries.len() < 1000 && page.next == Some(expected));
        }
    }

    #[test]
    fn queries_are_parsed_strictly() {
        let query =
            ListQuery::parse("after=a%20b+c&limit=7&format=json&other=1&sort=-size").unwrap();
        assert_eq!(query.after.as_deref(), Some(&b"a b c"[..]));
        assert_eq!((query.limit, query.json), (Some(7), Some(true)));
        assert_eq!(query.next_page_query(), "&limit=7&format=json&sort=-size");
        assert_eq!(ListQuery::parse(""), Ok(ListQuery::default()));
        for bad in [
            "limit=",
            "limit=0",
            "limit=10001",
            "limit=+5",
            "limit=5x",
            "limit=-1",
            "limit",
            "format=xml",
            "sort=color",
            "archive=rar",
            "after=%",
            "limit=99999999999999999999999",
        ] {
            assert_eq!(ListQuery::parse(bad).unwrap_err().status, 400, "{bad}");
        }
    }
}
