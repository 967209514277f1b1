//! What requests of services have beside the head that `onrush` converts.

use crate::body::{Body, Worker};
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
pub(crate) fn add_peer(request: &Request, made: &mut http::Request<Body>) {
    if let Some(peer) = request.peer() {
        let peer = axum::extract::ConnectInfo(peer);
        made.extensions_mut().insert(peer);
    }
}

/// Adds what TLS has negotiated.
#[cfg(feature = "tls")]
pub(crate) fn add_tls(request: &Request, made: &mut http::Request<Body>) {
    if let Some(tls) = request.tls() {
        made.extensions_mut().insert(tls);
    }
}
