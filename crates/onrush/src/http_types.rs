//! Types of the crate `http`, which other servers and their libraries use: conversions of heads,
//! and status codes, methods, names and values where this crate takes its own form of them. With
//! the feature `http`.
//!
//! The head of a request is copied once. Its target and the values of its fields are parts of this
//! copy.

use crate::body::Body;
use crate::request::{Request, RequestBody};
use crate::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Uri, Version, request, response};
use onrush_proto::response::FieldError;
use onrush_proto::token;
use std::error::Error;
use std::fmt;
use std::mem;

/// Why a value of one crate has no counterpart in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unrepresentable {
    /// The method of a request.
    Method,
    /// The target of a request: the crate `http` accepts fewer than HTTP does, and none of 64 KiB.
    Target,
    /// The name of a field.
    FieldName,
    /// The value of a field.
    FieldValue,
}

impl fmt::Display for Unrepresentable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unrepresentable::Method => "unsupported method",
            Unrepresentable::Target => "unsupported target",
            Unrepresentable::FieldName => "unsupported field name",
            Unrepresentable::FieldValue => "unsupported field value",
        })
    }
}

impl Error for Unrepresentable {}

/// What of a response has no counterpart: a mistake in the program. As a response it is logged, and
/// becomes 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnrepresentableResponse {
    /// The name of a field.
    FieldName,
    /// The value of a field.
    FieldValue,
    /// The status is not a final one, 200 to 599 (RFC 9110 §15).
    Status,
}

impl fmt::Display for UnrepresentableResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnrepresentableResponse::FieldName => "unsupported field name in a response",
            UnrepresentableResponse::FieldValue => "unsupported field value in a response",
            UnrepresentableResponse::Status => "not a final status",
        })
    }
}

impl Error for UnrepresentableResponse {}

impl IntoResponse for UnrepresentableResponse {
    fn into_response(self) -> Response {
        Response::failure(&self)
    }
}

/// The part of `copy` that is the counterpart of `part` in `whole`, which `copy` is a copy of.
fn part_of(whole: &[u8], copy: &Bytes, part: &[u8]) -> Bytes {
    let start = part.as_ptr().addr().wrapping_sub(whole.as_ptr().addr());
    let end = start.wrapping_add(part.len());
    match start <= end && end <= copy.len() && whole.len() == copy.len() {
        true => copy.slice(start..end),
        false => Bytes::copy_from_slice(part),
    }
}

/// Copies the heads of many requests. What one leaves is memory for the next: a head without long
/// fields takes no allocation.
#[doc(hidden)] // For the crate `onrush-tower`.
#[derive(Debug, Default)]
pub struct HeadCopies {
    /// Room for the bytes of some heads. A value that is kept keeps all of it.
    bytes: BytesMut,
    /// Empty, with memory for fields.
    fields: HeaderMap,
}

/// What is allocated for the bytes of heads at a time.
const SHARED_BYTES: usize = 4096;
/// A longer head has memory of its own.
const SHARED_HEAD_BYTES_MAX: usize = SHARED_BYTES / 4;
/// Memory for more fields is not kept.
const KEPT_FIELDS_MAX: usize = 128;

impl HeadCopies {
    /// Replaces method, target, version and fields of `copied` by those of `request`.
    pub fn copy<B>(
        &mut self,
        request: &Request,
        copied: &mut http::Request<B>,
    ) -> Result<(), Unrepresentable> {
        let bytes = self.bytes_of(request.head_bytes());
        copy_head(request, &bytes, mem::take(&mut self.fields), copied)
    }

    /// Keeps the memory of fields that are not needed any more.
    pub fn reuse(&mut self, mut fields: HeaderMap) {
        if (self.fields.capacity()..KEPT_FIELDS_MAX).contains(&fields.capacity()) {
            fields.clear();
            self.fields = fields;
        }
    }

    fn bytes_of(&mut self, head: &[u8]) -> Bytes {
        if head.len() > SHARED_HEAD_BYTES_MAX {
            return Bytes::copy_from_slice(head);
        }
        if self.bytes.capacity() < head.len() {
            self.bytes.reserve(SHARED_BYTES); // The same memory, if nobody has a part of it.
        }
        self.bytes.extend_from_slice(head);
        self.bytes.split().freeze()
    }
}

/// `bytes` is a copy of the bytes of the head, `fields` is empty.
fn copy_head<B>(
    request: &Request,
    bytes: &Bytes,
    mut fields: HeaderMap,
    copied: &mut http::Request<B>,
) -> Result<(), Unrepresentable> {
    let whole = request.head_bytes();
    *copied.method_mut() = match request.method() {
        "GET" => Method::GET,
        other => Method::from_bytes(other.as_bytes()).map_err(|_| Unrepresentable::Method)?,
    };
    let target = part_of(whole, bytes, request.target().as_bytes());
    *copied.uri_mut() = Uri::from_maybe_shared(target).map_err(|_| Unrepresentable::Target)?;
    *copied.version_mut() = match request.version() {
        crate::Version::Http10 => Version::HTTP_10,
        crate::Version::Http11 => Version::HTTP_11,
        crate::Version::Http2 => Version::HTTP_2,
    };
    if fields.capacity() < request.headers_len() {
        fields = HeaderMap::with_capacity(request.headers_len());
    }
    for (name, value) in request.headers() {
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_maybe_shared(part_of(whole, bytes, value));
        fields.append(
            name.map_err(|_| Unrepresentable::FieldName)?,
            value.map_err(|_| Unrepresentable::FieldValue)?,
        );
    }
    *copied.headers_mut() = fields;
    Ok(())
}

/// The head, without extensions.
impl TryFrom<&Request> for request::Parts {
    type Error = Unrepresentable;

    fn try_from(request: &Request) -> Result<request::Parts, Unrepresentable> {
        let mut copied = http::Request::new(());
        let bytes = Bytes::copy_from_slice(request.head_bytes());
        copy_head(request, &bytes, HeaderMap::new(), &mut copied)?;
        Ok(copied.into_parts().0)
    }
}

/// The whole request. Its body is read as it arrives.
///
/// # Examples
/// ```
/// use onrush::http_types::Unrepresentable;
/// use onrush::{Limits, Request, RequestBody, Response, sim::Simulation};
///
/// async fn handler(request: Request) -> Result<Response, Unrepresentable> {
///     let mut request: http::Request<RequestBody> = request.try_into()?;
///     assert_eq!(request.method(), http::Method::POST);
///     assert_eq!(request.uri().query(), Some("a=1"));
///     assert_eq!(request.headers()[http::header::HOST], "example.com");
///     let body = request.body_mut().read_all(100).await;
///     Ok(Response::with_body(body.unwrap_or_default()))
/// }
/// # let mut sim = Simulation::new(1, &handler, Limits::default());
/// # let client = sim.connect();
/// # let head = "POST /?a=1 HTTP/1.1\r\nHost: example.com\r\nContent-Length: 2\r\n\r\n";
/// # sim.send(&client, format!("{head}hi").as_bytes());
/// # assert!(client.receive()?.ends_with(b"\r\n\r\nhi"));
/// # Ok::<(), std::io::Error>(())
/// ```
impl TryFrom<Request> for http::Request<RequestBody> {
    type Error = Unrepresentable;

    fn try_from(request: Request) -> Result<http::Request<RequestBody>, Unrepresentable> {
        let parts = request::Parts::try_from(&request)?;
        Ok(http::Request::from_parts(parts, request.into_body()))
    }
}

/// 400: the client has sent what the handler cannot receive.
impl IntoResponse for Unrepresentable {
    fn into_response(self) -> Response {
        Response::text(format!("{self}\n")).with_status(400)
    }
}

/// A media type that needs no memory.
fn well_known(value: &HeaderValue) -> Option<&'static str> {
    const ALL: [&str; 4] = [
        "text/plain; charset=utf-8",
        "application/json",
        "text/html; charset=utf-8",
        "application/octet-stream",
    ];
    let is_it = |known: &&str| value.as_bytes() == known.as_bytes();
    ALL.into_iter().find(is_it)
}

/// Whether it is a common one of the fields that are reserved: a shortcut.
fn is_reserved(name: &HeaderName) -> bool {
    *name == header::CONTENT_LENGTH || *name == header::TRANSFER_ENCODING || *name == header::DATE
}

/// Status and fields, without content. Of the fields that the server writes itself, `Connection:
/// close` closes the connection, and all others are left out. White space around a value is not a
/// part of it (RFC 9110 §5.5). Extensions are left out.
impl TryFrom<&response::Parts> for Response {
    type Error = UnrepresentableResponse;

    fn try_from(parts: &response::Parts) -> Result<Response, UnrepresentableResponse> {
        let status = parts.status.as_u16();
        if !(200..=599).contains(&status) {
            return Err(UnrepresentableResponse::Status);
        }
        let mut response = Response::new(status);
        for (name, value) in &parts.headers {
            if *name == header::CONTENT_TYPE
                && let Some(known) = well_known(value)
            {
                response = response.content_type(known);
            } else if is_reserved(name) {
                continue;
            } else if *name == header::CONNECTION && token::list_contains(value.as_bytes(), "close")
            {
                response = response.close();
            } else {
                match response.append_header(name, value.as_bytes().trim_ascii()) {
                    Ok(()) | Err(FieldError::Reserved) => {}
                    Err(FieldError::Name) => return Err(UnrepresentableResponse::FieldName),
                    Err(FieldError::Value) => return Err(UnrepresentableResponse::FieldValue),
                }
            }
        }
        Ok(response)
    }
}

/// As the conversion of a reference.
impl TryFrom<response::Parts> for Response {
    type Error = UnrepresentableResponse;

    fn try_from(parts: response::Parts) -> Result<Response, UnrepresentableResponse> {
        Response::try_from(&parts)
    }
}

/// As the conversion of [`response::Parts`], with the content.
///
/// # Examples
/// ```
/// use onrush::Response;
///
/// let built = http::Response::builder()
///     .status(http::StatusCode::CREATED)
///     .header(http::header::LOCATION, "/things/7")
///     .body("created")?;
/// let response = Response::try_from(built)?;
/// assert_eq!((response.status(), response.body().length()), (201, Some(7)));
/// assert_eq!(response.header("location"), Some(&b"/things/7"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<B: Into<Body>> TryFrom<http::Response<B>> for Response {
    type Error = UnrepresentableResponse;

    fn try_from(response: http::Response<B>) -> Result<Response, UnrepresentableResponse> {
        let (parts, content) = response.into_parts();
        Ok(Response::try_from(&parts)?.with_content(content))
    }
}

/// The fields that the server writes itself are missing, except `Connection: close` for
/// [`Response::close`].
impl TryFrom<Response> for http::Response<Body> {
    type Error = UnrepresentableResponse;

    fn try_from(response: Response) -> Result<http::Response<Body>, UnrepresentableResponse> {
        let (mut parts, ()) = http::Response::new(()).into_parts();
        let status = StatusCode::from_u16(response.status());
        parts.status = status.map_err(|_| UnrepresentableResponse::Status)?;
        for (name, value) in response.headers() {
            let name = HeaderName::from_bytes(name.as_bytes());
            let value = HeaderValue::from_bytes(value);
            parts.headers.append(
                name.map_err(|_| UnrepresentableResponse::FieldName)?,
                value.map_err(|_| UnrepresentableResponse::FieldValue)?,
            );
        }
        if response.close {
            let close = HeaderValue::from_static("close");
            parts.headers.insert(header::CONNECTION, close);
        }
        Ok(http::Response::from_parts(parts, response.body))
    }
}

/// One that cannot be represented is an [`UnrepresentableResponse`].
impl<B: Into<Body>> IntoResponse for http::Response<B> {
    fn into_response(self) -> Response {
        Response::try_from(self).unwrap_or_else(IntoResponse::into_response)
    }
}

/// A response without content. Panics as [`Response::new`] does.
impl IntoResponse for StatusCode {
    fn into_response(self) -> Response {
        Response::new(self)
    }
}

/// The response of the second value with this status. Panics as [`Response::with_status`] does.
impl<T: IntoResponse> IntoResponse for (StatusCode, T) {
    fn into_response(self) -> Response {
        self.1.into_response().with_status(self.0)
    }
}
