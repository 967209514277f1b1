//! Handlers that are plain functions: clients that disconnect or are slow, and stacks that are
//! reused, many, or too small.

use crate::common::contract::contract;
use crate::common::{ask, calm, content, dechunk, drivers, get, pattern, plain, serve, watchdog};
use onrush::coroutine::{
    RequestReader, ResponseWriter, counters, handler, scope, sleep, touched_bytes,
};
use onrush::sim::Simulation;
use onrush::{Limits, Server};
use std::cell::Cell;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn hello(_: &mut RequestReader, response: &mut ResponseWriter) {
    response.write_all(b"hello").unwrap();
}

/// A `POST` with a chunked body.
fn post(body: &[u8]) -> Vec<u8> {
    let mut sent = b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in body.chunks(7001) {
        write!(sent, "{:x}\r\n", chunk.len()).unwrap();
        sent.extend_from_slice(chunk);
        sent.extend_from_slice(b"\r\n");
    }
    sent.extend_from_slice(b"0\r\n\r\n");
    sent
}

/// Counts its drop.
struct Ends(Rc<Cell<u32>>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

/// Lets a test with one thread share a value that is not `Send`.
struct Shared<T>(T);

#[test]
fn slow_client_blocks_its_handler() {
    scope(|| {
        thread_local!(static WRITTEN: Cell<usize> = const { Cell::new(0) });
        fn writes(_: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
            for _ in 0..1000 {
                response.write_all(&[b'x'; 1000])?;
                WRITTEN.set(WRITTEN.get() + 1000);
            }
            Ok(())
        }
        let limits = Limits::default();
        let mut sim = Simulation::builder(1)
            .limits(limits)
            .network(plain(10_000))
            .start(&handler(contract(), writes));
        let client = sim.connect();
        sim.send(&client, get("/").as_bytes());
        sim.run();
        let mut reply = Vec::new();
        while WRITTEN.get() < 1_000_000 {
            // The network's buffers, one piece in flight, and one that the handler writes.
            assert!(WRITTEN.get() <= reply.len() + 10_000 + 3 * 16_384);
            let piece = client.receive().unwrap();
            assert!(!piece.is_empty(), "the response continues");
            reply.extend(piece);
            sim.run();
        }
        while !reply.ends_with(b"\r\n0\r\n\r\n") {
            reply.extend(client.receive().unwrap());
            sim.run();
        }
        assert_eq!(dechunk(content(&reply)).len(), 1_000_000);
    });
}

/// Whenever the client disconnects, the stack is unwound once and everything is released.
#[test]
fn disconnected_client_unwinds_its_handler() {
    scope(|| {
        thread_local!(static ENDED: Shared<Rc<Cell<u32>>> = Shared(Rc::default()));
        fn all_kinds_of_waits(
            request: &mut RequestReader,
            response: &mut ResponseWriter,
        ) -> io::Result<()> {
            struct Writes<'r>(&'r mut ResponseWriter);
            impl Drop for Writes<'_> {
                fn drop(&mut self) {
                    // During unwinding there is no client, but a write does no harm.
                    let result = self.0.write_all(&[0; 40_000]).and_then(|()| self.0.flush());
                    assert!(!onrush::coroutine::is_unwinding() || result.is_err());
                }
            }
            let _ends = Ends(ENDED.with(|ended| ended.0.clone()));
            let mut body = Vec::new();
            request.read_to_end(&mut body)?;
            sleep(Duration::from_millis(3));
            response.flush()?;
            sleep(Duration::from_millis(3));
            let writes = Writes(response);
            writes.0.write_all(&body)?;
            writes.0.flush()?;
            sleep(Duration::from_millis(3));
            Ok(())
        }
        let sent = post(&pattern(100_000));
        let mut stages = [0; 2];
        for steps in 0..80 {
            let behaviour = plain(20_000);
            let app = handler(contract(), all_kinds_of_waits);
            let mut sim = Simulation::builder(steps).network(behaviour).start(&app);
            let client = sim.connect();
            let (mut rest, mut heard) = (&sent[..], 0);
            for _ in 0..steps {
                rest = &rest[client.send(&rest[..rest.len().min(5_000)]).unwrap()..];
                sim.advance(Duration::from_millis(1));
                heard += client.receive().unwrap().len();
            }
            let before = ENDED.with(|ended| ended.0.get());
            let in_use = counters().in_use();
            stages[usize::from(heard > 0)] += in_use;
            client.reset();
            drop(client);
            sim.run();
            let ended = ENDED.with(|ended| ended.0.get());
            assert_eq!(u64::from(ended - before), in_use, "after {steps} steps");
            assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
            assert_eq!(counters().in_use(), 0);
        }
        assert!(
            stages[0] > 10 && stages[1] > 10,
            "both before and after the head: {stages:?}"
        );
    });
}

/// The values of a handler are dropped after its response. A drop cannot change that response.
#[test]
fn destructor_that_serves_others_does_not_mix_responses() {
    scope(|| {
        thread_local!(static SERVED: Cell<u32> = const { Cell::new(0) });
        #[derive(Clone)]
        struct Serves;
        impl Drop for Serves {
            fn drop(&mut self) {
                if !onrush::coroutine::is_inside() {
                    return;
                }
                let mut sim = calm(&handler(contract(), hello), Limits::default());
                let client = sim.connect();
                assert!(ask(&mut sim, &client, &get("/")).ends_with("hello"));
                SERVED.set(SERVED.get() + 1);
            }
        }
        let owned = Serves;
        let responses = move |request: &mut RequestReader, response: &mut ResponseWriter| {
            let _serves = &owned;
            match request.path() {
                "/fails" => Err(io::Error::other("on purpose")),
                path => response.write_all(path.to_owned().as_bytes()),
            }
        };
        let mut sim = calm(&handler(contract(), responses), Limits::default());
        let client = sim.connect();
        for path in ["/one", "/two", "/three"] {
            assert!(ask(&mut sim, &client, &get(path)).ends_with(path));
        }
        assert!(ask(&mut sim, &client, &get("/fails")).contains(" 500 "));
        assert_eq!(SERVED.get(), 4);
    });
}

/// A response to a disconnected client is not sent to another client.
#[test]
fn response_to_a_disconnected_client_is_dropped() {
    scope(|| {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        thread_local!(static CAUGHT: Cell<u32> = const { Cell::new(0) });
        fn continues(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
            let path = request.path().to_owned();
            let caught = catch_unwind(AssertUnwindSafe(|| sleep(Duration::from_millis(5))));
            CAUGHT.set(CAUGHT.get() + u32::from(caught.is_err()));
            response.write_all(path.as_bytes())
        }
        for seed in 1..=10 {
            CAUGHT.set(0);
            let (limits, network) = (Limits::default(), plain(4096));
            let mut sim = Simulation::builder(seed)
                .limits(limits)
                .network(network)
                .start(&handler(contract(), continues));
            let clients: Vec<_> = (0..9).map(|_| sim.connect()).collect();
            for (index, client) in clients.iter().enumerate() {
                sim.send(client, get(&format!("/number-{index}")).as_bytes());
            }
            sim.run();
            clients.iter().step_by(2).for_each(|client| client.reset());
            sim.advance(Duration::from_millis(20));
            for (index, client) in clients.iter().enumerate().skip(1).step_by(2) {
                let reply = client.receive().unwrap();
                assert_eq!(content(&reply), format!("/number-{index}").as_bytes());
            }
            assert_eq!(CAUGHT.get(), 5);
        }
    });
}

/// Clients that disconnect, on real sockets: while the handler reads, sleeps, or writes more than
/// fits.
#[test]
fn disconnected_clients_unwind_handlers_on_both_drivers() {
    let _dog = watchdog("disconnected_clients_unwind_handlers_on_both_drivers");
    struct Counts(&'static AtomicUsize);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    static ENDED: AtomicUsize = AtomicUsize::new(0);
    fn waits(request: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        let _counts = Counts(&ENDED);
        match request.path() {
            "/reads" => drop(request.read_to_end(&mut Vec::new())?),
            "/sleeps" => sleep(Duration::from_secs(1000)),
            _ => loop {
                response.write_all(&[b'x'; 10_000])?;
            },
        }
        Ok(())
    }
    for driver in drivers() {
        let server = serve(driver, handler(contract(), waits));
        let before = BEGUN.load(Ordering::SeqCst);
        for round in 0..30 {
            let mut stream = server.connect();
            let sent = match round % 3 {
                0 => "POST /reads HTTP/1.1\r\nHost: t\r\nContent-Length: 1000000\r\n\r\nabc",
                1 => "GET /sleeps HTTP/1.1\r\nHost: t\r\n\r\n",
                _ => "GET /writes HTTP/1.1\r\nHost: t\r\n\r\n",
            };
            stream.write_all(sent.as_bytes()).unwrap();
            while BEGUN.load(Ordering::SeqCst) <= before + round {
                std::thread::sleep(Duration::from_millis(1));
            }
            if round % 3 == 2 {
                stream.read_exact(&mut [0; 20_000]).unwrap();
            }
            // Unread bytes or this option cause a reset. After a mere end, the client could await a
            // response.
            let socket = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
            socket.unwrap();
        }
        while ENDED.load(Ordering::SeqCst) < before + 30 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(server);
        assert_eq!(BEGUN.load(Ordering::SeqCst), ENDED.load(Ordering::SeqCst));
    }
}

#[test]
fn one_stack_serves_consecutive_requests() {
    scope(|| {
        let mut sim = calm(&handler(contract(), hello), Limits::default());
        let client = sim.connect();
        let before = (counters().in_use(), counters().pooled());
        for _ in 0..1000 {
            assert!(ask(&mut sim, &client, &get("/hello")).ends_with("\r\n\r\nhello"));
        }
        assert_eq!(before, (0, 0));
        assert_eq!((counters().in_use(), counters().pooled()), (0, 32));
        assert!(counters().touched_bytes_max() > 0);
    });
}

/// Fifteen thousand requests with sleeping handlers on one worker.
#[test]
fn many_sleeping_handlers_touch_little_memory() {
    scope(|| {
        let _dog = watchdog("many_sleeping_handlers_touch_little_memory");
        const MANY: usize = 15_000;
        fn sleeps(_: &mut RequestReader, response: &mut ResponseWriter) {
            sleep(Duration::from_secs(20));
            response.write_all(b"awake").unwrap();
        }
        let mut sim = calm(&handler(contract(), sleeps), Limits::default());
        let clients: Vec<_> = (0..MANY)
            .map(|_| {
                let client = sim.connect();
                client.send(get("/").as_bytes()).unwrap();
                client
            })
            .collect();
        sim.run();
        assert_eq!(counters().in_use(), MANY as u64);
        let each = touched_bytes() / MANY;
        println!("{each} bytes of memory each");
        assert!(each <= 8 << 10, "{each} bytes of memory each");
        sim.advance(Duration::from_millis(20_001));
        for client in &clients {
            assert!(client.receive().unwrap().ends_with(b"\r\n\r\nawake"));
        }
        assert_eq!(counters().in_use(), 0);
    });
}

#[inline(never)]
fn endless(levels: u64) -> u64 {
    let mut frame = [levels; 64];
    std::hint::black_box(&mut frame);
    if levels == u64::MAX {
        return 0;
    }
    endless(levels + 1) + frame[levels as usize % 64]
}

fn recursive(_: &mut RequestReader, response: &mut ResponseWriter) -> io::Result<()> {
    write!(response, "{}", endless(0))
}

/// In a child process, which dies.
#[test]
fn stack_overflow_ends_the_process_and_names_the_handler() {
    let _dog = watchdog("stack_overflow_ends_the_process_and_names_the_handler");
    const NAME: &str = "stack_overflow_ends_the_process_and_names_the_handler";
    for driver in drivers() {
        if std::env::var_os("ONRUSH_TEST_CHILD").is_some() {
            let server = Server::bind("127.0.0.1:0").from_env().unwrap();
            let server = server
                .workers(2)
                .coroutine_stack_bytes(100_000)
                .pinned(false);
            let running = server.start(handler(contract(), recursive)).unwrap();
            let mut stream = std::net::TcpStream::connect(running.address().to_string()).unwrap();
            stream.write_all(get("/").as_bytes()).unwrap();
            let _ = testing::read_some(&mut stream, &mut [0]);
            return;
        }
        let output = testing::child::only(module_path!(), NAME)
            .env("ONRUSH_TEST_CHILD", "1")
            .env(
                "ONRUSH_DRIVER",
                match driver {
                    onrush::DriverPreference::Epoll => "epoll",
                    _ => "io_uring",
                },
            )
            .output()
            .unwrap();
        let said = testing::child::shown(&output);
        assert!(output.status.code().is_none(), "ended by a signal: {said}");
        let message = "::recursive' has overflowed its stack of 102400 bytes";
        assert!(said.contains(message), "{said}");
    }
}
