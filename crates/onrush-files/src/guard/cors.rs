//! Cross-origin requests of web pages (Fetch Standard §3.2, CORS): which origins may read
//! responses, and which may make changes.
//!
//! An origin that is listed has the same rights as a page of this server, with the credentials of
//! the browser. With `*`, every page may read what anonymous clients may read; it may not make
//! changes, and the browser sends no credentials.

use onrush::{Request, Response};

/// How long a browser may reuse the response to a preflight request, in seconds.
const MAX_AGE_S: &str = "600";

/// Methods of listed origins. It depends on the application which of them work.
const METHODS: &str = "GET, HEAD, PUT, DELETE, POST, PATCH, COPY, MOVE";

/// Fields of responses that pages may read, besides those that they always may.
const EXPOSED: &str = "ETag, Content-Range, Accept-Ranges, Location, Allow, Retry-After, \
                       WWW-Authenticate, Content-Digest, Repr-Digest, Upload-Offset, \
                       Upload-Length, Upload-Complete, Upload-Limit, Upload-Expires, \
                       Upload-Metadata, Tus-Resumable, Tus-Version, Tus-Extension, Tus-Max-Size, \
                       Onrush-Part-Size, Onrush-Parts";

/// The origins whose pages may send cross-origin requests. None by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors {
    /// As browsers send them.
    origins: Vec<String>,
    /// Every page may read.
    any: bool,
}

/// What a page may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// Read without credentials.
    Read,
    /// The same as pages of this server. The value of `Origin`.
    Full(String),
}

impl Cors {
    /// The origins whose pages may send requests, as browsers send them; `*`: every page may read.
    pub fn origins(&self) -> impl Iterator<Item = &str> {
        let any = self.any.then_some("*");
        any.into_iter()
            .chain(self.origins.iter().map(String::as_str))
    }

    /// For these origins, each as `https://app.example` with a port if it is not the default one of
    /// the scheme, or as `*`. An error is one line that says what is wrong.
    pub fn new<'o>(origins: impl IntoIterator<Item = &'o str>) -> Result<Cors, String> {
        let mut cors = Cors::default();
        for origin in origins {
            match origin {
                "*" => cors.any = true,
                origin => cors.origins.push(normalize(origin)?),
            }
        }
        Ok(cors)
    }

    pub(super) fn is_off(&self) -> bool {
        !self.any && self.origins.is_empty()
    }

    /// What the page that caused a request may do. `None`: nothing beyond the usual.
    pub(super) fn grant(&self, request: &Request) -> Option<Grant> {
        if self.is_off() {
            return None;
        }
        let mut values = request.header_values("origin");
        let origin = values.next();
        if values.next().is_some() {
            return None; // No browser sends two.
        }
        let listed = origin.and_then(|origin| {
            let is_equal = |listed: &&String| listed.as_bytes() == origin;
            self.origins.iter().find(is_equal)
        });
        match listed {
            Some(origin) => Some(Grant::Full(origin.clone())),
            None => self.any.then_some(Grant::Read),
        }
    }

    /// Whether a page of a listed origin has caused a request that has no `Origin`, as one for an
    /// image. A page can leave out its `Referer`, but not send another one.
    pub(super) fn lists_page_of(&self, request: &Request) -> bool {
        if self.origins.is_empty() || request.header("origin").is_some() {
            return false;
        }
        let page = request.header_str("referer").unwrap_or_default();
        let is_of = |origin: &String| {
            let path = page.strip_prefix(origin.as_str());
            path.is_some_and(|path| path.starts_with('/'))
        };
        self.origins.iter().any(is_of)
    }

    /// The response to a preflight request. `None` if it is none, or of a page that may do nothing.
    pub(super) fn preflight(&self, request: &Request, grant: Option<&Grant>) -> Option<Response> {
        let grant = grant?;
        request
            .header("origin")
            .filter(|_| request.method() == "OPTIONS")?;
        request.header("access-control-request-method")?;
        let methods = match grant {
            Grant::Read => "GET, HEAD",
            Grant::Full(_) => METHODS,
        };
        let mut response = Response::new(204)
            .with_header("Access-Control-Allow-Methods", methods)
            .with_header("Access-Control-Max-Age", MAX_AGE_S);
        if let Some(names) = request.header("access-control-request-headers") {
            let is_list = |b: u8| b.is_ascii_alphanumeric() || b"-_, ".contains(&b);
            if names.iter().all(|&byte| is_list(byte)) {
                response.set_header("Access-Control-Allow-Headers", names);
            }
        }
        self.add_fields(&mut response, Some(grant));
        Some(response)
    }

    /// Adds the fields that let a page read a response.
    pub(super) fn add_fields(&self, response: &mut Response, grant: Option<&Grant>) {
        if !self.origins.is_empty() {
            // A constant value is valid.
            let _ = response.append_header("Vary", "Origin");
        }
        match grant {
            None => return,
            Some(Grant::Read) => response.set_header("Access-Control-Allow-Origin", "*"),
            Some(Grant::Full(origin)) => {
                response.set_header("Access-Control-Allow-Origin", origin);
                response.set_header("Access-Control-Allow-Credentials", "true");
            }
        }
        response.set_header("Access-Control-Expose-Headers", EXPOSED);
    }
}

/// An origin as browsers send it (RFC 6454 §6.2): in lower case, without a default port.
fn normalize(text: &str) -> Result<String, String> {
    let wrong = || "write an origin as https://app.example or https://app.example:8443".to_owned();
    let origin = text.to_ascii_lowercase();
    let (scheme, authority) = origin.split_once("://").ok_or_else(wrong)?;
    let default_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return Err(wrong()),
    };
    let is_authority = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    if authority.is_empty() || authority.starts_with(':') || !authority.bytes().all(is_authority) {
        return Err(wrong());
    }
    let authority = authority.strip_suffix(default_port).unwrap_or(authority);
    Ok(format!("{scheme}://{authority}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_those_of_browsers() {
        for (text, origin) in [
            ("https://app.example", "https://app.example"),
            ("HTTPS://App.Example:443", "https://app.example"),
            ("http://a:80", "http://a"),
            ("http://a:443", "http://a:443"),
            ("http://[::1]:3000", "http://[::1]:3000"),
        ] {
            assert_eq!(normalize(text).as_deref(), Ok(origin));
        }
        for wrong in [
            "",
            "null",
            "app.example",
            "https://",
            "https://:1",
            "https://a/",
            "https://a/b",
            "https://*.example",
            "ftp://a",
            "https://u@a",
            "https://a b",
            "file://",
        ] {
            assert!(normalize(wrong).is_err(), "{wrong}");
        }
    }
}
