//! Joined uploads of tus with the running program: rights, quotas, `kill -9`.

use crate::program::users::{UsersFile, login, request, start};
use crate::program::{Folder, Server, drivers, pattern};
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

const TUS: &str = "Tus-Resumable: 1.0.0\r\n";

/// A request with a body. Returns its status and its `Location`.
fn send(server: &Server, line: &str, fields: &str, body: &[u8]) -> (u16, String) {
    let head = format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{TUS}{fields}\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let response = server.exchange(&[head.as_bytes(), body].concat());
    let status = response.get(9..12).and_then(|status| status.parse().ok());
    let location = response
        .lines()
        .find_map(|line| line.strip_prefix("Location: "));
    (
        status.unwrap_or_else(|| panic!("{line}: {response}")),
        location.unwrap_or_default().to_owned(),
    )
}

/// A complete partial upload.
fn partial(server: &Server, path: &str, fields: &str, content: &[u8]) -> String {
    let fields = format!(
        "{fields}Upload-Concat: partial\r\nUpload-Length: {}\r\n\
         Content-Type: application/offset+octet-stream\r\n",
        content.len()
    );
    let (status, url) = send(server, &format!("POST {path}"), &fields, content);
    assert_eq!(status, 201);
    url
}

fn join(server: &Server, path: &str, fields: &str, urls: &[&str]) -> u16 {
    let fields = format!("{fields}Upload-Concat: final;{}\r\n", urls.join(" "));
    send(server, &format!("POST {path}"), &fields, b"").0
}

fn head(server: &Server, url: &str) -> u16 {
    request(server, "HEAD", url, TUS).0
}

#[test]
fn parts_belong_to_a_user_and_rights_hold_for_the_object() {
    for driver in drivers() {
        let (folder, file) = (Folder::new(), UsersFile::new());
        file.add("bob", &["/=none", "/in=create", "/own=create,write"]);
        file.add("eve", &["/=all"]);
        folder.file("in/old", "old");
        folder.file("own/old", "old");
        let server = start(&folder, &file, driver, &["--allow", "put"]);
        let (bob, eve) = (login("bob"), login("eve"));
        let fields = format!("{bob}Upload-Concat: partial\r\nUpload-Length: 1\r\n");
        assert_eq!(send(&server, "POST /", &fields, b"").0, 403);
        let one = partial(&server, "/in/", &bob, b"1");
        let two = partial(&server, "/own/", &bob, b"2");
        let both = [&one[..], &two];
        for (user, path, status) in [
            (&eve, "/x", 404),
            (&bob, "/x", 403),
            (&bob, "/in/old", 403),
            (&String::new(), "/in/new", 401),
        ] {
            assert_eq!(join(&server, path, user, &both), status, "{user} {path}");
        }
        let deleted = send(&server, &format!("DELETE {one}"), &eve, b"");
        assert_eq!(deleted.0, 404);
        assert_eq!(join(&server, "/own/old", &bob, &both), 201);
        let joined = std::fs::read(folder.path().join("own/old"));
        assert_eq!(joined.expect("an object"), b"12");
        let old = std::fs::read(folder.path().join("in/old"));
        assert_eq!(old.expect("an object"), b"old");
    }
}

#[test]
fn a_quota_counts_what_is_joined() {
    for driver in drivers() {
        let folder = Folder::new();
        let flags = [
            "--allow",
            "put,delete",
            "--quota",
            "/=1900KB",
            "--driver",
            driver,
        ];
        let server = Server::start(folder.path(), &flags);
        let content = pattern(1, 600_000);
        // The partial uploads count as well, until they are joined.
        let one = partial(&server, "/", "", &content);
        let two = partial(&server, "/", "", &content);
        assert_eq!(join(&server, "/x", "", &[&one, &two]), 507);
        assert_eq!((head(&server, &one), head(&server, &two)), (200, 200));
        assert_eq!(join(&server, "/x", "", &[&one]), 201);
        let third = partial(&server, "/", "", &content[..200_000]);
        assert_eq!(join(&server, "/y", "", &[&two]), 507, "{driver}");
        assert_eq!(head(&server, &third), 200);
        assert_eq!(request(&server, "DELETE", "/x", "").0, 204);
        assert_eq!(join(&server, "/y", "", &[&two]), 201, "{driver}");
        assert!(std::fs::read(folder.path().join("y")).expect("an object") == content);
    }
}

/// The server is killed at any time while it joins: the object is whole or missing, and a missing
/// one can be joined again.
#[test]
fn kill_9_while_uploads_are_joined_loses_nothing() {
    for driver in drivers() {
        let folder = Folder::new();
        let flags = ["--allow", "put", "--driver", driver];
        let content = pattern(2, 12_000_000);
        let (first, second) = content.split_at(7_000_000);
        let mut server = Server::start(folder.path(), &flags);
        for round in 0..12 {
            let path = format!("/{round}");
            let one = partial(&server, &path, "", first);
            let two = partial(&server, &path, "", second);
            let mut stream = server.connect();
            let joins = format!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\n{TUS}\
                 Upload-Concat: final;{one} {two}\r\nContent-Length: 0\r\n\r\n"
            );
            stream.write_all(joins.as_bytes()).expect("sent");
            sleep(Duration::from_millis(round * 2)); // Any moment is good.
            server.child.kill().expect("killed");
            server.child.wait().expect("ended");
            server = Server::start(folder.path(), &flags);
            let object = folder.path().join(round.to_string());
            // Also if it is there: unless all was done, the client learns that.
            let again = join(&server, &path, "If-None-Match: *\r\n", &[&one, &two]);
            assert!(
                again == 201 || again == 404 && object.exists(),
                "{driver} {again}"
            );
            assert!(std::fs::read(object).expect("an object") == content);
            let staged = std::fs::read_dir(folder.path().join(".onrush/staging"));
            for own in staged.expect("a folder") {
                let files = std::fs::read_dir(own.expect("an entry").path());
                assert_eq!(files.expect("a folder").count(), 0, "{driver}");
            }
        }
    }
}
