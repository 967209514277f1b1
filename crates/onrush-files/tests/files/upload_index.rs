//! Unfinished uploads of an earlier process are read once, however many requests need them.

use crate::common::hooked::{Call, Hooked, Hooks};
use crate::common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_rt::coop;
use onrush_store::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

const REQUESTS: usize = 8;

/// What is counted. The first listing of the server's own objects lasts until all requests have
/// arrived.
#[derive(Debug)]
struct Counted {
    looked_up: AtomicUsize,
    listed: AtomicUsize,
    since: Instant,
}

impl Hooks for Counted {
    fn before(&self, call: Call) -> LocalFuture<'_, Result<()>> {
        Box::pin(async move {
            if call == Call::ListOwn {
                self.listed.fetch_add(1, SeqCst);
                let is_waiting = || self.looked_up.load(SeqCst) < REQUESTS;
                while is_waiting() && self.since.elapsed() < Duration::from_secs(30) {
                    coop::yield_now().await;
                }
            }
            Ok(())
        })
    }

    fn after(&self, call: Call) -> LocalFuture<'_, ()> {
        if call == Call::ExistingObject {
            self.looked_up.fetch_add(1, SeqCst);
        }
        Box::pin(async {})
    }
}

#[test]
fn requests_after_a_start_wait_for_one_that_reads() {
    for driver in drivers() {
        let dir = TempDir::new();
        let pool = BlockingPool::threads(2, 64);
        let store = Arc::new(Hooked {
            folder: Folder::open(dir.path(), pool, FolderOptions::default()).expect("a folder"),
            hooks: Counted {
                looked_up: AtomicUsize::new(0),
                listed: AtomicUsize::new(0),
                since: Instant::now(),
            },
        });
        let mut server = TestServer::on_store(store.clone(), &writable(), driver);
        let begin = |at| {
            let mut connection = server.connect();
            let head = format!(
                "PUT /{at} HTTP/1.1\r\nHost: test\r\nUpload-Complete: ?0\r\nUpload-Length: 9\r\n\
                 If-None-Match: \"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            server.send(&mut connection, head.as_bytes());
            connection
        };
        let connections: Vec<Connection> = (0..REQUESTS).map(begin).collect();
        for mut connection in connections {
            let reply = Reply::parse(&server.receive(&mut connection), false);
            assert_eq!(reply.status, 201, "{}", reply.text());
        }
        assert!(store.hooks.looked_up.load(SeqCst) >= REQUESTS);
        // One reads for the requests, and one looks for old uploads.
        let listed = store.hooks.listed.load(SeqCst);
        assert!((1..=2).contains(&listed), "{listed}");
    }
}
