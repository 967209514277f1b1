//! Attacks on the descriptors of the running program: more slow uploads, or more unread downloads,
//! than there are descriptors. Other clients are served meanwhile and afterwards.

use crate::program::{Folder, Server, TIMEOUT, both_drivers};
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time limit of a response during an attack. The target is 1 s. Tests share their cores, so
/// `cargo xtask experiment attack` measures it instead.
const SOON: Duration = Duration::from_secs(3);
/// The descriptor limit of the program.
const DESCRIPTORS: u32 = 512;
/// With a connection and a file each, they would need more descriptors.
const ATTACKERS: usize = 255;
const LARGE: usize = 100_000;

/// A served folder: `small-N`, and `large-N`, which exceed a socket's buffer. All are old enough
/// for the cache.
fn objects() -> Folder {
    let folder = Folder::new();
    let an_hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
    let old = |path: std::path::PathBuf, bytes: u64| {
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_len(bytes).unwrap();
        file.set_modified(an_hour_ago).unwrap();
    };
    for at in 0..20 {
        old(folder.file(&format!("small-{at}"), ""), 1_000);
    }
    for at in 0..ATTACKERS {
        old(folder.file(&format!("large-{at}"), ""), 8 << 20);
    }
    old(folder.file("medium", ""), LARGE as u64);
    folder
}

/// Sends a request and reads its whole response in time. Returns the status.
fn exchange(stream: &mut TcpStream, request: &[u8]) -> u16 {
    let begin = Instant::now();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(request).unwrap();
    let (mut response, mut piece) = (Vec::new(), [0; 16 * 1024]);
    let whole = |response: &[u8]| {
        let head = response.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&response[..head]).to_lowercase();
        let length = text.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split('\r').next()?.parse().ok());
        let status: u16 = text.get(9..12)?.parse().ok()?;
        assert!(status != 503 || text.contains("retry-after: "), "{text}");
        (response.len() >= head + length.unwrap_or(0)).then_some(status)
    };
    loop {
        let n = testing::read_some(stream, &mut piece).expect("a response in time");
        assert!(n > 0, "no response");
        response.extend_from_slice(&piece[..n]);
        if let Some(status) = whole(&response) {
            assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
            return status;
        }
    }
}

fn get(stream: &mut TcpStream, path: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    exchange(stream, request.as_bytes())
}

fn put(stream: &mut TcpStream, path: &str, bytes: usize) -> u16 {
    let head = format!("PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n");
    exchange(stream, &[head.as_bytes(), &vec![b'x'; bytes]].concat())
}

/// The status that each client has received so far; `None` without a response.
fn statuses(streams: &[TcpStream]) -> Vec<Option<u16>> {
    let peek_status = |stream: &TcpStream| {
        let mut head = [0; 12];
        stream.set_nonblocking(true).unwrap();
        let peeked = stream.peek(&mut head);
        stream.set_nonblocking(false).unwrap();
        match peeked {
            Ok(12) => std::str::from_utf8(&head[9..]).ok()?.parse().ok(),
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Err(_) => Some(0), // Closed and its response lost.
        }
    };
    streams.iter().map(peek_status).collect()
}

/// Waits until `is_enough` accepts the responses of the attackers.
fn wait_for(streams: &[TcpStream], is_enough: impl Fn(&[Option<u16>]) -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is_enough(&statuses(streams)) {
        assert!(Instant::now() < end, "statuses: {:?}", statuses(streams));
        sleep(Duration::from_millis(20));
    }
}

/// A connection of another client than those of the attack, which has a share of its own.
fn connect_as_other(server: &Server) -> TcpStream {
    let stream = testing::connect_from(Ipv4Addr::new(127, 0, 0, 2), server.address());
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

struct AttackedServer {
    server: Server,
    /// A connection from before the attack, and the number of open descriptors then.
    established: TcpStream,
    descriptors: usize,
}

impl AttackedServer {
    fn start(folder: &Folder, driver: &str) -> AttackedServer {
        let flags = ["--allow=put", "--workers=2", "--driver", driver];
        let server = Server::with_descriptors(DESCRIPTORS, folder.path(), &flags);
        let mut established = connect_as_other(&server);
        for _ in 0..2 {
            assert_eq!(get(&mut established, "/small-0"), 200);
        }
        let descriptors = server.descriptors();
        AttackedServer {
            server,
            established,
            descriptors,
        }
    }

    fn attack(&self, request: impl Fn(usize) -> String) -> Vec<TcpStream> {
        let attack = |at| {
            let mut stream = self.server.connect();
            stream.write_all(request(at).as_bytes()).unwrap();
            stream
        };
        (0..ATTACKERS).map(attack).collect()
    }

    /// Waits until the server has decided about all that it has received: on a busy machine, some
    /// attackers take a file later than others are refused.
    fn wait_until_settled(&self) {
        let end = Instant::now() + TIMEOUT;
        let (mut before, mut unchanged) = (self.server.descriptors(), 0);
        while unchanged < 10 {
            assert!(Instant::now() < end, "{before} descriptors");
            sleep(Duration::from_millis(20));
            let now = self.server.descriptors();
            unchanged = if now == before { unchanged + 1 } else { 0 };
            before = now;
        }
    }

    /// Reads and writes small objects on new connections and on the established one.
    fn assert_small_objects_are_served(&mut self) {
        for at in 0..10 {
            let mut new = connect_as_other(&self.server);
            for stream in [&mut self.established, &mut new] {
                assert_eq!(get(stream, "/small-0"), 200, "cached");
                assert_eq!(get(stream, &format!("/small-{at}")), 200);
            }
            let path = format!("/new-{at}");
            assert!([201, 204].contains(&put(&mut new, &path, 1_000)));
            assert_eq!(get(&mut new, &path), 200);
        }
    }

    /// After the attackers have left, everything works and every descriptor is free again.
    fn assert_recovery(&mut self, attackers: Vec<TcpStream>) {
        drop(attackers);
        let end = Instant::now() + TIMEOUT;
        while self.server.descriptors() > self.descriptors + 4 {
            let now = self.server.descriptors();
            assert!(Instant::now() < end, "{now} of {}", self.descriptors);
            sleep(Duration::from_millis(20));
        }
        self.assert_small_objects_are_served();
        let mut new = connect_as_other(&self.server);
        for stream in [&mut self.established, &mut new] {
            assert!([201, 204].contains(&put(stream, "/put", LARGE)));
            assert_eq!(get(stream, "/put"), 200);
            assert_eq!(get(stream, "/medium"), 200);
        }
    }
}

#[test]
fn slow_uploads_leave_descriptors_for_others() {
    let folder = objects();
    for driver in both_drivers() {
        let mut it = AttackedServer::start(&folder, driver);
        // Some bodies fit into memory. The others are written to files as they arrive.
        let begun = "x".repeat(40_000);
        let attackers = it.attack(|at| {
            let head =
                format!("PUT /slow-{at} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 262000");
            format!("{head}\r\n\r\n{begun}")
        });
        let count = |statuses: &[Option<u16>], what| {
            statuses.iter().filter(|status| **status == what).count()
        };
        // 429: the client has its share.
        let refused =
            |statuses: &[Option<u16>]| count(statuses, Some(503)) + count(statuses, Some(429));
        wait_for(&attackers, |statuses| refused(statuses) >= 40);
        it.wait_until_settled();
        let statuses = statuses(&attackers);
        let (refused, go_on) = (refused(&statuses), count(&statuses, None));
        assert!(
            refused + go_on == ATTACKERS && go_on > 100,
            "{driver}: {statuses:?}"
        );
        assert!(
            it.server.descriptors() > it.descriptors + go_on + 40,
            "files"
        );
        it.assert_small_objects_are_served();
        assert_eq!(get(&mut it.established, "/medium"), 200);
        it.assert_recovery(attackers);
        assert!(!folder.path().join("slow-0").exists());
    }
}

/// A client that announces a body and sends nothing occupies a connection, but no file.
#[test]
fn announced_uploads_occupy_no_files() {
    let folder = objects();
    for driver in both_drivers() {
        let mut it = AttackedServer::start(&folder, driver);
        let silent = |at| {
            format!(
                "PUT /silent-{at} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
            )
        };
        let attackers = it.attack(silent);
        let connected = it.descriptors + ATTACKERS;
        let end = Instant::now() + TIMEOUT;
        while it.server.descriptors() < connected {
            assert!(Instant::now() < end, "{}", it.server.descriptors());
            sleep(Duration::from_millis(20));
        }
        it.assert_small_objects_are_served();
        assert_eq!(put(&mut it.established, "/put", LARGE), 201);
        std::fs::remove_file(folder.path().join("put")).unwrap();
        assert!(it.server.descriptors() <= connected + 4);
        it.assert_recovery(attackers);
        std::fs::remove_file(folder.path().join("put")).unwrap();
    }
}

#[test]
fn unread_downloads_leave_descriptors_for_others() {
    let folder = objects();
    for driver in both_drivers() {
        let mut it = AttackedServer::start(&folder, driver);
        let attackers =
            it.attack(|at| format!("GET /large-{at} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        wait_for(&attackers, |statuses| statuses.iter().all(Option::is_some));
        let statuses = statuses(&attackers);
        let count = |status| {
            statuses
                .iter()
                .filter(|found| **found == Some(status))
                .count()
        };
        assert_eq!(count(200) + count(503), ATTACKERS, "{driver}: {statuses:?}");
        assert!(count(200) > 40 && count(503) > 20, "{driver}: {statuses:?}");
        it.assert_small_objects_are_served();
        // The client of the attack has its share, for uploads as well.
        assert_eq!(put(&mut it.server.connect(), "/refused", LARGE), 429);
        it.assert_recovery(attackers);
    }
}
