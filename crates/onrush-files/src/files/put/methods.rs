//! Which methods are served: the value of `Allow`, and why others get 405.

use crate::files::http::http_error::HttpError;
use crate::files::uploads::UploadId;
use crate::files::{Allow, FilesOptions, Inner};
use onrush::{Request, Response};

impl Inner {
    /// The methods that are served at the path of a request: what [`Inner::dispatch`] and WebDAV
    /// accept, and the value of `Allow`.
    pub(in crate::files) fn methods(&self, request: &Request) -> &[&'static str] {
        let is_asked = request.method() == "OPTIONS" && UploadId::of_request(request).is_some();
        let is_upload = is_asked || UploadId::is_named_by(request);
        match is_upload && self.offers_uploads() {
            true => &["DELETE", "HEAD", "OPTIONS", "PATCH"],
            false if self.is_state(request) => &self.state_methods,
            false => &self.methods,
        }
    }

    /// A 405 with the field `Allow`.
    pub(in crate::files) fn method_not_allowed(
        &self,
        request: &Request,
        failure: HttpError,
    ) -> Response {
        let response = failure.into_response(request);
        response.with_header("Allow", self.methods(request).join(", "))
    }

    /// Why a method is not among [`Inner::methods`]: another `--allow` may permit it.
    pub(in crate::files) fn why_not_allowed(&self, method: &str) -> HttpError {
        let all = Allow {
            put: true,
            delete: true,
            delete_folders: true,
        };
        let may_be_permitted = methods(all, &self.options, false).contains(&method);
        let given = self.options.allow;
        match may_be_permitted && !self.methods.contains(&method) {
            true if given.put || given.delete || self.options.sink => HttpError::CHANGE_NOT_ALLOWED,
            true => HttpError::READ_ONLY,
            false => HttpError::METHOD_NOT_ALLOWED,
        }
    }
}

/// The methods of objects and folders that are served with these options, if `allow` were theirs.
/// `of_state`: those of states of Terraform.
pub(in crate::files) fn methods(
    allow: Allow,
    options: &FilesOptions,
    of_state: bool,
) -> Vec<&'static str> {
    let Allow { put, delete, .. } = allow;
    let stores = put && !options.sink;
    let methods = [
        ("COPY", stores),
        ("DELETE", delete),
        ("GET", true),
        ("HEAD", true),
        ("LOCK", stores && (options.webdav || of_state)),
        ("MKCOL", stores && options.webdav),
        ("MOVE", stores && delete),
        ("OPTIONS", true),
        ("POST", stores),
        ("PROPFIND", options.webdav || options.content_addressed),
        ("PROPPATCH", stores && options.webdav),
        ("PUT", put || options.sink),
        ("UNLOCK", stores && (options.webdav || of_state)),
    ];
    let permitted = methods.iter().filter(|(_, is_permitted)| *is_permitted);
    permitted.map(|(name, _)| *name).collect()
}
