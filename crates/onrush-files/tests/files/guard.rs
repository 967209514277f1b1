//! Requests that pages of other sites make a browser send are refused, on both drivers and in the
//! simulator: foreign names that resolve to this server (DNS rebinding), and cross-origin writes.

use crate::common::*;

/// Sends an unchanged head and `body` on a new connection.
fn raw(server: &mut TestServer, head: &str, body: &str) -> Reply {
    let mut connection = server.connect();
    let length = body.len();
    let request = format!("{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
    server.send(&mut connection, request.as_bytes());
    let response = server.receive(&mut connection);
    Reply::parse(&response, head.starts_with("HEAD "))
}

#[test]
fn foreign_host_names_are_refused() {
    let table = [
        ("localhost", true),
        ("LocalHost:8080", true),
        ("localhost.", true),
        ("localhost.:80", true),
        ("127.0.0.1", true),
        ("127.0.0.1:1", true),
        ("127.1.2.3:65535", true),
        ("[::1]", true),
        ("[::1]:8080", true),
        ("TEST:99", true),
        ("evil.example", false),
        ("EVIL.example:8080", false),
        ("evil.example.", false),
        ("localhost.evil.example", false),
        ("127.0.0.1.evil.example:80", false),
        ("192.0.2.1", false),
        ("[2001:db8::1]:8080", false),
        ("%6c%6f%63alhost", false),
        ("127.1", false),
    ];
    on_all_backends(&writable(), |server| {
        server.add("a", b"secret");
        for (name, accepted) in table {
            for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "FROB"] {
                let head = format!(
                    "{method} /a-{method} HTTP/1.1\r\nHost: {name}\r\nOrigin: http://{name}\r\n"
                );
                let reply = raw(server, &head, "x");
                let refused = reply.status == 421;
                assert_eq!(
                    refused, !accepted,
                    "{}: {method} {name}: {reply:?}",
                    server.name
                );
            }
            let reply = raw(server, &format!("GET /a HTTP/1.1\r\nHost: {name}\r\n"), "");
            assert_eq!(reply.body == b"secret", accepted, "{}: {name}", server.name);
            assert_eq!(server.content("a-PUT").is_some(), accepted, "{name}");
            let _ = server.root().unlink(b"a-PUT");
        }
        // The engine refuses invalid hosts.
        for name in ["", "u@localhost", "localhost:x", "::1", "[::1", "a b"] {
            let reply = raw(server, &format!("GET /a HTTP/1.1\r\nHost: {name}\r\n"), "");
            assert_eq!(reply.status, 400, "{name:?}");
        }
        // Every browser sends Host, and HTTP/2 has no requests without it.
        let without = if over_http2() { 400 } else { 200 };
        assert_eq!(raw(server, "GET /a HTTP/1.0\r\n", "").status, without);
        // The authority of the target wins (RFC 9112 §3.2.2).
        let absolute = "GET http://evil.example/a HTTP/1.1\r\nHost: localhost\r\n";
        assert_eq!(raw(server, absolute, "").status, 421);
    });
}

#[test]
fn pages_of_other_sites_cannot_write() {
    let table = [
        ("", true),
        ("Origin: http://test\r\n", true),
        ("Origin: http://test:80\r\n", true),
        (
            "Origin: http://test\r\nSec-Fetch-Site: same-origin\r\n",
            true,
        ),
        ("Sec-Fetch-Site: same-origin\r\n", true),
        ("Sec-Fetch-Site: none\r\n", true),
        ("Origin: http://evil.example\r\n", false),
        ("Origin: http://test:8080\r\n", false),
        ("Origin: http://localhost\r\n", false),
        ("Origin: https://test\r\n", true),
        ("Origin: https://test:80\r\n", false),
        ("Origin: null\r\n", false),
        ("Sec-Fetch-Site: cross-site\r\n", false),
        ("Sec-Fetch-Site: same-site\r\n", false),
        (
            "Origin: http://test\r\nSec-Fetch-Site: cross-site\r\n",
            false,
        ),
    ];
    on_all_backends(&writable(), |server| {
        for (number, (lines, allowed)) in table.into_iter().enumerate() {
            let path = format!("object-{number}");
            let at = format!("{}: {lines:?}", server.name);
            let head = format!("PUT /{path} HTTP/1.1\r\nHost: test\r\n{lines}");
            let put = raw(server, &head, "content");
            assert_eq!(put.status, if allowed { 201 } else { 403 }, "{at}");
            assert_eq!(server.content(&path).is_some(), allowed, "{at}");
            if !allowed {
                assert!(put.text().contains("cross-origin"), "{at}: {}", put.text());
            }
            server.add(&path, b"content");
            let head = format!("DELETE /{path} HTTP/1.1\r\nHost: test\r\n{lines}");
            assert_eq!(
                raw(server, &head, "").status,
                if allowed { 204 } else { 403 },
                "{at}"
            );
            assert_eq!(server.content(&path).is_none(), allowed, "{at}");
            server.add(&path, b"content");
            // Reads are not refused here: the browser hides the response from the page.
            for method in ["GET", "HEAD", "OPTIONS"] {
                let head = format!("{method} /{path} HTTP/1.1\r\nHost: test\r\n{lines}");
                let status = raw(server, &head, "").status;
                assert_eq!(status, if method == "OPTIONS" { 204 } else { 200 }, "{at}");
            }
        }
        // Refused before the body: no 100 and no staged file.
        let mut connection = server.connect();
        server.send(
            &mut connection,
            b"PUT /big HTTP/1.1\r\nHost: test\r\nOrigin: http://evil.example\r\n\
              Expect: 100-continue\r\nContent-Length: 1000000\r\n\r\n",
        );
        let response = server.receive(&mut connection);
        assert!(
            response.starts_with(b"HTTP/1.1 403 "),
            "{}",
            response.escape_ascii()
        );
        assert_eq!(server.staged(), 0);
    });
}
