//! Shares of clients of the descriptors for files.

use crate::common::tus::{self, STREAM};
use crate::common::*;
use onrush::metrics::{Format, Metrics};
use onrush_files::FilesOptions;
use onrush_rt::descriptors::Descriptors;
use onrush_rt::fs::sim::SimFs;

/// Twenty files may be open for downloads, and twelve for uploads. Clients share six.
fn scarce() -> (Descriptors, FilesOptions) {
    let budget = Descriptors::new(64);
    let options = FilesOptions {
        descriptors: budget.clone(),
        ..writable()
    };
    (budget, options)
}

fn on_drivers(test: impl Fn(&mut TestServer, &Descriptors)) {
    for driver in drivers() {
        let (budget, options) = scarce();
        test(&mut TestServer::real("/", &options, driver), &budget);
    }
}

/// In the simulator, with a file system that is local or not.
fn simulated(is_local: bool, test: impl Fn(&mut TestServer, &Descriptors)) {
    let (budget, options) = scarce();
    let disk = SimFs::new(1);
    disk.set_local(is_local);
    test(
        &mut TestServer::simulated_on(disk, "/", &options, 1),
        &budget,
    );
}

/// The value of a metric of the open files.
fn metric(server: &TestServer, name: &str, labels: &str) -> f64 {
    let metrics = Metrics::new();
    metrics.add_collector(server.files.collector());
    let page = metrics.render(Format::OpenMetrics);
    let begin = format!("{name}{{budget=\"files\"{labels}}} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&begin));
    let value = line.unwrap_or_else(|| panic!("{begin} in {page}"));
    value.parse().expect("a number")
}

/// A connection that has sent `request`, and the status of the response.
fn ask(server: &mut TestServer, request: &[u8]) -> (Connection, String) {
    let mut connection = server.connect();
    let status = status(server, &mut connection, request);
    (connection, status)
}

/// The status of the response to a request that is sent as far as given.
fn status(server: &mut TestServer, connection: &mut Connection, request: &[u8]) -> String {
    server.send(connection, request);
    let head = server.receive_until(connection, |bytes| bytes.len() > 12);
    String::from_utf8_lossy(&head[9..12]).into_owned()
}

fn download(number: usize) -> Vec<u8> {
    format!("GET /{number} HTTP/1.1\r\nHost: test\r\n\r\n").into_bytes()
}

#[test]
fn downloads_of_one_client_leave_files_to_others() {
    on_drivers(|server, budget| {
        for number in 0..30 {
            server.add(&number.to_string(), &vec![b'x'; 12 << 20]);
        }
        let mut slow = Vec::new();
        for number in 0..30 {
            let (connection, status) = ask(server, &download(number));
            if status != "200" {
                assert_eq!(status, "503");
                break;
            }
            slow.push(connection);
        }
        // Half of those that may be open for uploads, and then half of what is left.
        assert!((8..=10).contains(&slow.len()), "{}", slow.len());
        let put = "PUT /own\nContent-Length: 100000";
        assert_eq!(server.request(put, &[b'x'; 100_000]).status, 429);
        let mut other = server.connect_from_another_address();
        let head = "PUT /others HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n";
        let put = [head.as_bytes(), &[b'x'; 100_000]].concat();
        assert_eq!(status(server, &mut other, &put), "201");
        let mut other = server.connect_from_another_address();
        assert_eq!(status(server, &mut other, &download(29)), "200");
        let open = budget.used().files;
        drop(slow);
        // The server notices the end of each connection in its own time.
        wait_until(server, |_| budget.used().files < open / 2);
        assert_eq!(ask(server, &download(29)).1, "200");
    });
}

#[test]
fn uploads_of_one_client_leave_files_to_others() {
    on_drivers(|server, budget| {
        let begin = |number: usize| {
            let head = format!("PUT /{number} HTTP/1.1\r\nHost: test\r\nContent-Length: 2000000");
            format!("{head}\r\nExpect: 100-continue\r\n\r\n").into_bytes()
        };
        let mut slow = Vec::new();
        for number in 0..20 {
            let (mut connection, status) = ask(server, &begin(number));
            if status != "100" {
                assert_eq!(status, "429");
                break;
            }
            server.send(&mut connection, &[b'x'; 600_000]);
            slow.push(connection);
            // The file is open when the server has read that.
            wait_until(server, |_| budget.used().files as usize >= slow.len());
        }
        assert!((8..=10).contains(&slow.len()), "{}", slow.len());
        let mut other = server.connect_from_another_address();
        assert_eq!(status(server, &mut other, &begin(29)), "100");
        let form = b"--x\r\nContent-Disposition: form-data; name=f; filename=g\r\n\r\nc\r\n--x--";
        let post = "POST /\nContent-Type: multipart/form-data; boundary=x";
        assert_eq!(server.request(post, form).status, 429);
        assert_eq!(server.request("PUT /small", b"x").status, 201);
    });
}

/// Sends requests with bodies of 2,000,000 bytes, of which 600,000 arrive, until one is refused.
/// `request`: the lines of one, without the length.
fn send_slowly(
    server: &mut TestServer,
    budget: &Descriptors,
    request: impl Fn(usize) -> String,
) -> Vec<Connection> {
    let mut slow = Vec::new();
    for number in 0..20 {
        let lines = request(number).replace('\n', "\r\n");
        let (line, fields) = lines.split_once("\r\n").expect("fields");
        let head = format!(
            "{line} HTTP/1.1\r\nHost: test\r\n{fields}\r\nContent-Length: 2000000\r\n\
             Expect: 100-continue\r\n\r\n"
        );
        let (mut connection, status) = ask(server, head.as_bytes());
        if status != "100" {
            assert_eq!(status, "503", "{head}");
            break;
        }
        server.send(&mut connection, &[b'x'; 600_000]);
        slow.push(connection);
        wait_until(server, |_| budget.used().files as usize >= slow.len());
    }
    assert!((8..=10).contains(&slow.len()), "{}", slow.len());
    slow
}

#[test]
fn uploads_that_can_be_continued_leave_files_to_others() {
    const TUS: &str = "Tus-Resumable: 1.0.0";
    on_drivers(|server, budget| {
        let free = |server: &mut TestServer| wait_until(server, |_| budget.used().files == 0);
        let urls: Vec<String> = (0..20)
            .map(|number| tus::create(server, &format!("/{number}"), "Upload-Length: 2000000"))
            .collect();
        free(server);
        let slow = send_slowly(server, budget, |number| {
            format!("PATCH {}\n{TUS}\n{STREAM}\nUpload-Offset: 0", urls[number])
        });
        let refused = &urls[slow.len()];
        drop(slow);
        free(server);
        let end = tus::append(server, refused, 0, "", &[b'x'; 2_000_000]);
        assert_eq!(end.status, 204, "nothing of it is lost");

        let slow = send_slowly(server, budget, |number| {
            format!("POST /created-{number}\n{TUS}\n{STREAM}\nUpload-Length: 2000000")
        });
        drop(slow);
        free(server);
        let slow = send_slowly(server, budget, |number| {
            format!("PUT /draft-{number}\nUpload-Complete: ?0")
        });
        drop(slow);
        free(server);

        let begin = |number| {
            let reply = server.request(&format!("PUT /{number}\nUpload-Complete: ?0"), b"");
            reply.field("location").expect("a URL").to_owned()
        };
        let urls: Vec<String> = (100..120).map(begin).collect();
        free(server);
        drop(send_slowly(server, budget, |number| {
            let fields = "Upload-Offset: 0\nUpload-Complete: ?1";
            let url = &urls[number];
            format!("PATCH {url}\n{fields}\nContent-Type: application/partial-upload")
        }));
    });
}

/// Begins downloads of files that are larger than the buffers of a connection, until one is
/// refused.
fn receive_slowly(server: &mut TestServer) -> Vec<Connection> {
    for number in 0..30 {
        server.add(&number.to_string(), &vec![b'x'; 2 << 20]);
    }
    server.advance(5_000); // From now on, they are old enough for the cache.
    let mut slow = Vec::new();
    for number in 0..30 {
        let (connection, status) = ask(server, &download(number));
        if status != "200" {
            assert_eq!(status, "503");
            break;
        }
        slow.push(connection);
    }
    slow
}

#[test]
fn files_that_are_not_local_are_shared_as_local_ones() {
    for is_local in [true, false] {
        simulated(is_local, |server, budget| {
            let slow = receive_slowly(server);
            // The seventh is contested, and then half of six is the share of one client.
            assert_eq!((slow.len(), budget.used().files), (9, 9), "{is_local}");
            for connection in slow {
                server.abort(connection);
            }
            server.advance(1_000);
            assert_eq!(budget.used().files, 0, "{is_local}");
            assert_eq!(metric(server, "onrush_shares_used", ""), 0.0);
        });
    }
}

#[test]
fn responses_without_content_need_no_share() {
    for is_local in [true, false] {
        simulated(is_local, |server, _| {
            let _slow = receive_slowly(server);
            let head = server.request("HEAD /29", b"");
            assert_eq!(head.status, 200, "{is_local}");
            let etag = head.etag().to_owned();
            for (field, status) in [
                (format!("If-None-Match: {etag}"), 304),
                ("If-Match: \"x\"".to_owned(), 412),
                ("If-None-Match: \"x\"".to_owned(), 503),
                ("Range: bytes=0-99999".to_owned(), 503),
            ] {
                let reply = server.request(&format!("GET /29\n{field}"), b"");
                assert_eq!(reply.status, status, "{is_local}: {field}");
            }
        });
    }
}

#[test]
fn a_file_with_a_share_is_not_cached() {
    simulated(true, |server, budget| {
        let slow = receive_slowly(server);
        for (at, connection) in slow.into_iter().enumerate().rev() {
            let before = budget.used().files;
            assert_eq!(before, at as u64 + 1);
            server.abort(connection);
            server.advance(0);
            // The first six were opened while there were enough for all.
            let is_cached = at < 6;
            assert_eq!(budget.used().files == before, is_cached, "{at}");
            if is_cached {
                break;
            }
        }
    });
}

fn archive(name: &str) -> Vec<u8> {
    format!("GET /{name}/?archive=tar HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
        .into_bytes()
}

#[test]
fn archives_of_one_client_leave_files_to_others() {
    on_drivers(|server, budget| {
        for number in 0..14 {
            server.add(&format!("{number}/large"), &vec![b'x'; 12 << 20]);
        }
        let mut slow: Vec<Connection> = (0..13)
            .map(|number| {
                let (connection, status) = ask(server, &archive(&number.to_string()));
                assert_eq!(status, "200");
                connection
            })
            .collect();
        // Some of them wait for a file.
        let refused = ",full=\"share\"";
        wait_until(server, |server| {
            metric(server, "onrush_shares_refused_total", refused) > 0.0
        });
        let mut other = server.connect_from_another_address();
        let whole = "GET /13/large HTTP/1.1\r\nHost: test\r\n\r\n";
        assert_eq!(status(server, &mut other, whole.as_bytes()), "200");
        assert!(budget.used().files <= 11, "{}", budget.used().files);
        // The last one gets its file when others have ended.
        let mut last = slow.pop().expect("an archive");
        drop((slow, other));
        let content = server.receive(&mut last);
        assert!(content.len() > 12 << 20, "{}", content.len());
    });
}

#[test]
fn an_archive_keeps_no_small_file_open() {
    for is_local in [true, false] {
        simulated(is_local, |server, budget| {
            let bytes = 64 << 10;
            for number in 0..40 {
                server.add(&format!("small/{number}"), &vec![b'x'; bytes]);
            }
            server.add("large/file", &vec![b'x'; 40 * bytes]);
            let (mut small, status) = ask(server, &archive("small"));
            assert_eq!((&status[..], budget.used().files), ("200", 0), "{is_local}");
            let (_large, status) = ask(server, &archive("large"));
            assert_eq!((&status[..], budget.used().files), ("200", 1), "{is_local}");
            let rest = server.receive(&mut small);
            assert!(rest.len() > 39 * bytes, "{}", rest.len());
        });
    }
}

#[test]
fn the_metric_of_open_files_is_that_of_the_moment() {
    simulated(true, |server, budget| {
        assert_eq!(metric(server, "onrush_shares_max", ""), 6.0);
        for _ in 0..40 {
            assert!(budget.open_connection());
        }
        assert_eq!(metric(server, "onrush_shares_max", ""), 2.0);
    });
}
