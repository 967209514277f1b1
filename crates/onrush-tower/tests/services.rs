//! Services of tower other than routers: those that are not ready, that fail, and that are neither
//! `Sync` nor on a tokio runtime.

use http::{Request, Response};
use http_body_util::Full;
use onrush::{Limits, sim::Simulation};
use onrush_tower::{Body, application};
use std::cell::Cell;
use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, Ready, ready};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tower::{Service, ServiceBuilder, service_fn};

type Content = Full<bytes::Bytes>;

fn ask(sim: &mut Simulation, path: &str) -> String {
    let client = sim.connect();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    sim.send(&client, request.as_bytes());
    sim.advance(Duration::from_millis(50));
    String::from_utf8_lossy(&client.receive().expect("a response")).into_owned()
}

/// The engine and the service work without a tokio runtime, on simulated sockets.
#[test]
fn a_service_without_a_runtime() {
    let service = service_fn(|request: Request<Body>| async move {
        let text = format!("{} {}", request.method(), request.uri());
        Ok::<_, Infallible>(Response::new(Content::from(text)))
    });
    for seed in 0..20 {
        let mut sim = Simulation::new(seed, &application(service), Limits::default());
        let response = ask(&mut sim, "/x?y");
        assert!(response.ends_with("\r\n\r\nGET /x?y"), "{response}");
    }
}

#[test]
fn a_service_that_fails_is_500() {
    let service = service_fn(|_: Request<Body>| async {
        Err::<Response<Content>, Box<dyn Error + Send + Sync>>("the database is away".into())
    });
    let mut sim = Simulation::new(1, &application(service), Limits::default());
    let response = ask(&mut sim, "/");
    assert!(response.starts_with("HTTP/1.1 500 "), "{response}");
    assert!(!response.contains("database"), "{response}");
}

/// A response that HTTP/1.1 cannot carry.
#[test]
fn responses_that_cannot_be_sent() {
    let service = service_fn(|request: Request<Body>| async move {
        let mut response = Response::new(Content::from("content"));
        let status = request
            .uri()
            .path()
            .trim_start_matches('/')
            .parse()
            .expect("a status");
        *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
        let fields = response.headers_mut();
        fields.insert(
            "transfer-encoding",
            http::HeaderValue::from_static("gzip, chunked"),
        );
        fields.insert("connection", http::HeaderValue::from_static("x-own, close"));
        fields.insert("server", http::HeaderValue::from_static("other"));
        fields.insert("x-own", http::HeaderValue::from_static("1"));
        fields.insert("x-padded", http::HeaderValue::from_static(" \tpadded "));
        Ok::<_, Infallible>(response)
    });
    let mut sim = Simulation::new(1, &application(service), Limits::default());
    for (path, expected) in [
        ("/100", "500"),
        ("/101", "500"),
        ("/600", "500"),
        ("/299", "299"),
    ] {
        let response = ask(&mut sim, path);
        assert!(
            response.starts_with(&format!("HTTP/1.1 {expected} ")),
            "{response}"
        );
    }
    let response = ask(&mut sim, "/200");
    assert!(response.contains("\r\nx-padded: padded\r\n"), "{response}");
    assert!(response.contains("\r\nx-own: 1\r\n") && response.contains("Connection: close"));
    assert!(
        !response.contains("gzip") && !response.contains("other"),
        "{response}"
    );
}

/// Ready for one request at a time; each clone has its place in the queue.
#[derive(Clone, Default)]
struct OneAtATime(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    is_busy: bool,
    waiting: Vec<Waker>,
    waited: usize,
}

impl Service<Request<Body>> for OneAtATime {
    type Response = Response<Content>;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let mut queue = self.0.lock().expect("no panic");
        if queue.is_busy {
            queue.waited += 1;
            queue.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        queue.is_busy = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let queue = self.0.clone();
        Box::pin(async move {
            let worker = onrush::WorkerHandle::current().expect("on a worker");
            worker.sleep(std::time::Duration::from_millis(5)).await;
            let waiting = {
                let mut queue = queue.lock().expect("no panic");
                queue.is_busy = false;
                std::mem::take(&mut queue.waiting)
            };
            waiting.into_iter().for_each(Waker::wake);
            Ok(Response::new(Content::from("done")))
        })
    }
}

#[test]
fn requests_wait_until_the_service_is_ready() {
    let service = OneAtATime::default();
    let mut sim = Simulation::new(7, &application(service.clone()), Limits::default());
    let clients: Vec<_> = (0..10).map(|_| sim.connect()).collect();
    for client in &clients {
        sim.send(client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    sim.advance(Duration::from_secs(1));
    for client in &clients {
        assert!(client.receive().expect("a response").ends_with(b"done"));
    }
    assert!(
        service.0.lock().expect("no panic").waited > 0,
        "none had to wait"
    );
}

/// A limit of tower on all clones, whose permits come from a semaphore of tokio.
#[test]
fn a_concurrency_limit_of_tower() {
    let most = Arc::new(AtomicUsize::new(0));
    let now = Arc::new(AtomicUsize::new(0));
    let (most_seen, present) = (most.clone(), now.clone());
    let service = ServiceBuilder::new()
        .concurrency_limit(2)
        .service_fn(move |_: Request<Body>| {
            let (most, now) = (most_seen.clone(), present.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let worker = onrush::WorkerHandle::current().expect("on a worker");
                worker.sleep(std::time::Duration::from_millis(5)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, Infallible>(Response::new(Content::from("done")))
            }
        });
    let mut sim = Simulation::new(3, &application(service), Limits::default());
    let clients: Vec<_> = (0..9).map(|_| sim.connect()).collect();
    for client in &clients {
        sim.send(client, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    sim.advance(Duration::from_secs(1));
    for client in &clients {
        assert!(client.receive().expect("a response").ends_with(b"done"));
    }
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

/// Its future and its content stay on their worker.
#[derive(Clone)]
struct NotSync(Cell<u32>);

impl Service<Request<Body>> for NotSync {
    type Response = Response<Content>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Content>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let count = Rc::new(self.0.get() + 1);
        self.0.set(*count);
        ready(Ok(Response::new(Content::from(format!("request {count}")))))
    }
}

/// A target that the crate `http` refuses never reaches the service, which was ready for it.
#[test]
fn a_request_that_no_service_can_have_keeps_no_permit() {
    let permits = Arc::new(tokio::sync::Semaphore::new(1));
    let limit = tower::limit::GlobalConcurrencyLimitLayer::with_semaphore(permits.clone());
    let service = ServiceBuilder::new().layer(limit);
    let service = service.service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(Content::from("done")))
    });
    let mut sim = Simulation::new(1, &application(service), Limits::default());
    for _ in 0..3 {
        let response = ask(&mut sim, "/<");
        assert!(response.starts_with("HTTP/1.1 400 "), "{response}");
        assert!(response.ends_with("unsupported target\n"), "{response}");
        assert_eq!(permits.available_permits(), 1);
    }
    assert!(ask(&mut sim, "/").ends_with("done"));
}

#[test]
fn a_worker_has_its_own_clone_of_the_service() {
    let mut sim = Simulation::new(1, &application(NotSync(Cell::new(0))), Limits::default());
    for number in 1..=3 {
        let response = ask(&mut sim, "/");
        assert!(
            response.ends_with(&format!("request {number}")),
            "{response}"
        );
    }
}

/// Heads share memory, which is used again when nobody needs it.
#[test]
fn what_is_kept_of_a_request_survives_later_ones() {
    let kept: Arc<Mutex<Vec<Request<()>>>> = Arc::default();
    let all = kept.clone();
    let service = service_fn(move |request: Request<Body>| {
        // Of each second request nothing is kept.
        if request.uri().path().len().is_multiple_of(2) {
            all.lock().expect("no panic").push(request.map(drop));
        }
        async { Ok::<_, Infallible>(Response::new(Content::from("kept"))) }
    });
    let mut sim = Simulation::new(1, &application(service), Limits::default());
    let client = sim.connect();
    let path = |number: usize| format!("/{}{number:04}", "x".repeat(number % 7));
    let value = |number: usize| format!("{number}").repeat(number % 600);
    for number in 0..1000 {
        let (path, value) = (path(number), value(number));
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Value: {value}\r\n\r\n");
        sim.send(&client, head.as_bytes());
        assert!(
            client
                .receive()
                .expect("a response")
                .ends_with(b"\r\n\r\nkept")
        );
    }
    let kept = kept.lock().expect("no panic");
    let expected = (0..1000).filter(|number| path(*number).len().is_multiple_of(2));
    assert_eq!(kept.len(), expected.clone().count());
    for (request, number) in kept.iter().zip(expected) {
        assert_eq!(request.uri().path(), path(number));
        assert_eq!(request.headers()["x-value"], value(number));
        assert_eq!(request.headers()["host"], "a");
    }
}

/// The table of the fields of a response becomes that of a later request.
#[test]
fn a_request_has_no_fields_of_earlier_messages() {
    let service = service_fn(|request: Request<Body>| async move {
        let mut names: Vec<_> = request.headers().keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        let mut response = Response::new(Content::from(names.join(" ")));
        for number in 0..request.headers().len() * 3 {
            let name = http::HeaderName::try_from(format!("x-response-{number}"));
            let value = http::HeaderValue::from_static("of a response");
            response.headers_mut().insert(name.expect("a name"), value);
        }
        Ok::<_, Infallible>(response)
    });
    let mut sim = Simulation::new(1, &application(service), Limits::default());
    let client = sim.connect();
    for number in [0, 1, 30, 2, 60, 0, 3] {
        let names: Vec<String> = (10..10 + number).map(|name| format!("x-{name}")).collect();
        let fields: String = names.iter().map(|name| format!("{name}: 1\r\n")).collect();
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        sim.send(&client, head.as_bytes());
        let response = client.receive().expect("a response");
        let response = String::from_utf8_lossy(&response);
        let (_, listed) = response.split_once("\r\n\r\n").expect("a head");
        let expected = [&["host".to_owned()][..], &names].concat().join(" ");
        assert_eq!(listed, expected);
    }
}
