//! A running server: its threads, and the handle that ends it.

use super::control::{Control, DRAINING, ENDING, RUNNING};
use super::listening::ListeningSockets;
use super::passing::Passing;
use super::settings::RunningSettings;
use super::signals::EndBySignal;
use super::worker_thread::{WorkerThread, panicked};
use crate::engine::ConnectionFacts;
use crate::worker::WorkerHandle;
use onrush_rt::driver::Choice;
use onrush_rt::net::Address;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// A running server. Dropping this value does not end the server.
///
/// # Examples
/// ```no_run
/// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
/// use onrush::Server;
///
/// let running = Server::bind("127.0.0.1:0").workers(2).start(hello)?;
/// println!("listening on {}", running.address());
/// println!("{}: {}", running.driver().name(), running.driver().reason());
/// assert_eq!(running.workers(), 2);
/// running.handle().shutdown();
/// running.wait()?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Running {
    addresses: Vec<Address>,
    driver: Choice,
    handle: Handle,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// The signals that end the server, until it has ended.
    signals: Option<EndBySignal>,
}

impl Running {
    /// A server without threads.
    pub(super) fn new(addresses: Vec<Address>, driver: Choice, control: Arc<Control>) -> Running {
        Running {
            addresses,
            driver,
            handle: Handle(control),
            threads: Vec::new(),
            signals: None,
        }
    }

    /// Lets `signals` end the server. If that fails, ends the server and waits for it.
    pub(super) fn end_by(&mut self, mut signals: EndBySignal) -> io::Result<()> {
        if let Err(error) = signals.ends(self.handle()) {
            self.handle.shutdown_now();
            self.join()?;
            return Err(error);
        }
        self.signals = Some(signals);
        Ok(())
    }

    /// Starts the threads and waits until the workers are ready. If one fails, ends the others,
    /// waits for them, and returns its error.
    pub(super) fn spawn(&mut self, threads: Vec<WorkerThread>) -> io::Result<()> {
        let (ready, readiness) = mpsc::channel();
        for worker in threads {
            let ready = ready.clone();
            let thread = std::thread::Builder::new().name(format!("onrush-{}", worker.index));
            let ready = move || {
                let _ = ready.send(()); // The receiver is gone if another worker has failed.
            };
            match thread.spawn(move || worker.run(ready)) {
                Ok(thread) => self.threads.push(thread),
                Err(error) => {
                    self.handle.shutdown_now();
                    self.join()?;
                    return Err(error);
                }
            }
        }
        drop(ready);
        for _ in 0..self.threads.len() {
            // All senders are gone: a worker has ended before it was ready.
            if readiness.recv().is_err() {
                self.handle.shutdown_now();
                self.join()?;
                return Err(io::Error::other("a worker ended at once"));
            }
        }
        Ok(())
    }

    /// The address of [`Server::bind`](crate::Server::bind), with the actual port if port 0 was
    /// requested. `unix:inherited` stands for a socket without an address.
    pub fn address(&self) -> &Address {
        &self.addresses[0]
    }

    /// All addresses, in the order in which they were added.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The driver, and the reason for its choice.
    pub fn driver(&self) -> &Choice {
        &self.driver
    }

    /// The number of workers.
    pub fn workers(&self) -> usize {
        self.threads.len()
    }

    /// A handle that ends the server.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until all workers have ended. If a worker fails, the others are ended, too, and the
    /// first error is returned. In a handler this fails with `WouldBlock`, because the call would
    /// block its worker; the server continues.
    pub fn wait(mut self) -> io::Result<()> {
        not_on_a_worker()?;
        self.join()
    }

    fn join(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|_| Err(panicked()));
            if ended.is_err() && result.is_ok() {
                result = ended;
                self.handle.shutdown_now();
            }
        }
        result
    }
}

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
    /// [`Running::addresses`]. After the beginning of a shutdown some are missing.
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

/// Fails on the thread of a worker: waiting for a server there would block the worker.
pub(super) fn not_on_a_worker() -> io::Result<()> {
    match WorkerHandle::current() {
        None => Ok(()),
        Some(_) => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "a handler cannot wait for a server: that would block its worker",
        )),
    }
}
