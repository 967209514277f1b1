//! Locks and the field `If` of WebDAV on both drivers and in the simulator, and the requests that
//! macOS and Windows send.

use crate::common::webdav::{LOCK_INFO, lock, paths, propfind, webdav};
use crate::common::{TestServer, on_all_backends};
use onrush_files::FilesOptions;

#[test]
fn a_lock_protects_what_it_covers() {
    on_all_backends(&webdav(), |server| {
        server.put("/f/a", b"1");
        let (reply, token) = lock(server, "/f/a", "\nTimeout: Second-100");
        assert_eq!(reply.status, 200);
        assert!(
            reply.text().contains("<D:timeout>Second-100</D:timeout>"),
            "{}",
            reply.text()
        );
        assert!(propfind(server, "/f/a", "0").text().contains(&token));
        let with = format!("\nIf: (<{token}>)");
        let refused = server.put("/f/a", b"2");
        assert_eq!(refused.status, 423);
        assert!(
            refused
                .text()
                .contains("<D:lock-token-submitted><D:href>/f/a</D:href>")
        );
        for request in [
            "DELETE /f/a",
            "DELETE /f/",
            "MOVE /f/a\nDestination: /x",
            "MOVE /f\nDestination: /x",
            "COPY /f/x\nDestination: /f/a",
            "PROPPATCH /f/a",
        ] {
            server.put("/f/x", b"x");
            assert_eq!(server.request(request, b"").status, 423, "{request}");
        }
        assert_eq!(lock(server, "/f/a", "").0.status, 423);
        assert_eq!(lock(server, "/f", "").0.status, 423);
        assert_eq!(
            server.request("COPY /f/a\nDestination: /copy", b"").status,
            201
        );
        assert_eq!(server.request(&format!("PUT /f/a{with}"), b"3").status, 204);
        assert_eq!(server.get("/f/a").text(), "3");
        let refreshed = server.request(&format!("LOCK /f/a{with}\nTimeout: Second-50"), b"");
        assert!(refreshed.status == 200 && refreshed.text().contains("Second-50"));
        let wrong = "\nLock-Token: <urn:uuid:0>";
        assert_eq!(
            server.request(&format!("UNLOCK /f/a{wrong}"), b"").status,
            409
        );
        assert_eq!(server.request("UNLOCK /f/a", b"").status, 400);
        // Half a bracket is malformed. Without any, as the package webdav of npm sends it, the
        // token is the same.
        let half = format!("UNLOCK /f/a\nLock-Token: <{token}");
        assert_eq!(server.request(&half, b"").status, 400);
        let own = format!("\nLock-Token: {token}");
        assert_eq!(
            server.request(&format!("UNLOCK /f/a{own}"), b"").status,
            204
        );
        assert_eq!(server.put("/f/a", b"4").status, 204);
    });
}

#[test]
fn a_lock_of_a_folder_protects_its_members() {
    on_all_backends(&webdav(), |server| {
        server.put("/f/a", b"1");
        let (reply, token) = lock(server, "/f/", "\nDepth: 0");
        assert_eq!(reply.status, 200);
        assert_eq!(server.put("/f/a", b"2").status, 204, "not a new member");
        assert_eq!(server.put("/f/b", b"2").status, 423);
        assert_eq!(server.request("MKCOL /f/g", b"").status, 423);
        assert_eq!(server.delete("/f/a").status, 423);
        let with = format!("\nIf: </f/> (<{token}>)");
        assert_eq!(server.request(&format!("PUT /f/b{with}"), b"2").status, 201);
        let own = format!("\nLock-Token: <{token}>");
        assert_eq!(server.request(&format!("UNLOCK /f{own}"), b"").status, 204);
        let (reply, token) = lock(server, "/f", "");
        assert!(reply.status == 200 && reply.text().contains("<D:depth>infinity</D:depth>"));
        assert_eq!(server.put("/f/a", b"3").status, 423);
        assert_eq!(server.put("/g", b"3").status, 201);
        let with = format!("\nIf: </f> (<{token}>)");
        assert_eq!(server.request(&format!("PUT /f/a{with}"), b"3").status, 204);
        // The lock ends with the folder.
        assert_eq!(server.request(&format!("DELETE /f{with}"), b"").status, 204);
        assert_eq!(server.request("MKCOL /f", b"").status, 201);
    });
}

/// A change of which the request does not name the member.
#[test]
fn a_lock_protects_from_new_members_of_every_kind() {
    on_all_backends(&webdav(), |server| {
        server.add_folder("f");
        server.put("/g/a", b"1");
        let (reply, token) = lock(server, "/f/", "\nDepth: 0");
        assert_eq!(reply.status, 200);
        let with = format!("\nIf: </f/> (<{token}>)");
        // A PUT creates the folders between.
        assert_eq!(server.put("/f/b/c/d", b"2").status, 423);
        let put = format!("PUT /f/b/c/d{with}");
        assert_eq!(server.request(&put, b"2").status, 201);
        assert_eq!(
            server.put("/f/b/e/d", b"2").status,
            201,
            "the folder exists"
        );
        // The name "new" or "a" is in the metadata of tus.
        let (reply, _) = lock(server, "/g/a", "");
        assert_eq!(reply.status, 200);
        for (path, name, fields, status) in [
            ("/f/", "bmV3", "", 423),
            ("/f/", "bmV3", &with[..], 201),
            ("/g/", "YQ==", "", 423),
            ("/g/", "bmV3", "", 201),
            ("/g/", "Li4=", "", 400),
        ] {
            let tus = "Tus-Resumable: 1.0.0\nUpload-Length: 0\nUpload-Metadata: filename";
            let reply = server.request(&format!("POST {path}\n{tus} {name}{fields}"), b"");
            assert_eq!(reply.status, status, "{path} {name} {}", reply.text());
        }
        assert_eq!(server.get("/g/a").text(), "1");
    });
}

/// A precompressed sibling decides what clients get at the locked path.
#[test]
fn a_lock_covers_precompressed_siblings() {
    let options = FilesOptions {
        precompressed: true,
        ..webdav()
    };
    on_all_backends(&options, |server| {
        server.put("/f/a", b"1");
        server.put("/f/a.gz", b"old");
        server.put("/x", b"x");
        let (reply, token) = lock(server, "/f/a", "");
        assert_eq!(reply.status, 200);
        let tus = "Tus-Resumable: 1.0.0\nUpload-Length: 1\nUpload-Metadata: filename YS56c3Q=";
        let part = "Content-Length: 1\nUpload-Complete: ?0";
        for request in [
            "PUT /f/a.gz",
            "PUT /f/a.br",
            &format!("PUT /f/a.zst\n{part}"),
            &format!("POST /f/\n{tus}"),
            "LOCK /f/a.br",
            "DELETE /f/a.gz",
            "MOVE /x\nDestination: /f/a.gz",
            "MOVE /f/a.gz\nDestination: /y",
            "COPY /x\nDestination: /f/a.br",
            "PROPPATCH /f/a.gz",
        ] {
            let body: &[u8] = match request.split(' ').next() {
                Some("LOCK") => LOCK_INFO.as_bytes(),
                Some("PUT") => b"!",
                _ => b"",
            };
            assert_eq!(server.request(request, body).status, 423, "{request}");
        }
        let kind = "Content-Type: multipart/form-data; boundary=b";
        let form = |name: &str| {
            let head =
                format!("--b\r\nContent-Disposition: form-data; filename=\"{name}\"\r\n\r\n");
            format!("{head}content\r\n--b--\r\n").into_bytes()
        };
        let reply = server.request(&format!("POST /f/\n{kind}"), &form("a.br"));
        assert_eq!(reply.status, 423, "{}", reply.text());
        assert_eq!(server.get("/f/a.br").status, 404);
        let reply = server.request(&format!("POST /f/\n{kind}"), &form("b.br"));
        assert_eq!(reply.status, 201, "{}", reply.text());
        // The lock is one of the siblings, so its token needs no other path.
        let with = format!("\nIf: (<{token}>)");
        let reply = server.request(&format!("PUT /f/a.gz{with}"), b"new");
        assert_eq!(reply.status, 204);
        let with = format!("{kind}\nIf: </f/a> (<{token}>)");
        let reply = server.request(&format!("POST /f/\n{with}"), &form("a.br"));
        assert_eq!(reply.status, 201, "{}", reply.text());
        let own = format!("UNLOCK /f/a\nLock-Token: <{token}>");
        assert_eq!(server.request(&own, b"").status, 204);
        assert_eq!(server.delete("/f/a.gz").status, 204);
    });
    // Without the option, they are other objects.
    on_all_backends(&webdav(), |server| {
        server.put("/a", b"1");
        assert_eq!(lock(server, "/a", "").0.status, 200);
        assert_eq!(server.put("/a.gz", b"2").status, 201);
    });
}

#[test]
fn a_lock_without_a_resource_creates_an_empty_object() {
    on_all_backends(&webdav(), |server| {
        let (reply, token) = lock(server, "/new", "");
        assert_eq!(reply.status, 201);
        let got = server.get("/new");
        assert_eq!((got.status, got.body.len()), (200, 0));
        assert_eq!(server.put("/new", b"x").status, 423);
        let with = format!("\nIf: (<{token}>)");
        assert_eq!(server.request(&format!("PUT /new{with}"), b"x").status, 204);
        for (path, status) in [("/none/x", 409), ("/none/", 409), ("/.onrush/x", 403)] {
            assert_eq!(lock(server, path, "").0.status, status, "{path}");
        }
        let wrong = [("\nDepth: 1", 400), ("\nIf: (<x>)", 412), ("\nIf: x", 400)];
        for (fields, status) in wrong {
            assert_eq!(lock(server, "/y", fields).0.status, status, "{fields}");
        }
        assert_eq!(server.request("LOCK /y", b"").status, 400);
        assert_eq!(server.get("/y").status, 404);
    });
}

#[test]
fn locks_expire() {
    let mut server = TestServer::simulated("/", &webdav(), 1);
    server.put("/a", b"1");
    let (reply, _) = lock(&mut server, "/a", "\nTimeout: Second-5");
    assert_eq!(reply.status, 200);
    server.advance(4_000);
    assert_eq!(server.put("/a", b"2").status, 423);
    server.advance(2_000);
    assert_eq!(server.put("/a", b"3").status, 204);
}

#[test]
fn conditions_of_the_field_if_are_evaluated() {
    on_all_backends(&webdav(), |server| {
        server.put("/a", b"1");
        let (_, token) = lock(server, "/a", "");
        let many = "(Not <x>)".repeat(65);
        let one_list = format!("({})", "Not <x>".repeat(65));
        for (value, status) in [
            ("(<TOKEN> [ETAG])", 204),
            ("(<TOKEN> [\"other\"])", 412),
            ("(<TOKEN> [\"other\"]) (Not <DAV:no-lock>)", 204),
            ("(Not <DAV:no-lock>)", 423),
            ("(<TOKENx>) (Not <DAV:no-lock>)", 423),
            ("(<urn:uuid:x>)", 412),
            ("<http://test/a> (<TOKEN>)", 204),
            ("<http://other/a> (<TOKEN>)", 412),
            ("</b> (<TOKEN>)", 412),
            ("nonsense", 400),
            (&many, 400),
            (&one_list, 400),
        ] {
            let etag = server.get("/a").etag().to_owned();
            let value = value.replace("TOKEN", &token).replace("ETAG", &etag);
            let reply = server.request(&format!("PUT /a\nIf: {value}"), b"2");
            assert_eq!(reply.status, status, "{value}");
        }
    });
}

/// As the Finder of macOS saves a file on a volume: it looks for the file, creates an empty one,
/// locks it, writes it, and keeps what its file system cannot hold in a second file.
#[test]
fn the_requests_of_macos_work() {
    on_all_backends(&webdav(), |server| {
        let agent = "\nUser-Agent: WebDAVFS/3.0.0 (03008000) Darwin/22.6.0";
        let options = server.request(&format!("OPTIONS /{agent}"), b"");
        assert!(options.field("dav").is_some_and(|dav| dav.contains('2')));
        let ask = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:propfind xmlns:D=\"DAV:\">\n\
            <D:prop>\n<D:getlastmodified/>\n<D:getcontentlength/>\n<D:creationdate/>\n\
            <D:resourcetype/>\n</D:prop>\n</D:propfind>\n";
        let look = |server: &mut TestServer, path: &str, depth: &str| {
            let head = format!("PROPFIND {path}\nDepth: {depth}\nContent-Type: text/xml{agent}");
            server.request(&head, ask.as_bytes())
        };
        assert_eq!(look(server, "/", "0").status, 207);
        assert_eq!(look(server, "/._report.txt", "0").status, 404);
        for (name, content) in [
            ("/report.txt", "the text"),
            ("/._report.txt", "\0\x05\x16\x07"),
        ] {
            assert_eq!(look(server, name, "0").status, 404);
            assert_eq!(
                server.request(&format!("PUT {name}{agent}"), b"").status,
                201
            );
            let (reply, token) = lock(
                server,
                name,
                &format!("\nDepth: 0\nTimeout: Second-600{agent}"),
            );
            assert_eq!(reply.status, 200);
            let with = format!("\nIf: (<{token}>){agent}");
            let put = server.request(&format!("PUT {name}{with}"), content.as_bytes());
            assert_eq!(put.status, 204);
            assert_eq!(look(server, name, "0").status, 207);
            let unlock = format!("UNLOCK {name}\nLock-Token: <{token}>{agent}");
            assert_eq!(server.request(&unlock, b"").status, 204);
        }
        let listed = look(server, "/", "1");
        assert_eq!(paths(&listed), ["/", "/._report.txt", "/report.txt"]);
        let renamed =
            format!("MOVE /report.txt\nDestination: http://test/final.txt\nOverwrite: T{agent}");
        assert_eq!(server.request(&renamed, b"").status, 201);
        assert_eq!(
            server
                .request(&format!("DELETE /._report.txt{agent}"), b"")
                .status,
            204
        );
        assert_eq!(server.get("/final.txt").text(), "the text");
    });
}

/// As the redirector of Windows copies a file to a network drive.
#[test]
fn the_requests_of_windows_work() {
    on_all_backends(&webdav(), |server| {
        let agent = "\nUser-Agent: Microsoft-WebDAV-MiniRedir/10.0.19045\nTranslate: f";
        let options = server.request(&format!("OPTIONS /{agent}"), b"");
        assert_eq!(
            (options.status, options.field("ms-author-via")),
            (200, Some("DAV"))
        );
        let look = |server: &mut TestServer, path: &str, depth: &str| {
            let head = format!("PROPFIND {path}\nDepth: {depth}\nContent-Length: 0{agent}");
            server.request(&head, b"")
        };
        assert_eq!(look(server, "/", "0").status, 207);
        assert_eq!(
            server
                .request(&format!("MKCOL /New%20folder{agent}"), b"")
                .status,
            201
        );
        let name = "/New%20folder/a.docx";
        assert_eq!(look(server, name, "0").status, 404);
        assert_eq!(
            server
                .request(&format!("PUT {name}\nContent-Length: 0{agent}"), b"")
                .status,
            201
        );
        let (reply, token) = lock(server, name, &format!("\nTimeout: Second-3600{agent}"));
        assert_eq!(reply.status, 200);
        let with = format!("\nIf: (<{token}>){agent}");
        let patch = "<?xml version=\"1.0\" encoding=\"utf-8\" ?><D:propertyupdate xmlns:D=\"DAV:\" \
            xmlns:Z=\"urn:schemas-microsoft-com:\"><D:set><D:prop>\
            <Z:Win32LastModifiedTime>Tue, 24 Nov 2026 10:00:00 GMT</Z:Win32LastModifiedTime>\
            <Z:Win32FileAttributes>00000020</Z:Win32FileAttributes></D:prop></D:set>\
            </D:propertyupdate>";
        let reply = server.request(&format!("PROPPATCH {name}{with}"), patch.as_bytes());
        assert!(
            reply.status == 207 && reply.text().contains("200 OK"),
            "{}",
            reply.text()
        );
        let head = server.request(&format!("HEAD {name}{agent}"), b"");
        assert_eq!(head.status, 200);
        assert_eq!(
            server
                .request(&format!("PUT {name}{with}"), b"content")
                .status,
            204
        );
        let reply = server.request(&format!("PROPPATCH {name}{with}"), patch.as_bytes());
        assert_eq!(reply.status, 207);
        let unlock = format!("UNLOCK {name}\nLock-Token: <{token}>{agent}");
        assert_eq!(server.request(&unlock, b"").status, 204);
        let listed = look(server, "/New%20folder", "1");
        assert_eq!(paths(&listed), ["/New%20folder/", name]);
        assert!(
            listed.text().contains("Win32FileAttributes"),
            "{}",
            listed.text()
        );
        // Folders are renamed and deleted without a slash.
        let moved =
            format!("MOVE /New%20folder\nDestination: http://test/Docs\nOverwrite: F{agent}");
        assert_eq!(server.request(&moved, b"").status, 201);
        assert_eq!(
            server.request(&format!("DELETE /Docs{agent}"), b"").status,
            204
        );
    });
}

#[test]
fn a_lock_of_a_new_name_is_not_deeper_than_a_put() {
    let options = onrush_files::FilesOptions {
        depth_max: 2,
        ..webdav()
    };
    on_all_backends(&options, |server| {
        server.add("a/b/c", b"x");
        assert_eq!(lock(server, "/a/new", "").0.status, 201);
        assert_eq!(lock(server, "/a/b/new", "").0.status, 400);
        assert_eq!(lock(server, "/a/b/c", "").0.status, 200, "it exists");
    });
}
