//! Addresses, workers, the connection limit, and events that end a connection but not the server.

use crate::common::{
    Served, calm, content, drivers, get, read_some, serve, serve_with, statuses, text, through_tls,
    watchdog,
};
use onrush::{DriverPreference, Limits, Request, Response, Router, Server, per_worker};
use onrush_rt::net::{Address, ListenMode};
use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

async fn hello(_: Request) -> Response {
    Response::text("hello")
}

/// Sends one request on a connection of any kind, which then ends.
fn ask_on(mut stream: impl Read + Write) -> Vec<u8> {
    let request = "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    response
}

fn started(driver: DriverPreference, address: &str) -> io::Result<onrush::Running> {
    Server::bind(address)
        .driver(driver)
        .workers(2)
        .pinned(false)
        .start(hello)
}

fn stop(running: onrush::Running) {
    running.handle().shutdown_now();
    running.wait().unwrap();
}

#[test]
fn addresses() {
    let _dog = watchdog("addresses");
    let folder = std::env::temp_dir();
    let path = folder.join(format!("onrush-{}.sock", std::process::id()));
    for driver in drivers() {
        for address in ["127.0.0.1:0", "[::1]:0", "localhost:0"] {
            let running = started(driver, address).unwrap();
            let Address::Tcp(bound) = running.address().clone() else {
                panic!("not TCP");
            };
            assert_ne!(bound.port(), 0);
            for _ in 0..8 {
                assert!(ask_on(TcpStream::connect(bound).unwrap()).ends_with(b"hello"));
            }
            let taken = started(driver, &bound.to_string()).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse);
            assert!(taken.to_string().contains("is in use"), "{taken}");
            stop(running);
            assert!(
                TcpStream::connect(bound).is_err(),
                "the server no longer listens"
            );
        }
        // A path that a server left is replaced.
        for _ in 0..2 {
            let running = started(driver, &format!("unix:{}", path.display())).unwrap();
            assert_eq!(running.address(), &Address::Unix(path.clone()));
            for _ in 0..8 {
                assert!(ask_on(UnixStream::connect(&path).unwrap()).ends_with(b"hello"));
            }
            stop(running);
        }
        for wrong in [
            "",
            "nonsense",
            "127.0.0.1",
            "127.0.0.1:99999",
            "unix:/no/such/folder/x",
        ] {
            assert!(started(driver, wrong).is_err(), "{wrong:?}");
        }
    }
    let _ = std::fs::remove_file(&path);
}

/// The environment belongs to the whole process, so this test uses a child process.
#[test]
fn from_env_uses_the_variables_that_are_set() {
    if through_tls() {
        return; // Its child process is this test by name.
    }
    let _dog = watchdog("from_env_uses_the_variables_that_are_set");
    const NAME: &str = "from_env_uses_the_variables_that_are_set";
    if std::env::var_os("ONRUSH_TEST_CHILD").is_some() {
        let built = Server::bind("127.0.0.1:0").from_env();
        let running = match built.and_then(|server| server.pinned(false).start(hello)) {
            Ok(running) => running,
            Err(error) => return println!("says: {error}."),
        };
        println!(
            "says: {} workers, {}.",
            running.workers(),
            running.driver().name()
        );
        return stop(running);
    }
    for (workers, driver, says) in [
        ("3", "epoll", "says: 3 workers, epoll."),
        ("x", "epoll", "says: ONRUSH_WORKERS: not a number above 0."),
        ("0", "epoll", "says: ONRUSH_WORKERS: not a number above 0."),
        ("1", "kqueue", "says: ONRUSH_DRIVER: "),
    ] {
        let output = testing::child::only(module_path!(), NAME)
            .env("ONRUSH_TEST_CHILD", "1")
            .env("ONRUSH_WORKERS", workers)
            .env("ONRUSH_DRIVER", driver)
            .output()
            .unwrap();
        let said = testing::child::shown(&output);
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn each_worker_has_its_own_state() {
    let _dog = watchdog("each_worker_has_its_own_state");
    for driver in drivers() {
        for listen_mode in [ListenMode::PerWorker, ListenMode::Shared] {
            let made = Arc::new(AtomicUsize::new(0));
            let counting = made.clone();
            let application = per_worker(move |worker: &onrush::WorkerHandle| {
                counting.fetch_add(1, Ordering::Relaxed);
                let (index, served) = (worker.index(), Rc::new(Cell::new(0)));
                move |_: Request| {
                    served.set(served.get() + 1);
                    let response = format!("{index} {}", served.get());
                    async { response }
                }
            });
            let configure = |server: Server| server.workers(3).listen_mode(listen_mode);
            let server = serve_with(driver, application, configure);
            let mut last = [0; 3];
            for _ in 0..200 {
                let response = text(content(&server.get("/")));
                let (index, served) = response.split_once(' ').unwrap();
                let (index, served): (usize, u32) =
                    (index.parse().unwrap(), served.parse().unwrap());
                assert_eq!(
                    served,
                    last[index] + 1,
                    "each worker counts its own requests"
                );
                last[index] = served;
            }
            assert_eq!(last.iter().sum::<u32>(), 200);
            assert_eq!(made.load(Ordering::Relaxed), 3);
            if listen_mode == ListenMode::PerWorker {
                assert!(last.iter().all(|&served| served > 0), "{last:?}");
            }
        }
    }
}

/// `serve` uses the calling thread as one of its workers, and no other thread if there is only one.
#[test]
fn calling_thread_is_a_worker() {
    let _dog = watchdog("calling_thread_is_a_worker");
    async fn thread(_: Request) -> Response {
        Response::text(std::thread::current().name().unwrap_or("?").to_owned())
    }
    for (index, driver) in drivers().into_iter().enumerate() {
        for workers in [1, 2] {
            let name = format!("onrush-{}-{index}-{workers}.sock", std::process::id());
            let path = std::env::temp_dir().join(name);
            let address = format!("unix:{}", path.display());
            let server = Server::bind(address).driver(driver).workers(workers);
            let caller = std::thread::Builder::new().name("the caller".into());
            // It serves until the process ends.
            caller.spawn(move || server.serve(thread)).unwrap();
            let connect = || loop {
                match UnixStream::connect(&path) {
                    Ok(stream) => return stream,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            };
            let mut names = std::collections::BTreeSet::new();
            let mut kept = Vec::new();
            while names.len() < workers {
                let mut stream = connect();
                stream.write_all(get("/").as_bytes()).unwrap();
                let mut response = vec![0; 1000];
                let bytes = testing::read_some(&mut stream, &mut response).unwrap();
                names.insert(text(content(&response[..bytes])));
                kept.push(stream);
            }
            let expected = ["onrush-1", "the caller"];
            assert!(names.iter().eq(&expected[2 - workers..]), "{names:?}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}

/// When `serve` ends, the caller gets its CPU affinity back, and the reason.
#[test]
fn calling_thread_is_restored() {
    let _dog = watchdog("calling_thread_is_restored");
    let cores = onrush_rt::worker::affinity();
    for driver in drivers() {
        for failing in [0, 1] {
            let (made, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let (own, pinned) = (made.clone(), seen.clone());
            let caller = std::thread::current().id();
            let application = per_worker(move |_| {
                let is_caller = std::thread::current().id() == caller;
                own.fetch_add(1, Ordering::Relaxed);
                let all = onrush_rt::worker::affinity().len();
                pinned.fetch_add(usize::from(is_caller && all == 1), Ordering::Relaxed);
                assert!(is_caller == (failing == 1), "on purpose");
                hello
            });
            let server = Server::bind("127.0.0.1:0").driver(driver).workers(2);
            let error = server.pinned(true).serve(application).unwrap_err();
            let reason = error.to_string();
            assert!(
                ["a worker panicked", "a worker ended at once"].contains(&&*reason),
                "{reason}"
            );
            assert_eq!(onrush_rt::worker::affinity(), cores);
            assert!(made.load(Ordering::Relaxed) > 0);
            assert!(cores.len() < 2 || failing == 1 || seen.load(Ordering::Relaxed) == 1);
        }
    }
}

#[test]
fn connection_limit_applies_to_all_workers_together() {
    if through_tls() {
        return; // Over the limit there is no 503.
    }
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    static RELEASED: AtomicBool = AtomicBool::new(false);
    async fn held(request: Request) -> Response {
        if request.path() == "/held" {
            STARTED.fetch_add(1, Ordering::SeqCst);
            while !RELEASED.load(Ordering::SeqCst) {
                request.worker().sleep(Duration::from_millis(5)).await;
            }
        }
        Response::text("hello")
    }
    let _dog = watchdog("connection_limit_applies_to_all_workers_together");
    for driver in drivers() {
        STARTED.store(0, Ordering::SeqCst);
        RELEASED.store(false, Ordering::SeqCst);
        let configure = |server: Server| server.workers(2).connections_max(5);
        let server = serve_with(driver, held, configure);
        let mut open: Vec<TcpStream> = Vec::new();
        for number in 1..=5 {
            // Each has a request in progress, because an idle connection would be closed for
            // others.
            let mut stream = server.connect();
            stream.write_all(get("/held").as_bytes()).unwrap();
            while STARTED.load(Ordering::SeqCst) < number {
                std::thread::yield_now();
            }
            open.push(stream);
        }
        for _ in 0..20 {
            // The request is in flight when the response is sent. The response must not be lost by
            // a reset.
            let mut stream = server.connect();
            stream.write_all(get("/").as_bytes()).unwrap();
            stream.write_all(&[b'x'; 50_000]).unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).unwrap();
            assert_eq!(statuses(&response), [503], "{driver:?}");
            assert!(text(&response).contains("Retry-After: 1\r\n"));
        }
        // Accepted connections continue, and one that ends makes room.
        RELEASED.store(true, Ordering::SeqCst);
        for stream in &mut open {
            assert!(read_some(stream, &mut [0; 1024]).unwrap() > 0);
        }
        open.pop();
        while statuses(&server.get("/")) != [200] {}
    }
}

/// By default, a client that ends its side gets what is complete, also if it reads late, and no
/// reset that would throw it away.
#[test]
fn what_is_complete_reaches_a_client_that_has_ended_its_side() {
    let _dog = watchdog("what_is_complete_reaches_a_client_that_has_ended_its_side");
    async fn handler(request: Request) -> Response {
        match request.path() {
            "/waits" => std::future::pending().await,
            path => Response::with_body(vec![b'x'; path[1..].parse().unwrap()]),
        }
    }
    let rows: [(&[&str], &[usize]); 5] = [
        (&["/16000"], &[16_000]),
        (&["/10000000"], &[10_000_000]),
        (&["/16000", "/waits"], &[16_000]),
        (&["/10000000", "/waits"], &[10_000_000]),
        (
            &["/16000", "/10000000", "/16000", "/waits", "/16000"],
            &[16_000, 10_000_000, 16_000],
        ),
    ];
    for driver in drivers() {
        let server = serve(driver, handler);
        for (paths, lengths) in rows {
            let mut stream = server.connect();
            let requests: String = paths.iter().map(|path| get(path)).collect();
            stream.write_all(requests.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("no reset");
            let content = received.iter().filter(|byte| **byte == b'x').count();
            let heads = received.windows(9).filter(|it| *it == b"HTTP/1.1 ").count();
            assert_eq!(
                (heads, content),
                (lengths.len(), lengths.iter().sum()),
                "{driver:?} {paths:?}"
            );
        }
    }
}

#[test]
fn half_close_does_not_end_the_connection() {
    let _dog = watchdog("half_close_does_not_end_the_connection");
    async fn late(request: Request) -> Response {
        request.worker().sleep(Duration::from_millis(20)).await;
        Response::text("hello")
    }
    for driver in drivers() {
        let server = serve_with(driver, late, |server| server.half_close(true));
        let mut stream = server.connect();
        stream.write_all(get("/").repeat(3).as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut responses = Vec::new();
        stream.read_to_end(&mut responses).unwrap();
        assert_eq!(statuses(&responses), [200; 3], "{driver:?}");
    }
}

#[test]
fn accepting_continues_after_an_error() {
    let mut sim = calm(&hello, Limits::default());
    for errno in [libc_emfile(), libc_emfile()] {
        sim.net().fail_accept(errno);
        let client = sim.connect();
        sim.send(&client, get("/").as_bytes());
        sim.advance(Duration::from_millis(200));
        assert!(client.receive().unwrap().ends_with(b"hello"));
    }
}

/// `EMFILE`, the same on every Linux architecture.
fn libc_emfile() -> i32 {
    24
}

/// A client that sends more after its announced last request still gets its response: closing with
/// unread bytes would reset the connection.
#[test]
fn input_after_the_last_request_keeps_its_response() {
    let _dog = watchdog("input_after_the_last_request_keeps_its_response");
    for driver in drivers() {
        let running = Server::bind("127.0.0.1:0")
            .driver(driver)
            .workers(1)
            .start(|_: Request| async {
                // The worker is busy: bytes that arrive meanwhile wait in the kernel.
                std::thread::sleep(Duration::from_millis(20));
                Response::text("whole")
            })
            .unwrap();
        let Address::Tcp(bound) = running.address().clone() else {
            panic!("not TCP");
        };
        for surplus_bytes in [1, 4 << 10, 200 << 10] {
            for _ in 0..5 {
                let mut stream = TcpStream::connect(bound).unwrap();
                let last = b"GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
                stream.write_all(last).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                stream.write_all(&vec![b'x'; surplus_bytes]).unwrap();
                let mut response = Vec::new();
                stream.read_to_end(&mut response).unwrap();
                assert!(
                    response.ends_with(b"whole"),
                    "{surplus_bytes}: {response:?}"
                );
            }
        }
        stop(running);
    }
}

/// The same while the response waits for the client: the server has received the bytes from the
/// kernel, but not processed them.
#[test]
fn input_during_the_last_response_does_not_lose_it() {
    const RESPONSES: usize = 1000;
    const BYTES: usize = 16 << 10;
    let _dog = watchdog("input_during_the_last_response_does_not_lose_it");
    for driver in drivers() {
        let running = Server::bind("127.0.0.1:0")
            .driver(driver)
            .workers(1)
            .start(|_: Request| async { Response::text("x".repeat(BYTES)) })
            .unwrap();
        let Address::Tcp(bound) = running.address().clone() else {
            panic!("not TCP");
        };
        let mut stream = TcpStream::connect(bound).unwrap();
        // So that unread responses stay in the server.
        rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 32 << 10).unwrap();
        let mut requests = get("/").repeat(RESPONSES - 1);
        requests.push_str("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
        stream.write_all(requests.as_bytes()).unwrap();
        let mut bytes = 0;
        let mut piece = vec![0; 64 << 10];
        while bytes < (RESPONSES - 40) * BYTES {
            if bytes.is_multiple_of(7) {
                stream.write_all(b"more").unwrap();
            }
            bytes += testing::read_some(&mut stream, &mut piece).unwrap();
        }
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(20));
            stream.write_all(b"still more").unwrap();
        }
        let mut rest = Vec::new();
        bytes += stream.read_to_end(&mut rest).unwrap();
        assert!(bytes > RESPONSES * BYTES, "{bytes}");
        stop(running);
    }
}

/// A descriptor budget may outlive a server. However the server ends, it releases the permits of
/// all connections: of those that are served, and of those in transfer to another worker.
#[test]
fn ended_server_releases_all_connection_permits() {
    let _dog = watchdog("ended_server_releases_all_connection_permits");
    for driver in drivers() {
        let budget = onrush_rt::descriptors::Descriptors::new(10_000);
        for round in 0..60 {
            let server = crate::common::serve_with(driver, hello, |server| {
                let server = server.workers(3).descriptors(&budget);
                server.placement(onrush::Placement::RoundRobin)
            });
            let connect = |_| {
                let mut stream = server.connect();
                stream.write_all(b"G").unwrap(); // The server accepts it with its first byte.
                stream
            };
            let clients: Vec<_> = (0..40).map(connect).collect();
            if round % 3 == 0 {
                crate::common::gate::until(|| budget.used().connections == 40);
            }
            server.running().handle().shutdown_now();
            server.wait().unwrap();
            assert_eq!(budget.used().connections, 0, "{driver:?}, {round}");
            drop(clients);
        }
    }
}

/// A client that ends its side: it gets its response, unless the server is told that no client does
/// so. Then the handler is dropped, but what was sent before is served, and a body has its end.
#[test]
fn a_client_that_ends_its_side_may_be_taken_as_gone() {
    let _dog = watchdog("a_client_that_ends_its_side_may_be_taken_as_gone");
    struct Told(mpsc::Sender<&'static str>);
    impl Drop for Told {
        fn drop(&mut self) {
            let _ = self.0.send("dropped");
        }
    }
    for driver in drivers() {
        let (begun, events) = mpsc::channel();
        let wait = move || {
            let told = Told(begun.clone());
            let _ = begun.send("begun");
            async move {
                let _told = told;
                std::future::pending::<Response>().await
            }
        };
        let read = |mut request: Request| async move {
            let all = request.body().read_all(100).await;
            Response::text(format!("{:?}", all.map_err(|error| error.kind())))
        };
        let slow = |request: Request| async move {
            request.worker().sleep(Duration::from_millis(100)).await;
            Response::text("late")
        };
        let (first, second, third) = (wait.clone(), wait.clone(), wait);
        let read_all = move |mut request: Request| {
            let wait = third.clone();
            async move {
                request.body().discard().await.unwrap();
                wait().await
            }
        };
        let router = Router::new()
            .get("/wait", move |_: Request| first())
            .post("/wait", move |_: Request| second())
            .post("/all", read_all)
            .post("/read", read)
            .get("/slow", slow);
        let ask = |server: &Served, request: &str| {
            let mut stream = server.connect();
            stream.write_all(request.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            let mut received = Vec::new();
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = read_some(&mut stream, &mut piece) {
                received.extend_from_slice(&piece[..n]);
            }
            text(&received)
        };
        let cut = "POST /read HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc";
        let server = serve_with(driver, router.clone(), |server| server.workers(1));
        assert_eq!(ask(&server, &get("/wait")), "");
        assert_eq!(events.recv(), Ok("begun"));
        assert_eq!(events.recv(), Ok("dropped"));
        let length = "HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
        let coding = "HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let chunks = format!("{coding}3\r\nabc\r\n0\r\n\r\n");
        for request in [
            format!("POST /wait {length}"),
            format!("POST /wait {chunks}"),
            format!("POST /all {length}"),
            format!("POST /all {chunks}"),
            [get("/none"), get("/wait")].concat(),
            // What is behind the request cannot be more than another one.
            get("/wait") + "x",
            get("/wait").repeat(2),
        ] {
            ask(&server, &request);
            assert_eq!(events.recv(), Ok("begun"), "{request}");
            assert_eq!(events.recv(), Ok("dropped"), "{request}");
        }
        let two = [get("/none"), get("/slow")].concat();
        assert!(ask(&server, &two).starts_with("HTTP/1.1 404 "));
        assert!(ask(&server, cut).starts_with("HTTP/1.1 400 "));

        let server = serve_with(driver, router, |server| server.workers(1).half_close(true));
        assert!(ask(&server, &get("/slow")).ends_with("late"));
    }
}
