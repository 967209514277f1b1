//! A server on the simulated network, for tests: the same engine and the same handlers, with a
//! network, a clock and interruptions that a seed decides.
//!
//! ```
//! use onrush::{Request, Response, Limits, sim::Simulation};
//! async fn hello(_: Request) -> Response { Response::text("hi") }
//! let mut sim = Simulation::new(7, &hello, Limits::default());
//! let client = sim.connect();
//! sim.send(&client, b"GET / HTTP/1.1\r\nHost: test\r\n\r\n");
//! assert!(client.receive().unwrap().starts_with(b"HTTP/1.1 200 OK\r\n"));
//! ```

use crate::engine::{CROWD_MAX, Engine, Inlet, Settings};
use crate::handler::Application;
use crate::log::AccessLog;
use crate::metrics::{Counters, Metrics};
use onrush_proto::limits::Limits;
use onrush_rt::driver::sim::{Address, Behaviour, Client, Net};
use onrush_rt::offload;
use onrush_rt::worker::{Local, Pools, Worker};
use std::rc::Rc;
use std::sync::Arc;

/// One simulated worker with one listener.
#[derive(Debug)]
pub struct Simulation {
    net: Net,
    address: Address,
    worker: Worker,
    engine: Rc<Engine>,
    inlet: Inlet,
}

impl Simulation {
    /// A server of `application` on a network that splits and delays as `seed` says.
    pub fn new(seed: u64, application: &impl Application, limits: Limits) -> Simulation {
        Simulation::with_behaviour(seed, application, limits, Behaviour::default())
    }

    /// The same on a network that behaves as told.
    pub fn with_behaviour(
        seed: u64,
        application: &impl Application,
        limits: Limits,
        behaviour: Behaviour,
    ) -> Simulation {
        Simulation::build(seed, application, limits, behaviour, None, Pools::inline())
    }

    /// The same, counted in `metrics`.
    pub fn with_metrics(
        seed: u64,
        application: &impl Application,
        limits: Limits,
        behaviour: Behaviour,
        metrics: &Metrics,
    ) -> Simulation {
        let (metrics, pools) = (Some(metrics.clone()), Pools::inline());
        Simulation::build(seed, application, limits, behaviour, metrics, pools)
    }

    /// The same with a pool for CPU work that is not inline: one whose jobs are run by hand, say
    /// ([`offload::Pool::by_hand`]).
    pub fn with_offload(
        seed: u64,
        application: &impl Application,
        limits: Limits,
        behaviour: Behaviour,
        metrics: &Metrics,
        offload: offload::Pool,
    ) -> Simulation {
        let pools = Pools {
            offload,
            ..Pools::inline()
        };
        let metrics = Some(metrics.clone());
        Simulation::build(seed, application, limits, behaviour, metrics, pools)
    }

    fn build(
        seed: u64,
        application: &impl Application,
        limits: Limits,
        behaviour: Behaviour,
        metrics: Option<Metrics>,
        pools: Pools,
    ) -> Simulation {
        let net = Net::new(seed, behaviour);
        if let Some(metrics) = &metrics {
            metrics.offload_pool(pools.offload.watch());
        }
        let worker = Worker::simulated_with(net.clone(), pools, 0).expect("an eventfd can be had");
        let service = application.instantiate(worker.local());
        let settings = Settings {
            limits,
            connections_max: usize::MAX,
            connections: Arc::default(),
            crowd_max: CROWD_MAX,
            accept_warned_s: Arc::default(),
            access_log: AccessLog::Off,
            metrics,
        };
        let engine = Engine::new(worker.local(), settings, service);
        let (listener, address) = net.listen();
        engine
            .listen(listener)
            .expect("simulated listeners fit simulated workers");
        let inlet = Inlet(engine.clone());
        Simulation {
            net,
            address,
            worker,
            engine,
            inlet,
        }
    }

    /// Connects a client.
    ///
    /// # Panics
    /// When the server has stopped accepting.
    pub fn connect(&self) -> Client {
        self.address.connect().expect("the server listens")
    }

    /// Sends all of `bytes`, running the server between the pieces that the network takes, and once
    /// more at the end. Gives the bytes sent: fewer when the server takes no more.
    pub fn send(&mut self, client: &Client, bytes: &[u8]) -> usize {
        let (mut sent, mut refused) = (0, 0);
        while sent < bytes.len() && refused < 3 {
            match client.send(&bytes[sent..]) {
                Ok(0) => refused += 1,
                Ok(n) => (sent, refused) = (sent + n, 0),
                Err(_) => break,
            }
            self.run();
        }
        sent
    }

    /// Runs the server until it waits for its clients or for time to pass.
    pub fn run(&mut self) {
        // A delayed stream is passed over by chance, so one idle turn proves nothing.
        let mut idle = 0;
        while idle < 2 || self.worker.has_work() {
            let busy = self.turn();
            idle = if busy { 0 } else { idle + 1 };
        }
    }

    /// One turn of the worker; whether anything happened.
    pub fn turn(&mut self) -> bool {
        self.worker
            .turn(&self.inlet, false)
            .expect("a simulated driver does not fail")
    }

    /// Lets `ms` milliseconds pass, running the server at each deadline on the way.
    pub fn advance(&mut self, ms: u64) {
        let end = self.net.now_ms() + ms;
        self.run();
        while let Some(next) = self.worker.next_timer_ms().filter(|&next| next <= end) {
            let now = self.net.now_ms();
            self.net
                .advance(next.max(now + 1).min(end.max(now + 1)) - now);
            self.run();
        }
        let now = self.net.now_ms();
        self.net.advance(end.saturating_sub(now));
        self.run();
    }

    /// Begins a graceful end, as [`crate::Handle::shutdown`] does.
    pub fn drain(&mut self) {
        self.engine.drain();
    }

    /// The network.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// The worker's own handle.
    pub fn local(&self) -> &Local {
        self.worker.local()
    }

    /// What the server has counted.
    pub fn counters(&self) -> &Counters {
        self.engine.counters()
    }

    /// Connections open at the server.
    pub fn open_connections(&self) -> usize {
        self.engine.open_connections()
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.engine.close_all();
    }
}
