//! What a web site serves at a path without an object:
//!
//! | path | response |
//! | --- | --- |
//! | `/about`, and there is `about.html` | that object, also if `about` is a folder |
//! | `/about`, a folder | 301 to `/about/` |
//! | any, with `spa`, and the client navigates to it | `index.html` of the top folder |
//! | any, and there is `404.html` in the top folder | that object, with status 404 |
//!
//! A client navigates if it says so (`Sec-Fetch-Mode`), or, without that field, if it names
//! `text/html`. So a script or an image that is missing is not found, instead of being a page.

use crate::files::get::read::{GetRequest, Role};
use crate::files::http::http_error::HttpError;
use crate::files::http::negotiate::{prefers_html, prefers_json};
use crate::files::path::Split;
use crate::files::shared::client_rights::may_read;
use crate::files::shared::stand_in::StandIn;
use crate::rights::INDEX;
use onrush::{Request, Response};
use onrush_store::{Key, StoreError};

/// What the path of a page may leave out.
const PAGE_EXTENSION: &str = ".html";

/// The fields of a request that [`is_navigation`] reads, as a value of `Vary`.
const NAVIGATION_FIELDS: &str = "Accept, Sec-Fetch-Mode";

/// The page for paths that name nothing.
const NOT_FOUND_PAGE: &str = "404.html";

impl GetRequest<'_> {
    /// The response for `key`, at which there is no object for the reason `error`: the page with
    /// this name, or an error.
    pub(in crate::files) async fn page_or_error(
        &self,
        split: Split<'_>,
        key: &Key,
        error: StoreError,
    ) -> Result<Response, HttpError> {
        let page = [key.as_bytes(), PAGE_EXTENSION.as_bytes()].concat();
        if !key.as_bytes().ends_with(PAGE_EXTENSION.as_bytes())
            && let Some(page) = self.page(&page, Role::Named).await?
        {
            return Ok(page);
        }
        match error {
            StoreError::NotFound => Err(HttpError::NOT_FOUND),
            error => Ok((self.reads).error_response(self.request, split, key, error)),
        }
    }

    /// The response of a site for a path that names nothing. `None`: the site has no page for it.
    pub(in crate::files) async fn not_found(&self) -> Result<Option<Response>, HttpError> {
        let is_spa = self.reads.objects.options.spa;
        if is_spa
            && is_navigation(self.request)
            && let Some(page) = self.page(INDEX.as_bytes(), Role::Named).await?
        {
            return Ok(Some(depending_on_navigation(self.request, page)));
        }
        if prefers_json(self.request) {
            return Ok(None);
        }
        let page = (self.page(NOT_FOUND_PAGE.as_bytes(), Role::NotFoundPage)).await?;
        Ok(match is_spa {
            true => page.map(|page| depending_on_navigation(self.request, page)),
            false => page,
        })
    }

    /// The response with an object that the path of the request does not name itself, if there is
    /// one and the client may read it.
    async fn page(&self, key: &[u8], role: Role) -> Result<Option<Response>, HttpError> {
        let key = Key::parse(key).ok();
        match key.filter(|key| may_read(self.request, key)) {
            Some(key) => self.serve_if_found(&key, role).await,
            None => Ok(None),
        }
    }
}

/// Marks the response to a path that names nothing, which depends on [`is_navigation`]. Such a
/// response has no freshness of its own: soon there may be an object.
fn depending_on_navigation(request: &Request, response: Response) -> Response {
    StandIn::mark(request);
    let mut response = response.with_header("Cache-Control", "no-cache");
    // The fields and the values are valid.
    let _ = response.append_header("Vary", NAVIGATION_FIELDS);
    response
}

/// Whether a browser is going to show the response as a page (Fetch Metadata §2.2).
fn is_navigation(request: &Request) -> bool {
    match request.header("sec-fetch-mode") {
        Some(mode) => mode == b"navigate",
        None => prefers_html(request),
    }
}
