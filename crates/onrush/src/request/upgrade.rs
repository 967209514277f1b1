//! Requests after which both sides speak another protocol on the connection (RFC 9110 §7.8).

use super::Request;
use super::incoming_body::RequestBody;
use crate::body::{Body, BodySender};
use crate::response::{Response, Status};
use onrush_proto::response::FieldError;
use onrush_proto::token;

/// What the server sends ahead of the client: [`BodySender::send`] waits while this much is queued.
const QUEUED_BYTES_MAX: usize = 64 * 1024;

/// The right to answer a request with 101. [`Request::upgrade`] returns it.
///
/// # Examples
/// A protocol that repeats what the client sends:
///
/// ```
/// use onrush::{Limits, Request, Response, sim::Simulation};
///
/// async fn repeat(mut request: Request) -> Response {
///     let Some(upgrade) = request.upgrade() else {
///         return Response::new(426).with_header("Upgrade", "repeat");
///     };
///     if !upgrade.protocols(&request).any(|protocol| protocol == "repeat") {
///         return Response::new(400);
///     }
///     let Ok((response, mut from_client, mut to_client)) = upgrade.accept("repeat") else {
///         return Response::new(500);
///     };
///     let task = request.worker().spawn(async move {
///         while let Some(Ok(piece)) = from_client.next().await {
///             if to_client.send(piece.to_vec()).await.is_err() {
///                 return; // The client has disconnected.
///             }
///         }
///     });
///     task.detach();
///     response
/// }
///
/// let mut sim = Simulation::new(1, &repeat, Limits::default());
/// let client = sim.connect();
/// let head = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: repeat\r\n\r\n";
/// sim.send(&client, [head, "GET"].concat().as_bytes());
/// let received = client.receive()?;
/// assert!(received.starts_with(b"HTTP/1.1 101 Switching Protocols\r\n"));
/// assert!(received.ends_with(b"\r\nConnection: upgrade\r\nUpgrade: repeat\r\n\r\nGET"));
/// sim.send(&client, b"\0");
/// assert_eq!(client.receive()?, b"\0");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Upgrade {
    reader: RequestBody,
}

impl Request {
    /// If the client asks to continue with another protocol (`Connection: upgrade` and `Upgrade`),
    /// the right to do so. `None` also for HTTP/1.0 and for a request with a body. A client must
    /// not depend on it: any other response may follow, and the connection goes on with HTTP.
    pub fn upgrade(&mut self) -> Option<Upgrade> {
        let is_asked = self.header("upgrade").is_some()
            && (self.header_values("connection"))
                .any(|value| token::list_contains(value, "upgrade"));
        if !is_asked {
            return None;
        }
        let parts = self.parts();
        let id = parts.connections.begin_upgrade(parts.connection)?;
        let reader = RequestBody::new(parts.connections.clone(), id);
        Some(Upgrade { reader })
    }
}

impl Upgrade {
    /// The protocols that the client names in the field `Upgrade` of `request`, in its order. Those
    /// that are not ASCII are left out.
    pub fn protocols<'r>(&self, request: &'r Request) -> impl Iterator<Item = &'r str> {
        let members = request.header_values("upgrade").flat_map(token::list);
        members
            .filter_map(onrush_rt::text::ascii)
            .filter(|member| !member.is_empty())
    }

    /// The response 101 with `Upgrade: protocol`, what the client sends after it, and what it
    /// receives. Further fields may be added to the response. Before it is sent, nothing can be
    /// read.
    ///
    /// The connection ends when the sender is dropped and what it has sent was taken. The reader
    /// returns `None` when the client sends no more. From the 101 on, the time limits for bodies
    /// and for the whole request do not apply; [`Limits::write_timeout`](crate::Limits) does. A
    /// server that shuts down waits for the connection until its drain timeout:
    /// [`Request::draining`] tells when to end it.
    ///
    /// Fails if `protocol` is no valid value of a field.
    pub fn accept(self, protocol: &str) -> Result<(Response, RequestBody, BodySender), FieldError> {
        let (sender, body) = Body::channel(QUEUED_BYTES_MAX);
        let mut response = Response::with_body(body);
        let reader = self.begin(&mut response, protocol)?;
        Ok((response, reader, sender))
    }

    /// Makes `response` the 101.
    pub(crate) fn begin(
        self,
        response: &mut Response,
        protocol: &str,
    ) -> Result<RequestBody, FieldError> {
        response.try_set_header("Upgrade", protocol)?;
        response.status = Status(101);
        Ok(self.reader)
    }
}
