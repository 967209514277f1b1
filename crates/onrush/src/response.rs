//! What a handler answers. Must not know how it is sent.

use crate::body::Body;
use onrush_proto::response::{FieldError, FieldLines};

/// An answer: status, field lines and content.
///
/// `Date`, `Content-Length`, `Transfer-Encoding` and `Connection` are the server's own business
/// and cannot be set.
///
/// ```
/// use onrush::Response;
/// let answer = Response::text("made").with_status(201).with_header("Location", "/things/7");
/// assert_eq!(answer.status(), 201);
/// ```
#[derive(Debug, Default)]
pub struct Response {
    pub(crate) status: Status,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) fields: FieldLines,
    pub(crate) body: Body,
    pub(crate) close: bool,
}

/// A status code, 200 unless set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u16);

impl Default for Status {
    fn default() -> Self {
        Status(200)
    }
}

impl Response {
    /// An answer without content.
    ///
    /// # Panics
    /// When `status` is not a final status code, 200 to 599.
    pub fn new(status: u16) -> Response {
        Response::default().with_status(status)
    }

    /// 200 with content of no stated type.
    #[inline]
    pub fn with_body(body: impl Into<Body>) -> Response {
        // Every field is named: a default with another body would have its own dropped.
        Response {
            status: Status::default(),
            content_type: None,
            fields: FieldLines::default(),
            body: body.into(),
            close: false,
        }
    }

    /// 200 with `text/plain; charset=utf-8`.
    #[inline]
    pub fn text(body: impl Into<Body>) -> Response {
        Response::with_body(body).content_type("text/plain; charset=utf-8")
    }

    /// 200 with `text/html; charset=utf-8`.
    pub fn html(body: impl Into<Body>) -> Response {
        Response::with_body(body).content_type("text/html; charset=utf-8")
    }

    /// 200 with `application/json`; `body` is JSON already.
    pub fn json(body: impl Into<Body>) -> Response {
        Response::with_body(body).content_type("application/json")
    }

    /// 503: there is too much to do, and it is worth trying again in a second (RFC 9110 §10.2.3).
    pub(crate) fn busy() -> Response {
        Response::text("too busy, try again\n")
            .with_status(503)
            .with_header("Retry-After", "1")
    }

    /// 500: a handler, or what it left to others, panicked.
    pub(crate) fn internal_error() -> Response {
        Response::text("internal server error\n").with_status(500)
    }

    /// Whether there is nothing to drop.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.body.is_plain() && self.fields.is_unallocated()
    }

    /// The same answer with another status.
    ///
    /// # Panics
    /// When `status` is not a final status code, 200 to 599.
    pub fn with_status(mut self, status: u16) -> Response {
        self.set_status(status);
        self
    }

    pub(crate) fn set_status(&mut self, status: u16) {
        assert!(
            (200..=599).contains(&status),
            "not a final status code: {status}"
        );
        self.status = Status(status);
    }

    /// Sets `Content-Type` to a constant, which costs nothing per answer.
    ///
    /// # Panics
    /// When it holds control characters.
    #[inline]
    pub fn content_type(mut self, content_type: &'static str) -> Response {
        self.set_content_type(content_type);
        self
    }

    #[inline]
    pub(crate) fn set_content_type(&mut self, content_type: &'static str) {
        debug_assert!(content_type.bytes().all(|b| (b' '..=b'~').contains(&b)));
        self.content_type = Some(content_type);
    }

    /// Sets a field, replacing earlier lines of that name.
    ///
    /// # Panics
    /// When the name is not a token, the value holds control characters, or the field is one that
    /// only the server may set. For values that come from outside use [`Response::try_set_header`].
    pub fn with_header(mut self, name: &str, value: impl AsRef<[u8]>) -> Response {
        self.set_header(name, value);
        self
    }

    /// [`Response::with_header`] for a response that is borrowed.
    ///
    /// # Panics
    /// As [`Response::with_header`] does.
    pub fn set_header(&mut self, name: &str, value: impl AsRef<[u8]>) {
        if let Err(error) = self.try_set_header(name, value) {
            panic!("header {name:?} was refused: {error:?}");
        }
    }

    /// Sets a field, replacing earlier lines of that name; refuses what could split the answer.
    pub fn try_set_header(
        &mut self,
        name: &str,
        value: impl AsRef<[u8]>,
    ) -> Result<(), FieldError> {
        if name.eq_ignore_ascii_case("content-type") {
            self.content_type = None;
        }
        self.fields.set(name, value.as_ref())
    }

    /// Adds a field line beside others of the same name (`Set-Cookie`, `Vary`, …).
    pub fn append_header(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), FieldError> {
        self.fields.append(name, value.as_ref())
    }

    /// Puts lines that were rendered before in place of all fields set so far, `Content-Type`
    /// aside: for answers that are given again and again.
    #[inline]
    pub fn with_fields(mut self, fields: FieldLines) -> Response {
        self.fields = fields;
        self
    }

    /// Asks for the connection to be closed after this answer.
    pub fn close(mut self) -> Response {
        self.close = true;
        self
    }

    /// The status code.
    pub fn status(&self) -> u16 {
        self.status.0
    }

    /// All field lines, as (name, value); those that the server adds by itself are not among them.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let content_type = self
            .content_type
            .map(|value| ("Content-Type", value.as_bytes()));
        content_type.into_iter().chain(self.fields.iter())
    }

    /// The values of all field lines of one name, compared without case.
    pub fn header_values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let is_named = move |line: &(&str, &[u8])| line.0.eq_ignore_ascii_case(name);
        self.headers().filter(is_named).map(|(_, value)| value)
    }

    /// The first value of a field, its name compared without case.
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
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        match self.content_type {
            Some(value) if name.eq_ignore_ascii_case("content-type") => Some(value.as_bytes()),
            _ => self.fields.get(name),
        }
    }

    /// The content.
    pub fn body(&self) -> &Body {
        &self.body
    }
}

/// What a handler may return.
pub trait IntoResponse {
    /// The answer it stands for.
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

/// A bare status code: an answer without content.
impl IntoResponse for u16 {
    fn into_response(self) -> Response {
        Response::new(self)
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
