//! Requests: the head as a view into received memory (here), the body as it arrives
//! (`incoming_body`), the end of the server (`draining`), states of a router (`state`), and other
//! protocols (`upgrade`).
//!
//! Bodies are read through the trait `Connections`, so this module does not depend on the engine.

mod draining;
mod incoming_body;
mod state;
mod upgrade;

use crate::connections::{ConnId, Connections, RequestId};
use crate::params::Params;
use crate::worker::WorkerHandle;
pub use incoming_body::{InterimResponses, RequestBody};
use onrush_proto::head::{Head, Version};
use onrush_rt::buf::Buf;
use onrush_rt::net::{Address, Peer};
pub(crate) use state::RouterState;
use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
pub use upgrade::{NotOffered, Upgrade, Upgraded};

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

impl Request {
    /// The method as sent, for example `GET`, unless [`Request::set_method`] has replaced it. It is
    /// case-sensitive (RFC 9110 §9.1).
    #[inline]
    pub fn method(&self) -> &str {
        if let Some(method) = self.parts().method {
            return method;
        }
        let (head, bytes) = self.head();
        head.method(bytes)
    }

    /// Replaces the method for everything that handles the request from here on. For applications
    /// in front of others, whose clients send a method that the path to the server does not
    /// let through in another way (`X-HTTP-Method-Override`). How the response is sent, and the
    /// metrics, still follow the method as sent.
    pub fn set_method(&mut self, method: &'static str) {
        if let Some(parts) = &mut self.parts {
            parts.method = Some(method);
        }
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

    /// A handle that sends interim responses to this request, such as 103 with what the page will
    /// need (RFC 8297), before the response and while the body is read.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn page(request: Request) -> Response {
    ///     let hints: [(&str, &[u8]); 1] = [("Link", b"</style.css>; rel=preload; as=style")];
    ///     request.interim_responses().send(103, &hints).expect("valid fields");
    ///     Response::html("<link rel=stylesheet href=/style.css>")
    /// }
    ///
    /// let mut sim = Simulation::new(1, &page, Limits::default());
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    /// assert!(client.receive()?.starts_with(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn interim_responses(&self) -> InterimResponses {
        let parts = self.parts();
        InterimResponses::new(parts.connections.clone(), parts.id)
    }

    /// The protocol version: HTTP/1.0, HTTP/1.1 (RFC 9112 §2.3) or HTTP/2 (RFC 9113).
    pub fn version(&self) -> Version {
        self.parts().head.version()
    }

    /// The host, with the port if the client sent one. It comes from the target or from the `Host`
    /// field (RFC 9112 §3.2.2), or from `:authority` (RFC 9113 §8.3.1). `None` only for HTTP/1.0.
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
    #[inline]
    pub fn header(&self, name: impl AsRef<str>) -> Option<&[u8]> {
        let (head, bytes) = self.head();
        head.header(bytes, name.as_ref())
    }

    /// The first value of the field `name`, if it is UTF-8. See [`Request::header`].
    pub fn header_str(&self, name: impl AsRef<str>) -> Option<&str> {
        std::str::from_utf8(self.header(name)?).ok()
    }

    /// All field lines as (name, value), in the order in which they were sent.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let (head, bytes) = self.head();
        head.headers(bytes)
    }

    /// The number of field lines.
    pub fn headers_len(&self) -> usize {
        self.parts().head.header_count()
    }

    /// The bytes of the head, to the end of its empty line, for those who keep them. What the other
    /// accessors return are parts of them. HTTP/1: as received. HTTP/2: as the head of HTTP/1 that
    /// means the same, with `HTTP/2` in its first line and `:authority` as `host`.
    pub fn head_bytes(&self) -> &[u8] {
        self.head().1
    }

    /// The values of all field lines with this name, in the order in which they were sent (RFC 9110
    /// §5.3). The name is case-insensitive.
    pub fn header_values<N: AsRef<str>>(&self, name: N) -> impl Iterator<Item = &[u8]> {
        let is_named = move |line: &(&str, &[u8])| line.0.eq_ignore_ascii_case(name.as_ref());
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

    /// The address of the client: the peer of the socket (`getpeername(2)`), or the address that
    /// this peer has named by the PROXY protocol
    /// ([`Server::proxy_protocol`](crate::Server::proxy_protocol)), `0.0.0.0:0` if it knows none.
    /// `None` on a Unix socket, in a simulation, and if it is first asked for after the client has
    /// disconnected. The first call of a connection costs a system call.
    pub fn peer(&self) -> Option<SocketAddr> {
        let parts = self.parts();
        parts.connections.peer(parts.id.connection)
    }

    /// The peer of the socket (`getpeername(2)`), which may be a proxy.
    pub fn socket_peer(&self) -> Peer {
        let parts = self.parts();
        parts.connections.socket_peer(parts.id.connection)
    }

    /// The address at which the server accepted the connection (`getsockname(2)`; one system call).
    /// For a connection to a wildcard address it is the address that the client used. For a Unix
    /// socket it is the path of the listener. `None` in a simulation, and after the client has
    /// disconnected.
    pub fn local_address(&self) -> Option<Address> {
        let parts = self.parts();
        parts.connections.local_address(parts.id.connection)
    }

    /// The TLS session of the connection: version, cipher suite, the name that the client asked
    /// for, and its certificates. `None` without TLS, and after the client has disconnected: read
    /// it before the first `.await`, and do not take `None` for an anonymous client.
    ///
    /// Keep the value while you use what it lends; [`TlsInfo::client`](crate::TlsInfo::client) has
    /// an example.
    #[cfg(feature = "tls")]
    pub fn tls(&self) -> Option<std::sync::Arc<crate::tls::TlsInfo>> {
        let parts = self.parts();
        parts.connections.tls(parts.id.connection)
    }

    /// Sets the name of the user who sent the request, for the field `user` of the access log
    /// ([`AccessLog`](crate::AccessLog)). Without an access log this costs a comparison.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Request, Response};
    ///
    /// async fn handler(request: Request) -> Response {
    ///     request.set_user("ann");
    ///     Response::text("Hello, Ann!")
    /// }
    /// ```
    pub fn set_user(&self, name: &str) {
        let parts = self.parts();
        parts.connections.set_user(parts.id, name);
    }

    /// Sets the address of the client for the field `peer` of the access log
    /// ([`AccessLog`](crate::AccessLog)), if a field of the request names it and the peer is
    /// trusted to do so. Without an access log this costs a comparison.
    pub fn set_client_address(&self, address: IpAddr) {
        let parts = self.parts();
        parts.connections.set_client_address(parts.id, address);
    }

    /// Attaches a value for the applications and handlers that get this request next, such as who
    /// sent it. A request has at most one of each type; a later one replaces it.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    /// use std::rc::Rc;
    ///
    /// struct User(&'static str);
    ///
    /// async fn inner(request: Request) -> Response {
    ///     let name = request.extension::<User>().map_or("nobody", |user| user.0);
    ///     Response::text(name)
    /// }
    ///
    /// async fn outer(mut request: Request) -> Response {
    ///     request.set_extension(Rc::new(User("ann")));
    ///     inner(request).await
    /// }
    /// # let mut sim = Simulation::new(1, &outer, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.ends_with(b"ann"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_extension(&mut self, value: Rc<dyn Any>) {
        let parts = self.parts.as_mut().expect("present until dropped");
        let same = |other: &&mut Rc<dyn Any>| (***other).type_id() == (*value).type_id();
        match parts.extensions.iter_mut().find(same) {
            Some(replaced) => *replaced = value,
            None => parts.extensions.push(value),
        }
    }

    /// The value of [`Request::set_extension`] that has the type `T`.
    pub fn extension<T: Any>(&self) -> Option<&T> {
        self.parts()
            .extensions
            .iter()
            .find_map(|value| value.downcast_ref())
    }

    /// As [`Request::extension`], for use after the request has ended.
    pub fn shared_extension<T: Any>(&self) -> Option<Rc<T>> {
        let mut values = self.parts().extensions.iter();
        values.find_map(|value| value.clone().downcast().ok())
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
    /// sim.advance(Duration::from_secs(2));
    /// assert!(client.receive()?.ends_with(b"done"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn worker(&self) -> &WorkerHandle {
        self.parts().connections.worker()
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
        &mut self.parts.as_mut().expect("present until dropped").body
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

    pub(crate) fn set_params(&mut self, params: Params) {
        if let Some(parts) = &mut self.parts {
            if let Some(template) = &params.template {
                parts.connections.routed(template);
            }
            parts.params = params;
        }
    }

    pub(crate) fn count_limit_hit(&self) {
        self.parts().connections.limit_hit();
    }

    #[inline]
    fn head(&self) -> (&Head, &[u8]) {
        let parts = self.parts();
        (&parts.head, parts.bytes.as_deref().unwrap_or_default())
    }

    #[inline]
    fn parts(&self) -> &RequestParts {
        self.parts.as_deref().expect("present until dropped")
    }
}

impl Drop for Request {
    #[inline]
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else {
            return;
        };
        parts.bytes = None;
        parts.body = RequestBody::default();
        parts.method = None;
        parts.extensions.clear();
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

/// The content of a request. It is reused, so that a request allocates nothing.
pub(crate) struct RequestParts {
    pub(crate) head: Head,
    /// The bytes that the offsets of `head` refer to.
    bytes: Option<Buf>,
    connections: Rc<dyn Connections>,
    request_pool: Rc<RequestPool>,
    id: RequestId,
    params: Params,
    /// The value of `Request::set_method`.
    method: Option<&'static str>,
    /// The values of `Request::set_extension`.
    extensions: Vec<Rc<dyn Any>>,
    body: RequestBody,
}

impl std::fmt::Debug for RequestParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestParts")
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}

impl RequestParts {
    /// Says whose request this is.
    #[inline]
    pub(crate) fn set_id(&mut self, id: RequestId) {
        self.id = id;
    }

    /// Makes the request whose head was parsed into `self`, with the text `bytes`.
    #[inline(always)]
    pub(crate) fn into_request(mut self: Box<RequestParts>, bytes: Buf, has_body: bool) -> Request {
        self.bytes = Some(bytes);
        if has_body {
            self.body = RequestBody::new(self.connections.clone(), self.id);
        }
        Request { parts: Some(self) }
    }
}

/// The maximum number of entries in a [`RequestPool`].
const POOLED_MAX: usize = 256;

/// The memory of ended requests, for reuse. Each worker has one.
#[derive(Default)]
pub(crate) struct RequestPool {
    /// Boxed, because a request holds a box of them.
    #[allow(clippy::vec_box)]
    free: RefCell<Vec<Box<RequestParts>>>,
    /// The engine has ended. Returned parts are dropped, because they refer to it.
    closed: Cell<bool>,
}

impl RequestPool {
    /// Takes parts to parse a head into. Their table may contain an earlier head.
    #[inline(always)]
    pub(crate) fn take<C: Connections + 'static>(
        self: &Rc<Self>,
        connections: &Rc<C>,
    ) -> Box<RequestParts> {
        if let Some(parts) = self.free.borrow_mut().pop() {
            return parts;
        }
        Box::new(RequestParts {
            head: Head::default(),
            bytes: None,
            connections: connections.clone(),
            request_pool: self.clone(),
            id: RequestId {
                connection: ConnId::from_token(0),
                number: 0,
            },
            params: Params::default(),
            method: None,
            extensions: Vec::new(),
            body: RequestBody::default(),
        })
    }

    /// Takes parts back. Drops them if the pool is full or closed.
    #[inline]
    pub(crate) fn give(&self, parts: Box<RequestParts>) {
        let mut free = self.free.borrow_mut();
        if free.len() < POOLED_MAX && !self.closed.get() {
            free.push(parts);
        }
    }

    /// Drops all parts, and those that are returned later.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        drop(self.free.take());
    }
}
