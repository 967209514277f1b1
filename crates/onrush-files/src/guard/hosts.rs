//! The values of `Host` that a server serves, by the listener that accepted the connection.

use onrush_rt::net::Address;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// The address of a listener. A host name is resolved once, so that [`Server::bind`] and [`Hosts`]
/// have the same IP address. If each of them resolved the name, they could differ: the guard would
/// apply the rule of a loopback address to a public listener, or the other way round.
///
/// [`Server::bind`]: onrush::Server::bind
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// In the form of `Server::bind`.
    configured: String,
    place: BoundAt,
}

impl ListenAddress {
    /// Resolves the name in `address`, which has the form of
    /// [`Server::bind`](onrush::Server::bind). If the name has several addresses, takes the first
    /// one. May block, so call it at start-up.
    pub fn resolve(address: &str) -> ListenAddress {
        let place = match address.starts_with("unix:") {
            true => BoundAt::Unix,
            false => {
                let resolved = address.to_socket_addrs().ok();
                let first = resolved.and_then(|mut found| found.next());
                first.map_or(BoundAt::Unknown, BoundAt::Tcp)
            }
        };
        ListenAddress {
            configured: address.to_owned(),
            place,
        }
    }

    /// Whether only this machine can connect: it is a loopback address or a Unix socket, or a name
    /// that could not be resolved.
    pub fn is_local(&self) -> bool {
        match self.place {
            BoundAt::Tcp(address) => address.ip().to_canonical().is_loopback(),
            BoundAt::Unix | BoundAt::Unknown => true,
        }
    }

    /// The address for [`Server::bind`](onrush::Server::bind), with an IP address instead of a
    /// name. If the name could not be resolved, it is unchanged, and `bind` reports the error.
    pub fn to_bind(&self) -> String {
        match self.place {
            BoundAt::Tcp(address) => address.to_string(),
            BoundAt::Unix | BoundAt::Unknown => self.configured.clone(),
        }
    }
}

/// The values of `Host` that are served, for each listener of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// If empty, every listener serves every host. If there is one, all listeners have its rule.
    listeners: Vec<Listener>,
}

/// The rule of one listener.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listener {
    place: BoundAt,
    served: Served,
}

/// Where a listener is bound, as configured: the port may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BoundAt {
    Tcp(SocketAddr),
    Unix,
    /// The name could not be resolved. No connection has this place.
    Unknown,
}

/// The hosts that a listener serves.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Served {
    rule: Rule,
    /// Without a trailing dot. They are compared without regard to case. Empty with [`Rule::Any`].
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Any,
    /// `localhost`, names beneath it, loopback addresses and the listed names.
    Loopback,
    /// The hosts of `Loopback`, and every other IP address.
    Addresses,
}

impl Hosts {
    /// Accepts every host.
    pub fn any() -> Hosts {
        Hosts {
            listeners: Vec::new(),
        }
    }

    /// The hosts that a listener on `address` serves, with any port.
    ///
    /// | address | hosts |
    /// | --- | --- |
    /// | a loopback address, or a name of one | `localhost`, 127.0.0.0/8, `[::1]`, that name, `names` |
    /// | any other, or a wildcard | all; with `names` these, that name, `localhost`, IP addresses |
    /// | `unix:PATH` | all: no browser connects to a Unix socket |
    ///
    /// Only the configured address counts, so a wildcard address is public even for connections
    /// from this machine. With an IP address in `Host` there is no name that an attacker could let
    /// resolve to this machine. A public listener therefore always accepts IP addresses.
    ///
    /// `names` are host names or IP addresses without a port. If the name in `address` could not be
    /// resolved, it counts as loopback.
    pub fn for_listener(address: &ListenAddress, names: &[String]) -> Hosts {
        Hosts::for_listeners(std::slice::from_ref(address), names)
    }

    /// [`Hosts::for_listener`] for each of the addresses of a server. The local address of a
    /// connection determines its listener ([`Hosts::accept_at`]). The most specific listener
    /// counts: one with the same port before one with port 0, then one with the same IP address
    /// before a wildcard.
    pub fn for_listeners(addresses: &[ListenAddress], names: &[String]) -> Hosts {
        let names: Vec<String> = names
            .iter()
            .map(|name| normalize(name).to_owned())
            .collect();
        let mut listeners: Vec<Listener> = addresses
            .iter()
            .map(|address| Listener::new(address, &names))
            .collect();
        if let Some((first, others)) = listeners.split_first()
            && others.iter().all(|other| other.served == first.served)
        {
            let kept = usize::from(first.served.rule != Rule::Any);
            listeners.truncate(kept);
        }
        Hosts { listeners }
    }

    /// Whether all listeners serve requests for `host` (with or without a port). `None`: the
    /// request has no `Host`. Only HTTP/1.0 allows that, and no browser does it.
    pub fn accept(&self, host: Option<&str>) -> bool {
        let (Some(host), false) = (host, self.listeners.is_empty()) else {
            return true;
        };
        // Nearly all requests to a loopback listener have one of these hosts, which every listener
        // serves.
        let usual = host
            .strip_prefix("127.0.0.1")
            .or_else(|| host.strip_prefix("localhost"));
        usual.is_some_and(is_port) || self.listeners.iter().all(|one| one.served.accept(host))
    }

    /// Whether the listener of a connection serves requests for `host`. `local` returns the local
    /// address of the connection. It is called only if some listeners serve `host` and others do
    /// not. If it returns `None` or an address of no listener, the request is not served.
    pub fn accept_at(&self, host: Option<&str>, local: impl FnOnce() -> Option<Address>) -> bool {
        if self.accept(host) {
            return true;
        }
        let serves = |one: &Listener| host.is_none_or(|host| one.served.accept(host));
        self.listeners.iter().any(serves)
            && local().is_some_and(|local| self.listener_at(&local).is_some_and(serves))
    }

    /// The listener that has accepted a connection with this local address.
    fn listener_at(&self, local: &Address) -> Option<&Listener> {
        let specificity = |one: &&Listener| one.specificity(local);
        let found = self.listeners.iter().max_by_key(specificity)?;
        found.specificity(local).map(|_| found)
    }
}

impl Listener {
    fn new(address: &ListenAddress, names: &[String]) -> Listener {
        let place = address.place;
        if place == BoundAt::Unix {
            return Listener {
                place,
                served: Served::any(),
            };
        }
        let is_public = matches!(place, BoundAt::Tcp(address) if !is_loopback(address.ip()));
        let rule = match is_public {
            true if names.is_empty() => {
                return Listener {
                    place,
                    served: Served::any(),
                };
            }
            true => Rule::Addresses,
            false => Rule::Loopback,
        };
        let mut names = names.to_vec();
        if let Some(ParsedHost::Other(name)) = ParsedHost::parse(&address.configured) {
            names.push(name.to_owned());
        }
        Listener {
            place,
            served: Served { rule, names },
        }
    }

    /// How exactly this listener fits a local address: whether the port is equal, and whether the
    /// IP address is. `None`: it cannot have accepted the connection.
    fn specificity(&self, local: &Address) -> Option<(bool, bool)> {
        match (self.place, local) {
            (BoundAt::Unix, Address::Unix(_)) => Some((true, true)),
            (BoundAt::Tcp(bound), Address::Tcp(local)) => specificity(bound, *local),
            _ => None,
        }
    }
}

/// How exactly a listener on `bound` fits the local address of a connection: whether the port is
/// equal, and whether the IP address is. `None`: it cannot have accepted the connection. The port
/// of `bound` may be 0, which fits every port.
pub(crate) fn specificity(bound: SocketAddr, local: SocketAddr) -> Option<(bool, bool)> {
    let (ip, local_ip) = (bound.ip().to_canonical(), local.ip().to_canonical());
    // [::] accepts connections over IPv4 as well (ipv6(7), `IPV6_V6ONLY`).
    let fits = ip == local_ip || ip.is_unspecified() && (ip.is_ipv6() || local_ip.is_ipv4());
    let port = bound.port();
    (fits && (port == 0 || port == local.port())).then_some((port != 0, ip == local_ip))
}

impl Served {
    fn any() -> Served {
        Served {
            rule: Rule::Any,
            names: Vec::new(),
        }
    }

    #[cold]
    fn accept(&self, host: &str) -> bool {
        if self.rule == Rule::Any {
            return true;
        }
        let listed = |host: &str| {
            self.names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(host))
        };
        match ParsedHost::parse(host) {
            Some(ParsedHost::Address(address)) => {
                self.rule == Rule::Addresses
                    || is_loopback(address)
                    || self.names.iter().any(|name| name.parse() == Ok(address))
            }
            Some(ParsedHost::Other(name)) => is_localhost(name) || listed(name),
            None => false,
        }
    }
}

/// Whether a name is `localhost` or beneath it. Both resolve to the loopback address (RFC 6761
/// §6.3).
fn is_localhost(name: &str) -> bool {
    let end = name.len().saturating_sub("localhost".len());
    let (beneath, last) = name.split_at_checked(end).unwrap_or((name, ""));
    last.eq_ignore_ascii_case("localhost") && (beneath.is_empty() || beneath.ends_with('.'))
}

/// A host without its port.
pub(crate) enum ParsedHost<'h> {
    Address(IpAddr),
    Other(&'h str),
}

impl ParsedHost<'_> {
    /// `None` if `host` is not a host with an optional port.
    pub(crate) fn parse(host: &str) -> Option<ParsedHost<'_>> {
        if let Some(rest) = host.strip_prefix('[') {
            let (address, port) = rest.split_once(']')?;
            let address = address.parse().ok().filter(|_| is_port(port));
            return address.map(|address| ParsedHost::Address(IpAddr::V6(address)));
        }
        let end = host.find(':').unwrap_or(host.len());
        let (name, port) = host.split_at(end);
        let name = normalize(name);
        match name.parse() {
            _ if name.is_empty() || !is_port(port) => None,
            Ok(address) => Some(ParsedHost::Address(IpAddr::V4(address))),
            Err(_) => Some(ParsedHost::Other(name)),
        }
    }
}

/// A name without brackets and trailing dot.
fn normalize(name: &str) -> &str {
    let bare = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let name = bare.unwrap_or(name);
    name.strip_suffix('.').unwrap_or(name)
}

/// Whether `text` is empty, or a colon and a port, which may be empty (RFC 3986 §3.2.3).
fn is_port(text: &str) -> bool {
    match text.strip_prefix(':') {
        Some(port) => port.bytes().all(|byte| byte.is_ascii_digit()),
        None => text.is_empty(),
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn addresses<const N: usize>(texts: [&str; N]) -> [ListenAddress; N] {
        texts.map(ListenAddress::resolve)
    }

    #[test]
    fn on_loopback_only_names_of_this_machine_are_accepted() {
        let hosts = Hosts::for_listener(
            &ListenAddress::resolve("127.0.0.1:8080"),
            &names(&["files.example."]),
        );
        for host in [
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.0.0.1:1",
            "127.0.0.1:",
            "127.0.0.1.",
            "127.255.0.9:80",
            "localhost",
            "LOCALHOST:8080",
            "localhost.",
            "localhost.:8080",
            "[::1]",
            "[::1]:8080",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]:80",
            "files.example",
            "Files.Example:99",
            "files.example.",
        ] {
            assert!(hosts.accept(Some(host)), "{host}");
        }
        for host in [
            "",
            ":8080",
            ".",
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "localhost:x",
            "localhost:80:80",
            "localhost..",
            "xlocalhost",
            "localhostx",
            "127.0.0.1x",
            "127.0.0.1.evil.example",
            "127.0.0.1:80.evil.example",
            "127.0.0.1@evil.example",
            "evil.example@localhost",
            "user:127.0.0.1@evil.example",
            "%6cocalhost",
            "127.1",
            "0177.0.0.1",
            "0x7f.0.0.1",
            "2130706433",
            "0.0.0.0",
            "192.0.2.1",
            "[::]",
            "[::2]",
            "[::1",
            "[::1]x",
            "[::1]:x",
            "::1",
            "[localhost]",
            "sub.files.example",
            "*",
        ] {
            assert!(!hosts.accept(Some(host)), "{host}");
        }
        assert!(hosts.accept(None), "HTTP/1.0 without Host");
    }

    #[test]
    fn configured_address_determines_the_accepted_hosts() {
        let accepts = |address: &str, given: &[&str], host: &str| {
            Hosts::for_listener(&ListenAddress::resolve(address), &names(given)).accept(Some(host))
        };
        for loopback in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:0", "localhost:0"] {
            assert!(!accepts(loopback, &[], "evil.example"), "{loopback}");
            assert!(!accepts(loopback, &[], "192.0.2.1"), "{loopback}");
            assert!(
                accepts(loopback, &["192.0.2.1"], "192.0.2.1:80"),
                "{loopback}"
            );
            assert!(accepts(loopback, &["[2001:db8::1]"], "[2001:DB8::1]:80"));
        }
        for public in ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"] {
            for host in ["evil.example", "192.0.2.9", "localhost", ""] {
                assert!(accepts(public, &[], host), "{public} {host}");
            }
            for host in ["a.example:81", "192.0.2.9", "[2001:db8::1]", "localhost"] {
                assert!(accepts(public, &["a.example"], host), "{public} {host}");
            }
            assert!(!accepts(public, &["a.example"], "evil.example"), "{public}");
        }
        assert!(accepts("unix:/run/x", &["a.example"], "evil.example"));
        assert!(!accepts("no such host", &[], "evil.example"));
    }

    #[test]
    fn each_listener_has_its_own_rule() {
        let tcp = |text: &str| Some(Address::Tcp(text.parse().expect("an address")));
        let unix = || Some(Address::Unix("u".into()));
        let none = names(&[]);
        let mixed = Hosts::for_listeners(&addresses(["unix:u", "127.0.0.1:80"]), &none);
        let evil = Some("evil.example");
        assert!(mixed.accept_at(evil, unix));
        for local in [tcp("127.0.0.1:80"), tcp("127.0.0.2:80"), None] {
            assert!(!mixed.accept_at(evil, || local.clone()), "{local:?}");
        }
        let not_asked = || unreachable!("all listeners serve these hosts");
        for host in [None, Some("localhost:1"), Some("127.0.0.1"), Some("[::1]")] {
            assert!(mixed.accept_at(host, not_asked), "{host:?}");
        }

        for (texts, local, served) in [
            (["127.0.0.1:0", "0.0.0.0:99"], "127.0.0.1:99", true),
            (["127.0.0.1:0", "0.0.0.0:99"], "192.0.2.1:99", true),
            (["127.0.0.1:0", "0.0.0.0:99"], "127.0.0.1:40123", false),
            (["0.0.0.0:99", "127.0.0.1:0"], "127.0.0.1:40123", false),
            (["127.0.0.1:98", "0.0.0.0:99"], "127.0.0.1:98", false),
            (["127.0.0.1:98", "0.0.0.0:99"], "127.0.0.1:99", true),
            (["127.0.0.1:99", "0.0.0.0:99"], "127.0.0.1:99", false),
            (["127.0.0.1:0", "0.0.0.0:0"], "127.0.0.1:40123", false),
            (["127.0.0.1:0", "0.0.0.0:0"], "192.0.2.1:40123", true),
            (["[::1]:98", "[::]:99"], "[::1]:98", false),
            (["[::1]:98", "[::]:99"], "[::1]:99", true),
            (["127.0.0.1:98", "[::]:99"], "[::ffff:127.0.0.1]:99", true),
            (["127.0.0.1:98", "[::]:99"], "[::ffff:127.0.0.1]:98", false),
            (["[::1]:98", "0.0.0.0:99"], "[::1]:99", false),
        ] {
            let hosts = Hosts::for_listeners(&addresses(texts), &none);
            let is_served = hosts.accept_at(evil, || tcp(local));
            assert_eq!(is_served, served, "{texts:?} {local}");
        }

        let public = Hosts::for_listeners(&addresses(["0.0.0.0:1", "unix:u"]), &none);
        assert_eq!(public, Hosts::any());
        let named = Hosts::for_listeners(
            &addresses(["127.0.0.1:98", "0.0.0.0:99"]),
            &names(&["a.example"]),
        );
        assert!(named.accept_at(Some("a.example"), not_asked));
        assert!(!named.accept_at(evil, not_asked), "no listener serves it");
        assert!(named.accept_at(Some("192.0.2.1"), || tcp("192.0.2.1:99")));
        assert!(!named.accept_at(Some("192.0.2.1"), || tcp("127.0.0.1:98")));
    }

    /// The rule follows from the IP address that is bound, not from a second lookup of the name.
    #[test]
    fn name_is_resolved_once() {
        let resolved = |to: &str| ListenAddress {
            configured: "localhost:80".to_owned(),
            place: BoundAt::Tcp(to.parse().expect("an address")),
        };
        for (to, is_public) in [
            ("192.0.2.1:80", true),
            ("[fe80::1%3]:80", true),
            ("127.0.0.9:80", false),
        ] {
            let address = resolved(to);
            assert_eq!(address.to_bind(), to);
            let hosts = Hosts::for_listener(&address, &[]);
            assert_eq!(hosts.accept(Some("evil.example")), is_public, "{to}");
            assert!(hosts.accept(Some("localhost")), "{to}");
        }
        let bound = ListenAddress::resolve("localhost:80").to_bind();
        let bound: SocketAddr = bound.parse().expect("no name any more");
        assert!(bound.ip().is_loopback(), "{bound}");
        for text in ["unix:/run/x", "no such host", "127.0.0.1:99999"] {
            assert_eq!(ListenAddress::resolve(text).to_bind(), text);
        }
    }
}
