//! The running program: the choice of the driver, the log, and the end by signals.

use crate::program::{Folder, Server, TIMEOUT, onrush, output, wait};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use testing::seccomp;

const PAUSE: Duration = Duration::from_millis(200);

/// Runs `act` on a thread whose child processes cannot use io_uring: it fails with `errno`.
fn under_filter<T: Send>(errno: i32, act: impl FnOnce() -> T + Send) -> T {
    under_filter_of(&[(libc::SYS_io_uring_setup, errno)], act)
}

/// The same for any system calls.
fn under_filter_of<T: Send>(calls: &[(libc::c_long, i32)], act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            seccomp::refuse(calls).expect("the filter is on");
            act()
        });
        thread.join().expect("no panic")
    })
}

fn with_driver(dir: &Path, driver: &str) -> Command {
    let mut command = onrush();
    command.arg(dir).args(["--port", "0", "--driver", driver]);
    command
}

/// As in a container with an old seccomp profile: the server works without symbolic links, and logs
/// that once.
#[test]
fn without_openat2_links_are_not_followed_and_a_warning_is_logged() {
    let folder = Folder::new();
    folder.file("x", "content");
    std::os::unix::fs::symlink("x", folder.path().join("link")).expect("a folder");
    for driver in crate::program::both_drivers() {
        let start = || {
            let command = with_driver(folder.path(), driver);
            let server = Server::run(command);
            server.logs(" serving ");
            server
        };
        let allowed = start();
        assert!(allowed.get("/link").ends_with("\r\n\r\ncontent"));
        assert!(!allowed.log().contains("openat2"), "{}", allowed.log());
        for errno in [libc::EPERM, libc::ENOSYS] {
            let server = under_filter_of(&[(libc::SYS_openat2, errno)], start);
            assert!(server.get("/x").ends_with("\r\n\r\ncontent"), "{driver}");
            assert!(server.get("/link").starts_with("HTTP/1.1 404 "), "{driver}");
            let log = server.log();
            let said: Vec<_> = log
                .lines()
                .filter(|line| line.contains("openat2"))
                .collect();
            assert_eq!(said.len(), 1, "{log}");
            assert!(
                said[0].contains("WARN") && said[0].contains("links are not followed"),
                "{log}"
            );
        }
    }
}

#[test]
fn without_io_uring_auto_serves_on_epoll_and_logs_it() {
    let folder = Folder::new();
    folder.file("x", "content");
    for (errno, word) in [(libc::EPERM, "seccomp"), (libc::ENOSYS, "has no io_uring")] {
        let server = under_filter(errno, || Server::run(with_driver(folder.path(), "auto")));
        let log = server.logs(" serving ");
        assert!(
            log.contains(" driver=epoll ") && log.contains("io_uring is refused: "),
            "{log}"
        );
        assert!(log.contains(word), "{log}");
        assert!(server.get("/x").ends_with("\r\n\r\ncontent"));
    }
}

#[test]
fn without_io_uring_requiring_it_fails_with_the_reason() {
    let folder = Folder::new();
    for (errno, word) in [(libc::EPERM, "seccomp"), (libc::ENOSYS, "has no io_uring")] {
        let output = under_filter(errno, || {
            output(&mut with_driver(folder.path(), "io_uring"))
        });
        let line = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(line.starts_with("onrush: io_uring is refused: "), "{line}");
        assert!(
            line.contains(word) && line.contains("--driver auto"),
            "{line}"
        );
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn log_states_the_chosen_settings() {
    let folder = Folder::new();
    for driver in crate::program::both_drivers() {
        let server = Server::start(folder.path(), &["--driver", driver, "--workers", "2"]);
        let log = server.logs(" serving ");
        let line = log
            .lines()
            .find(|line| line.contains(" serving "))
            .expect("it is there");
        assert!(
            line.contains(&format!(" address={} ", server.url)),
            "{line}"
        );
        assert!(line.contains(&format!(" driver={driver} ")), "{line}");
        // The features of io_uring are for developers: they are in the debug log.
        assert_eq!(line.contains(" reason="), driver == "epoll", "{line}");
        assert!(line.ends_with(" workers=2"), "{line}");
    }
}

#[test]
fn failures_are_json_in_a_json_log() {
    let mut command = onrush();
    let output = output(command.args(["/nowhere", "--port", "0", "--log-format", "json"]));
    assert_eq!(output.status.code(), Some(1));
    let event: serde_json::Value = serde_json::from_slice(&output.stderr).expect("one object");
    assert_eq!(event["level"], "ERROR");
    assert!(
        event["fields"]["message"]
            .as_str()
            .expect("text")
            .contains("/nowhere")
    );
}

/// Requests that try to inject log lines.
const INJECTIONS: [&str; 6] = [
    "GET /%0a2026-01-01T00:00:00Z%20%20INFO%20forged HTTP/1.1\r\n",
    "GET /%1b[2J%0d%0a%00?x=%0a HTTP/1.1\r\n",
    "GET /a HTTP/1.1\r\nUser-Agent: \u{9b}31m\u{202e}\u{2028}x\r\nReferer: \"}\r\n",
    "GET /\u{9b}31m HTTP/1.1\r\n",
    "GET /\"},{\"level\":\"ERROR\"} HTTP/1.1\r\n",
    "GET /\x1b]0;x\x07 HTTP/1.1\r\n",
];

fn inject(server: &Server) {
    for injection in INJECTIONS {
        let request = format!("{injection}Host: localhost\r\nConnection: close\r\n\r\n");
        assert!(
            server
                .exchange(request.as_bytes())
                .starts_with("HTTP/1.1 4"),
            "{injection}"
        );
    }
    assert!(server.get("/last").starts_with("HTTP/1.1 404"));
    server.logs("/last");
    server.logs("forged"); // Each worker logs on its own.
}

#[test]
fn requests_cannot_inject_lines_into_a_text_log() {
    let folder = Folder::new();
    let server = Server::start(folder.path(), &["--access-log", "on"]);
    inject(&server);
    let log = server.log();
    for line in log.lines() {
        // 2026-11-20T19:00:00.000000Z
        assert_eq!(line.as_bytes().get(26), Some(&b'Z'), "{line}");
        assert!(
            !line.contains(char::is_control) && !line.contains('\u{202e}'),
            "{line:?}"
        );
    }
    // Two workers log, so it need not be the last line.
    let line = (log.lines())
        .find(|line| line.contains("  INFO onrush::access method=GET target=/last peer=127.0.0.1:"))
        .expect("a line");
    assert!(
        line.contains(" status=404 ") && line.contains(" duration_us="),
        "{line}"
    );
    assert!(
        log.contains("target=/%0a2026-01-01T00:00:00Z%20%20INFO%20forged"),
        "{log}"
    );
}

#[test]
fn requests_cannot_inject_objects_into_a_json_log() {
    let folder = Folder::new();
    let flags = ["--access-log", "on", "--log-format", "json"];
    let server = Server::start(folder.path(), &flags);
    inject(&server);
    let mut statuses = Vec::new();
    for line in server.log().lines() {
        assert!(!line.contains(char::is_control), "{line:?}");
        let event: serde_json::Value = serde_json::from_str(line).expect(line);
        if event["target"] == "onrush::access" {
            assert!(event["fields"]["duration_us"].is_u64() && event["timestamp"].is_string());
            assert!(event["fields"]["end"].is_string() && event["fields"]["sent_bytes"].is_u64());
            statuses.push(event["fields"]["status"].as_u64().expect("a number"));
        }
    }
    assert!(statuses.contains(&404) && statuses.iter().all(|s| (400..500).contains(s)));
}

#[test]
fn requests_are_not_logged_by_default() {
    let folder = Folder::new();
    let mut server = Server::start(folder.path(), &[]);
    server.get("/secret-token");
    server.signal("TERM");
    assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
    server.logs(" stopped");
    assert!(!server.log().contains("secret-token"));
}

#[test]
fn server_continues_when_its_log_and_output_are_not_read() {
    let folder = Folder::new();
    let mut command = onrush();
    command
        .arg(folder.path())
        .args(["--port", "0", "--access-log", "on"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    drop(child.stderr.take());
    let mut line = Vec::new();
    let mut out = child.stdout.take().expect("piped");
    let mut byte = [0];
    while testing::read_some(&mut out, &mut byte).expect("the server prints") == 1 && byte != *b"\n"
    {
        line.push(byte[0]);
    }
    drop(out);
    let url = String::from_utf8(line).expect("UTF-8");
    let address = url.strip_prefix("http://").expect("an address");
    for _ in 0..3 {
        let mut stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    }
    child.kill().expect("the process runs");
    wait(&mut child, TIMEOUT);
}

/// Begins an upload and sends `sent` of its `size` bytes.
fn upload(server: &Server, name: &str, size: usize, sent: usize) -> TcpStream {
    let mut stream = server.connect();
    let head = format!("PUT /{name} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    stream
        .write_all(&crate::program::pattern(7, size)[..sent])
        .expect("sent");
    sleep(PAUSE);
    stream
}

#[test]
fn drain_loses_no_upload() {
    for driver in crate::program::both_drivers() {
        let folder = Folder::new();
        let mut server = Server::start(folder.path(), &["--allow", "put", "--driver", driver]);
        let idle = server.connect();
        let size = 3 << 20;
        let mut stream = upload(&server, "late", size, size / 2);
        server.signal("TERM");
        server.logs("shutting down; waiting for requests in progress");
        sleep(PAUSE);
        assert!(
            server.child.try_wait().expect("ours").is_none(),
            "the server waits for the upload"
        );
        stream
            .write_all(&crate::program::pattern(7, size)[size / 2..])
            .expect("the server still reads");
        let mut response = String::new();
        stream
            .read_to_string(&mut response)
            .expect("a response and a close");
        assert!(response.starts_with("HTTP/1.1 201"), "{driver}: {response}");
        assert_eq!(server.wait_for_exit(Duration::from_secs(5)), Some(0));
        drop(idle);
        let content = std::fs::read(folder.path().join("late")).expect("it is there");
        assert!(content == crate::program::pattern(7, size));
        assert!(server.log().ends_with(" stopped\n"), "{}", server.log());
    }
}

#[test]
fn second_signal_ends_the_program_at_once() {
    for driver in crate::program::both_drivers() {
        for (first, second) in [("TERM", "TERM"), ("INT", "TERM"), ("INT", "INT")] {
            let folder = Folder::new();
            let flags = ["--allow", "put", "--driver", driver];
            let mut server = Server::start(folder.path(), &flags);
            let stream = upload(&server, "never", 1 << 20, 1 << 19);
            server.signal(first);
            server.logs("shutting down; waiting for requests in progress");
            sleep(PAUSE);
            server.signal(second);
            assert_eq!(
                server.wait_for_exit(Duration::from_secs(5)),
                Some(1),
                "{driver}"
            );
            assert!(!folder.path().join("never").exists());
            drop(stream);
        }
    }
}

/// As from `timeout(1)`, which signals its child and the child's process group.
#[test]
fn two_signals_in_a_burst_count_as_one() {
    let folder = Folder::new();
    let mut server = Server::start(folder.path(), &["--allow", "put"]);
    let size = 1 << 20;
    let mut stream = upload(&server, "late", size, size / 2);
    let pid = server.child.id();
    let script = format!("kill -TERM {pid}; kill -TERM {pid}; kill -INT {pid}");
    let status = Command::new("sh").args(["-c", &script]).status();
    assert!(status.expect("started").success());
    server.logs("shutting down; waiting for requests in progress");
    sleep(PAUSE);
    let rest = &crate::program::pattern(7, size)[size / 2..];
    stream.write_all(rest).expect("the server still reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    assert!(response.starts_with("HTTP/1.1 201"), "{response}");
    assert_eq!(server.wait_for_exit(Duration::from_secs(5)), Some(0));
}

#[test]
fn drain_ends_at_its_timeout() {
    let folder = Folder::new();
    for driver in crate::program::both_drivers() {
        let flags = [
            "--allow",
            "put",
            "--drain-timeout",
            "300ms",
            "--driver",
            driver,
        ];
        let mut server = Server::start(folder.path(), &flags);
        let stream = upload(&server, "never", 1 << 20, 1 << 19);
        let begun = Instant::now();
        server.signal("TERM");
        assert_eq!(
            server.wait_for_exit(Duration::from_secs(5)),
            Some(0),
            "{driver}"
        );
        assert!(begun.elapsed() >= Duration::from_millis(300), "{driver}");
        server.logs("the drain timeout ended connections");
        drop(stream);
    }
}

#[test]
fn idle_server_ends_at_once() {
    let folder = Folder::new();
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(folder.path(), &[]);
        server.signal(signal);
        assert_eq!(server.wait_for_exit(Duration::from_secs(5)), Some(0));
    }
}

#[test]
fn hangup_and_broken_pipe_do_not_end_the_program() {
    let folder = Folder::new();
    let server = Server::start(folder.path(), &[]);
    server.signal("HUP");
    server.logs("signal=SIGHUP");
    server.signal("PIPE");
    assert!(server.get("/").starts_with("HTTP/1.1 200"));
}

#[test]
fn descriptor_limit_is_raised() {
    let folder = Folder::new();
    let start = |soft: u32, hard: u32| {
        let mut shell = Command::new("sh");
        let script = format!("ulimit -Sn {soft}; ulimit -Hn {hard}; exec \"$@\"");
        let program = env!("CARGO_BIN_EXE_onrush");
        shell
            .args(["-c", &script, "sh", program, "--port", "0"])
            .arg(folder.path());
        Server::run(shell)
    };
    let server = start(64, 5000);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id()));
    let limits = limits.expect("the process runs");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .expect("a line");
    assert_eq!(line.split_whitespace().nth(3), Some("5000"), "{line}");
    assert!(!server.log().contains("few connections"));
    start(64, 128).logs("few connections are possible");
}
