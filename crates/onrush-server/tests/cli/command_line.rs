//! The command line of the real binary: help pages, sources of options, and errors.

use crate::program::{Folder, Server, TIMEOUT, onrush, output};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn page(arguments: &[&str]) -> String {
    let output = output(onrush().args(arguments));
    assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    assert!(
        output.stderr.is_empty(),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs a command that must fail, and returns its single line.
fn error_line(command: &mut Command, code: i32) -> String {
    let output = output(command);
    let line = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {line}");
    assert!(output.stdout.is_empty(), "{command:?}");
    assert!(
        line.starts_with("onrush: ") && line.ends_with('\n'),
        "{command:?}: {line:?}"
    );
    let shown = line.trim_end_matches('\n');
    assert!(!shown.contains(char::is_control), "{command:?}: {line:?}");
    for debug in ["Error {", "Custom", "Os {", "panicked", "os error"] {
        assert!(!shown.contains(debug), "debug output in a message: {line}");
    }
    shown.to_owned()
}

fn usage_error(arguments: &[&str]) -> String {
    error_line(onrush().args(arguments), 2)
}

fn runtime_error(arguments: &[&str]) -> String {
    error_line(onrush().args(arguments), 1)
}

#[test]
fn help_version_and_manual_are_printed() {
    let help = page(&["--help"]);
    let parts = [
        "What to serve:",
        "  [DIR]",
        "--allow",
        "Where to listen:",
        "--bind",
        "Limits:",
        "--drain-timeout",
        "Logging:",
        "--access-log",
        "Tuning:",
        "--workers",
        "Other:",
        "Example:",
    ];
    let mut rest = &help[..];
    for part in parts {
        let (_, tail) = (rest.split_once(part))
            .unwrap_or_else(|| panic!("{part:?} is missing, or out of order:\n{help}"));
        rest = tail;
    }
    assert!(
        help.lines().all(|line| line.chars().count() <= 100),
        "{help}"
    );
    assert!(page(&["-h"]).len() < help.len());
    assert_eq!(
        page(&["--version"]),
        format!("onrush {}\n", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(page(&["-V"]), page(&["--version"]));
    assert!(page(&["--man"]).contains(".TH onrush 1"));
    for (shell, mark) in [
        ("bash", "_onrush()"),
        ("zsh", "#compdef onrush"),
        ("fish", "-c onrush"),
    ] {
        let script = page(&["--completions", shell]);
        assert!(
            script.contains(mark) && script.contains("drain-timeout"),
            "{shell}"
        );
    }
}

#[test]
fn closed_output_is_not_an_error() {
    let mut shell = Command::new("bash");
    let binary = env!("CARGO_BIN_EXE_onrush");
    let script = format!("'{binary}' --man | true; exit ${{PIPESTATUS[0]}}");
    let output = output(shell.args(["-c", &script]));
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(0), String::new())
    );
}

/// Starts a server with options from these sources.
fn serving(flags: &[&str], environment: &[(&str, &str)], file: &str) -> Server {
    let (folder, outside) = (Folder::new(), Folder::new());
    let config = outside.file("onrush.toml", file);
    let mut command = onrush();
    command.arg("--config").arg(&config).args(flags);
    command
        .envs(environment.iter().copied())
        .current_dir(folder.path());
    let server = Server::run(command);
    server.logs(" serving ");
    server
}

#[test]
fn flag_overrides_environment_overrides_file_overrides_default() {
    let file = "port = 0\nworkers = 3\ndriver = 'epoll'\nallow = ['put']\nlog-format = 'text'\n";
    let log = serving(&[], &[], "port = 0").log();
    assert!(
        log.contains(" allowed=get ") && log.contains(" store=. "),
        "{log}"
    );

    let log = serving(&[], &[], file).log();
    assert!(log.contains(" workers=3"), "{log}");
    assert!(
        log.contains(" driver=epoll ") && log.contains(" allowed=\"get, put\" "),
        "{log}"
    );

    let environment = [
        ("ONRUSH_WORKERS", "2"),
        ("ONRUSH_ALLOW", "put,delete"),
        ("ONRUSH_DRIVER", "auto"),
    ];
    let log = serving(&[], &environment, file).log();
    assert!(
        log.contains(" workers=2") && log.contains("\"get, put, delete\""),
        "{log}"
    );
    assert!(!log.contains("selected explicitly"), "{log}");

    let flags = ["--workers", "1", "--allow", "none", "--driver", "epoll"];
    let log = serving(&flags, &environment, file).log();
    assert!(
        log.contains(" workers=1") && log.contains(" allowed=get "),
        "{log}"
    );
    assert!(log.contains("reason=\"selected explicitly\""), "{log}");
}

#[test]
fn switches_can_be_disabled_again() {
    let folder = Folder::new();
    folder.file(".hidden", "secret");
    let config = folder.file("onrush.toml", "port = 0\nhidden = true\n");
    let start = |flags: &[&str], environment: &[(&str, &str)]| {
        let mut command = onrush();
        command
            .arg(folder.path())
            .arg("-c")
            .arg(&config)
            .args(flags);
        command.envs(environment.iter().copied());
        let response = Server::run(command).get("/.hidden");
        response.starts_with("HTTP/1.1 200")
    };
    assert!(start(&[], &[]));
    assert!(!start(&[], &[("ONRUSH_HIDDEN", "false")]));
    assert!(start(&["--hidden"], &[("ONRUSH_HIDDEN", "0")]));
    assert!(!start(&["--hidden=off"], &[("ONRUSH_HIDDEN", "1")]));
}

#[test]
fn environment_may_name_the_file_and_the_file_the_folder() {
    let folder = Folder::new();
    folder.file("served/hello.txt", "hello");
    let dir = folder.path().join("served");
    let config = folder.file(
        "c.toml",
        format!("port = 0\ndir = {:?}\n", dir.to_str().unwrap()),
    );
    let mut command = onrush();
    command.env("ONRUSH_CONFIG", &config);
    assert!(
        Server::run(command)
            .get("/hello.txt")
            .ends_with("\r\n\r\nhello")
    );
    let mut command = onrush();
    command
        .env("ONRUSH_CONFIG", &config)
        .env("ONRUSH_DIR", folder.path());
    assert!(
        Server::run(command)
            .get("/served/hello.txt")
            .ends_with("\r\n\r\nhello")
    );
}

#[test]
fn limits_of_flags_take_effect() {
    let folder = Folder::new();
    let start = |flags: &[&str]| Server::start(folder.path(), &[flags, &["--allow=put"]].concat());
    let half = b"PUT /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 11\r\n\r\nhello";

    let server = start(&["--body-max", "10B", "--header-timeout", "200ms"]);
    let response = server.exchange(half);
    assert!(response.starts_with("HTTP/1.1 413"), "{response}");
    let response = server.exchange(b"GET / HTTP/1.1\r\nHos");
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");

    let response =
        start(&["--idle-timeout", "200ms"]).exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(
        response.starts_with("HTTP/1.1 200"),
        "the connection closes: {response}"
    );
    let response = start(&["--body-timeout", "200ms"]).exchange(half);
    assert!(response.starts_with("HTTP/1.1 408"), "{response}");
    // No response: the connection ends.
    let server = start(&["--total-timeout", "200ms"]);
    let mut stream = server.connect();
    stream.write_all(half).expect("sent");
    let mut response = Vec::new();
    let ended = stream.read_to_end(&mut response);
    let timed_out = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    assert!(!ended.is_err_and(|error| timed_out(&error)) && response.is_empty());

    // A connection with a started request stays, and a new one is rejected.
    let server = start(&["--connections-max", "1", "--workers", "1"]);
    let mut first = server.connect();
    first.write_all(b"GET").expect("sent");
    let response = server.exchange(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(response.starts_with("HTTP/1.1 503"), "{response}");
    drop(first);

    // A silent connection is closed for a new one, whenever it was accepted.
    for defer in ["--defer-accept=on", "--defer-accept=off"] {
        let server = start(&["--connections-max", "1", "--workers", "1", defer]);
        let first = server.connect();
        let response = server.get("/");
        assert!(response.starts_with("HTTP/1.1 200"), "{defer}: {response}");
        drop(first);
    }
}

#[test]
fn wrong_usage_gives_one_line_and_exit_2() {
    assert!(usage_error(&["--prot", "80"]).contains("'--port'"));
    assert!(usage_error(&["--port", "65536"]).contains("--port"));
    assert!(usage_error(&["--driver", "kqueue"]).contains("auto, io_uring, epoll"));
    assert!(usage_error(&["one", "two"]).contains("'two'"));
    assert!(usage_error(&["--port"]).contains("--port"));
    assert!(usage_error(&["--idle-timeout", "30"]).contains("30s"));
    assert!(usage_error(&["--body-max", "10X"]).contains("MiB"));
    assert!(usage_error(&["--workers", "0"]).contains("workers"));
    assert!(usage_error(&["--bind", "127.0.0.1:x"]).contains("from 0 to 65535"));
    assert!(usage_error(&["--bind", "a:b:80"]).contains("HOST:PORT"));
    assert!(usage_error(&["--ring-buffers", "100"]).contains("ring-buffers"));
    assert!(usage_error(&["--completions", "tcsh"]).contains("zsh"));
    usage_error(&["--port", "1\x1b[31m\x07\r\n2"]);
    usage_error(&["--\u{9b}31m\u{202e}"]);
    let line = error_line(onrush().env("ONRUSH_PORT", "no"), 2);
    assert!(line.contains("ONRUSH_PORT"), "{line}");
    let line = error_line(onrush().env("ONRUSH_PORT", "1").args(["--port", "no"]), 2);
    assert!(!line.contains("ONRUSH_PORT"), "{line}");
}

#[test]
fn invalid_file_gives_one_line_and_exit_2() {
    let folder = Folder::new();
    let complaint = |content: &[u8]| {
        let path = folder.file("wrong.toml", content);
        error_line(onrush().arg("-c").arg(path), 2)
    };
    let line = complaint(b"port = 1\nprot = 2\n");
    assert!(line.contains("wrong.toml:2: unknown key `prot`"), "{line}");
    assert!(complaint(b"\n\nport = 'http'\n").contains("wrong.toml:3: port: "));
    assert!(complaint(b"header_timeout = '1s'\n").contains("`header_timeout`"));
    assert!(complaint(b"port = \n").contains("wrong.toml:1: "));
    assert!(complaint(b"workers = 0\n").contains("workers"));
    assert!(complaint(b"\xff\xfe").contains("wrong.toml"));
    assert!(complaint(b"\"a\\u001b[31m\" = 1\n").contains("unknown key"));
    assert!(usage_error(&["-c", "/nowhere/x.toml"]).contains("/nowhere/x.toml"));
    assert!(usage_error(&["-c", "/nowhere/\x1b]0;x\x07\n.toml"]).contains("\\u{1b}]0;x"));
}

#[test]
fn missing_folder_is_created_only_if_writing_is_allowed() {
    let folder = Folder::new();
    let missing = folder.path().join("a/b");
    let name = missing.to_str().unwrap();
    let line = runtime_error(&[name, "--port", "0"]);
    assert!(line.contains(name), "{line}");
    assert!(
        line.contains("--allow"),
        "the message says what to do: {line}"
    );
    assert!(!missing.exists());
    drop(Server::start(&missing, &["--allow", "put"]));
    assert!(missing.is_dir());

    let file = folder.file("file", "x");
    let line = runtime_error(&[file.to_str().unwrap(), "--port", "0"]);
    assert!(line.contains("not a"), "{line}");
    runtime_error(&[file.to_str().unwrap(), "--port", "0", "--allow", "put"]);
    let line = runtime_error(&["/nowhere/\x1b[2J\n\r\u{202e}x", "--port", "0"]);
    assert!(!line.contains('\u{202e}'), "{line:?}");
}

/// The program must fail with the right message, because `port` is in use.
fn occupied(port: u16) {
    let folder = Folder::new();
    let port = port.to_string();
    for workers in ["1", "2"] {
        let mut command = onrush();
        command
            .arg(folder.path())
            .args(["--port", &port, "--workers", workers]);
        let line = error_line(&mut command, 1);
        assert!(line.contains(&port) && line.contains("in use"), "{line}");
    }
}

#[test]
fn port_in_use_gives_one_line_and_exit_1() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    occupied(listener.local_addr().unwrap().port());
}

#[test]
fn port_that_another_process_could_share_is_in_use() {
    let folder = Folder::new();
    // With two workers it listens with SO_REUSEPORT, and both servers have the same user.
    let first = Server::start(folder.path(), &["--workers", "2"]);
    occupied(first.address().port());
    assert!(
        first.get("/").starts_with("HTTP/1.1 200"),
        "the first server continues"
    );
}

#[test]
fn port_is_free_again_after_its_server_ends() {
    let folder = Folder::new();
    // Between two servers the kernel may give a port that is not reserved to another socket.
    let port = testing::ReservedPort::new().expect("a free port");
    for driver in crate::program::both_drivers() {
        for signal in ["KILL", "TERM", "KILL"] {
            let mut command = onrush();
            command
                .arg(folder.path())
                .args(["--port", &port.number().to_string()])
                .args(["--driver", driver]);
            let mut server = Server::run(command);
            assert!(server.get("/").starts_with("HTTP/1.1 200"));
            server.signal(signal);
            server.wait_for_exit(TIMEOUT);
        }
    }
}

#[test]
fn host_names_and_ipv6_addresses_are_accepted() {
    let folder = Folder::new();
    let dir = folder.path().to_str().unwrap();
    let line = runtime_error(&[dir, "--port", "0", "--bind", "192.0.2.1"]);
    assert!(line.contains("192.0.2.1"), "{line}");

    let line = usage_error(&[dir, "--port", "0", "--bind", "nohost.invalid"]);
    assert!(line.contains("nohost.invalid:0: no such host"), "{line}");

    let server = Server::start(folder.path(), &["--bind", "localhost"]);
    assert!(server.get("/").starts_with("HTTP/1.1 200"));
    if TcpListener::bind("[::1]:0").is_ok() {
        let server = Server::start(folder.path(), &["--bind", "::1"]);
        assert!(server.url.starts_with("http://[::1]:"), "{}", server.url);
        assert!(server.get("/").starts_with("HTTP/1.1 200"));
    }
}

#[test]
fn unix_socket_is_served_removed_and_replaced() {
    // Socket paths are limited to 108 bytes.
    let place = std::env::temp_dir().join(format!("onrush-cli-{}", std::process::id()));
    let place = place.to_str().expect("UTF-8");
    let folder = Folder::new();
    let bind = format!("unix:{place}");
    let mut server = Server::start(folder.path(), &["--bind", &bind]);
    assert_eq!(server.url, bind);
    let line = runtime_error(&[folder.path().to_str().unwrap(), "--bind", &bind]);
    assert!(line.contains("in use") && !line.contains("port"), "{line}");
    let elsewhere = runtime_error(&[
        folder.path().to_str().unwrap(),
        "--bind",
        "unix:/nowhere/at/all",
    ]);
    assert!(!elsewhere.contains("port"), "{elsewhere}");
    if crate::program::is_installed("curl") {
        let response =
            crate::program::curl(&["--unix-socket", place, "-o", "-", "-i", "http://x/"]);
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }
    // It is removed at exit, unless another server has replaced it.
    server.signal("TERM");
    server.wait_for_exit(TIMEOUT);
    assert!(!Path::new(place).exists());
    let mut server = Server::start(folder.path(), &["--bind", &bind]);
    std::fs::remove_file(place).expect("it is there");
    let other = std::os::unix::net::UnixListener::bind(place).expect("it is free");
    server.signal("TERM");
    server.wait_for_exit(TIMEOUT);
    assert!(
        Path::new(place).exists(),
        "the file belongs to another server"
    );
    drop(other);
    // A killed server leaves it, and the next one replaces it.
    let mut server = Server::start(folder.path(), &["--bind", &bind]);
    server.signal("KILL");
    server.wait_for_exit(TIMEOUT);
    assert!(Path::new(place).exists());
    drop(Server::start(folder.path(), &["--bind", &bind]));
    let _ = std::fs::remove_file(place);

    std::fs::write(place, "an ordinary file").expect("written");
    let line = runtime_error(&[folder.path().to_str().unwrap(), "--bind", &bind]);
    assert!(line.contains("exists and is not a socket"), "{line}");
    assert!(Path::new(place).exists(), "an ordinary file is not removed");
    let _ = std::fs::remove_file(place);
}

/// `off` disables a limit in each source of options. The message for a wrong value names the flag,
/// the value and the accepted values.
#[test]
fn limits_can_be_disabled_in_every_source() {
    let folder = Folder::new();
    for (flag, off) in [
        ("min-rate", ["off", "0"]),
        ("cache-size", ["off", "0"]),
        ("body-max", ["off", "unlimited"]),
        ("receive-memory", ["off", "unlimited"]),
        ("header-timeout", ["off", "0"]),
        ("idle-timeout", ["off", "0"]),
    ] {
        for value in off {
            // All options are parsed before the missing folder is opened.
            let missing = ["/nowhere/at/all", "--port=0"];
            let by_flag = error_line(onrush().args(missing).arg(format!("--{flag}={value}")), 1);
            assert!(by_flag.contains("/nowhere/at/all"), "{by_flag}");
            let name = format!("ONRUSH_{}", flag.to_uppercase().replace('-', "_"));
            let by_environment = error_line(onrush().args(missing).env(name, value), 1);
            assert_eq!(by_environment, by_flag);
            folder.file("c.toml", format!("{flag} = '{value}'\n"));
            let file = folder.path().join("c.toml");
            let by_file = error_line(onrush().args(missing).arg("--config").arg(file), 1);
            assert_eq!(by_file, by_flag);
        }
        let message = usage_error(&[&format!("--{flag}=maybe")]);
        let parts = ["maybe", &format!("--{flag}"), "off"];
        let is_named = |part: &&str| message.contains(*part);
        assert!(parts.iter().all(is_named), "{message}");
        let help = page(&["--help"]);
        let (_, about) = help.split_once(&format!("--{flag} ")).expect("a flag");
        assert!(
            about
                .lines()
                .skip(1)
                .take(3)
                .any(|line| line.contains("off")),
            "{flag}"
        );
    }
}
