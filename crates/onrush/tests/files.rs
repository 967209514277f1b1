//! Files as responses: whole, in parts, and while they change.

use crate::common::{
    check_shrinking_file, content, drivers, get, pattern, plain, serve, text, watchdog,
};
use onrush::{Body, Bytes, Limits, Part, Request, Response, Router, sim::Simulation};
use onrush_rt::fs::{Dir, File, OpenHow};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use testing::TempDir;

/// A file in a temporary directory.
struct Scratch(TempDir);

impl Scratch {
    fn new(bytes: &[u8]) -> Scratch {
        let scratch = Scratch(TempDir::new());
        std::fs::write(scratch.path(), bytes).unwrap();
        scratch
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("file")
    }

    fn open(&self) -> Arc<File> {
        let dir = Dir::open_root(self.0.path()).unwrap();
        Arc::new(dir.open(b"file", OpenHow::READ).unwrap())
    }
}

const FILE_BYTES: usize = 3_333_333;

/// Responds with a file: whole, a range of it, or pieces.
fn files(scratch: &Scratch) -> Router {
    let file = scratch.open();
    let (whole, range, pieces) = (file.clone(), file.clone(), file);
    Router::new()
        .get("/whole", move |_| {
            let body = Body::file(whole.clone(), 0, FILE_BYTES as u64);
            async { Response::with_body(body) }
        })
        .get("/range", move |_| {
            let body = Body::file(range.clone(), 1_000_000, 2_000_000);
            async { Response::with_body(body) }
        })
        .get("/pieces", move |_| {
            let file = |offset, length| Part::File {
                file: pieces.clone(),
                offset,
                length,
            };
            let bytes = |bytes: &'static [u8]| Part::Bytes(Bytes::from_static(bytes));
            let parts = [
                bytes(b"<"),
                file(10, 20),
                bytes(b"|"),
                file(0, 0),
                file(5, 5),
                bytes(b">"),
            ];
            async { Response::with_body(Body::parts(parts)) }
        })
        .get("/hello", async |_| Response::text("hello"))
}

#[test]
fn files_are_sent_whole_and_in_parts() {
    let _dog = watchdog("files_are_sent_whole_and_in_parts");
    let bytes = pattern(FILE_BYTES);
    let scratch = Scratch::new(&bytes);
    let pieces = [b"<", &bytes[10..30], b"|", &bytes[5..10], b">"].concat();
    let rows = [
        ("/whole", &bytes[..]),
        ("/range", &bytes[1_000_000..3_000_000]),
        ("/pieces", &pieces),
    ];
    for driver in drivers() {
        let server = serve(driver, files(&scratch));
        for (path, expected) in rows {
            assert!(content(&server.get(path)) == expected, "{driver:?} {path}");
            let mut stream = server.connect();
            write!(
                stream,
                "HEAD {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"
            )
            .unwrap();
            let mut response = Vec::new();
            stream.read_to_end(&mut response).unwrap();
            let length = format!("Content-Length: {}\r\n", expected.len());
            assert!(text(&response).contains(&length));
            assert_eq!(content(&response), b"");
        }
    }
    for (path, expected) in rows {
        let mut sim = Simulation::new(5, &files(&scratch), Limits::default());
        let client = sim.connect();
        sim.send(&client, get(path).as_bytes());
        let mut response = Vec::new();
        for _ in 0..100_000 {
            sim.run();
            let more = client.receive().unwrap();
            if more.is_empty() {
                break;
            }
            response.extend(more);
        }
        assert!(content(&response) == expected, "{path}");
    }
}

#[test]
fn file_that_shrinks_during_the_response_resets_the_connection() {
    let _dog = watchdog("file_that_shrinks_during_the_response_resets_the_connection");
    const LARGE: u64 = 64 << 20;
    let serving = |scratch: &Scratch| {
        let file = scratch.open();
        move |request: Request| {
            let whole = Response::with_body(Body::file(file.clone(), 0, LARGE));
            let hello = request.path() == "/hello";
            async move {
                if hello {
                    Response::text("hello")
                } else {
                    whole
                }
            }
        }
    };
    let shrink = |scratch: &Scratch| {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(scratch.path())
            .unwrap();
        file.set_len(100_000).unwrap();
    };
    for driver in drivers() {
        let scratch = Scratch::new(b"");
        std::fs::File::create(scratch.path())
            .unwrap()
            .set_len(LARGE)
            .unwrap();
        let server = serve(driver, serving(&scratch));
        check_shrinking_file(&server, &get("/"), LARGE, || shrink(&scratch));
    }
    let scratch = Scratch::new(b"");
    std::fs::File::create(scratch.path())
        .unwrap()
        .set_len(LARGE)
        .unwrap();
    let app = serving(&scratch);
    let mut sim = Simulation::builder(1).network(plain(1 << 16)).start(&app);
    let client = sim.connect();
    sim.send(&client, get("/").as_bytes());
    assert!(!client.receive().unwrap().is_empty());
    shrink(&scratch);
    sim.run();
    let ended = (0..10).any(|_| {
        sim.run();
        client.receive().is_err()
    });
    assert!(ended);
    assert_eq!((sim.open_connections(), sim.worker().live_tasks()), (0, 0));
}
