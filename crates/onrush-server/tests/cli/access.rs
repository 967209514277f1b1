//! Access control of the real program, on both drivers: the rights of each user, for every method
//! and every spelling of a path.

use crate::program::users::{UsersFile, login, objects, request, start, users};
use crate::program::{Server, drivers, onrush};
use std::io::{Read, Write};

#[test]
fn each_user_has_its_rights() {
    let (folder, file) = (objects(), users());
    for driver in drivers() {
        let server = start(&folder, &file, driver, &[]);
        for (user, method, path, expected) in [
            ("", "GET", "/pub/open.txt", 200),
            ("", "HEAD", "/pub/open.txt", 200),
            ("", "GET", "/pub/missing", 404),
            ("", "GET", "/pub/", 401),
            ("", "GET", "/", 401),
            ("", "GET", "/secret/key.txt", 401),
            ("", "GET", "/secret/missing", 401),
            ("", "PUT", "/pub/new", 401),
            ("", "DELETE", "/pub/open.txt", 401),
            ("", "OPTIONS", "/secret/key.txt", 204),
            ("ann", "GET", "/", 200),
            ("ann", "GET", "/pub/", 200),
            ("ann", "GET", "/ann/notes.txt", 200),
            ("ann", "GET", "/secret/key.txt", 403),
            ("ann", "GET", "/secret/missing", 403),
            ("ann", "GET", "/secret/", 403),
            ("ann", "GET", "/secret", 403),
            ("ann", "PUT", "/secret/key.txt", 403),
            ("ann", "PUT", "/new", 403),
            ("ann", "PUT", "/ann/new", 201),
            ("ann", "PUT", "/ann/new", 204),
            ("ann", "DELETE", "/ann/new", 204),
            ("ann", "DELETE", "/pub/open.txt", 403),
            ("drop", "PUT", "/in/new", 201),
            ("drop", "PUT", "/in/new", 403),
            ("drop", "GET", "/in/new", 403),
            ("drop", "GET", "/in/", 403),
            ("drop", "DELETE", "/in/new", 403),
            ("drop", "PUT", "/new", 403),
            ("bob", "GET", "/in/new", 200),
            ("bob", "PUT", "/in/new", 204),
            ("bob", "DELETE", "/in/new", 204),
            ("bob", "FROB", "/in/new", 405),
            ("ann", "FROB", "/in/new", 403),
        ] {
            let (status, response) = request(&server, method, path, &login(user));
            assert_eq!(
                status, expected,
                "{driver}: {user} {method} {path}: {response}"
            );
            let challenges = response.matches("\r\nWWW-Authenticate: ").count();
            assert_eq!(challenges, if status == 401 { 2 } else { 0 }, "{response}");
            // Some clients take only the first one.
            let first = response.split_once("\r\nWWW-Authenticate: ");
            assert!(first.is_none_or(|(_, rest)| rest.starts_with("Basic ")));
        }
        // An object and a missing one cannot be distinguished without rights.
        for user in ["", "ann"] {
            for method in ["GET", "HEAD", "DELETE", "PUT"] {
                let body = |path| {
                    let (_, response) = request(&server, method, path, &login(user));
                    let is_date = |line: &&str| !line.starts_with("Date: ");
                    response
                        .lines()
                        .filter(is_date)
                        .map(str::to_owned)
                        .collect::<Vec<_>>()
                };
                let existing = body("/secret/key.txt");
                assert_eq!(existing, body("/secret/missing"), "{user} {method}");
            }
        }
    }
}

#[test]
fn no_method_and_no_spelling_bypasses_the_rules() {
    const METHODS: &[&str] = &[
        "GET",
        "HEAD",
        "PUT",
        "DELETE",
        "POST",
        "PATCH",
        "MKCOL",
        "PROPFIND",
        "PROPPATCH",
        "COPY",
        "MOVE",
        "LOCK",
        "UNLOCK",
        "TRACE",
        "SEARCH",
        "get",
        "Get",
        "OPTIONS",
        "QUERY",
    ];
    const PATHS: &[&str] = &[
        "/secret/key.txt",
        "/pub/../secret/key.txt",
        "/pub/%2e%2e/secret/key.txt",
        "/pub/.%2E/secret/key.txt",
        "/pub/..//secret/key.txt",
        "/pub//../secret/key.txt",
        "//secret//key.txt",
        "///secret/key.txt",
        "/./secret/./key.txt",
        "/%73ecret/key.txt",
        "/secret/%6bey.txt",
        "/secret%2Fkey.txt",
        "/pub%2F..%2Fsecret%2Fkey.txt",
        "/pub/..%2fsecret/key.txt",
        "/pub/%252e%252e/secret/key.txt",
        "/pub/..%00/secret/key.txt",
        "/pub\\..\\secret\\key.txt",
        "/secret/key.txt/",
        "/secret/key.txt/.",
        "/secret/",
        "/secret",
        "/secret/.",
        "/pubx/../secret/key.txt",
        "/secret/key.txt?limit=1",
        "/secret/?format=json",
        "/secret/?onrush-user=bob",
        "/?format=json",
        "/",
        "//",
        "/pub/..",
        "http://localhost/secret/key.txt",
        "http://localhost/pub/%2e%2e/secret/key.txt",
    ];
    let (folder, file) = (objects(), users());
    for site in ["false", "true"] {
        for driver in drivers() {
            let (webdav, site) = (format!("--webdav={site}"), format!("--site={site}"));
            let flags = [&site[..], &webdav, "--admin", "same"];
            let server = start(&folder, &file, driver, &flags);
            // Neither has rights at /secret; the first may read /pub, the second create in /in.
            for user in ["", "drop"] {
                for method in METHODS {
                    for path in PATHS {
                        let at = format!("{driver} {site}: {user} {method} {path}");
                        let (status, response) = request(&server, method, path, &login(user));
                        assert!(!response.contains("classified"), "{at}: {response}");
                        assert!(!response.contains("key.txt\""), "{at}: {response}");
                        let is_refused = matches!(status, 400 | 401 | 403);
                        // `pub\..\secret\key.txt` and others are names in /pub, which is readable.
                        let is_off = *method == "PROPFIND" && status == 405;
                        let is_in_pub = user.is_empty() && (status == 404 || is_off);
                        let is_options = *method == "OPTIONS" && matches!(status, 200 | 204);
                        assert!(is_refused || is_options || is_in_pub, "{at}: {response}");
                    }
                }
            }
        }
    }
    let content = std::fs::read(folder.path().join("secret/key.txt")).expect("it exists");
    assert_eq!(content, b"classified");
    let names = std::fs::read_dir(folder.path().join("secret"))
        .expect("a folder")
        .count();
    assert_eq!(names, 1, "nothing was created");
}

/// npm asks for `/@scope%2fname`. The redirect does not say what exists, and the path that it
/// names has the rights of its prefix.
#[test]
fn a_redirect_of_a_scope_bypasses_no_rule() {
    let (folder, file) = (objects(), UsersFile::new());
    folder.file("@secret/key", "classified");
    folder.file("@open/name", "package");
    file.add("ann", &["/=read,list", "/@secret=none"]);
    file.write(&(file.text() + "\n[anonymous]\nrights = { '/@open' = ['read'] }\n"));
    for driver in drivers() {
        let server = start(&folder, &file, driver, &[]);
        let ask = |user: &str, path: &str| request(&server, "GET", path, &login(user));
        for (user, name, status) in [
            ("", "@open/name", 200),
            ("", "@secret/key", 401),
            ("", "@secret/none", 401),
            ("ann", "@open/name", 200),
            ("ann", "@secret/key", 403),
            ("ann", "@secret/none", 403),
            ("ann", "@open/none", 404),
        ] {
            let (redirect, response) = ask(user, &format!("/{}", name.replace('/', "%2f")));
            let location = format!("/{}", name.replace('@', "%40"));
            assert_eq!(redirect, 301, "{response}");
            assert!(response.contains(&format!("\r\nLocation: {location}\r\n")));
            assert_eq!(
                ask(user, &location).0,
                status,
                "{driver}: {user} {location}"
            );
        }
        for path in ["/secret%2fkey.txt", "/@open%2f..%2f@secret%2fkey"] {
            assert_eq!(ask("ann", path).0, 400, "{path}");
        }
        assert_eq!(
            request(&server, "PUT", "/@open%2fnew", &login("ann")).0,
            400
        );
    }
}

#[test]
fn a_refused_upload_is_not_received() {
    let (folder, file) = (objects(), users());
    for driver in drivers() {
        let server = start(&folder, &file, driver, &["--body-max", "1KiB"]);
        for fields in [String::new(), login("ann")] {
            let expected = if fields.is_empty() {
                "HTTP/1.1 401 "
            } else {
                "HTTP/1.1 403 "
            };
            // Before the size and the preconditions, and without 100.
            let head = format!(
                "PUT /new HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\
                 If-Match: \"x\"\r\n\
                 Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
            );
            let response = server.exchange(head.as_bytes());
            assert!(response.starts_with(expected), "{response}");
            // A client that does not wait gets the whole response as well.
            let mut stream = server.connect();
            let head = head.replace("Expect: 100-continue\r\n", "");
            stream.write_all(head.as_bytes()).expect("the server reads");
            let _ = stream.write_all(&[b'x'; 100_000]); // The server may close.
            let mut start = [0; 13];
            stream.read_exact(&mut start).expect("a response");
            assert_eq!(start, expected.as_bytes());
        }
        let large = "PUT /new HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
        let large = format!("{large}{}Content-Length: 1000000\r\n\r\n", login("bob"));
        assert!(
            server
                .exchange(large.as_bytes())
                .starts_with("HTTP/1.1 413 ")
        );
        let nothing_new = std::fs::read_dir(folder.path()).expect("a folder");
        assert!(
            nothing_new
                .flatten()
                .all(|entry| entry.file_name() != "new")
        );
    }
}

#[test]
fn one_flag_makes_reads_public_and_another_one_uploads() {
    let folder = objects();
    for driver in drivers() {
        let mut command = onrush();
        command
            .arg(folder.path())
            .args(["--port=0", "--public-read", "--driver", driver]);
        command.env("ONRUSH_AUTH", "ann:ann-password");
        let server = Server::run(command);
        let status =
            |server: &Server, method, path, fields: &str| request(server, method, path, fields).0;
        assert_eq!(status(&server, "GET", "/", ""), 200);
        assert_eq!(status(&server, "GET", "/secret/key.txt", ""), 200);
        assert_eq!(status(&server, "PUT", "/new", ""), 401);
        assert_eq!(status(&server, "PUT", "/new", &login("ann")), 201);
        assert_eq!(status(&server, "DELETE", "/new", &login("ann")), 204);
        let server = Server::start(folder.path(), &["--upload-only", "--driver", driver]);
        let name = format!("/in/{driver}");
        for (method, expected) in [
            ("PUT", 201),
            ("PUT", 403),
            ("GET", 403),
            ("HEAD", 403),
            ("DELETE", 403),
            ("OPTIONS", 204),
        ] {
            assert_eq!(status(&server, method, &name, ""), expected, "{method}");
        }
        assert_eq!(status(&server, "GET", "/in/", ""), 403);
    }
}

#[test]
fn the_list_of_a_site_needs_the_right_to_list() {
    let folder = objects();
    folder.file("index.html", "<p>home");
    let file = UsersFile::new();
    file.write(
        "[anonymous]\nrights = { '/' = ['read'], '/ann' = ['list'], '/in/index.html' = [], \
                '/in/own' = ['list'], '/in/own/index.html' = ['read'] }\n[users.ann]\n",
    );
    std::process::Command::new("chmod")
        .args(["600", file.path()])
        .status()
        .expect("chmod");
    folder.file("ann/index.html", "<p>secret");
    folder.file("in/index.html", "<p>secret");
    folder.file("in/own/index.html", "<p>own");
    for driver in drivers() {
        let server = start(&folder, &file, driver, &["--site", "--admin=same"]);
        let get = |path: &str| request(&server, "GET", path, "");
        assert!(get("/").1.ends_with("<p>home"));
        assert_eq!(get("/pub/").0, 401, "it has no index.html");
        let (status, listing) = get("/ann/");
        assert!(status == 200 && listing.contains("notes.txt") && !listing.contains("secret"));
        assert_eq!(get("/ann/notes.txt").0, 401);
        for path in ["/in/", "/in/./", "/in/index.html"] {
            assert_eq!(get(path).0, 401, "{path}: the index has a rule of its own");
        }
        assert!(get("/in/own/").1.ends_with("<p>own"));
        assert_eq!(get("/-/health").0, 200);
        assert_eq!(get("/-/ready").0, 200);
        assert_eq!(get("/-/metrics").0, 200, "it may read");
        assert_eq!(get("/-/dashboard").0, 200, "it may read");
    }
    file.write("[users.ann]\n");
    let server = start(&folder, &file, "auto", &["--admin=same"]);
    for (path, expected) in [
        ("/-/health", 200),
        ("/-/ready", 200),
        ("/-/metrics", 401),
        ("/-/dashboard", 401),
        ("/-/./metrics", 401),
        ("/%2d/metrics", 401),
        ("/-/health/../metrics", 401),
        ("/-/health?x", 200),
        ("/", 401),
    ] {
        assert_eq!(request(&server, "GET", path, "").0, expected, "{path}");
    }
    assert_eq!(request(&server, "PUT", "/-/health", "").0, 401);
}
