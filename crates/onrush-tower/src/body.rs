//! The body of a request, which may move to another thread.
//!
//! The engine's body belongs to its worker. Each thread keeps those of its requests in a table, and
//! [`Body`] has a key of it. On the thread of the worker it is read without a detour. On any other
//! thread, the first read asks the worker to send what arrives through a bounded channel.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Frame, SizeHint};
use onrush::{RequestBody, WorkerHandle};
use slab::Slab;
use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc;

/// The most bytes that are read at a time.
const PIECE_BYTES_MAX: usize = 64 * 1024;
/// The memory for a piece of a body whose length is not known.
const PIECE_BYTES: usize = 16 * 1024;
/// Pieces that a worker sends ahead of a reader on another thread.
const PIECES_AHEAD: usize = 2;

thread_local! {
    static LOCAL: LocalBodies = LocalBodies::new();
}

/// The bodies of the requests of one thread.
struct LocalBodies {
    /// Differs from that of each other thread.
    id: u64,
    /// `None` while an entry is in use.
    bodies: RefCell<Slab<Option<RequestBody>>>,
}

impl LocalBodies {
    fn new() -> LocalBodies {
        static IDS: AtomicU64 = AtomicU64::new(0);
        LocalBodies {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            bodies: RefCell::default(),
        }
    }

    /// Calls `using` with a body, outside of the borrow: reading a body calls code of the user.
    fn with<T>(&self, key: usize, using: impl FnOnce(&mut RequestBody) -> T) -> Option<T> {
        let mut body = self.bodies.borrow_mut().get_mut(key)?.take()?;
        let result = using(&mut body);
        if let Some(entry @ None) = self.bodies.borrow_mut().get_mut(key) {
            *entry = Some(body);
        }
        Some(result)
    }

    fn remove(&self, key: usize) -> Option<RequestBody> {
        let mut bodies = self.bodies.borrow_mut();
        bodies.contains(key).then(|| bodies.remove(key)).flatten()
    }
}

/// What another thread asks of a worker.
enum Command {
    /// Send the rest of a body.
    Send(usize, mpsc::Sender<Piece>),
    /// Nobody reads the body any more.
    Drop(usize),
}

/// What a worker sends of a body.
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    /// The end. Without it, the worker has ended before.
    End,
    Failed(io::Error),
}

/// The worker of a body, for other threads.
#[derive(Clone)]
pub(crate) struct Worker(mpsc::UnboundedSender<Command>);

impl Worker {
    /// Starts the task that serves other threads.
    pub(crate) fn new(handle: &WorkerHandle) -> Worker {
        let (sender, mut commands) = mpsc::unbounded_channel();
        let worker = handle.clone();
        let serving = async move {
            while let Some(command) = commands.recv().await {
                match command {
                    Command::Drop(key) => drop(LOCAL.with(|local| local.remove(key))),
                    Command::Send(key, to) => {
                        if let Some(body) = LOCAL.with(|local| local.remove(key)) {
                            worker.spawn(send(body, to)).detach();
                        }
                    }
                }
            }
        };
        handle.spawn(serving).detach();
        Worker(sender)
    }
}

/// Sends a body to a reader on another thread.
async fn send(mut body: RequestBody, to: mpsc::Sender<Piece>) {
    let watched = to.clone();
    let mut closed = pin!(watched.closed());
    loop {
        let mut spare = Vec::new();
        let next = poll_fn(|cx| match closed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => poll_piece(&mut body, cx, &mut spare).map(Some),
        });
        let Some(piece) = next.await else { return };
        let is_last = matches!(piece, Piece::End | Piece::Failed(_));
        if to.send(piece).await.is_err() || is_last {
            return;
        }
    }
}

/// The next piece of a body. `spare` is memory that a later call may use.
fn poll_piece(body: &mut RequestBody, cx: &mut Context<'_>, spare: &mut Vec<u8>) -> Poll<Piece> {
    let rest = body.remaining();
    let wanted = match rest {
        Some(rest) => usize::try_from(rest).unwrap_or(usize::MAX),
        None => PIECE_BYTES,
    };
    spare.reserve_exact(wanted.clamp(1, PIECE_BYTES_MAX));
    let polled = body.poll_fill(cx, spare);
    if polled.is_pending() {
        *spare = Vec::new(); // A body that is awaited holds no memory.
    }
    Poll::Ready(match ready!(polled) {
        Ok(0) => match body
            .take_trailers()
            .and_then(|lines| parse_trailers(&lines))
        {
            Some(trailers) => Piece::Trailers(trailers),
            None => Piece::End,
        },
        // Little in much memory is copied.
        Ok(filled) if filled * 2 < spare.capacity() => {
            let data = Bytes::copy_from_slice(spare);
            spare.clear();
            Piece::Data(data)
        }
        Ok(_) => Piece::Data(Bytes::from(std::mem::take(spare))),
        Err(error) => Piece::Failed(error),
    })
}

/// Trailer lines that the engine has checked.
fn parse_trailers(lines: &[u8]) -> Option<HeaderMap> {
    let mut trailers = HeaderMap::new();
    for line in lines.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        let name = HeaderName::from_bytes(&line[..colon]);
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            trailers.append(name, value);
        }
    }
    (!trailers.is_empty()).then_some(trailers)
}

/// The body of a request (`http_body::Body`). It is `Send`, and may be read on any thread.
///
/// # Errors
/// Those of [`onrush::RequestBody`]: the client has disconnected, was too slow, or has sent more
/// than [`onrush::Limits::body_bytes_max`] or invalid framing.
pub struct Body(Option<Incoming>);

struct Incoming {
    /// [`LocalBodies::id`] of the thread of the worker.
    home: u64,
    key: usize,
    worker: Worker,
    /// What is known of the length of the rest.
    rest: Option<u64>,
    spare: Vec<u8>,
    /// Another thread reads.
    remote: Option<mpsc::Receiver<Piece>>,
    has_ended: bool,
}

impl Body {
    /// The body of a request without one.
    pub(crate) fn empty() -> Body {
        Body(None)
    }

    /// A body of a request of this thread.
    pub(crate) fn new(body: RequestBody, worker: &Worker) -> Body {
        let rest = body.remaining();
        let (home, key) =
            LOCAL.with(|local| (local.id, local.bodies.borrow_mut().insert(Some(body))));
        Body(Some(Incoming {
            home,
            key,
            worker: worker.clone(),
            rest,
            spare: Vec::new(),
            remote: None,
            has_ended: false,
        }))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

impl Incoming {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Piece> {
        if let Some(pieces) = &mut self.remote {
            return pieces.poll_recv(cx).map(|piece| piece.unwrap_or_else(gone));
        }
        let (key, spare) = (self.key, &mut self.spare);
        let here = LOCAL.with(|local| {
            let is_here = local.id == self.home;
            is_here.then(|| local.with(key, |body| poll_piece(body, cx, spare)))
        });
        match here {
            Some(polled) => polled.unwrap_or_else(|| Poll::Ready(gone())),
            None => {
                let (sender, mut pieces) = mpsc::channel(PIECES_AHEAD);
                if self.worker.0.send(Command::Send(key, sender)).is_err() {
                    return Poll::Ready(gone());
                }
                let polled = pieces.poll_recv(cx);
                self.remote = Some(pieces);
                polled.map(|piece| piece.unwrap_or_else(gone))
            }
        }
    }
}

/// The worker of the body has ended.
fn gone() -> Piece {
    Piece::Failed(io::ErrorKind::UnexpectedEof.into())
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.remote.is_some() {
            return; // The worker notices that the channel is closed.
        }
        // `Err`: this thread ends, and its table has ended before.
        let is_here = LOCAL.try_with(|local| local.id == self.home);
        match is_here {
            Ok(true) => drop(LOCAL.with(|local| local.remove(self.key))),
            Ok(false) => {
                let _ = self.worker.0.send(Command::Drop(self.key)); // Or it has ended.
            }
            Err(_) => {}
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Some(incoming) = self.0.as_mut().filter(|incoming| !incoming.has_ended) else {
            return Poll::Ready(None);
        };
        Poll::Ready(match ready!(incoming.poll_piece(cx)) {
            Piece::Data(data) => {
                if let Some(rest) = &mut incoming.rest {
                    *rest = rest.saturating_sub(data.len() as u64);
                }
                Some(Ok(Frame::data(data)))
            }
            Piece::Trailers(trailers) => Some(Ok(Frame::trailers(trailers))),
            Piece::End => {
                incoming.has_ended = true;
                None
            }
            Piece::Failed(error) => {
                incoming.has_ended = true;
                Some(Err(error))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        let incoming = self.0.as_ref();
        incoming.is_none_or(|incoming| incoming.has_ended || incoming.rest == Some(0))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            None => SizeHint::with_exact(0),
            Some(incoming) => match incoming.rest {
                Some(rest) => SizeHint::with_exact(rest),
                None => SizeHint::new(),
            },
        }
    }
}
