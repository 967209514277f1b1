//! What a server with HTTPS does besides encryption: it redirects plain requests, and it tells
//! browsers to use HTTPS only.

use crate::client_address::is_https;
use crate::files::http::http_error::HttpError;
use crate::guard::Hosts;
use crate::guard::hosts::{ParsedHost, specificity};
use onrush::handler::{Pending, Service};
use onrush::{Application, Request, Response, WorkerHandle};
use onrush_rt::net::Address;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::task::Context;

const BAD_HOST: HttpError = HttpError::new(400, "this host is not served here");
const STARTING: HttpError = HttpError::new(503, "the server is starting");

/// Where an ACME authority looks for the response to a challenge, with the token behind it.
const CHALLENGE_PATH: &str = "/.well-known/acme-challenge/";

/// The status of the redirection. It keeps the method (RFC 9110 §15.4.9).
const PERMANENT_REDIRECT: u16 = 308;

/// An application on a server that has HTTPS.
#[derive(Clone, Debug)]
pub struct Https<A> {
    application: A,
    redirect: Option<Redirect>,
    /// The value of `Strict-Transport-Security` (RFC 6797 §6.1).
    hsts: Option<Arc<str>>,
}

impl<A> Https<A> {
    /// Passes all requests to `application`.
    pub fn new(application: A) -> Https<A> {
        Https {
            application,
            redirect: None,
            hsts: None,
        }
    }

    /// Redirects the requests of some listeners without TLS.
    #[must_use]
    pub fn redirect(mut self, redirect: &Redirect) -> Https<A> {
        self.redirect = Some(redirect.clone());
        self
    }

    /// Sends `Strict-Transport-Security` with this `max-age`, in seconds, in all responses of the
    /// application over TLS, and in no other (RFC 6797 §7.2).
    #[must_use]
    pub fn hsts(mut self, max_age_s: u32) -> Https<A> {
        self.hsts = Some(format!("max-age={max_age_s}").into());
        self
    }
}

impl<A: Application> Application for Https<A> {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        Rc::new(HttpsService {
            service: self.application.instantiate(worker),
            redirect: self.redirect.clone(),
            hsts: self.hsts.clone(),
        })
    }
}

/// One worker's instance.
struct HttpsService {
    service: Rc<dyn Service>,
    redirect: Option<Redirect>,
    hsts: Option<Arc<str>>,
}

impl Service for HttpsService {
    fn start(
        &self,
        request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        let is_needed = self.redirect.is_some() || self.hsts.is_some();
        let is_https = is_needed && is_https(&request);
        if !is_https && let Some(redirect) = &self.redirect {
            *response = redirect.response(&request);
            if response.is_some() {
                return None;
            }
        }
        let pending = self.service.start(request, cx, response);
        let Some(hsts) = self.hsts.as_ref().filter(|_| is_https) else {
            return pending;
        };
        if let Some(response) = response {
            add_hsts(response, hsts);
        }
        let (pending, hsts) = (pending?, hsts.clone());
        Some(Box::pin(async move {
            let mut response = pending.await;
            add_hsts(&mut response, &hsts);
            response
        }))
    }
}

fn add_hsts(response: &mut Response, value: &str) {
    response.set_header("Strict-Transport-Security", value);
}

/// Responses to the challenges `http-01` of an ACME authority (RFC 8555, section 8.3). Clones share
/// their state.
#[derive(Clone, Debug, Default)]
pub struct HttpChallenges(Arc<RwLock<BTreeMap<String, String>>>);

impl HttpChallenges {
    /// Without challenges.
    pub fn new() -> HttpChallenges {
        HttpChallenges::default()
    }

    /// Responds to the challenge with this token by `key_authorization`.
    pub fn set(&self, token: &str, key_authorization: &str) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(token.to_owned(), key_authorization.to_owned());
    }

    /// Removes all challenges.
    pub fn clear(&self) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.clear();
    }

    fn get(&self, token: &str) -> Option<String> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        all.get(token).cloned()
    }
}

/// Redirects the requests of some listeners to HTTPS, with the same host, path and query. Clones
/// share their state.
///
/// A request whose `Host` the listener does not serve gets 400, so the redirection leads only to
/// hosts of this server. On a listener that serves every host, it leads to the host that the client
/// itself has named. Browsers do not let a page choose `Host`.
#[derive(Clone, Debug)]
pub struct Redirect {
    hosts: Hosts,
    challenges: Option<HttpChallenges>,
    are_probes_served: bool,
    listeners: Arc<OnceLock<Listeners>>,
}

/// The listeners of the server without TLS, as bound, and the port that each redirects to. `None`:
/// it does not redirect.
#[derive(Debug)]
struct Listeners(Vec<(Address, Option<u16>)>);

impl Redirect {
    /// A redirection for `hosts`. With `serves_probes`, `/-/health` and `/-/ready` are passed to
    /// the application, because load balancers do not follow redirections.
    ///
    /// Until [`Redirect::set_listeners`] is called, requests without TLS get 503.
    pub fn new(hosts: Hosts, serves_probes: bool) -> Redirect {
        Redirect {
            hosts,
            challenges: None,
            are_probes_served: serves_probes,
            listeners: Arc::default(),
        }
    }

    /// Serves the responses to the challenges of an ACME authority instead of a redirection.
    #[must_use]
    pub fn challenges(mut self, challenges: &HttpChallenges) -> Redirect {
        self.challenges = Some(challenges.clone());
        self
    }

    /// Sets the bound addresses: those that serve requests without TLS, and those that redirect,
    /// each with the port of HTTPS that it redirects to. Only the first call has an effect.
    pub fn set_listeners(&self, plain: &[Address], redirecting: &[(Address, u16)]) {
        let plain = plain.iter().map(|address| (address.clone(), None));
        let redirecting = redirecting
            .iter()
            .map(|(address, port)| (address.clone(), Some(*port)));
        let _ = self
            .listeners
            .set(Listeners(plain.chain(redirecting).collect()));
    }

    /// The response to a request without TLS. `None`: the application responds.
    fn response(&self, request: &Request) -> Option<Response> {
        let Some(listeners) = self.listeners.get() else {
            return Some(STARTING.into_response(request));
        };
        let port = listeners.redirect(|| request.local_address())?;
        if let Some(challenges) = &self.challenges
            && let Some(token) = request.path().strip_prefix(CHALLENGE_PATH)
            && let Some(proof) = challenges.get(token)
        {
            return Some(Response::text(proof).close());
        }
        let is_probe = matches!(request.path(), "/-/health" | "/-/ready");
        if is_probe && self.are_probes_served {
            return None;
        }
        let host = request.host();
        let is_served = self.hosts.accept_at(host, || request.local_address());
        let to = host.filter(|_| is_served).and_then(|host| {
            let (path, query) = (request.path(), request.query());
            location(host, port, path, query)
        });
        Some(match to {
            None => BAD_HOST.into_response(request).close(),
            // The client continues on another connection.
            Some(to) => Response::text("this site is served over HTTPS\n")
                .with_status(PERMANENT_REDIRECT)
                .with_header("Location", to)
                .close(),
        })
    }
}

impl Listeners {
    /// The port that the listener of a connection redirects to. `local` returns the local address
    /// of the connection; it is not called if all listeners are alike.
    fn redirect(&self, local: impl FnOnce() -> Option<Address>) -> Option<u16> {
        let (_, first) = self.0.first()?;
        if self.0.iter().all(|(_, port)| port == first) {
            return *first;
        }
        let local = local()?;
        let fit = |(bound, _): &&(Address, Option<u16>)| match (bound, &local) {
            (Address::Unix(_), Address::Unix(_)) => Some((true, true)),
            (Address::Tcp(bound), Address::Tcp(local)) => specificity(*bound, *local),
            _ => None,
        };
        let found = self.0.iter().max_by_key(fit)?;
        fit(&found)?;
        found.1
    }
}

/// The port of HTTPS that clients of the listener `redirecting` use: that of the listener with TLS
/// on the same IP address, otherwise of the first one. `None` if all are Unix sockets.
pub fn https_port(redirecting: &Address, encrypted: &[Address]) -> Option<u16> {
    let tcp = |address: &Address| match address {
        Address::Tcp(address) => Some(*address),
        Address::Unix(_) => None,
    };
    let ip = tcp(redirecting).map(|address| address.ip());
    let mut all = encrypted.iter().filter_map(tcp);
    let same = all.clone().find(|address| Some(address.ip()) == ip);
    same.or_else(|| all.next()).map(|address| address.port())
}

/// The URI of a request at the HTTPS port (RFC 9110 §4.2.2). `None` if `host` is not a host name or
/// IP address with an optional port.
fn location(host: &str, port: u16, path: &str, query: Option<&str>) -> Option<String> {
    let host = match ParsedHost::parse(host)? {
        ParsedHost::Address(IpAddr::V4(address)) => address.to_string(),
        ParsedHost::Address(IpAddr::V6(address)) => format!("[{address}]"),
        ParsedHost::Other(name) if is_name(name) => name.to_owned(),
        ParsedHost::Other(_) => return None,
    };
    let port = match port {
        443 => String::new(),
        port => format!(":{port}"),
    };
    // The target `*` of OPTIONS is a URI without a path (RFC 9112 §3.2.4).
    let path = if path == "*" { "" } else { path };
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    Some(format!("https://{host}{port}{path}{query}"))
}

/// Whether the name has only characters of host names, so that it cannot end the authority of a
/// URI or contain a user name (RFC 3986 §3.2).
fn is_name(name: &str) -> bool {
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !name.is_empty() && name.bytes().all(is_host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    #[test]
    fn location_has_the_same_host_path_and_query() {
        for (host, port, path, query, expected) in [
            ("a.example", 443, "/", None, "https://a.example/"),
            ("a.example:80", 443, "/", None, "https://a.example/"),
            (
                "A.example.",
                8443,
                "/b%20c",
                None,
                "https://A.example:8443/b%20c",
            ),
            (
                "a.example",
                1,
                "/b",
                Some("c=d?e"),
                "https://a.example:1/b?c=d?e",
            ),
            ("a.example", 443, "/", Some(""), "https://a.example/?"),
            (
                "a.example",
                443,
                "//evil.example/",
                None,
                "https://a.example//evil.example/",
            ),
            ("127.0.0.1:80", 8443, "/", None, "https://127.0.0.1:8443/"),
            ("[::1]:80", 443, "/x", None, "https://[::1]/x"),
            ("a.example", 443, "*", None, "https://a.example"),
        ] {
            let found = location(host, port, path, query);
            assert_eq!(found.as_deref(), Some(expected), "{host}");
        }
        for host in [
            "",
            ":80",
            "u@a.example",
            "a.example@evil.example",
            "a.example/x",
            "a\\evil.example",
            "a.example:8x",
            "a,b",
            "a b",
            "a%2fb",
            "[::1",
            "[x]",
            "a'b",
            "ä.example",
        ] {
            assert_eq!(location(host, 443, "/", None), None, "{host}");
        }
    }

    #[test]
    fn the_most_specific_listener_decides() {
        let tcp = |text: &str| Address::Tcp(text.parse::<SocketAddr>().expect("an address"));
        let redirect = Redirect::new(Hosts::any(), false);
        let plain = [tcp("127.0.0.1:81"), Address::Unix("/run/s".into())];
        let to = |text: &str, port| (tcp(text), port);
        redirect.set_listeners(&plain, &[to("0.0.0.0:80", 443), to("0.0.0.0:81", 444)]);
        let listeners = redirect.listeners.get().expect("set");
        for (local, redirects) in [
            (Some(tcp("127.0.0.1:80")), Some(443)),
            (Some(tcp("127.0.0.1:81")), None),
            (Some(tcp("127.0.0.2:81")), Some(444)),
            (Some(tcp("127.0.0.1:82")), None),
            (Some(Address::Unix("/run/s".into())), None),
            (None, None),
        ] {
            assert_eq!(listeners.redirect(|| local.clone()), redirects, "{local:?}");
        }
        let all = Redirect::new(Hosts::any(), false);
        all.set_listeners(&[], &[to("127.0.0.1:80", 443)]);
        let listeners = all.listeners.get().expect("set");
        let port = listeners.redirect(|| panic!("this costs a system call"));
        assert_eq!(port, Some(443));
    }

    #[test]
    fn the_port_of_https_is_that_of_the_same_address() {
        let tcp = |text: &str| Address::Tcp(text.parse::<SocketAddr>().expect("an address"));
        let unix = Address::Unix("/run/s".into());
        let encrypted = [unix.clone(), tcp("127.0.0.1:8443"), tcp("0.0.0.0:443")];
        assert_eq!(https_port(&tcp("0.0.0.0:80"), &encrypted), Some(443));
        assert_eq!(https_port(&tcp("127.0.0.1:80"), &encrypted), Some(8443));
        assert_eq!(https_port(&tcp("192.0.2.1:80"), &encrypted), Some(8443));
        assert_eq!(https_port(&tcp("127.0.0.1:80"), &[unix]), None);
    }
}
