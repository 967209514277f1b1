//! `?watch`: a stream of the changes of a folder.

use crate::common::Json as _;
use crate::common::*;
use onrush::DriverPreference;
use onrush_files::FilesOptions;
use std::fs;

/// Runs a test on both drivers. The simulated disk reports no changes.
fn on_drivers(options: &FilesOptions, test: impl Fn(&mut TestServer)) {
    for driver in drivers() {
        test(&mut TestServer::real("/mnt/", options, driver));
    }
}

/// So many comments while a test waits are a failure. One is sent every 5 s.
const COMMENTS_MAX: usize = 20;

/// A client that watches a folder.
struct Watcher {
    connection: Connection,
    text: String,
    /// The comments received so far, which say that nothing happened.
    comments: usize,
}

impl Watcher {
    /// Returns when changes are reported.
    fn new(server: &mut TestServer, path: &str, fields: &str) -> Watcher {
        let mut connection = server.connect();
        let request = format!("GET {path}?watch HTTP/1.1\r\nHost: test\r\n{fields}\r\n");
        server.send(&mut connection, request.as_bytes());
        let mut watcher = Watcher {
            connection,
            text: String::new(),
            comments: 0,
        };
        watcher.wait(server, "retry: 2000\nid: 0\n\n");
        watcher
    }

    /// Waits until the text contains `part`. Returns what came before it, and forgets it.
    fn wait(&mut self, server: &mut TestServer, part: &str) -> String {
        while !self.text.contains(part) {
            let piece = server.receive_until(&mut self.connection, |bytes| !bytes.is_empty());
            self.text.push_str(&String::from_utf8_lossy(&piece));
            // A stream on which nothing happens goes on for half an hour.
            self.comments += usize::from(piece.ends_with(b"\r\n:\n\n\r\n"));
            let goes_on = !piece.is_empty() && self.comments < COMMENTS_MAX;
            assert!(goes_on, "no {part:?} in {:?}", self.text);
        }
        let (before, after) = self.text.split_once(part).expect("it contains the part");
        let (before, after) = (before.to_owned(), after.to_owned());
        self.text = after;
        before
    }

    /// The last event of a name, and the data.
    fn event(&mut self, server: &mut TestServer, kind: &str, name: &str) -> serde_json::Value {
        let name = serde_json::to_string(name).expect("a string");
        let before = self.wait(server, &format!("event: {kind}\ndata: {{\"name\":{name},"));
        assert!(!before.contains("secret"), "{before}");
        let rest = self.wait(server, "\n\n");
        serde_json::from_str(&format!("{{\"name\":{name},{rest}")).expect("one line of JSON")
    }

    /// Reads to the end of the stream.
    fn end(mut self, server: &mut TestServer) -> String {
        let rest = server.receive_until(&mut self.connection, |bytes| {
            bytes.ends_with(b"\r\n0\r\n\r\n")
        });
        self.text.push_str(&String::from_utf8_lossy(&rest));
        assert!(self.text.ends_with("\r\n0\r\n\r\n"), "{:?}", self.text);
        self.text
    }
}

#[test]
fn changes_by_clients_and_programs_are_events() {
    on_drivers(&writable(), |server| {
        server.add("a/old", b"old");
        let mut watcher = Watcher::new(server, "/mnt/a/", "");
        let created = server.put("/mnt/a/x%20%22y", b"12345");
        let event = watcher.event(server, "created", "x \"y");
        // An event says what a listing says.
        let listing = server.get("/mnt/a/?format=json").json();
        assert_eq!(event, listing["entries"][1]);
        assert_eq!(event["etag"].as_str(), created.field("etag"));
        assert_eq!(event["href"], "/mnt/a/x%20%22y");
        assert_eq!(server.put("/mnt/a/x%20%22y", b"1234567").status, 204);
        assert_eq!(watcher.event(server, "changed", "x \"y")["size"], 7);
        assert_eq!(server.delete("/mnt/a/x%20%22y").status, 204);
        let event = watcher.event(server, "removed", "x \"y");
        assert_eq!(event["href"], "/mnt/a/x%20%22y");

        let dir = server.path().expect("a real folder").join("a");
        fs::write(dir.join("by a program"), "1").expect("written");
        watcher.event(server, "created", "by a program");
        fs::write(dir.join("old"), "longer").expect("written");
        assert_eq!(watcher.event(server, "changed", "old")["size"], 6);
        fs::create_dir(dir.join("sub")).expect("created");
        let event = watcher.event(server, "created", "sub");
        assert_eq!(
            (&event["type"], &event["href"]),
            (&"directory".into(), &"/mnt/a/sub/".into())
        );
        fs::rename(dir.join("old"), dir.join("new")).expect("renamed");
        watcher.event(server, "removed", "old");
        watcher.event(server, "created", "new");
        fs::remove_dir(dir.join("sub")).expect("removed");
        watcher.event(server, "removed", "sub");
    });
}

#[test]
fn names_that_are_not_listed_are_not_reported() {
    let options = FilesOptions {
        reserve_admin_paths: true,
        ..writable()
    };
    on_drivers(&options, |server| {
        let mut watcher = Watcher::new(server, "/mnt/", "");
        server.add(".secret", b"x");
        server.add(".onrush/secret", b"x");
        server.add_folder(".ONRUSH");
        server.add_folder("-");
        server.add_fifo("secret fifo");
        server.add_symlink("secret link", "/etc");
        server.add("deep/secret", b"x");
        server.add("last", b"x");
        watcher.event(server, "created", "deep");
        watcher.event(server, "created", "last");
        let hidden = FilesOptions {
            hidden: true,
            ..writable()
        };
        let mut server = TestServer::real("/mnt/", &hidden, DriverPreference::Epoll);
        let mut watcher = Watcher::new(&mut server, "/mnt/", "");
        server.add(".onrush/secret", b"x");
        server.add(".shown", b"x");
        watcher.event(&mut server, "created", ".shown");
    });
}

#[test]
fn many_changes_are_one_event() {
    on_drivers(&writable(), |server| {
        server.add("a/old", b"x");
        let mut watcher = Watcher::new(server, "/mnt/a/", "");
        let folder = server.path().expect("real").join("a");
        // A slow disk spreads the names of a round over many pauses, each with few of them.
        let is_one_event = (0..20).any(|round| {
            for at in 0..1000 {
                let name = folder.join(format!("{round}-{at}"));
                fs::hard_link(folder.join("old"), name).expect("linked");
            }
            loop {
                let event = watcher.wait(server, "\n\n");
                if event.contains("event: list\ndata: {}") {
                    return true;
                }
                if event.contains(&format!("\"{round}-999\"")) {
                    return false;
                }
            }
        });
        assert!(is_one_event, "each of 20,000 names was an event");
        fs::remove_file(server.path().expect("real").join("a/old")).expect("removed");
        // Either the name or another `list` follows.
        watcher.wait(server, "\nevent: ");
        // A client that was connected before may have missed changes.
        let mut again = Watcher::new(server, "/mnt/a/", "Last-Event-ID: 3\r\n");
        again.wait(server, "event: list\ndata: {}\n\n");
    });
}

#[test]
fn a_folder_that_is_gone_ends_the_stream() {
    on_drivers(&writable(), |server| {
        let root = server.path().expect("a real folder").to_owned();
        let gone = "event: gone\ndata: {}\n\n";
        server.add_folder("deleted");
        let watcher = Watcher::new(server, "/mnt/deleted/", "");
        assert_eq!(server.delete("/mnt/deleted/").status, 204);
        assert!(watcher.end(server).contains(gone));

        server.add_folder("moved");
        let watcher = Watcher::new(server, "/mnt/moved/", "");
        fs::rename(root.join("moved"), root.join("other")).expect("renamed");
        fs::write(root.join("other/secret"), "x").expect("written");
        let text = watcher.end(server);
        assert!(text.contains(gone) && !text.contains("secret"), "{text}");

        // The folder above is moved, which the kernel does not report.
        server.add_folder("above");
        server.add_folder("above/folder");
        let watcher = Watcher::new(server, "/mnt/above/folder/", "");
        fs::rename(root.join("above"), root.join(".hidden")).expect("renamed");
        fs::write(root.join(".hidden/folder/secret"), "x").expect("written");
        let text = watcher.end(server);
        assert!(text.contains(gone) && !text.contains("secret"), "{text}");
    });
}

#[test]
fn watchers_are_limited_and_refused() {
    let options = FilesOptions {
        watchers_max: 4, // Two for one client.
        ..writable()
    };
    on_drivers(&options, |server| {
        server.add("a/file", b"x");
        let head = server.request("HEAD /mnt/a/?watch", b"");
        assert_eq!(
            (head.status, head.field("content-type")),
            (200, Some("text/event-stream"))
        );
        assert_eq!(head.field("cache-control"), Some("no-store"));
        assert_eq!(server.get("/mnt/missing/?watch").status, 404);
        assert_eq!(server.get("/mnt/.onrush/?watch").status, 404);
        assert_eq!(
            server.get("/mnt/a/file?watch").text(),
            "x",
            "an object has no changes"
        );
        let mut watchers = [(); 2].map(|()| Watcher::new(server, "/mnt/a/", ""));
        let refused = server.get("/mnt/a/?watch");
        assert_eq!(
            (refused.status, refused.field("retry-after")),
            (429, Some("1"))
        );
        // Another address has a share of what is left, and then it is another one's.
        let mut other = server.connect_from_another_address();
        let ask = b"GET /mnt/a/?watch HTTP/1.1\r\nHost: test\r\n\r\n";
        server.send(&mut other, ask);
        let head = server.receive_until(&mut other, |bytes| bytes.len() > 12);
        assert!(head.starts_with(b"HTTP/1.1 200 "));
        // Both get the same events.
        server.add("a/new", b"x");
        for watcher in &mut watchers {
            watcher.event(server, "created", "new");
        }
        // The place of a client that leaves is free when sending to it fails.
        drop(watchers);
        let is_free =
            |server: &mut TestServer| server.request("HEAD /mnt/a/?watch", b"").status == 200;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_free(server) {
            assert!(std::time::Instant::now() < end, "the places are not free");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let mut server = TestServer::simulated("/mnt/", &writable(), 1);
    server.add("a/file", b"x");
    assert_eq!(server.get("/mnt/a/?watch").status, 501);
}
