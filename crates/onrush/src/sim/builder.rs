//! What a simulation consists of.

use super::{Behaviour, RECEIVE_BYTES_MAX, Simulation};
#[cfg(feature = "tls")]
use crate::TlsConfig;
use crate::engine::{OVER_LIMIT_MAX, Settings};
use crate::handler::Application;
use crate::limits::Limits;
use crate::log::AccessLog;
use crate::metrics::Metrics;
use crate::server::RunningSettings;
use crate::trusted_peers::{PeerNetwork, TrustedPeers};
use crate::watchdog::Watchdog;
use crate::worker_set::{Placement, WorkerSet};
use onrush_rt::driver::sim::Net;
use onrush_rt::offload::OffloadPool;
use onrush_rt::worker::Pools;
use std::sync::Arc;

/// The settings of a [`Simulation`], as [`Server`](crate::Server) has those of a server.
/// [`Simulation::builder`] returns them with the same defaults, but one worker.
///
/// # Examples
/// A pool for CPU work whose jobs the test runs itself:
///
/// ```
/// use onrush::offload::{OffloadError, OffloadOptions, OffloadPool, offload};
/// use onrush::{Request, Response, sim::Simulation};
///
/// async fn work(_: Request) -> Result<Response, OffloadError> {
///     Ok(Response::text(offload(|| "worked").await?))
/// }
///
/// let (pool, executor) = OffloadPool::manual(&OffloadOptions::default());
/// let mut sim = Simulation::builder(1).offload_pool(pool).start(&work);
/// let client = sim.connect();
/// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
/// assert!(client.receive()?.is_empty());
/// assert!(executor.run_one());
/// sim.run();
/// assert!(client.receive()?.ends_with(b"worked"));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct SimulationBuilder {
    seed: u64,
    network: Behaviour,
    workers: usize,
    receive_bytes_max: usize,
    offload: Option<OffloadPool>,
    metrics: Option<Metrics>,
    running: RunningSettings,
    proxy_protocol: bool,
    half_close: bool,
    http2: bool,
    extended_connect: bool,
    #[cfg(feature = "tls")]
    tls: Option<TlsConfig>,
}

impl SimulationBuilder {
    pub(super) fn new(seed: u64) -> SimulationBuilder {
        SimulationBuilder {
            seed,
            network: Behaviour::default(),
            workers: 1,
            receive_bytes_max: RECEIVE_BYTES_MAX,
            offload: None,
            metrics: None,
            running: RunningSettings {
                rebalance: false,
                ..RunningSettings::new(Limits::default())
            },
            proxy_protocol: false,
            half_close: false,
            http2: true,
            extended_connect: false,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// How the network behaves.
    ///
    /// # Examples
    /// A client that reads slowly:
    ///
    /// ```
    /// use onrush::sim::{Behaviour, Simulation};
    /// use onrush::{Request, Response};
    ///
    /// async fn large(_: Request) -> Response {
    ///     Response::with_body(vec![b'x'; 100_000])
    /// }
    ///
    /// let network = Behaviour { pipe_bytes: 1000, ..Behaviour::default() };
    /// let mut sim = Simulation::builder(1).network(network).start(&large);
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// assert_eq!(client.receive()?.len(), 1000);
    /// sim.run();
    /// assert_eq!(client.receive()?.len(), 1000);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn network(mut self, behaviour: Behaviour) -> SimulationBuilder {
        self.network = behaviour;
        self
    }

    /// The limits on requests and times.
    pub fn limits(mut self, limits: Limits) -> SimulationBuilder {
        self.running.limits = limits;
        self
    }

    /// The number of workers. The first one accepts and serves all connections;
    /// [`Simulation::migrate`] moves them.
    pub fn workers(mut self, workers: usize) -> SimulationBuilder {
        self.workers = workers.max(1);
        self
    }

    /// The memory of each worker for what it receives, in bytes. Default: 64 MiB.
    pub fn receive_memory(mut self, bytes_max: usize) -> SimulationBuilder {
        self.receive_bytes_max = bytes_max;
        self
    }

    /// See [`Server::connections_max`](crate::Server::connections_max).
    pub fn connections_max(mut self, connections_max: usize) -> SimulationBuilder {
        self.running.connections_max = connections_max;
        self
    }

    /// See [`Server::access_log`](crate::Server::access_log).
    pub fn access_log(mut self, access_log: AccessLog) -> SimulationBuilder {
        self.running.access_log = access_log;
        self
    }

    /// See [`Server::metrics`](crate::Server::metrics).
    pub fn metrics(mut self, metrics: &Metrics) -> SimulationBuilder {
        self.metrics = Some(metrics.clone());
        self
    }

    /// The pool for CPU work. Default: jobs run at once, on the thread of the test.
    pub fn offload_pool(mut self, pool: OffloadPool) -> SimulationBuilder {
        self.offload = Some(pool);
        self
    }

    /// See [`Server::http2`](crate::Server::http2).
    pub fn http2(mut self, http2: bool) -> SimulationBuilder {
        self.http2 = http2;
        self
    }

    /// See [`Server::extended_connect`](crate::Server::extended_connect).
    pub fn extended_connect(mut self, extended_connect: bool) -> SimulationBuilder {
        self.extended_connect = extended_connect;
        self
    }

    /// See [`Server::half_close`](crate::Server::half_close).
    pub fn half_close(mut self, half_close: bool) -> SimulationBuilder {
        self.half_close = half_close;
        self
    }

    /// Whether connections begin with a header of the PROXY protocol. All clients are trusted to
    /// name another address.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Request, Response, sim::Simulation};
    ///
    /// async fn who(request: Request) -> Response {
    ///     Response::text(request.peer().map_or("?".into(), |peer| peer.to_string()))
    /// }
    ///
    /// let mut sim = Simulation::builder(1).proxy_protocol(true).start(&who);
    /// let client = sim.connect();
    /// sim.send(&client, b"PROXY TCP4 192.0.2.1 192.0.2.2 50000 80\r\n");
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// assert!(client.receive()?.ends_with(b"192.0.2.1:50000"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn proxy_protocol(mut self, proxy_protocol: bool) -> SimulationBuilder {
        self.proxy_protocol = proxy_protocol;
        self
    }

    /// Connections use TLS.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: TlsConfig) -> SimulationBuilder {
        self.tls = Some(config);
        self
    }

    /// Starts the workers.
    pub fn start(mut self, application: &impl Application) -> Simulation {
        let mut pools = Pools::inline();
        if let Some(offload) = self.offload.take() {
            pools.offload = offload;
        }
        let net = Net::new(self.seed, std::mem::take(&mut self.network));
        let receive_bytes_max = self.receive_bytes_max;
        Simulation::build(net, application, self.settings(), &pools, receive_bytes_max)
    }

    fn settings(mut self) -> Settings {
        if self.proxy_protocol {
            // Simulated clients have no address, as those of a Unix socket.
            self.running.trusted_proxies = TrustedPeers::new([PeerNetwork::Unix]);
        }
        Settings {
            running: self.running.to_engine(),
            connections: Arc::default(),
            descriptors: Default::default(),
            over_limit_max: OVER_LIMIT_MAX,
            accept_warned_s: Arc::default(),
            #[cfg(feature = "tls")]
            tls: self.tls.map(|config| crate::engine::TlsSettings {
                config,
                listeners: vec![true],
            }),
            #[cfg(not(feature = "tls"))]
            tls: None,
            metrics: self.metrics,
            proxy_protocol: self.proxy_protocol,
            half_close: self.half_close,
            http2: self.http2,
            extended_connect: self.extended_connect,
            worker_set: Arc::new(WorkerSet::new(self.workers, Placement::Single)),
            watchdog: Arc::new(Watchdog::new(self.workers)),
        }
    }
}
