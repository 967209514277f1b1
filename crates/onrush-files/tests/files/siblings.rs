//! Precompressed siblings, on both drivers and in the simulator, and on a store without files.

use crate::common::*;
use onrush_files::FilesOptions;
use onrush_rt::fs::OpenHow;
use onrush_store::testing::MemoryStore;
use std::sync::Arc;

fn options() -> FilesOptions {
    FilesOptions {
        precompressed: true,
        ..writable()
    }
}

/// The coding of a response to GET with this `Accept-Encoding`, and its content.
fn fetch(server: &mut TestServer, path: &str, accept: &str) -> (Option<String>, Vec<u8>) {
    let reply = server.request(&format!("GET {path}\nAccept-Encoding: {accept}"), b"");
    assert_eq!(reply.status, 200, "{path} {accept}: {reply:?}");
    assert_eq!(reply.field("vary"), Some("Accept-Encoding"));
    let coding = reply.field("content-encoding").map(str::to_owned);
    (coding, reply.body)
}

#[test]
fn the_best_sibling_that_exists_is_sent() {
    on_all_backends(&options(), |server| {
        server.add("a/b.css", b"plain");
        server.add("a/b.css.gz", b"as gzip");
        server.add("a/b.css.br", b"as brotli");
        server.add("only.js", b"alone");
        for (accept, coding, content) in [
            ("gzip, deflate, br, zstd", Some("br"), &b"as brotli"[..]),
            ("gzip", Some("gzip"), b"as gzip"),
            ("gzip, br;q=0.5", Some("gzip"), b"as gzip"),
            ("zstd", None, b"plain"),
            ("br;q=0, gzip;q=0", None, b"plain"),
            ("identity, gzip;q=0.5", None, b"plain"),
            ("identity;q=0, *", Some("br"), b"as brotli"),
            ("identity;q=0, zstd", None, b"plain"),
        ] {
            for round in 0..3 {
                if server.is_simulated() {
                    server.disk().set_cold(round == 0);
                }
                let found = fetch(server, "/a/b.css", accept);
                assert_eq!(
                    found,
                    (coding.map(str::to_owned), content.into()),
                    "{accept}"
                );
            }
            assert_eq!(fetch(server, "/only.js", accept), (None, b"alone".into()));
        }
        // Every spelling of the path, and without the field.
        assert_eq!(fetch(server, "/a/./%62.css", "gzip").1, b"as gzip");
        let plain = server.get("/a/b.css");
        assert_eq!(
            (&plain.body[..], plain.field("vary")),
            (&b"plain"[..], Some("Accept-Encoding"))
        );
        // A sibling is an object like others.
        let sibling = server.request("GET /a/b.css.gz\nAccept-Encoding: gzip, br", b"");
        assert_eq!(
            (&sibling.body[..], sibling.field("content-encoding")),
            (&b"as gzip"[..], None)
        );
        let missing = server.request("GET /none\nAccept-Encoding: gzip", b"");
        assert_eq!(missing.status, 404);
    });
}

#[test]
fn a_sibling_is_a_representation_of_its_own() {
    on_all_backends(&options(), |server| {
        server.add("p.html", b"<p>plain");
        server.add("p.html.gz", b"0123456789");
        let get = |fields: &str| format!("GET /p.html\nAccept-Encoding: gzip{fields}");
        let plain = server.get("/p.html").etag().to_owned();
        let coded = server.request(&get(""), b"");
        let etag = coded.etag().to_owned();
        assert!(etag.starts_with('"') && etag != plain);
        assert_eq!(
            coded.field("content-type"),
            Some("text/html; charset=utf-8")
        );
        assert_eq!(coded.field("content-security-policy"), Some("sandbox"));
        assert_eq!(coded.field("cache-control"), Some("no-cache"));
        let head = server.request(&get("").replace("GET", "HEAD"), b"");
        for name in [
            "etag",
            "content-length",
            "content-encoding",
            "content-type",
            "vary",
        ] {
            assert_eq!(head.field(name), coded.field(name), "{name}");
        }
        // Conditions and ranges.
        let not_modified = server.request(&get(&format!("\nIf-None-Match: {etag}")), b"");
        assert_eq!((not_modified.status, not_modified.etag()), (304, &etag[..]));
        assert_eq!(not_modified.field("vary"), Some("Accept-Encoding"));
        let other = server.request(&get(&format!("\nIf-None-Match: {plain}")), b"");
        assert_eq!(other.status, 200);
        let failed = server.request(&get(&format!("\nIf-Match: {plain}")), b"");
        assert_eq!(failed.status, 412);
        let named = get(&format!("\nRange: bytes=2-4\nIf-Range: {etag}"));
        let part = server.request(&named, b"");
        assert_eq!((part.status, &part.body[..]), (206, &b"234"[..]));
        assert_eq!(part.field("content-range"), Some("bytes 2-4/10"));
        assert_eq!(part.field("content-encoding"), Some("gzip"));
    });
}

/// Clients that decode what they receive continue with a range of the object itself (curl with
/// `--compressed -C -`, fsspec, wget2).
#[test]
fn a_range_is_one_of_the_object_itself() {
    on_all_backends(&options(), |server| {
        server.add("p.html", b"<p>plain");
        server.add("p.html.gz", b"0123456789");
        server.add("p.html.br", b"abcdefghij");
        let plain = server.get("/p.html").etag().to_owned();
        let tag = |server: &mut TestServer, coding: &str| {
            let coded = server.request(&format!("GET /p.html\nAccept-Encoding: {coding}"), b"");
            coded.etag().to_owned()
        };
        let (gzip, brotli) = (tag(server, "gzip"), tag(server, "br"));
        let range = "GET /p.html\nAccept-Encoding: gzip, br\nRange: bytes=2-4";
        let date = server
            .get("/p.html")
            .field("last-modified")
            .unwrap()
            .to_owned();
        let of_object = (206, None, &b">pl"[..]);
        for (if_range, expected) in [
            (String::new(), of_object),
            (format!("\nIf-Range: {plain}"), of_object),
            (format!("\nIf-Range: {date}"), of_object),
            (
                format!("\nIf-Range: {gzip}"),
                (206, Some("gzip"), &b"234"[..]),
            ),
            (
                format!("\nIf-Range: {brotli}"),
                (206, Some("br"), &b"cde"[..]),
            ),
            (
                "\nIf-Range: \"other\"".to_owned(),
                (200, None, &b"<p>plain"[..]),
            ),
        ] {
            for round in 0..2 {
                if server.is_simulated() {
                    server.disk().set_cold(round == 0);
                }
                let part = server.request(&format!("{range}{if_range}"), b"");
                let found = (part.status, part.field("content-encoding"), &part.body[..]);
                assert_eq!(found, expected, "{if_range}");
                assert_eq!(part.field("vary"), Some("Accept-Encoding"));
            }
        }
        // The client no longer accepts the coding.
        let other = format!("GET /p.html\nRange: bytes=2-4\nIf-Range: {gzip}");
        assert_eq!(server.request(&other, b"").text(), "<p>plain");
    });
}

#[test]
fn changes_are_visible_at_once() {
    on_all_backends(&options(), |server| {
        server.add("x.txt", b"old");
        let coding = |server: &mut TestServer| fetch(server, "/x.txt", "gzip").0;
        assert_eq!(coding(server), None);
        assert_eq!(server.put("/x.txt.gz", b"zipped").status, 201);
        assert_eq!(coding(server).as_deref(), Some("gzip"));
        // A new object makes the sibling old.
        assert_eq!(server.put("/x.txt", b"new").status, 204);
        assert_eq!(fetch(server, "/x.txt", "gzip"), (None, b"new".into()));
        assert_eq!(server.put("/x.txt.gz", b"zipped again").status, 204);
        assert_eq!(fetch(server, "/x.txt", "gzip").1, b"zipped again");
        assert_eq!(server.delete("/x.txt.gz").status, 204);
        assert_eq!(fetch(server, "/x.txt", "gzip"), (None, b"new".into()));
        assert_eq!(server.delete("/x.txt").status, 204);
        assert_eq!(server.put("/x.txt.gz", b"alone").status, 201);
        let missing = server.request("GET /x.txt\nAccept-Encoding: gzip", b"");
        assert_eq!(missing.status, 404);
    });
}

#[test]
fn older_siblings_and_coded_objects_are_left_alone() {
    on_all_backends(&options(), |server| {
        server.add("old.txt", b"new content");
        server.add_at(b"old.txt.gz", b"old", LONG_AGO_S - 1);
        assert_eq!(
            fetch(server, "/old.txt", "gzip"),
            (None, b"new content".into())
        );
        server.add("dir.txt", b"plain");
        server.add_folder("dir.txt.gz");
        assert_eq!(fetch(server, "/dir.txt", "gzip"), (None, b"plain".into()));
        // An object with a stored coding is sent as it was stored.
        let put = "PUT /coded.txt\nContent-Encoding: gzip\nContent-Type: text/x-mine";
        assert_eq!(server.request(put, b"stored coding").status, 201);
        assert_eq!(server.put("/coded.txt.br", b"brotli").status, 201);
        let found = fetch(server, "/coded.txt", "br");
        assert_eq!(found, (Some("gzip".to_owned()), b"stored coding".into()));
        // A sibling with a stored coding would be coded twice.
        assert_eq!(server.put("/twice.txt", b"plain").status, 201);
        let put = "PUT /twice.txt.gz\nContent-Encoding: gzip";
        assert_eq!(server.request(put, b"twice").status, 201);
        assert_eq!(fetch(server, "/twice.txt", "gzip"), (None, b"plain".into()));
        // The stored fields are those of the object.
        let put = "PUT /typed\nContent-Type: text/x-mine\nCache-Control: max-age=9\n\
            Content-Language: de";
        assert_eq!(server.request(put, b"plain").status, 201);
        let put = "PUT /typed.gz\nContent-Type: text/html\nCache-Control: no-store";
        assert_eq!(server.request(put, b"zipped").status, 201);
        let reply = server.request("GET /typed\nAccept-Encoding: gzip", b"");
        assert_eq!(reply.body, b"zipped");
        assert_eq!(reply.field("content-type"), Some("text/x-mine"));
        assert_eq!(reply.field("cache-control"), Some("max-age=9"));
        assert_eq!(reply.field("content-language"), Some("de"));
        assert_eq!(reply.field("content-encoding"), Some("gzip"));
    });
}

/// Programs set the time of a file: all of a build have one (`SOURCE_DATE_EPOCH`), and one that is
/// restored has an old one. An old sibling is not sent then, but one that only was copied, unpacked
/// or given other rights in another order is.
#[test]
fn siblings_of_objects_with_times_that_were_set_are_not_old() {
    let options = FilesOptions {
        cache_max_age_ms: 0, // Other programs change the folder.
        ..options()
    };
    on_all_backends(&options, |server| {
        let write = |server: &mut TestServer, key: &str, content: &[u8], modified_ns: i64| {
            server.advance(20); // The kernel measures times in ticks.
            server.add(key, content);
            set_time(server, key, modified_ns);
        };
        for (number, epoch_ns) in [0, 1_000_000_000, 1_600_000_000_000_000_000]
            .into_iter()
            .enumerate()
        {
            let key = format!("{number}.css");
            let (path, sibling) = (format!("/{key}"), format!("{key}.gz"));
            write(server, &key, b"first", epoch_ns);
            write(server, &sibling, b"first in gzip", epoch_ns);
            assert_eq!(fetch(server, &path, "gzip").1, b"first in gzip");
            write(server, &key, b"second", epoch_ns);
            assert_eq!(fetch(server, &path, "gzip"), (None, b"second".into()));
            // A later time of the sibling does not make it newer.
            set_time(server, &sibling, epoch_ns + 5);
            write(server, &key, b"third", epoch_ns);
            assert_eq!(fetch(server, &path, "gzip"), (None, b"third".into()));
            write(server, &sibling, b"third in gzip", epoch_ns);
            assert_eq!(fetch(server, &path, "gzip").1, b"third in gzip");
        }
        // The exact time of the object, in any order (`tar`, `cp -p`, `chmod`).
        let exact_ns = 1_600_000_000_123_456_789;
        write(server, "x.js.gz", b"in gzip", exact_ns);
        write(server, "x.js", b"plain", exact_ns);
        assert_eq!(fetch(server, "/x.js", "gzip").1, b"in gzip");
        // An object that is moved into its place, or restored, with an older time.
        write(server, "other", b"restored", exact_ns - 1);
        server.advance(20);
        let root = server.root();
        root.rename(b"other", &root, b"x.js", false)
            .expect("a rename");
        assert_eq!(fetch(server, "/x.js", "gzip"), (None, b"restored".into()));
    });
}

fn set_time(server: &TestServer, key: &str, modified_ns: i64) {
    let how = OpenHow {
        write: true,
        ..OpenHow::READ
    };
    let file = server.root().open(key.as_bytes(), how).expect("a file");
    file.set_modified(modified_ns).expect("a time");
}

#[test]
fn without_the_option_siblings_are_other_objects() {
    on_all_backends(&writable(), |server| {
        server.add("a.txt", b"plain");
        server.add("a.txt.gz", b"zipped");
        let reply = server.request("GET /a.txt\nAccept-Encoding: gzip", b"");
        assert_eq!(reply.body, b"plain");
        assert_eq!(
            (reply.field("vary"), reply.field("content-encoding")),
            (None, None)
        );
    });
}

#[test]
fn large_siblings_and_those_of_an_index_are_sent() {
    let options = FilesOptions {
        site: true,
        ..options()
    };
    on_all_backends(&options, |server| {
        server.add("index.html", b"home");
        server.add("index.html.zst", b"home in zstd");
        assert_eq!(fetch(server, "/", "zstd").1, b"home in zstd");
        assert_eq!(fetch(server, "/", "gzip").1, b"home");
        let (plain, coded) = (pattern(300_000), pattern(200_000));
        server.add("big.json", &plain);
        server.add("big.json.gz", &coded);
        for _ in 0..2 {
            assert!(fetch(server, "/big.json", "gzip").1 == coded);
            assert!(fetch(server, "/big.json", "br").1 == plain);
            let range = "GET /big.json\nAccept-Encoding: gzip\nRange: bytes=199990-, 0-1";
            let reply = server.request(range, b"");
            assert_eq!((reply.status, reply.field("content-encoding")), (206, None));
        }
    });
}

/// A store without generations is asked each time.
#[test]
fn a_remote_store_has_siblings() {
    let store = Arc::new(MemoryStore::new());
    for driver in drivers() {
        let mut server = TestServer::on_store(store.clone(), &options(), driver);
        let server = &mut server;
        server.put("/a.txt", b"plain");
        assert_eq!(fetch(server, "/a.txt", "gzip"), (None, b"plain".into()));
        server.put("/a.txt.gz", b"zipped");
        assert_eq!(fetch(server, "/a.txt", "gzip").1, b"zipped");
        let part = server.request("GET /a.txt\nAccept-Encoding: gzip\nRange: bytes=0-2", b"");
        assert_eq!((part.status, &part.body[..]), (206, &b"pla"[..]));
        assert_eq!(fetch(server, "/a.txt", "br"), (None, b"plain".into()));
        server.put("/a.txt", b"newer");
        assert_eq!(fetch(server, "/a.txt", "gzip"), (None, b"newer".into()));
        server.delete("/a.txt.gz");
    }
}
