//! `POST` of forms with files, on both drivers and in the simulator, whole and in pieces.

use crate::common::{Reply, TestServer, on_all_backends, pattern, writable};
use onrush_files::{FilesOptions, UploadLimits};

const TYPE: &str = "Content-Type: multipart/form-data; boundary=\"x y\"";

/// A form with these files: name, fields, content.
fn form(files: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let mut body = b"preamble\r\n".to_vec();
    for (name, fields, content) in files {
        let head = format!(
            "--x y\r\nContent-Disposition: form-data; name=\"f\"; filename=\"{name}\"\r\n\
             {fields}\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--x y--\r\nepilogue");
    body
}

fn post(server: &mut TestServer, path: &str, body: &[u8]) -> Reply {
    server.request(&format!("POST {path}\n{TYPE}"), body)
}

#[test]
fn each_file_becomes_an_object() {
    on_all_backends(&writable(), |server| {
        server.add_folder("in");
        let large = pattern(300_000);
        // It looks like the boundary.
        let tricky = b"\r\n--x\r\n--x \r\n\r\n--";
        let body = form(&[
            ("a.txt", "", b"text"),
            ("empty", "Content-Type: application/octet-stream\r\n", b""),
            ("large", "Content-Type: text/x-test\r\n", &large),
            ("C:\\dir\\b c.txt", "", tricky),
            ("", "", b""),
        ]);
        let reply = post(server, "/in/", &body);
        assert_eq!(
            (reply.status, reply.text()),
            (
                201,
                "201 /in/a.txt\n201 /in/empty\n201 /in/large\n201 /in/b%20c.txt\n"
            )
        );
        assert_eq!(server.get("/in/a.txt").text(), "text");
        assert_eq!(server.get("/in/empty").body, b"");
        let got = server.get("/in/large");
        assert!(got.body == large && got.field("content-type") == Some("text/x-test"));
        assert_eq!(server.get("/in/b%20c.txt").body, tricky);
        let type_of_name = server.get("/in/a.txt");
        assert_eq!(
            type_of_name.field("content-type"),
            Some("text/plain; charset=utf-8")
        );
        assert_eq!(server.staged(), 0);
    });
}

#[test]
fn a_refused_file_does_not_affect_the_others() {
    on_all_backends(&writable(), |server| {
        server.put("/old", b"old");
        let body = form(&[
            ("old", "", b"new"),
            (".hidden", "", b"x"),
            (&"n".repeat(300), "", b"x"),
            ("fine", "", b"y"),
        ]);
        let reply = post(server, "/", &body);
        assert_eq!(reply.status, 409, "that of the first one");
        let statuses: Vec<&str> = reply.text().lines().map(|line| &line[..3]).collect();
        assert_eq!(statuses, ["409", "403", "400", "201"]);
        assert_eq!(server.get("/old").text(), "old");
        assert_eq!(server.get("/fine").text(), "y");
    });
}

#[test]
fn a_browser_is_sent_back_to_the_folder() {
    on_all_backends(&writable(), |server| {
        server.add_folder("in");
        let body = form(&[("a", "", b"1")]);
        let reply = server.request(&format!("POST /in/\nAccept: text/html\n{TYPE}"), &body);
        assert_eq!((reply.status, reply.field("location")), (303, Some("/in/")));
        // uv names HTML last, and takes a redirection for a failure.
        let accept = "application/json;q=0.9, text/plain;q=0.8, text/html;q=0.7";
        let body = form(&[("c", "", b"3")]);
        let reply = server.request(&format!("POST /in/\nAccept: {accept}\n{TYPE}"), &body);
        assert_eq!((reply.status, reply.text()), (201, "201 /in/c\n"));
        let foreign = format!("POST /in/\nOrigin: http://evil.example\n{TYPE}");
        assert_eq!(
            server.request(&foreign, &form(&[("b", "", b"1")])).status,
            403
        );
        assert_eq!(server.get("/in/b").status, 404);
    });
}

#[test]
fn malformed_and_incomplete_forms_leave_nothing() {
    on_all_backends(&writable(), |server| {
        let whole = form(&[("a", "", &pattern(50_000))]);
        for body in [
            &whole[..whole.len() - 20],
            &whole[..40],
            b"--x y\r\nno colon\r\n\r\n\r\n--x y--",
            b"no boundary at all",
            b"",
        ] {
            assert_eq!(post(server, "/", body).status, 400);
        }
        let endless = [&b"--x y\r\n"[..], &b"X: y\r\n".repeat(3_000)].concat();
        assert_eq!(post(server, "/", &endless).status, 400);
        assert_eq!(server.get("/a").status, 404);
        assert_eq!(server.staged(), 0);
        for (path, status) in [("/none/", 409), ("/a", 409), ("/.onrush/", 403)] {
            assert_eq!(post(server, path, &whole).status, status, "{path}");
        }
        let other = server.request("POST /\nContent-Type: text/plain", &whole);
        assert_eq!(other.status, 415);
        assert!(other.text().contains("use PUT for one file"));
    });
    on_all_backends(&FilesOptions::default(), |server| {
        assert_eq!(post(server, "/", &form(&[("a", "", b"1")])).status, 405);
    });
}

/// The parts of a form: each has fields and content.
fn parts(parts: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (fields, content) in parts {
        body.extend_from_slice(format!("--x y\r\n{fields}\r\n\r\n{content}\r\n").as_bytes());
    }
    body.extend_from_slice(b"--x y--\r\n");
    body
}

/// Sends a form in two pieces.
fn post_in_two(server: &mut TestServer, path: &str, body: &[u8], at: usize) -> Reply {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\n{TYPE}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let mut connection = server.connect();
    server.send(&mut connection, &[head.as_bytes(), &body[..at]].concat());
    server.send(&mut connection, &body[at..]);
    Reply::parse(&server.receive(&mut connection), false)
}

#[test]
fn names_in_each_form_whole_and_split_at_each_byte() {
    let body = parts(&[
        (
            "Content-Disposition: form-data; name=f; filename=\"a\\\"b.txt\"",
            "1",
        ),
        (
            "Content-Disposition: form-data; name=f; filename*=UTF-8''%e2%82%ac",
            "22",
        ),
        (
            "Content-Disposition: form-data; name=f; filename=\"=?UTF-8?Q?=C3=BC_x?=\"",
            "\r\n--x \r",
        ),
        ("Content-Disposition: form-data; name=go", "Upload"),
        ("Content-Disposition: form-data; name=f; filename=\"\"", ""),
    ]);
    on_all_backends(&writable(), |server| {
        for at in 0..=body.len() {
            server.add_folder(&at.to_string());
            let reply = post_in_two(server, &format!("/{at}/"), &body, at);
            let names = ["a%22b.txt", "%E2%82%AC", "%C3%BC%20x"];
            let lines = names.map(|name| format!("201 /{at}/{name}\n"));
            assert_eq!((reply.status, reply.text()), (201, &*lines.concat()));
            if at % 16 > 0 {
                continue;
            }
            let contents = names.map(|name| server.get(&format!("/{at}/{name}")).body);
            assert_eq!(contents, [&b"1"[..], b"22", b"\r\n--x \r"], "{at}");
        }
    });
}

#[test]
fn content_without_a_usable_name_is_refused() {
    on_all_backends(&writable(), |server| {
        let at = |parameters: &str| format!("Content-Disposition: form-data; name=f{parameters}");
        for (parameters, shown) in [
            ("; filename=\"..\"", ".."),
            ("; filename=\"a/\"", "a/"),
            ("; filename=\"\"", ""),
            ("; filename=\"=?x-none?B?YQ==?=\"", "=?x-none?B?YQ==?="),
            ("; filename*=x''a", "x''a"),
            ("\r\nContent-Type: image/png", ""),
        ] {
            let body = parts(&[(&at(parameters), "x")]);
            let reply = post(server, "/", &body);
            assert_eq!(reply.status, 400, "{parameters}");
            let mut encoded = shown.replace('=', "%3D").replace('?', "%3F");
            encoded = encoded.replace('\'', "%27");
            let (plain, sentence) = (shown, "the file has no name that can be stored");
            let lines = [plain, &encoded].map(|name| format!("400 {name} {sentence}\n"));
            let text = reply.text().to_owned();
            assert!(lines.contains(&text), "{text:?} {lines:?}");
        }
        // Nothing is stored, so this is no success.
        for body in [
            parts(&[]),
            parts(&[(&at(""), "text")]),
            parts(&[(&at("; filename=\"\""), "")]),
        ] {
            let reply = post(server, "/", &body);
            assert_eq!(
                (reply.status, reply.text()),
                (400, "the form has no file\n")
            );
            let page = server.request(&format!("POST /\nAccept: text/html\n{TYPE}"), &body);
            assert_eq!(page.status, 400);
        }
        // A name that cannot be read ends the form; what follows could be part of the name.
        let body = parts(&[(&at("; filename=\"a\\\""), "x")]);
        let reply = post(server, "/", &body);
        assert_eq!(
            (reply.status, reply.text()),
            (400, "the form is malformed\n")
        );
        let root = server.request("GET /\nAccept: application/json", b"");
        assert!(root.text().contains("\"entries\":[]"), "{}", root.text());
        assert_eq!(server.staged(), 0);
    });
}

/// What is not decoded or evaluated is not stored with 201.
#[test]
fn codings_and_preconditions_of_a_form_are_not_ignored() {
    on_all_backends(&writable(), |server| {
        let coded = "Content-Transfer-Encoding: base64\r\n";
        let plain = "Content-Transfer-Encoding: binary\r\n";
        let reply = post(
            server,
            "/",
            &form(&[("a", coded, b"YQ=="), ("b", plain, b"YQ==")]),
        );
        let text = "415 a a form is not decoded: send it without a coding\n201 /b\n";
        assert_eq!((reply.status, reply.text()), (415, text));
        assert_eq!(
            (server.get("/a").status, server.get("/b").text()),
            (404, "YQ==")
        );
        for (field, status) in [
            ("Content-Encoding: gzip", 415),
            ("If-Match: \"x\"", 412),
            ("If-None-Match: *", 412),
            ("If-Match: *", 201),
            ("If-None-Match: \"x\"", 201),
            ("Content-Encoding: identity", 201),
        ] {
            let name = format!("n{}", field.len());
            let request = format!("POST /\n{TYPE}\n{field}");
            let reply = server.request(&request, &form(&[(&name, "", b"content")]));
            assert_eq!(reply.status, status, "{field}");
            let is_stored = server.get(&format!("/{name}")).status == 200;
            assert_eq!(is_stored, status == 201, "{field}");
        }
    });
}

#[test]
fn an_object_of_a_form_has_the_size_that_objects_may_have() {
    let upload_limits = UploadLimits {
        object_bytes_max: 200_000,
        ..UploadLimits::default()
    };
    let options = FilesOptions {
        upload_limits,
        ..writable()
    };
    on_all_backends(&options, |server| {
        let fits = pattern(200_000);
        let large = pattern(200_001);
        let body = form(&[("large", "", &large), ("fits", "", &fits), ("b", "", b"2")]);
        let reply = post(server, "/", &body);
        assert_eq!(reply.status, 413);
        assert_eq!(
            reply.text(),
            "413 large the object is larger than 200000 bytes\n201 /fits\n201 /b\n"
        );
        assert_eq!(server.get("/large").status, 404);
        assert_eq!(server.get("/fits").body, fits);
        assert_eq!(server.staged(), 0);
    });
}
