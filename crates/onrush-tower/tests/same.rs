//! Each application runs on `axum::serve` and on Onrush, with one changed line. The responses to
//! the same raw requests are the same.

use crate::apps;
use crate::client::{Reply, exchange, replies};
use axum::Router;
use onrush::Server;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// An application on both servers.
pub(crate) struct Both {
    pub(crate) axum: SocketAddr,
    pub(crate) onrush: Vec<(String, SocketAddr)>,
    handles: Vec<onrush::Handle>,
    _runtime: Runtime,
}

impl Drop for Both {
    fn drop(&mut self) {
        for handle in &self.handles {
            handle.shutdown_now();
        }
    }
}

pub(crate) fn drivers() -> Vec<onrush::DriverPreference> {
    use onrush::DriverPreference::{Epoll, Uring};
    let probe =
        || onrush_rt::driver::choose(Uring, &onrush_rt::driver::Config::default()).map(|_| ());
    testing::drivers::available(Uring, Epoll, probe)
}

/// Serves `app` by `axum::serve`, and on Onrush with each driver.
pub(crate) fn serve(app: impl Fn() -> Router) -> Both {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let _context = runtime.enter();
    let listener = runtime
        .block_on(TcpListener::bind("127.0.0.1:0"))
        .expect("bound");
    let axum = listener.local_addr().expect("an address");
    let served = app().into_make_service_with_connect_info::<SocketAddr>();
    runtime.spawn(async { axum::serve(listener, served).await });
    let (mut onrush, mut handles) = (Vec::new(), Vec::new());
    for driver in drivers() {
        let server = Server::bind("127.0.0.1:0").workers(2).driver(driver);
        let running = onrush_tower::serve(server, app()).start().expect("started");
        let address = running.address().to_string().parse().expect("an address");
        onrush.push((format!("{driver:?}"), address));
        handles.push(running.handle());
    }
    Both {
        axum,
        onrush,
        handles,
        _runtime: runtime,
    }
}

impl Both {
    /// Sends each request to each server, on a connection of its own. Calls `check` with the
    /// response, which is the same of all.
    pub(crate) fn compare(&self, requests: &[Vec<u8>], check: impl Fn(usize, &Reply)) {
        for (number, request) in requests.iter().enumerate() {
            let is_head = [request.starts_with(b"HEAD ")];
            let of = |address| {
                let received = exchange(address, request);
                replies(&received, &is_head)
            };
            let shown = String::from_utf8_lossy(&request[..request.len().min(400)]).into_owned();
            let expected = of(self.axum);
            assert!(!expected.is_empty(), "{shown}");
            for (driver, address) in &self.onrush {
                assert_eq!(of(*address), expected, "{driver}: {shown}");
            }
            check(number, &expected[0]);
        }
    }
}

/// A request with `Connection: close`. `lines` are further field lines, each with its CRLF.
pub(crate) fn request(line: &str, lines: &str, body: &[u8]) -> Vec<u8> {
    let length = match body.is_empty() {
        true => String::new(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    let head =
        format!("{line} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{length}{lines}\r\n");
    [head.as_bytes(), body].concat()
}

fn chunked(line: &str, lines: &str, chunks: &[&str], trailers: &str) -> Vec<u8> {
    let coding = "Transfer-Encoding: chunked";
    let mut text =
        format!("{line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{coding}\r\n{lines}\r\n");
    for chunk in chunks {
        text.push_str(&format!("{:x}\r\n{chunk}\r\n", chunk.len()));
    }
    text.push_str(&format!("0\r\n{trailers}\r\n"));
    text.into_bytes()
}

fn statuses(both: &Both, rows: &[(Vec<u8>, u16)]) {
    let requests: Vec<_> = rows.iter().map(|(request, _)| request.clone()).collect();
    both.compare(&requests, |number, reply| {
        let shown = String::from_utf8_lossy(&requests[number]);
        assert_eq!(reply.status, rows[number].1, "{shown}");
    });
}

#[test]
fn basics() {
    let _dog = testing::watchdog("basics");
    let both = serve(apps::basics);
    let odd = "X-A: 1\r\nx-a: 2\r\nX-Latin: caf\u{e9}\r\nX-Empty:\r\nX-Spaces: \t a  b \t\r\n";
    let rows = [
        (request("GET /", "", b""), 200),
        (request("HEAD /", "", b""), 200),
        (request("POST /", "", b"x"), 405),
        (request("OPTIONS /", "", b""), 405),
        (request("GET /html", "", b""), 200),
        (request("GET /none", "", b""), 404),
        (request("GET /head", odd, b""), 200),
        (request("M-SEARCH /head", "", b""), 200),
        (request("GET http://other.example/head?a=b", "", b""), 200),
        (request("OPTIONS *", "", b""), 404),
        (request("GET /head?", "", b""), 200),
        (request("GET /head?a=b&c=%20+?/:@!$'()*,;", "", b""), 200),
        (request("GET /files/a%2Fb/c%20d/..%2f", "", b""), 200),
        (request("GET /files/%ff", "", b""), 400),
        (request("GET /files/", "", b""), 404),
        (request("GET //", "", b""), 404),
        (request("GET /query?b=2&a=1&a=3", "", b""), 200),
        (request("GET /query?%zz", "", b""), 200),
        (request("GET /redirect", "", b""), 303),
        (request("GET /empty", "", b""), 200),
        (request("HEAD /empty", "", b""), 200),
        (request("POST /empty", "", b""), 204),
        (request("GET /status/304", "", b""), 304),
        (request("GET /status/418", "", b""), 418),
        (request("GET /status/599", "", b""), 599),
        (request("GET /headers", "", b""), 200),
        (request("HEAD /headers", "", b""), 200),
        (request("GET /users/7", "", b""), 200),
        (request("GET /users/x", "", b""), 400),
        (request("GET /users/7/head", "", b""), 200),
        (request("GET /users/7/8/9", "", b""), 404),
        (request("POST /bytes", "", &[0, 255, 13, 10]), 200),
        (
            request("POST /bytes", "Expect: 100-continue\r\n", b"waited"),
            200,
        ),
        (request("POST /bytes", "", b""), 200),
        (request("POST /bytes", "", &vec![b'x'; 300_000]), 200),
        (request("POST /bytes", "", &vec![b'x'; 3 << 20]), 413),
        (
            chunked("POST /bytes", "", &["a", "bcd", &"e".repeat(70_000)], ""),
            200,
        ),
        (request("POST /text", "", "gr\u{fc}n".as_bytes()), 200),
        (request("POST /text", "", b"\xff"), 400),
        (b"GET / HTTP/1.0\r\n\r\n".to_vec(), 200),
        (b"GET /head HTTP/1.0\r\nHost: old\r\n\r\n".to_vec(), 200),
        (
            b"\r\nGET /head HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_vec(),
            200,
        ),
    ];
    statuses(&both, &rows);
}

#[test]
fn pipelined_requests_have_their_responses_in_order() {
    let _dog = testing::watchdog("pipelined_requests_have_their_responses_in_order");
    let both = serve(apps::basics);
    let kept = |line: &str| format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes();
    let mut sent = Vec::new();
    for number in 0..50 {
        sent.extend(kept(&format!("GET /users/{number}")));
        sent.extend(b"POST /bytes HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    }
    sent.extend(request("GET /", "", b""));
    let of = |address| replies(&exchange(address, &sent), &[]);
    let expected = of(both.axum);
    assert_eq!(expected.len(), 101);
    assert_eq!(expected[98].text(), "user 49");
    for (driver, address) in &both.onrush {
        assert_eq!(of(*address), expected, "{driver}");
    }
}

#[test]
fn forms_and_json() {
    let _dog = testing::watchdog("forms_and_json");
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    statuses(
        &serve(apps::form),
        &[
            (request("POST /", form, b"name=Ada+L%2E&age=36"), 200),
            (request("POST /", form, b"age=36"), 422),
            (request("POST /", form, b"name=a&age=999"), 422),
            (
                request("POST /", "Content-Type: text/plain\r\n", b"name=a"),
                415,
            ),
            (request("GET /?name=Ada", "", b""), 200),
            (request("GET /", "", b""), 400),
        ],
    );
    let json = "Content-Type: application/json\r\n";
    statuses(
        &serve(apps::json),
        &[
            (request("GET /todos", "", b""), 200),
            (request("POST /todos", json, br#"{"text": "one"}"#), 201),
            (
                request("POST /todos", json, br#"{"text": "two", "done": true}"#),
                201,
            ),
            (request("GET /todos", "", b""), 200),
            (request("GET /todos/1", "", b""), 200),
            (request("GET /todos/9", "", b""), 404),
            (request("DELETE /todos/0", "", b""), 204),
            (request("DELETE /todos/0", "", b""), 404),
            (request("GET /todos", "", b""), 200),
            (request("POST /todos", json, br#"{"text": "#), 400),
            (request("POST /todos", json, br#"{"text": 7}"#), 422),
            (request("POST /todos", "", br#"{"text": "x"}"#), 415),
            (
                chunked("POST /todos", json, &["{\"text\": ", "\"in parts\"}"], ""),
                201,
            ),
        ],
    );
}

#[test]
fn events_and_streams() {
    let _dog = testing::watchdog("events_and_streams");
    let accepts = "TE: trailers\r\n";
    statuses(
        &serve(apps::events),
        &[(request("GET /", "Accept: text/event-stream\r\n", b""), 200)],
    );
    let pieces: Vec<String> = (0..200).map(|number| "p".repeat(number * 7 + 1)).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    let both = serve(apps::streams);
    statuses(
        &both,
        &[
            (request("POST /echo", "", &vec![b'e'; 500_000]), 200),
            (chunked("POST /echo", "", &pieces, ""), 200),
            (request("POST /echo", "", b""), 200),
            (request("GET /count/0", "", b""), 200),
            (request("GET /count/1", "", b""), 200),
            (request("GET /count/10000", "", b""), 200),
            (request("HEAD /count/10", "", b""), 200),
            (request("GET /sized", "", b""), 200),
            (request("HEAD /sized", "", b""), 200),
            (
                chunked(
                    "POST /trailers",
                    accepts,
                    &["body"],
                    "X-Sum: 1\r\nX-B: 2\r\n",
                ),
                200,
            ),
            (
                chunked("POST /trailers", "", &["body"], "X-Sum: 1\r\n"),
                200,
            ),
            (request("POST /trailers", accepts, b"body"), 200),
            (b"GET /count/100 HTTP/1.0\r\n\r\n".to_vec(), 200),
        ],
    );
    both.compare(
        &[chunked("POST /trailers", accepts, &["b"], "X-Sum: 1\r\n")],
        |_, reply| {
            assert_eq!(reply.trailers, "x-received: 1\n");
        },
    );
}

#[test]
fn multipart_forms() {
    let _dog = testing::watchdog("multipart_forms");
    let boundary = "Content-Type: multipart/form-data; boundary=XX\r\n";
    let part = |name: &str, content: &str| {
        format!("--XX\r\nContent-Disposition: form-data; {name}\r\n\r\n{content}\r\n")
    };
    let whole = |parts: &[String]| [parts.concat().as_bytes(), b"--XX--\r\n"].concat();
    let two = [
        part("name=\"a\"", "1"),
        part("name=\"f\"; filename=\"x.txt\"", &"y".repeat(90_000)),
    ];
    statuses(
        &serve(apps::multipart),
        &[
            (request("POST /", boundary, &whole(&two)), 200),
            (request("POST /", boundary, &whole(&[])), 200),
            (request("POST /", "", b"x"), 400),
            (
                request(
                    "POST /",
                    boundary,
                    &whole(&[part("name=\"big\"", &"z".repeat(400_000))]),
                ),
                413,
            ),
            (request("POST /", boundary, two[0].as_bytes()), 400),
        ],
    );
}

#[test]
fn folders() {
    let _dog = testing::watchdog("folders");
    let folder = testing::TempDir::new();
    std::fs::write(folder.path().join("small.txt"), "small").expect("written");
    std::fs::write(folder.path().join("large.bin"), vec![b'l'; 1_000_000]).expect("written");
    std::fs::create_dir(folder.path().join("sub")).expect("made");
    std::fs::write(folder.path().join("sub/index.html"), "<p>index</p>").expect("written");
    let path = folder.path().to_owned();
    statuses(
        &serve(move || apps::files(path.clone())),
        &[
            (request("GET /small.txt", "", b""), 200),
            (request("HEAD /small.txt", "", b""), 200),
            (request("GET /large.bin", "", b""), 200),
            (request("HEAD /large.bin", "", b""), 200),
            (request("GET /large.bin", "Range: bytes=5-9\r\n", b""), 206),
            (request("GET /large.bin", "Range: bytes=-3\r\n", b""), 206),
            (
                request("GET /large.bin", "Range: bytes=2000000-\r\n", b""),
                416,
            ),
            (
                request(
                    "GET /small.txt",
                    "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT\r\n",
                    b"",
                ),
                304,
            ),
            (request("GET /sub", "", b""), 307),
            (request("GET /sub/", "", b""), 200),
            (request("GET /../Cargo.toml", "", b""), 404),
            (request("GET /%2e%2e/Cargo.toml", "", b""), 404),
            (request("POST /small.txt", "", b"x"), 405),
        ],
    );
}

#[test]
fn layers() {
    let _dog = testing::watchdog("layers");
    statuses(
        &serve(apps::layers),
        &[
            (request("GET /", "", b""), 200),
            (request("GET /long", "Accept-Encoding: gzip\r\n", b""), 200),
            (request("HEAD /long", "Accept-Encoding: gzip\r\n", b""), 200),
            (request("GET /long", "", b""), 200),
            (request("GET /panic", "", b""), 500),
            (request("GET /slow", "", b""), 408),
            (request("POST /upload", "", &[b'u'; 9_999]), 200),
            (request("POST /upload", "", &[b'u'; 10_001]), 413),
            (
                chunked(
                    "POST /upload",
                    "",
                    &[&"c".repeat(9_000), &"c".repeat(9_000)],
                    "",
                ),
                413,
            ),
            (
                request(
                    "OPTIONS /",
                    "Origin: http://b\r\nAccess-Control-Request-Method: PUT\r\n",
                    b"",
                ),
                200,
            ),
            (request("GET /", "Origin: http://b\r\n", b""), 200),
        ],
    );
}

#[test]
fn what_applications_do_with_tokio() {
    let _dog = testing::watchdog("what_applications_do_with_tokio");
    let both = serve(apps::runtime);
    statuses(
        &both,
        &[
            (request("POST /spawned", "", &vec![b's'; 200_000]), 200),
            (chunked("POST /spawned", "", &["a", "bc"], "X: y\r\n"), 200),
            (request("POST /spawned", "", b""), 200),
            (request("GET /blocking", "", b""), 200),
            (request("GET /timeout", "", b""), 200),
            (request("GET /together", "", b""), 200),
            (request("GET /file", "", b""), 200),
        ],
    );
    both.compare(&[request("POST /spawned", "", b"seven b")], |_, reply| {
        assert_eq!(reply.text(), "7 bytes in a task");
    });
}

#[test]
fn a_reverse_proxy() {
    let _dog = testing::watchdog("a_reverse_proxy");
    let back = serve(apps::streams);
    let address = back.axum;
    statuses(
        &serve(move || apps::proxy(address)),
        &[
            (request("POST /echo", "", &vec![b'e'; 300_000]), 200),
            (request("GET /count/1000", "", b""), 200),
            (request("GET /none", "", b""), 404),
            (request("HEAD /sized", "", b""), 200),
        ],
    );
    // In front of Onrush as well.
    let address = back.onrush[0].1;
    statuses(
        &serve(move || apps::proxy(address)),
        &[
            (request("POST /echo", "", &vec![b'e'; 300_000]), 200),
            (request("GET /count/1000", "", b""), 200),
        ],
    );
}

#[test]
fn the_address_of_the_client() {
    let _dog = testing::watchdog("the_address_of_the_client");
    let both = serve(apps::client_address);
    both.compare(&[request("GET /", "", b"")], |_, reply| {
        assert_eq!(reply.text(), "127.0.0.1")
    });
}
