//! The server: listening sockets, one thread per worker, and their end.
//!
//! Files, lowest first: `control` · `socket_file` · `worker_thread`. Must not know what the
//! application does.

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
    /// A server for `address`: `"127.0.0.1:8080"`, `"[::1]:0"` (0: any free port), or
    /// `"unix:/run/app.sock"`. Nothing is bound before [`Server::start`]. The file of a Unix socket
    /// is removed when the server has ended.
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

    /// Listens on this address too, written as for [`Server::bind`]. Every worker accepts from all
    /// addresses.
    pub fn also_bind(mut self, address: impl Into<String>) -> Server {
        self.addresses.push(address.into());
        self
    }

    /// Takes `ONRUSH_WORKERS` (a number) and `ONRUSH_DRIVER` (`auto`, `io_uring`, `epoll`) from the
    /// environment, where they are set. Fails with what is wrong with them.
    pub fn from_env(mut self) -> io::Result<Server> {
        let environment = Environment::read()?;
        self.workers = environment.workers.or(self.workers);
        self.preference = environment.driver.unwrap_or(self.preference);
        Ok(self)
    }

    /// Serves on listening sockets made by somebody else (a supervisor, say) instead of an address.
    /// All workers share them.
    pub fn inherit(mut self, sockets: Vec<OwnedFd>) -> Server {
        self.inherited = sockets;
        self
    }

    /// The number of workers; by default one for each core this process may run on.
    pub fn workers(mut self, workers: usize) -> Server {
        self.workers = Some(workers.max(1));
        self
    }

    /// Whether workers are pinned to one core each (default: yes, when there are cores enough).
    pub fn pinned(mut self, pinned: bool) -> Server {
        self.pinned = pinned;
        self
    }

    /// Which driver to use.
    pub fn driver(mut self, preference: Preference) -> Server {
        self.preference = preference;
        self
    }

    /// Sizes the driver is built with.
    pub fn driver_config(mut self, config: driver::Config) -> Server {
        self.driver = config;
        self
    }

    /// How the workers accept from one address: with a listener each (the default), or with one.
    pub fn listen_mode(mut self, listen_mode: ListenMode) -> Server {
        self.listen_mode = listen_mode;
        self
    }

    /// Which worker a new connection is served by. Default: the one that has the fewest.
    pub fn placement(mut self, placement: Placement) -> Server {
        self.placement = placement;
        self
    }

    /// Whether a worker that is busier than others passes live connections to them, between two
    /// requests. On by default; workers look ten times a second.
    pub fn rebalance(mut self, rebalance: bool) -> Server {
        self.rebalance = rebalance;
        self
    }

    /// Whether a connection is accepted only when its first bytes have come, or after a second
    /// without any (`TCP_DEFER_ACCEPT`, tcp(7)). On by default: it halves what a connection for a
    /// single request costs. Who connects and is silent costs no descriptor meanwhile; when the
    /// server ends within that second, such a client learns it only when it sends.
    pub fn defer_accept(mut self, defer: bool) -> Server {
        self.listen.defer_accept = defer;
        self
    }

    /// Connections the kernel queues for each listener before it refuses more. Default 4096.
    pub fn backlog(mut self, connections: u32) -> Server {
        self.listen.backlog = connections;
        self
    }

    /// Bounds on requests, in bytes and time.
    pub fn limits(mut self, limits: Limits) -> Server {
        self.limits = limits;
        self
    }

    /// Open connections at most, all workers together. For one more, the worker that accepts it
    /// closes the one that it has had idle for the longest time; when it has none, the new one is
    /// answered 503. Unlimited by default: the number of descriptors ends it.
    pub fn connections_max(mut self, connections: usize) -> Server {
        self.connections_max = connections;
        self
    }

    /// Counts connections in a budget of descriptors that they share with files. When it has no
    /// room, idle connections make it, as with [`Server::connections_max`]. Without a limit by
    /// default.
    pub fn descriptors(mut self, descriptors: &Descriptors) -> Server {
        self.descriptors = descriptors.clone();
        self
    }

    /// Whether each exchange makes a log event when it ends: see [`AccessLog::On`]. Default: off.
    pub fn access_log(mut self, access_log: AccessLog) -> Server {
        self.access_log = access_log;
        self
    }

    /// Has connections and requests counted in `metrics`. Not counted by default.
    pub fn metrics(mut self, metrics: &Metrics) -> Server {
        self.metrics = Some(metrics.clone());
        self
    }

    /// How long requests in flight may take when the server is told to end. Default 30 s.
    pub fn drain_timeout(mut self, timeout: Duration) -> Server {
        self.drain_timeout = timeout;
        self
    }

    /// Threads for file work that may block, at most, for all workers. Default 16.
    pub fn blocking_threads(mut self, threads: usize) -> Server {
        self.blocking_threads = threads.max(1);
        self
    }

    /// Uses this pool for file work that may block, instead of one of its own: a store's, say, so
    /// that both together keep to one number of threads.
    pub fn blocking_pool(mut self, pool: blocking::BlockingPool) -> Server {
        self.blocking_pool = Some(pool);
        self
    }

    /// Bounds of the pool that [`offload()`](crate::offload()) gives CPU work to, one for all
    /// workers: threads, queue, longest wait.
    pub fn offload(mut self, options: offload::OffloadOptions) -> Server {
        self.offload = options;
        self
    }

    /// Uses this pool for CPU work instead of one of its own: so that several servers of one
    /// process keep to one number of threads together.
    pub fn offload_pool(mut self, pool: offload::OffloadPool) -> Server {
        self.offload_pool = Some(pool);
        self
    }

    /// Address space of each stack that a handler runs on which is a coroutine, in bytes. Default:
    /// 256 KiB. Memory is used only as far as a handler touches it; one that needs more than there
    /// is ends the process. See [`crate::coroutine`].
    pub fn coroutine_stack_bytes(mut self, bytes: usize) -> Server {
        self.stacks.stack_bytes = bytes;
        self
    }

    /// Serves until [`Handle::shutdown`] is called, or a worker fails.
    ///
    /// The calling thread is one of the workers: with one worker there is no other thread, unless
    /// for work that may block, and a process with one thread needs no reference to a descriptor
    /// in each call (in the kernel, `fdget`). Afterwards it may run where it might before.
    ///
    /// Fails as [`Server::start`] does, and with `WouldBlock` on a thread that runs a worker (in a
    /// handler), which must not be blocked until another server ends.
    pub fn serve(self, application: impl Application) -> io::Result<()> {
        not_on_a_worker()?;
        let (mut running, mut jobs) = self.prepare(application)?;
        let own = jobs.remove(0);
        running.spawn(jobs)?;
        let result = own.run_here();
        result.and(running.wait())
    }

    /// Binds, starts the workers and returns while they serve.
    ///
    /// Fails, before any thread runs on, with a wrong or occupied address, a refused driver, or
    /// whatever else a worker needs and cannot have.
    pub fn start(self, application: impl Application) -> io::Result<Running> {
        let (mut running, jobs) = self.prepare(application)?;
        running.spawn(jobs)?;
        Ok(running)
    }

    /// Binds. Gives one job for each worker, the first of worker 0.
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

    /// Those it was given, and others of its own.
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

    /// Binds what is to be listened on.
    fn listen(&mut self, workers: usize) -> io::Result<Listening> {
        let mut lists: Vec<Vec<ListenSocket>> = (0..workers).map(|_| Vec::new()).collect();
        if !self.inherited.is_empty() {
            for socket in self.inherited.drain(..) {
                // Those beyond the first are closed again where one worker is to accept.
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

/// What a server listens on.
struct Listening {
    /// One list for each worker.
    sockets: Vec<Vec<ListenSocket>>,
    /// One or more, to be shown.
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
#[derive(Clone, Debug)]
pub struct Handle(Arc<Control>);

impl Handle {
    /// Stops accepting, answers what is in flight within the drain time-out, then ends.
    pub fn shutdown(&self) {
        self.0.set(DRAINING);
    }

    /// Ends at once; requests in flight are lost.
    pub fn shutdown_now(&self) {
        self.0.set(ENDING);
    }

    /// Whether the server was told to end.
    pub fn is_ending(&self) -> bool {
        self.0.state() != RUNNING
    }
}

/// A server at work.
#[derive(Debug)]
pub struct Running {
    addresses: Vec<Address>,
    driver: Choice,
    handle: Handle,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Running {
    /// Starts a thread for each job and waits until all are ready. Fails with whatever one of them
    /// fails with, when all have ended.
    fn spawn(&mut self, jobs: Vec<WorkerThread>) -> io::Result<()> {
        let (ready, readiness) = mpsc::channel();
        for job in jobs {
            let ready = ready.clone();
            let thread = std::thread::Builder::new().name(format!("onrush-{}", job.index));
            let ready = move || {
                let _ = ready.send(()); // Whoever waits may have given up on another worker.
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
            // A worker that ended before it was ready has dropped its end of the channel.
            if readiness.recv().is_err() {
                self.handle.shutdown_now();
                self.join()?;
                return Err(io::Error::other("a worker ended at once"));
            }
        }
        Ok(())
    }

    /// The address it serves; tells the port when 0 was asked for.
    /// With several addresses, the one of [`Server::bind`].
    pub fn address(&self) -> &Address {
        &self.addresses[0]
    }

    /// All addresses that it serves, in the order in which they were given.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The driver in use, and why.
    pub fn driver(&self) -> &Choice {
        &self.driver
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.threads.len()
    }

    /// What ends it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until all workers have ended; gives the first failure among them, on which the others
    /// are ended too. On a thread that runs a worker (in a handler) it fails with `WouldBlock`,
    /// and the server goes on without anybody waiting for it.
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

/// Fails where waiting for a server would block a worker, perhaps one of that very server.
fn not_on_a_worker() -> io::Result<()> {
    match WorkerHandle::current() {
        None => Ok(()),
        Some(_) => Err(io::Error::new(
            io::ErrorKind::WouldBlock,
            "a handler cannot wait for a server: its worker would serve nobody meanwhile",
        )),
    }
}

/// The end of a worker that panicked, or of an application that could not be made.
fn panicked() -> io::Error {
    io::Error::other("a worker panicked")
}
