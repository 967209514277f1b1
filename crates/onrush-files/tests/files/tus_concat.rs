//! The extension `concatenation` of tus on both drivers and in the simulator.

use crate::common::tus::{METADATA, append, create, request, target_of};
use crate::common::{TestServer, on_all_backends, on_all_backends_at, wait_until, writable};
use onrush_files::{FilesOptions, UploadLimits};
use onrush_rt::fs::sim::SimFs;

/// A partial upload with this content.
fn partial(server: &mut TestServer, path: &str, content: &[u8]) -> String {
    let fields = format!("Upload-Length: {}\nUpload-Concat: partial", content.len());
    let url = create(server, path, &fields);
    assert_eq!(append(server, &url, 0, "", content).status, 204);
    url
}

/// The status of a request that joins uploads, and the URL of the result.
fn join(server: &mut TestServer, path: &str, urls: &[&str], more: &str) -> (u16, Option<String>) {
    let urls = urls.join(" ");
    let head = format!("POST {path}\nUpload-Concat: final;{urls}{more}");
    let reply = request(server, &head, b"");
    (reply.status, reply.field("location").map(str::to_owned))
}

fn head(server: &mut TestServer, url: &str) -> u16 {
    request(server, &format!("HEAD {url}"), b"").status
}

/// The number of files of unfinished uploads.
fn left(server: &TestServer) -> usize {
    let count = |path: &[u8]| {
        let mut count = 0;
        if let Ok(dir) = server.root().open_dir(path) {
            let read = dir.read_dir(&mut |_, _| {
                count += 1;
                std::ops::ControlFlow::Continue(())
            });
            read.expect("readable");
        }
        count
    };
    count(b".onrush/uploads") + count(b".onrush/state/uploads")
}

#[test]
fn parts_are_joined_in_the_order_of_the_list() {
    on_all_backends_at("/m/", &writable(), |server| {
        let long = vec![b'x'; 300_000];
        // Without a name, with one, and at the URL of the object.
        let first = partial(server, "/m/folder/", b"hello ");
        let more = format!("Upload-Length: 5\nUpload-Concat: partial\nUpload-Metadata: {METADATA}");
        let second = create(server, "/m/folder/", &more);
        let third = partial(server, "/m/folder/a%20b.txt", &long);
        let empty = partial(server, "/m/other/", b"");
        let reply = request(server, &format!("HEAD {second}"), b"");
        assert_eq!(reply.field("upload-concat"), Some("partial"));
        assert_eq!(reply.field("upload-metadata"), Some(METADATA));
        let absolute = |url: &str| format!("https://elsewhere.example{url}");
        let urls = [&first[..], &absolute(&second), &absolute(&third), &empty];
        let metadata = format!("\nUpload-Metadata: {METADATA}");
        let refused = join(server, "/m/folder/", &urls, &metadata);
        assert_eq!(refused, (409, None), "the second one is not complete");
        assert_eq!(append(server, &second, 0, "", b"world").status, 204);
        // None of them is an object, and the folder does not exist.
        for url in [&first, &second, &third] {
            let (path, _) = url.split_once('?').expect("a query");
            assert_eq!(server.get(path).status, 404, "{path}");
        }
        assert_eq!(server.get("/m/folder/").status, 404);
        let (status, url) = join(server, "/m/folder/", &urls, &metadata);
        assert_eq!(status, 201);
        let url = url.expect("a URL");
        // Some clients drop the query of a path.
        let path = url.strip_prefix("http://test").expect("an absolute URL");
        assert!(path.starts_with("/m/folder/a%20b.txt?upload-id="), "{url}");
        let got = server.get("/m/folder/a%20b.txt");
        assert!(got.body == [b"hello world", &long[..]].concat());
        assert_eq!(got.field("content-type"), Some("text/x-test"));
        let length = (11 + long.len()).to_string();
        let reply = request(server, &format!("HEAD {url}"), b"");
        assert_eq!(reply.status, 200);
        assert_eq!(reply.field("upload-offset"), Some(&length[..]));
        assert_eq!(reply.field("upload-length"), Some(&length[..]));
        let concat = format!("final;{}", urls.join(" "));
        assert_eq!(reply.field("upload-concat"), Some(&concat[..]));
        assert_eq!(append(server, &url, 11 + long.len(), "", b"!").status, 403);
        // The parts are gone.
        assert_eq!(head(server, &first), 404);
        assert_eq!(join(server, "/m/folder/x", &urls, "").0, 404);
        wait_until(server, |server| (left(server), server.staged()) == (0, 0));
    });
}

#[test]
fn what_is_refused_changes_nothing() {
    let options = FilesOptions {
        upload_limits: UploadLimits {
            object_bytes_max: 9,
            ..UploadLimits::default()
        },
        ..writable()
    };
    on_all_backends(&options, |server| {
        server.put("/x", b"old");
        server.add_folder("folder");
        let one = partial(server, "/", b"12345");
        let two = partial(server, "/", b"6789");
        let whole = create(server, "/y", "Upload-Length: 1");
        let open = create(
            server,
            "/",
            "Upload-Defer-Length: 1\nUpload-Concat: partial",
        );
        let (other, id) = one.split_once('?').expect("a query");
        let elsewhere = format!("/elsewhere?{id}");
        let unknown = format!("{other}?upload-id={}", "0".repeat(32));
        let both = [&one[..], &two];
        let twice = [&one[..], &one];
        let cases: [(&str, &[&str], &str, u16); 16] = [
            ("/x", &both, "\nIf-None-Match: *", 412),
            ("/x", &both, "\nIf-Match: \"other\"", 412),
            ("/x", &both, "\nUpload-Length: 9", 400),
            ("/", &both, "", 400), // There is no name.
            ("/folder", &both, "", 409),
            ("/x/y", &both, "", 409),
            ("/.hidden", &both, "", 403),
            ("/x", &twice, "", 400),
            ("/x", &[&one, &whole], "", 400),
            ("/x", &[&open], "", 409),
            ("/x", &[&one, &unknown], "", 404),
            ("/x", &[&elsewhere], "", 404),
            ("/x", &[other], "", 404),
            ("/x", &["/folder/"], "", 404),
            ("/x", &["//name", "http://name"], "", 404),
            ("/x", &[], "", 400),
        ];
        for (path, urls, more, status) in cases {
            let found = join(server, path, urls, more);
            assert_eq!(found, (status, None), "{path} {urls:?} {more}");
        }
        for concat in [
            "final",
            "Partial",
            "partial;",
            &format!("final;{}", "a".repeat(9000)),
        ] {
            let fields = format!("POST /x\nUpload-Length: 1\nUpload-Concat: {concat}");
            assert_eq!(request(server, &fields, b"").status, 400, "{concat:.20}");
        }
        // Together they are too long.
        let more = partial(server, "/", b"0");
        let three = [&one[..], &two, &more];
        assert_eq!(join(server, "/x", &three, "").0, 413);
        // The other protocol does not make an object of a part.
        let patch = format!(
            "PATCH {more}\nUpload-Complete: ?1\nUpload-Offset: 1\n\
             Content-Type: application/partial-upload\nContent-Length: 0"
        );
        assert_eq!(server.request(&patch, b"").status, 409);
        assert_eq!(server.get("/x").text(), "old");
        assert_eq!(server.staged(), 0);
        assert_eq!(request(server, &format!("DELETE {more}"), b"").status, 204);
        assert_eq!(head(server, &more), 404);
        let tag = server.get("/x").etag().to_owned();
        let found = join(server, "/x", &both, &format!("\nIf-Match: {tag}"));
        assert_eq!(found.0, 201);
        assert_eq!(server.get("/x").text(), "123456789");
    });
}

#[test]
fn partial_uploads_count_and_expire() {
    let options = FilesOptions {
        upload_limits: UploadLimits {
            age_max_s: 100,
            count_max: 4, // Half of it, and of the bytes, for one client.
            bytes_max: 3000,
            ..UploadLimits::default()
        },
        ..writable()
    };
    on_all_backends(&options, |server| {
        let content = vec![b'x'; 1400];
        let one = partial(server, "/", &content);
        let refused = |server: &mut TestServer, bytes: usize| {
            let fields = format!("POST /\nUpload-Length: {bytes}\nUpload-Concat: partial");
            request(server, &fields, b"").status
        };
        assert_eq!(refused(server, 101), 507);
        let two = partial(server, "/", b"y");
        assert_eq!(refused(server, 1), 429);
        // The object is not unfinished, so the limit is not one of its size.
        assert_eq!(join(server, "/x", &[&one, &two], "").0, 201);
        assert_eq!(server.get("/x").body.len(), 1401);
        let one = partial(server, "/", &content);
        if server.is_simulated() {
            server.advance(101_000);
            assert_eq!(join(server, "/y", &[&one], "").0, 404);
            server.advance(60_000);
            assert_eq!(left(server), 0, "removed");
        }
    });
}

/// A client that has lost the response sends its request again.
#[test]
fn a_repeated_request_has_joined_before() {
    on_all_backends(&writable(), |server| {
        let one = partial(server, "/", b"12345");
        let two = partial(server, "/", b"6789");
        let more = "\nIf-None-Match: *";
        let (status, url) = join(server, "/x", &[&one, &two], more);
        assert_eq!(status, 201);
        assert_eq!(join(server, "/x", &[&one, &two], more), (201, url));
        assert_eq!(
            join(server, "/x", &[&two, &one], "").0,
            404,
            "another order"
        );
        assert_eq!(join(server, "/y", &[&one, &two], "").0, 404);
        assert_eq!(server.get("/x").text(), "123456789");
    });
}

/// The process is killed after it has responded, or while the response is on its way.
#[test]
fn the_next_process_knows_an_upload_that_was_just_completed() {
    for is_late in [false, true] {
        let disk = SimFs::new(1);
        let start = || TestServer::simulated_on(disk.clone(), "/", &writable(), 1);
        let mut server = start();
        let url = create(&mut server, "/a", "Upload-Length: 11");
        assert_eq!(append(&mut server, &url, 0, "", b"hello ").status, 204);
        assert_eq!(append(&mut server, &url, 6, "", b"world").status, 204);
        if is_late {
            server.advance(3_000);
        }
        drop(server);
        disk.kill_processes();
        let mut server = start();
        let reply = request(&mut server, &format!("HEAD {url}"), b"");
        let offset = reply.field("upload-offset");
        match is_late {
            true => assert_eq!(reply.status, 404, "its client has known it for long"),
            false => assert_eq!((reply.status, offset), (200, Some("11"))),
        }
        assert_eq!(server.get("/a").text(), "hello world");
    }
}

/// The process ends at any operation of the disk. The client sends its request again, and the next
/// process makes the object, or says that it is there.
#[test]
fn a_request_is_repeated_after_the_end_of_the_process() {
    let (mut made, mut found) = (0, 0);
    for number in 0..400 {
        let disk = SimFs::new(number);
        disk.set_journaled(true);
        let start = || TestServer::simulated_on(disk.clone(), "/", &writable(), number);
        let mut server = start();
        let first = vec![b'x'; 40_000];
        let one = partial(&mut server, "/", &first);
        let two = partial(&mut server, "/", b"6789");
        let begin = disk.operations();
        for later in number..number + 400 {
            disk.fail_at(begin + later, 5);
        }
        let more = "\nIf-None-Match: *";
        let (status, _) = join(&mut server, "/x", &[&one, &two], more);
        let is_complete = disk.operations() < begin + number;
        drop(server);
        disk.clear_faults();
        disk.kill_processes();
        let mut server = start();
        let was_there = server.get("/x").status == 200;
        if was_there && left(&server) == 0 {
            assert_eq!(status, 201, "{number}"); // All was done, and the client knows it.
        } else {
            let (status, url) = join(&mut server, "/x", &[&one, &two], more);
            assert_eq!(status, 201, "{number}");
            let url = target_of(&url.expect("a URL"));
            let reply = request(&mut server, &format!("HEAD {url}"), b"");
            assert_eq!(reply.field("upload-offset"), Some("40004"), "{number}");
            match was_there {
                true => found += 1,
                false => made += 1,
            }
        }
        assert!(
            server.get("/x").body == [&first[..], b"6789"].concat(),
            "{number}"
        );
        for url in [&one, &two] {
            assert_eq!(head(&mut server, url), 404, "{number}");
        }
        // The record of the upload that has joined them stays until its age, without bytes; or
        // bytes without a record do, which a start of the program removes.
        wait_until(&mut server, |server| left(server) <= 1);
        if is_complete {
            assert!(made > 5 && found > 5, "{made} {found}");
            return;
        }
    }
    panic!("the request does not end");
}
