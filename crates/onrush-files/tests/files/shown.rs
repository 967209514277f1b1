//! Some names that begin with a dot are shown, and all others stay hidden, everywhere alike.

use crate::common::Json as _;
use crate::common::webdav::{paths, propfind, webdav};
use crate::common::*;
use onrush_files::FilesOptions;
use onrush_store::{NamePattern, ShownNames};
use std::fs;

fn show(patterns: &[&str]) -> FilesOptions {
    let parse = |text: &&str| NamePattern::parse(text).expect("a pattern");
    FilesOptions {
        hidden: false,
        show: ShownNames::new(patterns.iter().map(parse).collect()),
        ..webdav()
    }
}

fn names(server: &mut TestServer, path: &str) -> Vec<String> {
    let listing = server.get(&format!("{path}?format=json")).json();
    let entries = listing["entries"].as_array().expect("entries");
    let name = |entry: &serde_json::Value| entry["name"].as_str().expect("a name").to_owned();
    entries.iter().map(name).collect()
}

#[test]
fn names_that_match_are_served_and_no_others() {
    on_all_backends(&show(&[".z*", ".attrs"]), |server| {
        for name in ["a/.zarray", "a/.attrs", "a/0.0", ".zgroup/x"] {
            server.add(name, b"shown");
        }
        for name in ["a/.git/config", "a/.attrsx", ".zgroup/.env", ".top"] {
            server.add(name, b"secret");
        }
        for path in ["/a/.zarray", "/a/%2ezarray", "/a/.attrs", "/.zgroup/x"] {
            assert_eq!(server.get(path).text(), "shown", "{path}");
            assert_eq!(server.request(&format!("HEAD {path}"), b"").status, 200);
            assert_eq!(propfind(server, path, "0").status, 207, "{path}");
        }
        for path in [
            "/a/.git/config",
            "/a/.git/",
            "/a/.attrsx",
            "/.zgroup/.env",
            "/%2Etop",
            "/.onrush/x",
            "/.zgroup/.onrush-staging/x",
        ] {
            for method in ["GET", "HEAD", "PROPFIND"] {
                let reply = server.request(&format!("{method} {path}"), b"");
                assert_eq!(reply.status, 404, "{method} {path}");
            }
            let copy = format!("COPY /a/0.0\nDestination: {path}");
            for request in [format!("DELETE {path}"), format!("MKCOL {path}"), copy] {
                assert_eq!(server.request(&request, b"").status, 403, "{request}");
            }
            assert_eq!(server.put(path, b"").status, 403, "{path}");
        }
        assert_eq!(names(server, "/a/"), [".attrs", ".zarray", "0.0"]);
        assert_eq!(names(server, "/"), [".zgroup", "a"]);
        let page = server.request("GET /a/\nAccept: text/html", b"");
        assert!(page.text().contains(".zarray") && !page.text().contains(".git"));
        let found = propfind(server, "/a/", "1");
        assert_eq!(paths(&found), ["/a/", "/a/.attrs", "/a/.zarray", "/a/0.0"]);
        let archive = server.get("/?archive=tar").body;
        let has = |name: &[u8]| archive.windows(name.len()).any(|found| found == name);
        assert!(has(b"files/a/.zarray") && has(b"files/.zgroup/x") && !has(b"secret"));

        assert_eq!(server.put("/new/.zmetadata", b"x").status, 201);
        assert_eq!(server.delete("/new/.zmetadata").status, 204);
        let copied = server.request("COPY /a/\nDestination: /copy/", b"");
        assert_eq!(copied.status, 201);
        assert_eq!(server.get("/copy/.zarray").text(), "shown");
        assert_eq!(server.content("copy/.git/config"), None);
    });
}

/// Whatever the patterns are, the names of the store are not served.
#[test]
fn the_names_of_the_store_are_never_shown() {
    on_all_backends(&show(&[".*", ".onrush*"]), |server| {
        server.add(".zarray", b"x");
        assert_eq!(server.put("/.onrush/x", b"y").status, 403);
        for path in ["/.onrush/", "/.ONRUSH/staging/", "/.onrush-staging/"] {
            assert_eq!(server.get(path).status, 404, "{path}");
        }
        assert_eq!(names(server, "/"), [".zarray"]);
    });
}

#[test]
fn folders_with_shown_names_are_replaced_and_deleted_and_others_stay() {
    on_all_backends(&show(&[".z*"]), |server| {
        for name in ["new/.zarray", "old/.zarray", "old/.zgroup/0"] {
            server.add(name, b"old");
        }
        server.put("/new/.zarray", b"new");
        let moved = server.request("MOVE /new/\nDestination: /old/", b"");
        assert_eq!(moved.status, 204);
        assert_eq!(server.get("/old/.zarray").text(), "new");
        assert_eq!(server.get("/old/.zgroup/0").status, 404);

        server.add("kept/.zarray", b"x");
        server.add("kept/.git/config", b"kept");
        let moved = server.request("MOVE /old/\nDestination: /kept/", b"");
        assert_eq!(moved.status, 409);
        assert_eq!(server.get("/kept/.zarray").text(), "x");
        assert_eq!(server.delete("/kept/").status, 207);
        assert_eq!(server.get("/kept/.zarray").status, 404);
        assert!(server.content("kept/.git/config").is_some());
        assert_eq!(server.delete("/old/").status, 204);
    });
}

#[test]
fn changes_of_shown_names_are_reported() {
    for driver in drivers() {
        let mut server = TestServer::real("/", &show(&[".z*"]), driver);
        let mut connection = server.connect();
        let request = b"GET /?watch HTTP/1.1\r\nHost: test\r\n\r\n";
        server.send(&mut connection, request);
        let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|at| at == part);
        server.receive_until(&mut connection, |bytes| has(bytes, b"id: 0\n\n"));
        let dir = server.path().expect("a real folder").to_owned();
        for name in [".secret", ".zarray", "last"] {
            fs::write(dir.join(name), "x").expect("written");
        }
        let events = server.receive_until(&mut connection, |bytes| has(bytes, b"\"last\""));
        assert!(has(&events, b"\".zarray\"") && !has(&events, b".secret"));
    }
}
