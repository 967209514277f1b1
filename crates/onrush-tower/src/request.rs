//! What requests of services have beside the head that `onrush` converts.

use crate::body::{Body, Worker};
#[cfg(any(feature = "axum", feature = "tls"))]
use http::request::Parts;
use onrush::Request;

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
