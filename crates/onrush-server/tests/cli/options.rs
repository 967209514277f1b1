//! Options of the real binary: each one by flag, by variable and by file; addresses; and unknown
//! variables.

use crate::program::{Folder, Server, TIMEOUT, onrush, output};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;

/// The settings that the program logs before it fails, because its folder is not a folder.
fn settings(command: &mut Command) -> String {
    let output = output(command.env("ONRUSH_LOG_LEVEL", "debug"));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = log.lines().find(|line| line.contains("Settings {"));
    let line = line.unwrap_or_else(|| panic!("{command:?}: {log}"));
    let (_, settings) = line.split_once("Settings {").expect("the settings");
    // A JSON line has another end.
    settings.trim_end_matches(['"', '}']).to_owned()
}

/// Without the place of the configuration file itself, which only one of the ways has.
fn without_config(settings: &str) -> String {
    let at = settings.find("TrustedFile { option: \\\"config");
    let at = at.expect("the configuration file is a trusted file");
    let (before, rest) = settings.split_at(at);
    let (_, after) = rest.split_once('}').expect("its end");
    let settings = before.trim_end_matches(", ").to_owned() + after;
    let (before, rest) = (settings.split_once("Some(ConfigFile {")).expect("the option itself");
    let (_, after) = rest.split_once("})").expect("its end");
    format!("{before}None{after}")
}

const NO_FOLDER: &str = "/dev/null/folder";

/// One option of each kind, with a value that is not the default. Unit tests try all of them.
const CHANGES: &[(&str, &str)] = &[
    ("port", "81"),
    ("bind", "127.0.0.2,[::1]:82"),
    ("hidden", "true"),
    ("hsts", "7"),
    ("http-redirect", "82"),
    ("tls-self-signed", "a.example,b.example"),
    ("header-timeout", "7s"),
    ("driver", "epoll"),
    ("edge", "/dev/null/cache"),
    ("log-format", "json"),
];

#[test]
fn options_take_effect_by_flag_by_variable_and_by_file() {
    let folder = Folder::new();
    for (name, value) in CHANGES {
        let onrush = || {
            let mut command = onrush();
            if ["hsts", "http-redirect"].contains(name) {
                command.arg("--tls-self-signed");
            }
            command
        };
        let default = settings(onrush().arg(NO_FOLDER));
        let by_flag = settings(onrush().args([NO_FOLDER, &format!("--{name}={value}")]));
        assert_ne!(by_flag, default, "{name}");
        let variable = format!("ONRUSH_{}", name.to_uppercase().replace('-', "_"));
        let by_variable = settings(onrush().arg(NO_FOLDER).env(variable, value));
        assert_eq!(by_variable, by_flag, "{name}");
        let is_bare = *value == "true" || value.parse::<u32>().is_ok();
        let text = match is_bare {
            true => format!("{name} = {value}\n"),
            false => format!("{name} = '{value}'\n"),
        };
        let file = folder.file("options.toml", text);
        let by_file = settings(onrush().arg(NO_FOLDER).arg("--config").arg(file));
        let by_file = without_config(&by_file);
        assert_eq!(by_file, by_flag, "{name}");
    }
    // `settings` itself sets the variable of the level.
    let by_flag = settings(onrush().args([NO_FOLDER, "--log-level", "trace"]));
    assert_ne!(by_flag, settings(onrush().arg(NO_FOLDER)));
    let by_variable = settings(onrush().env("ONRUSH_DIR", "/dev/null/other"));
    let file = folder.file("options.toml", "dir = '/dev/null/other'\n");
    let by_file = without_config(&settings(onrush().arg("--config").arg(file)));
    assert_eq!(by_file, by_variable);
    assert!(by_file.contains("/dev/null/other"), "{by_file}");
}

/// The error of a wrong value: exit code 2, one line, no words of the parser.
fn value_error(command: &mut Command) -> String {
    let output = output(command);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    for word in [
        "u16",
        "u32",
        "invalid digit",
        "boolean",
        "literal",
        "stream",
        "tip:",
    ] {
        assert!(!line.contains(word), "{line}");
    }
    line
}

#[test]
fn errors_of_values_say_what_is_accepted() {
    const NUMBER: &str = "write a number from 0 to 65535";
    const SWITCH: &str = "write true or false, yes or no, on or off, 1 or 0";
    for (flag, accepted) in [
        ("--port=abc", NUMBER),
        ("--port=99999", NUMBER),
        ("--connections-max=off", "write a whole number"),
        ("--workers=x", "write a whole number"),
        ("--hidden=maybe", SWITCH),
        ("--show=z*", "a pattern begins with a dot, as in .z*"),
        ("--show=.a/b", "a pattern is that of one name"),
        ("--admin=unix:/run/x", "not a Unix socket"),
    ] {
        let line = value_error(onrush().args([NO_FOLDER, flag]));
        assert!(line.contains(accepted), "{flag}: {line}");
    }
    for (flag, accepted) in [("--cache-size", "write a size"), ("-p", NUMBER)] {
        let line = value_error(onrush().args([NO_FOLDER, flag, "-1"]));
        assert!(line.contains(accepted), "{flag}: {line}");
    }
    for value in ["", "maybe"] {
        let line = value_error(onrush().arg(NO_FOLDER).env("ONRUSH_SITE", value));
        assert!(line.contains("ONRUSH_SITE"), "{line}");
        assert!(line.contains(SWITCH) || value.is_empty(), "{line}");
    }
    let folder = Folder::new();
    for (text, place, accepted) in [
        (&b"port = \"abc\"\n"[..], ":1: ", NUMBER),
        (b"dir = data\n", ":1: ", "text must be in quotes"),
        (b"port = 1\n# caf\xe9\n", ":2: ", "not UTF-8"),
        (b"[types]\nts = 'video'\n", ":2: ", "is not a media type"),
    ] {
        let file = folder.file("o.toml", text);
        let line = value_error(onrush().arg(NO_FOLDER).arg("--config").arg(&file));
        let place = format!("{}{place}", file.display());
        assert!(line.contains(&place) && line.contains(accepted), "{line}");
    }
}

#[test]
fn unknown_variable_gives_a_warning() {
    let folder = Folder::new();
    let mut command = onrush();
    command.arg(folder.path()).args(["--port", "0"]);
    command
        .env("ONRUSH_PROT", "secret")
        .env("ONRUSH_WORKERS", "1");
    let server = Server::run(command);
    let log = server.logs("ONRUSH_PROT");
    let line = log.lines().find(|line| line.contains("ONRUSH_PROT"));
    let line = line.expect("a line");
    assert!(line.contains(" WARN unknown environment variable"), "{log}");
    assert!(
        !log.contains("ONRUSH_WORKERS") && !log.contains("secret"),
        "{log}"
    );
}

/// Sends a request and returns all received bytes.
fn exchange(mut stream: impl Read + Write) -> String {
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("the server reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

#[test]
fn server_listens_on_several_addresses() {
    let folder = Folder::new();
    let path = std::env::temp_dir().join(format!("onrush-several-{}", std::process::id()));
    let unix = format!("unix:{}", path.display());
    for driver in crate::program::both_drivers() {
        for workers in ["1", "2"] {
            let mut command = onrush();
            command
                .arg(folder.path())
                .args(["--driver", driver, "--workers", workers]);
            command.args(["--port", "0", "-b", "127.0.0.1:0", "--bind", "127.0.0.2"]);
            command.args(["--bind", &unix]);
            let mut server = Server::run(command);
            let log = server.logs(" serving ");
            let line = log
                .lines()
                .find(|line| line.contains(" serving "))
                .expect("a line");
            let (_, addresses) = line.split_once("address=\"").expect("several");
            let (addresses, _) = addresses.split_once('"').expect("an end");
            let addresses: Vec<&str> = addresses.split(' ').collect();
            assert_eq!((addresses.len(), addresses[2]), (3, &unix[..]), "{line}");
            assert_eq!(addresses[0], server.url, "the first is printed first");
            for address in &addresses[..2] {
                let address = address.strip_prefix("http://").expect("TCP");
                for _ in 0..8 {
                    let stream = TcpStream::connect(address).expect("the server accepts");
                    stream.set_read_timeout(Some(TIMEOUT)).expect("set");
                    let response = exchange(stream);
                    assert!(
                        response.starts_with("HTTP/1.1 200"),
                        "{address}: {response}"
                    );
                }
            }
            let stream = UnixStream::connect(&path).expect("the server accepts");
            stream.set_read_timeout(Some(TIMEOUT)).expect("set");
            assert!(exchange(stream).starts_with("HTTP/1.1 200"));
            server.signal("TERM");
            server.wait_for_exit(TIMEOUT);
            assert!(!path.exists());
        }
    }
}

#[test]
fn server_that_cannot_bind_all_addresses_leaves_no_socket() {
    let folder = Folder::new();
    let path = std::env::temp_dir().join(format!("onrush-first-{}", std::process::id()));
    let unix = format!("unix:{}", path.display());
    let mut command = onrush();
    command
        .arg(folder.path())
        .args(["--bind", &unix, "--bind", "192.0.2.1:0"]);
    let output = output(&mut command);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{line}");
    assert!(
        line.contains("192.0.2.1:0 is not an address of this machine"),
        "{line}"
    );
    assert!(!path.exists());
}

#[test]
fn with_few_descriptors_several_clients_are_served_at_once() {
    let folder = Folder::new();
    folder.file("x", "hello");
    for driver in crate::program::both_drivers() {
        let flags = ["--admin", "0", "--driver", driver];
        let server = Server::with_descriptors(64, folder.path(), &flags);
        let mut clients: Vec<TcpStream> = (0..4).map(|_| server.connect()).collect();
        for _ in 0..3 {
            // All of them are connected, and each is served.
            for client in &mut clients {
                let request = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n";
                client.write_all(request).expect("the server reads");
                let mut response = Vec::new();
                while !response.ends_with(b"\r\n\r\nhello") {
                    let mut byte = [0];
                    client.read_exact(&mut byte).expect("a response");
                    response.push(byte[0]);
                }
                assert!(response.starts_with(b"HTTP/1.1 200"));
            }
        }
    }
}
