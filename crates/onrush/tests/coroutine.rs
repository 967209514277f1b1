//! Handlers that are plain functions: request bodies, responses and failures.

use crate::common::contract::contract;
use crate::common::{
    ask, calm, content, dechunk, drivers, get, pattern, serve, serve_plain, serve_with, statuses,
    text, through_tls, watchdog,
};
use onrush::coroutine::{
    RequestReader, ResponseWriter, TcpStream, counters, handler, scope, sleep,
};
use onrush::sim::Simulation;
use onrush::{Limits, Router};
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::time::Duration;

fn hello(request: &mut RequestReader, response: &mut ResponseWriter) {
    assert_eq!(request.path(), "/hello");
    response.set_content_type("text/plain");
    response.write_all(b"hello").unwrap();
}

fn echo(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    io::copy(request, response)?;
    if let Some(trailers) = request.take_trailers() {
        response.write_all(&trailers)?;
    }
    Ok(())
}

/// Reads the whole body and responds with its length and last byte.
fn whole(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    let mut all = vec![0];
    request.read_to_end(&mut all)?;
    write!(response, "{} {}", all.len() - 1, all[all.len() - 1])
}

fn lines(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    for line in request.lines() {
        writeln!(response, "<{}>", line?)?;
    }
    Ok(())
}

/// Sends as many bytes as the path says, in pieces of the size that it says.
fn bytes(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    let number = |name| request.param(name).unwrap().parse::<usize>().unwrap();
    let (all, piece) = (pattern(number("bytes")), number("piece"));
    all.chunks(piece)
        .try_for_each(|piece| response.write_all(piece))
}

fn flushes(_: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    response.set_status(203);
    response.set_header("X-Kind", "slow");
    response.flush()?;
    for word in ["one ", "two ", "three"] {
        sleep(Duration::from_millis(10));
        response.write_all(word.as_bytes())?;
        response.flush()?;
    }
    assert!(response.has_left());
    Ok(())
}

/// Declares one length and writes another.
fn declares(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    let number = |name| request.param(name).unwrap().parse::<usize>().unwrap();
    let (declared, written) = (number("declared"), number("written"));
    response.set_content_length(declared as u64);
    let result = response.write_all(&pattern(written));
    match written > declared {
        true => assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput),
        false => result?,
    }
    Ok(())
}

fn status(request: &mut RequestReader, response: &mut ResponseWriter) {
    response.set_status(request.param("status").unwrap().parse().unwrap());
    response.write_all(b"perhaps not to be seen").unwrap();
}

fn panics(request: &mut RequestReader, response: &mut ResponseWriter) {
    match request.param("when").unwrap() {
        "first" => panic!("on purpose: at once"),
        "later" => sleep(Duration::from_millis(1)),
        _ => response.flush().unwrap(),
    }
    panic!("on purpose: later");
}

fn fails(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    response.write_all(b"never to be seen")?;
    if request.param("when") == Some("late") {
        response.flush()?;
    }
    Err(io::Error::other("on purpose"))
}

fn limited(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    request.set_body_limit(10)?;
    echo(request, response)
}

fn app() -> Router {
    Router::new()
        .get("/hello", handler(contract(), hello))
        .post("/echo", handler(contract(), echo))
        .post("/whole", handler(contract(), whole))
        .post("/lines", handler(contract(), lines))
        .post("/limited", handler(contract(), limited))
        .get("/bytes/{bytes}/{piece}", handler(contract(), bytes))
        .get("/flushes", handler(contract(), flushes))
        .get(
            "/declares/{declared}/{written}",
            handler(contract(), declares),
        )
        .get("/status/{status}", handler(contract(), status))
        .get("/panics/{when}", handler(contract(), panics))
        .get("/fails/{when}", handler(contract(), fails))
}

fn post(path: &str, body: &[u8], chunked: bool) -> Vec<u8> {
    let mut sent = format!("POST {path} HTTP/1.1\r\nHost: t\r\n").into_bytes();
    if !chunked {
        write!(sent, "Content-Length: {}\r\n\r\n", body.len()).unwrap();
        sent.extend_from_slice(body);
        return sent;
    }
    sent.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
    for chunk in body.chunks(7001) {
        write!(sent, "{:x}\r\n", chunk.len()).unwrap();
        sent.extend_from_slice(chunk);
        sent.extend_from_slice(b"\r\n");
    }
    sent.extend_from_slice(b"0\r\n\r\n");
    sent
}

/// The content of one complete response, with either framing.
fn unframed(response: &[u8]) -> Vec<u8> {
    let head = text(&response[..response.len() - content(response).len()]);
    match head.contains("Transfer-Encoding: chunked") {
        true => dechunk(content(response)),
        false => {
            let length = format!("Content-Length: {}\r\n", content(response).len());
            assert!(head.contains(&length), "{head}");
            content(response).to_vec()
        }
    }
}

/// Sends requests on every driver, on the simulated one with several seeds. The response to the
/// last request of `sent` ends its connection.
fn everywhere(what: &'static str, sent: &[u8], check: impl Fn(&[u8])) {
    let _dog = watchdog(what);
    for seed in 0..12 {
        scope(|| {
            let mut sim = Simulation::new(seed, &app(), Limits::default());
            let client = sim.connect();
            let (mut rest, mut response) = (sent, Vec::new());
            for _ in 0..100_000 {
                rest = &rest[client.send(rest).unwrap_or(rest.len())..];
                sim.advance(Duration::from_millis(1));
                response.extend(client.receive().unwrap_or_default());
                if rest.is_empty() && client.at_end() {
                    break;
                }
            }
            check(&response);
            drop(client);
            sim.run();
            assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
            assert_eq!(counters().in_use(), 0);
        });
    }
    for driver in drivers() {
        let server = serve(driver, app());
        let mut stream = server.connect();
        let mut writer = stream.try_clone().unwrap();
        let sent = sent.to_vec();
        let writes = std::thread::spawn(move || writer.write_all(&sent));
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response); // It may be reset.
        let _ = writes.join().unwrap();
        check(&response);
    }
}

fn last(request: impl Into<Vec<u8>>) -> Vec<u8> {
    let request = text(&request.into()); // Heads are UTF-8, bodies are not.
    request
        .replacen("Host: t\r\n", "Host: t\r\nConnection: close\r\n", 1)
        .into_bytes()
}

fn last_post(path: &str, body: &[u8], chunked: bool) -> Vec<u8> {
    let sent = post(path, body, chunked);
    let at = sent.windows(9).position(|w| w == b"Host: t\r\n").unwrap();
    let mut closing = sent[..at].to_vec();
    closing.extend_from_slice(b"Connection: close\r\n");
    closing.extend_from_slice(&sent[at..]);
    closing
}

#[test]
fn small_response_is_sent_in_one_piece_with_its_length() {
    let pipelined = get("/hello").repeat(20) + &text(&last(get("/hello")));
    everywhere("little_leaves", pipelined.as_bytes(), |responses| {
        assert_eq!(statuses(responses), [200; 21]);
        let shown = text(responses);
        assert_eq!(
            shown.matches("Content-Length: 5\r\n").count(),
            21,
            "{shown}"
        );
        assert_eq!(shown.matches("Content-Type: text/plain\r\n").count(), 21);
        assert_eq!(shown.matches("\r\n\r\nhello").count(), 21);
    });
}

#[test]
fn responses_of_every_size() {
    if through_tls() {
        return; // The simulator does the same.
    }
    for (bytes, piece, chunked) in [
        (0, 1, false),
        (16_384, 1000, false),
        (16_384, 16_384, false),
        (16_385, 1000, true),
        (16_385, 16_385, true),
        (40_000, 7, true),
        (500_000, 500_000, true),
        (500_000, 16_384, true),
    ] {
        let sent = last(get(&format!("/bytes/{bytes}/{piece}")));
        everywhere("responses_of_every_size", &sent, |response| {
            let is_chunked = text(response).contains("Transfer-Encoding: chunked");
            assert_eq!(is_chunked, chunked, "{bytes} in pieces of {piece}");
            assert!(
                unframed(response) == pattern(bytes),
                "{bytes} in pieces of {piece}"
            );
        });
    }
}

#[test]
fn bodies_of_every_size() {
    if through_tls() {
        return; // The simulator does the same.
    }
    for bytes in [0, 1, 4096, 16_384, 16_385, 70_000, 400_000] {
        for chunked in [false, true] {
            let body = pattern(bytes);
            let sent = last_post("/echo", &body, chunked);
            everywhere("echo", &sent, |response| {
                assert!(unframed(response) == body, "{bytes}")
            });
            let sent = last_post("/whole", &body, chunked);
            let expected = format!("{bytes} {}", body.last().copied().unwrap_or(0));
            everywhere("whole", &sent, |response| {
                assert_eq!(text(&unframed(response)), expected)
            });
        }
    }
    let sent = last_post("/lines", b"first\nsecond\r\n\nlast", true);
    everywhere("lines", &sent, |response| {
        assert_eq!(text(&unframed(response)), "<first>\n<second>\n<>\n<last>\n");
    });
    let sent = "POST /echo HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\
        Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 6\r\n\r\n";
    everywhere("trailers", sent.as_bytes(), |response| {
        assert_eq!(text(&unframed(response)), "abcX-Sum: 6\r\n");
    });
}

#[test]
fn flush_sends_the_head() {
    scope(|| {
        let mut sim = calm(&app(), Limits::default());
        let client = sim.connect();
        let head = ask(&mut sim, &client, &get("/flushes"));
        assert!(
            head.starts_with("HTTP/1.1 203 ") && head.contains("X-Kind: slow\r\n"),
            "{head}"
        );
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        for chunk in ["4\r\none \r\n", "4\r\ntwo \r\n"] {
            sim.advance(Duration::from_millis(10));
            assert_eq!(text(&client.receive().unwrap()), chunk);
        }
        sim.advance(Duration::from_millis(10));
        assert_eq!(text(&client.receive().unwrap()), "5\r\nthree\r\n0\r\n\r\n");
        assert!(ask(&mut sim, &client, &get("/hello")).ends_with("\r\n\r\nhello"));
        everywhere("flush_sends_the_head", &last(get("/flushes")), |response| {
            assert_eq!(dechunk(content(response)), b"one two three");
        });
    });
}

#[test]
fn wrong_declared_length_resets_the_connection() {
    scope(|| {
        for (declared, written) in [(0, 0), (100, 100), (300_000, 300_000)] {
            let sent = last(get(&format!("/declares/{declared}/{written}")));
            everywhere("declared_lengths", &sent, |response| {
                let shown = text(&response[..response.len().min(300)]);
                assert!(
                    shown.contains(&format!("Content-Length: {declared}\r\n")),
                    "{shown}"
                );
                assert_eq!(content(response).len(), declared);
            });
        }
        for (declared, written) in [(100, 99), (100, 101), (300_000, 299_999)] {
            let mut sim = calm(&app(), Limits::default());
            let client = sim.connect();
            sim.send(
                &client,
                get(&format!("/declares/{declared}/{written}")).as_bytes(),
            );
            while !client.at_end() {
                let _ = client.receive();
                sim.advance(Duration::from_millis(1));
            }
            assert!(client.receive().is_err(), "a reset, not an end");
        }
    });
}

#[test]
fn responses_without_content() {
    for path in [
        "/hello",
        "/flushes",
        "/bytes/100000/100",
        "/declares/70000/0",
    ] {
        let head = get(path).replace("GET", "HEAD");
        let sent = head.clone() + &text(&last(head));
        everywhere("answers_to_head", sent.as_bytes(), |responses| {
            assert_eq!(statuses(responses).len(), 2, "{}", text(responses));
            assert!(
                responses.ends_with(b"\r\n\r\n"),
                "{path}: {}",
                text(responses)
            );
            assert!(!text(responses).contains("one"));
        });
    }
    for status in [204, 205, 304] {
        let sent = last(get(&format!("/status/{status}")));
        everywhere("statuses_without_content", &sent, |response| {
            assert_eq!(statuses(response), [status]);
            assert!(content(response).is_empty());
        });
    }
    let head = last(get("/declares/70000/0").replace("GET", "HEAD"));
    everywhere("head", &head, |response| {
        assert!(text(response).contains("Content-Length: 70000\r\n"));
    });
}

#[test]
fn panics_and_failures_affect_only_their_request() {
    scope(|| {
        let paths = [
            "/panics/first",
            "/panics/later",
            "/fails/early",
            "/status/99",
        ];
        let mut sent: String = paths.iter().map(|path| get(path)).collect();
        sent += &text(&last(get("/hello")));
        everywhere("panics_and_failures", sent.as_bytes(), |responses| {
            assert_eq!(statuses(responses), [500, 500, 500, 500, 200]);
            assert!(!text(responses).contains("never to be seen"));
        });
        for path in ["/panics/after", "/fails/late"] {
            let mut sim = calm(&app(), Limits::default());
            let client = sim.connect();
            sim.send(&client, get(path).as_bytes());
            sim.run();
            assert!(
                client.at_end() && client.receive().is_err(),
                "{path}: a reset"
            );
            assert_eq!((sim.open_connections(), counters().in_use()), (0, 0));
            assert!(
                crate::common::is_served(&mut sim),
                "the worker still serves"
            );
        }
        for chunked in [true, false] {
            everywhere(
                "limited",
                &last_post("/limited", b"more than ten", chunked),
                |response| {
                    assert_eq!(statuses(response), [413]);
                },
            );
        }
        let broken = "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n";
        everywhere("broken", broken.as_bytes(), |response| {
            assert_eq!(statuses(response), [400])
        });
    });
}

/// A handler that sends a request to another server, on the same worker.
#[test]
fn handler_that_is_a_client() {
    let _dog = watchdog("handler_that_is_a_client");
    for driver in drivers() {
        let behind = serve_plain(driver, app()); // The handler's client uses plain HTTP.
        let address = behind.address();
        let front = handler(
            contract(),
            move |request: &mut RequestReader, response: &mut ResponseWriter| {
                let mut stream = TcpStream::connect(address)?;
                let path = request.path();
                write!(
                    stream,
                    "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
                )?;
                io::copy(&mut stream, response)?;
                io::Result::Ok(())
            },
        );
        let front = serve_with(driver, front, |server| server.workers(2));
        for _ in 0..50 {
            let reply = front.get("/hello");
            assert!(
                unframed(&reply).ends_with(b"\r\n\r\nhello"),
                "{}",
                text(&reply)
            );
        }
        assert!(unframed(&front.get("/bytes/300000/5000")).len() > 300_000);
    }
}
