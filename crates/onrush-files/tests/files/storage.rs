//! Storage errors: the response and the log line. They run on the simulated disk in this thread, so
//! that the log can be captured.

use crate::common::*;
use onrush_files::FilesOptions;
use testing::log::{Log, with_subscriber};

#[test]
fn only_storage_errors_are_logged() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .with_max_level(tracing::Level::WARN)
        .finish();
    with_subscriber(subscriber, || {
        for seed in 1..=3 {
            let server = || {
                let server = TestServer::simulated("/", &writable(), seed);
                server.add("there", b"content");
                server.add("folder/x", b"content");
                server
            };
            let failing = |server: &mut TestServer, errno: i32, head: &str, body: &[u8]| {
                let disk = server.disk().clone();
                for number in 0..50 {
                    disk.fail_at(disk.operations() + number, errno);
                }
                let reply = server.request(head, body);
                disk.clear_faults();
                (reply.status, reply.text().to_owned(), log.take())
            };
            let table = [
                (libc::EIO, "PUT /a%20b", 500, "the disk failed\n"),
                (libc::ENOSPC, "PUT /a%20b", 507, "the disk is full\n"),
                (libc::EDQUOT, "PUT /a%20b", 507, "the disk is full\n"),
                (libc::EROFS, "PUT /a%20b", 503, "the disk is read-only\n"),
                (libc::EROFS, "DELETE /there", 503, "the disk is read-only\n"),
                (libc::EIO, "GET /there", 500, "the disk failed\n"),
                (libc::EIO, "GET /folder/", 500, "the disk failed\n"),
            ];
            for (errno, head, status, text) in table {
                for size in [3, 100_000] {
                    let body = match head.starts_with("PUT") {
                        true => pattern(size),
                        false => Vec::new(),
                    };
                    // One server for each, because a server's log lines are rate limited.
                    let (got, body_text, logged) = failing(&mut server(), errno, head, &body);
                    let what = format!("{head}, {errno}: {got} {body_text} {logged}");
                    assert_eq!((got, &body_text[..]), (status, text), "{what}");
                    assert_eq!(logged.lines().count(), 1, "{what}");
                    assert!(logged.contains("WARN"), "{what}");
                    let path = head.split_once(" /").unwrap().1.trim_end_matches('/');
                    assert!(logged.contains(&format!("key=\"{path}\"")), "{what}");
                    assert!(logged.contains(&format!("errno={errno}")), "{what}");
                }
            }
            let mut server = server();
            let (status, _, logged) = failing(&mut server, libc::EACCES, "PUT /c", b"x");
            assert_eq!((status, logged.lines().count()), (403, 1), "{logged}");
            assert!(
                logged.contains(&format!("errno={}", libc::EACCES)),
                "{logged}"
            );
            assert!(logged.contains("the file system denied access"), "{logged}");
            let (status, _, logged) = failing(&mut server, libc::EACCES, "GET /there", b"");
            assert_eq!((status, logged.lines().count()), (403, 1), "{logged}");
            assert_eq!(server.get("/none").status, 404);
            assert_eq!(server.put("/folder", b"x").status, 409);
            assert_eq!(server.get("/there").body, b"content");
            assert_eq!(log.take(), "");
        }
    });
}

/// A file system that knows only Unicode refuses other bytes. That is no failure of the disk.
#[test]
fn bytes_that_are_no_name_on_the_disk_are_not_found_or_refused() {
    let mut options = FilesOptions {
        webdav: true,
        ..writable()
    };
    options.allow.delete_folders = true;
    const FORM: &str = "Content-Type: multipart/form-data; boundary=b";
    const PART: &[u8] =
        b"--b\r\nContent-Disposition: form-data; name=f; filename=\"\xff\"\r\n\r\nx\r\n--b--";
    let large = pattern(300_000);
    let lock = "<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:exclusive/></D:lockscope>\
        <D:locktype><D:write/></D:locktype></D:lockinfo>";
    let patch = "<D:propertyupdate xmlns:D='DAV:'><D:set><D:prop><a/></D:prop></D:set>\
        </D:propertyupdate>";
    for failure in [libc::EILSEQ, libc::EINVAL] {
        let mut server = TestServer::simulated("/", &options, 3);
        let server = &mut server;
        server.add("a", b"content");
        server.add("d/b", b"content");
        server.disk().set_unicode_names(Some(failure));
        assert_eq!(server.put("/%c3%a9", b"x").status, 201);
        let metadata = format!(
            "Tus-Resumable: 1.0.0\nUpload-Length: 3\nUpload-Metadata: filename {}",
            "/w=="
        );
        for (head, body, status) in [
            ("GET /%ff".to_owned(), &b""[..], 404),
            ("HEAD /%ff".to_owned(), b"", 404),
            ("GET /%ff/".to_owned(), b"", 404),
            ("GET /d/%ff".to_owned(), b"", 404),
            ("GET /%ff/x".to_owned(), b"", 404),
            ("GET /%ff/?archive=zip".to_owned(), b"", 404),
            ("PROPFIND /%ff\nDepth: 0".to_owned(), b"", 404),
            ("PROPFIND /%ff/\nDepth: 1".to_owned(), b"", 404),
            ("DELETE /%ff".to_owned(), b"", 404),
            ("DELETE /%ff/".to_owned(), b"", 404),
            ("MOVE /%ff\nDestination: /new".to_owned(), b"", 404),
            ("COPY /%ff/\nDestination: /new/".to_owned(), b"", 404),
            ("PROPPATCH /%ff".to_owned(), patch.as_bytes(), 404),
            ("PUT /%ff".to_owned(), b"small", 400),
            ("PUT /%ff".to_owned(), &large, 400),
            ("PUT /%ff\nIf-None-Match: *".to_owned(), b"small", 400),
            ("PUT /%ff/x".to_owned(), b"small", 400),
            ("PUT /%ff/".to_owned(), b"", 400),
            ("PUT /%ff\nUpload-Complete: ?0".to_owned(), b"part", 400),
            (format!("POST /%ff\n{metadata}"), b"", 400),
            (format!("POST /d/\n{metadata}"), b"", 400),
            (format!("POST /d/\n{FORM}"), PART, 400),
            ("MKCOL /%ff/".to_owned(), b"", 400),
            ("LOCK /%ff".to_owned(), lock.as_bytes(), 400),
            ("COPY /a\nDestination: /%ff".to_owned(), b"", 400),
            ("MOVE /a\nDestination: /%ff".to_owned(), b"", 400),
            ("COPY /d/\nDestination: /%ff/".to_owned(), b"", 400),
            ("MOVE /d/\nDestination: /%ff/".to_owned(), b"", 400),
        ] {
            let reply = server.request(&head, body);
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            assert_eq!(reply.status, status, "{failure}: {head}: {text}");
        }
        assert_eq!(server.get("/a").text(), "content");
        assert_eq!(server.get("/d/b").text(), "content");
        assert_eq!(server.staged(), 0);
    }
}
