//! Listening and accepting: addresses, ports and socket files in use, and failures.

use crate::common::{KERNEL, Kind, choice, in_child, on, rig_with, watchdog};
use onrush_rt::driver::{Config, Driver, Event, ListenSocket, Socket, StreamId};
use onrush_rt::net::{Address, ListenMode, ListenOptions, listen, spread};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testing::seccomp;

fn any_port(ip: &str) -> Address {
    Address::Tcp(SocketAddr::new(ip.parse().unwrap(), 0))
}

fn tcp(address: &Address) -> SocketAddr {
    match address {
        Address::Tcp(address) => *address,
        Address::Unix(_) => panic!("a TCP address"),
    }
}

fn options() -> ListenOptions {
    ListenOptions::default()
}

/// A socket path that no other test uses.
fn path(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("onrush-rt-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

/// Polls until `count` connections were accepted, and returns their sockets.
fn accept(driver: &mut Driver, count: usize) -> Vec<Socket> {
    let mut sockets = Vec::new();
    while sockets.len() < count {
        driver
            .poll_events(Some(Duration::from_millis(20)))
            .expect("the poll succeeds");
        while let Some(event) = driver.next() {
            match event {
                Event::Accepted { socket, .. } => sockets.push(socket),
                other => panic!("{other:?}"),
            }
        }
    }
    sockets
}

/// The kernel takes the limit and the receive window of a client that does not read, and more
/// later.
#[test]
fn unsent_bytes_are_limited_until_the_limit_is_removed() {
    const UNSENT_MAX: u32 = 128 * 1024;
    const WINDOW_MAX: usize = 64 * 1024;
    fn fill(driver: &mut Driver, stream: StreamId) -> usize {
        let (piece, mut taken) = ([b'x'; 16 * 1024], 0);
        loop {
            match driver.send(stream, &piece) {
                Ok(bytes) => taken += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return taken,
                Err(error) => panic!("{error}"),
            }
        }
    }
    let name = "unsent_bytes_are_limited_until_the_limit_is_removed";
    on(&KERNEL, name, |rig| {
        let options = ListenOptions {
            unsent_bytes_max: UNSENT_MAX,
            ..options()
        };
        let (sockets, address) =
            listen(&any_port("127.0.0.1"), ListenMode::Shared, 1, &options).expect("listens");
        for socket in sockets {
            rig.driver.listen(socket).expect("listens");
        }
        let client = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
        let client = client.expect("a socket");
        sockopt::set_socket_recv_buffer_size(&client, 4096).expect("an option");
        rustix::net::connect(&client, &tcp(&address)).expect("the server listens");
        let socket = accept(&mut rig.driver, 1).pop().expect("one");
        let stream = rig.driver.attach(socket, 1).expect("attached");
        let taken = fill(&mut rig.driver, stream);
        let limit = UNSENT_MAX as usize;
        assert!(taken >= limit && taken < limit + WINDOW_MAX, "{taken}");
        rig.driver.set_unsent_max(stream, 0);
        let more = fill(&mut rig.driver, stream);
        assert!(more > limit, "{more} more than {taken}");
        rig.driver.close(stream);
    });
}

/// BBR paces, which costs a timer for each 64 KiB and is of no use on loopback.
#[test]
fn listeners_on_loopback_do_not_pace() {
    let name = |socket: &OwnedFd| sockopt::tcp_congestion(socket).expect("an option");
    let system = name(&TcpListener::bind("127.0.0.1:0").expect("a port").into());
    let unpaced = match system.starts_with("bbr") {
        true => "reno",
        false => &system,
    };
    for (ip, expected) in [
        ("127.0.0.1", unpaced),
        ("127.9.9.9", unpaced),
        ("::1", unpaced),
        ("::ffff:127.0.0.1", unpaced),
        ("0.0.0.0", &system),
        ("::", &system),
    ] {
        let (sockets, _) =
            listen(&any_port(ip), ListenMode::Shared, 1, &options()).expect("listens");
        let [ListenSocket::Os(bound)] = &sockets[..] else {
            panic!("a kernel socket")
        };
        assert_eq!(name(bound), expected, "{ip}");
        let given = TcpListener::bind((ip, 0)).expect("a port").into();
        spread(&[given], 1, &options()).expect("sockets")[0]
            .iter()
            .for_each(|socket| match socket {
                ListenSocket::Os(socket) => assert_eq!(name(socket), expected, "{ip}, inherited"),
                ListenSocket::Sim(_) => panic!("a kernel socket"),
            });
    }
    let (sockets, address) =
        listen(&any_port("127.0.0.1"), ListenMode::Shared, 1, &options()).expect("listens");
    let [ListenSocket::Os(bound)] = &sockets[..] else {
        panic!("a kernel socket")
    };
    let _client = TcpStream::connect(tcp(&address)).expect("connected");
    let accepted = rustix::net::accept(bound).expect("a connection");
    assert_eq!(name(&accepted), unpaced, "inherited by connections");
}

#[test]
fn accepts_many_connections_and_serves_them() {
    on(&KERNEL, "accepts_many_connections_and_serves_them", |rig| {
        for ip in ["127.0.0.1", "::1"] {
            let (sockets, address) =
                listen(&any_port(ip), ListenMode::Shared, 1, &options()).expect("listens");
            for socket in sockets {
                rig.driver.listen(socket).expect("listens");
            }
            let mut clients: Vec<_> = (0..400)
                .map(|_| TcpStream::connect(tcp(&address)).expect("connected"))
                .collect();
            for socket in accept(&mut rig.driver, clients.len()) {
                let Socket::Os(fd) = &socket else {
                    panic!("a kernel socket")
                };
                assert!(sockopt::tcp_nodelay(fd).unwrap(), "inherited");
                let stream = rig.driver.attach(socket, 0).expect("attached");
                assert_eq!(rig.driver.send(stream, b"hi").unwrap(), 2);
                rig.driver.close(stream);
            }
            for client in &mut clients {
                let mut said = String::new();
                client.read_to_string(&mut said).expect("an orderly end");
                assert_eq!(said, "hi");
            }
        }
    });
}

/// An established connection does not wait until a burst of new ones is accepted.
#[test]
fn a_burst_of_connections_does_not_delay_an_established_one() {
    const BURST: usize = 1500;
    let name = "a_burst_of_connections_does_not_delay_an_established_one";
    on(&KERNEL, name, |rig| {
        let (sockets, address) =
            listen(&any_port("127.0.0.1"), ListenMode::Shared, 1, &options()).expect("listens");
        for socket in sockets {
            rig.driver.listen(socket).expect("listens");
        }
        let mut client = TcpStream::connect(tcp(&address)).expect("connected");
        let socket = accept(&mut rig.driver, 1).pop().expect("one");
        let stream = rig.driver.attach(socket, 1).expect("attached");
        rig.driver.receive(stream);
        rig.poll_until_idle();
        let burst: Vec<_> = (0..BURST)
            .map(|_| TcpStream::connect(tcp(&address)).expect("connected"))
            .collect();
        client.write_all(b"x").expect("sent");
        let (mut accepted, mut before_data) = (0, None);
        while accepted < burst.len() || before_data.is_none() {
            let wait = Some(Duration::from_millis(20));
            rig.driver.poll_events(wait).expect("the poll succeeds");
            while let Some(event) = rig.driver.next() {
                match event {
                    Event::Accepted { .. } => accepted += 1,
                    Event::Data { .. } => before_data = Some(accepted),
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(accepted, burst.len());
        assert!(before_data < Some(BURST / 2), "{before_data:?}");
    });
}

#[test]
fn accepts_on_a_unix_socket_shared_by_two_drivers() {
    let _dog = watchdog("accepts_on_a_unix_socket_shared_by_two_drivers");
    for kind in KERNEL {
        let config = Config::default();
        let (Some(one), Some(two)) = (rig_with(kind, &config, 1), rig_with(kind, &config, 1))
        else {
            continue;
        };
        let mut rigs = [one, two];
        let path = path("shared");
        let address = Address::Unix(path.clone());
        let (sockets, named) =
            listen(&address, ListenMode::PerWorker, 2, &options()).expect("listens");
        assert_eq!(named, address);
        for (rig, socket) in rigs.iter_mut().zip(sockets) {
            rig.driver.listen(socket).expect("listens");
        }
        let clients: Vec<_> = (0..100)
            .map(|_| UnixStream::connect(&path).expect("connected"))
            .collect();
        let mut accepted = 0;
        while accepted < clients.len() {
            for rig in &mut rigs {
                let events = rig.poll();
                accepted += events
                    .iter()
                    .filter(|e| matches!(e, Event::Accepted { .. }))
                    .count();
            }
        }
        assert!(rigs.iter_mut().all(|rig| rig.poll_until_idle().is_empty()));
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn no_connection_is_accepted_after_unlisten() {
    on(&KERNEL, "no_connection_is_accepted_after_unlisten", |rig| {
        let (mut sockets, address) =
            listen(&any_port("127.0.0.1"), ListenMode::Shared, 1, &options()).expect("listens");
        let listener = rig.driver.listen(sockets.remove(0)).expect("listens");
        let client = TcpStream::connect(tcp(&address)).expect("connected");
        assert_eq!(accept(&mut rig.driver, 1).len(), 1);
        drop(client);
        rig.driver.unlisten(listener);
        rig.driver.unlisten(listener);
        rig.poll_until_idle();
        let refused = TcpStream::connect(tcp(&address)).expect_err("closed");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // The port is free again.
        listen(&address, ListenMode::Shared, 1, &options()).expect("the port is free again");
    });
}

#[test]
fn no_connection_is_accepted_while_held() {
    on(&KERNEL, "no_connection_is_accepted_while_held", |rig| {
        let (mut sockets, address) =
            listen(&any_port("127.0.0.1"), ListenMode::Shared, 1, &options()).expect("listens");
        let address = tcp(&address);
        let connect = || TcpStream::connect(address).expect("queued");
        let listener = rig.driver.listen(sockets.remove(0)).expect("listens");
        // Before and after the first accept. The hold is released at once, or requested twice.
        for round in 0..4 {
            let mut clients = vec![connect()];
            if round % 2 == 1 {
                assert_eq!(accept(&mut rig.driver, 1).len(), 1);
                clients.clear();
            }
            rig.driver.hold_accepting(listener);
            rig.driver.accept_again(listener);
            clients.push(connect());
            assert_eq!(accept(&mut rig.driver, clients.len()).len(), clients.len());
            rig.driver.hold_accepting(listener);
            rig.driver.hold_accepting(listener);
            rig.poll_until_idle();
            let held = [connect(), connect()];
            assert!(rig.poll_until_idle().is_empty());
            rig.driver.accept_again(listener);
            assert_eq!(accept(&mut rig.driver, held.len()).len(), held.len());
        }
        // A connection that waits when the listener closes is accepted.
        rig.driver.hold_accepting(listener);
        rig.poll_until_idle();
        let _last = connect();
        assert!(rig.poll_until_idle().is_empty());
        rig.driver.unlisten(listener);
        rig.driver.accept_again(listener);
        assert_eq!(accept(&mut rig.driver, 1).len(), 1);
        rig.poll_until_idle();
        assert!(!rig.driver.is_listening());
    });
}

/// A free descriptor ends the pause of a listener, but not a hold.
#[test]
fn hold_outlasts_a_pause() {
    in_child(module_path!(), "hold_outlasts_a_pause", || {
        KERNEL.into_iter().for_each(hold_without_descriptors);
    });
}

fn hold_without_descriptors(kind: Kind) {
    let Some(mut rig) = rig_with(kind, &Config::default(), 1) else {
        return;
    };
    let (mut sockets, address) =
        listen(&any_port("127.0.0.1"), ListenMode::Shared, 1, &options()).expect("listens");
    let listener = rig.driver.listen(sockets.remove(0)).expect("listens");
    let (stream, _) = rig.pair(crate::common::Transport::Unix);
    let _client = TcpStream::connect(tcp(&address)).expect("queued");
    let hoard = hoard_descriptors();
    rig.until(|_, event| matches!(event, Event::AcceptPaused { .. }));
    rig.driver.hold_accepting(listener);
    drop(hoard);
    rig.driver.close(stream);
    std::thread::sleep(Duration::from_millis(300));
    assert!(rig.poll_until_idle().is_empty());
    rig.driver.accept_again(listener);
    assert_eq!(accept(&mut rig.driver, 1).len(), 1);
}

#[test]
fn dropped_driver_frees_its_port_at_once() {
    let _dog = watchdog("dropped_driver_frees_its_port_at_once");
    for kind in KERNEL {
        let mut address = any_port("127.0.0.1");
        for _ in 0..50 {
            let Some(mut rig) = rig_with(kind, &Config::default(), 1) else {
                break;
            };
            let (mut sockets, bound) = listen(&address, ListenMode::Shared, 1, &options())
                .unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            rig.driver.listen(sockets.remove(0)).expect("listens");
            rig.driver.poll_events(Some(Duration::ZERO)).unwrap();
            address = bound;
        }
    }
}

#[test]
fn port_0_gives_all_workers_the_same_port() {
    let _dog = watchdog("port_0_gives_all_workers_the_same_port");
    for ip in ["127.0.0.1", "::1"] {
        for spread in [ListenMode::PerWorker, ListenMode::Shared] {
            let (sockets, address) = listen(&any_port(ip), spread, 3, &options()).expect("listens");
            assert_eq!(sockets.len(), 3);
            assert_ne!(tcp(&address).port(), 0);
            for socket in &sockets {
                let ListenSocket::Os(fd) = socket else {
                    panic!("a kernel socket")
                };
                let name = SocketAddr::try_from(rustix::net::getsockname(fd).unwrap()).unwrap();
                assert_eq!(name, tcp(&address));
                assert!(sockopt::socket_acceptconn(fd).unwrap(), "listens");
            }
            let again = listen(&address, spread, 3, &options()).expect_err("in use");
            assert_eq!(again.kind(), ErrorKind::AddrInUse);
        }
    }
}

#[test]
fn port_of_another_socket_is_refused() {
    let _dog = watchdog("port_of_another_socket_is_refused");
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let plain = plain.local_addr().map(|address| (plain, address)).unwrap();
    // A socket that shares its port, with or without SO_REUSEADDR in addition.
    let sharing = |reuse_address: bool| {
        let flags = SocketFlags::CLOEXEC;
        let family = AddressFamily::INET;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
        sockopt::set_socket_reuseport(&socket, true).unwrap();
        sockopt::set_socket_reuseaddr(&socket, reuse_address).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        rustix::net::bind(&socket, &any).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        let name = SocketAddr::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
        (TcpListener::from(socket), name)
    };
    for (other, address) in [plain, sharing(false), sharing(true)] {
        for spread in [ListenMode::PerWorker, ListenMode::Shared] {
            for workers in [1, 2] {
                let address = Address::Tcp(address);
                let refused = listen(&address, spread, workers, &options()).expect_err("in use");
                assert_eq!(refused.kind(), ErrorKind::AddrInUse);
            }
        }
        drop(other);
        listen(&Address::Tcp(address), ListenMode::PerWorker, 2, &options())
            .expect("the port is free");
    }
}

#[test]
fn stale_unix_socket_is_replaced_but_a_live_one_is_not() {
    let _dog = watchdog("stale_unix_socket_is_replaced_but_a_live_one_is_not");
    let path = path("stale");
    drop(UnixListener::bind(&path).unwrap()); // Leaves its file behind.
    let address = Address::Unix(path.clone());
    let ours = listen(&address, ListenMode::Shared, 1, &options()).expect("replaced");
    let refused = listen(&address, ListenMode::Shared, 1, &options()).expect_err("alive");
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    UnixStream::connect(&path).expect("the first listener still has the path");
    drop(ours);
    std::fs::remove_file(&path).unwrap();
    let datagrams = UnixDatagram::bind(&path).unwrap();
    let refused = listen(&address, ListenMode::Shared, 1, &options()).expect_err("alive");
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    drop(datagrams);
    std::fs::remove_file(&path).unwrap();
}

/// A mistyped path must not delete a file.
#[test]
fn file_that_is_not_a_socket_is_never_removed() {
    let _dog = watchdog("file_that_is_not_a_socket_is_never_removed");
    let file = path("precious");
    std::fs::write(&file, "years of work").unwrap();
    let link = path("link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for place in [&file, &link, &std::env::temp_dir()] {
        let refused = listen(
            &Address::Unix(place.clone()),
            ListenMode::Shared,
            1,
            &options(),
        );
        assert_eq!(refused.expect_err("taken").kind(), ErrorKind::AddrInUse);
    }
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "years of work");
    std::fs::remove_file(&link).unwrap();
    std::fs::remove_file(&file).unwrap();
}

/// A socket that cannot accept reports it once per pause and does not keep a core busy.
#[test]
fn listener_that_always_fails_pauses() {
    on(&KERNEL, "listener_that_always_fails_pauses", |rig| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, stream) = (AddressFamily::INET, SocketType::STREAM);
        let deaf = rustix::net::socket_with(family, stream, flags, None).unwrap();
        rig.driver
            .listen(ListenSocket::Os(deaf))
            .expect("the driver takes the socket");
        let (mut pauses, mut polls) = (0, 0);
        while pauses < 3 {
            rig.driver.poll_events(None).expect("the poll succeeds");
            polls += 1;
            while let Some(event) = rig.driver.next() {
                match event {
                    Event::AcceptPaused { error, .. } => {
                        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
                        pauses += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(polls < 50, "{polls} polls for three pauses");
    });
}

/// Every accept fails as if the client had disconnected. A poll must end nevertheless.
#[test]
fn poll_ends_when_every_accept_is_aborted() {
    in_child(
        module_path!(),
        "poll_ends_when_every_accept_is_aborted",
        || {
            seccomp::refuse(&[
                (libc::SYS_accept4, libc::ECONNABORTED),
                (libc::SYS_accept, libc::ECONNABORTED),
            ])
            .expect("a filter");
            let mut rig = rig_with(Kind::Epoll, &Config::default(), 1).expect("always");
            let (mut sockets, address) =
                listen(&any_port("127.0.0.1"), ListenMode::Shared, 1, &options()).expect("listens");
            rig.driver.listen(sockets.remove(0)).expect("listens");
            let _client = TcpStream::connect(tcp(&address)).expect("queued");
            assert!(rig.poll_until_idle().is_empty());
        },
    );
}

/// Limits this process to 128 descriptors and opens all that are left.
fn hoard_descriptors() -> Vec<OwnedFd> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let low = rustix::process::Rlimit {
        current: Some(128),
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, low).expect("lowered");
    std::iter::from_fn(|| rustix::io::dup(std::io::stderr()).ok()).collect()
}

fn without_descriptors(kind: Kind) {
    let Some(choice) = choice(kind) else {
        return;
    };
    let (mut sockets, address) =
        listen(&any_port("127.0.0.1"), ListenMode::Shared, 1, &options()).expect("listens");
    let mut driver = choice.build(&Config::default()).expect("built");
    // The kernel connects the client; the server has no descriptor to accept it with.
    let mut client = TcpStream::connect(tcp(&address)).expect("queued");
    let (mine, theirs) = UnixStream::pair().expect("a pair");
    mine.set_nonblocking(true).unwrap();
    let stream = driver.attach(Socket::Os(mine.into()), 7).unwrap();
    driver.receive(stream);
    let mut hoard = hoard_descriptors();
    driver.listen(sockets.remove(0)).expect("listens");
    let (start, cpu) = (Instant::now(), crate::common::cpu_time());
    let (mut pauses, mut served) = (0, 0);
    while start.elapsed() < Duration::from_secs(1) {
        (&theirs).write_all(b"x").unwrap(); // An established connection is served meanwhile.
        driver
            .poll_events(Some(Duration::from_millis(50)))
            .expect("the poll succeeds");
        while let Some(event) = driver.next() {
            match event {
                Event::AcceptPaused { error, .. } => {
                    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
                    pauses += 1;
                }
                Event::Data { .. } => served += 1,
                other => panic!("{other:?}"),
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let share = (crate::common::cpu_time() - cpu).as_secs_f64() / start.elapsed().as_secs_f64();
    println!(
        "{kind:?}: {pauses} pauses, {served} served, {:.1} %",
        share * 100.0
    );
    assert!(pauses > 0 && served > 0);
    assert!(
        share < 0.05,
        "{:.1} % of a core without descriptors",
        share * 100.0
    );
    // Another stream closes: accepting continues before the pause is over.
    hoard.pop();
    driver.close(stream);
    let accepted = accept(&mut driver, 1).remove(0);
    let accepted = driver.attach(accepted, 8).unwrap();
    assert_eq!(driver.send(accepted, b"at last").unwrap(), 7);
    driver.close(accepted);
    let mut said = String::new();
    client.read_to_string(&mut said).expect("an orderly end");
    assert_eq!(said, "at last");
}

#[test]
fn out_of_descriptors_on_epoll() {
    in_child(module_path!(), "out_of_descriptors_on_epoll", || {
        without_descriptors(Kind::Epoll)
    });
}

#[test]
fn out_of_descriptors_on_io_uring() {
    in_child(module_path!(), "out_of_descriptors_on_io_uring", || {
        without_descriptors(Kind::Uring)
    });
}
