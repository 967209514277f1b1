//! A GET or HEAD of a folder: its query decides what the response is.

use crate::files::http::http_error::HttpError;
use crate::files::http::negotiate;
use crate::files::listing::list::{ListQuery, Listings};
use crate::files::path::Split;
use crate::files::shared::client_rights::check_right;
use crate::rights::{Identity, Rights};
use onrush::{Request, Response};
use onrush_store::Key;
use std::sync::Arc;

impl Listings {
    /// The response to GET or HEAD of a folder.
    pub(in crate::files) async fn list(
        self: &Arc<Self>,
        request: &Request,
        split: Split<'_>,
        folder: Option<Key>,
    ) -> Result<Response, HttpError> {
        let may_list = check_right(request, Rights::LIST);
        let query = ListQuery::parse(request.query().unwrap_or_default())?;
        if query.login
            && let Some(identity) = request.extension::<Identity>()
            && identity.name().is_none()
        {
            return Err(HttpError::not_permitted(identity));
        }
        if let Err(failure) = may_list {
            let form = self.upload_form(request, split, folder.as_ref(), &query)?;
            return form.ok_or(failure);
        }
        if let Some(format) = query.archive {
            return self.archive(request, folder, format).await;
        }
        if query.watch {
            return self.watch(request, split, folder).await;
        }
        if let Some(name) = &query.markdown {
            let depth = split.subpath.matches('/').count();
            return self.markdown(request, folder.as_ref(), depth, name).await;
        }
        let json = query
            .json
            .unwrap_or_else(|| negotiate::prefers_json(request));
        if request.method() == "HEAD" {
            return self.head_of_folder(request, folder.as_ref(), json).await;
        }
        if !json && query.limit.is_none() && !negotiate::names_html(request) {
            return self.whole(request, split, folder, &query).await;
        }
        self.page(request, split, folder, &query, json).await
    }
}
