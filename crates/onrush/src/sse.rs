//! Server-sent events (WHATWG HTML §9.2): a response that goes on while there is something to tell.

use crate::body::{Body, BodySender, BoxedStream, Content};
use crate::panic_guard::PanicGuard;
use crate::response::{IntoResponse, Response};
use crate::worker::{Sleep, WorkerHandle};
use bytes::Bytes;
use futures_core::Stream;
use pin_project_lite::pin_project;
use std::fmt::{self, Write};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A message to an `EventSource`.
///
/// # Examples
/// ```
/// use onrush::sse::Event;
///
/// let event = Event::new("two\nlines").event("note").id("7");
/// assert_eq!(event.to_string(), "event: note\nid: 7\ndata: two\ndata: lines\n\n");
/// assert_eq!(Event::comment("still here").to_string(), ": still here\n\n");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The lines before those of the data.
    fields: String,
    /// The lines of the data or of a comment.
    lines: String,
}

impl Event {
    /// An event whose data is this text, which may have several lines. Clients see each end of a
    /// line as `\n`.
    pub fn new(data: impl AsRef<str>) -> Event {
        let mut event = Event::default();
        push_lines(&mut event.lines, "data", data.as_ref());
        event
    }

    /// A comment, which clients ignore.
    pub fn comment(text: impl AsRef<str>) -> Event {
        let mut event = Event::default();
        push_lines(&mut event.lines, "", text.as_ref());
        event
    }

    /// The type of the event, `message` by default.
    ///
    /// # Panics
    /// If it contains the end of a line.
    #[track_caller]
    pub fn event(self, name: impl AsRef<str>) -> Event {
        self.field("event", name.as_ref())
    }

    /// What the client sends as `Last-Event-ID` when it connects again after this event.
    ///
    /// # Panics
    /// If it contains the end of a line or U+0000.
    #[track_caller]
    pub fn id(self, id: impl AsRef<str>) -> Event {
        let id = id.as_ref();
        assert!(!id.contains('\0'), "the id of an event contains U+0000");
        self.field("id", id)
    }

    /// How long the client waits before it connects again, in whole milliseconds.
    pub fn retry(self, after: Duration) -> Event {
        self.field("retry", &after.as_millis().to_string())
    }

    /// Adds a field in front of the data, so that the text of the data ends the event.
    #[track_caller]
    fn field(mut self, name: &str, value: &str) -> Event {
        assert!(
            !value.contains(['\r', '\n']),
            "the field {name} of an event contains the end of a line"
        );
        push_line(&mut self.fields, name, value);
        self
    }
}

/// The event as it is sent.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}{}", self.fields, self.lines)
    }
}

fn push_line(text: &mut String, name: &str, value: &str) {
    writeln!(text, "{name}: {value}").expect("writing to a string succeeds");
}

/// One field line for each line of `value`. A client takes each of CRLF, LF and CR for the end of a
/// line, so a line that contained one could forge a field.
fn push_lines(text: &mut String, name: &str, value: &str) {
    let mut rest = value;
    while let Some(at) = rest.find(['\r', '\n']) {
        push_line(text, name, &rest[..at]);
        let end = if rest[at..].starts_with("\r\n") { 2 } else { 1 };
        rest = &rest[at + end..];
    }
    push_line(text, name, rest);
}

type End = Pin<Box<dyn Future<Output = ()>>>;

/// A response that sends events.
///
/// It ends with its stream or sender, when the client disconnects, after
/// [`Limits::total_timeout`](crate::Limits::total_timeout) (an hour), and by [`Sse::until`]. A
/// graceful shutdown waits for it, so give it [`Request::draining`](crate::Request::draining). A
/// client whose response has ended connects again; 204 tells it to stop.
///
/// A sender stays on its worker. To tell the clients of all workers, keep the senders of each
/// worker in a state of it ([`Router::with_worker_state`](crate::Router::with_worker_state)), and
/// let a task of each worker pass on what a channel that works across threads brings, such as
/// `tokio::sync::broadcast`, by [`EventSender::try_send`].
///
/// # Examples
/// ```
/// use onrush::sse::{Event, Sse};
/// use onrush::{Limits, Request, sim::Simulation};
/// use std::time::Duration;
///
/// async fn ticks(request: Request) -> Sse {
///     let (mut sender, events) = Sse::channel(16 * 1024);
///     let worker = request.worker().clone();
///     let task = request.worker().spawn(async move {
///         for tick in 1.. {
///             worker.sleep(Duration::from_secs(60)).await;
///             if sender.send(Event::new(tick.to_string())).await.is_err() {
///                 return; // The client has disconnected.
///             }
///         }
///     });
///     task.detach();
///     events.keep_alive(Duration::from_secs(25)).until(request.draining())
/// }
///
/// let mut sim = Simulation::new(1, &ticks, Limits::default());
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.0\r\n\r\n");
/// sim.advance(Duration::from_secs(61));
/// assert!(client.receive()?.ends_with(b"\r\n\r\n:\n\n:\n\ndata: 1\n\n"));
/// sim.drain();
/// sim.run();
/// assert!(client.at_end());
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use = "a handler returns it"]
pub struct Sse {
    /// A stream of the events as they are sent.
    body: Body,
    keep_alive: Option<Duration>,
    end: Option<End>,
}

impl Sse {
    fn new(body: Body) -> Sse {
        Sse {
            body,
            keep_alive: None,
            end: None,
        }
    }

    /// The events of `stream`, which is polled as fast as the client accepts them. An error closes
    /// the connection.
    pub fn stream(stream: impl Stream<Item = io::Result<Event>> + 'static) -> Sse {
        Sse::new(Body::stream(Rendered { stream }, None))
    }

    /// A response, and the sender of its events. The sender waits while `bytes_max` or more bytes
    /// wait to be sent.
    pub fn channel(bytes_max: usize) -> (EventSender, Sse) {
        let (mut sender, body) = Body::channel(bytes_max);
        sender.end_by_drop(); // Each event is complete in itself, and no response is.
        (EventSender(sender), Sse::new(body))
    }

    /// Sends an empty comment when `after` has passed without an event, so that nothing between
    /// server and client takes the connection for unused, and so that a client that is gone is
    /// noticed. A zero `after` sends none.
    pub fn keep_alive(mut self, after: Duration) -> Sse {
        self.keep_alive = Some(after).filter(|after| !after.is_zero());
        self
    }

    /// Ends the response when `end` is ready. Events that the stream has not yielded are not sent.
    pub fn until(mut self, end: impl Future<Output = ()> + 'static) -> Sse {
        self.end = Some(Box::pin(end));
        self
    }
}

impl fmt::Debug for Sse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sse")
            .field("keep_alive", &self.keep_alive)
            .finish_non_exhaustive()
    }
}

/// Status 200, `text/event-stream`, and no storing in caches.
impl IntoResponse for Sse {
    fn into_response(mut self) -> Response {
        if let Content::Stream(streamed) = &mut self.body.0 {
            let (keep_alive, end) = (self.keep_alive, self.end);
            streamed.wrap(|events| Paced {
                events,
                keep_alive,
                silence: None,
                end,
            });
        }
        Response::with_body(self.body)
            .content_type("text/event-stream")
            .with_header("Cache-Control", "no-store")
    }
}

/// Sends the events of [`Sse::channel`]. Dropping it ends the response.
#[derive(Debug)]
pub struct EventSender(BodySender);

impl EventSender {
    /// Waits for room and queues `event`.
    ///
    /// Fails with `BrokenPipe` if the response has ended: the client has disconnected, or
    /// [`Sse::until`] is ready.
    pub async fn send(&mut self, event: Event) -> io::Result<()> {
        self.0.send(event.to_string()).await
    }

    /// Queues `event` if there is room: one slow client of many must not hold up the others.
    ///
    /// Fails with `WouldBlock` if there is no room, and as [`EventSender::send`].
    pub fn try_send(&mut self, event: &Event) -> io::Result<()> {
        self.0.try_send(event.to_string())
    }

    /// Waits until the response has ended, for a task that has nothing to send at the moment.
    /// Many clients that leave are noticed only by [`Sse::keep_alive`]. See [`BodySender::closed`].
    pub async fn closed(&mut self) {
        self.0.closed().await;
    }
}

pin_project! {
    /// The bytes of events.
    struct Rendered<S> {
        #[pin]
        stream: S,
    }
}

impl<S: Stream<Item = io::Result<Event>>> Stream for Rendered<S> {
    type Item = io::Result<Bytes>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let render = |event: Event| Bytes::from(event.to_string());
        let next = self.project().stream.poll_next(cx);
        next.map(|event| event.map(|event| event.map(render)))
    }
}

/// Events, comments while there are none, and an end.
struct Paced {
    events: PanicGuard<BoxedStream>,
    keep_alive: Option<Duration>,
    /// The rest of the time without an event, while the stream is waited for.
    silence: Option<Sleep>,
    end: Option<End>,
}

impl Stream for Paced {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(end) = &mut self.end
            && end.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(None);
        }
        let next = self.events.get_mut().as_mut().poll_next(cx);
        if next.is_ready() {
            self.silence = None;
            return next;
        }
        // A response is sent by its worker, so there is one.
        let (Some(after), Some(worker)) = (self.keep_alive, WorkerHandle::current()) else {
            return Poll::Pending;
        };
        let silence = self.silence.get_or_insert_with(|| worker.sleep(after));
        if Pin::new(silence).poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.silence = None;
        Poll::Ready(Some(Ok(Bytes::from_static(b":\n\n"))))
    }
}
