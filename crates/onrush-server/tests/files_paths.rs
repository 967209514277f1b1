//! Paths that want out, redirects that want away, and folders mounted beneath a path.

mod common;

use common::*;
use onrush_server::FilesOptions;

/// Every way out that is known: none may give anything but 404 or 400, none a redirect.
const ATTACKS: [&str; 34] = [
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
    "//etc/passwd",
    "///etc/passwd",
    "/%2fetc/passwd",
    "/%2f%2fetc/passwd",
    "/a//b",
    "/a/./b",
    "/a/.",
    "/./a",
    "/a/..",
    "/a/b%00",
    "/a/b%00.txt",
    "/%00",
    "/%",
    "/%2",
    "/%g0",
    "/a/b/c",
    "/proc/self/environ",
    "/etc/passwd",
    "//a",
];

#[test]
fn no_path_leads_out() {
    let options = FilesOptions {
        hidden: true, // Names that begin with dots are to be refused for what they are.
        ..writable()
    };
    everywhere(&options, |host| {
        host.add("a/b", b"inside");
        for path in ATTACKS {
            for method in ["GET", "HEAD", "DELETE"] {
                let reply = host.ask(&format!("{method} {path}"), b"");
                let refused = matches!(reply.status, 400 | 404);
                assert!(refused, "{}: {method} {path}: {}", host.name, reply.status);
                let text = String::from_utf8_lossy(&reply.body).into_owned();
                assert!(
                    !text.contains("passwd") && !text.contains("inside"),
                    "{text}"
                );
            }
            for name in ["after", "x"] {
                let reply = host.get(&format!("{path}/?{name}=1"));
                assert!(matches!(reply.status, 400 | 404), "{path}/");
            }
        }
        // Writing: what can be a name may become one, but beneath the folder.
        for path in ATTACKS
            .iter()
            .filter(|path| path.contains("..") || path.contains("//"))
        {
            let status = host.put(path, b"x").status;
            let inside = path.contains('\\') || path.contains("%5c");
            let made = matches!(status, 201 | 204);
            assert!(
                if inside { made } else { status == 400 },
                "{path}: {status}"
            );
        }
        assert_eq!(host.get("/a/b").body, b"inside");
        if let Some(path) = host.path() {
            assert!(path.join("..\\..\\etc\\passwd").is_file());
        }
    });
}

#[test]
fn the_escapes_of_a_name_do_not_matter() {
    everywhere(&FilesOptions::default(), |host| {
        host.add("a b/ü%41.txt", b"x");
        for path in ["/a%20b/%C3%BC%2541.txt", "/%61%20b/%c3%bc%2541%2etxt"] {
            assert_eq!(host.get(path).body, b"x", "{path}");
        }
        assert_eq!(host.get("/a%20b/%C3%BC%41.txt").status, 404);
        assert_eq!(host.get("/a+b/%C3%BC%2541.txt").status, 404);
    });
}

#[test]
fn redirects_stay_here() {
    everywhere(&FilesOptions::default(), |host| {
        for folder in ["a", "a/b", "evil.com", "\\evil.com", "a/x:y", "ü <\">"] {
            host.add_folder(folder);
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
                let reply = host.ask(&format!("{method} {path}"), b"");
                assert_eq!(reply.status, 301, "{}: {path}", host.name);
                assert_eq!(reply.field("location"), Some(location));
            }
        }
        for path in [
            "//evil.com",
            "//evil.com/",
            "/\\/evil.com",
            "//a",
            "///a/b",
            "/%2fa",
        ] {
            let reply = host.get(path);
            assert!(
                matches!(reply.status, 400 | 404),
                "{path}: {}",
                reply.status
            );
            assert_eq!(reply.field("location"), None);
        }
        assert_eq!(host.get("/%0d%0aSet-Cookie:x").status, 404);
    });
}

#[test]
fn beneath_a_path_of_another_server() {
    everywhere_at("/some/files/", &writable(), |host| {
        let made = host.put("/some/files/x%20y/z", b"content");
        assert_eq!(made.status, 201, "{}", host.name);
        assert_eq!(made.field("location"), Some("/some/files/x%20y/z"));
        assert_eq!(host.content("x y/z").as_deref(), Some(&b"content"[..]));
        assert_eq!(host.get("/some/files/x%20y/z").body, b"content");
        let redirect = host.get("/some/files/x%20y");
        assert_eq!(redirect.field("location"), Some("/some/files/x%20y/"));
        let listing = host.get("/some/files/?format=json").json();
        assert_eq!(listing["entries"][0]["href"], "/some/files/x%20y/");
        let outside = [
            "/x%20y/z",
            "/some/x",
            "/some/files/../files/x%20y/z",
            "/some/files",
        ];
        for path in outside {
            assert_eq!(host.get(path).status, 404, "{path}");
        }
        assert_eq!(host.delete("/some/files/x%20y/z").status, 204);
        assert_eq!(host.delete("/some/files/x%20y/").status, 204);
    });
}

#[test]
fn without_a_parameter_the_whole_path_counts() {
    use onrush::{Limits, sim::Simulation};
    let host = Host::simulated("/", &FilesOptions::default(), 1);
    host.add("a/b", b"x");
    host.add("x/y", b"x");
    let mut sim = Simulation::new(1, &host.files, Limits::default());
    for (target, status) in [
        ("GET /a/b", "200"),
        ("GET /x", "301"),
        ("GET //x", "404"),
        ("GET http://test/a/b", "200"),
        ("OPTIONS *", "204"),
    ] {
        let client = sim.connect();
        let request = format!("{target} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        let mut rest = request.as_bytes();
        while !rest.is_empty() {
            rest = &rest[client.send(rest).unwrap()..];
            sim.run();
        }
        let mut response = String::new();
        while !client.at_end() {
            sim.run();
            response.push_str(std::str::from_utf8(&client.receive().unwrap_or_default()).unwrap());
        }
        assert_eq!(&response[9..12], status, "{target}: {response}");
    }
}
