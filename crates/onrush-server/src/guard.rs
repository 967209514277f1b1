//! Requests that a web page of another site makes a browser send: refused before any handler sees
//! them.
//!
//! - *DNS rebinding.* A page of `evil.example` lets its name resolve to 127.0.0.1, and is then, to
//!   the browser, of the same origin as a server on this machine. `Host` still says `evil.example`
//!   (RFC 9110 §7.2), so on loopback only names of this machine are answered; the others get 421
//!   (RFC 9110 §15.5.20).
//! - *Writes across sites.* A request that may change something and that another site's page asked
//!   for is refused with 403, by what browsers say of it: `Sec-Fetch-Site` (W3C Fetch Metadata) and
//!   `Origin` (Fetch Standard §3.2). Other programs send neither, and are not concerned.
//!
//! Must not know objects or the command line.

use crate::files::failure::Failure;
use onrush::handler::{Pending, Service};
use onrush::{Application, Request, Response, WorkerHandle};
use std::net::{IpAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Context;

const MISDIRECTED: Failure = Failure::new(421, "this host is not served here");
const CROSS_SITE: Failure =
    Failure::new(403, "cross-site request refused: Origin is not this host");

/// Which values of `Host` a listener answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    rule: Rule,
    /// Compared without case, without a dot at the end.
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Any,
    /// `localhost`, loopback addresses and the names.
    Loopback,
    /// The same, and every other address.
    Addresses,
}

impl Hosts {
    /// Every host.
    pub fn any() -> Hosts {
        Hosts {
            rule: Rule::Any,
            names: Vec::new(),
        }
    }

    /// What a listener on `address` (as [`Server::bind`](onrush::Server::bind) takes it) answers,
    /// with any port:
    ///
    /// | address | hosts |
    /// | --- | --- |
    /// | a loopback address, or a name of one | `localhost`, 127.0.0.0/8, `[::1]`, that name, `names` |
    /// | any other, wildcards included | all; with `names` those, `localhost` and all IP addresses |
    /// | `unix:PATH` | all: no browser gets there |
    ///
    /// The address as configured decides, so a wildcard address counts as public even for
    /// connections from this machine. An IP address in `Host` is no name that an attacker could
    /// let resolve to this machine; a public listener therefore always answers it.
    ///
    /// `names` are names or IP addresses without port. Resolves a name in `address`, and may block:
    /// for start-up. A name that cannot be resolved counts as loopback.
    pub fn for_listener(address: &str, names: &[String]) -> Hosts {
        Hosts::for_listeners(&[address], names)
    }

    /// [`Hosts::for_listener`] for a server with several addresses. It is restricted to loopback
    /// hosts when all of its TCP addresses are loopback addresses: a server that is public on one
    /// address is public. Unix sockets decide nothing unless there is no TCP address.
    pub fn for_listeners(addresses: &[impl AsRef<str>], names: &[String]) -> Hosts {
        let addresses = addresses.iter().map(AsRef::as_ref);
        let is_tcp = |address: &&str| !address.starts_with("unix:");
        let addresses: Vec<&str> = addresses.filter(is_tcp).collect();
        if addresses.is_empty() {
            return Hosts::any();
        }
        let is_loopback = addresses.iter().all(|address| {
            let resolved = address.to_socket_addrs().ok();
            let first = resolved.and_then(|mut found| found.next());
            first.is_none_or(|address| is_loopback(address.ip()))
        });
        let mut names: Vec<String> = names.iter().map(|name| normal(name).to_owned()).collect();
        let rule = match (is_loopback, names.is_empty()) {
            (true, _) => Rule::Loopback,
            (false, true) => return Hosts::any(),
            (false, false) => Rule::Addresses,
        };
        for address in addresses {
            if let Some(Name::Other(name)) = Name::parse(address) {
                names.push(name.to_owned());
            }
        }
        Hosts { rule, names }
    }

    /// Whether a request for `host` (with or without a port) is answered. `None`: none was sent,
    /// which only HTTP/1.0 allows and no browser does.
    pub fn accept(&self, host: Option<&str>) -> bool {
        let (Some(host), false) = (host, self.rule == Rule::Any) else {
            return true;
        };
        // What nearly every request to a loopback listener says.
        let usual = host
            .strip_prefix("127.0.0.1")
            .or_else(|| host.strip_prefix("localhost"));
        usual.is_some_and(is_port) || self.accept_unusual(host)
    }

    #[cold]
    fn accept_unusual(&self, host: &str) -> bool {
        let listed = |host: &str| {
            self.names
                .iter()
                .any(|name| name.eq_ignore_ascii_case(host))
        };
        match Name::parse(host) {
            Some(Name::Address(address)) => {
                self.rule == Rule::Addresses
                    || is_loopback(address)
                    || self.names.iter().any(|name| name.parse() == Ok(address))
            }
            Some(Name::Other(name)) => is_localhost(name) || listed(name),
            None => false,
        }
    }
}

/// Whether a name is `localhost` or beneath it: resolvers give both the loopback address
/// (RFC 6761 §6.3).
fn is_localhost(name: &str) -> bool {
    let end = name.len().saturating_sub("localhost".len());
    let (beneath, last) = name.split_at_checked(end).unwrap_or((name, ""));
    last.eq_ignore_ascii_case("localhost") && (beneath.is_empty() || beneath.ends_with('.'))
}

/// A host without its port.
enum Name<'h> {
    Address(IpAddr),
    Other(&'h str),
}

impl Name<'_> {
    /// `None`: it is no host, with or without a port.
    fn parse(host: &str) -> Option<Name<'_>> {
        if let Some(rest) = host.strip_prefix('[') {
            let (address, port) = rest.split_once(']')?;
            let address = address.parse().ok().filter(|_| is_port(port));
            return address.map(|address| Name::Address(IpAddr::V6(address)));
        }
        let end = host.find(':').unwrap_or(host.len());
        let (name, port) = host.split_at(end);
        let name = normal(name);
        match name.parse() {
            _ if name.is_empty() || !is_port(port) => None,
            Ok(address) => Some(Name::Address(IpAddr::V4(address))),
            Err(_) => Some(Name::Other(name)),
        }
    }
}

/// A name without brackets or the dot of the root.
fn normal(name: &str) -> &str {
    let bare = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let name = bare.unwrap_or(name);
    name.strip_suffix('.').unwrap_or(name)
}

/// Whether `text` is nothing, or a colon and a port that may be empty (RFC 3986 §3.2.3).
fn is_port(text: &str) -> bool {
    match text.strip_prefix(':') {
        Some(port) => port.bytes().all(|byte| byte.is_ascii_digit()),
        None => text.is_empty(),
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// An application behind the checks of this module. `GET`, `HEAD` and `OPTIONS` cost it one
/// comparison of `Host`, and nothing with [`Hosts::any`].
#[derive(Clone, Debug)]
pub struct Guard<A> {
    hosts: Hosts,
    application: A,
}

impl<A> Guard<A> {
    /// Passes on to `application` what is for `hosts` and was not asked for by another site's page.
    pub fn new(hosts: Hosts, application: A) -> Guard<A> {
        Guard { hosts, application }
    }
}

impl<A: Application> Application for Guard<A> {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        Rc::new(Guarded {
            hosts: self.hosts.clone(),
            service: self.application.instantiate(worker),
        })
    }
}

/// One worker's instance.
struct Guarded {
    hosts: Hosts,
    service: Rc<dyn Service>,
}

impl Service for Guarded {
    fn start(
        &self,
        request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        match self.refusal(&request) {
            None => self.service.start(request, cx, response),
            Some(failure) => {
                log_refusal(&failure, &request);
                *response = Some(failure.into_response(&request));
                None
            }
        }
    }
}

impl Guarded {
    fn refusal(&self, request: &Request) -> Option<Failure> {
        if !self.hosts.accept(request.host()) {
            return Some(MISDIRECTED);
        }
        let reads = matches!(request.method(), "GET" | "HEAD" | "OPTIONS");
        (!reads && is_cross_site(request.host(), request.headers())).then_some(CROSS_SITE)
    }
}

/// Refusals are logged once in this time: an operator has to learn of them, and an attacker must
/// not fill the log.
const LOG_S: u64 = 10;

#[cold]
fn log_refusal(failure: &Failure, request: &Request) {
    static LOGGED_S: AtomicU64 = AtomicU64::new(0);
    let (now_s, last_s) = (request.worker().unix_seconds(), LOGGED_S.load(Relaxed));
    if now_s.abs_diff(last_s) < LOG_S {
        return;
    }
    LOGGED_S.store(now_s, Relaxed);
    let host: String = request
        .host()
        .unwrap_or_default()
        .chars()
        .take(100)
        .collect();
    let origin = request.header_str("origin").unwrap_or_default();
    let origin: String = origin.chars().take(100).collect();
    let status = failure.status;
    match status {
        421 => tracing::warn!(
            status,
            host,
            "request refused; --host NAME serves another host"
        ),
        _ => tracing::warn!(status, host, origin, "cross-site request refused"),
    }
}

/// Whether a browser says that a page of another origin asked for this.
///
/// `Sec-Fetch-Site` is told from inside the browser and survives proxies that change `Host` or end
/// TLS: `same-origin` is believed, and all but that and `none` (the user asked, no page) is
/// refused, `same-site` too, for that is another port or another name of the same domain. Where it
/// does not say `same-origin`, `Origin` must be the host of the request, by `http` or, behind a
/// proxy that ends TLS and preserves `Host`, by `https`.
fn is_cross_site<'r>(
    host: Option<&str>,
    headers: impl Iterator<Item = (&'r str, &'r [u8])>,
) -> bool {
    let (mut vouched, mut foreign) = (false, false);
    for (name, value) in headers {
        if name.eq_ignore_ascii_case("sec-fetch-site") {
            match value {
                b"same-origin" => vouched = true,
                b"none" => {}
                _ => return true,
            }
        } else if name.eq_ignore_ascii_case("origin") {
            foreign |= !host.is_some_and(|host| is_origin_of(value, host));
        }
    }
    foreign && !vouched
}

/// Whether `origin` is that of `http://host` or `https://host` (RFC 6454 §5). `null` is nobody's.
fn is_origin_of(origin: &[u8], host: &str) -> bool {
    let without_port = |host: &[u8], port: &[u8]| {
        let end = host.strip_suffix(port).or(host.strip_suffix(b":"));
        end.unwrap_or(host).to_ascii_lowercase()
    };
    let schemes: [(&[u8], &[u8]); 2] = [(b"http://", b":80"), (b"https://", b":443")];
    schemes.iter().any(|(scheme, port)| {
        origin.strip_prefix(*scheme).is_some_and(|authority| {
            without_port(authority, port) == without_port(host.as_bytes(), port)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn on_loopback_only_names_of_this_machine_are_answered() {
        let hosts = Hosts::for_listener("127.0.0.1:8080", &names(&["files.example."]));
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
    fn the_address_as_configured_decides() {
        let accepts = |address: &str, given: &[&str], host: &str| {
            Hosts::for_listener(address, &names(given)).accept(Some(host))
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
    fn who_asks_is_told_by_the_browser() {
        type Fields<'f> = &'f [(&'f str, &'f str)];
        let table: [(&str, Fields<'_>, bool); 26] = [
            ("a:1", &[], false),
            ("a:1", &[("Origin", "http://a:1")], false),
            ("A:1", &[("origin", "http://a:1")], false),
            ("a", &[("Origin", "http://a:80")], false),
            ("a:80", &[("Origin", "http://a")], false),
            ("[::1]:1", &[("Origin", "http://[::1]:1")], false),
            ("a:1", &[("Origin", "http://a:2")], true),
            ("a:1", &[("Origin", "http://b:1")], true),
            ("a:1", &[("Origin", "http://a")], true),
            ("a", &[("Origin", "https://a")], false),
            ("a", &[("Origin", "https://a:443")], false),
            ("a:443", &[("Origin", "https://a")], false),
            ("a", &[("Origin", "https://a:80")], true),
            ("a", &[("Origin", "https://b")], true),
            ("a:1", &[("Origin", "null")], true),
            ("a:1", &[("Origin", "")], true),
            ("a:1", &[("Origin", "http://a:1/")], true),
            (
                "a:1",
                &[("Origin", "http://a:1"), ("Origin", "http://b")],
                true,
            ),
            ("a:1", &[("Sec-Fetch-Site", "same-origin")], false),
            ("a:1", &[("Sec-Fetch-Site", "none")], false),
            ("a:1", &[("Sec-Fetch-Site", "same-site")], true),
            ("a:1", &[("sec-fetch-site", "cross-site")], true),
            ("a:1", &[("Sec-Fetch-Site", "unheard-of")], true),
            // Behind a proxy that ends TLS, or changes Host.
            (
                "b",
                &[("Origin", "https://a"), ("Sec-Fetch-Site", "same-origin")],
                false,
            ),
            (
                "b",
                &[("Origin", "https://a"), ("Sec-Fetch-Site", "none")],
                true,
            ),
            (
                "a:1",
                &[
                    ("Sec-Fetch-Site", "same-origin"),
                    ("Sec-Fetch-Site", "cross-site"),
                ],
                true,
            ),
        ];
        for (host, fields, expected) in table {
            let headers = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
            assert_eq!(
                is_cross_site(Some(host), headers),
                expected,
                "{host} {fields:?}"
            );
        }
        let origin = [("Origin", &b"http://a"[..])];
        assert!(is_cross_site(None, origin.into_iter()));
    }
}
