//! Every example does what its first lines say, on both drivers.
//!
//! Cargo builds the examples together with the tests, into a neighbouring folder.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testing::example::{Example, program};

const DRIVERS: [&str; 2] = ["epoll", "auto"];

fn content(response: &str) -> &str {
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    response.split_once("\r\n\r\n").unwrap().1
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn files_serves_a_folder_beneath_a_path() {
    for driver in DRIVERS.into_iter().filter(|_| Example::is_built("files")) {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let example = Example::start("files", driver, 1, &[dir]);
        assert!(content(&example.get("/")).contains("<title>Home</title>"));
        assert!(content(&example.get("/files/")).contains("main.rs"));
        assert_eq!(
            content(&example.get("/files/main.rs")),
            include_str!("../../src/main.rs")
        );
    }
}

/// Examples that another test file runs, and their names there.
const ELSEWHERE: &[(&str, &str)] = &[
    ("coroutine", "Example::start(\"coroutine\""),
    ("http_threads", "both(\"http\""),
    ("http_coroutines", "both(\"http\""),
    ("lines_threads", "both(\"lines\""),
    ("lines_coroutines", "both(\"lines\""),
];
const ELSEWHERE_FILE: &str = "crates/onrush/tests/ported.rs";

#[test]
fn every_example_is_run_by_a_test() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let own = include_str!("examples.rs");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(format!("{root}/examples")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        // `ported` has the common sources of some.
        names.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    for (name, _) in ELSEWHERE {
        assert!(names.iter().any(|known| known == name), "no example {name}");
    }
    let other = std::fs::read_to_string(format!("{root}/{ELSEWHERE_FILE}")).unwrap();
    for name in &names {
        let covered = match ELSEWHERE.iter().find(|(known, _)| known == name) {
            None => own.contains(&format!("Example::start(\"{name}\"")),
            Some((_, text)) => other.contains(text),
        };
        assert!(covered, "examples/{name}.rs is run by no test");
    }
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn hello_examples_greet() {
    for driver in DRIVERS {
        if Example::is_built("hello") {
            let hello = Example::start("hello", driver, 1, &[]);
            assert_eq!(content(&hello.get("/")), "Hello, World!");
        }
        if Example::is_built("hello_single_thread") {
            let single = Example::start("hello_single_thread", driver, 1, &[]);
            assert_eq!(content(&single.get("/")), "Hello, visitor 1!\n");
            assert_eq!(content(&single.get("/")), "Hello, visitor 2!\n");
        }
        if Example::is_built("plaintext") {
            let plaintext = Example::start("plaintext", driver, 1, &[]);
            assert_eq!(content(&plaintext.get("/plaintext")), "Hello, World!");
            assert!(plaintext.get("/json").contains("application/json"));
        }
    }
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn axum_counts_and_repeats() {
    for driver in DRIVERS.into_iter().filter(|_| Example::is_built("axum")) {
        let example = Example::start("axum", driver, 2, &[]);
        for count in 1..=3 {
            let post = "POST /counts/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let response = String::from_utf8(example.ask(post)).unwrap();
            assert_eq!(content(&response), format!("{count}\n"));
        }
        assert_eq!(content(&example.get("/counts")), r#"{"a":3}"#);
        let mut events = example.connect();
        events
            .write_all(b"GET /watch HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut lines = BufReader::new(&events).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "data: 3"));
        assert!(example.get("/chat").starts_with("HTTP/1.1 400 "));
    }
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn tls_reports_the_session() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    for driver in DRIVERS.into_iter().filter(|_| Example::is_built("tls")) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let name = format!("example-tls-{driver}-{}", std::process::id());
        let (certificate, key) = (
            folder.join(name.clone() + ".pem"),
            folder.join(name + ".key"),
        );
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let paths = [certificate.to_str().unwrap(), key.to_str().unwrap()];
        let example = Example::start("tls", driver, 1, &paths);
        assert!(example.get("/").starts_with("HTTP/1.1 400 "));
        let url = format!("https://localhost:{}/", example.port);
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20", "--cacert", paths[0], &url]);
        if let Ok(output) = curl.output() {
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.starts_with("TLSv1.3 with TLS_"), "{text}");
            assert!(
                text.ends_with(", resumed: false, client: no certificate\n"),
                "{text}"
            );
        }
        for path in paths {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn echo_stream_responds_while_it_receives() {
    for driver in DRIVERS
        .into_iter()
        .filter(|_| Example::is_built("echo_stream"))
    {
        let example = Example::start("echo_stream", driver, 1, &[]);
        let stream = example.connect();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        (&stream).write_all(head.as_bytes()).unwrap();
        (&stream).write_all(b"5\r\nfirst\r\n").unwrap();
        let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
        // The first piece is returned before the second is sent.
        assert!(lines.by_ref().any(|line| line == "first"));
        (&stream).write_all(b"6\r\nsecond\r\n0\r\n\r\n").unwrap();
        assert!(lines.by_ref().any(|line| line == "second"));
        assert!(lines.any(|line| line == "0"));
    }
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn offload_gives_the_same_data_on_every_thread() {
    for driver in DRIVERS.into_iter().filter(|_| Example::is_built("offload")) {
        let pool = ["--threads", "1", "--queue", "5", "--wait-ms", "60000"];
        let example = Example::start("offload", driver, 1, &pool);
        assert_eq!(content(&example.get("/ping")), "pong\n");
        let data = example.get("/data");
        assert_eq!(content(&data).len(), 17, "{data}");
        assert_eq!(content(&example.get("/data")), content(&data));
        // The metric changes a moment after the result.
        let done = "\nonrush_offload_run_seconds_count 2\n";
        let end = Instant::now() + Duration::from_secs(20);
        while !example.get("/metrics").contains(done) {
            assert!(Instant::now() < end, "{}", example.get("/metrics"));
            std::thread::sleep(Duration::from_millis(10));
        }
        let inline = Example::start("offload", driver, 1, &["--inline"]);
        assert_eq!(content(&inline.get("/data")).len(), 17);
        let page = inline.get("/metrics");
        assert!(page.contains("\nonrush_offload_threads 0\n"), "{page}");
    }
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn offload_reports_wrong_flags() {
    let wrong: [&[&str]; 4] = [
        &["--queue"],
        &["--queue", "x"],
        &["--threads", "0"],
        &["-x"],
    ];
    for flags in wrong.into_iter().filter(|_| Example::is_built("offload")) {
        let output = Command::new(program("offload"))
            .arg("0")
            .args(flags)
            .output();
        let output = output.expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains(flags[0]) && said.contains("usage: "),
            "{said}"
        );
    }
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn graceful_shutdown_responds_first() {
    for driver in DRIVERS
        .into_iter()
        .filter(|_| Example::is_built("graceful_shutdown"))
    {
        let mut example = Example::start("graceful_shutdown", driver, 1, &[]);
        let mut stream = example.connect();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        stream.write_all(request).unwrap();
        let mut lines = BufReader::new(&mut stream).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "Done."));
        // What is sent on an open connection before the signal is served.
        stream.write_all(request).unwrap();
        let id = example.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-TERM", &id])
                .status()
                .unwrap()
                .success()
        );
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        assert_eq!(content(&response), "Done.\n");
        assert!(example.child.wait().unwrap().success());
    }
}

/// Waits until `folder` has this many files.
fn wait_for_files(folder: &Path, count: usize) {
    let end = Instant::now() + Duration::from_secs(20);
    while std::fs::read_dir(folder).unwrap().count() != count {
        assert!(Instant::now() < end, "not {count} files");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A request of the example `service`, with its token.
fn of_service(line: &str, rest: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nConnection: close\r\n{rest}")
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn service_keeps_files_of_those_who_know_the_token() {
    for driver in DRIVERS.into_iter().filter(|_| Example::is_built("service")) {
        let name = format!("example-service-{driver}-{}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let arguments = [folder.to_str().unwrap(), "t"];
        let mut example = Example::start("service", driver, 2, &arguments);
        let ask = |line: &str, rest: &str| {
            String::from_utf8(example.ask(of_service(line, rest))).unwrap()
        };
        assert!(example.get("/files/a").starts_with("HTTP/1.1 401 "));
        let put = "Content-Length: 5\r\n\r\nhello";
        assert!(ask("PUT /files/a", put).starts_with("HTTP/1.1 204 "));
        assert!(ask("PUT /files/.a", put).starts_with("HTTP/1.1 404 "));
        assert!(ask("PUT /files/..%2Fa", put).starts_with("HTTP/1.1 404 "));
        assert_eq!(content(&ask("GET /files/a", "\r\n")), "hello");
        let part = ask("GET /files/a", "Range: bytes=1-2\r\n\r\n");
        assert!(part.starts_with("HTTP/1.1 206 ") && part.ends_with("\r\n\r\nel"));
        assert!(ask("GET /files/b", "\r\n").starts_with("HTTP/1.1 404 "));
        // FNV-1a of 64 bits.
        assert_eq!(
            content(&ask("GET /files/a/sum", "\r\n")),
            "a430d84680aabd0b\n"
        );
        // An upload that breaks off leaves nothing.
        let mut stream = example.connect();
        let half = of_service("PUT /files/c", "Content-Length: 9\r\n\r\nhalf");
        stream.write_all(half.as_bytes()).unwrap();
        wait_for_files(&folder, 2);
        drop(stream);
        wait_for_files(&folder, 1);
        let mut watch = example.connect();
        let get = of_service("GET /files", "\r\n");
        watch.write_all(get.as_bytes()).unwrap();
        let mut lines = BufReader::new(&watch).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "data: 1"));
        assert!(example.get("/metrics").contains("onrush_"));
        // The events end when the server does.
        let id = example.child.id().to_string();
        let kill = Command::new("kill").args(["-TERM", &id]).status();
        assert!(kill.unwrap().success());
        assert!(lines.any(|line| line == "0"));
        assert!(example.child.wait().unwrap().success());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// Every `cargo run … --example NAME` in the README names an existing example of the named package,
/// or of the default package.
#[test]
fn readme_runs_existing_examples() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| {
        std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let readme = read("README.md");
    let mut found = 0;
    for command in readme.split("cargo run").skip(1) {
        let end = command.find(['`', '#', '&', '|']).unwrap_or(command.len());
        let words: Vec<&str> = command[..end].split_whitespace().collect();
        let after = |option: &str| {
            let at = words.iter().position(|word| *word == option)?;
            words.get(at + 1).copied()
        };
        let Some(example) = after("--example") else {
            continue;
        };
        let package = after("-p").or(after("--package"));
        let manifest = format!("crates/{}/Cargo.toml", package.unwrap_or("onrush-server"));
        let entry = format!("[[example]]\nname = \"{example}\"\n");
        assert!(
            read(&manifest).contains(&entry),
            "{words:?}: no such example"
        );
        found += 1;
    }
    assert!(found > 0, "the README shows no example");
    let members = "default-members = [\"crates/onrush-server\"]";
    assert!(
        read("Cargo.toml").contains(members),
        "the default package has changed"
    );
}
