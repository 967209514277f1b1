//! PUT and DELETE: responses, conditions, and the state after failures.

use crate::common::Json as _;
use crate::common::*;
use onrush_files::{Allow, FilesOptions};
use onrush_rt::fs::FileKind;

#[test]
fn put_creates_and_replaces_objects_visibly_at_once() {
    on_all_backends(&writable(), |server| {
        for size in [0, 1, 20_000, 64 * 1024, 65 * 1024, 3_000_000] {
            let (one, two) = (pattern(size), vec![b'2'; size / 2]);
            let path = format!("/new/folder/o%20{size}");
            let made = server.put(&path, &one);
            assert_eq!(made.status, 201, "{} {size}", server.name);
            assert_eq!(made.field("location"), Some(&path[..]));
            let got = server.get(&path);
            assert!(got.body == one && got.etag() == made.etag());
            let replaced = server.put(&path, &two);
            assert_eq!(replaced.status, 204);
            assert_eq!(replaced.field("location"), None);
            assert_ne!(replaced.etag(), made.etag());
            let got = server.get(&path);
            assert!(got.body == two && got.etag() == replaced.etag());
            assert_eq!(server.delete(&path).status, 204);
            assert_eq!(server.get(&path).status, 404);
            assert_eq!(server.delete(&path).status, 404);
        }
        assert_eq!(server.staged(), 0);
    });
}

#[test]
fn chunked_bodies_of_any_length_are_stored() {
    on_all_backends(&writable(), |server| {
        for size in [0, 5, 300_000, 2_000_000] {
            let content = pattern(size);
            let mut body = Vec::new();
            for piece in content.chunks(70_001) {
                body.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                body.extend_from_slice(piece);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"0\r\n\r\n");
            let reply = server.request("PUT /c\nTransfer-Encoding: chunked", &body);
            assert!(matches!(reply.status, 201 | 204), "{} {size}", server.name);
            assert!(server.get("/c").body == content, "{} {size}", server.name);
        }
    });
}

#[test]
fn preconditions_of_writes_are_evaluated() {
    on_all_backends(&writable(), |server| {
        server.add("old", b"old");
        let etag = server.get("/old").etag().to_owned();
        let before = "Sun, 13 Sep 2020 12:26:39 GMT";
        let refused = [
            ("/old", "If-None-Match: *".to_owned()),
            ("/old", "If-Match: \"x\"".to_owned()),
            ("/old", format!("If-Match: W/{etag}")),
            ("/old", format!("If-None-Match: {etag}")),
            ("/old", "If-None-Match: broken".to_owned()),
            ("/old", format!("If-Unmodified-Since: {before}")),
            ("/none", "If-Match: *".to_owned()),
            ("/none", format!("If-Match: {etag}")),
        ];
        for size in [5, 200_000] {
            for (path, condition) in &refused {
                let reply = server.request(&format!("PUT {path}\n{condition}"), &pattern(size));
                assert_eq!(reply.status, 412, "{} {path} {condition}", server.name);
            }
        }
        for (path, condition) in &refused {
            let reply = server.request(&format!("DELETE {path}\n{condition}"), b"");
            assert_eq!(reply.status, 412, "{path} {condition}");
        }
        assert_eq!(server.get("/old").body, b"old");
        assert_eq!(server.get("/none").status, 404);

        let made = server.request("PUT /none\nIf-None-Match: *", b"1");
        assert_eq!(made.status, 201);
        let swap = |etag: &str| format!("PUT /none\nIf-Match: {etag}");
        let second = server.request(&swap(made.etag()), b"2");
        assert_eq!(second.status, 204);
        assert_eq!(server.request(&swap(made.etag()), b"3").status, 412);
        assert_eq!(server.get("/none").body, b"2");
        let delete = |etag: &str| format!("DELETE /none\nIf-Match: {etag}");
        assert_eq!(server.request(&delete(made.etag()), b"").status, 412);
        assert_eq!(server.request(&delete(second.etag()), b"").status, 204);
        assert_eq!(server.staged(), 0);
    });
}

#[test]
fn condition_is_checked_again_at_the_commit() {
    on_all_backends(&writable(), |server| {
        let content = pattern(400_000);
        let mut slow = server.connect();
        let head = "PUT /race HTTP/1.1\r\nHost: t\r\nIf-None-Match: *\r\nConnection: close\r\n\
                    Content-Length: 400000\r\n\r\n";
        server.send(&mut slow, head.as_bytes());
        server.send(&mut slow, &content[..200_000]);
        server.advance(20);
        assert_eq!(server.put("/race", b"faster").status, 201);
        server.send(&mut slow, &content[200_000..]);
        let reply = Reply::parse(&server.receive(&mut slow), false);
        assert_eq!(reply.status, 412, "{}", server.name);
        assert_eq!(server.get("/race").body, b"faster");
        wait_until(server, |server| server.staged() == 0);
    });
}

#[test]
fn folders_are_created() {
    on_all_backends_at("/mnt/", &writable(), |server| {
        let made = server.put("/mnt/new%20one/inner/", b"");
        assert_eq!(
            (made.status, made.field("location")),
            (201, Some("/mnt/new%20one/inner/"))
        );
        assert_eq!(server.get("/mnt/new%20one/inner/").status, 200);
        assert_eq!(server.put("/mnt/new%20one/./inner//", b"").status, 204);
        // Of unknown length, and as curl sends PUT without a body.
        let chunked = "PUT /mnt/chunked/\nTransfer-Encoding: chunked";
        assert_eq!(server.request(chunked, b"0\r\n\r\n").status, 201);
        let other = chunked.replace("/chunked/", "/other/");
        assert_eq!(server.request(&other, b"1\r\nx\r\n0\r\n\r\n").status, 409);
        assert_eq!(server.get("/mnt/other/").status, 404);
        let mut bare = server.connect();
        let head = b"PUT /mnt/bare/ HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
        server.send(&mut bare, head);
        let reply = Reply::parse(&server.receive(&mut bare), false);
        assert_eq!((reply.status, server.get("/mnt/bare/").status), (201, 200));
        let only_new = |server: &mut TestServer, path: &str| {
            server
                .request(&format!("PUT {path}\nIf-None-Match: *"), b"")
                .status
        };
        assert_eq!(only_new(server, "/mnt/new%20one/"), 412);
        assert_eq!(only_new(server, "/mnt/other/"), 201);
        server.add("file", b"x");
        assert_eq!(server.put("/mnt/file/", b"").status, 409);
        assert_eq!(server.put("/mnt/file/below/", b"").status, 409);
        assert_eq!(server.put("/mnt/", b"").status, 409);
        assert_eq!(server.put("/mnt/full/", b"content").status, 409);
        assert_eq!(server.put("/mnt/.hidden/", b"").status, 403);
        assert_eq!(server.put("/mnt/.onrush/x/", b"").status, 403);
        let deep = format!("/mnt/{}", "d/".repeat(65));
        assert_eq!(server.put(&deep, b"").status, 400);
        assert_eq!(server.get("/mnt/full/").status, 404);
        assert_eq!(server.delete("/mnt/new%20one/inner/").status, 204);
    });
    let read_only = FilesOptions::default();
    on_all_backends(&read_only, |server| {
        assert_eq!(server.put("/a/", b"").status, 405)
    });
}

#[test]
fn entries_in_the_way_are_conflicts() {
    on_all_backends(&writable(), |server| {
        server.add("folder/file", b"x");
        server.add_folder("empty");
        server.add_fifo("fifo");
        for size in [3, 200_000] {
            let body = pattern(size);
            assert_eq!(
                server.put("/folder", &body).status,
                409,
                "{} {size}",
                server.name
            );
            assert_eq!(server.put("/folder/file/below", &body).status, 409);
            assert_eq!(server.put("/folder/", &body).status, 409);
            assert_eq!(server.put("/", &body).status, 409);
            assert_eq!(server.put("/fifo", &body).status, 409);
            let long = format!("/{}", "n".repeat(256));
            assert_eq!(server.put(&long, &body).status, 400);
            let part = server.request("PUT /folder/file\nContent-Range: bytes 0-2/9", &body);
            assert_eq!(part.status, 400);
        }
        assert_eq!(server.delete("/folder").status, 409);
        assert_eq!(server.delete("/folder/").status, 409);
        assert_eq!(server.delete("/folder/file/").status, 404);
        assert_eq!(server.delete("/").status, 403);
        assert_eq!(server.delete("/empty").status, 409);
        assert_eq!(server.delete("/empty/").status, 204);
        assert_eq!(server.delete("/empty/").status, 404);
        assert_eq!(server.get("/folder/file").body, b"x");
        assert_eq!(server.staged(), 0);
    });
}

#[test]
fn links_are_not_replaced_and_deleting_one_keeps_its_target() {
    on_all_backends(&writable(), |server| {
        server.add("target", b"inside");
        server.add("folder/x", b"x");
        let etag = server.get("/target").etag().to_owned();
        let links = [
            ("to-file", "target"),
            ("to-folder", "folder"),
            ("out", "/etc/passwd"),
            ("up", "../../etc/passwd"),
            ("dangling", "nowhere"),
            ("loop", "loop"),
        ];
        let is_link = |server: &TestServer, name: &str| {
            let found = server.root().entry_metadata(name.as_bytes());
            found.is_ok_and(|found| found.kind == FileKind::Symlink)
        };
        for (link, to) in links {
            server.add_symlink(link, to);
            let conditions = [
                String::new(),
                format!("\nIf-Match: {etag}"),
                "\nIf-None-Match: *".to_owned(),
            ];
            for condition in conditions {
                for size in [3, 200_000] {
                    let reply = server.request(&format!("PUT /{link}{condition}"), &pattern(size));
                    let what = format!("{}: {link}{condition}, {size}", server.name);
                    assert_eq!(reply.status, 409, "{what}");
                    assert!(is_link(server, link), "{what}");
                }
            }
        }
        for link in ["out", "up", "dangling", "loop"] {
            assert_eq!(server.delete(&format!("/{link}")).status, 404, "{link}");
            assert!(is_link(server, link), "{link}");
        }
        let other = server.request("DELETE /to-file\nIf-Match: \"other\"", b"");
        assert_eq!(other.status, 412);
        assert_eq!(
            server.delete("/to-folder").status,
            409,
            "a folder needs a slash"
        );
        for (path, link) in [("/to-file", "to-file"), ("/to-folder/", "to-folder")] {
            assert_eq!(server.delete(path).status, 204, "{}: {path}", server.name);
            assert!(server.root().entry_metadata(link.as_bytes()).is_err());
        }
        assert_eq!(server.get("/target").body, b"inside");
        assert_eq!(server.get("/folder/x").body, b"x");
        assert_eq!(server.put("/to-file", b"now free").status, 201);
        assert_eq!(server.staged(), 0);
    });
}

#[test]
fn hidden_and_reserved_names_are_refused() {
    on_all_backends(&writable(), |server| {
        server.add(".secret", b"x");
        server.add("a/.git/config", b"x");
        for path in [
            "/.secret",
            "/a/.git/config",
            "/%2esecret",
            "/.onrush/x",
            "/.ONRUSH/x",
        ] {
            assert_eq!(server.get(path).status, 404, "{path}");
            assert_eq!(server.put(path, b"y").status, 403, "{path}");
            assert_eq!(server.delete(path).status, 403, "{path}");
        }
        for path in ["/a/.git/", "/.onrush/", "/.onrush/staging/"] {
            assert_eq!(server.get(path).status, 404, "{path}");
            assert_eq!(server.delete(path).status, 403, "{path}");
        }
    });
    let options = FilesOptions {
        hidden: true,
        ..writable()
    };
    on_all_backends(&options, |server| {
        server.add(".secret", b"x");
        assert_eq!(server.get("/.secret").body, b"x");
        assert_eq!(server.put("/.new/x", b"y").status, 201);
        let own = [
            "/.onrush/x",
            "/.ONRUSH/x",
            "/.onrush/",
            "/%2Eonrush/staging/",
            "/.onrush",
        ];
        for path in own {
            assert_eq!(server.get(path).status, 404, "{path}");
        }
        for path in own.into_iter().filter(|path| !path.ends_with('/')) {
            assert_eq!(server.put(path, b"y").status, 403, "{path}");
            assert_eq!(server.delete(path).status, 403, "{path}");
        }
        let listing = server
            .request("GET /\nAccept: application/json", b"")
            .json();
        assert!(!listing.to_string().contains(".onrush"), "{listing}");
        assert!(listing.to_string().contains(".secret"));
    });
}

#[test]
fn only_allowed_methods_are_accepted() {
    for (put, delete, allow) in [
        (false, false, "GET, HEAD, OPTIONS"),
        (true, false, "COPY, GET, HEAD, OPTIONS, POST, PUT"),
        (false, true, "DELETE, GET, HEAD, OPTIONS"),
        (
            true,
            true,
            "COPY, DELETE, GET, HEAD, MOVE, OPTIONS, POST, PUT",
        ),
    ] {
        let options = FilesOptions {
            allow: Allow {
                put,
                delete,
                ..Allow::default()
            },
            ..FilesOptions::default()
        };
        on_all_backends(&options, |server| {
            let made = server.put("/x", b"1");
            assert_eq!(made.status, if put { 201 } else { 405 });
            let gone = server.delete("/x");
            let missing = if put { 204 } else { 404 };
            assert_eq!(gone.status, if delete { missing } else { 405 });
            let options = server.request("OPTIONS /x", b"");
            assert_eq!((options.status, options.field("allow")), (204, Some(allow)));
            for reply in [made, gone] {
                assert!(reply.status != 405 || reply.field("allow") == Some(allow));
                let reason = match put || delete {
                    true => "the server permits only some changes (--allow)",
                    false => "the server permits no changes (--allow)",
                };
                assert!(reply.status != 405 || reply.text().contains(reason));
            }
        });
    }
}

#[test]
fn full_disk_gives_507_and_io_error_500_and_the_old_object_stays() {
    for size in [3000, 400_000] {
        let old = pattern(1000);
        let mut server = TestServer::simulated("/", &writable(), 4);
        server.put("/x", &old);
        server.disk().disk_full_after(Some(1500));
        assert_eq!(server.put("/x", &pattern(size)).status, 507, "{size}");
        assert_eq!(server.get("/x").body, old);
        assert_eq!(server.staged(), 0);
        server.disk().disk_full_after(None);

        let mut ahead = 0;
        loop {
            let at = server.disk().operations() + ahead;
            server.disk().fail_at(at, 5);
            let reply = server.put("/x", &vec![b'n'; size]);
            server.disk().clear_faults();
            let body = server.get("/x").body;
            if reply.status == 204 {
                // Only the removal of the old object failed. The next start removes it.
                assert!(body == vec![b'n'; size]);
                break;
            }
            assert_eq!(reply.status, 500, "operation {ahead}");
            assert!(body == old, "operation {ahead}");
            assert_eq!(server.staged(), 0, "operation {ahead}");
            assert_eq!(server.put("/x", &old).status, 204);
            ahead += 1;
        }
        assert!(ahead > 5);
    }
}

#[test]
fn full_disk_is_reported_before_the_body() {
    let mut server = TestServer::simulated("/", &writable(), 5);
    server.disk().disk_full_after(Some(100_000));
    let reply = server.request("PUT /x\nExpect: 100-continue\nContent-Length: 1000000", b"");
    assert_eq!(reply.status, 507);
}

/// A refused write states which part of its path is the cause.
#[test]
fn refusals_of_names_state_the_cause() {
    on_all_backends(&writable(), |server| {
        server.add("file", b"x");
        server.add("folder/x", b"x");
        server.add_symlink("link", "file");
        let name = format!("/{}", "n".repeat(256));
        let path = format!("/{}", "n".repeat(200)).repeat(21);
        for (path, status, text) in [
            (
                &name[..],
                400,
                "a name of the path is longer than 255 bytes",
            ),
            (&path[..], 400, "the path is longer than 4095 bytes"),
            ("/folder", 409, "this is a folder"),
            ("/file/x", 409, "a folder of the path is an object"),
            ("/file/x/y", 409, "a folder of the path is an object"),
            ("/link", 409, "a link or a special file is in the way"),
        ] {
            let reply = server.put(path, b"x");
            let shown = &path[..path.len().min(20)];
            assert_eq!(reply.status, status, "{}: {shown}", server.name);
            assert!(reply.text().starts_with(text), "{}", reply.text());
        }
        assert_eq!(server.get(&name).status, 404);
    });
}

#[test]
fn a_time_that_was_not_stored_is_not_accepted() {
    on_all_backends(&writable(), |server| {
        for (fields, accepted) in [
            ("X-OC-Mtime: 1600000000", Some("accepted")),
            ("X-OC-Mtime:\nContent-Type: text/plain", None),
        ] {
            let reply = server.request(&format!("PUT /x\n{fields}"), b"x");
            assert_eq!(reply.field("x-oc-mtime"), accepted, "{fields}");
        }
    });
}

/// Names that are digests hold for every way to write.
#[test]
fn names_that_are_digests_are_compared_for_every_upload() {
    let options = FilesOptions {
        content_addressed: true,
        ..writable()
    };
    // The SHA-256 of "hello".
    let name = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    on_all_backends(&options, |server| {
        server.add("cas/other", b"x");
        server.add("from", b"wrong");
        let form = |content: &str| {
            format!(
                "--b\r\nContent-Disposition: form-data; name=f; filename={name}\r\n\r\n{content}\
                 \r\n--b--\r\n"
            )
        };
        let path = format!("/cas/{name}");
        let post = "POST /cas/\nContent-Type: multipart/form-data; boundary=b";
        let put = format!("PUT {path}\nUpload-Complete: ?0\nUpload-Length: 5");
        let tus = format!(
            "POST {path}\nTus-Resumable: 1.0.0\nUpload-Length: 5\n\
             Content-Type: application/offset+octet-stream"
        );
        let patch = "Upload-Offset: 5\nUpload-Complete: ?1\nContent-Length: 0\n\
                     Content-Type: application/partial-upload";
        for (content, is_right) in [("wrong", false), ("hello", true)] {
            let mut replies = vec![server.request(post, form(content).as_bytes())];
            let kept = server.delete(&path).status;
            replies.push(server.request(&tus, content.as_bytes()));
            let begun = server.request(&put, content.as_bytes());
            let url = begun.field("location").expect("a location").to_owned();
            let _ = server.delete(&path);
            replies.push(server.request(&format!("PATCH {url}\n{patch}"), b""));
            let expected = if is_right { 201 } else { 400 };
            for reply in &replies {
                assert_eq!(reply.status, expected, "{content}: {}", reply.text());
            }
            assert_eq!(kept, if is_right { 204 } else { 404 });
        }
        let copy = format!("COPY /from\nDestination: {path}");
        assert_eq!(server.request(&copy, b"").status, 403);
        assert_eq!(server.get(&path).text(), "hello");
    });
}
