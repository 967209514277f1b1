//! The running program without descriptors or receive memory. Accepted clients are served
//! meanwhile, and afterwards all clients.

use crate::program::{Folder, Server, TIMEOUT, both_drivers, is_installed, onrush};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Whether neither data nor the end of the stream has arrived.
fn is_silent(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).expect("set");
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).expect("set");
    peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Waits until all but `silent` of the connections have received something. Returns those that have
/// not, and those that have.
fn wait_and_split(all: Vec<TcpStream>, silent: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let end = Instant::now() + TIMEOUT;
    while all.iter().filter(|stream| is_silent(stream)).count() != silent {
        let now = all.iter().filter(|stream| is_silent(stream)).count();
        assert!(
            Instant::now() < end,
            "{now} connections are silent, not {silent}"
        );
        sleep(Duration::from_millis(20));
    }
    all.into_iter().partition(is_silent)
}

/// The status of a GET on a connection that stays open; `None` without a response.
fn get(stream: &mut TcpStream, path: &str) -> Option<u16> {
    get_from(stream, path, 0)
}

/// As [`get`]; the first `sent` bytes of the request have been sent already.
fn get_from(stream: &mut TcpStream, path: &str, sent: usize) -> Option<u16> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(&request.as_bytes()[sent..]).ok()?;
    let mut response = Vec::new();
    let mut piece = [0; 4096];
    while !response.ends_with(b"content") && response.len() < 2048 {
        match testing::read_some(stream, &mut piece) {
            Ok(bytes) if bytes > 0 => response.extend_from_slice(&piece[..bytes]),
            _ => break,
        }
    }
    let status = response.get(9..12)?;
    std::str::from_utf8(status).ok()?.parse().ok()
}

#[test]
fn accepted_clients_are_served_without_free_descriptors() {
    let folder = Folder::new();
    for at in 0..200 {
        folder.file(&format!("{at}"), "content");
    }
    for driver in both_drivers() {
        // 128 minus 16, 6 per worker, 2 for each of 4 file threads, and 8 rejected connections
        // leaves 84. Minus 5 in reserve and 10 for files, this is 69.
        let (most, flags) = (69, ["--workers=2", "--file-threads=8", "--driver", driver]);
        let server = Server::with_descriptors(128, folder.path(), &flags);
        server.logs(&format!(" connections_max={most} "));
        let begun = |_| {
            let mut stream = server.connect();
            // An idle connection would be closed for others.
            stream.write_all(b"GET ").expect("sent");
            stream
        };
        let all: Vec<TcpStream> = (0..200).map(begun).collect();
        let (mut inside, outside) = wait_and_split(all, most);
        for mut stream in outside {
            let mut response = String::new();
            let read = stream.read_to_string(&mut response); // May end with a reset.
            assert!(response.starts_with("HTTP/1.1 503 "), "{read:?} {response}");
        }
        for round in 0..2 {
            for (at, stream) in inside.iter_mut().enumerate() {
                let path = format!("/{}", at + 100 * round);
                let begun = if round == 0 { "GET " } else { "" };
                let got = get_from(stream, &path, begun.len());
                assert_eq!(got, Some(200), "{driver}: {path}");
            }
        }
        inside.truncate(most / 2);
        let end = Instant::now() + TIMEOUT;
        while inside.len() < most {
            assert!(
                Instant::now() < end,
                "only {} are accepted again",
                inside.len()
            );
            let mut stream = server.connect();
            match get(&mut stream, "/7") {
                Some(200) => inside.push(stream),
                _ => sleep(Duration::from_millis(20)),
            }
        }
    }
}

#[test]
fn several_clients_are_served_with_few_descriptors() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in both_drivers() {
        let flags = ["--workers=2", "--driver", driver];
        let server = Server::with_descriptors(64, folder.path(), &flags);
        server.logs(" connections_max=19 ");
        let mut all: Vec<TcpStream> = (0..19).map(|_| server.connect()).collect();
        for stream in &mut all {
            assert_eq!(get(stream, "/x"), Some(200), "{driver}");
        }
    }
}

#[test]
fn accept_errors_are_logged_once() {
    if !is_installed("bash") {
        return;
    }
    let folder = Folder::new();
    for driver in both_drivers() {
        // The budget stays below the limit, but does not know of inherited descriptors.
        let script = "for at in $(seq 10 209); do eval \"exec $at</dev/null\"; done; \
            ulimit -n 256; exec \"$@\"";
        let mut bash = Command::new("bash");
        bash.args(["-c", script, "bash", env!("CARGO_BIN_EXE_onrush")]);
        bash.arg(folder.path()).args(["--port", "0", "--workers=2"]);
        bash.args(["--connections-max=1000", "--driver", driver]);
        let server = Server::run(bash);
        let all: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
        let log = server.logs("accepting pauses");
        assert!(log.contains("connections-max exceeds"), "{log}");
        sleep(Duration::from_millis(500));
        let logged = server.log().matches("accepting pauses").count();
        // Several workers may begin at the same time.
        assert!(logged <= 2, "{driver}: {logged} times");
        drop(all);
        assert!(server.get("/").starts_with("HTTP/1.1 200"));
    }
}

/// Leaves `count` heads of `bytes` incomplete. Returns the growth of the memory in KiB, without
/// that of code which runs for the first time, as soon as it exceeds `enough_kib` or has not grown
/// for a second.
fn incomplete_heads(server: &Server, count: usize, bytes: usize, enough_kib: u64) -> u64 {
    let before = server.anonymous_kib();
    let mut head = b"GET /x HTTP/1.1\r\nHost: localhost\r\nX-Filler: ".to_vec();
    head.resize(bytes, b'x');
    let mut all: Vec<TcpStream> = (0..count).map(|_| server.connect()).collect();
    for piece in head.chunks(1000) {
        for stream in &mut all {
            // A write to a connection that was closed for lack of memory fails.
            let _ = stream.write_all(piece);
        }
    }
    let (mut used_kib, mut quiet, end) = (0, 0, Instant::now() + TIMEOUT);
    while used_kib <= enough_kib && quiet < 20 && Instant::now() < end {
        sleep(Duration::from_millis(50));
        let now_kib = server.anonymous_kib().saturating_sub(before);
        quiet = if now_kib <= used_kib { quiet + 1 } else { 0 };
        used_kib = used_kib.max(now_kib);
    }
    used_kib
}

/// Less than the size of all incomplete heads, and more than fits into little memory.
const MUCH_KIB: u64 = 6 * 1024;

#[test]
fn incomplete_heads_use_only_the_receive_memory() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in both_drivers() {
        let measure = |memory: &str, timeout: &str| {
            let mut command = onrush();
            command.arg(folder.path()).args(["--port", "0"]);
            command.args(["--workers", "1", "--ring-buffers", "16"]);
            command.args(["--header-timeout", timeout, "--driver", driver]);
            command.args(["--receive-memory", memory]);
            let server = Server::run(command);
            let used_kib = incomplete_heads(&server, 600, 20_000, MUCH_KIB);
            // The hostile connections are gone: all clients are served again.
            let response = server.get("/x");
            assert!(response.starts_with("HTTP/1.1 200"), "{driver}: {response}");
            used_kib
        };
        // A connection that waits for memory is closed at its time limit. With enough memory, none
        // may be closed before all is sent, however slow the machine.
        let (little, much) = (measure("1MiB", "2s"), measure("256MiB", "60s"));
        println!("{driver}: {little} KiB with 1 MiB, {much} KiB with 256 MiB");
        assert!(much > MUCH_KIB, "{driver}: {much} KiB");
        assert!(little < 3 * 1024, "{driver}: {little} KiB");
    }
}

/// The binary in a mount namespace where the limit of each memory cgroup reads 96 MiB. Nothing
/// outside changes. `None` if such a namespace is not available.
fn with_little_memory() -> Option<Command> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
    let groups = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let at = groups.filter_map(|line| line.split(' ').nth(4));
    let folders: Vec<&str> = at.filter(|at| at.starts_with("/sys/fs/cgroup")).collect();
    let mut script = "mount -t tmpfs none /sys/fs/cgroup".to_owned();
    for folder in folders {
        let files = format!("{folder}/memory.max {folder}/memory.limit_in_bytes");
        script += &format!(" && mkdir -p {folder} && echo 100663296 | tee {files}");
    }
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]);
        command
    };
    let may = unshare(&script).output();
    if !may.is_ok_and(|output| output.status.success()) {
        println!("skipped: no mount namespace, or no cgroups");
        return None;
    }
    let program = env!("CARGO_BIN_EXE_onrush");
    let mut command = unshare(&format!("({script}) >/dev/null && exec {program} \"$@\""));
    command.args(["--port", "0"]);
    Some(command)
}

#[test]
fn defaults_fit_into_the_memory_of_the_cgroup() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in both_drivers() {
        let Some(mut command) = with_little_memory() else {
            return;
        };
        command.arg(folder.path()).args(["--driver", driver]);
        command.args(["--workers", "2", "--header-timeout", "5s"]);
        let server = Server::run(command);
        let log = server.logs("smaller defaults");
        assert!(log.contains("receive_memory_bytes=20132659"), "{log}");
        // 120 MB of incomplete heads.
        incomplete_heads(&server, 4_000, 30_000, u64::MAX);
        let peak_kib = server.peak_kib();
        println!("{driver}: {peak_kib} KiB at most");
        assert!(peak_kib < 96 * 1024, "{driver}: {peak_kib} KiB");
        let response = server.get("/x");
        assert!(response.starts_with("HTTP/1.1 200"), "{driver}: {response}");
    }
}
