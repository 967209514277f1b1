//! Requests: the head as a view into received memory, and the body as it arrives.
//!
//! Bodies are read through the trait `Host`, so this module does not depend on connections.

use crate::host::{BodyId, ConnId, Host};
use crate::params::Params;
use crate::worker::WorkerHandle;
use onrush_proto::head::{Head, Version};
use onrush_rt::buf::Buf;
use onrush_rt::coop;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};

/// A request (RFC 9110 §3.4, RFC 9112 §3).
///
/// The head is a view into the memory in which it was received; accessors copy nothing. The body is
/// read by [`Request::body`]. What the handler leaves of it is read and discarded before the next
/// request of the connection, or the connection is closed.
///
/// # Examples
/// ```
/// use onrush::{Limits, Request, Response, sim::Simulation};
///
/// async fn search(request: Request) -> Response {
///     assert_eq!(request.method(), "GET");
///     assert_eq!(request.target(), "/books?author=Ada");
///     assert_eq!(request.path(), "/books");
///     assert_eq!(request.query(), Some("author=Ada"));
///     assert_eq!(request.host(), Some("example.com"));
///     assert_eq!(request.header_str("accept-language"), Some("en"));
///     assert!(!request.has_body());
///     Response::text("found")
/// }
///
/// let mut sim = Simulation::new(1, &search, Limits::default());
/// let client = sim.connect();
/// let head = "GET /books?author=Ada HTTP/1.1\r\nHost: example.com\r\nAccept-Language: en\r\n\r\n";
/// sim.send(&client, head.as_bytes());
/// assert!(client.receive()?.starts_with(b"HTTP/1.1 200 OK\r\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Request {
    /// `None` only while the request is dropped. A box, because a request is moved often: into a
    /// handler, its future, and the slot of the future.
    parts: Option<Box<RequestParts>>,
}

/// The content of a request. It is reused, so that a request allocates nothing.
pub(crate) struct RequestParts {
    pub(crate) head: Head,
    /// The bytes that the offsets of `head` refer to.
    bytes: Option<Buf>,
    host: Rc<dyn Host>,
    request_pool: Rc<RequestPool>,
    connection: ConnId,
    params: Params,
    body: RequestBody,
}

impl std::fmt::Debug for RequestParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts")
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

impl RequestParts {
    /// Makes the request whose head was parsed into `self`.
    #[inline]
    pub(crate) fn into_request(
        mut self: Box<RequestParts>,
        bytes: Buf,
        connection: ConnId,
        body: Option<BodyId>,
    ) -> Request {
        self.bytes = Some(bytes);
        self.connection = connection;
        if let Some(id) = body {
            self.body.0 = Some(BodySource {
                host: self.host.clone(),
                id,
            });
        }
        Request { parts: Some(self) }
    }
}

/// The maximum number of parts kept for reuse.
const SPARES_MAX: usize = 256;

/// The parts of ended requests, for reuse.
#[derive(Default)]
pub(crate) struct RequestPool {
    /// Boxed, because a request holds a box of them.
    #[allow(clippy::vec_box)]
    kept: RefCell<Vec<Box<RequestParts>>>,
    /// The host has ended. Returned parts are dropped, because they refer to the host.
    closed: Cell<bool>,
}

impl RequestPool {
    /// Takes parts to parse a head into. Their table may contain an earlier head.
    #[inline]
    pub(crate) fn take<H: Host + 'static>(self: &Rc<Self>, host: &Rc<H>) -> Box<RequestParts> {
        if let Some(parts) = self.kept.borrow_mut().pop() {
            return parts;
        }
        Box::new(RequestParts {
            head: Head::default(),
            bytes: None,
            host: host.clone(),
            request_pool: self.clone(),
            connection: ConnId::from_token(0),
            params: Params::default(),
            body: RequestBody::default(),
        })
    }

    #[inline]
    pub(crate) fn give(&self, parts: Box<RequestParts>) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() < SPARES_MAX && !self.closed.get() {
            kept.push(parts);
        }
    }

    /// Drops all parts, and those that are returned later.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        drop(self.kept.take());
    }
}

impl Request {
    #[inline]
    fn parts(&self) -> &RequestParts {
        self.parts.as_deref().expect("there until dropped")
    }

    #[inline]
    fn head(&self) -> (&Head, &[u8]) {
        let parts = self.parts();
        (&parts.head, parts.bytes.as_deref().unwrap_or_default())
    }

    pub(crate) fn set_params(&mut self, params: Params) {
        if let Some(parts) = &mut self.parts {
            if let Some(template) = &params.template {
                parts.host.routed(template);
            }
            parts.params = params;
        }
    }

    /// The method as sent, for example `GET`. It is case-sensitive (RFC 9110 §9.1).
    #[inline]
    pub fn method(&self) -> &str {
        let (head, bytes) = self.head();
        head.method(bytes)
    }

    /// The request target as sent, not decoded (RFC 9112 §3.2).
    pub fn target(&self) -> &str {
        let (head, bytes) = self.head();
        text(head.target(bytes))
    }

    /// The path of the target without the query, not decoded. It begins with `/`, or is `*`
    /// (RFC 9112 §3.2.4).
    #[inline]
    pub fn path(&self) -> &str {
        let (head, bytes) = self.head();
        text(head.path(bytes))
    }

    /// The query of the target: what follows the first `?`, not decoded. `None` without a `?`.
    pub fn query(&self) -> Option<&str> {
        let (head, bytes) = self.head();
        head.query(bytes).map(text)
    }

    /// The protocol version: HTTP/1.0 or HTTP/1.1 (RFC 9112 §2.3).
    pub fn version(&self) -> Version {
        self.parts().head.version()
    }

    /// The host, with the port if the client sent one. It comes from the target or from the `Host`
    /// field (RFC 9112 §3.2.2). `None` only for HTTP/1.0.
    pub fn host(&self) -> Option<&str> {
        let (head, bytes) = self.head();
        head.host(bytes).map(text)
    }

    /// The first value of the field `name`, which is case-insensitive (RFC 9110 §5.1). A value may
    /// contain bytes that are not ASCII (RFC 9110 §5.5).
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn handler(request: Request) -> Response {
    ///     assert_eq!(request.header("x-tag"), Some(&b"a"[..]));
    ///     assert_eq!(request.header_str("X-Tag"), Some("a"));
    ///     assert_eq!(request.header_values("x-tag").count(), 2);
    ///     assert_eq!(request.headers().next(), Some(("Host", &b"example.com"[..])));
    ///     Response::new(204)
    /// }
    /// # let mut sim = Simulation::new(1, &handler, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\nX-Tag: a\r\nX-Tag: b\r\n\r\n");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 204 No Content\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let (head, bytes) = self.head();
        head.header(bytes, name)
    }

    /// The first value of the field `name`, if it is UTF-8. See [`Request::header`].
    pub fn header_str(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.header(name)?).ok()
    }

    /// All field lines as (name, value), in the order in which they were sent.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let (head, bytes) = self.head();
        head.headers(bytes)
    }

    /// The values of all field lines with this name, in the order in which they were sent (RFC 9110
    /// §5.3). The name is case-insensitive.
    pub fn header_values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let is_named = move |line: &(&str, &[u8])| line.0.eq_ignore_ascii_case(name);
        self.headers().filter(is_named).map(|(_, value)| value)
    }

    /// A parameter of the route's template as sent, for example `id` of `/things/{id}`. `None` if
    /// the template has no such parameter, or without a [`Router`](crate::Router).
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, Router, sim::Simulation};
    ///
    /// async fn file(request: Request) -> Response {
    ///     assert_eq!(request.route(), Some("/files/{*path}"));
    ///     assert_eq!(request.param("path"), Some("a%20b/c"));
    ///     assert_eq!(request.param_decoded("path").as_deref(), Some("a b/c"));
    ///     assert_eq!(request.param("id"), None);
    ///     Response::new(204)
    /// }
    ///
    /// let router = Router::new().get("/files/{*path}", file);
    /// # let mut sim = Simulation::new(1, &router, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET /files/a%20b/c HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 204 No Content\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn param(&self, name: &str) -> Option<&str> {
        self.parts().params.get(name, self.path())
    }

    /// Like [`Request::param`], with one level of percent-encoding removed (RFC 3986 §2.1). `None`
    /// also if the result is not UTF-8.
    pub fn param_decoded(&self, name: &str) -> Option<Cow<'_, str>> {
        percent_encoding::percent_decode_str(self.param(name)?)
            .decode_utf8()
            .ok()
    }

    /// The template of the route that a router selected, for example `/things/{id}`.
    pub fn route(&self) -> Option<&str> {
        self.parts().params.template()
    }

    /// `Content-Length` as sent, in bytes (RFC 9110 §8.6). `None` if the field is absent, as with a
    /// chunked body.
    pub fn content_length(&self) -> Option<u64> {
        self.parts().head.content_length()
    }

    /// Whether the request has a body (RFC 9112 §6.3). With `Content-Length: 0` it has none.
    pub fn has_body(&self) -> bool {
        self.parts().head.framing() != onrush_proto::head::Framing::None
    }

    /// The address of the client (`getpeername(2)`). `None` on a Unix socket, in a simulation, and
    /// after the client has disconnected.
    pub fn peer(&self) -> Option<SocketAddr> {
        let parts = self.parts();
        parts.host.peer(parts.connection)
    }

    /// A handle to the worker of this request: to sleep, to spawn tasks, and to run blocking calls
    /// or CPU-bound work on other threads.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    /// use std::time::Duration;
    ///
    /// async fn slow(request: Request) -> Response {
    ///     request.worker().sleep(Duration::from_secs(1)).await;
    ///     Response::text("done")
    /// }
    ///
    /// let mut sim = Simulation::new(1, &slow, Limits::default());
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// assert!(client.receive()?.is_empty());
    /// sim.advance(2000); // Milliseconds.
    /// assert!(client.receive()?.ends_with(b"done"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn worker(&self) -> &WorkerHandle {
        self.parts().host.worker()
    }

    pub(crate) fn count_limit_hit(&self) {
        self.parts().host.limit_hit();
    }

    /// The body, which is read as it arrives.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn store(mut request: Request) -> Response {
    ///     match request.body().read_all(1024).await {
    ///         Ok(text) => Response::text(text).with_status(201),
    ///         Err(_) => Response::new(400),
    ///     }
    /// }
    /// # let mut sim = Simulation::new(1, &store, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 201 Created\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn body(&mut self) -> &mut RequestBody {
        &mut self.parts.as_mut().expect("there until dropped").body
    }

    /// Converts the request to its body and releases the memory of the head. The body may be moved
    /// to another task.
    ///
    /// # Examples
    /// The handler responds after a task of its own has read the body:
    ///
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn count(request: Request) -> Response {
    ///     let worker = request.worker().clone();
    ///     let mut body = request.into_body();
    ///     let task = worker.spawn(async move { body.discard().await });
    ///     match task.await {
    ///         Ok(bytes) => Response::text(format!("{bytes} bytes")),
    ///         Err(_) => Response::new(400),
    ///     }
    /// }
    /// # let mut sim = Simulation::new(1, &count, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    /// # assert!(client.receive()?.ends_with(b"5 bytes"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn into_body(mut self) -> RequestBody {
        std::mem::take(self.body())
    }
}

impl Drop for Request {
    #[inline]
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else {
            return;
        };
        parts.bytes = None;
        parts.body.0 = None;
        if parts.params.is_set() {
            parts.params = Params::default();
        }
        let request_pool = parts.request_pool.clone();
        request_pool.give(parts);
    }
}

/// A part of a head; the parser has checked that it is ASCII.
fn text(bytes: &[u8]) -> &str {
    onrush_rt::text::ascii(bytes).unwrap_or_default()
}

/// The body of a request. While the handler does not read, the client is slowed down by flow
/// control: the server receives only a bounded part ahead.
///
/// # Errors
/// - `UnexpectedEof`: the connection ended or was reset before the end of the body.
/// - `TimedOut`: the client paused for longer than `Limits::body_timeout_ms`, or its rate was below
///   `Limits::rate_bytes_per_s_min`.
/// - `InvalidData`: the framing is invalid (RFC 9112 §7.1), or a limit on it is exceeded.
/// - `FileTooLarge`: the body is longer than `Limits::body_bytes_max` or
///   [`RequestBody::set_limit`].
///
/// After one of these errors each further call fails, too, and the connection is closed after the
/// response. If the handler then returns a status below 400, the server sends 400, 408, 413 or 431
/// instead.
///
/// # Examples
/// The body is processed in pieces, so its length need not fit into memory:
///
/// ```
/// use onrush::{Limits, Request, Response, sim::Simulation};
/// use std::io;
///
/// async fn lines(mut request: Request) -> Response {
///     let mut lines = 0;
///     while let Some(piece) = request.body().next().await {
///         match piece {
///             Ok(piece) => lines += piece.iter().filter(|&&byte| byte == b'\n').count(),
///             Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
///                 return Response::new(413);
///             }
///             Err(_) => return Response::new(400),
///         }
///     }
///     Response::text(format!("{lines} lines"))
/// }
/// # let mut sim = Simulation::new(1, &lines, Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\na\nb\n");
/// # assert!(client.receive()?.ends_with(b"2 lines"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct RequestBody(Option<BodySource>);

/// Where a body is read from.
struct BodySource {
    host: Rc<dyn Host>,
    id: BodyId,
}

impl std::fmt::Debug for BodySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BodySource").field(&self.id).finish()
    }
}

impl RequestBody {
    /// Waits for the next piece of the body. Its length depends on how the bytes arrived. `None` at
    /// the end.
    pub async fn next(&mut self) -> Option<io::Result<Buf>> {
        let Some(BodySource { host, id }) = self.0.as_ref() else {
            poll_fn(coop::poll_operation).await; // A loop of such calls uses up the budget.
            return None;
        };
        poll_fn(|cx| host.poll_piece(*id, cx)).await
    }

    /// Waits for at least one byte and appends to `into`, up to its spare capacity. Returns the
    /// number of bytes appended, 0 at the end. The bytes of a large body are received directly into
    /// this memory.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn sum(mut request: Request) -> Response {
    ///     let (mut buffer, mut sum) = (Vec::with_capacity(64 * 1024), 0);
    ///     loop {
    ///         buffer.clear();
    ///         match request.body().fill(&mut buffer).await {
    ///             Ok(0) => return Response::text(format!("{sum}")),
    ///             Ok(_) => sum += buffer.iter().map(|&byte| u64::from(byte)).sum::<u64>(),
    ///             Err(_) => return Response::new(400),
    ///         }
    ///     }
    /// }
    /// # let mut sim = Simulation::new(1, &sum, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nAB");
    /// # assert!(client.receive()?.ends_with(b"131"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Panics
    /// If `into` has no spare capacity.
    pub async fn fill(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        assert!(
            into.capacity() > into.len(),
            "the vector has no spare capacity"
        );
        match self.0.as_ref() {
            Some(BodySource { host, id }) => poll_fn(|cx| host.poll_fill(*id, cx, into, 1)).await,
            None => {
                poll_fn(coop::poll_operation).await; // A loop of such calls uses up the budget.
                Ok(0)
            }
        }
    }

    /// Appends to `into` until its spare capacity is used or the body has ended. Returns the number
    /// of bytes appended.
    ///
    /// For callers that cannot use fewer bytes: a large body causes fewer wake-ups (`SO_RCVLOWAT`,
    /// socket(7)), but the bytes of a slow client may wait for up to `Limits::body_timeout_ms`.
    ///
    /// # Examples
    /// Blocks of 8 bytes; only the last one is shorter:
    ///
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn blocks(mut request: Request) -> Response {
    ///     let mut lengths = Vec::new();
    ///     loop {
    ///         let mut block = Vec::with_capacity(8);
    ///         let filled = request.body().fill_whole(&mut block).await;
    ///         let Ok(length @ 1..) = filled else { break };
    ///         lengths.push(length);
    ///     }
    ///     Response::text(format!("{lengths:?}"))
    /// }
    /// # let mut sim = Simulation::new(1, &blocks, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789");
    /// # assert!(client.receive()?.ends_with(b"[8, 2]"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn fill_whole(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        let before = into.len();
        while into.len() < into.capacity() {
            if poll_fn(|cx| self.poll_fill_whole(cx, into)).await? == 0 {
                break;
            }
        }
        Ok(into.len() - before)
    }

    /// One step of [`RequestBody::fill_whole`]. Appends the bytes that have arrived, up to the
    /// spare capacity of `into`, and returns their number; 0 at the end. If none has arrived, the
    /// task is woken when enough bytes for the capacity of `into`, or the rest of the body, have
    /// arrived.
    ///
    /// The caller need not hold `into` while it waits: the next call may pass another vector.
    pub fn poll_fill_whole(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let Some(BodySource { host, id }) = self.0.as_ref() else {
            return coop::poll_operation(cx).map(|()| Ok(0));
        };
        // The whole capacity, not the spare one: each change of the number costs a system call.
        let low_water = u32::try_from(into.capacity()).unwrap_or(u32::MAX);
        host.poll_fill(*id, cx, into, low_water)
    }

    /// Reads the rest of the body and discards it. On TCP the kernel drops a large body without
    /// copying it (`MSG_TRUNC`, tcp(7)). Returns the number of bytes discarded.
    pub async fn discard(&mut self) -> io::Result<u64> {
        let Some(BodySource { host, id }) = self.0.as_ref() else {
            poll_fn(coop::poll_operation).await; // A loop of such calls uses up the budget.
            return Ok(0);
        };
        let mut total = 0;
        loop {
            match poll_fn(|cx| host.poll_discard(*id, cx)).await? {
                0 => return Ok(total),
                n => total += n as u64,
            }
        }
    }

    /// Reads the rest of the body into memory. Fails with `FileTooLarge` if it is longer than
    /// `bytes_max`; further calls do not fail because of that.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    /// use std::io;
    ///
    /// async fn small(mut request: Request) -> Response {
    ///     match request.body().read_all(4).await {
    ///         Ok(body) => Response::with_body(body),
    ///         Err(error) => {
    ///             assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    ///             Response::new(413)
    ///         }
    ///     }
    /// }
    /// # let mut sim = Simulation::new(1, &small, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 413 Content Too Large\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn read_all(&mut self, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await {
            let piece = piece?;
            if piece.len() > bytes_max - all.len() {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    /// The number of bytes that have not been read yet. `None` for a chunked body before its end,
    /// because its length is unknown.
    pub fn remaining(&self) -> Option<u64> {
        let source = self.0.as_ref();
        source.map_or(Some(0), |source| source.host.body_remaining(source.id))
    }

    /// Lowers the limit on the length of this body. Call it before the body is read. It cannot
    /// raise the limit above `Limits::body_bytes_max`.
    ///
    /// Fails with `FileTooLarge` if `Content-Length` exceeds the limit, and with `UnexpectedEof` if
    /// the connection has ended.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn avatar(mut request: Request) -> Response {
    ///     assert_eq!(request.body().remaining(), Some(5));
    ///     if request.body().set_limit(4).is_err() {
    ///         return Response::text("at most 4 bytes\n").with_status(413);
    ///     }
    ///     Response::new(204)
    /// }
    /// # let mut sim = Simulation::new(1, &avatar, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 413 Content Too Large\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_limit(&mut self, bytes_max: u64) -> io::Result<()> {
        let source = self.0.as_ref();
        source.map_or(Ok(()), |source| {
            source.host.limit_body(source.id, bytes_max)
        })
    }

    /// The trailer fields (RFC 9110 §6.5) as field lines with CRLF, after the end of a chunked body
    /// has been read. `None` before that, without trailers, and on each later call.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn handler(mut request: Request) -> Response {
    ///     assert_eq!(request.body().take_trailers(), None);
    ///     assert_eq!(request.body().discard().await.ok(), Some(5));
    ///     assert_eq!(request.body().take_trailers().as_deref(), Some(&b"X-Sum: 7\r\n"[..]));
    ///     Response::new(204)
    /// }
    ///
    /// let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    /// let body = "5\r\nhello\r\n0\r\nX-Sum: 7\r\n\r\n";
    /// let mut sim = Simulation::new(1, &handler, Limits::default());
    /// let client = sim.connect();
    /// sim.send(&client, [head, body].concat().as_bytes());
    /// assert!(client.receive()?.starts_with(b"HTTP/1.1 204 No Content\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn take_trailers(&mut self) -> Option<Box<[u8]>> {
        let source = self.0.as_ref()?;
        source.host.take_trailers(source.id)
    }
}
