//! CPU work on an offload pool, on the simulator, where the test runs the jobs: refused jobs are
//! reported at once, jobs without a waiting client do not run, and a running job blocks no request.

use crate::common::gate::{Gate, application, assert_shed, until};
use crate::common::{ask, get, plain, statuses, text, watchdog};
use onrush::metrics::Format;
use onrush::offload::{ManualExecutor, OffloadOptions, OffloadPool};
use onrush::sim::Simulation;
use onrush::{Limits, Metrics, offload};
use onrush_rt::driver::sim::{Behaviour, Client};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A simulated server whose jobs are run by hand.
struct Rig {
    sim: Simulation,
    pool: OffloadPool,
    hand: ManualExecutor,
    metrics: Metrics,
    gate: Arc<Gate>,
}

fn rig(seed: u64, queue_max: usize) -> Rig {
    let gate = Arc::<Gate>::default();
    let (pool, hand) = OffloadPool::manual(&OffloadOptions::default().queue_max(queue_max));
    let metrics = Metrics::new();
    let behaviour = match seed {
        0 => plain(4096),
        _ => Behaviour::default(),
    };
    let (app, limits) = (application(&gate), Limits::default());
    let of_sim = pool.clone();
    let sim = Simulation::builder(seed)
        .limits(limits)
        .network(behaviour)
        .metrics(&metrics)
        .offload_pool(of_sim)
        .start(&app);
    Rig {
        sim,
        pool,
        hand,
        metrics,
        gate,
    }
}

impl Rig {
    /// A client that has requested a job.
    fn job(&mut self) -> Client {
        let client = self.sim.connect();
        self.send(&client, "/job");
        client
    }

    fn send(&mut self, client: &Client, path: &str) {
        let request = get(path);
        assert_eq!(self.sim.send(client, request.as_bytes()), request.len());
        // The network has delays, which are shorter than a job's longest wait.
        self.sim.advance(Duration::from_millis(20));
    }

    fn responses(&mut self, client: &Client) -> String {
        self.sim.advance(Duration::from_millis(20));
        text(&client.receive().expect("a response"))
    }

    fn sample(&self, name: &str) -> u64 {
        let page = self.metrics.render(Format::Prometheus);
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {page}"))
            .trim()
            .parse()
            .unwrap()
    }
}

#[test]
fn full_queue_is_reported_at_once() {
    for seed in 0..10 {
        let mut rig = rig(seed, 2);
        rig.gate.open();
        let waiting = [rig.job(), rig.job()];
        let third = rig.job();
        for _ in 0..2 {
            assert_shed(&rig.responses(&third));
            rig.send(&third, "/job"); // The connection continues.
        }
        assert_shed(&rig.responses(&third));
        rig.send(&third, "/hello");
        assert!(rig.responses(&third).ends_with("\r\n\r\nhello"));
        assert_eq!(rig.sample("onrush_offload_queue_depth"), 2);
        for client in &waiting {
            assert_eq!(rig.responses(client), "", "the job waits");
            assert!(rig.hand.run_one());
            assert!(rig.responses(client).ends_with("\r\n\r\nworked"));
        }
        assert_eq!(rig.sample("onrush_offload_shed_total{reason=\"full\"}"), 3);
        assert_eq!(rig.sample("onrush_offload_done_total"), 2);
        assert_eq!(rig.sample("onrush_offload_wait_seconds_count"), 2);
        assert_eq!(
            rig.sample("onrush_offload_run_seconds_bucket{le=\"0.00005\"}"),
            2
        );
        assert_eq!(rig.sample("onrush_offload_queue_depth"), 0);
    }
}

#[test]
fn queued_job_is_dropped_when_its_client_disconnects() {
    for seed in 0..10 {
        let mut rig = rig(seed, 1);
        rig.gate.open();
        for times in 1..=3 {
            let client = rig.job();
            assert_eq!(rig.pool.stats().queued, 1);
            client.reset();
            rig.sim.advance(Duration::from_millis(20));
            assert_eq!(rig.pool.stats().queued, 0);
            assert_eq!(rig.gate.seen(), (0, 0, times));
            assert_eq!(rig.sim.worker().live_tasks(), 0);
        }
        let client = rig.job();
        assert!(rig.hand.run_one() && !rig.hand.run_one());
        assert!(rig.responses(&client).ends_with("\r\n\r\nworked"));
        let name = "onrush_offload_cancelled_total{while=\"queued\"}";
        assert_eq!(rig.sample(name), 3);
    }
}

#[test]
fn running_job_is_cancelled_when_its_client_disconnects() {
    let _dog = watchdog("running_job_is_cancelled_when_its_client_disconnects");
    for seed in 0..3 {
        let mut rig = rig(seed, 1);
        let client = rig.job();
        let hand = rig.hand.clone();
        let at_work = thread::spawn(move || hand.run_one());
        until(|| rig.gate.seen().0 == 1);
        assert_eq!(rig.sample("onrush_offload_running"), 1);
        client.reset();
        rig.sim.advance(Duration::from_millis(20));
        assert!(at_work.join().unwrap());
        assert_eq!(rig.gate.seen(), (1, 1, 1));
        let name = "onrush_offload_cancelled_total{while=\"running\"}";
        assert_eq!(rig.sample(name), 1);
        rig.gate.open();
        let client = rig.job();
        assert!(rig.hand.run_one());
        assert!(rig.responses(&client).ends_with("\r\n\r\nworked"));
    }
}

#[test]
fn panicking_job_gives_500_and_harms_nothing_else() {
    for seed in 0..10 {
        let mut rig = rig(seed, 1);
        let client = rig.sim.connect();
        for _ in 0..3 {
            rig.send(&client, "/panic");
            assert!(rig.hand.run_one());
            let response = rig.responses(&client);
            assert!(response.starts_with("HTTP/1.1 500 "), "{response}");
            assert!(
                response.ends_with("\r\n\r\ninternal server error\n"),
                "{response}"
            );
            rig.send(&client, "/hello");
            assert!(rig.responses(&client).ends_with("\r\n\r\nhello"));
        }
        assert_eq!(rig.sample("onrush_offload_panicked_total"), 3);
        assert_eq!(rig.sim.counters().panicked.get(), 0, "no handler panicked");
    }
}

#[test]
fn late_job_is_refused_by_the_timer_or_the_thread() {
    for seed in 0..10 {
        let mut rig = rig(seed, 8);
        let (first, second) = (rig.job(), rig.job());
        // No thread is free: the worker's own timer ends the wait.
        rig.sim.advance(Duration::from_secs(1));
        for client in [&first, &second] {
            assert_shed(&rig.responses(client));
        }
        assert!(!rig.hand.run_one());
        // A thread becomes free too late.
        rig.send(&first, "/job");
        rig.hand.advance(Duration::from_millis(1001));
        rig.send(&second, "/job");
        assert!(rig.hand.run_one());
        assert_shed(&rig.responses(&first));
        rig.gate.open();
        assert!(rig.hand.run_one());
        assert!(rig.responses(&second).ends_with("\r\n\r\nworked"));
        assert_eq!(rig.gate.seen().0, 1);
        assert_eq!(rig.sample("onrush_offload_shed_total{reason=\"late\"}"), 3);
    }
}

#[test]
fn started_job_never_times_out() {
    let _dog = watchdog("started_job_never_times_out");
    let mut rig = rig(0, 1);
    let client = rig.job();
    let hand = rig.hand.clone();
    let at_work = thread::spawn(move || hand.run_one());
    until(|| rig.gate.seen().0 == 1);
    rig.sim.advance(Duration::from_secs(5));
    assert_eq!(rig.responses(&client), "");
    rig.gate.open();
    assert!(at_work.join().unwrap());
    assert!(rig.responses(&client).ends_with("\r\n\r\nworked"));
}

#[test]
fn responses_keep_their_order_and_a_drain_waits_for_them() {
    for seed in 0..10 {
        let mut rig = rig(seed, 4);
        rig.gate.open();
        let client = rig.sim.connect();
        let asked = get("/job") + &get("/hello") + &get("/panic") + &get("/job");
        rig.sim.send(&client, asked.as_bytes());
        let mut responses = String::new();
        for _ in 0..100 {
            responses += &rig.responses(&client);
            rig.hand.run_one();
        }
        assert_eq!(statuses(responses.as_bytes()), [200, 200, 500, 200]);
        rig.send(&client, "/job");
        rig.sim.drain();
        assert_eq!(rig.responses(&client), "");
        assert!(rig.hand.run_one());
        let last = rig.responses(&client);
        assert!(last.contains("\r\nConnection: close\r\n"), "{last}");
        assert!(last.ends_with("\r\n\r\nworked"), "{last}");
        assert!(
            client.at_end(),
            "seed {seed}: {}",
            rig.sim.open_connections()
        );
    }
}

#[test]
fn end_of_a_server_drops_queued_jobs() {
    let mut rig = rig(0, 4);
    let _clients = [rig.job(), rig.job()];
    assert_eq!(rig.gate.seen(), (0, 0, 0));
    drop(rig.sim);
    assert_eq!(rig.gate.seen(), (0, 0, 2));
    assert!(!rig.hand.run_one());
}

#[test]
fn simulation_without_a_pool_runs_jobs_at_once() {
    let gate = Arc::<Gate>::default();
    gate.open();
    let mut sim = crate::common::calm(&application(&gate), Limits::default());
    let client = sim.connect();
    assert!(ask(&mut sim, &client, &get("/job")).ends_with("\r\n\r\nworked"));
    assert!(ask(&mut sim, &client, &get("/panic")).starts_with("HTTP/1.1 500 "));
}

#[test]
#[should_panic = "offload is for handlers and tasks on a worker"]
fn offload_outside_a_worker_panics() {
    drop(offload(|| ()));
}
