//! The layer that compresses the responses of handlers.

use crate::compression::{Accepted, Coding, content, is_worth_it};
use crate::make::Next;
use crate::request::Request;
use crate::response::Response;
use onrush_proto::etag::{self, EntityTag, Tags};
use onrush_proto::token;

/// A layer that compresses responses for clients that accept it, with Zstandard or gzip. See the
/// [module](crate::compression) for which responses, and for memory and CPU time.
///
/// Put it around routes whose responses have no secrets together with input of others:
/// [attacks](crate::manual::attacks).
///
/// # Examples
/// ```
/// use onrush::{Limits, Request, Response, Router, compression, sim::Simulation};
///
/// async fn page(_: Request) -> Response {
///     Response::html("<p>hello</p>".repeat(1000))
/// }
///
/// let router = Router::new().get("/", page).layer(compression::compress);
///
/// let mut sim = Simulation::new(1, &router, Limits::default());
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
/// # // A job of the offload pool runs in a later iteration.
/// # sim.advance(std::time::Duration::from_millis(100));
/// let response = String::from_utf8_lossy(&client.receive()?).into_owned();
/// assert!(response.contains("\r\nContent-Encoding: gzip\r\n"));
/// assert!(response.len() < 1000);
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn compress(request: Request, next: Next) -> Response {
    let accepted = Accepted::of(&request);
    let for_head = request.method() == "HEAD";
    let known: Vec<Vec<u8>> = (request.header_values("If-None-Match"))
        .map(<[u8]>::to_vec)
        .collect();
    let mut response = next.run(request).await;
    match response.status() {
        // The fields are those that a 200 would have (RFC 9110 §15.4.5), and whether that would be
        // compressed is not known any more: the client's tag says which one it has.
        304 => {
            if !permits_coding(response.headers()) {
                return response;
            }
            add_vary(&mut response);
            if accepted.best(Coding::has_encoder).is_some() && !names_tag(&known, &response) {
                weaken_tag(&mut response);
            }
            return response;
        }
        // Also of a part (RFC 9110 §15.3.7).
        206 if response.header("Content-Encoding").is_none() => add_vary(&mut response),
        _ => {}
    }
    if !may_change(&response) {
        return response;
    }
    add_vary(&mut response);
    let Some(coding) = accepted.best(Coding::has_encoder) else {
        return response;
    };
    let body = std::mem::take(&mut response.body);
    match content::compressed(body, coding, for_head).await {
        Ok(body) => {
            response.body = body;
            response.set_header("Content-Encoding", coding.name());
            response.fields.remove("Accept-Ranges");
            weaken_tag(&mut response);
        }
        Err(body) => response.body = body,
    }
    response
}

/// Whether content with these fields may be sent in a coding. It must be sent as it is if it has a
/// coding, is a part, has a digest, or if `no-transform` says so (RFC 9111 §5.2.2.6).
pub fn permits_coding<'f>(mut fields: impl Iterator<Item = (&'f str, &'f [u8])>) -> bool {
    const OF_CONTENT: [&str; 6] = [
        "Content-Encoding",
        "Content-Range",
        "Content-Digest",
        "Repr-Digest",
        "Digest",
        "Content-MD5",
    ];
    fields.all(|(name, value)| {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match is("Cache-Control") {
            true => !token::list_contains(value, "no-transform"),
            false => !OF_CONTENT.into_iter().any(is),
        }
    })
}

/// Whether the response is compressed if its client accepts that.
fn may_change(response: &Response) -> bool {
    let content_type = response.header("Content-Type").unwrap_or_default();
    let content_type = std::str::from_utf8(content_type).unwrap_or_default();
    let essence = token::essence(content_type);
    !matches!(response.status(), 204..=206)
        && is_worth_it(content_type, response.body.length())
        && !essence.eq_ignore_ascii_case("text/event-stream")
        && permits_coding(response.headers())
}

/// Caches need to know that the response depends on the codings that the client accepts.
fn add_vary(response: &mut Response) {
    let is_named = response.header_values("Vary").any(|value| {
        ["Accept-Encoding", "*"]
            .iter()
            .any(|it| token::list_contains(value, it))
    });
    if !is_named {
        let added = response.append_header("Vary", "Accept-Encoding");
        added.expect("a name and a value");
    }
}

/// Whether values of `If-None-Match` have the tag of a response as it is.
fn names_tag(known: &[Vec<u8>], response: &Response) -> bool {
    let Some(tag) = response.header("ETag").and_then(EntityTag::parse) else {
        return false;
    };
    known.iter().any(|value| match etag::tags(value) {
        Tags::Any => false,
        Tags::List(mut list) => list.any(|it| it.is_ok_and(|it| it.matches_strongly(&tag))),
    })
}

/// The bytes in a coding are not those that a strong tag stands for (RFC 9110 §8.8.3.3).
fn weaken_tag(response: &mut Response) {
    let tag = response.header("ETag").filter(|tag| tag.starts_with(b"\""));
    if let Some(tag) = tag.map(|tag| [b"W/", tag].concat()) {
        response.set_header("ETag", tag);
    }
}
