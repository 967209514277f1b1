//! Requests after which both sides speak another protocol: on the connection of HTTP/1.1 (RFC 9110
//! §7.8), or on a stream of HTTP/2 (RFC 8441).

use super::Request;
use super::incoming_body::RequestBody;
use crate::body::{Body, BodySender};
use crate::response::{Response, Status};
use onrush_proto::head::Version;
use onrush_proto::token;

/// What the server sends ahead of the client: [`BodySender::send`] waits while this much is queued.
const QUEUED_BYTES_MAX: usize = 64 * 1024;

/// The right to answer a request with another protocol. [`Request::upgrade`] returns it.
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
///     let Ok(mut upgraded) = upgrade.accept("repeat") else {
///         return Response::new(400); // The client asks for another protocol.
///     };
///     let task = request.worker().spawn(async move {
///         while let Some(Ok(piece)) = upgraded.from_client.next().await {
///             if upgraded.to_client.send(piece.to_vec()).await.is_err() {
///                 return; // The client has disconnected.
///             }
///         }
///         upgraded.to_client.finish();
///     });
///     task.detach();
///     upgraded.response
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
    /// What the client names, in its order.
    protocols: Vec<String>,
}

/// What [`Upgrade::accept`] makes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Upgraded {
    /// The 101, to which fields may be added, in both versions of HTTP. The handler returns it.
    pub response: Response,
    /// What the client sends after its request. Nothing can be read before the 101 is sent. `None`
    /// when the client sends no more.
    pub from_client: RequestBody,
    /// What the client receives after the 101.
    pub to_client: BodySender,
}

/// The protocol that a server wants is none that the client has named, so it must not be used
/// (RFC 9110 §7.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotOffered;

impl std::fmt::Display for NotOffered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the client does not offer this protocol")
    }
}

impl std::error::Error for NotOffered {}

impl Request {
    /// If the client asks to continue with another protocol, the right to do so. `None` also for
    /// HTTP/1.0 and for a request with a body. A client must not depend on it: any other response
    /// may follow, and the connection goes on with HTTP.
    ///
    /// A client of HTTP/1.1 asks by `Connection: upgrade` and `Upgrade`, with any method. One of
    /// HTTP/2 asks by an extended CONNECT (RFC 8441), if the server permits it
    /// ([`Server::extended_connect`](crate::Server::extended_connect)): [`Request::method`] is
    /// `CONNECT`, and its `:protocol` is the field `upgrade`, which no client can send itself. The
    /// other protocol is then on this stream, beside the other requests of the connection.
    ///
    /// A handler that knows of no upgrades must not accept one by chance: a response 2xx to an
    /// extended CONNECT that [`Upgrade::accept`] has not made becomes 501.
    pub fn upgrade(&mut self) -> Option<Upgrade> {
        let is_asked = self.header("upgrade").is_some()
            && (self.version() == Version::Http2
                || (self.header_values("connection"))
                    .any(|value| token::list_contains(value, "upgrade")));
        if !is_asked {
            return None;
        }
        let members = self.header_values("upgrade").flat_map(token::list);
        let protocols = (members.filter_map(onrush_rt::text::ascii))
            .filter(|member| !member.is_empty())
            .map(str::to_owned)
            .collect();
        let parts = self.parts();
        if !parts.connections.begin_upgrade(parts.id) {
            return None;
        }
        let reader = RequestBody::new(parts.connections.clone(), parts.id);
        Some(Upgrade { reader, protocols })
    }
}

impl Upgrade {
    /// The protocols that the client names in the field `Upgrade`, in its order, or the only one of
    /// an extended CONNECT. Those that are not ASCII are left out.
    pub fn protocols(&self) -> impl Iterator<Item = &str> {
        self.protocols.iter().map(String::as_str)
    }

    /// Makes the response 101 with `Upgrade: protocol`. In HTTP/2 the client gets a 200 without
    /// this field, which means the same.
    ///
    /// The connection ends when the client has taken all that was sent before
    /// [`BodySender::finish`]; a sender that is dropped without it resets it. From the 101 on, the
    /// time limits for bodies and for the whole request do not apply;
    /// [`Limits::write_timeout`](crate::Limits) does. A server that shuts down waits for the
    /// connection until its drain timeout: [`Request::draining`] tells when to end it.
    ///
    /// All of this holds for a stream of HTTP/2 in place of the connection, except for one: after
    /// [`BodySender::finish`], what the client sends can be read until it ends its side, or until
    /// [`Upgraded::from_client`] is dropped. A reset by the client is an error of both.
    ///
    /// # Errors
    /// [`NotOffered`]: the client does not name this protocol. Upper and lower case are the same.
    pub fn accept(self, protocol: &str) -> Result<Upgraded, NotOffered> {
        let (to_client, body) = Body::channel(QUEUED_BYTES_MAX);
        let mut response = Response::with_body(body);
        let from_client = self.begin(&mut response, protocol)?;
        Ok(Upgraded {
            response,
            from_client,
            to_client,
        })
    }

    /// Makes `response` the 101.
    pub(crate) fn begin(
        self,
        response: &mut Response,
        protocol: &str,
    ) -> Result<RequestBody, NotOffered> {
        if !(self.protocols()).any(|offered| offered.eq_ignore_ascii_case(protocol)) {
            return Err(NotOffered);
        }
        response.set_header("Upgrade", protocol);
        response.status = Status(101);
        Ok(self.reader)
    }
}
