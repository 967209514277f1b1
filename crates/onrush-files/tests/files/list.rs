//! Listings: both formats, pages, escaping and hidden names.

use crate::common::Json as _;
use crate::common::*;
use onrush_files::{FilesOptions, PAGE_PATHS};
use serde_json::Value;

fn json(server: &mut TestServer, path: &str) -> Value {
    let reply = server.request(&format!("GET {path}\nAccept: application/json"), b"");
    assert_eq!(reply.status, 200, "{}: {path}", server.name);
    assert_eq!(reply.field("content-type"), Some("application/json"));
    assert_eq!(reply.field("vary"), Some("Accept"));
    assert_eq!(reply.field("cache-control"), Some("no-cache"));
    reply.json()
}

fn names(listing: &Value) -> Vec<&str> {
    let entries = listing["entries"].as_array().unwrap().iter();
    entries.map(|e| e["name"].as_str().unwrap()).collect()
}

#[test]
fn listing_has_the_json_format() {
    on_all_backends_at("/mnt/", &FilesOptions::default(), |server| {
        server.add("a/x y", b"12345");
        server.add("a/b/c", b"");
        server.add("top", b"1");
        let etag = server.get("/mnt/a/x%20y").etag().to_owned();
        let listing = json(server, "/mnt/a/");
        let expected = serde_json::json!({
            "path": "/mnt/a/",
            "entries": [
                {
                    "name": "b", "href": "/mnt/a/b/", "type": "directory", "size": null,
                    "modified": listing["entries"][0]["modified"], "etag": null,
                },
                {
                    "name": "x y", "href": "/mnt/a/x%20y", "type": "file", "size": 5,
                    "modified": "2020-09-13T12:26:40Z", "etag": etag,
                },
            ],
            "next": null,
        });
        assert_eq!(listing, expected, "{}", server.name);
        let top = json(server, "/mnt/");
        assert_eq!(
            (top["path"].as_str(), names(&top)),
            (Some("/mnt/"), vec!["a", "top"])
        );
        let by_query = server.get("/mnt/a/?format=json");
        assert_eq!(by_query.json(), listing);
        let html = server.request("GET /mnt/a/?format=html\nAccept: application/json", b"");
        assert_eq!(html.field("content-type"), Some("text/html; charset=utf-8"));
        let head = server.request("HEAD /mnt/a/", b"");
        assert_eq!(head.status, 200);
        assert_eq!(head.field("content-length"), None, "it reads no names");
        assert_eq!(head.field("content-type"), Some("text/html; charset=utf-8"));
        let head = server.request("HEAD /mnt/none/", b"");
        assert_eq!(head.status, 404);
    });
}

/// fsspec takes each link that is not `../` for something in the folder, and appends it as text.
#[test]
fn links_of_a_page_for_programs_lead_only_to_entries() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("a/b/c:d", b"");
        server.add_folder("a/b/e");
        for (path, expected) in [
            ("/", vec!["a/"]),
            ("/a/", vec!["../", "b/"]),
            ("/a/b/", vec!["../", "e/", "c%3Ad"]),
        ] {
            let page = server.get(path).text().to_owned();
            let links = page.split("href=\"").skip(1);
            let links: Vec<_> = links.filter_map(|rest| rest.split('"').next()).collect();
            assert_eq!(links, expected, "{path}");
        }
    });
}

#[test]
fn listing_has_the_html_format() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("a/<img src=x onerror=alert(1)>&\"'.txt", &pattern(2000));
        server.add("a/javascript:alert(1)", b"");
        server.add_folder("a/sub");
        server.add("a/\u{202e}gpj.exe", b"");
        let reply = server.request(
            "GET /a/\nAccept: text/html,application/xml;q=0.9,*/*;q=0.8",
            b"",
        );
        assert_eq!(reply.status, 200);
        assert_eq!(
            reply.field("content-type"),
            Some("text/html; charset=utf-8")
        );
        assert_eq!(reply.field("vary"), Some("Accept"));
        let policy = reply.field("content-security-policy").unwrap();
        let nonce = nonce(policy);
        assert!(
            policy.starts_with("default-src 'none'; script-src 'nonce-"),
            "{policy}"
        );
        assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"));
        assert_eq!(reply.field("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.field("referrer-policy"), Some("same-origin"));
        let page = reply.text();
        for part in [
            "<!DOCTYPE html>\n",
            "<title>Index of /a/</title>",
            "<a href=\"./../\">All files</a>",
            "<a href=\"./\" aria-current=\"page\">a</a>",
            "<a href=\"sub/\"><bdi>sub</bdi>/</a>",
            "<a href=\"javascript%3Aalert%281%29\">",
            "&lt;img src=x onerror=alert(1)&gt;&amp;&quot;&#39;.txt</bdi></a>",
            "<a href=\"%3Cimg%20src%3Dx%20onerror%3Dalert%281%29%3E%26%22%27.txt\">",
            "<data value=\"2000\" title=\"2000 bytes\">1.9 KiB</data>",
            "<time datetime=\"2020-09-13T12:26:40Z\">2020-09-13 12:26</time>",
            ">\u{fffd}gpj.exe<",
        ] {
            assert!(page.contains(part), "{part}\n{page}");
        }
        assert!(!page.contains("<img") && page.matches("<script").count() == 1);
        let own = format!("<script type=\"module\" nonce=\"{nonce}\" src=\"./../-/page-");
        assert!(page.contains(&own), "{page}");
        assert!(page.find(">sub<") < page.find("alert"), "folders are first");
        let opened = page.matches("<tr").count();
        assert_eq!(opened, page.matches("</tr>").count());
        assert!(
            !server.get("/").text().contains("../"),
            "the root folder has no parent link"
        );
    });
}

/// The nonce of the script in a policy.
fn nonce(policy: &str) -> &str {
    let after = policy.split_once("script-src 'nonce-").expect("a nonce").1;
    after.split_once('\'').expect("an end").0
}

#[test]
fn the_page_has_assets_of_its_own() {
    on_all_backends_at("/mnt/", &writable(), |server| {
        server.add("a/x", b"");
        let html = |server: &mut TestServer, path: &str| {
            server.request(&format!("GET {path}\nAccept: text/html"), b"")
        };
        let pages = ["/mnt/", "/mnt/a/", "/mnt/a/./"].map(|path| html(server, path));
        let policies = pages.each_ref().map(|page| {
            let policy = page.field("content-security-policy").expect("a policy");
            nonce(policy).to_owned()
        });
        assert!(policies[0] != policies[1] && policies[1] != policies[2]);
        for (name, content_type) in [
            (PAGE_PATHS[0], "text/css; charset=utf-8"),
            (PAGE_PATHS[1], "text/javascript; charset=utf-8"),
        ] {
            assert!(pages[0].text().contains(&format!("\"./{}\"", &name[1..])));
            assert!(
                pages[1]
                    .text()
                    .contains(&format!("\"./../{}\"", &name[1..]))
            );
            let path = format!("/mnt{name}");
            let reply = server.get(&path);
            assert_eq!(
                (reply.status, reply.field("content-type")),
                (200, Some(content_type))
            );
            let caching = reply.field("cache-control").expect("a field");
            assert!(caching.contains("immutable"), "{caching}");
            assert_eq!(reply.field("x-content-type-options"), Some("nosniff"));
            let again = format!("GET {path}\nIf-None-Match: {}", reply.etag());
            assert_eq!(server.request(&again, b"").status, 304);
            let head = server.request(&format!("HEAD {path}"), b"");
            assert_eq!((head.status, head.body.len()), (200, 0));
            assert_eq!(
                server.put(&path, b"other").status,
                403,
                "nothing replaces it"
            );
            assert_eq!(server.delete(&path).status, 403);
        }
        assert_eq!(
            server.put("/mnt/-/page-x.css", b"other").status,
            201,
            "an ordinary name"
        );
        // A program that mirrors the folder gets nothing else to load.
        for accept in ["", "\nAccept: */*", "\nAccept: text/*"] {
            let reply = server.request(&format!("GET /mnt/a/{accept}"), b"");
            let policy = reply.field("content-security-policy").expect("a policy");
            assert!(!policy.contains("script-src"), "{policy}");
            assert!(!reply.text().contains("<script") && !reply.text().contains("<link"));
        }
    });
}

#[test]
fn the_page_is_sorted_on_request() {
    let mut server = TestServer::simulated("/", &FilesOptions::default(), 5);
    for (name, bytes) in [("b", 30), ("a", 20), ("c", 10)] {
        server.add(name, &pattern(bytes));
    }
    server.add("z/inner", b"");
    let order = |server: &mut TestServer, query: &str| {
        let page = server.get(&format!("/{query}"));
        let text = page.text();
        let mut found: Vec<_> = ["a", "b", "c", "z"]
            .map(|name| (text.find(&format!("<bdi>{name}</bdi>")), name))
            .to_vec();
        found.sort();
        (
            found.iter().map(|(_, name)| *name).collect::<String>(),
            text.to_owned(),
        )
    };
    for (query, expected, sorted) in [
        ("", "zabc", "value=\"-name\""),
        ("?sort=-name", "zcba", "value=\"name\""),
        ("?sort=size", "zcab", "value=\"-size\""),
        ("?sort=-size&limit=10", "zbac", "value=\"size\""),
    ] {
        let (found, page) = order(&mut server, query);
        assert_eq!(found, expected, "{query}");
        assert!(page.contains(sorted), "{query}: {page}");
        assert_eq!(page.matches("aria-sort").count(), 1, "{query}");
    }
    assert_eq!(server.get("/?sort=color").status, 400);
    let next = "<a rel=\"next\" href=\"?after=b&amp;limit=2&amp;sort=-size\">";
    assert!(server.get("/?sort=-size&limit=2").text().contains(next));
    let listing = json(&mut server, "/?sort=-size");
    assert_eq!(
        names(&listing),
        ["a", "b", "c", "z"],
        "JSON is in the order of pages"
    );
}

#[test]
fn pages_of_a_large_folder_contain_every_name_once() {
    let test = |server: &mut TestServer| {
        let mut expected: Vec<String> = (0..2500).map(|i| format!("n{i:05} +&%ü")).collect();
        for name in &expected {
            server.add(&format!("big/{name}"), b"");
        }
        expected.sort();
        let html = server.get("/big/");
        assert_eq!(html.field("content-type"), Some("text/html; charset=utf-8"));
        assert_eq!(html.text().matches("<time").count(), 2500, "on one page");
        assert!(!html.text().contains("rel=\"next\""));
        for (limit, pages) in [
            ("", 3),
            ("?limit=700", 4),
            ("?limit=2500", 1),
            ("?limit=10000", 1),
        ] {
            let mut found = Vec::new();
            let mut next = Some(format!("/big/{limit}"));
            let mut count = 0;
            while let Some(path) = next {
                let listing = json(server, &path);
                found.extend(names(&listing).into_iter().map(str::to_owned));
                next = listing["next"].as_str().map(str::to_owned);
                count += 1;
            }
            assert_eq!((count, found == expected), (pages, true), "{limit}");
        }
        let page = server.get("/big/?limit=10&after=n00009+%2B%26%25%C3%BC&format=html");
        let link = "<a rel=\"next\" href=\"?after=n00019%20%2B%26%25%C3%BC&amp;limit=10\
                    &amp;format=html\">Next page</a>";
        assert!(page.text().contains(link), "{}", page.text());
        assert!(page.text().contains(">n00010 +&amp;%ü<"));
        let whole = server.get("/big/?limit=10000");
        assert_eq!(whole.field("transfer-encoding"), Some("chunked"));
        assert_eq!(whole.text().matches("<time").count(), 2500);
        assert!(whole.text().ends_with("</html>\n"));
        for bad in [
            "limit=0",
            "limit=10001",
            "limit=x",
            "limit=",
            "format=xml",
            "after=%zz",
        ] {
            assert_eq!(server.get(&format!("/big/?{bad}")).status, 400, "{bad}");
        }
        let empty = json(server, "/big/?after=z");
        assert_eq!((names(&empty).len(), empty["next"].is_null()), (0, true));
    };
    test(&mut TestServer::real(
        "/",
        &FilesOptions::default(),
        onrush::DriverPreference::Auto,
    ));
    test(&mut TestServer::simulated("/", &FilesOptions::default(), 9));
}

#[test]
fn links_to_names_that_are_not_utf8_can_be_followed() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add_at(b"a/\xff\xfe.txt", b"odd", LONG_AGO_S);
        let listing = json(server, "/a/");
        let entry = &listing["entries"][0];
        assert_eq!(entry["name"], "\u{fffd}\u{fffd}.txt");
        assert_eq!(entry["href"], "/a/%FF%FE.txt");
        assert_eq!(server.get(entry["href"].as_str().unwrap()).body, b"odd");
        assert!(server.get("/a/").text().contains("href=\"%FF%FE.txt\""));
    });
}

#[test]
fn hidden_and_special_entries_are_not_listed() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("file", b"x");
        server.add(".hidden", b"x");
        server.add_fifo("fifo");
        server.add("folder/inner", b"y");
        server.add_symlink("link", "file");
        server.add_symlink("folder-link", "folder");
        server.add_symlink("dangling", "nowhere");
        server.add_symlink("out", "/etc/passwd");
        server.add_symlink("up", "../../etc");
        let listing = json(server, "/");
        assert_eq!(names(&listing), ["file", "folder", "folder-link", "link"]);
        assert_eq!(listing["entries"][2]["href"], "/folder-link/");
        assert_eq!(server.get("/link").body, b"x");
        assert_eq!(server.get("/folder-link/inner").body, b"y");
        assert_eq!(names(&json(server, "/folder-link/")), ["inner"]);
        for path in [
            "/dangling",
            "/out",
            "/up/passwd",
            "/up/",
            "/fifo",
            "/fifo/",
            "/file/",
        ] {
            assert_eq!(server.get(path).status, 404, "{}: {path}", server.name);
        }
        assert_eq!(server.get("/missing/").status, 404);
        assert_eq!(server.get("/.hidden/").status, 404);
    });
}

#[test]
fn site_serves_its_index_file() {
    let options = FilesOptions {
        site: true,
        ..FilesOptions::default()
    };
    on_all_backends_at("/site/", &options, |server| {
        server.add("index.html", b"<p>top");
        server.add("a/index.html", b"<p>a");
        server.add("b/other.html", b"<p>b");
        server.add_folder("c/index.html");
        for cold in [true, false] {
            if server.is_simulated() {
                server.disk().set_cold(cold);
            }
            for (path, body) in [("/site/", "<p>top"), ("/site/a/", "<p>a")] {
                let reply = server.get(path);
                assert_eq!((reply.status, reply.text()), (200, body));
                assert_eq!(
                    reply.field("content-type"),
                    Some("text/html; charset=utf-8")
                );
                let etag = reply.etag().to_owned();
                let again = server.request(&format!("GET {path}\nIf-None-Match: {etag}"), b"");
                assert_eq!(again.status, 304);
            }
            assert!(server.get("/site/b/").text().contains("other.html"));
            assert!(server.get("/site/c/").text().contains("\"index.html/\""));
            assert_eq!(server.get("/site/missing/").status, 404);
        }
    });
}

/// All names of a folder, page by page, and the number of pages.
fn all_names(server: &mut TestServer, path: &str) -> (Vec<String>, usize) {
    let mut found = Vec::new();
    let mut pages = 0;
    let mut next = Some(path.to_owned());
    while let Some(path) = next {
        let listing = json(server, &path);
        found.extend(names(&listing).into_iter().map(str::to_owned));
        next = listing["next"].as_str().map(str::to_owned);
        pages += 1;
    }
    (found, pages)
}

#[test]
fn slow_readers_of_long_pages_shorten_pages() {
    let mut server = TestServer::simulated("/", &FilesOptions::default(), 3);
    let expected: Vec<String> = (0..4000).map(|i| format!("{i:0200}")).collect();
    for name in &expected {
        server.add(&format!("big/{name}"), b"");
    }
    let path = "/big/?limit=10000&format=json";
    assert!(all_names(&mut server, path) == (expected.clone(), 1));

    // Each requests 1.5 MB and receives none of it.
    let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
    let mut slow: Vec<_> = (0..20).map(|_| server.connect()).collect();
    for connection in &mut slow {
        server.send(connection, request.as_bytes());
    }
    let (found, pages) = all_names(&mut server, path);
    assert!(found == expected, "no name is missing");
    assert!(pages > 10, "{pages} pages");
    let html = server.get("/big/?limit=10000&format=html");
    assert!(html.text().contains("rel=\"next\"") && html.text().ends_with("</html>\n"));
    // Without a limit, the client expects the whole folder, and a program gets it.
    let browsed = server.request("GET /big/\nAccept: text/html", b"");
    assert_eq!(
        (browsed.status, browsed.field("retry-after")),
        (503, Some("1"))
    );
    let mirrored = server.get("/big/");
    assert_eq!(mirrored.status, 200);
    assert_eq!(mirrored.text().matches("<time").count(), expected.len());
    assert!(!mirrored.text().contains("rel=\"next\"") && mirrored.text().ends_with("</html>\n"));

    // In the end they receive whole pages, and then the memory is free again.
    let mut whole = 0;
    for connection in &mut slow {
        let listing = Reply::parse(&server.receive(connection), false).json();
        let part = names(&listing);
        assert_eq!(part, expected[..part.len()]);
        let next = listing["next"].as_str();
        assert_eq!(next.is_none(), part.len() == expected.len());
        whole += usize::from(next.is_none());
    }
    assert!((5..20).contains(&whole), "{whole} pages were whole");
    assert!(all_names(&mut server, path) == (expected, 1));
}
