//! The rules of the profiles over HTTP/1.1, by profile. Values that the benchmark draws at random,
//! or chooses to differ from those that it measures, are random here.

use crate::arena::{Arena, BINARIES, ITEMS, TEXTS, on_each_driver, request, response};
use flate2::read::GzDecoder;
use rustls::HandshakeKind;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use testing::Reply;

/// Whether the media type is this one, with or without parameters.
fn is_of_type(reply: &Reply, media_type: &str) -> bool {
    let value = reply.field("content-type").unwrap_or_default();
    value.split(';').next() == Some(media_type)
}

fn assert_text(reply: &Reply, text: impl ToString) {
    assert_eq!((reply.status, reply.text()), (200, &*text.to_string()));
    assert!(is_of_type(reply, "text/plain"), "{reply:?}");
}

#[test]
fn baseline_adds_the_parameters_and_the_body() {
    on_each_driver(|arena| {
        for _ in 0..3 {
            let [a, b, c] = [(); 3].map(|()| fastrand::i64(-900..900));
            let target = format!("/baseline11?a={a}&b={b}");
            assert_text(&arena.get(&target, ""), a + b);
            assert_text(&arena.post(&target, c.to_string().as_bytes()), a + b + c);
            let body = format!("{:x}\r\n{c}\r\n0\r\n\r\n", c.to_string().len());
            let chunked = "Transfer-Encoding: chunked\r\n";
            let sent = request("POST", &target, chunked, body.as_bytes());
            assert_text(&arena.ask(&[sent]), a + b + c);
        }
    });
}

#[test]
fn baseline_refuses_what_is_no_number() {
    on_each_driver(|arena| {
        for target in ["/baseline11", "/baseline11?a=1", "/baseline11?a=1&b=x"] {
            assert_eq!(arena.get(target, "").status, 400, "{target}");
        }
        let largest = format!("/baseline11?a={}&b=1", i64::MAX);
        assert_eq!(arena.get(&largest, "").status, 400);
        assert_eq!(arena.post("/baseline11?a=1&b=2", b"two").status, 400);
        assert_eq!(arena.post("/baseline11?a=1&b=2", &[b'1'; 33]).status, 413);
    });
}

#[test]
fn baseline_reads_requests_that_arrive_in_pieces() {
    on_each_driver(|arena| {
        let line = "GET /baseline11?a=13&b=42 HTTP/1.1\r\n";
        let fields = "Host: localhost\r\nUser-Agent: x\r\nConnection: close\r\n\r\n";
        let in_line = [&line[..10], &line[10..], fields];
        assert_text(&arena.ask(&in_line.map(|piece| piece.into())), 55);
        let lines = [line].into_iter().chain(fields.split_inclusive("\r\n"));
        let lines: Vec<Vec<u8>> = lines.map(|piece| piece.into()).collect();
        assert_text(&arena.ask(&lines), 55);
        let length = "Content-Length: 2\r\n";
        let head = request("POST", "/baseline11?a=13&b=42", length, b"");
        assert_text(&arena.ask(&[head.clone(), b"20".to_vec()]), 75);
        assert_text(&arena.ask(&[head, b"2".to_vec(), b"0".to_vec()]), 75);
    });
}

#[test]
fn a_connection_has_sixteen_responses_in_order_to_sixteen_requests() {
    on_each_driver(|arena| {
        assert_text(&arena.get("/pipeline", ""), "ok");
        let mut client = arena.connect();
        let pipelined = "GET /pipeline HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(15);
        let last = request("GET", "/baseline11?a=8&b=8", "", b"");
        client
            .write_all(&[pipelined.as_bytes(), &last].concat())
            .unwrap();
        let mut received = String::new();
        client.read_to_string(&mut received).unwrap();
        assert_eq!(received.matches("HTTP/1.1 200 OK\r\n").count(), 16);
        assert_eq!(received.matches("\r\n\r\nokHTTP/1.1").count(), 15);
        assert!(received.ends_with("\r\n\r\n16"), "{received}");
    });
}

#[test]
fn ten_requests_of_a_connection_are_answered_before_the_client_closes_it() {
    on_each_driver(|arena| {
        for _ in 0..20 {
            let mut client = arena.connect();
            for number in 0..10 {
                let target = format!("/baseline11?a={number}&b=1");
                let sent = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                client.write_all(sent.as_bytes()).unwrap();
                let mut received = Vec::new();
                let end = format!("\r\n\r\n{}", number + 1);
                while !received.ends_with(end.as_bytes()) {
                    let mut bytes = [0; 512];
                    let read = client.read(&mut bytes).unwrap();
                    assert!(read > 0, "the server has closed");
                    received.extend_from_slice(&bytes[..read]);
                }
            }
        }
    });
}

/// Checks a page of JSON against the data set, item by item.
fn assert_page(arena: &Arena, content: &[u8], count: u64, multiplier: i64) {
    let file = arena.file("../dataset.json");
    let set: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let page: Value = serde_json::from_slice(content).unwrap();
    assert_eq!(page["count"], count);
    let items = page["items"].as_array().unwrap();
    assert_eq!(items.len() as u64, count);
    for (item, mut expected) in items.iter().zip(set.as_array().unwrap().clone()) {
        let product = expected["price"]
            .as_i64()
            .zip(expected["quantity"].as_i64());
        let total = product.map(|(price, quantity)| price * quantity * multiplier);
        expected["total"] = total.unwrap().into();
        assert_eq!(*item, expected);
    }
}

#[test]
fn json_has_the_first_items_with_their_totals() {
    on_each_driver(|arena| {
        for count in [1, 12, 22, 31, ITEMS] {
            let multiplier = fastrand::i64(2..100);
            let reply = arena.get(&format!("/json/{count}?m={multiplier}"), "");
            assert!(is_of_type(&reply, "application/json"), "{reply:?}");
            assert_eq!(reply.field("content-encoding"), None);
            assert_page(arena, &reply.body, count, multiplier);
        }
        assert_page(arena, &arena.get("/json/3", "").body, 3, 1);
        assert_page(arena, &arena.get("/json/51?m=2", "").body, ITEMS, 2);
        for target in ["/json/x?m=1", "/json/1?m=x", "/json/-1?m=1"] {
            assert_eq!(arena.get(target, "").status, 400, "{target}");
        }
        let largest = format!("/json/50?m={}", i64::MAX);
        assert_eq!(arena.get(&largest, "").status, 400);
    });
}

#[test]
fn json_is_compressed_for_clients_that_accept_it() {
    on_each_driver(|arena| {
        for count in [25, 40, ITEMS] {
            let multiplier = fastrand::i64(2..100);
            let target = format!("/json/{count}?m={multiplier}");
            let reply = arena.get(&target, "Accept-Encoding: gzip, br\r\n");
            assert!(is_of_type(&reply, "application/json"), "{reply:?}");
            assert_eq!(reply.field("content-encoding"), Some("gzip"));
            assert_eq!(reply.field("vary"), Some("Accept-Encoding"));
            let mut content = Vec::new();
            let decoder = &mut GzDecoder::new(&*reply.body);
            decoder.read_to_end(&mut content).unwrap();
            assert!(reply.body.len() < content.len() / 2);
            assert_page(arena, &content, count, multiplier);
        }
        for refusal in ["", "br", "gzip;q=0", "br, gzip; q=0.000", "x-gzip2"] {
            let reply = arena.get("/json/5?m=3", &format!("Accept-Encoding: {refusal}\r\n"));
            assert_eq!(reply.field("content-encoding"), None, "{refusal}");
            assert_page(arena, &reply.body, 5, 3);
        }
    });
}

#[test]
fn json_over_tls_is_http_1_1_for_clients_that_also_speak_http_2() {
    on_each_driver(|arena| {
        let config = arena.tls_client(&["h2", "http/1.1"]);
        for count in [7, 23, ITEMS] {
            let multiplier = fastrand::i64(2..100);
            let mut client = arena.connect_tls(&config);
            let target = format!("/json/{count}?m={multiplier}");
            client.write_all(&request("GET", &target, "", b"")).unwrap();
            let reply = response(&mut client);
            assert_eq!(client.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
            // A client that keeps sessions gets none.
            assert_eq!(client.conn.handshake_kind(), Some(HandshakeKind::Full));
            assert!(is_of_type(&reply, "application/json"), "{reply:?}");
            assert_page(arena, &reply.body, count, multiplier);
        }
        // The load generator of this profile knows no ALPN.
        let mut client = arena.connect_tls(&arena.tls_client(&[]));
        client
            .write_all(&request("GET", "/json/1?m=9", "", b""))
            .unwrap();
        assert_page(arena, &response(&mut client).body, 1, 9);
    });
}

#[test]
fn an_upload_is_counted() {
    on_each_driver(|arena| {
        for bytes in [
            0,
            17,
            fastrand::usize(1..100),
            512_000,
            2 << 20,
            10 << 20,
            20 << 20,
        ] {
            assert_text(&arena.post("/upload", &testing::body(bytes)), bytes);
        }
        // What is counted is what was received, not a length that a field states.
        let body = b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n";
        let chunked = "Transfer-Encoding: chunked\r\n";
        assert_text(&arena.ask(&[request("POST", "/upload", chunked, body)]), 7);
    });
}

#[test]
fn an_upload_is_received_before_it_is_answered() {
    on_each_driver(|arena| {
        let mut client = arena.connect();
        let head = request("POST", "/upload", "Content-Length: 1000\r\n", &[0; 999]);
        client.write_all(&head).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert!(!received.starts_with(b"HTTP/1.1 200"), "{received:?}");
    });
}

#[test]
fn static_files_are_those_of_the_folder() {
    on_each_driver(|arena| {
        for name in TEXTS.iter().chain(&BINARIES) {
            let reply = arena.get(&format!("/static/{name}"), "");
            assert_eq!(reply.status, 200);
            assert_eq!(reply.field("content-encoding"), None);
            assert!(reply.body == fs::read(arena.file(name)).unwrap(), "{name}");
        }
        let types = [
            ("reset.css", "text/css"),
            ("app.js", "text/javascript"),
            ("manifest.json", "application/json"),
            ("header.html", "text/html"),
            ("logo.svg", "image/svg+xml"),
            ("hero.webp", "image/webp"),
            ("bold.woff2", "font/woff2"),
        ];
        for (name, media_type) in types {
            let reply = arena.get(&format!("/static/{name}"), "");
            assert!(is_of_type(&reply, media_type), "{name}: {reply:?}");
        }
        assert_eq!(arena.get("/static/nonexistent.txt", "").status, 404);
    });
}

#[test]
fn static_text_is_sent_in_the_coding_that_the_client_prefers() {
    on_each_driver(|arena| {
        let asked = [("br;q=1, gzip;q=0.8", "br", "br"), ("gzip", "gzip", "gz")];
        for (accepted, coding, extension) in asked {
            let fields = format!("Accept-Encoding: {accepted}\r\n");
            for name in TEXTS {
                let reply = arena.get(&format!("/static/{name}"), &fields);
                assert_eq!(reply.field("content-encoding"), Some(coding), "{name}");
                let sibling = arena.file(&format!("{name}.{extension}"));
                assert!(reply.body == fs::read(sibling).unwrap(), "{name}");
            }
            for name in BINARIES {
                let reply = arena.get(&format!("/static/{name}"), &fields);
                assert_eq!(reply.field("content-encoding"), None, "{name}");
                assert!(reply.body == fs::read(arena.file(name)).unwrap(), "{name}");
            }
        }
    });
}
