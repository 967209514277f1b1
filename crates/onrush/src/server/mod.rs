//! The server: its settings (here), its listening sockets, and its threads.
//!
//! Modules, lowest first: `settings` (those that can change) · `socket_file` (files of Unix
//! sockets) · `listening` (binding) · `control` (the state of a server) · `worker_thread` (the
//! thread of a worker) · `passing` (connections between two processes) · `handle` (what ends a
//! server) · `signals` (what ends it from outside) · `running` (all threads).

mod control;
mod handle;
mod listening;
mod passing;
mod running;
mod settings;
mod signals;
mod socket_file;
mod worker_thread;

pub use crate::engine::ConnectionFacts;
use crate::engine::{OVER_LIMIT_MAX, OVER_LIMIT_MIN, Settings, TlsSettings, UNSENT_BYTES_MAX};
use crate::handler::Application;
use crate::limits::Limits;
use crate::log::AccessLog;
use crate::metrics::Metrics;
use crate::offload;
#[cfg(feature = "tls")]
use crate::tls::{TlsConfig, session::Session};
use crate::trusted_peers::TrustedPeers;
use crate::watchdog::Watchdog;
use crate::worker_set::{Placement, WorkerSet};
use control::Control;
pub use handle::Handle;
pub use listening::ListeningSockets;
use listening::{How, Listening};
#[cfg(feature = "coroutine")]
use onrush_coroutine as stacks;
use onrush_rt::blocking;
use onrush_rt::descriptors::Descriptors;
use onrush_rt::driver::{self, Preference, choose};
use onrush_rt::environment::Environment;
use onrush_rt::net::{ListenMode, ListenOptions};
use onrush_rt::worker::{Pools, affinity};
pub use passing::{PassedConnection, Passing};
pub use running::Running;
use running::not_on_a_worker;
pub use settings::RunningSettings;
use signals::EndBySignal;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use worker_thread::WorkerThread;

/// Builds and starts a server.
///
/// # Examples
/// ```no_run
/// use onrush::{AccessLog, Limits, Request, Response, Server};
/// use std::time::Duration;
///
/// async fn hello(_: Request) -> Response {
///     Response::text("Hello, World!")
/// }
///
/// fn main() -> std::io::Result<()> {
///     Server::bind("0.0.0.0:8080")
///         .also_bind("unix:/run/hello.sock")
///         .workers(4)
///         .connections_max(10_000)
///         .limits(Limits::default().body_bytes_max(1 << 20))
///         .access_log(AccessLog::On)
///         .drain_timeout(Duration::from_secs(10))
///         .serve(hello)
/// }
/// ```
#[derive(Debug)]
#[must_use = "nothing is served before `serve` or `start`"]
pub struct Server {
    addresses: Vec<String>,
    plain_addresses: Vec<String>,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
    inherited: Vec<OwnedFd>,
    existing: Vec<ListeningSockets>,
    workers: Option<usize>,
    pinned: bool,
    preference: Preference,
    listen_mode: ListenMode,
    placement: Placement,
    listen: ListenOptions,
    running: RunningSettings,
    driver: driver::Config,
    descriptors: Descriptors,
    metrics: Option<Metrics>,
    proxy_protocol: bool,
    half_close: bool,
    http2: bool,
    extended_connect: bool,
    graceful: bool,
    blocking_threads: usize,
    blocking_pool: Option<blocking::BlockingPool>,
    offload: offload::OffloadOptions,
    offload_pool: Option<offload::OffloadPool>,
    #[cfg(feature = "coroutine")]
    stacks: stacks::StackOptions,
}

impl Server {
    /// Creates a server for `address`: `"127.0.0.1:8080"`, `"[::1]:0"` (port 0: any free port),
    /// `"localhost:8080"` (the first address of the name), or `"unix:/run/app.sock"`.
    ///
    /// [`Server::serve`] and [`Server::start`] bind the address and report its errors. The file of
    /// a Unix socket is removed when the server has ended.
    ///
    /// # Examples
    /// ```
    /// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
    /// let error = onrush::Server::bind("port 8080").start(hello).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    /// ```
    pub fn bind(address: impl Into<String>) -> Server {
        Server {
            addresses: vec![address.into()],
            plain_addresses: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
            inherited: Vec::new(),
            existing: Vec::new(),
            workers: None,
            pinned: true,
            preference: Preference::Auto,
            listen_mode: ListenMode::PerWorker,
            placement: Placement::default(),
            listen: ListenOptions {
                defer_accept: true,
                unsent_bytes_max: UNSENT_BYTES_MAX,
                ..ListenOptions::default()
            },
            running: RunningSettings::new(Limits::default()),
            driver: driver::Config::default(),
            descriptors: Descriptors::default(),
            metrics: None,
            proxy_protocol: false,
            half_close: false,
            http2: true,
            extended_connect: false,
            graceful: false,
            blocking_threads: 16,
            blocking_pool: None,
            offload: offload::OffloadOptions::default(),
            offload_pool: None,
            #[cfg(feature = "coroutine")]
            stacks: stacks::StackOptions::default(),
        }
    }

    /// Adds an address in the form of [`Server::bind`]. The workers accept from all addresses.
    pub fn also_bind(mut self, address: impl Into<String>) -> Server {
        self.addresses.push(address.into());
        self
    }

    /// Serves HTTPS with this configuration on all addresses of [`Server::bind`] and
    /// [`Server::also_bind`], and on inherited sockets. [`Server::also_bind_plain`] adds addresses
    /// without TLS.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
    /// use onrush::Server;
    /// use onrush::tls::TlsConfig;
    ///
    /// let tls = TlsConfig::from_files("cert.pem", "key.pem")?;
    /// Server::bind("0.0.0.0:443").tls(tls).serve(hello)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: impl Into<TlsConfig>) -> Server {
        self.tls = Some(config.into());
        self
    }

    /// Adds an address in the form of [`Server::bind`] that serves HTTP without TLS, whether or not
    /// the other addresses use TLS.
    pub fn also_bind_plain(mut self, address: impl Into<String>) -> Server {
        self.plain_addresses.push(address.into());
        self
    }

    /// Sets the number of workers from the environment variable `ONRUSH_WORKERS`, and the driver
    /// from `ONRUSH_DRIVER` (`auto`, `io_uring`, `epoll`), if they are set. Fails with
    /// `InvalidInput` and a message if a value is invalid.
    pub fn from_env(mut self) -> io::Result<Server> {
        let environment = Environment::read()?;
        self.workers = environment.workers.or(self.workers);
        self.preference = environment.driver.unwrap_or(self.preference);
        Ok(self)
    }

    /// Serves on these listening sockets, for example from a supervisor, instead of the addresses.
    /// All workers share them. They are made non-blocking. Without sockets this has no effect.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
    /// use onrush::Server;
    /// use std::net::TcpListener;
    ///
    /// let listener = TcpListener::bind("127.0.0.1:8080")?;
    /// // The address is not bound.
    /// Server::bind("127.0.0.1:0").inherit(vec![listener.into()]).serve(hello)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn inherit(mut self, sockets: Vec<OwnedFd>) -> Server {
        self.inherited = sockets;
        self
    }

    /// Listens with these sockets, and does not bind the address that they name. An address that
    /// two calls of [`Server::also_bind`] have given takes two values of this. They are made
    /// non-blocking, and get the options of this server, except for the backlog. Each is accepted
    /// from, whatever the number of workers is.
    ///
    /// This is how a server continues on the sockets of an earlier process:
    /// [`Handle::listening`] returns them.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
    /// use onrush::{ListeningSockets, Server};
    /// use std::net::TcpListener;
    ///
    /// let sockets = ListeningSockets {
    ///     address: "127.0.0.1:0".to_owned(),
    ///     sockets: vec![TcpListener::bind("127.0.0.1:8080")?.into()],
    ///     is_shared: false,
    /// };
    /// Server::bind("127.0.0.1:0").listen_with(sockets).serve(hello)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn listen_with(mut self, sockets: ListeningSockets) -> Server {
        if !sockets.sockets.is_empty() {
            self.existing.push(sockets);
        }
        self
    }

    /// The number of workers, at least 1. Default: one for each core that the calling thread may
    /// run on (`sched_getaffinity(2)`).
    pub fn workers(mut self, workers: usize) -> Server {
        self.workers = Some(workers.max(1));
        self
    }

    /// Whether each worker is pinned to a core (`sched_setaffinity(2)`). Default: yes. Without
    /// effect if there are more workers than cores.
    pub fn pinned(mut self, pinned: bool) -> Server {
        self.pinned = pinned;
        self
    }

    /// The driver. Default: the better one of those that work on this system.
    pub fn driver(mut self, preference: Preference) -> Server {
        self.preference = preference;
        self
    }

    /// The sizes of the driver's buffers, and the limit on the receive memory of each worker.
    pub fn driver_config(mut self, config: driver::Config) -> Server {
        self.driver = config;
        self
    }

    /// How the workers accept from one address: with one listener each (the default,
    /// `SO_REUSEPORT`), or with a shared one.
    pub fn listen_mode(mut self, listen_mode: ListenMode) -> Server {
        self.listen_mode = listen_mode;
        self
    }

    /// How new connections are distributed to the workers. Default: [`Placement::LeastLoaded`].
    pub fn placement(mut self, placement: Placement) -> Server {
        self.placement = placement;
        self
    }

    /// Whether a worker that is busier than others transfers connections to them between two
    /// requests. The workers compare their load ten times a second. Default: yes.
    pub fn rebalance(mut self, rebalance: bool) -> Server {
        self.running.rebalance = rebalance;
        self
    }

    /// Whether a connection is accepted only when its first bytes have arrived, or after a second
    /// without any (`TCP_DEFER_ACCEPT`, tcp(7)). Default: yes.
    ///
    /// This halves the cost of a connection for a single request. Until it is accepted, a silent
    /// connection needs no descriptor. If the server ends within that second, a silent client
    /// notices it only when it sends.
    pub fn defer_accept(mut self, defer: bool) -> Server {
        self.listen.defer_accept = defer;
        self
    }

    /// The number of connections that the kernel queues for each listener (`listen(2)`). Default:
    /// 4096. The kernel caps it by `net.core.somaxconn`.
    pub fn backlog(mut self, connections: u32) -> Server {
        self.listen.backlog = connections;
        self
    }

    /// The limits on the memory and the time of requests.
    pub fn limits(mut self, limits: Limits) -> Server {
        self.running.limits = limits;
        self
    }

    /// The maximum number of open connections of all workers together. Default: no limit other than
    /// the number of descriptors.
    ///
    /// For a connection beyond the limit, the worker that accepts it closes the one of its
    /// connections that has been idle for the longest time. If none is idle, the new connection
    /// receives 503 and is closed; with TLS it is closed without a response.
    pub fn connections_max(mut self, connections: usize) -> Server {
        self.running.connections_max = connections;
        self
    }

    /// Counts connections in a budget of descriptors that they share with files. If the budget is
    /// used up, idle connections are closed as with [`Server::connections_max`]. Default: no limit.
    pub fn descriptors(mut self, descriptors: &Descriptors) -> Server {
        self.descriptors = descriptors.clone();
        self
    }

    /// Whether the end of each exchange emits a log event: see [`AccessLog::On`]. Default: off.
    pub fn access_log(mut self, access_log: AccessLog) -> Server {
        self.running.access_log = access_log;
        self
    }

    /// Counts connections and requests in `metrics`. Default: they are not counted.
    pub fn metrics(mut self, metrics: &Metrics) -> Server {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Each connection begins with a header of the PROXY protocol, version 1 or 2, before TLS if
    /// there is TLS. It names the client, which [`Request::peer`](crate::Request::peer) returns
    /// then. Connections of peers that are not `trusted` are closed, and so are those that begin
    /// with other bytes, or take longer than `Limits::head_timeout`. Default: without it.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
    /// use onrush::{Server, TrustedPeers};
    ///
    /// let balancers = TrustedPeers::new(["10.0.0.0/8".parse().expect("a network")]);
    /// Server::bind("0.0.0.0:8080").proxy_protocol(balancers).serve(hello)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn proxy_protocol(mut self, trusted: TrustedPeers) -> Server {
        self.proxy_protocol = true;
        self.running.trusted_proxies = trusted;
        self
    }

    /// Whether clients may speak HTTP/2 without TLS. They begin to speak it at once, by prior
    /// knowledge (RFC 9113 §3.3); an `Upgrade: h2c` is ignored. Default: yes. With TLS, the
    /// handshake decides: see [`TlsConfigBuilder::alpn`](crate::tls::TlsConfigBuilder::alpn).
    ///
    /// # Examples
    /// ```no_run
    /// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
    /// onrush::Server::bind("127.0.0.1:8080").http2(false).serve(hello)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn http2(mut self, http2: bool) -> Server {
        self.http2 = http2;
        self
    }

    /// Whether requests of HTTP/2 may ask for another protocol, such as WebSocket: extended CONNECT
    /// (RFC 8441), which [`Request::upgrade`](crate::Request::upgrade) answers as an upgrade of
    /// HTTP/1.1. Default: no.
    ///
    /// With `true`, browsers open WebSockets by CONNECT on the connection that they have, and do
    /// not try HTTP/1.1 if that fails; otherwise by GET on connections of HTTP/1.1. So first let
    /// the handler have both methods ([`Router::any`](crate::Router::any)) and do without the field
    /// `Sec-WebSocket-Key`, which only HTTP/1.1 has. The server cannot know which handlers do.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn chat(_: onrush::Request) -> &'static str { "hello" }
    /// use onrush::{Router, Server};
    ///
    /// let router = Router::new().any("/chat", chat);
    /// Server::bind("0.0.0.0:443").extended_connect(true).serve(router)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn extended_connect(mut self, extended_connect: bool) -> Server {
        self.extended_connect = extended_connect;
        self
    }

    /// Whether a client that ends its sending side (`SHUT_WR`) still gets a response that is not
    /// ready at once. Default: no.
    ///
    /// The server cannot distinguish such a client from one that has closed the connection, before
    /// something is sent to it. So by default, the handler, or the response that is being made, is
    /// dropped as soon as the client has gone, and responses that wait for long hold nothing for
    /// nobody. Content in memory and files that are being sent are sent to their end: the client
    /// may still read. With `true` they go on until something is sent in vain: for clients such as
    /// `nc -N`, and for handlers that must complete what was asked for.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn news(_: onrush::Request) -> &'static str { "news" }
    /// onrush::Server::bind("127.0.0.1:8080").half_close(true).serve(news)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn half_close(mut self, half_close: bool) -> Server {
        self.half_close = half_close;
        self
    }

    /// The maximum duration of [`Handle::shutdown`]. Connections that are still open are then
    /// closed. [`Duration::MAX`] means no limit. Default: 30 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Server {
        self.running.drain_timeout = timeout;
        self
    }

    /// SIGTERM and SIGINT (Ctrl-C) end the server, and [`Server::serve`] returns `Ok`: as
    /// [`Handle::shutdown`], for at most `timeout`, which sets [`Server::drain_timeout`]. A second
    /// signal ends it at once. What ends the process from outside should wait longer: Kubernetes
    /// waits for 30 s by default. Afterwards the signals end the process again, as by default.
    /// Default: the signals end the process, and requests in progress are lost.
    ///
    /// With [`Server::start`], the signals do so until [`Running::wait`] returns or the [`Running`]
    /// is dropped.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn hello(_: onrush::Request) -> &'static str { "hello" }
    /// use onrush::Server;
    /// use std::time::Duration;
    ///
    /// Server::bind("0.0.0.0:8080").graceful(Duration::from_secs(10)).serve(hello)?;
    /// println!("every request has its response");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn graceful(mut self, timeout: Duration) -> Server {
        self.graceful = true;
        self.drain_timeout(timeout)
    }

    /// The maximum number of threads for
    /// [`WorkerHandle::blocking`](crate::WorkerHandle::blocking), at least 1. All workers share
    /// them. Default: 16.
    pub fn blocking_threads(mut self, threads: usize) -> Server {
        self.blocking_threads = threads.max(1);
        self
    }

    /// Uses this pool for [`WorkerHandle::blocking`](crate::WorkerHandle::blocking) instead of a
    /// new one, for example to share its threads with a store.
    pub fn blocking_pool(mut self, pool: blocking::BlockingPool) -> Server {
        self.blocking_pool = Some(pool);
        self
    }

    /// The limits of the pool for [`offload()`](crate::offload()): threads, queue and longest wait.
    /// All workers share the pool.
    pub fn offload(mut self, options: offload::OffloadOptions) -> Server {
        self.offload = options;
        self
    }

    /// Uses this pool for [`offload()`](crate::offload()) instead of a new one, for example to
    /// share its threads with another server of the process.
    pub fn offload_pool(mut self, pool: offload::OffloadPool) -> Server {
        self.offload_pool = Some(pool);
        self
    }

    /// The address space of the stack of each coroutine handler, in bytes, at least 32 KiB.
    /// Default: 256 KiB. A handler uses only the memory that it touches. A handler that overflows
    /// its stack ends the process. See [`crate::coroutine`].
    #[cfg(feature = "coroutine")]
    pub fn coroutine_stack_bytes(mut self, bytes: usize) -> Server {
        self.stacks.stack_bytes = bytes;
        self
    }

    /// Binds and serves until a worker fails, or until a signal arrives with
    /// [`Server::graceful`]. [`Server::start`] returns a handle that ends the server.
    ///
    /// The calling thread runs one of the workers, and its CPU affinity is restored afterwards. So
    /// a server with one worker has no other thread, except for blocking calls and CPU-bound work.
    /// In a process with one thread, system calls need not count references to descriptors (`fdget`
    /// in the kernel).
    ///
    /// # Errors
    /// As for [`Server::start`], and `WouldBlock` in a handler, because the call would block its
    /// worker.
    pub fn serve(self, application: impl Application) -> io::Result<()> {
        not_on_a_worker()?;
        let signals = self.graceful.then(EndBySignal::install).transpose()?;
        let (mut running, mut threads) = self.prepare(application)?;
        let own = threads.remove(0);
        running.spawn(threads)?;
        signals.map_or(Ok(()), |signals| running.end_by(signals))?;
        let result = own.run_here();
        result.and(running.wait())
    }

    /// Binds, starts a thread for each worker, and returns when all of them are ready to accept.
    ///
    /// # Errors
    /// - `InvalidInput`: an address has an invalid form, or its host name cannot be resolved.
    /// - `AddrInUse`, `AddrNotAvailable`, `PermissionDenied` and other errors of `bind(2)`.
    /// - The error of `io_uring_setup(2)` if [`Server::driver`] requires a driver that the system
    ///   refuses.
    /// - Any error of a worker that starts. The other workers are ended before this returns.
    pub fn start(self, application: impl Application) -> io::Result<Running> {
        let signals = self.graceful.then(EndBySignal::install).transpose()?;
        let (mut running, threads) = self.prepare(application)?;
        running.spawn(threads)?;
        signals.map_or(Ok(()), |signals| running.end_by(signals))?;
        Ok(running)
    }

    /// Binds and chooses the driver. Returns the threads of the workers, not started yet, in order
    /// of their index.
    fn prepare(
        mut self,
        application: impl Application,
    ) -> io::Result<(Running, Vec<WorkerThread>)> {
        let cores = affinity();
        let workers = self.workers.unwrap_or(cores.len());
        let choice = choose(self.preference, &self.driver)?;
        tracing::debug!(
            driver = choice.name(),
            reason = choice.reason(),
            workers,
            "starting"
        );
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            Session::check(tls).map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("TLS: {error}"))
            })?;
        }
        let Listening {
            sockets,
            slots,
            given,
            addresses,
            files,
        } = self.listen(workers)?;
        let shared: Arc<[bool]> = slots.iter().map(|slot| slot.is_shared).collect();
        let files = Arc::new(files);
        let pools = self.pools();
        if let Some(metrics) = &self.metrics {
            metrics.offload_pool(pools.offload.stats_handle());
            #[cfg(feature = "tls")]
            if let Some(tls) = &self.tls {
                metrics.certificates().add(tls);
            }
        }
        let uses_tls = slots.iter().map(|slot| slot.uses_tls).collect();
        let settings = self.settings(workers, uses_tls);
        let control = Arc::new(Control::new(&settings, self.running.clone(), slots, given));
        let application: Arc<dyn Application> = Arc::new(application);
        let pinned = self.pinned && workers <= cores.len();
        let thread = |(index, sockets)| WorkerThread {
            index,
            core: pinned.then(|| cores[index]),
            choice: choice.clone(),
            config: self.driver.clone(),
            settings: settings.clone(),
            sockets,
            socket_files: files.clone(),
            shared: shared.clone(),
            pools: pools.clone(),
            application: application.clone(),
            #[cfg(feature = "coroutine")]
            stacks: self.stacks.clone(),
            control: control.clone(),
        };
        let threads = sockets.into_iter().enumerate().map(thread).collect();
        Ok((
            Running::new(addresses, choice.clone(), control.clone()),
            threads,
        ))
    }

    /// Binds the addresses, or takes the sockets that exist.
    fn listen(&mut self, workers: usize) -> io::Result<Listening> {
        let accepting = match self.placement {
            Placement::Single => 1, // Only the first worker accepts.
            _ => workers,
        };
        let existing = std::mem::take(&mut self.existing);
        let how = How {
            mode: self.listen_mode,
            options: &self.listen,
            workers,
            accepting,
        };
        if !self.inherited.is_empty() {
            return Listening::inherit(std::mem::take(&mut self.inherited), &how);
        }
        let with = self.addresses.iter().map(|address| (address, true));
        let without = self.plain_addresses.iter().map(|address| (address, false));
        Listening::bind(with.chain(without), existing, &how)
    }

    /// The configured pools, or new ones.
    fn pools(&mut self) -> Pools {
        let blocking = self.blocking_pool.take();
        let offload = self.offload_pool.take();
        Pools {
            blocking: blocking
                .unwrap_or_else(|| blocking::BlockingPool::threads(self.blocking_threads, 4096)),
            offload: offload.unwrap_or_else(|| offload::OffloadPool::new(&self.offload)),
        }
    }

    #[cfg(feature = "tls")]
    fn tls_settings(&self, listeners: Vec<bool>) -> Option<TlsSettings> {
        let config = self.tls.clone()?;
        Some(TlsSettings { config, listeners })
    }

    #[cfg(not(feature = "tls"))]
    fn tls_settings(&self, _: Vec<bool>) -> Option<TlsSettings> {
        None
    }

    /// `uses_tls`: for each socket of a worker.
    fn settings(&self, workers: usize, uses_tls: Vec<bool>) -> Settings {
        let connections_max =
            (self.running.connections_max).min(self.descriptors.connections_max());
        Settings {
            running: self.running.to_engine(),
            connections: Arc::default(),
            descriptors: self.descriptors.clone(),
            over_limit_max: (connections_max / 32 / workers).clamp(OVER_LIMIT_MIN, OVER_LIMIT_MAX),
            accept_warned_s: Arc::default(),
            tls: self.tls_settings(uses_tls),
            metrics: self.metrics.clone(),
            proxy_protocol: self.proxy_protocol,
            half_close: self.half_close,
            http2: self.http2,
            extended_connect: self.extended_connect,
            worker_set: Arc::new(WorkerSet::new(workers, self.placement)),
            watchdog: Arc::new(Watchdog::new(workers)),
        }
    }
}
