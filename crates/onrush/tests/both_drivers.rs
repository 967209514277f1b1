//! All drivers behave alike: the same bytes give the same responses on the simulated network, on
//! epoll and on io_uring, whole or in pieces.

use crate::common::script::{End, Script, script};
use crate::common::{pattern, servers, watchdog};

const GET: &str = "GET /hello HTTP/1.1\r\nHost: t\r\n\r\n";
const LAST: &str = "GET /hello HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";

fn get(path: &str) -> String {
    crate::common::get(path)
}

fn head(path: &str) -> String {
    format!("HEAD {path} HTTP/1.1\r\nHost: t\r\n\r\n")
}

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn chunked(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
}

fn expecting(path: &str, framing: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n{framing}\r\n\r\n")
}

/// Runs scripts on the simulated network with many seeds and on real servers, whole and split.
fn run(scripts: &[Script]) {
    let expected: Vec<String> = scripts.iter().map(|s| s.on_sim(0, false)).collect();
    for (script, expected) in scripts.iter().zip(&expected) {
        let bytes = expected.len();
        for seed in 1..=(if bytes < 10_000 { 40 } else { 8 }) {
            if script.end != End::Cut && !script.whole {
                assert_eq!(
                    &script.on_sim(seed, true),
                    expected,
                    "seed {seed}: {}",
                    script.name
                );
            }
        }
    }
    for (driver, server) in servers() {
        for (script, expected) in scripts.iter().zip(&expected) {
            let whole = script.on_server(&server, &[]);
            if script.end != End::Cut {
                assert_eq!(&whole, expected, "{driver:?}: {}", script.name);
            }
            let crate::common::script::Step::Send(first) = &script.steps[0] else {
                continue;
            };
            if script.whole {
                continue;
            }
            let ends = [
                &[3, first.len() / 2],
                &[first.len() / 3, first.len().max(2) - 2],
            ];
            for cuts in ends.iter().filter(|cuts| cuts[0] < cuts[1]) {
                let parts = script.on_server(&server, *cuts);
                if script.end != End::Cut {
                    assert_eq!(&parts, expected, "{driver:?} at {cuts:?}: {}", script.name);
                }
            }
        }
    }
}

#[test]
fn requests_without_a_body() {
    let _dog = watchdog("requests_without_a_body");
    let many = GET.repeat(300);
    run(&[
        script(GET, &[200], End::Client),
        script(GET.repeat(3), &[200; 3], End::Client),
        script(&many, &[200; 300], End::Client),
        script(get("/nowhere"), &[404], End::Client),
        script(get("/fields?a=1&b"), &[200], End::Client),
        script(format!("\r\n{GET}"), &[200], End::Client),
        script(get("/late") + GET, &[200, 200], End::Client),
        script(
            GET.to_owned() + &get("/late") + &get("/late") + GET,
            &[200; 4],
            End::Client,
        ),
        script(get("/close") + GET, &[200], End::Server),
        script(LAST, &[200], End::Server),
        script(LAST.to_owned() + GET, &[200], End::Server).whole(),
        script("", &[], End::Client),
        script("GET /hello HTTP/1.1\r\nHos", &[], End::Client),
        script(GET.to_owned() + "GET /hello HT", &[200], End::Client),
    ]);
}

#[test]
fn responses_of_every_kind() {
    let _dog = watchdog("responses_of_every_kind");
    let mut scripts = Vec::new();
    for (path, status) in [
        ("/hello", 200),
        ("/big", 200),
        ("/late-big", 200),
        ("/stream", 200),
        ("/sized", 200),
        ("/nothing", 204),
        ("/no-content", 204),
        ("/streamed-204", 204),
        ("/not-modified", 304),
        ("/reset-content", 205),
    ] {
        // Another request follows on the same connection, so the end of the response was clear.
        scripts.push(script(get(path) + GET, &[status, 200], End::Client));
        scripts.push(script(head(path) + GET, &[status, 200], End::Client));
    }
    scripts.push(script(head("/short") + GET, &[200, 200], End::Client));
    for path in ["/short", "/long", "/broken"] {
        scripts.push(script(get(path) + GET, &[200], End::Cut));
    }
    run(&scripts);
}

#[test]
fn http_1_0() {
    let _dog = watchdog("http_1_0");
    let old = |path: &str, more: &str| format!("GET {path} HTTP/1.0\r\n{more}\r\n");
    let kept = "Connection: keep-alive\r\n";
    run(&[
        script(old("/hello", ""), &[200], End::Server),
        script(old("/hello", "") + GET, &[200], End::Server).whole(),
        script(old("/late", "") + GET, &[200], End::Server).whole(),
        script(
            old("/hello", kept) + &old("/hello", ""),
            &[200, 200],
            End::Server,
        ),
        script(
            old("/hello", kept) + &old("/late", kept),
            &[200, 200],
            End::Client,
        ),
        script(old("/big", ""), &[200], End::Server),
        // Only the close ends these responses.
        script(old("/stream", kept) + GET, &[200], End::Server),
        script(old("/sized", kept) + GET, &[200, 200], End::Client),
        script(
            "HEAD /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            &[200],
            End::Client,
        ),
        script(old("/broken", ""), &[200], End::Cut),
        script(
            "POST /echo HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok",
            &[200],
            End::Server,
        ),
    ]);
}

/// 104 comes before 100, which is sent when the body is read.
#[test]
fn interim_responses() {
    let _dog = watchdog("interim_responses");
    let expecting = expecting("/interim", "Content-Length: 2");
    run(&[
        script(post("/interim", "ok") + GET, &[104, 200, 200], End::Client),
        script(
            chunked("/interim", "2\r\nok\r\n0\r\n\r\n") + LAST,
            &[104, 200, 200],
            End::Server,
        ),
        script(post("/interim", "") + GET, &[200, 200], End::Client),
        script(expecting, &[104, 100, 200], End::Client).then(b"Continue\r\n\r\n", "ok"),
        script(
            "POST /interim HTTP/1.0\r\nContent-Length: 2\r\n\r\nok",
            &[200],
            End::Server,
        ),
    ]);
}

#[test]
fn bodies() {
    let _dog = watchdog("bodies");
    let big = text_of(200_000);
    let in_chunks = big.as_bytes().chunks(50_000).map(|chunk| {
        format!(
            "{:x}\r\n{}\r\n",
            chunk.len(),
            std::str::from_utf8(chunk).unwrap()
        )
    });
    let in_chunks: String = in_chunks.chain(["0\r\n\r\n".to_owned()]).collect();
    let mut scripts = Vec::new();
    for path in ["/echo", "/fill", "/whole", "/discard", "/late-echo"] {
        for body in ["", "x", "hello world", &big] {
            scripts.push(script(post(path, body) + GET, &[200, 200], End::Client));
        }
        for body in [
            "0\r\n\r\n",
            "5\r\nhello\r\n6;ext=\"q\"\r\n world\r\n000\r\n\r\n",
            &in_chunks,
        ] {
            scripts.push(script(chunked(path, body) + GET, &[200, 200], End::Client));
        }
    }
    let trailers = "3\r\nabc\r\n0\r\nX-Sum: 7\r\nX-More: y\r\n\r\n";
    scripts.push(script(
        chunked("/echo", trailers) + GET,
        &[200, 200],
        End::Client,
    ));
    scripts.push(script(
        post("/echo", "one") + &post("/echo", "two"),
        &[200; 2],
        End::Client,
    ));
    // The client ends within its body: the success of a handler must not be sent.
    let half = "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\nhalf";
    scripts.push(script(half, &[400], End::Client));
    scripts.push(script(chunked("/echo", "5\r\nhel"), &[400], End::Client));
    scripts.push(script(
        half.replace("echo", "own-failure"),
        &[422],
        End::Client,
    ));
    scripts.push(script(
        post("/limit", "0123456789") + GET,
        &[200, 200],
        End::Client,
    ));
    scripts.push(script(
        post("/limit", "0123456789a") + GET,
        &[413],
        End::Server,
    ));
    scripts.push(script(
        chunked("/limit", "b\r\n0123456789a\r\n"),
        &[413],
        End::Server,
    ));
    run(&scripts);
}

#[test]
fn expectations() {
    let _dog = watchdog("expectations");
    let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
    let two = "Content-Length: 2";
    run(&[
        script(expecting("/echo", two), &[100, 200, 200], End::Client)
            .then(go_on, "ok".to_owned() + GET),
        script(
            expecting("/fill", "Content-Length: 70000"),
            &[100, 200],
            End::Client,
        )
        .then(go_on, text_of(70_000)),
        script(
            expecting("/echo", "Transfer-Encoding: chunked"),
            &[100, 200, 200],
            End::Client,
        )
        .then(go_on, "2\r\nok\r\n0\r\n\r\n".to_owned() + GET),
        // The body is handed over: it is read while the response is sent.
        script(
            expecting("/stream-echo", two),
            &[100, 200, 200],
            End::Client,
        )
        .then(b"chunked\r\n\r\n", "ok".to_owned() + GET),
        script(
            expecting("/stream-echo", "Transfer-Encoding: chunked"),
            &[100, 200, 200],
            End::Client,
        )
        .then(b"chunked\r\n\r\n", "2\r\nok\r\n0\r\n\r\n".to_owned() + GET),
        script(expecting("/stream", two) + GET, &[200], End::Server),
        // After other requests, the 100 must not overtake their responses.
        script(
            get("/late") + GET + &expecting("/echo", two),
            &[200, 200, 100, 200],
            End::Client,
        )
        .then(go_on, "ok"),
        // A handler that does not read the body responds at once. The next bytes are then
        // ambiguous.
        script(expecting("/early", two) + GET, &[200], End::Server),
        script(
            expecting("/limit", "Content-Length: 11"),
            &[413],
            End::Server,
        ),
        // An empty body is already complete.
        script(
            expecting("/echo", "Content-Length: 0") + GET,
            &[200, 200],
            End::Client,
        ),
        script(
            "POST /echo HTTP/1.1\r\nHost: t\r\nExpect: magic\r\nContent-Length: 2\r\n\r\nok",
            &[417],
            End::Server,
        ),
    ]);
}

#[test]
fn early_responses() {
    let _dog = watchdog("early_responses");
    let small = text_of(5_000);
    let some_chunks = format!("{:x}\r\n{small}\r\n0\r\n\r\n", small.len());
    run(&[
        // A small rest is read and discarded, and the connection continues.
        script(post("/early", &small) + GET, &[200, 200], End::Client),
        script(
            chunked("/early", &some_chunks) + GET,
            &[200, 200],
            End::Client,
        ),
        script(post("/late", &small) + GET, &[200, 200], End::Client),
        script(post("/big", &small) + GET, &[200, 200], End::Client),
        // A large rest is not read. The client still sends when it gets the response.
        script(
            post("/early", &text_of(3_000_000)) + GET,
            &[200],
            End::Server,
        ),
        script(
            post("/late", &text_of(3_000_000)) + GET,
            &[200],
            End::Server,
        ),
        script(
            chunked("/early", "ffffff\r\n") + &text_of(500_000),
            &[200],
            End::Server,
        ),
        // Invalid framing after the response: no further response.
        script(chunked("/early", "zz\r\n") + GET, &[200], End::Server),
    ]);
}

#[test]
fn panics() {
    let _dog = watchdog("panics");
    run(&[
        script(get("/panic") + GET, &[500, 200], End::Client),
        script(get("/late-panic") + GET, &[500, 200], End::Client),
        script(post("/panic", "some body") + GET, &[500, 200], End::Client),
    ]);
}

/// Each single cut, and all cuts together, because all 2^n combinations would be too many.
#[test]
fn cut_at_each_byte() {
    let _dog = watchdog("cut_at_each_byte");
    let bytes = get("/late")
        + &post("/echo", "hello")
        + &chunked("/echo", "3;a=b\r\nabc\r\n0\r\nX-T: 1\r\n\r\n")
        + &head("/hello")
        + LAST;
    let script = script(&bytes, &[200; 5], End::Server);
    let expected = script.on_sim(0, false);
    for (driver, server) in servers() {
        for at in 1..bytes.len() {
            assert_eq!(
                script.on_server(&server, &[at]),
                expected,
                "{driver:?} at {at}"
            );
        }
        let all: Vec<usize> = (1..bytes.len()).collect();
        assert_eq!(
            script.on_server(&server, &all),
            expected,
            "{driver:?} byte by byte"
        );
    }
}

fn text_of(bytes: usize) -> String {
    let letter = |byte: u8| char::from(b'a' + byte % 26);
    pattern(bytes).into_iter().map(letter).collect()
}
