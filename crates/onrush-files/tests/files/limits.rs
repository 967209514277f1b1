//! The maximum size of objects, the free-space floor, and quotas, on both drivers and in the
//! simulator.

use crate::common::*;
use onrush_files::{FilesOptions, UploadLimits};
use onrush_rt::blocking::BlockingPool;
use onrush_store::{Folder, FolderOptions, Key, Quota, QuotaStore};
use std::sync::Arc;

/// A PUT of one chunk, without an announced length.
fn chunked(server: &mut TestServer, path: &str, bytes: usize) -> Reply {
    let mut body = format!("{bytes:x}\r\n").into_bytes();
    body.extend_from_slice(&pattern(bytes));
    body.extend_from_slice(b"\r\n0\r\n\r\n");
    server.request(&format!("PUT {path}\nTransfer-Encoding: chunked"), &body)
}

#[test]
fn a_copy_of_a_folder_has_no_object_that_is_too_large() {
    let upload_limits = UploadLimits {
        object_bytes_max: 10,
        ..UploadLimits::default()
    };
    let options = FilesOptions {
        upload_limits,
        ..writable()
    };
    on_all_backends(&options, |server| {
        server.add("f/g/large", &pattern(11));
        server.add("f/small", &pattern(10));
        let reply = server.request("COPY /f/\nDestination: /copy/", b"");
        assert_eq!(reply.status, 207, "{}", reply.text());
        for expected in ["/copy/g/large", "413", "larger than 10 bytes"] {
            assert!(reply.text().contains(expected), "{}", reply.text());
        }
        assert_eq!(server.content("copy/g/large"), None);
        assert!(server.content("copy/small").is_some());
    });
}

#[test]
fn an_object_that_is_too_large_is_refused_everywhere() {
    let upload_limits = UploadLimits {
        object_bytes_max: 100_000,
        ..UploadLimits::default()
    };
    let options = FilesOptions {
        upload_limits,
        ..writable()
    };
    on_all_backends(&options, |server| {
        let text = "the object is larger than 100000 bytes\n";
        assert_eq!(server.put("/a", &pattern(100_000)).status, 201);
        assert_eq!(chunked(server, "/b", 100_000).status, 201);
        let refused = server.put("/a", &pattern(100_001));
        assert_eq!(
            (refused.status, refused.text()),
            (413, text),
            "{}",
            server.name
        );
        let expecting = "PUT /c\nExpect: 100-continue\nContent-Length: 100001";
        assert_eq!(server.request(expecting, b"").status, 413);
        let refused = chunked(server, "/c", 100_001);
        assert_eq!((refused.status, refused.text()), (413, text));
        server.add("large", &pattern(100_001));
        let refused = server.request("COPY /large\nDestination: /copy", b"");
        assert_eq!((refused.status, refused.text()), (413, text));
        let begin = "PUT /d\nUpload-Complete: ?0\nUpload-Length: 100001";
        assert_eq!(server.request(begin, b"x").status, 413);
        let begin = "POST /d\nTus-Resumable: 1.0.0\nUpload-Length: 100001";
        assert_eq!(server.request(begin, b"").status, 413);
        assert_eq!(
            server.content("a").map(|content| content.len()),
            Some(100_000)
        );
        for name in ["c", "copy", "d"] {
            assert_eq!(server.content(name), None, "{name}");
        }
        assert_eq!(server.staged(), 0);
    });
}

/// The response does not wait for bytes that the client does not send.
#[test]
fn a_failed_write_ends_an_upload_whose_client_is_slow() {
    let full = FilesOptions {
        min_free_bytes: u64::MAX,
        ..writable()
    };
    let upload_limits = UploadLimits {
        object_bytes_max: 1000,
        ..UploadLimits::default()
    };
    let limited = FilesOptions {
        upload_limits,
        ..writable()
    };
    for (options, status) in [(full, 507), (limited, 413)] {
        on_all_backends(&options, |server| {
            // More than a buffer, and less than two: the second one waits for more bytes.
            let mut body = b"100000\r\n".to_vec();
            body.extend_from_slice(&pattern(524_000));
            let mut connection = server.connect();
            let head = b"PUT /a HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
            server.send(&mut connection, head);
            server.send(&mut connection, &body);
            let has_head = |all: &[u8]| all.windows(4).any(|four| four == b"\r\n\r\n");
            let response = server.receive_until(&mut connection, has_head);
            let response = String::from_utf8_lossy(&response);
            let expected = format!("HTTP/1.1 {status} ");
            assert!(response.starts_with(&expected), "{response:?}");
            server.abort(connection);
            wait_until(server, |server| server.staged() == 0);
        });
    }
}

#[test]
fn space_that_is_kept_free_is_not_written() {
    let options = FilesOptions {
        min_free_bytes: u64::MAX,
        ..writable()
    };
    on_all_backends(&options, |server| {
        server.add("old", b"old");
        for size in [1, 10_000, 20_000, 600_000] {
            let refused = server.put("/a", &pattern(size));
            assert_eq!(
                (refused.status, refused.text()),
                (
                    507,
                    "the store is full, or its space is kept free (--min-free)\n"
                ),
                "{size}"
            );
            assert_eq!(chunked(server, "/a", size).status, 507, "{size}");
        }
        assert_eq!(server.put("/old", b"new").status, 507);
        let copy = server.request("COPY /old\nDestination: /copy", b"");
        assert_eq!(copy.status, 507);
        // An upload in parts.
        let begin = server.request("PUT /part\nUpload-Complete: ?0", b"");
        assert_eq!(begin.status, 201, "the record is small: {begin:?}");
        let url = begin.field("location").expect("a URL").to_owned();
        let append = format!(
            "PATCH {url}\nUpload-Offset: 0\nUpload-Complete: ?0\n\
             Content-Type: application/partial-upload"
        );
        assert_eq!(server.request(&append, &pattern(50_000)).status, 507);
        assert_eq!(server.request(&format!("DELETE {url}"), b"").status, 204);
        assert_eq!(server.content("old").as_deref(), Some(&b"old"[..]));
        for name in ["a", "copy", "part"] {
            assert_eq!(server.content(name), None, "{name}");
        }
        assert_eq!(server.get("/old").status, 200);
        // A folder needs space as well, whatever makes it.
        for (head, body) in [
            ("PUT /new/", ""),
            ("PUT /new/er/", ""),
            ("PUT /new/empty", ""),
        ] {
            let refused = server.request(head, body.as_bytes());
            assert_eq!(refused.status, 507, "{head}: {}", refused.text());
        }
        assert_eq!(server.get("/new/").status, 404);
        let moved = server.request("MOVE /old\nDestination: /moved", b"");
        assert_eq!(moved.status, 201);
        assert_eq!(server.delete("/moved").status, 204);
        wait_until(server, |server| server.staged() == 0);
    });
}

#[test]
fn a_quota_holds_for_every_way_to_write() {
    for driver in drivers() {
        let dir = TempDir::new();
        std::fs::create_dir(dir.path().join("in")).expect("a folder");
        std::fs::write(dir.path().join("in/old"), [0; 7500]).expect("written");
        std::fs::write(dir.path().join("out"), [0; 30_000]).expect("written");
        let pool = BlockingPool::threads(2, 100);
        let folder = Folder::open(dir.path(), pool, FolderOptions::default()).expect("a folder");
        let quota = Quota {
            prefix: Key::parse(b"in").ok(),
            bytes_max: 25_000,
        };
        let store = QuotaStore::new(folder, vec![quota]).expect("a count");
        let used = |expected: u64| assert_eq!(store.used()[0].1, expected);
        used(7500);
        let mut server = TestServer::on_store(Arc::new(store.clone()), &writable(), driver);
        let server = &mut server;
        assert_eq!(server.put("/in/a", &pattern(12_500)).status, 201);
        used(20_000);
        let refused = server.put("/in/b", &pattern(5001));
        let text = "the object does not fit into what is left of the quota of this path\n";
        assert_eq!((refused.status, refused.text()), (507, text));
        assert_eq!(chunked(server, "/in/b", 5001).status, 507);
        assert_eq!(server.put("/elsewhere", &pattern(70_000)).status, 201);
        used(20_000);
        let copy = |to: &str| format!("COPY /in/old\nDestination: {to}");
        assert_eq!(server.request(&copy("/in/copy"), b"").status, 507);
        assert_eq!(server.request(&copy("/copy"), b"").status, 201);
        let into = server.request("MOVE /out\nDestination: /in/out", b"");
        assert_eq!(into.status, 507);
        // Replacing, deleting and moving make room.
        assert_eq!(server.put("/in/a", &pattern(5000)).status, 204);
        used(12_500);
        assert_eq!(
            server
                .request("MOVE /in/old\nDestination: /old", b"")
                .status,
            201
        );
        used(5000);
        assert_eq!(
            server.request("MOVE /old\nDestination: /in/a", b"").status,
            204
        );
        used(7500);
        assert_eq!(
            server
                .request("MOVE /in/\nDestination: /other/", b"")
                .status,
            501
        );
        // Each name and each folder count a block at least.
        assert_eq!(server.put("/in/d/empty", b"").status, 201);
        used(7500 + 8192);
        assert_eq!(server.request("MKCOL /in/e/", b"").status, 405); // Without WebDAV.
        assert_eq!(server.put("/in/f/", b"").status, 201);
        used(7500 + 12_288);
        assert_eq!(server.put("/in/g/h/", b"").status, 507);
        assert_eq!(server.get("/in/g/").status, 404);
        for name in ["/in/d/empty", "/in/d/", "/in/f/"] {
            assert_eq!(server.delete(name).status, 204);
        }
        used(7500);
        // A part of an upload counts until the upload is complete, or deleted.
        let begin = server.request("PUT /in/part\nUpload-Complete: ?0", &pattern(15_000));
        assert_eq!(begin.status, 201);
        let url = begin.field("location").expect("a URL").to_owned();
        let append = format!(
            "PATCH {url}\nUpload-Offset: 15000\nUpload-Complete: ?1\n\
             Content-Type: application/partial-upload"
        );
        let refused = server.request(&append, &pattern(2501));
        assert_eq!(refused.status, 507, "{refused:?}");
        used(22_500);
        assert_eq!(server.put("/in/b", &pattern(2501)).status, 507);
        assert_eq!(server.delete("/in/a").status, 204);
        used(15_000);
        store.count().expect("a count");
        used(15_000);
        assert_eq!(server.delete(&url).status, 204);
        used(0);
        std::fs::write(dir.path().join("in/other"), [0; 7777]).expect("written");
        store.count().expect("a count");
        used(7777);
    }
}

/// An upload whose last step has no room, because it makes a folder, can be completed later.
#[test]
fn an_upload_outlives_a_quota_that_is_full() {
    for driver in drivers() {
        let dir = TempDir::new();
        let pool = BlockingPool::threads(2, 100);
        let folder = Folder::open(dir.path(), pool, FolderOptions::default()).expect("a folder");
        let quota = Quota {
            prefix: None,
            bytes_max: 25_000,
        };
        let store = QuotaStore::new(folder, vec![quota]).expect("a count");
        let used = |expected: u64| assert_eq!(store.used()[0].1, expected);
        let mut server = TestServer::on_store(Arc::new(store.clone()), &writable(), driver);
        let server = &mut server;
        assert_eq!(server.put("/old", &pattern(7500)).status, 201);
        let begin = server.request("PUT /new/x\nUpload-Complete: ?0", &pattern(15_000));
        assert_eq!(begin.status, 201);
        let url = begin.field("location").expect("a URL").to_owned();
        let complete = format!(
            "PATCH {url}\nUpload-Offset: 15000\nUpload-Complete: ?1\n\
             Content-Type: application/partial-upload"
        );
        assert_eq!(server.request(&complete, b"").status, 507);
        used(22_500);
        assert_eq!(server.delete("/old").status, 204);
        assert_eq!(server.request(&complete, b"").status / 100, 2);
        assert_eq!(server.get("/new/x").body, pattern(15_000));
        used(15_000 + 4096);
    }
}

/// While the objects are counted for the first time, only what needs room in a quota waits.
#[test]
fn a_quota_that_is_not_counted_refuses_for_a_moment() {
    for driver in drivers() {
        let dir = TempDir::new();
        std::fs::create_dir(dir.path().join("in")).expect("a folder");
        std::fs::write(dir.path().join("in/old"), b"old").expect("written");
        let pool = BlockingPool::threads(2, 100);
        let folder = Folder::open(dir.path(), pool, FolderOptions::default()).expect("a folder");
        let quota = Quota {
            prefix: Key::parse(b"in").ok(),
            bytes_max: 25_000,
        };
        let store = QuotaStore::uncounted(folder, &[quota]);
        let mut server = TestServer::on_store(Arc::new(store.clone()), &writable(), driver);
        let server = &mut server;
        let text = "the objects are being counted for the quota of this path; try again later\n";
        for request in [
            "PUT /in/new",
            "PUT /in/folder/",
            "PUT /in/part\nUpload-Complete: ?0",
            "COPY /in/old\nDestination: /in/copy",
            "MOVE /out\nDestination: /in/out",
            "POST /in/tus\nTus-Resumable: 1.0.0\nUpload-Length: 5",
        ] {
            assert_eq!(server.put("/out", b"out").status / 100, 2);
            let refused = server.request(request, b"");
            assert_eq!((refused.status, refused.text()), (503, text), "{request}");
            assert_eq!(refused.field("retry-after"), Some("5"), "{request}");
        }
        // What cannot fit in any case.
        assert_eq!(server.put("/in/large", &pattern(25_001)).status, 507);
        assert_eq!(server.get("/in/old").body, b"old");
        assert_eq!(server.delete("/in/old").status, 204);
        store.count().expect("a count");
        assert_eq!(server.put("/in/new", b"new").status, 201);
        assert_eq!(store.used()[0].1, 4096);
    }
}
