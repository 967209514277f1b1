//! Upgrades as hyper makes them, so that `WebSocketUpgrade` of axum and `hyper::upgrade::on` work.
//!
//! Only a connection of hyper can make an [`OnUpgrade`]. So hyper serves one in memory: a request
//! that asks for an upgrade, whose [`OnUpgrade`] is moved to the request of the client. When the
//! application has responded with 101, the connection in memory does so, too; from then on it
//! carries the bytes between the client and the application. The head that the client gets is that
//! of the application.
//!
//! An extended CONNECT of HTTP/2 is such a request as well. As with hyper, its `:protocol` is the
//! extension [`Protocol`], and a 2xx accepts it: one without content, because content would be
//! taken for bytes of the protocol.

use crate::body::Body;
use crate::response::{Converter, Head, Wishes, internal_error};
use bytes::Bytes;
use http::header::UPGRADE;
use http::{Extensions, HeaderName, HeaderValue, StatusCode, Version};
use hyper::ext::Protocol;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use onrush::{
    BodySender, FieldError, Request, RequestBody, Response, Upgrade, Upgraded, WorkerHandle,
};
use std::cell::Cell;
use std::error::Error;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::oneshot;

/// The bytes that wait in memory, in each direction.
const PIPE_BYTES: usize = 64 * 1024;
/// What is copied at a time.
const PIECE_BYTES: usize = 16 * 1024;
/// The request in memory.
const ASKS: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n";
/// What ends the head of its response.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// An upgrade that the client asks for and the service may accept.
pub(crate) struct Offer {
    upgrade: Upgrade,
    /// The only protocol of an extended CONNECT.
    connect: Option<String>,
    /// Tells the service of the connection in memory to respond.
    accept: oneshot::Sender<()>,
    connection: Pin<Box<dyn Future<Output = Result<(), hyper::Error>>>>,
    /// The client's end of the connection in memory.
    client: DuplexStream,
    is_broken: Arc<AtomicBool>,
}

/// The application's end of the connection in memory.
struct ServerEnd {
    pipe: DuplexStream,
    /// The client has not ended its side, but the connection is broken.
    is_broken: Arc<AtomicBool>,
}

impl AsyncRead for ServerEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.pipe).poll_read(cx, into))?;
        let is_end = into.filled().len() == before && into.remaining() > 0;
        Poll::Ready(match is_end && self.is_broken.load(Ordering::Acquire) {
            true => Err(io::ErrorKind::ConnectionReset.into()),
            false => Ok(()),
        })
    }
}

impl AsyncWrite for ServerEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

/// If the client asks for an upgrade, adds the extension that accepts it.
pub(crate) fn offer(request: &mut Request, made: &mut http::Request<Body>) -> Option<Box<Offer>> {
    if !made.headers().contains_key(UPGRADE) {
        return None;
    }
    // The engine writes the field itself for `:protocol`.
    if made.version() == Version::HTTP_2
        && let Some(protocol) = made.headers_mut().remove(UPGRADE)
        && let Ok(protocol) = protocol.to_str()
    {
        made.extensions_mut().insert(Protocol::from(protocol));
    }
    let upgrade = request.upgrade()?;
    // Clients of HTTP/2 offer it with each request, and no application has it as an upgrade.
    let is_h2c = |protocol: &str| protocol.eq_ignore_ascii_case("h2c");
    let is_useless = upgrade.protocols().all(is_h2c);
    match is_useless {
        true => None,
        false => begin(upgrade, made.extensions_mut()).map(Box::new),
    }
}

/// `None` if hyper does not offer the upgrade.
fn begin(upgrade: Upgrade, extensions: &mut Extensions) -> Option<Offer> {
    let (mut client, pipe) = tokio::io::duplex(PIPE_BYTES);
    let is_broken = Arc::new(AtomicBool::new(false));
    let server = ServerEnd {
        pipe,
        is_broken: is_broken.clone(),
    };
    let (accept, accepted) = oneshot::channel();
    let accepted = Cell::new(Some(accepted));
    let offered: Rc<Cell<Option<OnUpgrade>>> = Rc::default();
    let service = {
        let offered = offered.clone();
        service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            offered.set(Some(hyper::upgrade::on(&mut request)));
            let accepted = accepted.take();
            async move {
                match accepted {
                    Some(accepted) => accepted.await.map_err(|_| io::Error::other("refused"))?,
                    None => return Err(io::Error::other("a second request")),
                }
                let mut response = http::Response::new(String::new());
                *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
                let fields = response.headers_mut();
                fields.insert(UPGRADE, HeaderValue::from_static("a"));
                fields.insert(
                    http::header::CONNECTION,
                    HeaderValue::from_static("upgrade"),
                );
                Ok(response)
            }
        })
    };
    let connection = http1::Builder::new().serve_connection(TokioIo::new(server), service);
    let mut connection = Box::pin(connection.with_upgrades());
    // Nothing of this waits: the pipe has room for the request, which is read and passed on at
    // once.
    let mut cx = Context::from_waker(Waker::noop());
    let _ = Box::pin(client.write_all(ASKS)).as_mut().poll(&mut cx);
    let _ = connection.as_mut().poll(&mut cx);
    let on_upgrade = offered.take()?;
    extensions.insert(on_upgrade);
    let connect = extensions.get::<Protocol>();
    Some(Offer {
        upgrade,
        connect: connect.map(|protocol| protocol.as_str().to_owned()),
        accept,
        connection,
        client,
        is_broken,
    })
}

impl Offer {
    /// Converts the response of the service, and begins the other protocol if it accepts that.
    pub(crate) async fn finish<B>(
        self,
        response: http::Response<B>,
        wishes: Wishes,
        converter: &Converter<B>,
        worker: &WorkerHandle,
    ) -> Response
    where
        B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
    {
        let accepts = match self.connect {
            Some(_) => response.status().is_success() && response.body().is_end_stream(),
            None => response.status() == StatusCode::SWITCHING_PROTOCOLS,
        };
        if !accepts {
            let (parts, content) = response.into_parts();
            let head = Head::of(&parts, &content, wishes);
            return converter.convert(head, content, wishes).await;
        }
        match self.accept(&response, worker).await {
            Ok(response) => response,
            Err(error) => {
                tracing::error!(error, "an upgrade has failed");
                internal_error()
            }
        }
    }

    async fn accept<B>(
        self,
        made: &http::Response<B>,
        worker: &WorkerHandle,
    ) -> Result<Response, Box<dyn Error + Send + Sync>> {
        let protocol = match &self.connect {
            Some(protocol) => protocol,
            None => (made.headers().get(UPGRADE).ok_or("it names no protocol")?).to_str()?,
        };
        let Upgraded {
            mut response,
            from_client: reader,
            to_client: sender,
            ..
        } = self.upgrade.accept(protocol)?;
        for (name, value) in made.headers().iter().filter(|(name, _)| *name != UPGRADE) {
            append(&mut response, name, value).map_err(|error| format!("{name}: {error:?}"))?;
        }
        let Offer {
            accept,
            connection,
            mut client,
            ..
        } = self;
        accept
            .send(())
            .map_err(|()| "the connection in memory has ended")?;
        connection.await?;
        let first = after_head(&mut client).await?;
        let (from, to) = tokio::io::split(client);
        let receiving = worker.spawn(receive(reader, to, self.is_broken));
        let sending = async move {
            send(first, from, sender).await;
            // The connection has ended. The other direction may wait until the application reads,
            // which may wait until its output is read.
            drop(receiving);
        };
        worker.spawn(sending).detach();
        Ok(response)
    }
}

/// Reads the head of the response in memory, and returns what follows it.
async fn after_head(client: &mut DuplexStream) -> io::Result<Bytes> {
    let mut received = Vec::with_capacity(PIECE_BYTES);
    loop {
        if client.read_buf(&mut received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut windows = received.windows(HEAD_END.len());
        if let Some(end) = windows.position(|window| window == HEAD_END) {
            return Ok(Bytes::from(received).slice(end + HEAD_END.len()..));
        }
    }
}

/// Passes on what the client sends. It ends only when it is dropped, with the connection: the
/// engine takes a client that has ended its side, and whose bytes nobody reads any more, for one
/// that has gone, though the application may still answer.
async fn receive(
    mut reader: RequestBody,
    mut to: impl AsyncWrite + Unpin,
    is_broken: Arc<AtomicBool>,
) {
    while let Some(piece) = reader.next().await {
        match piece {
            Ok(piece) if to.write_all(&piece).await.is_err() => break,
            Ok(_) => {}
            Err(_) => {
                is_broken.store(true, Ordering::Release);
                break;
            }
        }
    }
    let _ = to.shutdown().await; // The application reads the end, or the error.
    pending::<()>().await;
}

/// Passes on what the application sends, until it ends.
async fn send(first: Bytes, mut from: impl AsyncRead + Unpin, mut sender: BodySender) {
    let mut piece = first;
    loop {
        if sender.send(piece).await.is_err() {
            return;
        }
        piece = match poll_fn(|cx| poll_piece(Pin::new(&mut from), cx)).await {
            Ok(next) if next.is_empty() => return sender.finish(),
            Ok(next) => next,
            Err(error) => return sender.abort(error),
        };
    }
}

/// The next bytes; none at the end. A wait holds no memory, and what waits to be sent no more than
/// its length.
fn poll_piece(from: Pin<&mut impl AsyncRead>, cx: &mut Context<'_>) -> Poll<io::Result<Bytes>> {
    let mut space = [MaybeUninit::uninit(); PIECE_BYTES];
    let mut piece = ReadBuf::uninit(&mut space);
    ready!(from.poll_read(cx, &mut piece))?;
    Poll::Ready(Ok(Bytes::copy_from_slice(piece.filled())))
}

/// Appends a field, unless it is one that the engine writes itself. White space around a value is
/// not a part of it (RFC 9110 §5.5).
fn append(
    response: &mut Response,
    name: &HeaderName,
    value: &HeaderValue,
) -> Result<(), FieldError> {
    match response.append_header(name.as_str(), value.as_bytes().trim_ascii()) {
        Err(FieldError::Reserved) => Ok(()),
        appended => appended,
    }
}
