//! What a handler is given: the request's head as a view, and its body as it arrives.
//!
//! Must not know about connections beyond the handle it reads its body through.

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

/// A request. Its head is a view into the memory it was received in.
#[derive(Debug)]
pub struct Request {
    /// `None` only while this is being dropped. A pointer, because requests are moved often: into
    /// a handler, its future, and that future's slot.
    parts: Option<Box<RequestParts>>,
}

/// What a request is made of. Recycled, so that a request allocates nothing.
pub(crate) struct RequestParts {
    pub(crate) head: Head,
    /// The bytes that `head`'s offsets refer to.
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
    /// The request whose head was parsed into this.
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

/// Parts kept for reuse at most.
const SPARES_MAX: usize = 256;

/// The parts of requests that are over.
#[derive(Default)]
pub(crate) struct RequestPool {
    /// Boxed, because a request is a pointer to them.
    #[allow(clippy::vec_box)]
    kept: RefCell<Vec<Box<RequestParts>>>,
    /// The host has ended: what comes back is not kept, for it refers to the host.
    closed: Cell<bool>,
}

impl RequestPool {
    /// Parts to parse a head into. Their table may remember an earlier head.
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

    /// Keeps nothing any more.
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

    /// The method as sent: `GET`, `PUT`, … Case matters (RFC 9110 §9.1).
    #[inline]
    pub fn method(&self) -> &str {
        let (head, bytes) = self.head();
        head.method(bytes)
    }

    /// The request target as sent, undecoded (RFC 9112 §3.2).
    pub fn target(&self) -> &str {
        let (head, bytes) = self.head();
        text(head.target(bytes))
    }

    /// The target's path, undecoded, without the query.
    #[inline]
    pub fn path(&self) -> &str {
        let (head, bytes) = self.head();
        text(head.path(bytes))
    }

    /// What follows the first `?` of the target, undecoded.
    pub fn query(&self) -> Option<&str> {
        let (head, bytes) = self.head();
        head.query(bytes).map(text)
    }

    /// HTTP/1.0 or HTTP/1.1.
    pub fn version(&self) -> Version {
        self.parts().head.version()
    }

    /// The host and port the client asked for, as sent.
    pub fn host(&self) -> Option<&str> {
        let (head, bytes) = self.head();
        head.host(bytes).map(text)
    }

    /// The first value of a field, its name compared without case. Values are bytes: nearly always
    /// ASCII, but HTTP does not promise it.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let (head, bytes) = self.head();
        head.header(bytes, name)
    }

    /// The first value of a field when it is UTF-8.
    pub fn header_str(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.header(name)?).ok()
    }

    /// All field lines in the order they were sent.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let (head, bytes) = self.head();
        head.headers(bytes)
    }

    /// The values of all field lines of one name, compared without case, in the order they were
    /// sent (RFC 9110, section 5.3).
    pub fn header_values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let is_named = move |line: &(&str, &[u8])| line.0.eq_ignore_ascii_case(name);
        self.headers().filter(is_named).map(|(_, value)| value)
    }

    /// A parameter of the route's template as sent: `id` of `/things/{id}`. See also
    /// [`Request::param_decoded`].
    pub fn param(&self, name: &str) -> Option<&str> {
        self.parts().params.get(name, self.path())
    }

    /// A parameter of the route's template with its percent-encoding undone once; `None` also when
    /// the result is not UTF-8.
    pub fn param_decoded(&self, name: &str) -> Option<Cow<'_, str>> {
        percent_encoding::percent_decode_str(self.param(name)?)
            .decode_utf8()
            .ok()
    }

    /// The route's template, such as `/things/{id}`, when a router chose the handler.
    pub fn route(&self) -> Option<&str> {
        self.parts().params.template()
    }

    /// `Content-Length` as sent; `None` for a chunked body and for none at all.
    pub fn content_length(&self) -> Option<u64> {
        self.parts().head.content_length()
    }

    /// Whether a body follows, of whatever length.
    pub fn has_body(&self) -> bool {
        self.parts().head.framing() != onrush_proto::head::Framing::None
    }

    /// The peer's address (`getpeername(2)`); `None` on Unix sockets and when it is gone.
    pub fn peer(&self) -> Option<SocketAddr> {
        let parts = self.parts();
        parts.host.peer(parts.connection)
    }

    /// A handle to the worker this request runs on: to sleep, to spawn tasks, to run blocking
    /// calls and CPU work on other threads.
    pub fn worker(&self) -> &WorkerHandle {
        self.parts().host.worker()
    }

    pub(crate) fn count_limit_hit(&self) {
        self.parts().host.limit_hit();
    }

    /// The body, to be read as it arrives.
    pub fn body(&mut self) -> &mut RequestBody {
        &mut self.parts.as_mut().expect("there until dropped").body
    }

    /// The body alone; the head's memory is given back.
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

/// A part of a head that the parser has seen to be ASCII.
fn text(bytes: &[u8]) -> &str {
    onrush_rt::text::ascii(bytes).unwrap_or_default()
}

/// A request's body, read at the handler's pace: while nobody reads, the client is slowed down.
///
/// Errors: `UnexpectedEof` when the client ended or reset the connection in the middle, `TimedOut`
/// when it paused for too long, `InvalidData` for broken framing, `FileTooLarge` beyond the limit.
/// After any of these the connection cannot go on: the server answers the client by itself when
/// the handler gives no answer of its own.
#[derive(Debug, Default)]
pub struct RequestBody(Option<BodySource>);

/// How a body is reached.
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
    /// The next piece, as large as it happened to arrive; `None` at the end.
    pub async fn next(&mut self) -> Option<io::Result<Buf>> {
        let Some(BodySource { host, id }) = self.0.as_ref() else {
            poll_fn(coop::poll_operation).await; // A loop over this counts.
            return None;
        };
        poll_fn(|cx| host.poll_piece(*id, cx)).await
    }

    /// Appends to `into`, up to its spare capacity, waiting for at least one byte; 0 at the end.
    /// For large bodies: the bytes are received straight into this memory.
    ///
    /// # Panics
    /// When `into` has no spare capacity.
    pub async fn fill(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        assert!(
            into.capacity() > into.len(),
            "a body needs room to be read to"
        );
        match self.0.as_ref() {
            Some(BodySource { host, id }) => poll_fn(|cx| host.poll_fill(*id, cx, into, 1)).await,
            None => {
                poll_fn(coop::poll_operation).await; // A loop over this counts.
                Ok(0)
            }
        }
    }

    /// Appends to `into` until its spare capacity is used or the body has ended; gives the bytes
    /// appended. For who has no use for less: large bodies then cost fewer wake-ups
    /// (`SO_RCVLOWAT`), and what a slow client sends may wait here for up to
    /// `Limits::body_timeout_ms`.
    pub async fn fill_whole(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        let before = into.len();
        while into.len() < into.capacity() {
            if poll_fn(|cx| self.poll_fill_whole(cx, into)).await? == 0 {
                break;
            }
        }
        Ok(into.len() - before)
    }

    /// One step of [`RequestBody::fill_whole`]: appends what is there, at most as much as there is
    /// room for, and gives the bytes appended, 0 at the end. When nothing is there the task is
    /// woken as soon as there is enough to use the room, or all that is to come. For who would
    /// rather not hold `into` while waiting: another may be passed next time.
    pub fn poll_fill_whole(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let Some(BodySource { host, id }) = self.0.as_ref() else {
            return coop::poll_operation(cx).map(|()| Ok(0));
        };
        // Not what is left of it: asking for another number each time would cost a call each.
        let low_water = u32::try_from(into.capacity()).unwrap_or(u32::MAX);
        host.poll_fill(*id, cx, into, low_water)
    }

    /// Reads the body to its end and drops it, without copying it out of the kernel where that can
    /// be had (TCP). Gives its length in bytes.
    pub async fn discard(&mut self) -> io::Result<u64> {
        let Some(BodySource { host, id }) = self.0.as_ref() else {
            poll_fn(coop::poll_operation).await; // A loop over this counts.
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

    /// The whole body, when it is at most `bytes_max` long; `FileTooLarge` otherwise.
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

    /// Bytes still to come, where the framing says (`Content-Length`).
    pub fn remaining(&self) -> Option<u64> {
        let source = self.0.as_ref();
        source.map_or(Some(0), |source| source.host.body_remaining(source.id))
    }

    /// Lowers the limit on this body's length, before any of it is read; it cannot be raised above
    /// `Limits::body_bytes_max`. Fails with `FileTooLarge` when the client has announced more.
    pub fn set_limit(&mut self, bytes_max: u64) -> io::Result<()> {
        let source = self.0.as_ref();
        source.map_or(Ok(()), |source| {
            source.host.limit_body(source.id, bytes_max)
        })
    }

    /// The trailer fields (RFC 9110 §6.5) as rendered lines, after the end was reached.
    pub fn take_trailers(&mut self) -> Option<Box<[u8]>> {
        let source = self.0.as_ref()?;
        source.host.take_trailers(source.id)
    }
}
