//! Folders with more entries than a page: every response has all of them, and clients that do not
//! read delay no others.

use crate::common::webdav::{paths, propfind, webdav};
use crate::common::*;
use onrush::DriverPreference;
use onrush_files::FilesOptions;

/// More than two of the longest pages.
const COUNT: usize = 25_000;

fn name(number: usize) -> String {
    format!("entry {number:05}")
}

/// A real server with a large folder `big`, and a small one.
fn server(options: &FilesOptions) -> TestServer {
    let server = TestServer::real("/", options, DriverPreference::Auto);
    let path = server.path().expect("a folder");
    std::fs::create_dir_all(path.join("big/dir")).expect("a folder");
    for number in 0..COUNT {
        let content = if number % 1000 == 7 { "content" } else { "" };
        std::fs::write(path.join("big").join(name(number)), content).expect("a file");
    }
    server.add("small/one", b"1");
    server.add("small/two", b"22");
    server
}

/// What the page has links to.
fn links(page: &Reply) -> Vec<String> {
    let links = page.text().split("<td><a href=\"").skip(1);
    let href = |rest: &str| rest.split('"').next().map(|link| link.replace("%20", " "));
    links.filter_map(href).collect()
}

fn expected() -> Vec<String> {
    std::iter::once("dir/".into())
        .chain((0..COUNT).map(name))
        .collect()
}

#[test]
fn programs_get_the_whole_folder_as_html_and_browsers_a_page() {
    let mut server = server(&FilesOptions::default());
    let all = expected();
    for accept in ["", "\nAccept: */*"] {
        let page = server.request(&format!("GET /big/{accept}"), b"");
        assert_eq!(page.status, 200);
        assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
        assert!(links(&page) == all, "{} links", links(&page).len());
        assert!(!page.text().contains("rel=\"next\"") && page.text().ends_with("</html>\n"));
    }
    let rest = server.get("/big/?after=entry+24997");
    assert_eq!(links(&rest), ["entry 24998", "entry 24999"]);
    let page = server.request("GET /big/\nAccept: text/html,*/*;q=0.8", b"");
    assert!(links(&page) == all[..10_000] && page.text().contains("rel=\"next\""));
    let page = server.get("/big/?limit=10000");
    assert!(links(&page) == all[..10_000] && page.text().contains("rel=\"next\""));
    // Sorted like a page, and then in parts.
    let by_size = links(&server.get("/big/?sort=-size"));
    assert_eq!(by_size[..3], ["dir/", "entry 00007", "entry 01007"]);
    let mut sorted = by_size;
    sorted.sort();
    assert!(sorted == all);
}

#[test]
fn every_method_reads_the_whole_folder() {
    let mut server = server(&webdav());
    let mut all = expected();
    all.sort();
    let found = propfind(&mut server, "/big/", "1");
    assert_eq!(found.status, 207);
    let mut members: Vec<_> = paths(&found)
        .iter()
        .filter_map(|path| {
            path.strip_prefix("/big/")
                .map(|name| name.replace("%20", " "))
        })
        .collect();
    assert_eq!(members.remove(0), "", "the folder itself");
    assert!(members == all);
    assert_eq!(
        found.text().matches("<D:getcontentlength>7<").count(),
        COUNT / 1000
    );

    let archive = server.get("/big/?archive=tar");
    let mut archive = tar::Archive::new(&archive.body[..]);
    let mut bytes = 0;
    let mut members: Vec<_> = (archive.entries().expect("an archive"))
        .map(|entry| {
            let entry = entry.expect("an entry");
            bytes += entry.size();
            let path = entry.path().expect("a path").into_owned();
            path.strip_prefix("big")
                .expect("its folder")
                .display()
                .to_string()
        })
        .collect();
    assert_eq!(bytes as usize, 7 * COUNT / 1000);
    assert_eq!(members.remove(0), "");
    members[0].push('/');
    assert!(members == all);

    let mut members = Vec::new();
    let mut next = "/big/?format=json&limit=10000".to_owned();
    let mut pages = 0;
    loop {
        pages += 1;
        let page = server.get(&next).json();
        let entries = page["entries"].as_array().expect("entries").iter();
        members.extend(entries.map(|entry| entry["name"].as_str().expect("a name").to_owned()));
        match page["next"].as_str() {
            Some(path) => next = path.to_owned(),
            None => break,
        }
    }
    assert_eq!(pages, 3);
    members[0].push('/');
    assert!(members == all);
}

#[test]
fn head_of_a_folder_has_the_fields_of_get_and_reads_no_names() {
    on_all_backends(&FilesOptions::default(), |server| {
        server.add("a/x", b"x");
        if server.is_simulated() {
            server.disk().hold_lists(Some(0)); // Reading names would block.
        }
        for (query, accept, content_type) in [
            ("", "*/*", "text/html; charset=utf-8"),
            ("", "text/html", "text/html; charset=utf-8"),
            ("?limit=5", "*/*", "text/html; charset=utf-8"),
            ("", "application/json", "application/json"),
            ("?archive=tar", "*/*", "application/x-tar"),
            ("?archive=zip", "*/*", "application/zip"),
        ] {
            let head = server.request(&format!("HEAD /a/{query}\nAccept: {accept}"), b"");
            assert_eq!(head.status, 200, "{query}");
            assert_eq!(head.field("content-type"), Some(content_type), "{query}");
            assert_eq!(head.field("content-length"), None, "{query}");
            assert_eq!(head.field("cache-control"), Some("no-cache"), "{query}");
            let missing = server.request(&format!("HEAD /b/{query}\nAccept: {accept}"), b"");
            assert_eq!(missing.status, 404, "{query}");
            let file = server.request(&format!("HEAD /a/x/{query}\nAccept: {accept}"), b"");
            assert_eq!(file.status, server.get("/a/x/").status, "{query}");
        }
        assert_eq!(server.request("HEAD /", b"").status, 200);
        if server.is_simulated() {
            server.disk().hold_lists(None);
        }
    });
}

/// The large responses fill the sockets, so the clients hold what they need to go on.
#[test]
fn a_small_listing_completes_while_clients_do_not_read_large_ones() {
    let mut server = server(&webdav());
    let requests = [
        "PROPFIND /big/ HTTP/1.1\r\nDepth: 1\r\n",
        "GET /big/?archive=tar HTTP/1.1\r\n",
        "GET /big/ HTTP/1.1\r\n",
        "GET /big/?limit=10000&format=json HTTP/1.1\r\n",
    ];
    let mut held: Vec<_> = (0..40)
        .map(|number| {
            let mut connection = server.connect();
            let request = requests[number % requests.len()];
            let request = format!("{request}Host: t\r\nConnection: close\r\n\r\n");
            server.send(&mut connection, request.as_bytes());
            connection
        })
        .collect();
    for _ in 0..20 {
        let page = server.get("/small/");
        assert_eq!(links(&page), ["one", "two"]);
        let found = propfind(&mut server, "/small/", "1");
        assert_eq!(paths(&found), ["/small/", "/small/one", "/small/two"]);
    }
    // Those that did not read get all of it, in whatever steps.
    let first = Reply::parse(&server.receive(&mut held[0]), false);
    assert_eq!(paths(&first).len(), COUNT + 2);
    let last = Reply::parse(&server.receive(&mut held[38]), false);
    assert!(links(&last) == expected());
}
