//! The binary with a web site: redirects, header fields, codings, and rights.

use crate::program::users::{UsersFile, login, request};
use crate::program::{
    Folder, Server, TIMEOUT, curl, drivers, is_installed, onrush, output, output_within,
};
use std::path::Path;
use std::process::Command;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The value of a field of a response.
fn field<'r>(response: &'r str, name: &str) -> Option<&'r str> {
    let head = response.split("\r\n\r\n").next().unwrap_or_default();
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    let mut lines = lines.filter(|(have, _)| have.eq_ignore_ascii_case(name));
    lines.next().map(|(_, value)| value)
}

#[test]
fn rules_are_applied_and_loaded_again() {
    for driver in drivers() {
        let (folder, other) = (Folder::new(), Folder::new());
        folder.file("new/a.css", "a {}");
        folder.file("404.html", "nothing here");
        let redirects = other.file("redirects", "/old/* /new/:splat 308\n");
        let headers = other.file(
            "headers",
            "/*.css\n  Cache-Control: max-age=60\n/*\n  X-A: b\n",
        );
        let server = Server::start(
            folder.path(),
            &[
                "--driver",
                driver,
                "--site",
                "--redirects",
                text(&redirects),
                "--headers",
                text(&headers),
                "--admin",
                "same",
            ],
        );
        let moved = server.get("/old/./x%20y/?q=1");
        assert!(moved.starts_with("HTTP/1.1 308 "), "{moved}");
        assert_eq!(field(&moved, "location"), Some("/new/x%20y/?q=1"));
        let style = server.get("/new/a.css");
        assert!(
            style.starts_with("HTTP/1.1 200 ") && style.ends_with("\r\n\r\na {}"),
            "{style}"
        );
        assert_eq!(field(&style, "cache-control"), Some("max-age=60"));
        assert_eq!(field(&style, "x-a"), Some("b"));
        let missing = server.get("/none.css");
        assert!(missing.starts_with("HTTP/1.1 404 ") && missing.ends_with("nothing here"));
        assert_eq!(field(&missing, "cache-control"), Some("no-cache"));
        assert_eq!(field(&missing, "x-a"), Some("b"));
        let health = server.get("/-/health");
        assert!(health.starts_with("HTTP/1.1 200 ") && field(&health, "x-a").is_none());

        // A change of a file, then one with a mistake and SIGHUP.
        std::fs::write(&redirects, "/other /new/a.css\n").expect("written");
        server.logs("rules of the site loaded");
        let moved = server.get("/other");
        assert!(moved.starts_with("HTTP/1.1 301 "), "{moved}");
        assert!(server.get("/old/x").starts_with("HTTP/1.1 404 "));
        std::fs::write(&headers, "/*\n  Content-Length: 1\n").expect("written");
        server.signal("HUP");
        let log = server.logs("the rules in use remain");
        assert!(
            log.contains("line 2: Content-Length: the server sets this field"),
            "{log}"
        );
        assert_eq!(field(&server.get("/new/a.css"), "x-a"), Some("b"));
    }
}

#[test]
fn mistakes_end_the_program_with_their_line() {
    let (folder, other) = (Folder::new(), Folder::new());
    let wrong = other.file("wrong", "# old\n/a //evil.example\n");
    let inside = folder.file("redirects", "/a /b\n");
    let start = |arguments: &[&str]| {
        let mut command = onrush();
        command
            .arg(folder.path())
            .args(["--port", "0"])
            .args(arguments);
        let output = output(&mut command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        said
    };
    let said = start(&["--site", "--redirects", text(&wrong)]);
    assert!(
        said.contains("line 2: //evil.example: a target is a path"),
        "{said}"
    );
    let said = start(&["--site", "--headers", "/dev/null/none"]);
    assert!(
        said.contains("--headers: /dev/null/none: cannot be read"),
        "{said}"
    );
    let said = start(&["--redirects", text(&inside)]);
    assert!(said.contains("--redirects needs --site"), "{said}");
    assert!(start(&["--spa"]).contains("--spa needs --site"));
    let writable = ["--site", "--allow", "put", "--redirects", text(&inside)];
    assert!(start(&writable).contains("is in the served folder"));
}

/// A client that may create objects and not replace any cannot replace what others see.
#[test]
fn siblings_and_pages_need_their_rights() {
    let (folder, users) = (Folder::new(), UsersFile::new());
    users.add(
        "maker",
        &["/=read,create", "/own=all", "/own/fixed.css=read"],
    );
    users.add("reader", &["/=read", "/secret.html=none", "/a.css.br=none"]);
    folder.file("a.css", "plain");
    folder.file("a.css.br", "brotli");
    folder.file("own/fixed.css", "plain");
    folder.file("secret.html", "secret");
    let arguments = [
        "--auth-file",
        users.path(),
        "--precompressed",
        "--site",
        "--webdav",
    ];
    for driver in drivers() {
        let driver = ["--driver", driver];
        let server = Server::start(folder.path(), &[&arguments[..], &driver].concat());
        let status = |method: &str, path: &str, user: &str, field: &str| {
            request(&server, method, path, &format!("{field}{}", login(user))).0
        };
        for (path, expected) in [
            ("/a.css.gz", 403),
            ("/none.gz", 403),
            ("/own/x.css.gz", 201),
            ("/own/fixed.css.gz", 403),
        ] {
            assert_eq!(status("PUT", path, "maker", ""), expected, "{path}");
        }
        assert_eq!(status("PUT", "/new.css", "maker", ""), 201);
        let to = "Destination: /a.css.zst\r\n";
        assert_eq!(status("COPY", "/a.css", "maker", to), 403);
        let tus = "Tus-Resumable: 1.0.0\r\nUpload-Length: 1\r\nContent-Length: 0\r\n";
        assert_eq!(status("POST", "/a.css.gz", "maker", tus), 403);
        let lock = "<lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope><locktype><write/>\
            </locktype></lockinfo>";
        let form = "--b\r\nContent-Disposition: form-data; name=f; filename=a.css.gz\r\n\r\n\
            evil\r\n--b--\r\n";
        let send = |method: &str, path: &str, kind: &str, body: &str| {
            let fields = format!(
                "Content-Type: {kind}\r\nContent-Length: {}\r\n{}\r\n{body}",
                body.len(),
                login("maker")
            );
            request(&server, method, path, &fields).0
        };
        let multipart = "multipart/form-data; boundary=b";
        assert_eq!(send("POST", "/", multipart, form), 403);
        assert_eq!(send("LOCK", "/a.css.gz", "text/xml", lock), 403);
        assert!(!folder.path().join("a.css.gz").exists());
        // What may not be read is not sent under another name.
        let accept = "Accept-Encoding: br\r\n";
        let found = |user: &str| {
            request(
                &server,
                "GET",
                "/a.css",
                &format!("{accept}{}", login(user)),
            )
            .1
        };
        assert!(found("maker").ends_with("brotli"));
        assert!(found("reader").ends_with("plain"));
        assert_eq!(status("GET", "/secret", "reader", ""), 404);
        assert_eq!(status("GET", "/secret", "maker", ""), 200);
        for name in ["own/x.css.gz", "new.css"] {
            std::fs::remove_file(folder.path().join(name)).expect("removed");
        }
    }
}

#[test]
fn curl_and_wget_decode_what_they_get() {
    if !is_installed("curl") || !is_installed("wget") {
        return;
    }
    let folder = Folder::new();
    let page: String = (0..20_000).map(|n| format!("<p>line {n}\n")).collect();
    let file = folder.file("page.html", &page);
    let zipped = Command::new("gzip").args(["-k9", text(&file)]).status();
    assert!(zipped.expect("gzip starts").success());
    folder.file("live.html", &page);
    for driver in drivers() {
        let arguments = [
            "--driver",
            driver,
            "--site",
            "--precompressed",
            "--compress",
        ];
        let server = Server::start(folder.path(), &arguments);
        for name in ["page.html", "page", "live.html", "live"] {
            let url = format!("{}/{name}", server.url);
            let size = curl(&[
                "-H",
                "Accept-Encoding: gzip",
                "-o",
                "/dev/null",
                "-w",
                "%{size_download}",
                &url,
            ]);
            let size: usize = size.parse().expect("a number");
            assert!(size < page.len() / 3, "{name}: {size}");
            assert!(curl(&["--compressed", &url]) == page, "{name}");
            let mut wget = Command::new("wget");
            wget.args(["-q", "-O", "-", "--compression=gzip", &url]);
            let got = output_within(&mut wget, TIMEOUT);
            assert!(
                got.status.success() && got.stdout == page.as_bytes(),
                "{name}"
            );
        }
    }
}
