//! What a web site serves at paths without an object, on both drivers and in the simulator.

use crate::common::*;
use onrush_files::FilesOptions;

fn site() -> FilesOptions {
    FilesOptions {
        site: true,
        ..writable()
    }
}

const BROWSER: &str = "Accept: text/html,application/xhtml+xml,*/*;q=0.8";

#[test]
fn a_page_is_found_without_its_extension() {
    on_all_backends(&site(), |server| {
        server.add("about.html", b"<p>about");
        server.add("docs.html", b"<p>docs");
        server.add("docs/index.html", b"<p>index");
        server.add("img/x.png", b"png");
        for _ in 0..2 {
            let page = server.get("/about");
            assert_eq!((page.status, &page.body[..]), (200, &b"<p>about"[..]));
            assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
            assert_eq!(page.etag(), server.get("/about.html").etag());
            assert_eq!(server.request("HEAD /about", b"").status, 200);
            let part = server.request("GET /about\nRange: bytes=0-2", b"");
            assert_eq!((part.status, &part.body[..]), (206, &b"<p>"[..]));
            // A page before the folder with its name.
            assert_eq!(server.get("/docs").body, b"<p>docs");
            assert_eq!(server.get("/docs/").body, b"<p>index");
            let folder = server.get("/img");
            assert_eq!(
                (folder.status, folder.field("location")),
                (301, Some("/img/"))
            );
            assert_eq!(server.get("/none").status, 404);
            assert_eq!(server.get("/about.html.html").status, 404);
        }
        // An object has its own name first.
        server.put("/about", b"object");
        assert_eq!(server.get("/about").body, b"object");
        assert_eq!(server.delete("/about").status, 204);
        assert_eq!(server.get("/about").body, b"<p>about");
        assert_eq!(server.delete("/about").status, 404, "only reads");
    });
    on_all_backends(&writable(), |server| {
        server.add("about.html", b"<p>about");
        assert_eq!(server.get("/about").status, 404, "without --site");
    });
}

#[test]
fn a_page_says_that_there_is_none() {
    on_all_backends(&site(), |server| {
        assert_eq!(server.get("/none").body, b"there is no such object\n");
        server.add("404.html", b"<p>nothing here");
        server.add("img/x.png", b"png");
        for path in ["/none", "/none/", "/a/b/c", "/.hidden", "/img/none"] {
            let reply = server.get(path);
            assert_eq!(
                (reply.status, &reply.body[..]),
                (404, &b"<p>nothing here"[..]),
                "{path}"
            );
            assert_eq!(
                reply.field("content-type"),
                Some("text/html; charset=utf-8")
            );
            let etag = reply.etag().to_owned();
            let known = format!("GET {path}\nIf-None-Match: {etag}\nRange: bytes=0-1");
            let again = server.request(&known, b"");
            assert_eq!((again.status, again.body.len()), (404, 15), "{path}");
            let head = server.request(&format!("HEAD {path}"), b"");
            assert_eq!(
                (head.status, head.field("content-length")),
                (404, Some("15"))
            );
        }
        let json = server.request("GET /none\nAccept: application/json", b"");
        let is_problem = json.field("content-type") == Some("application/problem+json");
        assert!(json.status == 404 && is_problem);
        assert_eq!(server.get("/404.html").status, 200);
        assert_eq!(server.get("/404").status, 200);
        assert_eq!(server.get("/%zz").status, 400);
    });
}

#[test]
fn navigation_in_a_site_of_one_page_shows_it() {
    let options = FilesOptions {
        spa: true,
        ..site()
    };
    on_all_backends(&options, |server| {
        server.add("index.html", b"<div id=app>");
        server.add("404.html", b"<p>nothing here");
        server.add("assets/app.js", b"app()");
        for (path, field, status) in [
            ("/users/7", BROWSER, 200),
            ("/users/", BROWSER, 200),
            ("/users/7", "Sec-Fetch-Mode: navigate", 200),
            ("/users/7", "Sec-Fetch-Mode: cors\nAccept: text/html", 404),
            ("/assets/old.js", "Sec-Fetch-Mode: no-cors", 404),
            ("/assets/old.js", "Accept: */*", 404),
            ("/data.json", "Accept: application/json", 404),
            ("/%zz", BROWSER, 400),
        ] {
            let reply = server.request(&format!("GET {path}\n{field}"), b"");
            assert_eq!(reply.status, status, "{path} {field}");
            assert_eq!(
                reply.body == b"<div id=app>",
                status == 200,
                "{path} {field}"
            );
            if reply.body.starts_with(b"<") {
                // A cache must not keep the page for others, nor for when there is an object.
                assert_eq!(
                    reply.field("vary"),
                    Some("Accept, Sec-Fetch-Mode"),
                    "{path}"
                );
                assert_eq!(reply.field("cache-control"), Some("no-cache"), "{path}");
            }
        }
        let script = server.request(&format!("GET /assets/app.js\n{BROWSER}"), b"");
        assert_eq!(script.body, b"app()");
        assert_eq!(script.field("vary"), None);
        let etag = server.get("/").etag().to_owned();
        let known = server.request(
            &format!("GET /users/7\n{BROWSER}\nIf-None-Match: {etag}"),
            b"",
        );
        assert_eq!(known.status, 304);
    });
}

#[test]
fn well_known_names_of_a_site_are_read_only() {
    on_all_backends(&site(), |server| {
        server.add(".well-known/security.txt", b"Contact: a@b.example");
        server.add(".well-known/.secret", b"x");
        server.add("a/.well-known/x", b"x");
        for _ in 0..2 {
            let reply = server.get("/.well-known/security.txt");
            assert_eq!((reply.status, reply.body.len()), (200, 20));
            assert_eq!(server.get("/.well-known/.secret").status, 404);
            assert_eq!(server.get("/a/.well-known/x").status, 404);
        }
        assert_eq!(server.put("/.well-known/new", b"x").status, 403);
        assert_eq!(server.delete("/.well-known/security.txt").status, 403);
        let to = "COPY /.well-known/security.txt\nDestination: /copy";
        assert_eq!(server.request(to, b"").status, 403);
        assert!(!server.get("/?format=json").text().contains("well-known"));
    });
    on_all_backends(&writable(), |server| {
        server.add(".well-known/security.txt", b"x");
        assert_eq!(server.get("/.well-known/security.txt").status, 404);
    });
}
