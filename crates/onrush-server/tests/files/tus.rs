//! tus 1.0.0 on both drivers and in the simulator.

use crate::common::tus::{METADATA, STREAM, append, create, request};
use crate::common::{on_all_backends, writable};

#[test]
fn an_object_is_created_in_a_folder_and_filled() {
    on_all_backends(&writable(), |server| {
        let fields = format!("Upload-Length: 11\nUpload-Metadata: {METADATA}");
        let url = create(server, "/folder/", &fields);
        assert!(url.starts_with("/folder/a%20b.txt?upload-id="), "{url}");
        let head = request(server, &format!("HEAD {url}"), b"");
        assert_eq!((head.status, head.field("upload-offset")), (200, Some("0")));
        assert_eq!(head.field("upload-length"), Some("11"));
        assert_eq!(head.field("upload-metadata"), Some(METADATA));
        assert_eq!(head.field("cache-control"), Some("no-store"));
        let reply = append(server, &url, 0, "", b"hello ");
        assert_eq!(
            (reply.status, reply.field("upload-offset")),
            (204, Some("6"))
        );
        assert_eq!(server.get("/folder/a%20b.txt").status, 404);
        assert_eq!(append(server, &url, 5, "", b"world").status, 409);
        assert_eq!(append(server, &url, 6, "", b"world!").status, 400);
        let reply = append(server, &url, 6, "", b"world");
        assert_eq!(
            (reply.status, reply.field("upload-offset")),
            (204, Some("11"))
        );
        let got = server.get("/folder/a%20b.txt");
        assert_eq!(
            (got.text(), got.field("content-type")),
            ("hello world", Some("text/x-test"))
        );
        let head = request(server, &format!("HEAD {url}"), b"");
        assert_eq!(
            (head.status, head.field("upload-offset")),
            (200, Some("11"))
        );
    });
}

#[test]
fn creation_has_extensions() {
    on_all_backends(&writable(), |server| {
        // With the first bytes, and with all of them.
        for (length, content) in [(5, "hello"), (6, "hello"), (0, "")] {
            let head = format!("POST /x\nUpload-Length: {length}\n{STREAM}");
            let reply = request(server, &head, content.as_bytes());
            assert_eq!(reply.status, 201, "{}", reply.text());
            assert_eq!(
                reply.field("upload-offset"),
                Some(&content.len().to_string()[..])
            );
            let got = server.get("/x");
            match length > content.len() {
                true => assert_eq!(got.text(), "hello", "the one before"),
                false => assert_eq!(got.text(), content),
            }
        }
        // With a length that comes later.
        let url = create(server, "/y", "Upload-Defer-Length: 1");
        assert_eq!(append(server, &url, 0, "", b"abc").status, 204);
        let head = request(server, &format!("HEAD {url}"), b"");
        assert_eq!(head.field("upload-defer-length"), Some("1"));
        assert_eq!(
            append(server, &url, 3, "\nUpload-Length: 2", b"").status,
            400
        );
        assert_eq!(
            append(server, &url, 3, "\nUpload-Length: 5", b"de").status,
            204
        );
        assert_eq!(server.get("/y").text(), "abcde");
    });
}

#[test]
fn checksums_and_termination() {
    on_all_backends(&writable(), |server| {
        let url = create(server, "/x", "Upload-Length: 5");
        for (checksum, status) in [
            ("sha1 AAAAAAAAAAAAAAAAAAAAAAAAAAA=", 460),
            ("sha1 qvTGHdzF6KLavt4PO0gs2a6pQ00", 400),
            ("crc32 AAAAAA==", 400),
            ("sha1 qvTGHdzF6KLavt4PO0gs2a6pQ00=", 204),
        ] {
            let reply = append(
                server,
                &url,
                0,
                &format!("\nUpload-Checksum: {checksum}"),
                b"hello",
            );
            assert_eq!(reply.status, status, "{checksum}");
        }
        assert_eq!(server.get("/x").text(), "hello");
        for checksum in [
            "md5 XUFAKrxLKna5cZ2REBfFkg==",
            "sha256 LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=",
        ] {
            let url = create(server, "/x", "Upload-Length: 6");
            let more = format!("\nUpload-Checksum: {checksum}");
            assert_eq!(append(server, &url, 0, &more, b"hellO").status, 460);
            assert_eq!(append(server, &url, 0, &more, b"hello").status, 204);
            assert_eq!(request(server, &format!("DELETE {url}"), b"").status, 204);
            assert_eq!(append(server, &url, 5, "", b"!").status, 404);
        }
    });
}

#[test]
fn wrong_requests_create_nothing() {
    on_all_backends(&writable(), |server| {
        for (path, fields, status) in [
            ("/", "Upload-Length: 1".to_owned(), 400),
            ("/x", format!("Upload-Metadata: {METADATA}"), 400),
            ("/x", "Upload-Length: -1".to_owned(), 400),
            (
                "/x",
                "Upload-Length: 1\nUpload-Metadata: filename ?".to_owned(),
                400,
            ),
            // "../x", "a/b", ".hidden", ".onrush"
            (
                "/f/",
                "Upload-Length: 1\nUpload-Metadata: filename Li4veA==".to_owned(),
                400,
            ),
            (
                "/f/",
                "Upload-Length: 1\nUpload-Metadata: filename YS9i".to_owned(),
                400,
            ),
            (
                "/f/",
                "Upload-Length: 1\nUpload-Metadata: filename Li4=".to_owned(),
                400,
            ),
            (
                "/f/",
                "Upload-Length: 1\nUpload-Metadata: filename LmhpZGRlbg==".to_owned(),
                403,
            ),
            (
                "/",
                "Upload-Length: 1\nUpload-Metadata: filename Lm9ucnVzaA==".to_owned(),
                403,
            ),
        ] {
            let reply = request(server, &format!("POST {path}\n{fields}"), b"");
            assert_eq!(reply.status, status, "{path} {fields}: {}", reply.text());
        }
        let reply = server.request("POST /x\nTus-Resumable: 0.2.2\nUpload-Length: 1", b"");
        assert_eq!(
            (reply.status, reply.field("tus-version")),
            (412, Some("1.0.0"))
        );
        assert_eq!(server.request("POST /x\nUpload-Length: 1", b"").status, 415);
        let options = server.request("OPTIONS /", b"");
        let extensions = options.field("tus-extension").expect("extensions");
        assert!(extensions.contains("creation-with-upload"), "{extensions}");
        assert_eq!(options.field("tus-version"), Some("1.0.0"));
        let checksums = options.field("tus-checksum-algorithm").expect("algorithms");
        assert!(checksums.split(',').any(|algorithm| algorithm == "sha1"));
        let url = create(server, "/x", "Upload-Length: 1");
        let reply = request(server, &format!("PATCH {url}\nUpload-Offset: 0"), b"a");
        assert_eq!(reply.status, 415);
    });
}
