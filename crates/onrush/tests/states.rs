//! States of routers, per worker or shared, and handlers for methods that are not allowed.

use crate::common::{calm, drivers, watchdog};
use onrush::{Limits, Next, Request, Response, Router, Server, sim::Simulation};
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::thread::ThreadId;

/// The response to a request with this method and path, as text.
fn ask(sim: &mut Simulation, line: &str) -> String {
    let client = sim.connect();
    sim.send(
        &client,
        format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes(),
    );
    String::from_utf8(client.receive().unwrap()).unwrap()
}

struct Name(&'static str);

async fn name(request: Request) -> &'static str {
    request.state::<Name>().0
}

async fn named(request: Request, next: Next) -> Response {
    let name = request.state::<Name>().0;
    next.run(request).await.with_header("X-Name", name)
}

#[test]
fn every_handler_and_layer_of_a_router_reaches_its_state() {
    let inner = Router::new().get("/own", name).with_state(Name("inner"));
    let router = Router::new()
        .with_state(Name("outer"))
        .get("/", name)
        .nest("/a", inner)
        .nest("/b", Router::new().get("/none", name))
        .fallback(name)
        .layer(named);
    let mut sim = calm(&router, Limits::default());
    for (path, end) in [
        ("/", "outer"),
        ("/a/own", "inner"),
        ("/b/none", "outer"),
        ("/x", "outer"),
    ] {
        let response = ask(&mut sim, &format!("GET {path}"));
        assert!(
            response.ends_with(&format!("\r\n\r\n{end}")),
            "{path}: {response}"
        );
        assert!(
            response.contains("\r\nX-Name: outer\r\n"),
            "{path}: {response}"
        );
    }
    let response = ask(&mut sim, "PUT /");
    assert!(response.contains("\r\nX-Name: outer\r\n"), "{response}");
}

#[test]
fn a_state_that_is_missing_is_500() {
    let mut sim = calm(&Router::new().get("/", name), Limits::default());
    let response = ask(&mut sim, "GET /");
    assert!(response.starts_with("HTTP/1.1 500 "), "{response}");
}

#[test]
#[should_panic(expected = "the router has a state of this type already")]
fn two_states_of_a_type_are_a_mistake() {
    let _ = Router::new().with_state(Name("a")).with_state(Name("b"));
}

/// Tells its thread when it opens and when it is dropped. It is not `Send`.
struct Resource {
    uses: Rc<Cell<u32>>,
    events: Sender<(&'static str, ThreadId)>,
}

impl Drop for Resource {
    fn drop(&mut self) {
        let _ = self.events.send(("closed", std::thread::current().id()));
    }
}

#[test]
fn a_state_of_each_worker_is_made_once_and_dropped_on_its_thread() {
    let _dog = watchdog("a_state_of_each_worker_is_made_once_and_dropped_on_its_thread");
    async fn count(request: Request) -> Response {
        let uses = &request.state::<Resource>().uses;
        uses.set(uses.get() + 1);
        Response::text(uses.get().to_string()).close()
    }
    for driver in drivers() {
        let (sender, events) = channel();
        let router = Router::new()
            .get("/a", count)
            .get("/{b}", count)
            .with_worker_state(move |_| {
                let events = sender.clone();
                let _ = events.send(("opened", std::thread::current().id()));
                let uses = Rc::default();
                Resource { uses, events }
            });
        let server = Server::bind("127.0.0.1:0").workers(2).driver(driver);
        let running = server.start(router).unwrap();
        let mut sum = 0;
        for path in ["a", "b", "a", "b"] {
            let mut stream = TcpStream::connect(running.address().to_string()).unwrap();
            let request = format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut response = String::new();
            stream.read_to_string(&mut response).unwrap();
            let (_, count) = response.split_once("\r\n\r\n").unwrap();
            sum += count.parse::<u32>().unwrap();
        }
        // One worker counts 1 to 4, and two of them 1 and 2 each.
        assert!((6..=10).contains(&sum), "{sum}");
        running.handle().shutdown();
        running.wait().unwrap();
        let (mut opened, mut closed) = (Vec::new(), Vec::new());
        for (event, thread) in events.try_iter() {
            match event {
                "opened" => opened.push(thread),
                _ => closed.push(thread),
            }
        }
        assert_eq!(opened.len(), 2);
        assert_ne!(opened[0], opened[1]);
        assert!(closed.len() == 2 && opened.iter().all(|thread| closed.contains(thread)));
    }
}

#[test]
fn a_method_that_is_not_allowed_has_the_innermost_handler_and_allow() {
    let text = |text: &'static str| {
        move |request: Request| async move {
            Response::text(format!("{text}: {}", request.method())).with_status(405)
        }
    };
    let own = async |_: Request| Response::new(405).with_header("Allow", "NONE");
    let inner = Router::new()
        .get("/x", name)
        .method_not_allowed(text("inner"));
    let router = Router::new()
        .put("/x", name)
        .nest("/a", inner)
        .nest("/b", Router::new().get("/x", name))
        .nest("/c", Router::new().get("/x", name).method_not_allowed(own))
        .method_not_allowed(text("outer"));
    let mut sim = calm(&router, Limits::default());
    for (line, allow, end) in [
        ("DELETE /x", "OPTIONS, PUT", "outer: DELETE"),
        ("DELETE /a/x", "GET, HEAD, OPTIONS", "inner: DELETE"),
        ("DELETE /b/x", "GET, HEAD, OPTIONS", "outer: DELETE"),
        ("DELETE /c/x", "NONE", ""),
    ] {
        let response = ask(&mut sim, line);
        assert!(response.starts_with("HTTP/1.1 405 "), "{line}: {response}");
        assert!(
            response.contains(&format!("\r\nAllow: {allow}\r\n")),
            "{line}: {response}"
        );
        assert!(
            response.ends_with(&format!("\r\n\r\n{end}")),
            "{line}: {response}"
        );
    }
    assert!(ask(&mut sim, "OPTIONS /x").starts_with("HTTP/1.1 204 "));
    assert!(ask(&mut sim, "DELETE /unknown").starts_with("HTTP/1.1 404 "));
}
