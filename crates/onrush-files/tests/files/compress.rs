//! Compression on the fly, on both drivers and in the simulator.

use crate::common::*;
use onrush::DriverPreference;
use onrush_files::FilesOptions;
use onrush_store::testing::MemoryStore;
use std::io::Read;
use std::sync::Arc;

fn options() -> FilesOptions {
    FilesOptions {
        compress: true,
        ..writable()
    }
}

/// Text that becomes smaller.
fn text(bytes: usize) -> Vec<u8> {
    let lines = (0u64..).flat_map(|number| {
        let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        format!("line {number} has the value {mixed}\n").into_bytes()
    });
    lines.take(bytes).collect()
}

fn decode(coding: Option<&str>, bytes: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    match coding {
        None => content.extend_from_slice(bytes),
        Some("gzip") => {
            let read = flate2::read::GzDecoder::new(bytes).read_to_end(&mut content);
            read.expect("valid gzip");
        }
        Some("zstd") => content = zstd::decode_all(bytes).expect("valid zstd"),
        Some(other) => panic!("{other}"),
    }
    content
}

#[test]
fn text_of_every_size_is_compressed() {
    let sizes = [1023, 1024, 16_384, 65_536, 65_537, 131_072, 700_001];
    on_all_backends(&options(), |server| {
        for size in sizes {
            let content = text(size);
            server.add(&format!("{size}.txt"), &content);
            for (accept, coding) in [
                ("gzip, deflate, br, zstd", Some("zstd")),
                ("gzip", Some("gzip")),
                ("br", None),
                ("identity, gzip;q=0.1", None),
            ] {
                let coding = coding.filter(|_| size >= 1024);
                for _ in 0..2 {
                    let get = format!("GET /{size}.txt\nAccept-Encoding: {accept}");
                    let reply = server.request(&get, b"");
                    assert_eq!(reply.status, 200);
                    assert_eq!(reply.field("content-encoding"), coding, "{size} {accept}");
                    assert_eq!(reply.field("vary"), Some("Accept-Encoding"));
                    assert!(decode(coding, &reply.body) == content, "{size} {accept}");
                    if coding.is_some() {
                        assert!(reply.body.len() < size * 2 / 3);
                        assert_eq!(reply.field("accept-ranges"), Some("none"));
                        let is_whole = size <= 65_536;
                        assert_eq!(reply.field("content-length").is_some(), is_whole);
                    }
                }
            }
        }
    });
}

#[test]
fn a_compressed_form_has_a_tag_of_its_own_and_no_ranges() {
    on_all_backends(&options(), |server| {
        for size in [5000, 200_000] {
            let content = text(size);
            let name = format!("{size}.txt"); // A change of a file is noticed within a second.
            server.add(&name, &content);
            let get = |fields: &str| format!("GET /{name}\nAccept-Encoding: gzip{fields}");
            let plain = server.get(&format!("/{name}")).etag().to_owned();
            let reply = server.request(&get(""), b"");
            let etag = reply.etag().to_owned();
            assert_eq!(etag, format!("W/\"{}-gzip\"", plain.trim_matches('"')));
            let zstd = server.request(&format!("GET /{name}\nAccept-Encoding: zstd"), b"");
            assert_ne!(zstd.etag(), etag);
            let head = server.request(&get("").replace("GET", "HEAD"), b"");
            for name in [
                "etag",
                "content-encoding",
                "content-type",
                "vary",
                "accept-ranges",
            ] {
                assert_eq!(head.field(name), reply.field(name), "{name}");
            }
            let known = server.request(&get(&format!("\nIf-None-Match: {etag}")), b"");
            assert_eq!((known.status, known.etag()), (304, &etag[..]));
            let other = server.request(&get(&format!("\nIf-None-Match: {plain}")), b"");
            assert_eq!(other.status, 200);
            // These concern the object itself.
            let part = server.request(&get("\nRange: bytes=0-9"), b"");
            assert_eq!(
                (part.status, part.etag(), &part.body[..]),
                (206, &plain[..], &content[..10])
            );
            assert_eq!(part.field("content-encoding"), None);
            let same = server.request(&get(&format!("\nIf-Match: {plain}")), b"");
            assert_eq!((same.status, same.field("content-encoding")), (200, None));
            let mixed = get(&format!("\nRange: bytes=0-9\nIf-Range: {etag}"));
            let mixed = server.request(&mixed, b"");
            assert_eq!((mixed.status, mixed.etag()), (200, &plain[..]));
        }
    });
}

/// HEAD has the fields of GET (RFC 9110 §9.3.2), also for content that does not become smaller.
#[test]
fn head_has_the_fields_of_get() {
    let names = [
        "etag",
        "content-encoding",
        "content-length",
        "content-type",
        "vary",
        "accept-ranges",
        "last-modified",
        "cache-control",
    ];
    let compare = |server: &mut TestServer, path: &str| {
        for accept in ["gzip", "zstd", "identity"] {
            let ask = |method: &str| format!("{method} {path}\nAccept-Encoding: {accept}");
            // Last-Modified is not later than the response (RFC 9110 §8.8.2.1): that of an object
            // of this second changes once.
            let (head, get) = loop {
                let head = server.request(&ask("HEAD"), b"");
                let get = server.request(&ask("GET"), b"");
                if head.field("last-modified") == get.field("last-modified") {
                    break (head, get);
                }
            };
            assert_eq!((head.status, get.status), (200, 200));
            for name in names {
                let (in_head, in_get) = (head.field(name), get.field(name));
                assert_eq!(in_head, in_get, "{path} {accept}: {name}");
            }
        }
    };
    let sizes = [500, 1024, 30_000, 65_536, 65_537, 300_000];
    on_all_backends(&options(), |server| {
        for size in sizes {
            server.add(
                &format!("noise{size}.txt"),
                &pattern_without_repetition(size),
            );
            server.add(&format!("text{size}.txt"), &text(size));
            compare(server, &format!("/noise{size}.txt"));
            compare(server, &format!("/text{size}.txt"));
        }
    });
    // A store without local files.
    let store = Arc::new(MemoryStore::new());
    let mut server = TestServer::on_store(store, &options(), DriverPreference::Epoll);
    for size in sizes {
        for (name, content) in [
            ("noise", pattern_without_repetition(size)),
            ("text", text(size)),
        ] {
            assert_eq!(
                server.put(&format!("/{name}{size}.txt"), &content).status,
                201
            );
            compare(&mut server, &format!("/{name}{size}.txt"));
        }
    }
}

#[test]
fn only_text_that_may_be_changed_is_compressed() {
    on_all_backends(&options(), |server| {
        let content = text(8000);
        let coding = |server: &mut TestServer, path: &str| {
            let reply = server.request(&format!("GET {path}\nAccept-Encoding: gzip"), b"");
            assert!(decode(reply.field("content-encoding"), &reply.body).len() >= 8000);
            reply.field("content-encoding").map(str::to_owned)
        };
        for (name, expected) in [
            ("a.html", true),
            ("a.json", true),
            ("a.svg", true),
            ("a.js", true),
            ("a.png", false),
            ("a.zip", false),
            ("a.bin", false),
            ("noext", false),
        ] {
            server.add(name, &content);
            let found = coding(server, &format!("/{name}"));
            assert_eq!(found.is_some(), expected, "{name}");
        }
        let put = "PUT /keep.txt\nCache-Control: public, no-transform";
        assert_eq!(server.request(put, &content).status, 201);
        assert_eq!(coding(server, "/keep.txt"), None);
        let put = "PUT /typed\nContent-Type: text/x-mine; charset=utf-8";
        assert_eq!(server.request(put, &content).status, 201);
        assert_eq!(coding(server, "/typed").as_deref(), Some("gzip"));
        // Content that does not become smaller.
        server.add("noise.txt", &pattern_without_repetition(9000));
        assert_eq!(coding(server, "/noise.txt"), None);
        let listing = server.request("GET /\nAccept-Encoding: gzip", b"");
        assert_eq!(listing.field("content-encoding"), None);
    });
}

fn pattern_without_repetition(bytes: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

#[test]
fn a_precompressed_sibling_is_better() {
    let options = FilesOptions {
        precompressed: true,
        ..options()
    };
    on_all_backends(&options, |server| {
        server.add("a.txt", &text(5000));
        server.add("a.txt.gz", b"made before");
        let gzip = server.request("GET /a.txt\nAccept-Encoding: gzip", b"");
        assert_eq!(gzip.body, b"made before");
        let zstd = server.request("GET /a.txt\nAccept-Encoding: zstd", b"");
        assert_eq!(
            decode(zstd.field("content-encoding"), &zstd.body),
            text(5000)
        );
        assert_eq!(zstd.all("vary").count(), 1);
    });
}

#[test]
fn objects_of_a_remote_store_are_compressed() {
    let store = Arc::new(MemoryStore::new());
    for driver in drivers() {
        let mut server = TestServer::on_store(store.clone(), &options(), driver);
        for size in [5000, 500_000] {
            let content = text(size);
            server.put("/a.txt", &content);
            let reply = server.request("GET /a.txt\nAccept-Encoding: zstd", b"");
            assert_eq!(reply.field("content-encoding"), Some("zstd"));
            assert!(decode(Some("zstd"), &reply.body) == content);
        }
    }
}

/// Clients that disconnect, or do not read, in the middle of a response: the server still serves
/// others, and the memory of their encoders is free again.
#[test]
fn clients_that_leave_free_their_encoders() {
    on_all_backends(&options(), |server| {
        if server.is_simulated() {
            return;
        }
        let content = text(6 << 20);
        server.add("big.txt", &content);
        // More than the memory of all encoders has room for at once.
        for _ in 0..5 {
            let get = b"GET /big.txt HTTP/1.1\r\nHost: test\r\nAccept-Encoding: zstd\r\n\r\n";
            let mut connections = Vec::new();
            for _ in 0..20 {
                let mut connection = server.connect();
                server.send(&mut connection, get);
                let begins = |bytes: &[u8]| bytes.len() >= 100;
                assert!(server.receive_until(&mut connection, begins).len() >= 100);
                connections.push(connection);
            }
            drop(connections);
        }
        let end = std::time::Instant::now() + std::time::Duration::from_secs(300);
        loop {
            let reply = server.request("GET /big.txt\nAccept-Encoding: zstd", b"");
            assert!(decode(reply.field("content-encoding"), &reply.body) == content);
            if reply.field("content-encoding").is_some() {
                break;
            }
            assert!(std::time::Instant::now() < end, "no encoder is free");
        }
    });
}
