//! Paths that try to leave the folder, redirects to other hosts, and folders mounted beneath a
//! path.

use crate::common::Json as _;
use crate::common::*;
use onrush_files::FilesOptions;

/// All known traversal attacks. Each must give 404 or 400, and never a redirect.
const ATTACKS: [&str; 29] = [
    "/..",
    "/../",
    "/../../etc/passwd",
    "/a/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/%2E%2E/etc/passwd",
    "/.%2e/etc/passwd",
    "/..%2f..%2fetc%2fpasswd",
    "/..%5c..%5cetc%5cpasswd",
    "/..\\..\\etc\\passwd",
    "/%252e%252e/etc/passwd",
    "/%c0%ae%c0%ae/etc/passwd",
    "/%c0%ae%c0%ae%c0%afetc/passwd",
    "/%e0%80%ae%e0%80%ae/etc/passwd",
    "/%u002e%u002e/etc/passwd",
    "/%2fetc/passwd",
    "/%2f%2fetc/passwd",
    "/a/b%00",
    "/a/b%00.txt",
    "/%00",
    "/%",
    "/%2",
    "/%g0",
    "/a/b/c",
    "/proc/self/environ",
    "/etc/passwd",
    "/./../etc/passwd",
    "//../../etc/passwd",
    "/a/b/../../../etc/passwd",
];

#[test]
fn no_path_leaves_the_folder() {
    let options = FilesOptions {
        hidden: true, // So that hiding dot names does not refuse the attacks.
        ..writable()
    };
    on_all_backends(&options, |server| {
        server.add("a/b", b"inside");
        for path in ATTACKS {
            for method in ["GET", "HEAD", "DELETE"] {
                let reply = server.request(&format!("{method} {path}"), b"");
                let refused = matches!(reply.status, 400 | 404);
                assert!(
                    refused,
                    "{}: {method} {path}: {}",
                    server.name, reply.status
                );
                let text = String::from_utf8_lossy(&reply.body).into_owned();
                assert!(
                    !text.contains("passwd") && !text.contains("inside"),
                    "{text}"
                );
            }
            for name in ["after", "x"] {
                let reply = server.get(&format!("{path}/?{name}=1"));
                assert!(matches!(reply.status, 400 | 404), "{path}/");
            }
        }
        // A write may create a valid name, but only beneath the folder.
        for path in ATTACKS.iter().filter(|path| path.contains("..")) {
            let status = server.put(path, b"x").status;
            let inside = path.contains('\\') || path.contains("%5c");
            let made = matches!(status, 201 | 204);
            assert!(
                if inside { made } else { status == 400 },
                "{path}: {status}"
            );
        }
        assert_eq!(server.get("/a/b").body, b"inside");
        if let Some(path) = server.path() {
            assert!(path.join("..\\..\\etc\\passwd").is_file());
        }
    });
}

#[test]
fn escaped_and_plain_names_are_equal() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("a b/ü%41.txt", b"x");
        for path in ["/a%20b/%C3%BC%2541.txt", "/%61%20b/%c3%bc%2541%2etxt"] {
            assert_eq!(server.get(path).body, b"x", "{path}");
        }
        assert_eq!(server.get("/a%20b/%C3%BC%41.txt").status, 404);
        assert_eq!(server.get("/a+b/%C3%BC%2541.txt").status, 404);
    });
}

#[test]
fn redirects_stay_on_this_host() {
    on_all_backends(&FilesOptions::default(), |server| {
        for folder in ["a", "a/b", "evil.com", "\\evil.com", "a/x:y", "ü <\">"] {
            server.add_folder(folder);
        }
        let table = [
            ("/a", "/a/"),
            ("/a/b", "/a/b/"),
            ("/a?x=1&y=%22", "/a/?x=1&y=%22"),
            ("/a?\"><script>", "/a/?%22%3E%3Cscript%3E"),
            ("/evil.com", "/evil.com/"),
            ("/\\evil.com", "/%5Cevil.com/"),
            ("/%5Cevil.com", "/%5Cevil.com/"),
            ("/a/x:y", "/a/x%3Ay/"),
            ("/%C3%BC%20%3C%22%3E", "/%C3%BC%20%3C%22%3E/"),
        ];
        for (path, location) in table {
            for method in ["GET", "HEAD"] {
                let reply = server.request(&format!("{method} {path}"), b"");
                assert_eq!(reply.status, 301, "{}: {path}", server.name);
                assert_eq!(reply.field("location"), Some(location));
            }
        }
        // A browser would interpret `//evil.com/` as another host.
        for (path, location) in [
            ("//evil.com", "/evil.com/"),
            ("///evil.com", "/evil.com/"),
            ("/.//evil.com", "/evil.com/"),
            ("/a/..//evil.com", "/evil.com/"),
            ("//a/./b", "/a/b/"),
            ("/x/%2E%2e/a?y=1", "/a/?y=1"),
        ] {
            let reply = server.get(path);
            assert_eq!(reply.field("location"), Some(location), "{path}");
            assert_eq!(reply.status, 301, "{path}");
        }
        for path in ["/\\/evil.com", "/%2fa", "/../evil.com"] {
            let reply = server.get(path);
            assert!(
                matches!(reply.status, 400 | 404),
                "{path}: {}",
                reply.status
            );
            assert_eq!(reply.field("location"), None);
        }
        assert_eq!(server.get("/%0d%0aSet-Cookie:x").status, 404);
    });
}

/// npm encodes the slash in the name of a package with a scope.
#[test]
fn an_encoded_slash_after_a_scope_is_redirected() {
    on_all_backends(&writable(), |server| {
        server.add("@scope/name", b"{}");
        for (path, location) in [
            ("/@scope%2fname", "/@scope/name"),
            ("/@scope%2Fname?x=1", "/@scope/name?x=1"),
            ("//@scope%2fname", "/@scope/name"),
            ("/@scope%2f%2e%2e/@scope%2fname/", "/@scope/name/"),
        ] {
            for method in ["GET", "HEAD"] {
                let reply = server.request(&format!("{method} {path}"), b"");
                let found = (reply.status, reply.field("location"));
                let location = location.replacen('@', "%40", 1);
                assert_eq!(found, (301, Some(&location[..])), "{path}");
            }
        }
        assert_eq!(server.get("/%40scope/name").body, b"{}");
        assert_eq!(server.get("/@scope%2f../../x").status, 400);
        assert_eq!(server.get("/@scope%2fname%2fx").status, 400);
        for method in ["PUT", "DELETE", "MOVE", "PROPFIND"] {
            let reply = server.request(&format!("{method} /@scope%2fname"), b"");
            assert!(reply.status >= 400, "{method}: {}", reply.status);
        }
        assert_eq!(server.get("/@scope/name").body, b"{}");
    });
}

#[test]
fn folder_can_be_mounted_beneath_a_path() {
    on_all_backends_at("/some/files/", &writable(), |server| {
        let made = server.put("/some/files/x%20y/z", b"content");
        assert_eq!(made.status, 201, "{}", server.name);
        assert_eq!(made.field("location"), Some("/some/files/x%20y/z"));
        assert_eq!(server.content("x y/z").as_deref(), Some(&b"content"[..]));
        assert_eq!(server.get("/some/files/x%20y/z").body, b"content");
        let redirect = server.get("/some/files/x%20y");
        assert_eq!(redirect.field("location"), Some("/some/files/x%20y/"));
        let listing = server.get("/some/files/?format=json").json();
        assert_eq!(listing["entries"][0]["href"], "/some/files/x%20y/");
        let outside = ["/x%20y/z", "/some/x", "/some/files"];
        for path in outside {
            assert_eq!(server.get(path).status, 404, "{path}");
        }
        assert_eq!(server.get("/some/files/./x%20y//z").body, b"content");
        let redirect = server.get("/some/files/./x%20y");
        assert_eq!(redirect.field("location"), Some("/some/files/x%20y/"));
        // Above the folder, even if the path leads back into it.
        assert_eq!(server.get("/some/files/../files/x%20y/z").status, 400);
        assert_eq!(server.delete("/some/files/x%20y/z").status, 204);
        assert_eq!(server.delete("/some/files/x%20y/").status, 204);
    });
}

#[test]
fn route_without_a_parameter_uses_the_whole_path() {
    use onrush::{Limits, sim::Simulation};
    let server = TestServer::simulated("/", &FilesOptions::default(), 1);
    server.add("a/b", b"x");
    server.add("x/y", b"x");
    let mut sim = Simulation::new(1, &server.files, Limits::default());
    for (target, status) in [
        ("GET /a/b", "200"),
        ("GET /x", "301"),
        ("GET //x", "301"),
        ("GET //x/./y", "200"),
        ("GET /../a/b", "400"),
        ("GET http://test/a/b", "200"),
        ("OPTIONS *", "204"),
    ] {
        let request = format!("{target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        let response = ask_simulated(&mut sim, &request);
        let response = String::from_utf8_lossy(&response);
        assert_eq!(&response[9..12], status, "{target}: {response}");
    }
}

/// Spellings of paths, and the names that they mean.
const SPELLINGS: [(&str, &str); 17] = [
    ("/a/b", "/a/b"),
    ("/./a/b", "/a/b"),
    ("/a/./b", "/a/b"),
    ("//a/b", "/a/b"),
    ("/a//b", "/a/b"),
    ("/a/x/../b", "/a/b"),
    ("/x/../a/b", "/a/b"),
    ("/a/c/../c/../b", "/a/b"),
    ("/a//../b", "/a/b"),
    ("/a/.", "/a/"),
    ("/a//", "/a/"),
    ("/a/b/..", "/a/"),
    ("/a/b/../", "/a/"),
    ("/.", "/"),
    ("/a/..", "/"),
    ("/..", ""),
    ("/a/../../a/b", ""),
];

#[test]
fn all_spellings_name_one_object_for_every_method() {
    on_all_backends(&writable(), |server| {
        for (path, named) in SPELLINGS {
            let encoded = path.replace('.', "%2e");
            let mixed = path.replace("..", ".%2E");
            for spelling in [path, &encoded, &mixed] {
                let what = format!("{}: {spelling}", server.name);
                server.add("a/b", b"content");
                let request_for = |server: &mut TestServer, method: &str| {
                    let body: &[u8] = if method == "PUT" { b"put" } else { b"" };
                    server.request(&format!("{method} {spelling}"), body)
                };
                let statuses = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE"];
                let replies = statuses.map(|method| request_for(server, method));
                let found = replies.each_ref().map(|reply| reply.status);
                let expected = match named {
                    "/a/b" => [200, 200, 204, 415, 204, 204],
                    "/a/" => [200, 200, 204, 415, 409, 409],
                    "/" => [200, 200, 204, 415, 409, 403],
                    _ => [400; 6],
                };
                assert_eq!(found, expected, "{what}");
                match named {
                    "/a/b" => {
                        assert_eq!(replies[0].body, b"content", "{what}");
                        assert_eq!(server.content("a/b"), None, "{what}: deleted");
                        let made = request_for(server, "PUT");
                        assert_eq!(made.field("location"), Some("/a/b"), "{what}");
                        assert_eq!(
                            server.content("a/b").as_deref(),
                            Some(&b"put"[..]),
                            "{what}"
                        );
                    }
                    "" => assert!(server.content("a/b").is_some(), "{what}"),
                    folder => {
                        let listing = server.get(&format!("{spelling}?format=json")).json();
                        assert_eq!(listing["path"], folder, "{what}");
                    }
                }
            }
        }
    });
}

#[test]
fn escaped_path_is_not_a_name_with_a_percent_sign() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("a b", b"with a space");
        server.add("a%20b", b"with a percent sign");
        server.add("%2e", b"no dot");
        for _ in 0..3 {
            assert_eq!(server.get("/a%2520b").body, b"with a percent sign");
            assert_eq!(server.get("/a%20b").body, b"with a space");
            assert_eq!(server.get("/%252e").body, b"no dot");
            assert_eq!(
                server.get("/%2e").field("content-type"),
                server.get("/").field("content-type")
            );
        }
    });
}
