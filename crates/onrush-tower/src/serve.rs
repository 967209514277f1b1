//! Serving until the end, as a future.

use crate::application::application;
use crate::body::Body;
use crate::listen::IntoServer;
use onrush::{Handle, Running};
use std::error::Error;
use std::fmt;
use std::future::{Future, IntoFuture, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use tokio::sync::oneshot;
use tower_service::Service;

/// Serves `service` on `listener`: an [`onrush::Server`], or a bound listener.
///
/// The result is a future, as that of `axum::serve`. It ends when the server ends: after
/// [`Serve::with_graceful_shutdown`], or because a worker has failed.
///
/// A client that ends its side of the connection is gone, as for hyper
/// ([`onrush::Server::half_close`]): the future of its request is dropped.
///
/// The service is called within the tokio runtime of the caller, if there is one. The workers are
/// threads of their own, one per core by default.
///
/// # Examples
/// With a state, a layer and the end by a signal:
///
/// ```no_run
/// # #[cfg(feature = "axum")] {
/// use axum::extract::State;
/// use axum::{Router, routing::get};
/// use std::sync::Arc;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// async fn hello(State(name): State<Arc<str>>) -> String {
///     format!("Hello, {name}!")
/// }
///
/// let app = Router::new().route("/", get(hello)).with_state(Arc::from("World"));
/// onrush_tower::serve(onrush::Server::bind("127.0.0.1:8080"), app)
///     .with_graceful_shutdown(async { tokio::signal::ctrl_c().await.expect("a handler") })
///     .await
/// # }
/// # }
/// ```
pub fn serve<L, S, B>(listener: L, service: S) -> Serve<L, S>
where
    L: IntoServer,
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    Serve { listener, service }
}

/// A service that is served while this is awaited. [`serve`] returns it.
#[must_use = "nothing is served before it is awaited or started"]
pub struct Serve<L, S> {
    listener: L,
    service: S,
}

impl<L: fmt::Debug, S> fmt::Debug for Serve<L, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl<L, S, B> Serve<L, S>
where
    L: IntoServer,
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    /// Shuts down when `signal` ends: no connection is accepted any more, requests that have
    /// arrived are finished, for at most [`onrush::Server::drain_timeout`] (30 s by default).
    /// Streams and upgraded connections that do not end by then are cut: end them by the same
    /// signal.
    pub fn with_graceful_shutdown<F>(self, signal: F) -> WithGracefulShutdown<L, S, F>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        WithGracefulShutdown {
            serve: self,
            signal,
        }
    }

    /// Starts the server and returns at once, for its addresses and its [`Handle`].
    ///
    /// The runtime of the caller must outlive the server. What handlers do with a runtime that has
    /// ended panics, which is a response 500.
    ///
    /// Fails if an address cannot be bound or no driver works.
    pub fn start(self) -> io::Result<Running> {
        self.listener
            .into_server()?
            .start(application(self.service))
    }
}

impl<L, S, B> IntoFuture for Serve<L, S>
where
    L: IntoServer + Send + 'static,
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    type Output = io::Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        self.with_graceful_shutdown(pending()).into_future()
    }
}

/// A service that is served until a signal. [`Serve::with_graceful_shutdown`] returns it.
#[must_use = "nothing is served before it is awaited"]
pub struct WithGracefulShutdown<L, S, F> {
    serve: Serve<L, S>,
    signal: F,
}

impl<L: fmt::Debug, S, F> fmt::Debug for WithGracefulShutdown<L, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithGracefulShutdown")
            .field("serve", &self.serve)
            .finish_non_exhaustive()
    }
}

impl<L, S, F, B> IntoFuture for WithGracefulShutdown<L, S, F>
where
    L: IntoServer + Send + 'static,
    S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: http_body::Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    type Output = io::Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { wait(self.serve.start()?, self.signal).await })
    }
}

/// Waits for the end of a server, and begins it when `signal` ends.
async fn wait(running: Running, signal: impl Future<Output = ()>) -> io::Result<()> {
    let handle = EndOnDrop(running.handle());
    let (ended, mut end) = oneshot::channel();
    let waiting = std::thread::Builder::new().name("onrush-wait".to_owned());
    waiting.spawn(move || {
        let _ = ended.send(running.wait()); // Nobody waits any more.
    })?;
    let mut signal = pin!(signal);
    let mut is_ending = false;
    poll_fn(|cx| {
        if !is_ending && signal.as_mut().poll(cx).is_ready() {
            is_ending = true;
            handle.0.shutdown();
        }
        let lost = |_| {
            Err(io::Error::other(
                "the thread that waits for the server has ended",
            ))
        };
        Pin::new(&mut end)
            .poll(cx)
            .map(|end| end.unwrap_or_else(lost))
    })
    .await
}

/// A server that shuts down when nobody awaits it any more.
struct EndOnDrop(Handle);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}
