//! Connections that continue with another protocol after a 101 (RFC 9110 §7.8).

use crate::common::contract::contract;
use crate::common::{
    calm, drivers, get, parts, pattern, read_some, seeds, serve, text, through_tls, watchdog,
};
use onrush::coroutine::{RequestReader, ResponseWriter, handler};
use onrush::{BodySender, Bytes, Limits, Request, RequestBody, Response, Router, sim::Simulation};
use std::cell::RefCell;
use std::io::{self, BufRead, Read, Write};
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

const ASKS: &str =
    "GET /repeat HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: repeat\r\n\r\n";
/// What ends the response that `repeat` gives.
const HEAD_END: &str = "\r\nConnection: upgrade\r\nUpgrade: repeat\r\n\r\n";

async fn pump(mut from: RequestBody, mut to: BodySender) {
    while let Some(Ok(piece)) = from.next().await {
        if to.send(Bytes::copy_from_slice(&piece)).await.is_err() {
            return;
        }
    }
    let _ = to.send("bye").await;
    to.finish();
}

/// Sends back what it receives, and `bye` at the end.
async fn repeat(mut request: Request) -> Response {
    let Some(upgrade) = request.upgrade() else {
        return Response::text("no upgrade").with_status(426);
    };
    let upgraded = upgrade.accept("repeat").expect("it is offered");
    let (response, from, to) = parts(upgraded);
    request.worker().spawn(pump(from, to)).detach();
    response
}

/// As `repeat`, but the response is not ready at once, and the stream is read before it is sent.
async fn late(mut request: Request) -> Response {
    let Some(upgrade) = request.upgrade() else {
        return Response::new(426);
    };
    let upgraded = upgrade.accept("repeat").expect("it is offered");
    let (response, from, to) = parts(upgraded);
    let worker = request.worker().clone();
    worker.spawn(pump(from, to)).detach();
    worker.sleep(std::time::Duration::from_millis(20)).await;
    response
}

fn router() -> Router {
    let router = Router::new().get("/repeat", repeat).get("/late", late);
    router.get("/", |_: Request| async { "plain" })
}

/// The response head and what follows it.
fn split_head(received: &[u8]) -> (String, &[u8]) {
    let end = received.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.expect("a whole head") + 4;
    (text(&received[..end]), &received[end..])
}

/// The other protocol's bytes look like HTTP, and some follow the request at once.
#[test]
fn bytes_of_the_other_protocol_pass_whole_and_in_order() {
    if through_tls() {
        return; // The simulator does the same.
    }
    let said = [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n0\r\n\r\n".as_slice(),
        &pattern(50_000),
    ]
    .concat();
    for path in ["/repeat", "/late"] {
        let sent = [ASKS.replace("/repeat", path).as_bytes(), &said].concat();
        for seed in 0..seeds(40) {
            let mut sim = Simulation::new(seed, &router(), Limits::default());
            let client = sim.connect();
            let (mut rest, mut received) = (&sent[..], Vec::new());
            for _ in 0..10_000 {
                rest = &rest[client.send(&rest[..rest.len().min(7_000)]).unwrap()..];
                sim.advance(Duration::from_millis(1));
                received.extend(client.receive().unwrap());
                if received.ends_with(&said[said.len() - 100..]) {
                    break;
                }
            }
            let (head, content) = split_head(&received);
            assert!(
                head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"),
                "{head}"
            );
            assert!(head.ends_with(HEAD_END), "{head}");
            assert!(content == said, "seed {seed}");
            client.shutdown_write();
            sim.advance(Duration::from_millis(50));
            let last = client.receive().unwrap();
            assert_eq!(
                (text(&last), client.at_end()),
                ("bye".to_owned(), true),
                "seed {seed}"
            );
            sim.advance(Limits::default().linger_timeout);
            assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
        }
    }
}

#[test]
fn a_split_at_each_byte_changes_nothing() {
    if through_tls() {
        return;
    }
    let sent = [ASKS, "hello\r\n\r\n"].concat();
    for split in 1..sent.len() {
        let mut sim = calm(&router(), Limits::default());
        let client = sim.connect();
        sim.send(&client, &sent.as_bytes()[..split]);
        sim.send(&client, &sent.as_bytes()[split..]);
        let received = client.receive().unwrap();
        assert_eq!(
            split_head(&received).1,
            b"hello\r\n\r\n",
            "split at {split}"
        );
    }
}

#[test]
fn requests_that_do_not_ask_are_not_upgraded() {
    let requests = [
        get("/repeat"),
        "GET /repeat HTTP/1.1\r\nHost: a\r\nUpgrade: repeat\r\n\r\n".to_owned(),
        "GET /repeat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\n\r\n".to_owned(),
        "GET /repeat HTTP/1.1\r\nHost: a\r\nConnection: upgrades\r\nUpgrade: repeat\r\n\r\n"
            .to_owned(),
        ASKS.replace("HTTP/1.1", "HTTP/1.0")
            .replace("keep-alive, ", "keep-alive,"),
    ];
    for request in requests {
        let mut sim = calm(&router(), Limits::default());
        let client = sim.connect();
        sim.send(&client, request.as_bytes());
        let received = text(&client.receive().unwrap());
        assert!(
            received.starts_with("HTTP/1.1 426 "),
            "{request}: {received}"
        );
        sim.send(&client, get("/").as_bytes());
        let kept = client.receive().unwrap().ends_with(b"plain");
        assert!(kept, "{request}");
    }
    // With a body there is no upgrade, and the body is HTTP's.
    let router = Router::new()
        .post("/repeat", repeat)
        .get("/", |_: Request| async { "plain" });
    let mut sim = calm(&router, Limits::default());
    let client = sim.connect();
    let post = ASKS
        .replace("GET", "POST")
        .replace("\r\n\r\n", "\r\nContent-Length: 2\r\n\r\nab");
    sim.send(&client, [&post, get("/").as_str()].concat().as_bytes());
    let received = text(&client.receive().unwrap());
    assert!(
        received.contains(" 426 ") && received.ends_with("plain"),
        "{received}"
    );
}

/// A handler may decide against the upgrade that it has asked about.
#[test]
fn another_response_continues_with_http() {
    let refuses = |mut request: Request| async move {
        let upgrade = request.upgrade();
        assert!(upgrade.is_some());
        let reader = upgrade
            .and_then(|upgrade| upgrade.accept("repeat").ok())
            .map(|upgraded| upgraded.from_client);
        let read = async move {
            let Some(mut from) = reader else { return };
            assert!(
                !matches!(from.next().await, Some(Ok(_))),
                "it read a request"
            );
        };
        request.worker().spawn(read).detach();
        Response::text("denied").with_status(403)
    };
    let router = Router::new()
        .get("/repeat", refuses)
        .get("/", |_: Request| async { "plain" });
    for seed in 0..seeds(20) {
        let mut sim = Simulation::new(seed, &router, Limits::default());
        let client = sim.connect();
        sim.send(&client, [ASKS, get("/").as_str()].concat().as_bytes());
        sim.advance(Duration::from_millis(20));
        let received = text(&client.receive().unwrap());
        assert!(received.starts_with("HTTP/1.1 403 "), "{received}");
        assert!(received.ends_with("plain"), "{received}");
        assert_eq!(sim.worker().live_tasks(), 0);
    }
}

/// A 101 that was made for one request is no response to another.
#[test]
fn a_response_101_belongs_to_its_request() {
    let application = onrush::per_worker(|_| {
        let kept: Rc<RefCell<Option<Response>>> = Rc::default();
        move |mut request: Request| {
            let kept = kept.clone();
            async move {
                if let Some(upgrade) = request.upgrade() {
                    let upgraded = upgrade.accept("repeat").expect("it is offered");
                    let response = upgraded.response;
                    kept.replace(Some(response));
                    return Response::new(204);
                }
                kept.take().unwrap_or_else(|| Response::new(404))
            }
        }
    });
    let mut sim = calm(&application, Limits::default());
    let client = sim.connect();
    sim.send(&client, ASKS.as_bytes());
    assert!(client.receive().unwrap().starts_with(b"HTTP/1.1 204 "));
    sim.send(&client, get("/").as_bytes());
    assert!(client.receive().unwrap().starts_with(b"HTTP/1.1 500 "));
    sim.send(&client, get("/").as_bytes());
    assert!(client.receive().unwrap().starts_with(b"HTTP/1.1 404 "));
}

/// The time limits of requests end with the 101; that of clients that do not read remains.
#[test]
fn time_limits_of_requests_end_with_the_101() {
    let limits = Limits::default()
        .body_timeout(Duration::from_secs(1))
        .idle_timeout(Duration::from_secs(1))
        .total_timeout(Duration::from_secs(2))
        .head_timeout(Duration::from_secs(1));
    for path in ["/repeat", "/late"] {
        let mut sim = calm(&router(), limits);
        let client = sim.connect();
        sim.send(&client, ASKS.replace("/repeat", path).as_bytes());
        sim.advance(Duration::from_millis(50));
        assert!(client.receive().unwrap().starts_with(b"HTTP/1.1 101 "));
        for word in ["one", "two"] {
            sim.advance(Duration::from_secs(600));
            sim.send(&client, word.as_bytes());
            assert_eq!(text(&client.receive().unwrap()), word, "{path}");
        }
    }
    // A client that does not read ends.
    let mut sim = calm(&router(), limits);
    let client = sim.connect();
    sim.send(&client, ASKS.as_bytes());
    client.receive().unwrap();
    for _ in 0..200 {
        let _ = client.send(&pattern(60_000));
        sim.advance(Duration::from_millis(1));
    }
    assert_eq!(sim.open_connections(), 1);
    sim.advance(limits.write_timeout * 2);
    sim.advance(Duration::from_secs(1));
    assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
}

#[test]
fn tasks_end_when_the_client_disconnects() {
    if through_tls() {
        return;
    }
    for seed in 0..seeds(40) {
        let mut sim = Simulation::new(seed, &router(), Limits::default());
        let client = sim.connect();
        let path = ["/repeat", "/late"][seed as usize % 2];
        let sent = [ASKS.replace("/repeat", path).as_bytes(), &pattern(30_000)].concat();
        let mut rest = &sent[..];
        for _ in 0..seed {
            rest = &rest[client.send(rest).unwrap()..];
            sim.run();
        }
        client.reset();
        sim.advance(Duration::from_millis(100));
        assert_eq!(
            (sim.open_connections(), sim.worker().live_tasks()),
            (0, 0),
            "seed {seed}"
        );
    }
}

/// A drain waits for the other protocol until its timeout.
#[test]
fn a_drain_ends_the_other_protocol_at_its_timeout() {
    let _dog = watchdog("a_drain_ends_the_other_protocol_at_its_timeout");
    for driver in drivers() {
        let server = serve(driver, router());
        let mut stream = server.connect();
        stream.write_all(ASKS.as_bytes()).unwrap();
        let mut received = Vec::new();
        receive_until(&mut stream, &mut received, b"\r\n\r\n");
        server.running().handle().shutdown();
        stream.write_all(b"still here").unwrap();
        receive_until(&mut stream, &mut received, b"still here");
        stream.shutdown(Shutdown::Write).unwrap();
        receive_until(&mut stream, &mut received, b"bye");
        drop(stream);
        server.wait().unwrap();
    }
}

fn receive_until(stream: &mut impl Read, received: &mut Vec<u8>, end: &[u8]) {
    let mut piece = vec![0; 1 << 16];
    while !received.ends_with(end) {
        let n = read_some(stream, &mut piece).unwrap();
        assert!(n > 0, "the end after {} bytes", received.len());
        received.extend_from_slice(&piece[..n]);
    }
}

/// Sends back lines in capitals, until one is empty.
pub(crate) fn capitals(
    request: &mut RequestReader,
    response: &mut ResponseWriter,
) -> io::Result<()> {
    response.set_header("X-Kind", "lines");
    response.write_all(b"not sent")?;
    if !request.upgrade(response, "lines")? {
        assert!(response.clear());
        response.set_status(426);
        return Ok(());
    }
    assert!(response.has_left());
    let mut line = String::new();
    while request.read_line(&mut line)? > 1 {
        response.write_all(line.to_uppercase().as_bytes())?;
        response.flush()?;
        line.clear();
    }
    response.write_all(b"bye")
}

#[test]
fn coroutines_read_and_write_the_other_protocol() {
    let _dog = watchdog("coroutines_read_and_write_the_other_protocol");
    for driver in drivers() {
        let server = serve(driver, handler(contract(), capitals));
        let refused = server.get("/");
        assert!(
            text(&refused).starts_with("HTTP/1.1 426 "),
            "{}",
            text(&refused)
        );
        let mut stream = server.connect();
        let other = ASKS.replace("keep-alive", "close");
        stream.write_all(other.as_bytes()).unwrap();
        let mut refused = Vec::new();
        stream.read_to_end(&mut refused).unwrap();
        assert!(
            refused.starts_with(b"HTTP/1.1 426 "),
            "another protocol is asked for"
        );
        let mut stream = server.connect();
        let asks = ASKS.replace("Upgrade: repeat", "Upgrade: other, lines");
        let sent = [&asks, "one\ntwo\n"].concat();
        stream.write_all(sent.as_bytes()).unwrap();
        let mut received = Vec::new();
        receive_until(&mut stream, &mut received, b"ONE\nTWO\n");
        let head = split_head(&received).0;
        assert!(
            head.ends_with("\r\nX-Kind: lines\r\nUpgrade: lines\r\n\r\n"),
            "{head}"
        );
        stream.write_all(b"\n").unwrap();
        receive_until(&mut stream, &mut received, b"bye");
        let mut rest = [0; 1];
        assert_eq!(
            read_some(&mut stream, &mut rest).unwrap(),
            0,
            "the handler has returned"
        );
    }
}

#[test]
fn both_directions_at_once_on_both_drivers() {
    let _dog = watchdog("both_directions_at_once_on_both_drivers");
    let said = pattern(4 << 20);
    for driver in drivers() {
        for path in ["/repeat", "/late"] {
            let server = serve(driver, router());
            let mut stream = server.connect();
            let mut writer = stream.try_clone().unwrap();
            let sent = [ASKS.replace("/repeat", path).as_bytes(), &said].concat();
            let sending = std::thread::spawn(move || writer.write_all(&sent));
            let mut received = Vec::new();
            receive_until(&mut stream, &mut received, &said[said.len() - 1000..]);
            sending.join().unwrap().unwrap();
            let (head, content) = split_head(&received);
            assert!(head.ends_with(HEAD_END), "{driver:?}: {head}");
            assert!(content == said, "{driver:?} {path}");
        }
    }
}

/// A client that sends everything at once and ends its side still gets its answer.
#[test]
fn the_end_of_a_client_may_arrive_before_the_101() {
    for path in ["/repeat", "/late"] {
        for seed in 0..seeds(20) {
            let mut sim = Simulation::new(seed, &router(), Limits::default());
            let client = sim.connect();
            let sent = [ASKS.replace("/repeat", path), "data".to_owned()].concat();
            let mut rest = sent.as_bytes();
            while !rest.is_empty() {
                rest = &rest[client.send(rest).unwrap()..];
                sim.run();
            }
            client.shutdown_write();
            sim.advance(Duration::from_millis(100));
            let received = client.receive().unwrap();
            let (head, content) = split_head(&received);
            assert!(
                head.starts_with("HTTP/1.1 101 "),
                "{path}, seed {seed}: {head}"
            );
            assert_eq!(text(content), "databye", "{path}, seed {seed}");
        }
    }
}

/// RFC 9110 §7.8: a server must not switch to a protocol that the client does not name.
#[test]
fn only_a_protocol_that_is_offered_is_accepted() {
    async fn accepts(mut request: Request) -> Response {
        let wanted = request.query().unwrap_or_default().to_owned();
        let Some(upgrade) = request.upgrade() else {
            return Response::new(426);
        };
        match upgrade.accept(&wanted) {
            Ok(upgraded) => {
                upgraded.to_client.finish();
                upgraded.response
            }
            Err(error) => Response::text(error.to_string()).with_status(400),
        }
    }
    for (wanted, status) in [("a", 101), ("B/2", 101), ("", 400), ("b", 400), ("c", 400)] {
        let mut sim = Simulation::new(1, &accepts, Limits::default());
        let client = sim.connect();
        let head = format!(
            "GET /?{wanted} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: a, b/2\r\n\r\n"
        );
        sim.send(&client, head.as_bytes());
        let received = text(&client.receive().unwrap());
        assert!(
            received.starts_with(&format!("HTTP/1.1 {status} ")),
            "{wanted}: {received}"
        );
    }
}

/// The reader is dropped at the client's end, and the answer does not fit into the buffers.
#[test]
fn an_answer_after_the_end_of_a_client_is_whole_without_half_closing() {
    async fn answer(mut request: Request) -> Response {
        let Some(upgrade) = request.upgrade() else {
            return Response::new(426);
        };
        let upgraded = upgrade.accept("repeat").expect("it is offered");
        let (response, mut from, mut to) = parts(upgraded);
        let answering = async move {
            while from.next().await.is_some() {}
            drop(from);
            for _ in 0..128 {
                let _ = to.send(Bytes::from(vec![b'a'; 65_536])).await;
            }
            to.finish();
        };
        request.worker().spawn(answering).detach();
        response
    }
    for driver in drivers() {
        let router = Router::new().get("/repeat", answer);
        let server = crate::common::serve_with(driver, router, |server| server.half_close(false));
        let mut stream = server.connect();
        stream.write_all(ASKS.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(200));
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("no reset");
        assert_eq!(split_head(&received).1.len(), 128 * 65_536, "{driver:?}");
    }
}
