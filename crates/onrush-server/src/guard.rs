//! Refuses requests that a web page of another site causes a browser to send, before they reach a
//! handler.
//!
//! - *DNS rebinding.* A page of `evil.example` lets its name resolve to 127.0.0.1. The browser then
//!   treats a server on this machine as the same origin. `Host` still contains `evil.example`
//!   (RFC 9110 §7.2). Therefore a loopback listener serves only names of this machine; other names
//!   get 421 (RFC 9110 §15.5.20).
//! - *Cross-site writes.* A request with a method other than `GET`, `HEAD` and `OPTIONS` gets 403
//!   if a page of another site caused it. Browsers state this in `Sec-Fetch-Site` (W3C Fetch
//!   Metadata) and `Origin` (Fetch Standard §3.2). Other programs send neither field and are not
//!   affected.

use crate::files::http_error::HttpError;
use onrush::handler::{Pending, Service};
use onrush::{Application, Request, Response, WorkerHandle};
use std::net::{IpAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Context;

const MISDIRECTED: HttpError = HttpError::new(421, "this host is not served here");
const CROSS_SITE: HttpError = HttpError::new(
    403,
    "cross-site request refused: a page of another origin sent it",
);

/// The values of `Host` that a listener serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    rule: Rule,
    /// Without a trailing dot. They are compared without regard to case.
    names: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Any,
    /// `localhost`, names beneath it, loopback addresses and the listed names.
    Loopback,
    /// The same, and every other IP address.
    Addresses,
}

impl Hosts {
    /// Accepts every host.
    pub fn any() -> Hosts {
        Hosts {
            rule: Rule::Any,
            names: Vec::new(),
        }
    }

    /// The hosts that a listener on `address` serves, with any port. `address` has the form of
    /// [`Server::bind`](onrush::Server::bind).
    ///
    /// | address | hosts |
    /// | --- | --- |
    /// | a loopback address, or a name of one | `localhost`, 127.0.0.0/8, `[::1]`, that name, `names` |
    /// | any other, wildcards included | all; with `names` those, `localhost` and all IP addresses |
    /// | `unix:PATH` | all: no browser connects to a Unix socket |
    ///
    /// Only the configured address counts, so a wildcard address is public even for connections
    /// from this machine. With an IP address in `Host` there is no name that an attacker could let
    /// resolve to this machine. A public listener therefore always accepts IP addresses.
    ///
    /// `names` are host names or IP addresses without a port. The function resolves a name in
    /// `address` and may block: call it at start-up. A name that cannot be resolved counts as
    /// loopback.
    pub fn for_listener(address: &str, names: &[String]) -> Hosts {
        Hosts::for_listeners(&[address], names)
    }

    /// [`Hosts::for_listener`] for a server with several addresses. The hosts are restricted to
    /// loopback if all TCP addresses are loopback addresses. One public address makes the server
    /// public. Unix sockets are ignored unless there is no TCP address.
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
        let mut names: Vec<String> = names
            .iter()
            .map(|name| normalize(name).to_owned())
            .collect();
        let rule = match (is_loopback, names.is_empty()) {
            (true, _) => Rule::Loopback,
            (false, true) => return Hosts::any(),
            (false, false) => Rule::Addresses,
        };
        for address in addresses {
            if let Some(ParsedHost::Other(name)) = ParsedHost::parse(address) {
                names.push(name.to_owned());
            }
        }
        Hosts { rule, names }
    }

    /// Whether a request for `host` (with or without a port) is served. `None`: the request has no
    /// `Host`. Only HTTP/1.0 allows that, and no browser does it.
    pub fn accept(&self, host: Option<&str>) -> bool {
        let (Some(host), false) = (host, self.rule == Rule::Any) else {
            return true;
        };
        // The hosts of nearly all requests to a loopback listener.
        let usual = host
            .strip_prefix("127.0.0.1")
            .or_else(|| host.strip_prefix("localhost"));
        usual.is_some_and(is_port) || self.accept_slow(host)
    }

    #[cold]
    fn accept_slow(&self, host: &str) -> bool {
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
enum ParsedHost<'h> {
    Address(IpAddr),
    Other(&'h str),
}

impl ParsedHost<'_> {
    /// `None` if `host` is not a host with an optional port.
    fn parse(host: &str) -> Option<ParsedHost<'_>> {
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

/// An application behind the checks of this module. For `GET`, `HEAD` and `OPTIONS` it compares
/// only `Host`, and nothing with [`Hosts::any`].
#[derive(Clone, Debug)]
pub struct Guard<A> {
    hosts: Hosts,
    application: A,
}

impl<A> Guard<A> {
    /// Passes requests to `application` if they are for `hosts` and no page of another site caused
    /// them.
    pub fn new(hosts: Hosts, application: A) -> Guard<A> {
        Guard { hosts, application }
    }
}

impl<A: Application> Application for Guard<A> {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        Rc::new(GuardService {
            hosts: self.hosts.clone(),
            service: self.application.instantiate(worker),
        })
    }
}

/// One worker's instance.
struct GuardService {
    hosts: Hosts,
    service: Rc<dyn Service>,
}

impl Service for GuardService {
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

impl GuardService {
    fn refusal(&self, request: &Request) -> Option<HttpError> {
        if !self.hosts.accept(request.host()) {
            return Some(MISDIRECTED);
        }
        let is_read = matches!(request.method(), "GET" | "HEAD" | "OPTIONS");
        (!is_read && is_cross_site(request.host(), request.headers())).then_some(CROSS_SITE)
    }
}

/// At most one refusal is logged in this time, so that an attacker cannot fill the log.
const LOG_INTERVAL_S: u64 = 10;

#[cold]
fn log_refusal(failure: &HttpError, request: &Request) {
    static LOGGED_S: AtomicU64 = AtomicU64::new(0);
    let (now_s, last_s) = (request.worker().unix_seconds(), LOGGED_S.load(Relaxed));
    if now_s.abs_diff(last_s) < LOG_INTERVAL_S {
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

/// Whether the fields say that a page of another origin caused the request.
///
/// The browser sets `Sec-Fetch-Site`, and proxies that change `Host` or terminate TLS preserve it.
/// `same-origin` is accepted. Any other value except `none` (the user caused the request) is
/// refused. This includes `same-site`, which means another port or another name of the same domain.
/// Without `same-origin`, `Origin` must be the host of the request, with the scheme `http`, or
/// `https` behind a proxy that terminates TLS and preserves `Host`.
fn is_cross_site<'r>(
    host: Option<&str>,
    headers: impl Iterator<Item = (&'r str, &'r [u8])>,
) -> bool {
    let (mut is_same_origin, mut is_other_origin) = (false, false);
    for (name, value) in headers {
        if name.eq_ignore_ascii_case("sec-fetch-site") {
            match value {
                b"same-origin" => is_same_origin = true,
                b"none" => {}
                _ => return true,
            }
        } else if name.eq_ignore_ascii_case("origin") {
            is_other_origin |= !host.is_some_and(|host| is_origin_of(value, host));
        }
    }
    is_other_origin && !is_same_origin
}

/// Whether `origin` is the origin of `http://host` or `https://host` (RFC 6454 §5). `null` never
/// is.
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
    fn on_loopback_only_names_of_this_machine_are_accepted() {
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
    fn configured_address_determines_the_accepted_hosts() {
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
    fn fields_of_the_browser_show_cross_site_requests() {
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
