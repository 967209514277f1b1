//! `experiment-app PORT DIR`: a server for the experiments that counts what each worker serves. It
//! uses only the public API of Onrush, as a user of the crate does.
//!
//! | request | response |
//! | --- | --- |
//! | `PUT /NAME` | after the whole body was read; it is not stored |
//! | `GET /work` | after `APP_WORK_US` of CPU |
//! | `GET /workers` | one line per worker: `worker NUMBER CONNECTIONS UPLOADS BYTES` |
//! | `GET /metrics` | the metrics of the server |
//!
//! | variable | values | default |
//! | --- | --- | --- |
//! | `ONRUSH_WORKERS`, `ONRUSH_DRIVER` | see `Server::from_env` | |
//! | `APP_PLACEMENT` | see `Placement` | `least-loaded` |
//! | `APP_REBALANCE` | `on`, `off` | `on` |
//! | `APP_WORK_US` | microseconds of CPU | 0 |

#![forbid(unsafe_code)]

use onrush::{Handler, Metrics, Placement, Request, Response, Server};
use onrush_files::{Files, FilesOptions};
use std::{
    collections::HashSet,
    future::Future,
    hint::black_box,
    net::SocketAddr,
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let served = match arguments.as_slice() {
        [port, dir] => serve(port, Path::new(dir)),
        _ => Err("usage: experiment-app PORT DIR".to_owned()),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("experiment-app: {why}");
            ExitCode::from(2)
        }
    }
}

fn serve(port: &str, dir: &Path) -> Result<(), String> {
    let port: u16 = port.parse().map_err(|_| format!("not a port: {port}"))?;
    let placement: Placement = variable("APP_PLACEMENT", "least-loaded").parse()?;
    let rebalance = match &*variable("APP_REBALANCE", "on") {
        "on" => true,
        "off" => false,
        other => return Err(format!("APP_REBALANCE: not on or off: {other}")),
    };
    let work = variable("APP_WORK_US", "0");
    let work_us: f64 = work
        .parse()
        .map_err(|_| format!("APP_WORK_US: not a number: {work}"))?;
    let files = Files::open(dir, FilesOptions::default());
    let files = files.map_err(|error| format!("{}: {error}", dir.display()))?;
    let metrics = Metrics::new();
    let app = App {
        files: files.clone(),
        metrics: metrics.clone(),
        work_rounds: (work_us * rounds_per_us()) as u64,
        served: Arc::default(),
    };
    Server::bind(format!("127.0.0.1:{port}"))
        .from_env()
        .map_err(|error| error.to_string())?
        .placement(placement)
        .rebalance(rebalance)
        .blocking_pool(files.pool().clone())
        .metrics(&metrics)
        .serve(app)
        .map_err(|error| error.to_string())
}

fn variable(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}

#[derive(Clone)]
struct App {
    files: Files,
    metrics: Metrics,
    work_rounds: u64,
    /// By worker. Only uploads of megabytes take the lock; `/work` does not.
    served: Arc<Mutex<Vec<Served>>>,
}

/// What one worker served.
#[derive(Clone, Debug, Default)]
struct Served {
    clients: HashSet<SocketAddr>,
    uploads: u64,
    bytes: u64,
}

impl Handler for App {
    fn handle(&self, request: Request) -> impl Future<Output = Response> + use<> + 'static {
        let app = self.clone();
        async move {
            match (request.method(), request.path()) {
                ("GET", "/work") => {
                    work(app.work_rounds);
                    Response::text("done\n")
                }
                ("GET", "/workers") => Response::text(app.counts()),
                ("GET", "/metrics") => app.metrics.handle(request).await,
                ("PUT", _) => app.upload(request).await,
                _ => app.files.handle(request).await,
            }
        }
    }
}

impl App {
    /// Reads the body like the other servers of `balance`, in pieces. Discarded inside the kernel,
    /// as `onrush --sink` does, an upload costs so little CPU that the clients are the bottleneck,
    /// and that a quota for it is a few ticks of the kernel's clock.
    async fn upload(&self, mut request: Request) -> Response {
        let mut bytes = 0;
        while let Some(piece) = request.body().next().await {
            match piece {
                Ok(piece) => bytes += piece.len() as u64,
                Err(_) => return Response::new(400),
            }
        }
        let worker = request.worker().index();
        let mut all = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() <= worker {
            all.resize_with(worker + 1, Served::default);
        }
        let served = &mut all[worker];
        served.clients.extend(request.peer());
        served.uploads += 1;
        served.bytes += bytes;
        Response::new(204)
    }

    /// The text of `/workers`.
    fn counts(&self) -> String {
        let all = self.served.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(worker, served): (usize, &Served)| {
            let connections = served.clients.len();
            format!(
                "worker {worker} {connections} {} {}\n",
                served.uploads, served.bytes
            )
        };
        all.iter().enumerate().map(line).collect()
    }
}

/// Computes `rounds` rounds that the compiler cannot remove.
fn work(rounds: u64) {
    let mut state = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    black_box(state);
}

/// Rounds per microsecond on an idle core: the best of ten measurements.
fn rounds_per_us() -> f64 {
    const ROUNDS: u64 = 200_000;
    let one = |_| {
        let begun = Instant::now();
        work(ROUNDS);
        ROUNDS as f64 / (begun.elapsed().as_secs_f64() * 1e6)
    };
    (0..10).map(one).fold(0.0, f64::max)
}
