//! COPY and MOVE on both drivers and in the simulator, and in front of a store without them.

use crate::common::{Reply, TestServer, on_all_backends, on_all_backends_at, writable};
use onrush::DriverPreference;
use onrush_files::FilesOptions;
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
    // lftp sends the user and the password.
    for host in ["test", "ann@test", "ann:se%40cret@test"] {
        let to = format!("http://{host}/b%20c");
        let reply = send(server, "COPY", "/a", &to, "\nOverwrite: T");
        assert_eq!(reply.status, 204, "{to}");
    }
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
            ("MOVE", "/new/c", "/.onrush/c", 403),
            ("MOVE", "/new/c", "/.hidden", 403),
            ("MOVE", "/.onrush/state/x", "/y", 403),
            ("MOVE", "/new/c", "http://other/y", 502),
            ("MOVE", "/new/c", "ftp://test/y", 502),
            ("MOVE", "/new/c", "http://test@other/y", 502),
            ("MOVE", "/new/c", "http://ann:secret@/y", 502),
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

fn tree(server: &mut TestServer) {
    let long: String = "x".repeat(200);
    for path in ["/a/1", "/a/sub/2", "/a/sub/deep/3", &format!("/a/{long}")] {
        assert_eq!(server.put(path, path.as_bytes()).status, 201);
    }
}

fn with_folders() -> FilesOptions {
    let mut options = writable();
    options.allow.delete_folders = true;
    options
}

#[test]
fn folders_are_copied() {
    on_all_backends(&writable(), |server| {
        tree(server);
        let reply = send(server, "COPY", "/a/", "/b/", "");
        assert_eq!((reply.status, reply.field("location")), (201, Some("/b/")));
        assert_eq!(server.get("/b/sub/deep/3").text(), "/a/sub/deep/3");
        assert_eq!(server.get("/a/sub/2").text(), "/a/sub/2");
        // What exists is not replaced without the option.
        assert_eq!(send(server, "COPY", "/a/", "/b/", "").status, 409);
        let kept = send(server, "COPY", "/a/", "/b/", "\nOverwrite: F");
        assert_eq!(kept.status, 412);
        assert_eq!(send(server, "COPY", "/a/", "/c/", "\nDepth: 0").status, 201);
        assert_eq!(server.get("/c/1").status, 404);
        assert_eq!(server.get("/c/").status, 200);
        for (from, to, more, status) in [
            ("/a/", "/d/", "\nDepth: 1", 400),
            ("/a/", "/a/beneath/", "", 403),
            ("/a/", "/none/d/", "", 409),
            ("/none/", "/d/", "", 404),
            ("/a/1/", "/d/", "", 404),
            ("/a/", "/d/", "\nIf-Match: \"x\"", 412),
        ] {
            let reply = send(server, "COPY", from, to, more);
            assert_eq!(reply.status, status, "{from} {to} {more}: {}", reply.text());
            assert_eq!(server.get("/d/").status, 404);
        }
    });
}

#[test]
fn a_store_without_folders_copies_the_objects_beneath() {
    let store = Arc::new(MemoryStore::new());
    let mut server = TestServer::on_store(store, &writable(), DriverPreference::Epoll);
    tree(&mut server);
    assert_eq!(send(&mut server, "COPY", "/a/", "/b/", "").status, 201);
    assert_eq!(server.get("/b/sub/deep/3").text(), "/a/sub/deep/3");
}

#[test]
fn folders_are_deleted_and_replaced_if_that_is_allowed() {
    on_all_backends(&writable(), |server| {
        tree(server);
        assert_eq!(server.delete("/a/").status, 409);
        assert_eq!(server.get("/a/1").status, 200);
    });
    on_all_backends(&with_folders(), |server| {
        tree(server);
        assert_eq!(server.delete("/a").status, 409);
        assert_eq!(server.delete("/a/").status, 204);
        assert_eq!(server.get("/a/").status, 404);
        assert_eq!(server.delete("/a/").status, 404);
        assert_eq!(server.delete("/").status, 403);
        tree(server);
        server.put("/b/old", b"old");
        assert_eq!(send(server, "COPY", "/a/", "/b/", "").status, 204);
        assert_eq!(server.get("/b/old").status, 404);
        assert_eq!(server.get("/b/sub/2").text(), "/a/sub/2");
        // A failed precondition of the source, or a missing source, deletes nothing.
        for (from, more, status) in [
            ("/a/", "\nIf-Match: \"x\"", 412),
            ("/none/", "", 404),
            ("/a/", "\nOverwrite: F", 412),
            ("/b/sub/", "", 409),
        ] {
            let reply = send(server, "MOVE", from, "/b/", more);
            assert_eq!(reply.status, status, "{from}: {}", reply.text());
            assert_eq!(server.get("/b/sub/2").text(), "/a/sub/2");
        }
        assert_eq!(send(server, "MOVE", "/a/", "/b/", "").status, 204);
        assert_eq!(server.get("/b/sub/2").text(), "/a/sub/2");
        assert_eq!(server.get("/a/").status, 404);
    });
}

#[test]
fn what_is_not_shown_remains_and_is_named() {
    on_all_backends(&with_folders(), |server| {
        tree(server);
        server.add("a/sub/deep/.hidden", b"kept");
        server.put("/outside/x", b"x");
        server.add_symlink("a/link", "../outside");
        server.add_fifo("a/sub/fifo");
        let reply = server.delete("/a/");
        assert_eq!(reply.status, 207);
        let text = reply.text();
        assert!(text.contains("<D:href>/a/sub/deep/</D:href>"), "{text}");
        assert_eq!(text.matches("<D:response>").count(), 1, "{text}");
        assert!(text.contains("HTTP/1.1 409 Conflict"), "{text}");
        assert_eq!(
            server.content("a/sub/deep/.hidden").as_deref(),
            Some(&b"kept"[..])
        );
        assert_eq!(server.content("a/1"), None);
        assert_eq!(server.content("outside/x").as_deref(), Some(&b"x"[..]));
        assert_eq!(server.get("/a/link/x").status, 404, "the link is gone");
        // A link is deleted itself, also if its path ends with a slash.
        server.add_symlink("link", "outside");
        assert_eq!(server.delete("/link/").status, 204);
        assert_eq!(server.content("outside/x").as_deref(), Some(&b"x"[..]));
    });
}

#[test]
fn a_link_to_its_own_folder_ends_a_copy() {
    on_all_backends(&writable(), |server| {
        tree(server);
        server.add_symlink("a/sub/up", "..");
        assert_eq!(send(server, "COPY", "/a/", "/b/", "").status, 201);
        assert_eq!(server.get("/b/sub/2").text(), "/a/sub/2");
        assert_eq!(server.get("/b/sub/up/").status, 404);
    });
}
