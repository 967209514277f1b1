//! The page of a folder in the real program: it offers what its client may do, and its style and
//! script can be read by every client.

use crate::program::users::{basic, login, request, start};
use crate::program::users::{objects, users};
use crate::program::{Folder, Server, curl, drivers, is_installed, wait_until};
use onrush_files::PAGE_PATHS;
use std::io::{Read, Write};
use std::net::TcpStream;

const BROWSER: &str = "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n";

/// The page of a folder for a user.
fn page(server: &Server, path: &str, user: &str) -> (u16, String) {
    request(server, "GET", path, &format!("{BROWSER}{}", login(user)))
}

/// The rights that a page states.
fn rights(page: &str) -> &str {
    let after = page.split_once("<main data-rights=\"").expect("a page").1;
    after.split_once('"').expect("an end").0.trim_end()
}

/// The text of a row.
fn row<'p>(page: &'p str, name: &str) -> &'p str {
    let is_row = |line: &&str| line.contains(&format!("<bdi>{name}</bdi>"));
    page.lines().find(is_row).expect("a row")
}

#[test]
fn the_page_offers_what_its_client_may_do() {
    let (folder, file) = (objects(), users());
    let text = file
        .text()
        .replace("'/pub' = ['read']", "'/pub' = ['read', 'list']");
    file.write(&text);
    folder.file("pub/other.txt", "x");
    for driver in drivers() {
        let server = start(&folder, &file, driver, &["--public-read"]);
        let (status, found) = page(&server, "/pub/", "");
        assert_eq!((status, rights(&found)), (200, ""));
        assert!(found.contains(">Log in</button>"), "{found}");
        assert!(!found.contains("data-etag") && !found.contains("upload-files"));

        let (_, found) = page(&server, "/ann/", "ann");
        assert_eq!(rights(&found), "create replace delete");
        assert!(found.contains("Logged in as <b>ann</b>") && found.contains("upload-files"));
        assert!(row(&found, "notes.txt").contains("data-etag=\""), "{found}");

        let (_, found) = page(&server, "/", "ann");
        assert_eq!(rights(&found), "");
        assert!(
            row(&found, "ann").contains("data-etag=\"\""),
            "a rule of its own"
        );
        assert!(!row(&found, "pub").contains("data-etag"));

        let limited = start(&folder, &file, driver, &["--allow", "put"]);
        let (_, found) = page(&limited, "/", "bob");
        assert_eq!(rights(&found), "create replace", "--allow is the maximum");
        assert!(!found.contains("data-etag"));

        assert_eq!(page(&server, "/secret/", "ann").0, 403);
        let (status, response) = page(&limited, "/secret/", "");
        assert_eq!(status, 401, "{response}");
    }
}

#[test]
fn what_may_be_moved_says_so() {
    let (folder, file) = (objects(), users());
    folder.file("in/sub/x", "x");
    file.add(
        "mover",
        &["all", "/in/sub=read,list", "/secret/key.txt=read"],
    );
    for driver in drivers() {
        let server = start(&folder, &file, driver, &[]);
        let is_movable = |path: &str, user: &str, name: &str| {
            let (_, found) = page(&server, path, user);
            row(&found, name).contains(" data-movable")
        };
        for (path, user, name, expected) in [
            ("/", "bob", "ann", true),
            ("/ann/", "bob", "notes.txt", true),
            ("/ann/", "ann", "notes.txt", true),
            ("/", "ann", "ann", false), // It cannot be created again.
            ("/", "mover", "ann", true),
            ("/in/", "mover", "old.txt", true),
            ("/in/", "mover", "sub", false),
            ("/", "mover", "in", false), // What is in it may not be deleted.
            ("/", "mover", "secret", false),
        ] {
            let found = is_movable(path, user, name);
            assert_eq!(found, expected, "{path} {user} {name}");
        }
        for allow in ["put", "delete"] {
            let limited = start(&folder, &file, driver, &["--allow", allow]);
            let (_, found) = page(&limited, "/", "bob");
            assert!(!found.contains("data-movable"), "--allow {allow}");
        }
    }
}

/// A browser whose user may create objects in a folder, and not list it.
#[test]
fn without_the_right_to_list_there_is_a_form_for_uploads() {
    let (folder, file) = (objects(), users());
    let text = file
        .text()
        .replace("'/pub' = ['read']", "'/drop' = ['create']");
    file.write(&text);
    for driver in drivers() {
        let server = start(&folder, &file, driver, &["--site", "--admin=same"]);
        for path in ["/in/", "/in/none/", "/in/?sort=size"] {
            let (status, found) = page(&server, path, "drop");
            assert_eq!((status, rights(&found)), (200, "create"), "{path}");
            assert!(found.contains("id=\"upload-files\"") && !found.contains("old.txt"));
            assert!(!found.contains("<table>") && !found.contains("id=\"filter\""));
        }
        let (_, found) = page(&server, "/in/", "ann");
        assert!(found.contains("<table>") && !found.contains("You may not see"));
        // Strangers may log in.
        let (status, found) = page(&server, "/drop/", "");
        assert!(
            status == 200 && found.contains(">Log in</button>"),
            "{found}"
        );
        assert_eq!(page(&server, "/drop/?login=1", "").0, 401);
        // Nothing else is permitted.
        for (path, user, expected) in [
            ("/in/?archive=tar", "drop", 403),
            ("/in/?markdown=old.txt", "drop", 403),
            ("/in/?format=json", "drop", 403),
            ("/in/old.txt", "drop", 403),
            ("/", "drop", 403),
            ("/-/metrics", "drop", 403),
            ("/in/", "", 401),
            ("/drop/x", "", 401),
        ] {
            let (status, response) = page(&server, path, user);
            assert_eq!(status, expected, "{path} {user}: {response}");
        }
        let program = login("drop");
        assert_eq!(request(&server, "GET", "/in/", &program).0, 403);
        let limited = start(&folder, &file, driver, &["--allow=delete"]);
        assert_eq!(
            page(&limited, "/in/", "drop").0,
            403,
            "--allow is the maximum"
        );
    }
}

#[test]
fn a_reader_can_log_in() {
    let (folder, file) = (objects(), users());
    for driver in drivers() {
        let server = start(&folder, &file, driver, &["--public-read"]);
        let (status, response) = page(&server, "/in/?login=1", "");
        assert_eq!(status, 401);
        assert!(
            response.contains("\r\nWWW-Authenticate: Basic"),
            "{response}"
        );
        assert_eq!(page(&server, "/in/?login=1", "bob").0, 200);
        let wrong = format!("{BROWSER}{}", basic("bob", "wrong"));
        assert_eq!(request(&server, "GET", "/in/", &wrong).0, 401);
        // Without users, the query has no meaning.
        let open = Server::start(folder.path(), &["--driver", driver]);
        let (status, found) = page(&open, "/in/?login=1", "");
        assert!(
            status == 200 && !found.contains(">Log in</button>"),
            "{found}"
        );
    }
}

#[test]
fn every_client_can_read_the_assets() {
    let (folder, file) = (objects(), users());
    let shadowed = Folder::new();
    for path in PAGE_PATHS {
        shadowed.file(&path[1..], "an object of this name");
    }
    for driver in drivers() {
        for more in [&[][..], &["--admin", "same"]] {
            let server = start(&folder, &file, driver, more);
            let open = Server::start(shadowed.path(), &[&["--driver", driver], more].concat());
            for path in PAGE_PATHS {
                for server in [&server, &open] {
                    let (status, response) = request(server, "GET", path, "");
                    assert!(
                        status == 200 && response.contains("immutable"),
                        "{response}"
                    );
                    assert!(!response.contains("an object"), "{response}");
                }
                for user in ["", "bob"] {
                    let put = request(&server, "PUT", path, &login(user)).0;
                    assert!(matches!(put, 401 | 403 | 405), "{path} {user}: {put}");
                }
            }
        }
    }
}

#[test]
fn markdown_is_rendered_for_its_readers() {
    let (folder, file) = (objects(), users());
    folder.file("ann/a b.md", "# Title\n\n<script>a()</script>\n");
    folder.file("ann/.hidden.md", "# Hidden");
    folder.file("secret/key.md", "# Secret");
    folder.file("ann/long.md", "x".repeat(256 * 1024 + 1));
    for driver in drivers() {
        let server = start(&folder, &file, driver, &[]);
        let get = |user: &str, path: &str| request(&server, "GET", path, &login(user));
        let (status, page) = get("ann", "/ann/?markdown=a+b.md");
        assert_eq!(status, 200, "{page}");
        assert!(page.contains("<h1>Title</h1>\n") && page.contains("&lt;script&gt;"));
        assert!(page.contains("href=\"./../-/page-") && !page.contains("<script"));
        let policy = "\r\nContent-Security-Policy: sandbox allow-popups \
                      allow-popups-to-escape-sandbox; default-src 'none'; ";
        assert!(
            page.contains(policy) && !page.contains("script-src"),
            "{page}"
        );
        for (user, path, expected) in [
            ("ann", "/?markdown=secret/key.md", 403),
            ("bob", "/?markdown=secret/key.md", 200),
            ("bob", "/ann/?markdown=../secret/key.md", 404),
            ("bob", "/ann/?markdown=.hidden.md", 404),
            ("bob", "/?markdown=ann", 409),
            ("bob", "/?markdown=.onrush/x", 404),
            ("bob", "/ann/?markdown=missing.md", 404),
            ("bob", "/ann/?markdown=long.md", 413),
            ("", "/ann/?markdown=a+b.md", 401),
        ] {
            let (status, response) = get(user, path);
            assert_eq!(status, expected, "{user} {path}: {response}");
        }
    }
}

/// Documents that a client does not receive occupy memory, of which it has a share.
#[test]
fn one_client_does_not_have_the_memory_of_all_documents() {
    let folder = Folder::new();
    // Rendered, four times as long, which no buffer of a connection takes.
    folder.file("a.md", "<".repeat(250_000));
    for driver in drivers() {
        let server = Server::start(folder.path(), &["--driver", driver]);
        let unread = || {
            let mut stream = TcpStream::connect(server.address()).expect("connected");
            let request = b"GET /?markdown=a.md HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(request).expect("sent");
            let mut status = [0; 12];
            stream.read_exact(&mut status).expect("a response");
            (status, stream)
        };
        let mut held = Vec::new();
        let refused = loop {
            let (status, stream) = unread();
            match &status {
                b"HTTP/1.1 200" => held.push(stream),
                _ => break status,
            }
            assert!(held.len() < 16, "it has all");
        };
        assert_eq!(&refused, b"HTTP/1.1 429");
        assert!(held.len() > 4, "{}", held.len());
        if is_installed("curl") {
            let url = format!("{}/?markdown=a.md", server.url);
            let other = curl(&["--interface", "127.0.0.2", "--fail", &url]);
            assert!(other.contains("&lt;&lt;"), "another client is served");
        }
        drop(held);
        wait_until(|| unread().0 == *b"HTTP/1.1 200");
    }
}
