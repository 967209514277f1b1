//! Compressed responses: which are, what clients decode, and their fields.

use crate::common::coded::{KINDS, Reply, ask, bodies, lines, receive_all, request, router};
use crate::common::{calm, drivers, seeds, serve, watchdog};
use onrush::compression::compress;
use onrush::{Limits, Request, Response, Router, sim::Simulation};
use std::io::{Read, Write};
use testing::TempDir;

#[test]
fn each_kind_of_body_makes_the_round_trip_on_the_simulator() {
    let folder = TempDir::new();
    for size in [1024, 8192, 65_535, 65_536, 65_537, 131_072, 400_001] {
        let content = lines(size);
        let router = bodies(&content, &folder);
        for kind in KINDS {
            for (accept, coding) in [("zstd", Some("zstd")), ("gzip", Some("gzip")), ("", None)] {
                let reply = ask(&router, "GET", &format!("/{kind}"), accept);
                let case = format!("{size} {kind} {accept}");
                assert_eq!(reply.coding(), coding, "{case}");
                assert!(reply.decoded() == content, "{case}");
                let is_whole = size <= 65_536 && ["bytes", "file", "parts"].contains(&kind);
                if coding.is_some() {
                    let length = reply.content.len().to_string();
                    let length = is_whole.then_some(length.as_str());
                    assert_eq!(reply.field("Content-Length"), length, "{case}");
                    assert!(reply.content.len() < size * 3 / 4, "{case}");
                }
            }
        }
    }
}

#[test]
fn content_is_the_same_however_the_network_splits_it() {
    let folder = TempDir::new();
    let content = lines(200_000);
    let router = bodies(&content, &folder);
    for seed in 0..seeds(20) {
        for kind in KINDS {
            let mut sim = Simulation::new(seed, &router, Limits::default());
            let client = sim.connect();
            let request = request(
                "GET",
                &format!("/{kind}"),
                ["gzip", "zstd"][seed as usize % 2],
            );
            assert_eq!(sim.send(&client, request.as_bytes()), request.len());
            let reply = Reply::new(&receive_all(&mut sim, &client));
            assert!(reply.coding().is_some(), "{kind}, seed {seed}");
            assert!(reply.decoded() == content, "{kind}, seed {seed}");
        }
    }
}

#[test]
fn each_kind_of_body_makes_the_round_trip_on_both_drivers() {
    let _dog = watchdog("each_kind_of_body_makes_the_round_trip_on_both_drivers");
    let folder = TempDir::new();
    for driver in drivers() {
        for size in [2000, 3_000_000] {
            let content = lines(size);
            let server = serve(driver, bodies(&content, &folder));
            for kind in KINDS {
                for coding in ["zstd", "gzip"] {
                    let mut stream = server.connect();
                    let request = request("GET", &format!("/{kind}"), coding);
                    stream.write_all(request.as_bytes()).unwrap();
                    let mut response = Vec::new();
                    stream.read_to_end(&mut response).expect("a response");
                    let reply = Reply::new(&response);
                    assert_eq!(reply.coding(), Some(coding), "{driver:?} {kind}");
                    assert!(
                        reply.decoded() == content,
                        "{driver:?} {size} {kind} {coding}"
                    );
                }
            }
        }
    }
}

#[test]
fn weights_decide_and_what_is_not_acceptable_is_sent_as_it_is() {
    let router = router(|| Response::text("text ".repeat(1000)));
    for (accept, coding) in [
        ("gzip, deflate, br, zstd", Some("zstd")),
        ("gzip, deflate, br", Some("gzip")),
        ("zstd;q=0.5, gzip;q=0.9", Some("gzip")),
        ("*", Some("zstd")),
        ("*;q=0.1, zstd;q=0", Some("gzip")),
        ("identity;q=0, gzip", Some("gzip")),
        ("identity, gzip;q=0.9", None),
        ("br", None),
        ("gzip;q=0, zstd;q=0", None),
        ("identity;q=0", None),
        ("*;q=0", None),
    ] {
        let reply = ask(&router, "GET", "/", accept);
        assert_eq!(reply.coding(), coding, "{accept}");
        assert_eq!(
            reply.decoded(),
            "text ".repeat(1000).into_bytes(),
            "{accept}"
        );
        assert!(reply.head.starts_with("HTTP/1.1 200 "), "{accept}");
        assert_eq!(reply.all("Vary"), ["Accept-Encoding"], "{accept}");
    }
}

#[test]
fn vary_names_the_field_once() {
    for (given, expected) in [
        (&[][..], &["Accept-Encoding"][..]),
        (&["Cookie"], &["Cookie", "Accept-Encoding"]),
        (&["accept-encoding"], &["accept-encoding"]),
        (&["Cookie, Accept-Encoding"], &["Cookie, Accept-Encoding"]),
        (
            &["Cookie", "Accept-Encoding"],
            &["Cookie", "Accept-Encoding"],
        ),
        (&["*"], &["*"]),
    ] {
        let router = router(move || {
            let mut response = Response::text("text ".repeat(1000));
            for value in given {
                response.append_header("Vary", value).unwrap();
            }
            response
        });
        // A layer around the layer adds nothing.
        for router in [router.clone(), router.layer(compress)] {
            for accept in ["gzip", "identity"] {
                let reply = ask(&router, "GET", "/", accept);
                assert_eq!(reply.all("Vary"), expected);
                assert_eq!(
                    reply.all("Content-Encoding").len(),
                    usize::from(accept == "gzip")
                );
            }
        }
    }
}

/// `Transfer-Encoding` is a field of the connection, which has no content then.
#[test]
fn head_has_the_fields_of_get() {
    let folder = TempDir::new();
    for size in [100, 2000, 65_536, 300_000] {
        let router = bodies(&lines(size), &folder);
        for kind in KINDS {
            for accept in ["gzip", "zstd", ""] {
                let path = format!("/{kind}");
                let get = ask(&router, "GET", &path, accept);
                let head = ask(&router, "HEAD", &path, accept);
                let fields = |reply: &Reply| {
                    let lines = reply.head.lines();
                    let lines = lines.filter(|line| {
                        !(line.starts_with("Date: ") || line.starts_with("Transfer-"))
                    });
                    lines.map(str::to_owned).collect::<Vec<_>>()
                };
                assert_eq!(fields(&head), fields(&get), "{size} {kind} {accept}");
                assert!(head.content.is_empty());
            }
        }
    }
}

#[test]
fn other_methods_and_errors_are_compressed() {
    let not_found = |_: Request| async { (404, "nothing here\n".repeat(1000)) };
    let router = Router::new()
        .post("/", not_found)
        .fallback(not_found)
        .layer(compress);
    for (method, path) in [("POST", "/"), ("GET", "/x")] {
        let reply = ask(&router, method, path, "gzip");
        assert!(reply.head.starts_with("HTTP/1.1 404 "));
        assert_eq!(reply.coding(), Some("gzip"));
        assert_eq!(reply.decoded(), "nothing here\n".repeat(1000).into_bytes());
    }
}

#[test]
fn tags_become_weak_and_ranges_are_not_offered() {
    let tagged = |tag: &'static str, status: u16| {
        router(move || {
            Response::text("text ".repeat(1000))
                .with_status(status)
                .with_header("ETag", tag)
                .with_header("Accept-Ranges", "bytes")
        })
    };
    for (tag, weak) in [("\"7\"", "W/\"7\""), ("W/\"7\"", "W/\"7\"")] {
        let reply = ask(&tagged(tag, 200), "GET", "/", "gzip");
        assert_eq!(
            (reply.coding(), reply.field("ETag")),
            (Some("gzip"), Some(weak))
        );
        assert_eq!(reply.field("Accept-Ranges"), None);
        let reply = ask(&tagged(tag, 200), "GET", "/", "");
        assert_eq!((reply.coding(), reply.field("ETag")), (None, Some(tag)));
        assert_eq!(reply.field("Accept-Ranges"), Some("bytes"));
        // As for the response with status 200 of the same client.
        for (accept, expected) in [("gzip", weak), ("", tag)] {
            let reply = ask(&tagged(tag, 304), "GET", "/", accept);
            assert!(reply.head.starts_with("HTTP/1.1 304 "));
            assert_eq!(reply.field("ETag"), Some(expected));
            assert_eq!(reply.all("Vary"), ["Accept-Encoding"]);
            assert_eq!((reply.coding(), reply.content.len()), (None, 0));
        }
    }
}

#[test]
fn responses_that_must_not_change_or_gain_nothing_are_sent_as_they_are() {
    type Change = fn(Response) -> Response;
    let changes: [(&str, Change); 13] = [
        ("204", |it| it.with_status(204)),
        ("205", |it| it.with_status(205)),
        ("range", |it| it.with_header("Content-Range", "bytes 0-4/9")),
        ("encoded", |it| it.with_header("Content-Encoding", "br")),
        ("forbidden", |it| {
            it.with_header("Cache-Control", "private, no-transform")
        }),
        ("digest", |it| {
            it.with_header("Repr-Digest", "sha-256=:AA==:")
        }),
        ("digest", |it| {
            it.with_header("Content-Digest", "sha-256=:AA==:")
        }),
        ("image", |it| it.content_type("image/png")),
        ("archive", |it| it.content_type("application/zip")),
        ("video", |it| it.content_type("video/mp4")),
        ("unknown", |it| it.with_header("Content-Type", "what")),
        ("events", |it| {
            it.content_type("Text/Event-Stream; charset=utf-8")
        }),
        ("small", |it| it.with_content("text ".repeat(204))),
    ];
    for (name, change) in changes {
        let made = move || {
            let text = Response::text("text ".repeat(1000)).with_header("ETag", "\"7\"");
            change(text)
        };
        let reply = ask(&router(made), "GET", "/", "gzip");
        let plain = Router::new().get("/", move |_: Request| {
            let response = made();
            async { response }
        });
        let plain = ask(&plain, "GET", "/", "gzip");
        assert_eq!(reply.head, plain.head, "{name}");
        assert_eq!(reply.content, plain.content, "{name}");
        assert_eq!(reply.field("ETag"), Some("\"7\""), "{name}");
    }
}

/// A cache that joins parts has to know that the whole depends on the codings (RFC 9110 §15.3.7).
#[test]
fn a_part_says_that_the_whole_varies() {
    let part = router(|| {
        Response::text("text ".repeat(1000))
            .with_status(206)
            .with_header("Content-Range", "bytes 0-4999/9000")
            .with_header("ETag", "\"7\"")
    });
    let reply = ask(&part, "GET", "/", "gzip");
    assert_eq!((reply.coding(), reply.content.len()), (None, 5000));
    assert_eq!(reply.field("ETag"), Some("\"7\""));
    assert_eq!(reply.all("Vary"), ["Accept-Encoding"]);
}

/// The client has the content as it is: its tag stays.
#[test]
fn a_304_to_a_strong_tag_keeps_it() {
    let unchanged = router(|| Response::new(304).with_header("ETag", "\"7\""));
    let rows = [
        ("\"6\", \"7\"", "\"7\""),
        ("W/\"7\"", "W/\"7\""),
        ("*", "W/\"7\""),
    ];
    for (known, expected) in rows {
        let mut sim = calm(&unchanged, Limits::default());
        let client = sim.connect();
        let head =
            format!("GET / HTTP/1.0\r\nAccept-Encoding: gzip\r\nIf-None-Match: {known}\r\n\r\n");
        sim.send(&client, head.as_bytes());
        let reply = Reply::new(&receive_all(&mut sim, &client));
        assert_eq!(reply.field("ETag"), Some(expected), "{known}");
    }
}

#[test]
fn content_that_does_not_become_smaller_is_sent_as_it_is() {
    let noise: Vec<u8> = lines(40_000);
    let noise = zstd::bulk::compress(&noise, 19).unwrap();
    let content = noise.clone();
    let router = router(move || Response::text(noise.clone()));
    for accept in ["zstd", "gzip"] {
        let reply = ask(&router, "GET", "/", accept);
        assert_eq!(reply.coding(), None);
        assert_eq!(reply.all("Vary"), ["Accept-Encoding"]);
        assert_eq!(reply.content, content);
    }
}
