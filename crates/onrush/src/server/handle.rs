//! What ends a server, or changes it, from any thread.

use super::control::{Control, DRAINING, ENDING, RUNNING};
use super::listening::ListeningSockets;
use super::passing::Passing;
use super::settings::RunningSettings;
use crate::engine::ConnectionFacts;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Ends a server, from any thread. Cheap to clone.
///
/// # Examples
/// ```no_run
/// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
/// use onrush::Server;
///
/// let running = Server::bind("127.0.0.1:8080").start(hello)?;
/// let handle = running.handle();
/// std::thread::spawn(move || {
///     let _ = std::io::stdin().read_line(&mut String::new());
///     handle.shutdown();
/// });
/// running.wait()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Handle(Arc<Control>);

impl Handle {
    pub(super) fn new(control: Arc<Control>) -> Handle {
        Handle(control)
    }

    /// Shuts down gracefully. The server stops accepting, finishes the requests that it has
    /// received, closes each connection as it becomes idle, and then ends. See
    /// [`Server::drain_timeout`](crate::Server::drain_timeout).
    pub fn shutdown(&self) {
        self.0.set(DRAINING);
    }

    /// Ends the server immediately. Requests in progress are lost.
    pub fn shutdown_now(&self) {
        self.0.set(ENDING);
    }

    /// As [`Handle::shutdown`], when another process accepts from the listening sockets: they are
    /// not prepared for their end. New connections wait for the other process, and the files of
    /// Unix sockets remain.
    pub fn hand_over(&self) {
        self.0.hand_over();
    }

    /// As [`Handle::hand_over`], but plain connections are passed on to the other process, each
    /// when no request is in progress and none has begun to arrive. TLS connections drain: their
    /// keys are in this process. All that were not passed on drain when the result is dropped. A
    /// server that drains already passes nothing on.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
    /// # fn send(_: std::os::fd::BorrowedFd<'_>, _: onrush::ConnectionFacts) -> bool { true }
    /// use std::time::Duration;
    ///
    /// let running = onrush::Server::bind("127.0.0.1:8080").start(hello)?;
    /// let handle = running.handle();
    /// let passing = handle.pass_on();
    /// while let Some(connection) = passing.next(Duration::from_secs(1)) {
    ///     // To the process that calls `Handle::take_over`.
    ///     match connection.socket().zip(connection.facts()) {
    ///         Some((socket, facts)) if send(socket, facts) => connection.passed(),
    ///         _ => drop(connection), // It stays here, and drains.
    ///     }
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn pass_on(&self) -> Passing {
        Passing::begin(&self.0)
    }

    /// Serves an idle connection that another process has passed on, as if it had been accepted: it
    /// is placed like others, counts against the limit on connections, and keeps its deadline,
    /// unless [`Limits::idle_timeout`](crate::Limits#structfield.idle_timeout) is shorter. `socket`
    /// becomes non-blocking.
    ///
    /// Returns whether it is served. Otherwise its descriptor is closed here, which does not end a
    /// connection of which another process has one: it is not a connected stream socket, this
    /// server drains, the limit is reached, or only one of the two servers uses the PROXY protocol,
    /// or does not trust the peer.
    #[must_use]
    pub fn take_over(&self, socket: OwnedFd, facts: ConnectionFacts) -> bool {
        self.0.take_over(socket, facts)
    }

    /// Duplicates of the listening sockets, for another process
    /// ([`Server::listen_with`](crate::Server::listen_with)), in the order of
    /// [`Running::addresses`](super::Running::addresses). After the beginning of a shutdown some
    /// are missing.
    ///
    /// # Errors
    /// If the process has no descriptor left.
    pub fn listening(&self) -> io::Result<Vec<ListeningSockets>> {
        self.0.listening()
    }

    /// The settings that can change while the server runs.
    pub fn settings(&self) -> RunningSettings {
        self.0.settings()
    }

    /// Replaces these settings. Each worker takes them before its next event-loop iteration, unless
    /// a shutdown has begun.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
    /// use onrush::Server;
    ///
    /// let running = Server::bind("127.0.0.1:8080").start(hello)?;
    /// let mut settings = running.handle().settings();
    /// settings.connections_max = 100;
    /// running.handle().set_settings(settings);
    /// running.wait()?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_settings(&self, settings: RunningSettings) {
        self.0.set_settings(settings);
    }

    /// For how long the longest event-loop iteration has been in progress. Zero if all workers
    /// sleep. A worker that is stuck makes it grow without limit.
    pub fn longest_iteration(&self) -> Duration {
        self.0.longest_iteration()
    }

    /// Whether a shutdown has begun.
    pub fn is_ending(&self) -> bool {
        self.0.state() != RUNNING
    }
}
