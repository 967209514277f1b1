//! `PROPFIND` of a folder of a store whose folders are only parts of keys (RFC 4918 §9.1): it
//! exists. sccache asks for the folders of an object before it stores it.

use crate::files::http::http_error::{HttpError, Operation};
use crate::files::listing::html::escape;
use crate::files::path;
use onrush::{Request, Response};

/// The response, whatever properties the request asks for.
pub(in crate::files) fn properties(request: &Request) -> Result<Response, HttpError> {
    path::target(request, Operation::Read)?;
    let mut href = String::new();
    escape(&mut href, request.path());
    // Clients need a time, and a folder has none.
    let text = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n\
         <D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>{href}</D:href><D:propstat><D:prop>\
         <D:resourcetype><D:collection/></D:resourcetype>\
         <D:getlastmodified>Thu, 01 Jan 1970 00:00:00 GMT</D:getlastmodified>\
         </D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>\
         </D:multistatus>\n"
    );
    Ok(Response::with_body(text)
        .with_status(207)
        .content_type("application/xml; charset=utf-8"))
}
