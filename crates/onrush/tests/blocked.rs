//! Handlers that block their worker are reported, with their route: in the log and in the metrics.
mod common;

use common::{drivers, get, read_some, serve_with, text, watchdog};
use onrush::metrics::Format;
use onrush::{DriverPreference, Metrics, Request, Response, Router};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, Once, mpsc};
use std::time::Duration;
use tracing::field::{Field, Visit};

const BLOCK: Duration = Duration::from_millis(300);

/// The events of this crate at level WARN, as fields.
type Told = BTreeMap<&'static str, String>;
static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

struct Capture;

struct Fields<'t>(&'t mut Told);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl tracing::Subscriber for Capture {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN && metadata.target().starts_with("onrush")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut told = Told::new();
        event.record(&mut Fields(&mut told));
        TOLD.lock().unwrap().push(told);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// One test at a time, since all share the log.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static CAPTURED: Once = Once::new();
    let alone = ALONE.lock().unwrap_or_else(|failed| failed.into_inner());
    CAPTURED.call_once(|| tracing::subscriber::set_global_default(Capture).unwrap());
    TOLD.lock().unwrap().clear();
    alone
}

fn told(message: &str) -> Vec<Told> {
    let told = TOLD.lock().unwrap();
    let is_it = |told: &&Told| told["message"] == message;
    told.iter().filter(is_it).cloned().collect()
}

fn figure(metrics: &Metrics, name: &str) -> f64 {
    let samples = metrics.render(Format::Prometheus);
    let lines = samples.lines().filter(|line| line.starts_with(name));
    lines
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
        .sum()
}

fn router() -> Router {
    Router::new()
        .get("/", async |_: Request| Response::text("hello"))
        .get("/at-once/{name}", async |_: Request| {
            std::thread::sleep(BLOCK);
            Response::text("hello")
        })
        .get("/late", async |request: Request| {
            request.worker().sleep(Duration::from_millis(1)).await;
            std::thread::sleep(BLOCK);
            Response::text("hello")
        })
        .get("/spawned", async |request: Request| {
            let nap = request.worker().sleep(Duration::from_millis(1));
            let task = async move {
                nap.await;
                std::thread::sleep(BLOCK);
            };
            request.worker().spawn(task).await;
            Response::text("hello")
        })
}

fn ask(stream: &mut TcpStream, path: &str) -> String {
    stream.write_all(get(path).as_bytes()).unwrap();
    read_response(stream, path)
}

fn read_response(stream: &mut TcpStream, path: &str) -> String {
    let (mut response, mut piece) = (Vec::new(), [0; 4096]);
    while !text(&response).contains("\r\n\r\n") || response.ends_with(b"\r\n\r\n") {
        let n = read_some(stream, &mut piece).expect("an answer");
        assert!(n > 0, "{path}: {}", text(&response));
        response.extend_from_slice(&piece[..n]);
    }
    let response = text(&response);
    response.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn a_handler_that_blocks_is_told_with_its_route() {
    let _alone = alone();
    let _dog = watchdog("a_handler_that_blocks");
    for driver in drivers() {
        for (path, route) in [
            ("/at-once/7", "/at-once/{name}"),
            ("/late", "/late"),
            ("/spawned", "/spawned"),
        ] {
            TOLD.lock().unwrap().clear();
            let metrics = Metrics::new();
            let server = serve_with(driver, router(), |server| server.metrics(&metrics));
            let mut stream = server.connect();
            assert_eq!(ask(&mut stream, path), "hello");
            // It tells in the next iteration.
            assert_eq!(ask(&mut stream, "/"), "hello");
            let told = told("a worker was blocked");
            let by_route = |told: &&Told| told.get("route").is_some_and(|told| told == route);
            let told = told.iter().find(by_route);
            let told = told.unwrap_or_else(|| panic!("{driver:?} {path}: {told:?}"));
            assert_eq!(told["worker"], "0");
            assert_eq!(told["suppressed"], "0");
            assert!(
                told["duration_ms"].parse::<u64>().unwrap() >= 300,
                "{told:?}"
            );
            assert!(figure(&metrics, "onrush_worker_blocked_total{") >= 1.0);
            assert!(figure(&metrics, "onrush_worker_blocked_seconds_total{") >= 0.3);
        }
    }
}

/// Among other requests that came in the same iteration it is found the next time.
#[test]
fn one_of_many_is_found() {
    let _alone = alone();
    let _dog = watchdog("one_of_many_is_found");
    for driver in drivers() {
        TOLD.lock().unwrap().clear();
        let server = serve_with(driver, router(), |server| server);
        let mut stream = server.connect();
        let found = |told: &Told| told.get("route").is_some_and(|r| r == "/at-once/{name}");
        let mut rounds = 0;
        while !told("a worker was blocked").iter().any(found) {
            assert!(
                rounds < 50,
                "{driver:?}: {:?}",
                told("a worker was blocked")
            );
            rounds += 1;
            let three = get("/") + &get("/at-once/7") + &get("/");
            stream.write_all(three.as_bytes()).unwrap();
            let (mut responses, mut piece) = (String::new(), [0; 4096]);
            while responses.matches("hello").count() < 3 {
                let n = read_some(&mut stream, &mut piece).expect("answers");
                assert!(n > 0);
                responses += &text(&piece[..n]);
            }
        }
        let all = told("a worker was blocked");
        // Of the others none is blamed. (They may be when the machine itself stands still.)
        let blamed = all.iter().filter_map(|told| told.get("route"));
        assert!(blamed.filter(|route| *route == "/").count() <= 1, "{all:?}");
    }
}

/// One that never comes back is told by another worker, and shows in the metrics, while it is away.
#[test]
fn a_handler_that_never_returns_is_told_by_another_worker() {
    let _alone = alone();
    let _dog = watchdog("a_handler_that_never_returns");
    for driver in drivers() {
        never_returns(driver);
    }
}

fn never_returns(driver: DriverPreference) {
    TOLD.lock().unwrap().clear();
    static GATE: Mutex<Option<mpsc::Receiver<()>>> = Mutex::new(None);
    let (release, gate) = mpsc::channel();
    *GATE.lock().unwrap() = Some(gate);
    let router = Router::new()
        .get("/who", async |request: Request| {
            Response::text(request.worker().index().to_string())
        })
        .get("/hang", async |_: Request| {
            let gate = GATE.lock().unwrap().take().expect("hung once");
            let _ = gate.recv(); // Also when the test has failed.
            Response::text("hello")
        });
    let metrics = Metrics::new();
    let server = serve_with(driver, router, |server| server.workers(2).metrics(&metrics));
    let mut by_worker = BTreeMap::new();
    while by_worker.len() < 2 {
        let mut stream = server.connect();
        let worker = ask(&mut stream, "/who");
        by_worker.entry(worker).or_insert(stream);
    }
    let mut hanging = by_worker.remove("1").unwrap();
    let mut other = by_worker.remove("0").unwrap();
    hanging.write_all(get("/hang").as_bytes()).unwrap();
    while told("a worker is blocked").is_empty() {
        assert_eq!(ask(&mut other, "/who"), "0");
        std::thread::sleep(Duration::from_millis(20));
    }
    let all = told("a worker is blocked");
    assert_eq!((&*all[0]["worker"], &*all[0]["route"]), ("1", "/hang"));
    assert!(figure(&metrics, "onrush_worker_iteration_seconds{worker=\"1\"}") >= 2.0);
    release.send(()).unwrap();
    // It comes back, and is told once more, with the whole duration.
    assert_eq!(ask(&mut hanging, "/who").chars().next(), Some('h'));
    while told("a worker was blocked").is_empty() {
        ask(&mut hanging, "/who");
    }
    let all = told("a worker was blocked");
    assert_eq!((&*all[0]["worker"], &*all[0]["route"]), ("1", "/hang"));
}

/// A router with `/who`, and `/hang`, which blocks its worker until the test goes on.
fn hanging(gate: mpsc::Receiver<()>, begun: mpsc::Sender<()>) -> Router {
    let gate = Arc::new(Mutex::new(Some((gate, begun))));
    Router::new()
        .get("/who", async |request: Request| {
            Response::text(request.worker().index().to_string())
        })
        .get("/hang", move |_: Request| {
            let gate = gate.clone();
            async move {
                let (gate, begun) = gate.lock().unwrap().take().expect("hung once");
                begun.send(()).unwrap();
                let _ = gate.recv(); // Also when the test has failed.
                Response::text("hello")
            }
        })
}

/// A connection to each of two workers.
fn one_each(server: &common::Served) -> BTreeMap<String, TcpStream> {
    let mut by_worker = BTreeMap::new();
    while by_worker.len() < 2 {
        let mut stream = server.connect();
        let worker = ask(&mut stream, "/who");
        by_worker.entry(worker).or_insert(stream);
    }
    by_worker
}

/// How often the workers of this process have gone to sleep.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of_task = |task: std::fs::DirEntry| {
        let read = |name| std::fs::read_to_string(task.path().join(name)).ok();
        read("comm").filter(|name| name.starts_with("onrush-"))?;
        let status = read("status")?;
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    tasks.filter_map(of_task).sum()
}

/// Waits until no worker has woken up for a while.
fn until_all_sleep() {
    loop {
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(500));
        if sleeps() == before {
            return;
        }
    }
}

/// Without traffic nobody wakes up to look for blocked workers. When one is blocked then, it is
/// told all the same, and new connections are served by another one.
#[test]
fn a_worker_that_is_blocked_while_others_sleep_is_told() {
    let _alone = alone();
    let _dog = watchdog("blocked_while_others_sleep");
    for driver in drivers() {
        for worker in ["0", "1"] {
            TOLD.lock().unwrap().clear();
            let (release, gate) = mpsc::channel();
            let (begun, has_begun) = mpsc::channel();
            let router = hanging(gate, begun);
            let server = serve_with(driver, router, |server| server.workers(2));
            let mut by_worker = one_each(&server);
            until_all_sleep();
            let mut stream = by_worker.remove(worker).unwrap();
            stream.write_all(get("/hang").as_bytes()).unwrap();
            has_begun.recv().unwrap();
            while told("a worker is blocked").is_empty() {
                std::thread::sleep(Duration::from_millis(20));
            }
            let all = told("a worker is blocked");
            assert_eq!((&*all[0]["worker"], &*all[0]["route"]), (worker, "/hang"));
            release.send(()).unwrap();
        }
    }
}

/// New connections are served while a worker is blocked, wherever the kernel has queued them.
#[test]
fn new_connections_are_served_by_a_worker_that_is_not_blocked() {
    let _alone = alone();
    let _dog = watchdog("new_connections_are_served");
    for driver in drivers() {
        for worker in ["0", "1"] {
            let (release, gate) = mpsc::channel();
            let (begun, has_begun) = mpsc::channel();
            let router = hanging(gate, begun);
            let server = serve_with(driver, router, |server| server.workers(2));
            let mut by_worker = one_each(&server);
            let mut stream = by_worker.remove(worker).unwrap();
            stream.write_all(get("/hang").as_bytes()).unwrap();
            has_begun.recv().unwrap();
            // Many at once: some come before anybody has noticed.
            let mut clients: Vec<TcpStream> = (0..40).map(|_| server.connect()).collect();
            for client in &mut clients {
                client.write_all(get("/who").as_bytes()).unwrap();
            }
            for client in &mut clients {
                let response = read_response(client, "/who");
                assert_ne!(response, worker, "{driver:?}");
            }
            // One by one.
            for _ in 0..8 {
                assert_ne!(ask(&mut server.connect(), "/who"), worker, "{driver:?}");
            }
            release.send(()).unwrap();
            assert_eq!(read_response(&mut stream, "/hang"), "hello");
            // It gets connections again.
            let mut kept = Vec::new();
            loop {
                let mut client = server.connect();
                if ask(&mut client, "/who") == worker {
                    break;
                }
                kept.push(client);
            }
        }
    }
}

/// Sleeping, in the kernel or as a task, is not blocking.
#[test]
fn who_waits_is_not_told() {
    let _alone = alone();
    let _dog = watchdog("who_waits_is_not_told");
    for driver in drivers() {
        TOLD.lock().unwrap().clear();
        let router = Router::new().get("/", async |request: Request| {
            request.worker().sleep(BLOCK).await;
            request
                .worker()
                .blocking(|| std::thread::sleep(BLOCK))
                .await
                .unwrap();
            Response::text("hello")
        });
        let server = serve_with(driver, router, |server| server);
        let mut stream = server.connect();
        assert_eq!(ask(&mut stream, "/"), "hello");
        std::thread::sleep(BLOCK);
        assert_eq!(ask(&mut stream, "/"), "hello");
        // The machine may stand still, but not for as long as the handler waits.
        let long = |told: &Told| told["duration_ms"].parse::<u64>().unwrap() >= 290;
        let all = told("a worker was blocked");
        assert!(!all.iter().any(long), "{driver:?}: {all:?}");
    }
}
