//! Metrics count what clients have received, on every driver and in every case.

use crate::common::contract::contract;
use crate::common::{drivers, get, plain, read_some, serve_with, text, watchdog};
use onrush::metrics::Format;
use onrush::{Body, Limits, Metrics, Request, Response, Router, sim::Simulation};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// Samples by name and labels.
fn samples(page: &str) -> BTreeMap<String, f64> {
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect()
}

/// The sum of all samples whose name begins with `name` and that have all of `labels`.
fn sum(samples: &BTreeMap<String, f64>, name: &str, labels: &[&str]) -> f64 {
    samples
        .iter()
        .filter(|(key, _)| key.split('{').next() == Some(name))
        .filter(|(key, _)| labels.iter().all(|label| key.contains(label)))
        .map(|(_, value)| value)
        .sum()
}

const DURATIONS: &str = "http_server_request_duration_seconds_count";

async fn thing(_: Request) -> Response {
    Response::text("0123456789")
}

async fn sized(request: Request) -> Response {
    let bytes = request.param("bytes").and_then(|bytes| bytes.parse().ok());
    Response::with_body(Body::from(vec![b'x'; bytes.unwrap_or(0)]))
}

async fn slow(request: Request) -> Response {
    request.worker().sleep(Duration::from_millis(10)).await;
    Response::new(404)
}

async fn large(_: Request) -> Response {
    Response::with_body(Body::from(vec![b'x'; 300_000]))
}

async fn never(_: Request) -> Response {
    std::future::pending().await
}

async fn panics(_: Request) -> Response {
    panic!("on purpose")
}

fn router() -> Router {
    Router::new()
        .get("/things/{id}", thing)
        .get("/sized/{bytes}", sized)
        .get("/slow", slow)
        .get("/large", large)
        .any("/never", never)
        .get("/panics", panics)
}

fn simulated(seed: u64) -> (Simulation, Metrics) {
    let metrics = Metrics::new();
    let (limits, network) = (Limits::default(), plain(4096));
    let sim = Simulation::builder(seed)
        .limits(limits)
        .network(network)
        .metrics(&metrics)
        .start(&router());
    (sim, metrics)
}

#[test]
fn requests_are_counted_by_route_method_and_status() {
    for seed in 1..=10 {
        let (mut sim, metrics) = simulated(seed);
        let client = sim.connect();
        let mut asked = String::new();
        for id in 0..20 {
            asked += &get(&format!("/things/{id}"));
        }
        asked += &get("/slow");
        asked += &get("/large");
        asked += "HEAD /things/1 HTTP/1.1\r\nHost: t\r\n\r\n";
        asked += "BREW /never/pots HTTP/1.0\r\n\r\n";
        sim.send(&client, asked.as_bytes());
        for _ in 0..1000 {
            sim.advance(Duration::from_millis(1));
            if client.receive().is_err() {
                break;
            }
        }
        let samples = samples(&metrics.render(Format::Prometheus));
        let count = |labels: &[&str]| sum(&samples, DURATIONS, labels);
        let things = "http_route=\"/things/{id}\"";
        let get = "http_request_method=\"GET\"";
        assert_eq!(count(&[things, get, "status_code=\"200\""]), 20.0);
        assert_eq!(count(&[things, "method=\"HEAD\""]), 1.0);
        assert_eq!(count(&["http_route=\"/slow\"", "status_code=\"404\""]), 1.0);
        assert_eq!(count(&["http_route=\"/large\""]), 1.0);
        let other = ["method=\"_OTHER\"", "version=\"1.0\"", "code=\"404\""];
        assert_eq!(count(&other), 1.0, "{samples:?}");
        assert_eq!(count(&[]), 24.0);
        let bytes = "http_server_response_body_size_bytes_sum";
        assert_eq!(sum(&samples, bytes, &[things, get]), 200.0);
        assert_eq!(sum(&samples, bytes, &["method=\"HEAD\""]), 0.0);
        assert_eq!(sum(&samples, bytes, &["route=\"/large\""]), 300_000.0);
        assert_eq!(sum(&samples, "http_server_active_requests", &[]), 0.0);
        assert_eq!(sum(&samples, "onrush_requests_aborted_total", &[]), 0.0);
        let accepted = "onrush_connections_accepted_total";
        assert_eq!(sum(&samples, accepted, &["worker=\"0\""]), 1.0);
    }
}

#[test]
fn duration_excludes_earlier_requests_and_idle_time() {
    for seed in 1..=10 {
        let (mut sim, metrics) = simulated(seed);
        let client = sim.connect();
        let mut asked = get("/slow");
        for _ in 0..5 {
            asked += &get("/things/1");
        }
        for _ in 0..2 {
            sim.advance(Duration::from_millis(700));
            sim.send(&client, asked.as_bytes());
            sim.advance(Duration::from_millis(50));
        }
        let samples = samples(&metrics.render(Format::Prometheus));
        let seconds = "http_server_request_duration_seconds_sum";
        let slow = sum(&samples, seconds, &["route=\"/slow\""]);
        assert!((0.020..0.024).contains(&slow), "{slow}");
        assert_eq!(sum(&samples, DURATIONS, &["route=\"/things"]), 10.0);
        assert_eq!(sum(&samples, seconds, &["route=\"/things"]), 0.0);
    }
}

#[test]
fn responses_sent_together_are_counted_with_their_own_sizes() {
    for seed in 1..=10 {
        let (mut sim, metrics) = simulated(seed);
        let client = sim.connect();
        let mut asked = String::new();
        for bytes in [5, 5, 5, 300, 300, 5, 2000, 0, 5] {
            asked += &get(&format!("/sized/{bytes}"));
            asked += "HEAD /sized/7 HTTP/1.1\r\nHost: t\r\n\r\n"
                .repeat(bytes % 2)
                .as_str();
        }
        sim.send(&client, asked.as_bytes());
        sim.run();
        let samples = samples(&metrics.render(Format::Prometheus));
        let bytes = |what: &str, labels: &[&str]| {
            let name = format!("http_server_response_body_size_bytes_{what}");
            sum(&samples, &name, &[&["route=\"/sized"], labels].concat())
        };
        assert_eq!(bytes("sum", &["\"GET\""]), 2625.0);
        assert_eq!(bytes("count", &["\"GET\""]), 9.0);
        assert_eq!(bytes("bucket", &["\"GET\"", "le=\"256\""]), 6.0);
        assert_eq!(bytes("bucket", &["\"GET\"", "le=\"1024\""]), 8.0);
        assert_eq!(bytes("bucket", &["\"GET\"", "le=\"+Inf\""]), 9.0);
        assert_eq!(bytes("sum", &["\"HEAD\""]), 0.0);
        assert_eq!(sum(&samples, DURATIONS, &["\"HEAD\""]), 5.0);
        assert_eq!(sum(&samples, "http_server_active_requests", &[]), 0.0);
    }
}

#[test]
fn request_without_response_is_active_and_then_aborted() {
    for seed in 1..=10 {
        let (mut sim, metrics) = simulated(seed);
        let clients: Vec<_> = (0..3).map(|_| sim.connect()).collect();
        for (client, path) in clients.iter().zip(["/never", "/large", "/panics"]) {
            sim.send(client, get(path).as_bytes());
        }
        sim.run();
        let page = samples(&metrics.render(Format::Prometheus));
        let active = "http_server_active_requests";
        assert_eq!(sum(&page, active, &["method=\"GET\""]), 2.0);
        assert_eq!(sum(&page, DURATIONS, &["code=\"500\""]), 1.0);
        assert_eq!(sum(&page, "onrush_handler_panics_total", &[]), 1.0);
        assert_eq!(sum(&page, "onrush_connections_open", &[]), 3.0);
        clients.iter().for_each(|client| client.reset());
        sim.advance(Duration::from_millis(10));
        let page = samples(&metrics.render(Format::Prometheus));
        assert_eq!(sum(&page, active, &[]), 0.0);
        assert_eq!(sum(&page, "onrush_requests_aborted_total", &[]), 2.0);
        assert_eq!(sum(&page, "onrush_connections_open", &[]), 0.0);
        assert_eq!(sum(&page, "onrush_connections_done_total", &[]), 3.0);
    }
}

#[test]
fn metrics_page_reports_what_clients_have_received() {
    let _dog = watchdog("metrics_page_reports_what_clients_have_received");
    for driver in drivers() {
        let metrics = Metrics::new();
        let router = router().get("/metrics", metrics.clone());
        let server = serve_with(driver, router, |server| server.workers(2).metrics(&metrics));
        for _ in 0..8 {
            let mut stream = server.connect();
            for _ in 0..5 {
                stream.write_all(get("/things/7").as_bytes()).unwrap();
                let mut response = [0; 1024];
                assert!(read_some(&mut stream, &mut response).unwrap() > 0);
            }
        }
        let page = server.get("/metrics");
        let page = text(&page);
        assert!(page.contains("Content-Type: text/plain; version=0.0.4"));
        let (_, body) = page.split_once("\r\n\r\n").unwrap();
        let seen = samples(body);
        assert_eq!(
            sum(&seen, DURATIONS, &["http_route=\"/things/{id}\""]),
            40.0
        );
        assert_eq!(
            sum(&seen, "http_server_active_requests", &[]),
            1.0,
            "itself"
        );
        let name = server.running().driver().name();
        let info = format!("onrush_driver_info{{driver=\"{name}\"}}");
        assert_eq!(seen.get(&info), Some(&1.0), "{body}");
        let mut stream = server.connect();
        let ask = "GET /metrics HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\
                   Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n\r\n";
        stream.write_all(ask.as_bytes()).unwrap();
        let mut page = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut page).unwrap();
        let page = text(&page);
        assert!(page.contains("Content-Type: application/openmetrics-text; version=1.0.0"));
        assert!(page.ends_with("# EOF\n"));
    }
}

/// The metrics include the stacks of handlers.
#[test]
fn coroutines_are_counted() {
    onrush::coroutine::scope(|| {
        let _dog = watchdog("coroutines_are_counted");
        let metrics = Metrics::new();
        fn waits(
            _: &mut onrush::coroutine::RequestReader,
            response: &mut onrush::coroutine::ResponseWriter,
        ) {
            onrush::coroutine::thread::sleep(Duration::from_millis(10));
            response.set_status(204);
        }
        let handler = onrush::coroutine::handler(contract(), waits);
        let mut sim = Simulation::builder(1)
            .network(plain(1024))
            .metrics(&metrics)
            .start(&handler);
        let client = sim.connect();
        client.send(get("/").as_bytes()).unwrap();
        sim.run();
        let stacks = |state: &str| {
            let page = samples(&metrics.render(Format::Prometheus));
            sum(
                &page,
                "onrush_coroutine_stacks",
                &[&format!("state=\"{state}\"")],
            )
        };
        assert_eq!(stacks("in_use"), 1.0);
        sim.advance(Duration::from_millis(20));
        assert_eq!(stacks("in_use"), 0.0);
        assert!(stacks("pooled") >= 1.0);
    });
}
