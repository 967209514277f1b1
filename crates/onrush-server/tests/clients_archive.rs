//! Folders as archives from the real program: unpacked by `tar`, with rights by path, and in little
//! memory.

mod program;

use program::users::{UsersFile, login, request, start};
use program::{Folder, Server, TIMEOUT, drivers, is_installed, output_within, pattern};
use std::io::{Read, Write};
use std::process::{Command, Stdio};

#[test]
fn tar_unpacks_a_folder_that_is_still_being_sent() {
    if !is_installed("curl") || !is_installed("tar") {
        return;
    }
    let folder = Folder::new();
    let long = format!("photos/{}/ü <&>/{}", "long ".repeat(40), "name".repeat(50));
    for (at, name) in ["photos/a", "photos/b/c", &long].iter().enumerate() {
        folder.file(name, pattern(at as u64, 3_000_000));
    }
    for driver in drivers() {
        let into = Folder::new();
        let server = Server::start(folder.path(), &["--driver", driver]);
        let url = format!("{}/photos/?archive=tar", server.url);
        let mut curl = Command::new("curl");
        let curl = curl.args(["-sSf", &url]).stdout(Stdio::piped());
        let mut curl = curl.spawn().expect("curl");
        let mut tar = Command::new("tar");
        tar.arg("-xC").arg(into.path());
        tar.stdin(curl.stdout.take().expect("piped"));
        let output = output_within(&mut tar, TIMEOUT);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{said}");
        assert!(curl.wait().expect("curl").success());
        for name in ["photos/a", "photos/b/c", &long] {
            let (sent, got) = (folder.path().join(name), into.path().join(name));
            let modified = |path: &std::path::Path| {
                let about = std::fs::metadata(path).expect("a file");
                let since = about.modified().expect("a time").elapsed();
                since
                    .map(|since| since.as_secs() < 3600)
                    .unwrap_or_default()
            };
            assert!(
                std::fs::read(&sent).ok() == std::fs::read(&got).ok(),
                "{name}"
            );
            assert!(modified(&got), "{name}");
        }
    }
}

#[test]
fn an_archive_has_only_what_its_client_may_read() {
    let (folder, file) = (Folder::new(), UsersFile::new());
    for name in [
        "open/a.txt",
        "open/shut/b.txt",
        "open/shut/key/c.txt",
        "open/list/d.txt",
    ] {
        folder.file(name, format!("content of {name}"));
    }
    let rules = [
        "/=read,list",
        "/open/shut=none",
        "/open/shut/key=all",
        "/open/list=list",
    ];
    file.add("ann", &rules);
    file.add("bob", &["all"]);
    file.add("reader", &["read"]);
    for driver in drivers() {
        let server = start(&folder, &file, driver, &[]);
        let get = |user: &str, path: &str| request(&server, "GET", path, &login(user));
        let (status, archive) = get("ann", "/open/?archive=tar");
        assert_eq!(status, 200);
        assert!(archive.contains("content of open/a.txt"), "{archive}");
        for name in ["shut/b.txt", "shut/key", "list/d.txt"] {
            assert!(!archive.contains(name), "{name}");
        }
        let (_, archive) = get("bob", "/open/?archive=tar");
        assert!(
            archive.contains("content of open/shut/key/c.txt"),
            "{archive}"
        );
        assert_eq!(get("", "/open/?archive=tar").0, 401);
        assert_eq!(get("reader", "/open/?archive=tar").0, 403);
    }
}

/// A client that reads an archive slowly, and many clients that stop reading, cost little memory.
#[test]
fn memory_does_not_depend_on_the_folder() {
    let folder = Folder::new();
    for name in ["data/a", "data/b", "data/c"] {
        let file = std::fs::File::create(folder.file(name, "")).expect("a file");
        file.set_len(100 << 20).expect("a sparse file");
    }
    for driver in drivers() {
        let server = Server::start(folder.path(), &["--driver", driver]);
        let asks =
            b"GET /data/?archive=tar HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        server.get("/data/");
        let before_kib = server.peak_kib();
        let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.write_all(asks).expect("sent");
        }
        let mut first = clients.remove(0);
        let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
        loop {
            match first.read(&mut buffer).expect("the server sends") {
                0 => break,
                read => bytes += read,
            }
        }
        assert!(bytes > 300 << 20, "{bytes}");
        let grown_kib = server.peak_kib() - before_kib;
        assert!(grown_kib < 40 << 10, "{driver}: {grown_kib} KiB more");
    }
}

/// A file that becomes shorter while it is sent ends the connection, not the archive.
#[test]
fn an_incomplete_archive_is_noticed() {
    let folder = Folder::new();
    let path = folder.file("data/a", "");
    let file = std::fs::File::create(path).expect("a file");
    file.set_len(200 << 20).expect("a sparse file");
    let server = Server::start(folder.path(), &[]);
    let mut client = server.connect();
    let asks = b"GET /data/?archive=tar HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    client.write_all(asks).expect("sent");
    let mut buffer = vec![0; 1 << 20];
    client.read_exact(&mut buffer).expect("the beginning");
    file.set_len(1 << 20).expect("truncated");
    let mut rest = Vec::new();
    let ended = client.read_to_end(&mut rest);
    // The last chunk is missing.
    assert!(ended.is_err() || !rest.ends_with(b"\r\n0\r\n\r\n"));
}
