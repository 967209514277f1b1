//! Folders as archives from the real program: unpacked by tar, unzip, bsdtar and Python, with
//! rights by path, and in little memory.

use crate::program::users::{UsersFile, login, request, start};
use crate::program::{Folder, Server, TIMEOUT, drivers, is_installed, output_within, pattern};
use percent_encoding::percent_decode;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

/// Reads an archive from a pipe and unpacks it into the folder that is its last argument.
const UNPACK: [(&str, &str, &[&str]); 4] = [
    ("tar.zst", "tar", &["--zstd", "-xC"]),
    ("zip", "bsdtar", &["-xC"]),
    (
        "zip",
        "sh",
        &["-c", "cat > \"$0.zip\" && unzip -q \"$0.zip\" -d \"$0\""],
    ),
    ("zip", "python3", &["-c", PYTHON]),
];

const PYTHON: &str = "import io, sys, zipfile
archive = zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read()))
assert archive.testzip() is None
archive.extractall(sys.argv[1])";

/// Gets an archive and unpacks it with one of [`UNPACK`].
fn unpack(server: &Server, path: &str, program: &str, arguments: &[&str], into: &Folder) {
    let mut curl = Command::new("curl");
    let curl = curl.args(["-sSf", &format!("{}/{path}", server.url)]);
    let mut curl = curl.stdout(Stdio::piped()).spawn().expect("curl");
    let mut unpack = Command::new(program);
    unpack.args(arguments).arg(into.path());
    unpack.stdin(curl.stdout.take().expect("piped"));
    let output = output_within(&mut unpack, TIMEOUT);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.is_empty(),
        "{program}: {said}"
    );
    assert!(curl.wait().expect("curl").success());
}

#[test]
fn other_formats_have_the_same_entries() {
    let programs = ["curl", "tar", "zstd", "bsdtar", "unzip", "python3"];
    if !programs.into_iter().all(is_installed) {
        return;
    }
    let folder = Folder::new();
    // A zip has other names in place of those that Windows cannot have; see below.
    let long = format!("photos/{}/ü &;/{}", " long".repeat(40), "name".repeat(50));
    let names = ["photos/a", "photos/b/c", "photos/none", &long];
    for (at, name) in names.iter().enumerate() {
        let bytes = if name.ends_with("none") { 0 } else { 3_000_000 };
        folder.file(name, pattern(at as u64, bytes));
    }
    let days_ago = |days: u64| SystemTime::now() - Duration::from_secs(86_400 * days);
    for (name, days) in [("photos/a", 3), ("photos/b", 5), ("photos", 7)] {
        let file = std::fs::File::open(folder.path().join(name)).expect("it exists");
        file.set_modified(days_ago(days)).expect("set");
    }
    for driver in drivers() {
        let server = Server::start(folder.path(), &["--driver", driver]);
        for (format, program, arguments) in UNPACK {
            let into = Folder::new();
            unpack(
                &server,
                &format!("photos/?archive={format}"),
                program,
                arguments,
                &into,
            );
            for name in names {
                let read = |folder: &Folder| std::fs::read(folder.path().join(name)).ok();
                assert!(read(&folder) == read(&into), "{program}: {name}");
            }
            let _ = std::fs::remove_file(into.path().with_extension("zip"));
            // zipfile does not restore times.
            let restored = ["photos/a", "photos/b", "photos"];
            for name in restored.iter().filter(|_| program != "python3") {
                let modified = |folder: &Folder| {
                    let about = std::fs::metadata(folder.path().join(name)).expect("it exists");
                    let since = about.modified().expect("a time").duration_since(UNIX_EPOCH);
                    since.expect("after 1970").as_secs()
                };
                assert_eq!(modified(&folder), modified(&into), "{program}: {name}");
            }
        }
    }
}

/// Names that Windows cannot have are percent-encoded in a zip, and no two become one.
#[test]
fn every_name_is_an_entry_of_its_own() {
    let programs = ["curl", "bsdtar", "unzip", "python3"];
    if !programs.into_iter().all(is_installed) {
        return;
    }
    let folder = Folder::new();
    let long = format!("{}?{}", "x".repeat(120), ":".repeat(130));
    let names: [&[u8]; 20] = [
        b"a:b",
        b"a?b",
        b"a_b",
        b"a%3Ab",
        b"a%253Ab",
        b"a\\b",
        b"100%",
        b"con",
        b"CON",
        b"_con",
        b"%63on",
        b"nul.txt",
        b"dot",
        b"dot.",
        b"dot ",
        b"ReadMe",
        b"README",
        b"\xff",
        b"\xfe",
        long.as_bytes(),
    ];
    std::fs::create_dir(folder.path().join("top")).expect("a folder");
    for name in names {
        let folder = folder.path().join("top").join(OsStr::from_bytes(name));
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::write(folder.join(OsStr::from_bytes(name)), name).expect("a file");
    }
    let server = Server::start(folder.path(), &[]);
    for (format, program, arguments) in UNPACK.into_iter().filter(|(format, ..)| *format == "zip") {
        let into = Folder::new();
        unpack(
            &server,
            &format!("top/?archive={format}"),
            program,
            arguments,
            &into,
        );
        let mut found = BTreeSet::new();
        for entry in std::fs::read_dir(into.path().join("top")).expect("unpacked") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_vec();
            assert!(name.is_ascii() && !name.contains(&b':'), "{program}");
            let content = std::fs::read(entry.path().join(entry.file_name()));
            let content = content.unwrap_or_else(|error| panic!("{program}: {error}"));
            if content != long.as_bytes() {
                assert_eq!(percent_decode(&name).collect::<Vec<u8>>(), content);
            }
            found.insert(content);
        }
        let expected: BTreeSet<Vec<u8>> = names.map(<[u8]>::to_vec).into();
        assert_eq!(found, expected, "{program}");
        let _ = std::fs::remove_file(into.path().with_extension("zip"));
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
        for format in ["tar", "zip"] {
            let path = format!("/open/?archive={format}");
            let (status, archive) = get("ann", &path);
            assert_eq!(status, 200);
            assert!(archive.contains("content of open/a.txt"), "{archive}");
            for name in ["shut/b.txt", "shut/key", "list/d.txt"] {
                assert!(!archive.contains(name), "{name}");
            }
            let (_, archive) = get("bob", &path);
            assert!(
                archive.contains("content of open/shut/key/c.txt"),
                "{archive}"
            );
        }
        for format in ["tar", "tar.zst", "zip"] {
            let path = format!("/open/?archive={format}");
            assert_eq!(get("", &path).0, 401);
            assert_eq!(get("reader", &path).0, 403);
        }
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
    for (driver, format) in drivers()
        .into_iter()
        .flat_map(|driver| ["tar", "zip", "tar.zst"].map(|format| (driver, format)))
    {
        let server = Server::start(folder.path(), &["--driver", driver]);
        let asks = format!(
            "GET /data/?archive={format} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        );
        server.get("/data/");
        let before_kib = server.peak_kib();
        let mut clients: Vec<_> = (0..20).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.write_all(asks.as_bytes()).expect("sent");
        }
        let (mut buffer, mut heads) = (vec![0; 1 << 20], [0; 12]);
        let mut accepted = 0;
        for client in &mut clients {
            client.read_exact(&mut heads).expect("a head");
            match &heads[9..] {
                b"200" => accepted += 1,
                refused => assert_eq!((refused, format), (&b"429"[..], "tar.zst")),
            }
        }
        assert!(
            accepted == 20 || (format == "tar.zst" && accepted == 4),
            "{accepted}"
        );
        let mut first = clients.remove(0);
        let mut bytes = 0;
        loop {
            match testing::read_some(&mut first, &mut buffer).expect("the server sends") {
                0 => break,
                read => bytes += read,
            }
        }
        if format != "tar.zst" {
            assert!(bytes > 300 << 20, "{bytes}");
        }
        // Compression has a budget of 32 MiB.
        let grown_kib = server.peak_kib() - before_kib;
        assert!(
            grown_kib < 60 << 10,
            "{driver}, {format}: {grown_kib} KiB more"
        );
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
