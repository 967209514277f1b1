//! What the path of a GET or HEAD names: an object, a folder, or a page of a site.

use crate::files::get::read::{GetRequest, Role};
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::path::{self, Target};
use crate::files::shared::client_rights::may_read_index;
use onrush::Response;
use onrush_store::{Key, StoreError};

impl GetRequest<'_> {
    /// The response.
    pub(in crate::files) async fn respond(&self) -> Result<Response, HttpError> {
        match self.resolve().await {
            Err(failure) if failure.status == 404 && self.reads.objects.options.site => {
                let page = Box::pin(self.not_found()).await?;
                page.ok_or(failure)
            }
            Err(failure) => path::scope_redirect(self.request, failure).ok_or(failure),
            result => result,
        }
    }

    /// The response with what the path names.
    async fn resolve(&self) -> Result<Response, HttpError> {
        let (reads, request) = (self.reads, self.request);
        let split = path::split(request)?;
        let target = path::target(request, Operation::Read)?;
        match target.check_visible(&reads.objects.options, Operation::Read)? {
            Target::Object(key) => match self.serve(&key, Role::Named).await {
                Ok(response) => Ok(response),
                Err(error @ (StoreError::NotFound | StoreError::IsDirectory))
                    if reads.objects.options.site =>
                {
                    Box::pin(self.page_or_error(split, &key, error)).await
                }
                Err(error) => Ok(reads.error_response(request, split, &key, error)),
            },
            Target::Folder(folder) => {
                if reads.objects.options.site
                    && may_read_index(request)
                    && let Some(response) = self.index(folder.as_ref()).await?
                {
                    return Ok(response);
                }
                self.listings.list(request, split, folder).await
            }
        }
    }

    /// The response with a folder's `index.html`, if it has one.
    async fn index(&self, folder: Option<&Key>) -> Result<Option<Response>, HttpError> {
        match path::index(folder) {
            Some(key) => self.serve_if_found(&key, Role::Named).await,
            None => Ok(None),
        }
    }
}
