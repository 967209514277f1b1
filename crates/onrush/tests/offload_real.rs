//! CPU work on an offload pool, on real servers whose jobs wait at a gate: the same properties as
//! on the simulator, with real threads.

use crate::common::gate::{Gate, application, assert_shed, until};
use crate::common::{Served, content, drivers, serve_with, text, watchdog};
use onrush::metrics::Format;
use onrush::offload::{OffloadError, OffloadOptions, OffloadPool};
use onrush::{DriverPreference, Metrics, Request, Response, WorkerHandle, offload};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A request on its own connection. Dropping it resets the connection.
struct PendingRequest(TcpStream);

impl PendingRequest {
    fn new(server: &Served, path: &str) -> PendingRequest {
        let mut stream = server.connect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let at_once = Some(Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&stream, at_once).unwrap();
        PendingRequest(stream)
    }

    fn response(mut self) -> String {
        let mut response = Vec::new();
        self.0.read_to_end(&mut response).expect("a response");
        text(&response)
    }
}

/// A server with one thread for jobs, and its pool.
fn held(driver: DriverPreference, options: OffloadOptions) -> (Served, OffloadPool, Arc<Gate>) {
    let gate = Arc::<Gate>::default();
    let pool = OffloadPool::new(&options.threads(1));
    let (app, of_server) = (application(&gate), pool.clone());
    let server = serve_with(driver, app, |server| server.offload_pool(of_server));
    (server, pool, gate)
}

#[test]
fn real_servers_refuse_jobs_while_busy() {
    let _dog = watchdog("real_servers_refuse_jobs_while_busy");
    for driver in drivers() {
        let patient = OffloadOptions::default().wait_max(Duration::from_secs(3600));
        let (server, pool, gate) = held(driver, patient.queue_max(1));
        let first = PendingRequest::new(&server, "/job");
        until(|| gate.seen().0 == 1);
        let second = PendingRequest::new(&server, "/job");
        until(|| pool.stats().queued == 1);
        for _ in 0..3 {
            assert_shed(&PendingRequest::new(&server, "/job").response());
            assert!(
                PendingRequest::new(&server, "/hello")
                    .response()
                    .ends_with("hello")
            );
        }
        assert_eq!(gate.seen(), (1, 0, 3 + 3), "only the first job has begun");
        gate.open();
        for waiting in [first, second] {
            assert!(waiting.response().ends_with("\r\n\r\nworked"));
        }
        assert!(
            PendingRequest::new(&server, "/panic")
                .response()
                .starts_with("HTTP/1.1 500 ")
        );
        assert!(
            PendingRequest::new(&server, "/job")
                .response()
                .ends_with("\r\n\r\nworked")
        );
        assert_eq!(
            (pool.stats().full_total, pool.stats().panicked_total),
            (3, 1)
        );
    }
}

#[test]
fn real_servers_drop_jobs_of_disconnected_clients() {
    let _dog = watchdog("real_servers_drop_jobs_of_disconnected_clients");
    for driver in drivers() {
        let patient = OffloadOptions::default().wait_max(Duration::from_secs(3600));
        let (server, pool, gate) = held(driver, patient.queue_max(1));
        let first = PendingRequest::new(&server, "/job");
        until(|| gate.seen().0 == 1);
        for times in 1..=3 {
            let second = PendingRequest::new(&server, "/job");
            until(|| pool.stats().queued == 1);
            drop(second);
            until(|| pool.stats().queued == 0);
            until(|| gate.seen() == (1, 0, times));
        }
        drop(first);
        until(|| gate.seen() == (1, 1, 4));
        gate.open();
        assert!(
            PendingRequest::new(&server, "/job")
                .response()
                .ends_with("\r\n\r\nworked")
        );
        let stats = pool.stats();
        assert_eq!((stats.dropped_total, stats.cancelled_total), (3, 1));
    }
}

#[test]
fn real_servers_time_jobs_out_while_no_thread_is_free() {
    let _dog = watchdog("real_servers_time_jobs_out_while_no_thread_is_free");
    for driver in drivers() {
        let (server, pool, gate) = held(driver, OffloadOptions::default().wait_max(Duration::ZERO));
        let begun = || gate.seen().0 == 1;
        let mut lates = 0;
        let first = loop {
            let first = PendingRequest::new(&server, "/job");
            until(|| begun() || pool.stats().late_total > lates);
            if begun() {
                break first;
            }
            lates += 1; // Its thread took more than the millisecond to start.
        };
        // The thread is busy: only the worker itself can end the wait.
        assert_shed(&PendingRequest::new(&server, "/job").response());
        assert_eq!(pool.stats().late_total, lates + 1);
        gate.open();
        assert!(first.response().ends_with("\r\n\r\nworked"));
    }
}

#[test]
fn results_return_to_the_requesting_worker() {
    let _dog = watchdog("results_return_to_the_requesting_worker");
    async fn whereabouts(_: Request) -> Result<Response, OffloadError> {
        let here = || {
            (
                WorkerHandle::current().map(|worker| worker.index()),
                thread::current().id(),
            )
        };
        let before = here();
        let there = offload(here).await?;
        assert_eq!(here(), before);
        assert_eq!(there.0, None, "a thread of the pool is not a worker");
        assert_ne!(there.1, before.1);
        Ok(Response::text(format!("{:?}", before.0)))
    }
    for driver in drivers() {
        let options = OffloadOptions::default().threads(2).queue_max(1000);
        let server = serve_with(driver, whereabouts, |server| {
            server
                .workers(3)
                .offload(options.wait_max(Duration::from_secs(3600)))
        });
        let clients: Vec<_> = (0..32).map(|_| PendingRequest::new(&server, "/")).collect();
        for client in clients {
            let response = client.response();
            assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
            assert!(
                text(content(response.as_bytes())).starts_with("Some("),
                "{response}"
            );
        }
    }
}

#[test]
fn end_of_a_real_server() {
    let _dog = watchdog("end_of_a_real_server");
    for driver in drivers() {
        let patient = OffloadOptions::default().wait_max(Duration::from_secs(3600));
        // At once: queued jobs are dropped, running jobs are cancelled.
        let (server, pool, gate) = held(driver, patient.clone());
        let first = PendingRequest::new(&server, "/job");
        until(|| gate.seen().0 == 1);
        let second = PendingRequest::new(&server, "/job");
        until(|| pool.stats().queued == 1);
        server.running().handle().shutdown_now();
        server.wait().unwrap();
        until(|| gate.seen() == (1, 1, 2));
        drop((first, second));
        // Gracefully: both get responses first.
        let (server, pool, gate) = held(driver, patient);
        let first = PendingRequest::new(&server, "/job");
        until(|| gate.seen().0 == 1);
        let second = PendingRequest::new(&server, "/job");
        until(|| pool.stats().queued == 1);
        server.running().handle().shutdown();
        gate.open();
        for waiting in [first, second] {
            assert!(waiting.response().ends_with("\r\n\r\nworked"));
        }
        server.wait().unwrap();
    }
}

#[test]
fn two_servers_may_share_a_pool() {
    let _dog = watchdog("two_servers_may_share_a_pool");
    for driver in drivers() {
        let gate = Arc::<Gate>::default();
        let patient = OffloadOptions::default().wait_max(Duration::from_secs(3600));
        let pool = OffloadPool::new(&patient.threads(1).queue_max(0));
        let metrics = Metrics::new();
        let start = || {
            serve_with(driver, application(&gate), |server| {
                server.offload_pool(pool.clone()).metrics(&metrics)
            })
        };
        let (one, other) = (start(), start());
        let first = PendingRequest::new(&one, "/job");
        until(|| gate.seen().0 == 1);
        assert_shed(&PendingRequest::new(&other, "/job").response());
        let page = metrics.render(Format::Prometheus);
        assert!(
            page.contains("onrush_offload_shed_total{reason=\"full\"} 1\n"),
            "{page}"
        );
        assert!(
            page.contains("onrush_offload_running 1\n"),
            "counted once: {page}"
        );
        drop((one, other));
        until(|| gate.seen().2 == 2);
        drop(first);
    }
}
