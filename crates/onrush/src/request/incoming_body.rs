//! The body of a request, which is read as it arrives.

use crate::connections::{Connections, RequestId};
use onrush_proto::response::{FieldError, FieldLines};
use onrush_rt::buf::Buf;
use onrush_rt::coop;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The body of a request. While the handler does not read, the client is slowed down by flow
/// control: the server receives only a bounded part ahead.
///
/// # Errors
/// - `UnexpectedEof`: the client ended its side before the end of the body. If it resets the
///   connection, the handler is dropped while it waits.
/// - `TimedOut`: the client paused for longer than `Limits::body_timeout`, or its rate was below
///   `Limits::rate_bytes_per_s_min`.
/// - `InvalidData`: the framing is invalid (RFC 9112 §7.1), or a limit on it is exceeded.
/// - `OutOfMemory`: the server is low on memory.
/// - `FileTooLarge`: the body is longer than `Limits::body_bytes_max` or
///   [`RequestBody::set_limit`].
///
/// The error contains a [`Reject`](crate::Reject) while the connection is open: the status and the
/// reason of the response that the client should get. After one of these errors each further call
/// fails, too, and the connection is closed after the response. If the handler then returns a
/// status below 400, the server sends 400, 408, 413, 431 or 503 instead.
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
pub struct RequestBody(
    /// `None` if the request has no body.
    Option<BodySource>,
);

impl Drop for RequestBody {
    #[inline]
    fn drop(&mut self) {
        if let Some(BodySource { connections, id }) = &self.0 {
            connections.body_dropped(*id);
        }
    }
}

/// Where a body is read from.
#[derive(Clone)]
struct BodySource {
    connections: Rc<dyn Connections>,
    id: RequestId,
}

impl std::fmt::Debug for BodySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("BodySource").field(&self.id).finish()
    }
}

/// Sends interim responses (RFC 9110 §15.2) to one request, such as 104 to say where an interrupted
/// upload continues.
///
/// # Examples
/// ```
/// use onrush::{Limits, Request, Response, sim::Simulation};
///
/// async fn handler(mut request: Request) -> Response {
///     let interim = request.interim_responses();
///     assert_eq!(interim.send(104, &[("Location", b"/upload/1")]), Ok(true));
///     assert!(interim.send(104, &[("Location", b"/\r\nX: y")]).is_err());
///     assert_eq!(request.body().discard().await.ok(), Some(2));
///     Response::new(204)
/// }
///
/// let mut sim = Simulation::new(1, &handler, Limits::default());
/// let client = sim.connect();
/// sim.send(&client, b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok");
/// let received = client.receive()?;
/// let interim = b"HTTP/1.1 104 Upload Resumption Supported\r\nLocation: /upload/1\r\n\r\n";
/// assert!(received.starts_with(&[&interim[..], b"HTTP/1.1 204 "].concat()));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct InterimResponses(Option<BodySource>);

fn assert_spare(into: &Vec<u8>) {
    assert!(
        into.capacity() > into.len(),
        "the vector has no spare capacity"
    );
}

impl InterimResponses {
    pub(super) fn new(connections: Rc<dyn Connections>, id: RequestId) -> InterimResponses {
        InterimResponses(Some(BodySource { connections, id }))
    }

    /// Sends a response with this status, 102 to 199, and these fields. Returns whether it was
    /// sent. It is not sent to HTTP/1.0 clients, after the final response has begun, or while the
    /// client has not read what was sent before: a client must not depend on it.
    ///
    /// Fails if a name or a value is not valid, or the server writes the field itself.
    ///
    /// # Panics
    /// If the status is another one.
    #[track_caller]
    pub fn send(&self, status: u16, fields: &[(&str, &[u8])]) -> Result<bool, FieldError> {
        assert!(
            (102..=199).contains(&status),
            "not an interim status: {status}"
        );
        let mut lines = FieldLines::new();
        for (name, value) in fields {
            lines.append(name, value)?;
        }
        let source = self.0.as_ref();
        Ok(source.is_some_and(|source| {
            let BodySource { connections, id } = source;
            connections.send_interim(*id, status, lines.as_bytes())
        }))
    }
}

impl RequestBody {
    /// A body that `connections` receives.
    #[inline]
    pub(super) fn new(connections: Rc<dyn Connections>, id: RequestId) -> RequestBody {
        RequestBody(Some(BodySource { connections, id }))
    }

    /// Waits for the next piece of the body. Its length depends on how the bytes arrived. `None` at
    /// the end.
    pub async fn next(&mut self) -> Option<io::Result<Buf>> {
        let Some(BodySource { connections, id }) = self.0.as_ref() else {
            poll_fn(coop::poll_operation).await; // A loop of such calls uses up the budget.
            return None;
        };
        poll_fn(|cx| connections.poll_piece(*id, cx)).await
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
        poll_fn(|cx| self.poll_fill(cx, into)).await
    }

    /// One step of [`RequestBody::fill`]. The caller need not hold `into` while it waits.
    ///
    /// # Panics
    /// If `into` has no spare capacity.
    pub fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        assert_spare(into);
        match self.0.as_ref() {
            Some(BodySource { connections, id }) => connections.poll_fill(*id, cx, into, 1),
            // A loop of such calls uses up the budget.
            None => coop::poll_operation(cx).map(|()| Ok(0)),
        }
    }

    /// Appends to `into` until its spare capacity is used or the body has ended. Returns the number
    /// of bytes appended.
    ///
    /// For callers that cannot use fewer bytes: a large body causes fewer wake-ups (`SO_RCVLOWAT`,
    /// socket(7)), but the bytes of a slow client may wait for up to `Limits::body_timeout`.
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
    ///
    /// # Panics
    /// If `into` has no spare capacity.
    pub async fn fill_whole(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        assert_spare(into);
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
        let Some(BodySource { connections, id }) = self.0.as_ref() else {
            return coop::poll_operation(cx).map(|()| Ok(0));
        };
        // The whole capacity, not the spare one: each change of the number costs a system call.
        let low_water = u32::try_from(into.capacity()).unwrap_or(u32::MAX);
        connections.poll_fill(*id, cx, into, low_water)
    }

    /// Reads the rest of the body and discards it. On TCP the kernel drops a large body without
    /// copying it (`MSG_TRUNC`, tcp(7)). Returns the number of bytes discarded.
    pub async fn discard(&mut self) -> io::Result<u64> {
        let Some(BodySource { connections, id }) = self.0.as_ref() else {
            poll_fn(coop::poll_operation).await; // A loop of such calls uses up the budget.
            return Ok(0);
        };
        let mut total = 0;
        loop {
            match poll_fn(|cx| connections.poll_discard(*id, cx)).await? {
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
        source.map_or(Some(0), |source| {
            source.connections.body_remaining(source.id)
        })
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
            source.connections.limit_body(source.id, bytes_max)
        })
    }

    /// As [`Request::interim_responses`](crate::Request::interim_responses), for who has only the
    /// body. Without a body, none is sent.
    pub fn interim_responses(&self) -> InterimResponses {
        InterimResponses(self.0.clone())
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
        source.connections.take_trailers(source.id)
    }
}
