//! SIGUSR2: a new process continues on the same sockets, and no request fails.

use crate::program::certificates::{Authority, Client};
use crate::program::{Folder, Server, TIMEOUT, both_drivers, onrush, wait_until};
use crate::service_manager::{ServiceManager, activated, inheritable, is_running, signal};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const RESTARTS: usize = 20;
const CLIENTS: usize = 8;

fn serve(mut command: Command, manager: &mut ServiceManager) -> Server {
    manager.manage(&mut command);
    let server = Server::run(command);
    manager.receives("READY=1");
    server
}

fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = onrush();
    command
        .arg(folder.path())
        .args(["--port", "0"])
        .args(arguments);
    command
}

/// Restarts a process and waits until the new one serves.
fn restart(process: u32, manager: &mut ServiceManager) -> u32 {
    signal(process, "USR2");
    manager.new_process()
}

/// Ends the last process of a server and waits for its end.
fn end(process: u32) {
    signal(process, "TERM");
    wait_until(|| !is_running(process));
}

#[derive(Debug, Default)]
struct Outcomes {
    completed: AtomicUsize,
    failed: AtomicUsize,
    over: AtomicBool,
}

/// What a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    /// Each request on a connection of its own.
    Single,
    KeepAlive,
    Uploads,
}

/// A connection, perhaps with TLS.
trait Connection: Read + Write {}

impl<T: Read + Write> Connection for T {}

/// Connects to the server.
type Connect<'c> = dyn Fn() -> io::Result<Box<dyn Connection>> + Sync + 'c;

fn connect(address: SocketAddr) -> io::Result<Box<dyn Connection>> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(Box::new(stream))
}

/// Sends requests until the end. A client that follows RFC 9112, section 9.3.1, repeats an
/// idempotent request if a connection that it has used before ends without a response.
fn send_requests(connect: &Connect<'_>, load: Load, client: usize, outcomes: &Outcomes) {
    let request = match load {
        Load::Single => {
            "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned()
        }
        Load::KeepAlive => "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(),
        Load::Uploads => format!(
            "PUT /up/{client} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\ncontent"
        ),
    };
    let mut reused: Option<Box<dyn Connection>> = None;
    while !outcomes.over.load(Ordering::Relaxed) {
        let is_reused = reused.is_some();
        let exchanged = reused
            .take()
            .map_or_else(connect, Ok)
            .and_then(|mut stream| {
                stream.write_all(request.as_bytes())?;
                stream.flush()?;
                let response = read_response(&mut stream, load)?;
                Ok((stream, response))
            });
        match exchanged {
            Ok((stream, response)) => {
                let wanted = match load {
                    Load::Uploads => ["HTTP/1.1 201", "HTTP/1.1 204"],
                    _ => ["HTTP/1.1 200"; 2],
                };
                if wanted.iter().any(|status| response.starts_with(status)) {
                    outcomes.completed.fetch_add(1, Ordering::Relaxed);
                } else {
                    eprintln!("{load:?}: {response}");
                    outcomes.failed.fetch_add(1, Ordering::Relaxed);
                }
                let is_last = load == Load::Single || response.contains("onnection: close");
                reused = (!is_last).then_some(stream);
            }
            Err(_) if is_reused => {} // It is sent again on a new connection.
            Err(error) => {
                eprintln!("{load:?}: {error}");
                outcomes.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn read_response(stream: &mut dyn Read, load: Load) -> io::Result<String> {
    let end: &[u8] = match load {
        Load::Uploads => b"\r\n\r\n",
        _ => b"\r\n\r\ncontent",
    };
    let (mut response, mut piece) = (Vec::new(), [0; 4096]);
    while !response.ends_with(end) {
        match testing::read_some(stream, &mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            n => response.extend_from_slice(&piece[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&response).into_owned())
}

/// Restarts a server repeatedly while clients send requests.
fn restart_under_load(arguments: &[&str], restarts: usize) {
    restart_under_load_of(arguments, restarts, &connect);
}

/// As [`restart_under_load`], for clients that connect in their own way.
fn restart_under_load_of(
    arguments: &[&str],
    restarts: usize,
    connect: &(dyn Fn(SocketAddr) -> io::Result<Box<dyn Connection>> + Sync),
) {
    let folder = Folder::new();
    let mut manager = ServiceManager::new();
    let dir = folder.path().join("served");
    let mut program = onrush();
    program
        .arg(&dir)
        .args(["--port", "0", "--workers", "2", "--allow", "put"])
        .args(arguments);
    let mut server = serve(program, &mut manager);
    let (address, outcomes) = (server.address(), Outcomes::default());
    let connect = || connect(address);
    let put = "PUT /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\ncontent";
    let mut first = connect().expect("a server");
    first.write_all(put.as_bytes()).expect("it reads");
    let stored = read_response(&mut first, Load::Uploads).expect("a response");
    assert!(stored.starts_with("HTTP/1.1 201"), "{stored}");
    drop(first);
    let last = std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let load = [Load::Single, Load::KeepAlive, Load::Uploads][client % 3];
            let (outcomes, connect) = (&outcomes, &connect);
            scope.spawn(move || send_requests(connect, load, client, outcomes));
        }
        let _over = Over(&outcomes);
        let mut process = server.child.id();
        for _ in 0..restarts {
            let before = outcomes.completed.load(Ordering::Relaxed);
            wait_until(|| outcomes.completed.load(Ordering::Relaxed) > before + 10 * CLIENTS);
            process = restart(process, &mut manager);
        }
        let before = outcomes.completed.load(Ordering::Relaxed);
        wait_until(|| outcomes.completed.load(Ordering::Relaxed) > before + 10 * CLIENTS);
        process
    });
    assert_eq!(outcomes.failed.into_inner(), 0, "{arguments:?}");
    assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
    end(last);
    let log = server.log();
    assert_eq!(log.matches(" restarted; ").count(), restarts, "{log}");
    // A busy machine may log that a worker was blocked.
    assert!(
        !log.contains("ERROR") && !log.contains("drain timeout"),
        "{log}"
    );
}

/// Ends the clients, also when the test fails.
struct Over<'o>(&'o Outcomes);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_request_fails_while_the_server_restarts() {
    for driver in both_drivers() {
        restart_under_load(&["--driver", driver], RESTARTS);
    }
}

#[test]
fn no_request_fails_while_a_server_with_quotas_restarts() {
    for driver in both_drivers() {
        restart_under_load(&["--driver", driver, "--quota", "/=1GiB,/up=1GiB"], 5);
    }
}

#[test]
fn no_request_fails_while_a_server_with_tls_restarts() {
    let (folder, authority) = (Folder::new(), Authority::new("test"));
    let (certificate, key) = authority.local(&folder);
    let config = authority.client_config();
    let connect = |address| {
        let client = Client::connect_to(address, &config)?;
        Ok(Box::new(client) as Box<dyn Connection>)
    };
    for driver in both_drivers() {
        let tls = ["--tls-cert", &certificate, "--tls-key", &key];
        let arguments = [&["--driver", driver][..], &tls].concat();
        restart_under_load_of(&arguments, RESTARTS, &connect);
    }
}

/// The folder of an edge belongs to one process, as that of a build cache does.
#[test]
fn no_request_fails_while_an_edge_restarts() {
    for driver in both_drivers() {
        let folder = Folder::new();
        let edge = folder.path().join("edge");
        let edge = edge.to_str().expect("UTF-8");
        let edge = ["--edge", edge, "--edge-size", "64MiB"];
        restart_under_load(&[&["--driver", driver][..], &edge].concat(), RESTARTS);
    }
}

/// The folder of a build cache belongs to one process, so the new one waits for the end of the old
/// one. Connections wait meanwhile.
#[test]
fn no_request_fails_while_a_build_cache_restarts() {
    for driver in both_drivers() {
        restart_under_load(&["--driver", driver, "--cache", "64MiB"], 3);
    }
}

/// A download that the old process sends is complete, and the new process serves others meanwhile.
#[test]
fn a_response_in_progress_is_completed() {
    let folder = Folder::new();
    folder.file("x", "content");
    const BYTES: usize = 64 << 20;
    folder.file("large", vec![b'l'; BYTES]);
    for driver in both_drivers() {
        let mut manager = ServiceManager::new();
        let mut server = serve(command(&folder, &["--driver", driver]), &mut manager);
        let mut slow = server.connect();
        let head = b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        slow.write_all(head).expect("the server reads");
        slow.read_exact(&mut [0; 1024])
            .expect("the response begins");
        let process = restart(server.child.id(), &mut manager);
        assert!(server.get("/x").ends_with("content"));
        assert!(is_running(server.child.id()));
        let mut rest = Vec::new();
        slow.read_to_end(&mut rest)
            .expect("the rest of the response");
        assert!(rest.len() + 1024 > BYTES);
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
        assert!(server.get("/x").ends_with("content"));
        end(process);
    }
}

/// If the new process does not start, the old one says why and continues. After the mistake is
/// corrected, a restart applies every option.
#[test]
fn a_mistake_in_the_configuration_does_not_end_the_server() {
    let (folder, outside) = (Folder::new(), Folder::new());
    folder.file("x", "content");
    let config = outside.file("onrush.toml", "workers = 1\n");
    let path = config.to_str().expect("a path").to_owned();
    let mut manager = ServiceManager::new();
    let mut server = serve(command(&folder, &["--config", &path]), &mut manager);
    std::fs::write(&config, "workers = 0\n").expect("written");
    server.signal("USR2");
    server.logs("the restart failed: the new process has ended (exit status: 2)");
    server.logs("workers: 0: write a whole number from 1 to 1024");
    assert!(server.get("/x").ends_with("content"));
    std::fs::write(&config, "workers = 1\nallow = 'put'\n").expect("written");
    let process = restart(server.child.id(), &mut manager);
    assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
    let put =
        b"PUT /y HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    assert!(server.exchange(put).starts_with("HTTP/1.1 201"));
    end(process);
}

/// The file of a Unix socket remains until the last process ends.
#[test]
fn a_unix_socket_is_passed_on() {
    let folder = Folder::new();
    folder.file("x", "content");
    let path = folder.path().join("socket");
    let bind = format!("unix:{}", path.display());
    let mut manager = ServiceManager::new();
    let mut server = serve(command(&folder, &["--bind", &bind]), &mut manager);
    let get = || {
        let mut stream = UnixStream::connect(&path).expect("a server");
        stream.set_read_timeout(Some(TIMEOUT)).expect("set");
        let request = b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).expect("the server reads");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        assert!(response.ends_with("content"), "{response}");
    };
    get();
    let process = restart(server.child.id(), &mut manager);
    assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
    get();
    end(process);
    assert!(!path.exists());
}

/// The sockets of a service manager stay its own.
#[test]
fn inherited_sockets_are_passed_on() {
    let folder = Folder::new();
    folder.file("x", "content");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut manager = ServiceManager::new();
    let socket = inheritable(&listener);
    let mut program = activated(&[("http", &socket)]);
    program.arg(folder.path());
    let mut server = serve(program, &mut manager);
    let first = restart(server.child.id(), &mut manager);
    assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
    let second = restart(first, &mut manager);
    wait_until(|| !is_running(first));
    assert!(server.get("/x").ends_with("content"));
    end(second);
    // It still listens.
    TcpStream::connect(server.address()).expect("the queue of the socket");
}

/// Idle connections belong to the new process: the old one ends without closing them.
#[test]
fn idle_connections_are_passed_on() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in both_drivers() {
        let mut manager = ServiceManager::new();
        let arguments = ["--driver", driver, "--workers", "2", "--access-log", "on"];
        let mut server = serve(command(&folder, &arguments), &mut manager);
        let mut open: Vec<TcpStream> = (0..IDLE).map(|_| server.connect()).collect();
        open.iter_mut().for_each(get_alive);
        let mut process = server.child.id();
        for _ in 0..2 {
            let new = restart(process, &mut manager);
            wait_until(|| !is_running(process));
            open.iter_mut().for_each(get_alive);
            process = new;
        }
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
        end(process);
        let adopted = format!(" adopted connections={IDLE}");
        wait_until(|| server.log().matches(&adopted).count() == 2);
        let log = server.log();
        assert!(
            !log.contains("the others drain") && !log.contains("ERROR"),
            "{log}"
        );
    }
}

const IDLE: usize = 20;

/// A request on a connection that the server leaves open.
fn get_alive(stream: &mut TcpStream) {
    try_get_alive(stream).expect("a response on the same connection");
}

fn try_get_alive(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let response = read_response(stream, Load::KeepAlive)?;
    let is_kept = response.starts_with("HTTP/1.1 200") && !response.contains("onnection: close");
    is_kept.then_some(()).ok_or(ErrorKind::InvalidData.into())
}

/// No connection is closed by a restart, idle or under load.
#[test]
fn no_connection_is_closed_while_the_server_restarts() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in both_drivers() {
        let mut manager = ServiceManager::new();
        let arguments = ["--driver", driver, "--workers", "2"];
        let mut server = serve(command(&folder, &arguments), &mut manager);
        let mut idle: Vec<TcpStream> = (0..IDLE).map(|_| server.connect()).collect();
        idle.iter_mut().for_each(get_alive);
        let outcomes = Outcomes::default();
        let last = std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                let (mut stream, outcomes) = (server.connect(), &outcomes);
                scope.spawn(move || {
                    while !outcomes.over.load(Ordering::Relaxed) {
                        match try_get_alive(&mut stream) {
                            Ok(()) => outcomes.completed.fetch_add(1, Ordering::Relaxed),
                            Err(error) => {
                                eprintln!("{driver}: {error}");
                                outcomes.failed.fetch_add(1, Ordering::Relaxed);
                                return;
                            }
                        };
                    }
                });
            }
            let _over = Over(&outcomes);
            let mut process = server.child.id();
            for _ in 0..5 {
                let before = outcomes.completed.load(Ordering::Relaxed);
                let progress = || {
                    outcomes.completed.load(Ordering::Relaxed) > before + 10 * CLIENTS
                        || outcomes.failed.load(Ordering::Relaxed) > 0
                };
                wait_until(progress);
                let new = restart(process, &mut manager);
                wait_until(|| !is_running(process));
                process = new;
            }
            process
        });
        assert_eq!(outcomes.failed.into_inner(), 0, "{driver}");
        idle.iter_mut().for_each(get_alive);
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
        end(last);
    }
}

/// The client that a proxy has named is still known.
#[test]
fn addresses_of_the_proxy_protocol_are_passed_on() {
    let folder = Folder::new();
    folder.file("x", "content");
    for driver in both_drivers() {
        let mut manager = ServiceManager::new();
        let arguments = [
            "--driver",
            driver,
            "--proxy-protocol",
            "--trusted-proxy",
            "127.0.0.1",
            "--access-log",
            "on",
            "--log-level",
            "debug",
        ];
        let mut server = serve(command(&folder, &arguments), &mut manager);
        let mut open = server.connect();
        open.write_all(b"PROXY TCP4 192.0.2.7 192.0.2.2 50000 80\r\n")
            .expect("the server reads");
        get_alive(&mut open);
        let process = restart(server.child.id(), &mut manager);
        assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
        get_alive(&mut open);
        end(process);
        let log = server.log();
        let requests = log.lines().filter(|line| line.contains("target=/x"));
        let named = requests.filter(|line| line.contains("peer=192.0.2.7:50000"));
        assert_eq!(named.count(), 2, "{log}");
        let passed = log.matches("connection is passed on to another process");
        assert_eq!(passed.count(), 1, "{log}");
    }
}

/// Where the new process listens in another way, connections drain: its configuration may not
/// permit them.
#[test]
fn connections_drain_if_the_addresses_change() {
    let folder = Folder::new();
    folder.file("x", "content");
    let config = folder.file("onrush.toml", "");
    let path = config.to_str().expect("a path").to_owned();
    let mut manager = ServiceManager::new();
    let mut server = serve(command(&folder, &["--config", &path]), &mut manager);
    let mut open = server.connect();
    get_alive(&mut open);
    std::fs::write(&config, "bind = ['127.0.0.1', '127.0.0.2']\n").expect("written");
    let process = restart(server.child.id(), &mut manager);
    assert_eq!(server.wait_for_exit(TIMEOUT), Some(0));
    assert_eq!(
        testing::read_some(&mut open, &mut [0; 10]).expect("the end"),
        0
    );
    end(process);
}
