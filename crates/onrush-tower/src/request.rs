//! Requests of the engine as [`http::Request`].
//!
//! The head is copied once. The target and the values of fields are parts of this copy.

use crate::body::{Body, Worker};
use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Uri, Version};
use onrush::Request;

/// Why a request cannot be passed on: a part of it that the engine accepts is none of the crate
/// `http`.
#[derive(Debug)]
pub(crate) struct Unsupported(pub(crate) &'static str);

/// The place of `part` in `whole`, which it is a part of.
fn part_of(whole: &[u8], copy: &Bytes, part: &[u8]) -> Bytes {
    let start = part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr());
    let end = start.wrapping_add(part.len());
    match start <= end && end <= copy.len() && whole.len() == copy.len() {
        true => copy.slice(start..end),
        false => Bytes::copy_from_slice(part),
    }
}

/// The head of a request. The body is [`body`].
pub(crate) fn head(request: &Request) -> Result<Parts, Unsupported> {
    let whole = request.head_bytes();
    let copy = Bytes::copy_from_slice(whole);
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.method = match request.method() {
        "GET" => Method::GET,
        method => Method::from_bytes(method.as_bytes()).map_err(|_| Unsupported("method"))?,
    };
    let target = part_of(whole, &copy, request.target().as_bytes());
    parts.uri = Uri::from_maybe_shared(target).map_err(|_| Unsupported("target"))?;
    parts.version = match request.version() {
        onrush::Version::Http10 => Version::HTTP_10,
        onrush::Version::Http11 => Version::HTTP_11,
    };
    let mut fields = HeaderMap::with_capacity(request.headers_len());
    for (name, value) in request.headers() {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| Unsupported("field"))?;
        let value = HeaderValue::from_maybe_shared(part_of(whole, &copy, value));
        fields.append(name, value.map_err(|_| Unsupported("field"))?);
    }
    parts.headers = fields;
    Ok(parts)
}

/// The body of a request, whose head is not needed any more.
pub(crate) fn body(request: Request, worker: &Worker) -> Body {
    match request.has_body() {
        true => Body::new(request.into_body(), worker),
        false => Body::empty(),
    }
}

/// Adds the address of the client.
#[cfg(feature = "axum")]
pub(crate) fn add_peer(request: &Request, mut parts: Parts) -> Parts {
    if let Some(peer) = request.peer() {
        parts.extensions.insert(axum::extract::ConnectInfo(peer));
    }
    parts
}

/// Adds what TLS has negotiated.
#[cfg(feature = "tls")]
pub(crate) fn add_tls(request: &Request, mut parts: Parts) -> Parts {
    if let Some(tls) = request.tls() {
        parts.extensions.insert(tls);
    }
    parts
}
