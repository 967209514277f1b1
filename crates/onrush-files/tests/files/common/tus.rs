//! Requests of a tus client.

use crate::common::{Reply, TestServer};

const TUS: &str = "Tus-Resumable: 1.0.0";
pub const STREAM: &str = "Content-Type: application/offset+octet-stream";
/// `filename` is "a b.txt", `filetype` is "text/x-test".
pub const METADATA: &str = "filename YSBiLnR4dA==,filetype dGV4dC94LXRlc3Q=";

pub fn request(server: &mut TestServer, head: &str, body: &[u8]) -> Reply {
    let reply = server.request(&format!("{head}\n{TUS}"), body);
    assert_eq!(reply.field("tus-resumable"), Some("1.0.0"), "{head}");
    reply
}

pub fn create(server: &mut TestServer, path: &str, fields: &str) -> String {
    let reply = request(server, &format!("POST {path}\n{fields}"), b"");
    assert_eq!(reply.status, 201, "{}", reply.text());
    assert!(
        reply
            .field("upload-expires")
            .is_some_and(|date| date.ends_with(" GMT"))
    );
    target_of(reply.field("location").expect("a URL"))
}

/// The path and query of an absolute URL of the server, which names the host of the requests here.
pub fn target_of(url: &str) -> String {
    let target = url.strip_prefix("http://test/");
    format!("/{}", target.expect("an absolute URL"))
}

pub fn append(server: &mut TestServer, url: &str, offset: usize, more: &str, body: &[u8]) -> Reply {
    let length = body.len();
    let fields = format!("Upload-Offset: {offset}\n{STREAM}\nContent-Length: {length}{more}");
    request(server, &format!("PATCH {url}\n{fields}"), body)
}
