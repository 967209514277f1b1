//! Programs written for threads and their ports to coroutines: they have one source, differ only in
//! `use` lines and in the call that runs the program, and behave alike.
//!
//! Cargo builds the examples together with the tests, into a neighbouring folder.

use crate::common::{content, drivers, pattern, statuses, text, watchdog};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use testing::example::Example;

/// Runs `test` with the program on threads, and on coroutines with each driver.
fn both(name: &str, test: impl Fn(&Example)) {
    let (threads, coroutines) = (format!("{name}_threads"), format!("{name}_coroutines"));
    if Example::is_built(&threads) {
        test(&Example::start(&threads, "auto", 1, &[]));
    }
    for driver in drivers().iter().filter(|_| Example::is_built(&coroutines)) {
        let driver = match driver {
            onrush::DriverPreference::Epoll => "epoll",
            _ => "io_uring",
        };
        test(&Example::start(&coroutines, driver, 1, &[]));
    }
}

const CLOSE: &str = "Host: t\r\nConnection: close\r\n\r\n";

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn the_http_server_keeps_connections_and_reads_bodies() {
    let _dog = watchdog("the_http_server_keeps_connections_and_reads_bodies");
    both("http", |server| {
        let head = "HEAD / HTTP/1.1\r\nHost: t\r\n\r\n";
        let responses = server.ask(format!(
            "GET / HTTP/1.1\r\nHost: t\r\n\r\n{head}GET /no HTTP/1.1\r\n{CLOSE}"
        ));
        assert_eq!(statuses(&responses), [200, 200, 404]);
        assert_eq!(text(&responses).matches("Hello, World!").count(), 1);
        assert_eq!(
            text(&responses).matches("Content-Length: 13\r\n").count(),
            2
        );
        // HTTP/1.0 closes by default.
        assert_eq!(statuses(&server.ask("GET /count HTTP/1.0\r\n\r\n")), [200]);
        let two = server.ask(format!("GET /count HTTP/1.1\r\n{CLOSE}"));
        assert_eq!(content(&two), b"2\n");

        let body = pattern(300_000);
        let mut sent =
            format!("PUT /echo HTTP/1.1\r\nContent-Length: 300000\r\n{CLOSE}").into_bytes();
        sent.extend_from_slice(&body);
        assert!(content(&server.ask(&sent)) == body);
        let mut sent =
            b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in body.chunks(33_333) {
            write!(sent, "{:X};ext=1\r\n", chunk.len()).unwrap();
            sent.extend_from_slice(chunk);
            sent.extend_from_slice(b"\r\n");
        }
        sent.extend_from_slice(b"0\r\nX-Trailer: t\r\n\r\n");
        // A body that is not read, and the next request.
        sent.extend_from_slice(b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\nhello");
        sent.extend_from_slice(format!("GET / HTTP/1.1\r\n{CLOSE}").as_bytes());
        let responses = server.ask(&sent);
        assert!(content(&responses).starts_with(&body));
        let rest = &content(&responses)[body.len()..];
        assert_eq!(statuses(rest), [405, 200]);

        let mut stream = server.connect();
        let expects =
            format!("PUT /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n{CLOSE}");
        stream.write_all(expects.as_bytes()).unwrap();
        let mut interim = [0; 25];
        stream.read_exact(&mut interim).unwrap();
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"ok").unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        assert_eq!(content(&response), b"ok");
    });
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn the_http_server_refuses_and_continues() {
    let _dog = watchdog("the_http_server_refuses_and_continues");
    both("http", |server| {
        let long = "x".repeat(9000);
        for (sent, status) in [
            ("nonsense\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/2.0\r\n\r\n".to_owned(), 505),
            ("GET / HTTP/1.1\r\nno colon\r\n\r\n".to_owned(), 400),
            ("GET / HTTP/1.1\nHost: t\n\n".to_owned(), 400),
            (format!("GET /{long} HTTP/1.1\r\n"), 431),
            (
                format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(101)),
                431,
            ),
            (
                "PUT /echo HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n".to_owned(),
                501,
            ),
            (
                "PUT /echo HTTP/1.1\r\nContent-Length: +1\r\n\r\nx".to_owned(),
                400,
            ),
            (
                "PUT /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n".to_owned(),
                400,
            ),
        ] {
            let response = server.ask(&sent);
            assert_eq!(
                statuses(&response),
                [status],
                "{}",
                &sent[..sent.len().min(60)]
            );
        }
        // Clients that disconnect within a request do not affect others.
        for cut in [3, 40, 70] {
            let sent = b"PUT /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\nsome of it";
            server
                .connect()
                .write_all(&sent[..cut.min(sent.len())])
                .unwrap();
        }
        let slow: Vec<_> = (0..20)
            .map(|_| {
                let mut stream = server.connect();
                stream
                    .write_all(format!("GET /slow HTTP/1.1\r\n{CLOSE}").as_bytes())
                    .unwrap();
                stream
            })
            .collect();
        assert_eq!(
            statuses(&server.ask(format!("GET / HTTP/1.1\r\n{CLOSE}"))),
            [200]
        );
        for mut stream in slow {
            let mut response = Vec::new();
            stream.read_to_end(&mut response).unwrap();
            assert_eq!(content(&response), b"It took its time.\n");
        }
    });
}

/// A client of the line protocol.
struct Lines(BufReader<TcpStream>);

impl Lines {
    fn connect(server: &Example) -> Lines {
        Lines(BufReader::new(server.connect()))
    }

    fn heard(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, line: &str) -> String {
        self.0
            .get_mut()
            .write_all(format!("{line}\r\n").as_bytes())
            .unwrap();
        self.heard()
    }
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn the_line_server_keeps_values_and_rooms() {
    let _dog = watchdog("the_line_server_keeps_values_and_rooms");
    both("lines", |server| {
        let (mut a, mut b) = (Lines::connect(server), Lines::connect(server));
        assert_eq!(a.ask("SET colour dark blue"), "+ set");
        assert_eq!(b.ask("GET colour"), "= dark blue");
        assert_eq!(b.ask("SET shape"), "+ set");
        assert_eq!(a.ask("KEYS"), "= colour shape");
        assert_eq!(a.ask("DEL shape"), "+ deleted");
        assert_eq!(b.ask("DEL shape"), "- not there");
        assert_eq!(b.ask("GET"), "! nothing is named");
        assert_eq!(b.ask("DANCE now"), "! no such command");

        assert_eq!(a.ask("SAY room hello"), "+ said to 0");
        assert_eq!(a.ask("JOIN room"), "+ joined");
        assert_eq!(b.ask("JOIN room"), "+ joined");
        let mut others: Vec<Lines> = (0..50).map(|_| Lines::connect(server)).collect();
        for other in &mut others {
            assert_eq!(other.ask("JOIN room"), "+ joined");
        }
        b.0.get_mut().write_all(b"SAY room hello to all\n").unwrap();
        let heard = BTreeSet::from([b.heard(), b.heard()]);
        let expected = ["+ said to 52".to_owned(), "@ room hello to all".to_owned()];
        assert_eq!(heard, BTreeSet::from(expected));
        assert_eq!(a.heard(), "@ room hello to all");
        for other in &mut others {
            assert_eq!(other.heard(), "@ room hello to all");
        }
        // Clients that disconnect leave the room, however they do it.
        for (number, mut other) in others.into_iter().enumerate() {
            match number % 3 {
                0 => assert_eq!(other.ask("QUIT"), ""),
                1 => other.0.get_ref().shutdown(Shutdown::Write).unwrap(),
                _ => {}
            }
        }
        let said = loop {
            b.0.get_mut()
                .write_all(b"SAY room are you there\n")
                .unwrap();
            let both = [b.heard(), b.heard()];
            assert_eq!(a.heard(), "@ room are you there");
            let said = both.into_iter().find(|line| line.starts_with('+'));
            if said.as_deref() == Some("+ said to 2") {
                break said;
            }
        };
        assert!(said.is_some());
        // Many lines at once get responses in order.
        let lines: String = (0..2000)
            .map(|n| format!("SET n{n} {n}\nGET n{n}\n"))
            .collect();
        let mut writer = a.0.get_ref().try_clone().unwrap();
        let writes = std::thread::spawn(move || writer.write_all(lines.as_bytes()).unwrap());
        for n in 0..2000 {
            assert_eq!(
                (a.heard(), a.heard()),
                ("+ set".to_owned(), format!("= {n}"))
            );
        }
        writes.join().unwrap();
        // A line without an end, of any length.
        let mut long = server.connect();
        let _ = long.write_all(&vec![b'x'; 100_000]);
        let mut response = Vec::new();
        let _ = long.read_to_end(&mut response);
        assert!(response.is_empty());
        assert_eq!(b.ask("GET colour"), "= dark blue");
    });
}

#[test]
#[ignore = "nightly"] // it needs the examples as programs
fn the_handlers_example_works_as_described() {
    let _dog = watchdog("the_handlers_example_works_as_described");
    for driver in ["epoll", "auto"]
        .into_iter()
        .filter(|_| Example::is_built("coroutine"))
    {
        let server = Example::start("coroutine", driver, 2, &[]);
        let get = |path: &str| server.ask(format!("GET {path} HTTP/1.1\r\n{CLOSE}"));
        assert_eq!(content(&get("/")), b"Hello, World!");
        for name in ["Ada", "Grace"] {
            let response = get(&format!("/front/{name}"));
            assert_eq!(text(content(&response)), format!("{name} is here.\n"));
        }
        assert_eq!(statuses(&get("/nowhere")), [404]);
        let mut stream = server.connect();
        let head = "PUT /upper HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(b"5\r\nfirst\r\n").unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap())
            .lines()
            .map(Result::unwrap);
        // The first piece is returned before the second is sent.
        assert!(lines.by_ref().any(|line| line == "FIRST"));
        stream.write_all(b"6\r\nsecond\r\n0\r\n\r\n").unwrap();
        assert!(lines.by_ref().any(|line| line == "SECOND"));
    }
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Splits a program into its other lines and its `use` lines.
fn split(program: &str) -> (Vec<&str>, Vec<&str>) {
    program.lines().partition(|line| !line.starts_with("use "))
}

/// The diff of the port: the `use` lines that only one of the programs has.
fn changed(mark: &str, these: &[&str], those: &[&str]) -> String {
    let only = these.iter().filter(|line| !those.contains(line));
    only.map(|line| format!("{mark}{line}\n")).collect()
}

#[test]
fn the_ports_differ_in_use_lines_and_the_call_and_the_page_shows_them() {
    let page = read("docs/coroutines.md");
    for name in ["http", "lines"] {
        let threads = read(&format!("examples/{name}_threads.rs"));
        let coroutines = read(&format!("examples/{name}_coroutines.rs"));
        let ((a, a_uses), (b, b_uses)) = (split(&threads), split(&coroutines));
        // The call that runs the program is the last one, before a brace.
        let ([a @ .., program, _], [b @ .., comment, allow, contract, run, _]) = (&a[..], &b[..])
        else {
            panic!("{name} is too short");
        };
        assert_eq!(a, b, "{name}");
        assert_eq!(*program, format!("    {name}::program()"));
        assert!(comment.starts_with("    // SAFETY: "), "{comment}");
        assert_eq!(*allow, "    #[allow(unsafe_code)]");
        assert_eq!(
            *contract,
            "    let contract = unsafe { Contract::accept() };"
        );
        assert_eq!(
            *run,
            format!("    coroutine::run(contract, Config::from_env()?, {name}::program)")
        );
        // What waits has no other form in the common source.
        let common = read(&format!("examples/ported/{name}.rs"));
        for waits in [
            "fs",
            "net",
            "thread",
            "sync::mpsc",
            "sync::Mutex",
            "sync::{",
        ] {
            assert!(
                !common.contains(&format!("std::{waits}")),
                "{name}: {waits}"
            );
        }
        let diff = changed("-", &a_uses, &b_uses) + &changed("+", &b_uses, &a_uses);
        let diff = format!("{diff}-{program}\n+{comment}\n+{allow}\n+{contract}\n+{run}\n");
        assert!(
            page.contains(&diff),
            "docs/coroutines.md does not show:\n{diff}"
        );
    }
}
