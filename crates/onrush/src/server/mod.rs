//! The server: it binds the listening sockets, starts a thread for each worker, and ends them.
//!
//! Modules, lowest first: `control` · `socket_file` · `worker_thread`.

mod control;
mod socket_file;
mod worker_thread;

use crate::engine::{OVER_LIMIT_MAX, OVER_LIMIT_MIN, Settings, UNSENT_BYTES_MAX};
use crate::handler::Application;
use crate::log::AccessLog;
use crate::metrics::Metrics;
use crate::offload;
use crate::watchdog::Watchdog;
use crate::worker::WorkerHandle;
use crate::worker_set::{Placement, WorkerSet};
use control::{Control, DRAINING, ENDING, RUNNING};
use onrush_proto::limits::Limits;
use onrush_rt::blocking;
use onrush_rt::coroutine as stacks;
use onrush_rt::descriptors::Descriptors;
use onrush_rt::driver::{self, Choice, ListenSocket, Preference, choose};
use onrush_rt::environment::Environment;
use onrush_rt::net::{self, Address, ListenMode, ListenOptions};
use onrush_rt::worker::{Pools, affinity};
use socket_file::SocketFile;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
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
///         .limits(Limits { body_bytes_max: 1 << 20, ..Limits::default() })
///         .access_log(AccessLog::On)
///         .drain_timeout(Duration::from_secs(10))
///         .serve(hello)
/// }
/// ```
#[derive(Debug)]
pub struct Server {
    addresses: Vec<String>,
    inherited: Vec<OwnedFd>,
    workers: Option<usize>,
    pinned: bool,
    preference: Preference,
    listen_mode: ListenMode,
    placement: Placement,
    rebalance: bool,
    listen: ListenOptions,
    limits: Limits,
    driver: driver::Config,
    connections_max: usize,
    descriptors: Descriptors,
    access_log: AccessLog,
    metrics: Option<Metrics>,
    drain_timeout: Duration,
    blocking_threads: usize,
    blocking_pool: Option<blocking::BlockingPool>,
    offload: offload::OffloadOptions,
    offload_pool: Option<offload::OffloadPool>,
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
            inherited: Vec::new(),
            workers: None,
            pinned: true,
            preference: Preference::Auto,
            listen_mode: ListenMode::PerWorker,
            placement: Placement::default(),
            rebalance: true,
            listen: ListenOptions {
                defer_accept: true,
                unsent_bytes_max: UNSENT_BYTES_MAX,
                ..ListenOptions::default()
            },
            limits: Limits::default(),
            driver: driver::Config::default(),
            connections_max: usize::MAX,
            descriptors: Descriptors::default(),
            access_log: AccessLog::Off,
            metrics: None,
            drain_timeout: Duration::from_secs(30),
            blocking_threads: 16,
            blocking_pool: None,
            offload: offload::OffloadOptions::default(),
            offload_pool: None,
            stacks: stacks::StackOptions::default(),
        }
    }

    /// Adds an address in the form of [`Server::bind`]. The workers accept from all addresses.
    pub fn also_bind(mut self, address: impl Into<String>) -> Server {
        self.addresses.push(address.into());
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
        self.rebalance = rebalance;
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

    /// The limits on requests, in bytes and in milliseconds.
    pub fn limits(mut self, limits: Limits) -> Server {
        self.limits = limits;
        self
    }

    /// The maximum number of open connections of all workers together. Default: no limit other than
    /// the number of descriptors.
    ///
    /// For a connection beyond the limit, the worker that accepts it closes the one of its
    /// connections that has been idle for the longest time. If none is idle, the new connection
    /// receives 503 and is closed.
    pub fn connections_max(mut self, connections: usize) -> Server {
        self.connections_max = connections;
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
        self.access_log = access_log;
        self
    }

    /// Counts connections and requests in `metrics`. Default: they are not counted.
    pub fn metrics(mut self, metrics: &Metrics) -> Server {
        self.metrics = Some(metrics.clone());
        self
    }

    /// The maximum duration of [`Handle::shutdown`]. Connections that are still open are then
    /// closed. Default: 30 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Server {
        self.drain_timeout = timeout;
        self
    }

    /// The maximum number of threads for [`WorkerHandle::blocking`], at least 1. All workers share
    /// them. Default: 16.
    pub fn blocking_threads(mut self, threads: usize) -> Server {
        self.blocking_threads = threads.max(1);
        self
    }

    /// Uses this pool for [`WorkerHandle::blocking`] instead of a new one, for example to share its
    /// threads with a store.
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
    pub fn coroutine_stack_bytes(mut self, bytes: usize) -> Server {
        self.stacks.stack_bytes = bytes;
        self
    }

    /// Binds and serves until a worker fails. [`Server::start`] returns a handle that ends the
    /// server.
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
        let (mut running, mut jobs) = self.prepare(application)?;
        let own = jobs.remove(0);
        running.spawn(jobs)?;
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
        let (mut running, jobs) = self.prepare(application)?;
        running.spawn(jobs)?;
        Ok(running)
    }

    /// Binds and chooses the driver. Returns one job for each worker, in order of their index.
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
        let inherited = !self.inherited.is_empty();
        let Listening {
            sockets,
            addresses,
            files,
        } = self.listen(workers)?;
        let files = Arc::new(files);
        let pools = self.pools();
        if let Some(metrics) = &self.metrics {
            metrics.offload_pool(pools.offload.stats_handle());
        }
        let control = Arc::new(Control::default());
        let application: Arc<dyn Application> = Arc::new(application);
        let pinned = self.pinned && workers <= cores.len();
        let settings = self.settings(workers);
        let job = |(index, sockets)| WorkerThread {
            index,
            core: pinned.then(|| cores[index]),
            choice: choice.clone(),
            config: self.driver.clone(),
            settings: settings.clone(),
            sockets,
            _socket_files: files.clone(),
            inherited,
            pools: pools.clone(),
            application: application.clone(),
            stacks: self.stacks.clone(),
            control: control.clone(),
            drain_timeout: self.drain_timeout,
        };
        let jobs = sockets.into_iter().enumerate().map(job).collect();
        let running = Running {
            addresses,
            driver: choice.clone(),
            handle: Handle(control.clone()),
            threads: Vec::new(),
        };
        Ok((running, jobs))
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

    fn settings(&self, workers: usize) -> Settings {
        let connections_max = self.connections_max.min(self.descriptors.connections_max());
        Settings {
            limits: self.limits.clone(),
            connections_max,
            connections: Arc::default(),
            descriptors: self.descriptors.clone(),
            over_limit_max: (connections_max / 32 / workers).clamp(OVER_LIMIT_MIN, OVER_LIMIT_MAX),
            accept_warned_s: Arc::default(),
            access_log: self.access_log,
            metrics: self.metrics.clone(),
            worker_set: Arc::new(WorkerSet::new(workers, self.placement)),
            watchdog: Arc::new(Watchdog::new(workers)),
            rebalance: self.rebalance,
        }
    }

    /// Binds the addresses, or takes the inherited sockets.
    fn listen(&mut self, workers: usize) -> io::Result<Listening> {
        let mut lists: Vec<Vec<ListenSocket>> = (0..workers).map(|_| Vec::new()).collect();
        if !self.inherited.is_empty() {
            for socket in self.inherited.drain(..) {
                // With `Placement::Single` only the first worker accepts.
                let accepting = match self.placement {
                    Placement::Single => 1,
                    _ => workers,
                };
                for (list, socket) in lists.iter_mut().zip(net::share(socket, accepting)?) {
                    list.push(socket);
                }
            }
            return Ok(Listening {
                sockets: lists,
                addresses: vec![Address::Unix("inherited".into())],
                files: Vec::new(),
            });
        }
        let listening = match self.placement {
            Placement::Single => 1,
            _ => workers,
        };
        let (mut addresses, mut files) = (Vec::new(), Vec::new());
        for address in &self.addresses {
            let address = parse_address(address)?;
            let result = net::listen(&address, self.listen_mode, listening, &self.listen);
            let (sockets, address) = result.map_err(|error| explain(&address, error))?;
            if let Address::Unix(path) = &address {
                files.extend(SocketFile::new(path));
            }
            for (list, socket) in lists.iter_mut().zip(sockets) {
                list.push(socket);
            }
            addresses.push(address);
        }
        Ok(Listening {
            sockets: lists,
            addresses,
            files,
        })
    }
}

/// The listening sockets of a server.
struct Listening {
    /// One list for each worker.
    sockets: Vec<Vec<ListenSocket>>,
    /// One or more addresses, for [`Running::addresses`].
    addresses: Vec<Address>,
    files: Vec<SocketFile>,
}

fn parse_address(text: &str) -> io::Result<Address> {
    use std::net::ToSocketAddrs;
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Address::Unix(path.into()));
    }
    let wrong =
        |what: String| io::Error::new(io::ErrorKind::InvalidInput, format!("{text}: {what}"));
    let mut addresses = text.to_socket_addrs().map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => wrong("not an address and port".to_owned()),
        // "failed to lookup address information: Name or service not known"
        _ => match error.to_string().rsplit_once(": ") {
            Some((_, why)) => wrong(format!("no such host ({why})")),
            None => wrong("no such host".to_owned()),
        },
    })?;
    let first = addresses.next();
    (first.map(Address::Tcp)).ok_or_else(|| wrong("no such host".to_owned()))
}

fn explain(address: &Address, error: io::Error) -> io::Error {
    let is_unix = matches!(address, Address::Unix(_));
    let what = match error.kind() {
        io::ErrorKind::AddrInUse if is_unix => "is in use".to_owned(),
        io::ErrorKind::PermissionDenied if is_unix => "may not be created by this user".to_owned(),
        io::ErrorKind::AddrInUse => "is in use by another server; choose another port".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "may not be bound by this user; ports below 1024 need a privilege".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => "is not an address of this machine".to_owned(),
        _ => format!("cannot be listened on: {error}"),
    };
    io::Error::new(error.kind(), format!("{address} {what}"))
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
    /// [`Server::drain_timeout`].
    pub fn shutdown(&self) {
        self.0.set(DRAINING);
    }

    /// Ends the server immediately. Requests in progress are lost.
    pub fn shutdown_now(&self) {
        self.0.set(ENDING);
    }

    /// Whether a shutdown has begun.
    pub fn is_ending(&self) -> bool {
        self.0.state() != RUNNING
    }
}

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
}

impl Running {
    /// Starts a thread for each job and waits until all are ready. If one fails, ends the others,
    /// waits for them, and returns its error.
    fn spawn(&mut self, jobs: Vec<WorkerThread>) -> io::Result<()> {
        let (ready, readiness) = mpsc::channel();
        for job in jobs {
            let ready = ready.clone();
            let thread = std::thread::Builder::new().name(format!("onrush-{}", job.index));
            let ready = move || {
                let _ = ready.send(()); // The receiver is gone if another worker has failed.
            };
            match thread.spawn(move || job.run(ready)) {
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

    /// The address of [`Server::bind`], with the actual port if port 0 was requested. With
    /// [`Server::inherit`] it is the placeholder `unix:inherited`.
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

/// Fails on the thread of a worker: waiting for a server there would block the worker.
fn not_on_a_worker() -> io::Result<()> {
    match WorkerHandle::current() {
        None => Ok(()),
        Some(_) => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "a handler cannot wait for a server: that would block its worker",
        )),
    }
}

/// The error of a worker that panicked, or whose application panicked when it was instantiated.
fn panicked() -> io::Error {
    io::Error::other("a worker panicked")
}
