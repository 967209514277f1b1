//! tus 1.0.0 on both drivers and in the simulator.

use crate::common::tus::{METADATA, STREAM, append, create, request, target_of};
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
                "/f/",
                "Upload-Length: 1\nUpload-Metadata: filename ?".to_owned(),
                400,
            ),
            (
                "/f/",
                format!(
                    "Upload-Length: 1\nUpload-Metadata: filename YQ==,x {}",
                    "Y".repeat(4096)
                ),
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

/// Metadata that no name depends on is not needed to store an object.
#[test]
fn malformed_metadata_counts_as_absent() {
    on_all_backends(&writable(), |server| {
        let url = create(
            server,
            "/x.txt",
            "Upload-Length: 1\nUpload-Metadata: filetype ?",
        );
        assert_eq!(append(server, &url, 0, "", b"a").status, 204);
        let got = server.get("/x.txt");
        let plain = Some("text/plain; charset=utf-8");
        assert_eq!((got.text(), got.field("content-type")), ("a", plain));
    });
}

/// As tus-java-client and tus-js-client send them where PATCH is not possible.
#[test]
fn a_post_can_mean_patch_or_delete() {
    on_all_backends(&writable(), |server| {
        let url = create(server, "/x", "Upload-Length: 5");
        let post = |method: &str| format!("POST {url}\nX-HTTP-Method-Override: {method}");
        let stream = format!("{}\nUpload-Offset: 0\n{STREAM}", post("PATCH"));
        let reply = request(server, &stream, b"hel");
        assert_eq!(
            (reply.status, reply.field("upload-offset")),
            (204, Some("3"))
        );
        // Other methods, several of them, other URLs, and clients without tus.
        let twice = format!("{}\nX-HTTP-Method-Override: PATCH", post("DELETE"));
        for refused in [post("PUT"), post("HEAD"), post("delete"), twice] {
            assert_eq!(request(server, &refused, b"").status, 400, "{refused}");
        }
        assert_eq!(server.request(&post("DELETE"), b"").status, 415);
        server.add("kept", b"kept");
        let at_object = "POST /kept\nX-HTTP-Method-Override: DELETE";
        assert_eq!(request(server, at_object, b"").status, 400);
        assert_eq!(server.request(at_object, b"").status, 415);
        assert_eq!(server.content("kept").as_deref(), Some(&b"kept"[..]));
        let head = request(server, &format!("HEAD {url}"), b"");
        assert_eq!(head.field("upload-offset"), Some("3"));
        assert_eq!(request(server, &post("DELETE"), b"").status, 204);
        assert_eq!(request(server, &format!("HEAD {url}"), b"").status, 404);
    });
}

/// aiotus drops the query of a relative URL.
#[test]
fn the_url_of_an_upload_is_absolute() {
    on_all_backends(&writable(), |server| {
        let post = "POST /x\nUpload-Length: 1";
        let reply = request(server, post, b"");
        let location = reply.field("location").expect("a URL");
        assert!(
            location.starts_with("http://test/x?upload-id="),
            "{location}"
        );
        assert_eq!(
            append(server, &target_of(location), 0, "", b"a").status,
            204
        );
        // A proxy that is not trusted: the URL of its client is not known.
        for field in [
            "X-Forwarded-Proto: https",
            "Forwarded: proto=https",
            "Via: 1.1 x",
        ] {
            let reply = request(server, &format!("{post}\n{field}"), b"");
            let location = reply.field("location").expect("a URL");
            assert!(location.starts_with("/x?upload-id="), "{field}: {location}");
        }
    });
}
