//! The address of the client of a request, and whether it uses HTTPS. Everything that decides by
//! them, or reports them, asks this module.

use onrush::Request;
use std::net::IpAddr;

/// What a trusted proxy says about the client of a request, as an extension of the request.
/// [`Forwarding`](crate::Forwarding) attaches it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ForwardedClient {
    /// `None`: the proxy itself is the client, or does not say.
    pub(crate) address: Option<IpAddr>,
    /// `None`: the proxy does not say.
    pub(crate) is_https: Option<bool>,
}

/// The address of the client. `None` on a Unix socket, and after the client has disconnected,
/// unless a trusted proxy names it.
pub(crate) fn client_address(request: &Request) -> Option<IpAddr> {
    let forwarded = request.extension::<ForwardedClient>();
    let named = forwarded.and_then(|client| client.address);
    named.or_else(|| request.peer().map(|peer| peer.ip().to_canonical()))
}

/// Whether a trusted proxy says how the client reaches it.
pub(crate) fn is_forwarded(request: &Request) -> bool {
    let forwarded = request.extension::<ForwardedClient>();
    forwarded.is_some_and(|client| client.is_https.is_some())
}

/// Whether the client uses HTTPS: with its proxy if there is a trusted one that says so, otherwise
/// with this server.
pub(crate) fn is_https(request: &Request) -> bool {
    let forwarded = request.extension::<ForwardedClient>();
    let named = forwarded.and_then(|client| client.is_https);
    named.unwrap_or_else(|| request.tls().is_some())
}
