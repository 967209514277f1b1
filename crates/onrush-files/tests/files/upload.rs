//! Incomplete bodies, bodies that are only counted, and simultaneous bodies.

use crate::common::Json as _;
use crate::common::hooked::{Hooked, Hooks};
use crate::common::*;
use onrush_files::FilesOptions;
use onrush_rt::blocking::BlockingPool;
use onrush_store::{Committed, Folder, FolderOptions, LocalFuture, Result, Upload};
use std::sync::Arc;
use std::thread;

#[test]
fn upload_aborted_at_any_byte_leaves_nothing() {
    on_all_backends(&writable(), |server| {
        server.add("old", b"old");
        let content = pattern(400_000);
        for path in ["/old", "/new", "/deep/er/new"] {
            for sent in [0, 1, 10_000, 16_385, 100_000, 300_000, 399_999] {
                let mut connection = server.connect();
                let head =
                    format!("PUT {path} HTTP/1.1\r\nHost: t\r\nContent-Length: 400000\r\n\r\n");
                server.send(&mut connection, head.as_bytes());
                server.send(&mut connection, &content[..sent]);
                server.abort(connection);
            }
        }
        let mut connection = server.connect();
        if over_http2() {
            // It has no chunks, but streams that end before their content.
            let head = b"PUT /new HTTP/1.1\r\nHost: t\r\nContent-Length: 400000\r\n\r\n";
            server.send(&mut connection, head);
            server.send(&mut connection, &content[..300_000]);
            server.end_early(&mut connection);
            assert_eq!(server.receive(&mut connection), b"", "the stream is reset");
        } else {
            server.send(
                &mut connection,
                b"PUT /new HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX",
            );
            let reply = Reply::parse(&server.receive(&mut connection), false);
            assert_eq!(reply.status, 400);
        }
        wait_until(server, |server| server.staged() == 0);
        assert_eq!(server.get("/old").body, b"old");
        assert_eq!(server.get("/new").status, 404);
        assert_eq!(server.get("/deep/er/new").status, 404);
    });
}

/// The response states what is wrong with the body, for each rule of its framing.
#[test]
fn invalid_bodies_give_their_reason() {
    if over_http2() {
        return; // It has no chunks.
    }
    on_all_backends(&writable(), |server| {
        let trailers = format!("0\r\n{}\r\n", "x: y\r\n".repeat(200));
        let table = [
            ("zz\r\n", 400, "chunk"),
            ("5\r\nhelloX", 400, "chunk"),
            (&trailers[..], 431, "trailer"),
            (
                "5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n",
                400,
                "trailer",
            ),
            (&format!("5;{}\r\n", "x".repeat(70_000)), 400, "chunk"),
        ];
        for (body, status, word) in table {
            // At the beginning of a body, and after a chunk that the handler has read.
            let long_chunk = [b"61a81\r\n", &pattern(400_001)[..], b"\r\n"].concat();
            for mut bytes in [Vec::new(), long_chunk] {
                bytes.extend_from_slice(body.as_bytes());
                let head = "PUT /x\nTransfer-Encoding: chunked\nAccept: application/json";
                let reply = server.request(head, &bytes);
                assert_eq!(reply.status, status, "{} {word}", server.name);
                let detail = reply.json()["detail"].to_string();
                assert!(detail.contains(word), "{}: {detail}", server.name);
            }
        }
        assert_eq!(server.get("/x").status, 404);
        wait_until(server, |server| server.staged() == 0);
    });
}

#[test]
fn too_long_bodies_give_413_announced_or_not() {
    on_all_backends(&writable(), |server| {
        let announced = server.request("PUT /x\nContent-Length: 40000000", b"");
        assert_eq!(announced.status, 413, "{}", server.name);
        assert_eq!(announced.text(), "request body too large\n");
        for fields in ["", "\nExpect: 100-continue"] {
            let head =
                format!("PUT /x\nAccept: application/json\nContent-Length: 40000000{fields}");
            let announced = server.request(&head, b"");
            assert_eq!(announced.status, 413, "{}", server.name);
            assert_eq!(
                announced.field("content-type"),
                Some("application/problem+json")
            );
            assert_eq!(announced.json()["status"], 413);
        }
        let mut body = b"2000000\r\n".to_vec();
        body.resize(body.len() + (32 << 20), b'x');
        body.extend_from_slice(b"\r\n1\r\nx\r\n0\r\n\r\n");
        if !server.is_simulated() {
            let reply = server.request("PUT /x\nTransfer-Encoding: chunked", &body);
            assert_eq!(reply.status, 413, "{}", server.name);
        }
        assert_eq!(server.get("/x").status, 404);
        wait_until(server, |server| server.staged() == 0);
    });
}

#[test]
fn requests_are_refused_before_the_body() {
    on_all_backends(&writable(), |server| {
        server.add("there", b"x");
        server.add("folder/x", b"x");
        let table = [
            ("/there\nIf-None-Match: *", 412),
            ("/folder", 409),
            ("/folder/", 409),
            ("/.hidden", 403),
            ("/a/../../b", 400),
            ("/a/%2e%2e/there/", 409),
            ("/%zz", 400),
            ("/x\nContent-Digest: sha-256=:x:", 400),
            ("/x\nContent-Encoding: a b", 400),
        ];
        for (target, status) in table {
            let head = format!("PUT {target}\nExpect: 100-continue\nContent-Length: 1000000");
            let mut lines = head.lines();
            let mut text = format!("{} HTTP/1.1\r\nHost: t\r\n", lines.next().unwrap());
            lines.for_each(|line| text.push_str(&format!("{line}\r\n")));
            text.push_str("\r\n");
            let mut connection = server.connect();
            server.send(&mut connection, text.as_bytes());
            let response = server.receive(&mut connection);
            assert!(!response.starts_with(b"HTTP/1.1 100"), "{target}");
            assert_eq!(Reply::parse(&response, false).status, status, "{target}");
        }
        let mut connection = server.connect();
        let head = "PUT /ok HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n\
                    Connection: close\r\nContent-Length: 2\r\n\r\n";
        server.send(&mut connection, head.as_bytes());
        let interim = server.receive_until(&mut connection, |bytes| bytes.ends_with(b"\r\n\r\n"));
        assert_eq!(interim, b"HTTP/1.1 100 Continue\r\n\r\n");
        server.send(&mut connection, b"ok");
        let response = server.receive(&mut connection);
        assert_eq!(Reply::parse(&response, false).status, 201);
    });
}

/// As containers mount one file of their configuration: it can be neither replaced nor deleted, and
/// a client learns it before it has sent its bytes.
#[test]
fn a_mounted_file_is_refused_before_the_body() {
    const TUS: &str = "Tus-Resumable: 1.0.0\nUpload-Length: 1000000";
    let text = "something is mounted at this path of the server, so it can be neither replaced \
                nor deleted\n";
    let server = &mut TestServer::simulated("/", &writable(), 1);
    for name in ["point", "folder/point"] {
        server.add(name, b"shown");
        server.disk().mount(name.as_bytes()).unwrap();
    }
    server.add("source", b"source");
    for path in ["/point", "/folder/point"] {
        for head in [
            format!("PUT {path}\nExpect: 100-continue\nContent-Length: 1000000"),
            format!("PUT {path}\nExpect: 100-continue\nContent-Length: 30000"),
            format!("PUT {path}\nExpect: 100-continue\nContent-Length: 3"),
            format!("PUT {path}\nExpect: 100-continue\nTransfer-Encoding: chunked"),
            format!("PUT {path}\nContent-Length: 1000000"),
            format!("PUT {path}\nIf-Match: *\nContent-Length: 1000000"),
            format!("PUT {path}\nUpload-Complete: ?0\nContent-Length: 1000000"),
            format!("POST {path}\n{TUS}"),
            format!("DELETE {path}"),
            format!("COPY /source\nDestination: {path}"),
            format!("MOVE /source\nDestination: {path}"),
            format!("MOVE {path}\nDestination: /moved"),
        ] {
            let mut lines = head.lines();
            let mut request = format!(
                "{} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n",
                lines.next().unwrap()
            );
            lines.for_each(|line| request.push_str(&format!("{line}\r\n")));
            request.push_str("\r\n");
            let mut connection = server.connect();
            server.send(&mut connection, request.as_bytes());
            let reply = Reply::parse(&server.receive(&mut connection), false);
            assert_eq!((reply.status, reply.text()), (409, text), "{head}");
        }
        // All of it is here before it is looked at.
        let reply = server.put(path, b"new");
        assert_eq!((reply.status, reply.text()), (409, text));
        assert_eq!(server.get(path).text(), "shown");
    }
    let form = "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"point\"\r\n\r\n\
                x\r\n--b--\r\n";
    let head = "POST /folder/\nContent-Type: multipart/form-data; boundary=b";
    let reply = server.request(head, form.as_bytes());
    assert_eq!(reply.text(), format!("409 point {text}"));
    assert_eq!(server.get("/folder/point").text(), "shown");
    assert_eq!(server.get("/source").text(), "source");
    assert_eq!(server.staged(), 0);
}

#[test]
fn sink_counts_and_stores_nothing() {
    let options = FilesOptions {
        sink: true,
        ..FilesOptions::default()
    };
    on_all_backends(&options, |server| {
        for size in [0, 1, 100_000, 5_000_000] {
            let reply = server.put("/any/thing", &pattern(size));
            assert_eq!(reply.status, 204, "{} {size}", server.name);
            let counted = reply.field("onrush-received-bytes");
            assert_eq!(counted, Some(&size.to_string()[..]), "{}", server.name);
        }
        let chunked = server.request(
            "PUT /x\nTransfer-Encoding: chunked",
            b"3\r\nabc\r\n0\r\n\r\n",
        );
        assert_eq!(chunked.field("onrush-received-bytes"), Some("3"));
        let part = server.request("PUT /x\nContent-Range: bytes 0-1/2", b"ab");
        assert_eq!(part.status, 400);
        assert_eq!(server.get("/any/thing").status, 404);
        assert!(entries(&server.root()).is_empty());
        let options = server.request("OPTIONS /", b"");
        assert_eq!(options.field("allow"), Some("GET, HEAD, OPTIONS, PUT"));
    });
}

#[test]
fn sink_refuses_what_a_put_refuses() {
    let sink = FilesOptions {
        sink: true,
        ..FilesOptions::default()
    };
    for (options, good) in [(sink, 204), (writable(), 201)] {
        on_all_backends(&options, |server| {
            server.add("there", b"x");
            server.add("folder/x", b"x");
            server.add_fifo("fifo");
            server.add_symlink("link", "there");
            let etag = server.get("/there").etag().to_owned();
            let table = [
                ("/a/../../b".to_owned(), 400),
                ("/%2e./b".to_owned(), 400),
                ("/a/..//folder".to_owned(), 409),
                ("/x\nContent-MD5: x".to_owned(), 400),
                ("/x\nContent-Encoding: a b".to_owned(), 400),
                (format!("/x\nCache-Control: {}", "n".repeat(1025)), 431),
                ("/%zz".to_owned(), 400),
                ("/a%2fb".to_owned(), 400),
                (format!("/{}", "n".repeat(256)), 400),
                ("/there\nContent-Range: bytes 0-1/2".to_owned(), 400),
                ("/.hidden".to_owned(), 403),
                ("/.onrush/x".to_owned(), 403),
                ("/".to_owned(), 409),
                ("/folder/".to_owned(), 409),
                ("/none/".to_owned(), 409),
                ("/folder".to_owned(), 409),
                ("/there/below".to_owned(), 409),
                ("/fifo".to_owned(), 409),
                ("/link".to_owned(), 409),
                (format!("/link\nIf-Match: {etag}"), 409),
                ("/there\nIf-None-Match: *".to_owned(), 412),
                ("/there\nIf-Match: \"other\"".to_owned(), 412),
                (format!("/there\nIf-None-Match: {etag}"), 412),
                ("/none\nIf-Match: *".to_owned(), 412),
                (format!("/there\nIf-Match: {etag}"), 204),
                ("/new\nIf-None-Match: *".to_owned(), good),
            ];
            for (target, status) in table {
                for size in [3, 100_000] {
                    let reply = server.request(&format!("PUT {target}"), &pattern(size));
                    let what = format!("{}: {target}, {size}", server.name);
                    assert_eq!(reply.status, status, "{what}");
                    if status < 300 {
                        break; // A PUT would replace another object then.
                    }
                }
            }
        });
    }
}

#[test]
fn length_beyond_any_file_gives_413() {
    use onrush::{Limits, sim::Simulation};
    let server = TestServer::simulated("/", &writable(), 1);
    let limits = Limits::default().body_bytes_max(u64::MAX);
    let mut sim = Simulation::new(1, &server.files, limits);
    for (length, status) in [
        (i64::MAX as u64 + 1, "413"),
        (u64::MAX, "413"),
        (u64::MAX / 4, "507"),
    ] {
        server.disk().disk_full_after(Some(1 << 30));
        let request = format!(
            "PUT /x HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        let response = ask_simulated(&mut sim, &request);
        assert_eq!(&response[9..12], status.as_bytes(), "{length}");
    }
}

#[test]
fn simultaneous_uploads_do_not_mix() {
    let options = FilesOptions {
        upload_bytes_max: 2 << 20, // Some uploads get small buffers.
        ..writable()
    };
    for driver in drivers() {
        let server = TestServer::real("/", &options, driver);
        let address = server.address();
        thread::scope(|scope| {
            for client in 0..16_u8 {
                let address = &address;
                scope.spawn(move || {
                    let content: Vec<u8> = pattern(3_000_000).iter().map(|b| b ^ client).collect();
                    let path = format!("/up/{client}");
                    let reply = request_to(address, "PUT", &path, &content);
                    assert_eq!(reply.status, 201);
                    assert!(request_to(address, "GET", &path, b"").body == content);
                });
            }
        });
        assert_eq!(server.staged(), 0);
    }
}

/// A bucket keeps the buffer with the first bytes of an upload, and other stores do if it is small.
#[derive(Debug)]
struct KeepsFirst;

struct KeepsFirstUpload(Box<dyn Upload>, bool);

impl Hooks for KeepsFirst {
    fn staged(&self, upload: Box<dyn Upload>) -> Box<dyn Upload> {
        Box::new(KeepsFirstUpload(upload, false))
    }
}

impl Upload for KeepsFirstUpload {
    fn write(&mut self, buf: Vec<u8>) -> LocalFuture<'_, Result<Vec<u8>>> {
        Box::pin(async move {
            let buf = self.0.write(buf).await?;
            Ok(match std::mem::replace(&mut self.1, true) {
                true => buf,
                false => Vec::new(),
            })
        })
    }

    fn set_metadata(&mut self, metadata: Vec<u8>) -> Result<()> {
        self.0.set_metadata(metadata)
    }

    fn written_bytes(&self) -> u64 {
        self.0.written_bytes()
    }

    fn commit(self: Box<Self>) -> LocalFuture<'static, Result<Committed>> {
        self.0.commit()
    }
}

#[test]
fn a_store_that_keeps_the_first_buffer_gets_the_whole_body_if_buffers_are_small() {
    let dir = TempDir::new();
    let folder = Folder::open(dir.path(), BlockingPool::inline(), FolderOptions::default());
    let store = Hooked {
        folder: folder.expect("a folder"),
        hooks: KeepsFirst,
    };
    let options = FilesOptions {
        upload_bytes_max: 0, // So each upload has a small buffer.
        ..writable()
    };
    let mut server = TestServer::on_store(Arc::new(store), &options, drivers()[0]);
    for bytes in [10, 16_384, 16_385, 100_000, 262_144, 1_000_000] {
        let path = format!("/{bytes}");
        assert_eq!(server.put(&path, &pattern(bytes)).status, 201, "{bytes}");
        assert!(server.get(&path).body == pattern(bytes), "{bytes}");
    }
}
