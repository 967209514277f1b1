//! Clients behind reverse proxies: what trusted proxies say about them in fields of the request.
//!
//! Every client can send these fields, and proxies append to what they receive. So the entries are
//! read from the last one, while each is that of a trusted proxy, beginning with the peer of the
//! connection. The first address that is not trusted is the client. What is in front of it was sent
//! by the client, and means nothing.
//!
//! `X-Forwarded-For` takes precedence over `Forwarded`, because a proxy that sets one of them may
//! pass on the other as the client has sent it, and most set the former.

mod fields;

use crate::client_address::ForwardedClient;
use fields::{Hop, elements, last_first, scheme};
use onrush::handler::{Pending, Service};
use onrush::{Application, Request, Response, TrustedPeers, WorkerHandle};
use std::rc::Rc;
use std::task::Context;

/// An application behind proxies. From the requests of trusted ones, it gets the address of the
/// client and its scheme; the fields of other peers are ignored.
#[derive(Clone, Debug)]
pub struct Forwarding<A> {
    application: A,
    trusted: TrustedPeers,
}

impl<A> Forwarding<A> {
    /// Passes all requests to `application`.
    pub fn new(application: A, trusted: TrustedPeers) -> Forwarding<A> {
        Forwarding {
            application,
            trusted,
        }
    }
}

impl<A: Application> Application for Forwarding<A> {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        Rc::new(ForwardingService {
            service: self.application.instantiate(worker),
            trusted: self.trusted.clone(),
        })
    }
}

/// One worker's instance.
struct ForwardingService {
    service: Rc<dyn Service>,
    trusted: TrustedPeers,
}

impl Service for ForwardingService {
    fn start(
        &self,
        mut request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        if let Some(client) = client_of(&request, &self.trusted) {
            if let Some(address) = client.address {
                request.set_client_address(address);
            }
            request.set_extension(Rc::new(client));
        }
        self.service.start(request, cx, response)
    }
}

/// What the proxies of a request say about its client. `None`: no trusted peer says anything.
fn client_of(request: &Request, trusted: &TrustedPeers) -> Option<ForwardedClient> {
    const FIELDS: [&str; 3] = ["x-forwarded-for", "x-forwarded-proto", "forwarded"];
    if !FIELDS.iter().any(|name| request.header(name).is_some()) {
        return None;
    }
    // With the PROXY protocol, the peer is the one that the header names.
    let is_trusted = match request.peer() {
        Some(peer) => trusted.contains(peer.ip()),
        None => trusted.trusts(request.socket_peer()),
    };
    if !is_trusted {
        return None;
    }
    let values = |name| -> Vec<&[u8]> { request.header_values(name).collect() };
    let [addresses, schemes, forwarded] = FIELDS.map(values);
    Some(evaluate(&addresses, &schemes, &forwarded, trusted))
}

/// Evaluates the field lines with these names, each in the order in which they were sent.
fn evaluate(
    addresses: &[&[u8]],
    schemes: &[&[u8]],
    forwarded: &[&[u8]],
    trusted: &TrustedPeers,
) -> ForwardedClient {
    if addresses.is_empty() && !forwarded.is_empty() {
        let mut hops = Vec::new();
        for line in forwarded.iter().rev() {
            match elements(line) {
                Some(elements) => hops.extend(elements.into_iter().rev()),
                None => break,
            }
        }
        return nearest_untrusted(hops.into_iter(), trusted);
    }
    let hops = addresses.iter().rev().flat_map(|line| last_first(line));
    let last = schemes
        .last()
        .and_then(|line| line.rsplit(|&byte| byte == b',').next());
    ForwardedClient {
        is_https: last.and_then(scheme),
        ..nearest_untrusted(hops, trusted)
    }
}

/// The first hop that is not trusted, or the one in front of the first without an address.
fn nearest_untrusted(
    last_first: impl Iterator<Item = Hop>,
    trusted: &TrustedPeers,
) -> ForwardedClient {
    let mut client = ForwardedClient::default();
    for hop in last_first {
        let Some(address) = hop.address else { break };
        client = ForwardedClient {
            address: Some(address),
            is_https: hop.is_https,
        };
        if !trusted.contains(address) {
            break;
        }
    }
    client
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated(
        addresses: &[&str],
        schemes: &[&str],
        forwarded: &[&str],
    ) -> (String, Option<bool>) {
        fn bytes<'t>(lines: &[&'t str]) -> Vec<&'t [u8]> {
            lines.iter().map(|line| line.as_bytes()).collect()
        }
        let networks = ["10.0.0.0/8", "2001:db8::/32"].map(|text| text.parse().unwrap());
        let trusted = TrustedPeers::new(networks);
        let lines = (bytes(addresses), bytes(schemes), bytes(forwarded));
        let client = evaluate(&lines.0, &lines.1, &lines.2, &trusted);
        let address = client
            .address
            .map_or("-".to_owned(), |address| address.to_string());
        (address, client.is_https)
    }

    #[test]
    fn the_last_address_that_is_not_trusted_is_the_client() {
        let rows: [(&[&str], &str); 12] = [
            (&["192.0.2.1"], "192.0.2.1"),
            (&["198.51.100.9, 192.0.2.1"], "192.0.2.1"),
            (&["198.51.100.9", "192.0.2.1"], "192.0.2.1"),
            (&["198.51.100.9, 192.0.2.1, 10.1.1.1,10.2.2.2"], "192.0.2.1"),
            (
                &["198.51.100.9, 192.0.2.1", "10.1.1.1", "[2001:db8::7]:80"],
                "192.0.2.1",
            ),
            (&["192.0.2.1, ::ffff:10.1.1.1"], "192.0.2.1"),
            (&["10.3.3.3, 10.1.1.1"], "10.3.3.3"),
            (&["192.0.2.1, unknown, 10.1.1.1"], "10.1.1.1"),
            (&["192.0.2.1, , 10.1.1.1"], "10.1.1.1"),
            (&["192.0.2.1, <script>"], "-"),
            (&["192.0.2.1,"], "-"),
            (&[""], "-"),
        ];
        for (lines, expected) in rows {
            assert_eq!(evaluated(lines, &[], &[]).0, expected, "{lines:?}");
        }
    }

    #[test]
    fn forwarded_counts_without_the_older_field() {
        let rows: [(&[&str], &str, Option<bool>); 7] = [
            (&["for=192.0.2.1;proto=https"], "192.0.2.1", Some(true)),
            (
                &["for=9.9.9.9;proto=https, for=192.0.2.1;proto=http"],
                "192.0.2.1",
                Some(false),
            ),
            (
                &[
                    "for=192.0.2.1;proto=https, for=10.1.1.1;proto=http",
                    "for=10.2.2.2",
                ],
                "192.0.2.1",
                Some(true),
            ),
            (
                &["for=192.0.2.1, for=_hidden, for=10.1.1.1"],
                "10.1.1.1",
                None,
            ),
            (&["for=9.9.9.9", "for=\"9.9.9.9, for=192.0.2.1"], "-", None),
            (&["for=\"9.9.9.9", "for=192.0.2.1"], "192.0.2.1", None),
            (&["for=\"9.9.9.9", "for=10.1.1.1"], "10.1.1.1", None),
        ];
        for (lines, address, is_https) in rows {
            let expected = (address.to_owned(), is_https);
            assert_eq!(evaluated(&[], &[], lines), expected, "{lines:?}");
            // The client's address and scheme come from one of the fields, not from both.
            assert_eq!(
                evaluated(&["192.0.2.7"], &["http"], lines),
                ("192.0.2.7".to_owned(), Some(false))
            );
        }
    }

    #[test]
    fn the_scheme_is_that_of_the_nearest_proxy() {
        let rows: [(&[&str], Option<bool>); 6] = [
            (&["https"], Some(true)),
            (&["HTTP"], Some(false)),
            (&["https, http"], Some(false)),
            (&["http", " https "], Some(true)),
            (&["ws"], None),
            (&[], None),
        ];
        for (lines, expected) in rows {
            assert_eq!(
                evaluated(&["192.0.2.1"], lines, &[]).1,
                expected,
                "{lines:?}"
            );
        }
        assert_eq!(
            evaluated(&[], &["https"], &[]),
            ("-".to_owned(), Some(true))
        );
    }
}
