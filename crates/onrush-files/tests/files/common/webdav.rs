//! Requests of WebDAV, and what their responses contain.

use crate::common::{Reply, TestServer, writable};
use onrush_files::FilesOptions;

pub fn webdav() -> FilesOptions {
    let mut options = FilesOptions {
        webdav: true,
        hidden: true,
        ..writable()
    };
    options.allow.delete_folders = true;
    options
}

/// A PROPFIND without content.
pub fn propfind(server: &mut TestServer, path: &str, depth: &str) -> Reply {
    server.request(&format!("PROPFIND {path}\nDepth: {depth}"), b"")
}

/// The text of an element without attributes and children.
pub fn element<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(&format!("<D:{name}>"))?;
    rest.split_once('<').map(|(text, _)| text)
}

/// The paths of a multistatus, in order.
pub fn paths(reply: &Reply) -> Vec<String> {
    let responses = reply.text().split("<D:response>").skip(1);
    let path = |response| element(response, "href").expect("a path").to_owned();
    responses.map(path).collect()
}

pub const LOCK_INFO: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\
    <D:lockinfo xmlns:D=\"DAV:\">\
    <D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/></D:locktype>\
    <D:owner><D:href>someone</D:href></D:owner></D:lockinfo>";

/// Locks a path. Returns the response and the token.
pub fn lock(server: &mut TestServer, path: &str, fields: &str) -> (Reply, String) {
    let reply = server.request(&format!("LOCK {path}{fields}"), LOCK_INFO.as_bytes());
    let token = reply.field("lock-token").unwrap_or_default();
    let token = token.trim_matches(['<', '>']).to_owned();
    (reply, token)
}
