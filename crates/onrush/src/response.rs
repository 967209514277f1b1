//! Responses: status, field lines and content. The engine renders and sends them.

use crate::accepted::IntoStatus;
use crate::body::Body;
use crate::panic_guard;
use crate::params;
use bytes::Bytes;
use onrush_proto::reject::Reject;
use onrush_proto::response::{FieldError, FieldLines};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use std::convert::Infallible;
use std::fmt;
use std::io;

/// A response (RFC 9110 §3.4): status code, field lines and content.
///
/// The server itself writes `Connection`, `Content-Length`, `Date`, `Keep-Alive`,
/// `Proxy-Connection`, `Server` and `Transfer-Encoding`. A handler cannot set these fields.
///
/// The server sends no content in a response to `HEAD`, nor with status 204, 205 or 304 (RFC 9110
/// §6.4.1, §15.3.6).
///
/// # Examples
/// ```
/// use onrush::Response;
///
/// let response = Response::text("created").with_status(201).with_header("Location", "/things/7");
/// assert_eq!(response.status(), 201);
/// assert_eq!(response.header("location"), Some(&b"/things/7"[..]));
/// assert_eq!(response.body().length(), Some(7));
/// ```
#[derive(Debug, Default)]
#[must_use = "a response is returned by its handler"]
pub struct Response {
    pub(crate) status: Status,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) fields: FieldLines,
    pub(crate) body: Body,
    pub(crate) close: bool,
}

/// What no address contains (RFC 3986 §2). Browsers take a backslash for a slash.
const NOT_IN_ADDRESSES: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A status code; 200 by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u16);

impl Default for Status {
    fn default() -> Self {
        Status(200)
    }
}

impl Response {
    /// A response without content.
    ///
    /// # Panics
    /// If `status` is not a final status code, 200 to 599 (RFC 9110 §15).
    ///
    /// # Examples
    /// ```
    /// let response = onrush::Response::new(204);
    /// assert_eq!((response.status(), response.body().length()), (204, Some(0)));
    /// ```
    #[track_caller]
    pub fn new(status: impl IntoStatus) -> Response {
        Response::default().with_status(status)
    }

    /// A response with status 200 and without `Content-Type`.
    ///
    /// # Examples
    /// ```
    /// use onrush::Response;
    ///
    /// let image = Response::with_body(vec![0x89, b'P', b'N', b'G']).content_type("image/png");
    /// assert_eq!(image.header("Content-Type"), Some(&b"image/png"[..]));
    /// ```
    #[inline]
    pub fn with_body(body: impl Into<Body>) -> Response {
        // Names every field: `..Response::default()` would construct and drop a second body.
        Response {
            status: Status::default(),
            content_type: None,
            fields: FieldLines::default(),
            body: body.into(),
            close: false,
        }
    }

    /// A response with status 200 and `Content-Type: text/plain; charset=utf-8`.
    #[inline]
    pub fn text(body: impl Into<Body>) -> Response {
        Response::with_body(body).content_type("text/plain; charset=utf-8")
    }

    /// A response with status 200 and `Content-Type: text/html; charset=utf-8`.
    pub fn html(body: impl Into<Body>) -> Response {
        Response::with_body(body).content_type("text/html; charset=utf-8")
    }

    /// A response with status 200 and `Content-Type: application/json`. `body` is serialized JSON.
    ///
    /// # Examples
    /// ```
    /// let response = onrush::Response::json(r#"{"id": 7}"#);
    /// assert_eq!(response.header("content-type"), Some(&b"application/json"[..]));
    /// ```
    pub fn json(body: impl Into<Body>) -> Response {
        Response::with_body(body).content_type("application/json")
    }

    /// Sends the client to `location`: an address, or a path of this server. `status` is 301
    /// (permanent) or 302 (temporary), with which clients turn `POST` into `GET`; 308 and 307, with
    /// which they keep the method; or 303, with which they get something else than they asked for
    /// (RFC 9110 §15.4).
    ///
    /// Spaces, backslashes, and other characters that no address contains are percent-encoded. Who
    /// takes `location` from a client decides first whether it may lead there: `//example.com/` is
    /// another server, and `javascript:` is an address, too.
    ///
    /// # Errors
    /// [`FieldError::Value`] if `location` is empty or contains control characters.
    ///
    /// # Panics
    /// If `status` is another one.
    ///
    /// # Examples
    /// ```
    /// use onrush::{FieldError, Response};
    ///
    /// let response = Response::redirect(303, "/things/7?name=a b")?;
    /// assert_eq!(response.status(), 303);
    /// assert_eq!(response.header("location"), Some(&b"/things/7?name=a%20b"[..]));
    ///
    /// let forged = Response::redirect(303, "/\r\nSet-Cookie: admin=1");
    /// assert_eq!(forged.err(), Some(FieldError::Value));
    /// # Ok::<(), FieldError>(())
    /// ```
    #[track_caller]
    pub fn redirect(
        status: impl IntoStatus,
        location: impl AsRef<str>,
    ) -> Result<Response, FieldError> {
        let (status, location) = (status.into_status(), location.as_ref());
        assert!(
            matches!(status, 301 | 302 | 303 | 307 | 308),
            "not the status of a redirect: {status}"
        );
        if location.is_empty() || location.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(FieldError::Value);
        }
        let location = utf8_percent_encode(location, NOT_IN_ADDRESSES).to_string();
        let mut response = Response::new(status);
        response.try_set_header("Location", location)?;
        Ok(response)
    }

    /// 503 for a server that is overloaded. The client may retry after a second (RFC 9110 §10.2.3).
    pub(crate) fn busy() -> Response {
        Response::text("too busy, try again\n")
            .with_status(503)
            .with_header("Retry-After", "1")
    }

    /// 500 for an error of a handler, which is logged and not shown to the client.
    pub(crate) fn failure(error: &dyn fmt::Display) -> Response {
        panic_guard::log(|| {
            let route = params::present_route();
            tracing::error!(%error, route, "a handler has failed");
        });
        Response::internal_error()
    }

    /// 500 for a panic in a handler or in a job of it.
    pub(crate) fn internal_error() -> Response {
        Response::text("internal server error\n").with_status(500)
    }

    /// Whether there is no value to drop.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.body.is_plain() && self.fields.is_unallocated()
    }

    /// Returns the response with this status code.
    ///
    /// # Panics
    /// If `status` is not a final status code, 200 to 599 (RFC 9110 §15).
    #[track_caller]
    pub fn with_status(mut self, status: impl IntoStatus) -> Response {
        self.set_status(status.into_status());
        self
    }

    #[track_caller]
    pub(crate) fn set_status(&mut self, status: u16) {
        assert!(
            (200..=599).contains(&status),
            "not a final status code: {status}"
        );
        self.status = Status(status);
    }

    /// Sets `Content-Type` to a constant, which needs no memory. See
    /// [`Response::with_header`] for a value that is computed.
    ///
    /// A value with control characters is not sent.
    ///
    /// # Panics
    /// With debug assertions, if the value contains bytes other than printable ASCII.
    #[inline]
    pub fn content_type(mut self, content_type: &'static str) -> Response {
        self.set_content_type(content_type);
        self
    }

    #[inline]
    pub(crate) fn set_content_type(&mut self, content_type: &'static str) {
        debug_assert!(content_type.bytes().all(|b| (b' '..=b'~').contains(&b)));
        if !self.fields.is_empty() {
            self.fields.remove("Content-Type");
        }
        self.content_type = Some(content_type);
    }

    /// Sets a field and replaces its earlier lines.
    ///
    /// # Panics
    /// If [`Response::try_set_header`] fails. Use that for values from outside the program.
    #[track_caller]
    pub fn with_header(mut self, name: impl AsRef<str>, value: impl AsRef<[u8]>) -> Response {
        self.set_header(name, value);
        self
    }

    /// Like [`Response::with_header`], for a borrowed response.
    ///
    /// # Panics
    /// If [`Response::try_set_header`] fails.
    #[track_caller]
    pub fn set_header(&mut self, name: impl AsRef<str>, value: impl AsRef<[u8]>) {
        let name = name.as_ref();
        if let Err(error) = self.try_set_header(name, value) {
            panic!("header {name:?} was refused: {error}");
        }
    }

    /// Sets a field and replaces its earlier lines. The name is case-insensitive.
    ///
    /// Fails if the name is not a token (RFC 9110 §5.6.2), if the value contains control characters
    /// or begins or ends with white space (RFC 9110 §5.5), or if only the server may set the field.
    /// So a value cannot add lines to the head (response splitting).
    ///
    /// # Examples
    /// ```
    /// use onrush::{FieldError, Response};
    ///
    /// let mut response = Response::new(303);
    /// assert_eq!(response.try_set_header("Location", "/next"), Ok(()));
    /// let forged = "/\r\nSet-Cookie: admin=1";
    /// assert_eq!(response.try_set_header("Location", forged), Err(FieldError::Value));
    /// assert_eq!(response.try_set_header("Content-Length", "0"), Err(FieldError::Reserved));
    /// assert_eq!(response.header("location"), Some(&b"/next"[..]));
    /// ```
    pub fn try_set_header(
        &mut self,
        name: impl AsRef<str>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), FieldError> {
        let name = name.as_ref();
        if name.eq_ignore_ascii_case("content-type") {
            self.content_type = None;
        }
        self.fields.set(name, value.as_ref())
    }

    /// Adds a field line and keeps earlier lines of the same name, for example of `Set-Cookie`.
    /// Fails as [`Response::try_set_header`] does. `Content-Type` has one value, so it is replaced.
    pub fn append_header(
        &mut self,
        name: impl AsRef<str>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), FieldError> {
        let name = name.as_ref();
        match name.eq_ignore_ascii_case("content-type") {
            true => self.try_set_header(name, value),
            false => self.fields.append(name, value.as_ref()),
        }
    }

    /// Removes all lines of a field. The name is case-insensitive.
    pub fn remove_header(&mut self, name: impl AsRef<str>) {
        let name = name.as_ref();
        if name.eq_ignore_ascii_case("content-type") {
            self.content_type = None;
        }
        self.fields.remove(name);
    }

    /// Replaces all fields except a `Content-Type` set by [`Response::content_type`], which
    /// `fields` must not have then. A handler that repeats a response can so render its field lines
    /// once.
    ///
    /// # Examples
    /// ```
    /// use onrush::{FieldLines, Response};
    ///
    /// let mut fields = FieldLines::new();
    /// fields.set("Cache-Control", b"max-age=3600")?;
    /// let response = Response::text("hello").with_fields(fields.clone());
    /// assert_eq!(response.header("cache-control"), Some(&b"max-age=3600"[..]));
    /// # Ok::<(), onrush::FieldError>(())
    /// ```
    #[inline]
    pub fn with_fields(mut self, fields: FieldLines) -> Response {
        self.fields = fields;
        self
    }

    /// Replaces the content. Status and fields remain.
    ///
    /// # Examples
    /// ```
    /// let response = onrush::Response::new(404).with_content("no such thing\n");
    /// assert_eq!((response.status(), response.body().length()), (404, Some(14)));
    /// ```
    pub fn with_content(mut self, body: impl Into<Body>) -> Response {
        self.body = body.into();
        self
    }

    /// The response with the content that `map` makes of its content: for layers. `map` can read
    /// content in memory by [`Body::as_bytes`].
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Response};
    ///
    /// let response = Response::text("hello").map_body(|body| match body.as_bytes() {
    ///     Some(bytes) => Body::from(bytes.to_ascii_uppercase()),
    ///     None => body,
    /// });
    /// assert_eq!(response.body().as_bytes(), Some(&b"HELLO"[..]));
    /// ```
    pub fn map_body(mut self, map: impl FnOnce(Body) -> Body) -> Response {
        self.body = map(std::mem::take(&mut self.body));
        self
    }

    /// The content alone.
    pub fn into_body(self) -> Body {
        self.body
    }

    /// Closes the connection after this response (RFC 9112 §9.6).
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn bye(_: Request) -> Response {
    ///     Response::text("bye").close()
    /// }
    ///
    /// let mut sim = Simulation::new(1, &bye, Limits::default());
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// let response = String::from_utf8_lossy(&client.receive()?).into_owned();
    /// assert!(response.contains("\r\nConnection: close\r\n"));
    /// assert!(client.at_end());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn close(mut self) -> Response {
        self.close = true;
        self
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status.0
    }

    /// All field lines as (name, value), without those that the server itself writes.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let content_type = self
            .content_type
            .map(|value| ("Content-Type", value.as_bytes()));
        content_type.into_iter().chain(self.fields.iter())
    }

    /// The values of all field lines with this name, which is case-insensitive.
    pub fn header_values<N: AsRef<str>>(&self, name: N) -> impl Iterator<Item = &[u8]> {
        let is_named = move |line: &(&str, &[u8])| line.0.eq_ignore_ascii_case(name.as_ref());
        self.headers().filter(is_named).map(|(_, value)| value)
    }

    /// The first value of the field `name`, which is case-insensitive.
    ///
    /// # Examples
    /// ```
    /// use onrush::Response;
    ///
    /// let mut response = Response::text("hello").with_header("Vary", "Accept");
    /// response.append_header("Vary", "Accept-Encoding")?;
    /// response.set_header("ETag", "\"7\"");
    /// assert_eq!(response.header("vary"), Some(&b"Accept"[..]));
    /// assert_eq!(response.header_values("Vary").count(), 2);
    /// assert_eq!(response.headers().count(), 4); // `Content-Type` is the first.
    /// # Ok::<(), onrush::FieldError>(())
    /// ```
    pub fn header(&self, name: impl AsRef<str>) -> Option<&[u8]> {
        let name = name.as_ref();
        match self.content_type {
            Some(value) if name.eq_ignore_ascii_case("content-type") => Some(value.as_bytes()),
            _ => self.fields.get(name),
        }
    }

    /// The content.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Waits until the first bytes of the content are there. If the content is a stream that fails
    /// before, returns its error: the handler can still send another response. Once the head is
    /// sent, an error of the stream can only end the connection. Content that is not a stream is
    /// ready at once.
    ///
    /// The stream is polled by the handler, so what fills it has to run on its own.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Body, Limits, Request, Response, sim::Simulation};
    ///
    /// async fn relay(request: Request) -> Response {
    ///     let (sender, body) = Body::channel(1024);
    ///     let source = request.worker().spawn(async move {
    ///         sender.abort(std::io::Error::other("the source has failed"));
    ///     });
    ///     source.detach();
    ///     let mut response = Response::text(body);
    ///     match response.wait_for_body().await {
    ///         Ok(()) => response,
    ///         Err(error) => Response::text(error.to_string()).with_status(502),
    ///     }
    /// }
    /// # let mut sim = Simulation::new(1, &relay, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 502 "));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn wait_for_body(&mut self) -> io::Result<()> {
        self.body.wait_ready().await
    }
}

/// A value that a handler may return.
///
/// The crate implements it for:
///
/// - [`Response`], and [`Body`] and bytes (status 200 without `Content-Type`);
/// - text (status 200), and `()` (status 204);
/// - `u16`: a status code without content, and `(u16, T)`: the response of `T` with this status;
/// - `Option`: `None` is 404; `Result` of two such values;
/// - [`io::Error`], so that `?` works: an error of a request body has the status of its
///   [`Reject`], such as 413 and 408; `FileTooLarge` is 413, `NotFound` is 404; all others are
///   logged and become 500;
/// - [`FieldError`]: logged, and 500; `ContentError`, of a request's content: 400, 413, 415
///   or 422;
/// - [`Sse`](crate::Sse), and with the feature `json` `Json`.
///
/// # Examples
/// An error type of the application, so that handlers can use `?`:
///
/// ```
/// use onrush::{IntoResponse, Limits, Request, Response, sim::Simulation};
///
/// enum Failure {
///     BadNumber,
/// }
///
/// impl From<std::num::ParseIntError> for Failure {
///     fn from(_: std::num::ParseIntError) -> Failure {
///         Failure::BadNumber
///     }
/// }
///
/// impl IntoResponse for Failure {
///     fn into_response(self) -> Response {
///         match self {
///             Failure::BadNumber => Response::text("not a number\n").with_status(400),
///         }
///     }
/// }
///
/// async fn double(request: Request) -> Result<String, Failure> {
///     let number: u32 = request.query().unwrap_or_default().parse()?;
///     Ok((u64::from(number) * 2).to_string())
/// }
///
/// let mut sim = Simulation::new(1, &double, Limits::default());
/// let client = sim.connect();
/// sim.send(&client, b"GET /?21 HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// assert!(client.receive()?.ends_with(b"42"));
/// sim.send(&client, b"GET /?many HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// assert!(client.receive()?.starts_with(b"HTTP/1.1 400 Bad Request\r\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a response",
    label = "a handler returns a `Response`, text, bytes, a status code, or a `Result` of them",
    note = "implement `onrush::IntoResponse` for `{Self}` to return it from handlers"
)]
pub trait IntoResponse {
    /// Converts the value to a response.
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    #[inline]
    fn into_response(self) -> Response {
        self
    }
}

impl IntoResponse for &'static str {
    fn into_response(self) -> Response {
        Response::text(self)
    }
}

impl IntoResponse for String {
    fn into_response(self) -> Response {
        Response::text(self)
    }
}

/// A response without content that has this status code. Panics as [`Response::new`] does.
impl IntoResponse for u16 {
    fn into_response(self) -> Response {
        Response::new(self)
    }
}

/// 204, because there is no content.
impl IntoResponse for () {
    fn into_response(self) -> Response {
        Response::new(204)
    }
}

impl IntoResponse for Body {
    fn into_response(self) -> Response {
        Response::with_body(self)
    }
}

impl IntoResponse for Bytes {
    fn into_response(self) -> Response {
        Response::with_body(self)
    }
}

impl IntoResponse for Vec<u8> {
    fn into_response(self) -> Response {
        Response::with_body(self)
    }
}

/// The response of the second value with this status code. Panics as [`Response::with_status`]
/// does.
impl<T: IntoResponse> IntoResponse for (u16, T) {
    fn into_response(self) -> Response {
        self.1.into_response().with_status(self.0)
    }
}

/// `None` is 404.
impl<T: IntoResponse> IntoResponse for Option<T> {
    fn into_response(self) -> Response {
        let not_found = || Response::text("not found\n").with_status(404);
        self.map_or_else(not_found, T::into_response)
    }
}

impl IntoResponse for Infallible {
    fn into_response(self) -> Response {
        match self {}
    }
}

/// A field of a response was refused: logged, and 500.
impl IntoResponse for FieldError {
    fn into_response(self) -> Response {
        Response::failure(&self)
    }
}

/// The text of an error may name files of the machine, so the client does not get it.
impl IntoResponse for io::Error {
    fn into_response(self) -> Response {
        let reject = self
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<Reject>());
        if let Some(reject) = reject {
            return Response::text(format!("{}\n", reject.reason)).with_status(reject.status);
        }
        match self.kind() {
            io::ErrorKind::NotFound => return None::<()>.into_response(),
            io::ErrorKind::FileTooLarge => {
                return Response::text("request body too large\n").with_status(413);
            }
            _ => {}
        }
        Response::failure(&self)
    }
}

impl<T: IntoResponse, E: IntoResponse> IntoResponse for Result<T, E> {
    fn into_response(self) -> Response {
        match self {
            Ok(value) => value.into_response(),
            Err(error) => error.into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A response that is plain is not dropped, so it must not own anything.
    #[test]
    fn a_response_has_one_content_type() {
        let types = |response: Response| {
            let values = response.header_values("content-type");
            values.map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        let replaced = Response::new(200)
            .with_header("Content-Type", "a/b")
            .content_type("c/d");
        assert_eq!(types(replaced), [b"c/d"]);
        let mut appended = Response::text("");
        assert_eq!(appended.append_header("content-type", "a/b"), Ok(()));
        assert_eq!(types(appended.with_header("X", "y")), [b"a/b"]);
        let mut removed = Response::text("").with_header("X", "y");
        removed.remove_header("CONTENT-TYPE");
        removed.remove_header("x");
        assert_eq!(removed.headers().count(), 0);
    }

    #[test]
    fn only_responses_that_own_nothing_are_plain() {
        assert!(Response::text("static").is_plain());
        assert!(Response::new(204).is_plain());
        let owning = [
            Response::text("static").with_header("A", "b"),
            Response::text("owned".to_owned()),
            Response::with_body(Body::parts([])),
            Response::with_body(Body::channel(1).1),
            Response::text("static").with_fields(Response::new(204).with_header("A", "b").fields),
        ];
        assert!(owning.iter().all(|response| !response.is_plain()));
    }
}
