//! Unfinished uploads of the running program: lost connections at random places, restarts, `kill
//! -9`, users, and the shutdown.

use crate::program::users::{UsersFile, login, request, start};
use crate::program::{Folder, Server, TIMEOUT, curl, drivers, is_installed, pattern, wait_until};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const PART: &str = "Content-Type: application/partial-upload\r\n";

/// Reads a response head.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match testing::read_some(stream, &mut byte) {
            Ok(1) => head.push(byte[0]),
            other => panic!("{other:?} after {}", String::from_utf8_lossy(&head)),
        }
    }
    String::from_utf8(head).expect("text")
}

fn field<'h>(head: &'h str, name: &str) -> &'h str {
    let found = head
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name} in {head}"))
}

/// Begins a PUT of `length` bytes; returns the connection and the URL of the upload.
fn begin(server: &Server, path: &str, length: usize) -> (TcpStream, String) {
    let mut stream = server.connect();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: localhost\r\nUpload-Complete: ?1\r\n\
         Upload-Draft-Interop-Version: 6\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let interim = read_head(&mut stream);
    assert!(interim.starts_with("HTTP/1.1 104 "), "{interim}");
    assert!(
        field(&interim, "Upload-Limit").starts_with("expires="),
        "{interim}"
    );
    let url = field(&interim, "Location").to_owned();
    (stream, url)
}

/// Sends a request without content; returns the response.
fn simple(server: &Server, method: &str, url: &str, fields: &str) -> String {
    let head =
        format!("{method} {url} HTTP/1.1\r\nHost: localhost\r\n{fields}Connection: close\r\n\r\n");
    server.exchange(head.as_bytes())
}

/// The offset of an upload; `None` if there is no such upload.
fn offset(server: &Server, url: &str) -> Option<usize> {
    let response = simple(server, "HEAD", url, "");
    match &response[..12] {
        "HTTP/1.1 204" => Some(field(&response, "Upload-Offset").parse().expect("a number")),
        "HTTP/1.1 404" => None,
        _ => panic!("{response}"),
    }
}

/// Begins an append of the rest of `content`.
fn append(server: &Server, url: &str, content: &[u8], from: usize) -> TcpStream {
    let mut stream = server.connect();
    let head = format!(
        "PATCH {url} HTTP/1.1\r\nHost: localhost\r\nUpload-Complete: ?1\r\n\
         Upload-Offset: {from}\r\n{PART}Content-Length: {}\r\n\r\n",
        content.len() - from
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream
}

fn random(state: &mut u64, below: usize) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below.max(1)
}

/// Nothing that was written before may be lost by a connection that ends, and no object may be
/// visible before its upload is complete.
#[test]
fn connections_are_lost_at_random_places() {
    for driver in drivers() {
        let folder = Folder::new();
        let server = Server::start(folder.path(), &["--allow", "put", "--driver", driver]);
        let mut state = 7;
        for round in 0..20 {
            let content = pattern(round, 400_000 + random(&mut state, 3_000_000));
            let path = format!("/folder/{round}");
            let (mut stream, url) = begin(&server, &path, content.len());
            // A request that the server begins late may still append what it has sent.
            let (mut at, mut furthest) = (0, 0);
            for interruptions in 0.. {
                assert!(interruptions < 50, "{url} does not end");
                let rest = content.len() - at;
                let sent = match interruptions < 4 {
                    true => random(&mut state, rest),
                    false => rest,
                };
                let _ = stream.write_all(&content[at..at + sent]);
                furthest = furthest.max(at + sent);
                if sent == rest {
                    let response = read_head(&mut stream);
                    if response.starts_with("HTTP/1.1 201 ") {
                        break;
                    }
                    assert!(response.starts_with("HTTP/1.1 409 "), "{response}");
                } else if random(&mut state, 2) == 0 {
                    // Everything that was sent has arrived when the server sees the end.
                    stream.shutdown(Shutdown::Write).expect("shut down");
                    let response = read_head(&mut stream);
                    let is_late = response.starts_with("HTTP/1.1 409 ");
                    let found: usize = field(&response, "Upload-Offset").parse().expect("a number");
                    assert!(is_late || found >= at + sent, "{response}");
                }
                drop(stream);
                let found = offset(&server, &url).expect("the upload");
                assert!(
                    (at..=furthest).contains(&found),
                    "{found}, {at}, {furthest}"
                );
                assert!(server.get(&path).starts_with("HTTP/1.1 404 "));
                at = found;
                stream = append(&server, &url, &content, at);
            }
            let file = folder.path().join(format!("folder/{round}"));
            assert!(
                std::fs::read(file).expect("an object") == content,
                "{driver} {round}"
            );
        }
        wait_until(|| left(&folder) == 0);
    }
}

/// The files of unfinished uploads, with their records.
fn left(folder: &Folder) -> usize {
    let count = |path: &str| {
        let entries = std::fs::read_dir(folder.path().join(".onrush").join(path));
        entries.map_or(0, Iterator::count)
    };
    count("uploads") + count("state/uploads")
}

/// `kill -9` while bytes arrive: what was acknowledged is kept, and the upload continues in the
/// next process.
#[test]
fn uploads_continue_after_kill_9() {
    for driver in drivers() {
        let folder = Folder::new();
        let flags = ["--allow", "put", "--driver", driver];
        let mut server = Server::start(folder.path(), &flags);
        let content = pattern(1, 9_000_000);
        let (mut stream, url) = begin(&server, "/x", content.len());
        let mut state = 3;
        let mut at = 0;
        for _ in 0..rounds() {
            let left = content.len() - at;
            let sent = random(&mut state, left / 2);
            let _ = stream.write_all(&content[at..at + sent]);
            // HEAD ends the transfer, and acknowledges an offset.
            let acknowledged = offset(&server, &url).expect("the upload");
            drop(stream);
            stream = append(&server, &url, &content, acknowledged);
            let more = random(&mut state, (content.len() - acknowledged) / 4);
            let _ = stream.write_all(&content[acknowledged..acknowledged + more]);
            server.child.kill().expect("killed");
            server.child.wait().expect("ended");
            server = Server::start(folder.path(), &flags);
            let found = offset(&server, &url).expect("the upload after a restart");
            assert!(found >= acknowledged, "{found} < {acknowledged}");
            assert!(server.get("/x").starts_with("HTTP/1.1 404 "));
            at = found;
            stream = append(&server, &url, &content, at);
        }
        stream.write_all(&content[at..]).expect("sent");
        assert!(read_head(&mut stream).starts_with("HTTP/1.1 201 "));
        assert!(std::fs::read(folder.path().join("x")).expect("an object") == content);
        wait_until(|| left(&folder) == 0);
        // The process ends in time, although a task looks for uploads that are too old.
        let (stream, _) = begin(&server, "/y", content.len());
        drop(stream);
        server.signal("TERM");
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
    }
}

/// A kill between the rename and the removal of the record leaves the record.
#[test]
fn an_upload_whose_record_is_left_is_complete() {
    for driver in drivers() {
        let folder = Folder::new();
        let flags = ["--allow", "put", "--driver", driver];
        let mut server = Server::start(folder.path(), &flags);
        let content = pattern(3, 400_000);
        let records = folder.path().join(".onrush/state/uploads");
        let tus = "Tus-Resumable: 1.0.0\r\n";
        // One creates the object, the other one replaces it.
        for path in ["/new", "/old"] {
            folder.file("old", "old");
            let (stream, url) = begin(&server, path, content.len());
            assert_eq!(offset(&server, &url), Some(0));
            drop(stream);
            let record = std::fs::read_dir(&records).expect("a folder").next();
            let record = record.expect("a record").expect("an entry").path();
            let left = std::fs::read(&record).expect("read");
            let mut stream = append(&server, &url, &content, 0);
            stream.write_all(&content).expect("sent");
            assert!(!read_head(&mut stream).contains(" 404 "));
            drop(server);
            std::fs::write(&record, left).expect("written");
            server = Server::start(folder.path(), &flags);
            let head = simple(&server, "HEAD", &url, "");
            assert_eq!(field(&head, "Upload-Complete"), "?1", "{driver} {path}");
            assert_eq!(field(&head, "Upload-Offset"), "400000");
            let again = simple(
                &server,
                "PATCH",
                &url,
                &format!("{PART}Upload-Complete: ?1\r\nUpload-Offset: 0\r\nContent-Length: 0\r\n"),
            );
            assert!(again.starts_with("HTTP/1.1 400 "), "{again}");
            assert!(again.contains("completed-upload"), "{again}");
            let head = simple(&server, "HEAD", &url, tus);
            assert_eq!(field(&head, "Upload-Offset"), "400000");
            assert_eq!(field(&head, "Upload-Length"), "400000");
            let stored = std::fs::read(folder.path().join(&path[1..])).expect("an object");
            assert!(stored == content);
            // Another object there is another upload.
            folder.file("other", "x");
            std::fs::rename(folder.path().join("other"), folder.path().join(&path[1..]))
                .expect("replaced");
            assert!(!simple(&server, "HEAD", &url, "").contains("Upload-Complete: ?1"));
            std::fs::remove_file(&record).expect("removed");
        }
    }
}

/// Whether a file in `folder` has so many bytes.
fn has_file_of(folder: &std::path::Path, bytes: usize) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => has_file_of(&entry.path(), bytes),
        _ => entry
            .metadata()
            .is_ok_and(|found| found.len() == bytes as u64),
    })
}

/// The drain ends while clients still send: what has arrived is kept, although they had no
/// acknowledgement.
#[test]
fn what_has_arrived_is_kept_when_the_drain_ends() {
    for driver in drivers() {
        let folder = Folder::new();
        let flags = ["--allow", "put", "--driver", driver];
        let drain = [&flags[..], &["--drain-timeout", "1s"]].concat();
        let mut server = Server::start(folder.path(), &drain);
        let content = pattern(9, 3_000_000);
        let kept = folder.path().join(".onrush");
        let (mut draft, url) = begin(&server, "/x", content.len());
        draft.write_all(&content[..1_000_000]).expect("sent");
        let tus = "Tus-Resumable: 1.0.0\r\n";
        let length = content.len();
        let created = simple(
            &server,
            "POST",
            "/y",
            &format!("{tus}Upload-Length: {length}\r\nContent-Length: 0\r\n"),
        );
        let tus_url = field(&created, "Location").to_owned();
        let mut stream = server.connect();
        let head = format!(
            "PATCH {tus_url} HTTP/1.1\r\nHost: localhost\r\n{tus}Upload-Offset: 0\r\n\
             Content-Type: application/offset+octet-stream\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream.write_all(&content[..1_500_000]).expect("sent");
        wait_until(|| has_file_of(&kept, 1_000_000) && has_file_of(&kept, 1_500_000));
        server.signal("TERM");
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0), "{driver}");
        let server = Server::start(folder.path(), &flags);
        assert_eq!(offset(&server, &url), Some(1_000_000), "{driver}");
        let found = simple(&server, "HEAD", &tus_url, tus);
        assert_eq!(field(&found, "Upload-Offset"), "1500000", "{driver}");
        let mut rest = append(&server, &url, &content, 1_000_000);
        rest.write_all(&content[1_000_000..]).expect("sent");
        assert!(read_head(&mut rest).starts_with("HTTP/1.1 201 "));
        assert!(std::fs::read(folder.path().join("x")).expect("an object") == content);
    }
}

/// Without any request, the next process removes uploads that are too old, and only those.
#[test]
fn old_uploads_of_an_earlier_process_are_removed() {
    for driver in drivers() {
        let folder = Folder::new();
        let flags = ["--allow", "put", "--driver", driver];
        let server = Server::start(folder.path(), &flags);
        let (stream, url) = begin(&server, "/x", 1_000_000);
        assert_eq!(offset(&server, &url), Some(0));
        drop((stream, server));
        let server = Server::start(folder.path(), &flags);
        assert_eq!(offset(&server, &url), Some(0));
        drop(server);
        assert_eq!(left(&folder), 2);
        let old = [&flags[..], &["--unfinished-age", "1s"]].concat();
        let server = Server::start(folder.path(), &old);
        wait_until(|| left(&folder) == 0);
        assert_eq!(offset(&server, &url), None);
    }
}

/// A reset ends the handler. What has arrived is kept nevertheless, and the next request waits for
/// that.
#[test]
fn a_reset_connection_loses_nothing() {
    for driver in drivers() {
        let folder = Folder::new();
        let server = Server::start(folder.path(), &["--allow", "put", "--driver", driver]);
        let content = pattern(2, 8_000_000);
        let (stream, url) = begin(&server, "/x", content.len());
        assert_eq!(offset(&server, &url), Some(0));
        drop(stream);
        let mut stream = append(&server, &url, &content, 0);
        stream.write_all(&content[..4_000_000]).expect("sent");
        let written = || {
            let kept = std::fs::read_dir(folder.path().join(".onrush/uploads"));
            let mut kept = kept.into_iter().flatten().flatten();
            kept.next()
                .map_or(0, |file| file.metadata().map_or(0, |found| found.len()))
        };
        wait_until(|| written() >= 3_000_000);
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("set");
        drop(stream);
        let found = offset(&server, &url).expect("the upload");
        assert!((3_000_000..=4_000_000).contains(&found), "{driver} {found}");
        let mut stream = append(&server, &url, &content, found);
        stream.write_all(&content[found..]).expect("sent");
        assert!(read_head(&mut stream).starts_with("HTTP/1.1 201 "));
        assert!(std::fs::read(folder.path().join("x")).expect("an object") == content);
        wait_until(|| left(&folder) == 0);
    }
}

/// A crash may leave bytes without a record. They are younger than the process that removes them.
#[test]
fn bytes_without_a_record_are_removed() {
    let folder = Folder::new();
    let flags = ["--allow", "put", "--unfinished-age", "1s"];
    let _server = Server::start(folder.path(), &flags);
    folder.file(".onrush/uploads/left", b"bytes");
    wait_until(|| left(&folder) == 0);
}

fn rounds() -> usize {
    let asked = std::env::var("TEST_KILL_ROUNDS").ok();
    asked.and_then(|rounds| rounds.parse().ok()).unwrap_or(5)
}

/// Rights of the path hold, and an upload belongs to the user who has begun it.
#[test]
fn only_the_creator_continues_an_upload() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        file.add("bob", &["/=create"]);
        file.add("eve", &["/=all"]);
        file.add("reader", &["/=read,list,delete"]);
        let server = start(&folder, &file, driver, &["--allow", "put,delete"]);
        let send = |name: &str, method: &str, target: &str, fields: &str| {
            let fields = format!("{}{fields}", login(name));
            request(&server, method, target, &fields)
        };
        let begin = "Upload-Complete: ?0\r\n"; // With one byte.
        let (status, _) = send("reader", "PUT", "/x", begin);
        assert_eq!(status, 403);
        let (status, response) = send("bob", "PUT", "/x", begin);
        assert_eq!(status, 201, "{response}");
        let url = field(&response, "Location").to_owned();
        let end = format!("Upload-Complete: ?1\r\nUpload-Offset: 1\r\n{PART}Content-Length: 0\r\n");
        for (name, expected) in [("eve", 404), ("reader", 403)] {
            for method in ["HEAD", "DELETE"] {
                let (status, response) = send(name, method, &url, "");
                assert_eq!(status, expected, "{name} {method}: {response}");
            }
            assert_eq!(send(name, "PATCH", &url, &end).0, expected, "{name}");
        }
        // Without a login, and from a page of another origin.
        assert_eq!(request(&server, "HEAD", &url, "").0, 401);
        let foreign = format!("Origin: http://evil.example\r\n{end}");
        assert_eq!(send("bob", "PATCH", &url, &foreign).0, 403);
        assert_eq!(
            send("bob", "HEAD", &url, "").0,
            204,
            "without the right to read"
        );
        assert_eq!(send("bob", "PATCH", &url, &end).0, 201);
        // The object exists now, and bob may not replace it.
        assert_eq!(send("bob", "PUT", "/x", begin).0, 403);
        let tus = "Tus-Resumable: 1.0.0\r\nUpload-Length: 1\r\nContent-Length: 0\r\n";
        let named = format!("{tus}Upload-Metadata: filename eA==\r\n");
        assert_eq!(send("bob", "POST", "/", &named).0, 403, "x exists");
        assert_eq!(send("reader", "POST", "/", &named).0, 403);
        assert_eq!(send("bob", "POST", "/y", tus).0, 201);
    }
}

/// Two processes of one folder, as during a restart: what one of them receives is neither continued
/// nor removed by the other one, which says why.
#[test]
fn an_upload_that_another_process_receives_is_refused() {
    const BYTES: usize = 900_000;
    let content = pattern(9, BYTES);
    let tus = "Tus-Resumable: 1.0.0\r\n";
    let draft = "PUT /object HTTP/1.1\r\nHost: localhost\r\nUpload-Complete: ?0\r\n".to_owned();
    let begin_tus =
        format!("POST /object HTTP/1.1\r\nHost: localhost\r\n{tus}Upload-Length: {BYTES}\r\n");
    let stream = "Content-Type: application/offset+octet-stream\r\n";
    let complete = format!("Upload-Complete: ?1\r\n{PART}");
    for (begin, fields, part) in [
        (begin_tus, tus, format!("{tus}{stream}")),
        (draft, "", complete),
    ] {
        let folder = Folder::new();
        let allow = ["--allow", "put,delete"];
        let (one, other) = (
            Server::start(folder.path(), &allow),
            Server::start(folder.path(), &allow),
        );
        let begun = format!("{begin}Content-Length: 0\r\nConnection: close\r\n\r\n");
        let begun = one.exchange(begun.as_bytes());
        assert!(begun.starts_with("HTTP/1.1 201 "), "{begun}");
        let url = field(&begun, "Location").trim_start_matches(&one.url);
        let head = |server: &Server| simple(server, "HEAD", url, fields);
        let patch = |server: &Server, at: usize| {
            let text = format!(
                "PATCH {url} HTTP/1.1\r\nHost: localhost\r\nUpload-Offset: {at}\r\n{part}\
                 Content-Length: {}\r\n\r\n",
                BYTES - at
            );
            let mut stream = server.connect();
            stream.write_all(text.as_bytes()).expect("sent");
            stream
        };
        let received = || {
            let files = std::fs::read_dir(folder.path().join(".onrush/uploads"));
            let bytes = |file: std::io::Result<std::fs::DirEntry>| file?.metadata();
            let files = files.expect("a folder").map(bytes);
            files.map(|found| found.expect("a file").len()).sum::<u64>()
        };
        let mut receiving = patch(&one, 0);
        receiving.write_all(&content[..BYTES / 2]).expect("sent");
        wait_until(|| received() > 0);
        let saved = head(&other);
        assert_eq!(field(&saved, "Upload-Offset"), "0", "{saved}");
        let text = "another server process receives this upload at the moment; try again later\n";
        let mut refused = patch(&other, 0);
        refused.write_all(&content).expect("sent");
        let refused = read_head(&mut refused);
        assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
        assert_eq!(field(&refused, "Retry-After"), "1");
        let refused = simple(&other, "DELETE", url, fields);
        assert!(
            refused.starts_with("HTTP/1.1 423 ") && refused.ends_with(text),
            "{refused}"
        );
        assert_eq!(field(&refused, "Retry-After"), "1");
        // The request in progress was not disturbed; what it has saved, the other one continues.
        receiving.shutdown(Shutdown::Write).expect("shut down");
        drop(read_head(&mut receiving));
        let saved = head(&other);
        let at = field(&saved, "Upload-Offset").parse().expect("a number");
        assert_eq!(at, BYTES / 2, "{saved}");
        let mut receiving = patch(&other, at);
        receiving.write_all(&content[at..]).expect("sent");
        let completed = read_head(&mut receiving);
        assert!(
            completed.starts_with("HTTP/1.1 204 ") || completed.starts_with("HTTP/1.1 201 "),
            "{completed}"
        );
        let found = std::fs::read(folder.path().join("object")).expect("an object");
        assert!(found == content);
        // One that is not in use is removed by any process.
        let begun = format!("{begin}Content-Length: 0\r\nConnection: close\r\n\r\n");
        let begun = one.exchange(begun.as_bytes());
        let url = field(&begun, "Location").trim_start_matches(&one.url);
        let removed = simple(&other, "DELETE", url, fields);
        assert!(removed.starts_with("HTTP/1.1 204 "), "{removed}");
        let gone = simple(&one, "HEAD", url, fields);
        assert!(gone.starts_with("HTTP/1.1 404 "), "{gone}");
        wait_until(|| left(&folder) == 0);
    }
}

/// The steps of docs/uploads.md with curl.
#[test]
fn curl_uploads_in_parts() {
    if !is_installed("curl") {
        return;
    }
    let folder = Folder::new();
    let server = Server::start(folder.path(), &["--allow", "put"]);
    let content = pattern(5, 300_000);
    let parts = Folder::new();
    let file = |name: &str, part: &[u8]| format!("@{}", parts.file(name, part).display());
    let (first, rest) = (
        file("1", &content[..100_000]),
        file("2", &content[100_000..]),
    );
    let url = format!("{}/report.pdf", server.url);
    let head = curl(&[
        "-i",
        "-X",
        "PUT",
        "-H",
        "Upload-Complete: ?0",
        "--data-binary",
        &first,
        &url,
    ]);
    let upload = format!(
        "{}{}",
        server.url,
        field(&head.replace("\r\n", "\n"), "Location")
    );
    let found = curl(&["-I", &upload]).replace("\r\n", "\n");
    let at = format!("Upload-Offset: {}", field(&found, "Upload-Offset"));
    let end = curl(&[
        "-i",
        "-X",
        "PATCH",
        "-H",
        "Upload-Complete: ?1",
        "-H",
        &at,
        "-H",
        "Content-Type: application/partial-upload",
        "--data-binary",
        &rest,
        &upload,
    ]);
    assert!(end.starts_with("HTTP/1.1 201 "), "{end}");
    assert!(std::fs::read(folder.path().join("report.pdf")).expect("an object") == content);
}
