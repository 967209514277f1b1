//! Refuses requests before they reach a handler: those that a web page of another site causes a
//! browser to send, and those with a body over the limit.
//!
//! - *DNS rebinding.* A page of `evil.example` lets its name resolve to 127.0.0.1. The browser then
//!   treats a server on this machine as the same origin. `Host` still contains `evil.example`
//!   (RFC 9110 §7.2). Therefore a loopback listener serves only names of this machine; other names
//!   get 421 (RFC 9110 §15.5.20). See `hosts`.
//! - *Cross-origin writes.* A request with a method other than `GET`, `HEAD` and `OPTIONS` gets 403
//!   if a page of another origin caused it, even one of the same site. Browsers state this in
//!   `Sec-Fetch-Site` (W3C Fetch Metadata) and `Origin` (Fetch Standard §3.2). Other programs send
//!   neither field and are not affected.
//! - *Cross-site reads* do not have the rights of the credentials that a browser adds by itself;
//!   see `foreign_read`.
//! - *Another method.* A `POST` of a tus client that means `PATCH` or `DELETE` becomes one here, in
//!   front of all decisions (`X-HTTP-Method-Override`).
//! - *Long bodies* get 413. The engine has a limit as well (`Limits::body_bytes_max`), but its
//!   response is plain text. This one is a problem document if `Accept` prefers JSON.

mod body_limit;
mod cors;
mod foreign_read;
pub(crate) mod hosts;

pub use body_limit::BodyLimit;
pub use cors::Cors;
pub(crate) use foreign_read::ForeignRead;
pub use hosts::{Hosts, ListenAddress};

use crate::files::http::http_error::HttpError;
use crate::files::override_method;
use cors::Grant;
use foreign_read::Read;
use onrush::handler::{Pending, Service};
use onrush::{Application, Request, Response, WorkerHandle};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Context;

const MISDIRECTED: HttpError = HttpError::new(421, "this host is not served here");
const CROSS_ORIGIN: HttpError = HttpError::new(
    403,
    "cross-origin write refused: a page of another origin sent it",
);

pub(crate) const FOREIGN_READ: HttpError = HttpError::new(
    403,
    "a page of another site cannot read with the login of its visitor",
);

/// An application behind the checks of this module. `GET`, `HEAD` and `OPTIONS` of pages of other
/// origins are passed on, without the rights of a login. Bodies have no limit by default.
#[derive(Clone, Debug)]
pub struct Guard<A> {
    hosts: Hosts,
    cors: Cors,
    body_bytes_max: u64,
    needs_certificate: bool,
    application: A,
}

impl<A> Guard<A> {
    /// Passes requests to `application` if they are for `hosts` and, unless they only read, no page
    /// of another origin caused them.
    pub fn new(hosts: Hosts, application: A) -> Guard<A> {
        Guard {
            hosts,
            cors: Cors::default(),
            body_bytes_max: u64::MAX,
            needs_certificate: false,
            application,
        }
    }

    /// Lets pages of other origins send requests and read the responses, as `cors` says.
    #[must_use]
    pub fn cors(mut self, cors: &Cors) -> Guard<A> {
        self.cors = cors.clone();
        self
    }

    /// For a server whose TLS clients need a certificate: what everyone else may read is for them
    /// only, so pages of other sites cannot read it.
    #[must_use]
    pub fn needs_certificate(mut self, needs_certificate: bool) -> Guard<A> {
        self.needs_certificate = needs_certificate;
        self
    }

    /// Limits the length of a request body to `bytes`, without the framing of chunks. A request
    /// that announces more gets 413. Reading a chunked body that is longer fails with
    /// [`FileTooLarge`](std::io::ErrorKind::FileTooLarge). `Limits::body_bytes_max` of the server
    /// has to be at least as large, because the engine applies it first.
    pub fn body_bytes_max(mut self, bytes: u64) -> Guard<A> {
        self.body_bytes_max = bytes;
        self
    }
}

impl<A: Application> Application for Guard<A> {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        Rc::new(GuardService {
            hosts: self.hosts.clone(),
            cors: self.cors.clone(),
            body_bytes_max: self.body_bytes_max,
            needs_certificate: self.needs_certificate,
            service: self.application.instantiate(worker),
        })
    }
}

/// One worker's instance.
struct GuardService {
    hosts: Hosts,
    cors: Cors,
    body_bytes_max: u64,
    needs_certificate: bool,
    service: Rc<dyn Service>,
}

impl Service for GuardService {
    fn start(
        &self,
        mut request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        override_method(&mut request);
        let grant = self.cors.grant(&request);
        let read = Read::of(&request, &self.cors, grant.as_ref());
        if self.cors.is_off() && !read.has_field() && !read.is_foreign() {
            return self.pass_on(request, (false, read), cx, response);
        }
        let is_served = self
            .hosts
            .accept_at(request.host(), || request.local_address());
        if is_served && let Some(preflight) = self.cors.preflight(&request, grant.as_ref()) {
            *response = Some(preflight);
            return None;
        }
        let may_write = matches!(grant, Some(Grant::Full(_)));
        let pending = self.pass_on(request, (may_write, read), cx, response);
        let cors = self.cors.clone();
        let add_fields = move |response: &mut Response| {
            cors.add_fields(response, grant.as_ref());
            read.add_field(response);
        };
        if let Some(response) = response {
            add_fields(response);
        }
        let pending = pending?;
        Some(Box::pin(async move {
            let mut response = pending.await;
            add_fields(&mut response);
            response
        }))
    }
}

impl GuardService {
    /// Passes a request on, or refuses it. `may_write`: a page of a listed origin caused it.
    fn pass_on(
        &self,
        mut request: Request,
        (may_write, read): (bool, Read),
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        if read.is_foreign() {
            request.set_extension(Rc::new(ForeignRead));
        }
        let checked = match self.refusal(&request, may_write) {
            Some(failure) => {
                log_refusal(&failure, &request);
                Err(failure)
            }
            None if read.is_foreign() && self.needs_certificate && request.tls().is_some() => {
                Err(FOREIGN_READ)
            }
            None => body_limit::limit(&mut request, self.body_bytes_max),
        };
        match checked {
            Ok(()) => self.service.start(request, cx, response),
            Err(failure) => {
                *response = Some(failure.into_response(&request));
                None
            }
        }
    }

    fn refusal(&self, request: &Request, may_write: bool) -> Option<HttpError> {
        let local = || request.local_address();
        if !self.hosts.accept_at(request.host(), local) {
            return Some(MISDIRECTED);
        }
        let is_permitted = may_write || matches!(request.method(), "GET" | "HEAD" | "OPTIONS");
        (!is_permitted && is_cross_origin(request.host(), request.headers()))
            .then_some(CROSS_ORIGIN)
    }
}

/// About one refusal is logged in this time, so that an attacker cannot fill the log.
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
        _ => tracing::warn!(status, host, origin, "cross-origin write refused"),
    }
}

/// Whether the fields say that a page of another origin caused the request.
///
/// The browser sets `Sec-Fetch-Site`, and proxies that change `Host` or terminate TLS preserve it.
/// `same-origin` is accepted. Any other value except `none` (the user caused the request) is
/// refused. This includes `same-site`, which means another port or another name of the same domain.
/// Without `same-origin`, `Origin`, if present, must be the host of the request, with the scheme
/// `http`, or `https` behind a proxy that terminates TLS and preserves `Host`.
fn is_cross_origin<'r>(
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

    #[test]
    fn fields_of_the_browser_show_cross_origin_requests() {
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
                is_cross_origin(Some(host), headers),
                expected,
                "{host} {fields:?}"
            );
        }
        let origin = [("Origin", &b"http://a"[..])];
        assert!(is_cross_origin(None, origin.into_iter()));
    }
}
