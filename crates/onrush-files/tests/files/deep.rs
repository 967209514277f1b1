//! Deep paths: the depth limit, and that creating their folders does not delay other clients.

use crate::common::*;
use onrush::{Router, Server};
use onrush_files::{Files, FilesOptions, Guard, Hosts};
use onrush_rt::blocking::BlockingPool;
use onrush_rt::fs::sim::SimFs;
use onrush_store::{Folder, FolderOptions};
use std::time::Duration;

/// A path of the maximum depth can be written and read. A deeper path is refused, and no folder is
/// created for it.
#[test]
fn too_deep_paths_are_refused_and_create_nothing() {
    on_all_backends(&writable(), |server| {
        let legal = ["x"; 64].join("/");
        assert_eq!(server.put(&format!("/{legal}"), b"deep").status, 201);
        assert_eq!(server.get(&format!("/{legal}")).body, b"deep");
        assert_eq!(server.delete(&format!("/{legal}")).status, 204);

        for depth in [65, 66, 1000, 2048] {
            let path = format!("/y/{}", vec!["x"; depth - 1].join("/"));
            let put = server.put(&path, b"deeper");
            assert_eq!(put.status, 400, "{}: {depth}", server.name);
            assert!(put.text().contains("too many segments"), "{}", put.text());
            let big = server.put(&path, &pattern(100_000));
            assert_eq!(big.status, 400, "{}: {depth}", server.name);
            assert_eq!(server.delete(&path).status, 404);
            assert_eq!(server.get(&path).status, 404);
            assert_eq!(server.get(&format!("{path}/")).status, 404);
            assert_eq!(server.request(&format!("HEAD {path}"), b"").status, 404);
            assert!(
                server.root().metadata(b"y").is_err(),
                "a folder was created"
            );
        }
        assert_eq!(server.staged(), 0);
    });
    let shallow = FilesOptions {
        depth_max: 2,
        ..writable()
    };
    on_all_backends(&shallow, |server| {
        assert_eq!(server.put("/a/b", b"x").status, 201);
        assert_eq!(server.put("/a/c/d", b"x").status, 400);
        server.add("made/by/others", b"x");
        assert_eq!(server.get("/made/by/others").status, 200);
        assert_eq!(server.get("/made/by/").status, 200);
        assert_eq!(server.put("/made/by/others", b"y").status, 400);
        assert_eq!(server.delete("/made/by/others").status, 204);
    });
}

/// The disk blocks the creation of folders for a while. Forty clients with valid paths wait for it.
/// Another client that needs no new folder is served, and so are reads.
#[test]
fn clients_are_served_while_others_wait_for_new_folders() {
    const TIMEOUT: Duration = Duration::from_secs(20);
    for driver in drivers() {
        let disk = SimFs::new(1);
        let root = disk.root().unwrap();
        let store = Folder::on(
            root,
            BlockingPool::threads(16, 1024),
            FolderOptions::default(),
        )
        .unwrap();
        let files = Files::new(store, writable());
        let router = Router::new().any("/{*key}", files);
        let server = Server::bind("127.0.0.1:0").workers(1).driver(driver);
        let running = server.start(Guard::new(Hosts::any(), router)).unwrap();
        let address = running.address().to_string();
        assert_eq!(request_to(&address, "PUT", "/here", b"before").status, 201);

        disk.hold_folders(true);
        std::thread::scope(|scope| {
            let deep: Vec<_> = (0..40)
                .map(|number| {
                    let path = format!("/{number}/{}", ["x"; 63].join("/"));
                    let address = &address;
                    scope.spawn(move || request_to(address, "PUT", &path, b"deep").status)
                })
                .collect();
            assert_eq!(
                disk.wait_for_held(4, TIMEOUT),
                4,
                "a quarter of the threads"
            );
            // `request_to` has a timeout of twenty seconds.
            for number in 0..100 {
                let path = format!("/plain-{number}");
                assert_eq!(request_to(&address, "PUT", &path, b"plain").status, 201);
                assert_eq!(request_to(&address, "GET", &path, b"").body, b"plain");
            }
            assert_eq!(request_to(&address, "DELETE", "/here", b"").status, 204);
            assert_eq!(disk.wait_for_held(1, TIMEOUT), 4);
            disk.hold_folders(false);
            for client in deep {
                assert_eq!(client.join().unwrap(), 201, "{driver:?}");
            }
        });
        running.handle().shutdown_now();
        running.wait().unwrap();
    }
}
