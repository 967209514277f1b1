//! Fields that are stored with an object, and digests in a PUT.

use crate::common::*;
use onrush_files::{FilesOptions, Types};
use onrush_rt::fs::sim::SimFs;

const FIELDS: [(&str, &str); 5] = [
    ("content-type", "text/x-log; charset=latin1"),
    ("content-encoding", "gzip"),
    ("cache-control", "public, max-age=60"),
    ("content-language", "de, en-GB"),
    ("content-disposition", "attachment; filename=\"a b\""),
];

/// Appends fields to a request line.
fn with(request: &str, fields: &[(&str, &str)]) -> String {
    let mut head = request.to_owned();
    for (name, value) in fields {
        head.push_str(&format!("\n{name}: {value}"));
    }
    head
}

#[test]
fn fields_of_a_put_are_returned_with_the_object() {
    on_all_backends(&writable(), |server| {
        for size in [3, 20_000, 300_000] {
            let path = format!("/folder/{size}.txt");
            let content = pattern(size);
            let put = with(&format!("PUT {path}"), &FIELDS);
            assert_eq!(
                server.request(&put, &content).status,
                201,
                "{}",
                server.name
            );
            // From disk, and from the cache.
            for age_s in [0, 100, 100, 100] {
                if age_s > 0 {
                    server.set_age(&format!("folder/{size}.txt"));
                }
                for method in ["GET", "HEAD"] {
                    let reply = server.request(&format!("{method} {path}"), b"");
                    assert_eq!(reply.status, 200);
                    for (name, value) in FIELDS {
                        let all: Vec<&str> = reply.all(name).collect();
                        assert_eq!(all, [value], "{}: {method} {path}", server.name);
                    }
                    assert_eq!(reply.all("etag").count(), 1);
                    assert!(method == "HEAD" || reply.body == content);
                }
            }
            let part = server.request(&format!("GET {path}\nRange: bytes=1-2"), b"");
            assert_eq!((part.status, &part.body[..]), (206, &content[1..3]));
            assert_eq!(part.field("content-encoding"), Some("gzip"));
            assert_eq!(part.field("content-type"), Some(FIELDS[0].1));
            let parts = server.request(&format!("GET {path}\nRange: bytes=0-0,2-2"), b"");
            let content_type = parts.field("content-type").unwrap();
            assert!(
                content_type.starts_with("multipart/byteranges"),
                "{content_type}"
            );
            assert_eq!(parts.all("content-type").count(), 1);
            let body = String::from_utf8_lossy(&parts.body).into_owned();
            assert!(body.contains(FIELDS[0].1), "{body}");
            let etag = part.etag().to_owned();
            let same = server.request(&format!("GET {path}\nIf-None-Match: {etag}"), b"");
            assert_eq!(same.status, 304);
            assert_eq!(same.field("cache-control"), Some("public, max-age=60"));
            for name in ["content-type", "content-encoding", "content-disposition"] {
                assert_eq!(same.field(name), None, "there is no content to describe");
            }
        }
    });
}

#[test]
fn replacement_has_its_own_fields() {
    on_all_backends(&writable(), |server| {
        let put = with("PUT /a.html", &FIELDS);
        assert_eq!(server.request(&put, b"1").status, 201);
        assert_eq!(
            server.get("/a.html").field("content-encoding"),
            Some("gzip")
        );
        assert_eq!(server.put("/a.html", b"2").status, 204);
        let reply = server.get("/a.html");
        assert_eq!(
            reply.field("content-type"),
            Some("text/html; charset=utf-8")
        );
        assert_eq!(reply.field("cache-control"), Some("no-cache"));
        assert_eq!(reply.field("content-encoding"), None);
        assert_eq!(
            server
                .request("PUT /a.html\nContent-Language: fr", b"3")
                .status,
            204
        );
        let reply = server.get("/a.html");
        assert_eq!(reply.field("content-language"), Some("fr"));
        assert_eq!(
            reply.field("content-type"),
            Some("text/html; charset=utf-8")
        );
        // Created by another program.
        server.add("other.txt", b"x");
        let reply = server.get("/other.txt");
        assert_eq!(
            reply.field("content-type"),
            Some("text/plain; charset=utf-8")
        );
        assert_eq!(reply.field("content-encoding"), None);
    });
}

#[test]
fn stored_type_does_not_disable_the_sandbox() {
    on_all_backends(&writable(), |server| {
        for content_type in ["Text/HTML", "image/svg+xml", "text/plain; a=\",text/html\""] {
            let put = format!("PUT /a.txt\nContent-Type: {content_type}");
            assert!(matches!(server.request(&put, b"x").status, 201 | 204));
            let reply = server.get("/a.txt");
            assert_eq!(reply.field("content-type"), Some(content_type));
            assert_eq!(reply.field("content-security-policy"), Some("sandbox"));
            assert_eq!(reply.field("x-content-type-options"), Some("nosniff"));
        }
        assert_eq!(
            server
                .request("PUT /a.html\nContent-Type: text/plain", b"x")
                .status,
            201
        );
        assert_eq!(server.get("/a.html").field("content-security-policy"), None);
    });
}

#[test]
fn long_fields_and_malformed_codings_are_refused() {
    on_all_backends(&writable(), |server| {
        let long = "x".repeat(1025);
        let many = "x".repeat(1000);
        let table: [(&[(&str, &str)], u16); 6] = [
            (&[("Content-Encoding", "g zip")], 400),
            (&[("Cache-Control", &long)], 431),
            (
                &[
                    ("Cache-Control", &many),
                    ("Content-Disposition", &many),
                    ("Content-Language", "de"),
                ],
                431,
            ),
            (
                &[("Content-Type", ""), ("Content-Encoding", "identity")],
                201,
            ),
            (
                &[("Content-Encoding", "gzip"), ("Content-Encoding", "br")],
                204,
            ),
            (
                &[("Cache-Control", &many), ("Content-Disposition", &many)],
                204,
            ),
        ];
        for (fields, status) in table {
            let reply = server.request(&with("PUT /x", fields), b"content");
            assert_eq!(reply.status, status, "{}: {fields:?}", server.name);
            if status == 201 {
                let reply = server.get("/x");
                assert_eq!(
                    reply.field("content-type"),
                    Some("application/octet-stream")
                );
                assert_eq!(reply.field("content-encoding"), None);
            }
        }
        assert_eq!(server.get("/x").field("cache-control"), Some(&many[..]));
    });
}

/// Sardine sends a charset as the type, rclone times before 1970. The content is good.
#[test]
fn malformed_fields_count_as_absent() {
    on_all_backends(&writable(), |server| {
        let table: [&[(&str, &str)]; 9] = [
            &[("Content-Type", "ISO-8859-1")],
            &[("Content-Type", "text")],
            &[("Content-Type", "a/b, c/d")],
            &[("Content-Type", "a/b"), ("Content-Type", "c/d")],
            &[("Content-Language", "de;q=1")],
            &[("Content-Disposition", "a"), ("Content-Disposition", "b")],
            &[("X-OC-Mtime", "-86400")],
            &[("X-OC-Mtime", "yesterday")],
            &[("X-OC-Mtime", "1"), ("X-OC-Mtime", "2")],
        ];
        for (number, fields) in table.iter().enumerate() {
            let path = format!("/{number}.txt");
            let reply = server.request(&with(&format!("PUT {path}"), fields), b"content");
            let said = (reply.status, reply.field("x-oc-mtime"));
            assert_eq!(said, (201, None), "{}: {fields:?}", server.name);
            let reply = server.get(&path);
            assert_eq!(reply.text(), "content");
            let plain = Some("text/plain; charset=utf-8");
            assert_eq!(reply.field("content-type"), plain, "{fields:?}");
            for name in ["content-language", "content-disposition"] {
                assert_eq!(reply.field(name), None, "{fields:?}");
            }
            let same = server.request(&format!("GET {path}\nIf-Modified-Since: then"), b"");
            assert_eq!(same.status, 200);
        }
        // The other fields are stored.
        let fields = [("Content-Type", "ISO-8859-1"), ("Content-Language", "de")];
        assert_eq!(
            server.request(&with("PUT /x.txt", &fields), b"x").status,
            201
        );
        assert_eq!(server.get("/x.txt").field("content-language"), Some("de"));
    });
}

/// What `curl --data-binary`, wget and urllib send with every body says nothing about a file.
#[test]
fn the_type_of_form_fields_counts_as_absent() {
    const FORM: &str = "application/x-www-form-urlencoded";
    let sent = |of_put: &str, fields: &str| format!("PUT {of_put}{fields}\nContent-Language: de");
    on_all_backends(&writable(), |server| {
        let upper = FORM.to_uppercase();
        for (number, (content_type, expected)) in [
            (FORM, "text/css; charset=utf-8"),
            (&upper, "text/css; charset=utf-8"),
            (&format!("{FORM}; charset=UTF-8"), "text/css; charset=utf-8"),
            (&format!("{FORM}-2"), &format!("{FORM}-2")),
            ("application/x-www-form", "application/x-www-form"),
            ("text/x-mine", "text/x-mine"),
        ]
        .into_iter()
        .enumerate()
        {
            let field = format!("\nContent-Type: {content_type}");
            let (plain, parts) = (format!("/{number}.css"), format!("/parts-{number}.css"));
            let put = server.request(&sent(&plain, &field), b"content");
            assert_eq!(put.status, 201);
            let first = format!("{field}\nUpload-Complete: ?0");
            let begun = server.request(&sent(&parts, &first), b"con");
            assert_eq!(begun.status, 201, "{}", begun.text());
            let url = begun.field("location").expect("a URL");
            let last = format!(
                "PATCH {url}\nUpload-Offset: 3\nUpload-Complete: ?1\n\
                 Content-Type: application/partial-upload"
            );
            assert_eq!(server.request(&last, b"tent").status, 201);
            for path in [&plain, &parts] {
                let reply = server.get(path);
                assert_eq!(reply.text(), "content");
                let found = (reply.field("content-type"), reply.field("content-language"));
                assert_eq!(found, (Some(expected), Some("de")), "{path} {content_type}");
            }
        }
        // It does not keep the type of the object that it replaces, as no type does not.
        assert_eq!(
            server.request("PUT /x.css\nContent-Type: a/b", b"1").status,
            201
        );
        let put = format!("PUT /x.css\nContent-Type: {FORM}");
        assert_eq!(server.request(&put, b"2").status, 204);
        let expected = Some("text/css; charset=utf-8");
        assert_eq!(server.get("/x.css").field("content-type"), expected);
    });
}

#[test]
fn directives_of_a_request_are_not_stored() {
    on_all_backends(&writable(), |server| {
        for (sent, shown) in [
            ("no-cache, no-store", "no-cache"), // Maven
            ("max-age=0", "no-cache"),
            ("only-if-cached", "no-cache"),
            ("no-store", "no-store"),
            ("max-age=3600", "max-age=3600"),
            ("private, no-cache, no-store", "private, no-cache, no-store"),
        ] {
            let put = with("PUT /a.jar", &[("Cache-Control", sent)]);
            assert!(matches!(server.request(&put, b"x").status, 201 | 204));
            let reply = server.get("/a.jar");
            assert_eq!(reply.field("cache-control"), Some(shown), "{sent}");
        }
    });
}

#[test]
fn without_attributes_encodings_are_refused_and_types_follow_names() {
    for seed in 1..=3 {
        let disk = SimFs::new(seed);
        disk.set_keeps_attributes(false);
        let mut server = TestServer::simulated_on(disk, "/", &writable(), seed);
        let refused = server.request("PUT /a.txt\nContent-Encoding: gzip", b"x");
        assert_eq!(refused.status, 415);
        assert_eq!(refused.field("accept-encoding"), Some("identity"));
        assert_eq!(server.content("a.txt"), None);
        let fields = [FIELDS[0], FIELDS[2], ("Content-Encoding", "identity")];
        assert_eq!(
            server.request(&with("PUT /a.txt", &fields), b"x").status,
            201
        );
        let reply = server.get("/a.txt");
        assert_eq!(
            reply.field("content-type"),
            Some("text/plain; charset=utf-8")
        );
        assert_eq!(reply.field("cache-control"), Some("no-cache"));
        // As after a remount of the file system: the commit detects it.
        let disk = SimFs::new(seed);
        let mut server = TestServer::simulated_on(disk, "/", &writable(), seed);
        server.disk().set_keeps_attributes(false);
        assert_eq!(
            server
                .request("PUT /a\nContent-Encoding: gzip", b"x")
                .status,
            415
        );
        assert_eq!((server.content("a"), server.staged()), (None, 0));
    }
}

#[test]
fn types_come_from_the_options() {
    let options = FilesOptions {
        types: Types::new([("ts", "text/x-typescript")]).unwrap(),
        ..FilesOptions::default()
    };
    on_all_backends(&options, |server| {
        for (name, content_type) in [
            ("a.ts", "text/x-typescript"),
            ("a.m3u8", "application/vnd.apple.mpegurl"),
            ("a.mjs", "text/javascript; charset=utf-8"),
        ] {
            server.add(name, b"x");
            let reply = server.get(&format!("/{name}"));
            assert_eq!(reply.field("content-type"), Some(content_type));
        }
    });
}

/// A digest computed by another program, in Base64.
fn digest(program: &str, content: &[u8]) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let script = format!("{program} -binary | openssl base64 -A");
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(content).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn bodies_with_wrong_digests_are_not_published() {
    // In memory, in a file, and in several buffers.
    let bodies = [pattern(3), pattern(20_000), pattern(600_000)];
    let digests = bodies.each_ref().map(|content| {
        let of = |name: &str| digest(&format!("openssl dgst -{name}"), content);
        let (md5, sha_256, sha_512) = (of("md5"), of("sha256"), of("sha512"));
        [
            format!("Content-MD5: {md5}"),
            format!("Content-Digest: sha-256=:{sha_256}:"),
            format!("Repr-Digest: crc=:AA==:, sha-512=:{sha_512}:"),
        ]
    });
    assert!(digests[0][0].len() > 20, "{digests:?}");
    on_all_backends(&writable(), |server| {
        let mut number = 0;
        for (content, lines) in bodies.iter().zip(&digests) {
            let all = lines.join("\n");
            // Each digest alone only for small bodies, to save time.
            let each = lines.iter().filter(|_| content.len() < 1000);
            for fields in each.chain([&all]) {
                for framing in ["", "\nTransfer-Encoding: chunked"] {
                    number += 1;
                    let what = format!("{}: {} {fields}{framing}", server.name, content.len());
                    let put = format!("PUT /folder/{number}\n{fields}{framing}");
                    let mut wrong = content.clone();
                    wrong[content.len() / 2] ^= 1;
                    let body = |content: &[u8]| match framing {
                        "" => content.to_vec(),
                        _ => chunked(content),
                    };
                    let reply = server.request(&put, &body(&wrong));
                    assert_eq!(reply.status, 400, "{what}");
                    assert!(reply.text().contains("digest"), "{what}");
                    let key = format!("folder/{number}");
                    assert_eq!(server.content(&key), None, "{what}");
                    wait_until(server, |server| server.staged() == 0);
                    assert_eq!(server.request(&put, &body(content)).status, 201, "{what}");
                    assert!(server.content(&key).as_ref() == Some(content), "{what}");
                    // The old object stays.
                    assert_eq!(server.request(&put, &body(&wrong)).status, 400, "{what}");
                    assert!(server.content(&key).as_ref() == Some(content), "{what}");
                }
            }
        }
    });
}

fn chunked(content: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for chunk in content.chunks(70_000) {
        body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        body.extend_from_slice(chunk);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"0\r\n\r\n");
    body
}
