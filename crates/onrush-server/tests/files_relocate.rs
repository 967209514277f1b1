//! COPY and MOVE on both drivers and in the simulator, and in front of a store without them.

mod common;

use common::{Reply, TestServer, on_all_backends, on_all_backends_at, writable};
use onrush::DriverPreference;
use onrush_store::testing::MemoryStore;
use std::sync::Arc;

fn send(server: &mut TestServer, method: &str, from: &str, to: &str, more: &str) -> Reply {
    server.request(&format!("{method} {from}\nDestination: {to}{more}"), b"")
}

fn copies(server: &mut TestServer) {
    let content = vec![7; 100_000];
    let put = server.request("PUT /a\nContent-Type: text/x-test", &content);
    assert_eq!(put.status, 201);
    let reply = send(server, "COPY", "/a", "/b%20c", "");
    assert_eq!(
        (reply.status, reply.field("location")),
        (201, Some("/b%20c"))
    );
    let got = server.get("/b%20c");
    assert!(got.body == content && reply.field("etag") == Some(got.etag()));
    assert_eq!(got.field("content-type"), Some("text/x-test"));
    assert_eq!(server.get("/a").status, 200);
    server.put("/a", b"new");
    assert_eq!(
        send(server, "COPY", "/a", "/b%20c", "\nOverwrite: F").status,
        412
    );
    assert_eq!(
        send(server, "COPY", "/a", "/b%20c", "\nIf-Match: \"other\"").status,
        412
    );
    assert_eq!(
        send(server, "COPY", "/a", "http://test/b%20c", "\nOverwrite: T").status,
        204
    );
    assert_eq!(server.get("/b%20c").body, b"new");
    assert_eq!(send(server, "COPY", "/none", "/x", "").status, 404);
}

#[test]
fn objects_are_copied() {
    on_all_backends(&writable(), copies);
}

#[test]
fn a_store_without_a_copy_operation_copies_through_the_server() {
    let store = Arc::new(MemoryStore::new());
    let mut server = TestServer::on_store(store, &writable(), DriverPreference::Epoll);
    copies(&mut server);
    assert_eq!(send(&mut server, "MOVE", "/a", "/moved", "").status, 501);
    assert_eq!(server.get("/a").status, 200);
}

#[test]
fn objects_and_folders_are_moved() {
    on_all_backends(&writable(), |server| {
        let etag = server.put("/dir/a", b"content").etag().to_owned();
        assert_eq!(server.get("/dir/a").status, 200);
        let reply = send(
            server,
            "MOVE",
            "/dir/a",
            "/dir/b",
            &format!("\nIf-Match: {etag}"),
        );
        assert_eq!(
            (reply.status, reply.field("location")),
            (201, Some("/dir/b"))
        );
        // A cache must not serve the old name.
        assert_eq!(server.get("/dir/a").status, 404);
        assert_eq!(
            (server.get("/dir/b").text(), server.get("/dir/b").etag()),
            ("content", &etag[..])
        );
        server.put("/dir/c", b"other");
        assert_eq!(server.get("/dir/c").text(), "other");
        assert_eq!(
            send(server, "MOVE", "/dir/b", "/dir/c", "\nOverwrite: F").status,
            412
        );
        assert_eq!(send(server, "MOVE", "/dir/b", "/dir/c", "").status, 204);
        assert_eq!(server.get("/dir/c").text(), "content");
        assert_eq!(server.get("/dir/b").status, 404);
        // Folders.
        let reply = send(server, "MOVE", "/dir/", "/new/", "");
        assert_eq!(
            (reply.status, reply.field("location")),
            (201, Some("/new/"))
        );
        assert_eq!(server.get("/dir/c").status, 404);
        assert_eq!(server.get("/new/c").text(), "content");
        server.put("/full/x", b"x");
        for (method, from, to, status) in [
            ("MOVE", "/new/", "/full/", 409),
            ("MOVE", "/new/", "/new/beneath/", 403),
            ("MOVE", "/new/c", "/new/c", 403),
            ("MOVE", "/", "/x/", 403),
            ("MOVE", "/new", "/y", 409),
            ("MOVE", "/new/", "/y", 409),
            ("MOVE", "/new/c", "/y/", 409),
            ("MOVE", "/new/c", "/full", 409),
            ("MOVE", "/new/c", "/none/c", 409),
            ("COPY", "/new/", "/y/", 501),
            ("MOVE", "/new/c", "/.onrush/c", 403),
            ("MOVE", "/new/c", "/.hidden", 403),
            ("MOVE", "/.onrush/state/x", "/y", 403),
            ("MOVE", "/new/c", "http://other/y", 502),
            ("MOVE", "/new/c", "ftp://test/y", 502),
            ("MOVE", "/new/c", "y", 400),
            ("MOVE", "/new/c", "//test/y", 400),
            ("MOVE", "/new/c", "/y?x", 400),
            ("MOVE", "/new/c", "/../y", 400),
            ("MOVE", "/new/c", "/%zz", 400),
        ] {
            let reply = send(server, method, from, to, "");
            assert_eq!(
                reply.status,
                status,
                "{method} {from} {to}: {}",
                reply.text()
            );
        }
        assert_eq!(
            send(server, "MOVE", "/new/c", "/y", "\nOverwrite: x").status,
            400
        );
        assert_eq!(server.request("MOVE /new/c", b"").status, 400);
        assert_eq!(server.get("/new/c").text(), "content");
    });
}

#[test]
fn destinations_are_beneath_the_mount() {
    on_all_backends_at("/files/", &writable(), |server| {
        server.put("/files/a", b"content");
        assert_eq!(send(server, "MOVE", "/files/a", "/b", "").status, 400);
        let reply = send(server, "MOVE", "/files/a", "/files/b", "");
        assert_eq!(
            (reply.status, reply.field("location")),
            (201, Some("/files/b"))
        );
        assert_eq!(server.get("/files/b").text(), "content");
    });
}
