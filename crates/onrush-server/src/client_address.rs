//! The address of the client of a request. Everything that decides by address, or reports one, asks
//! this module.

use onrush::Request;
use std::net::IpAddr;

/// The address of the client. `None` on a Unix socket, and after the client has disconnected.
pub(crate) fn client_address(request: &Request) -> Option<IpAddr> {
    request.peer().map(|peer| peer.ip().to_canonical())
}
