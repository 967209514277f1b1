//! Storage errors: the response and the log line. They run on the simulated disk in this thread, so
//! that the log can be captured.

use crate::common::*;
use testing::log::{Log, with_subscriber};

#[test]
fn only_storage_errors_are_logged() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .with_max_level(tracing::Level::WARN)
        .finish();
    with_subscriber(subscriber, || {
        for seed in 1..=3 {
            let server = || {
                let server = TestServer::simulated("/", &writable(), seed);
                server.add("there", b"content");
                server.add("folder/x", b"content");
                server
            };
            let failing = |server: &mut TestServer, errno: i32, head: &str, body: &[u8]| {
                let disk = server.disk().clone();
                for number in 0..50 {
                    disk.fail_at(disk.operations() + number, errno);
                }
                let reply = server.request(head, body);
                disk.clear_faults();
                (reply.status, reply.text().to_owned(), log.take())
            };
            let table = [
                (libc::EIO, "PUT /a%20b", 500, "the disk failed\n"),
                (libc::ENOSPC, "PUT /a%20b", 507, "the disk is full\n"),
                (libc::EDQUOT, "PUT /a%20b", 507, "the disk is full\n"),
                (libc::EROFS, "PUT /a%20b", 503, "the disk is read-only\n"),
                (libc::EROFS, "DELETE /there", 503, "the disk is read-only\n"),
                (libc::EIO, "GET /there", 500, "the disk failed\n"),
                (libc::EIO, "GET /folder/", 500, "the disk failed\n"),
            ];
            for (errno, head, status, text) in table {
                for size in [3, 100_000] {
                    let body = match head.starts_with("PUT") {
                        true => pattern(size),
                        false => Vec::new(),
                    };
                    // One server for each, because a server's log lines are rate limited.
                    let (got, body_text, logged) = failing(&mut server(), errno, head, &body);
                    let what = format!("{head}, {errno}: {got} {body_text} {logged}");
                    assert_eq!((got, &body_text[..]), (status, text), "{what}");
                    assert_eq!(logged.lines().count(), 1, "{what}");
                    assert!(logged.contains("WARN"), "{what}");
                    let path = head.split_once(" /").unwrap().1.trim_end_matches('/');
                    assert!(logged.contains(&format!("key=\"{path}\"")), "{what}");
                    assert!(logged.contains(&format!("errno={errno}")), "{what}");
                }
            }
            let mut server = server();
            let (status, _, logged) = failing(&mut server, libc::EACCES, "PUT /c", b"x");
            assert_eq!((status, logged.lines().count()), (403, 1), "{logged}");
            assert!(
                logged.contains(&format!("errno={}", libc::EACCES)),
                "{logged}"
            );
            assert!(logged.contains("the file system denied access"), "{logged}");
            let (status, _, logged) = failing(&mut server, libc::EACCES, "GET /there", b"");
            assert_eq!((status, logged.lines().count()), (403, 1), "{logged}");
            assert_eq!(server.get("/none").status, 404);
            assert_eq!(server.put("/folder", b"x").status, 409);
            assert_eq!(server.get("/there").body, b"content");
            assert_eq!(log.take(), "");
        }
    });
}
