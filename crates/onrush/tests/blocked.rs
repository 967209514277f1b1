//! Handlers that block their worker are reported with their route, in the log and in the metrics.

use crate::common::{drivers, get, read_some, serve_with, text, watchdog};
use onrush::metrics::Format;
use onrush::{DriverPreference, Metrics, Request, Response, Router};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use tracing::field::{Field, Visit};

const BLOCK: Duration = Duration::from_millis(300);

/// The fields of one event of this crate at level WARN.
type Event = BTreeMap<&'static str, String>;
static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());

struct Capture;

struct Fields<'t>(&'t mut Event);

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
        let mut fields = Event::new();
        event.record(&mut Fields(&mut fields));
        EVENTS.lock().unwrap().push(fields);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Whether the test `name` has run in a process of its own. `false` in that process, whose events
/// this records.
fn is_done(name: &'static str) -> bool {
    if testing::child::elsewhere(module_path!(), name) {
        return true;
    }
    tracing::subscriber::set_global_default(Capture).unwrap();
    false
}

fn events(message: &str) -> Vec<Event> {
    let events = EVENTS.lock().unwrap();
    let is_it = |event: &&Event| event["message"] == message;
    events.iter().filter(is_it).cloned().collect()
}

/// Those with a route. A busy machine may hold a worker up as well, in no handler.
fn events_of_routes(message: &str) -> Vec<Event> {
    let mut all = events(message);
    all.retain(|event| event.contains_key("route"));
    all
}

fn metric(metrics: &Metrics, name: &str) -> f64 {
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
        let n = read_some(stream, &mut piece).expect("a response");
        assert!(n > 0, "{path}: {}", text(&response));
        response.extend_from_slice(&piece[..n]);
    }
    let response = text(&response);
    response.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn blocking_handler_is_reported_with_its_route() {
    if is_done("blocking_handler_is_reported_with_its_route") {
        return;
    }
    let _dog = watchdog("blocking_handler_is_reported_with_its_route");
    for driver in drivers() {
        for (path, route) in [
            ("/at-once/7", "/at-once/{name}"),
            ("/late", "/late"),
            ("/spawned", "/spawned"),
        ] {
            EVENTS.lock().unwrap().clear();
            let metrics = Metrics::new();
            let server = serve_with(driver, router(), |server| server.metrics(&metrics));
            let mut stream = server.connect();
            assert_eq!(ask(&mut stream, path), "hello");
            // The worker reports it in the next iteration.
            assert_eq!(ask(&mut stream, "/"), "hello");
            let all = events("a worker was blocked");
            let by_route = |event: &&Event| event.get("route").is_some_and(|found| found == route);
            let event = all.iter().find(by_route);
            let event = event.unwrap_or_else(|| panic!("{driver:?} {path}: {all:?}"));
            assert_eq!(event["worker"], "0");
            assert_eq!(event["suppressed"], "0");
            assert!(
                event["duration_ms"].parse::<u64>().unwrap() >= 300,
                "{event:?}"
            );
            assert!(metric(&metrics, "onrush_worker_blocked_total{") >= 1.0);
            assert!(metric(&metrics, "onrush_worker_blocked_seconds_total{") >= 0.3);
        }
    }
}

/// Among other requests of the same iteration, the blocking one is found at its next occurrence.
#[test]
fn blocking_handler_is_found_among_others() {
    if is_done("blocking_handler_is_found_among_others") {
        return;
    }
    let _dog = watchdog("blocking_handler_is_found_among_others");
    for driver in drivers() {
        EVENTS.lock().unwrap().clear();
        let server = serve_with(driver, router(), |server| server);
        let mut stream = server.connect();
        let found = |event: &Event| event.get("route").is_some_and(|r| r == "/at-once/{name}");
        let mut rounds = 0;
        while !events("a worker was blocked").iter().any(found) {
            assert!(
                rounds < 50,
                "{driver:?}: {:?}",
                events("a worker was blocked")
            );
            rounds += 1;
            let three = get("/") + &get("/at-once/7") + &get("/");
            stream.write_all(three.as_bytes()).unwrap();
            let (mut responses, mut piece) = (String::new(), [0; 4096]);
            while responses.matches("hello").count() < 3 {
                let n = read_some(&mut stream, &mut piece).expect("responses");
                assert!(n > 0);
                responses += &text(&piece[..n]);
            }
        }
        let all = events("a worker was blocked");
        // No other route is blamed, except when the machine itself stands still.
        let blamed = all.iter().filter_map(|event| event.get("route"));
        assert!(blamed.filter(|route| *route == "/").count() <= 1, "{all:?}");
    }
}

/// Another worker reports a handler that does not return, and the metrics show it meanwhile.
#[test]
fn stuck_handler_is_reported_by_another_worker() {
    if is_done("stuck_handler_is_reported_by_another_worker") {
        return;
    }
    let _dog = watchdog("stuck_handler_is_reported_by_another_worker");
    for driver in drivers() {
        never_returns(driver);
    }
}

fn never_returns(driver: DriverPreference) {
    EVENTS.lock().unwrap().clear();
    static GATE: Mutex<Option<mpsc::Receiver<()>>> = Mutex::new(None);
    let (release, gate) = mpsc::channel();
    *GATE.lock().unwrap() = Some(gate);
    let router = Router::new()
        .get("/who", async |request: Request| {
            Response::text(request.worker().index().to_string())
        })
        .get("/hang", async |_: Request| {
            let gate = GATE.lock().unwrap().take().expect("hung once");
            let _ = gate.recv(); // Also if the test has failed.
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
    while events_of_routes("a worker is blocked").is_empty() {
        assert_eq!(ask(&mut other, "/who"), "0");
        std::thread::sleep(Duration::from_millis(20));
    }
    let all = events_of_routes("a worker is blocked");
    assert_eq!((&*all[0]["worker"], &*all[0]["route"]), ("1", "/hang"));
    assert!(metric(&metrics, "onrush_worker_iteration_seconds{worker=\"1\"}") >= 2.0);
    release.send(()).unwrap();
    // It returns, and is reported once more with the whole duration.
    assert_eq!(ask(&mut hanging, "/who").chars().next(), Some('h'));
    while events_of_routes("a worker was blocked").is_empty() {
        ask(&mut hanging, "/who");
    }
    let all = events_of_routes("a worker was blocked");
    assert_eq!((&*all[0]["worker"], &*all[0]["route"]), ("1", "/hang"));
}

/// A router with `/who`, and `/hang`, which blocks its worker until the test releases it.
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
                let _ = gate.recv(); // Also if the test has failed.
                Response::text("hello")
            }
        })
}

/// A connection to each of two workers.
fn one_each(server: &crate::common::Served) -> BTreeMap<String, TcpStream> {
    let mut by_worker = BTreeMap::new();
    while by_worker.len() < 2 {
        let mut stream = server.connect();
        let worker = ask(&mut stream, "/who");
        by_worker.entry(worker).or_insert(stream);
    }
    by_worker
}

/// The number of times that the workers of this process have gone to sleep.
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

/// Without traffic, no worker wakes up to check for blocked ones. A worker that is blocked then is
/// reported nevertheless, and another one serves new connections.
#[test]
fn blocked_worker_is_reported_while_others_sleep() {
    if is_done("blocked_worker_is_reported_while_others_sleep") {
        return;
    }
    let _dog = watchdog("blocked_worker_is_reported_while_others_sleep");
    for driver in drivers() {
        for worker in ["0", "1"] {
            EVENTS.lock().unwrap().clear();
            let (release, gate) = mpsc::channel();
            let (begun, has_begun) = mpsc::channel();
            let router = hanging(gate, begun);
            let server = serve_with(driver, router, |server| server.workers(2));
            let mut by_worker = one_each(&server);
            until_all_sleep();
            let mut stream = by_worker.remove(worker).unwrap();
            stream.write_all(get("/hang").as_bytes()).unwrap();
            has_begun.recv().unwrap();
            while events_of_routes("a worker is blocked").is_empty() {
                std::thread::sleep(Duration::from_millis(20));
            }
            let all = events_of_routes("a worker is blocked");
            assert_eq!((&*all[0]["worker"], &*all[0]["route"]), (worker, "/hang"));
            release.send(()).unwrap();
        }
    }
}

/// New connections are served while a worker is blocked, wherever the kernel queued them.
#[test]
fn new_connections_are_served_by_other_workers() {
    if is_done("new_connections_are_served_by_other_workers") {
        return;
    }
    let _dog = watchdog("new_connections_are_served_by_other_workers");
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
            // Many at once: some arrive before a worker has noticed.
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
            // The released worker gets connections again.
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
fn waiting_handler_is_not_reported() {
    const WAIT: Duration = Duration::from_secs(1);
    const SHORTEST_MS: u128 = WAIT.as_millis() - 10;
    if is_done("waiting_handler_is_not_reported") {
        return;
    }
    let _dog = watchdog("waiting_handler_is_not_reported");
    for driver in drivers() {
        EVENTS.lock().unwrap().clear();
        let router = Router::new()
            .get("/", async |_: Request| Response::text("hello"))
            .get("/wait", async |request: Request| {
                request.worker().sleep(WAIT).await;
                let nap = request.worker().blocking(|| std::thread::sleep(WAIT));
                nap.await.unwrap();
                Response::text("hello")
            });
        let server = serve_with(driver, router, |server| server);
        let mut stream = server.connect();
        assert_eq!(ask(&mut stream, "/wait"), "hello");
        // The next iteration would report it.
        assert_eq!(ask(&mut stream, "/"), "hello");
        // The machine may stand still, but for less time than the handler waits.
        let long = |event: &Event| event["duration_ms"].parse::<u128>().unwrap() >= SHORTEST_MS;
        let all = events("a worker was blocked");
        assert!(!all.iter().any(long), "{driver:?}: {all:?}");
    }
}
