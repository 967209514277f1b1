//! Files as responses with conditions and ranges (`ServedFile`).

use crate::common::{
    check_shrinking_file, content, drivers, pattern, plain, serve, text, watchdog,
};
use onrush::{Limits, Request, Response, Router, ServedFile, sim::Simulation};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use testing::TempDir;

/// 06 Nov 1994 08:49:37.
const MODIFIED_S: u64 = 784_111_777;
const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

/// Writes a file that was modified in 1994.
fn write(path: &Path, bytes: &[u8]) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED_S);
    file.set_modified(modified).unwrap();
}

fn open(path: &Path) -> ServedFile {
    ServedFile::new(fs::File::open(path).unwrap()).unwrap()
}

/// The tag of a file, once it is old enough to have one.
fn tag(path: &Path) -> String {
    loop {
        match open(path).etag() {
            Some(tag) => return tag,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// Responds with the file at `folder`, or one beneath it.
fn application(folder: PathBuf) -> Router {
    let respond = move |request: Request| {
        let name = request.param_decoded("name").unwrap_or_default();
        let path = folder.join(&*name);
        async move {
            let file = ServedFile::open(request.worker(), path).await?;
            let file = file.content_type("text/plain");
            let file = file.with_header("Content-Language", "en");
            let file = file.with_header("Cache-Control", "no-cache");
            io::Result::Ok(file.respond(&request))
        }
    };
    Router::new()
        .get("/hello", async |_: Request| Response::text("hello"))
        .any("/files/{name}", respond)
}

/// Checks the same on all drivers and on the simulator. `check` gets a function from a request to
/// the response.
fn on_each(folder: &Path, check: impl Fn(&mut dyn FnMut(&str) -> Vec<u8>)) {
    for driver in drivers() {
        let server = serve(driver, application(folder.to_owned()));
        check(&mut |request| {
            let mut stream = server.connect();
            stream.write_all(request.as_bytes()).unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).unwrap();
            response
        });
    }
    let mut sim = Simulation::new(3, &application(folder.to_owned()), Limits::default());
    check(&mut |request| {
        let client = sim.connect();
        sim.send(&client, request.as_bytes());
        let mut response = Vec::new();
        while !client.at_end() {
            sim.run();
            response.extend(client.receive().unwrap());
        }
        response
    });
}

fn request(method: &str, name: &str, fields: &str) -> String {
    format!("{method} /files/{name} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n{fields}\r\n")
}

/// The value of a field of the first head.
fn field(response: &[u8], name: &str) -> Option<String> {
    let head = text(response);
    let (head, _) = head.split_once("\r\n\r\n").expect("a whole head");
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let mut found = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
    let value = found.next().map(|(_, value)| value.to_owned());
    assert_eq!(found.next(), None, "{head}");
    value
}

#[track_caller]
fn status(response: &[u8]) -> u16 {
    let head = text(response);
    head[9..12].parse().expect("a status")
}

#[test]
fn a_file_is_sent_whole_in_one_part_or_not_at_all() {
    let _dog = watchdog("a_file_is_sent_whole_in_one_part_or_not_at_all");
    let folder = TempDir::new();
    let path = folder.path().join("file");
    let bytes = pattern(300_000);
    write(&path, &bytes);
    let tag = tag(&path);
    let range = "Range: bytes=1000-200999\r\n";
    let part = (206, &bytes[1000..201_000], Some("bytes 1000-200999/300000"));
    let whole = (200, &bytes[..], None);
    let rows = [
        (String::new(), whole),
        (range.to_owned(), part),
        (
            "Range: bytes=-10\r\n".to_owned(),
            (206, &bytes[299_990..], Some("bytes 299990-299999/300000")),
        ),
        (
            "Range: bytes=299999-\r\n".to_owned(),
            (206, &bytes[299_999..], Some("bytes 299999-299999/300000")),
        ),
        (format!("{range}If-Range: {tag}\r\n"), part),
        (format!("{range}If-Range: {DATE}\r\n"), part),
        (format!("{range}If-Range: \"other\"\r\n"), whole),
        (format!("{range}If-Range: {EARLIER}\r\n"), whole),
        (format!("{range}If-Match: {tag}\r\n"), part),
        (format!("If-None-Match: {tag}\r\n{range}"), (304, b"", None)),
        (format!("If-None-Match: W/{tag}\r\n"), (304, &b""[..], None)),
        ("If-None-Match: \"other\"\r\n".to_owned(), whole),
        (format!("If-Modified-Since: {DATE}\r\n"), (304, b"", None)),
        (format!("If-Modified-Since: {EARLIER}\r\n"), whole),
    ];
    on_each(folder.path(), |ask| {
        for (fields, (expected, sent, content_range)) in &rows {
            let response = ask(&request("GET", "file", fields));
            assert_eq!(status(&response), *expected, "{fields}");
            assert!(content(&response) == *sent, "{fields}");
            let is_304 = *expected == 304;
            for (name, value) in [
                ("ETag", Some(&tag[..])),
                ("Last-Modified", Some(DATE)),
                ("Accept-Ranges", Some("bytes")),
                ("Cache-Control", Some("no-cache")),
                ("Content-Range", *content_range),
                ("Content-Type", Some("text/plain").filter(|_| !is_304)),
                ("Content-Language", Some("en").filter(|_| !is_304)),
            ] {
                let found = field(&response, name);
                assert_eq!(found.as_deref(), value, "{name}: {fields}");
            }
        }
    });
}

#[test]
fn a_request_that_cannot_be_fulfilled_has_no_part_of_the_file() {
    let _dog = watchdog("a_request_that_cannot_be_fulfilled_has_no_part_of_the_file");
    let folder = TempDir::new();
    write(&folder.path().join("file"), b"0123456789");
    on_each(folder.path(), |ask| {
        let response = ask(&request("GET", "file", "Range: bytes=10-\r\n"));
        assert_eq!(status(&response), 416);
        let content_range = field(&response, "Content-Range");
        assert_eq!(content_range.as_deref(), Some("bytes */10"));
        assert_eq!(
            content(&response),
            b"the range contains no byte of the file\n"
        );

        let response = ask(&request("GET", "file", "If-Match: \"other\"\r\n"));
        assert_eq!(status(&response), 412);
        let says = b"a precondition of the request does not hold\n";
        assert_eq!(content(&response), says);

        let response = ask(&request("POST", "file", "Content-Length: 0\r\n"));
        assert_eq!(status(&response), 405);
        assert_eq!(field(&response, "Allow").as_deref(), Some("GET, HEAD"));
    });
}

#[test]
fn head_has_the_fields_of_the_whole_file_without_content() {
    let _dog = watchdog("head_has_the_fields_of_the_whole_file_without_content");
    let folder = TempDir::new();
    write(&folder.path().join("file"), b"0123456789");
    on_each(folder.path(), |ask| {
        for fields in ["", "Range: bytes=2-3\r\n", "Range: bytes=10-\r\n"] {
            let response = ask(&request("HEAD", "file", fields));
            assert_eq!(status(&response), 200, "{fields}");
            assert_eq!(content(&response), b"");
            assert_eq!(field(&response, "Content-Length").as_deref(), Some("10"));
            assert_eq!(field(&response, "Content-Range"), None);
            assert_eq!(
                field(&response, "Content-Type").as_deref(),
                Some("text/plain")
            );
        }
        let response = ask(&request("HEAD", "file", "If-Match: \"other\"\r\n"));
        assert_eq!((status(&response), content(&response)), (412, &b""[..]));
    });
}

#[test]
fn several_ranges_are_parts_with_heads_of_their_own() {
    let _dog = watchdog("several_ranges_are_parts_with_heads_of_their_own");
    let folder = TempDir::new();
    let bytes = pattern(100_000);
    write(&folder.path().join("file"), &bytes);
    on_each(folder.path(), |ask| {
        let fields = "Range: bytes=0-9, 50000-59999, -5, 55000-60999\r\n";
        let response = ask(&request("GET", "file", fields));
        assert_eq!(status(&response), 206);
        assert_eq!(field(&response, "Content-Range"), None);
        assert_eq!(field(&response, "Content-Language").as_deref(), Some("en"));
        let content_type = field(&response, "Content-Type").expect("a type");
        let boundary = content_type
            .strip_prefix("multipart/byteranges; boundary=")
            .expect("several parts");
        let mut expected = Vec::new();
        for range in [0..10, 50_000..61_000, 99_995..100_000] {
            let (first, last) = (range.start, range.end - 1);
            let head = format!(
                "\r\n--{boundary}\r\nContent-Type: text/plain\r\n\
                 Content-Range: bytes {first}-{last}/100000\r\n\r\n"
            );
            expected.extend_from_slice(head.as_bytes());
            expected.extend_from_slice(&bytes[range]);
        }
        expected.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
        assert!(content(&response) == expected);
        let length = field(&response, "Content-Length");
        assert_eq!(length, Some(expected.len().to_string()));
    });
}

#[test]
fn an_empty_file_is_sent_and_has_no_ranges() {
    let _dog = watchdog("an_empty_file_is_sent_and_has_no_ranges");
    let folder = TempDir::new();
    write(&folder.path().join("file"), b"");
    on_each(folder.path(), |ask| {
        for (fields, expected) in [
            ("", 200),
            ("Range: bytes=-5\r\n", 200),
            ("Range: bytes=0-\r\n", 416),
        ] {
            let response = ask(&request("GET", "file", fields));
            assert_eq!(status(&response), expected, "{fields}");
            if expected == 200 {
                assert_eq!(field(&response, "Content-Length").as_deref(), Some("0"));
                assert_eq!(content(&response), b"");
            } else {
                let content_range = field(&response, "Content-Range");
                assert_eq!(content_range.as_deref(), Some("bytes */0"));
            }
        }
    });
}

#[test]
fn what_is_no_regular_file_is_not_found_and_not_waited_for() {
    let _dog = watchdog("what_is_no_regular_file_is_not_found_and_not_waited_for");
    let folder = TempDir::new();
    write(&folder.path().join("file"), b"content");
    fs::create_dir(folder.path().join("folder")).unwrap();
    let mode = rustix::fs::Mode::RUSR;
    let fifo = folder.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let _socket = UnixListener::bind(folder.path().join("socket")).unwrap();
    std::os::unix::fs::symlink("/dev/null", folder.path().join("device")).unwrap();
    std::os::unix::fs::symlink("file", folder.path().join("link")).unwrap();
    std::os::unix::fs::symlink("circle", folder.path().join("circle")).unwrap();
    let long = "x".repeat(300);
    on_each(folder.path(), |ask| {
        let names = [
            "folder", "fifo", "socket", "device", "circle", "missing", "file%2Fa", "a%00b",
        ];
        for name in names.into_iter().chain([&long[..]]) {
            let response = ask(&request("GET", name, ""));
            assert_eq!(status(&response), 404, "{name}");
            assert_eq!(content(&response), b"not found\n");
        }
        let response = ask(&request("GET", "link", ""));
        assert_eq!(
            (status(&response), content(&response)),
            (200, &b"content"[..])
        );
    });
    let opened = ServedFile::new(fs::File::open(folder.path()).unwrap());
    let error = opened.expect_err("a folder");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_changed_or_replaced_file_of_the_same_size_and_time_has_another_tag() {
    let _dog = watchdog("a_changed_or_replaced_file_of_the_same_size_and_time_has_another_tag");
    let folder = TempDir::new();
    let (path, other) = (folder.path().join("file"), folder.path().join("other"));
    write(&path, b"one");
    write(&other, b"two");
    let first = tag(&path);
    assert_eq!(first, tag(&path));
    write(&path, b"new");
    let changed = tag(&path);
    assert_ne!(first, changed);
    fs::rename(&other, &path).unwrap();
    let replaced = tag(&path);
    assert!(replaced != first && replaced != changed);
    let file = open(&path);
    assert_eq!(file.size(), 3);
    let modified = file.modified().duration_since(SystemTime::UNIX_EPOCH);
    assert_eq!(modified.unwrap().as_secs(), MODIFIED_S);
}

#[test]
fn a_served_file_that_shrinks_meanwhile_resets_the_connection() {
    let _dog = watchdog("a_served_file_that_shrinks_meanwhile_resets_the_connection");
    const LARGE: u64 = 64 << 20;
    let folder = TempDir::new();
    let path = folder.path().join("file");
    let resize = |bytes| {
        let mut how = fs::File::options();
        let file = how.create(true).truncate(false).write(true).open(&path);
        file.unwrap().set_len(bytes).unwrap();
    };
    let ask = request("GET", "file", "Range: bytes=1-\r\n");
    for driver in drivers() {
        resize(LARGE);
        let server = serve(driver, application(folder.path().to_owned()));
        check_shrinking_file(&server, &ask, LARGE, || resize(100_000));
    }
    resize(LARGE);
    let app = application(folder.path().to_owned());
    let mut sim = Simulation::builder(1).network(plain(1 << 16)).start(&app);
    let client = sim.connect();
    sim.send(&client, ask.as_bytes());
    assert!(!client.receive().unwrap().is_empty());
    resize(100_000);
    let ended = (0..10).any(|_| {
        sim.run();
        client.receive().is_err()
    });
    assert!(ended);
    assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
}
