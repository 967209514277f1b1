//! A server with little receive memory, and a client that checks that it responds in time.

use super::{Served, get, read_some, statuses};
use onrush::metrics::Format;
use onrush::{Application, DriverPreference, Limits, Metrics, Request, Response};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Receive memory of the single worker. The attackers send several times as much. With TLS, more
/// than a thousand sessions take memory besides.
pub const MEMORY: usize = if super::through_tls() {
    16 << 20
} else {
    4 << 20
};

/// The time limit of a response during an attack. The target is 1 s. Tests share their cores, so
/// `cargo xtask experiment attack` measures it instead.
const SOON: Duration = Duration::from_secs(30);

pub async fn hello(_: Request) -> Response {
    Response::text("hello")
}

/// Limits under which no head times out during a test.
pub fn limits() -> Limits {
    Limits::default()
        .head_timeout(Duration::from_secs(100))
        .idle_timeout(Duration::from_secs(100))
}

/// Starts a server with these limits and with [`MEMORY`].
pub fn serve_limited(
    driver: DriverPreference,
    application: impl Application,
    limits: Limits,
    metrics: &Metrics,
) -> Served {
    super::serve_with(driver, application, |server| {
        let config = onrush_rt::driver::Config {
            receive_bytes_max: MEMORY,
            ..onrush_rt::driver::Config::default()
        };
        server.driver_config(config).limits(limits).metrics(metrics)
    })
}

/// [`serve_limited`] with [`limits`].
pub fn serve(driver: DriverPreference, application: impl Application, metrics: &Metrics) -> Served {
    serve_limited(driver, application, limits(), metrics)
}

/// The status of the next response.
#[track_caller]
pub fn status(stream: &mut TcpStream) -> u16 {
    let mut response = [0; 4096];
    let n = read_some(stream, &mut response).expect("no reset");
    *statuses(&response[..n]).first().expect("a response")
}

/// One request on a persistent connection, with a response in time.
#[track_caller]
pub fn assert_prompt(stream: &mut TcpStream) {
    let begun = Instant::now();
    stream.write_all(get("/hello").as_bytes()).unwrap();
    assert_eq!(status(stream), 200);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

/// The sum of a metric over all workers.
pub fn metric(metrics: &Metrics, name: &str) -> u64 {
    let text = metrics.render(Format::OpenMetrics);
    let lines = text
        .lines()
        .filter(|line| line.split('{').next() == Some(name));
    let value = |line: &str| {
        line.rsplit(' ')
            .next()
            .and_then(|value| value.parse::<u64>().ok())
    };
    lines.map(|line| value(line).expect("a number")).sum()
}

pub fn evicted(metrics: &Metrics) -> u64 {
    metric(metrics, "onrush_memory_evictions_total")
}
