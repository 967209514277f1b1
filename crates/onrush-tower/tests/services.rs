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
