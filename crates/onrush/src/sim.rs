//! A server on the simulated network, for tests. It has the same engine and the same handlers as a
//! real one. A seed determines the behaviour of the network, the clock and interruptions.
//!
//! ```
//! use onrush::{Request, Response, Limits, sim::Simulation};
//! async fn hello(_: Request) -> Response { Response::text("hi") }
//! let mut sim = Simulation::new(7, &hello, Limits::default());
//! let client = sim.connect();
//! sim.send(&client, b"GET / HTTP/1.1\r\nHost: test\r\n\r\n");
//! assert!(client.receive().unwrap().starts_with(b"HTTP/1.1 200 OK\r\n"));
//! ```
//!
//! Coroutines live in a `coroutine::scope`. A test whose handlers are
//! coroutines creates and drops the simulation within such a scope.

mod builder;

use crate::engine::{Engine, EngineHandler, Settings};
use crate::handler::Application;
use crate::limits::Limits;
use crate::metrics::Counters;
use crate::worker::WorkerHandle;
pub use builder::SimulationBuilder;
use onrush_rt::driver::sim::Address;
pub use onrush_rt::driver::sim::{Behaviour, Client, Net};
use onrush_rt::worker::{Pools, Worker};
use std::rc::Rc;
use std::time::Duration;

/// The default receive memory of a simulated worker, in bytes.
const RECEIVE_BYTES_MAX: usize = 64 << 20;

/// Simulated workers. The first one has a listener.
///
/// # Examples
/// A handler that waits, and a test that does not:
///
/// ```
/// use onrush::{Limits, Request, Response, sim::Simulation};
/// use std::time::Duration;
///
/// async fn slow(request: Request) -> Response {
///     request.worker().sleep(Duration::from_secs(60)).await;
///     Response::text("done")
/// }
///
/// for seed in 0..10 {
///     let mut sim = Simulation::new(seed, &slow, Limits::default());
///     let client = sim.connect();
///     sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
///     sim.advance(Duration::from_secs(59));
///     assert!(client.receive()?.is_empty());
///     sim.advance(Duration::from_secs(2));
///     assert!(client.receive()?.ends_with(b"done"));
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Simulation {
    net: Net,
    address: Address,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    worker: Worker,
    engine: Rc<Engine>,
    event_handler: EngineHandler,
}

impl Simulation {
    /// The settings of a simulation, whose network splits and delays data as `seed` determines.
    pub fn builder(seed: u64) -> SimulationBuilder {
        SimulationBuilder::new(seed)
    }

    /// A server of `application` on a network that splits and delays data as `seed` determines.
    pub fn new(seed: u64, application: &impl Application, limits: Limits) -> Simulation {
        Simulation::builder(seed).limits(limits).start(application)
    }

    fn build(
        net: Net,
        application: &impl Application,
        settings: Settings,
        pools: &Pools,
        receive_bytes_max: usize,
    ) -> Simulation {
        if let Some(metrics) = &settings.metrics {
            metrics.offload_pool(pools.offload.stats_handle());
        }
        let member = |index| {
            let (net, pools) = (net.clone(), pools.clone());
            let worker = Worker::simulated_within(net, pools, index, receive_bytes_max);
            let worker = worker.expect("creating an eventfd succeeds");
            let service = application.instantiate(&WorkerHandle::new(worker.context()));
            let engine = Engine::new(worker.context(), settings.clone(), service);
            settings.worker_set.join(index, worker.notifier());
            let event_handler = EngineHandler(engine.clone());
            Member {
                worker,
                engine,
                event_handler,
            }
        };
        let members: Vec<Member> = (0..settings.worker_set.workers()).map(member).collect();
        let (listener, address) = net.listen();
        let listens = members[0].engine.listen(listener);
        listens.expect("a simulated worker accepts a simulated listener");
        Simulation {
            net,
            address,
            members,
        }
    }

    /// Connects a client.
    ///
    /// # Panics
    /// If the server has stopped accepting.
    pub fn connect(&self) -> Client {
        self.address.connect().expect("the server listens")
    }

    /// Sends all of `bytes`. Runs the server after each piece that the network accepts. Returns the
    /// number of bytes sent, which is smaller if the server stops receiving.
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
        // A delayed stream is skipped at random, so one idle iteration proves nothing.
        let mut idle = 0;
        while idle < 2 || self.members.iter().any(|member| member.worker.has_work()) {
            let busy = self.poll();
            idle = if busy { 0 } else { idle + 1 };
        }
    }

    /// Runs one event-loop iteration of each worker; returns whether anything happened.
    pub fn poll(&mut self) -> bool {
        let poll = |member: &mut Member| {
            let result = member.worker.poll(&member.event_handler, false);
            result.expect("a simulated driver does not fail")
        };
        self.members.iter_mut().map(poll).fold(false, |a, b| a | b)
    }

    /// Advances the clock by `time`, in whole milliseconds, and runs the server at each deadline on
    /// the way. A fraction of a millisecond is left out.
    ///
    /// # Examples
    /// ```
    /// # use onrush::{Limits, Request, Response, sim::Simulation};
    /// # use std::time::Duration;
    /// # async fn hello(_: Request) -> Response { Response::text("hello") }
    /// let limits = Limits::default().idle_timeout(Duration::from_secs(10));
    /// let mut sim = Simulation::new(1, &hello, limits);
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// sim.advance(Duration::from_secs(9));
    /// assert_eq!(sim.open_connections(), 1);
    /// sim.advance(Duration::from_secs(2));
    /// assert_eq!(sim.open_connections(), 0);
    /// ```
    pub fn advance(&mut self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let end = self.net.now_ms().saturating_add(ms);
        self.run();
        while let Some(next) = self.next_timer_ms().filter(|&next| next <= end) {
            let now = self.net.now_ms();
            self.net
                .advance(next.max(now + 1).min(end.max(now + 1)) - now);
            self.run();
        }
        let now = self.net.now_ms();
        self.net.advance(end.saturating_sub(now));
        self.run();
    }

    fn next_timer_ms(&self) -> Option<u64> {
        let timers = self.members.iter();
        timers
            .filter_map(|member| member.worker.next_timer_ms())
            .min()
    }

    /// Begins a graceful shutdown, as [`crate::Handle::shutdown`] does.
    ///
    /// # Examples
    /// ```
    /// # use onrush::{Limits, Request, Response, sim::Simulation};
    /// # use std::time::Duration;
    /// # async fn hello(_: Request) -> Response { Response::text("hello") }
    /// let mut sim = Simulation::new(1, &hello, Limits::default());
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// sim.drain();
    /// sim.advance(Duration::from_secs(1));
    /// assert_eq!(sim.open_connections(), 0);
    /// assert!(!client.receive()?.is_empty());
    /// assert!(client.at_end());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn drain(&mut self) {
        for member in &self.members {
            member.engine.drain(None);
            member.engine.stop_accepting();
        }
    }

    /// Moves all connections of one worker to another, each as soon as it is between two requests.
    ///
    /// # Examples
    /// ```
    /// # use onrush::{Request, Response, sim::Simulation};
    /// # async fn hello(_: Request) -> Response { Response::text("hello") }
    /// let mut sim = Simulation::builder(1).workers(2).start(&hello);
    /// let client = sim.connect();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// sim.migrate(0, 1);
    /// sim.run();
    /// sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// assert_eq!(sim.counters_of(0).requests.get(), 1);
    /// assert_eq!(sim.counters_of(1).requests.get(), 1);
    /// ```
    pub fn migrate(&mut self, from: usize, to: usize) {
        self.members[from].engine.migrate_all_to(to);
    }

    /// The network.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// The handle to the first worker that its handlers receive.
    pub fn worker(&self) -> &WorkerHandle {
        self.members[0].engine.handle()
    }

    /// Receive memory that the first worker uses, in bytes.
    pub fn receive_bytes(&self) -> usize {
        self.members[0].worker.context().pool().held_bytes()
    }

    /// The counters of the first worker.
    pub fn counters(&self) -> &Counters {
        self.counters_of(0)
    }

    /// The counters of a worker.
    pub fn counters_of(&self, worker: usize) -> &Counters {
        self.members[worker].engine.counters()
    }

    /// Connections that are assigned to a worker, including those on their way to it.
    pub fn assigned(&self, worker: usize) -> usize {
        self.members[worker].engine.assigned()
    }

    /// The open connections of all workers.
    pub fn open_connections(&self) -> usize {
        let open = self.members.iter();
        open.map(|member| member.engine.open_connections()).sum()
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        for member in &self.members {
            member.engine.close_all();
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::Simulation;
    use crate::{Limits, Request, Response, panic_guard};
    use onrush_rt::user;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::task::Waker;

    async fn hello(_: Request) -> Response {
        Response::text("hello")
    }

    /// Checks that each way to call user code is refused while `hold` has something borrowed.
    #[track_caller]
    fn assert_refused<T>(sim: &mut Simulation, hold: impl Fn() -> T) {
        let worker = &mut sim.members[0].worker;
        let calls: [fn(); 5] = [
            || assert!(panic_guard::catch(|| {}).is_some()),
            || panic_guard::log(|| {}),
            || panic_guard::discard(()),
            || user::wake(Waker::noop().clone()),
            || drop(user::clone_waker(Waker::noop())),
        ];
        for (index, call) in calls.into_iter().enumerate() {
            // The worker is the current one only while it is polled.
            let outcome = worker.block_on(async {
                let refused = |held: Option<T>| {
                    let refused = catch_unwind(AssertUnwindSafe(call)).is_err();
                    drop(held);
                    refused
                };
                (refused(Some(hold())), refused(None))
            });
            assert_eq!(outcome.unwrap(), (true, false), "call {index}");
        }
    }

    #[test]
    fn user_code_is_not_called_while_a_cell_is_borrowed() {
        let mut sim = Simulation::new(1, &hello, Limits::default());
        let context = sim.members[0].worker.context().clone();
        assert_refused(&mut sim, || context.driver());
        let engine = sim.members[0].engine.clone();
        assert_refused(&mut sim, || engine.hold_connections());
    }
}
